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

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::load::Location;
use evenkeel_giop::client::{Call, CallError, Client};
use evenkeel_giop::exception::Kind;
use evenkeel_giop::ior::Ior;
use imbl::OrdMap;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::service::LoadManager;

/// Time between two looks at what is wanted, and the same while a pulse is on.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_CLOSELY: Duration = Duration::from_millis(1);

/// An alert that stays on is told again so often: its server may be another one by now.
const RENEWAL: Duration = Duration::from_secs(5);

/// The longest time between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What load alert objects were told.
#[derive(Debug, Default)]
pub struct Counters {
    enabled: AtomicU64,
    disabled: AtomicU64,
    acknowledged: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    /// Calls of `enable_alert` and `disable_alert`, and how many were acknowledged or failed.
    pub fn totals(&self) -> [(&'static str, u64); 4] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("enabled", get(&self.enabled)),
            ("disabled", get(&self.disabled)),
            ("acknowledged", get(&self.acknowledged)),
            ("failed", get(&self.failed)),
        ]
    }
}

/// What is known of the load alert object of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The location.
    pub location: String,
    /// Whether it should be on.
    pub wanted: bool,
    /// What it acknowledged last; `None` is unknown.
    pub acknowledged: Option<bool>,
    /// Why the last call failed, if it did.
    pub problem: Option<String>,
}

/// The load alert objects, and what is known of them.
#[derive(Debug, Default)]
pub struct Alerts {
    counters: Counters,
    objects: Mutex<BTreeMap<String, Object>>,
}

/// One load alert object.
#[derive(Debug)]
struct Object {
    reference: Arc<Ior>,
    location: Arc<Location>,
    wanted: bool,
    acknowledged: Option<bool>,
    problem: Option<String>,
    calling: bool,
    /// No call before that, unless what is wanted changes.
    not_before: Option<Instant>,
    wait: Duration,
}

/// What came of a call.
struct Called {
    name: String,
    reference: Arc<Ior>,
    on: bool,
    result: Result<(), CallError>,
}

impl Alerts {
    /// What was told.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All objects, by location.
    pub fn views(&self) -> Vec<View> {
        let view = |(location, object): (&String, &Object)| View {
            location: location.clone(),
            wanted: object.wanted,
            acknowledged: object.acknowledged,
            problem: object.problem.clone(),
        };
        self.lock().iter().map(view).collect()
    }

    /// Tells the registered objects of `service` what it takes, as long as it is polled.
    pub async fn run(&self, service: Arc<LoadManager>) {
        let mut states = service.states();
        let (results, mut called) = mpsc::unbounded_channel();
        let mut calls = JoinSet::new();
        // What was known when the service was switched off is not known any more, and calls
        // of then have no answer.
        for object in std::mem::take(&mut *self.lock()).into_values() {
            object.location.set_shut(false);
        }
        states.mark_changed();
        loop {
            if states.has_changed().unwrap_or(false) {
                let state = Arc::clone(&states.borrow_and_update());
                self.follow(&state.alerts, &service);
            }
            let retry = service.settings().alert_retry;
            while let Ok(result) = called.try_recv() {
                self.digest(result, retry);
            }
            while calls.try_join_next().is_some() {}
            let mut pause = self.look(&service, &results, &mut calls, retry);
            if self.lock().is_empty() {
                // Nothing to do until one is registered.
                pause = LONGEST_WAIT;
            }
            tokio::select! {
                () = sleep(pause) => {}
                Some(result) = called.recv() => self.digest(result, retry),
                changed = states.changed() => match changed {
                    Ok(()) => states.mark_changed(),
                    Err(_) => return,
                },
            }
        }
    }

    /// Brings the objects up to date with what is registered.
    fn follow(&self, registered: &OrdMap<String, Arc<Ior>>, service: &LoadManager) {
        let mut objects = self.lock();
        objects.retain(|name, object| {
            let same = |reference: &Arc<Ior>| Arc::ptr_eq(reference, &object.reference);
            let stays = registered.get(name).is_some_and(same);
            if !stays {
                object.location.set_shut(false);
            }
            stays
        });
        for (name, reference) in registered {
            if objects.contains_key(name) {
                continue;
            }
            let Some(location) = service.manager().location(name) else {
                continue;
            };
            let object = Object {
                reference: Arc::clone(reference),
                location,
                wanted: false,
                acknowledged: None,
                problem: None,
                calling: false,
                not_before: None,
                wait: Duration::ZERO,
            };
            objects.insert(name.clone(), object);
        }
    }

    /// Begins the calls that are due; answers how long to wait until the next look.
    fn look(
        &self,
        service: &LoadManager,
        results: &mpsc::UnboundedSender<Called>,
        calls: &mut JoinSet<()>,
        deadline: Duration,
    ) -> Duration {
        let now = Instant::now();
        let mut pause = LOOK;
        for (name, object) in self.lock().iter_mut() {
            let location = &object.location;
            let wanted = location.is_alerted();
            if location.has_pulse() || location.is_shut() {
                pause = LOOK_CLOSELY;
            }
            if wanted != object.wanted {
                info!(location = name, on = wanted, "load alert");
                object.wanted = wanted;
                object.not_before = None;
                object.wait = Duration::ZERO;
            }
            let known = object.acknowledged == Some(wanted);
            let due = object.not_before.is_none_or(|at| now >= at);
            if object.calling || !due || known && !(wanted && object.not_before.is_some()) {
                continue;
            }
            object.calling = true;
            let counter = match wanted {
                true => {
                    location.set_shut(true);
                    &self.counters.enabled
                }
                false => &self.counters.disabled,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            let call = tell(
                service.client().clone(),
                name.clone(),
                Arc::clone(&object.reference),
                wanted,
                deadline,
            );
            let results = results.clone();
            calls.spawn(async move {
                let _ = results.send(call.await);
            });
        }
        pause
    }

    /// Notes what came of a call.
    fn digest(&self, called: Called, retry: Duration) {
        let mut objects = self.lock();
        let Some(object) = objects.get_mut(&called.name) else {
            return;
        };
        if !Arc::ptr_eq(&object.reference, &called.reference) {
            return;
        }
        object.calling = false;
        let now = Instant::now();
        let location = &called.name;
        match called.result {
            Ok(()) => {
                self.counters.acknowledged.fetch_add(1, Ordering::Relaxed);
                if object.problem.take().is_some() {
                    info!(location, "the load alert answers again");
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
                        "the load alert does not answer: {problem}"
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
) -> Called {
    let operation = if on { "enable_alert" } else { "disable_alert" };
    let call = Call::new(&reference, operation, Instant::now() + deadline);
    let result = client.call(&call).await.map(|_| ());
    Called {
        name,
        reference,
        on,
        result,
    }
}

/// Whether an error says that the server is not there at all.
fn is_gone(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        CallError::System(exception) => exception.kind == Kind::ObjectNotExist,
        _ => false,
    }
}
