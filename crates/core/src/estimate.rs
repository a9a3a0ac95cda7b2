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

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::learnt::{LearntSlot, Visit};
use crate::time::{Horizon, Instant, keep_old, millis, millis_since};

/// Most answers over which the average reaches. With fewer, costs that differ by a factor of twenty look
/// like members that differ.
const MOST_ANSWERS: f32 = 40.0;

/// Fewest, and those for each squared coefficient of variation of the latencies. With fewer a member that
/// changes is seen sooner, and equal members look different, which costs more
/// (`docs/design/adaptive.md` has figures).
const FEWEST_ANSWERS: f32 = 20.0;

/// Answers over which the average reaches where weights differ: with more, shares are off by more than a point.
const WEIGHTED_ANSWERS: f32 = 32.0;

/// Answers after which their variation is known.
const KNOWN: u32 = 32;

/// Most that one request can add, as a multiple of its expected time. A TCP client that connects and says nothing gets
/// no answer either: it must not condemn the member.
const OUTLIER: f32 = 16.0;

/// Cost of a failure, in requests.
pub(crate) const FAILURE_COST: f32 = 30.0;

/// Factor of surprise: an answer that took more than this many times the expected time counts only for the time since
/// the answer before. All requests that wait at a member that stands still for a moment see the same stall, which is
/// one observation and not as many as there are requests.
const SURPRISE: f32 = 6.0;

/// Least weight of such a late answer: a member on which thousands of requests wait, and which stays that slow, must be
/// noticed after some hundred answers.
const LEAST_NEWS: f32 = 1.0 / 64.0;

/// Number of service times without an answer after which an estimate is stale, if the group's decay time has not passed
/// before: the member may have changed.
const STALE: f32 = 100.0;

/// Answers that a stale estimate counts for when a new one comes. Fewer find a member
/// that has recovered sooner; with fewer, all estimates are noise where traffic is so
/// low that they are always stale.
const STALE_ANSWERS: f32 = 8.0;

/// Reach of an average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reach {
    /// Number of answers that count.
    pub(crate) answers: f32,
    /// Factor of an unexpectedly long answer ([`SURPRISE`]); infinite where weights differ, as shares would otherwise
    /// be off by more than a point.
    pub(crate) surprise: f32,
}

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

/// Initial growth: less than it may be. A member that has more in flight then looks slower than it is, and gets less.
/// With too much growth the member would look faster the more it has, get more, and so on.
pub(crate) const FIRST_GROWTH: f32 = 0.25;

/// The variance of requests in flight for which that counts.
const FIRST_VARIANCE: f32 = 0.25;

/// Standard deviation of the base 2 logarithm of an exponential time.
const EXPONENTIAL: f32 = 1.85;

/// Standard errors by which averages of recent answers may be apart in idle members that are not told apart. With three, equal
/// members are taken for different ones often enough that 200 requests are 5 points off.
const LATELY: f32 = 5.0;

/// Standard errors as for [`LATELY`], for averages over a longer time. With three, equal members are taken for
/// different ones a few times in a thousand, and then for hundreds of requests.
const LONGER: f32 = 4.0;

/// Squared coefficient of variation that times have at least, as members wait for processors and networks.
const LEAST_VARIATION: f32 = 0.01;

/// Answers from which the growth is learnt. The growth hardly ever changes, and single answers tell little of it.
const GROWTH_ANSWERS: u32 = 256;

/// Data from which the growth is learnt: the regression of a member's latencies on the requests that were there
/// meanwhile. Workers write without regard to others that write at the same time: an answer more or less does not
/// matter.
#[derive(Debug, Default)]
pub(crate) struct Regression {
    /// Means of the others that were there (f32 bits, high half) and of the latencies.
    means: AtomicU64,
    /// Variance of the others, and covariance.
    spreads: AtomicU64,
    /// Means of the logarithms of the latencies ([`Regression::typical_latency`]).
    logs: AtomicU64,
    /// Mean of the latencies in units of the expected one (f32 bits, high half), and of the squares.
    spread: AtomicU64,
    /// Answers so far, at most [`GROWTH_ANSWERS`].
    answers: AtomicU32,
}

