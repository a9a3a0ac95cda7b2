//! State of a simulation: requests, balancers and their queues.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use evenkeel_control::budget::RetryBudget;
use evenkeel_control::health::Check;
use evenkeel_control::queue::QueuePosition;
use evenkeel_core::binding::Binding;
use evenkeel_core::group::{Group, Outcome, Ticket};
use evenkeel_core::member::MemberId;
use evenkeel_core::strategy::Values;
use evenkeel_manager::groups::Groups;
use evenkeel_manager::snapshot::GroupHandle;

use super::member::{Member, Said};
use super::outcomes::Outcomes;
use super::policy::Policy;
use crate::central::Central;
use crate::engine::Engine;
use crate::queue_line::Line;
use crate::scenario::Scenario;
use crate::server::JobId;
use crate::work::{RequestWork, Source};

/// Decision about where requests go.
#[derive(Clone, Debug)]
pub enum Dispatch {
    /// A strategy of the registry, one instance in each balancer.
    Strategy(Values),
    /// The strategy of the scenario's configuration.
    Configured,
    /// A central queue in front of all members that knows every speed and failure.
    Central {
        /// True if the queue also knows the cost of each request.
        knows_costs: bool,
    },
}

// Tags as wide as what follows: events are moved in whole words, which are faster read again.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum RequestEvent {
    /// A request of a source.
    Arrival(usize),
    /// The request is at its member.
    Delivery(JobId),
    /// The head of a stream is at the balancer.
    Head(JobId),
    /// A member is done with a request, unless its version has changed since.
    Completion {
        server: usize,
        version: u32,
    },
    /// The response, good or bad, has begun to arrive at the balancer.
    Response(JobId),
    SessionEnd(JobId),
    /// The client of a session has thought.
    Again(JobId),
    Sample,
    Change(usize),
    /// Of a member to a reader: those to the first one come first, by member.
    Report(usize),
    ReportArrival {
        index: usize,
        said: Said,
    },
    /// A process at a member wants to write down the load, and does.
    Update(usize),
    Written(usize),
    Variance,
    Round,
    /// A request that waits looks again, unless that was another time.
    Look {
        job: JobId,
        turn: usize,
    },
    /// A request has waited for as long as it may, unless that was another time.
    Expiry {
        job: JobId,
        turn: usize,
    },
    /// An active check begins, or has ended.
    Check(usize),
    Checked(usize),
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) source: usize,
    pub(super) balancer: usize,
    pub(super) arrived: u64,
    pub(super) ask: RequestWork,
    /// Over which connection of its client it came, and whether it is the last one there.
    pub(super) connection: Option<(u64, bool)>,
    pub(super) fails_below: f64,
    pub(super) server: usize,
    pub(super) outcome: Outcome,
    pub(super) ticket: Option<Ticket>,
    pub(super) measured: bool,
    /// Members at which the request was tried, in ascending order.
    pub(super) tried: Vec<MemberId>,
    /// True if the member has received nothing of the request.
    pub(super) refused: bool,
    /// Number of this wait among all waits, if the request waits.
    pub(super) turn: usize,
    /// Requests of its session that are still to come, and when its first one arrived.
    pub(super) left: usize,
    pub(super) began: u64,
}

/// A balancer: its groups, and the groups that serve requests, by source.
#[derive(Debug)]
pub(super) struct Balancer {
    pub(super) groups: Groups,
    pub(super) by_source: Vec<Arc<Group>>,
    /// The groups of `by_source`, with their handles.
    pub(super) handles: Vec<Arc<GroupHandle>>,
    /// Requests that wait, by source.
    pub(super) waiting: Vec<VecDeque<Waiting>>,
    /// Retry budgets, by source.
    pub(super) budgets: Vec<RetryBudget>,
    /// The members that connections are bound to, where the group binds for longer than a request.
    pub(super) bindings: HashMap<u64, Binding>,
    /// Requests in flight as last reported to the other balancers, by member.
    pub(super) told: Vec<u32>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) job: JobId,
    pub(super) place: QueuePosition<Line>,
    /// True if another look after a pause is scheduled.
    pub(super) will_look: bool,
}

/// A check of a member by a balancer, and its last result.
#[derive(Debug)]
pub(super) struct Checking {
    pub(super) balancer: usize,
    pub(super) source: usize,
    pub(super) member: usize,
    /// Start of the check, in nanoseconds.
    pub(super) started: u64,
    pub(super) found: Check,
}

/// Streams of randomness: the world's is the same for every strategy.
#[derive(Debug)]
pub(super) struct Simulation<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) dispatch: &'a Dispatch,
    pub(super) world: fastrand::Rng,
    pub(super) decisions: fastrand::Rng,
    pub(super) checks: fastrand::Rng,
    pub(super) engine: Engine<RequestEvent>,
    pub(super) members: Vec<Member>,
    pub(super) checkings: Vec<Checking>,
    pub(super) sources: Vec<Source>,
    /// By source.
    pub(super) policies: Vec<Policy>,
    pub(super) balancers: Vec<Balancer>,
    pub(super) central: Central,
    pub(super) jobs: Vec<Job>,
    pub(super) free_jobs: Vec<JobId>,
    /// Time of the last arrival, in nanoseconds.
    pub(super) last_arrival: u64,
    pub(super) outcomes: Outcomes,
}
