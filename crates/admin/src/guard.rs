//! Checks of who may ask.
//!
//! Without a token the API is bound to loopback, and everybody on the machine may use
//! it, but no web page that a browser on the machine happens to show. A page cannot
//! read an answer of another origin; it can make the browser *send* requests, and by
//! DNS rebinding it can become the same origin under a name of its own. Hence:
//!
//! - without a token, `Host` must name loopback (a rebound name does not);
//! - what changes anything must be JSON, which a page cannot send to another origin
//!   without a preflight that nobody here answers, and must not come with the `Origin`
//!   of another host.
//!
//! With a token, the token is the proof: a page does not know it.
//!
//! With users, so is their token, or the cookie of a session, which no page of another site makes the
//! browser send. What a session changes must come with its second secret, too, which only a page of this
//! origin can read.
//!
//! A request that came through a proxy is refused, unless the configuration expects a
//! proxy in front: a proxy on this machine, the balancer itself among them, reaches
//! loopback, and whoever asks through it is anybody.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_TYPE, COOKIE as COOKIES, HOST, HeaderName, ORIGIN, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use evenkeel_manager::config::Admin;
use evenkeel_manager::config::fields::{SECURE_SESSION_COOKIE, SESSION_COOKIE, media_type};
use subtle::ConstantTimeEq;

use crate::access::{Access, Session};
use crate::actor::{Actor, Role};
use crate::conn::Peer;
use crate::error::ApiError;

/// Requirements that a request must meet.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    listen: IpAddr,
    /// Replaced while requests are answered. There is one for ever, or none.
    token: Option<Arc<RwLock<Arc<str>>>>,
    behind_proxy: bool,
    /// True if the API speaks TLS. Then no other name can lead to it: the certificate would not have that
    /// name.
    has_tls: bool,
    /// True if there are users.
    has_users: bool,
    /// True if clients on this machine need no proof.
    local_access: bool,
    access: Arc<Access>,
    /// Paths for which nobody needs to say who asks.
    open: Arc<HashSet<&'static str>>,
}

/// Field with the second secret, which a request of a session that changes anything carries.
const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");

impl Guard {
    pub(crate) fn new(settings: &Admin, access: Arc<Access>) -> Self {
        Guard {
            has_users: settings.users_file.is_some(),
            local_access: settings.local_access,
            access,
            open: Arc::default(),
            listen: settings.listen.ip(),
            token: settings
                .token
                .as_deref()
                .map(|token| Arc::new(RwLock::new(token.into()))),
            behind_proxy: settings.behind_proxy,
            has_tls: settings.tls.is_some(),
        }
    }

    /// Sets another token, which counts from now on. Whether there is a token at all decides where the API
    /// may listen, so that needs a restart.
    pub(crate) fn set_token(&self, token: Option<&str>) {
        if let (Some(known), Some(token)) = (&self.token, token) {
            let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
            if **known != *token {
                tracing::info!("the admin API's token has changed");
                *known = token.into();
            }
        }
    }

    /// Opens these paths: nobody needs to say there who asks.
    pub(crate) fn with_open_paths(mut self, paths: impl Iterator<Item = &'static str>) -> Self {
        self.open = Arc::new(paths.collect());
        self
    }

    /// Returns the user who asks; `None` where the user does not matter.
    fn find_actor(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        from: IpAddr,
        now: Instant,
    ) -> Result<Option<Actor>, ApiError> {
        if !self.behind_proxy {
            check_direct(headers)?;
        }
        let changes = !matches!(*method, Method::GET | Method::HEAD);
        let is_open = self.open.contains(uri.path()) || is_page(uri.path());
        let use_session = |cookie: &str| self.access.use_session(cookie, now);
        let actor = match self.identify_client(headers, changes, from, use_session) {
            // Who is not known may still log in, or be told that the process is alive.
            Err(_) if is_open && self.asks_for_proof() => None,
            actor => actor?,
        };
        if actor.is_none() && !is_open {
            return Err(ApiError::unauthorized());
        }
        if changes {
            check_origin(headers)?;
            check_content_type(headers)?;
        }
        Ok(actor)
    }

    /// True if clients must prove who they are.
    fn asks_for_proof(&self) -> bool {
        self.token.is_some() || self.has_users
    }

