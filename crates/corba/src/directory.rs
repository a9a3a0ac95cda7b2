//! The object groups as requests find them: a snapshot that is replaced as a whole.
//!
//! Who the members are, and which of them may be used, the manager's group says; where
//! they are, in CORBA's terms, is said here. Both change one after the other, so members
//! are matched by their id and not by their place.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::{ArcSwap, Guard};
use evenkeel_core::group::Group;
use evenkeel_core::member::MemberId;
use evenkeel_core::tally::Tally;
use evenkeel_giop::cdr::{Endian, Writer};
use evenkeel_giop::ior::{IiopProfile, Ior};
use evenkeel_manager::snapshot::GroupHandle;
use imbl::{HashMap, OrdMap};

use crate::custom::Custom;
use crate::keys::Key;

/// A member's reference, with what is worked out from it once.
#[derive(Debug)]
pub struct Reference {
    ior: Ior,
    profiles: Vec<IiopProfile>,
    big: Box<[u8]>,
    little: Box<[u8]>,
}

impl Reference {
    /// Writes it down once for both byte orders.
    pub fn new(ior: Ior) -> Self {
        let encode = |endian| {
            let mut writer = Writer::new(endian);
            ior.write(&mut writer);
            writer.into_bytes().into_boxed_slice()
        };
        Reference {
            big: encode(Endian::Big),
            little: encode(Endian::Little),
            profiles: ior.iiop_profiles().collect(),
            ior,
        }
    }

    /// The reference.
    pub fn ior(&self) -> &Ior {
        &self.ior
    }

    /// Returns true if `other` refers to the same object: one of its profiles has the same address
    /// and object key.
    pub fn is_same_object(&self, other: &Ior) -> bool {
        let is_one = |other: IiopProfile| {
            self.profiles.iter().any(|own| {
                own.port == other.port
                    && own.host.eq_ignore_ascii_case(&other.host)
                    && own.object_key == other.object_key
            })
        };
        other.iiop_profiles().any(is_one)
    }

    /// Returns the reference encoded in this byte order. The bytes fit anywhere in a message:
    /// nothing in them is aligned to more than 4.
    #[inline]
    pub fn bytes(&self, endian: Endian) -> &[u8] {
        match endian {
            Endian::Big => &self.big,
            Endian::Little => &self.little,
        }
    }
}

/// Result of a request to a group that does not relay all of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Forwarded to a member that the group's strategy chose.
    Forwarded,
    /// Forwarded to a member that a custom strategy chose.
    Custom,
    /// Forwarded to a member that the group's strategy chose because the custom strategy
    /// did not.
    Fallback,
    /// TRANSIENT: no member may be used.
    Transient,
    /// None is possible, because the client waits for none: passed on to a member.
    Oneway,
}

impl Answer {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Answer; 5] = [
        Answer::Forwarded,
        Answer::Custom,
        Answer::Fallback,
        Answer::Transient,
        Answer::Oneway,
    ];

    /// The name that metrics and the admin API use.
    pub fn name(self) -> &'static str {
        match self {
            Answer::Forwarded => "forwarded",
            Answer::Custom => "custom",
            Answer::Fallback => "fallback",
            Answer::Transient => "transient",
            Answer::Oneway => "oneway",
        }
    }
}

/// Counters of a group. They only ever grow, and last as long as the group.
#[derive(Debug, Default)]
pub struct Counters(Tally<{ Answer::ALL.len() }>);

impl Counters {
    /// Counts one.
    #[inline]
    pub fn count(&self, answer: Answer) {
        self.0.count_at(answer as usize);
    }

    /// Returns the number of requests by result.
    pub fn answer_totals(&self) -> [(Answer, u64); Answer::ALL.len()] {
        let mut totals = self.0.totals().into_iter();
        Answer::ALL.map(|answer| (answer, totals.next().unwrap_or(0)))
    }
}

/// An object group.
#[derive(Debug)]
pub struct Entry {
    /// Persistent id of the group.
    pub id: u64,
    /// Reference of the group, which clients have.
    pub reference: Ior,
    /// The manager's group.
    pub handle: Arc<GroupHandle>,
    /// The custom strategy that is asked before the manager's group is.
    pub custom: Option<Arc<Custom>>,
    /// Counters of the group, shared by all versions of the entry.
    pub counters: Arc<Counters>,
    /// True if clients are told that the group does not exist when nobody is left in it. The load
    /// manager sets it for all of its groups.
    pub ends_when_empty: Arc<AtomicBool>,
    name: Arc<str>,
    /// In the order of the manager's group when the entry was made.
    references: Box<[(MemberId, Arc<Reference>)]>,
}