impl Regression {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("regression.means", LearntSlot::Long(&self.means));
        visit("regression.spreads", LearntSlot::Long(&self.spreads));
        visit("regression.logs", LearntSlot::Long(&self.logs));
        visit("regression.spread", LearntSlot::Long(&self.spread));
        visit("regression.answers", LearntSlot::Short(&self.answers));
    }

    /// Takes an answer after `latency` seconds, with `others` there.
    fn learn(&self, latency: f32, others: f32) {
        let answers = (self.answers.load(Ordering::Relaxed) + 1).min(GROWTH_ANSWERS);
        let share = 1.0 / answers as f32;
        let (mut mean, mut mean_latency) = self.means();
        let (mut variance, mut covariance) = unpack(self.spreads.load(Ordering::Relaxed));
        let (dx, dy) = (others - mean, latency - mean_latency);
        mean += share * dx;
        mean_latency += share * dy;
        // Nothing at the first answer, which is the mean.
        variance += share * (dx * (others - mean) - variance);
        covariance += share * (dx * (latency - mean_latency) - covariance);
        let (mut log_latency, mut log_time) = self.typical_latency();
        log_latency += share * (log2(latency + NOISE) - log_latency);
        log_time += share * (log2(latency / (1.0 + others) + NOISE) - log_time);
        self.logs
            .store(pack(log_latency, log_time), Ordering::Relaxed);
        self.answers.store(answers, Ordering::Relaxed);
        self.means
            .store(pack(mean, mean_latency), Ordering::Relaxed);
        self.spreads
            .store(pack(variance, covariance), Ordering::Relaxed);
    }

    /// True if answers do not tell this member from the other. `places` are the places that count in the members'
    /// estimates, at least one for each answer, and `slower` is the number of powers of two by which the other member
    /// was slower lately. Both `slower` and the means of logarithms over a longer time have to be within some standard
    /// errors ([`LATELY`], [`LONGER`]).
    pub(crate) fn is_like(&self, other: &Regression, places: [f32; 2], slower: f32) -> bool {
        let (mut spread, mut lately, mut longer) = (0.0, 0.0, 0.0);
        for (regression, places) in [self, other].into_iter().zip(places) {
            let Some(variation) = regression.variation() else {
                // Too few answers to tell.
                return true;
            };
            spread = higher(spread, higher(variation, LEAST_VARIATION));
            // A mean that forgets has half the variance of one of as many.
            let answers = regression.answers.load(Ordering::Relaxed) as f32;
            let counting = lower(
                lower(places, answers),
                regression.average_reach(false).answers,
            );
            lately += lower(0.5 / counting, 1.0);
            longer += match answers < GROWTH_ANSWERS as f32 {
                true => 1.0 / answers,
                false => 0.5 / GROWTH_ANSWERS as f32,
            };
        }
        const LOG2_E: f32 = std::f32::consts::LOG2_E;
        let lately = LATELY * LATELY * LOG2_E * LOG2_E * spread * lately;
        let longer = LONGER * LONGER * EXPONENTIAL * EXPONENTIAL * lower(spread, 1.0) * longer;
        let apart = self.typical_latency().1 - other.typical_latency().1;
        slower * slower <= lately && apart * apart <= longer
    }

    /// Takes in an answer, whose time is given as a multiple of the expected one.
    fn vary(&self, ratio: f32) {
        let answers = self.answers.load(Ordering::Relaxed).max(1);
        let share = 1.0 / answers as f32;
        let (mean, square) = unpack(self.spread.load(Ordering::Relaxed));
        let mean = mean + share * (ratio - mean);
        let square = square + share * (ratio * ratio - square);
        self.spread.store(pack(mean, square), Ordering::Relaxed);
    }

    /// Reach of the average of service times, by how much latencies differ.
    pub(crate) fn average_reach(&self, is_weighted: bool) -> Reach {
        if is_weighted {
            return Reach {
                answers: WEIGHTED_ANSWERS,
                surprise: f32::INFINITY,
            };
        }
        let answers = match self.variation() {
            Some(variation) => lower(
                higher(FEWEST_ANSWERS * variation, FEWEST_ANSWERS),
                MOST_ANSWERS,
            ),
            None => MOST_ANSWERS,
        };
        Reach {
            answers,
            surprise: SURPRISE,
        }
    }

    /// The squared coefficient of variation of the latencies, in units of the expected one; `None` means unknown.
    pub(crate) fn variation(&self) -> Option<f32> {
        let (mean, square) = unpack(self.spread.load(Ordering::Relaxed));
        let is_known = self.answers.load(Ordering::Relaxed) >= KNOWN && mean > 0.0;
        is_known.then(|| square / (mean * mean) - 1.0)
    }

    /// The mean number of others that a request is there with, and the mean latency in
    /// seconds; 0 before the first answer.
    fn means(&self) -> (f32, f32) {
        unpack(self.means.load(Ordering::Relaxed))
    }

    /// Means of [`log2`] of the latencies in seconds, and of the latencies divided by the number of requests that were
    /// there, each with an allowance for noise; 0 before the first answer. A few answers that took very long move these
    /// means little.
    #[inline]
    pub(crate) fn typical_latency(&self) -> (f32, f32) {
        unpack(self.logs.load(Ordering::Relaxed))
    }
}

