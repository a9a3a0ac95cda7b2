//! The state in a store (etcd) that several balancers share: a key for each group, monitor, alert
//! and set of properties, and one for the next ids.
//!
//! A change is written as the difference of two states, in transactions that compare the key of
//! the owner: whoever is not the owner any more changes nothing. `docs/corba.md` describes the
//! keys.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_store::etcd::{Entry, Etcd, EtcdError, Keys, Write};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::document::{GroupEntry, fresh_state, parse_location, parse_reference};
use super::journal::Change;
use super::state::{ObjectGroup, State};
use crate::properties::PropertySet;
use crate::tenure::ServingRight;

/// Version of what this program writes.
const VERSION: u32 = 1;

/// Most operations of a transaction: etcd takes 128.
const MAX_OPERATIONS: usize = 100;

/// Most bytes of keys and values in a transaction: etcd takes 1.5 MiB.
const MAX_BYTES: usize = 1 << 20;

/// Most bytes of a value, which must fit into a transaction.
const MAX_VALUE: usize = MAX_BYTES - (16 << 10);

/// Bytes that an operation takes beside its key and its value, at most.
const OVERHEAD: usize = 64;

/// Keys that are read at once: many, and so few if their values are long.
const PAGES: [i64; 2] = [500, 16];

/// Pause between two tries while the store does not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// The keys of the load manager behind the store's prefix.
#[derive(Clone, Debug)]
pub struct StateKeys {
    prefix: String,
}

impl StateKeys {
    /// The keys behind the prefix of `[store]`.
    pub fn new(prefix: &str) -> Self {
        StateKeys {
            prefix: format!("{prefix}corba/"),
        }
    }

    /// Key of the balancer that serves.
    pub fn owner_key(&self) -> String {
        format!("{}owner", self.prefix)
    }

    /// Beginning of all keys with a part of the state.
    fn state(&self) -> String {
        format!("{}state/", self.prefix)
    }

    fn part(&self, kind: &str, name: &str) -> String {
        format!("{}state/{kind}/{name}", self.prefix)
    }

    fn group(&self, id: u64) -> String {
        self.part("groups", &format!("{id:020}"))
    }

    fn ids(&self) -> String {
        format!("{}ids", self.state())
    }

    fn defaults(&self) -> String {
        format!("{}defaults", self.state())
    }
}

/// The next ids. The key is there if a state is.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ids {
    version: u32,
    next_group: u64,
    next_creation: u32,
}

fn put(key: String, value: &impl Serialize) -> Result<Write, String> {
    let value = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    Ok(Write::Put(key, value, 0))
}

fn put_ids(keys: &StateKeys, state: &State) -> Result<Write, String> {
    let ids = Ids {
        version: VERSION,
        next_group: state.next_group,
        next_creation: state.next_creation,
    };
    put(keys.ids(), &ids)
}

/// Returns the writes that turn `before` into `next`, without the next ids.
fn parts(keys: &StateKeys, before: &State, next: &State) -> Result<Vec<Write>, String> {
    let change = Change::between(before, next);
    let deletes = change.gone.iter().map(|id| Write::Delete(keys.group(*id)));
    let mut writes: Vec<Write> = deletes.collect();
    for entry in &change.groups {
        writes.push(put(keys.group(entry.id), entry)?);
    }
    fn add<T: Serialize>(
        writes: &mut Vec<Write>,
        key: impl Fn(&str) -> String,
        changed: BTreeMap<String, Option<T>>,
    ) -> Result<(), String> {
        for (name, value) in changed {
            writes.push(match value {
                Some(value) => put(key(&name), &value)?,
                None => Write::Delete(key(&name)),
            });
        }
        Ok(())
    }
    let of = |kind: &'static str| move |name: &str| keys.part(kind, name);
    add(&mut writes, of("monitors"), change.monitors)?;
    add(&mut writes, of("alerts"), change.alerts)?;
    add(&mut writes, of("forced_alerts"), change.forced_alerts)?;
    add(&mut writes, of("types"), change.type_properties)?;
    if let Some(properties) = change.default_properties {
        writes.push(put(keys.defaults(), &properties)?);
    }
    Ok(writes)
}

