//! Networks: where a member may be that the file does not name by its address.
//!
//! Agents register addresses, and whoever answers for a name says which addresses it has.
//! Neither may make the balancer a way to what only the balancer's own machine reaches.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address, and how many of its first bits count.
///
/// IPv4 networks that are written as IPv6 (`::ffff:10.0.0.0/104`) are IPv4 networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// A text that is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseNetworkError {
    /// There is no address before the `/`.
    #[error("not an IP address or a network")]
    Address,
    /// Text after the `/` that is no number of bits, or more than the address has.
    #[error("not a number of bits after the \"/\"")]
    Prefix,
    /// Some of the bits that do not count are set, so something else was probably meant.
    #[error("the address has bits set after the prefix: the network begins at {0}")]
    HostBits(IpAddr),
}

impl Network {
    /// All IPv4 addresses.
    pub(crate) const ALL: Network = Network {
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        prefix: 0,
    };

    /// Returns the first address, and the number of its leading bits that count.
    pub fn address_and_prefix(&self) -> (IpAddr, u8) {
        (self.address, self.prefix)
    }

    /// True if each address of `other` is in it.
    pub(crate) fn covers(&self, other: &Network) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }

    /// True if `ip` is in the network. An IPv4 address that is written as IPv6 is an IPv4 address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_ipv4() == self.address.is_ipv4() && masked(ip, self.prefix) == self.address
    }
}

/// `ip` with only its first `prefix` bits.
fn masked(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix.into()));
            Ipv4Addr::from_bits(ip.to_bits() & mask.unwrap_or(0)).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix.into()));
            Ipv6Addr::from_bits(ip.to_bits() & mask.unwrap_or(0)).into()
        }
    }
}

impl FromStr for Network {
    type Err = ParseNetworkError;

    fn from_str(text: &str) -> Result<Self, ParseNetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ParseNetworkError::Address)?;
        let bits = |ip: IpAddr| if ip.is_ipv4() { 32u8 } else { 128 };
        let mut prefix = match prefix {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| ParseNetworkError::Prefix)?
            }
            Some(_) => return Err(ParseNetworkError::Prefix),
            None => bits(address),
        };
        if prefix > bits(address) {
            return Err(ParseNetworkError::Prefix);
        }
        let begin = masked(address, prefix);
        if begin != address {
            return Err(ParseNetworkError::HostBits(begin));
        }
        let mut address = address;
        if let (IpAddr::V6(_), IpAddr::V4(mapped)) = (address, address.to_canonical())
            && let Some(rest) = prefix.checked_sub(96)
        {
            (address, prefix) = (mapped.into(), rest);
        }
        Ok(Network { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Networks that the file lists: such as those in which members may be that it does not name by
/// their address, in place of [`unusual`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(pub Vec<Network>);

/// A proxy in front, which is believed what it says of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// Proxy in this network.
    In(Network),
    /// Proxy that connects to a Unix socket.
    Unix,
    /// Process of the balancer's own user that connects to a Unix socket.
    OwnUser,
}

/// The proxies in front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies(pub Vec<Proxy>);

impl Proxies {
    /// True if a client at `ip`, or at a Unix socket without an address, is one of the proxies. `has_own_user` finds out if
    /// the client at the Unix socket is a process of the balancer's own user.
    pub fn contains(&self, ip: Option<IpAddr>, has_own_user: impl Fn() -> bool) -> bool {
        self.0.iter().any(|proxy| match (proxy, ip) {
            (Proxy::In(network), Some(ip)) => network.contains(ip),
            (Proxy::Unix, None) => true,
            (Proxy::OwnUser, None) => has_own_user(),
            _ => false,
        })
    }
}

/// Reason why an address that the file does not name cannot be a member's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusualAddress {
    /// Not among the networks that the file allows.
    #[error("it is in none of allowed_networks")]
    NotListed,
    /// No address at all.
    #[error("it is the unspecified address")]
    Unspecified,
    /// The balancer's own machine.
    #[error("it is a loopback address")]
    Loopback,
    /// Only the balancer's own link reaches it.
    #[error("it is a link-local address")]
    LinkLocal,
    /// Many machines.
    #[error("it is a multicast or broadcast address")]
    Multicast,
    /// Address at which clouds tell a machine its credentials.
    #[error("it is an address of cloud metadata")]
    Metadata,
    /// The balancer would be its own member.
    #[error("the balancer itself listens there")]
    OwnListener,
}

/// Addresses at which clouds serve metadata, credentials among them, and that are no
/// link-local ones: Amazon, Google, Alibaba, Azure, Oracle.
const METADATA: [IpAddr; 5] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

impl Networks {
    /// True if an address is in one of the networks.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(ip))
    }

    /// True if each address in `other` is in one of them.
    pub(crate) fn cover(&self, other: &Networks) -> bool {
        let is_covered = |other: &Network| self.0.iter().any(|own| own.covers(other));
        other.0.iter().all(is_covered)
    }

    /// True if no address is in one of them and in one of `other`.
    pub(crate) fn is_apart_from(&self, other: &Networks) -> bool {
        let overlaps = |one: &Network, other: &Network| one.covers(other) || other.covers(one);
        let mut own = self.0.iter();
        own.all(|own| !other.0.iter().any(|other| overlaps(own, other)))
    }

    /// Checks that a member may be at `ip`, with the networks of the file, or without (`None`).
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn judge_address(allowed: Option<&Networks>, ip: IpAddr) -> Result<(), UnusualAddress> {
        match allowed {
            Some(listed) if listed.contains(ip) => Ok(()),
            Some(_) => Err(UnusualAddress::NotListed),
            None => unusual(ip).map_or(Ok(()), Err),
        }
    }
}

