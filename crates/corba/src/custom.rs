//! Custom strategies: objects of the application, in other processes, that choose members.
//!
//! A strategy that does not answer must not hold up a client for longer than the deadline,
//! and not one client after the other: once it has missed a deadline nobody waits for it
//! until it has answered a probe. Until then, and whenever it names nobody who can take the
//! client, the group's strategy decides.
//!
//! It may call the load manager while it decides: no lock is held, and the thread that
//! waits for it serves others.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use evenkeel_core::group::{Advice, Group, PickError, Request};
use evenkeel_core::load;
use evenkeel_core::member::Member;
use evenkeel_core::time::Instant;
use evenkeel_giop::any::Idl;
use evenkeel_giop::cdr::Writer;
use evenkeel_giop::client::{Call, CallError, Client as Orb};
use evenkeel_giop::ior::Ior;
use evenkeel_limits::LimitSlot;
use evenkeel_net::Clock;
use tracing::{debug, info, warn};

use crate::directory::{Answer, Directory, Entry, Reference, Snapshot};
use crate::locator::{self, ChosenMember, Client};
use crate::name::Name;
use crate::types::Load;

/// Time between two probes of a strategy that does not answer.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Clients that wait for one strategy at a time; the group's strategy decides for others.
const MOST_WAITING: usize = 512;
/// Time between two complaints about answers that cannot be used.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which new loads are passed on to strategies.
const ROUND: Duration = Duration::from_millis(200);
/// The time of a report is known to so much.
const REPORT_GRAIN: Duration = Duration::from_millis(4);

/// State that all custom strategies share.
#[derive(Debug)]
pub struct Customs {
    orb: Orb,
    clock: Clock,
    settings: Mutex<CallSettings>,
    probe_interval: Duration,
    known: Mutex<HashMap<Ior, Weak<Custom>>>,
}

impl Customs {
    /// None yet. They are called with `orb`, once it is said how ([`Customs::configure`]).
    pub fn new(orb: Orb, clock: Clock) -> Arc<Self> {
        Customs::with_probes(orb, clock, PROBE_INTERVAL)
    }

    /// Creates the same object as [`Customs::new`], with `probe_interval` between two probes.
    pub(crate) fn with_probes(orb: Orb, clock: Clock, probe_interval: Duration) -> Arc<Self> {
        Arc::new(Customs {
            orb,
            clock,
            settings: Mutex::default(),
            probe_interval,
            known: Mutex::default(),
        })
    }

    /// From now on `manager` is the load manager, and strategies may take so long.
    pub fn configure(&self, manager: Ior, timeout: Duration) {
        *lock(&self.settings) = CallSettings {
            manager: Arc::new(manager),
            timeout,
        };
    }

    fn settings(&self) -> CallSettings {
        lock(&self.settings).clone()
    }

    /// The strategy with this reference: the same for all groups that have it, as long as
    /// one has.
    pub fn get(self: &Arc<Self>, ior: &Ior) -> Arc<Custom> {
        let mut known = lock(&self.known);
        if let Some(custom) = known.get(ior).and_then(Weak::upgrade) {
            return custom;
        }
        known.retain(|_, custom| custom.strong_count() > 0);
        let custom = Arc::new(Custom {
            common: Arc::clone(self),
            ior: ior.clone(),
            health: Mutex::default(),
            waiting: AtomicUsize::new(0),
            counts: Counts::default(),
        });
        known.insert(ior.clone(), Arc::downgrade(&custom));
        custom
    }
}

/// Settings for calls of strategies.
#[derive(Clone, Debug, Default)]
struct CallSettings {
    /// The load manager, as strategies are told.
    manager: Arc<Ior>,
    /// Time limit of a call.
    timeout: Duration,
}

/// A custom strategy.
pub struct Custom {
    common: Arc<Customs>,
    ior: Ior,
    health: Mutex<Health>,
    waiting: AtomicUsize,
    counts: Counts,
}

/// Health of a strategy, as its answers tell.
#[derive(Debug, Default)]
struct Health {
    /// Since it has not answered: when it is probed next; `None` while it is.
    silent: Option<Option<Instant>>,
    /// Time of the last complaint about the strategy's answers.
    complained: Option<Instant>,
    /// True if the strategy has said that it does not use loads.
    not_adaptive: bool,
}

#[derive(Debug, Default)]
struct Counts {
    silences: AtomicU64,
    unusable: AtomicU64,
}

