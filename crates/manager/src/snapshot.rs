//! What the data plane sees of the manager: rules and groups, replaced as a whole.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use evenkeel_control::queue::Queue;
use evenkeel_core::group::{Group, PickError};
use evenkeel_core::member::Member;
use evenkeel_core::signal::Signal;
use tokio::sync::Notify;

use crate::config::negotiator::origin_of;
use crate::config::{
    Broker, Cluster, Corba, MemberConfig, Monitor, Negotiator, Orca, Origin, Rule,
};
use crate::counts::ReportCounts;

/// All rules of one configuration, with live changes applied. Workers receive each
/// new one through a `tokio::sync::watch` channel.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counts the configurations that this process has run; 0 is none yet.
    pub generation: u64,
    /// The rules, enabled or not, in the order of the file.
    pub rules: Vec<Arc<RuleSnapshot>>,
    /// Where agents report; `None` is nowhere.
    pub broker: Option<Broker>,
    /// Where clients negotiate; `None` is nowhere.
    pub negotiator: Option<Negotiator>,
    /// What they negotiate for, in the order of the file.
    pub clusters: Vec<Arc<ClusterSnapshot>>,
    /// The CORBA service; `None` is none.
    pub corba: Option<Arc<Corba>>,
    /// How loads of groups and locations are read, wherever the file says so.
    pub monitors: Vec<Monitor>,
}

/// A cluster with the handle of its group.
#[derive(Debug)]
pub struct ClusterSnapshot {
    /// The cluster as configured.
    pub cluster: Cluster,
    /// Its group; the same handle over all snapshots in which the group exists.
    pub group: Arc<GroupHandle>,
    /// The group's members as the file has them, by name.
    pub members: HashMap<String, MemberConfig>,
}

impl ClusterSnapshot {
    /// Where clients reach `member` themselves. `None` if there is no such place, because
    /// its name does not resolve, or it is a member no more.
    pub fn origin(&self, member: &Member) -> Option<Origin> {
        let (in_file, address) = match member.name.split_once('/') {
            Some((in_file, _)) => (in_file, Some(member.address)),
            None => (&*member.name, None),
        };
        origin_of(self.members.get(in_file)?, self.cluster.scheme, address)
    }
}

/// A rule with the handle of its group.
#[derive(Debug)]
pub struct RuleSnapshot {
    /// The rule as configured; `enabled` as it is now.
    pub rule: Rule,
    /// Its group; the same handle over all snapshots in which the group exists.
    pub group: Arc<GroupHandle>,
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
    /// How reports in responses are read; nothing is if they are not.
    pub orca: ArcSwapOption<Orca>,
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
            orca: ArcSwapOption::empty(),
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

/// What carries traffic: told of each new snapshot before it counts, so that a change
/// takes place as a whole or not at all.
pub trait DataPlane: Send + Sync {
    /// Does for `next` whatever can fail, such as binding new listeners, but nothing
    /// that clients notice. The errors say what could not be done, each for itself.
    ///
    /// If all goes well, the manager makes `next` the current snapshot and calls the
    /// answer. If something else fails it drops the answer uncalled, and what was
    /// prepared must be given back.
    ///
    /// Called with the manager's lock held: it must not call the manager.
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, Vec<String>>;

    /// Where it accepts TCP connections now: nobody may register these addresses as those
    /// of a member. Called as `prepare` is.
    fn listening(&self) -> Vec<SocketAddr> {
        Vec::new()
    }
}

/// Puts into effect what [`DataPlane::prepare`] has prepared. Cannot fail.
pub type Commit = Box<dyn FnOnce() + Send>;

/// Nobody carries traffic: for tests, and for what only asks for decisions.
impl DataPlane for () {
    fn prepare(&self, _: &Arc<Snapshot>) -> Result<Commit, Vec<String>> {
        Ok(Box::new(|| ()))
    }
}

/// Several that carry traffic in different ways: all of them are ready for what is next, or
/// none goes on to it.
impl DataPlane for Vec<Arc<dyn DataPlane>> {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, Vec<String>> {
        let mut commits = Vec::with_capacity(self.len());
        let mut errors = Vec::new();
        for plane in self {
            match plane.prepare(next) {
                Ok(commit) => commits.push(commit),
                Err(problems) => errors.extend(problems),
            }
        }
        match errors.is_empty() {
            true => Ok(Box::new(|| commits.into_iter().for_each(|commit| commit()))),
            false => Err(errors),
        }
    }

    fn listening(&self) -> Vec<SocketAddr> {
        self.iter().flat_map(|plane| plane.listening()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Notes what is committed, or refuses.
    struct Plane(
        Arc<Mutex<Vec<&'static str>>>,
        Result<&'static str, &'static str>,
    );

    impl DataPlane for Plane {
        fn prepare(&self, _: &Arc<Snapshot>) -> Result<Commit, Vec<String>> {
            let name = self.1.map_err(|error| vec![error.to_owned()])?;
            let committed = Arc::clone(&self.0);
            Ok(Box::new(move || committed.lock().unwrap().push(name)))
        }
    }

    #[test]
    fn all_planes_go_on_or_none() {
        let committed = Arc::default();
        let planes = |second| -> Vec<Arc<dyn DataPlane>> {
            let plane = |result| Arc::new(Plane(Arc::clone(&committed), result));
            vec![
                plane(Ok("a")),
                plane(second),
                plane(Err("c")),
                plane(Ok("d")),
            ]
        };
        let refused = planes(Err("b")).prepare(&Arc::default());
        assert_eq!(refused.err(), Some(vec!["b".to_owned(), "c".to_owned()]));
        assert!(committed.lock().unwrap().is_empty());
        let mut good = planes(Ok("b"));
        good.remove(2);
        let commit = good.prepare(&Arc::default()).unwrap();
        assert!(
            committed.lock().unwrap().is_empty(),
            "not before the commit"
        );
        commit();
        assert_eq!(*committed.lock().unwrap(), ["a", "b", "d"]);
    }
}
