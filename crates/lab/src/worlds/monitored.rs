//! A web data centre whose balancers read the load of its back-ends from outside, after
//! Vaidyanathan, Jin, Narravula and Panda, *Accurate Load Monitoring for Cluster-based Web
//! Data-Centers over RDMA-enabled Networks* (2005): documents of Zipf popularity, back-ends
//! with a cache, work on some of them that no balancer sends, and one or more web
//! sites that share them all.

mod accuracy;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::Values;

pub use accuracy::{Accuracy, Errors, play_accuracy};

use evenkeel_sim::engine::{draw_exponential, duration_nanos};
use evenkeel_sim::requests::{self, Dispatch, Outcomes, WARM_UP};
use evenkeel_sim::scenario::{Change, ChangeEffect, MemberModel, Reading, Reports, Scenario};
use evenkeel_sim::server::Discipline;
pub use evenkeel_sim::work::Arrivals;
use evenkeel_sim::work::{Cache, Popularity, RequestWork, Source, Visit, Work};

/// A web site: a group of its own on the same back-ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Exponent of the popularity of the site's documents: the popularity of rank i is proportional to 1 / i^alpha.
    pub alpha: f64,
    /// Arrivals of the requests for these documents.
    pub arrivals: Arrivals,
}

/// Work at a back-end that no balancer sends there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Background {
    /// Back-ends that have it.
    pub backends: usize,
    /// Tasks that want a CPU at each of them.
    pub tasks: usize,
    /// Share of each of their CPUs that network work takes in interrupts, before all tasks, and that
    /// their CPU utilisation does not show.
    pub interrupts: f64,
    /// Mean times (exponential) for which it is there and not there; `None` is always.
    pub changes: Option<(Duration, Duration)>,
}

/// Way in which a balancer knows the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Monitor {
    /// Balancers do not know the load.
    None,
    /// A process at the back-end writes the CPU utilisation since its last turn into a page,
    /// which balancers read (ULM).
    User {
        /// Time between two turns of the process.
        update: Duration,
        /// Time that the process waits for a CPU when its turn has come, for each task above the
        /// number of CPUs, per CPU: a random time, this on average.
        wait: Duration,
        /// CPU time of a turn.
        cost: Duration,
    },
    /// The kernel's CPU utilisation at the moment of reading, over the last 10 to 20 ms (pKLM).
    KernelCpu,
    /// CPU utilisation as in [`Monitor::KernelCpu`], and the pending interrupts of the moment, per
    /// CPU (KLM as the paper has it).
    KernelPending,
    /// The kernel's composite load at the moment of reading (KLM): CPU utilisation, or what the tasks of the
    /// moment count, whichever is more, and the pending interrupts.
    Kernel,
    /// Composite load as in [`Monitor::Kernel`], with the number of tasks per CPU averaged over
    /// about 100 ms.
    KernelAverage,
}

/// Parameters of the world.
#[derive(Clone, Debug)]
pub struct DataCentre {
    /// Back-ends, all alike.
    pub backends: usize,
    /// CPUs of each.
    pub cpus: usize,
    /// Balancers in front of them, which know nothing of each other and read loads each for itself.
    pub front_ends: usize,
    /// Web sites on them.
    pub sites: Vec<Site>,
    /// Documents of each site.
    pub documents: usize,
    /// Documents that a back-end keeps at hand, of all sites.
    pub cache: usize,
    /// CPU time of a request for a document that is at hand.
    pub hit: Duration,
    /// CPU time of a request for another document: from `hit` on, with this mean (exponential), always the same for the
    /// same document.
    pub miss: Duration,
    /// Other work at the back-ends.
    pub background: Background,
    /// Way in which loads are known.
    pub monitor: Monitor,
    /// Time between two readings of a back-end's load by a balancer.
    pub poll: Duration,
    /// CPU time that a reading costs a back-end, where its kernel answers it.
    pub query: Duration,
    /// Strategy that chooses the back-end.
    pub strategy: Values,
    /// Duration of the run, of which the first tenth is not measured.
    pub length: Duration,
}

/// Results of the run.
#[derive(Clone, Debug)]
pub struct Balance {
    /// Requests per second that each site had served.
    pub throughput: Vec<f64>,
    /// CPUs that the other work had, of all back-ends, on average.
    pub others: f64,
    outcomes: Outcomes,
}

impl Balance {
    /// The response time below which a share `q` (0 to 1) of the requests stayed.
    pub fn quantile(&self, q: f64) -> Duration {
        self.outcomes.quantile(q)
    }

