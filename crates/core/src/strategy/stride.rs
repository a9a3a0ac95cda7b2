//! A smooth weighted schedule without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::best::Best;
use super::urn::Highest;
use crate::group::view::View;

/// Walks around the members in a fixed order. In each round a member whose weight is
/// the highest is taken, and one with a share `w` of that in every round in which the
/// multiple of `w` passes a whole number: evenly spaced, as Bresenham's line is.
///
/// All workers share one atomic sequence number, which is the whole state: it starts at
/// random, so that balancers that start together do not all begin with the same
/// member, or with the first one if the group is to be used in order. Weights are read as they are at each step. This is the static stride
/// scheduler of gRPC's client-side weighted round robin (gRPC proposal A58).
#[derive(Debug, Default)]
pub(super) struct Stride {
    /// Round times number of members plus position; 0 is not started.
    sequence: AtomicU64,
    highest: Highest,
}

impl Stride {
    /// The next eligible member by `weight`, which is positive for eligible ones.
    pub(super) fn next(
        &self,
        view: &View<'_>,
        rng: &mut fastrand::Rng,
        weight: impl Fn(usize) -> f32,
    ) -> Option<usize> {
        let len = view.len() as u64;
        if len == 0 {
            return None;
        }
        let mut rehearsed = self.start(view, rng);
        let mut step = || {
            if view.is_rehearsal() {
                rehearsed += 1;
                rehearsed - 1
            } else {
                self.sequence.fetch_add(1, Ordering::Relaxed)
            }
        };
        for _ in 0..2 {
            for _ in 0..2 * len + 8 {
                let sequence = step();
                let (round, index) = (sequence / len, (sequence % len) as usize);
                if !view.is_eligible(index) {
                    continue;
                }
                let weight = weight(index);
                let highest = self.highest.get();
                if weight >= highest {
                    if weight > highest {
                        self.highest.raise(weight);
                    }
                    return Some(index);
                }
                // In units of 2^-32; each member starts at another phase.
                let share = (f64::from(weight / highest) * (1u64 << 32) as f64) as u64;
                let phase = (index as u64).wrapping_mul(0x9E37_79B9);
                if round.wrapping_mul(share).wrapping_add(phase) & 0xFFFF_FFFF < share {
                    return Some(index);
                }
            }
            // Two rounds without a member: the highest weight is not what it was.
            let highest = view.eligible().map(&weight).fold(0.0, f32::max);
            self.highest.set(highest);
        }
        // Other workers had all the good steps.
        let mut best = Best::new(0.0);
        for index in view.eligible() {
            best.offer(index, 0.0, weight(index), rng);
        }
        best.index()
    }

    fn start(&self, view: &View<'_>, rng: &mut fastrand::Rng) -> u64 {
        let sequence = self.sequence.load(Ordering::Relaxed);
        if sequence != 0 {
            return sequence;
        }
        let first = match view.settings().in_order {
            true => view.len() as u64,
            false => u64::from(rng.u32(1..)),
        };
        let started =
            self.sequence
                .compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
        started.map_or_else(|sequence| sequence, |_| first)
    }
}
