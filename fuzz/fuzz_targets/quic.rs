//! Any bytes as a datagram of QUIC: no panic, ids lie in the datagram, and a header that is whole stays the same
//! with more bytes behind.
#![no_main]

use evenkeel_wire::quic::{ConnectionId, Header, MAX_ID, MIN_ID};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    let Some(header) = Header::read(datagram) else {
        return;
    };
    let prefix = header.destination_prefix();
    if let Header::Long {
        destination,
        source,
        ..
    } = header
    {
        let used = 1 + 4 + 1 + destination.len() + 1 + source.len();
        assert_eq!(Header::read(&datagram[..used]), Some(header));
        assert_eq!(Header::read(&datagram[..used - 1]), None);
        for id in [destination, source] {
            let known = ConnectionId::new(id);
            assert_eq!(known.is_some(), (MIN_ID..=MAX_ID).contains(&id.len()));
            assert!(known.is_none_or(|known| known.id_len() == id.len()));
        }
        assert_eq!(prefix.as_ref().map(|prefix| &prefix[..]), destination.get(..MIN_ID));
    }
});
