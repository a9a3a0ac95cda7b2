//! Any answer to a health check or a scrape: no panic, and it means the same however it is
//! cut into pieces.
#![no_main]

use evenkeel_wire::response::{BodyProgress, NotHttp, Reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, usize::MAX);
    // The last byte, so that the seeds are plain messages.
    let some = bytes.last().map_or(1, |byte| usize::from(*byte).max(1));
    for piece in [1, some] {
        let pieces = read(bytes, piece);
        match (&whole, &pieces) {
            (Ok(whole), Ok(pieces)) => {
                assert_eq!(whole.status_code(), pieces.status_code());
                assert_eq!(whole.body(), pieces.body());
                assert_eq!(whole.body_progress(), pieces.body_progress());
                assert_eq!(whole.is_until_close(), pieces.is_until_close());
            }
            // What is no head may be found out earlier or later, but is never one.
            (Ok(reader), Err(NotHttp)) | (Err(NotHttp), Ok(reader)) => {
                assert_eq!(reader.status_code(), None);
            }
            (Err(NotHttp), Err(NotHttp)) => {}
        }
    }
});

/// Reads them in pieces of that length.
fn read(bytes: &[u8], piece: usize) -> Result<Reader, NotHttp> {
    let mut reader = Reader::new();
    for piece in bytes.chunks(piece) {
        let (code, seen) = (reader.status_code(), reader.body_progress());
        let body = reader.body().len();
        reader.push(piece)?;
        assert!(
            code.is_none() || reader.status_code() == code,
            "a code stays"
        );
        assert!(reader.body().len() >= body, "a body only grows");
        assert!(
            seen == BodyProgress::Part || reader.body_progress() == seen,
            "an end is an end"
        );
    }
    assert!(
        reader
            .status_code()
            .is_none_or(|code| (101..=599).contains(&code))
    );
    assert_eq!(reader.len(), bytes.len());
    assert!(reader.body().len() <= bytes.len());
    Ok(reader)
}
