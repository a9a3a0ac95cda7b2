//! Copies of connections, as the balancers send them to each other.

use std::net::SocketAddr;

use crate::fleet::Fleet;
use crate::seal::{Kind, MAX_BODY};

/// Most bodies that wait to be taken.
const MAX_WAITING: usize = 4096;

/// The longest body of copies, in bytes.
const MAX_COPIES: usize = MAX_BODY;

impl Fleet {
    /// Longest body of [`send_copies`](Fleet::send_copies), in bytes.
    pub const MAX_COPIES: usize = MAX_COPIES;

    /// Sends a body about copies of connections to a balancer, or with `None` to all. A balancer that is not there, or
    /// has given no token yet, gets none.
    pub fn send_copies(&mut self, to: Option<SocketAddr>, body: &[u8]) {
        if body.len() > MAX_COPIES {
            return;
        }
        self.send_body(Kind::Copies, to, body);
    }

    /// Takes the bodies about copies that others have sent since the last call, each with the sender, and the number of
    /// bodies for which there was no room.
    pub fn take_copies(&mut self) -> (Vec<(SocketAddr, Vec<u8>)>, u64) {
        let copies = std::mem::take(&mut self.copies);
        (copies.received, copies.lost)
    }

    pub(crate) fn keep_copies(&mut self, from: SocketAddr, body: &[u8]) {
        if self.copies.received.len() < MAX_WAITING {
            self.copies.received.push((from, body.to_vec()));
        } else {
            self.copies.lost += 1;
        }
    }
}
