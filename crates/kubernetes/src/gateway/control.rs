//! Loop of the controller: objects → translation → configuration and statuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_config::Config;
use evenkeel_manager::subsystem::{ApplyError, PrepareError};
use evenkeel_manager::{Generated, Manager, ReloadError};
use evenkeel_tls::certificate::unix_now;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, error, info, warn};

use super::conditions::Status;
use super::events::{EventWriter, Facts};
use super::ingress::Notice;
use super::leader::{Candidate, Term};
use super::objects::{ByName, Gateway, Kind, ListenerSet, Object, ObjectName, Objects};
use super::settings::Settings;
use super::translate::settle::{Kept, translate_again};
use super::translate::{Refused, Translation};
use super::world::{KindStore, World};
use super::writer::Writer;
use crate::api::{Api, Collection};
use crate::follow::{Follower, WatchEnd};
use crate::last_copy::LastCopy;
use crate::watcher::{Pace, Question, Watcher};

/// Most tries to put a translation into effect: each leaves out what was refused before.
const TRIES: usize = 16;

/// Time after which listeners that were refused are tried again: their ports may be free.
const RETRY_REFUSED: Duration = Duration::from_secs(30);

/// Time after which the controller asks again for a kind that the cluster does not have.
const RETRY_ABSENT: Duration = Duration::from_secs(30);

/// Number of configurations that follow one another without a rest.
const IN_A_ROW: u32 = 2;

/// Length of a rest, as a multiple of the time that the last configuration took.
const REST: u32 = 3;

/// Longest rest. A configuration that takes longer than a third of it gets a larger share of a core.
const LONGEST_REST: Duration = Duration::from_secs(2);

/// Longest rest after a configuration that was not put into effect, whatever changes meanwhile.
const LONGEST_REST_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Plan of the controller.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) api: Arc<Api>,
    pub(crate) settings: Settings,
    /// Time without a byte after which a watch has failed.
    pub(crate) silence: Duration,
    /// Lease of the balancer that writes statuses; `None` if each balancer writes.
    pub(crate) lease: Option<ObjectName>,
    /// Name of the balancer.
    pub(crate) node: String,
}

impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.api, &other.api)
            && self.settings == other.settings
            && self.silence == other.silence
            && self.lease == other.lease
            && self.node == other.node
    }
}

/// Counts since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Number of configurations that were put into effect.
    pub(crate) applied: AtomicU64,
    /// Number of configurations that could not be put into effect.
    pub(crate) refused: AtomicU64,
    /// Number of statuses that were written.
    pub(crate) written: Arc<AtomicU64>,
    /// Term of this balancer as the leader; `None` if each balancer writes.
    pub(crate) term: Mutex<Option<Term>>,
    /// Last good copy, which is told that gateways are those of the API server.
    pub(crate) copy: LastCopy,
    /// Outcome of the last translation.
    pub(crate) last: Mutex<LastOutcome>,
}

/// Outcome of the last translation of all objects.
#[derive(Debug, Default)]
pub(crate) struct LastOutcome {
    /// Statuses of the objects, and reports about Ingresses.
    pub(crate) facts: Arc<Facts>,
    /// Time at which all objects were in effect, in seconds since 1970.
    pub(crate) last_success: Option<i64>,
    /// Reason why the objects are not in effect as they are.
    pub(crate) error: Option<String>,
}

impl Counts {
    /// Notes that the objects are in effect, or why they are not.
    fn note_outcome(&self, error: Option<String>) {
        let mut last = self.last.lock();
        if error.is_none() {
            last.last_success = Some(unix_now());
        }
        last.error = error;
    }
}

/// Follower of the objects of a kind.
struct KindFollower {
    plan: Plan,
    store: KindStore,
    /// Number of the version of the API among those of the kind.
    version: usize,
    follower: Follower<KindStore>,
}

impl KindFollower {
    fn new(plan: &Plan, kind: Kind, world: &Arc<World>) -> Self {
        let world = Arc::clone(world);
        let store = KindStore { kind, world };
        KindFollower {
            plan: plan.clone(),
            follower: follow(plan, &store, 0),
            store,
            version: 0,
        }
    }

