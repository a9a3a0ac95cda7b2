#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use proptest::prelude::*;

use super::address::{ip, raw_address};
use super::offer::{LONGEST, OFFER, Offer, greeting};
use super::*;
use crate::record::{CPU, CPUS};

const OFFERED: Offer = Offer {
    address: 0x7f00_0000_1000,
    key: 0x1234_5678,
    length: (CPUS + 2 * CPU) as u32,
    epoch: 0x1122_3344_5566_7788,
};

#[test]
fn what_is_offered_is_understood() {
    let mut bytes = OFFERED.write().to_vec();
    // Devices fill up what they carry.
    bytes.resize(196, 0);
    assert_eq!(Offer::parse(&bytes).unwrap(), OFFERED);
    assert_eq!(&bytes[..8], greeting());
}

#[test]
fn what_cannot_be_is_no_offer() {
    let bytes = OFFERED.write();
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = bytes;
        bytes[at..at + to.len()].copy_from_slice(to);
        Offer::parse(&bytes).is_err()
    };
    assert!(changed(0, b"X"));
    assert!(changed(4, &[2]));
    assert!(changed(20, &(CPUS as u32).to_le_bytes()), "no CPU");
    assert!(
        changed(20, &(OFFERED.length + 1).to_le_bytes()),
        "within a CPU"
    );
    assert!(
        changed(20, &((LONGEST + CPU) as u32).to_le_bytes()),
        "too many CPUs"
    );
    assert!(changed(20, &u32::MAX.to_le_bytes()));
    assert!(
        changed(8, &u64::MAX.to_le_bytes()),
        "beyond the last address"
    );
    assert!(!changed(24, &[9]));
    assert!((0..OFFER).all(|length| Offer::parse(&bytes[..length]).is_err()));
}

#[test]
fn addresses_are_the_same_in_c() {
    for address in ["10.1.2.3:9971", "[fd00::7]:1"] {
        let address: SocketAddr = address.parse().unwrap();
        assert_eq!(ip(&raw_address(address)), Some(address.ip()));
    }
    let mapped = raw_address("[::ffff:10.1.2.3]:1".parse().unwrap());
    assert_eq!(ip(&mapped), Some("10.1.2.3".parse().unwrap()));
}

/// Checks that the reader says how to get a device where there is none, and works where there is
/// one.
#[test]
fn without_a_device_it_says_how_to_get_one() {
    match Reader::new() {
        Ok(_) => println!("there is an RDMA device here"),
        Err(error) => {
            let text = error.to_string();
            let how = match error {
                Error::NotBuilt => "--features",
                Error::Libraries(_) => "librdmacm",
                Error::NoDevice(_) => "rdma link add",
                _ => panic!("{text}"),
            };
            assert!(text.contains(how), "{text}");
        }
    }
}

proptest! {
    #[test]
    fn no_offer_breaks_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = Offer::parse(&bytes);
    }

    #[test]
    fn offers_are_bounded(
        address: u64, key: u32, length: u32, epoch: u64,
    ) {
        let offer = Offer { address, key, length, epoch };
        if let Ok(parsed) = Offer::parse(&offer.write()) {
            prop_assert_eq!(parsed, offer);
            prop_assert!(length as usize <= LONGEST);
        }
    }
}
