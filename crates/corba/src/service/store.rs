//! The state file: JSON, and a journal of what has changed since it was written.
//!
//! A new file is written beside the old one, synchronised and renamed, so that whatever
//! happens one of the two is there. A change is then a line that is appended to the journal and
//! synchronised, however much the file holds; when the journal has grown, the file is written
//! anew. Changes that come while one is being written are written together. All of it happens
//! on a thread of its own. `docs/corba.md` describes the formats.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_giop::any::Any;
use evenkeel_giop::ior::Ior;
use evenkeel_limits::{Shortage, Throttle};
use imbl::OrdMap;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info};

use super::journal::{self, Writer};
use super::replica::Replica;
use super::state::{GroupMember, Made, ObjectGroup, State};
use crate::directory::Reference;
use crate::name::Name;
use crate::properties::PropertySet;

/// Version of the file that this program writes.
const VERSION: u32 = 2;

/// The journal may grow to the size of the file, and to so much in any case.
pub(super) const JOURNAL: u64 = if cfg!(test) { 4 << 10 } else { 4 << 20 };

/// Pauses between tries to write the file when that fails, with or without another change.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Larger ones are not read.
pub(super) const MAX_SIZE: u64 = 1 << 30;

/// Flag that refuses to open a link to elsewhere.
pub(super) const NO_LINK: i32 = OFlags::NOFOLLOW.bits() as i32;

/// Permissions of files that only this user reads.
pub(super) const PRIVATE: u32 = 0o600;

/// Permissions of files that others may read, if the process's umask lets them.
pub const PUBLIC: u32 = 0o666;

/// The file as it is.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    version: u32,
    /// Id in the first line of the journal that belongs to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    next_group: u64,
    next_creation: u32,
    groups: Vec<GroupEntry>,
    monitors: BTreeMap<String, String>,
    alerts: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    forced_alerts: BTreeMap<String, bool>,
    default_properties: PropertySet,
    type_properties: BTreeMap<String, PropertySet>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupEntry {
    pub(super) id: u64,
    type_id: String,
    creation: u32,
    properties: PropertySet,
    members: Vec<MemberEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberEntry {
    location: String,
    reference: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    factory: Option<FactoryEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FactoryEntry {
    reference: String,
    creation: String,
}

/// Reason why there is no state to go on with. The file is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is not what this program writes.
    #[error(
        "{} is damaged: {reason}; put a good copy there, or move it away to start without \
         object groups",
        path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Error in the file, and its place.
        reason: String,
    },
    /// A later program wrote it.
    #[error(
        "{} has version {version}, and this program knows versions up to {VERSION}: start the \
         version that wrote it, or move the file away to start without object groups",
        path.display()
    )]
    Later {
        /// Which file.
        path: PathBuf,
        /// Version of the file.
        version: u32,
    },
    /// Another process has it.
    #[error(
        "{} is in use by another process: stop that process first, or set another state_file in [corba]",
        path.display()
    )]
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// Nobody can tell whether another process has it.
    #[error("cannot lock {}: {error}; this user must be able to write the file", path.display())]
    Lock {
        /// The lock's own file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Lock that keeps other processes from a state file, as long as it is there. It is on a file
/// beside the state file, which stays: the state file itself is another one after each change.
#[derive(Debug)]
pub struct Lock {
    // Closed by the system at the latest when the process ends, however it ends.
    _file: File,
}

impl Lock {
    /// Locks the state file at `path` against other processes.
    ///
    /// # Errors
    ///
    /// Another process has it, or the file of the lock cannot be opened.
    pub fn take(path: &Path) -> Result<Self, StoreError> {
        let beside = sibling_path(path, ".lock");
        let lock = |error| StoreError::Lock {
            path: beside.clone(),
            error,
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE)
            .custom_flags(NO_LINK)
            .open(&beside)
            .map_err(lock)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(Errno::WOULDBLOCK) => Err(StoreError::InUse { path: path.into() }),
            Err(error) => Err(lock(error.into())),
        }
    }
}

/// Returns true if another process has the state file at `path`.
pub fn is_taken(path: &Path) -> bool {
    matches!(Lock::take(path), Err(StoreError::InUse { .. }))
}

