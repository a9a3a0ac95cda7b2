//! Addresses as C has them.

use std::net::{IpAddr, SocketAddr};

/// An address as C has it.
pub(super) fn raw_address(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zeros is an address of no family.
    let mut raw: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: there is room for any address.
            let to = unsafe { &mut *(&raw mut raw).cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as _;
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            // SAFETY: there is room for any address.
            let to = unsafe { &mut *(&raw mut raw).cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as _;
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_scope_id = v6.scope_id();
        }
    }
    raw
}

/// The IP address in what C has.
pub(super) fn ip(raw: &libc::sockaddr_storage) -> Option<IpAddr> {
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let from = unsafe { &*(&raw const *raw).cast::<libc::sockaddr_in>() };
            Some(IpAddr::from(from.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let from = unsafe { &*(&raw const *raw).cast::<libc::sockaddr_in6>() };
            Some(IpAddr::from(from.sin6_addr.s6_addr).to_canonical())
        }
        _ => None,
    }
}
