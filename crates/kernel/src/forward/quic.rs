//! Connection ids of QUIC in the tables of the program (`bpf/quic.bpf.h`).

use std::net::SocketAddr;

use libbpf_rs::MapHandle;

use super::Forwarder;
use super::layout::{ADDRESS, Reader, write_address};
use super::learnt_ids::{LearntIds, write_id};
use crate::bpf::{self, BpfError, failed_to, find_map};

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
        let [ids, lengths, sessions] = LearntIds::MAPS.map(open);
        Ok(LearntIds::new(ids?, lengths?, sessions?))
    }
}
