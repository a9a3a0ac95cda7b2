//! Connection ids of QUIC that the kernel has learnt, for the proxy: a session of the kernel may continue in the proxy.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_kernel::forward::{LearntIds, UdpListener};
use evenkeel_proxy::udp::client_sessions::KernelIds;
use evenkeel_wire::quic::{ConnectionId, Header};
use parking_lot::Mutex;

/// Numbers of the groups of listening addresses: ids belong to members of a group. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupsOfListeners(Arc<Mutex<HashMap<SocketAddr, u32>>>);

impl GroupsOfListeners {
    /// Adds the addresses of rules.
    pub(super) fn add_listeners(&self, listeners: &[UdpListener]) {
        let listeners = listeners.iter().filter(|listener| listener.is_quic);
        let groups = listeners.map(|listener| (listener.address, listener.group));
        self.0.lock().extend(groups);
    }

    /// Forgets all addresses but those in `used`.
    pub(super) fn retain_listeners(&self, used: &HashSet<SocketAddr>) {
        self.0.lock().retain(|address, _| used.contains(address));
    }

    fn find_group(&self, listener: SocketAddr) -> Option<u32> {
        self.0.lock().get(&listener).copied()
    }
}

/// Look-up of the kernel's ids.
#[derive(Debug)]
pub(super) struct LookUp {
    learnt: LearntIds,
    groups: GroupsOfListeners,
}

impl LookUp {
    pub(super) fn new(learnt: LearntIds, groups: GroupsOfListeners) -> Self {
        LookUp { learnt, groups }
    }
}

impl KernelIds for LookUp {
    fn find_member(
        &self,
        listener: SocketAddr,
        header: &Header<'_>,
    ) -> Option<(ConnectionId, SocketAddr)> {
        let group = self.groups.find_group(listener)?;
        let find = |id: &[u8]| {
            let member = self.learnt.find_member(group, listener, id)?;
            Some((ConnectionId::new(id)?, member))
        };
        match header {
            Header::Long { destination, .. } => find(destination),
            // The length of the id is not in the packet.
            Header::Short { rest } => {
                let mut lengths = self.learnt.list_lengths().into_iter();
                lengths.find_map(|length| find(rest.get(..length)?))
            }
        }
    }
}
