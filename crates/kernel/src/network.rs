//! Networks whose addresses may ask.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// The text names no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNetwork {
    /// It is no address, or the number behind the slash does not fit.
    #[error("expected an address or a network such as 10.0.0.0/8 or fd00::/8")]
    Text,
    /// It looks like a network, and like an address in it.
    #[error("{0} has bits behind its prefix: is it {1}, or the address alone?")]
    Host(Network, Network),
}

impl Network {
    /// Its address: what is behind the prefix is 0.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits are the same.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `address` is in it. An IPv4 address that came in the form of IPv6 is one of
    /// IPv4.
    pub fn holds(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.leading_zeros() >= self.prefix.into()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.leading_zeros() >= self.prefix.into()
            }
            _ => false,
        }
    }

    fn masked(self) -> Network {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix));
                IpAddr::V4((u32::from(address) & mask.unwrap_or(0)).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix));
                IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask.unwrap_or(0)))
            }
        };
        Network { address, ..self }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Network { address, prefix }
    }
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let Some((address, prefix)) = text.split_once('/') else {
            let address: IpAddr = text.parse().map_err(|_| BadNetwork::Text)?;
            return Ok(address.into());
        };
        let address: IpAddr = address.parse().map_err(|_| BadNetwork::Text)?;
        let all = Network::from(address);
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= all.prefix);
        let prefix = prefix.ok_or(BadNetwork::Text)?;
        let network = Network { address, prefix };
        match network.masked() {
            masked if masked == network => Ok(network),
            masked => Err(BadNetwork::Host(network, masked)),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn holds(network: &str, address: &str) -> bool {
        let network: Network = network.parse().unwrap();
        network.holds(address.parse().unwrap())
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
            assert_eq!(bad.parse::<Network>(), Err(BadNetwork::Text), "{bad}");
        }
        let error = "10.1.0.0/8".parse::<Network>().unwrap_err().to_string();
        assert!(error.contains("is it 10.0.0.0/8"), "{error}");
        assert!("fd00::1/8".parse::<Network>().is_err());
        assert_eq!("::1".parse::<Network>().unwrap().to_string(), "::1/128");
    }
}
