//! Requests that arrive, and what they cost a member.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use crate::engine::exponential;

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
            Service::Exponential => -Self::MEAN * (1.0 - u).ln(),
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

/// Documents of Zipf popularity, of which each member has the last ones at hand.
#[derive(Debug)]
pub(crate) struct Documents {
    /// Shares of popularity, summed up.
    popularity: Vec<f64>,
    /// What each costs that is not at hand, and what all others do.
    costs: Vec<f64>,
    hit: f64,
    /// Of which site they are, and what the members have at hand, of all sites.
    site: usize,
    caches: Caches,
}

/// What each member has at hand.
pub(crate) type Caches = std::rc::Rc<std::cell::RefCell<Vec<Cache>>>;

impl Documents {
    /// So many documents of a site, that of rank i as popular as 1 / i^`alpha`. One costs `hit`
    /// where it is at hand, and otherwise always the same: more than `hit`, and `miss` on
    /// average (exponential).
    pub(crate) fn new(
        count: usize,
        alpha: f64,
        (hit, miss): (f64, f64),
        (site, caches): (usize, Caches),
        rng: &mut fastrand::Rng,
    ) -> Self {
        let weights = (1..=count).map(|rank| (rank as f64).powf(-alpha));
        let mut sum = 0.0;
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        let sums: Vec<f64> = sums.collect();
        Documents {
            popularity: sums.iter().map(|part| part / sum).collect(),
            costs: (0..count)
                .map(|_| hit + exponential(miss - hit, rng))
                .collect(),
            hit,
            site,
            caches,
        }
    }
}

impl Work for Documents {
    fn draw(&mut self, rng: &mut fastrand::Rng) -> Ask {
        let luck = rng.f64();
        let document = self.popularity.partition_point(|&below| below < luck);
        let document = document.min(self.costs.len() - 1);
        Ask {
            cost: self.costs[document],
            document,
        }
    }

    fn cost(&mut self, ask: Ask, member: usize) -> f64 {
        let known = self.caches.borrow_mut()[member].has((self.site, ask.document));
        if known { self.hit } else { ask.cost }
    }
}

/// Documents that were asked for most recently: when each was, last.
#[derive(Debug)]
pub(crate) struct Cache {
    room: usize,
    last: HashMap<(usize, usize), u64>,
    /// In the order of time; those that were asked for again since count for nothing.
    order: VecDeque<((usize, usize), u64)>,
    asked: u64,
}

impl Cache {
    pub(crate) fn new(room: usize) -> Self {
        Cache {
            room,
            last: HashMap::new(),
            order: VecDeque::new(),
            asked: 0,
        }
    }

    /// Whether a document is there; from now on it is.
    pub(crate) fn has(&mut self, document: (usize, usize)) -> bool {
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
}

/// Requests for a group.
#[derive(Debug)]
pub(crate) struct Source {
    /// The name of the group.
    pub(crate) group: String,
    /// How they come.
    pub(crate) arrivals: Arrivals,
    /// What they ask for.
    pub(crate) work: Box<dyn Work>,
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
