//! List of the clients whose sessions of UDP the workers have, and of the connection ids of QUIC of these sessions.
//!
//! Forwarding in the kernel follows the list: the kernel leaves datagrams of these clients to the rule's sockets, and leads
//! clients with these ids to their members. The other way round, a worker asks the kernel for ids that the workers do not know.
//! The ids go to the process that takes the place of this one.
//! The list is used when a session begins, learns an id, and ends, and not for each datagram.
//!
//! Beside the list is the way to the [counts of limits](SharedLimits) in the kernel, for connections and sessions.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use evenkeel_manager::handover::Handover;
use evenkeel_wire::quic::{ConnectionId, Header, MAX_ID, MIN_ID};

use crate::shared_limits::SharedLimits;

/// Part of a [`Handover`] with the ids.
const IDS: &str = "quic_ids";

/// The form of the part: listener and member of ids, and the ids in base64.
const IDS_VERSION: u32 = 1;
type HandedIds = Vec<(SocketAddr, SocketAddr, Vec<String>)>;

/// Most ids that go to another process.
const MAX_HANDED: usize = 65_536;

/// Time for which ids of the process before are known. A session of this process has the id from the client's next datagram on.
const INHERITED: Duration = Duration::from_secs(300);

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

impl IdKey {
    /// Returns the key of an id.
    pub(crate) fn new(id: ConnectionId, listener: SocketAddr) -> Self {
        let listener = simplify(listener);
        IdKey { id, listener }
    }
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
    /// Ids of the process before, each of which counts as a session, until this time.
    inherited: Option<(Vec<IdKey>, Instant)>,
    /// Changes since the last look, if somebody looks.
    changes: Option<Changes>,
    /// Ids of the kernel, while somebody looks.
    kernel_ids: Option<Arc<dyn KernelIds>>,
}

/// List of the clients that have a session. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct ClientSessions {
    inner: Arc<Mutex<Inner>>,
    limits: SharedLimits,
}

