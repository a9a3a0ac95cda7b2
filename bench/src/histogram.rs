//! Latencies in buckets that are at most 1/64 of their value wide.

/// Sub-buckets per power of two.
const STEPS: u64 = 64;

/// A histogram of nanoseconds: exact below 128, within 1.6 % above.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; bucket(u64::MAX) + 1],
            total: 0,
        }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
    }

    /// Counts all that another one has counted.
    pub fn add(&mut self, other: &Histogram) {
        let pairs = self.counts.iter_mut().zip(&other.counts);
        pairs.for_each(|(count, more)| *count += more);
        self.total += other.total;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// The value that `share` (0 to 1) of all values do not exceed; 0 without values.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_edge(index);
            }
        }
        0
    }
}

fn bucket(nanos: u64) -> usize {
    let shift = (nanos | STEPS).ilog2() - STEPS.ilog2();
    ((u64::from(shift) + 1) * STEPS + (nanos >> shift) - STEPS) as usize
}

fn upper_edge(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let shift = index / STEPS - 1;
    let first = (STEPS + index % STEPS) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_bucket_no_wider_than_a_64th() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..100_000 {
            let value = rng.u64(..) >> rng.u32(0..64);
            let edge = upper_edge(bucket(value));
            assert!(edge >= value, "{value} above its bucket's edge {edge}");
            assert!(
                edge - value <= value / 64,
                "{value} in a bucket up to {edge}"
            );
        }
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        for index in 0..bucket(u64::MAX) {
            assert_eq!(bucket(upper_edge(index) + 1), index + 1);
        }
    }

    #[test]
    fn quantiles_of_a_known_sample() {
        let mut histogram = Histogram::default();
        for value in 1..=100 {
            histogram.record(value);
        }
        assert_eq!(histogram.quantile(0.5), 50);
        assert_eq!(histogram.quantile(0.99), 99);
        assert_eq!(histogram.quantile(1.0), 100);
        histogram.clear();
        assert_eq!(histogram.quantile(0.5), 0);
    }
}
