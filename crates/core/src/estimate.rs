//! Service time of a member for one request: an estimate that queueing does not pollute and that does not wait for an
//! answer before it rises.
//!
//! A request that finds *n* others at a member with one worker takes `n + 1` times its service time (exactly, on
//! average, if service times are exponential). A request at a member that works on all requests at once takes one
//! service time, whatever *n* is. For the cases between these two, the group learns the *growth*: the number of service
//! times that each request more costs, 1 and 0 in these two cases. With `places = 1 + growth * n`
//!
//! ```text
//! service time = (sum of latencies + ages of what is unanswered) / (sum of places)
//! ```
//!
//! over about the last 20 answers, or more where they differ more: 20 times the squared coefficient of variation of the
//! latencies (which is 1 if they are exponential), and 40 at most. Counting the unanswered requests with their ages is
//! what the maximum likelihood estimator for censored lifetimes does ("total time on test"; Epstein and Sobel, "Life
//! Testing", 1953): a member that has become slow looks slow at once, not when its first late answer arrives, and a
//! member that is busy with a costly request is avoided until the request is done.

pub(crate) mod sums;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use crate::float::{exp2, higher, log2, lower, pack, unpack};
use crate::learnt::{LearntSlot, Visit};
pub(crate) use crate::regression::{FIRST_GROWTH, Growth, Reach, Regression};
use crate::time::{Horizon, Instant, keep_old, millis, millis_since};

/// Most that one request can add, as a multiple of its expected time. A TCP client that connects and says nothing gets
/// no answer either: it must not condemn the member.
const OUTLIER: f32 = 16.0;

/// Cost of a failure, in requests.
pub(crate) const FAILURE_COST: f32 = 30.0;

/// Least weight of an answer that is late by [`Reach::surprise`]: a member on which thousands of requests wait, and which stays that slow, must be
/// noticed after some hundred answers.
const LEAST_NEWS: f32 = 1.0 / 64.0;

/// Number of service times without an answer after which an estimate is stale, if the group's decay time has not passed
/// before: the member may have changed.
const STALE: f32 = 100.0;

/// Answers that a stale estimate counts for when a new one comes. Fewer find a member
/// that has recovered sooner; with fewer, all estimates are noise where traffic is so
/// low that they are always stale.
const STALE_ANSWERS: f32 = 8.0;

/// The estimate of one member.
#[derive(Debug, Default)]
pub(crate) struct Estimate {
    /// Requests without an answer yet (low 20 bits), and the sum of the times at which
    /// they were bound, in units of 16 us, modulo 2^44 (the rest): ten thousand requests may be
    /// without an answer for nearly eight hours. One word, so that the
    /// count always belongs to the sum; and because sums can be taken modulo, nothing
    /// needs to know when each of them was bound.
    unanswered: AtomicU64,
    /// Decayed sum of latencies in seconds (f32 bits, high half) and of places (low
    /// half); 0 before the first answer.
    sums: AtomicU64,
    /// Time of the last answer, in wrapping milliseconds.
    answered_at: AtomicU32,
    /// Moment at which a request was bound last, in wrapping milliseconds; 0 before the first one.
    bound_at: AtomicU32,
}

const COUNT_BITS: u32 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Remaining share of an observation after a `silence`.
pub(crate) fn fade(silence: Duration, decay: Duration) -> f32 {
    libm::expf(-silence.as_secs_f32() / decay.as_secs_f32().max(1e-3))
}

/// Unit of ages, in nanoseconds.
const UNIT: u64 = 16_000;

/// Largest disagreement between the workers' clocks: a sum that is less than 0 by up to this value (18 minutes, a
/// millisecond of each of a million requests) counts as 0.
const DISAGREEMENT: u64 = 1 << 26;

fn units(at: Instant) -> u64 {
    at.as_nanos() / UNIT
}

fn entry(at: Instant) -> u64 {
    (units(at) << COUNT_BITS) | 1
}

/// A moment as estimates count time, worked out once for all members of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    units: u64,
    decay: Horizon,
    /// Time of a typical member ([`Moment::with_typical`]).
    pub(crate) typical: f32,
}

impl Moment {
    #[inline]
    pub(crate) fn new(now: Instant, decay: Duration) -> Self {
        Moment {
            typical: 0.0,
            units: units(now),
            decay: Horizon::new(now, decay),
        }
    }

    /// A moment for a group in which a request takes `typical` seconds at a typical member; 0 means unknown.
    #[inline]
    pub(crate) fn with_typical(self, typical: f32) -> Self {
        Moment { typical, ..self }
    }

