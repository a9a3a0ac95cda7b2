//! Sessions of a client that may be resumed: so many for each peer, and of so many peers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::address::Address;
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Most peers whose sessions are kept: those known for longest are forgotten.
const MAX_PEERS: usize = 1024;

/// Most tickets of a peer. Each is used once; a server mostly gives two.
const MAX_TICKETS: usize = 4;

/// Whoever has another name at the same address has to prove it.
type Key = (Address, ServerName<'static>);

/// The sessions of a client, with all its peers.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    known: HashMap<Key, Known>,
    /// Peers in the order in which they were first met.
    order: VecDeque<Key>,
}

/// State that is kept of a peer.
#[derive(Debug, Default)]
struct Known {
    group: Option<NamedGroup>,
    session: Option<Tls12ClientSessionValue>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl Sessions {
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    /// Returns the state that is kept of `key`, which is known from now on.
    fn known(&mut self, key: Key) -> &mut Known {
        if !self.known.contains_key(&key) {
            while self.known.len() >= MAX_PEERS
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
            self.order.push_back(key.clone());
        }
        self.known.entry(key).or_default()
    }
}

/// The sessions with the peer at an address.
#[derive(Debug)]
pub(crate) struct AtAddress {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) address: Address,
}

impl AtAddress {
    fn key(&self, name: &ServerName<'_>) -> Key {
        (self.address.clone(), name.to_owned())
    }

    fn change<T>(&self, name: &ServerName<'_>, change: impl FnOnce(&mut Known) -> T) -> T {
        change(self.sessions.peers().known(self.key(name)))
    }

    fn find<T>(
        &self,
        name: &ServerName<'_>,
        find: impl FnOnce(&mut Known) -> Option<T>,
    ) -> Option<T> {
        let mut peers = self.sessions.peers();
        peers.known.get_mut(&self.key(name)).and_then(find)
    }
}

impl ClientSessionStore for AtAddress {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.change(&name, |known| known.group = Some(group));
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.find(name, |known| known.group)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.change(&name, |known| known.session = Some(session));
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.find(name, |known| known.session.clone())
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.find(name, |known| known.session.take());
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.change(&name, |known| {
            if known.tickets.len() >= MAX_TICKETS {
                known.tickets.pop_front();
            }
            known.tickets.push_back(ticket);
        });
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.find(name, |known| known.tickets.pop_back())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_by_name_and_address() {
        let sessions = Arc::new(Sessions::default());
        let at = |port| AtAddress {
            sessions: Arc::clone(&sessions),
            address: Address::Ip(([127, 0, 0, 1], port).into()),
        };
        let name = |name: &'static str| ServerName::try_from(name).unwrap();
        let most = MAX_PEERS as u16;
        for port in 1..=most {
            at(port).set_kx_hint(name("a.example"), NamedGroup::X25519);
        }
        assert!(at(1).kx_hint(&name("a.example")).is_some());
        assert!(at(1).kx_hint(&name("b.example")).is_none());
        at(1).set_kx_hint(name("b.example"), NamedGroup::X25519);
        assert!(at(1).kx_hint(&name("b.example")).is_some());
        assert!(at(1).kx_hint(&name("a.example")).is_none(), "the oldest");
        assert!(at(2).kx_hint(&name("a.example")).is_some());
        let peers = sessions.peers();
        assert_eq!(
            (peers.known.len(), peers.order.len()),
            (MAX_PEERS, MAX_PEERS)
        );
    }
}
