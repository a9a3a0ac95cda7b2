//! What can be played: members, requests, and what changes over time.

use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_manager::config::Config;

use crate::server::Discipline;
use crate::work::Service;

/// One member at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberModel {
    /// How it works on several requests at once.
    pub discipline: Discipline,
    /// Requests that it can work on at full speed.
    pub slots: usize,
    /// How many times slower than normal it is.
    pub slowness: f64,
    /// Share of its requests that fail at once (in 1 % of the mean service time).
    pub failing: f64,
    /// Its weight, which says nothing about its speed.
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

/// Something that changes while the clock runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// When.
    pub at: Duration,
    /// Which member, by index.
    pub member: usize,
    /// What.
    pub to: To,
}

/// What a [`Change`] does to a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum To {
    /// It is so many times slower than normal from now on.
    Slowness(f64),
    /// It fails this share of its requests from now on.
    Failing(f64),
    /// So many tasks of somebody else want its slots all the time.
    Background(f64),
    /// Interrupts take this share of each of its slots from now on, before all else. Its utilisation does not
    /// show that.
    Interrupts(f64),
    /// It reports this load from now on, whatever it does.
    Load(f64),
    /// It has died, with all that it was working on, and refuses connections; or it is back.
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

/// What becomes of load reports on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Way {
    /// How much longer than its delay one may take, by chance.
    pub jitter: Duration,
    /// Share of those that get lost, at each balancer.
    pub loss: f64,
}

/// How a load is read that is reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// As it is at the moment of the report, where it is an average of the last 100 ms, or of
    /// the time since the last report.
    Now,
    /// The same, but the composite load is that of kernels: the share of time in which the member was busy,
    /// or what its tasks of the moment count ([`of_queue`](evenkeel_core::load::of_queue)), whichever is
    /// more, and the interrupts that are pending.
    Moment,
    /// The share of time in which the member was busy since the last report, and the interrupts that are
    /// pending, per slot.
    Pending,
    /// The share of time in which the member was busy, as a process there has written it down.
    Written {
        /// Time between two turns of the process.
        update: Duration,
        /// How long it waits for a slot when its turn has come, for each task above the
        /// number of slots, per slot: a random time, this on average.
        wait: Duration,
    },
}

/// A world for a strategy to live in.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// A short name for tables.
    pub name: String,
    /// The members.
    pub members: Vec<MemberModel>,
    /// What requests cost.
    pub service: Service,
    /// What they cost on average in nanoseconds, for the central queue that knows no more.
    pub mean_cost: f64,
    /// Whether they say so, and strategies count it.
    pub announced: bool,
    /// True if members send heads at once, and first bytes when the work is done.
    pub streams: bool,
    /// Offered load as a share of what all members can serve at the start, without
    /// what those that fail will fail.
    pub utilisation: f64,
    /// Clients that each send a request as soon as the one before is answered (closed loop);
    /// with 0, requests arrive by chance at a rate that is `utilisation`.
    pub clients: usize,
    /// Balancers that share the members and know nothing of each other.
    pub balancers: usize,
    /// Whether they tell each other how many of their requests are in flight.
    pub fleet_in_flight: bool,
    /// Time from balancer to member, and back.
    pub network: Duration,
    /// Mean time (exponential) that a request stays in flight after its response has
    /// begun, without costing the member anything; zero for HTTP requests.
    pub session: Duration,
    /// Load reports, if members send any.
    pub reports: Option<Reports>,
    /// Whether each balancer reads the loads for itself, at moments of its own; else all get the same reports.
    pub each_reads: bool,
    /// What becomes of reports on their way.
    pub way: Way,
    /// What changes, in the order of time.
    pub changes: Vec<Change>,
    /// Requests that arrive before the clock stops, where there is no `length`.
    pub requests: usize,
    /// When the clock stops.
    pub length: Option<Duration>,
    /// How what members report is read.
    pub reading: Reading,
    /// How often the variance of their utilisation is noted down.
    pub variance: Option<Duration>,
    /// What balancers are configured to do; `None` is one group with all defaults and without
    /// limits. How long requests wait, and how often they are tried again, is said by the first rule of
    /// their group; without one they wait for as long as it takes, and are not tried again.
    pub config: Option<Config>,
    /// The group that requests are for.
    pub group: String,
    /// Whether balancers control their groups between decisions: check, eject, alert, panic.
    pub control: bool,
    /// How many members each balancer may use, which others are not for it: the first one the first so
    /// many, the next one those after them, and so on around.
    pub view: Option<usize>,
    /// How often members and requests are noted down.
    pub samples: Option<Duration>,
    /// By which factor it is learnt wrongly how many requests a member works on at once.
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

    /// The same for the members of a group of a configuration, which balancers control.
    /// `None` if there is no such group.
    pub fn of(config: Config, group: &str) -> Option<Self> {
        let mut groups = config.groups.iter();
        let members = groups.find(|of| of.name == group)?.members.len();
        Some(Scenario {
            config: Some(config),
            group: group.into(),
            control: true,
            ..Scenario::new(group, members)
        })
    }

    /// The same with requests that cost this.
    #[must_use]
    pub fn service(mut self, service: Service) -> Self {
        self.service = service;
        self
    }

    /// The same with requests that say what they cost.
    #[must_use]
    pub fn announced(mut self) -> Self {
        self.announced = true;
        self
    }

    /// The same with so many balancers.
    #[must_use]
    pub fn balancers(mut self, balancers: usize) -> Self {
        self.balancers = balancers;
        self
    }

    /// The same at this utilisation.
    #[must_use]
    pub fn utilisation(mut self, utilisation: f64) -> Self {
        self.utilisation = utilisation;
        self
    }

    /// The same with so many clients in a closed loop.
    #[must_use]
    pub fn clients(mut self, clients: usize) -> Self {
        self.clients = clients;
        self
    }

    /// The same with these weights, one for each member.
    #[must_use]
    pub fn weights(mut self, weights: &[f64]) -> Self {
        for (member, &weight) in self.members.iter_mut().zip(weights) {
            member.weight = weight;
        }
        self
    }

    /// The same with every member working like this.
    #[must_use]
    pub fn working(mut self, discipline: Discipline, slots: usize) -> Self {
        for member in &mut self.members {
            (member.discipline, member.slots) = (discipline, slots);
        }
        self
    }

    /// The same with the first member so many times slower.
    #[must_use]
    pub fn one_slow(mut self, slowness: f64) -> Self {
        self.members[0].slowness = slowness;
        self
    }

    /// The same with the first member failing this share of its requests at once.
    #[must_use]
    pub fn one_failing(mut self, share: f64) -> Self {
        self.members[0].failing = share;
        self
    }

    /// The same with one member so many times slower, another one every `period`.
    #[must_use]
    pub fn moving_slow(mut self, slowness: f64, period: Duration) -> Self {
        self.members[0].slowness = slowness;
        // Steps that are not neighbours, so that order in the list cannot help.
        let step = (self.members.len() / 3).max(1) | 1;
        let mut slow = 0;
        let mut at = period;
        while at < self.duration() {
            let next = (slow + step) % self.members.len();
            for (member, to) in [(slow, 1.0), (next, slowness)] {
                let to = To::Slowness(to);
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
