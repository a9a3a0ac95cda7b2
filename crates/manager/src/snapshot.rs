//! View that subsystems have of the manager: rules and groups, replaced as a whole.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use arc_swap::ArcSwap;
use evenkeel_control::queue::{
    Class, Policy, Queue, QueueInstruction, QueuePosition, QueueRefusal,
};
use evenkeel_control::shares_by_key::Share;
use evenkeel_core::engines::ShareCharge;
use evenkeel_core::group::{Group, GroupSettings, GroupState, Outcome, PickError, Ticket};
use evenkeel_core::latency::Remainder;
use evenkeel_core::signal::Signal;
use evenkeel_core::strategy::{Values, default_kind};
use evenkeel_core::time::Instant;
use evenkeel_tls::client::Client;

use crate::chooser::Chooser;
use crate::config::routing::find_by_host;
use crate::config::sources::Sources;
use crate::config::{
    MemberConfig, MemberProtocol, Rule, Section, Sections, SendProxy, SharedGroup, Source, UNNAMED,
};
use crate::counts::ReportCounts;
use crate::files::Files;
use crate::member_tls::Handshakes;
use crate::responses::ResponsePolicy;
use crate::routes::Routes;
use crate::sticky::Cookie;

/// Rules of one configuration, with live changes applied. Workers receive each new snapshot through a
/// `tokio::sync::watch` channel.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counts the configurations that this process has run; 0 is none yet.
    pub generation: u64,
    /// True if the configuration was read anew, at the start or at a reload: files that it names are read
    /// again then. If false, the configuration is what it was, and something else has changed (a member, a
    /// weight, a rule that was switched off). Contents that were read from files then stay in effect, so that
    /// such a change succeeds whatever has become of the files.
    pub reload: bool,
    /// The rules, enabled or not, in the order of the file.
    pub rules: Vec<Arc<RuleSnapshot>>,
    /// The groups of the file that subsystems name in their sections.
    pub groups: Vec<Arc<GroupSnapshot>>,
    /// Sections of the configuration for subsystems. Each subsystem knows its own.
    pub sections: Sections,
}

impl Snapshot {
    /// The section of that type.
    pub fn section<T: Section>(&self) -> Option<&T> {
        self.sections.get()
    }

    /// The group called `name`, if a subsystem names it.
    pub fn find_group(&self, name: &str) -> Option<&Arc<GroupSnapshot>> {
        self.groups.iter().find(|group| group.name == name)
    }
}

/// A group as the file has it, with its handle.
#[derive(Debug)]
pub struct GroupSnapshot {
    /// Name of the group.
    pub name: String,
    /// Handle of the group, the same over all snapshots in which the group exists.
    pub group: Arc<GroupHandle>,
    /// The group's members as the file has them, by name.
    pub members: HashMap<String, MemberConfig>,
    /// The program outside of the balancer that chooses members, if there is one.
    pub chooser: Option<Arc<Chooser>>,
}

/// A rule with the groups that serve it.
#[derive(Debug)]
pub struct RuleSnapshot {
    /// The rule as configured; `enabled` as it is now.
    pub rule: Rule,
    /// The rule's own group, for all clients and requests for which nothing else is said. A group without
    /// members if the rule names groups only for names or in routes.
    pub default_target: Target,
    /// Other groups of the rule, each once; then groups to whose members TLS of clients passes through although the rule
    /// ends TLS. Snapshots share those that stay as they are.
    pub other_targets: Vec<Arc<Target>>,
    /// Configurations of the other groups of `other_targets`, in their order; those to which TLS passes have none here.
    /// A target that is the same for another configuration of its group stays in place, so the list is replaced.
    pub(crate) target_configs: ArcSwap<Vec<SharedGroup>>,
    /// Groups of the rule by name.
    pub names: Names,
    /// Place of the group for clients whose name leads to no group; `None` if they are refused.
    pub unnamed: Option<usize>,
    /// Place of the first group to whose members TLS of clients passes through although the rule ends TLS: the groups from
    /// this place on are such. `None` if the rule treats all clients alike.
    pub first_passed: Option<usize>,
    /// Hosts that clients have to connect for; `None` if clients may send requests for all hosts.
    pub separate_hosts: Option<SeparateHosts>,
    /// Names of the cookies that bind clients in its groups: no member gets one.
    pub cookies: HashSet<Box<[u8]>>,
    /// Routes for requests.
    pub routes: Routes,
}

