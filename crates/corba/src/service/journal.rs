//! The journal of the state file: a line for each change since the file was written.
//!
//! A line is written and synchronised before the next one begins, so that only the last one
//! can be torn. What says whether it is whole is its checksum. The first line says which file
//! the journal is about: when a new one has been written, the old journal is in it, and does no
//! harm until it is replaced.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_giop::ior::Ior;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use tracing::warn;

use super::document::{GroupEntry, parse_location, parse_reference, save_state};
use super::file::{MAX_SIZE, NO_LINK, PRIVATE, StoreError, replace, sibling_path};
use super::state::State;
use crate::properties::PropertySet;

/// The journal may grow to the size of the file, and to so much in any case.
const JOURNAL: u64 = if cfg!(test) { 4 << 10 } else { 4 << 20 };

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    journal: String,
}

/// Any other line: what is different in the next state.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    next_group: u64,
    next_creation: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) groups: Vec<GroupEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) monitors: BTreeMap<String, Option<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) alerts: BTreeMap<String, Option<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) forced_alerts: BTreeMap<String, Option<bool>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) default_properties: Option<PropertySet>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) type_properties: BTreeMap<String, Option<PropertySet>>,
}

/// Returns the values of a map that were added or changed, and the keys that were removed (`None`).
fn changed_entries<V: Clone + PartialEq, T>(
    before: &OrdMap<String, V>,
    next: &OrdMap<String, V>,
    text: impl Fn(&V) -> T,
) -> BTreeMap<String, Option<T>> {
    let items = before.diff(next).map(|item| match item {
        DiffItem::Add(name, value) => (name.clone(), Some(text(value))),
        DiffItem::Update { new, .. } => (new.0.clone(), Some(text(new.1))),
        DiffItem::Remove(name, _) => (name.clone(), None),
    });
    items.collect()
}

/// Changes a map accordingly.
fn take<V: Clone, T>(
    map: &mut OrdMap<String, V>,
    changed: BTreeMap<String, Option<T>>,
    value: impl Fn(T) -> Result<V, String>,
) -> Result<(), String> {
    for (name, text) in changed {
        match text {
            Some(text) => map.insert(name, value(text)?),
            None => map.remove(&name),
        };
    }
    Ok(())
}

impl Change {
    /// Returns the difference of two states.
    pub(super) fn between(before: &State, next: &State) -> Self {
        let (mut groups, mut gone) = (Vec::new(), Vec::new());
        for item in before.groups.diff(&next.groups) {
            match item {
                DiffItem::Add(id, group)
                | DiffItem::Update {
                    new: (id, group), ..
                } => groups.push(GroupEntry::from_group(*id, group)),
                DiffItem::Remove(id, _) => gone.push(*id),
            }
        }
        let ior = |ior: &Arc<Ior>| ior.to_string();
        let same = Arc::ptr_eq(&before.defaults, &next.defaults);
        Change {
            next_group: next.next_group,
            next_creation: next.next_creation,
            groups,
            gone,
            monitors: changed_entries(&before.monitors, &next.monitors, ior),
            alerts: changed_entries(&before.alerts, &next.alerts, ior),
            forced_alerts: changed_entries(&before.forced, &next.forced, |on| *on),
            default_properties: (!same).then(|| (*next.defaults).clone()),
            type_properties: changed_entries(&before.types, &next.types, |set| (**set).clone()),
        }
    }

    fn apply(self, state: &mut State) -> Result<(), String> {
        state.next_group = self.next_group;
        state.next_creation = self.next_creation;
        for id in self.gone {
            state.groups.remove(&id);
        }
        for entry in self.groups {
            let id = entry.id;
            let group = entry.into_group();
            let group = group.map_err(|error| format!("group {id}: {error}"))?;
            if id >= state.next_group {
                return Err(format!("group {id} is not below `next_group`"));
            }
            state.groups.insert(id, Arc::new(group));
        }
        let ior = |text: String| Ok(Arc::new(parse_reference(&text)?));
        for name in self.monitors.keys().chain(self.alerts.keys()) {
            parse_location(name.clone())?;
        }
        take(&mut state.monitors, self.monitors, ior)?;
        take(&mut state.alerts, self.alerts, ior)?;
        take(&mut state.forced, self.forced_alerts, Ok)?;
        if let Some(set) = self.default_properties {
            state.defaults = Arc::new(set);
        }
        take(&mut state.types, self.type_properties, |set| {
            Ok(Arc::new(set))
        })
    }
}