/// Reason why a strategy has named no member.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The strategy does not answer.
    #[error("{0}")]
    Silent(CallError),
    /// The strategy was not asked, because it did not answer the last time.
    #[error("the strategy was not asked, as it did not answer the last time")]
    Suspended,
    /// The strategy was not asked, because too many requests wait for its answer.
    #[error("the strategy was not asked, as it has too many questions at once")]
    Busy,
    /// The strategy was not asked, because this process lacks a resource for the call.
    #[error("the strategy was not asked, as this balancer lacks a resource: see the log")]
    Exhausted,
    /// The strategy has answered, but not with a member that may be used.
    #[error("{0}")]
    Unusable(String),
}

impl Failure {
    /// The reason, for explanations.
    fn name(&self) -> &'static str {
        match self {
            Failure::Silent(CallError::Timeout) => "the strategy gave no answer in time",
            Failure::Silent(_) => "the call of the strategy failed: see the log",
            Failure::Suspended => "the strategy was not asked, as it did not answer the last time",
            Failure::Busy => "the strategy was not asked, as it has too many questions at once",
            Failure::Exhausted => {
                "the strategy was not asked, as this balancer lacks a resource: see the log"
            }
            Failure::Unusable(_) => "the strategy's answer cannot be used",
        }
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("ior", &self.ior).finish()
    }
}

/// The member chosen for a client, and the strategy that chose it.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The group as it was then.
    pub group: Arc<Group>,
    /// The place of the member in it.
    pub index: usize,
    /// Reference of the member.
    pub reference: Arc<Reference>,
    /// Strategy that has decided: [`Answer::Custom`] or [`Answer::Fallback`].
    pub by: Answer,
}

impl Decision {
    /// Has an explanation that is due say who has decided.
    fn explain(&self, client: &mut Client, now: Instant) {
        let Some(member) = self.group.members().get(self.index) else {
            return;
        };
        let request = Request {
            client: Some(client.address),
            ..Request::at_time(now)
        };
        let advice = Advice::Member(member.id);
        // The decision has been taken.
        let _ = self.group.choose_advised(&request, advice, &mut client.rng);
    }

    /// The member.
    pub fn chosen(&self) -> ChosenMember<'_> {
        let (index, reference) = (self.index, &self.reference);
        ChosenMember { index, reference }
    }
}

/// Has `custom` choose a member of its group for a client, without counting the client
/// there; if it does not, the group's strategy does.
///
/// # Errors
///
/// Nobody may be used.
pub async fn decide_by_custom(
    entry: &Entry,
    custom: &Arc<Custom>,
    client: &mut Client,
) -> Result<Decision, PickError> {
    let asked = match custom.ask(&entry.reference).await {
        Ok(named) => custom.check(entry, &named),
        Err(failure) => Err(failure),
    };
    match asked {
        Ok(decision) => {
            decision.explain(client, custom.now());
            Ok(decision)
        }
        Err(failure) => {
            custom.complain(entry, &failure);
            let group = entry.handle.current.load_full();
            let advice = Some(Advice::Nobody(failure.name()));
            let chosen = locator::choose_member(entry, &group, client, advice, custom.now())?;
            let (index, reference) = (chosen.index, Arc::clone(chosen.reference));
            let by = Answer::Fallback;
            Ok(Decision {
                group,
                index,
                reference,
                by,
            })
        }
    }
}

impl Custom {
    /// Returns the strategy's reference.
    pub fn ior(&self) -> &Ior {
        &self.ior
    }

    /// Returns true unless the strategy did not answer the last time.
    pub fn is_answering(&self) -> bool {
        lock(&self.health).silent.is_none()
    }

    /// Returns how often the strategy has become silent, and how many of its answers could not be
    /// used.
    pub fn failures(&self) -> (u64, u64) {
        let Counts { silences, unusable } = &self.counts;
        (
            silences.load(Ordering::Relaxed),
            unusable.load(Ordering::Relaxed),
        )
    }

    fn now(&self) -> Instant {
        self.common.clock.now()
    }

