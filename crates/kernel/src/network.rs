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
#[error("`{0}` is not an address, and not a network like 10.0.0.0/8 or 2001:db8::/32")]
pub struct BadNetwork(String);

impl Network {
    /// Returns true if this is a network of IPv6 addresses.
    pub fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    /// Some address in the network.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns true if `address` is in this network. An IPv4 address in the form of IPv6 counts as
    /// IPv4.
    pub fn contains_address(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }

    /// The key of a BPF map of prefixes: number of bits, and the address.
    #[cfg(feature = "bpf")]
    pub(crate) fn prefix(&self) -> Vec<u8> {
        let mut out = u32::from(self.bits).to_ne_bytes().to_vec();
        match self.address {
            IpAddr::V4(address) => out.extend(address.octets()),
            IpAddr::V6(address) => out.extend(address.octets()),
        }
        out
    }

    #[cfg(feature = "bpf")]
    pub(crate) fn from_prefix(key: &[u8]) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn holds(network: &str, address: &str) -> bool {
        let network: Network = network.parse().unwrap();
        network.contains_address(address.parse().unwrap())
    }

    #[test]
    fn networks_hold_what_begins_alike() {
        assert!(holds("10.0.0.0/8", "10.255.1.2"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(holds("0.0.0.0/0", "203.0.113.1"));
        assert!(!holds("0.0.0.0/0", "fd00::1"));
        assert!(holds("192.0.2.7", "192.0.2.7"));
        assert!(!holds("192.0.2.7", "192.0.2.6"));
        assert!(holds("fd00::/8", "fd12::1"));
        assert!(!holds("fd00::/8", "fe80::1"));
        assert!(holds("::/0", "fe80::1"));
        assert!(holds("::1", "::1"));
        assert!(!holds("::1", "::2"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "::/129",
            "x/8",
            "10/8",
            "10.0.0.0/",
        ] {
            let error = bad.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains("10.0.0.0/8"), "{error}");
        }
        // What stands behind the prefix is left out.
        assert_eq!(
            "10.1.0.0/8".parse::<Network>().unwrap().to_string(),
            "10.0.0.0/8"
        );
        assert_eq!("::1".parse::<Network>().unwrap().to_string(), "::1/128");
    }
}
