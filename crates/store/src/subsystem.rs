//! The balancer's subsystem for the store: follows the store and puts its revisions into effect, reports what the
//! balancer runs, and drives roll-outs if this balancer's turn has come.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_config::Store as Settings;
use evenkeel_manager::Manager;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::revisions::Author;
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::store::{Change, Put, Store, StoreError};
use evenkeel_manager::subsystem::Subsystem;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use crate::change::{self, Push};
use crate::copy::{self, Copy};
use crate::desk::{self, Base, Names, StoreAdmin, StoreAdminError};
use crate::etcd::{Entry, Etcd, EtcdError, Keys, WatchEvent};
use crate::follower::{Follower, HeadVerdict};
use crate::judge::Counts;
use crate::metrics;
use crate::model::{FORMAT, Head, Pointer, Report, Revision};
use crate::reporter::{Identity, Reporter};
use crate::rollout::{Driver, Next};
use crate::start::{EMPTY, WENT_BACK};
use crate::totals::{KeptCounts, Totals};

pub use crate::start::{StartRevision, find_start};
pub use crate::status::StoreStatus;

/// Interval at which the head is read even if the watch reports no change: watches can be lost.
const POLL: Duration = Duration::from_secs(5);

/// Shortest and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Interval of the reporter's checks.
const TURN: Duration = Duration::from_secs(1);

/// Time for which a write through the admin API waits until this balancer has put it into effect.
const IN_EFFECT: Duration = Duration::from_secs(5);

/// The subsystem that follows the store. Clones share one state.
#[derive(Clone)]
pub struct Fleet {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    names: Names,
    name: String,
    /// Random text that tells this process from others with the same name.
    process: String,
    /// The balancer's own file.
    file: PathBuf,
    state: Mutex<State>,
    /// Wakes the follower for another attempt.
    again: Notify,
    /// Signalled after each step of the follower.
    stepped: watch::Sender<()>,
    /// True while another process takes the place of this one.
    rests: AtomicBool,
    /// Client for writes, so that a write does not wait for the follower.
    desk: tokio::sync::Mutex<Etcd>,
}

struct State {
    follower: Follower,
    /// The revision in force, or the one that was put there last.
    revision: Revision,
    /// The revision of etcd in which the head was changed last: a transaction compares it.
    changed: i64,
    /// Text of the revision that all balancers are to have, if it is known.
    stored: Option<Arc<str>>,
    /// The last good copy, until the revision of the start is in force.
    fallback: Option<Revision>,
    /// Reason for which the store cannot be followed.
    trouble: Option<String>,
    totals: Totals,
    kept: KeptCounts,
    /// Counts of the last minutes before the revision in force was put there.
    before: Counts,
    applied: u64,
    refused: u64,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("name", &self.inner.name)
            .finish_non_exhaustive()
    }
}

impl Fleet {
    /// A subsystem that continues from the start `begun`. `file` is the balancer's own file.
    pub fn new(settings: &Settings, name: &str, file: &Path, begun: StartRevision) -> Self {
        let StartRevision {
            revision,
            fallback,
            mut follower,
            ..
        } = begun;
        if follower.refusal().is_none() {
            follower.note_applied(revision.pointer());
        }
        let inner = Inner {
            names: Names(settings.prefix.clone()),
            name: name.to_owned(),
            process: format!("{:016x}", fastrand::u64(..)),
            file: file.to_owned(),
            state: Mutex::new(State {
                follower,
                revision,
                changed: 0,
                stored: None,
                fallback,
                trouble: None,
                totals: Totals::default(),
                kept: KeptCounts::default(),
                before: Counts::default(),
                applied: 0,
                refused: 0,
            }),
            again: Notify::new(),
            stepped: watch::Sender::new(()),
            rests: AtomicBool::new(false),
            desk: tokio::sync::Mutex::new(Etcd::new(settings)),
            settings: settings.clone(),
        };
        Fleet {
            inner: Arc::new(inner),
        }
    }

