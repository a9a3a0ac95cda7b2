use std::collections::BTreeMap;

use evenkeel_core::time::Instant;
use evenkeel_giop::ior::Ior;
use imbl::OrdMap;
use proptest::prelude::*;

use super::super::state::GroupMember;
use super::*;
use crate::directory::Reference;
use crate::properties::Scope;
use crate::types::Property;

fn keys() -> StateKeys {
    StateKeys::new("/evenkeel/")
}

fn group(creation: u32, members: usize) -> Arc<ObjectGroup> {
    let member = |number: usize| GroupMember {
        location: format!("host{number}"),
        reference: Arc::new(Reference::new(Ior::new_iiop("IDL:S:1.0", "h", 1, b"k"))),
        origin: None,
    };
    Arc::new(ObjectGroup {
        type_id: "IDL:S:1.0".into(),
        creation,
        properties: PropertySet::EMPTY,
        members: (0..members).map(member).collect(),
    })
}

fn named(creation: u32, name: &str) -> Arc<ObjectGroup> {
    let property = Property::new("org.evenkeel.GroupName", &name.to_owned());
    let properties = PropertySet::read(&vec![property], Scope::Creation).unwrap();
    let group = (*group(creation, 1)).clone();
    Arc::new(ObjectGroup {
        properties,
        ..group
    })
}

fn properties(share: f32) -> Arc<PropertySet> {
    let property = vec![Property::new("org.evenkeel.MoveShare", &share)];
    Arc::new(PropertySet::read(&property, Scope::Default).unwrap())
}

fn full() -> State {
    let ior = Arc::new(Ior::new_iiop("IDL:M:1.0", "m", 2, b"m"));
    State {
        next_group: 100,
        next_creation: 7,
        groups: OrdMap::from(vec![(98u64, group(5, 2)), (99, group(6, 0))]),
        monitors: OrdMap::unit("host1".into(), Arc::clone(&ior)),
        alerts: OrdMap::unit(r"a\.b/c.d".into(), ior),
        forced: OrdMap::from(vec![("x".to_owned(), true), ("y".to_owned(), false)]),
        defaults: properties(0.25),
        types: OrdMap::unit("IDL:a/b:1.0".into(), properties(0.5)),
    }
}

/// A store in memory.
#[derive(Clone, Default)]
struct Table {
    keys: BTreeMap<String, Vec<u8>>,
    /// Revision of the owner's key.
    owner: i64,
    /// Answers to the next calls.
    answers: VecDeque<Answer>,
    calls: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Usual,
    /// The transaction is written, and the answer is lost.
    Lost,
    Unreachable,
    Refused,
}

impl Table {
    fn write(&mut self, writes: Vec<Write>) {
        assert!(writes.len() <= 128, "etcd refuses that");
        let mut seen = HashSet::new();
        for write in writes {
            match write {
                Write::Put(key, value, 0) => {
                    assert!(value.len() < 1 << 20);
                    assert!(seen.insert(key.clone()), "etcd refuses a key twice: {key}");
                    self.keys.insert(key, value);
                }
                Write::Put(..) => panic!("a state has no lease"),
                Write::Delete(key) => drop(self.keys.remove(&key)),
                Write::DeleteUnder(prefix) => self.keys.retain(|key, _| !key.starts_with(&prefix)),
            }
        }
    }

    fn found(&self) -> StoredGroupState {
        let entry = |(key, value): (&String, &Vec<u8>)| Entry {
            key: key.clone().into_bytes(),
            value: value.clone(),
            changed: 1,
        };
        StoredGroupState::of(&keys(), self.keys.iter().map(entry).collect()).unwrap()
    }
}

