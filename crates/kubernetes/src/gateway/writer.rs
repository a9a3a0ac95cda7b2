//! Writer of statuses: writes the statuses of objects that differ from those at the API server.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_tls::certificate::unix_now;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use super::conditions::{Status, format_time, merge_status};
use super::leader::{Term, is_leading};
use super::objects::{Kind, ObjectName};
use super::world::World;
use crate::api::{Api, status_of};
use crate::list::Fault;
use crate::watcher::{Pace, refusal_of};

/// Statuses that are to be written.
pub(crate) type Wanted = watch::Receiver<Arc<Vec<Status>>>;

/// Writer of statuses.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) api: Arc<Api>,
    pub(crate) world: Arc<World>,
    /// Name of the controller.
    pub(crate) controller: String,
    /// Number of statuses that were written.
    pub(crate) written: Arc<AtomicU64>,
    /// Term of this balancer as the leader; `None` if each balancer writes.
    term: Option<Term>,
    /// Versions of objects whose status was written, or refused: the next event has another version.
    tried: HashMap<(Kind, ObjectName), String>,
    pace: Pace,
}

/// End of a round of writing.
enum Round {
    /// Everything is written.
    Done,
    /// Other statuses are wanted, or another balancer writes.
    Newer,
    /// The API server does not take statuses.
    Failed(Fault),
}

impl Writer {
    /// A writer that has written nothing yet.
    pub(crate) fn new(
        api: Arc<Api>,
        world: Arc<World>,
        controller: String,
        written: Arc<AtomicU64>,
        term: Option<Term>,
    ) -> Self {
        Writer {
            api,
            world,
            controller,
            written,
            term,
            tried: HashMap::new(),
            pace: Pace::default(),
        }
    }

    /// Writes statuses for as long as somebody wants any.
    pub(crate) async fn run(mut self, mut wanted: Wanted) {
        while wanted.changed().await.is_ok() {
            let mut told = false;
            loop {
                self.wait_for_term().await;
                let pause = match self.write_all(&mut wanted).await {
                    Round::Done => break,
                    Round::Newer => continue,
                    Round::Failed(fault) => {
                        if !std::mem::replace(&mut told, true) {
                            warn!("gateways: statuses cannot be written: {}", fault.message);
                        }
                        self.pace
                            .pause_after_failure(fault.retry_after, fastrand::f32())
                    }
                };
                sleep(pause).await;
            }
            self.pace = Pace::default();
        }
    }

    /// Waits until this balancer is the leader.
    async fn wait_for_term(&mut self) {
        if let Some(term) = &mut self.term {
            // A candidate that is gone ends with this task.
            let _ = term.wait_for(is_leading).await;
        }
    }

    /// True if this balancer writes statuses now.
    fn is_leading(&self) -> bool {
        self.term
            .as_ref()
            .is_none_or(|term| is_leading(&term.borrow()))
    }

    async fn write_all(&mut self, wanted: &mut Wanted) -> Round {
        let all = Arc::clone(&wanted.borrow_and_update());
        let names: HashSet<_> = all.iter().map(|of| (of.kind, &of.object)).collect();
        self.tried
            .retain(|(kind, name), _| names.contains(&(*kind, name)));
        for status in all.iter() {
            // A sender that is gone wants nothing else.
            if wanted.has_changed().unwrap_or(false) || !self.is_leading() {
                return Round::Newer;
            }
            if let Err(fault) = self.write(status).await {
                return Round::Failed(fault);
            }
        }
        Round::Done
    }

    /// Writes a status, if it differs. A status of an object that has changed meanwhile is left out: another one comes.
    async fn write(&mut self, wanted: &Status) -> Result<(), Fault> {
        let key = (wanted.kind, wanted.object.clone());
        if self.tried.get(&key) == Some(&wanted.resource_version) {
            return Ok(());
        }
        let Some((version, current)) = self.world.find_status(wanted.kind, &wanted.object) else {
            return Ok(());
        };
        let Some(api_version) = self.world.version_of(wanted.kind) else {
            return Ok(());
        };
        if version != wanted.resource_version {
            return Ok(());
        }
        let now = format_time(unix_now());
        let Some(status) = merge_status(&wanted.status, &current, &self.controller, &now) else {
            return Ok(());
        };
        let target = wanted.kind.status_path(&api_version, &wanted.object);
        // The version lets the API server refuse a status for an object that somebody has changed.
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        let answer = self.api.patch(&target, &patch.to_string()).await?;
        match answer.code {
            200..300 => drop(self.written.fetch_add(1, Ordering::Relaxed)),
            // The object is gone, or has changed: an event is on its way.
            404 | 409 => {}
            401 | 403 | 429 | 500.. => return Err(refusal_of(&status_of(&answer))),
            _ => {
                let fault = refusal_of(&status_of(&answer));
                let (kind, name) = (wanted.kind.name(), &wanted.object);
                warn!(
                    "gateways: the status of {kind} {name} is refused: {}",
                    fault.message
                );
            }
        }
        self.tried.insert(key, version);
        Ok(())
    }
}
