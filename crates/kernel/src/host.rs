//! Names of a back-end: the name in a query tells which back-end is to answer it.
//!
//! Balancers and back-ends often share one key. The code of a query and of its answer covers
//! the [`Host`] that the balancer means, and a responder answers only to its own names. So
//! somebody on the path cannot pass off the answer of one back-end for that of another.
//!
//! By default a balancer means the address that it asks, and a responder goes by the addresses
//! of its machine. Behind address translation, or a virtual address, both are told a name.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use siphasher::sip::SipHasher24;

/// Most names of a responder.
pub const MAX_HOSTS: usize = 1024;

/// A name of a back-end, or an address of it, as a number that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(u64);

impl Host {
    /// Whoever has the key: nothing but the key says then who answers.
    pub const ANY: Host = Host(0);

    /// A back-end by its name. An address in text is [that address](Host::from_address).
    pub fn from_name(name: &str) -> Self {
        match name.parse() {
            Ok(address) => Host::from_address(address),
            Err(_) => Host::digest(name),
        }
    }

    /// A back-end by an address at which it is reached. All loopback addresses are one:
    /// nobody is on the path to them.
    pub fn from_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Host::digest("localhost"),
            address => Host::digest(&address.to_string()),
        }
    }

    fn digest(text: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(b"evenkeel host ");
        hasher.write(text.as_bytes());
        Host(hasher.finish().max(1))
    }

    /// The number, in datagrams and maps: the SipHash-2-4 by a key of zeros of the name, or of
    /// the address as text, behind `evenkeel host `.
    pub const fn id(self) -> u64 {
        self.0
    }

    /// Makes a host of the number in a datagram.
    pub const fn from_id(id: u64) -> Self {
        Host(id)
    }
}

/// Reason why the names of this machine cannot be found out.
#[derive(Debug, thiserror::Error)]
pub enum HostNamesError {
    /// The system does not tell its addresses.
    #[error("cannot find out the addresses of this machine: {0}; name the machine with --host")]
    Io(#[from] io::Error),
    /// There are more than a responder has room for.
    #[error(
        "this machine has more than {MAX_HOSTS} addresses: use --host to name the address that is queried"
    )]
    TooMany,
}

/// The names by which a responder goes: those that are given, or else the addresses of this
/// machine, in the network namespace that it is in.
///
/// # Errors
///
/// None is given, and the addresses are not to be had.
pub fn list_own_hosts(names: &[String]) -> Result<Vec<Host>, HostNamesError> {
    let hosts: BTreeSet<Host> = match names {
        [] => addresses()?.into_iter().map(Host::from_address).collect(),
        names => names.iter().map(|name| Host::from_name(name)).collect(),
    };
    match hosts.len() {
        0..=MAX_HOSTS => Ok(hosts.into_iter().collect()),
        _ => Err(HostNamesError::TooMany),
    }
}

/// All addresses of this machine, and the loopback address in any case.
fn addresses() -> io::Result<Vec<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    let found = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    });
    Ok(found.chain([Ipv4Addr::LOCALHOST.into()]).collect())
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_same_host_however_it_is_written() {
        let at = |text: &str| Host::from_address(text.parse().unwrap());
        assert_eq!(Host::from_name("10.0.0.1"), at("::ffff:10.0.0.1"));
        assert_eq!(Host::from_name("2001:DB8:0::1"), at("2001:db8::1"));
        assert_eq!(Host::from_name("127.0.0.9"), Host::from_name("::1"));
        assert_eq!(Host::from_name("localhost"), at("127.0.0.1"));
        assert_ne!(Host::from_name("web-1"), Host::from_name("web-2"));
        assert_ne!(Host::from_name(""), Host::ANY);
    }

    #[test]
    fn names_take_the_place_of_addresses() {
        let own = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            super::list_own_hosts(&names)
        };
        assert!(own(&[]).unwrap().contains(&Host::from_name("127.0.0.1")));
        assert_eq!(
            own(&["web-1", "web-1"]).unwrap(),
            [Host::from_name("web-1")]
        );
        let many: Vec<String> = (0..=MAX_HOSTS).map(|at| format!("web-{at}")).collect();
        assert!(matches!(
            super::list_own_hosts(&many),
            Err(HostNamesError::TooMany)
        ));
    }
}