impl Guarded for Table {
    async fn write_if(
        &mut self,
        (key, revision): (&str, i64),
        writes: Vec<Write>,
    ) -> Result<bool, EtcdError> {
        assert_eq!(key, "/evenkeel/corba/owner");
        self.calls += 1;
        let answer = self.answers.pop_front().unwrap_or(Answer::Usual);
        let none = || Err(EtcdError::Unreachable("no answer".into()));
        match answer {
            Answer::Refused => return Err(EtcdError::Refused("full".into())),
            Answer::Unreachable => return none(),
            Answer::Lost | Answer::Usual => {}
        }
        let is_owner = self.owner == revision;
        if is_owner {
            self.write(writes);
        }
        match answer {
            Answer::Lost => none(),
            _ => Ok(is_owner),
        }
    }
}

fn replica(answers: &[Answer]) -> Replica<Table> {
    let table = Table {
        owner: 7,
        answers: answers.iter().copied().collect(),
        ..Table::default()
    };
    let tenure = ServingRight::new(Instant::from_nanos(u64::MAX));
    Replica::new(table, keys(), 7, tenure, Arc::default())
}

#[tokio::test]
async fn what_is_written_is_found() {
    let mut replica = replica(&[]);
    replica.etcd.write(vec![Write::Put(
        keys().group(1),
        b"of an owner that ended in the middle".to_vec(),
        0,
    )]);
    assert_eq!(replica.etcd.found().state, None);
    replica.write_whole(Arc::new(full())).await.unwrap();
    let found = replica.etcd.found();
    assert_eq!((found.state, found.damaged), (Some(full()), Vec::new()));
    // A change costs what is different in it.
    let mut next = full();
    next.groups.insert(99, group(6, 1));
    next.groups.remove(&98);
    next.forced.remove("x");
    next.monitors.clear();
    let writes = difference(&keys(), &full(), &next).unwrap();
    // Defaults of two calls are two objects.
    assert!(writes.len() <= 6, "{writes:?}");
    let before = replica.etcd.calls;
    replica.write(&Arc::new(next.clone())).await.unwrap();
    assert_eq!(replica.etcd.calls, before + 1);
    assert_eq!(replica.etcd.found().state, Some(next));
}

#[test]
fn ids_come_first_in_a_change_and_last_in_a_whole_state() {
    let next = State {
        next_group: 101,
        ..full()
    };
    let first = difference(&keys(), &full(), &next).unwrap().remove(0);
    assert!(matches!(first, Write::Put(key, ..) if key == "/evenkeel/corba/state/ids"));
    let all = whole(&keys(), &full()).unwrap();
    let last = all.last().unwrap();
    assert!(matches!(&last[..], [Write::Put(key, ..)] if key.ends_with("/ids")));
    assert!(matches!(&all[0][..], [Write::DeleteUnder(_)]));
}

#[tokio::test]
async fn many_groups_are_several_transactions() {
    let mut state = full();
    state.groups = (0..250u64).map(|id| (id, group(id as u32, 1))).collect();
    state.next_group = 250;
    let all = whole(&keys(), &state).unwrap();
    assert_eq!(all.len(), 5, "one to clear, 255 parts, and the ids");
    let mut replica = replica(&[]);
    replica.write_whole(Arc::new(state.clone())).await.unwrap();
    assert_eq!(replica.etcd.found().state.unwrap().groups, state.groups);
}

#[test]
fn transactions_are_not_longer_than_the_store_takes() {
    let put = |bytes: usize| Write::Put("key".into(), vec![0; bytes], 0);
    let sizes = |writes: Vec<Write>| split(writes).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(sizes(vec![]), [0; 0]);
    assert_eq!(sizes(vec![put(MAX_VALUE), put(1), put(MAX_VALUE)]), [2, 1]);
    assert_eq!(sizes((0..201).map(|_| put(1)).collect()), [100, 100, 1]);
    assert_eq!(sizes(vec![put(400_000); 5]), [2, 2, 1]);
}

