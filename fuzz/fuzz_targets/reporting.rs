//! Any bytes as a message of the reporting protocol, with a code that is right: no panic,
//! and what is understood is written again to the same bytes.
#![no_main]

use evenkeel_wire::reporting::keys::{Key, Keys};
use evenkeel_wire::reporting::message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(key) = Key::new(1, &[7; 32]) else {
        return;
    };
    let Ok(keys) = Keys::new(vec![key.clone()]) else {
        return;
    };
    let _ = message::peek_header(data);
    // What every message begins with is given, so that most bytes mean something.
    let kind = data.first().copied().unwrap_or(0);
    let mut message = message::MAGIC.to_vec();
    message.extend([message::VERSION, kind, 0, 1]);
    message.extend(data.get(1..).unwrap_or_default());
    key.sign_message(&mut message);
    for to_broker in [true, false] {
        if let Ok((header, body)) = message::open_message(&message, &keys, to_broker) {
            assert_eq!(header.kind, body.kind());
            assert_eq!(header.kind.is_from_agent(), to_broker);
            let (nonce, identifier) = (header.nonce, header.identifier);
            let again = message::seal_message(nonce, identifier, header.sequence, &body, &key);
            assert_eq!(again, message);
        }
    }
});
