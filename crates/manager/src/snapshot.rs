//! What subsystems see of the manager: rules and groups, replaced as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use evenkeel_control::queue::Queue;
use evenkeel_core::group::{Group, PickError};
use evenkeel_core::signal::Signal;
use tokio::sync::Notify;

use crate::config::sources::Sources;
use crate::config::{MemberConfig, Rule, Section, Sections};
use crate::counts::ReportCounts;

/// All rules of one configuration, with live changes applied. Workers receive each
/// new one through a `tokio::sync::watch` channel.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counts the configurations that this process has run; 0 is none yet.
    pub generation: u64,
    /// The rules, enabled or not, in the order of the file.
    pub rules: Vec<Arc<RuleSnapshot>>,
    /// The groups of the file that subsystems name in their sections.
    pub groups: Vec<Arc<GroupSnapshot>>,
    /// What the configuration says to subsystems. Each of them knows its own.
    pub sections: Sections,
}

impl Snapshot {
    /// The section of that type.
    pub fn section<T: Section>(&self) -> Option<&T> {
        self.sections.get()
    }

    /// The group called `name`, if a subsystem names it.
    pub fn group(&self, name: &str) -> Option<&Arc<GroupSnapshot>> {
        self.groups.iter().find(|group| group.name == name)
    }
}

/// A group as the file has it, with its handle.
#[derive(Debug)]
pub struct GroupSnapshot {
    /// Its name.
    pub name: String,
    /// The same handle over all snapshots in which the group exists.
    pub group: Arc<GroupHandle>,
    /// The group's members as the file has them, by name.
    pub members: HashMap<String, MemberConfig>,
}

/// A rule with the handle of its group.
#[derive(Debug)]
pub struct RuleSnapshot {
    /// The rule as configured; `enabled` as it is now.
    pub rule: Rule,
    /// Its group; the same handle over all snapshots in which the group exists.
    pub group: Arc<GroupHandle>,
    /// The load sources of the group: whoever reads responses sees the reports in them.
    pub sources: Sources,
}

/// A group over time: the current snapshot, and what outlives snapshots.
#[derive(Debug)]
pub struct GroupHandle {
    /// What `pick` works on now.
    pub current: ArcSwap<Group>,
    /// Told when waiting may be over: a member got below its connection limit, is back,
    /// or is new.
    pub room: Notify,
    /// Wakes those who listen when [`current`](Self::current) is another one.
    pub changed: Signal,
    /// Reports of the group's sources.
    pub reports: ReportCounts,
    /// Who waits for `room`.
    pub queue: Queue,
}

impl GroupHandle {
    /// A handle of a group that nobody waits for.
    pub fn new(group: Arc<Group>, max_queue: usize) -> Self {
        GroupHandle {
            current: ArcSwap::new(group),
            room: Notify::new(),
            changed: Signal::default(),
            reports: ReportCounts::default(),
            queue: Queue::new(max_queue),
        }
    }

    /// Waits in the queue until `bind` finds a member below its connection limit.
    /// Everybody in the queue has a `bind` of its own: one may wait for a certain
    /// member, another one for any that it has not tried.
    ///
    /// # Errors
    ///
    /// [`PickError::AllFull`]: so is the queue. [`PickError::NoneEligible`]: `bind` has
    /// found no member worth waiting for.
    pub async fn wait_for<T>(
        &self,
        mut bind: impl FnMut() -> Result<T, PickError>,
    ) -> Result<T, PickError> {
        let mut place = self.queue.enter().ok_or(PickError::AllFull)?;
        loop {
            // Registered before the attempt, so that room made after it is not missed.
            let notified = self.room.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let news = place.look();
            let bound = bind();
            // One is told of each vacancy. Whoever cannot use it tells the next one.
            if bound.is_err() && news {
                self.room.notify_one();
            }
            if !matches!(bound, Err(PickError::AllFull)) {
                return bound;
            }
            notified.await;
        }
    }

    /// A request has left its member: somebody who waits may have its place.
    #[inline]
    pub fn vacated(&self) {
        if self.queue.vacated() {
            self.room.notify_one();
        }
    }
}