#[test]
fn what_does_not_fit_into_a_value_is_too_long() {
    let before = State::default();
    let is_long = |members: usize| {
        let changed = [(1, group(1, members))];
        is_too_long(changed.iter(), &before, &before)
    };
    assert!(!is_long(10) && !is_long(2000));
    assert!(is_long(20_000));
    let next = State {
        defaults: properties(0.5),
        ..State::default()
    };
    assert!(!is_too_long([].iter(), &before, &next));
}

#[tokio::test]
async fn an_answer_that_is_lost_is_written_once_more() {
    use Answer::{Lost, Unreachable, Usual};
    let mut replica = replica(&[Usual, Usual, Usual, Unreachable, Lost, Unreachable]);
    replica.write_whole(Arc::new(full())).await.unwrap();
    let mut next = full();
    next.groups.insert(100, group(7, 1));
    (next.next_group, next.next_creation) = (101, 8);
    replica.write(&Arc::new(next.clone())).await.unwrap();
    assert_eq!(replica.etcd.calls, 3 + 4);
    assert_eq!(replica.etcd.found().state, Some(next));
}

#[tokio::test]
async fn what_was_refused_in_the_middle_is_written_before_anything_else() {
    use Answer::{Refused, Usual};
    let mut replica = replica(&[Usual, Usual, Usual, Usual, Refused]);
    replica
        .write_whole(Arc::new(State::default()))
        .await
        .unwrap();
    let calls = replica.etcd.calls;
    let many = State {
        groups: (0..150u64).map(|id| (id, group(id as u32, 1))).collect(),
        next_group: 150,
        ..State::default()
    };
    replica.etcd.answers = [Usual, Refused].into();
    let refused = replica.write(&Arc::new(many)).await.unwrap_err();
    assert!(refused.contains("full"), "{refused}");
    assert_eq!(replica.etcd.calls, calls + 2);
    assert!(replica.etcd.found().state.unwrap().groups.len() < 150);
    // The groups are gone again: those that were written must not stay.
    let last = State {
        next_group: 150,
        ..State::default()
    };
    replica.write(&Arc::new(last.clone())).await.unwrap();
    assert_eq!(replica.etcd.found().state, Some(last));
}

