//! Sessions of UDP in the tables of the program.

use std::net::SocketAddr;

use libbpf_rs::{ErrorKind, Map, MapCore, MapFlags};

use super::Forwarder;
use super::layout::{Reader, write_address};
use super::table::read_table;
use super::udp::{KEY, SESSION, UdpClient, UdpCounts, UdpEnd, UdpSession};
use crate::bpf::{self, BpfError, failed_to, find_map};

impl Forwarder {
    /// Returns the counts of a listening address of a UDP rule.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn read_udp_counts(&self, address: SocketAddr) -> Result<UdpCounts, BpfError> {
        let map = find_map(&self.object, "evk_udp_counts")?;
        let value = map
            .lookup(&write_address(address), MapFlags::ANY)
            .map_err(failed_to("read a BPF map"))?;
        Ok(UdpCounts::read(&value.unwrap_or_default()))
    }

    /// Calls `visit` with each session of the table. Some that begin or end meanwhile may be missing.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn visit_udp_sessions(&self, mut visit: impl FnMut(UdpSession)) -> Result<(), BpfError> {
        let map = find_map(&self.object, "evk_udp_sessions")?;
        read_table::<KEY, SESSION>(&map, |key, value| visit(UdpSession::read(key, value)))
    }

    /// Returns the number of sessions that the table has room for.
    ///
    /// # Errors
    ///
    /// A map is missing.
    pub fn read_udp_capacity(&self) -> Result<u32, BpfError> {
        Ok(find_map(&self.object, "evk_udp_sessions")?.max_entries())
    }

    /// Removes a session, if no datagram has come since the session was read. A session that
    /// [rests](UdpSession::rests_at_end) ends only. Returns true if the session was removed or has ended.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn remove_udp_session(&self, session: &UdpSession, end: UdpEnd) -> Result<bool, BpfError> {
        let mut context = [write_address(session.member), write_address(session.source)].concat();
        context.extend(session.age.seen.to_ne_bytes());
        context.extend((end as u32).to_ne_bytes());
        Ok(bpf::run(&self.object, "evk_udp_remove", Some(&mut context))? == 1)
    }

    /// Leaves the datagrams of a client to the process, which has the session since `now_ns`. Returns false if there is no
    /// room for the entry.
    ///
    /// # Errors
    ///
    /// The kernel refuses the entry for another reason.
    pub fn keep_client(&self, client: &UdpClient, now_ns: u64) -> Result<bool, BpfError> {
        let map = self.find_kept()?;
        let value = now_ns.to_ne_bytes();
        match map.update(&client.write(), &value, MapFlags::ANY) {
            Err(error) if error.kind() != ErrorKind::TooBig => {
                Err(failed_to("write a BPF map")(error))
            }
            written => Ok(written.is_ok()),
        }
    }

    /// Lets the program have the sessions of a client again.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn release_client(&self, client: &UdpClient) -> Result<(), BpfError> {
        match self.find_kept()?.delete(&client.write()) {
            // The entry may have found no room.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed_to("write a BPF map")(error))
            }
            _ => Ok(()),
        }
    }

    /// Calls `visit` with each client whose datagrams are left to the process, and with the time of the entry.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn visit_kept_clients(
        &self,
        mut visit: impl FnMut(UdpClient, u64),
    ) -> Result<(), BpfError> {
        read_table::<KEY, 8>(&self.find_kept()?, |key, value| {
            let client = UdpClient::read(&mut Reader(key));
            visit(client, u64::from_ne_bytes(*value));
        })
    }

    fn find_kept(&self) -> Result<Map<'_>, BpfError> {
        find_map(&self.object, "evk_udp_kept")
    }
}
