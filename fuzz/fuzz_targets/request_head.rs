//! Any bytes as a request: no panic, and no part of a refused or longer head is a head.
#![no_main]

use evenkeel_proxy::http1::{Body, Fields, HeadError, Limits, ParseOutcome, RequestHead};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits {
    max_bytes: 4096,
    max_fields: 32,
};

/// Length of the head at the start of `read`, if there is a whole one.
fn len(read: &[u8]) -> Result<Option<usize>, HeadError> {
    let mut fields = Fields::new();
    match RequestHead::parse(read, LIMITS, &mut fields)? {
        ParseOutcome::Partial => Ok(None),
        ParseOutcome::Head(head) => {
            assert!(head.len <= read.len() && head.len <= LIMITS.max_bytes + 2);
            assert_ne!(head.request.body, Body::UntilClose);
            assert!(read[..head.len].ends_with(b"\r\n\r\n"));
            Ok(Some(head.len))
        }
    }
}

fuzz_target!(|read: &[u8]| {
    let whole = len(read);
    match whole {
        Ok(Some(end)) => {
            assert_eq!(len(&read[..end]), whole);
            (0..end).for_each(|cut| assert_eq!(len(&read[..cut]), Ok(None)));
        }
        Ok(None) => (0..read.len()).for_each(|cut| assert_eq!(len(&read[..cut]), Ok(None))),
        Err(_) => {
            (0..read.len()).for_each(|cut| assert!(!matches!(len(&read[..cut]), Ok(Some(_)))))
        }
    }
});
