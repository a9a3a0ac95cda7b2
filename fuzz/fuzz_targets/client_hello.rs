//! Any bytes as the beginning of a connection, at once and in pieces: no panic, the same answer, and
//! no more is looked at than the limit.
#![no_main]

use evenkeel_wire::client_hello::{MAX_BYTES, Scanner};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = (usize::from(input.0) + 1, input.1);
    let whole = Scanner::default().scan_hello(bytes);
    let mut scanner = Scanner::default();
    let ends = (0..bytes.len()).step_by(size).chain([bytes.len()]);
    let mut steps = ends.map(|end| scanner.scan_hello(&bytes[..end]));
    let found = steps.find(|step| *step != Ok(None)).unwrap_or(Ok(None));
    assert_eq!(found, whole);
    let most = bytes.get(..MAX_BYTES).unwrap_or(bytes);
    assert_eq!(Scanner::default().scan_hello(most), whole);
    if let Ok(Some(hello)) = whole {
        let name = hello.name.map(|name| name.as_str().to_owned());
        assert!(name.is_none_or(|name| !name.is_empty() && name == name.to_ascii_lowercase()));
    }
});