/// The growth that members of a group have in common.
#[derive(Debug)]
pub(crate) struct Growth {
    variance: f32,
    covariance: f32,
}

impl Growth {
    /// Growth before any answer.
    pub(crate) fn unknown() -> Self {
        Growth {
            variance: FIRST_VARIANCE,
            covariance: FIRST_VARIANCE * FIRST_GROWTH,
        }
    }

    /// Takes in the regression of a member.
    ///
    /// The latency is `a (1 + growth * n)` with the member's own `a`, so that the slope is the
    /// same for all members in units of `a`, which the mean latency and the mean of *n* give
    /// once the growth is known: that of the member itself is good enough.
    pub(crate) fn add_member(&mut self, regression: &Regression) {
        let (mean, mean_latency) = regression.means();
        let (variance, covariance) = unpack(regression.spreads.load(Ordering::Relaxed));
        if variance <= 0.0 {
            return;
        }
        let at_idle = mean_latency - covariance / variance * mean;
        let at_idle = at_idle.max(mean_latency / (1.0 + mean));
        // Behind a long queue latencies say much about the queue, and little about one more.
        let certain = 1.0 / ((1.0 + mean) * (1.0 + mean));
        self.variance += certain * variance;
        self.covariance += certain * (covariance / at_idle).clamp(0.0, variance);
    }

    /// The growth, from 0 to 1.
    pub(crate) fn get(&self) -> f32 {
        (self.covariance / self.variance).clamp(0.0, 1.0)
    }
}

const COUNT_BITS: u32 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Remaining share of an observation after a `silence`.
pub(crate) fn fade(silence: Duration, decay: Duration) -> f32 {
    libm::expf(-silence.as_secs_f32() / decay.as_secs_f32().max(1e-3))
}

/// The logarithm of a positive number to the base of 2, plus 127: the bits of a float are nearly
/// that. Off by less than 0.09, and by nothing for powers of two; 0 for 0.
#[inline]
pub(crate) fn log2(value: f32) -> f32 {
    value.to_bits() as f32 / (1 << 23) as f32
}

/// The number of which [`log2`] makes `log`.
#[inline]
pub(crate) fn exp2(log: f32) -> f32 {
    f32::from_bits((log * (1 << 23) as f32) as u32)
}

