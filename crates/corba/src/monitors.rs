//! Load monitors: objects of the application that say how much load a location has.
//!
//! Each is asked on its own (`_get_loads`), once in each `pull_interval` and with a deadline
//! of its own, so that one that fails, hangs or lies never delays the others. What is not
//! heard of grows old, and is unknown after the `load_max_age` of a group. Monitors that push
//! instead call `push_loads` of the load manager; both ways end in
//! [`check_loads`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::load::{InvalidLoad, LoadId, LoadValue, TooManyLoads};
use evenkeel_giop::any::Idl;
use evenkeel_giop::client::{Call, CallError};
use evenkeel_giop::ior::Ior;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant as TokioInstant, sleep, sleep_until};
use tracing::{info, warn};

use crate::service::LoadManager;
use crate::types::Load;

/// The attribute `loads` of a `LoadMonitor`.
const GET_LOADS: &str = "_get_loads";

/// Share of an interval by which questions to different monitors are spread.
const SPREAD: f32 = 0.1;

/// The longest sleep before the settings are looked at again.
const NAP: Duration = Duration::from_secs(1);

/// Reason why a report of loads is refused. If one load is refused, none is taken in.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LoadReportError {
    /// There are none.
    #[error("the report contains no load")]
    Empty,
    /// A load is not a number, is negative, or is absurdly high.
    #[error("load {}: {why}", .id.0)]
    Value {
        /// Id of the load.
        id: LoadId,
        /// Error in the value.
        why: InvalidLoad,
    },
    /// The location has other loads already, and no room.
    #[error(transparent)]
    TooMany(#[from] TooManyLoads),
}

/// Returns the loads of a report for [`Location::report_all`], if each of them is valid.
///
/// # Errors
///
/// See [`LoadReportError`].
///
/// [`Location::report_all`]: evenkeel_core::load::Location::report_all
pub fn check_loads(loads: &[Load]) -> Result<Vec<(LoadId, LoadValue)>, LoadReportError> {
    if loads.is_empty() {
        return Err(LoadReportError::Empty);
    }
    let value = |load: &Load| {
        let id = LoadId(load.id);
        let value = LoadValue::new(f64::from(load.value));
        Ok((id, value.map_err(|why| LoadReportError::Value { id, why })?))
    };
    loads.iter().map(value).collect()
}

/// Answers of load monitors, and why there were none.
#[derive(Debug, Default)]
pub struct Counters {
    /// Loads were taken in.
    answered: AtomicU64,
    /// The monitor cannot be reached, or the connection was lost.
    unreachable: AtomicU64,
    /// The monitor did not answer in time.
    timeout: AtomicU64,
    /// The monitor raised an exception.
    exception: AtomicU64,
    /// The monitor's answer is not a list of loads.
    not_valid: AtomicU64,
    /// A load is no number, negative, or absurd; or there is none, or there are too many.
    refused: AtomicU64,
}

impl Counters {
    /// By what came of a question.
    pub fn question_totals(&self) -> [(&'static str, u64); 6] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("answered", get(&self.answered)),
            ("unreachable", get(&self.unreachable)),
            ("timeout", get(&self.timeout)),
            ("exception", get(&self.exception)),
            ("not_valid", get(&self.not_valid)),
            ("refused", get(&self.refused)),
        ]
    }

    fn of(&self, answer: &Result<(), Failure>) -> &AtomicU64 {
        match answer {
            Ok(()) => &self.answered,
            Err(Failure::Refused(_)) => &self.refused,
            Err(Failure::Call(error)) => match error {
                CallError::Timeout => &self.timeout,
                CallError::System(_) | CallError::User { .. } => &self.exception,
                CallError::NotValid(_) | CallError::MessageError(_) => &self.not_valid,
                _ => &self.unreachable,
            },
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the answer is refused: {0}")]
    Refused(#[from] LoadReportError),
}

/// Asks the registered monitors of `service` as long as it is polled.
pub async fn pull_loads(service: Arc<LoadManager>, counters: Arc<Counters>) {
    let mut states = service.watch_states();
    let mut asking: HashMap<String, AbortHandle> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut known = OrdMap::new();
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        // Only those that have come or gone.
        for item in known.diff(&state.monitors) {
            let (location, monitor) = match item {
                DiffItem::Add(location, monitor) => (location, Some(monitor)),
                DiffItem::Update { new, .. } => (new.0, Some(new.1)),
                DiffItem::Remove(location, _) => (location, None),
            };
            if let Some(task) = asking.remove(location) {
                task.abort();
            }
            if let Some(monitor) = monitor {
                let asker = Asker {
                    service: Arc::clone(&service),
                    counters: Arc::clone(&counters),
                    location: location.clone(),
                    monitor: Arc::clone(monitor),
                };
                asking.insert(location.clone(), tasks.spawn(asker.run()));
            }
        }
        known = state.monitors.clone();
        // Tasks end only when they are aborted, or panic.
        while tasks.try_join_next().is_some() {}
        if states.changed().await.is_err() {
            return;
        }
    }
}

/// Asks one monitor.
struct Asker {
    service: Arc<LoadManager>,
    counters: Arc<Counters>,
    location: String,
    monitor: Arc<Ior>,
}

impl Asker {
    async fn run(self) {
        let mut failing = false;
        // Not all at once after a start.
        let spread = self.service.settings().pull_interval.min(NAP);
        sleep(spread.mul_f32(SPREAD * fastrand::f32())).await;
        loop {
            let begun = TokioInstant::now();
            let answer = self.ask().await;
            self.counters.of(&answer).fetch_add(1, Ordering::Relaxed);
            let location = &self.location;
            match &answer {
                Ok(()) if failing => {
                    info!(location, "the load monitor has recovered: it returns loads")
                }
                Err(error) if !failing => warn!(
                    location,
                    "the load monitor returns no valid loads; its last loads expire: {error}"
                ),
                _ => {}
            }
            failing = answer.is_err();
            loop {
                let interval = self.service.settings().pull_interval;
                let next = begun + interval;
                if TokioInstant::now() >= next {
                    break;
                }
                sleep_until(next.min(TokioInstant::now() + NAP)).await;
            }
        }
    }

    async fn ask(&self) -> Result<(), Failure> {
        let deadline = TokioInstant::now() + self.service.settings().pull_timeout;
        let call = Call::new(&self.monitor, GET_LOADS, deadline);
        let body = self.service.client().call(&call).await?;
        let loads = Vec::<Load>::read(&mut body.reader()).map_err(CallError::from)?;
        let loads = check_loads(&loads)?;
        let manager = self.service.manager();
        // It is held as long as the monitor is registered.
        if let Some(location) = manager.find_location(&self.location) {
            let now = manager.clock().now();
            if let Some((first, _)) = loads.first() {
                location.lead_with(*first);
            }
            // All for which there is room: nobody at the other end could do better.
            if location.report_each(&loads, now) > 0 {
                return Err(LoadReportError::from(TooManyLoads).into());
            }
        }
        Ok(())
    }
}
