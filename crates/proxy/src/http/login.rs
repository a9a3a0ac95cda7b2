//! Logins that requests have where not everybody's requests pass: passwords of users (RFC 7617),
//! and questions to a group.

use std::sync::Arc;

use evenkeel_manager::auth::{Auth, By, basic_credentials};
use evenkeel_manager::config::routing::path;

use super::asked_models::{AskedModels, MODELS_PATH};
use super::question::Question;
use super::route::{BalancerAnswer, RequestRoute, join_prefix};
use crate::http1::Hop;
use crate::http1::forward::{Changes, User};
use crate::message;
use crate::passwords::Proof;
use crate::session::Session;

/// Login of a request, where not everybody's requests pass. No output shows the login, as it has
/// the password.
pub(super) enum Login {
    /// Credentials that the client has sent, which are compared with a file.
    Password(Option<Credentials>),
    /// Question that a group is asked.
    Asks(Question),
    /// The request may pass; the user, if the user is known.
    Passed(Option<Arc<str>>),
}

pub(super) struct Credentials {
    /// The user and the password.
    pub(super) user: Box<str>,
    pub(super) password: Box<str>,
    /// The user, if there is one of that name.
    pub(super) known: Option<Arc<str>>,
    pub(super) proof: Proof,
    pub(super) is_proved: bool,
}

impl Login {
    /// Returns the login that the head of a request has, for the users or the group of `auth`.
    fn of_request(
        auth: &Auth,
        routed: &RequestRoute,
        request: &message::Request<'_>,
        hop: &Hop,
        client: &Session,
    ) -> Self {
        let users = match &auth.by {
            By::Users { users, .. } => users,
            By::Group(asked) => {
                return Login::Asks(Question::of_request(asked, routed, request, hop, client));
            }
        };
        let credentials = parse_credentials(request).map(|(user, password)| {
            let proofs = client.worker.proofs.borrow();
            let proof = proofs.new_proof(users, &user, &password);
            Credentials {
                is_proved: proofs.has_proof(&proof),
                known: users.user(&user),
                user,
                password,
                proof,
            }
        });
        Login::Password(credentials)
    }

    /// The user, if the request may pass and that is known.
    pub(super) fn passed_user(&self) -> Option<&Arc<str>> {
        match self {
            Login::Passed(user) => user.as_ref(),
            Login::Password(_) | Login::Asks(_) => None,
        }
    }

    /// Returns what members are told of the user, if the request gets to them.
    pub(super) fn user_for_member<'a>(&'a self, auth: &'a Auth) -> User<'a> {
        let known = match self {
            Login::Password(Some(credentials)) => credentials.known.as_deref(),
            // What a group says is added when it has said it.
            _ => None,
        };
        User {
            field: auth.user_field.as_deref().zip(known),
            remove_authorization: auth.remove_authorization,
        }
    }
}

/// User and password. Several fields are ambiguous, and so are none.
fn parse_credentials(request: &message::Request<'_>) -> Option<(Box<str>, Box<str>)> {
    request
        .only_value("authorization")
        .and_then(basic_credentials)
}

impl RequestRoute {
    /// Returns the changes of the head of `request` on its way to a member.
    #[inline]
    pub(super) fn head_changes<'a>(
        &'a self,
        request: &message::Request<'a>,
        login: Option<&'a Login>,
    ) -> Changes<'a> {
        let route = self.route();
        let actions = route.actions_at(self.target_place());
        let login = login.zip(route.auth.as_deref());
        let asked = self.asked_models(request);
        let rewritten = || {
            let (segments, prefix) = actions.rewrite.as_ref()?;
            let rest = path::rest_after(request.path(), *segments);
            Some((join_prefix(prefix, rest), rest, request.query_part()))
        };
        Changes {
            target: match asked {
                // Not all engines tell a single model.
                Some(AskedModels::One(_)) => Some((MODELS_PATH, "", request.query_part())),
                _ => rewritten(),
            },
            fields: actions.request_fields.as_deref(),
            user: login
                .map(|(login, auth)| login.user_for_member(auth))
                .unwrap_or_default(),
            cookies: self.own_cookies(),
            says_forwarded: false,
            hides_codings: self.may_be_for_engines() || asked.is_some(),
            report_format: self.report_format(),
            marks: None,
        }
    }

    /// Returns the login of the request, if the route takes requests of some users only.
    pub(super) fn new_login(
        &self,
        given: Option<&BalancerAnswer>,
        request: &message::Request<'_>,
        hop: &Hop,
        session: &Session,
    ) -> Option<Box<Login>> {
        let auth = self.route().auth.as_deref()?;
        if given.is_some_and(BalancerAnswer::needs_no_login) {
            return None;
        }
        Some(Box::new(Login::of_request(
            auth, self, request, hop, session,
        )))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use evenkeel_manager::auth::MAX_PASSWORD;

    use super::*;
    use crate::message::tests::with_request;

    #[test]
    fn credentials_are_those_of_one_field() {
        let of = |fields: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            with_request(&head, parse_credentials)
        };
        let basic = |text: &[u8]| format!("Authorization: Basic {}\r\n", STANDARD.encode(text));
        let some = |user: &str, password: &str| Some((user.into(), password.into()));
        assert_eq!(of(&basic(b"anna:secret")), some("anna", "secret"));
        assert_eq!(of(&basic(b"anna:a:b ")), some("anna", "a:b "));
        assert_eq!(
            of(&basic("\u{e4}:\u{20ac}".as_bytes())),
            some("\u{e4}", "\u{20ac}")
        );
        assert_eq!(of("authorization:bASIC   YTpi  \r\n"), some("a", "b"));
        let long = [&b"a:"[..], &[b'x'; MAX_PASSWORD + 1]].concat();
        for bad in [
            String::new(),
            basic(b"anna"),
            basic(b"anna\xff:secret"),
            basic(b"anna:sec\nret"),
            basic(b"anna:sec\0ret"),
            basic(&long),
            basic(b"a:b") + &basic(b"a:b"),
            "Authorization: Basic\r\n".into(),
            "Authorization: Basic YTpi YTpi\r\n".into(),
            "Authorization: Basic YTp\r\n".into(),
            "Authorization: Bearer YTpi\r\n".into(),
            "Authorization: BasicYTpi\r\n".into(),
            "Proxy-Authorization: Basic YTpi\r\n".into(),
        ] {
            assert_eq!(of(&bad), None, "{bad}");
        }
    }
}