#[tokio::test]
async fn who_is_not_the_owner_writes_nothing_and_ends() {
    let mut replica = replica(&[]);
    replica.write_whole(Arc::new(full())).await.unwrap();
    replica.etcd.owner = 8;
    let before = replica.etcd.keys.clone();
    let tenure = Arc::clone(replica.tenure());
    assert!(tenure.holds_at(Instant::ZERO));
    let next = Arc::new(State::default());
    let refused = replica.write(&next).await.unwrap_err();
    assert!(
        refused.contains("not the load manager any more"),
        "{refused}"
    );
    assert!(!tenure.holds_at(Instant::ZERO), "it ends at once");
    assert!(
        tenure
            .wait_for_end()
            .await
            .contains("/evenkeel/corba/owner")
    );
    assert_eq!(replica.etcd.keys, before);
    // Nothing is tried any more.
    let calls = replica.etcd.calls;
    replica.write(&next).await.unwrap_err();
    assert_eq!(replica.etcd.calls, calls);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_waited_for_as_long_as_the_right_holds() {
    let mut replica = replica(&[Answer::Unreachable; 1000]);
    let tenure = Arc::clone(replica.tenure());
    let writing = tokio::spawn(async move { replica.write_whole(Arc::new(full())).await });
    tenure.end_now("the lease has ended");
    let ended = writing.await.unwrap().unwrap_err();
    assert!(ended.contains("the lease has ended"), "{ended}");
}

#[tokio::test]
async fn a_damaged_key_harms_itself_only() {
    let mut replica = replica(&[]);
    let mut state = full();
    state.groups.insert(97, named(3, "stock"));
    replica.write_whole(Arc::new(state)).await.unwrap();
    let table = &mut replica.etcd;
    let state_keys = keys();
    let json = |value: &str| value.as_bytes().to_vec();
    table.keys.insert(state_keys.group(98), json("{"));
    // Somebody has copied a group.
    let copy = serde_json::to_vec(&GroupEntry::from_group(96, &named(2, "stock"))).unwrap();
    table.keys.insert(state_keys.group(96), copy.clone());
    table.keys.insert(state_keys.group(95), copy);
    let twice = serde_json::to_vec(&GroupEntry::from_group(200, &group(6, 0))).unwrap();
    table.keys.insert(state_keys.group(200), twice);
    table
        .keys
        .insert(state_keys.part("monitors", "host1"), json("\"IOR:x\""));
    table
        .keys
        .insert(state_keys.part("alerts", ""), json("\"IOR:00\""));
    table.keys.insert(state_keys.part("later", "x"), json("1"));
    let found = table.found();
    let state = found.state.unwrap();
    let ids: Vec<u64> = state.groups.keys().copied().collect();
    assert_eq!(ids, [96, 99], "the first one of those with the same name");
    assert_eq!(state.next_group, 100);
    assert!(state.monitors.is_empty());
    assert_eq!((state.forced, state.types), (full().forced, full().types));
    let named = |key: &str| {
        found
            .damaged
            .iter()
            .filter(|text| text.contains(key))
            .count()
    };
    let groups = ["95", "97", "98", "200"].map(|id| format!("groups/{:0>20}", id));
    let others = ["monitors/host1", "alerts/", "later/x"].map(str::to_owned);
    for key in groups.iter().chain(&others) {
        assert_eq!(named(key), 1, "{key}: {:?}", found.damaged);
    }
    assert_eq!(found.damaged.len(), 7, "{:?}", found.damaged);
    // Without its ids a state is there, and no id is used twice.
    table.keys.insert(state_keys.ids(), json("[]"));
    let found = table.found();
    assert!(found.damaged.iter().any(|text| text.contains("state/ids")));
    let state = found.state.unwrap();
    assert!(state.next_group > 1_700_000_000 && state.next_creation == 7);
    // What a later program wrote is not overwritten.
    let later = r#"{"version":2,"next_group":1,"next_creation":1}"#;
    table.keys.insert(state_keys.ids(), json(later));
    let entry = Entry {
        key: state_keys.ids().into_bytes(),
        value: json(later),
        changed: 1,
    };
    let refused = StoredGroupState::of(&keys(), vec![entry]).unwrap_err();
    assert!(refused.contains("has version 2"), "{refused}");
}

proptest! {
    /// Whatever follows whatever: the store has the last state.
    #[test]
    fn the_store_follows_any_changes(
        steps in prop::collection::vec((0..5u64, 0..4usize, any::<bool>(), 0..4u8), 1..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut replica = replica(&[]);
            let mut state = State { next_group: 10, next_creation: 10, ..State::default() };
            replica.write_whole(Arc::new(state.clone())).await.unwrap();
            for (id, members, is_there, other) in steps {
                let name = format!("host{other}");
                match is_there {
                    true => {
                        state.groups.insert(id, group(id as u32, members));
                        state.forced.insert(name, members > 1);
                    }
                    false => {
                        state.groups.remove(&id);
                        state.forced.remove(&name);
                    }
                }
                if other == 0 {
                    replica.etcd.answers.push_back(Answer::Refused);
                }
                let _ = replica.write(&Arc::new(state.clone())).await;
            }
            replica.etcd.answers.clear();
            replica.write(&Arc::new(state.clone())).await.unwrap();
            let found = replica.etcd.found();
            assert_eq!(found.damaged, Vec::<String>::new());
            assert_eq!(found.state, Some(state));
        });
    }

    #[test]
    fn any_values_are_read(value in prop::collection::vec(any::<u8>(), 0..60), name in ".{0,20}") {
        let mut state = State::default();
        for kind in ["groups", "monitors", "alerts", "forced_alerts", "types"] {
            let _ = take(&mut state, &format!("{kind}/{name}"), &value);
        }
        let _ = take(&mut state, "defaults", &value);
    }
}