/// Returns the writes that turn `before` into `next`: the ids first, so that no id is used twice if
/// not all is written.
fn difference(keys: &StateKeys, before: &State, next: &State) -> Result<Vec<Write>, String> {
    let ids = |state: &State| (state.next_group, state.next_creation);
    let mut writes = Vec::new();
    if ids(before) != ids(next) {
        writes.push(put_ids(keys, next)?);
    }
    writes.extend(parts(keys, before, next)?);
    Ok(writes)
}

/// The whole state in transactions: without the ids, which come last, it is as none.
fn whole(keys: &StateKeys, state: &State) -> Result<Vec<Vec<Write>>, String> {
    let mut transactions = vec![vec![Write::DeleteUnder(keys.state())]];
    transactions.extend(split(parts(keys, &State::default(), state)?));
    transactions.push(vec![put_ids(keys, state)?]);
    Ok(transactions)
}

/// Divides writes into transactions that etcd takes.
fn split(writes: Vec<Write>) -> Vec<Vec<Write>> {
    let mut transactions: Vec<Vec<Write>> = Vec::new();
    let mut bytes = 0;
    for write in writes {
        let size = OVERHEAD
            + match &write {
                Write::Put(key, value, _) => key.len() + value.len(),
                Write::Delete(key) | Write::DeleteUnder(key) => key.len(),
            };
        match transactions.last_mut() {
            Some(last) if last.len() < MAX_OPERATIONS && bytes + size <= MAX_BYTES => {
                last.push(write);
                bytes += size;
            }
            _ => {
                transactions.push(vec![write]);
                bytes = size;
            }
        }
    }
    transactions
}

/// Returns true if a part of `next` that is not in `before` is too long for the store.
pub(super) fn is_too_long<'a>(
    mut groups: impl Iterator<Item = &'a (u64, Arc<ObjectGroup>)>,
    before: &State,
    next: &State,
) -> bool {
    // In JSON nothing takes more than four times as much; then it is looked at.
    let may_be = |size: usize| size.saturating_mul(4) > MAX_VALUE - 1024;
    let is_long = |value: &PropertySet| may_be(value.size()) && length(value) > MAX_VALUE;
    let mut types = next.types.iter().filter(|(id, set)| {
        let before = before.types.get(*id);
        before.is_none_or(|before| !Arc::ptr_eq(before, set))
    });
    groups.any(|(id, group)| {
        may_be(group.size()) && length(&GroupEntry::from_group(*id, group)) > MAX_VALUE
    }) || !Arc::ptr_eq(&before.defaults, &next.defaults) && is_long(&next.defaults)
        || !before.types.ptr_eq(&next.types) && types.any(|(_, set)| is_long(set))
}