    /// Falls back to the last good copy, because the revision of the start cannot be put into effect for the reason
    /// `why`. Returns the copy's text, if there is a copy.
    pub fn fall_back(&self, why: String) -> Option<String> {
        let mut state = self.inner.state.lock();
        let fallback = state.fallback.take()?;
        let refused = state.revision.pointer();
        warn!(
            "store: {refused} cannot be put into effect, and the last good copy, revision {}, is used: {why}",
            fallback.number
        );
        state.follower.note_applied(fallback.pointer());
        state.follower.note_refused(refused, why);
        state.revision = fallback;
        Some(state.revision.text.clone())
    }

    /// Allows another attempt at the refused revision, because its circumstances have changed.
    pub fn retry(&self) {
        self.inner.state.lock().follower.retry();
        self.inner.again.notify_one();
    }

    /// Follows the store forever.
    async fn follow(&self, manager: &Manager) {
        // The revision of the start is good.
        self.keep_copy().await;
        let (shortest, longest) = PAUSES;
        let mut pause = shortest;
        let mut etcd = Etcd::new(&self.inner.settings);
        loop {
            let before = Instant::now();
            let Err(error) = self.follow_once(&mut etcd, manager).await;
            let why = error.to_string();
            if before.elapsed() > POLL {
                pause = shortest;
            }
            let is_news = self
                .inner
                .state
                .lock()
                .trouble
                .replace(why.clone())
                .is_none();
            match is_news {
                true => {
                    warn!(
                        "the store cannot be read, so the configuration in force stays in force: {why}"
                    )
                }
                false => debug!("the store cannot be read: {why}"),
            }
            etcd.move_on();
            // Balancers must not all come back in the same moment.
            sleep(pause.mul_f32(0.5 + 0.5 * fastrand::f32())).await;
            pause = (pause * 2).min(longest);
        }
    }

    async fn follow_once(
        &self,
        etcd: &mut Etcd,
        manager: &Manager,
    ) -> Result<Infallible, EtcdError> {
        let key = self.inner.names.head_key();
        let read = etcd.read(Keys::One(&key)).await?;
        let mut watch = etcd.watch(&key, read.revision.saturating_add(1)).await?;
        self.take(etcd, read.entries.first(), manager).await?;
        if self.inner.state.lock().trouble.take().is_some() {
            info!("the store answers: its changes are put into effect");
        }
        loop {
            tokio::select! {
                told = watch.next() => match told? {
                    WatchEvent::Changed(entry) => self.take(etcd, entry.as_ref(), manager).await?,
                    WatchEvent::Begun | WatchEvent::Nothing => {}
                },
                () = self.inner.again.notified() => {
                    let read = etcd.read(Keys::One(&key)).await?;
                    self.take(etcd, read.entries.first(), manager).await?;
                }
                () = sleep(POLL) => {
                    let read = etcd.read(Keys::One(&key)).await?;
                    self.take(etcd, read.entries.first(), manager).await?;
                }
            }
        }
    }

    /// Takes in the current head.
    async fn take(
        &self,
        etcd: &mut Etcd,
        entry: Option<&Entry>,
        manager: &Manager,
    ) -> Result<(), EtcdError> {
        if self.inner.rests.load(Ordering::Relaxed) {
            return Ok(());
        }
        let head = match entry.map(|entry| Head::read(&entry.value)).transpose() {
            Ok(head) => head,
            Err(error) => {
                let why = format!("{} in the store: {error}", self.inner.names.head_key());
                return Err(EtcdError::Refused(why));
            }
        };
        let seen = {
            let mut state = self.inner.state.lock();
            let seen = state.follower.take_head(head);
            state.changed = entry.map_or(0, |entry| entry.changed);
            seen
        };
        match seen {
            HeadVerdict::WentBack => error!("{WENT_BACK}"),
            HeadVerdict::Empty => debug!("{EMPTY}"),
            HeadVerdict::News | HeadVerdict::Known | HeadVerdict::StillBack => {}
        }
        let applied = self.put_into_effect(etcd, manager).await?;
        if seen == HeadVerdict::News || applied {
            self.keep_copy().await;
        }
        self.inner.stepped.send_replace(());
        Ok(())
    }