/// Reason why nobody has an ordinary server at `ip`; `None` where somebody may. Private networks are ordinary.
pub fn unusual(ip: IpAddr) -> Option<UnusualAddress> {
    match ip.to_canonical() {
        ip if METADATA.contains(&ip) => Some(UnusualAddress::Metadata),
        IpAddr::V4(ip) => match ip.octets() {
            // All of 0.0.0.0/8 is "this network" (RFC 1122, section 3.2.1.3).
            [0, ..] => Some(UnusualAddress::Unspecified),
            [127, ..] => Some(UnusualAddress::Loopback),
            [169, 254, 169, 254] => Some(UnusualAddress::Metadata),
            [169, 254, ..] => Some(UnusualAddress::LinkLocal),
            [224..=239, ..] | [255, 255, 255, 255] => Some(UnusualAddress::Multicast),
            _ => None,
        },
        IpAddr::V6(ip) => {
            let bytes = ip.octets();
            let inner = |from: usize| {
                let four: Option<[u8; 4]> = bytes.get(from..from + 4)?.try_into().ok();
                unusual(Ipv4Addr::from(four?).into())
            };
            match ip.segments() {
                [0, 0, 0, 0, 0, 0, 0, 1] => Some(UnusualAddress::Loopback),
                // The rest of ::/96 are IPv4 addresses in a form that is out of use (RFC
                // 4291, section 2.5.5.1).
                [0, 0, 0, 0, 0, 0, ..] => Some(UnusualAddress::Unspecified),
                [0xfe80..=0xfebf, ..] => Some(UnusualAddress::LinkLocal),
                [0xff00..=0xffff, ..] => Some(UnusualAddress::Multicast),
                // IPv4 addresses behind a translator (RFC 6052) or a tunnel (RFC 3056).
                [0x64, 0xff9b, 0, 0, 0, 0, ..] => inner(12),
                [0x2002, ..] => inner(2),
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_are_read_and_hold_their_addresses() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "127.0.0.1", "::1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::/0", "::1", "127.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"),
        ];
        for (network, inside, outside) in cases {
            let parsed: Network = network.parse().unwrap();
            assert!(parsed.contains(ip(inside)), "{network} {inside}");
            assert!(!parsed.contains(ip(outside)), "{network} {outside}");
        }
        for (text, error) in [
            ("", ParseNetworkError::Address),
            ("ten", ParseNetworkError::Address),
            ("10.0.0.0/", ParseNetworkError::Prefix),
            ("10.0.0.0/33", ParseNetworkError::Prefix),
            ("10.0.0.0/+8", ParseNetworkError::Prefix),
            ("::/129", ParseNetworkError::Prefix),
            ("10.0.0.1/8", ParseNetworkError::HostBits(ip("10.0.0.0"))),
        ] {
            assert_eq!(text.parse::<Network>(), Err(error), "{text}");
        }
    }

    #[test]
    fn s1_private_networks_are_ordinary_and_what_only_this_machine_reaches_is_not() {
        for ordinary in [
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "203.0.113.9",
            "fd12:3456::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
        ] {
            assert_eq!(unusual(ip(ordinary)), None, "{ordinary}");
            assert_eq!(Networks::judge_address(None, ip(ordinary)), Ok(()));
        }
        for (address, why) in [
            ("127.0.0.1", UnusualAddress::Loopback),
            ("127.255.255.254", UnusualAddress::Loopback),
            ("::1", UnusualAddress::Loopback),
            ("::ffff:127.0.0.1", UnusualAddress::Loopback),
            ("::ffff:7f00:1", UnusualAddress::Loopback),
            ("64:ff9b::127.0.0.1", UnusualAddress::Loopback),
            ("2002:7f00:1::", UnusualAddress::Loopback),
            ("0.0.0.0", UnusualAddress::Unspecified),
            ("0.1.2.3", UnusualAddress::Unspecified),
            ("::", UnusualAddress::Unspecified),
            ("::127.0.0.1", UnusualAddress::Unspecified),
            ("169.254.0.9", UnusualAddress::LinkLocal),
            ("fe80::1", UnusualAddress::LinkLocal),
            ("febf::1", UnusualAddress::LinkLocal),
            ("224.0.0.1", UnusualAddress::Multicast),
            ("255.255.255.255", UnusualAddress::Multicast),
            ("ff02::1", UnusualAddress::Multicast),
            ("169.254.169.254", UnusualAddress::Metadata),
            ("::ffff:169.254.169.254", UnusualAddress::Metadata),
            ("64:ff9b::a9fe:a9fe", UnusualAddress::Metadata),
            ("fd00:ec2::254", UnusualAddress::Metadata),
            ("fd20:ce::254", UnusualAddress::Metadata),
            ("100.100.100.200", UnusualAddress::Metadata),
            ("168.63.129.16", UnusualAddress::Metadata),
        ] {
            assert_eq!(unusual(ip(address)), Some(why), "{address}");
        }
    }

    #[test]
    fn s1_a_list_says_all_that_may_be() {
        let list = ["127.0.0.0/8", "10.0.0.0/8"];
        let list = Networks(list.iter().map(|text| text.parse().unwrap()).collect());
        for (address, judged) in [
            ("127.0.0.1", Ok(())),
            ("::ffff:127.0.0.1", Ok(())),
            ("10.9.9.9", Ok(())),
            ("192.168.1.1", Err(UnusualAddress::NotListed)),
            ("::1", Err(UnusualAddress::NotListed)),
        ] {
            assert_eq!(Networks::judge_address(Some(&list), ip(address)), judged);
        }
    }
}