impl ClientSessions {
    /// Returns the way to the counts of limits in the kernel.
    pub fn shared_limits(&self) -> &SharedLimits {
        &self.limits
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a session, until the result is dropped.
    pub(crate) fn add_session(&self, key: SessionKey) -> ListedSession {
        let mut inner = self.lock();
        inner.release_inherited();
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

    /// Lists an id of a session whose member has this address, until the result is dropped.
    pub(crate) fn add_id(&self, key: IdKey, member: SocketAddr) -> ListedId {
        self.lock().add_id(key, simplify(member));
        let list = self.clone();
        ListedId { key, list }
    }

    /// Returns the connection id in a client's header with the address of the member that has chosen the id: an id of the list,
    /// or of the kernel.
    pub(crate) fn find_member(
        &self,
        listener: SocketAddr,
        header: &Header<'_>,
    ) -> Option<(ConnectionId, SocketAddr)> {
        let listener = simplify(listener);
        let inner = self.lock();
        let find = |id: &[u8]| {
            let id = ConnectionId::new(id)?;
            let (member, _) = inner.ids.get(&IdKey { id, listener })?;
            Some((id, *member))
        };
        let found = match header {
            _ if inner.ids.is_empty() => None,
            Header::Long { destination, .. } => find(destination),
            // The length of the id is not in the packet.
            Header::Short { rest } => (MIN_ID..=MAX_ID)
                .rev()
                .find_map(|length| find(rest.get(..length)?)),
        };
        let kernel_ids = inner.kernel_ids.clone();
        // Not held while the kernel is asked.
        drop(inner);
        found.or_else(|| kernel_ids?.find_member(listener, header))
    }

    /// True if an id belongs to another member than the one with this address.
    pub(crate) fn has_other_owner(&self, key: &IdKey, member: SocketAddr) -> bool {
        let header = Header::Long {
            version: 1,
            destination: key.id.as_bytes(),
            source: &[],
        };
        let found = self.find_member(key.listener, &header);
        found.is_some_and(|(_, owner)| owner != simplify(member))
    }

    /// Tells the ids to the process that takes the place of this one.
    pub(crate) fn hand_over(&self, to: &mut Handover) {
        let mut ids: BTreeMap<(SocketAddr, SocketAddr), Vec<String>> = BTreeMap::new();
        for (key, (member, _)) in self.lock().ids.iter().take(MAX_HANDED) {
            let id = BASE64_STANDARD_NO_PAD.encode(key.id.as_bytes());
            ids.entry((key.listener, *member)).or_default().push(id);
        }
        let ids = ids.into_iter();
        let ids: HandedIds = ids.map(|((at, member), ids)| (at, member, ids)).collect();
        to.give(IDS, IDS_VERSION, &ids);
    }

    /// Takes over the ids of the process before.
    pub(crate) fn take_over(&self, from: &Handover) {
        let handed: Option<HandedIds> = from.take(IDS, IDS_VERSION);
        let read = |id: String| ConnectionId::new(&BASE64_STANDARD_NO_PAD.decode(id).ok()?);
        let all = handed.into_iter().flatten().flat_map(|(at, member, ids)| {
            let ids = ids.into_iter().filter_map(read);
            ids.map(move |id| (IdKey::new(id, at), simplify(member)))
        });
        let mut inner = self.lock();
        let mut inherited = Vec::new();
        for (key, member) in all.take(MAX_HANDED) {
            inner.add_id(key, member);
            inherited.push(key);
        }
        inner.inherited = Some((inherited, Instant::now() + INHERITED));
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
    fn add_id(&mut self, key: IdKey, member: SocketAddr) {
        let (_, count) = self.ids.entry(key).or_insert((member, 0));
        *count = count.saturating_add(1);
        if *count == 1 {
            self.note_id(key, Some(member));
        }
    }

    fn remove_id(&mut self, key: IdKey) {
        let Some((_, count)) = self.ids.get_mut(&key) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.ids.remove(&key);
            self.note_id(key, None);
        }
    }

    /// Forgets the ids of the process before when their time is over.
    fn release_inherited(&mut self) {
        let is_over = |(_, until): &mut (_, Instant)| *until <= Instant::now();
        let over = self.inherited.take_if(is_over);
        for key in over.into_iter().flat_map(|(keys, _)| keys) {
            self.remove_id(key);
        }
    }

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
        self.list.lock().remove_id(self.key);
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
        inner.release_inherited();
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
        let early = list.add_id(of_id, member);
        let followed = list.follow(Arc::new(one_id()));
        let take = || followed.take_changes().ids;
        assert_eq!(take(), [change(Some(member))]);
        let mapped = SocketAddr::new("::ffff:192.0.2.3".parse().unwrap(), 443);
        let late = list.add_id(of_id, mapped);
        drop(early);
        assert_eq!(take(), []);
        drop(late);
        assert_eq!(take(), [change(None)]);
        let again = list.add_id(of_id, mapped);
        assert_eq!(take(), [change(Some(member))]);
        drop((again, followed));
        assert_eq!(list.lock().ids.len(), 0);
    }

    /// Datagram with an id of eight times this byte, behind which is something else.
    fn datagram(byte: u8) -> [u8; 10] {
        let mut datagram = [byte; 10];
        (datagram[0], datagram[9]) = (0x40, 0);
        datagram
    }

    fn find(list: &ClientSessions, listener: SocketAddr, byte: u8) -> Option<SocketAddr> {
        let datagram = datagram(byte);
        let header = Header::read(&datagram).unwrap();
        let found = list.find_member(listener, &header)?;
        assert_eq!(found.0, ConnectionId::new(&[byte; 8]).unwrap());
        Some(found.1)
    }

    #[test]
    fn members_are_found_by_ids_of_the_list_and_of_the_kernel_while_somebody_looks() {
        let list = ClientSessions::default();
        let OneId(of_id, member) = one_id();
        let at = of_id.listener;
        assert_eq!(find(&list, at, 7), None);
        let followed = list.follow(Arc::new(one_id()));
        assert_eq!(find(&list, at, 7), Some(member));
        assert_eq!(find(&list, member, 7), None, "another listener");
        // Nobody takes an id of the kernel, or of another member's session.
        let other = IdKey::new(ConnectionId::new(&[8; 8]).unwrap(), at);
        let third = "192.0.2.4:443".parse().unwrap();
        let _listed = list.add_id(other, third);
        assert_eq!(find(&list, at, 8), Some(third));
        for (key, owner, stranger) in [(of_id, member, third), (other, third, member)] {
            assert!(!list.has_other_owner(&key, owner));
            assert!(list.has_other_owner(&key, stranger));
        }
        drop(followed);
        assert_eq!(
            (find(&list, at, 7), find(&list, at, 8)),
            (None, Some(third))
        );
    }

    #[test]
    fn ids_go_to_the_next_process_for_a_while() {
        let (old, new) = (ClientSessions::default(), ClientSessions::default());
        let OneId(of_id, member) = one_id();
        let at = of_id.listener;
        let any: SocketAddr = "[::]:443".parse().unwrap();
        let other = IdKey::new(ConnectionId::new(&[8; 8]).unwrap(), any);
        let _listed = (old.add_id(of_id, member), old.add_id(other, member));
        let mut told = Handover::default();
        old.hand_over(&mut told);
        new.take_over(&Handover::read(told.into_document()));
        let find_both = || (find(&new, at, 7), find(&new, any, 8));
        assert_eq!(find_both(), (Some(member), Some(member)));
        let followed = new.follow(Arc::new(one_id()));
        assert_eq!(followed.take_changes().ids.len(), 2);
        // A session has one of the ids when their time is over.
        let _again = new.add_id(other, member);
        new.lock().inherited.as_mut().unwrap().1 = Instant::now();
        let key = of_id;
        let gone = IdChange { key, member: None };
        assert_eq!(followed.take_changes().ids, [gone]);
        drop(followed);
        assert_eq!(find_both(), (None, Some(member)));
    }
}
