//! Any bytes as a PROXY header, at once and in pieces: no panic, the same answer, and no byte behind
//! the header is taken.
#![no_main]

use evenkeel_wire::proxy_protocol::{MAX_BYTES, Reader, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = (usize::from(input.0) + 1, input.1);
    let whole = Reader::default().take(bytes);
    let mut reader = Reader::default();
    let mut before = 0;
    let mut pieces = Ok(Step::More);
    for piece in bytes.chunks(size) {
        pieces = reader.take(piece);
        if let Ok(Step::End { used, addresses }) = pieces {
            let used = before + used;
            pieces = Ok(Step::End { used, addresses });
        }
        if pieces != Ok(Step::More) {
            break;
        }
        before += piece.len();
    }
    assert_eq!(pieces, whole);
    match whole {
        Ok(Step::More) => assert!(bytes.len() < MAX_BYTES),
        Ok(Step::End { used, .. }) => {
            assert!(used <= MAX_BYTES);
            assert_eq!(Reader::default().take(&bytes[..used]), whole);
            assert_eq!(Reader::default().take(&bytes[..used - 1]), Ok(Step::More));
        }
        Err(_) => {}
    }
});
