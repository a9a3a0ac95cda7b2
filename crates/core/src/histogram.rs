//! Latencies of a member: a histogram that requests add to, and copies of it with quantiles.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Latencies in buckets that grow with them: 16 per power of two, so that a quantile
/// is off by at most 3.2 %. From 1 us to 67 s; longer ones count as 67 s.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: [AtomicU32; BUCKETS],
    micros: AtomicU64,
}

const SUB_BITS: u32 = 4;
const OCTAVES: usize = 22;
const BUCKETS: usize = (OCTAVES + 1) << SUB_BITS;

impl Default for Histogram {
    fn default() -> Self {
        Histogram::new()
    }
}

impl Histogram {
    /// Histogram without latencies.
    pub(crate) const fn new() -> Self {
        Histogram {
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
            micros: AtomicU64::new(0),
        }
    }

    /// True if no latency was added since `earlier`, an earlier copy.
    pub(crate) fn is_like(&self, earlier: &Latencies) -> bool {
        let mut buckets = self.buckets.iter().zip(&earlier.buckets);
        self.micros.load(Ordering::Relaxed) == earlier.micros
            && buckets.all(|(now, then)| now.load(Ordering::Relaxed) == *then)
    }

    pub(crate) fn add_latency(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(micros)].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns a copy of the latencies so far.
    pub(crate) fn copy_latencies(&self) -> Latencies {
        Latencies {
            buckets: std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed)),
            micros: self.micros.load(Ordering::Relaxed),
        }
    }

    /// Adds the latencies since `earlier`, an earlier copy, to `sum`.
    pub(crate) fn add_since(&self, earlier: &Latencies, sum: &mut Latencies) {
        let counts = self.buckets.iter().zip(&earlier.buckets);
        for (sum, (now, then)) in sum.buckets.iter_mut().zip(counts) {
            let more = now.load(Ordering::Relaxed).wrapping_sub(*then);
            *sum = sum.wrapping_add(more);
        }
        let micros = self.micros.load(Ordering::Relaxed);
        let more = micros.wrapping_sub(earlier.micros);
        sum.micros = sum.micros.wrapping_add(more);
    }
}

/// The bucket of a latency.
fn bucket(micros: u64) -> usize {
    let linear = 1 << SUB_BITS;
    if micros < linear {
        return micros as usize;
    }
    let exponent = micros.ilog2() - SUB_BITS;
    let index = ((exponent as usize + 1) << SUB_BITS) + ((micros >> exponent) - linear) as usize;
    index.min(BUCKETS - 1)
}

/// The smallest latency of a bucket, in microseconds.
fn lower_bound(bucket: usize) -> u64 {
    let linear = 1 << SUB_BITS;
    if bucket < linear {
        return bucket as u64;
    }
    let exponent = (bucket >> SUB_BITS) - 1;
    ((linear + bucket % linear) as u64) << exponent
}

/// A moment's copy of a member's latencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    buckets: [u32; BUCKETS],
    micros: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies::new()
    }
}

impl Latencies {
    /// No latencies.
    pub const fn new() -> Self {
        Latencies {
            buckets: [0; BUCKETS],
            micros: 0,
        }
    }

    /// Latencies that were added since `earlier`, a snapshot of the same member.
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        Latencies {
            buckets: std::array::from_fn(|i| self.buckets[i].wrapping_sub(earlier.buckets[i])),
            micros: self.micros.wrapping_sub(earlier.micros),
        }
    }

    /// Adds the latencies of another member, for the quantiles of a whole group.
    pub fn merge(&mut self, other: &Latencies) {
        for (sum, count) in self.buckets.iter_mut().zip(other.buckets) {
            *sum = sum.wrapping_add(count);
        }
        self.micros = self.micros.wrapping_add(other.micros);
    }

    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|&count| u64::from(count)).sum()
    }

    /// Sum of the latencies.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// The latency that a share `q` (0 to 1) of the requests did not exceed, at most
    /// 3.2 % off; `None` if there was no request.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|&count| {
            seen += u64::from(count);
            seen >= rank
        })?;
        let middle = (lower_bound(bucket) + lower_bound(bucket + 1).saturating_sub(1)) / 2;
        Some(Duration::from_micros(middle))
    }

    /// Number of latencies of at most `limit`, to the precision of the buckets, as in a Prometheus histogram.
    pub fn at_most(&self, limit: Duration) -> u64 {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        let last = bucket(micros);
        self.buckets[..=last]
            .iter()
            .map(|&count| u64::from(count))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_the_whole_range_in_order() {
        for index in 0..BUCKETS {
            assert_eq!(bucket(lower_bound(index)), index);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(lower_bound(BUCKETS) > 60_000_000);
        assert!(std::mem::size_of::<Histogram>() <= 4096);
    }

    #[test]
    fn the_difference_of_two_snapshots_has_the_quantiles_between_them() {
        let histogram = Histogram::default();
        for _ in 0..1000 {
            histogram.add_latency(Duration::from_secs(1));
        }
        let before = histogram.copy_latencies();
        for ms in 1..=100 {
            histogram.add_latency(Duration::from_millis(ms));
        }
        let between = histogram.copy_latencies().since(&before);
        assert_eq!(between.count(), 100);
        for (q, ms) in [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            let got = between.quantile(q).unwrap().as_secs_f64() * 1e3;
            assert!((got / ms - 1.0).abs() < 0.04, "{q}: {got} ms");
        }
        assert_eq!(between.sum(), Duration::from_millis(5050));
        let mut twice = between.clone();
        histogram.add_since(&before, &mut twice);
        let mut expected = between.clone();
        expected.merge(&between);
        assert_eq!(twice, expected);
        assert_eq!(Latencies::default().quantile(0.5), None);
    }
}