fn length(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

/// State found in the store.
#[derive(Debug, Default)]
pub struct StoredGroupState {
    /// The state; `None` if there is none, or it was never written to the end.
    pub state: Option<State>,
    /// Keys that cannot be read, each with the reason. They are left as they are.
    pub damaged: Vec<String>,
}

impl StoredGroupState {
    /// Puts together what the keys have. What is damaged is left out, and harms nothing else.
    ///
    /// # Errors
    ///
    /// A later program wrote it.
    fn of(keys: &StateKeys, entries: Vec<Entry>) -> Result<Self, String> {
        let prefix = keys.state();
        let mut found = StoredGroupState::default();
        let mut state = State::default();
        let mut ids = None;
        for entry in entries {
            let key = String::from_utf8_lossy(&entry.key).into_owned();
            let name = key.strip_prefix(&prefix).unwrap_or_default();
            if name == "ids" {
                let read = read::<Ids>(&entry.value);
                if let Ok(read) = &read
                    && read.version > VERSION
                {
                    return Err(format!(
                        "{key} in the store has version {}, and this program knows versions up \
                         to {VERSION}: start the version that wrote it",
                        read.version
                    ));
                }
                let next = read.as_ref().map_or(fresh_state(), |ids| State {
                    next_group: ids.next_group,
                    next_creation: ids.next_creation,
                    ..State::default()
                });
                ids = Some((next.next_group, next.next_creation));
                let problem = read.err();
                found
                    .damaged
                    .extend(problem.map(|why| format!("{key}: {why}")));
            } else if let Err(why) = take(&mut state, name, &entry.value) {
                found.damaged.push(format!("{key}: {why}"));
            }
        }
        let Some((next_group, next_creation)) = ids else {
            return Ok(StoredGroupState::default());
        };
        found.leave_out_same_names(keys, &mut state);
        let groups = || state.groups.iter();
        let used = groups().map(|(id, _)| id.saturating_add(1)).max();
        let creations = groups().map(|(_, group)| group.creation.saturating_add(1));
        let used_creation = creations.max();
        state.next_group = next_group.max(used.unwrap_or(0));
        state.next_creation = next_creation.max(used_creation.unwrap_or(0));
        found.state = Some(state);
        Ok(found)
    }

    /// Leaves groups out that have the name, or the creation id, of one before.
    fn leave_out_same_names(&mut self, keys: &StateKeys, state: &mut State) {
        let (mut names, mut creations) = (HashSet::new(), HashSet::new());
        let mut doubles = Vec::new();
        for (id, group) in &state.groups {
            let name = state.effective_settings(group).group_name;
            let is_new = creations.insert(group.creation);
            if name.is_some_and(|name| !names.insert(name)) {
                doubles.push((*id, "another group has the same name"));
            } else if !is_new {
                doubles.push((*id, "another group has the same creation id"));
            }
        }
        for (id, why) in doubles {
            state.groups.remove(&id);
            self.damaged.push(format!("{}: {why}", keys.group(id)));
        }
    }
}

fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, String> {
    serde_json::from_slice(value).map_err(|error| error.to_string())
}

/// Adds to `state` what the key called `name` has.
fn take(state: &mut State, name: &str, value: &[u8]) -> Result<(), String> {
    let read_ior = || Ok::<_, String>(Arc::new(parse_reference(&read::<String>(value)?)?));
    match name.split_once('/') {
        None if name == "defaults" => state.defaults = Arc::new(read(value)?),
        Some(("groups", id)) => {
            let entry: GroupEntry = read(value)?;
            if id.parse() != Ok(entry.id) {
                return Err(format!("the value describes group {}", entry.id));
            }
            state.groups.insert(entry.id, Arc::new(entry.into_group()?));
        }
        Some(("monitors", at)) => {
            state
                .monitors
                .insert(parse_location(at.into())?, read_ior()?);
        }
        Some(("alerts", at)) => {
            state.alerts.insert(parse_location(at.into())?, read_ior()?);
        }
        Some(("forced_alerts", at)) => {
            state
                .forced
                .insert(parse_location(at.into())?, read(value)?);
        }
        Some(("types", id)) => {
            state.types.insert(id.into(), Arc::new(read(value)?));
        }
        _ => return Err("this version of Evenkeel knows no such key".into()),
    }
    Ok(())
}

/// Reads the state. Only who is the owner, and stays it meanwhile, reads all of one state.
///
/// # Errors
///
/// The store does not answer or refuses, or a later program wrote it.
pub async fn read_state(etcd: &mut Etcd, keys: &StateKeys) -> Result<StoredGroupState, String> {
    let prefix = keys.state();
    let mut entries: Vec<Entry> = Vec::new();
    let [mut page, small] = PAGES;
    loop {
        let behind = entries.last().map(|last| last.key.clone());
        let next = etcd.read(Keys::Page(&prefix, page, behind.as_deref()));
        match next.await {
            Ok(read) => {
                let is_last = read.entries.len() < usize::try_from(page).unwrap_or(0);
                entries.extend(read.entries);
                if is_last {
                    return StoredGroupState::of(keys, entries);
                }
            }
            // It may have been too much.
            Err(_) if page > small => page = small,
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Writes transactions that compare a key.
pub trait Guarded: Send {
    /// Writes with a guard, as [`Etcd::write_if`] does.
    fn write_if(
        &mut self,
        guard: (&str, i64),
        writes: Vec<Write>,
    ) -> impl Future<Output = Result<bool, EtcdError>> + Send;
}

impl Guarded for Etcd {
    fn write_if(
        &mut self,
        guard: (&str, i64),
        writes: Vec<Write>,
    ) -> impl Future<Output = Result<bool, EtcdError>> + Send {
        Etcd::write_if(self, guard, writes)
    }
}

/// Writes states to the store, as long as this balancer is the owner.
#[derive(Debug)]
pub struct Replica<E = Etcd> {
    etcd: E,
    keys: StateKeys,
    /// Revision of the store in which the owner's key was written.
    revision: i64,
    tenure: Arc<ServingRight>,
    /// The state that the store has, but for `pending`.
    written: Arc<State>,
    /// State that is being written. All of it is written before anything else.
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    transactions: VecDeque<Vec<Write>>,
    state: Arc<State>,
}

impl<E: Guarded> Replica<E> {
    /// A writer for the owner whose key was written in `revision`. The store has `written`.
    pub fn new(
        etcd: E,
        keys: StateKeys,
        revision: i64,
        tenure: Arc<ServingRight>,
        written: Arc<State>,
    ) -> Self {
        Replica {
            etcd,
            keys,
            revision,
            tenure,
            written,
            pending: None,
        }
    }

    /// The right by which it writes.
    pub fn tenure(&self) -> &Arc<ServingRight> {
        &self.tenure
    }

    /// Writes all of a state, in place of all that is there.
    ///
    /// # Errors
    ///
    /// As [`Replica::write`].
    pub async fn write_whole(&mut self, state: Arc<State>) -> Result<(), String> {
        let transactions = whole(&self.keys, &state)?.into();
        self.pending = Some(Pending {
            transactions,
            state,
        });
        self.flush().await
    }

    /// Writes what is different in `state`. While the store does not answer it is tried again,
    /// for as long as this balancer is the owner.
    ///
    /// # Errors
    ///
    /// It is not the owner any more, or the store refuses.
    pub async fn write(&mut self, state: &Arc<State>) -> Result<(), String> {
        self.flush().await?;
        let writes = difference(&self.keys, &self.written, state)?;
        self.pending = Some(Pending {
            transactions: split(writes).into(),
            state: Arc::clone(state),
        });
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), String> {
        let Some(mut pending) = self.pending.take() else {
            return Ok(());
        };
        while let Some(next) = pending.transactions.front() {
            if let Err(why) = self.transact(next).await {
                // What came before it is written. One of which it is not known is written once
                // more: that changes nothing.
                self.pending = Some(pending);
                return Err(why);
            }
            pending.transactions.pop_front();
        }
        self.written = pending.state;
        Ok(())
    }

    async fn transact(&mut self, writes: &[Write]) -> Result<(), String> {
        let owner = self.keys.owner_key();
        let tenure = Arc::clone(&self.tenure);
        loop {
            let guard = (owner.as_str(), self.revision);
            let written = tokio::select! {
                biased;
                why = tenure.wait_for_end() => return Err(not_owner(&why)),
                written = self.etcd.write_if(guard, writes.to_vec()) => written,
            };
            match written {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let why = format!("{owner} in the store is not this balancer's any more");
                    tenure.end_now(&why);
                    return Err(not_owner(&why));
                }
                Err(error) if error.is_unreachable() => tokio::select! {
                    why = tenure.wait_for_end() => return Err(not_owner(&why)),
                    () = sleep(PAUSE) => {}
                },
                Err(error) => return Err(format!("cannot write to the store: {error}")),
            }
        }
    }
}

fn not_owner(why: &str) -> String {
    format!("this balancer is not the load manager any more: {why}")
}

#[cfg(test)]
mod tests;