    /// Puts the wanted revision into effect; returns true if it was put there.
    async fn put_into_effect(&self, etcd: &mut Etcd, manager: &Manager) -> Result<bool, EtcdError> {
        let (wanted, current) = {
            let state = self.inner.state.lock();
            let current = state.follower.head().and_then(|head| head.current.clone());
            (state.follower.wanted_revision().cloned(), current)
        };
        let mut desk = StoreAdmin::new(etcd, &self.inner.settings.prefix);
        let Some(to) = wanted else {
            self.note_stored(&mut desk, current.as_ref()).await;
            return Ok(false);
        };
        let revision = match desk.read_revision(&to).await {
            Ok(revision) => revision,
            Err(StoreAdminError::Etcd(error)) => return Err(error),
            Err(error) => {
                self.refuse(to, error.to_string());
                return Ok(false);
            }
        };
        let author = Author {
            user_name: revision.who.clone(),
            from: None,
            comment: revision.message.clone(),
        };
        let before = {
            let mut state = self.inner.state.lock();
            state.totals.take_counts(manager);
            state.kept.counts_since_oldest(&state.totals.counts())
        };
        let text = revision.text.clone();
        match manager.apply_stored(&self.inner.file, text, author).await {
            Ok(_) => {
                info!(
                    number = to.number,
                    who = revision.who,
                    "{to} of the store is in force"
                );
                let mut state = self.inner.state.lock();
                state.follower.note_applied(to);
                state.revision = revision;
                state.before = before;
                state.applied = state.applied.saturating_add(1);
            }
            Err(error) => {
                self.refuse(to, error.to_string());
                return Ok(false);
            }
        }
        self.note_stored(&mut desk, current.as_ref()).await;
        Ok(true)
    }

    fn refuse(&self, to: Pointer, why: String) {
        error!("{to} of the store is refused, so the configuration in force stays in force: {why}");
        let mut state = self.inner.state.lock();
        state.follower.note_refused(to, why);
        state.refused = state.refused.saturating_add(1);
    }

    /// Notes the text that all balancers are to have.
    async fn note_stored(&self, desk: &mut StoreAdmin<'_>, current: Option<&Pointer>) {
        let Some(current) = current else {
            return;
        };
        let own = {
            let state = self.inner.state.lock();
            let own = &state.revision;
            (own.pointer() == *current).then(|| own.text.clone())
        };
        let text = match own {
            Some(text) => Some(text),
            None => desk
                .read_revision(current)
                .await
                .ok()
                .map(|revision| revision.text),
        };
        self.inner.state.lock().stored = text.map(Arc::from);
    }

    /// Writes the last good copy, so that it is there after a restart.
    async fn keep_copy(&self) {
        let copy = {
            let state = self.inner.state.lock();
            Copy {
                format: FORMAT,
                prefix: self.inner.settings.prefix.clone(),
                mark: state.follower.mark().cloned(),
                revision: state.revision.clone(),
            }
        };
        let path = self.inner.settings.copy_file.clone();
        let saved = tokio::task::spawn_blocking(move || copy::save(&path, &copy)).await;
        if let Ok(Err(error)) = saved {
            let path = self.inner.settings.copy_file.display();
            error!(
                "store.copy_file: cannot write the last good copy to {path}, so a restart needs the store: {error}"
            );
        }
    }

