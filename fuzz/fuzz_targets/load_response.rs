//! Any answer to `evenkeel-lab load`: no panic, and it ends at the same place however it is cut into
//! pieces, after other answers on its connection, too.
#![no_main]

use evenkeel_load::response::{Progress, Response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let is_head = bytes.first() == Some(&b'\0');
    let whole = read(Response::new(), bytes, usize::MAX, is_head);
    // The last byte, so that the seeds are plain messages.
    let some = bytes.last().map_or(1, |byte| usize::from(*byte).max(1));
    for piece in [1, some] {
        assert_eq!(read(Response::new(), bytes, piece, is_head), whole);
    }
    // What was learnt of another answer changes nothing.
    let mut used = Response::new();
    used.start_next(false);
    let before = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(used.push(before), Ok(Progress::Whole(0)));
    assert_eq!(read(used, bytes, usize::MAX, is_head), whole);
});

/// Status, length of the body, and what is left after its end, if there is one: what is wrong may
/// be found out earlier or later, but never has an end.
fn read(
    mut response: Response,
    bytes: &[u8],
    piece: usize,
    is_head: bool,
) -> Option<(Option<u16>, u64, usize)> {
    response.start_next(is_head);
    let mut left = bytes.len();
    for piece in bytes.chunks(piece) {
        left -= piece.len();
        match response.push(piece) {
            Ok(Progress::Part) => {}
            Ok(Progress::Whole(more)) => {
                assert!(more <= piece.len());
                assert!(response.handle_close().is_ok());
                return Some((response.status(), response.body(), more + left));
            }
            Err(_) => return None,
        }
        assert!(response.body() <= bytes.len() as u64);
    }
    None
}