    /// Lists all objects, in the best version that the cluster has. Returns the pause before the next question.
    async fn list(&mut self) -> Duration {
        let (kind, world) = (self.store.kind, &self.store.world);
        match self.follower.list().await {
            Ok(()) => {
                let version = kind.versions().get(self.version).copied();
                world.note_listed(kind, version.unwrap_or_default());
                Duration::ZERO
            }
            Err(fault) if fault.code == 404 && kind.is_of_crd() => {
                self.version += 1;
                let is_absent = self.version >= kind.versions().len();
                if is_absent {
                    self.version = 0;
                    world.note_absent(kind);
                }
                self.follower = follow(&self.plan, &self.store, self.version);
                match is_absent {
                    true => RETRY_ABSENT.mul_f32(1.0 + fastrand::f32()),
                    false => Duration::ZERO,
                }
            }
            Err(fault) => {
                world.note_fault(kind, &fault);
                self.follower.pause_after(&fault)
            }
        }
    }

    /// Lists all objects, and tries again after failures.
    async fn list_until_known(mut self) {
        while let Question::List(_) = self.follower.watcher.next_question() {
            let pause = self.list().await;
            if pause >= RETRY_ABSENT {
                return;
            }
            sleep(pause).await;
        }
    }

    async fn run(mut self) {
        let (kind, world) = (self.store.kind, Arc::clone(&self.store.world));
        world.wait_for_demand(kind).await;
        loop {
            let pause = match self.follower.watcher.next_question() {
                Question::List(_) => self.list().await,
                Question::Watch(version) => {
                    let watched = self.follower.watch(&version, |_, changed| {
                        world.note_answer(kind);
                        if changed {
                            world.note_change();
                        }
                        true
                    });
                    let (end, pause) = watched.await;
                    match end {
                        WatchEnd::Regular => {}
                        WatchEnd::Failed(fault) => world.note_fault(kind, &fault),
                        WatchEnd::Broken(fault) => {
                            debug!(kind = kind.name(), "a watch broke: {}", fault.message);
                        }
                    }
                    pause
                }
            };
            sleep(pause).await;
        }
    }
}

/// Returns a follower of the objects of a kind in a version of the API.
fn follow(plan: &Plan, store: &KindStore, version: usize) -> Follower<KindStore> {
    let kind = store.kind;
    let version = kind.versions().get(version).copied().unwrap_or("v1");
    let collection = Collection::new(kind.path(version), kind.field_selector());
    let watcher = Watcher::with_store(store.clone());
    Follower::new(Arc::clone(&plan.api), collection, plan.silence, watcher)
}

/// Returns true if both have the same objects with the same specifications.
fn have_same_specs<S: Default + PartialEq>(
    some: &ByName<Object<S>>,
    others: &ByName<Object<S>>,
) -> bool {
    let mut pairs = some.iter().zip(others);
    some.len() == others.len()
        && pairs.all(|((name, gateway), (other_name, other))| {
            name == other_name && (Arc::ptr_eq(gateway, other) || gateway.spec == other.spec)
        })
}

/// Outcome of a translation for people: statuses, and reports about Ingresses.
struct Outcome {
    statuses: Vec<Arc<Status>>,
    notices: Vec<Notice>,
}

impl Outcome {
    fn of(translation: Translation) -> Self {
        Outcome {
            statuses: translation.statuses,
            notices: translation.notices,
        }
    }
}

/// Rests between configurations. A change is put into effect at once, and changes that come meanwhile are gathered. If
/// changes come faster than they are put into effect, the controller takes a quarter of the time of a core.
#[derive(Debug, Default)]
struct Rests {
    /// Number of configurations since the last one after which nothing had changed meanwhile.
    in_a_row: u32,
}

impl Rests {
    /// Returns the rest after a configuration that took a time. `has_changes` is true if something has changed meanwhile.
    fn rest_after(&mut self, took: Duration, has_changes: bool) -> Duration {
        self.in_a_row = match has_changes {
            true => self.in_a_row.saturating_add(1),
            false => 0,
        };
        match self.in_a_row >= IN_A_ROW {
            true => took.saturating_mul(REST).min(LONGEST_REST),
            false => Duration::ZERO,
        }
    }
}

/// Applier of translations.
struct Applier {
    manager: Arc<Manager>,
    settings: Settings,
    counts: Arc<Counts>,
    /// Owners that could not be put into effect.
    refused: Refused,
    /// Gateways when owners were refused.
    gateways: ByName<Gateway>,
    /// ListenerSets, and XListenerSets, when owners were refused.
    sets: [ByName<ListenerSet>; 2],
    /// Parts of the translation before.
    kept: Kept,
    pace: Pace,
}

