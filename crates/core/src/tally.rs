//! Counters for the kinds of something, such as the reasons for a failure.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter for each of `N` kinds. They start at 0 and only grow.
///
/// Kinds are the variants of an `enum`, counted by their place among them: `tally.add(kind as
/// usize)`.
#[derive(Debug)]
pub struct Tally<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Tally([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> Tally<N> {
    /// Counts one of the kind at `place`. Where there is none, nothing is counted.
    #[inline]
    pub fn count_at(&self, place: usize) {
        if let Some(count) = self.0.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of occurrences of each kind.
    pub fn totals(&self) -> [u64; N] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Number of occurrences of each kind, beside the kind: `all` are the variants in their order.
    pub fn totals_by_kind<K: Copy>(
        &self,
        all: &'static [K],
    ) -> impl Iterator<Item = (K, u64)> + use<K, N> {
        all.iter().copied().zip(self.totals())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_itself() {
        let tally = Tally::<3>::default();
        for place in [0, 2, 2, 3, usize::MAX] {
            tally.count_at(place);
        }
        assert_eq!(tally.totals(), [1, 0, 2]);
        let of: Vec<_> = tally.totals_by_kind(&['a', 'b', 'c']).collect();
        assert_eq!(of, [('a', 1), ('b', 0), ('c', 2)]);
    }
}