/// The line that says `content`.
fn line(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(content)?;
    let mut line = format!("{:016x} ", checksum(&json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    Ok(line)
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns the content of a line without its end; `None` if the line is not whole.
fn content(line: &[u8]) -> Option<&[u8]> {
    let (sum, json) = line.split_at_checked(17)?;
    let expected = format!("{:016x} ", checksum(json));
    (sum == expected.as_bytes()).then_some(json)
}

/// Brings `state`, which is that of the file with the journal `id`, to what the journal at
/// `path` says. One that is not there, or is about another file, says nothing.
pub(super) fn replay(path: &Path, id: &str, state: &mut State) -> Result<(), StoreError> {
    let read = |error| StoreError::Read {
        path: path.into(),
        error,
    };
    let damaged = |reason: String| StoreError::Damaged {
        path: path.into(),
        reason,
    };
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_file() => {
            return Err(read(io::Error::other("not a regular file")));
        }
        Ok(meta) if meta.len() > MAX_SIZE => {
            return Err(damaged(format!("the file is larger than {MAX_SIZE} bytes")));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(read(error)),
    }
    let bytes = fs::read(path).map_err(read)?;
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n').enumerate();
    let whole = |line: &[u8]| Some(content(line.strip_suffix(b"\n")?)?.to_vec());
    let header = lines.next().and_then(|(_, line)| whole(line));
    let header = header.and_then(|header| serde_json::from_slice::<Header>(&header).ok());
    if header.is_none_or(|header| header.journal != id) {
        warn!(
            journal = %path.display(),
            "the journal belongs to another state file, and is not used"
        );
        return Ok(());
    }
    while let Some((number, line)) = lines.next() {
        let number = number + 1;
        let Some(json) = whole(line) else {
            if lines.next().is_some() {
                return Err(damaged(format!("line {number} does not have its checksum")));
            }
            warn!(
                journal = %path.display(),
                "the last line of the journal is incomplete and was never acknowledged: it is \
                 ignored"
            );
            break;
        };
        let change: Change = serde_json::from_slice(&json)
            .map_err(|error| damaged(format!("line {number}: {error}")))?;
        let applied = change.apply(state);
        applied.map_err(|error| damaged(format!("line {number}: {error}")))?;
    }
    Ok(())
}

/// Writes a state file and its journal.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    open: Option<Open>,
}

/// A journal that is being written.
#[derive(Debug)]
struct Open {
    file: File,
    size: u64,
    /// The longest that it may become.
    limit: u64,
    /// State that is written.
    state: Arc<State>,
    /// File that the journal is about.
    about: Identity,
}

/// Identity of a file, which tells it from all others, and from itself after a change: device,
/// number, and the time of the last change, since numbers are used again.
type Identity = (u64, u64, i64, i64);

fn identity(meta: &Metadata) -> Identity {
    (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec())
}

impl Writer {
    pub(super) fn new(path: PathBuf) -> Self {
        Writer { path, open: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `state`: what is different in it is appended to the journal, or all of it is
    /// written where there is none, or where it has grown.
    pub(super) fn write(&mut self, state: &Arc<State>) -> io::Result<()> {
        match self.open.take() {
            Some(open) if open.size < open.limit && open.is_in_place(&self.path) => {
                // After a failure the next one is written as a whole.
                self.open = Some(open.append(state)?);
            }
            _ => self.open = Some(self.begin(state)?),
        }
        Ok(())
    }

    /// Writes the file anew, with a journal in which there is nothing yet.
    fn begin(&self, state: &Arc<State>) -> io::Result<Open> {
        let id = format!("{:016x}", fastrand::u64(..));
        let length = save_state(&self.path, state, Some(&id))?;
        let about = identity(&fs::symlink_metadata(&self.path)?);
        let path = sibling_path(&self.path, ".journal");
        let header = line(&Header { journal: id })?;
        replace(&path, &header, PRIVATE)?;
        let file = OpenOptions::new()
            .append(true)
            .custom_flags(NO_LINK)
            .open(&path)?;
        Ok(Open {
            file,
            size: header.len() as u64,
            limit: length.max(JOURNAL),
            state: Arc::clone(state),
            about,
        })
    }
}

impl Open {
    /// Returns true if nobody has taken the file or the journal away.
    fn is_in_place(&self, path: &Path) -> bool {
        let same = |meta: Metadata| identity(&meta) == self.about;
        fs::symlink_metadata(path).is_ok_and(same)
            && self.file.metadata().is_ok_and(|meta| meta.nlink() > 0)
    }

    fn append(mut self, state: &Arc<State>) -> io::Result<Self> {
        let line = line(&Change::between(&self.state, state))?;
        self.file.write_all(&line)?;
        self.file.sync_data()?;
        self.size += line.len() as u64;
        self.state = Arc::clone(state);
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