/// The lower of two numbers, neither of which is NaN: one instruction, unlike [`f32::min`].
#[inline]
pub(crate) fn lower(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// The higher of two numbers, neither of which is NaN.
#[inline]
pub(crate) fn higher(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Seconds by which answers of equal members differ: a member that is seldom asked has to be woken, and to wait for a
/// processor.
const NOISE: f32 = 2e-3;

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

/// Two numbers in a word.
#[inline]
pub(crate) fn pack(high: f32, low: f32) -> u64 {
    (u64::from(high.to_bits()) << 32) | u64::from(low.to_bits())
}

#[inline]
pub(crate) fn unpack(word: u64) -> (f32, f32) {
    (
        f32::from_bits((word >> 32) as u32),
        f32::from_bits(word as u32),
    )
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
            regression.vary(lower(ratio, OUTLIER));
        }
        let (latency, others) = (latency.as_secs_f32() / cost, others / cost);
        let most = match sum > 0.0 {
            true => OUTLIER * (others + 1.0) * latencies / sum,
            false => f32::INFINITY,
        };
        regression.learn(latency.min(most), others);
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

    /// A change is seen after fewer answers where they differ little.
    #[test]
    fn the_average_reaches_over_more_answers_where_they_differ_more() {
        let window = |draw: &mut dyn FnMut() -> f64| {
            let (estimate, regression) = (Estimate::default(), Regression::default());
            for step in 0..2000 {
                let latency = Duration::from_secs_f64(draw());
                estimate.learn_growth(latency, 1.0, 0.0, 1.0, &regression);
                let window = regression.average_reach(false);
                estimate.sample_latency(latency, 1.0, 0.0, at(step), DECAY, window);
            }
            regression.average_reach(false).answers
        };
        let mut rng = fastrand::Rng::with_seed(1);
        assert_eq!(window(&mut || 0.010), FEWEST_ANSWERS);
        let mut exponential = || 0.010 * -libm::log(1.0 - rng.f64());
        let usual = window(&mut exponential);
        assert!(
            (FEWEST_ANSWERS..1.5 * FEWEST_ANSWERS).contains(&usual),
            "{usual}"
        );
        let mut rng = fastrand::Rng::with_seed(2);
        let mut mixed = || if rng.f64() < 0.1 { 0.200 } else { 0.010 };
        assert!(window(&mut mixed) > 25.0);
    }

    /// Returns true if answers with exponential times of these means, in milliseconds, do not tell two members apart: `many`
    /// answers of the first mean and then `last` of the second one.
    fn alike(means: [[f64; 2]; 2], many: u64, last: u64, seed: u64) -> bool {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut known = [(); 2].map(|()| (Estimate::default(), Regression::default()));
        for ((estimate, regression), mean) in known.iter_mut().zip(means) {
            for step in 0..many + last {
                let mean = if step < many { mean[0] } else { mean[1] };
                let latency = MS.mul_f64(mean * -libm::log(1.0 - rng.f64()));
                estimate.learn_growth(latency, 1.0, 0.0, 1.0, regression);
                let reach = regression.average_reach(false);
                estimate.sample_latency(latency, 1.0, 0.0, at(100 * step), DECAY, reach);
            }
        }
        let [one, other] = &known;
        let [time, other_time] = [one, other].map(|known| known.0.mean_time().unwrap());
        let places = [one, other].map(|known| known.0.answered_places());
        one.1
            .is_like(&other.1, places, log2(other_time) - log2(time))
    }

    #[test]
    fn equal_members_are_not_told_apart_and_slower_ones_are() {
        let share = |means: [[f64; 2]; 2], many: u64, last: u64| {
            let seeds = 1..=200;
            seeds.filter(|&seed| alike(means, many, last, seed)).count()
        };
        let equal = [[10.0; 2]; 2];
        assert!(share(equal, 10, 0) == 200);
        assert!(share(equal, 100, 0) >= 199, "{}", share(equal, 100, 0));
        assert!(share(equal, 2000, 0) >= 199, "{}", share(equal, 2000, 0));
        // A member is twice as slow: noticed after some hundred answers.
        let slower = [[10.0; 2], [20.0; 2]];
        assert!(share(slower, 2000, 0) <= 20, "{}", share(slower, 2000, 0));
        // A member has become five times slower: noticed after some dozen answers.
        let changed = [[10.0; 2], [10.0, 50.0]];
        assert!(
            share(changed, 2000, 60) <= 30,
            "{}",
            share(changed, 2000, 60)
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