impl RuleSnapshot {
    /// A rule with no group but one.
    pub fn new(rule: Rule, own: Target) -> Self {
        let files = Files::default();
        let own = Target {
            policy: ResponsePolicy::new(rule.responses.clone(), &files),
            member_protocol: rule.http.member_protocol,
            ..own
        };
        RuleSnapshot {
            routes: Routes::new(&rule, &HashMap::new(), |_| own.policy.config(), &files),
            separate_hosts: SeparateHosts::new(&rule.http.separate_hosts),
            rule,
            default_target: own,
            other_targets: Vec::new(),
            target_configs: ArcSwap::default(),
            names: Names::default(),
            unnamed: Some(0),
            first_passed: None,
            cookies: HashSet::new(),
        }
    }

    /// The group at a place: 0 is its own.
    #[inline]
    pub fn target_at(&self, place: usize) -> &Target {
        let other = place
            .checked_sub(1)
            .and_then(|at| self.other_targets.get(at));
        other.map_or(&self.default_target, |target| target)
    }

    /// Returns the place of the group for clients that ask for a name; `None` if they are refused.
    pub fn find_place(&self, name: Option<&str>) -> Option<usize> {
        name.and_then(|name| self.names.find(name)).or(self.unnamed)
    }

    /// True if TLS of the clients of the group at a place passes through although the rule ends TLS.
    pub fn passes_through(&self, place: usize) -> bool {
        self.first_passed.is_some_and(|first| place >= first)
    }

    /// True if TLS of all clients ends at the balancer.
    pub fn ends_all_tls(&self) -> bool {
        self.rule.tls.is_some() && self.first_passed.is_none()
    }

    /// True if TLS of the clients of the group at a place ends at the balancer.
    pub fn ends_tls_at(&self, place: usize) -> bool {
        self.rule.tls.is_some() && !self.passes_through(place)
    }

    /// Returns all groups of the rule: those that serve its clients, and those that get copies of requests.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let own = (!self.rule.group.is_empty()).then_some(&self.default_target);
        let others = self.other_targets.iter().map(Arc::as_ref);
        own.into_iter().chain(others)
    }
}

/// A group that serves a rule, with what connections to its members need.
#[derive(Debug)]
pub struct Target {
    /// Handle of the group, the same over all snapshots in which the group exists.
    pub group: Arc<GroupHandle>,
    /// TLS client for the group's members, if they speak TLS.
    pub tls: Option<Arc<Client>>,
    /// Protocol of the members of an HTTP rule.
    pub member_protocol: MemberProtocol,
    /// Version of the PROXY header that tells members who the client is, if they are told.
    pub send_proxy: Option<SendProxy>,
    /// Source of the address that connections to members come from: the balancer or the client.
    pub source: Source,
    /// True if no request is for the group: the group gets copies, or is asked whether requests may pass.
    pub serves_nobody: bool,
    /// The load sources of the group: whoever reads responses sees the reports in them.
    pub sources: Sources,
    /// The cookie that binds its clients, if one does.
    pub cookie: Option<Arc<Cookie>>,
    /// The program outside of the balancer that chooses members, if there is one.
    pub chooser: Option<Arc<Chooser>>,
    /// Most bytes of a request's body that are read before a member is chosen, if the group's strategy reads them.
    pub max_prompt: Option<usize>,
    /// True if requests wait while no member is expected to send the first token in time.
    pub has_first_token_target: bool,
    /// Answers of the balancer's own and changes to responses: of the rule and the group.
    pub policy: ResponsePolicy,
}

impl Target {
    /// A group whose members need nothing but connections.
    pub fn new(group: Arc<GroupHandle>) -> Self {
        Target {
            group,
            tls: None,
            member_protocol: MemberProtocol::Http1,
            send_proxy: None,
            source: Source::Balancer,
            serves_nobody: false,
            sources: Sources::default(),
            cookie: None,
            chooser: None,
            max_prompt: None,
            has_first_token_target: false,
            policy: ResponsePolicy::default(),
        }
    }

    /// True if a connection to a member may serve several clients, one after the other. False if the member
    /// takes the connection for that of one client.
    #[inline]
    pub fn shares_connections(&self) -> bool {
        self.send_proxy.is_none() && self.source == Source::Balancer
    }

