//! List of the clients whose sessions of UDP the workers have, and of the connection ids of QUIC of these sessions.
//!
//! Forwarding in the kernel follows the list: the kernel leaves datagrams of these clients to the rule's sockets, and leads
//! clients with these ids to their members. The other way round, a worker asks the kernel for ids that the workers do not know.
//! The list is used when a session begins, learns an id, and ends, and not for each datagram.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_wire::quic::{ConnectionId, Header};

/// Client of a listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the listener.
    pub listener: SocketAddr,
}

impl SessionKey {
    /// Returns the key of a client. An address of IPv4 that is written as one of IPv6 is the same as without.
    pub(crate) fn new(client: SocketAddr, listener: SocketAddr) -> Self {
        SessionKey {
            client: simplify(client),
            listener: simplify(listener),
        }
    }
}

/// Returns an address of IPv4 that is written as one of IPv6 as one of IPv4.
pub(crate) fn simplify(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

/// Connection id of QUIC at a listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdKey {
    /// Id that the member has chosen.
    pub id: ConnectionId,
    /// Address of the listener.
    pub listener: SocketAddr,
}

/// Change of the list: the client has a session now, or has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionChange {
    /// Client of the change.
    pub key: SessionKey,
    /// True if the client has a session.
    pub has_session: bool,
}

/// Change of the ids: sessions have the id now, or no session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdChange {
    /// Id of the change.
    pub key: IdKey,
    /// Address of the id's member; `None` if no session has the id.
    pub member: Option<SocketAddr>,
}

/// Changes of the list, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changes of the clients that have sessions.
    pub sessions: Vec<SessionChange>,
    /// Changes of the connection ids of QUIC that sessions have.
    pub ids: Vec<IdChange>,
}

/// Connection ids of QUIC that forwarding in the kernel has learnt.
pub trait KernelIds: fmt::Debug + Send + Sync {
    /// Returns the connection id in a client's header with the address of the id's member, for a client of `listener`.
    fn find_member(
        &self,
        listener: SocketAddr,
        header: &Header<'_>,
    ) -> Option<(ConnectionId, SocketAddr)>;
}

#[derive(Debug, Default)]
struct Inner {
    /// Number of sessions of each client: one that leaves its member may wait for an answer while the next one is open.
    sessions: HashMap<SessionKey, u32>,
    /// Member of each id, and number of sessions that have the id.
    ids: HashMap<IdKey, (SocketAddr, u32)>,
    /// Changes since the last look, if somebody looks.
    changes: Option<Changes>,
    /// Ids of the kernel, while somebody looks.
    kernel_ids: Option<Arc<dyn KernelIds>>,
}

/// List of the clients that have a session. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct ClientSessions {
    inner: Arc<Mutex<Inner>>,
}

impl ClientSessions {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a session, until the result is dropped.
    pub(crate) fn add_session(&self, key: SessionKey) -> ListedSession {
        let mut inner = self.lock();
        let count = inner.sessions.entry(key).or_default();
        *count = count.saturating_add(1);
        if *count == 1 {
            inner.note_change(key, true);
        }
        drop(inner);
        ListedSession {
            key,
            list: self.clone(),
        }
    }

    fn remove_session(&self, key: SessionKey) {
        let mut inner = self.lock();
        let Some(count) = inner.sessions.get_mut(&key) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            inner.sessions.remove(&key);
            inner.note_change(key, false);
        }
    }

    fn add_id(&self, key: IdKey, member: SocketAddr) -> ListedId {
        let mut inner = self.lock();
        let (_, count) = inner.ids.entry(key).or_insert((member, 0));
        *count = count.saturating_add(1);
        if *count == 1 {
            inner.note_id(key, Some(member));
        }
        drop(inner);
        ListedId {
            key,
            list: self.clone(),
        }
    }

    fn remove_id(&self, key: IdKey) {
        let mut inner = self.lock();
        let Some((_, count)) = inner.ids.get_mut(&key) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            inner.ids.remove(&key);
            inner.note_id(key, None);
        }
    }

    /// Asks the kernel for the member of the id in a client's header.
    pub(crate) fn ask_kernel(
        &self,
        listener: SocketAddr,
        header: &Header<'_>,
    ) -> Option<(ConnectionId, SocketAddr)> {
        // Not held while the kernel is asked.
        let ids = self.lock().kernel_ids.clone()?;
        ids.find_member(listener, header)
    }

    /// Follows the list from now on: the first changes are the clients that have sessions now, and the ids of these
    /// sessions. Workers ask for the kernel's ids from now on.
    pub fn follow(&self, kernel_ids: Arc<dyn KernelIds>) -> FollowedSessions {
        let mut inner = self.lock();
        let sessions = inner.sessions.keys().map(|key| SessionChange {
            key: *key,
            has_session: true,
        });
        let ids = inner.ids.iter().map(|(key, (member, _))| IdChange {
            key: *key,
            member: Some(*member),
        });
        inner.changes = Some(Changes {
            sessions: sessions.collect(),
            ids: ids.collect(),
        });
        inner.kernel_ids = Some(kernel_ids);
        drop(inner);
        FollowedSessions { list: self.clone() }
    }
}

impl Inner {
    fn note_change(&mut self, key: SessionKey, has_session: bool) {
        if let Some(changes) = &mut self.changes {
            changes.sessions.push(SessionChange { key, has_session });
        }
    }

    fn note_id(&mut self, key: IdKey, member: Option<SocketAddr>) {
        if let Some(changes) = &mut self.changes {
            changes.ids.push(IdChange { key, member });
        }
    }
}

/// Session in the list, until dropped.
#[derive(Debug)]
pub(crate) struct ListedSession {
    key: SessionKey,
    list: ClientSessions,
}

