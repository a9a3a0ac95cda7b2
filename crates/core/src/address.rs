//! Address on which a member listens.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Address on which a member listens: dialled by the balancer, and named in logs and answers.
///
/// The text of a Unix socket is shared by all that hold it, and is gone with the last of them:
/// reloads with ever new paths leave nothing behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// An IP address and a port of TCP.
    Ip(SocketAddr),
    /// A Unix stream socket of this machine: its absolute path, or `@` and its name in the
    /// abstract namespace.
    Unix(Arc<str>),
}

impl Address {
    /// The IP address; a Unix socket has none.
    #[inline]
    pub fn ip(&self) -> Option<IpAddr> {
        self.socket().map(|address| address.ip())
    }

    /// IP address and port; a Unix socket has none.
    #[inline]
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Address::Ip(address) => Some(*address),
            Address::Unix(_) => None,
        }
    }

    /// The address of the same server at another port, which a Unix socket does not have.
    pub fn at_port(&self, port: u16) -> Option<SocketAddr> {
        self.ip().map(|ip| SocketAddr::new(ip, port))
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Address::Ip(address)
    }
}

/// Form of an address in configurations.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}
