//! Load alerts: telling the servers at a location to send their clients back, and to stop.
//!
//! Whether a location sheds is the manager's decision, which marks it in the location
//! ([`Location::is_alerted`]). Here the registered `LoadAlert` object of
//! each location is told (`enable_alert`, `disable_alert`), all at once, nobody waiting for
//! anybody, and again until it acknowledges. One call at a time goes to each, so that they
//! cannot overtake each other, and the next one says what is right then. What an object
//! knows is unknown when it is registered, and after our own start; so it is told anew.
//!
//! [`Location::is_alerted`]: evenkeel_core::load::Location::is_alerted

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use evenkeel_core::load::Location;
use evenkeel_giop::client::{Call, CallError, Client};
use evenkeel_giop::exception::Kind;
use evenkeel_giop::ior::Ior;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::service::LoadManager;

/// An alert that stays on is told again so often: its server may be another one by now.
const RENEWAL: Duration = Duration::from_secs(5);

/// The longest time between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Counters of the calls that load alert objects get.
#[derive(Debug, Default)]
pub struct Counters {
    enabled: AtomicU64,
    disabled: AtomicU64,
    acknowledged: AtomicU64,
    failed: AtomicU64,
    looks: AtomicU64,
}

impl Counters {
    /// Calls of `enable_alert` and `disable_alert`, and how many were acknowledged or failed.
    pub fn call_totals(&self) -> [(&'static str, u64); 4] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("enabled", get(&self.enabled)),
            ("disabled", get(&self.disabled)),
            ("acknowledged", get(&self.acknowledged)),
            ("failed", get(&self.failed)),
        ]
    }

    /// Number of looks at objects. An object is looked at only if there is news of it, or if its
    /// time has come.
    pub fn count_object_looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }
}

/// State of the load alert object of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertState {
    /// The location.
    pub location: String,
    /// True if the alert should be on.
    pub desired: bool,
    /// State that the object acknowledged last; `None` if it is unknown.
    pub acknowledged: Option<bool>,
    /// Reason why the last call failed, if it did.
    pub problem: Option<String>,
}

/// The load alert objects, and what is known of them.
#[derive(Debug, Default)]
pub struct Alerts {
    counters: Counters,
    objects: Mutex<BTreeMap<String, Object>>,
}

/// A load alert object.
#[derive(Debug)]
struct Object {
    name: Arc<str>,
    reference: Arc<Ior>,
    location: Arc<Location>,
    /// By which its location is listened to.
    wakeup: Arc<Wakeup>,
    subscription: u64,
    /// Time at which the object is looked at again, even without news.
    due: Option<Instant>,
    desired: bool,
    acknowledged: Option<bool>,
    problem: Option<String>,
    calling: bool,
    /// No call before that, unless the desired state changes.
    not_before: Option<Instant>,
    wait: Duration,
}

impl Drop for Object {
    fn drop(&mut self) {
        self.location.change_signal().forget(self.subscription);
        // Nobody is told any more.
        self.location.set_shut(false);
    }
}

/// Notes that something has changed at a location.
#[derive(Debug)]
struct Wakeup {
    name: Arc<str>,
    changed: AtomicBool,
    changes: Arc<Changes>,
}

/// The locations where something has changed.
#[derive(Debug, Default)]
struct Changes {
    changed: Mutex<Vec<Arc<str>>>,
    notify: Notify,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        // Once until it is taken in.
        if !self.changed.swap(true, Ordering::AcqRel) {
            self.changes.lock().push(Arc::clone(&self.name));
            self.changes.notify.notify_one();
        }
    }
}

impl Changes {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<str>>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Times at which objects are to be looked at.
type Schedule = BTreeSet<(Instant, Arc<str>)>;

/// Result of a call to a load alert object.
struct CallResult {
    name: String,
    reference: Arc<Ior>,
    on: bool,
    result: Result<(), CallError>,
}

impl Alerts {
    /// Returns the counters of calls.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All objects, by location.
    pub fn list_states(&self) -> Vec<AlertState> {
        let view = |(location, object): (&String, &Object)| AlertState {
            location: location.clone(),
            desired: object.desired,
            acknowledged: object.acknowledged,
            problem: object.problem.clone(),
        };
        self.lock().iter().map(view).collect()
    }

    /// Tells the registered objects of `service` what it takes, as long as it is polled.
    pub async fn run(&self, service: Arc<LoadManager>) {
        let mut states = service.watch_states();
        let (results, mut called) = mpsc::unbounded_channel();
        let mut calls = JoinSet::new();
        // What was known when the service was switched off is not known any more, and calls
        // of then have no answer.
        self.lock().clear();
        let (changes, mut schedule) = (Arc::<Changes>::default(), Schedule::new());
        let mut known = OrdMap::new();
        states.mark_changed();
        loop {
            let mut look = Vec::new();
            if states.has_changed().unwrap_or(false) {
                let state = Arc::clone(&states.borrow_and_update());
                self.follow(&known, &state.alerts, &service, &changes, &mut look);
                known = state.alerts.clone();
            }
            let retry = service.settings().alert_retry;
            while let Ok(result) = called.try_recv() {
                look.extend(self.digest(result, retry));
            }
            while calls.try_join_next().is_some() {}
            look.append(&mut changes.lock());
            let now = Instant::now();
            while let Some((at, name)) = schedule.pop_first() {
                if at > now {
                    schedule.insert((at, name));
                    break;
                }
                look.push(name);
            }
            for name in look {
                self.look(&name, &service, &results, &mut calls, &mut schedule);
            }
            let next = schedule.first().map(|(at, _)| *at);
            tokio::select! {
                () = sleep_until(next.unwrap_or(now + LONGEST_WAIT)) => {}
                () = changes.notify.notified() => {}
                Some(result) = called.recv() => {
                    if let Some(name) = self.digest(result, retry) {
                        self.look(&name, &service, &results, &mut calls, &mut schedule);
                    }
                }
                changed = states.changed() => match changed {
                    Ok(()) => states.mark_changed(),
                    Err(_) => return,
                },
            }
        }
    }

