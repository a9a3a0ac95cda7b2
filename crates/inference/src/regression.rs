//! Decaying linear regression in atomic words.
//!
//! Workers write without regard to others that write at the same time: a sample more or less does not matter.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most samples that count.
const MOST_SAMPLES: f32 = 64.0;

/// Samples that are left after a long silence: enough to be a rough guess.
const LEAST_SAMPLES: f32 = 8.0;

/// Words of a regression.
pub(crate) const REGRESSION_WORDS: usize = 4;

/// Regression of one quantity on another one.
#[derive(Debug, Default)]
pub(crate) struct Regression {
    /// Means (f32 bits, `x` in the high half).
    means: AtomicU64,
    /// Variance of `x`, and covariance.
    spreads: AtomicU64,
    /// Samples that count (f32 bits).
    samples: AtomicU32,
    /// Time of the last sample, in nanoseconds.
    sampled_at: AtomicU64,
}

/// Moments of a regression.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moments {
    pub(crate) samples: f32,
    pub(crate) mean_x: f32,
    pub(crate) mean_y: f32,
    pub(crate) variance: f32,
    pub(crate) covariance: f32,
}

impl Regression {
    /// Takes a sample. Samples fade with time: `decay_seconds` is the time after which they count for a third.
    pub(crate) fn add_sample(&self, x: f32, y: f32, now_nanos: u64, decay_seconds: f32) {
        if !(x.is_finite() && y.is_finite()) {
            return;
        }
        let before = self.sampled_at.swap(now_nanos, Ordering::Relaxed);
        let silence = now_nanos.saturating_sub(before) as f32 / 1e9;
        let mut held = self.read_moments();
        let faded = held.samples * libm::expf(-silence / decay_seconds.max(1e-3));
        let samples = faded.max(held.samples.min(LEAST_SAMPLES)) + 1.0;
        held.samples = samples.min(MOST_SAMPLES);
        let share = 1.0 / held.samples;
        let (dx, dy) = (x - held.mean_x, y - held.mean_y);
        held.mean_x += share * dx;
        held.mean_y += share * dy;
        // Nothing at the first sample, which is the mean.
        held.variance += share * (dx * (x - held.mean_x) - held.variance);
        held.covariance += share * (dx * (y - held.mean_y) - held.covariance);
        self.set_moments(&held);
    }

    /// Moments whose samples fade with the time since the last one: with a third of them left after `stale_seconds`.
    pub(crate) fn read_faded(&self, now_nanos: u64, stale_seconds: f32) -> Moments {
        let mut moments = self.read_moments();
        if moments.samples == 0.0 {
            return moments;
        }
        let before = self.sampled_at.load(Ordering::Relaxed);
        let silence = now_nanos.saturating_sub(before) as f32 / 1e9;
        moments.samples *= libm::expf(-silence / stale_seconds.max(1e-3));
        moments
    }

    /// Forgets all samples.
    pub(crate) fn clear(&self) {
        self.set_moments(&Moments::default());
    }

    /// Words for the process that takes the place of this one.
    pub(crate) fn export_words(&self) -> [u64; REGRESSION_WORDS] {
        [
            self.means.load(Ordering::Relaxed),
            self.spreads.load(Ordering::Relaxed),
            u64::from(self.samples.load(Ordering::Relaxed)),
            self.sampled_at.load(Ordering::Relaxed),
        ]
    }

    /// Restores the words of another process, if they are moments of samples.
    pub(crate) fn import_words(&self, words: &[u64; REGRESSION_WORDS]) {
        let [means, spreads, samples, sampled_at] = *words;
        let (mean_x, mean_y) = unpack_pair(means);
        let (variance, covariance) = unpack_pair(spreads);
        let samples = f32::from_bits(u32::try_from(samples).unwrap_or(0));
        let are_plausible = [mean_x, mean_y, variance].iter().all(|value| *value >= 0.0)
            && (0.0..=MOST_SAMPLES).contains(&samples);
        if are_plausible {
            self.sampled_at.store(sampled_at, Ordering::Relaxed);
            self.set_moments(&Moments {
                samples,
                mean_x,
                mean_y,
                variance,
                covariance,
            });
        }
    }

    pub(crate) fn read_moments(&self) -> Moments {
        let (mean_x, mean_y) = unpack_pair(self.means.load(Ordering::Relaxed));
        let (variance, covariance) = unpack_pair(self.spreads.load(Ordering::Relaxed));
        Moments {
            samples: f32::from_bits(self.samples.load(Ordering::Relaxed)),
            mean_x,
            mean_y,
            variance,
            covariance,
        }
    }

    fn set_moments(&self, held: &Moments) {
        let values = [
            held.samples,
            held.mean_x,
            held.mean_y,
            held.variance,
            held.covariance,
        ];
        // Sums of huge numbers overflow: such a sample does not count.
        if values.iter().all(|value| value.is_finite()) {
            self.means
                .store(pack_pair(held.mean_x, held.mean_y), Ordering::Relaxed);
            self.spreads
                .store(pack_pair(held.variance, held.covariance), Ordering::Relaxed);
            self.samples
                .store(held.samples.to_bits(), Ordering::Relaxed);
        }
    }
}

pub(crate) fn pack_pair(high: f32, low: f32) -> u64 {
    (u64::from(high.to_bits()) << 32) | u64::from(low.to_bits())
}

pub(crate) fn unpack_pair(word: u64) -> (f32, f32) {
    (
        f32::from_bits((word >> 32) as u32),
        f32::from_bits(word as u32),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_found_and_a_change_is_followed() {
        let regression = Regression::default();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut slope_after = |slope: f32, samples: u64| {
            for _ in 0..samples {
                let x = rng.f32() * 10.0;
                regression.add_sample(x, 3.0 + slope * x, 0, 10.0);
            }
            let moments = regression.read_moments();
            moments.covariance / moments.variance
        };
        let slope = slope_after(2.0, 100);
        assert!((slope - 2.0).abs() < 0.01, "{slope}");
        let slope = slope_after(8.0, 400);
        assert!((slope - 8.0).abs() < 0.3, "{slope}");
    }

    #[test]
    fn samples_fade() {
        let regression = Regression::default();
        for _ in 0..100 {
            regression.add_sample(1.0, 1.0, 0, 10.0);
        }
        assert_eq!(regression.read_moments().samples, MOST_SAMPLES);
        let faded = regression.read_faded(10_000_000_000, 10.0).samples;
        assert!((faded / MOST_SAMPLES - 0.368).abs() < 0.001);
        regression.add_sample(1.0, 2.0, 1_000_000_000_000, 10.0);
        let moments = regression.read_moments();
        assert_eq!(moments.samples, LEAST_SAMPLES + 1.0);
        assert!((moments.mean_y - (1.0 + 1.0 / 9.0)).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn moments_stay_finite(samples in prop::collection::vec((any::<f32>(), any::<f32>(), any::<u64>()), 0..50)) {
            let regression = Regression::default();
            for (x, y, now) in samples {
                regression.add_sample(x, y, now, 10.0);
                let Moments { samples, mean_x, mean_y, variance, covariance } = regression.read_moments();
                for value in [samples, mean_x, mean_y, variance, covariance] {
                    prop_assert!(value.is_finite());
                }
            }
        }
    }
}
