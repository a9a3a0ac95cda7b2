//! Schedule: the times when requests are due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_sim::work::draw_exponential;

/// Times between arrivals.
#[derive(Clone, Debug)]
pub(crate) enum Gaps {
    /// None are planned: the next thing is due when somebody is free for it (closed loop).
    Closed,
    /// Always the same.
    Constant(Duration),
    /// Exponential with this mean in seconds, so that arrivals are a Poisson process.
    Poisson {
        /// Mean gap in seconds.
        mean: f64,
        /// Source of random numbers.
        rng: fastrand::Rng,
    },
    /// At recorded times after the start, in order.
    Recorded(Arc<[Duration]>),
}

/// Times when requests are due, one after another.
#[derive(Debug)]
pub(crate) struct Arrivals {
    gaps: Gaps,
    start: Instant,
    /// End, from which on nothing is due.
    end: Option<Instant>,
    /// Most requests that are due in all.
    most: Option<u64>,
    /// Time when the next request is due, and its number.
    next: Instant,
    number: u64,
    is_closed: bool,
    is_exhausted: bool,
}

impl Arrivals {
    /// Makes a schedule from `start` on.
    pub(crate) fn new(gaps: Gaps, start: Instant, end: Option<Instant>, most: Option<u64>) -> Self {
        let mut arrivals = Arrivals {
            gaps,
            start,
            end,
            most,
            next: start,
            number: 0,
            is_closed: false,
            is_exhausted: false,
        };
        // A Poisson process does not begin with an arrival.
        if !matches!(arrivals.gaps, Gaps::Constant(_)) {
            arrivals.plan();
        }
        arrivals
    }

    /// Returns the time when the next request is due; `None` if nothing is planned.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        let is_planned = !matches!(self.gaps, Gaps::Closed) && !self.is_over(self.next);
        is_planned.then_some(self.next)
    }

    /// Takes the next request, with its number, if it is due; `Some(None)` is the end of all.
    #[allow(clippy::option_option)] // Not yet, never more, or now.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Option<(Instant, u64)>> {
        if matches!(self.gaps, Gaps::Closed) {
            self.next = now;
        }
        if self.is_over(self.next) {
            return Some(None);
        }
        if self.next > now {
            return None;
        }
        let taken = (self.next, self.number);
        self.number += 1;
        self.plan();
        Some(Some(taken))
    }

    /// Counts, and passes over, the requests that are due by `now` and were not taken.
    pub(crate) fn skip_overdue(&mut self, now: Instant) -> u64 {
        let mut count = 0;
        while self.next().is_some_and(|next| next <= now) && count < 100_000_000 {
            count += 1;
            self.number += 1;
            self.plan();
        }
        count
    }

    /// There will be no more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Returns true if there will be no more requests.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Opens the schedule again, so that the requests that may still be due can be counted.
    pub(crate) fn reopen(&mut self) -> &mut Self {
        self.is_closed = false;
        self
    }

    fn is_over(&self, at: Instant) -> bool {
        self.is_closed
            || self.is_exhausted
            || self.most.is_some_and(|most| self.number >= most)
            || self.end.is_some_and(|end| at >= end)
    }

    fn plan(&mut self) {
        match &mut self.gaps {
            Gaps::Closed => {}
            Gaps::Constant(gap) => self.next += *gap,
            Gaps::Poisson { mean, rng } => {
                self.next += Duration::from_secs_f64(draw_exponential(*mean, rng));
            }
            Gaps::Recorded(times) => {
                let time = usize::try_from(self.number).ok();
                match time.and_then(|number| times.get(number)) {
                    Some(time) => self.next = self.start + *time,
                    None => self.is_exhausted = true,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(gaps: Gaps, end: Option<Duration>, most: Option<u64>) -> Vec<Duration> {
        let start = Instant::now();
        let mut arrivals = Arrivals::new(gaps, start, end.map(|end| start + end), most);
        let late = start + Duration::from_secs(1000);
        let taken = std::iter::from_fn(|| arrivals.take(late).flatten());
        let taken = taken.take(100_000).enumerate();
        let times = taken.map(|(number, (due, counted))| {
            assert_eq!(number as u64, counted);
            due - start
        });
        times.collect()
    }

    #[test]
    fn constant_arrivals_are_even() {
        let gap = Duration::from_millis(10);
        let end = Some(Duration::from_millis(35));
        let times = all(Gaps::Constant(gap), end, None);
        assert_eq!(times, [0, 10, 20, 30].map(Duration::from_millis));
        assert_eq!(all(Gaps::Constant(gap), None, Some(3)).len(), 3);
    }

    #[test]
    fn poisson_arrivals_have_their_rate_and_its_variance() {
        let gaps = Gaps::Poisson {
            mean: 0.001,
            rng: fastrand::Rng::with_seed(3),
        };
        let times = all(gaps, Some(Duration::from_secs(40)), None);
        assert!((39_000..41_000).contains(&times.len()), "{}", times.len());
        let mut counts = vec![0f64; 400];
        for time in &times {
            counts[(time.as_secs_f64() * 10.0) as usize] += 1.0;
        }
        let mean = counts.iter().sum::<f64>() / 400.0;
        let variance = counts.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 399.0;
        assert!((0.7..1.3).contains(&(variance / mean)), "{variance} {mean}");
    }

    #[test]
    fn recorded_arrivals_come_at_their_times_and_end() {
        let times: Arc<[_]> = [5, 7, 7, 90].map(Duration::from_millis).into();
        assert_eq!(all(Gaps::Recorded(Arc::clone(&times)), None, None), *times);
        assert!(all(Gaps::Recorded(Arc::new([])), None, None).is_empty());
    }

    #[test]
    fn nothing_is_taken_before_it_is_due_or_after_the_end() {
        let start = Instant::now();
        let gap = Duration::from_secs(1);
        let mut arrivals = Arrivals::new(Gaps::Constant(gap), start, Some(start + 3 * gap), None);
        assert_eq!(arrivals.take(start), Some(Some((start, 0))));
        assert_eq!(arrivals.take(start), None);
        assert_eq!(arrivals.next(), Some(start + gap));
        assert_eq!(arrivals.skip_overdue(start + 10 * gap), 2);
        assert_eq!(arrivals.take(start + 10 * gap), Some(None));
    }

    #[test]
    fn a_closed_loop_is_due_at_once_until_its_end() {
        let start = Instant::now();
        let mut arrivals = Arrivals::new(Gaps::Closed, start, None, Some(2));
        let later = start + Duration::from_secs(5);
        assert_eq!(arrivals.next(), None);
        assert_eq!(arrivals.take(start), Some(Some((start, 0))));
        assert_eq!(arrivals.take(later), Some(Some((later, 1))));
        assert_eq!(arrivals.take(later), Some(None));
    }
}