    /// Brings the objects up to date with what is registered; those that are new are to be
    /// looked at.
    fn follow(
        &self,
        known: &OrdMap<String, Arc<Ior>>,
        registered: &OrdMap<String, Arc<Ior>>,
        service: &LoadManager,
        changes: &Arc<Changes>,
        look: &mut Vec<Arc<str>>,
    ) {
        let mut objects = self.lock();
        for item in known.diff(registered) {
            let (name, reference) = match item {
                DiffItem::Add(name, reference) => (name, Some(reference)),
                DiffItem::Update { new, .. } => (new.0, Some(new.1)),
                DiffItem::Remove(name, _) => (name, None),
            };
            objects.remove(name);
            let Some(reference) = reference else { continue };
            let Some(location) = service.manager().find_location(name) else {
                continue;
            };
            let wakeup = Arc::new(Wakeup {
                name: Arc::clone(location.name()),
                changed: AtomicBool::new(false),
                changes: Arc::clone(changes),
            });
            let object = Object {
                name: Arc::clone(&wakeup.name),
                reference: Arc::clone(reference),
                subscription: location
                    .change_signal()
                    .listen(Waker::from(Arc::clone(&wakeup))),
                location,
                wakeup,
                due: None,
                desired: false,
                acknowledged: None,
                problem: None,
                calling: false,
                not_before: None,
                wait: Duration::ZERO,
            };
            look.push(Arc::clone(&object.name));
            objects.insert(name.clone(), object);
        }
    }

    /// Begins the call of an object if one is due, or notes when one will be.
    fn look(
        &self,
        name: &str,
        service: &LoadManager,
        results: &mpsc::UnboundedSender<CallResult>,
        calls: &mut JoinSet<()>,
        schedule: &mut Schedule,
    ) {
        let mut objects = self.lock();
        let Some(object) = objects.get_mut(name) else {
            return;
        };
        self.counters.looks.fetch_add(1, Ordering::Relaxed);
        if let Some(due) = object.due.take() {
            schedule.remove(&(due, Arc::clone(&object.name)));
        }
        let now = Instant::now();
        // What changes from here on is noted again.
        object.wakeup.changed.store(false, Ordering::Release);
        let location = &object.location;
        let desired = location.is_alerted();
        if desired != object.desired {
            info!(location = name, on = desired, "load alert");
            object.desired = desired;
            object.not_before = None;
            object.wait = Duration::ZERO;
        }
        let known = object.acknowledged == Some(desired);
        if object.calling || known && !(desired && object.not_before.is_some()) {
            return;
        }
        if let Some(at) = object.not_before.filter(|at| now < *at) {
            object.due = Some(at);
            schedule.insert((at, Arc::clone(&object.name)));
            return;
        }
        object.calling = true;
        let counter = match desired {
            true => {
                location.set_shut(true);
                &self.counters.enabled
            }
            false => &self.counters.disabled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let call = tell(
            service.client().clone(),
            name.into(),
            Arc::clone(&object.reference),
            desired,
            service.settings().alert_retry,
        );
        let results = results.clone();
        calls.spawn(async move {
            let _ = results.send(call.await);
        });
    }

    /// Notes what came of a call; answers the object that is to be looked at again.
    fn digest(&self, called: CallResult, retry: Duration) -> Option<Arc<str>> {
        let mut objects = self.lock();
        let object = objects.get_mut(&called.name)?;
        if !Arc::ptr_eq(&object.reference, &called.reference) {
            return None;
        }
        object.calling = false;
        let now = Instant::now();
        let location = &called.name;
        match called.result {
            Ok(()) => {
                self.counters.acknowledged.fetch_add(1, Ordering::Relaxed);
                if object.problem.take().is_some() {
                    info!(location, "the load alert object has recovered: it answers");
                }
                debug!(location, on = called.on, "load alert acknowledged");
                object.acknowledged = Some(called.on);
                object.wait = Duration::ZERO;
                object.not_before = called.on.then(|| now + RENEWAL.max(retry));
                if !called.on {
                    object.location.set_shut(false);
                }
            }
            Err(error) => {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                let gone = is_gone(&error);
                let problem = error.to_string();
                if object.problem.is_none() {
                    warn!(
                        location,
                        on = called.on,
                        "the load alert object does not answer: {problem}"
                    );
                }
                object.problem = Some(problem);
                object.acknowledged = None;
                if gone {
                    // Nobody is there who could send clients away.
                    object.location.set_shut(false);
                }
                object.wait = (2 * object.wait).clamp(retry / 2, LONGEST_WAIT.max(retry));
                let wait = object.wait.mul_f32(0.75 + 0.5 * fastrand::f32());
                object.not_before = Some(now + wait);
            }
        }
        Some(Arc::clone(&object.name))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Object>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells an object whether its alert is on.
async fn tell(
    client: Client,
    name: String,
    reference: Arc<Ior>,
    on: bool,
    deadline: Duration,
) -> CallResult {
    let operation = if on { "enable_alert" } else { "disable_alert" };
    let call = Call::new(&reference, operation, Instant::now() + deadline);
    let result = client.call(&call).await.map(|_| ());
    CallResult {
        name,
        reference,
        on,
        result,
    }
}

/// Returns true if the error says that the object is gone: its server cannot be reached, or does
/// not know it.
fn is_gone(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        CallError::System(exception) => exception.kind == Kind::ObjectNotExist,
        _ => false,
    }
}
