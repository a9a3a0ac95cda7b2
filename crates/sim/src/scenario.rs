//! Scenarios: members, requests, and changes over time.

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_manager::config::Config;

use crate::server::Discipline;
use crate::work::Service;

/// A member at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberModel {
    /// Order in which the member works on several requests at once.
    pub discipline: Discipline,
    /// Requests that the member can work on at full speed.
    pub slots: usize,
    /// Slowness of the member, as a multiple of the normal one.
    pub slowness: f64,
    /// Share of the member's requests that fail at once (in 1 % of the mean service time).
    pub failing: f64,
    /// Weight, independent of the member's speed.
    pub weight: f64,
}

impl MemberModel {
    /// A healthy member with one worker.
    pub const NORMAL: MemberModel = MemberModel {
        discipline: Discipline::Fifo,
        slots: 1,
        slowness: 1.0,
        failing: 0.0,
        weight: 1.0,
    };
}

/// A change of a member during the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Time of the change.
    pub at: Duration,
    /// Index of the member.
    pub member: usize,
    /// New state of the member.
    pub to: ChangeEffect,
}

/// Effect of a [`Change`] on a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChangeEffect {
    /// The member is this many times slower than normal from now on.
    Slowness(f64),
    /// The member fails this share of its requests from now on.
    Failing(f64),
    /// Tasks of other programs want the member's slots all the time: their number.
    Background(f64),
    /// Interrupts take this share of each of the member's slots from now on, before all else. The member's utilisation
    /// does not show them.
    Interrupts(f64),
    /// The member reports this load from now on, independent of its real load.
    Load(f64),
    /// The member has died, with all requests that it was working on, and refuses connections (`true`); or it is back.
    Dead(bool),
}

/// Load reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reports {
    /// [`LoadId::IN_FLIGHT`]; [`LoadId::COMPOSITE`], which is the larger one of the share of
    /// time in which the member was busy and the tasks per slot, averaged over 100 ms, and the
    /// interrupts that are pending, per slot; or that share.
    pub id: LoadId,
    /// Time between two reports of a member.
    pub interval: Duration,
    /// Time that a report travels.
    pub delay: Duration,
    /// A value is off by up to this share of it, by chance.
    pub noise: f64,
}

/// Disturbance of load reports on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Way {
    /// Longest random time that a report takes beyond its delay.
    pub jitter: Duration,
    /// Share of the reports that get lost, at each balancer.
    pub loss: f64,
}

/// Longest interval at which readings of a kernel have the CPU load of the last 10 to 20 ms: that of the kernel load
/// monitor.
pub const RECENT_UP_TO: Duration = Duration::from_millis(250);

/// Way in which the reported load is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// The load at the moment of the report, where it is an average of the last 100 ms, or of the time since the last
    /// report.
    Now,
    /// The share of time in which the member was busy, as kernels tell it: in the last 10 to 20 ms if the interval is
    /// not longer than [`RECENT_UP_TO`], else since the last report.
    Recent,
    /// Like `Recent`, but the composite load is the one of kernels: the greater one of the share of time in which the
    /// member was busy and of the count of its tasks of the moment ([`of_queue`](evenkeel_core::load::of_queue)), and
    /// the interrupts that are pending.
    Moment,
    /// The share of time in which the member was busy, as `Recent` has it, and the interrupts that are pending, per
    /// slot.
    Pending,
    /// The share of time in which the member was busy, as a process there has written it down.
    Written {
        /// Time between two turns of the process.
        update: Duration,
        /// Time that the process waits for a slot when its turn has come, for each task above the number of slots,
        /// per slot: a random time with this mean.
        wait: Duration,
    },
}

/// A world in which a strategy is tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// A short name for tables.
    pub name: String,
    /// The members.
    pub members: Vec<MemberModel>,
    /// Distribution of the requests' costs.
    pub service: Service,
    /// Mean cost of a request in nanoseconds, for a central queue that does not know each cost.
    pub mean_cost: f64,
    /// True if requests announce their cost, and strategies count it.
    pub announced: bool,
    /// True if members send heads at once, and first bytes when the work is done.
    pub streams: bool,
    /// Offered load as a share of the load that all members can serve at the start, without the requests that failing
    /// members will fail.
    pub utilisation: f64,
    /// Clients that each send a request as soon as the one before is answered (closed loop); with 0, requests arrive at
    /// random at the rate of `utilisation`.
    pub clients: usize,
    /// Number of balancers that share the members. They do not communicate, unless `fleet_in_flight` is set.
    pub balancers: usize,
    /// True if balancers tell each other the number of their requests in flight.
    pub fleet_in_flight: bool,
    /// Time from balancer to member, and back.
    pub network: Duration,
    /// Mean time (exponential) that a request stays in flight after its response has
    /// begun, without costing the member anything; zero for HTTP requests.
    pub session: Duration,
    /// Load reports, if members send any.
    pub reports: Option<Reports>,
    /// True if each balancer reads the loads itself, at its own moments; else all get the same reports.
    pub each_reads: bool,
    /// Disturbance of load reports on their way.
    pub way: Way,
    /// Changes in the order of time.
    pub changes: Vec<Change>,
    /// Number of requests until the clock stops, if there is no `length`.
    pub requests: usize,
    /// True if the clock goes on after the last of `requests` until none is under way. Otherwise requests that are
    /// still at members then count nowhere, which favours whoever leaves many of them at a member that stands still.
    pub drains: bool,
    /// Time at which the clock stops.
    pub length: Option<Duration>,
    /// Way in which the members' load is measured.
    pub reading: Reading,
    /// Interval at which the variance of the members' utilisation is noted.
    pub variance: Option<Duration>,
    /// Configuration of the balancers; `None` means one group with all defaults and without limits. The first rule for
    /// the group sets how long requests wait and how often they are tried again; without a rule they wait without a
    /// limit, and are not tried again.
    pub config: Option<Config>,
    /// Name of the group that serves the requests.
    pub group: String,
    /// True if balancers control their groups between decisions: check, eject, alert, panic.
    pub control: bool,
    /// Number of members that each balancer may use; the others do not exist for it. The first balancer uses the first
    /// members, the second one the members after them, and so on around.
    pub view: Option<usize>,
    /// Interval at which members and requests are sampled.
    pub samples: Option<Duration>,
    /// Factor by which the number of requests that a member works on at once is learnt wrongly.
    pub wrong_caps: f32,
}