impl Applier {
    fn new(plan: &Plan, manager: &Arc<Manager>, counts: &Arc<Counts>) -> Self {
        Applier {
            manager: Arc::clone(manager),
            settings: plan.settings.clone(),
            counts: Arc::clone(counts),
            refused: Refused::new(),
            gateways: ByName::new(),
            sets: [ByName::new(), ByName::new()],
            kept: Kept::default(),
            pace: Pace::default(),
        }
    }

    /// Translates objects, and puts the configuration into effect. Returns the statuses, if that went well, and the time
    /// after which it is to be tried again.
    async fn apply(&mut self, objects: &Arc<Objects>) -> (Option<Outcome>, Option<Duration>) {
        let sets = [&objects.listener_sets, &objects.x_listener_sets];
        let mut pairs = self.sets.iter().zip(sets);
        if !have_same_specs(&self.gateways, &objects.gateways)
            || !pairs.all(|(known, now)| have_same_specs(known, now))
        {
            self.refused.clear();
            self.gateways.clone_from(&objects.gateways);
            self.sets = sets.map(ByName::clone);
        }
        let settings = self.settings.with_service_addresses(objects);
        for _ in 0..TRIES {
            let (settings, refused) = (settings.clone(), self.refused.clone());
            let objects = Arc::clone(objects);
            // Many objects take a while, and others wait for this thread.
            let mut kept = std::mem::take(&mut self.kept);
            let translated = spawn_blocking(move || {
                let translation = translate_again(&objects, &settings, &refused, &mut kept);
                (translation, kept)
            });
            let Ok((translation, kept)) = translated.await else {
                let problem = "the objects cannot be translated; please report this, with the earlier lines of the log";
                error!("gateways: {problem}");
                self.counts.note_outcome(Some(problem.into()));
                return (
                    None,
                    Some(self.pace.pause_after_failure(None, fastrand::f32())),
                );
            };
            self.kept = kept;
            let config = match &translation.config {
                Ok(config) => Arc::clone(config),
                Err(problem) => {
                    error!("gateways: the configuration stays as it was: {problem}");
                    self.counts.note_outcome(Some(problem.clone()));
                    let pause = self.pace.pause_after_failure(None, fastrand::f32());
                    return (Some(Outcome::of(translation)), Some(pause));
                }
            };
            match self.put_into_effect(&translation, config).await {
                Ok(()) => {
                    self.pace = Pace::default();
                    self.counts.note_outcome(None);
                    let retry = (!self.refused.is_empty()).then_some(RETRY_REFUSED);
                    return (Some(Outcome::of(translation)), retry);
                }
                Err(error) => {
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                    self.counts.note_outcome(Some(error.to_string()));
                    if !self.note_refused(&translation, &error) {
                        error!("gateways: the configuration stays as it was: {error}");
                        break;
                    }
                }
            }
        }
        (
            None,
            Some(self.pace.pause_after_failure(None, fastrand::f32())),
        )
    }

    async fn put_into_effect(
        &self,
        translation: &Translation,
        config: Arc<Config>,
    ) -> Result<(), ReloadError> {
        let generated = Generated {
            text: translation.text.clone(),
            files: Arc::new(translation.files.clone()),
        };
        // Rules of a copy may have been left out.
        let is_of_copy = self.counts.copy.time_of_gateways().is_some();
        if !is_of_copy && self.manager.generated().unwrap_or_default() == generated {
            self.counts.copy.note_gateways();
            return Ok(());
        }
        let applied = self.manager.apply_generated(generated, config).await?;
        self.counts.copy.note_gateways();
        self.counts.applied.fetch_add(1, Ordering::Relaxed);
        info!(
            generation = applied.generation,
            "gateways: configuration applied"
        );
        Ok(())
    }

    /// Notes the listeners that an error is about. Returns false if the error is about something else.
    fn note_refused(&mut self, translation: &Translation, error: &ReloadError) -> bool {
        let ReloadError::Apply(ApplyError(errors)) = error else {
            return false;
        };
        let mut is_progress = false;
        for error in errors {
            let PrepareError::Rule { rule, error } = error else {
                continue;
            };
            for owner in translation.rules.get(rule).into_iter().flatten() {
                if !self.refused.contains_key(owner) {
                    warn!("gateways: a listener is left out: {error}");
                    self.refused.insert(owner.clone(), error.to_string());
                    is_progress = true;
                }
            }
        }
        is_progress
    }
}

