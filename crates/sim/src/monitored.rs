//! A web data centre whose balancer reads the load of its back-ends from outside, after
//! Vaidyanathan, Jin, Narravula and Panda, *Accurate Load Monitoring for Cluster-based Web
//! Data-Centers over RDMA-enabled Networks* (2005): documents of Zipf popularity, back-ends
//! with a cache, work on some of them that the balancer does not send, and one or more web
//! sites that share them all.
//!
//! Groups, strategies and locations are the real ones. What is modelled is the back-end (its
//! CPUs are shared equally by all tasks that want one) and what each way of monitoring sees
//! of it, and when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::server::{JobId, Server};
use super::{Discipline, nanos};
use evenkeel_core::group::{Group, GroupSettings, Outcome, Request, Ticket};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::Values;
use evenkeel_core::time::Instant;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// So many clients ask one thing after the other, without a pause.
    Closed(usize),
    /// So many requests per second, at random (Poisson), whatever the answers do.
    Open(f64),
}

/// A web site: a group of its own on the same back-ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Exponent of the popularity of its documents: that of rank i is proportional to
    /// 1 / i^alpha.
    pub alpha: f64,
    /// Who asks for them.
    pub arrivals: Arrivals,
}

/// Work at a back-end that the balancer does not send there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Background {
    /// Back-ends that have it.
    pub backends: usize,
    /// Tasks that want a CPU at each of them.
    pub tasks: usize,
    /// Mean times (exponential) for which it is there and not there; `None` is always.
    pub changes: Option<(Duration, Duration)>,
}

/// How the balancer knows the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Monitor {
    /// Not at all.
    None,
    /// A process at the back-end writes the CPU utilisation since its last turn into a page,
    /// which the balancer reads (ULM).
    User {
        /// Time between two turns of the process.
        update: Duration,
        /// How long it waits for a CPU when its turn has come, for each task above the
        /// number of CPUs, per CPU: a random time, this on average.
        wait: Duration,
    },
    /// The kernel's CPU utilisation since the balancer's last reading, at the moment of
    /// reading (pKLM).
    KernelCpu,
    /// The kernel's composite load at the moment of reading (KLM): CPU utilisation, or the
    /// number of tasks per CPU that run or wait, averaged over about 100 ms, whichever is more.
    Kernel,
    /// The same with the number of tasks of the moment.
    KernelNow,
}

/// What is played.
#[derive(Clone, Debug)]
pub struct DataCentre {
    /// Back-ends, all alike.
    pub backends: usize,
    /// CPUs of each.
    pub cpus: usize,
    /// Web sites on them.
    pub sites: Vec<Site>,
    /// Documents of each site.
    pub documents: usize,
    /// Documents that a back-end keeps at hand, of all sites.
    pub cache: usize,
    /// CPU time of a request for a document that is at hand.
    pub hit: Duration,
    /// CPU time of the others: from `hit` on, this on average (exponential), always the same
    /// for the same document.
    pub miss: Duration,
    /// Other work.
    pub background: Background,
    /// How loads are known.
    pub monitor: Monitor,
    /// Time between two readings of a back-end's load.
    pub poll: Duration,
    /// Who decides.
    pub strategy: Values,
    /// How long it takes, of which the first tenth is not measured.
    pub length: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Balance {
    /// Requests per second that each site had served.
    pub throughput: Vec<f64>,
    /// Response times of all sites in nanoseconds, ascending.
    latencies: Vec<u64>,
    /// Variance between back-ends of their CPU utilisation, 0 to 1, over 50 ms: one for each
    /// 50 ms.
    pub variances: Vec<f64>,
}

impl Balance {
    /// The response time below which a share `q` (0 to 1) of the requests stayed.
    pub fn quantile(&self, q: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        let index = (q * last as f64).round() as usize;
        Duration::from_nanos(self.latencies.get(index).copied().unwrap_or(0))
    }