impl Entry {
    /// An entry of the group `handle` with that reference, whose members are where
    /// `member` says by the member's name. `before` is the entry that it replaces.
    pub fn new(
        id: u64,
        reference: Ior,
        handle: Arc<GroupHandle>,
        member: impl Fn(&str) -> Option<Arc<Reference>>,
        custom: Option<Arc<Custom>>,
        before: Option<&Entry>,
    ) -> Self {
        let group = handle.current.load();
        let members = group.members().iter();
        let references = members.filter_map(|known| Some((known.id, member(&known.name)?)));
        Entry {
            id,
            reference,
            custom,
            name: Arc::clone(group.name()),
            references: references.collect(),
            counters: before.map_or_else(Arc::default, |before| Arc::clone(&before.counters)),
            ends_when_empty: Arc::default(),
            handle,
        }
    }

    /// The name of the manager's group.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Returns the reference of the member at `index` of `group`; `None` if the member has just
    /// joined or left: the manager hears of it a moment before the directory.
    #[inline]
    pub fn member(&self, group: &Group, index: usize) -> Option<&Arc<Reference>> {
        let id = group.members().get(index)?.id;
        match self.references.get(index) {
            Some((known, reference)) if *known == id => Some(reference),
            _ => {
                let found = self.references.iter().find(|(known, _)| *known == id);
                found.map(|(_, reference)| reference)
            }
        }
    }
}

/// All object groups at one moment. The next one shares with it what stays.
#[derive(Clone, Default)]
pub struct Snapshot {
    groups: HashMap<u64, Arc<Entry>>,
    names: HashMap<Arc<str>, u64>,
    /// Groups with a custom strategy.
    custom: OrdMap<u64, Arc<Entry>>,
}

impl Snapshot {
    /// The group with this id.
    #[inline]
    pub fn group(&self, id: u64) -> Option<&Arc<Entry>> {
        self.groups.get(&id)
    }

    /// The group that a key names; `None` if it names none, or something else.
    #[inline]
    pub fn find(&self, key: Key<'_>) -> Option<&Arc<Entry>> {
        match key {
            Key::Group(id) => self.group(id),
            Key::GroupName(name) => self.group(*self.names.get(name)?),
            Key::Manager | Key::Strategy(_) => None,
        }
    }

    /// All of them, in no particular order.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.groups.values()
    }

    /// Returns the groups with a custom strategy, ordered by id.
    pub fn with_custom(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.custom.values()
    }

    fn remove(&mut self, id: u64) {
        if let Some(entry) = self.groups.remove(&id) {
            // Another group may have got its name.
            if self.names.get(&entry.name) == Some(&id) {
                self.names.remove(&entry.name);
            }
            self.custom.remove(&id);
        }
    }

    fn insert(&mut self, entry: Arc<Entry>) {
        self.remove(entry.id);
        self.names.insert(Arc::clone(&entry.name), entry.id);
        if entry.custom.is_some() {
            self.custom.insert(entry.id, Arc::clone(&entry));
        }
        self.groups.insert(entry.id, entry);
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.groups.keys()).finish()
    }
}

/// The snapshot that counts now. Read without a lock by all workers.
#[derive(Debug, Default)]
pub struct Directory {
    current: ArcSwap<Snapshot>,
}

impl Directory {
    /// The groups as they are.
    #[inline]
    pub fn load_snapshot(&self) -> Guard<Arc<Snapshot>> {
        self.current.load()
    }

    /// Goes on with these groups.
    pub fn publish_groups(&self, entries: impl IntoIterator<Item = Arc<Entry>>) {
        let mut snapshot = Snapshot::default();
        entries.into_iter().for_each(|entry| snapshot.insert(entry));
        self.current.store(Arc::new(snapshot));
    }