    fn identify_client(
        &self,
        headers: &HeaderMap,
        changes: bool,
        from: IpAddr,
        session_of_cookie: impl Fn(&str) -> Option<(Session, Role)>,
    ) -> Result<Option<Actor>, ApiError> {
        let actor = |user: &str| Actor {
            user: user.to_owned(),
            role: Role::Administer,
            from: Some(from),
            csrf: None,
        };
        if !self.asks_for_proof() {
            if !self.has_tls {
                self.check_host(headers)?;
            }
            return Ok(Some(actor("local")));
        }
        if let Some(given) = single_value(headers, &AUTHORIZATION)? {
            let (scheme, given) = given.split_once(' ').unwrap_or((given, ""));
            let is_bearer = scheme.eq_ignore_ascii_case("bearer");
            let given = Some(given.trim()).filter(|given| is_bearer && !given.is_empty());
            let given = given.ok_or_else(|| unauthorized(NO_TOKEN))?;
            if self.is_token(given) {
                return Ok(Some(actor("token")));
            }
            let user = self.access.of_token(given, from);
            return user.map(Some).ok_or_else(|| {
                unauthorized("the token is not the configured one, nor that of a user")
            });
        }
        let cookies = headers.get_all(COOKIES).iter();
        let name = session_cookie(is_secure(self.has_tls, self.behind_proxy, headers));
        let mut sent = cookies.filter_map(|sent| session_of(sent, name));
        let session = sent.find_map(session_of_cookie);
        if let Some((session, role)) = session {
            let given = single_value(headers, &CSRF)?;
            if changes && !given.is_some_and(|given| session.is_csrf(given)) {
                return Err(ApiError::new(
                    StatusCode::FORBIDDEN,
                    "wrong_csrf_token",
                    "a change by a session needs the field X-Csrf-Token, with the value that GET /v1/session gives",
                ));
            }
            return Ok(Some(Actor {
                user: session.user,
                role,
                from: Some(from),
                csrf: Some(session.csrf),
            }));
        }
        if self.local_access
            && from.to_canonical().is_loopback()
            && self.check_host(headers).is_ok()
        {
            return Ok(Some(actor("local")));
        }
        match self.has_users {
            true => Ok(None),
            false => Err(unauthorized(NO_TOKEN)),
        }
    }

    /// True if a client with these fields would still be let through, long after its request. The check is no
    /// use of the client's session.
    pub(crate) fn still_allows(&self, headers: &HeaderMap, from: IpAddr, now: Instant) -> bool {
        let session = |cookie: &str| self.access.look_at(cookie, now);
        let actor = self.identify_client(headers, false, from, session);
        actor.is_ok_and(|actor| actor.is_some())
    }

    fn is_token(&self, given: &str) -> bool {
        let Some(token) = &self.token else {
            return false;
        };
        let token = Arc::clone(&token.read().unwrap_or_else(PoisonError::into_inner));
        // The time tells at most whether the length is right.
        given.as_bytes().ct_eq(token.as_bytes()).into()
    }

    fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = single_value(headers, &HOST)?.unwrap_or_default();
        let name = host_of(host);
        let by_address = name
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback() || ip == self.listen);
        if by_address || name.eq_ignore_ascii_case("localhost") {
            return Ok(());
        }
        Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "wrong_host",
            format!(
                "the Host field says {host:?}; without a token the API answers to loopback only"
            ),
        )
        .with_allowed(["localhost", "127.0.0.1", "[::1]"]))
    }
}

/// Middleware that checks each request.
pub(crate) async fn check_request(
    State(guard): State<Guard>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    match guard.find_actor(method, uri, headers, peer.address.ip(), Instant::now()) {
        Ok(actor) => {
            if let Some(actor) = actor {
                request.extensions_mut().insert(actor);
            }
            next.run(request).await
        }
        Err(error) => {
            let mut response = error.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                let challenge = HeaderValue::from_static("Bearer realm=\"evenkeel\"");
                response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            }
            response
        }
    }
}

const NO_TOKEN: &str = "a token is needed: send Authorization: Bearer TOKEN, with the token of [admin] in the \
                        configuration, or that of a user";