    /// Variance between back-ends of their CPU utilisation, 0 to 1, in each 50 ms after the warm-up.
    pub fn variances(&self) -> &[f64] {
        &self.outcomes.variances
    }

    /// The mean of these.
    pub fn mean_variance(&self) -> f64 {
        let all = &self.outcomes.variances;
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }
}

/// Documents of Zipf popularity, of which each member has the last ones at hand.
#[derive(Debug)]
struct Documents {
    popularity: Popularity,
    /// Cost of each document that is not at hand; a document at hand costs `hit`.
    costs: Vec<f64>,
    hit: f64,
    /// Site of the documents, and below it what the members have at hand, of all sites.
    site: usize,
    caches: Caches,
}

/// Documents that each member has at hand.
type Caches = Rc<RefCell<Vec<Cache>>>;

impl Documents {
    /// Draws `count` documents of a site, where the document of rank i is as popular as 1 / i^`alpha`. A document costs
    /// `hit` where it is at hand, and otherwise always the same: more than `hit`, and `miss` on average (exponential).
    fn new(
        count: usize,
        alpha: f64,
        (hit, miss): (f64, f64),
        (site, caches): (usize, Caches),
        rng: &mut fastrand::Rng,
    ) -> Self {
        Documents {
            popularity: Popularity::new(count, alpha),
            costs: (0..count)
                .map(|_| hit + draw_exponential(miss - hit, rng))
                .collect(),
            hit,
            site,
            caches,
        }
    }
}

impl Work for Documents {
    fn draw(&mut self, rng: &mut fastrand::Rng) -> RequestWork {
        let document = self.popularity.draw_rank(rng);
        RequestWork {
            cost: self.costs[document],
            document,
        }
    }

    fn cost(&mut self, ask: RequestWork, member: usize) -> f64 {
        let known = self.caches.borrow_mut()[member].check_and_insert((self.site, ask.document));
        if known { self.hit } else { ask.cost }
    }
}

/// Time of a message from the balancer to a back-end, or back: Ethernet and a system call or two.
const NETWORK: Duration = Duration::from_micros(50);

/// Time over which the variance is taken.
const VARIANCE: Duration = Duration::from_millis(50);

/// Plays it with a seed.
pub fn play_data_centre(centre: &DataCentre, seed: u64) -> Balance {
    let member = MemberModel {
        discipline: Discipline::Sharing,
        slots: centre.cpus,
        ..MemberModel::NORMAL
    };
    let (id, reading) = match centre.monitor {
        Monitor::None => (None, Reading::Now),
        Monitor::User { update, wait, .. } => {
            (Some(LoadId::CPU), Reading::Written { update, wait })
        }
        Monitor::KernelCpu => (Some(LoadId::CPU), Reading::Recent),
        Monitor::KernelPending => (Some(LoadId::COMPOSITE), Reading::Pending),
        Monitor::Kernel => (Some(LoadId::COMPOSITE), Reading::Moment),
        Monitor::KernelAverage => (Some(LoadId::COMPOSITE), Reading::Now),
    };
    let scenario = Scenario {
        members: vec![member; centre.backends],
        network: NETWORK,
        balancers: centre.front_ends,
        each_reads: true,
        reports: id.map(|id| Reports {
            id,
            interval: centre.poll,
            delay: Duration::ZERO,
            noise: 0.0,
        }),
        reading,
        changes: background(centre, &mut fastrand::Rng::with_seed(seed.rotate_left(32))),
        length: Some(centre.length),
        variance: Some(VARIANCE),
        ..Scenario::new("data centre", 0)
    };
    let mut documents = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let caches = (0..centre.backends).map(|_| Cache::new(centre.cache));
    let caches = Rc::new(RefCell::new(caches.collect()));
    let costs = (duration_nanos(centre.hit), duration_nanos(centre.miss));
    let sites = centre.sites.iter().enumerate();
    let sources = sites.map(|(index, site)| {
        let (count, at) = (centre.documents, (index, Rc::clone(&caches)));
        let work = Documents::new(count, site.alpha, costs, at, &mut documents);
        Source {
            group: format!("site{index}"),
            arrivals: site.arrivals,
            visit: Visit::ONE,
            work: Box::new(work),
        }
    });
    let dispatch = Dispatch::Strategy(centre.strategy.clone());
    let outcomes = requests::play_sources(&scenario, &dispatch, sources.collect(), seed);
    let seconds = (1.0 - WARM_UP) * centre.length.as_secs_f64();
    let rate = |&served: &usize| served as f64 / seconds;
    Balance {
        others: outcomes.others / duration_nanos(centre.length).max(1.0),
        throughput: outcomes.served.iter().map(rate).collect(),
        outcomes,
    }
}

