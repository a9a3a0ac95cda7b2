//! Admission of addresses that become members although the file does not name them.
//!
//! Whoever has an agent's key, or answers for a name, says where members are. An address that only this
//! machine reaches, and above all one of this process itself, may not become a member: clients would reach it
//! through the balancer.

use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;

use crate::config::GroupConfig;
use crate::config::networks::{Networks, UnusualAddress};

/// An address that was to be a member, and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedAddress {
    /// Name that leads to the address: of a member of the file, or the address that an agent registered.
    pub name: String,
    /// The address.
    pub address: SocketAddr,
    /// Reason why the address is refused.
    pub reason: UnusualAddress,
}

/// Judges addresses for one state.
pub(crate) struct Admission {
    /// Addresses where this process listens, or is about to.
    listening: Vec<SocketAddr>,
    /// The addresses of this machine, asked for when they matter.
    machine: OnceCell<Vec<IpAddr>>,
}

impl Admission {
    pub(crate) fn new(listening: Vec<SocketAddr>) -> Self {
        Admission {
            listening,
            machine: OnceCell::new(),
        }
    }

    /// Checks that an agent may register `address` for a group, or that a name of its members may resolve to
    /// it.
    ///
    /// `localhost` is loopback by definition (RFC 6761, section 6.3), so whoever writes it into the file
    /// means that.
    ///
    /// # Errors
    ///
    /// Reason why the address is refused.
    pub(crate) fn judge_address(
        &self,
        group: &GroupConfig,
        host: &str,
        address: SocketAddr,
    ) -> Result<(), UnusualAddress> {
        let name = host.strip_suffix('.').unwrap_or(host);
        let is_localhost = name == "localhost" || name.ends_with(".localhost");
        if is_localhost && address.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Networks::judge_address(group.allowed_networks.as_ref(), address.ip())?;
        match self.is_own(address) {
            true => Err(UnusualAddress::OwnListener),
            false => Ok(()),
        }
    }

    /// True if whoever connects to `address` reaches this process.
    fn is_own(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let here = self
            .listening
            .iter()
            .filter(|own| own.port() == address.port());
        here.map(|own| own.ip().to_canonical()).any(|own| {
            // To connect to no address is to connect to loopback.
            own == ip || ip.is_unspecified() || (own.is_unspecified() && self.is_local(ip))
        })
    }

    fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.machine.get_or_init(addresses).contains(&ip)
    }
}

/// The addresses of this machine's interfaces; none if the system does not tell.
fn addresses() -> Vec<IpAddr> {
    let interfaces = match getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::warn!(%error, "the system does not report this machine's addresses");
            return Vec::new();
        }
    };
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| Some(IpAddr::from(address.as_sockaddr_in6()?.ip()).to_canonical()))
    });
    addresses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(listening: &[&str], host: &str, address: &str) -> Result<(), UnusualAddress> {
        let listening = listening.iter().map(|text| text.parse().unwrap());
        let admission = Admission::new(listening.collect());
        let mut group = GroupConfig::new("web", Vec::new());
        let all = ["0.0.0.0/0", "::/0"].map(|text| text.parse().unwrap());
        group.allowed_networks = Some(Networks(all.into()));
        admission.judge_address(&group, host, address.parse().unwrap())
    }

    #[test]
    fn s1_nobody_is_a_member_where_this_process_listens() {
        let own = Err(UnusualAddress::OwnListener);
        for (listening, address, judged) in [
            ("127.0.0.1:9900", "127.0.0.1:9900", own),
            ("127.0.0.1:9900", "[::ffff:127.0.0.1]:9900", own),
            ("127.0.0.1:9900", "127.0.0.1:9901", Ok(())),
            ("127.0.0.1:9900", "0.0.0.0:9900", own),
            ("0.0.0.0:9900", "127.0.0.1:9900", own),
            ("0.0.0.0:9900", "127.9.9.9:9900", own),
            ("[::]:9900", "[::1]:9900", own),
            ("[::ffff:10.0.0.1]:9900", "10.0.0.1:9900", own),
            // Nobody has an address that is for documentation.
            ("0.0.0.0:9900", "192.0.2.77:9900", Ok(())),
        ] {
            assert_eq!(
                judge(&[listening], "x", address),
                judged,
                "{listening} {address}"
            );
        }
        for ip in addresses().into_iter().filter(IpAddr::is_ipv4) {
            let address = SocketAddr::new(ip, 9900).to_string();
            assert_eq!(judge(&["0.0.0.0:9900"], "x", &address), own, "{address}");
        }
        assert!(addresses().iter().any(IpAddr::is_loopback));
    }

    #[test]
    fn s1_localhost_is_loopback_and_nothing_else() {
        let admission = Admission::new(Vec::new());
        let group = GroupConfig::new("web", Vec::new());
        let judge =
            |host, address: &str| admission.judge_address(&group, host, address.parse().unwrap());
        for host in ["localhost", "localhost.", "web.localhost"] {
            assert_eq!(judge(host, "127.0.0.1:80"), Ok(()), "{host}");
            assert_eq!(judge(host, "[::1]:80"), Ok(()), "{host}");
            assert_eq!(
                judge(host, "169.254.1.1:80"),
                Err(UnusualAddress::LinkLocal)
            );
        }
        for host in ["notlocalhost", "localhost.example", "127.0.0.1", ""] {
            assert_eq!(
                judge(host, "127.0.0.1:80"),
                Err(UnusualAddress::Loopback),
                "{host}"
            );
        }
    }
}
