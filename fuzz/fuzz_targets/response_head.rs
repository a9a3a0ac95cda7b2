//! Any bytes as a response, and what the client gets of it: no panic, and a head that
//! frames the body as the member's did.
#![no_main]

use evenkeel_proxy::http1::forward::{Client, write_response};
use evenkeel_proxy::http1::{
    Body, Fields, FramingFacts, Limits, ParseOutcome, ResponseHead, Version,
};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits {
    max_bytes: 4096,
    max_fields: 32,
};

/// The head that leaves may be a little larger than the one that came.
const LIMITS_AGAIN: Limits = Limits {
    max_bytes: 8192,
    max_fields: 34,
};

fuzz_target!(|input: &[u8]| {
    // The last byte, so that the seeds are plain messages.
    let Some((&flags, read)) = input.split_last() else {
        return;
    };
    let asked = FramingFacts {
        head: flags & 1 != 0,
        upgrade: flags & 2 != 0,
    };
    let client = Client {
        version: match flags & 4 {
            0 => Version::Http11,
            _ => Version::Http10,
        },
        keep_alive: flags & 8 != 0,
    };
    let mut fields = Fields::new();
    let Ok(ParseOutcome::Head(head)) = ResponseHead::parse(read, LIMITS, asked, &mut fields) else {
        return;
    };
    for cut in 0..head.len {
        let mut fields = Fields::new();
        let part = ResponseHead::parse(&read[..cut], LIMITS, asked, &mut fields);
        assert!(matches!(part, Ok(ParseOutcome::Partial)));
    }
    if head.is_interim() && client.version == Version::Http10 {
        return;
    }
    let mut out = Vec::new();
    let delivery = write_response(&head, client, &mut out);
    let mut fields = Fields::new();
    let Ok(ParseOutcome::Head(again)) = ResponseHead::parse(&out, LIMITS_AGAIN, asked, &mut fields)
    else {
        panic!("unreadable: {}", out.escape_ascii());
    };
    assert_eq!((again.len, again.status), (out.len(), head.status));
    let body = match delivery.strip_chunks {
        true => Body::UntilClose,
        false => head.body,
    };
    assert_eq!(again.body, body);
    assert!(head.is_interim() || again.keep_alive == delivery.keep_alive);
});
