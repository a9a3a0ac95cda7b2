//! List of the clients whose sessions of UDP the workers have.
//!
//! Forwarding in the kernel follows the list: the kernel leaves datagrams of these clients to the rule's sockets. The list is
//! used when a session begins and ends, and not for each datagram.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
        let simplify = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
        SessionKey {
            client: simplify(client),
            listener: simplify(listener),
        }
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

#[derive(Debug, Default)]
struct Inner {
    /// Number of sessions of each client: one that leaves its member may wait for an answer while the next one is open.
    sessions: HashMap<SessionKey, u32>,
    /// Changes since the last look, if somebody looks.
    changes: Option<Vec<SessionChange>>,
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

    /// Follows the list from now on: the first changes are the clients that have sessions now.
    pub fn follow(&self) -> FollowedSessions {
        let mut inner = self.lock();
        let all = inner.sessions.keys().map(|key| SessionChange {
            key: *key,
            has_session: true,
        });
        inner.changes = Some(all.collect());
        drop(inner);
        FollowedSessions { list: self.clone() }
    }
}

impl Inner {
    fn note_change(&mut self, key: SessionKey, has_session: bool) {
        if let Some(changes) = &mut self.changes {
            changes.push(SessionChange { key, has_session });
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

/// Changes of the list, which are gathered until this is dropped.
#[derive(Debug)]
pub struct FollowedSessions {
    list: ClientSessions,
}

impl FollowedSessions {
    /// Takes the changes since the last call, in their order.
    pub fn take_changes(&self) -> Vec<SessionChange> {
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
        self.list.lock().changes = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> SessionKey {
        let client = SocketAddr::new("::ffff:192.0.2.1".parse().unwrap(), port);
        SessionKey::new(client, "192.0.2.9:53".parse().unwrap())
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
        let followed = list.follow();
        assert_eq!(followed.take_changes(), [change(1, true)]);
        // The next session of a client may begin before the last one is over.
        let next = list.add_session(key(1));
        let other = list.add_session(key(2));
        drop(early);
        assert_eq!(followed.take_changes(), [change(2, true)]);
        drop((next, other));
        let gone = [change(1, false), change(2, false)];
        assert_eq!(followed.take_changes(), gone);
        assert_eq!(followed.take_changes(), []);
        drop(followed);
        let _late = list.add_session(key(3));
        assert!(list.lock().changes.is_none(), "nobody looks");
    }
}
