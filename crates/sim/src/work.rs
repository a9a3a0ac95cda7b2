//! Requests that arrive, and what they cost a member.

use std::collections::{HashMap, VecDeque};
use std::fmt;

pub use crate::engine::exponential;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// What it costs in nanoseconds at normal speed, unless the member knows the answer.
    pub cost: f64,
    /// What it is about, for members that may know the answer.
    pub document: usize,
}

/// What requests ask for, and what that costs.
pub trait Work: fmt::Debug {
    /// What the next request asks for.
    fn draw(&mut self, rng: &mut fastrand::Rng) -> Ask;

    /// Time from this request to the next one in nanoseconds, where the work knows when they
    /// come; `None` is the end.
    fn gap(&mut self) -> Option<f64> {
        None
    }

    /// Over which connection of a client the request comes that was drawn last, where that is known, and
    /// whether it is the last one there.
    fn connection(&self) -> Option<(u64, bool)> {
        None
    }

    /// What a request says that it costs, where 1 is a usual one.
    fn announced(&self, ask: Ask) -> f64 {
        let _ = ask;
        1.0
    }

    /// What it costs when it has come to the member of that index, in nanoseconds at normal
    /// speed.
    fn cost(&mut self, ask: Ask, member: usize) -> f64 {
        let _ = member;
        ask.cost
    }

    /// What the strategies that hash go by.
    fn key(&self, ask: Ask) -> Option<u64> {
        let _ = ask;
        None
    }

    /// The member of that index has died, with all that it remembered.
    fn forget(&mut self, member: usize) {
        let _ = member;
    }
}

/// How long requests take to serve at normal speed. The mean is always 10 ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Service {
    /// All the same.
    Constant,
    /// Exponential.
    Exponential,
    /// One request in ten costs twenty times the others.
    Mixed,
}

impl Service {
    /// The mean in nanoseconds.
    pub const MEAN: f64 = 10e6;
}

impl Work for Service {
    fn draw(&mut self, rng: &mut fastrand::Rng) -> Ask {
        let u = rng.f64();
        let cost = match self {
            Service::Constant => Self::MEAN,
            Service::Exponential => -Self::MEAN * libm::log(1.0 - u),
            // 0.9 * 1 + 0.1 * 20 = 2.9
            Service::Mixed if u < 0.1 => Self::MEAN * 20.0 / 2.9,
            Service::Mixed => Self::MEAN / 2.9,
        };
        Ask { cost, document: 0 }
    }

    fn announced(&self, ask: Ask) -> f64 {
        let usual = match self {
            Service::Mixed => Self::MEAN / 2.9,
            Service::Constant | Service::Exponential => Self::MEAN,
        };
        ask.cost / usual
    }
}

/// How popular things are, in the order of their ranks.
#[derive(Clone, Debug)]
pub struct Popularity {
    /// Shares, summed up.
    sums: Vec<f64>,
}

impl Popularity {
    /// That of `count` things, of which that of rank i is as popular as 1 / i^`alpha` (Zipf).
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

    /// One of them, by chance: its rank, from 0.
    pub fn draw(&self, rng: &mut fastrand::Rng) -> usize {
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

    /// Whether a document is there; from now on it is.
    pub fn has(&mut self, document: (usize, usize)) -> bool {
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

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// So many clients ask one thing after the other, without a pause.
    Closed(usize),
    /// So many requests per second, at random (Poisson), whatever the answers do.
    Open(f64),
    /// So many requests per second at random, and more at times.
    Bursts(Bursts),
    /// As the work says ([`Work::gap`]).
    Listed,
}

/// Arrivals at random whose rate is another one at times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// Per second, outside of bursts.
    pub rate: f64,
    /// From the start of one to that of the next, in nanoseconds.
    pub every: f64,
    /// How long one lasts, in nanoseconds.
    pub length: f64,
    /// How many times more arrive in one.
    pub factor: f64,
}

impl Bursts {
    /// Nanoseconds from `now` to the next arrival. Bursts come at the end of each period.
    pub fn gap(&self, now: u64, rng: &mut fastrand::Rng) -> f64 {
        // So many arrivals must be due: the sum of rate and time over the pieces of constant rate.
        let mut due = exponential(1.0, rng);
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

/// What clients do one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visit {
    /// Requests of a session.
    pub requests: usize,
    /// Mean time before the next request and the next session (exponential), in nanoseconds.
    pub think: f64,
    /// Whether they are those of a connection, which stays with its member.
    pub connection: bool,
}

impl Visit {
    /// One request.
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
    /// How they come.
    pub arrivals: Arrivals,
    /// What clients do who have come.
    pub visit: Visit,
    /// What they ask for.
    pub work: Box<dyn Work>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