impl ListedSession {
    /// True if the kernel has learnt the id from another member than this one.
    pub(crate) fn has_other_owner(&self, id: &ConnectionId, member: SocketAddr) -> bool {
        let header = Header::Long {
            version: 1,
            destination: id.as_bytes(),
            source: &[],
        };
        let found = self.list.ask_kernel(self.key.listener, &header);
        found.is_some_and(|(_, owner)| owner != simplify(member))
    }

    /// Lists a connection id of the session, whose member has this address, until the result is dropped.
    pub(crate) fn list_id(&self, id: ConnectionId, member: SocketAddr) -> ListedId {
        let listener = self.key.listener;
        self.list.add_id(IdKey { id, listener }, simplify(member))
    }
}

impl Drop for ListedSession {
    fn drop(&mut self) {
        self.list.remove_session(self.key);
    }
}

/// Connection id in the list, until dropped.
#[derive(Debug)]
pub(crate) struct ListedId {
    key: IdKey,
    list: ClientSessions,
}

impl Drop for ListedId {
    fn drop(&mut self) {
        self.list.remove_id(self.key);
    }
}

/// Changes of the list, which are gathered until this is dropped.
#[derive(Debug)]
pub struct FollowedSessions {
    list: ClientSessions,
}

impl FollowedSessions {
    /// Takes the changes since the last call.
    pub fn take_changes(&self) -> Changes {
        let mut inner = self.list.lock();
        inner
            .changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }
}

impl Drop for FollowedSessions {
    fn drop(&mut self) {
        let mut inner = self.list.lock();
        (inner.changes, inner.kernel_ids) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> SessionKey {
        let client = SocketAddr::new("::ffff:192.0.2.1".parse().unwrap(), port);
        SessionKey::new(client, "192.0.2.9:53".parse().unwrap())
    }

    /// The kernel's only id, at one address.
    #[derive(Debug)]
    struct OneId(IdKey, SocketAddr);

    impl KernelIds for OneId {
        fn find_member(
            &self,
            listener: SocketAddr,
            header: &Header<'_>,
        ) -> Option<(ConnectionId, SocketAddr)> {
            let bytes = match header {
                Header::Short { rest } => rest.get(..self.0.id.id_len())?,
                Header::Long { destination, .. } => destination,
            };
            let id = ConnectionId::new(bytes)?;
            (self.0 == IdKey { id, listener }).then_some((id, self.1))
        }
    }

    fn one_id() -> OneId {
        let id = ConnectionId::new(&[7; 8]).unwrap();
        let listener = key(1).listener;
        OneId(IdKey { id, listener }, "192.0.2.3:443".parse().unwrap())
    }

    #[test]
    fn changes_are_told_from_the_first_look_on() {
        let list = ClientSessions::default();
        let early = list.add_session(key(1));
        assert_eq!(key(1).client, "192.0.2.1:1".parse().unwrap());
        let change = |port, has_session| SessionChange {
            key: key(port),
            has_session,
        };
        let followed = list.follow(Arc::new(one_id()));
        let take = || {
            let changes = followed.take_changes();
            assert_eq!(changes.ids, []);
            changes.sessions
        };
        assert_eq!(take(), [change(1, true)]);
        // The next session of a client may begin before the last one is over.
        let next = list.add_session(key(1));
        let other = list.add_session(key(2));
        drop(early);
        assert_eq!(take(), [change(2, true)]);
        drop((next, other));
        assert_eq!(take(), [change(1, false), change(2, false)]);
        assert_eq!(take(), []);
        drop(followed);
        let _late = list.add_session(key(3));
        assert!(list.lock().changes.is_none(), "nobody looks");
    }

    #[test]
    fn connection_ids_are_told_while_sessions_have_them() {
        let list = ClientSessions::default();
        let OneId(of_id, member) = one_id();
        let change = |member| IdChange { key: of_id, member };
        let [first, second] = [1, 2].map(|port| list.add_session(key(port)));
        let early = first.list_id(of_id.id, member);
        let followed = list.follow(Arc::new(one_id()));
        let take = || followed.take_changes().ids;
        assert_eq!(take(), [change(Some(member))]);
        let mapped = SocketAddr::new("::ffff:192.0.2.3".parse().unwrap(), 443);
        let late = second.list_id(of_id.id, mapped);
        drop(early);
        assert_eq!(take(), []);
        drop(late);
        assert_eq!(take(), [change(None)]);
        let again = second.list_id(of_id.id, mapped);
        assert_eq!(take(), [change(Some(member))]);
        drop((again, followed));
        assert_eq!(list.lock().ids.len(), 0);
    }

    #[test]
    fn the_kernel_is_asked_for_ids_while_somebody_looks() {
        let list = ClientSessions::default();
        let OneId(of_id, member) = one_id();
        let datagram = [0x40, 7, 7, 7, 7, 7, 7, 7, 7, 9];
        let header = Header::read(&datagram).unwrap();
        assert_eq!(list.ask_kernel(of_id.listener, &header), None);
        let followed = list.follow(Arc::new(one_id()));
        let found = list.ask_kernel(of_id.listener, &header);
        assert_eq!(found, Some((of_id.id, member)));
        assert_eq!(list.ask_kernel(member, &header), None);
        // Nobody takes an id of the kernel.
        let session = list.add_session(key(1));
        let other = ConnectionId::new(&[8; 8]).unwrap();
        assert!(!session.has_other_owner(&of_id.id, member));
        assert!(session.has_other_owner(&of_id.id, key(1).client));
        assert!(!session.has_other_owner(&other, key(1).client));
        drop(followed);
        assert_eq!(list.ask_kernel(of_id.listener, &header), None);
    }
}