    /// Returns the name of the header field that binds clients to members, if a field does. Clients take over each value of
    /// the field, so a value of a member's own would end the binding.
    pub fn binding_field(&self) -> Option<&str> {
        let cookie = self.cookie.as_deref()?;
        cookie.is_header().then(|| cookie.name())
    }

    /// The number of what does the handshakes with its members; 0 without TLS.
    #[inline]
    pub fn tls_id(&self) -> u64 {
        self.tls.as_ref().map_or(0, |client| client.id)
    }

    /// True if nothing has changed since `old`.
    pub fn is_like(&self, old: &Self) -> bool {
        Arc::ptr_eq(&self.group, &old.group)
            && self.tls == old.tls
            && self.member_protocol == old.member_protocol
            && self.send_proxy == old.send_proxy
            && self.source == old.source
            && self.serves_nobody == old.serves_nobody
            && self.sources == old.sources
            && self.max_prompt == old.max_prompt
            && self.has_first_token_target == old.has_first_token_target
            && self.cookie.as_ref().map(Arc::as_ptr) == old.cookie.as_ref().map(Arc::as_ptr)
            && self.chooser.as_ref().map(Arc::as_ptr) == old.chooser.as_ref().map(Arc::as_ptr)
            && self.policy == old.policy
    }
}

/// Groups by the names that clients ask for: their places in a rule.
#[derive(Debug, Default)]
pub struct Names {
    exact: HashMap<Box<str>, usize>,
    /// Places of wildcards, by the part that follows the first dot.
    below: HashMap<Box<str>, usize>,
    /// Places of wildcards for all names below a domain, by the domain.
    deep: HashMap<Box<str>, usize>,
}

impl Names {
    /// Names with their groups. A name that begins with `*.` is for all right below the domain, one that begins with
    /// `**.` for all below the domain.
    pub fn new<'a>(names: impl IntoIterator<Item = (&'a str, usize)>) -> Self {
        let mut all = Names::default();
        for (name, place) in names {
            let name = name.to_ascii_lowercase();
            match (name.strip_prefix("*."), name.strip_prefix("**.")) {
                (Some(below), _) => all.below.insert(below.into(), place),
                (None, Some(deep)) => all.deep.insert(deep.into(), place),
                (None, None) => all.exact.insert(name.into(), place),
            };
        }
        all
    }

    /// True if there are no names.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.below.is_empty() && self.deep.is_empty()
    }

    /// The place of the group for `name`, which is in lower case: of that very name, or else of a wildcard, of which
    /// the one with the longest domain counts.
    pub fn find(&self, name: &str) -> Option<usize> {
        let below = || self.below.get(name.split_once('.')?.1);
        let deep = || {
            let mut dots = name.match_indices('.').filter(|_| !self.deep.is_empty());
            dots.find_map(|(at, _)| self.deep.get(name.get(at + 1..)?))
        };
        self.exact.get(name).or_else(below).or_else(deep).copied()
    }
}

/// Hosts that clients have to connect for.
#[derive(Debug)]
pub struct SeparateHosts {
    /// Numbers of the hosts in the list of the configuration.
    numbers: Names,
    /// Number of all other hosts; `None` if no client has to connect for them.
    others: Option<usize>,
}

impl SeparateHosts {
    /// Returns the hosts of a list of the configuration; `None` if they separate nothing.
    pub fn new(list: &[String]) -> Option<Self> {
        let numbered = || list.iter().map(String::as_str).zip(0..);
        let numbers = Names::new(numbered().filter(|(host, _)| *host != UNNAMED));
        let others = numbered().find(|(host, _)| *host == UNNAMED);
        let others = others.map(|(_, number)| number);
        (!numbers.is_empty()).then_some(SeparateHosts { numbers, others })
    }

    /// True if a request with this authority must come over another connection. `asked_name` is the name, in lower case,
    /// that the client of this connection has asked for. A client that has asked for no name may send all requests.
    pub fn is_misdirected(&self, asked_name: Option<&str>, authority: Option<&str>) -> bool {
        let Some(asked_name) = asked_name else {
            return false;
        };
        let wanted = find_by_host(authority, |host| self.numbers.find(host)).or(self.others);
        let connected = self.numbers.find(asked_name).or(self.others);
        wanted.is_some() && wanted != connected
    }
}

