//! The start of a balancer that follows the store: its name there, and the revision that it begins with.

use std::time::Duration;

use evenkeel_config::Store as Settings;
use tokio::time::{sleep, timeout};

use crate::copy;
use crate::desk::{Names, StoreAdmin};
use crate::etcd::{Etcd, EtcdError, Keys};
use crate::follower::{Follower, HeadVerdict};
use crate::model::{Head, Revision};

/// Time for which a start waits for a store that does not answer, or is empty: with a copy, and without one.
const START: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(30));

/// Pause before a start asks the store again.
const PAUSE: Duration = Duration::from_secs(1);

/// The revision that a balancer starts with.
#[derive(Debug)]
pub struct StartRevision {
    /// The revision.
    pub revision: Revision,
    /// The revision of the last good copy, if it is another one: for when `revision` is refused.
    pub fallback: Option<Revision>,
    /// Messages for the log.
    pub notes: Vec<String>,
    pub(crate) follower: Follower,
}

impl StartRevision {
    /// Replaces a revision refused for the reason `why` by the last good copy. Returns false if there is no copy.
    pub fn fall_back(&mut self, why: String) -> bool {
        let Some(fallback) = self.fallback.take() else {
            return false;
        };
        let refused = self.revision.pointer();
        self.notes.push(format!(
            "store: {refused} is refused, and the last good copy, revision {}, is used: {why}",
            fallback.number
        ));
        self.follower.note_refused(refused, why);
        self.revision = fallback;
        true
    }
}

/// Finds the revision that the balancer called `name` starts with: that of the store, or that of the last good copy.
/// `tell` is called with messages for the user meanwhile.
///
/// # Errors
///
/// There is neither a revision in the store nor a copy.
pub async fn find_start(
    settings: &Settings,
    name: &str,
    tell: impl Fn(&str),
) -> Result<StartRevision, String> {
    let mut notes = Vec::new();
    let path = &settings.copy_file;
    let copy = copy::load_copy(path, &settings.prefix).unwrap_or_else(|why| {
        notes.push(format!(
            "store.copy_file: the last good copy in {} cannot be used: {why}",
            path.display()
        ));
        None
    });
    let (mark, known) = match copy {
        Some(copy) => (copy.mark, Some(copy.revision)),
        None => (None, None),
    };
    let running = known.as_ref().map(Revision::pointer);
    let mut follower = Follower::new(name, mark, running);
    let mut etcd = Etcd::new(settings);
    let (with_copy, without) = START;
    let patience = if known.is_some() { with_copy } else { without };
    let asked = timeout(
        patience,
        first(&mut etcd, settings, &mut follower, (known.is_some(), &tell)),
    );
    let found = match asked.await {
        Ok(found) => found,
        Err(_) => Err(format!("no answer within {patience:?}")),
    };
    match (found, known) {
        (Ok(Some(revision)), known) => Ok(StartRevision {
            revision,
            fallback: known,
            notes,
            follower,
        }),
        (Ok(None), Some(known)) => {
            if follower.is_waiting() {
                notes.push(WENT_BACK.into());
            }
            Ok(StartRevision {
                revision: known,
                fallback: None,
                notes,
                follower,
            })
        }
        (Err(why), Some(known)) => {
            notes.push(format!(
                "the store cannot be read, so the last good copy, revision {}, is used: {why}",
                known.number
            ));
            Ok(StartRevision {
                revision: known,
                fallback: None,
                notes,
                follower,
            })
        }
        (Ok(None), None) => Err(EMPTY.into()),
        (Err(why), None) => Err(format!(
            "there is no last good copy in {} yet, and the store cannot be read: {why}",
            path.display()
        )),
    }
}

/// Message about a store without a configuration.
pub(crate) const EMPTY: &str =
    "the store has no configuration yet: write one there with `evenkeel store push`";

/// Message about a store that has gone back in time.
pub(crate) const WENT_BACK: &str = "the store has gone back in time: it has an older configuration than the one in \
                         force, or none, as after a restore from a backup. The configuration in force stays \
                         in force until you push a configuration, or run `evenkeel store confirm`";

/// Reads the store's revision for this balancer; `None` if it is the one that the balancer had.
async fn first(
    etcd: &mut Etcd,
    settings: &Settings,
    follower: &mut Follower,
    (has_copy, tell): (bool, &impl Fn(&str)),
) -> Result<Option<Revision>, String> {
    let names = Names(settings.prefix.clone());
    let key = names.head_key();
    let mut told = String::new();
    loop {
        let read = etcd.read(Keys::One(&key)).await;
        let read = match read {
            Ok(read) => read,
            // Without a copy, waiting is the only choice.
            Err(EtcdError::Unreachable(why)) if !has_copy => {
                if told != why {
                    tell(&format!("waiting for the store: {why}"));
                    told = why;
                }
                sleep(PAUSE).await;
                continue;
            }
            Err(error) => return Err(error.to_string()),
        };
        let head = read.entries.first().map(|entry| Head::read(&entry.value));
        let head = head
            .transpose()
            .map_err(|error| format!("{key} in the store: {error}"))?;
        if follower.take_head(head) == HeadVerdict::Empty {
            return Ok(None);
        }
        let Some(to) = follower.wanted_revision().cloned() else {
            return Ok(None);
        };
        let revision = StoreAdmin::new(etcd, &settings.prefix)
            .read_revision(&to)
            .await;
        return revision.map(Some).map_err(|error| error.to_string());
    }
}
