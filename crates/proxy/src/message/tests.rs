use super::*;
use crate::http1::{Fields, Limits, ParseOutcome, RequestHead};

/// Returns what `see` finds in the request of a head of HTTP/1.
pub(crate) fn with_request<T>(head: &str, see: impl FnOnce(&Request<'_>) -> T) -> T {
    let limits = Limits {
        max_bytes: 1024,
        max_fields: 16,
    };
    let mut fields = Fields::new();
    let parsed = RequestHead::parse(head.as_bytes(), limits, &mut fields);
    let Ok(ParseOutcome::Head(head)) = parsed else {
        panic!("{head:?}: {parsed:?}");
    };
    see(&head.request)
}

#[test]
fn cookies_of_some_names_are_taken_out_and_the_others_stay_as_they_are() {
    let names = [&b"at"[..], b"b2"].map(Box::from).into();
    let own = BalancerCookies {
        sticky: Some(&names),
        sessions: true,
    };
    for (value, rest) in [
        ("at=1", ""),
        ("a=1; at=2; c=3", "a=1; c=3"),
        ("at=1;  c = 3 ;d", "c = 3 ;d"),
        ("a=1;at=x;b2=y", "a=1"),
        ("at; xat=1; at2=at=3", "at; xat=1; at2=at=3"),
        (" at=1; At=2; a=\"x\"; at=3", "At=2; a=\"x\""),
        ("", ""),
        (";;at=1;", ";;"),
        ("a=1; evenkeel_session=2; at=3", "a=1"),
        ("__Host-evenkeel_session=2", ""),
        (
            "Evenkeel_Session=2; evenkeel_session",
            "Evenkeel_Session=2; evenkeel_session",
        ),
    ] {
        let mut out = Vec::new();
        let is_some = put_cookies_but(value.as_bytes(), own, &mut out);
        assert_eq!(
            out.escape_ascii().to_string(),
            rest.as_bytes().escape_ascii().to_string(),
            "{value}"
        );
        assert_eq!(is_some, !rest.is_empty());
    }
}

#[test]
fn each_target_has_a_path() {
    for (target, path) in [
        ("/", "/"),
        ("/a/b?c=/d", "/a/b"),
        ("/?", "/"),
        ("http://a", "/"),
        ("http://a?b", "/"),
        ("http://a/b?c", "/b"),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        with_request(&head, |request| {
            assert_eq!(request.path(), path, "{target}")
        });
    }
    for target in ["*", "http://a"] {
        let head = format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        with_request(&head, |request| assert_eq!(request.path(), "*", "{target}"));
    }
}

#[test]
fn a_key_is_what_the_request_says_there() {
    let head = "GET /a/b?c=d HTTP/1.1\r\nHost: shop\r\nX-User: anna\r\nx-user: bert\r\n\
        Cookie: sid=1; csid=2\r\nCookie: lang=de;user=\"x=y\"; sid=3\r\n\r\n";
    for (key, part) in [
        ("path", Some("/a/b")),
        ("uri", Some("/a/b?c=d")),
        ("header:x-USER", Some("anna")),
        ("header:host", Some("shop")),
        ("header:X-Other", None),
        ("cookie:sid", Some("1")),
        ("cookie:lang", Some("de")),
        ("cookie:user", Some("\"x=y\"")),
        ("cookie:id", None),
        ("cookie:SID", None),
        ("client", None),
    ] {
        let wanted = part.map(|part| hash(part.as_bytes()));
        let key = key.parse().unwrap();
        with_request(head, |request| {
            assert_eq!(request.hash_part(&key), wanted, "{key}")
        });
    }
    // The same resource, however its target is written.
    let forms = ["GET / HTTP/1.1", "GET http://shop HTTP/1.1"].map(|line| {
        let head = format!("{line}\r\nHost: shop\r\n\r\n");
        with_request(&head, |request| request.hash_part(&Key::Uri))
    });
    assert_eq!(forms[0], forms[1]);
}
