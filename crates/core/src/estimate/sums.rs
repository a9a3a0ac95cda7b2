//! Answers that another program has summed up, and requests that wait there.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{
    COUNT_BITS, COUNT_MASK, Estimate, LEAST_NEWS, OUTLIER, Reach, STALE_ANSWERS, UNIT, fade,
    higher, lower, pack, units, unpack,
};
use crate::time::{Instant, millis};

impl Estimate {
    /// Takes `count` latencies of successes at once, which have the mean `latency` and have come since the last answer.
    /// With the requests that they have found at the member, they count for `places` requests each, on average. The result
    /// is that of as many calls of [`Estimate::sample_latency`] with the mean, at even distances: the sum of a geometric
    /// series.
    pub(crate) fn sample_latencies(
        &self,
        (count, latency): (u32, Duration),
        places: f32,
        in_flight: f32,
        now: Instant,
        decay: Duration,
        reach: Reach,
    ) {
        let count = count.max(1) as f32;
        let latency = latency.as_secs_f32().max(1e-6);
        let stale = self.is_stale(in_flight, now, decay);
        let silence = self.silence(now);
        let fade = fade(silence, decay);
        let distance = silence.as_secs_f32() / count;
        let news = higher(lower(distance / latency, 1.0), LEAST_NEWS);
        let at_once = lower(count, reach.answers);
        let update = |sums: u64| {
            let (latencies, sum) = unpack(sums);
            if sum <= 0.0 {
                return Some(pack(latency * at_once, places * at_once));
            }
            let service = latencies / sum;
            let share = match latency > reach.surprise * service * places {
                true => news,
                false => 1.0,
            };
            let latency = latency.min(OUTLIER * service * places);
            if !stale {
                let keep = libm::powf(1.0 - share / reach.answers, count);
                let added = reach.answers * (1.0 - keep);
                let latencies = latencies * keep + latency * added;
                return Some(pack(latencies, sum * keep + places * added));
            }
            // Slowness of long ago has faded, down to the present latency.
            let service = service.min((service * fade).max(latency / places));
            let sum = sum.min(STALE_ANSWERS * places);
            let latencies = service * sum + latency * at_once;
            Some(pack(latencies, sum + places * at_once))
        };
        let _ = self
            .sums
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        self.answered_at.store(millis(now), Ordering::Relaxed);
    }

    /// Replaces unanswered requests of another program, by words of [`write_awaited`].
    pub(crate) fn replace_awaited(&self, before: u64, after: u64) {
        let change = after.wrapping_sub(before);
        self.unanswered.fetch_add(change, Ordering::Relaxed);
    }
}

/// Returns `count` unanswered requests, which together have waited for `ages` at `now`, as the estimate counts them.
pub(crate) fn write_awaited(count: u32, ages: Duration, now: Instant) -> u64 {
    let count = u64::from(count) & COUNT_MASK;
    let ages = u64::try_from(ages.as_nanos()).unwrap_or(u64::MAX) / UNIT;
    let begun = count.wrapping_mul(units(now)).wrapping_sub(ages);
    begun << COUNT_BITS | count
}

/// Requests of a member with an answer, summed up since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestSums {
    /// Number of the requests.
    pub answered: u32,
    /// Sum of their latencies, from the beginning of the request to the beginning of the answer.
    pub latency: Duration,
    /// Sum of the numbers of requests that each has found at the member.
    pub others: u64,
    /// Latency of one of the requests, and the requests that this one has found.
    pub example: (Duration, u32),
}
