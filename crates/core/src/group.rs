//! Object groups: an immutable snapshot of members with the strategy that picks.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::load::LoadId;
use crate::member::{Member, MemberId, Reason, Slot};
use crate::strategy::Strategy;
use crate::time::Instant;
use crate::trace::Trace;

/// When the strategy is asked (Schmidt et al., "Evaluating the performance of
/// middleware load balancing strategies", 2004).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Once, when the client's connection starts.
    PerSession,
    /// For every request.
    #[default]
    PerRequest,
    /// Once, and again only when the bound location is under a load alert
    /// (non-adaptive: again after a fixed interval).
    OnDemand,
}

/// What a group needs to know beside its members. Parsed by the configuration;
/// every field has a default.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// When the strategy is asked.
    pub granularity: Granularity,
    /// Whether load reports and alerts take part in decisions. If not, the strategy
    /// sees only what needs no feedback, and on demand rebinds at a fixed interval.
    pub adaptive: bool,
    /// Non-adaptive on demand: how long a binding lasts.
    pub rebind_interval: Duration,
    /// Which reported load strategies look at.
    pub load_id: LoadId,
    /// A report older than this is unknown.
    pub load_max_age: Duration,
    /// How long a member that is new, or back, takes to get its full share.
    pub slow_start: Duration,
    /// Share of members that may be down or ejected; above it all are routed to.
    pub panic_threshold: f32,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings {
            granularity: Granularity::PerRequest,
            adaptive: true,
            rebind_interval: Duration::from_secs(60),
            load_id: LoadId::CPU,
            load_max_age: Duration::from_secs(15),
            slow_start: Duration::from_secs(10),
            panic_threshold: 0.5,
        }
    }
}

/// What the decision may know about the request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The current instant.
    pub now: Instant,
    /// The client, for strategies that hash it.
    pub client: Option<IpAddr>,
    /// Members that were tried for this request already and must not be tried again.
    pub tried: &'a [MemberId],
}

impl Request<'_> {
    /// A request about which nothing else is known.
    pub fn at(now: Instant) -> Self {
        Request {
            now,
            client: None,
            tried: &[],
        }
    }
}

/// Why no member was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// The group has no member that may be used (none at all, all drained, or all
    /// tried already).
    #[error("no member of the group may be used")]
    NoneEligible,
    /// Members may be used, but all are at their connection limit: wait or refuse.
    #[error("all members of the group are at their connection limit")]
    AllFull,
}

/// An immutable snapshot of a group. Slots and locations are shared between
/// snapshots; everything else is replaced as a whole.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    settings: GroupSettings,
    strategy: Box<dyn Strategy>,
    members: Box<[Member]>,
}

impl Group {
    /// Puts a snapshot together.
    pub fn new(
        name: impl Into<Arc<str>>,
        settings: GroupSettings,
        strategy: Box<dyn Strategy>,
        members: Vec<Member>,
    ) -> Self {
        Group {
            name: name.into(),
            settings,
            strategy,
            members: members.into_boxed_slice(),
        }
    }

    /// The group's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The settings of this snapshot.
    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    /// The strategy of this snapshot.
    pub fn strategy(&self) -> &dyn Strategy {
        &*self.strategy
    }

    /// All members, eligible or not.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Chooses a member without binding to it: what [`Group::pick`] would do, and what
    /// `explain` shows.
    pub fn choose(
        &self,
        request: &Request<'_>,
        rng: &mut fastrand::Rng,
        trace: &mut Trace,
    ) -> Result<usize, PickError> {
        let view = View {
            group: self,
            request,
        };
        self.strategy
            .pick(&view, rng, trace)
            .ok_or(PickError::NoneEligible)
    }

    /// Chooses a member and binds a request to it.
    pub fn pick(
        &self,
        request: &Request<'_>,
        rng: &mut fastrand::Rng,
    ) -> Result<Ticket, PickError> {
        let index = self.choose(request, rng, &mut Trace::off())?;
        self.bind(index, request.now).ok_or(PickError::NoneEligible)
    }

    /// Binds a request to the member at `index`, whatever the strategy thinks of it.
    pub fn bind(&self, index: usize, now: Instant) -> Option<Ticket> {
        let member = self.members.get(index)?;
        member.slot.begin();
        Some(Ticket {
            slot: Arc::clone(&member.slot),
            index,
            started: now,
        })
    }
}

/// What a strategy sees: the members as they are for one request.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    group: &'a Group,
    request: &'a Request<'a>,
}

impl<'a> View<'a> {
    /// The request to decide about.
    pub fn request(&self) -> &'a Request<'a> {
        self.request
    }

    /// All members, eligible or not.
    pub fn members(&self) -> &'a [Member] {
        &self.group.members
    }

    /// Whether the member at `index` may be picked.
    #[inline]
    pub fn is_eligible(&self, index: usize) -> bool {
        let member = &self.group.members[index];
        member.slot.reasons() == 0
            && member.slot.weight() > 0.0
            && !self.request.tried.contains(&member.id)
    }

    /// Current weight of the member at `index`, with slow start applied.
    #[inline]
    pub fn weight(&self, index: usize) -> f32 {
        self.group.members[index].slot.weight()
    }
}

/// How a request ended, as far as it tells about the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered.
    Success,
    /// The member failed: connection refused or reset, timeout, garbage, 5xx.
    Failure,
    /// The member is alive and says that it has too much to do (429, 503), and
    /// perhaps for how long.
    Overloaded {
        /// What `Retry-After` said.
        retry_after: Option<Duration>,
    },
    /// Nothing is known: the client went away, or the proxy gave up.
    Cancelled,
}

/// A request that is bound to a member. Counts as in flight until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    slot: Arc<Slot>,
    index: usize,
    started: Instant,
}

impl Ticket {
    /// Index of the member in the snapshot that picked.
    pub fn index(&self) -> usize {
        self.index
    }

    /// When the request was bound.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The member has begun to answer (HTTP: response head complete; TCP: first byte).
    /// The time since [`Ticket::started`] is its latency: the rest of the response
    /// depends on the client's speed, too. Call it at most once.
    pub fn responded(&mut self, outcome: Outcome, now: Instant) {
        let _ = (outcome, now);
    }

    /// The request is over. Without a `responded` before, `outcome` is the member's.
    pub fn finish(self, outcome: Outcome, now: Instant) {
        let _ = (outcome, now);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.slot.end();
    }
}

const _: () = assert!(Reason::OVERRIDDEN_BY_PANIC != 0);