/// A group over time: the current snapshot, and what outlives snapshots.
#[derive(Debug)]
pub struct GroupHandle {
    /// Group that `pick` works on now.
    pub current: ArcSwap<Group>,
    /// State of the group, the same over all snapshots.
    pub state: Arc<GroupState>,
    /// Wakes those who listen when [`current`](Self::current) is another one.
    pub changed: Signal,
    /// Reports of the group's sources.
    pub reports: ReportCounts,
    /// Queue of requests that wait for a member.
    pub queue: Queue,
    /// Results of handshakes with the group's members.
    handshakes: OnceLock<Box<Handshakes>>,
}

impl GroupHandle {
    /// A handle of a group that nobody waits for.
    pub fn new(group: Arc<Group>, max_queue: usize) -> Self {
        GroupHandle {
            state: Arc::clone(group.state()),
            current: ArcSwap::new(group),
            changed: Signal::default(),
            reports: ReportCounts::default(),
            queue: Queue::new(Policy::with_limit(max_queue)),
            handshakes: OnceLock::new(),
        }
    }

    /// Returns a handle of a group without members.
    pub fn without_members() -> Self {
        let strategy = Values::defaults(default_kind());
        let settings = GroupSettings::default();
        let group = Group::new("", settings, &strategy, Vec::new(), Arc::default());
        GroupHandle::new(Arc::new(group), 0)
    }

    /// Returns the results of handshakes with the group's members.
    pub fn handshakes(&self) -> &Handshakes {
        self.handshakes.get_or_init(Box::default)
    }

    /// Returns the results of handshakes with the group's members, if there was one.
    pub fn known_handshakes(&self) -> Option<&Handshakes> {
        self.handshakes.get().map(|known| &**known)
    }

    /// Waits in the queue until `bind` finds a member; it is told how many wait before it. Everybody
    /// in the queue has a `bind` of its own: one may wait for a certain member, another one for any
    /// that it has not tried. `now` reads the clock, and `later` makes what is ready at a time: one that is held
    /// looks again then, though nothing has happened. Also returns what the request has taken from the share of its key.
    ///
    /// # Errors
    ///
    /// [`WaitFailure::NoMember`]: `bind` has found none worth waiting for. The others: the queue does
    /// not take it, or does not keep it.
    pub async fn wait_for<T, L: Future<Output = ()>>(
        &self,
        (class, share): (Class, Option<Share>),
        now: impl Fn() -> Instant,
        later: impl Fn(Instant) -> L,
        mut bind: impl FnMut(u32) -> Result<T, PickError>,
    ) -> Result<(T, Option<ShareCharge>), WaitFailure> {
        let mut place = QueuePosition::enter_with_share(&self.queue, class, share, now())?;
        // Seldom there, and who waits is to be small.
        let mut look: Option<Pin<Box<L>>> = None;
        let found = poll_fn(|cx| {
            loop {
                let Some(turn) = place.next_turn(now(), cx.waker()) else {
                    let is_time = look
                        .as_mut()
                        .is_some_and(|at| at.as_mut().poll(cx).is_ready());
                    if !is_time {
                        break Poll::Pending;
                    }
                    look = None;
                    place.look_again();
                    continue;
                };
                match turn {
                    QueueInstruction::Refused => break Poll::Ready(Err(WaitFailure::Overload)),
                    QueueInstruction::Look { ahead } => match place.look_for_room(|| bind(ahead)) {
                        None => {}
                        Some(Ok(found)) => break Poll::Ready(Ok(found)),
                        Some(Err(PickError::NoneEligible)) => {
                            break Poll::Ready(Err(WaitFailure::NoMember));
                        }
                        Some(Err(error)) => {
                            let looks_again = place.wait_on(error);
                            if looks_again && look.is_none() {
                                let now = now();
                                look = Some(Box::pin(later(now.after(place.patience(now)))));
                            }
                        }
                    },
                }
            }
        });
        let found = found.await?;
        let charge = place.leave_served(now());
        Ok((found, charge))
    }

