//! A web data centre whose balancer reads the load of its back-ends from outside, after
//! Vaidyanathan, Jin, Narravula and Panda, *Accurate Load Monitoring for Cluster-based Web
//! Data-Centers over RDMA-enabled Networks* (2005): documents of Zipf popularity, back-ends
//! with a cache, work on some of them that the balancer does not send, and one or more web
//! sites that share them all.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::Values;

use crate::engine::{exponential, nanos};
use crate::requests::{self, Dispatch, Outcomes, WARM_UP};
use crate::scenario::{Change, MemberModel, Reading, Reports, Scenario, To};
use crate::server::Discipline;
pub use crate::work::Arrivals;
use crate::work::{Cache, Documents, Source, Visit};

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
#[derive(Clone, Debug)]
pub struct Balance {
    /// Requests per second that each site had served.
    pub throughput: Vec<f64>,
    outcomes: Outcomes,
}

impl Balance {
    /// The response time below which a share `q` (0 to 1) of the requests stayed.
    pub fn quantile(&self, q: f64) -> Duration {
        self.outcomes.quantile(q)
    }

    /// Variance between back-ends of their CPU utilisation, 0 to 1, over 50 ms: the mean.
    pub fn variance(&self) -> f64 {
        let all = &self.outcomes.variances;
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }
}

/// From the balancer to a back-end, or back: Ethernet and a system call or two.
const NETWORK: Duration = Duration::from_micros(50);

/// Over which the variance is taken.
const VARIANCE: Duration = Duration::from_millis(50);

/// Plays it with a seed.
pub fn play(centre: &DataCentre, seed: u64) -> Balance {
    let member = MemberModel {
        discipline: Discipline::Sharing,
        slots: centre.cpus,
        ..MemberModel::NORMAL
    };
    let (id, reading) = match centre.monitor {
        Monitor::None => (None, Reading::Now),
        Monitor::User { update, wait } => (Some(LoadId::CPU), Reading::Written { update, wait }),
        Monitor::KernelCpu => (Some(LoadId::CPU), Reading::Now),
        Monitor::Kernel => (Some(LoadId::COMPOSITE), Reading::Now),
        Monitor::KernelNow => (Some(LoadId::COMPOSITE), Reading::Moment),
    };
    let scenario = Scenario {
        members: vec![member; centre.backends],
        network: NETWORK,
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
    let costs = (nanos(centre.hit), nanos(centre.miss));
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
    let outcomes = requests::play(&scenario, &dispatch, sources.collect(), seed);
    let seconds = (1.0 - WARM_UP) * centre.length.as_secs_f64();
    let rate = |&served: &usize| served as f64 / seconds;
    Balance {
        throughput: outcomes.served.iter().map(rate).collect(),
        outcomes,
    }
}

/// When the other work of each back-end comes and goes.
fn background(centre: &DataCentre, rng: &mut fastrand::Rng) -> Vec<Change> {
    let Background {
        backends,
        tasks,
        changes,
    } = centre.background;
    let mut all = Vec::new();
    for member in 0..backends.min(centre.backends) {
        let (mut at, mut comes) = (Duration::ZERO, true);
        while at < centre.length {
            let to = To::Background(if comes { tasks as f64 } else { 0.0 });
            all.push(Change { at, member, to });
            let Some((on, off)) = changes else {
                break;
            };
            let mean = nanos(if comes { on } else { off });
            at += Duration::from_nanos(exponential(mean, rng) as u64);
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
        assert_eq!(one.outcomes.latencies, other.outcomes.latencies);
    }

    #[test]
    fn the_kernels_load_finds_the_back_ends_that_others_load() {
        let random = play(&centre("random", Monitor::None), 1).throughput[0];
        let kernel = play(&centre("adaptive", Monitor::Kernel), 1).throughput[0];
        assert!(kernel > 1.1 * random, "{kernel} against {random}");
    }
}
