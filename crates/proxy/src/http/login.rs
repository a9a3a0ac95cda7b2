//! Requests that are not taken from everybody: requests of users with passwords (RFC 7617), and
//! requests that a group is asked about ([`super::ask`]).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_manager::auth::{Auth, By, Users, basic_credentials};

use super::ask::Question;
use super::route::{BalancerAnswer, RequestRoute};
use super::{After, Client, Request, Summary};
use crate::access::End;
use crate::http1::Hop;
use crate::http1::forward::User;
use crate::http1::respond::{Answer, AnswerExtras};
use crate::message;
use crate::passwords::{Proof, compare_password};
use crate::watch::Stop;

/// Longest time that a password may wait to be compared.
const PATIENCE: Duration = Duration::from_secs(30);

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
    user: Box<str>,
    password: Box<str>,
    /// The user, if there is one of that name.
    known: Option<Arc<str>>,
    proof: Proof,
    is_proved: bool,
}

/// Verdict about a request that has to pass a login.
enum Verdict {
    Right,
    Wrong,
    Missing,
    Busy,
    Gone,
}

impl Login {
    /// Returns the login that the head of a request has, for the users or the group of `auth`.
    fn of_request(
        auth: &Auth,
        routed: &RequestRoute,
        request: &message::Request<'_>,
        hop: &Hop,
        client: &super::Session,
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

impl Client {
    /// Lets a request pass, or answers it: how the connection goes on then.
    pub(super) async fn log_in(
        &mut self,
        request: &mut Request,
        mut login: Box<Login>,
        summary: &mut Summary,
    ) -> Option<After> {
        let routed = request.routed.clone();
        let auth = routed.route().auth.as_ref()?;
        let (verdict, known, challenge) = match (
            std::mem::replace(&mut *login, Login::Passed(None)),
            &auth.by,
        ) {
            (Login::Asks(question), By::Group(asked)) => {
                match self
                    .ask_permission(request, auth, asked, question, summary)
                    .await
                {
                    Ok(user) => {
                        *login = Login::Passed(user);
                        request.login = Some(login);
                        return None;
                    }
                    Err(after) => return Some(after),
                }
            }
            (Login::Password(of), By::Users { users, challenge }) => {
                let verdict = self.check_password(users, of.as_ref()).await;
                (verdict, of.and_then(|of| of.known), challenge)
            }
            // What a head says of itself is what its route wants.
            _ => return Some(After::Cut),
        };
        let metrics = &self.session.service.metrics;
        let (end, status, text) = match verdict {
            Verdict::Right => {
                metrics.auth_passed.add(1);
                *login = Login::Passed(known);
                request.login = Some(login);
                return None;
            }
            Verdict::Missing => {
                metrics.auth_missing.add(1);
                (End::Unauthorized, 401, "A user and a password are needed.")
            }
            Verdict::Wrong => {
                metrics.auth_wrong.add(1);
                (End::Unauthorized, 401, "The user or the password is wrong.")
            }
            Verdict::Busy => {
                metrics.auth_busy.add(1);
                let text = "Too many passwords are being compared. Try again later.";
                (End::Refused, 503, text)
            }
            Verdict::Gone => {
                summary.end = End::Terminated;
                return Some(After::Cut);
            }
        };
        summary.end = end;
        let answer = Answer {
            retry_after: (status == 503).then_some(1),
            more: AnswerExtras {
                challenge: (status == 401).then_some(&**challenge),
                ..AnswerExtras::default()
            },
            ..Answer::new_closing(status, text)
        };
        Some(self.give_instead(request, summary, answer).await)
    }

    async fn check_password(&mut self, users: &Arc<Users>, of: Option<&Credentials>) -> Verdict {
        let Some(of) = of else {
            return Verdict::Missing;
        };
        if of.is_proved {
            return Verdict::Right;
        }
        let client = self.session.peer.ip();
        let client = client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let Ok(mut answered) = compare_password(client, users, &of.user, &of.password) else {
            return Verdict::Busy;
        };
        let Client {
            session, stream, ..
        } = self;
        session.watch.arm_and_look(PATIENCE);
        let waited = session.watch.poll_until_stop(|cx| {
            if session.is_gone(cx, stream) {
                return Poll::Ready(None);
            }
            Future::poll(std::pin::Pin::new(&mut answered), cx).map(Some)
        });
        let waited = waited.await;
        session.watch.disarm_deadline();
        match waited {
            Ok(Some(Ok(true))) => {
                session.worker.proofs.borrow_mut().add_proof(of.proof);
                Verdict::Right
            }
            Ok(Some(Ok(false))) => Verdict::Wrong,
            Ok(Some(Err(_))) | Err(Stop::Expired) => Verdict::Busy,
            Ok(None) | Err(Stop::Cut) => Verdict::Gone,
        }
    }
}

impl RequestRoute {
    /// Returns the login of the request, if the route takes requests of some users only. Browsers
    /// send preflights without credentials.
    pub(super) fn new_login(
        &self,
        given: Option<&BalancerAnswer>,
        request: &message::Request<'_>,
        hop: &Hop,
        session: &super::Session,
    ) -> Option<Box<Login>> {
        let auth = self.route().auth.as_deref()?;
        if given.is_some_and(BalancerAnswer::is_preflight) {
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
