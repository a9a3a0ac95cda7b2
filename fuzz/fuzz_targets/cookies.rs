//! Any value of `Cookie`, and names of cookies that are the balancer's: members get all others as they came and in
//! their order, and none of these; what a cookie names is found as a plain reader finds it.
#![no_main]

use std::collections::HashSet;

use evenkeel_config::HttpOptions;
use evenkeel_core::key::{Key, hash};
use evenkeel_proxy::http1::forward::{Changes, write_changed};
use evenkeel_proxy::http1::{Fields, Hop, Limits, ParseOutcome, RequestHead};
use evenkeel_proxy::message::BalancerCookies;
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits {
    max_bytes: 16 * 1024,
    max_fields: 48,
};

/// Name and value of each pair that has both, without spaces around.
fn pairs<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<(&'a [u8], &'a [u8])> {
    let pairs = values.flat_map(|value| value.split(|&byte| byte == b';'));
    let pairs = pairs.filter_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        let (name, value) = pair.split_at(at);
        Some((name.trim_ascii_start(), value[1..].trim_ascii_end()))
    });
    pairs.collect()
}

fuzz_target!(|input: &[u8]| {
    // The first line has the name of a sticky cookie, each other one is a field.
    let mut lines = input.split(|&byte| byte == b'\n');
    let name = lines.next().unwrap_or_default();
    let mut head = b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec();
    for line in lines {
        head.extend_from_slice(b"Cookie: ");
        head.extend_from_slice(line);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    let mut fields = Fields::new();
    let Ok(ParseOutcome::Head(parsed)) = RequestHead::parse(&head, LIMITS, &mut fields) else {
        return;
    };
    let request = &parsed.request;
    let sent = pairs(request.values("cookie"));
    if let Ok(text) = std::str::from_utf8(name)
        && !text.is_empty()
        && !text.contains([' ', '\t', '=', ';'])
    {
        let found = sent.iter().find(|(of, _)| *of == name);
        let key = Key::Cookie(text.into());
        assert_eq!(request.hash_part(&key), found.map(|(_, value)| hash(value)));
    }

    let sticky = HashSet::from([Box::from(name)]);
    let changes = Changes {
        cookies: BalancerCookies {
            sticky: Some(&sticky),
            sessions: true,
        },
        ..Changes::default()
    };
    let hop = Hop::new(
        &HttpOptions::default(),
        std::net::IpAddr::from([192, 0, 2, 7]),
        "http",
        "192.0.2.1:80",
    );
    let mut out = Vec::new();
    write_changed(request, &hop, changes, &mut out);
    let mut fields = Fields::new();
    // The balancer adds fields of its own.
    let limits = Limits {
        max_bytes: 2 * LIMITS.max_bytes,
        max_fields: 2 * LIMITS.max_fields,
    };
    let Ok(ParseOutcome::Head(again)) = RequestHead::parse(&out, limits, &mut fields) else {
        panic!("unreadable: {}", out.escape_ascii());
    };
    let is_own =
        |of: &[u8]| of == name || of == b"evenkeel_session" || of == b"__Host-evenkeel_session";
    let kept: Vec<_> = sent.into_iter().filter(|(of, _)| !is_own(of)).collect();
    assert_eq!(pairs(again.request.values("cookie")), kept);
});
