//! Names of header fields as servers read them, the lists of names that the balancer vouches for, and media types.
//!
//! Each comparison of a client's field with a name that only the balancer may say goes through this file:
//! those of heads, trailers and questions, over each version of HTTP.

/// Byte of a name as servers compare names that map them to variables (CGI, WSGI, PHP): in lower case, and `-`
/// for all that is neither a letter nor a digit.
#[inline]
pub const fn plain_byte(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() {
        byte.to_ascii_lowercase()
    } else {
        b'-'
    }
}

/// True if there is a server that takes two names for the same: `X-Real-IP` and `x_real_ip`.
#[inline]
pub fn is_same_name(one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> bool {
    let (one, other) = (one.as_ref(), other.as_ref());
    let mut pairs = one.iter().zip(other);
    one.len() == other.len() && pairs.all(|(&one, &other)| plain_byte(one) == plain_byte(other))
}

/// True if there is a server that takes a name for that of `family`, or for one that begins with it and a dash.
pub fn is_in_family(name: impl AsRef<[u8]>, family: impl AsRef<[u8]>) -> bool {
    let (name, family) = (name.as_ref(), family.as_ref());
    let start = name.get(..family.len());
    let rest = name.get(family.len()).copied();
    start.is_some_and(|start| is_same_name(start, family))
        && rest.is_none_or(|byte| plain_byte(byte) == b'-')
}

/// Fields that a question about a request does not have as the client sent them: they are about its body, its
/// response or its connection, or the question has its own.
pub const NOT_ASKED: [&str; 13] = [
    "content-encoding",
    "content-length",
    "expect",
    "http2-settings",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "range",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Families of fields by which login services decide who asks for what. Only the balancer says them in a question.
pub const DECIDING: [&str; 5] = [
    "x-forwarded-method",
    "x-forwarded-uri",
    "x-original",
    "x-real-ip",
    "x-rewrite-url",
];

/// Fields that are fit for a head only: they frame or route a message, end at a hop, authenticate, change what a
/// request asks for, or say how to read the content (RFC 9110, section 6.5.1). No trailer may have such a name.
pub const NO_TRAILERS: [&str; 31] = [
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "www-authenticate",
];

/// Longest name of a trailer of requests that may be let through, in bytes.
pub const MAX_TRAILER_NAME: usize = 64;

/// True if no trailer may have this name.
pub fn is_no_trailer(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    let is_forwarded = name.len() > "x-forwarded-".len() && is_in_family(name, "x-forwarded");
    is_forwarded || NO_TRAILERS.iter().any(|not| is_same_name(name, not))
}

/// Fields that mean something to whoever carries or answers a request, and could be trailers.
const OF_MESSAGE: [&str; 5] = [
    "accept-encoding",
    "date",
    "http2-settings",
    "server",
    "vary",
];

/// Families of such fields.
const FAMILIES_OF_MESSAGE: [&str; 4] = ["content", "proxy", "sec-websocket", "x-forwarded"];

/// True if nobody but an application goes by a field of this name.
pub fn is_of_application(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    let is_of_message = OF_MESSAGE.iter().any(|known| is_same_name(name, known))
        || FAMILIES_OF_MESSAGE
            .iter()
            .any(|family| is_in_family(name, family));
    !is_no_trailer(name) && !is_of_message
}

/// Trailers of requests that pass without being named: checksums and signatures of the body, and the status of a call.
const REQUEST_TRAILERS: [&str; 9] = [
    "content-digest",
    "content-md5",
    "digest",
    "grpc-message",
    "grpc-status",
    "grpc-status-details-bin",
    "repr-digest",
    "signature",
    "signature-input",
];

/// Names of the trailers of requests that members get. Servers merge trailers into heads, so each name is one that
/// somebody has thought of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTrailers(Box<[Box<str>]>);

impl RequestTrailers {
    /// The usual names and `named`, but for those that `is_vouched` finds.
    pub fn new(named: &[String], is_vouched: impl Fn(&str) -> bool) -> Self {
        let usual = REQUEST_TRAILERS.iter().copied();
        let names = usual.chain(named.iter().map(String::as_str));
        let passing = names.filter(|name| !is_vouched(name));
        RequestTrailers(passing.map(Box::from).collect())
    }

    /// True if a trailer of this name passes.
    pub fn pass(&self, name: &[u8]) -> bool {
        self.0
            .iter()
            .any(|known| known.as_bytes().eq_ignore_ascii_case(name))
    }
}

/// Media type in a field `Content-Type`, without parameters (RFC 9110, section 8.3.1). Compare it in any case.
pub fn media_type(content_type: &[u8]) -> &[u8] {
    let mut parts = content_type.split(|byte| *byte == b';');
    parts.next().unwrap_or_default().trim_ascii()
}

/// Name of the cookie of a session at the console.
pub const SESSION_COOKIE: &str = "evenkeel_session";

/// Name of the cookie of a session at the console that browsers keep for HTTPS and this host alone.
pub const SECURE_SESSION_COOKIE: &str = "__Host-evenkeel_session";

/// True if a pair of a field `Cookie` is the session of somebody at the console.
#[inline]
pub fn is_session(pair: &[u8]) -> bool {
    let pair = pair.trim_ascii_start();
    let pair = pair.strip_prefix(b"__Host-").unwrap_or(pair);
    pair.strip_prefix(SESSION_COOKIE.as_bytes())
        .is_some_and(|rest| rest.first() == Some(&b'='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_media_type_has_no_parameters() {
        for (value, expected) in [
            ("text/html", "text/html"),
            (" Text/Event-Stream ; charset=utf-8;x", "Text/Event-Stream"),
            (";x", ""),
            ("", ""),
        ] {
            assert_eq!(media_type(value.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn names_are_the_same_in_any_spelling_that_a_server_maps_to_one() {
        for (one, other, same) in [
            ("X-Real-IP", "x-real-ip", true),
            ("X-Real-IP", "X_REAL_IP", true),
            ("X-Real-IP", "X.Real.IP", true),
            ("X-Real-IP", "X-Real-I", false),
            ("X-Real-IP", "X-Real-IP-", false),
            ("X-Real-IP", "XxRealxIP", false),
            ("", "", true),
        ] {
            assert_eq!(is_same_name(one, other), same, "{one} {other}");
            assert_eq!(is_same_name(other, one), same, "{one} {other}");
        }
        for (name, is_in) in [
            ("X-Client-Cert", true),
            ("x_client_cert_subject", true),
            ("X-Client.Cert-", true),
            ("X-Client-Certs", false),
            ("X-Client", false),
        ] {
            assert_eq!(is_in_family(name, "X-Client-Cert"), is_in, "{name}");
        }
    }

    #[test]
    fn fields_of_applications_are_those_that_nobody_else_goes_by() {
        for (name, is) in [
            ("X-Remote-User", true),
            ("Remote-User", true),
            ("Digest", true),
            ("Servers", true),
            ("X-Content", true),
            ("Server", false),
            ("Content_Type", false),
            ("content", false),
            ("If-None-Match", false),
            ("X-Forwarded-User", false),
            ("x_forwarded_for", false),
            ("Proxy-Authorization", false),
            ("Sec-WebSocket-Key", false),
            ("Set-Cookie", false),
            ("HTTP2-Settings", false),
        ] {
            assert_eq!(is_of_application(name), is, "{name}");
        }
    }

    #[test]
    fn n10_a_session_is_found_in_a_cookie() {
        for (pair, is) in [
            ("evenkeel_session=1", true),
            (" __Host-evenkeel_session=", true),
            ("evenkeel_session", false),
            ("evenkeel_sessions=1", false),
            ("a=evenkeel_session=1", false),
            ("__Secure-evenkeel_session=1", false),
        ] {
            assert_eq!(is_session(pair.as_bytes()), is, "{pair}");
        }
        assert!(is_session(format!("{SECURE_SESSION_COOKIE}=x").as_bytes()));
    }

    #[test]
    fn n1_trailers_that_the_balancer_vouches_for_do_not_pass_even_if_they_are_named() {
        let named = ["X-Sum", "X-User"].map(str::to_owned);
        let trailers = RequestTrailers::new(&named, |name| is_same_name(name, "x_user"));
        for (name, passes) in [
            ("x-sum", true),
            ("Content-Digest", true),
            ("X_Sum", false),
            ("X-User", false),
            ("X-Other", false),
            ("", false),
        ] {
            assert_eq!(trailers.pass(name.as_bytes()), passes, "{name}");
        }
        for usual in REQUEST_TRAILERS {
            assert!(!is_no_trailer(usual) && usual.len() <= MAX_TRAILER_NAME);
        }
    }
}
