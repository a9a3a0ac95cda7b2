//! Any request, and what a member gets of it: it reads the same, and takes exactly the
//! bytes that were written. Nothing can hide in it.
#![no_main]

use evenkeel_config::HttpOptions;
use evenkeel_proxy::http1::forward::write_request;
use evenkeel_proxy::http1::{Fields, Hop, Limits, ParseOutcome, RequestHead, Version};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits {
    max_bytes: 4096,
    max_fields: 32,
};

/// The head that leaves is larger than the one that came.
const LIMITS_AGAIN: Limits = Limits {
    max_bytes: 16 * 1024,
    max_fields: 48,
};

fuzz_target!(|input: &[u8]| {
    // The last byte, so that the seeds are plain messages.
    let Some((&flags, read)) = input.split_last() else {
        return;
    };
    let options = HttpOptions {
        x_forwarded: flags & 1 != 0,
        forwarded: flags & 2 != 0,
        trust_forwarded: flags & 4 != 0,
        ..HttpOptions::default()
    };
    let client = std::net::IpAddr::from([192, 0, 2, 7]);
    let hop = Hop::new(&options, client, "http", "192.0.2.1:80");
    let mut fields = Fields::new();
    let Ok(ParseOutcome::Head(head)) = RequestHead::parse(read, LIMITS, &mut fields) else {
        return;
    };
    let mut out = Vec::new();
    write_request(&head.request, &hop, &mut out);

    let mut fields = Fields::new();
    let Ok(ParseOutcome::Head(again)) = RequestHead::parse(&out, LIMITS_AGAIN, &mut fields) else {
        panic!("unreadable: {}", out.escape_ascii());
    };
    assert_eq!(again.len, out.len());
    let (left, came) = (&again.request, &head.request);
    assert_eq!(left.method, came.method);
    assert_eq!(again.version, Version::Http11);
    assert_eq!(
        left.authority,
        Some(came.authority.unwrap_or("192.0.2.1:80"))
    );
    assert_eq!(left.path(), came.path());
    assert_eq!(left.body, came.body);
    assert_eq!(again.framing_facts, head.framing_facts);
    assert_eq!(again.expect_continue, head.expect_continue);
    assert!(again.keep_alive);
    if !options.trust_forwarded {
        let claimed = |name| left.values(name).any(|value| value != b"192.0.2.7");
        assert!(!claimed("x-forwarded-for"));
    }

    // Servers that look for the end of lines in another way see the same lines.
    let text = &out[..out.len() - 4];
    assert!(!text.windows(4).any(|four| four == b"\r\n\r\n"));
    for (index, byte) in text.iter().enumerate() {
        match byte {
            b'\n' => assert_eq!(text[index - 1], b'\r'),
            b'\r' => assert_eq!(text[index + 1], b'\n'),
            b'\t' => {}
            _ => assert!(!byte.is_ascii_control()),
        }
    }
});
