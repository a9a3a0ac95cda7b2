//! Requests that arrive, and what they cost a member.

use std::collections::{HashMap, VecDeque};
use std::fmt;

pub use crate::engine::draw_exponential;

/// Cost and document of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestWork {
    /// Cost in nanoseconds at normal speed, unless the member has the document at hand.
    pub cost: f64,
    /// Number of the document, for members with a cache.
    pub document: usize,
}

/// Source of requests and their costs.
pub trait Work: fmt::Debug {
    /// Draws the next request.
    fn draw(&mut self, rng: &mut fastrand::Rng) -> RequestWork;

    /// Time from this request to the next one in nanoseconds, if the work knows the arrival times; `None` is the end.
    fn gap(&mut self) -> Option<f64> {
        None
    }

    /// Number of the client's connection of the last drawn request, if it is known, and true if the request is the last
    /// one of that connection.
    fn connection(&self) -> Option<(u64, bool)> {
        None
    }

    /// Announced cost of a request; 1 is the usual cost.
    fn announced(&self, ask: RequestWork) -> f64 {
        let _ = ask;
        1.0
    }

    /// Cost of a request at the member with this index, in nanoseconds at normal speed.
    fn cost(&mut self, ask: RequestWork, member: usize) -> f64 {
        let _ = member;
        ask.cost
    }

    /// Key for strategies that hash.
    fn key(&self, ask: RequestWork) -> Option<u64> {
        let _ = ask;
        None
    }

    /// The member of that index has died, with all that it remembered.
    fn forget(&mut self, member: usize) {
        let _ = member;
    }
}

/// Distribution of service times at normal speed. The mean is always 10 ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Service {
    /// Constant service time.
    Constant,
    /// Exponential distribution.
    Exponential,
    /// Two kinds: one request in ten costs twenty times the others.
    Mixed,
}

impl Service {
    /// The mean in nanoseconds.
    pub const MEAN: f64 = 10e6;
}

impl Work for Service {
    fn draw(&mut self, rng: &mut fastrand::Rng) -> RequestWork {
        let u = rng.f64();
        let cost = match self {
            Service::Constant => Self::MEAN,
            Service::Exponential => -Self::MEAN * libm::log(1.0 - u),
            // 0.9 * 1 + 0.1 * 20 = 2.9
            Service::Mixed if u < 0.1 => Self::MEAN * 20.0 / 2.9,
            Service::Mixed => Self::MEAN / 2.9,
        };
        RequestWork { cost, document: 0 }
    }

    fn announced(&self, ask: RequestWork) -> f64 {
        let usual = match self {
            Service::Mixed => Self::MEAN / 2.9,
            Service::Constant | Service::Exponential => Self::MEAN,
        };
        ask.cost / usual
    }
}

/// Popularity of things, in the order of their ranks.
#[derive(Clone, Debug)]
pub struct Popularity {
    /// Shares, summed up.
    sums: Vec<f64>,
}

impl Popularity {
    /// Popularity of `count` things, where the thing of rank i is as popular as 1 / i^`alpha` (Zipf).
    pub fn new(count: usize, alpha: f64) -> Self {
        let weights = (1..=count).map(|rank| libm::pow(rank as f64, -alpha));
        let mut sum = 0.0;
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        let mut sums: Vec<f64> = sums.collect();
        sums.iter_mut().for_each(|part| *part /= sum);
        Popularity { sums }
    }

    /// Draws a thing by chance: returns its rank, from 0.
    pub fn draw_rank(&self, rng: &mut fastrand::Rng) -> usize {
        let luck = rng.f64();
        let rank = self.sums.partition_point(|&below| below < luck);
        rank.min(self.sums.len() - 1)
    }
}

/// Documents that were asked for most recently: when each was, last.
#[derive(Debug)]
pub struct Cache {
    room: usize,
    last: HashMap<(usize, usize), u64>,
    /// In the order of time; those that were asked for again since count for nothing.
    order: VecDeque<((usize, usize), u64)>,
    asked: u64,
}

impl Cache {
    /// An empty cache with room for this many documents.
    pub fn new(room: usize) -> Self {
        Cache {
            room,
            last: HashMap::new(),
            order: VecDeque::new(),
            asked: 0,
        }
    }

    /// Uses a document; returns true if it was there already.
    pub fn check_and_insert(&mut self, document: (usize, usize)) -> bool {
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

/// Process of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Closed loop: number of clients that send one request after the other, without a pause.
    Closed(usize),
    /// Open loop: requests per second, at random (Poisson), independent of the answers.
    Open(f64),
    /// Random arrivals with bursts.
    Bursts(Bursts),
    /// Arrival times of the work ([`Work::gap`]).
    Listed,
}

/// Random arrivals with a temporarily increased rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// Per second, outside of bursts.
    pub rate: f64,
    /// Time from the start of a burst to the start of the next one, in nanoseconds.
    pub every: f64,
    /// Length of a burst, in nanoseconds.
    pub length: f64,
    /// Factor of the rate in a burst.
    pub factor: f64,
}

impl Bursts {
    /// Nanoseconds from `now` to the next arrival. Bursts come at the end of each period.
    pub fn next_gap(&self, now: u64, rng: &mut fastrand::Rng) -> f64 {
        // Number of arrivals that must be due: the sum of rate and time over the pieces of constant rate.
        let mut due = draw_exponential(1.0, rng);
        let mut at = now as f64;
        let calm = self.every - self.length;
        loop {
            let phase = at % self.every;
            let (rate, left) = match phase < calm {
                true => (self.rate, calm - phase),
                false => (self.rate * self.factor, self.every - phase),
            };
            // A piece of next to nothing would not move the clock.
            let left = left.max(1.0);
            let within = left * rate / 1e9;
            if due < within {
                return at - now as f64 + due * 1e9 / rate;
            }
            due -= within;
            at += left;
        }
    }
}

/// Sequence of a client's requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visit {
    /// Requests of a session.
    pub requests: usize,
    /// Mean think time before the next request and the next session (exponential), in nanoseconds.
    pub think: f64,
    /// True if the requests are those of a connection, which stays with its member.
    pub connection: bool,
}

impl Visit {
    /// A single request.
    pub const ONE: Visit = Visit {
        requests: 1,
        think: 0.0,
        connection: false,
    };
}

/// Requests for a group.
#[derive(Debug)]
pub struct Source {
    /// The name of the group.
    pub group: String,
    /// Process of arrivals.
    pub arrivals: Arrivals,
    /// Sequence of requests of each client that arrives.
    pub visit: Visit,
    /// Source of requests and their costs.
    pub work: Box<dyn Work>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_what_was_asked_for_last() {
        let mut cache = Cache::new(2);
        assert!(!cache.check_and_insert((0, 1)));
        assert!(!cache.check_and_insert((0, 2)));
        assert!(cache.check_and_insert((0, 1)));
        assert!(!cache.check_and_insert((1, 1)));
        assert!(cache.check_and_insert((0, 1)));
        assert!(!cache.check_and_insert((0, 2)));
    }
}
