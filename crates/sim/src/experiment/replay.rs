//! The requests of a log, to be played again: their arrival times, and the costs of such requests.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::work::{RequestWork, Work};

/// Parts of a log of which all runs but the first are put together.
pub(super) const PARTS: u64 = 20;

/// Steps in which a request's rank within its class is kept.
const FINE: usize = 1_000_000;

/// Times that a member must have had, so that its own ones are used.
const ENOUGH: usize = 30;

/// The time below which this share of them is.
fn at(times: &[f64], share: f64) -> f64 {
    let time = times.get((share * times.len() as f64) as usize);
    time.copied().unwrap_or(1.0)
}

/// A request of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    /// Arrival time, in nanoseconds from the first request.
    pub(super) at: u64,
    pub(super) class: usize,
    /// Number of the connection, if the log has it.
    pub(super) connection: Option<u64>,
}

/// Requests and service times learnt from a log.
#[derive(Debug)]
pub(super) struct Replay {
    /// Requests by time.
    pub(super) arrivals: Vec<Came>,
    /// Service times of each class in nanoseconds, at a member of normal speed, sorted. None is empty.
    pub(super) classes: Vec<Vec<f64>>,
    /// Service times at each member, sorted, by member and class; few or none if the member had few.
    pub(super) own: Vec<Vec<Vec<f64>>>,
    /// Time from the first request to the last.
    pub(super) length: u64,
}

impl Replay {
    /// The requests of a run. The first run has the log's arrivals; for other runs parts of the log are drawn with
    /// replacement, so that runs differ as logs of other days might (a bootstrap over blocks: Künsch, The Jackknife and
    /// the Bootstrap for General Stationary Observations, 1989).
    pub(super) fn work(self: &Arc<Self>, seed: u64, is_first: bool) -> Played {
        let mut times = Vec::new();
        if is_first {
            times.clone_from(&self.arrivals);
        } else {
            let mut rng = fastrand::Rng::with_seed(seed ^ 0x0106_b007);
            let part = (self.length / PARTS).max(1);
            for turn in 0..PARTS {
                let start = (rng.f64() * PARTS as f64) as u64 * part;
                let from = self.arrivals.partition_point(|came| came.at < start);
                let to = self.arrivals.partition_point(|came| came.at < start + part);
                let drawn = self.arrivals.get(from..to).unwrap_or_default().iter();
                times.extend(drawn.map(|came| Came {
                    at: came.at - start + turn * part,
                    ..*came
                }));
            }
        }
        let mut seen = HashSet::new();
        let mut is_last = |came: &Came| came.connection.is_some_and(|of| seen.insert(of));
        let mut lasts: Vec<bool> = times.iter().rev().map(&mut is_last).collect();
        lasts.reverse();
        Played {
            of: Arc::clone(self),
            times: times.into_iter().zip(lasts).collect(),
            class: 0,
            connection: None,
        }
    }
}

/// Requests of a log, on their way.
#[derive(Debug)]
pub(super) struct Played {
    of: Arc<Replay>,
    /// With whether it is the last one of its connection.
    times: VecDeque<(Came, bool)>,
    /// Of the request that comes now.
    class: usize,
    connection: Option<(u64, bool)>,
}

impl Work for Played {
    fn draw(&mut self, rng: &mut fastrand::Rng) -> RequestWork {
        let luck = rng.f64();
        let times = self.of.classes.get(self.class);
        RequestWork {
            cost: at(times.map_or(&[], Vec::as_slice), luck).max(1.0),
            document: self.class * FINE + (luck * FINE as f64) as usize,
        }
    }

    fn cost(&mut self, ask: RequestWork, member: usize) -> f64 {
        // A request that is among the cheap ones is so at each member, but how much slower a
        // slow member is need not be the same for all.
        let own = self.of.own.get(member);
        let own = own.and_then(|own| own.get(ask.document / FINE));
        match own {
            Some(own) if own.len() >= ENOUGH => {
                at(own, (ask.document % FINE) as f64 / FINE as f64).max(1.0)
            }
            _ => ask.cost,
        }
    }

    fn gap(&mut self) -> Option<f64> {
        let (came, is_last) = self.times.pop_front()?;
        self.class = came.class;
        self.connection = came.connection.map(|of| (of, is_last));
        let (next, _) = self.times.front()?;
        Some(next.at.saturating_sub(came.at).max(1) as f64)
    }

    fn connection(&self) -> Option<(u64, bool)> {
        self.connection
    }
}
