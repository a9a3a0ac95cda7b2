//! Logging in and out, for browsers.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::ConnectInfo;
use axum::http::header::{COOKIE as COOKIES, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use evenkeel_net::http::answer::retry_after_seconds;
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::{Access, NoLogin};
use crate::actor::{Actor, Role};
use crate::audit::{AuditDescription, AuditUser};
use crate::body::Body;
use crate::conn::Peer;
use crate::error::ApiError;
use crate::guard::{is_secure, session_cookie, session_of};
use crate::wire::{Credentials, Done, LoggedIn};

/// User who asks, and the user's session.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SessionStatus {
    /// The name; `null` if nobody is logged in.
    user: Option<String>,
    role: Option<Role>,
    /// Second secret, which requests that change anything must carry as `X-Csrf-Token`; `null` if they need
    /// none.
    csrf: Option<String>,
    /// True if users can log in: there are some.
    login: bool,
    /// True if the user needs no login here.
    free: bool,
}

/// Settings that the handlers of logins need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cookies {
    /// True if the API speaks TLS.
    pub(crate) has_tls: bool,
    /// True if a proxy may speak TLS instead.
    pub(crate) behind_proxy: bool,
    /// True if there are users.
    pub(crate) has_users: bool,
}

impl Cookies {
    fn are_secure(self, headers: &HeaderMap) -> bool {
        is_secure(self.has_tls, self.behind_proxy, headers)
    }

    /// Returns the field that sets the cookie, for `seconds` seconds.
    fn set(self, value: &str, seconds: u64, headers: &HeaderMap) -> Option<HeaderValue> {
        let is_secure = self.are_secure(headers);
        let secure = if is_secure { "; Secure" } else { "" };
        let name = session_cookie(is_secure);
        let text =
            format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::try_from(text).ok()
    }
}

pub(crate) async fn handle_login(
    Extension(access): Extension<Arc<Access>>,
    Extension(cookies): Extension<Cookies>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    Body(given): Body<Credentials>,
) -> Response {
    let from = peer.address.ip();
    let now = Instant::now();
    let login = match cookies.has_users {
        true => {
            access
                .check_login(&given.user, &given.password, from, now)
                .await
        }
        false => Err(NoLogin::NoUsers),
    };
    let mut response = match login {
        Ok(login) => {
            let set = cookies.set(&login.cookie, access.session_lifetime().as_secs(), &headers);
            let body = LoggedIn {
                user: given.user.clone(),
                role: login.role,
                csrf: login.csrf,
            };
            let mut response = Json(body).into_response();
            response
                .headers_mut()
                .extend(set.map(|set| (SET_COOKIE, set)));
            let who = AuditUser(given.user.clone(), login.role);
            response.extensions_mut().insert(who);
            response
        }
        Err(refused) => refuse_login(refused),
    };
    // What is no name may be a password in the wrong field.
    let told = match access.is_user(&given.user) {
        true => format!("login of {:?}", given.user),
        false => "login of an unknown user".to_owned(),
    };
    response.extensions_mut().insert(AuditDescription(told));
    response
}

fn refuse_login(refused: NoLogin) -> Response {
    let (status, word, detail, wait) = match refused {
        NoLogin::Wrong => {
            let detail = "the name or the password is wrong";
            (
                StatusCode::UNAUTHORIZED,
                "wrong_login",
                detail.to_owned(),
                None,
            )
        }
        NoLogin::NoUsers => {
            let detail =
                "nobody can log in, as [admin] has no users_file: send requests without a login";
            (StatusCode::NOT_FOUND, "no_users", detail.to_owned(), None)
        }
        NoLogin::Wait(wait) => {
            let seconds = retry_after_seconds(wait);
            let detail = format!("too many logins have failed: try again in {seconds} seconds");
            (
                StatusCode::TOO_MANY_REQUESTS,
                "locked_out",
                detail,
                Some(seconds),
            )
        }
        NoLogin::Busy => {
            let detail = "too many others are logging in: try again in a moment";
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                detail.to_owned(),
                Some(NonZeroU32::MIN),
            )
        }
        NoLogin::NoRandom => {
            let detail = "the system gives no random numbers for a session";
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "no_session",
                detail.to_owned(),
                None,
            )
        }
    };
    let mut response = ApiError::new(status, word, detail).into_response();
    let wait = wait.map(|seconds| (RETRY_AFTER, HeaderValue::from(seconds.get())));
    response.headers_mut().extend(wait);
    response
}

pub(crate) async fn handle_logout(
    Extension(access): Extension<Arc<Access>>,
    Extension(cookies): Extension<Cookies>,
    headers: HeaderMap,
) -> Response {
    let name = session_cookie(cookies.are_secure(&headers));
    let sent = headers.get_all(COOKIES).iter();
    for cookie in sent.filter_map(|sent| session_of(sent, name)) {
        access.end_session(cookie);
    }
    let mut response = Json(Done { ok: true }).into_response();
    let gone = cookies.set("", 0, &headers);
    response
        .headers_mut()
        .extend(gone.map(|gone| (SET_COOKIE, gone)));
    response
}

pub(crate) async fn show_session(
    Extension(cookies): Extension<Cookies>,
    actor: Option<Extension<Actor>>,
) -> Json<SessionStatus> {
    let actor = actor.map(|Extension(actor)| actor);
    Json(SessionStatus {
        user: actor.as_ref().map(|actor| actor.user.clone()),
        role: actor.as_ref().map(|actor| actor.role),
        login: cookies.has_users,
        free: actor.as_ref().is_some_and(|actor| actor.csrf.is_none()),
        csrf: actor.and_then(|actor| actor.csrf),
    })
}