    /// Goes on without those groups of these ids, and with these in place of those with their
    /// ids. The others stay, and are not looked at. For one writer at a time.
    pub fn change_groups(&self, gone: &[u64], entries: impl IntoIterator<Item = Arc<Entry>>) {
        let mut snapshot = Snapshot::clone(&self.current.load());
        gone.iter().for_each(|&id| snapshot.remove(id));
        entries.into_iter().for_each(|entry| snapshot.insert(entry));
        self.current.store(Arc::new(snapshot));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use evenkeel_core::group::{GroupSettings, GroupState};
    use evenkeel_core::load::Location;
    use evenkeel_core::member::{Member, Slot, Weight};
    use evenkeel_core::strategy::{self, Values};

    use super::*;

    /// A group whose members have these ids and are named after them.
    pub(crate) fn group(name: &str, strategy: &str, ids: &[u64], settings: GroupSettings) -> Group {
        let member = |&id: &u64| Member {
            id: MemberId(id),
            name: format!("host{id}").into(),
            given_name: None,
            address: std::net::SocketAddr::from(([192, 0, 2, 1], 1)).into(),
            host: "192.0.2.1".into(),
            max_connections: None,
            location: Arc::new(Location::new(format!("host{id}"))),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        };
        let members: Vec<_> = ids.iter().map(member).collect();
        let values = Values::defaults(strategy::find(strategy).unwrap());
        let state = Arc::new(GroupState::default());
        Group::new(name, settings, &values, members, state)
    }

    /// The reference of the member with that name.
    pub(crate) fn reference(name: &str) -> Arc<Reference> {
        Arc::new(Reference::new(Ior::new_iiop(
            "IDL:Test:1.0",
            name,
            4711,
            b"key",
        )))
    }

    /// The reference of the group with that id.
    pub(crate) fn group_ior(id: u64) -> Ior {
        Ior::new_iiop(
            "IDL:Test:1.0",
            "127.0.0.1",
            2809,
            &Key::Group(id).to_bytes(),
        )
    }

    /// An entry with that id for a group, all of whose members are known.
    pub(crate) fn entry(id: u64, group: Group) -> Arc<Entry> {
        let handle = Arc::new(GroupHandle::new(Arc::new(group), 0));
        let known = |name: &str| Some(reference(name));
        Arc::new(Entry::new(id, group_ior(id), handle, known, None, None))
    }

    #[test]
    fn groups_are_found_by_id_and_by_name() {
        let directory = Directory::default();
        assert!(directory.load_snapshot().find(Key::Group(1)).is_none());
        let make = |id, name| entry(id, group(name, "random", &[], GroupSettings::default()));
        directory.publish_groups([make(1, "a"), make(7, "b")]);
        let snapshot = directory.load_snapshot();
        assert_eq!(snapshot.find(Key::Group(7)).unwrap().id, 7);
        assert_eq!(snapshot.find(Key::GroupName("a")).unwrap().id, 1);
        assert!(snapshot.find(Key::Group(2)).is_none());
        assert!(snapshot.find(Key::GroupName("c")).is_none());
        assert!(snapshot.find(Key::Manager).is_none());
        directory.publish_groups([make(7, "b")]);
        assert!(
            directory
                .load_snapshot()
                .find(Key::GroupName("a"))
                .is_none()
        );
    }

    #[test]
    fn members_are_matched_by_id_while_group_and_entry_change() {
        let settings = GroupSettings::default;
        let before = entry(1, group("g", "random", &[1, 2, 3], settings()));
        let host = |entry: &Entry, group: &Group, index| {
            let reference = entry.member(group, index)?;
            let iiop = reference.ior().iiop_profiles().next();
            iiop.map(|profile| profile.host.clone())
        };
        let after = group("g", "random", &[2, 3, 4], settings());
        assert_eq!(host(&before, &after, 0).unwrap(), "host2");
        assert_eq!(host(&before, &after, 1).unwrap(), "host3");
        assert_eq!(host(&before, &after, 2), None);
        assert_eq!(host(&before, &after, 3), None);
        // The next entry has the same counters.
        before.counters.count(Answer::Transient);
        before.handle.current.store(Arc::new(after));
        let known = |name: &str| Some(reference(name));
        let handle = Arc::clone(&before.handle);
        let next = Entry::new(1, group_ior(1), handle, known, None, Some(&before));
        let group = next.handle.current.load();
        assert_eq!(host(&next, &group, 2).unwrap(), "host4");
        assert_eq!(next.counters.answer_totals()[3], (Answer::Transient, 1));
    }
}
