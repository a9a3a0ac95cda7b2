//! Messages of balancers about copies of connections: nobody panics, and what is understood is written again to the same
//! bytes.
#![no_main]

use evenkeel_wire::connection_copies::CopyMessage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(message) = CopyMessage::decode(data) {
        assert_eq!(message.encode(), data);
    }
});
