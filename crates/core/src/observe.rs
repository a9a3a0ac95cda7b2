//! Observations of a member while requests pass: a decaying average for the decision, and counters for control loops,
//! admin API and metrics.
//!
//! Everything is relaxed atomics of bounded size. A reader may see one request in one
//! counter and not yet in another; each counter for itself is exact.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::histogram::Histogram;
pub use crate::histogram::Latencies;
use crate::learnt::{LearntSlot, Visit};
use crate::time::{Instant, keep_word_old, millis, millis_since};
pub use crate::trials::{TrialTotals, Trials};

/// End of a request, as far as it tells about the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The member answered.
    Success,
    /// The member failed as a server: connection refused or reset, timeout, garbage.
    /// Only these count as failures in a row, which the connection failure limit is
    /// about.
    Failure,
    /// The member answered, with an error of its own (5xx), took too long for the rest of an answer, or took a
    /// connection and broke it without a byte. It costs like a failure, but
    /// one client that keeps asking for a broken page must not have members ejected:
    /// that takes a larger share of errors than the other members have.
    Error,
    /// The member is alive and says that it has too much to do (429, 503), and
    /// perhaps for how long.
    Overloaded {
        /// Value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Nothing is known: the client went away, or the proxy gave up.
    Cancelled,
}

/// A moving average that jumps to peaks and falls slowly ("peak EWMA", as in Twitter's
/// Finagle): a sample above it replaces it, one below counts with weight
/// `1 - exp(-dt/decay)`, and without samples the average itself decays like
/// `exp(-dt/decay)`.
///
/// Value (f32 bits, high half) and time in milliseconds (low half) share one word, so
/// that readers never see a value with another one's time. 0 is "no sample yet".
#[derive(Debug, Default)]
pub(crate) struct Decaying(AtomicU64);