/// Share of each CPU of a back-end that it takes to know its load.
fn monitoring(centre: &DataCentre) -> f64 {
    let (cost, every) = match centre.monitor {
        Monitor::None => return 0.0,
        Monitor::User { update, cost, .. } => (duration_nanos(cost), duration_nanos(update)),
        Monitor::KernelCpu | Monitor::KernelPending | Monitor::Kernel | Monitor::KernelAverage => (
            duration_nanos(centre.query) * centre.front_ends as f64,
            duration_nanos(centre.poll),
        ),
    };
    cost / every.max(1.0) / centre.cpus as f64
}

/// Returns the times at which the other work of each back-end comes and goes, and the load of
/// monitoring.
fn background(centre: &DataCentre, rng: &mut fastrand::Rng) -> Vec<Change> {
    let Background {
        backends,
        tasks,
        interrupts,
        changes,
    } = centre.background;
    let monitoring = monitoring(centre);
    let always = |member| Change {
        at: Duration::ZERO,
        member,
        to: ChangeEffect::Interrupts(monitoring),
    };
    let mut all: Vec<Change> = (0..centre.backends).map(always).collect();
    for member in 0..backends.min(centre.backends) {
        let (mut at, mut comes) = (Duration::ZERO, true);
        while at < centre.length {
            let to = ChangeEffect::Background(if comes { tasks as f64 } else { 0.0 });
            all.push(Change { at, member, to });
            let share = if comes { interrupts } else { 0.0 };
            let to = ChangeEffect::Interrupts(1.0 - (1.0 - monitoring) * (1.0 - share));
            all.push(Change { at, member, to });
            let Some((on, off)) = changes else {
                break;
            };
            let mean = duration_nanos(if comes { on } else { off });
            at += Duration::from_nanos(draw_exponential(mean, rng) as u64);
            comes = !comes;
        }
    }
    all
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
            front_ends: 1,
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
                interrupts: 0.0,
                changes: None,
            },
            monitor,
            poll: Duration::from_millis(50),
            query: Duration::ZERO,
            strategy: values(strategy),
            length: Duration::from_secs(20),
        }
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
        let throughput = play_data_centre(&centre, 1).throughput[0];
        // 16 CPUs, 8 ms for each request.
        assert!((throughput / 2000.0 - 1.0).abs() < 0.05, "{throughput}");
    }

    #[test]
    fn the_same_seed_plays_the_same() {
        let centre = centre("k_least_loaded", Monitor::Kernel);
        let (one, other) = (play_data_centre(&centre, 3), play_data_centre(&centre, 3));
        assert_eq!(one.throughput, other.throughput);
        assert_eq!(one.outcomes.latencies, other.outcomes.latencies);
    }

    #[test]
    fn pending_interrupts_show_what_the_utilisation_does_not() {
        let mut centre = centre("k_least_loaded", Monitor::KernelCpu);
        // Clients for half of the CPUs: work is done where it is not held up.
        centre.sites[0].arrivals = Arrivals::Closed(8);
        (centre.background.tasks, centre.background.interrupts) = (0, 0.7);
        centre.background.backends = 4;
        let of = |monitor| {
            let centre = DataCentre {
                monitor,
                ..centre.clone()
            };
            play_data_centre(&centre, 1).throughput[0]
        };
        let (cpu, pending) = (of(Monitor::KernelCpu), of(Monitor::KernelPending));
        assert!(pending > 1.1 * cpu, "{pending} against {cpu}");
    }

    #[test]
    fn front_ends_that_know_nothing_of_each_other_balance_by_the_load() {
        let front_ends = |centre: DataCentre| DataCentre {
            front_ends: 16,
            ..centre
        };
        let random = front_ends(centre("random", Monitor::None));
        let kernel = front_ends(centre("adaptive", Monitor::Kernel));
        let [random, kernel] = [random, kernel].map(|centre| play_data_centre(&centre, 1));
        assert!(kernel.throughput[0] > 1.1 * random.throughput[0]);
        // Eight tasks share two CPUs with the requests there.
        assert!(
            random.others > 1.0 && random.others < 4.0,
            "{}",
            random.others
        );
        assert!(kernel.others > random.others);
    }

    #[test]
    fn the_kernels_load_finds_the_back_ends_that_others_load() {
        let random = play_data_centre(&centre("random", Monitor::None), 1).throughput[0];
        let kernel = play_data_centre(&centre("adaptive", Monitor::Kernel), 1).throughput[0];
        assert!(kernel > 1.1 * random, "{kernel} against {random}");
    }
}