    /// The mean of the variances.
    pub fn variance(&self) -> f64 {
        self.variances.iter().sum::<f64>() / self.variances.len().max(1) as f64
    }
}

/// Plays it with a seed.
pub fn play(centre: &DataCentre, seed: u64) -> Balance {
    let mut simulation = Simulation::new(centre, seed);
    while simulation.step() {}
    simulation.finish()
}

/// From the balancer to a back-end, or back: Ethernet and a system call or two.
const NETWORK: f64 = 50e3;
/// Over which the kernel's average of tasks is taken (time constant), and the variance.
const AVERAGE: f64 = 100e6;
const VARIANCE_EVERY: f64 = 50e6;
const WARM_UP: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    Delivery(JobId),
    Completion { server: usize, version: u32 },
    Response(JobId),
    Background(usize),
    Update(usize),
    Written(usize),
    Poll(usize),
    Variance,
}

#[derive(Debug)]
struct Job {
    site: usize,
    arrived: u64,
    document: usize,
    server: usize,
    ticket: Option<Ticket>,
}

/// A back-end, and what has been read there.
#[derive(Debug)]
struct Backend {
    server: Server,
    /// Whether the other work is there.
    is_loaded: bool,
    cache: Cache,
    location: Arc<Location>,
    /// The kernel's average number of tasks, and when it was brought up to date.
    average: (f64, u64),
    /// Busy time and the time itself, at the last update, reading, and interval of variance.
    updated: (f64, u64),
    polled: (f64, u64),
    counted: f64,
    /// What the page says.
    page: Option<f64>,
}

#[derive(Debug)]
struct Simulation<'a> {
    centre: &'a DataCentre,
    /// The same for every strategy and monitor: documents, and the other work.
    world: fastrand::Rng,
    decisions: fastrand::Rng,
    monitors: fastrand::Rng,
    now: u64,
    end: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    backends: Vec<Backend>,
    groups: Vec<Group>,
    popularity: Vec<Vec<f64>>,
    costs: Vec<Vec<f64>>,
    jobs: Vec<Job>,
    free_jobs: Vec<JobId>,
    served: Vec<usize>,
    balance: Balance,
}

impl<'a> Simulation<'a> {
    fn new(centre: &'a DataCentre, seed: u64) -> Self {
        let backend = |index: usize| Backend {
            server: Server::new(Discipline::Sharing, centre.cpus, 1.0, 0.0),
            is_loaded: false,
            cache: Cache::new(centre.cache),
            location: Arc::new(Location::new(format!("b{index}"))),
            average: (0.0, 0),
            updated: (0.0, 0),
            polled: (0.0, 0),
            counted: 0.0,
            page: None,
        };
        let backends: Vec<_> = (0..centre.backends).map(backend).collect();
        let groups = centre.sites.iter().map(|_| group(centre, &backends));
        let mut documents = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let (hit, miss) = (nanos(centre.hit), nanos(centre.miss));
        let mut cost = || hit - (miss - hit) * (1.0 - documents.f64()).ln();
        let mut costs = || (0..centre.documents).map(|_| cost()).collect();
        let mut simulation = Simulation {
            centre,
            world: fastrand::Rng::with_seed(seed),
            decisions: fastrand::Rng::with_seed(!seed),
            monitors: fastrand::Rng::with_seed(seed.rotate_left(32)),
            // Not at zero, which slots use for "never".
            now: 1,
            end: nanos(centre.length) as u64,
            events: BinaryHeap::new(),
            scheduled: 0,
            groups: groups.collect(),
            backends,
            popularity: centre.sites.iter().map(|site| zipf(centre, site)).collect(),
            costs: centre.sites.iter().map(|_| costs()).collect(),
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            served: vec![0; centre.sites.len()],
            balance: Balance::default(),
        };
        simulation.begin();
        simulation
    }

    fn begin(&mut self) {
        let centre = self.centre;
        for (site, arrivals) in centre.sites.iter().map(|site| site.arrivals).enumerate() {
            let first = match arrivals {
                Arrivals::Closed(clients) => clients,
                Arrivals::Open(_) => 1,
            };
            (0..first).for_each(|_| self.schedule(0.0, Event::Arrival(site)));
        }
        for backend in 0..centre.background.backends.min(centre.backends) {
            self.schedule(0.0, Event::Background(backend));
        }
        for backend in 0..centre.backends {
            if let Monitor::User { update, .. } = centre.monitor {
                let phase = self.monitors.f64() * nanos(update);
                self.schedule(phase, Event::Update(backend));
            }
            if centre.monitor != Monitor::None {
                let phase = self.monitors.f64() * nanos(centre.poll);
                self.schedule(phase, Event::Poll(backend));
            }
        }
        self.schedule(VARIANCE_EVERY, Event::Variance);
    }

