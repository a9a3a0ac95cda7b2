//! Connection ids of QUIC that the program has learnt.

use std::net::SocketAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::layout::Reader;
use super::udp::{KEY, UdpSession};

/// Lengths of ids that tell connections apart: `QUIC_MIN_ID` and `QUIC_MAX_ID`.
pub(super) const MIN_ID: usize = 4;
pub(super) const MAX_ID: usize = 20;

/// Bytes of `struct evk_quic_id`.
const ID: usize = 4 + MAX_ID;

/// Returns `struct evk_quic_id`; `None` if ids do not have this length.
pub(super) fn write_id(group: u16, id: &[u8]) -> Option<[u8; ID]> {
    if id.len() < MIN_ID {
        return None;
    }
    let mut out = [0; ID];
    let (head, bytes) = out.split_first_chunk_mut::<4>()?;
    bytes.get_mut(..id.len())?.copy_from_slice(id);
    let [low, high] = group.to_ne_bytes();
    *head = [u8::try_from(id.len()).ok()?, 0, low, high];
    Some(out)
}

/// Connection ids of QUIC that the program has learnt. A question is a few system calls.
#[derive(Debug)]
pub struct LearntIds {
    ids: MapHandle,
    lengths: MapHandle,
    sessions: MapHandle,
}

impl LearntIds {
    /// Names of the maps with the ids, their lengths and the sessions.
    pub(super) const MAPS: [&str; 3] = ["evk_quic_ids", "evk_quic_lengths", "evk_udp_sessions"];

    /// Creates the questions about ids of these maps.
    pub(super) fn new(ids: MapHandle, lengths: MapHandle, sessions: MapHandle) -> Self {
        LearntIds {
            ids,
            lengths,
            sessions,
        }
    }

    /// Returns the lengths of the ids, the longest first.
    pub fn list_lengths(&self) -> Vec<usize> {
        let counts = self.lengths.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let counts = counts.ok().flatten().unwrap_or_default();
        let mut counts = Reader(&counts);
        let counts: Vec<_> = (0..=MAX_ID).map(|_| counts.u32()).collect();
        let used = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(|(length, _)| length).rev().collect()
    }

    /// Returns the member of the open session that an id of a group's member belongs to, at a listening address.
    pub fn find_member(&self, group: u32, listener: SocketAddr, id: &[u8]) -> Option<SocketAddr> {
        let id = write_id(u16::try_from(group).ok()?, id)?;
        let owner = self.ids.lookup(&id, MapFlags::ANY).ok()??;
        let (key, began) = owner.split_first_chunk::<KEY>()?;
        let value = self.sessions.lookup(key, MapFlags::ANY).ok()??;
        let session = UdpSession::read(key, &value);
        let is_owner = session.began_ns == Reader(began).u64() && session.is_open();
        (is_owner && session.of.listener == listener).then_some(session.member)
    }
}
