//! A custom strategy: the object, its calls, and its health.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_giop::any::Idl;
use evenkeel_giop::cdr::Writer;
use evenkeel_giop::client::{Call, CallError, Client as Orb};
use evenkeel_giop::ior::Ior;
use evenkeel_limits::LimitSlot;
use evenkeel_net::Clock;
use tracing::{info, warn};

use crate::name::Name;
use crate::types::Load;

/// Time between two probes of a strategy that does not answer.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Clients that wait for one strategy at a time; the group's strategy decides for others.
const MOST_WAITING: usize = 512;

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
    pub(super) counts: Counts,
}

/// Health of a strategy, as its answers tell.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Since it has not answered: when it is probed next; `None` while it is.
    silent: Option<Option<Instant>>,
    /// Time of the last complaint about the strategy's answers.
    pub(super) complained: Option<Instant>,
    /// True if the strategy has said that it does not use loads.
    pub(super) not_adaptive: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    silences: AtomicU64,
    pub(super) unusable: AtomicU64,
}

/// Reason why a strategy has named no member.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
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
    pub(super) fn name(&self) -> &'static str {
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

    pub(super) fn now(&self) -> Instant {
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
    pub(super) async fn ask(self: &Arc<Self>, group: &Ior) -> Result<Ior, Failure> {
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
    pub(super) fn may_ask(self: &Arc<Self>, group: &Ior) -> bool {
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
    pub(super) fn note<T>(&self, answer: &Result<T, Failure>) {
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

    /// Hands it loads that have come.
    pub(super) async fn push(&self, location: &Name, loads: &[Load]) -> Result<(), Failure> {
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
    pub(super) async fn analyze(&self, group: &Ior) -> Result<(), Failure> {
        let call = self.call_about("analyze_loads", group);
        self.common
            .orb
            .call_oneway(&call)
            .await
            .map_err(Failure::Silent)
    }

    pub(super) fn health(&self) -> MutexGuard<'_, Health> {
        lock(&self.health)
    }

    /// Returns the strategy's host and port, for logs.
    pub(super) fn place(&self) -> String {
        match self.ior.iiop_profiles().next() {
            Some(profile) => format!("{}:{}", profile.host, profile.port),
            None => "nowhere".into(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