    fn schedule(&mut self, after: f64, event: Event) {
        self.scheduled += 1;
        let at = self.now + after as u64;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    /// Plays one event; `false` at the end.
    fn step(&mut self) -> bool {
        let Some(Reverse((at, _, event))) = self.events.pop() else {
            return false;
        };
        if at > self.end {
            return false;
        }
        self.now = at;
        match event {
            Event::Arrival(site) => self.arrival(site),
            Event::Delivery(job) => self.delivery(job),
            Event::Completion { server, version } => self.completion(server, version),
            Event::Response(job) => self.response(job),
            Event::Background(backend) => self.background(backend),
            Event::Update(backend) => self.update(backend),
            Event::Written(backend) => self.written(backend),
            Event::Poll(backend) => self.poll(backend),
            Event::Variance => self.variance(),
        }
        true
    }

    fn arrival(&mut self, site: usize) {
        if let Arrivals::Open(rate) = self.centre.sites[site].arrivals {
            let gap = -(1.0 - self.world.f64()).ln() * 1e9 / rate;
            self.schedule(gap, Event::Arrival(site));
        }
        let luck = self.world.f64();
        let document = self.popularity[site].partition_point(|&below| below < luck);
        let request = Request::at(Instant::from_nanos(self.now));
        let Ok(ticket) = self.groups[site].pick(&request, &mut self.decisions) else {
            return;
        };
        let job = Job {
            site,
            arrived: self.now,
            document: document.min(self.centre.documents - 1),
            server: ticket.index(),
            ticket: Some(ticket),
        };
        let job = match self.free_jobs.pop() {
            Some(id) => {
                self.jobs[id] = job;
                id
            }
            None => {
                self.jobs.push(job);
                self.jobs.len() - 1
            }
        };
        self.schedule(NETWORK, Event::Delivery(job));
    }

    fn delivery(&mut self, id: JobId) {
        let &Job {
            site,
            document,
            server,
            ..
        } = &self.jobs[id];
        let backend = &mut self.backends[server];
        backend.average(self.now);
        let work = match backend.cache.has((site, document)) {
            true => nanos(self.centre.hit),
            false => self.costs[site][document],
        };
        backend.server.push(id, work, self.now);
        self.schedule_completion(server);
    }

    fn completion(&mut self, server: usize, version: u32) {
        let backend = &mut self.backends[server];
        if backend.server.version() != version {
            return;
        }
        backend.average(self.now);
        if let Some(job) = backend.server.complete(self.now) {
            self.schedule(NETWORK, Event::Response(job));
        }
        self.schedule_completion(server);
    }

    fn response(&mut self, id: JobId) {
        let now = Instant::from_nanos(self.now);
        let job = &mut self.jobs[id];
        if let Some(mut ticket) = job.ticket.take() {
            ticket.responded(Outcome::Success, now);
            ticket.finish(Outcome::Success, now);
        }
        let (site, took) = (job.site, self.now - job.arrived);
        self.free_jobs.push(id);
        if self.is_measuring() {
            self.served[site] += 1;
            self.balance.latencies.push(took);
        }
        if let Arrivals::Closed(_) = self.centre.sites[site].arrivals {
            self.arrival(site);
        }
    }

    fn is_measuring(&self) -> bool {
        self.now as f64 >= WARM_UP * self.end as f64
    }

    /// The other work of a back-end comes, or goes.
    fn background(&mut self, index: usize) {
        let Background { tasks, changes, .. } = self.centre.background;
        let backend = &mut self.backends[index];
        backend.average(self.now);
        backend.is_loaded = !backend.is_loaded;
        let comes = backend.is_loaded;
        let tasks = if comes { tasks as f64 } else { 0.0 };
        backend.server.set_background(tasks, self.now);
        if let Some((on, off)) = changes {
            let mean = nanos(if comes { on } else { off });
            let after = -(1.0 - self.world.f64()).ln() * mean;
            self.schedule(after, Event::Background(index));
        }
        self.schedule_completion(index);
    }

    /// The process at a back-end wants to write its page.
    fn update(&mut self, index: usize) {
        let Monitor::User { update, wait } = self.centre.monitor else {
            return;
        };
        let server = &self.backends[index].server;
        let waiting = (server.tasks() - server.slots() as f64).max(0.0);
        let mean = nanos(wait) * waiting / server.slots() as f64;
        let delay = -(1.0 - self.monitors.f64()).ln() * mean;
        self.schedule(delay, Event::Written(index));
        self.schedule(delay.max(1.0) + nanos(update), Event::Update(index));
    }

    fn written(&mut self, index: usize) {
        let backend = &mut self.backends[index];
        let busy = backend.server.busy(self.now);
        backend.page = utilization(&mut backend.updated, busy, self.now, self.centre.cpus);
        self.schedule_completion(index);
    }

    fn poll(&mut self, index: usize) {
        let backend = &mut self.backends[index];
        backend.average(self.now);
        let busy = backend.server.busy(self.now);
        let cpu = utilization(&mut backend.polled, busy, self.now, self.centre.cpus);
        let composite = |tasks: f64| {
            let per_cpu = tasks / self.centre.cpus as f64;
            Some((LoadId::COMPOSITE, per_cpu.max(cpu.unwrap_or(0.0))))
        };
        let seen = match self.centre.monitor {
            Monitor::None => None,
            Monitor::User { .. } => backend.page.map(|cpu| (LoadId::CPU, cpu)),
            Monitor::KernelCpu => cpu.map(|cpu| (LoadId::CPU, cpu)),
            Monitor::Kernel => composite(backend.average.0),
            Monitor::KernelNow => composite(backend.server.tasks()),
        };
        if let Some((id, value)) = seen
            && let Ok(value) = LoadValue::new(value)
        {
            let now = Instant::from_nanos(self.now);
            // Only one id is ever reported here, so there is room for it.
            let _ = backend.location.report(id, value, now);
        }
        self.schedule_completion(index);
        self.schedule(nanos(self.centre.poll), Event::Poll(index));
    }

    fn variance(&mut self) {
        self.schedule(VARIANCE_EVERY, Event::Variance);
        let mut shares = Vec::with_capacity(self.backends.len());
        for index in 0..self.backends.len() {
            let backend = &mut self.backends[index];
            let busy = backend.server.busy(self.now);
            let spent = busy - std::mem::replace(&mut backend.counted, busy);
            shares.push(spent / VARIANCE_EVERY / self.centre.cpus as f64);
            self.schedule_completion(index);
        }
        if self.is_measuring() {
            let count = shares.len() as f64;
            let mean = shares.iter().sum::<f64>() / count;
            let squares = shares.iter().map(|share| (share - mean).powi(2));
            self.balance.variances.push(squares.sum::<f64>() / count);
        }
    }

    fn schedule_completion(&mut self, server: usize) {
        let state = &self.backends[server].server;
        if let Some(at) = state.next_completion() {
            let version = state.version();
            let after = at.saturating_sub(self.now) as f64;
            self.schedule(after, Event::Completion { server, version });
        }
    }

    fn finish(mut self) -> Balance {
        let seconds = (1.0 - WARM_UP) * self.end as f64 / 1e9;
        let rate = |&served: &usize| served as f64 / seconds;
        self.balance.throughput = self.served.iter().map(rate).collect();
        self.balance.latencies.sort_unstable();
        self.balance
    }
}

impl Backend {
    /// Brings the average number of tasks up to date, before their number changes.
    fn average(&mut self, now: u64) {
        let (average, at) = &mut self.average;
        let tasks = self.server.tasks();
        let kept = (-((now - *at) as f64) / AVERAGE).exp();
        *average = tasks + (*average - tasks) * kept;
        *at = now;
    }
}

/// Share of the CPUs that was busy since the last time.
fn utilization(last: &mut (f64, u64), busy: f64, now: u64, cpus: usize) -> Option<f64> {
    let (then, at) = std::mem::replace(last, (busy, now));
    let elapsed = (now - at) as f64 * cpus as f64;
    (elapsed > 0.0).then(|| ((busy - then) / elapsed).clamp(0.0, 1.0))
}

/// Shares of popularity, summed up.
fn zipf(centre: &DataCentre, site: &Site) -> Vec<f64> {
    let weights = (1..=centre.documents).map(|rank| (rank as f64).powf(-site.alpha));
    let sums: Vec<f64> = weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let all = sums.last().copied().unwrap_or(1.0);
    sums.into_iter().map(|sum| sum / all).collect()
}

fn group(centre: &DataCentre, backends: &[Backend]) -> Group {
    let settings = GroupSettings {
        load_id: match centre.monitor {
            Monitor::Kernel | Monitor::KernelNow => LoadId::COMPOSITE,
            _ => LoadId::CPU,
        },
        ..GroupSettings::default()
    };
    let members = backends.iter().enumerate().map(|(index, backend)| Member {
        id: MemberId(index as u64),
        name: format!("b{index}").into(),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        max_connections: None,
        location: Arc::clone(&backend.location),
        slot: Arc::new(Slot::new(Weight::ONE)),
    });
    let members: Vec<Member> = members.collect();
    let strategy = (centre.strategy.kind().build)(&centre.strategy, &members);
    Group::new("site", settings, strategy, members, Arc::default())
}

/// Documents that were asked for most recently: when each was, last.
#[derive(Debug)]
struct Cache {
    room: usize,
    last: HashMap<(usize, usize), u64>,
    /// In the order of time; those that were asked for again since count for nothing.
    order: VecDeque<((usize, usize), u64)>,
    asked: u64,
}

impl Cache {
    fn new(room: usize) -> Self {
        Cache {
            room,
            last: HashMap::new(),
            order: VecDeque::new(),
            asked: 0,
        }
    }