impl Scenario {
    /// Equal members with one worker each, 60 % utilisation, exponential service
    /// times, one balancer.
    pub fn new(name: impl Into<String>, members: usize) -> Self {
        Scenario {
            name: name.into(),
            members: vec![MemberModel::NORMAL; members],
            service: Service::Exponential,
            mean_cost: Service::MEAN,
            announced: false,
            streams: false,
            utilisation: 0.6,
            clients: 0,
            balancers: 1,
            fleet_in_flight: false,
            network: Duration::ZERO,
            session: Duration::ZERO,
            reports: None,
            each_reads: false,
            way: Way::default(),
            changes: Vec::new(),
            requests: 60_000,
            drains: false,
            length: None,
            reading: Reading::Now,
            variance: None,
            config: None,
            group: "app".into(),
            control: false,
            view: None,
            samples: None,
            wrong_caps: 1.0,
        }
    }

    /// A scenario with the members of a group of a configuration, which balancers control. `None` if there is no such
    /// group.
    pub fn for_group(config: Config, group: &str) -> Option<Self> {
        let mut groups = config.groups.iter();
        let members = groups.find(|of| of.name == group)?.members.len();
        Some(Scenario {
            config: Some(config),
            group: group.into(),
            control: true,
            ..Scenario::new(group, members)
        })
    }

    /// Sets the distribution of the requests' costs.
    #[must_use]
    pub fn with_service(mut self, service: Service) -> Self {
        self.service = service;
        self
    }

    /// Lets requests announce their cost.
    #[must_use]
    pub fn with_announced_costs(mut self) -> Self {
        self.announced = true;
        self
    }

    /// Sets the number of balancers.
    #[must_use]
    pub fn with_balancers(mut self, balancers: usize) -> Self {
        self.balancers = balancers;
        self
    }

    /// Sets the utilisation.
    #[must_use]
    pub fn with_utilisation(mut self, utilisation: f64) -> Self {
        self.utilisation = utilisation;
        self
    }

    /// Sets the number of clients in a closed loop.
    #[must_use]
    pub fn with_clients(mut self, clients: usize) -> Self {
        self.clients = clients;
        self
    }

    /// Sets the weights, one for each member.
    #[must_use]
    pub fn with_weights(mut self, weights: &[f64]) -> Self {
        for (member, &weight) in self.members.iter_mut().zip(weights) {
            member.weight = weight;
        }
        self
    }

    /// Sets the discipline and the number of slots of every member.
    #[must_use]
    pub fn with_discipline(mut self, discipline: Discipline, slots: usize) -> Self {
        for member in &mut self.members {
            (member.discipline, member.slots) = (discipline, slots);
        }
        self
    }

    /// Makes the first member this many times slower.
    #[must_use]
    pub fn one_slow(mut self, slowness: f64) -> Self {
        self.members[0].slowness = slowness;
        self
    }

    /// Makes the first member fail this share of its requests at once.
    #[must_use]
    pub fn one_failing(mut self, share: f64) -> Self {
        self.members[0].failing = share;
        self
    }

    /// Makes one member this many times slower, and another one every `period`.
    #[must_use]
    pub fn moving_slow(mut self, slowness: f64, period: Duration) -> Self {
        self.members[0].slowness = slowness;
        // Steps to members that are not neighbours, so that the order in the list cannot help.
        let step = (self.members.len() / 3).max(1) | 1;
        let mut slow = 0;
        let mut at = period;
        while at < self.duration() {
            let next = (slow + step) % self.members.len();
            for (member, to) in [(slow, 1.0), (next, slowness)] {
                let to = ChangeEffect::Slowness(to);
                self.changes.push(Change { at, member, to });
            }
            slow = next;
            at += period;
        }
        self
    }

    /// Requests per second that arrive.
    pub fn arrival_rate(&self) -> f64 {
        let speed =
            |member: &MemberModel| (1.0 - member.failing) * member.slots as f64 / member.slowness;
        let capacity: f64 = self.members.iter().map(speed).sum();
        self.utilisation * capacity / (Service::MEAN / 1e9)
    }

    /// About how long the scenario lasts.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.requests as f64 / self.arrival_rate())
    }
}