    /// Reports what this balancer runs, and drives roll-outs, forever.
    async fn report(&self, manager: &Manager) {
        let mut etcd = Etcd::new(&self.inner.settings);
        let mut reporter = Reporter::default();
        let mut driver = Driver::default();
        let begun = Instant::now();
        let mut steps = self.inner.stepped.subscribe();
        loop {
            // A change is reported at once.
            let _ = timeout(TURN, steps.changed()).await;
            if self.inner.rests.load(Ordering::Relaxed) {
                // The process that has taken over writes the report meanwhile.
                reporter.forget_report();
                continue;
            }
            self.count(manager);
            let result = self.write_report(&mut reporter, &mut etcd).await;
            let result = match result {
                Ok(()) => self.drive(&mut etcd, &mut driver, begun.elapsed()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                reporter.note_failure(&error);
                sleep(TURN.mul_f32(0.5 + fastrand::f32())).await;
            } else {
                reporter.note_success();
            }
        }
    }

    /// Keeps the report in the store alive, and writes it when it is due.
    async fn write_report(
        &self,
        reporter: &mut Reporter,
        etcd: &mut Etcd,
    ) -> Result<(), EtcdError> {
        let inner = &*self.inner;
        let key = inner.names.node_key(&inner.name);
        let identity = Identity {
            name: &inner.name,
            process: &inner.process,
        };
        reporter.keep_lease(etcd, &key, &identity).await?;
        let report = self.own_report();
        let is_tried = {
            let state = inner.state.lock();
            let head = state.follower.head();
            head.is_some_and(|head| head.trial.is_some())
        };
        reporter.write_report(etcd, key, report, is_tried).await
    }

    fn count(&self, manager: &Manager) {
        let mut state = self.inner.state.lock();
        let is_due = state.kept.is_due();
        let is_tried = state
            .follower
            .head()
            .is_some_and(|head| head.trial.is_some());
        if is_due || is_tried {
            state.totals.take_counts(manager);
        }
        if is_due {
            let counts = state.totals.counts();
            state.kept.keep_counts(counts);
        }
    }

    /// Builds this balancer's report.
    fn own_report(&self) -> Report {
        let state = self.inner.state.lock();
        Report {
            format: FORMAT,
            name: self.inner.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            process: self.inner.process.clone(),
            mark: state.follower.mark().map(crate::model::Mark::without_past),
            running: state.follower.running().cloned(),
            refused: state.follower.refusal().cloned(),
            waits: state.follower.is_waiting(),
            counts: state.totals.counts(),
            before: state.before.clone(),
        }
    }

    /// Writes the next step of a roll-out, if there is one and it is this balancer's turn.
    async fn drive(
        &self,
        etcd: &mut Etcd,
        driver: &mut Driver,
        now: Duration,
    ) -> Result<(), EtcdError> {
        let (head, changed) = {
            let state = self.inner.state.lock();
            (state.follower.head().cloned(), state.changed)
        };
        let Some(head) = head.filter(|head| head.trial.is_some()) else {
            *driver = Driver::default();
            return Ok(());
        };
        let mut desk = StoreAdmin::new(etcd, &self.inner.settings.prefix);
        let reports = match desk.list_nodes().await {
            Ok(reports) => reports,
            Err(StoreAdminError::Etcd(error)) => return Err(error),
            Err(_) => return Ok(()),
        };
        let rules = self.inner.settings.rollout.clone().unwrap_or_default();
        let next = driver.next(&head, &reports, &self.inner.name, &rules, now);
        let tag = format!("{:016x}", fastrand::u64(..));
        let written = match &next {
            Next::Wait(why) => {
                debug!("the roll-out of the store's revision waits: {why}");
                None
            }
            Next::Advance(step, nodes) => change::advance(&head, *step, nodes.clone(), tag),
            Next::Finish => change::finish_rollout(&head, tag),
            Next::TakeBack(why) => change::take_back(&head, why.clone(), desk::unix_seconds(), tag),
        };
        let Some(written) = written else {
            return Ok(());
        };
        if !desk.go_on(changed, &written).await? {
            return Ok(());
        }
        let to = head
            .trial
            .map(|trial| trial.to.to_string())
            .unwrap_or_default();
        match next {
            Next::Advance(step, nodes) => {
                info!(?step, ?nodes, "the roll-out of {to} is at its next step");
            }
            Next::Finish => {
                info!("the roll-out of {to} is complete: all balancers have the revision")
            }
            Next::TakeBack(why) => warn!("{to} is taken back: {why}"),
            Next::Wait(_) => {}
        }
        Ok(())
    }

    /// Writes a change for the admin API.
    async fn write(&self, change: Change) -> Result<Put, StoreError> {
        let push = Push {
            text: change.text.to_string(),
            author_name: change.author.user_name,
            message: change.author.comment,
            staged: self.inner.settings.rollout.is_some(),
            at: desk::unix_seconds(),
        };
        let mut steps = self.inner.stepped.subscribe();
        let written = {
            let mut etcd = self.inner.desk.lock().await;
            let mut desk = StoreAdmin::new(&mut etcd, &self.inner.settings.prefix);
            desk.push(Base::Id(&change.before), push, false).await
        };
        let written = written.map_err(store_error)?;
        let number = written.to.number;
        let mut notes = vec![format!("written to the store as revision {number}")];
        if written.staged {
            notes.push(
                "the revision is rolled out step by step: `evenkeel store history` shows the progress"
                    .into(),
            );
            return Ok(Put { notes });
        }
        self.inner.again.notify_one();
        let in_effect = async {
            loop {
                {
                    let state = self.inner.state.lock();
                    if state.follower.running() == Some(&written.to) {
                        return None;
                    }
                    let refusal = state.follower.refusal();
                    if let Some(refused) = refusal.filter(|refused| refused.to == written.to) {
                        return Some(format!(
                            "this balancer refuses the revision: {}",
                            refused.why
                        ));
                    }
                }
                // The channel ends only with the process.
                let _ = steps.changed().await;
            }
        };
        notes.extend(match timeout(IN_EFFECT, in_effect).await {
            Ok(note) => note,
            Err(_) => Some(format!(
                "this balancer has not put the revision into effect within {IN_EFFECT:?}"
            )),
        });
        Ok(Put { notes })
    }

    fn status(&self) -> StoreStatus {
        let state = self.inner.state.lock();
        let head = state.follower.head();
        let trial = head.and_then(|head| head.trial.as_ref());
        let failed = head.and_then(|head| head.failed.as_ref());
        StoreStatus {
            store: self.place(),
            name: self.inner.name.clone(),
            trouble: state.trouble.clone(),
            running: state.follower.running().map(|running| running.number),
            current: head.and_then(|head| Some(head.current.as_ref()?.number)),
            trial: trial.map(|trial| trial.to.number),
            tried_by: trial.map(|trial| trial.nodes.clone()).unwrap_or_default(),
            refused: state.follower.refusal().map(|refused| refused.why.clone()),
            taken_back: failed.map(|failed| failed.to.number),
            taken_back_because: failed.map(|failed| failed.why.clone()),
            waits: state.follower.is_waiting(),
        }
    }

    fn place(&self) -> String {
        let servers = self
            .inner
            .settings
            .endpoints
            .iter()
            .map(ToString::to_string);
        let servers: Vec<String> = servers.collect();
        format!(
            "etcd at {}, {}",
            servers.join(", "),
            self.inner.settings.prefix
        )
    }
}

fn store_error(error: StoreAdminError) -> StoreError {
    let why = error.to_string();
    match error {
        StoreAdminError::ChangedMeanwhile(_) => StoreError::ChangedMeanwhile(why),
        StoreAdminError::Etcd(EtcdError::Unreachable(_)) => StoreError::Unreachable(format!(
            "the store does not answer, so the change may or may not be written: {why}. Look at the \
             configuration before you repeat the change"
        )),
        StoreAdminError::Etcd(EtcdError::Refused(_)) => {
            StoreError::Refused(format!("the store does not take the change: {why}"))
        }
        _ => StoreError::Refused(why),
    }
}

impl Store for Fleet {
    fn name(&self) -> String {
        self.place()
    }

    fn stored(&self) -> Option<Arc<str>> {
        self.inner.state.lock().stored.clone()
    }

    fn put(&self, change: Change) -> Work<Result<Put, StoreError>> {
        let fleet = self.clone();
        Box::pin(async move { fleet.write(change).await })
    }
}

impl Service for Fleet {
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        let fleet = self.clone();
        Box::pin(async move {
            tokio::join!(fleet.follow(&manager), fleet.report(&manager));
        })
    }
}

impl Subsystem for Fleet {
    fn hand_over(&self, _: &mut Handover) {
        self.inner.rests.store(true, Ordering::Relaxed);
    }

    fn resume(&self) {
        self.inner.rests.store(false, Ordering::Relaxed);
        self.inner.again.notify_one();
    }

    fn metrics(&self, out: &mut Exposition) {
        let status = self.status();
        let (applied, refused) = {
            let state = self.inner.state.lock();
            (state.applied, state.refused)
        };
        metrics::write_families(out, &status, applied, refused);
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let fleet = self.clone();
        vec![Endpoint::with_value(
            "/v1/store",
            "The store of the configuration: the revision in force, and the roll-out in progress",
            move || fleet.status(),
        )]
    }
}