    /// Whether a document is there; from now on it is.
    fn has(&mut self, document: (usize, usize)) -> bool {
        self.asked += 1;
        self.order.push_back((document, self.asked));
        let had = self.last.insert(document, self.asked).is_some();
        while self.last.len() > self.room
            && let Some((oldest, asked)) = self.order.pop_front()
        {
            if self.last.get(&oldest) == Some(&asked) {
                self.last.remove(&oldest);
            }
        }
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str) -> Values {
        Values::defaults(evenkeel_core::strategy::find(name).unwrap())
    }

    fn centre(strategy: &str, monitor: Monitor) -> DataCentre {
        DataCentre {
            backends: 8,
            cpus: 2,
            sites: vec![Site {
                alpha: 0.5,
                arrivals: Arrivals::Closed(48),
            }],
            documents: 2000,
            cache: 200,
            hit: Duration::from_millis(1),
            miss: Duration::from_millis(8),
            background: Background {
                backends: 2,
                tasks: 8,
                changes: None,
            },
            monitor,
            poll: Duration::from_millis(50),
            strategy: values(strategy),
            length: Duration::from_secs(20),
        }
    }

    #[test]
    fn the_cache_keeps_what_was_asked_for_last() {
        let mut cache = Cache::new(2);
        assert!(!cache.has((0, 1)));
        assert!(!cache.has((0, 2)));
        assert!(cache.has((0, 1)));
        assert!(!cache.has((1, 1)));
        assert!(cache.has((0, 1)));
        assert!(!cache.has((0, 2)));
    }

    #[test]
    fn without_other_work_and_cache_the_throughput_is_that_of_the_cpus() {
        let mut centre = centre("random", Monitor::None);
        centre.background.backends = 0;
        centre.cache = 0;
        centre.sites[0] = Site {
            alpha: 0.0,
            arrivals: Arrivals::Closed(400),
        };
        let throughput = play(&centre, 1).throughput[0];
        // 16 CPUs, 8 ms for each request.
        assert!((throughput / 2000.0 - 1.0).abs() < 0.05, "{throughput}");
    }

    #[test]
    fn the_same_seed_plays_the_same() {
        let centre = centre("k_least_loaded", Monitor::Kernel);
        let (one, other) = (play(&centre, 3), play(&centre, 3));
        assert_eq!(one.throughput, other.throughput);
        assert_eq!(one.latencies, other.latencies);
    }

    #[test]
    fn the_kernels_load_finds_the_back_ends_that_others_load() {
        let random = play(&centre("random", Monitor::None), 1).throughput[0];
        let kernel = play(&centre("adaptive", Monitor::Kernel), 1).throughput[0];
        assert!(kernel > 1.1 * random, "{kernel} against {random}");
    }
}