    /// The member has begun to answer ([`Ticket::record_response`]): unless it is at its limit, it may have
    /// room for one that waits.
    #[inline]
    pub fn record_response(&self, ticket: &mut Ticket, outcome: Outcome, now: Instant) {
        self.head_arrived(ticket, outcome, Remainder::Nothing, now);
    }

    /// The head of a response is here ([`Ticket::head_arrived`]): the same.
    #[inline]
    pub fn head_arrived(
        &self,
        ticket: &mut Ticket,
        outcome: Outcome,
        remainder: Remainder,
        now: Instant,
    ) {
        self.answered(ticket, |ticket| {
            ticket.head_arrived(outcome, remainder, now)
        });
    }

    /// The first byte of a body is here ([`Ticket::first_byte_arrived`]): the same.
    pub fn first_byte_arrived(&self, ticket: &mut Ticket, now: Instant) {
        self.answered(ticket, |ticket| ticket.first_byte_arrived(now));
    }

    #[inline]
    fn answered(&self, ticket: &mut Ticket, answer: impl FnOnce(&mut Ticket)) {
        if self.queue.waiting() == 0 || ticket.is_at_limit() {
            answer(ticket);
        } else {
            self.queue.vacate(|| answer(ticket));
        }
    }

    /// A request is over ([`Ticket::finish`]): somebody who waits may have its place.
    #[inline]
    pub fn finish(&self, ticket: Ticket, outcome: Outcome, now: Instant) {
        self.queue.vacate(|| ticket.finish(outcome, now));
    }
}

/// Reason why a request that was to wait has got no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitFailure {
    /// No member may be used any more.
    #[error("no member of the group may be used")]
    NoMember,
    /// The queue is full.
    #[error("all members of the group are at their limits, and its queue is full")]
    QueueFull,
    /// The group is overloaded, and others come first.
    #[error("the group is overloaded")]
    Overload,
}

impl From<QueueRefusal> for WaitFailure {
    fn from(refused: QueueRefusal) -> Self {
        match refused {
            QueueRefusal::Full => WaitFailure::QueueFull,
            QueueRefusal::Overload => WaitFailure::Overload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_very_name_goes_before_a_wildcard_for_one_label() {
        let names = Names::new([
            ("*.Example.org", 1),
            ("www.example.org", 2),
            ("**.example.org", 3),
            ("**.org", 4),
        ]);
        let is = |name: &str, place: Option<usize>| assert_eq!(names.find(name), place, "{name}");
        is("www.example.org", Some(2));
        is("api.example.org", Some(1));
        is("a.b.example.org", Some(3));
        is("a.b.org", Some(4));
        is("example.org", Some(4));
        is("*.example.org", Some(1));
        is("", None);
    }

    #[test]
    fn a_request_for_a_host_needs_a_connection_for_its_entry() {
        let separate = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|host| (*host).to_owned()).collect();
            SeparateHosts::new(&list)
        };
        assert!(separate(&[]).is_none() && separate(&["*"]).is_none());
        let list = ["*", "b.example", "**.wide.example", "d.wide.example"];
        let (with_others, without) = (separate(&list).unwrap(), separate(&list[1..]).unwrap());
        // The asked name, the host of the request, and the two verdicts.
        for (asked, host, is_apart, is_apart_without_others) in [
            ("a.example", "a.example", false, false),
            ("a.example", "A.example:8443", false, false),
            ("a.example", "unknown.example", false, false),
            ("a.example", "b.example", true, true),
            ("b.example", "B.EXAMPLE:443", false, false),
            ("b.example", "b.example.", false, false),
            ("b.example", "a.example", true, false),
            ("c.wide.example", "x.y.wide.example", false, false),
            ("c.wide.example", "d.wide.example", true, true),
            ("d.wide.example", "c.wide.example", true, true),
            ("d.wide.example", "[::1]:443", true, false),
        ] {
            let told = with_others.is_misdirected(Some(asked), Some(host));
            assert_eq!(told, is_apart, "{asked} {host}");
            let told = without.is_misdirected(Some(asked), Some(host));
            assert_eq!(told, is_apart_without_others, "{asked} {host}");
            assert!(!with_others.is_misdirected(None, Some(host)), "{host}");
        }
        assert!(with_others.is_misdirected(Some("b.example"), None));
        assert!(!with_others.is_misdirected(Some("a.example"), None));
        assert!(!without.is_misdirected(Some("b.example"), None));
    }
}
