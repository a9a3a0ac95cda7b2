//! Networks whose addresses may ask.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address, or all that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// The text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address, and no network like 10.0.0.0/8 or 2001:db8::/32")]
pub struct BadNetwork(String);

impl Network {
    /// Whether it is one of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    /// Some address in it.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The key of a map of prefixes: number of bits, and the address.
    pub(super) fn prefix(&self) -> Vec<u8> {
        let mut out = u32::from(self.bits).to_ne_bytes().to_vec();
        match self.address {
            IpAddr::V4(address) => out.extend(address.octets()),
            IpAddr::V6(address) => out.extend(address.octets()),
        }
        out
    }

    pub(super) fn from_prefix(key: &[u8]) -> Option<Self> {
        let (bits, address) = key.split_first_chunk()?;
        let address = match *address {
            [a, b, c, d] => IpAddr::from([a, b, c, d]),
            _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        };
        let bits = u8::try_from(u32::from_ne_bytes(*bits)).ok()?;
        Some(Network { address, bits })
    }
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let bad = || BadNetwork(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| bad())?;
        let most = if address.is_ipv6() { 128 } else { 32 };
        let bits = match bits {
            Some(bits) => bits.trim().parse().map_err(|_| bad())?,
            None => most,
        };
        if bits > most {
            return Err(bad());
        }
        // What stands behind the prefix is nothing, so that equal networks are equal.
        let address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                IpAddr::V4((u32::from(address) & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                IpAddr::V6((u128::from(address) & mask).into())
            }
        };
        Ok(Network { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}
