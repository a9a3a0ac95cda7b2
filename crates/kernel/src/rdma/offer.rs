//! Greetings of both sides, and the offer of a page.

use super::error::Error;
use crate::record::{CPU, CPUS, MAX_CPUS};

/// Reasons why a request is refused, in its private data after the greeting.
pub(super) const NOT_ALLOWED: u8 = 1;
pub(super) const FULL: u8 = 2;
pub(super) const BAD: u8 = 3;

/// Page that a back-end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) length: u32,
    pub(super) epoch: u64,
}

const MAGIC: [u8; 4] = *b"EVKP";
const VERSION: u16 = 1;
pub(super) const GREETING: usize = 8;
pub(super) const OFFER: usize = 32;

/// The most that a page can be long.
pub(super) const LONGEST: usize = CPUS + MAX_CPUS * CPU;

pub(super) fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks that a request for a connection, or the answer to such a request, begins with the magic
/// and the version of this protocol. Devices may add zeros.
pub(super) fn check_greeting(bytes: &[u8]) -> Result<(), Error> {
    match bytes.first_chunk::<GREETING>() {
        Some(head) if head[..4] != MAGIC => {
            Err(Error::BadOffer("the offer does not begin with EVKP"))
        }
        Some(head) if u16::from_le_bytes([head[4], head[5]]) != VERSION => {
            Err(Error::BadOffer("the offer has another protocol version"))
        }
        Some(_) => Ok(()),
        None => Err(Error::BadOffer("the offer is too short")),
    }
}

impl Offer {
    pub(super) fn write(&self) -> [u8; OFFER] {
        let mut bytes = [0; OFFER];
        bytes[..8].copy_from_slice(&greeting());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.key.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        check_greeting(bytes)?;
        let bytes = bytes
            .first_chunk::<OFFER>()
            .ok_or(Error::BadOffer("the offer is too short"))?;
        let four = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let eight = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let offer = Offer {
            address: u64::from_le_bytes(eight(8)),
            key: u32::from_le_bytes(four(16)),
            length: u32::from_le_bytes(four(20)),
            epoch: u64::from_le_bytes(eight(24)),
        };
        let length = offer.length as usize;
        // A whole page: base, ports, and at least one CPU.
        if !(CPUS + CPU..=LONGEST).contains(&length) || !(length - CPUS).is_multiple_of(CPU) {
            return Err(Error::BadOffer("a load page cannot have this length"));
        }
        if offer.address.checked_add(length as u64).is_none() {
            return Err(Error::BadOffer("the page ends beyond the last address"));
        }
        Ok(offer)
    }
}