/// True if a page of the console is asked for; the page itself says to whom it is shown.
fn is_page(path: &str) -> bool {
    path == "/"
        || path == "/console"
        || path.starts_with("/console/")
        || path.starts_with("/login/")
}

/// Returns the name of a session's cookie: `is_secure` says whether the cookie came, or is to come, over
/// HTTPS.
pub(crate) fn session_cookie(is_secure: bool) -> &'static str {
    match is_secure {
        // No other host, port without TLS or path can have set it.
        true => SECURE_SESSION_COOKIE,
        false => SESSION_COOKIE,
    }
}

/// True if the browser speaks HTTPS: to this process, or to a proxy before it that is trusted.
pub(crate) fn is_secure(has_tls: bool, behind_proxy: bool, headers: &HeaderMap) -> bool {
    let by_proxy = headers.get("x-forwarded-proto");
    has_tls || behind_proxy && by_proxy.is_some_and(|proto| proto == "https")
}

/// Returns the value of the session's cookie called `name`.
pub(crate) fn session_of<'a>(cookies: &'a HeaderValue, name: &str) -> Option<&'a str> {
    let mut cookies = cookies.to_str().ok()?.split(';');
    cookies.find_map(|cookie| cookie.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Fields that proxies add.
fn tells_of_a_proxy(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "via" | "forwarded" | "x-real-ip") || name.starts_with("x-forwarded-")
}

fn check_direct(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(field) = headers.keys().find(|name| tells_of_a_proxy(name)) else {
        return Ok(());
    };
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "proxied",
        format!(
            "the request came through a proxy (field {field}); the admin API accepts direct \
             requests only, unless behind_proxy = true is set in [admin], with a token"
        ),
    ))
}

fn unauthorized(detail: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = single_value(headers, &ORIGIN)? else {
        return Ok(());
    };
    let host = single_value(headers, &HOST)?.unwrap_or_default();
    let of_origin = origin.split_once("://").map(|(_, authority)| authority);
    if of_origin.is_some_and(|authority| authority.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "wrong_origin",
        format!("a page of {origin:?} may not change anything here"),
    ))
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = single_value(headers, &CONTENT_TYPE)?.unwrap_or_default();
    if media_type(value.as_bytes()).eq_ignore_ascii_case(b"application/json") {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "wrong_content_type",
        format!(
            "requests that change anything must be JSON, even without a body; Content-Type says {value:?}"
        ),
    )
    .with_allowed(["application/json"]))
}

/// Returns the value of a field that may come at most once.
fn single_value<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map(HeaderValue::to_str).transpose();
    match value {
        Ok(value) if values.next().is_none() => Ok(value),
        _ => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "bad_field",
            format!("the field {name} must be ASCII and come once"),
        )),
    }
}