    /// Sum of the ages of all requests without an answer, in seconds.
    #[inline]
    fn ages(&self, unanswered: u64) -> f32 {
        let (count, starts) = (unanswered & COUNT_MASK, unanswered >> COUNT_BITS);
        let ages = count.wrapping_mul(self.units).wrapping_sub(starts);
        let largest = u64::MAX >> COUNT_BITS;
        let ages = match ages & largest {
            below if below > largest - DISAGREEMENT => 0,
            ages => ages,
        };
        // Fewer than 2^44: as signed ones they are converted by one instruction.
        ages as i64 as f32 * (UNIT as f32 / 1e9)
    }
}

/// Service time of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    /// Time for one request, in seconds.
    pub(crate) time: f32,
    /// True if the last answer is so long ago that the member may have changed since.
    pub(crate) is_stale: bool,
}

impl Estimate {
    /// Visits the [learnt](crate::learnt) words. Unanswered requests belong to another process, and are left out.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("estimate.sums", LearntSlot::Long(&self.sums));
        visit("estimate.answered_at", LearntSlot::Short(&self.answered_at));
    }

    /// A request is bound.
    pub(crate) fn begin_request(&self, now: Instant) {
        self.unanswered.fetch_add(entry(now), Ordering::Relaxed);
        self.bound_at.store(millis(now).max(1), Ordering::Relaxed);
    }

    /// A request that was bound at `started` is answered, or will not be.
    pub(crate) fn end_request(&self, started: Instant) {
        self.unanswered.fetch_sub(entry(started), Ordering::Relaxed);
    }

    /// Mean age of the requests without an answer in seconds; 0 without any.
    pub(crate) fn mean_age(&self, moment: &Moment) -> f32 {
        let unanswered = self.unanswered.load(Ordering::Relaxed);
        match unanswered & COUNT_MASK {
            0 => 0.0,
            count => moment.ages(unanswered) / count as i64 as f32,
        }
    }

    /// Requests without an answer.
    #[inline]
    pub(crate) fn unanswered(&self) -> u32 {
        (self.unanswered.load(Ordering::Relaxed) & COUNT_MASK) as u32
    }

    /// Takes the latency of a success that with those that it found at the member counts for
    /// `places` requests of cost 1, of which what costs `in_flight` is there now. The average reaches over
    /// so many answers as `reach` says ([`Regression::average_reach`]).
    pub(crate) fn sample_latency(
        &self,
        latency: Duration,
        places: f32,
        in_flight: f32,
        now: Instant,
        decay: Duration,
        reach: Reach,
    ) {
        // Not zero, or nothing could be expected of the next one.
        let latency = latency.as_secs_f32().max(1e-6);
        let stale = self.is_stale(in_flight, now, decay);
        let silence = self.silence(now);
        let fade = fade(silence, decay);
        let news = higher(lower(silence.as_secs_f32() / latency, 1.0), LEAST_NEWS);
        let update = |sums: u64| {
            let (latencies, sum) = unpack(sums);
            if sum <= 0.0 {
                return Some(pack(latency, places));
            }
            let service = latencies / sum;
            let share = match latency > reach.surprise * service * places {
                true => news,
                false => 1.0,
            };
            let latency = latency.min(OUTLIER * service * places);
            if !stale {
                let keep = 1.0 - share / reach.answers;
                let (latencies, sum) = (latencies * keep, sum * keep);
                return Some(pack(latencies + share * latency, sum + share * places));
            }
            // Slowness of long ago has faded, down to the present latency.
            let service = service.min((service * fade).max(latency / places));
            let sum = sum.min(STALE_ANSWERS * places);
            Some(pack(service * sum + latency, sum + places))
        };
        let _ = self
            .sums
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        self.answered_at.store(millis(now), Ordering::Relaxed);
    }

    /// Begins with what another process has seen, if there was no answer yet: `seconds` for a request
    /// of cost 1. It weighs no more than a stale estimate does, so own answers soon say more.
    pub(crate) fn adopt_guess(&self, seconds: f32, now: Instant) {
        let guess = pack(seconds * STALE_ANSWERS, STALE_ANSWERS);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let taken = self.sums.compare_exchange(0, guess, success, failure);
        if taken.is_ok() {
            self.answered_at.store(millis(now), Ordering::Relaxed);
        }
    }

    /// Learns from the latency of a success of that cost, which was there with `others`, how
    /// latencies grow: of a request of cost 1, which waits for what is there in proportion.
    /// With those that it found it counts for `places` requests of cost 1.
    pub(crate) fn learn_growth(
        &self,
        latency: Duration,
        cost: f32,
        others: f32,
        places: f32,
        regression: &Regression,
    ) {
        let (latencies, sum) = unpack(self.sums.load(Ordering::Relaxed));
        if sum > 0.0 {
            let ratio = latency.as_secs_f32() * sum / (latencies * places);
            regression.learn_variation(lower(ratio, OUTLIER));
        }
        let (latency, others) = (latency.as_secs_f32() / cost, others / cost);
        let most = match sum > 0.0 {
            true => OUTLIER * (others + 1.0) * latencies / sum,
            false => f32::INFINITY,
        };
        regression.learn_latency(latency.min(most), others);
    }

    /// Estimated service time; `None` before the first answer.
    #[inline]
    pub(crate) fn estimate_service(&self, in_flight: f32, moment: &Moment) -> Option<Service> {
        let (latencies, places) = unpack(self.sums.load(Ordering::Relaxed));
        if places <= 0.0 {
            return None;
        }
        let share = 1.0 / places;
        let mean = latencies * share;
        let queued = mean * (in_flight + 1.0);
        let unanswered = self.unanswered.load(Ordering::Relaxed);
        let waiting = match unanswered & COUNT_MASK {
            0 => 0.0,
            count => {
                let most = OUTLIER * queued * count as i64 as f32;
                lower(moment.ages(unanswered), most)
            }
        };
        Some(Service {
            time: mean + waiting * share,
            is_stale: self.is_silent(queued, &moment.decay),
        })
    }

    /// Places of the answers that count; 0 before the first one.
    pub(crate) fn answered_places(&self) -> f32 {
        unpack(self.sums.load(Ordering::Relaxed)).1
    }

    /// True if there was neither an answer nor a guess yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.sums.load(Ordering::Relaxed) == 0
    }

    /// Service time by answers alone, in seconds; `None` before the first answer.
    pub(crate) fn mean_time(&self) -> Option<f32> {
        let (latencies, places) = unpack(self.sums.load(Ordering::Relaxed));
        (places > 0.0).then(|| latencies / places)
    }

    /// True if the last answer is so long ago that the member may have changed since, given that the next request would
    /// take `queued` seconds.
    #[inline]
    fn is_silent(&self, queued: f32, decay: &Horizon) -> bool {
        let at = self.answered_at.load(Ordering::Relaxed);
        decay.millis_since(at) as f32 > 1e3 * STALE * queued || decay.is_past(at)
    }

    /// The service time in seconds; `None` before the first answer.
    pub(crate) fn service_time(&self, in_flight: f32, now: Instant) -> Option<f32> {
        let service = self.estimate_service(in_flight, &Moment::new(now, Duration::ZERO));
        service.map(|service| service.time)
    }

    /// True if the last answer is so long ago that the member may have changed since, or if there was none.
    pub(crate) fn is_stale(&self, in_flight: f32, now: Instant, decay: Duration) -> bool {
        let (latencies, places) = unpack(self.sums.load(Ordering::Relaxed));
        let queued = latencies / places * (in_flight + 1.0);
        places <= 0.0 || self.is_silent(queued, &Horizon::new(now, decay))
    }

    /// Keeps old times old ([`keep_old`]).
    pub(crate) fn keep_age(&self, now: Instant) {
        for time in [&self.answered_at, &self.bound_at] {
            let at = time.load(Ordering::Relaxed);
            if at != 0
                && let Some(older) = keep_old(at, now)
            {
                // If it fails there was an answer, or a request.
                let _ = time.compare_exchange(at, older, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Seconds since the last answer.
    pub(crate) fn seconds_since_answer(&self, moment: &Moment) -> f32 {
        let at = self.answered_at.load(Ordering::Relaxed);
        moment.decay.millis_since(at) as f32 / 1e3
    }

    /// Seconds since a request was bound; infinite before the first one.
    pub(crate) fn seconds_since_bound(&self, moment: &Moment) -> f32 {
        match self.bound_at.load(Ordering::Relaxed) {
            0 => f32::INFINITY,
            at => moment.decay.millis_since(at) as f32 / 1e3,
        }
    }

    /// Time since the last answer.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        let at = self.answered_at.load(Ordering::Relaxed);
        Duration::from_millis(u64::from(millis_since(at, now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::{FEWEST_ANSWERS, SURPRISE};

    const DECAY: Duration = Duration::from_secs(10);
    /// Answers over which averages reach in these tests.
    const ANSWERS: Reach = Reach {
        answers: 32.0,
        surprise: SURPRISE,
    };
    const FEW: Reach = Reach {
        answers: FEWEST_ANSWERS,
        surprise: SURPRISE,
    };
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_guess_counts_until_own_answers_say_more() {
        let estimate = Estimate::default();
        assert!(estimate.is_empty());
        assert_eq!(estimate.mean_time(), None);
        estimate.adopt_guess(0.1, at(1000));
        close(estimate.mean_time(), 0.1);
        close(estimate.service_time(0.0, at(1000)), 0.1);
        estimate.adopt_guess(0.5, at(1001));
        close(estimate.mean_time(), 0.1);
        for n in 0..80 {
            estimate.sample_latency(10 * MS, 1.0, 0.0, at(1000 + 10 * n), DECAY, FEW);
        }
        let seconds = estimate.mean_time().unwrap();
        assert!((0.01..0.013).contains(&seconds), "{seconds}");
        // Nor does one come after an answer.
        let estimate = Estimate::default();
        estimate.sample_latency(10 * MS, 1.0, 0.0, at(0), DECAY, FEW);
        estimate.adopt_guess(0.5, at(1));
        close(estimate.mean_time(), 0.01);
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn close(got: Option<f32>, seconds: f32) {
        let got = got.unwrap();
        assert!((got / seconds - 1.0).abs() < 0.02, "{got} is not {seconds}");
    }

    #[test]
    fn queueing_does_not_raise_it() {
        let estimate = Estimate::default();
        assert_eq!(estimate.service_time(1.0, at(0)), None);
        for step in 1..200 {
            let places = step % 7 + 1;
            let latency = MS * 10 * places;
            estimate.sample_latency(
                latency,
                places as f32,
                (places - 1) as f32,
                at(u64::from(step)),
                DECAY,
                ANSWERS,
            );
        }
        close(estimate.service_time(1.0, at(200)), 0.010);
    }

    #[test]
    fn what_is_unanswered_raises_it_before_the_answer() {
        let estimate = Estimate::default();
        for step in 1..200 {
            estimate.sample_latency(10 * MS, 1.0, 0.0, at(step), DECAY, ANSWERS);
        }
        estimate.begin_request(at(200));
        estimate.begin_request(at(210));
        close(
            estimate.service_time(1.0, at(230)),
            (0.320 + 0.030 + 0.020) / 32.0,
        );
        estimate.end_request(at(200));
        close(estimate.service_time(1.0, at(230)), (0.320 + 0.020) / 32.0);
        // However old it gets, one request adds a bounded amount.
        assert!(estimate.service_time(1.0, at(1_000_000)).unwrap() < 0.026);
        estimate.end_request(at(210));
        close(estimate.service_time(1.0, at(1_000_000)), 0.010);
    }

    #[test]
    fn clocks_that_differ_a_little_do_no_harm() {
        let estimate = Estimate::default();
        estimate.sample_latency(10 * MS, 1.0, 0.0, at(1), DECAY, ANSWERS);
        estimate.begin_request(at(105));
        close(estimate.service_time(1.0, at(100)), 0.010);
    }

    #[test]
    fn b8_what_hangs_for_hours_never_looks_healthy() {
        const HOUR: u64 = 3_600_000;
        for hung in [1u32, 100, 10_000] {
            let estimate = Estimate::default();
            for step in 1..200 {
                estimate.sample_latency(10 * MS, 1.0, 0.0, at(step), DECAY, ANSWERS);
            }
            for request in 0..hung {
                estimate.begin_request(at(200 + u64::from(request % 10)));
            }
            let mut before = 0.0;
            for minute in 1..7 * 60 {
                let now = at(210 + minute * HOUR / 60);
                let is = estimate.service_time(hung as f32, now).unwrap();
                assert!(is >= before, "{hung} for {minute} min: {is} after {before}");
                before = is;
            }
            assert!(before > 0.014, "{hung}: {before}");
        }
    }

    /// Requests of up to weeks, and requests of another program, begin and end for 25 days.
    #[test]
    fn ages_are_those_of_what_waits_for_weeks() {
        const DAY: u64 = 24 * 3_600_000;
        for seed in 0..32 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let estimate = Estimate::default();
            let (mut waiting, mut other, mut now) = (Vec::new(), 0, 0);
            while now < 25 * DAY {
                match rng.usize(0..3) {
                    0 if waiting.len() < 100 => {
                        estimate.begin_request(at(now));
                        waiting.push(now);
                    }
                    1 if !waiting.is_empty() => {
                        let begun = waiting.swap_remove(rng.usize(0..waiting.len()));
                        estimate.end_request(at(begun));
                    }
                    _ => {}
                }
                now += DAY / 10u64.pow(rng.u32(0..8));
                // Three requests elsewhere have waited for a minute together.
                let word = sums::write_awaited(3, Duration::from_secs(60), at(now));
                estimate.replace_awaited(std::mem::replace(&mut other, word), word);
                let ages = waiting.iter().map(|begun| now - begun).sum::<u64>() + 60_000;
                let mean = ages as f32 / 1e3 / (waiting.len() + 3) as f32;
                let is = estimate.mean_age(&Moment::new(at(now), DECAY));
                assert!((is - mean).abs() <= 1e-5 * mean, "{seed}: {is} {mean}");
            }
            for begun in waiting {
                estimate.end_request(at(begun));
            }
            estimate.replace_awaited(other, 0);
            assert_eq!(estimate.unanswered.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn one_outlier_is_bounded_and_a_change_is_followed() {
        let estimate = Estimate::default();
        for step in 1..200 {
            estimate.sample_latency(10 * MS, 1.0, 0.0, at(step), DECAY, ANSWERS);
        }
        estimate.sample_latency(Duration::from_secs(3600), 1.0, 0.0, at(200), DECAY, ANSWERS);
        assert!(estimate.service_time(1.0, at(200)).unwrap() < 0.016);
        for step in 200..1400 {
            estimate.sample_latency(Duration::from_secs(1), 1.0, 0.0, at(step), DECAY, ANSWERS);
        }
        close(estimate.service_time(1.0, at(1400)), 1.0);
    }

    /// Twenty requests wait at a member that stands still for a moment, and are answered together.
    #[test]
    fn a_stall_counts_as_one_observation() {
        let after = |waiting: u64| {
            let estimate = Estimate::default();
            for step in 1..200 {
                estimate.sample_latency(10 * MS, 1.0, 0.0, at(10 * step), DECAY, ANSWERS);
            }
            for n in 0..waiting {
                let answered = at(2300 + n / 10);
                estimate.sample_latency(310 * MS, 1.0, 0.0, answered, DECAY, ANSWERS);
            }
            estimate.service_time(0.0, at(2303)).unwrap()
        };
        assert!(after(1) < 0.016, "{}", after(1));
        // Each of them in full would make it six times as much.
        assert!(after(20) < 1.2 * after(1), "{} {}", after(20), after(1));
    }

    #[test]
    fn a_stale_estimate_yields_to_new_answers() {
        let estimate = Estimate::default();
        for step in 1..200 {
            estimate.sample_latency(50 * MS, 1.0, 0.0, at(step), DECAY, ANSWERS);
        }
        assert!(!estimate.is_stale(0.0, at(5_000), DECAY));
        assert!(estimate.is_stale(0.0, at(5_300), DECAY));
        estimate.sample_latency(10 * MS, 1.0, 0.0, at(6000), DECAY, ANSWERS);
        // Eight old answers, faded a little, and the new one.
        let faded = 0.050 * fade(Duration::from_millis(5800), DECAY);
        close(
            estimate.service_time(1.0, at(6000)),
            (8.0 * faded + 0.010) / 9.0,
        );
    }

    #[test]
    fn a_member_that_was_not_asked_for_weeks_is_the_one_that_waits_longest() {
        const DAY: u64 = 24 * 3_600_000;
        let unbound = |estimate: &Estimate, now: Instant| {
            estimate.seconds_since_bound(&Moment::new(now, DECAY))
        };
        let (asked, away, new) = <(Estimate, Estimate, Estimate)>::default();
        away.begin_request(at(DAY));
        away.end_request(at(DAY));
        for day in 1..70 {
            let now = at(day * DAY);
            asked.begin_request(now);
            asked.end_request(now);
            asked.keep_age(now);
            away.keep_age(now);
            let later = at(day * DAY + 1000);
            assert!(unbound(&asked, later) < 2.0, "day {day}");
            assert!(unbound(&away, later) >= 1.0, "day {day}");
            assert!(day < 2 || unbound(&away, later) > 80_000.0, "day {day}");
            assert_eq!(unbound(&new, later), f32::INFINITY, "day {day}");
        }
    }
}
