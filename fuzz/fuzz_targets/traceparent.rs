//! Any bytes as a `traceparent`: no panic, and what is read is written so that it is read as the same.
#![no_main]

use evenkeel_proxy::trace::Context;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(context) = Context::parse(input) else {
        return;
    };
    let written = context.to_bytes();
    assert_eq!(Context::parse(&written), Some(context));
    assert_eq!(input.get(2..55), written.get(2..));
});
