//! Any bytes as frames of HTTP/2: no panic, and the same outcome however they are cut.
#![no_main]

use evenkeel_core::time::Instant;
use evenkeel_proxy::http2::meter::{Flood, Meter, PREFACE};
use libfuzzer_sys::fuzz_target;

/// What is found in the input, cut into pieces of `size` bytes.
fn read(input: &[u8], size: usize) -> Option<Flood> {
    let mut meter = Meter::new(PREFACE.len(), Instant::ZERO);
    input
        .chunks(size)
        .find_map(|piece| meter.received(piece, Instant::ZERO))
}

fuzz_target!(|input: &[u8]| {
    // The last byte, so that the seeds are plain frames.
    let Some((&size, input)) = input.split_last() else {
        return;
    };
    let outcome = read(input, input.len().max(1));
    assert_eq!(read(input, usize::from(size).max(1)), outcome);
    assert_eq!(read(input, 1), outcome);
});
