//! Any bytes as a chunked body: no panic, and the same outcome however it is cut.
#![no_main]

use evenkeel_proxy::http1::chunked::{ChunkError, Decoder};
use libfuzzer_sys::fuzz_target;

/// Content, length and whether the body ended.
type Outcome = Result<(Vec<u8>, usize, bool), ChunkError>;

fn read(input: &[u8], size: usize) -> Outcome {
    let (mut scanner, mut stripper) = (Decoder::new(), Decoder::new());
    let (mut content, mut len) = (Vec::new(), 0);
    for piece in input.chunks(size) {
        let scanned = scanner.scan_input(piece)?;
        let mut piece = piece.to_vec();
        let (kept, stripped) = stripper.strip_framing(&mut piece)?;
        assert_eq!(scanned, stripped);
        content.extend_from_slice(&piece[..kept]);
        len += scanned.len;
        if scanned.end {
            return Ok((content, len, true));
        }
        assert_eq!(scanned.len, piece.len());
    }
    Ok((content, len, false))
}

fuzz_target!(|input: &[u8]| {
    // The last byte, so that the seeds are plain messages.
    let Some((&size, input)) = input.split_last() else {
        return;
    };
    let outcome = read(input, input.len().max(1));
    assert_eq!(read(input, usize::from(size).max(1)), outcome);
    assert_eq!(read(input, 1), outcome);
    if let Ok((content, len, true)) = outcome {
        // What ended is a whole body, and says so with nothing behind it.
        assert_eq!(read(&input[..len], len), Ok((content, len, true)));
    }
});
