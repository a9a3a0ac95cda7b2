//! Addresses and ports that members see with full NAT.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use super::layout::NatPorts;
use crate::bpf::BpfError;

/// Range of ports from which the system takes ports of outgoing connections.
const SYSTEM_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Least number of ports with which full NAT is of use.
const LEAST_PORTS: u16 = 1024;

/// Returns the ports above those that the system takes for connections of this machine: no socket of the system gets one
/// of them by itself.
///
/// # Errors
///
/// The system does not tell its ports, or there are too few above; the error says which setting to change.
pub fn find_nat_ports() -> Result<NatPorts, BpfError> {
    let text = fs::read_to_string(SYSTEM_PORTS)
        .map_err(|error| BpfError::File(format!("cannot read {SYSTEM_PORTS}: {error}")))?;
    choose_ports(&text).ok_or_else(|| {
        BpfError::File(format!(
            "return_path = \"nat\" needs {LEAST_PORTS} ports above net.ipv4.ip_local_port_range, which is {}: set it to \
             32768 60999 with sysctl",
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        ))
    })
}

/// Returns the ports above a range that is written as the system has it; `None` if they are too few.
fn choose_ports(system: &str) -> Option<NatPorts> {
    let last: u16 = system.split_whitespace().nth(1)?.parse().ok()?;
    let count = u16::MAX - last;
    (count >= LEAST_PORTS).then_some(NatPorts {
        first: last.saturating_add(1),
        count,
    })
}

/// Returns the address of this machine that packets to `member` have; `None` without a route. No packet is sent.
pub fn find_source(member: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match member {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(member).ok()?;
    let source = socket.local_addr().ok()?.ip();
    (!source.is_unspecified() && !source.is_loopback()).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_above_those_of_the_system() {
        let ports = |first, count| Some(NatPorts { first, count });
        assert_eq!(choose_ports("32768\t60999\n"), ports(61_000, 4536));
        assert_eq!(choose_ports("1024 19999"), ports(20_000, 45_536));
        for few in ["1024 65535", "32768 64512", "32768", "a b", ""] {
            assert_eq!(choose_ports(few), None, "{few}");
        }
        assert_eq!(choose_ports("32768 64511"), ports(64_512, 1024));
    }

    #[test]
    fn sources_are_addresses_of_this_machine_on_the_way() {
        // The way to the machine's own addresses is the loopback interface, which no member is behind.
        assert_eq!(find_source("127.0.0.1:80".parse().unwrap()), None);
        assert_eq!(find_source("[::1]:80".parse().unwrap()), None);
    }
}
