//! The state file: JSON, and a journal of what has changed since it was written.
//!
//! A new file is written beside the old one, synchronised and renamed, so that whatever
//! happens one of the two is there. A change is then a line that is appended to the journal and
//! synchronised, however much the file holds; when the journal has grown, the file is written
//! anew. Changes that come while one is being written are written together. All of it happens
//! on a thread of its own. `docs/corba.md` describes the formats.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_limits::{Shortage, Throttle};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info};

pub use super::document::{fresh_state, of_document, state_document};
pub use super::file::{Lock, PUBLIC, StoreError, is_taken, replace};

use super::document::Document;
use super::file::{MAX_SIZE, VERSION, sibling_path};
use super::journal::{self, Writer};
use super::replica::Replica;
use super::state::State;

/// Pauses between tries to write the file when that fails, with or without another change.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

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
    use evenkeel_giop::any::Any;
    use evenkeel_giop::ior::Ior;
    use imbl::OrdMap;

    use super::*;
    use crate::directory::Reference;
    use crate::properties::{PropertySet, Scope};
    use crate::service::document::save_state;
    use crate::service::state::{GroupMember, Made, ObjectGroup};
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
