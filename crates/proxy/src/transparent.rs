//! Connections and sessions of UDP to members that come from the client's address (`IP_TRANSPARENT`).

use std::io;
use std::net::{IpAddr, SocketAddr};

use evenkeel_core::address::Address;
use evenkeel_limits::warn_throttled;
use evenkeel_manager::config::Source;
use evenkeel_manager::snapshot::Target;
use socket2::SockRef;

use crate::session::Session;

/// The address that a connection to a member at `address` is to come from, if it is not the
/// balancer's. A client of the other family has none that could be used.
#[inline]
pub(crate) fn source_address(
    session: &Session,
    target: &Target,
    address: &Address,
) -> Option<IpAddr> {
    match target.source {
        Source::Balancer => None,
        Source::Client => of_client(session, address),
    }
}

#[cold]
fn of_client(session: &Session, address: &Address) -> Option<IpAddr> {
    let client = session.peer.ip()?.to_canonical();
    // Such an address has a meaning on its own link or machine only: members elsewhere cannot be reached from there, and
    // must not count as failed.
    let is_local = match client {
        IpAddr::V4(client) => client.is_loopback() || client.is_link_local(),
        IpAddr::V6(client) => client.is_loopback() || client.is_unicast_link_local(),
    };
    if is_local && !address.ip().is_some_and(|ip| ip.is_loopback()) {
        warn_throttled!(rule = %session.service.name, %client, %address,
            "a member sees the balancer's address, not the client's, which has a meaning on its own link only");
        return None;
    }
    if address.ip()?.to_canonical().is_ipv4() == client.is_ipv4() {
        return Some(client);
    }
    warn_throttled!(rule = %session.service.name, %client, %address,
        "a member sees the balancer's address, not the client's: of client and member, one has IPv4, the other IPv6");
    None
}

/// Has a socket use this address, whoever has it. The system chooses the port.
pub(crate) fn bind_source(socket: &SockRef<'_>, from: IpAddr) -> io::Result<()> {
    allow_foreign_address(socket, from.is_ipv4())?;
    let bound = socket.bind(&SocketAddr::new(from, 0).into());
    bound.map_err(|error| match error.kind() {
        // All ports of the client's address are in use: a shortage, and no failure of the member.
        io::ErrorKind::AddrInUse => io::Error::from_raw_os_error(libc::EADDRNOTAVAIL),
        _ => error,
    })
}

/// Checks that this process may use addresses of others.
pub(crate) fn check_allowed() -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    allow_foreign_address(&SockRef::from(&socket), true)
}

fn allow_foreign_address(socket: &SockRef<'_>, is_v4: bool) -> io::Result<()> {
    match is_v4 {
        true => socket.set_ip_transparent_v4(true),
        false => socket.set_ip_transparent_v6(true),
    }
}