/// Lists all objects once and puts them into effect, so that a process that starts serves clients from the start. Returns
/// false if the API server has not told of all kinds.
pub(crate) async fn apply_once(plan: Plan, manager: Arc<Manager>, counts: Arc<Counts>) -> bool {
    let world = Arc::new(World::new(&plan.settings));
    let mut tasks = JoinSet::new();
    let followed = { Kind::ALL.into_iter() }.filter(|kind| plan.settings.follows(*kind));
    let (later, first): (Vec<Kind>, Vec<Kind>) = followed.partition(|kind| kind.is_on_demand());
    for kinds in [first, later] {
        for kind in kinds.into_iter().filter(|kind| world.needs(*kind)) {
            tasks.spawn(KindFollower::new(&plan, kind, &world).list_until_known());
        }
        while tasks.join_next().await.is_some() {}
    }
    let Some(objects) = world.objects() else {
        return false;
    };
    let mut applier = Applier::new(&plan, &manager, &counts);
    applier.apply(&Arc::new(objects)).await;
    true
}

/// Follows all objects for ever, and puts changes into effect.
pub(crate) async fn control(
    plan: Plan,
    world: Arc<World>,
    manager: Arc<Manager>,
    counts: Arc<Counts>,
) {
    let mut tasks = JoinSet::new();
    for kind in { Kind::ALL.into_iter() }.filter(|kind| plan.settings.follows(*kind)) {
        tasks.spawn(KindFollower::new(&plan, kind, &world).run());
    }
    let (wanted, statuses) = watch::channel(Arc::new(Vec::new()));
    let (api, controller) = (Arc::clone(&plan.api), plan.settings.controller.clone());
    let written = Arc::clone(&counts.written);
    let term = plan.lease.clone().map(|lease| {
        let (candidate, term) = Candidate::new(Arc::clone(&plan.api), lease, &plan.node);
        tasks.spawn(candidate.run());
        term
    });
    *counts.term.lock() = term.clone();
    *counts.last.lock() = LastOutcome::default();
    let (noted, facts) = watch::channel(Arc::new(Facts::default()));
    let ingress = plan.settings.ingress.as_ref();
    let events = EventWriter {
        api: Arc::clone(&api),
        world: Arc::clone(&world),
        controller: controller.clone(),
        ingress_controller: ingress.map(|of| of.controller.clone()).unwrap_or_default(),
        node: plan.node.clone(),
        term: term.clone(),
    };
    tasks.spawn(events.run(facts));
    tasks.spawn(Writer::new(api, Arc::clone(&world), controller, written, term).run(statuses));
    let mut applier = Applier::new(&plan, &manager, &counts);
    let mut retry_at: Option<Instant> = None;
    let mut objects = Arc::new(Objects::default());
    let mut rests = Rests::default();
    loop {
        match retry_at {
            None => world.wait_for_change().await,
            Some(at) => drop(timeout_at(at, world.wait_for_change()).await),
        }
        // Listeners that were refused are tried again, also if objects change all the time.
        if retry_at.is_some_and(|at| Instant::now() >= at) {
            applier.refused.clear();
            retry_at = None;
        }
        // Nobody else has the objects by now, so they are changed in place.
        if !world.update_objects(Arc::make_mut(&mut objects)) {
            continue;
        }
        let begun = Instant::now();
        let (outcome, retry) = applier.apply(&objects).await;
        let took = begun.elapsed();
        let next = retry.map(|pause| Instant::now() + pause);
        retry_at = next.map(|next| retry_at.map_or(next, |at| at.min(next)));
        if let Some(outcome) = outcome {
            let statuses = Arc::new(outcome.statuses);
            wanted.send_replace(Arc::clone(&statuses));
            let notices = outcome.notices;
            let facts = Arc::new(Facts { notices, statuses });
            counts.last.lock().facts = Arc::clone(&facts);
            noted.send_replace(facts);
        }
        let mut rest = rests.rest_after(took, world.has_changes());
        if applier.pace.has_failed() {
            rest = rest.max(retry.unwrap_or_default().min(LONGEST_REST_AFTER_FAILURE));
        }
        if !rest.is_zero() {
            sleep(rest).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_that_do_not_end_make_the_controller_rest() {
        let mut rests = Rests::default();
        let millis = Duration::from_millis;
        for (took, has_changes, rest) in [
            (10, false, 0),
            (10, true, 0),
            (10, true, 30),
            (20, true, 60),
            (50, true, 150),
            (5000, true, 2000),
            (10, false, 0),
            (10, true, 0),
            (10, false, 0),
        ] {
            let found = rests.rest_after(millis(took), has_changes);
            assert_eq!(found, millis(rest), "{took} {has_changes}");
        }
    }
}
