//! What subsystems see of the manager: rules and groups, replaced as a whole.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use evenkeel_control::queue::Queue;
use evenkeel_core::group::{Group, GroupSettings, PickError};
use evenkeel_core::signal::Signal;
use evenkeel_core::strategy::{Values, default_kind};
use evenkeel_tls::client::Client;
use tokio::sync::Notify;

use crate::config::sources::Sources;
use crate::config::{MemberConfig, Rule, Section, Sections, SendProxy};
use crate::counts::ReportCounts;
use crate::member_tls::Handshakes;

/// All rules of one configuration, with live changes applied. Workers receive each
/// new one through a `tokio::sync::watch` channel.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counts the configurations that this process has run; 0 is none yet.
    pub generation: u64,
    /// Whether the configuration was read anew, at the start or at a reload: files that it names are
    /// read again then. If not, it is what it was, and something else has changed (a member, a
    /// weight, a rule that was switched off): what was read from files stays in effect, so that such
    /// a change succeeds whatever has become of them.
    pub reload: bool,
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
    /// Its group; the same handle over all snapshots in which the group exists. One without
    /// members if the rule has groups by name only.
    pub group: Arc<GroupHandle>,
    /// Its groups by name.
    pub names: Names,
    /// What TLS to its members needs, if they speak it.
    pub tls: Option<Arc<Client>>,
    /// The groups whose members are told who the client is, and how.
    pub told: Vec<(Arc<GroupHandle>, SendProxy)>,
    /// The load sources of the group: whoever reads responses sees the reports in them.
    pub sources: Sources,
}

impl RuleSnapshot {
    /// The number of what does the handshakes with its members; 0 without TLS.
    #[inline]
    pub fn tls_id(&self) -> u64 {
        self.tls.as_ref().map_or(0, |client| client.id)
    }

    /// How members of `group` are told who the client is.
    #[inline]
    pub fn send_proxy(&self, group: &GroupHandle) -> Option<SendProxy> {
        let mut told = self.told.iter();
        let told = told.find(|(told, _)| std::ptr::eq(&**told, group));
        told.map(|(_, version)| *version)
    }

    /// All groups that serve its clients.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<GroupHandle>> {
        let own = (!self.rule.group.is_empty()).then_some(&self.group);
        own.into_iter().chain(&self.names.groups)
    }
}

/// Groups by the names that clients ask for.
#[derive(Debug, Default)]
pub struct Names {
    groups: Vec<Arc<GroupHandle>>,
    /// Places in `groups`.
    exact: HashMap<Box<str>, usize>,
    /// By what follows the first dot.
    below: HashMap<Box<str>, usize>,
}

impl Names {
    /// Names with their groups. A name that begins with `*.` is for all right below it.
    pub fn new<'a>(names: impl IntoIterator<Item = (&'a str, Arc<GroupHandle>)>) -> Self {
        let mut all = Names::default();
        for (name, group) in names {
            let name = name.to_ascii_lowercase();
            match name.strip_prefix("*.") {
                Some(below) => all.below.insert(below.into(), all.groups.len()),
                None => all.exact.insert(name.into(), all.groups.len()),
            };
            all.groups.push(group);
        }
        all
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The groups, one for each name, in the order of the names given.
    pub fn groups(&self) -> &[Arc<GroupHandle>] {
        &self.groups
    }

    /// The group for `name`, which is in lower case: of that very name, or else of a wildcard.
    pub fn find(&self, name: &str) -> Option<&Arc<GroupHandle>> {
        let below = || self.below.get(name.split_once('.')?.1);
        self.groups.get(*self.exact.get(name).or_else(below)?)
    }
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
    /// What came of handshakes with its members.
    handshakes: OnceLock<Box<Handshakes>>,
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
            handshakes: OnceLock::new(),
        }
    }

    /// One without members.
    pub fn nobody() -> Self {
        let strategy = Values::defaults(default_kind());
        let settings = GroupSettings::default();
        let group = Group::new("", settings, &strategy, Vec::new(), Arc::default());
        GroupHandle::new(Arc::new(group), 0)
    }

    /// What came of handshakes with its members.
    pub fn handshakes(&self) -> &Handshakes {
        self.handshakes.get_or_init(Box::default)
    }

    /// The same, if there was one.
    pub fn known_handshakes(&self) -> Option<&Handshakes> {
        self.handshakes.get().map(|known| &**known)
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
            // Only one waiting request is woken for each vacancy; if it cannot use it, it wakes the next.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_very_name_goes_before_a_wildcard_for_one_label() {
        let [a, b] = [(); 2].map(|()| Arc::new(GroupHandle::nobody()));
        let names = [("*.Example.org", &a), ("www.example.org", &b)];
        let names = Names::new(names.map(|(name, group)| (name, Arc::clone(group))));
        let is = |name: &str, group: Option<&Arc<GroupHandle>>| {
            let found = names.find(name).map(Arc::as_ptr);
            assert_eq!(found, group.map(Arc::as_ptr), "{name}");
        };
        is("www.example.org", Some(&b));
        is("api.example.org", Some(&a));
        is("a.b.example.org", None);
        is("example.org", None);
        is("*.example.org", Some(&a));
        is("", None);
    }
}
