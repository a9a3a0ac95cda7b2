//! Members by connection ids of QUIC, for clients whose address has changed.
//!
//! The workers share the table: the kernel may assign a client's new address to another worker. Datagrams of a
//! session that is known by its address do not need the table, so its locks are not on their way.

use std::array;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_core::member::MemberId;
use evenkeel_wire::quic::{ConnectionId, Header, MAX_ID};

/// Number of connection ids that a session may have in the table.
pub(crate) const MAX_IDS: usize = 8;

/// Parts of the table, each with its lock.
const PARTS: usize = 16;

type Part = HashMap<ConnectionId, Owner>;

/// Members by connection ids that they have chosen.
#[derive(Debug)]
pub(crate) struct ConnectionIds {
    parts: [Mutex<Part>; PARTS],
    hasher: RandomState,
    /// Number of ids in the table by length.
    lengths: [AtomicU32; MAX_ID + 1],
}

/// Member of a connection id, and number of the sessions that use the id.
#[derive(Debug)]
struct Owner {
    member: MemberId,
    sessions: u32,
}

impl Default for ConnectionIds {
    fn default() -> Self {
        ConnectionIds {
            parts: array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            lengths: array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl ConnectionIds {
    fn lock_part(&self, id: &ConnectionId) -> MutexGuard<'_, Part> {
        let index = self.hasher.hash_one(id) as usize % PARTS;
        // The remainder is an index of the array.
        let part = &self.parts[index];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_of_length(&self, id: &ConnectionId) -> Option<&AtomicU32> {
        self.lengths.get(id.id_len())
    }

    /// Notes that a session with `id` is at `member`. False if the id belongs to another member.
    pub(crate) fn add_session(&self, id: ConnectionId, member: MemberId) -> bool {
        match self.lock_part(&id).entry(id) {
            Entry::Occupied(mut known) => {
                let owner = known.get_mut();
                if owner.member != member {
                    return false;
                }
                owner.sessions = owner.sessions.saturating_add(1);
            }
            Entry::Vacant(free) => {
                free.insert(Owner {
                    member,
                    sessions: 1,
                });
                if let Some(count) = self.count_of_length(&id) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        true
    }

    /// Notes that a session with `id` is over.
    pub(crate) fn remove_session(&self, id: ConnectionId) {
        let mut part = self.lock_part(&id);
        let Entry::Occupied(mut known) = part.entry(id) else {
            return;
        };
        let owner = known.get_mut();
        owner.sessions = owner.sessions.saturating_sub(1);
        if owner.sessions == 0 {
            known.remove();
            if let Some(count) = self.count_of_length(&id) {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Finds the member that has chosen the connection id in the header of a client.
    pub(crate) fn find_member(&self, header: &Header<'_>) -> Option<(ConnectionId, MemberId)> {
        match header {
            Header::Long { destination, .. } => self.find_id(destination),
            // The length of the id is not in the packet: all lengths that members use are tried.
            Header::Short { rest } => (1..=MAX_ID).rev().find_map(|len| {
                let count = self.lengths.get(len)?;
                if count.load(Ordering::Relaxed) == 0 {
                    return None;
                }
                self.find_id(rest.get(..len)?)
            }),
        }
    }

    fn find_id(&self, id: &[u8]) -> Option<(ConnectionId, MemberId)> {
        let id = ConnectionId::new(id)?;
        let member = self.lock_part(&id).get(&id)?.member;
        Some((id, member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(bytes: &[u8]) -> ConnectionId {
        ConnectionId::new(bytes).unwrap()
    }

    fn member_of(ids: &ConnectionIds, datagram: &[u8]) -> Option<u64> {
        let header = Header::read(datagram).unwrap();
        ids.find_member(&header).map(|(_, member)| member.0)
    }

    #[test]
    fn members_are_found_by_ids_of_any_length() {
        let ids = ConnectionIds::default();
        assert_eq!(member_of(&ids, &[0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9]), None);
        assert!(ids.add_session(id(&[1, 2, 3, 4]), MemberId(1)));
        assert!(ids.add_session(id(&[1, 2, 3, 4, 5, 6, 7, 8]), MemberId(2)));
        // The longest id that matches.
        assert_eq!(member_of(&ids, &[0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9]), Some(2));
        assert_eq!(member_of(&ids, &[0x40, 1, 2, 3, 4, 5, 6, 7, 9, 9]), Some(1));
        assert_eq!(member_of(&ids, &[0x40, 1, 2, 3, 4]), Some(1));
        assert_eq!(member_of(&ids, &[0x40, 1, 2, 3]), None);
        let long = [0xc0, 0, 0, 0, 1, 4, 1, 2, 3, 4, 0];
        assert_eq!(member_of(&ids, &long), Some(1));
        let long = [0xc0, 0, 0, 0, 1, 5, 1, 2, 3, 4, 5, 0];
        assert_eq!(member_of(&ids, &long), None);
    }

    #[test]
    fn an_id_stays_until_its_last_session_is_over() {
        let ids = ConnectionIds::default();
        let known = id(&[7; 20]);
        assert!(ids.add_session(known, MemberId(1)));
        assert!(ids.add_session(known, MemberId(1)));
        assert!(!ids.add_session(known, MemberId(2)));
        ids.remove_session(known);
        assert_eq!(member_of(&ids, &[7; 30]), Some(1));
        ids.remove_session(known);
        assert_eq!(member_of(&ids, &[7; 30]), None);
        ids.remove_session(known);
        assert!(ids.add_session(known, MemberId(2)));
        assert_eq!(member_of(&ids, &[7; 30]), Some(2));
    }
}