/// The state in the file at `path`; a new one if there is no such file.
///
/// # Errors
///
/// There is one, but it cannot be used.
pub fn load_state(path: &Path) -> Result<State, StoreError> {
    let read = |error| StoreError::Read {
        path: path.into(),
        error,
    };
    let damaged = |reason: String| StoreError::Damaged {
        path: path.into(),
        reason,
    };
    let size = match fs::metadata(path) {
        Ok(meta) if meta.is_file() => meta.len(),
        Ok(_) => return Err(read(io::Error::other("not a regular file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(fresh_state()),
        Err(error) => return Err(read(error)),
    };
    if size > MAX_SIZE {
        return Err(damaged(format!("the file is larger than {MAX_SIZE} bytes")));
    }
    let bytes = fs::read(path).map_err(read)?;
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let versioned: Versioned =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if versioned.version > VERSION {
        return Err(StoreError::Later {
            path: path.into(),
            version: versioned.version,
        });
    }
    let document: Document =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    let journal = document.journal.clone();
    let mut state = document.into_state().map_err(damaged)?;
    if let Some(id) = journal {
        journal::replay(&sibling_path(path, ".journal"), &id, &mut state)?;
    }
    Ok(state)
}

/// The state of a load manager that knows nothing. References of an earlier one, whose
/// file is lost, must not mean the groups of this one, so ids start with the time, in
/// seconds: nobody makes a group per second for as long as the file was there.
pub fn fresh_state() -> State {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    State {
        next_group: now.map_or(1, |now| now.as_secs()),
        next_creation: 1,
        ..State::default()
    }
}

/// The state as its file has it.
pub fn state_document(state: &State) -> impl Serialize + use<> {
    Document::of(state)
}

/// The state that [`document`] has made this of.
///
/// # Errors
///
/// What is wrong with it.
pub fn of_document(document: serde_json::Value) -> Result<State, String> {
    let document: Document = serde_json::from_value(document).map_err(|error| error.to_string())?;
    document.into_state()
}

impl Document {
    fn of(state: &State) -> Self {
        let references = |map: &OrdMap<String, Arc<Ior>>| {
            let text = |(at, ior): (&String, &Arc<Ior>)| (at.clone(), ior.to_string());
            map.iter().map(text).collect()
        };
        let group = |(id, group): (&u64, &Arc<ObjectGroup>)| GroupEntry::from_group(*id, group);
        let types = state.types.iter();
        Document {
            version: VERSION,
            journal: None,
            next_group: state.next_group,
            next_creation: state.next_creation,
            groups: state.groups.iter().map(group).collect(),
            monitors: references(&state.monitors),
            alerts: references(&state.alerts),
            forced_alerts: state
                .forced
                .iter()
                .map(|(at, on)| (at.clone(), *on))
                .collect(),
            default_properties: (*state.defaults).clone(),
            type_properties: types.map(|(id, of)| (id.clone(), (**of).clone())).collect(),
        }
    }

    fn into_state(self) -> Result<State, String> {
        let mut groups = OrdMap::new();
        for entry in self.groups {
            let id = entry.id;
            let group = entry
                .into_group()
                .map_err(|error| format!("group {id}: {error}"))?;
            if id >= self.next_group || groups.insert(id, Arc::new(group)).is_some() {
                return Err(format!(
                    "group {id} is there twice, or is not below `next_group`"
                ));
            }
        }
        let references = |map: BTreeMap<String, String>| {
            let one = |(at, ior): (String, String)| {
                Ok((parse_location(at)?, Arc::new(parse_reference(&ior)?)))
            };
            map.into_iter()
                .map(one)
                .collect::<Result<OrdMap<_, _>, String>>()
        };
        let types = self.type_properties.into_iter();
        Ok(State {
            next_group: self.next_group,
            next_creation: self.next_creation,
            groups,
            monitors: references(self.monitors)?,
            alerts: references(self.alerts)?,
            forced: {
                let forced = self.forced_alerts.into_iter();
                let forced = forced.map(|(at, on)| Ok((parse_location(at)?, on)));
                forced.collect::<Result<_, String>>()?
            },
            defaults: Arc::new(self.default_properties),
            types: types.map(|(id, of)| (id, Arc::new(of))).collect(),
        })
    }
}

impl GroupEntry {
    pub(super) fn from_group(id: u64, group: &ObjectGroup) -> Self {
        GroupEntry {
            id,
            type_id: group.type_id.clone(),
            creation: group.creation,
            properties: group.properties.clone(),
            members: group.members.iter().map(MemberEntry::of).collect(),
        }
    }

    pub(super) fn into_group(self) -> Result<ObjectGroup, String> {
        let mut members: Vec<GroupMember> = Vec::with_capacity(self.members.len());
        for entry in self.members {
            let made = match entry.factory {
                None => None,
                Some(factory) => Some(Made {
                    factory: parse_reference(&factory.reference)?,
                    creation: any(&factory.creation)?,
                }),
            };
            let location = parse_location(entry.location)?;
            if members.iter().any(|member| member.location == location) {
                return Err(format!("two members are at {location:?}"));
            }
            members.push(GroupMember {
                location,
                reference: Arc::new(Reference::new(parse_reference(&entry.reference)?)),
                origin: made,
            });
        }
        Ok(ObjectGroup {
            type_id: self.type_id,
            creation: self.creation,
            properties: self.properties,
            members,
        })
    }
}

impl MemberEntry {
    fn of(member: &GroupMember) -> Self {
        MemberEntry {
            location: member.location.clone(),
            reference: member.reference.ior().to_string(),
            factory: member.origin.as_ref().map(|made| FactoryEntry {
                reference: made.factory.to_string(),
                creation: made.creation.to_string(),
            }),
        }
    }
}

pub(super) fn parse_location(text: String) -> Result<String, String> {
    match text.parse::<Name>() {
        Ok(_) => Ok(text),
        Err(error) => Err(error.to_string()),
    }
}

fn any(text: &str) -> Result<Any, String> {
    text.parse::<Any>().map_err(|error| error.to_string())
}

pub(super) fn parse_reference(text: &str) -> Result<Ior, String> {
    text.parse::<Ior>().map_err(|error| error.to_string())
}

/// Replaces the file at `path`; answers how long it is. `journal` is what its journal is to be
/// called.
pub(super) fn save_state(path: &Path, state: &State, journal: Option<&str>) -> io::Result<u64> {
    let mut document = Document::of(state);
    document.journal = journal.map(str::to_owned);
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    replace(path, &text, PRIVATE)?;
    Ok(text.len() as u64)
}

/// Replaces the file at `path` as a whole: after a crash there is the old one or this, which
/// has the permissions `mode`, less the process's umask.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = sibling_path(path, ".new");
    // What an earlier process has left, or somebody else's link to elsewhere: it goes, and
    // what is opened is a new file in any case.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_new(&new, bytes, mode).and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        // On a full disk, half a file is in the way of everybody.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // The name is only safe when its folder is.
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .custom_flags(NO_LINK)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The path of another file in the same folder.
pub(super) fn sibling_path(path: &Path, ending: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(ending);
    PathBuf::from(beside)
}

/// Place that states are written to.
#[derive(Debug)]
pub enum Sink {
    /// States are kept nowhere.
    Nowhere,
    /// A state file.
    File(PathBuf),
    /// A store that several balancers share.
    Replica(Box<Replica>),
}

impl Sink {
    /// The state file, if there is one.
    pub fn of_file(path: Option<PathBuf>) -> Self {
        path.map_or(Sink::Nowhere, Sink::File)
    }

    fn open(self) -> OpenSink {
        match self {
            Sink::Nowhere => OpenSink::Nowhere,
            Sink::File(path) => OpenSink::File(Arc::new(Mutex::new(Writer::new(path)))),
            Sink::Replica(replica) => OpenSink::Replica(replica),
        }
    }
}

/// A [`Sink`] that is being written to.
enum OpenSink {
    Nowhere,
    File(Arc<Mutex<Writer>>),
    Replica(Box<Replica>),
}

impl OpenSink {
    async fn write(&mut self, state: Arc<State>, throttle: &Throttle) -> Result<(), Arc<str>> {
        match self {
            OpenSink::Nowhere => Ok(()),
            OpenSink::File(writer) => write(Arc::clone(writer), state, throttle).await,
            OpenSink::Replica(replica) => {
                let written = replica.write(&state).await;
                written.map_err(|problem| {
                    if let Some(left_out) = throttle.allow_line() {
                        error!(
                            left_out,
                            "CORBA: a change of object groups is not in the store: {problem}"
                        );
                    }
                    problem.into()
                })
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            OpenSink::Replica(_) => "store",
            _ => "state file",
        }
    }
}

/// Writes states to their file, or to a store, one after the other.
#[derive(Debug)]
pub struct Store {
    latest: watch::Sender<(u64, Arc<State>)>,
    /// The last change that was written, or tried to be, and how that went.
    saved: watch::Receiver<(u64, Result<(), Arc<str>>)>,
}

impl Store {
    /// A store that writes to `sink`, which has `state`. The future does the writing, for as long
    /// as the store is there: it needs a runtime.
    pub fn new(sink: Sink, state: Arc<State>) -> (Store, impl Future<Output = ()>) {
        let (latest, mut news) = watch::channel((0, state));
        let (done, saved) = watch::channel((0, Ok(())));
        let mut sink = sink.open();
        let writing = async move {
            let throttle = Throttle::new();
            let mut again = None;
            loop {
                let ended = match again {
                    None => news.changed().await.is_err(),
                    Some(pause) => tokio::select! {
                        changed = news.changed() => changed.is_err(),
                        () = sleep(pause) => false,
                    },
                };
                if ended {
                    return;
                }
                let (version, state) = news.borrow_and_update().clone();
                let result = sink.write(state, &throttle).await;
                again = match (&result, again) {
                    (Err(_), None) => Some(FIRST_PAUSE),
                    (Err(_), Some(pause)) => Some(LONGEST_PAUSE.min(pause * 2)),
                    (Ok(()), Some(_)) => {
                        info!(
                            "CORBA: all object groups are stored in the {}: writing has recovered",
                            sink.name()
                        );
                        None
                    }
                    (Ok(()), None) => None,
                };
                let _ = done.send((version, result));
            }
        };
        (Store { latest, saved }, writing)
    }

    /// The state after change number `version` is to be kept.
    pub fn keep_state(&self, version: u64, state: Arc<State>) {
        self.latest.send_replace((version, state));
    }

    /// Waits until change number `version` is in the file, or cannot be.
    pub async fn wait_until_saved(&self, version: u64) -> Result<(), Arc<str>> {
        let mut saved = self.saved.clone();
        match saved.wait_for(|(done, _)| *done >= version).await {
            Ok(saved) => saved.1.clone(),
            Err(_) => Err("the load manager is ending".into()),
        }
    }

    /// Returns true if change number `version` is written.
    pub fn has_saved(&self, version: u64) -> bool {
        let saved = self.saved.borrow();
        saved.0 >= version && saved.1.is_ok()
    }

    /// Returns the reason why the last change is not in the file.
    pub fn problem(&self) -> Option<Arc<str>> {
        self.saved.borrow().1.clone().err()
    }
}

async fn write(
    writer: Arc<Mutex<Writer>>,
    state: Arc<State>,
    throttle: &Throttle,
) -> Result<(), Arc<str>> {
    let written = tokio::task::spawn_blocking(move || {
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write(&state).map_err(|error| {
            if let Some(shortage) = Shortage::of_error(&error) {
                shortage.report_failure("write the state file of [corba]");
            }
            format!("cannot write {}: {error}", writer.path().display())
        })
    });
    let problem = match written.await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(problem)) => problem,
        Err(panic) => panic.to_string(),
    };
    if let Some(left_out) = throttle.allow_line() {
        error!(
            left_out,
            "CORBA: changes of object groups would be lost at a restart: {problem}; the state file is \
             unchanged, and the write is retried"
        );
    }
    Err(problem.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::Scope;
    use crate::types::Property;

    fn state() -> State {
        let member = |location: &str, made| GroupMember {
            location: location.into(),
            reference: Arc::new(Reference::new(Ior::new_iiop("IDL:S:1.0", "h", 1, b"k"))),
            origin: made,
        };
        let factory = Ior::new_iiop("IDL:F:1.0", "f", 2, b"f");
        let creation = Any::new(&7u32);
        let property = vec![Property::new("org.evenkeel.MoveShare", &0.5f32)];
        let property = PropertySet::read(&property, Scope::Default).unwrap();
        let group = ObjectGroup {
            type_id: "IDL:Stock/Factory:1.0".into(),
            creation: 3,
            properties: property.clone(),
            members: vec![
                member("host1", None),
                member(
                    r"a\.b/c.d",
                    Some(Made {
                        factory: factory.clone(),
                        creation,
                    }),
                ),
            ],
        };
        State {
            next_group: 100,
            next_creation: 4,
            groups: OrdMap::unit(99, Arc::new(group)),
            monitors: OrdMap::unit("host1".into(), Arc::new(factory.clone())),
            alerts: OrdMap::unit("host2".into(), Arc::new(factory)),
            forced: OrdMap::from(vec![
                ("host2".to_owned(), true),
                ("host3".to_owned(), false),
            ]),
            defaults: Arc::new(property.clone()),
            types: OrdMap::unit("IDL:T:1.0".into(), Arc::new(property)),
        }
    }

    /// A folder of its own, which is gone in the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("evenkeel-store-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = Folder::new("saved");
        let path = folder.0.join("state.json");
        save_state(&path, &state(), None).unwrap();
        assert_eq!(load_state(&path).unwrap(), state());
        // The old file goes, and nothing else is left.
        save_state(
            &path,
            &State {
                next_group: 200,
                ..state()
            },
            None,
        )
        .unwrap();
        assert_eq!(load_state(&path).unwrap().next_group, 200);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn the_state_file_is_for_its_user_and_follows_no_link_s19() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = Folder::new("private");
        let (path, other) = (folder.0.join("state.json"), folder.0.join("precious"));
        fs::write(&other, "precious").unwrap();
        symlink(&other, folder.0.join("state.json.new")).unwrap();
        save_state(&path, &state(), None).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        let meta = fs::symlink_metadata(&path).unwrap();
        assert!(meta.is_file());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        // A lock follows none, either.
        symlink(&other, folder.0.join("state.json.lock")).unwrap();
        let refused = Lock::take(&path).unwrap_err().to_string();
        assert!(refused.contains("state.json.lock"), "{refused}");
    }

    #[test]
    fn a_state_file_belongs_to_one_at_a_time_s19() {
        let folder = Folder::new("lock");
        let path = folder.0.join("state.json");
        let first = Lock::take(&path).unwrap();
        let refused = Lock::take(&path).unwrap_err();
        assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
        // It survives the file that it is about.
        save_state(&path, &state(), None).unwrap();
        assert!(Lock::take(&path).is_err());
        drop(first);
        Lock::take(&path).unwrap();
    }

    #[test]
    fn a_file_of_before_forced_alerts_is_read() {
        let folder = Folder::new("before");
        let path = folder.0.join("state.json");
        let old = State {
            forced: OrdMap::new(),
            ..state()
        };
        save_state(&path, &old, None).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains("forced"));
        assert_eq!(load_state(&path).unwrap(), old);
    }

    #[test]
    fn without_a_file_ids_start_where_no_earlier_one_has_been() {
        let state = load_state(Path::new("/nonexistent/state.json")).unwrap();
        assert!(state.groups.is_empty() && state.next_group > 1_700_000_000);
    }

    #[test]
    fn a_broken_file_is_an_error_and_stays_as_it_is() {
        let folder = Folder::new("broken");
        let path = folder.0.join("state.json");
        let good = serde_json::to_string(&Document::of(&state())).unwrap();
        let texts = [
            (good[..good.len() - 1].to_owned(), "is damaged: EOF"),
            (good.replace("IOR:", "IOR:x"), "no hexadecimal digit"),
            (
                good.replace("\"next_group\":100", "\"next_group\":99"),
                "`next_group`",
            ),
            (good.replace("\"host1\"", "\"a..b\""), "a..b"),
            (
                good.replace("\"monitors\"", "\"monitor\""),
                "unknown field `monitor`",
            ),
            (
                good.replace("\"version\":2", "\"version\":3"),
                "has version 3",
            ),
            (String::new(), "is damaged: EOF"),
        ];
        for (text, wanted) in texts {
            fs::write(&path, &text).unwrap();
            let error = load_state(&path).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
            assert!(error.contains("state.json"), "{error}");
            assert!(error.contains("to start without object groups"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let error = load_state(&folder.0).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[tokio::test]
    async fn changes_are_saved_before_anybody_is_told() {
        let folder = Folder::new("changes");
        let path = folder.0.join("state.json");
        let (store, writing) = Store::new(Sink::File(path.clone()), Arc::new(state()));
        let writing = tokio::spawn(writing);
        for version in 1..=50 {
            let next_group = 1000 + version;
            store.keep_state(
                version,
                Arc::new(State {
                    next_group,
                    ..state()
                }),
            );
        }
        store.wait_until_saved(50).await.unwrap();
        assert_eq!(load_state(&path).unwrap().next_group, 1050);

        // A folder is in the way: it is said, and tried again with the next change.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        store.keep_state(51, Arc::new(state()));
        let problem = store.wait_until_saved(51).await.unwrap_err();
        assert!(problem.contains("state.json"), "{problem}");
        assert_eq!(store.problem(), Some(problem));
        fs::remove_dir(&path).unwrap();
        store.keep_state(52, Arc::new(state()));
        store.wait_until_saved(52).await.unwrap();
        assert_eq!(store.problem(), None);
        drop(store);
        writing.await.unwrap();
    }

    #[tokio::test]
    async fn s5_what_could_not_be_saved_is_tried_again_without_another_change() {
        let folder = Folder::new("again");
        let path = folder.0.join("state.json");
        let (store, writing) = Store::new(Sink::File(path.clone()), Arc::new(state()));
        let writing = tokio::spawn(writing);
        fs::create_dir(&path).unwrap();
        store.keep_state(1, Arc::new(state()));
        store.wait_until_saved(1).await.unwrap_err();
        assert!(
            !folder.0.join("state.json.new").exists(),
            "half a file stays"
        );
        fs::remove_dir(&path).unwrap();
        while store.problem().is_some() {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(load_state(&path).unwrap().next_group, state().next_group);
        drop(store);
        writing.await.unwrap();
    }
}