impl Decaying {
    /// Average without a sample.
    const fn new() -> Self {
        Decaying(AtomicU64::new(0))
    }

    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, name: &'static str, visit: Visit<'_, 'a>) {
        visit(name, LearntSlot::Long(&self.0));
    }

    /// The average now, or `None` if there was no sample.
    #[inline]
    pub(crate) fn get(&self, now: Instant, decay: Duration) -> Option<f32> {
        let word = self.0.load(Ordering::Relaxed);
        if word == 0 {
            return None;
        }
        let age = millis_since(word as u32, now);
        Some(f32::from_bits((word >> 32) as u32) * remaining(age, decay))
    }

    /// Keeps an old time old ([`keep_old`](crate::time::keep_old)).
    pub(crate) fn keep_age(&self, now: Instant) {
        keep_word_old(&self.0, now);
    }

    /// Forgets all samples.
    pub(crate) fn forget_samples(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// True if there was no sample yet.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Adds to what is left of the value: a sum that decays, where no sample is taken.
    pub(crate) fn add(&self, value: f32, now: Instant, decay: Duration) {
        let add = |word: u64| {
            let kept = f32::from_bits((word >> 32) as u32)
                * remaining(millis_since(word as u32, now), decay);
            Some((u64::from((kept + value).to_bits()) << 32) | u64::from(millis(now)))
        };
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes a sample. Samples may come in any order; late ones do not turn time back.
    pub(crate) fn sample(&self, value: f32, now: Instant, decay: Duration) {
        let update = |word: u64| {
            let held = f32::from_bits((word >> 32) as u32);
            let age = millis_since(word as u32, now);
            let keep = remaining(age, decay);
            let (value, at) = if word == 0 || value >= held * keep {
                (value, millis(now))
            } else if age == 0 {
                // Several samples within a millisecond: the first one stands for all.
                return None;
            } else {
                (held * keep + value * (1.0 - keep), millis(now))
            };
            Some((u64::from(value.to_bits()) << 32) | u64::from(at))
        };
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }
}

/// The share of requests that fail, over about the last sixteen: one failure makes 6 %,
/// so that a single one at low traffic decides nothing. It decays without requests, so
/// that a member that failed is tried again.
///
/// Share (f32 bits, high half) and time in milliseconds (low half); 0 is "none failed".
#[derive(Debug, Default)]
pub(crate) struct FailureShare(AtomicU64);

impl FailureShare {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        visit("failure_share", LearntSlot::Long(&self.0));
    }

    const STEP: f32 = 1.0 / 16.0;
    /// A share below this becomes 0; then successes need not be written any more.
    const NEGLIGIBLE: f32 = 1e-3;

    /// Forgets all failures.
    pub(crate) fn forget_failures(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// True if the share is not 0. Mostly it is 0.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    #[cold]
    pub(crate) fn get(&self, now: Instant, decay: Duration) -> f32 {
        match self.0.load(Ordering::Relaxed) {
            0 => 0.0,
            word => {
                let age = millis_since(word as u32, now);
                f32::from_bits((word >> 32) as u32) * remaining(age, decay)
            }
        }
    }

    /// Keeps an old time old ([`keep_old`](crate::time::keep_old)).
    pub(crate) fn keep_age(&self, now: Instant) {
        keep_word_old(&self.0, now);
    }

    pub(crate) fn add_outcome(&self, failed: bool, now: Instant, decay: Duration) {
        let update = |word: u64| {
            if word == 0 && !failed {
                return None;
            }
            let age = millis_since(word as u32, now);
            let held = f32::from_bits((word >> 32) as u32) * remaining(age, decay);
            let share = held + (f32::from(u8::from(failed)) - held) * Self::STEP;
            if share < Self::NEGLIGIBLE {
                return Some(0);
            }
            Some((u64::from(share.to_bits()) << 32) | u64::from(millis(now)))
        };
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }
}

/// Remaining share of a value after `age_ms`.
#[inline]
fn remaining(age_ms: u32, decay: Duration) -> f32 {
    if age_ms == 0 {
        return 1.0;
    }
    let tau = decay.as_secs_f32().max(1e-3);
    libm::expf(-(age_ms as f32) / (1000.0 * tau))
}

/// Number of clients that were sent to a member, go there themselves, and are probably still there. Nothing reports
/// their end. Each counts 1 at first, and `exp(-t/stay)` after the time t: as many stay on average as if each left after
/// its stay, without a list of who came when.
#[derive(Debug, Default)]
pub(crate) struct BoundClients {
    number: Decaying,
    /// Time that the last client may stay, in milliseconds.
    stay: AtomicU32,
}

impl BoundClients {
    /// Visits the [learnt](crate::learnt) words.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        self.number.visit_words("bound_clients.number", visit);
        visit("bound_clients.stay", LearntSlot::Short(&self.stay));
    }

    /// Adds a client that may `stay` for so long; one that asks anew with its next request is bound to nothing.
    pub(crate) fn add_client(&self, stay: Duration, now: Instant) {
        let millis = u32::try_from(stay.as_millis()).unwrap_or(u32::MAX);
        if millis > 0 {
            self.number.add(1.0, now, self.stay());
            self.stay.store(millis, Ordering::Relaxed);
        }
    }

    /// Number of clients now.
    #[inline]
    pub(crate) fn number(&self, now: Instant) -> f32 {
        match self.number.is_empty() {
            true => 0.0,
            false => self.known_number(now),
        }
    }

    #[cold]
    fn known_number(&self, now: Instant) -> f32 {
        self.number.get(now, self.stay()).unwrap_or(0.0)
    }

    fn stay(&self) -> Duration {
        Duration::from_millis(self.stay.load(Ordering::Relaxed).into())
    }

    /// Keeps an old time old ([`keep_old`](crate::time::keep_old)).
    pub(crate) fn keep_age(&self, now: Instant) {
        self.number.keep_age(now);
    }
}

/// Number of different clients of late, up to about 64: each client has one of 64 bits.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// Number of the running period, and the clients of this one and of that before.
    period: AtomicU64,
    running: AtomicU64,
    before: AtomicU64,
}

