//! Cookies and tokens: numbers that only somebody at an address can know, without anything being
//! kept of it.

use std::net::{IpAddr, SocketAddr};

use evenkeel_core::time::Instant;

use super::{Broker, COOKIE_LIFETIME, Peer};
use crate::reporting::message::Cookie;

impl Broker {
    pub(super) fn new_cookie(&self, address: SocketAddr, nonce: u64, now: Instant) -> Cookie {
        Cookie {
            issued: now,
            proof: of_cookie(address, nonce, now, |parts| self.secret.compute_tag(parts)),
        }
    }

    pub(super) fn is_cookie(
        &self,
        cookie: &Cookie,
        address: SocketAddr,
        nonce: u64,
        now: Instant,
    ) -> bool {
        now.since(cookie.issued) <= COOKIE_LIFETIME
            && *cookie != Cookie::NONE
            && of_cookie(address, nonce, cookie.issued, |parts| {
                self.secret.is_tag(parts, &cookie.proof)
            })
    }

    /// Returns the token that only somebody at `address` can know: it is sent nowhere else.
    pub(super) fn compute_token(&self, address: SocketAddr, identifier: u64) -> u64 {
        let (ip, port) = bytes(address);
        let parts = [
            b"token".as_slice(),
            ip.as_slice(),
            &port,
            &identifier.to_be_bytes(),
        ];
        let tag = self.secret.compute_tag(&parts);
        u64::from_be_bytes(*tag.first_chunk().unwrap_or(&[0; 8]))
    }

    /// The token of `from`, if that is not where the agent is.
    pub(super) fn token_elsewhere(&self, from: Peer, identifier: u64) -> Option<u64> {
        let agent = self.agents.get(&identifier)?;
        (agent.peer != from).then(|| self.compute_token(from.address, identifier))
    }
}

/// Hands over what the proof of a cookie is made of.
fn of_cookie<T>(
    address: SocketAddr,
    nonce: u64,
    issued: Instant,
    with: impl FnOnce(&[&[u8]]) -> T,
) -> T {
    let (ip, port) = bytes(address);
    let (nonce, issued) = (nonce.to_be_bytes(), issued.as_nanos().to_be_bytes());
    with(&[b"cookie", &ip, &port, &nonce, &issued])
}

/// An address as bytes of which no two addresses have the same.
fn bytes(address: SocketAddr) -> ([u8; 16], [u8; 2]) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    (ip.octets(), address.port().to_be_bytes())
}