/// Returns the host of `host[:port]`, without the brackets of an IPv6 address.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(host, _)| host);
    }
    authority
        .split_once(':')
        .map_or(authority, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard_of(listen: &str, token: Option<&str>) -> Guard {
        let settings = Admin {
            listen: listen.parse().unwrap(),
            token: token.map(str::to_owned),
            ..Admin::default()
        };
        let access = Access::new(&settings, Arc::default());
        Guard::new(&settings, Arc::new(access)).with_open_paths(["/healthz", "/readyz"].into_iter())
    }

    fn ask(
        guard: &Guard,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<Actor>, ApiError> {
        let from = "192.0.2.9".parse().unwrap();
        guard.find_actor(
            method,
            &path.parse().unwrap(),
            headers,
            from,
            Instant::now(),
        )
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    fn get(guard: &Guard, path: &str, fields: &[(&'static str, &str)]) -> u16 {
        status(guard, Method::GET, path, fields)
    }

    fn status(guard: &Guard, method: Method, path: &str, fields: &[(&'static str, &str)]) -> u16 {
        match ask(guard, &method, path, &headers(fields)) {
            Ok(_) => 200,
            Err(error) => error.into_response().status().as_u16(),
        }
    }

    #[test]
    fn who_was_let_through_may_stay_until_the_token_changes() {
        let guard = guard_of("0.0.0.0:9000", Some("first"));
        let still = |token: &str| {
            let fields = headers(&[("authorization", &format!("Bearer {token}"))]);
            let from = "192.0.2.9".parse().unwrap();
            guard.still_allows(&fields, from, Instant::now())
        };
        assert!(still("first") && !still("second"));
        guard.set_token(Some("second"));
        assert!(!still("first") && still("second"));
    }

    #[test]
    fn without_a_token_only_loopback_names_are_answered() {
        let guard = guard_of("127.0.0.1:9000", None);
        for good in [
            "localhost",
            "LOCALHOST:9",
            "127.0.0.1:9000",
            "127.8.8.8",
            "[::1]:9000",
        ] {
            assert_eq!(get(&guard, "/v1/status", &[("host", good)]), 200, "{good}");
        }
        for bad in [
            "",
            "evil.example:9000",
            "localhost.evil.example",
            "[::1",
            "10.0.0.1",
            "127.0.0.1.evil",
        ] {
            assert_eq!(get(&guard, "/v1/status", &[("host", bad)]), 403, "{bad}");
        }
        assert_eq!(get(&guard, "/v1/status", &[]), 403);
        assert_eq!(get(&guard, "/healthz", &[("host", "evil.example")]), 403);
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(get(&guard, "/v1/status", &twice), 400);
    }

    #[test]
    fn with_a_token_the_token_is_the_proof() {
        let guard = guard_of("10.0.0.1:9000", Some("s3cret"));
        let with = |value: &str| {
            get(
                &guard,
                "/v1/status",
                &[("host", "lb"), ("authorization", value)],
            )
        };
        assert_eq!(with("Bearer s3cret"), 200);
        assert_eq!(with("bearer s3cret"), 200);
        for bad in [
            "Bearer",
            "Bearer ",
            "Bearer s3cre",
            "Bearer s3crets",
            "Bearer s3crets3cret",
            "Basic s3cret",
            "s3cret",
        ] {
            assert_eq!(with(bad), 401, "{bad}");
        }
        assert_eq!(get(&guard, "/v1/status", &[("host", "lb")]), 401);
        assert_eq!(get(&guard, "/metrics", &[("host", "lb")]), 401);
        assert_eq!(get(&guard, "/readyz", &[("host", "lb")]), 200);
    }

    #[test]
    fn s1_what_came_through_a_proxy_is_refused() {
        let proxied = [
            ("via", "1.1 evenkeel"),
            ("forwarded", "for=192.0.2.1"),
            ("x-forwarded-for", "192.0.2.1"),
            ("X-Forwarded-Anything", ""),
            ("x-real-ip", "192.0.2.1"),
        ];
        let mut guard = guard_of("127.0.0.1:9000", Some("s3cret"));
        for field in
            proxied.map(|(name, value)| (HeaderName::from_bytes(name.as_bytes()).unwrap(), value))
        {
            let ask = |guard: &Guard, path: &str| {
                let mut map = headers(&[("host", "localhost"), ("authorization", "Bearer s3cret")]);
                map.append(field.0.clone(), field.1.parse().unwrap());
                match super::tests::ask(guard, &Method::GET, path, &map) {
                    Ok(_) => 200,
                    Err(error) => error.into_response().status().as_u16(),
                }
            };
            for path in ["/v1/status", "/metrics", "/readyz"] {
                assert_eq!(ask(&guard, path), 403, "{field:?} {path}");
            }
            guard.behind_proxy = true;
            assert_eq!(ask(&guard, "/v1/status"), 200, "{field:?}");
            guard.behind_proxy = false;
        }
    }

    #[test]
    fn a_page_cannot_change_anything() {
        let guard = guard_of("127.0.0.1:9000", None);
        let post = |fields: &[(&'static str, &str)]| {
            let mut all = vec![("host", "127.0.0.1:9000")];
            all.extend_from_slice(fields);
            status(&guard, Method::POST, "/v1/reload", &all)
        };
        assert_eq!(
            post(&[("content-type", "application/json; charset=utf-8")]),
            200
        );
        assert_eq!(post(&[]), 415);
        assert_eq!(post(&[("content-type", "text/plain")]), 415);
        let json = ("content-type", "application/json");
        assert_eq!(post(&[json, ("origin", "http://127.0.0.1:9000")]), 200);
        assert_eq!(post(&[json, ("origin", "http://evil.example")]), 403);
        assert_eq!(post(&[json, ("origin", "null")]), 403);
    }
}