impl Crowd {
    const fn new() -> Self {
        Crowd {
            period: AtomicU64::new(0),
            running: AtomicU64::new(0),
            before: AtomicU64::new(0),
        }
    }

    /// Visits the [learnt](crate::learnt) words.
    fn words<'a>(&'a self, name: &'static str, visit: Visit<'_, 'a>) {
        for word in [&self.period, &self.running, &self.before] {
            visit(name, LearntSlot::Long(word));
        }
    }

    const PERIOD: u64 = 10_000_000_000;

    /// The bit of a client.
    pub(crate) fn bit(client: IpAddr) -> u64 {
        let number = match client.to_canonical() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            // Whoever has one address of such a network has all of them.
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        // Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, 6.4).
        1 << (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
    }

    fn add(&self, bit: u64, now: Instant) {
        let period = now.as_nanos() / Self::PERIOD + 1;
        let held = self.period.load(Ordering::Relaxed);
        if held < period
            && self
                .period
                .compare_exchange(held, period, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            let last = self.running.swap(0, Ordering::Relaxed);
            let before = if held + 1 == period { last } else { 0 };
            self.before.store(before, Ordering::Relaxed);
        }
        // Mostly it is there already: reading keeps the cache line shared.
        if self.running.load(Ordering::Relaxed) & bit == 0 {
            self.running.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Bits of the clients that were there in this period or the one before.
    fn bits(&self, now: Instant) -> u64 {
        let period = now.as_nanos() / Self::PERIOD + 1;
        let held = self.period.load(Ordering::Relaxed);
        let running = self.running.load(Ordering::Relaxed);
        match period.saturating_sub(held) {
            0 => running | self.before.load(Ordering::Relaxed),
            1 => running,
            _ => 0,
        }
    }
}

/// Counters of one member.
#[derive(Debug)]
pub struct Record {
    /// Clients that the member has answered or failed, and clients that it has failed.
    clients: Crowd,
    failing: Crowd,
    pub(crate) window: Window,
    pub(crate) histogram: Histogram,
    pub(crate) streams: Streams,
    successes: AtomicU64,
    failures: AtomicU64,
    overloads: AtomicU64,
    cancelled: AtomicU64,
    assigned: AtomicU64,
    /// Clients that went to the member themselves and are probably still there.
    pub(crate) bound_clients: BoundClients,
    pub(crate) trials: Trials,
}

/// Record of each member that has served nobody yet. Nothing is written to it.
pub(crate) static EMPTY_RECORD: Record = Record::new();

impl Default for Record {
    fn default() -> Self {
        Record::new()
    }
}

/// Requests that are over, by how they ended. They only ever grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that were answered.
    pub successes: u64,
    /// Ended by a failure of the member.
    pub failures: u64,
    /// Refused by the member because it had too much to do.
    pub overloads: u64,
    /// Ended without a verdict about the member.
    pub cancelled: u64,
}

impl Totals {
    /// All requests that are over.
    pub fn total(&self) -> u64 {
        self.successes + self.failures + self.overloads + self.cancelled
    }
}

impl Record {
    const fn new() -> Self {
        Record {
            clients: Crowd::new(),
            failing: Crowd::new(),
            window: Window::new(),
            histogram: Histogram::new(),
            streams: Streams {
                ended: AtomicU64::new(0),
                first_byte_micros: AtomicU64::new(0),
                rest_micros: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
            },
            successes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            overloads: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            assigned: AtomicU64::new(0),
            bound_clients: BoundClients {
                number: Decaying::new(),
                stay: AtomicU32::new(0),
            },
            trials: Trials::new(),
        }
    }

    /// Visits the [learnt](crate::learnt) words. Counters that only grow, and are shown, begin anew.
    pub(crate) fn visit_words<'a>(&'a self, visit: Visit<'_, 'a>) {
        self.clients.words("record.clients", visit);
        self.failing.words("record.failing", visit);
        self.bound_clients.visit_words(visit);
        for bucket in &self.window.buckets {
            visit("record.window", LearntSlot::Long(bucket));
        }
    }

    /// True if a [learnt](crate::learnt) word of that name belongs to a record.
    pub(crate) fn has_word(name: &str) -> bool {
        name.starts_with("record.") || name.starts_with("bound_clients.")
    }

    /// Requests that are over, by how they ended.
    pub fn request_totals(&self) -> Totals {
        Totals {
            successes: self.successes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            overloads: self.overloads.load(Ordering::Relaxed),
            cancelled: self.cancelled.load(Ordering::Relaxed),
        }
    }

    /// Trials of the member while it was ejected or got hardly any requests after a failure, by their ends.
    pub fn trial_totals(&self) -> TrialTotals {
        self.trials.totals()
    }

    /// Returns the sums over streams.
    pub fn streams(&self) -> StreamTotals {
        let streams = &self.streams;
        let micros = |sum: &AtomicU64| Duration::from_micros(sum.load(Ordering::Relaxed));
        StreamTotals {
            ended_streams: streams.ended.load(Ordering::Relaxed),
            first_byte: micros(&streams.first_byte_micros),
            remaining_time: micros(&streams.rest_micros),
            bytes: streams.bytes.load(Ordering::Relaxed),
        }
    }

    /// Exact counts of the last `span`, whole seconds, the running one included; at
    /// most [`Window::SECONDS`].
    pub fn recent(&self, now: Instant, span: Duration) -> Recent {
        self.window.sum(now, span)
    }

    /// Latencies so far. The difference of two snapshots has the quantiles of the time
    /// between them.
    pub fn latencies(&self) -> Latencies {
        self.histogram.copy_latencies()
    }

    /// True if there was no latency since `earlier`, a snapshot of this member.
    pub fn has_latencies_of(&self, earlier: &Latencies) -> bool {
        self.histogram.is_like(earlier)
    }

    /// Adds the latencies since `earlier`, a snapshot of this member, to `sum`: what
    /// [`Latencies::since`] and [`Latencies::merge`] do together, without copies.
    pub fn add_latencies_since(&self, earlier: &Latencies, sum: &mut Latencies) {
        self.histogram.add_since(earlier, sum);
    }

    /// Clients that were ever sent to the member, to go there themselves.
    pub fn assigned(&self) -> u64 {
        self.assigned.load(Ordering::Relaxed)
    }

    /// Clients that it has answered or failed of late, and those that it has failed: each client
    /// has one of 64 bits.
    pub fn recent_clients(&self, now: Instant) -> (u64, u64) {
        (self.clients.bits(now), self.failing.bits(now))
    }

    /// Counts a client that goes to the member itself, for at most `stay`.
    pub(crate) fn count_assigned(&self, stay: Duration, now: Instant) {
        self.assigned.fetch_add(1, Ordering::Relaxed);
        self.bound_clients.add_client(stay, now);
    }

    /// The member has answered a client, or failed it.
    pub(crate) fn note_client(&self, bit: u64, failed: bool, now: Instant) {
        self.clients.add(bit, now);
        if failed {
            self.failing.add(bit, now);
        }
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Success => &self.successes,
            Outcome::Failure | Outcome::Error => &self.failures,
            Outcome::Overloaded { .. } => &self.overloads,
            Outcome::Cancelled => &self.cancelled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Responses whose first byte came after their head, summed up. The sums only ever grow.
#[derive(Debug)]
pub(crate) struct Streams {
    ended: AtomicU64,
    first_byte_micros: AtomicU64,
    rest_micros: AtomicU64,
    bytes: AtomicU64,
}

/// A moment's copy of what [`Record::streams`] counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Streams that have come to their ends.
    pub ended_streams: u64,
    /// Sum of the times to their first bytes.
    pub first_byte: Duration,
    /// Sum of the times from there to their ends, less those in which members waited for clients.
    pub remaining_time: Duration,
    /// Bytes that clients got of them.
    pub bytes: u64,
}

impl Streams {
    pub(crate) fn add_stream(&self, first_byte: Duration, rest: Duration) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.first_byte_micros
            .fetch_add(micros(first_byte), Ordering::Relaxed);
        self.rest_micros.fetch_add(micros(rest), Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl StreamTotals {
    /// Returns the difference to `earlier`, an earlier copy of the same member's latencies.
    #[must_use]
    pub fn since(&self, earlier: &StreamTotals) -> StreamTotals {
        StreamTotals {
            ended_streams: self.ended_streams.saturating_sub(earlier.ended_streams),
            first_byte: self.first_byte.saturating_sub(earlier.first_byte),
            remaining_time: self.remaining_time.saturating_sub(earlier.remaining_time),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }

    /// Adds the latencies of another time, or of another member.
    pub fn add_totals(&mut self, other: &StreamTotals) {
        self.ended_streams += other.ended_streams;
        self.first_byte = self.first_byte.saturating_add(other.first_byte);
        self.remaining_time = self.remaining_time.saturating_add(other.remaining_time);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }

    /// Mean time to the first byte; `None` without a stream.
    pub fn mean_first_byte(&self) -> Option<Duration> {
        (self.ended_streams > 0).then(|| self.first_byte.div_f64(self.ended_streams as f64))
    }

    /// Mean pace after the first byte in bytes per second; `None` if the streams took no time.
    pub fn pace(&self) -> Option<f64> {
        let seconds = self.remaining_time.as_secs_f64();
        (seconds > 0.0).then(|| self.bytes as f64 / seconds)
    }
}

/// Successes and failures per second for the last minute.
#[derive(Debug)]
pub struct Window {
    /// The second modulo 2^20 (high 20 bits), all requests (22), failures (22).
    buckets: [AtomicU64; Window::SECONDS],
}

/// Counts of [`Record::recent`]. Cancelled requests are in neither number; every other end that is not a success counts
/// as a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// Requests with a verdict about the member.
    pub total: u32,
    /// Requests that failed, or that the member refused because of overload.
    pub failures: u32,
}

impl Window {
    const fn new() -> Self {
        Window {
            buckets: [const { AtomicU64::new(0) }; Window::SECONDS],
        }
    }

    /// Reach of the window into the past.
    pub const SECONDS: usize = 64;

    const COUNT_BITS: u32 = 22;
    const COUNT_MASK: u64 = (1 << Self::COUNT_BITS) - 1;
    const TAG_BITS: u32 = 64 - 2 * Self::COUNT_BITS;

    /// Tells a bucket's second from earlier ones: repeats after 12 days.
    fn tag(second: u64) -> u64 {
        second & ((1 << Self::TAG_BITS) - 1)
    }

    fn add(&self, total: u64, failures: u64, now: Instant) {
        let second = now.as_nanos() / 1_000_000_000;
        let tag = Self::tag(second);
        let bucket = &self.buckets[second as usize % Self::SECONDS];
        let increment = (total << Self::COUNT_BITS) | failures;
        let mut word = bucket.load(Ordering::Relaxed);
        while word >> (2 * Self::COUNT_BITS) != tag {
            let fresh = (tag << (2 * Self::COUNT_BITS)) | increment;
            match bucket.compare_exchange_weak(word, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => word = other,
            }
        }
        // Four million a second would carry into the neighbour: stop counting before.
        let full = Self::COUNT_MASK - 1024;
        if (word >> Self::COUNT_BITS) & Self::COUNT_MASK < full && word & Self::COUNT_MASK < full {
            bucket.fetch_add(increment, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self, now: Instant, success: bool) {
        self.add(1, u64::from(!success), now);
    }

    /// A request that was counted as a success has failed after all.
    pub(crate) fn turn_into_failure(&self, now: Instant) {
        self.add(0, 1, now);
    }

    fn sum(&self, now: Instant, span: Duration) -> Recent {
        let second = now.as_nanos() / 1_000_000_000;
        let seconds = span.as_secs().clamp(1, Self::SECONDS as u64);
        let mut recent = Recent::default();
        for back in 0..seconds.min(second + 1) {
            let second = second - back;
            let word = self.buckets[second as usize % Self::SECONDS].load(Ordering::Relaxed);
            if word >> (2 * Self::COUNT_BITS) == Self::tag(second) {
                recent.total += ((word >> Self::COUNT_BITS) & Self::COUNT_MASK) as u32;
                recent.failures += (word & Self::COUNT_MASK) as u32;
            }
        }
        // An answer that broke off may have been counted as a success before the span.
        recent.total = recent.total.max(recent.failures);
        recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECAY: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_average_jumps_to_peaks_and_falls_slowly() {
        let average = Decaying::default();
        assert_eq!(average.get(at(0), DECAY), None);
        average.sample(0.010, at(1000), DECAY);
        average.sample(0.200, at(1100), DECAY);
        assert_eq!(average.get(at(1100), DECAY), Some(0.200));
        average.sample(0.010, at(2100), DECAY);
        let expected = 0.2 * libm::expf(-0.1) + 0.01 * (1.0 - libm::expf(-0.1));
        let got = average.get(at(2100), DECAY).unwrap();
        assert!((got - expected).abs() < 1e-3, "{got} {expected}");
    }

    #[test]
    fn the_average_decays_without_samples() {
        let average = Decaying::default();
        average.sample(1.0, at(1000), DECAY);
        let later = average.get(at(11_000), DECAY).unwrap();
        assert!((later - libm::expf(-1.0)).abs() < 1e-3, "{later}");
    }

    #[test]
    fn many_samples_within_a_millisecond_still_lower_the_average() {
        let average = Decaying::default();
        average.sample(1.0, at(0), DECAY);
        for micros in (0..60_000_000).step_by(100) {
            average.sample(0.001, Instant::from_nanos(micros * 1000), DECAY);
        }
        let low = average.get(at(60_000), DECAY).unwrap();
        assert!(low < 0.01, "{low}");
    }

    #[test]
    fn a_late_sample_does_not_turn_time_back() {
        let average = Decaying::default();
        average.sample(1.0, at(5000), DECAY);
        average.sample(0.5, at(4000), DECAY);
        assert_eq!(average.get(at(5000), DECAY), Some(1.0));
    }

    #[test]
    fn the_failure_share_follows_failures_and_is_forgotten() {
        let share = FailureShare::default();
        share.add_outcome(true, at(0), DECAY);
        assert!((share.get(at(0), DECAY) - 0.0625).abs() < 1e-6);
        for i in 0..1000 {
            share.add_outcome(i % 2 == 0, at(i), DECAY);
        }
        let half = share.get(at(1000), DECAY);
        assert!((half - 0.5).abs() < 0.06, "{half}");
        assert!(share.get(at(31_000), DECAY) < 0.03);
        for i in 0..1000 {
            share.add_outcome(false, at(1000 + i), DECAY);
        }
        assert_eq!(share.get(at(2000), DECAY), 0.0);
    }

    #[test]
    fn the_window_counts_exactly_and_forgets() {
        let window = Window::new();
        for i in 0..100 {
            window.count(at(10_000 + i * 10), i % 4 != 0);
        }
        let recent = window.sum(at(10_999), Duration::from_secs(1));
        assert_eq!(
            recent,
            Recent {
                total: 100,
                failures: 25
            }
        );
        window.count(at(11_000), true);
        let recent = window.sum(at(11_000), Duration::from_secs(2));
        assert_eq!(
            recent,
            Recent {
                total: 101,
                failures: 25
            }
        );
        let recent = window.sum(at(75_500), Duration::from_secs(64));
        assert_eq!(recent, Recent::default());
        // The bucket of second 10 is used again by second 74.
        window.count(at(74_000), false);
        let recent = window.sum(at(74_000), Duration::from_secs(64));
        assert_eq!(
            recent,
            Recent {
                total: 2,
                failures: 1
            }
        );
    }
}
