//! Common parts of all sources that are asked: when they ask, how many at once, and what they log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, Reason};
use evenkeel_limits::files::Shares;
use evenkeel_manager::Manager;
use evenkeel_manager::config::SharedGroup;
use evenkeel_manager::config::sources::Sources;
use evenkeel_manager::counts::{Origin, ReportOutcome};
use evenkeel_manager::snapshot::GroupHandle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// Within this time, or the interval if that is shorter, everybody is asked for the
/// first time, each at a random moment.
const START_SPREAD: Duration = Duration::from_secs(1);

/// Permits for questions of one kind: few at the same time, so that clients leave files for
/// their sockets.
pub(crate) fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(Shares::of_process().reports))
}

/// Waits for a random moment to begin.
pub(crate) async fn wait_to_begin(interval: Duration) {
    sleep(interval.min(START_SPREAD).mul_f32(fastrand::f32())).await;
}

/// Waits until it is time for the next question, if the last one began at `started`: a
/// little earlier or later each time, so that questions do not fall into step.
pub(crate) async fn pause(interval: Duration, started: Instant) {
    let pause = interval.mul_f32(0.95 + 0.1 * fastrand::f32());
    sleep(pause.saturating_sub(started.elapsed())).await;
}

/// A group whose members may be asked.
pub(crate) struct PolledGroup {
    pub config: SharedGroup,
    pub handle: Arc<GroupHandle>,
    pub group: Arc<Group>,
}

impl PolledGroup {
    /// Returns all groups with load sources as they are now.
    pub(crate) fn all_groups(manager: &Manager) -> Vec<PolledGroup> {
        let (config, no_source) = (manager.shared_config(), Sources::default());
        let configs = config.groups.iter();
        let configs = configs.filter(|config| config.sources != no_source);
        let mut configs: HashMap<&str, &SharedGroup> =
            configs.map(|config| (&*config.name, config)).collect();
        if configs.is_empty() {
            return Vec::new();
        }
        let handles = manager.handles().into_iter();
        let followed = handles.filter_map(|handle| {
            let group = handle.current.load_full();
            let config = configs.remove(&**group.name())?.clone();
            Some(PolledGroup {
                config,
                handle,
                group,
            })
        });
        followed.collect()
    }

    /// Returns the members that have an address.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        let members = self.group.members().iter();
        members.filter(|member| !member.slot.has_reason(Reason::Unresolved))
    }
}

/// A location that a task reports to. If it was made anew it is another one, whatever it
/// is called.
#[derive(Clone, Debug)]
pub(crate) struct ReportedLocation(pub Arc<Location>);

impl PartialEq for ReportedLocation {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Counts what becomes of reports, and says so when it changes.
pub(crate) struct ReportLog {
    pub handle: Arc<GroupHandle>,
    pub origin: Origin,
    /// Name of the member or exporter that is asked.
    pub target_name: String,
    /// Fate of the last report.
    pub last: ReportOutcome,
}

impl ReportLog {
    pub(crate) fn new(handle: Arc<GroupHandle>, origin: Origin, whom: String) -> Self {
        ReportLog {
            handle,
            origin,
            target_name: whom,
            last: ReportOutcome::Taken,
        }
    }

    /// Notes the fate of a report, with what is to be said of it.
    pub(crate) fn note_fate(&mut self, fate: ReportOutcome, error: Option<&dyn std::fmt::Display>) {
        self.count(fate);
        self.log_fate(fate, error);
    }

    pub(crate) fn count(&self, fate: ReportOutcome) {
        self.handle.reports.count(self.origin, fate);
    }

    /// Says what became of a report, if it is something else than of the last one.
    pub(crate) fn log_fate(&mut self, fate: ReportOutcome, error: Option<&dyn std::fmt::Display>) {
        if std::mem::replace(&mut self.last, fate) == fate {
            return;
        }
        let current = self.handle.current.load();
        let (group, source, whom) = (current.name(), self.origin.name(), &self.target_name);
        match error {
            Some(error) => {
                warn!(%group, source, whom, %error, "a load report was not used, or not all of it")
            }
            None => info!(%group, source, whom, "the failure is over: load reports are used"),
        }
    }
}
