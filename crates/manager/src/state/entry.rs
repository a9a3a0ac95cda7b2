//! A group with its endpoints, and what outlives a change of them.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::group::GroupControl;
use evenkeel_control::health::Health;
use evenkeel_control::opinion::{Source, SourceReports};
use evenkeel_control::queue::Policy;
use evenkeel_control::round::Controlled;
use evenkeel_core::address::Address;
use evenkeel_core::group::Group;
use evenkeel_core::member::{Member, Reason, Weight};
use evenkeel_core::time::Instant;
use evenkeel_tls::client::Client;

use crate::admission::RefusedAddress;
use crate::chooser::Chooser;
use crate::config::{GroupConfig, MemberConfig, SharedGroup};
use crate::history::History;
use crate::inputs::{AdminState, DEPARTED_FOR, endpoint_of};
use crate::snapshot::GroupHandle;
use crate::sticky::Cookie;

/// A group and what it keeps over reloads.
#[derive(Debug)]
pub(crate) struct GroupEntry {
    /// Configuration as in the file, with the present strategy and zone. Members of lists are none of its members.
    pub config: SharedGroup,
    /// Members that agents have added.
    pub joined: Vec<MemberConfig>,
    /// Owner of the group, if the group does not stand in the file.
    pub owner: Option<&'static str>,
    pub handle: Arc<GroupHandle>,
    pub group: Arc<Group>,
    /// TLS client for the group's members, if they speak TLS.
    pub tls: Option<Arc<Client>>,
    /// The cookie that binds its clients, if one does.
    pub cookie: Option<Arc<Cookie>>,
    /// The program outside of the balancer that chooses members, if there is one.
    pub chooser: Option<Arc<Chooser>>,
    /// Endpoints of the members of `group`, one for each, in the same order.
    pub endpoints: Vec<Endpoint>,
    /// State that rounds keep of the group.
    pub control: GroupControl,
    /// Addresses that agents registered, or names resolved to, and that are no members.
    pub refused: Vec<RefusedAddress>,
    /// Endpoints that left, the longest gone first.
    pub(super) departed: Vec<Endpoint>,
    pub(super) fresh: bool,
}

/// Identity of an endpoint of a group, which makes it the same one in the next state: host and port as in the
/// file, and the address.
pub(super) type Identity<'a> = (&'a str, u16, Address);

/// The last check of a member.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub at: Instant,
    /// Reason why the check failed.
    pub error: Option<Arc<str>>,
}

/// Member as the data plane knows it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub member: Member,
    /// The name of the member of the file whose endpoint it is.
    pub in_file: Arc<str>,
    /// The host in the file, which a health check also uses as the `Host`; or the name of
    /// a reference.
    pub host: String,
    pub port: u16,
    pub weight: Weight,
    pub backup: bool,
    pub admin: AdminState,
    pub resolved: bool,
    /// An agent has registered it; it does not stand in the file.
    pub joined: bool,
    pub health: Health,
    /// The last active check.
    pub checked: Option<Checked>,
    /// Reports of sources about the member.
    pub source_reports: SourceReports,
    pub history: History,
    pub(super) fresh: bool,
    /// Time when the endpoint left, if it is no member now.
    pub(super) left: Option<Instant>,
}

impl Endpoint {
    pub(super) fn identity(&self) -> Identity<'_> {
        (&self.host, self.port, self.member.address.clone())
    }

    /// True if the endpoint left so long ago that it may have changed since.
    pub(super) fn is_long_gone(&self, now: Instant) -> bool {
        self.left.is_some_and(|left| now.since(left) > DEPARTED_FOR)
    }
}

impl Controlled for GroupEntry {
    fn controlled(&mut self) -> (&Group, &mut GroupControl) {
        (&self.group, &mut self.control)
    }
}

impl GroupEntry {
    /// Makes it the one that the data plane sees.
    pub(super) fn commit(&mut self, now: Instant) {
        for endpoint in &mut self.endpoints {
            let slot = &endpoint.member.slot;
            endpoint
                .source_reports
                .retain(|of| is_asked(&self.config, of));
            endpoint.source_reports.publish(slot, endpoint.weight, now);
            slot.set(Reason::Draining, endpoint.admin == AdminState::Drain);
            let maintenance = endpoint.admin == AdminState::Maintenance;
            let left = slot.set(Reason::Maintenance, maintenance) && !maintenance;
            slot.set(Reason::Unresolved, !endpoint.resolved);
            slot.set(Reason::Standby, endpoint.backup);
            if self.config.health_check.is_none() {
                endpoint.health.reset(slot, now);
                endpoint.checked = None;
            }
            // A new group starts at full speed: nobody else is there to take its
            // traffic. A new member of an old group does not.
            if left || (endpoint.fresh && !self.fresh) {
                slot.set_ramp_from(Some(now));
            }
        }
        self.group.take_ranks();
        self.handle.queue.set_policy(self.queue_policy());
        if let Some(cookie) = &self.cookie {
            cookie.update_members(&self.group);
        }
        if !Arc::ptr_eq(&self.handle.current.load(), &self.group) {
            self.handle.current.store(Arc::clone(&self.group));
            self.handle.changed.wake();
        }
        // Whoever waits may have new members to wait for, or none any more.
        self.handle.queue.call_all();
    }

    /// Returns the policy for requests that wait for a member of the group.
    fn queue_policy(&self) -> Policy {
        let target = self.config.queue_target;
        Policy {
            limit: self.config.max_queue,
            target: (!target.is_zero()).then_some(target),
            interval: target.max(LEAST_INTERVAL),
            keep: self.endpoints.len().max(1),
        }
    }

    /// Returns the member that `name` is the identity or the given name of.
    pub(crate) fn find_endpoint(&self, name: &str) -> Option<&Endpoint> {
        let is_called = |Endpoint { member, .. }: &&Endpoint| {
            *member.name == *name || member.given_name.as_deref() == Some(name)
        };
        self.endpoints.iter().find(is_called)
    }

    /// Ends the ejection of the member `name`, or of all its endpoints, and forgets the failures. Returns true if any
    /// was ejected.
    pub(crate) fn end_ejection(&mut self, name: &str, now: Instant) -> bool {
        let outliers = &mut self.control.outliers;
        let is_meant = |of: &str| of == name || endpoint_of(of) == Some(name);
        let members = self.endpoints.iter().map(|endpoint| &endpoint.member);
        let mut was_ejected = false;
        for member in members.filter(|member| is_meant(&member.name)) {
            was_ejected |= outliers.end_ejection(member, now);
        }
        if was_ejected {
            self.handle.queue.call_all();
        }
        was_ejected
    }

    /// The endpoints that the next state may go on with: first those that had left,
    /// the longest gone first.
    pub(super) fn kept_endpoints(&self, now: Instant) -> impl Iterator<Item = &Endpoint> {
        let is_kept = move |e: &&Endpoint| !e.is_long_gone(now) || e.member.slot.in_flight() > 0;
        self.departed.iter().filter(is_kept).chain(&self.endpoints)
    }
}

/// True if the group asks that source at all. Agents come by themselves.
pub(super) fn is_asked(config: &GroupConfig, source: Source) -> bool {
    match source {
        Source::AgentCheck => config.sources.agent_check.is_some(),
        Source::HealthCheck => config.health_check.is_some(),
        Source::Agent | Source::Liveness | Source::Membership => true,
    }
}

/// A queue is not overloaded before it has been too long for this time: bursts are none.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);
