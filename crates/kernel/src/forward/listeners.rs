//! Listening addresses of TCP and UDP rules in the tables of the program.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use libbpf_rs::{MapCore, MapFlags};

use super::Forwarder;
use super::hints::write_hints;
use super::layout::{ADDRESS, Listener, ListenerCounts, Reader, write_address};
use super::udp::{UdpCounts, UdpListener};
use crate::bpf::{self, BpfError, FirstError, failed_to, find_map};

/// Tables of a protocol's listening addresses.
struct Tables {
    listeners: &'static str,
    counts: &'static str,
    /// Bytes of the counts of an address. The first two are the same for all protocols.
    counts_length: usize,
}

const TCP: Tables = Tables {
    listeners: "evk_listeners",
    counts: "evk_listener_counts",
    counts_length: ListenerCounts::LENGTH,
};

const UDP: Tables = Tables {
    listeners: "evk_udp_listeners",
    counts: "evk_udp_counts",
    counts_length: UdpCounts::LENGTH,
};

impl Forwarder {
    /// Makes these the listening addresses of TCP rules, at most [`LISTENERS`](super::LISTENERS).
    ///
    /// # Errors
    ///
    /// The kernel refuses an address, which the program then leaves to the system. All others are written.
    pub fn set_listeners(&self, listeners: &[Listener]) -> Result<(), BpfError> {
        let entries = listeners.iter();
        let entries = entries.map(|listener| (listener.address, listener.write().to_vec()));
        let mut failure = FirstError::default();
        failure.keep(self.write_listeners(&TCP, &entries.collect::<Vec<_>>()));
        let (key, hints) = (0u32.to_ne_bytes(), write_hints(listeners));
        failure.keep(bpf::update_map(&self.object, "evk_hints", &key, &hints));
        failure.finish()
    }

    /// Makes these the listening addresses of UDP rules, likewise. Sessions of others get no more datagrams of clients.
    ///
    /// # Errors
    ///
    /// The kernel refuses an address, likewise.
    pub fn set_udp_listeners(&self, listeners: &[UdpListener]) -> Result<(), BpfError> {
        let entries = listeners.iter();
        let entries = entries.map(|listener| (listener.address, listener.write().to_vec()));
        self.write_listeners(&UDP, &entries.collect::<Vec<_>>())
    }

    /// Writes the addresses with their values, and removes all others.
    fn write_listeners(
        &self,
        tables: &Tables,
        entries: &[(SocketAddr, Vec<u8>)],
    ) -> Result<(), BpfError> {
        let map = find_map(&self.object, tables.listeners)?;
        let counts = find_map(&self.object, tables.counts)?;
        let mut failure = FirstError::default();
        let keys = entries.iter();
        let keys: BTreeSet<_> = keys
            .map(|(address, _)| write_address(*address).to_vec())
            .collect();
        let old: Vec<_> = map.keys().filter(|key| !keys.contains(key)).collect();
        for key in old {
            let address = Reader(&key).address();
            failure.keep(map.delete(&key).map_err(refuse_address(address)));
        }
        let others: Vec<_> = counts.keys().filter(|key| !keys.contains(key)).collect();
        for key in others {
            let value = counts.lookup(&key, MapFlags::ANY).ok().flatten();
            if ListenerCounts::read(&value.unwrap_or_default()).open <= 0 {
                let _ = counts.delete(&key);
            }
        }
        let no_counts = vec![0; tables.counts_length];
        for (address, value) in entries {
            let key: [u8; ADDRESS] = write_address(*address);
            // A known address keeps its counts.
            let _ = counts.update(&key, &no_counts, MapFlags::NO_EXIST);
            let written = map.update(&key, value, MapFlags::ANY);
            if failure
                .keep(written.map_err(refuse_address(*address)))
                .is_none()
            {
                // The entry of before may lead to another group.
                let _ = map.delete(&key);
            }
        }
        failure.finish()
    }
}

/// Says which address the kernel has refused.
fn refuse_address(address: SocketAddr) -> impl FnOnce(libbpf_rs::Error) -> BpfError {
    move |error| failed_to("write a listening address")(error).name_entry(&address)
}
