//! Any bytes as a stream of GIOP messages: fragments are joined within limits, and those
//! of 1.1 can be cut again as they were.
#![no_main]

use evenkeel_giop::fragment::{Assembler, cut_like};
use evenkeel_giop::message::{Header, Kind, Message};
use libfuzzer_sys::fuzz_target;

const MOST: usize = 1 << 14;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let mut assembler = Assembler::new(MOST, 4);
    while let Ok(Some(header)) = Header::peek(rest, MOST) {
        let Some((bytes, after)) = rest.split_at_checked(header.total()) else {
            break;
        };
        rest = after;
        let message = match assembler.add_message(Message::new(header, bytes)) {
            Ok(Some(message)) => message,
            Ok(None) => continue,
            Err(_) => break,
        };
        assert!(message.header.kind != Kind::Fragment && !message.header.more);
        assert!(message.bytes.len() <= MOST + Header::LEN);
        let whole = Message::from_whole(message.bytes).unwrap();
        assert_eq!(whole.header, message.header);
        if message.joints.is_empty() {
            continue;
        }
        // Cut again, and joined again.
        let mut out = b"before".to_vec();
        out.extend_from_slice(message.bytes);
        if cut_like(&message, &mut out, 6).is_err() {
            continue;
        }
        assert_eq!(
            out.len(),
            6 + message.bytes.len() + 12 * message.joints.len()
        );
        let mut second = Assembler::new(MOST, 1);
        let mut cut = &out[6..];
        while let Some(header) = Header::peek(cut, MOST).unwrap() {
            let (bytes, after) = cut.split_at(header.total());
            cut = after;
            match second.add_message(Message::new(header, bytes)).unwrap() {
                None => assert!(!cut.is_empty()),
                Some(again) => {
                    assert!(cut.is_empty());
                    assert_eq!(again.bytes, message.bytes);
                    assert_eq!(again.joints, message.joints);
                }
            }
        }
    }
});