    /// A call of an operation of it with the arguments that `write` writes.
    fn call(&self, operation: &'static str, write: impl FnOnce(&mut Writer)) -> Call<'_> {
        let timeout = self.common.settings().timeout;
        let deadline = tokio::time::Instant::now() + timeout;
        Call::new(&self.ior, operation, deadline).with_arguments(write)
    }

    /// Returns a call of an operation with a group and the load manager as arguments.
    fn call_about(&self, operation: &'static str, group: &Ior) -> Call<'_> {
        let manager = self.common.settings().manager;
        self.call(operation, |writer| {
            group.write(writer);
            manager.write(writer);
        })
    }

    /// Asks for the next member of a group.
    async fn ask(self: &Arc<Self>, group: &Ior) -> Result<Ior, Failure> {
        if !self.may_ask(group) {
            return Err(Failure::Suspended);
        }
        let place = LimitSlot::take(&self.waiting, MOST_WAITING).ok_or(Failure::Busy)?;
        let answer = self.next_member(group).await;
        drop(place);
        self.note(&answer);
        answer
    }

    async fn next_member(&self, group: &Ior) -> Result<Ior, Failure> {
        let call = self.call_about("next_member", group);
        match self.common.orb.call(&call).await {
            Ok(body) => Ior::read(&mut body.reader())
                .map_err(|error| Failure::Silent(CallError::from(error))),
            Err(CallError::User { id, .. }) => Err(Failure::Unusable(format!(
                "the strategy raised {}",
                id.escape_debug()
            ))),
            // That says nothing about it.
            Err(CallError::Exhausted { .. }) => Err(Failure::Exhausted),
            Err(error) => Err(Failure::Silent(error)),
        }
    }

    /// Returns true if a client is to wait for the strategy. If not, and if a probe is due, starts
    /// a probe in the background.
    fn may_ask(self: &Arc<Self>, group: &Ior) -> bool {
        let mut health = self.health();
        let Some(probe) = &mut health.silent else {
            return true;
        };
        if probe.is_some_and(|at| at <= self.now()) {
            *probe = None;
            let (custom, group) = (Arc::clone(self), group.clone());
            tokio::spawn(async move {
                let answer = custom.next_member(&group).await;
                custom.note(&answer);
            });
        }
        false
    }

    /// Takes in how a question has ended.
    fn note<T>(&self, answer: &Result<T, Failure>) {
        let mut health = self.health();
        match answer {
            Err(Failure::Silent(error)) => {
                if health.silent.is_none() {
                    self.counts.silences.fetch_add(1, Ordering::Relaxed);
                    let strategy = self.place();
                    warn!(strategy, %error, "the custom strategy does not answer: the groups' own \
                        strategies decide until it answers");
                }
                health.silent = Some(Some(self.now().after(self.common.probe_interval)));
            }
            Err(Failure::Suspended | Failure::Busy | Failure::Exhausted) => {
                if let Some(probe) = &mut health.silent {
                    probe.get_or_insert(self.now().after(self.common.probe_interval));
                }
            }
            Ok(_) | Err(Failure::Unusable(_)) => {
                if health.silent.take().is_some() {
                    info!(
                        strategy = self.place(),
                        "the custom strategy has recovered: it decides for its groups"
                    );
                }
            }
        }
    }

    /// The member that was named, if it may be used.
    fn check(&self, entry: &Entry, named: &Ior) -> Result<Decision, Failure> {
        let unusable = |why: &str| Failure::Unusable(why.into());
        let group = entry.handle.current.load_full();
        let mut members = (0..group.members().len())
            .filter_map(|index| Some((index, entry.member(&group, index)?)));
        let found = members.find(|(_, reference)| reference.is_same_object(named));
        let (index, reference) = found.ok_or_else(|| match named.is_nil() {
            true => unusable("the answer is nil"),
            false => unusable("the answer is an object that is not a member of the group"),
        })?;
        let request = Request::at_time(self.now());
        let view = group.view_for(&request);
        match view.explain_obstacle(index) {
            Some(obstacle) => Err(Failure::Unusable(format!(
                "the answer is a member that gets no new clients ({obstacle})"
            ))),
            None => Ok(Decision {
                index,
                reference: Arc::clone(reference),
                by: Answer::Custom,
                group: Arc::clone(&group),
            }),
        }
    }

    /// Counts an answer that cannot be used, and says so, but not each time.
    fn complain(&self, entry: &Entry, failure: &Failure) {
        let Failure::Unusable(why) = failure else {
            return;
        };
        self.counts.unusable.fetch_add(1, Ordering::Relaxed);
        let mut health = self.health();
        let now = self.now();
        let last = health.complained;
        if last.is_none_or(|last| now.since(last) >= COMPLAINT_INTERVAL) {
            health.complained = Some(now);
            let (group, strategy) = (entry.name(), self.place());
            warn!(%group, strategy, why, "the answer of a custom strategy cannot be used: the group's \
                own strategy decides");
        }
    }

    /// Hands it loads that have come.
    async fn push(&self, location: &Name, loads: &[Load]) -> Result<(), Failure> {
        let call = self.call("push_loads", |writer| {
            location.write(writer);
            writer.write_len(loads.len());
            loads.iter().for_each(|load| load.write(writer));
        });
        match self.common.orb.call(&call).await {
            Ok(_) => Ok(()),
            Err(CallError::User { id, .. }) => {
                if id.ends_with("/StrategyNotAdaptive:1.0") {
                    self.health().not_adaptive = true;
                }
                Err(Failure::Unusable(format!(
                    "the strategy raised {}",
                    id.escape_debug()
                )))
            }
            Err(error) => Err(Failure::Silent(error)),
        }
    }

    /// Tells it to look at the loads of a group.
    async fn analyze(&self, group: &Ior) -> Result<(), Failure> {
        let call = self.call_about("analyze_loads", group);
        self.common
            .orb
            .call_oneway(&call)
            .await
            .map_err(Failure::Silent)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        lock(&self.health)
    }

    /// Returns the strategy's host and port, for logs.
    fn place(&self) -> String {
        match self.ior.iiop_profiles().next() {
            Some(profile) => format!("{}:{}", profile.host, profile.port),
            None => "nowhere".into(),
        }
    }
}

/// Tells custom strategies of loads, for ever: after each round of reports, wherever they
/// come from, those of each location are pushed to the strategies of the groups there, which
/// are then told to analyze them.
pub async fn follow_loads(directory: Arc<Directory>, clock: Clock) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reported: HashMap<Ior, Arc<tokio::sync::Mutex<Reported>>> = HashMap::new();
    loop {
        rounds.tick().await;
        let work = by_strategy(&directory.load_snapshot());
        reported.retain(|ior, _| work.contains_key(ior));
        for (ior, (custom, groups)) in work {
            let reported = Arc::clone(reported.entry(ior).or_default());
            // One that takes longer than a round gets the next one when it is done.
            let Ok(mut reported) = reported.try_lock_owned() else {
                continue;
            };
            if groups
                .first()
                .is_some_and(|any| custom.may_ask(&any.reference))
            {
                let now = clock.now();
                tokio::spawn(async move { reported.tell(&custom, &groups, now).await });
            }
        }
    }
}

/// The custom strategies of all groups, with the groups.
fn by_strategy(snapshot: &Snapshot) -> HashMap<Ior, (Arc<Custom>, Vec<Arc<Entry>>)> {
    let mut work: HashMap<Ior, (Arc<Custom>, Vec<Arc<Entry>>)> = HashMap::new();
    for entry in snapshot.with_custom() {
        if let Some(custom) = &entry.custom {
            let work = work.entry(custom.ior.clone());
            let (_, groups) = work.or_insert_with(|| (Arc::clone(custom), Vec::new()));
            groups.push(Arc::clone(entry));
        }
    }
    work
}

/// Loads that were reported to a strategy.
#[derive(Debug, Default)]
struct Reported {
    /// Of each location.
    loads: HashMap<Arc<str>, Vec<load::Load>>,
}

impl Reported {
    /// Tells it what is new.
    async fn tell(&mut self, custom: &Custom, groups: &[Arc<Entry>], now: Instant) {
        let mut fresh: HashMap<Arc<str>, Vec<Load>> = HashMap::new();
        let mut there = HashMap::new();
        let mut concerned = Vec::new();
        for entry in groups {
            let group = entry.handle.current.load_full();
            let max_age = group.settings().load_max_age;
            let mut news = false;
            for Member { location, .. } in group.members() {
                let name = location.name();
                let before = self.loads.get(name).map_or(&[][..], Vec::as_slice);
                let loads: Vec<_> = location.list_loads(now).collect();
                let is_new = |load: &&load::Load| {
                    !load.expired
                        && now.since(load.at) <= max_age
                        && !before.iter().any(|b| is_same(b, load))
                };
                let new: Vec<_> = loads.iter().filter(is_new).map(as_reported).collect();
                if !new.is_empty() {
                    news = true;
                    fresh.insert(Arc::clone(name), new);
                }
                there.insert(Arc::clone(name), loads);
            }
            if news {
                concerned.push(entry);
            }
        }
        self.loads = there;
        for (location, loads) in fresh {
            if custom.health().not_adaptive {
                break;
            }
            let Ok(name) = location.parse::<Name>() else {
                debug!(
                    %location,
                    "the location is not a CORBA name: a custom strategy does not get its loads"
                );
                continue;
            };
            let reported = custom.push(&name, &loads).await;
            custom.note(&reported);
            if matches!(reported, Err(Failure::Silent(_))) {
                return;
            }
        }
        for entry in concerned {
            if let Err(error) = custom.analyze(&entry.reference).await {
                custom.note::<()>(&Err(error));
                return;
            }
        }
    }
}

fn as_reported(load: &load::Load) -> Load {
    Load {
        id: load.id.0,
        value: load.value.get(),
    }
}

/// Returns true if both are the same report. The time of a report is known to a few milliseconds
/// only.
fn is_same(before: &load::Load, now: &load::Load) -> bool {
    let same = before.id == now.id && before.value == now.value;
    same && now.at <= before.at.after(REPORT_GRAIN)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
