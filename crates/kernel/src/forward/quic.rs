//! Connection ids of QUIC in the tables of the program (`bpf/quic.bpf.h`).

use std::net::SocketAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::Forwarder;
use super::layout::{ADDRESS, Reader, write_address};
use super::udp::{KEY, UdpSession};
use crate::bpf::{self, BpfError, failed_to, find_map};

/// Lengths of ids that tell connections apart: `QUIC_MIN_ID` and `QUIC_MAX_ID`.
pub(super) const MIN_ID: usize = 4;
pub(super) const MAX_ID: usize = 20;

/// Bytes of `struct evk_quic_id`.
const ID: usize = 4 + MAX_ID;

/// Returns `struct evk_quic_id`; `None` if ids do not have this length.
fn write_id(group: u16, id: &[u8]) -> Option<[u8; ID]> {
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

impl Forwarder {
    /// Removes the connection ids of QUIC whose sessions are over, unless other sessions use them. Returns the number of
    /// ids that stay.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn sweep_connection_ids(&self) -> Result<usize, BpfError> {
        let mut left = [0; 8];
        bpf::run(&self.object, "evk_quic_sweep", Some(&mut left))?;
        Ok(Reader(&left).u32() as usize)
    }

    /// Tells the program the member of an id that sessions of the process at a listening address have, or `None` if they
    /// have the id no longer. Returns false if there is no room for the id.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn share_connection_id(
        &self,
        listener: SocketAddr,
        id: &[u8],
        member: Option<SocketAddr>,
    ) -> Result<bool, BpfError> {
        let Some(id) = write_id(0, id) else {
            return Ok(false);
        };
        let mut order = [&write_address(listener)[..], &id].concat();
        order.extend(member.map_or([0; ADDRESS], write_address));
        Ok(bpf::run(&self.object, "evk_quic_share", Some(&mut order))? == 1)
    }

    /// Returns the ids that the program has learnt, for questions of other threads.
    ///
    /// # Errors
    ///
    /// A map is missing, or the kernel refuses.
    pub fn learnt_ids(&self) -> Result<LearntIds, BpfError> {
        let open = |name| {
            let map = find_map(&self.object, name)?;
            MapHandle::try_from(&map).map_err(failed_to("open a BPF map"))
        };
        Ok(LearntIds {
            ids: open("evk_quic_ids")?,
            lengths: open("evk_quic_lengths")?,
            sessions: open("evk_udp_sessions")?,
        })
    }
}

/// Connection ids of QUIC that the program has learnt. A question is a few system calls.
#[derive(Debug)]
pub struct LearntIds {
    ids: MapHandle,
    lengths: MapHandle,
    sessions: MapHandle,
}

impl LearntIds {
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
