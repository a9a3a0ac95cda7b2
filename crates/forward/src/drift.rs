//! Differences that stay between counts of the kernel and the table.

/// Number of sweeps in which a count must differ from the table in the same direction: counts change while the table is
/// read.
const SWEEPS: u32 = 8;

/// Difference between a count of the kernel and the table, over sweeps.
#[derive(Debug, Default)]
pub(crate) struct Drift {
    least: i64,
    sweeps: u32,
}

impl Drift {
    /// Takes the difference of a sweep. Returns true if it is to be corrected now: the difference is the least of several
    /// ones, which all had the same sign.
    pub(crate) fn is_due(&mut self, difference: i64) -> bool {
        if difference == 0 || (difference > 0) != (self.least > 0) {
            self.sweeps = 0;
        }
        if self.sweeps == 0 || difference.abs() < self.least.abs() {
            self.least = difference;
        }
        self.sweeps += u32::from(difference != 0);
        let is_due = self.sweeps >= SWEEPS && difference == self.least;
        if is_due {
            *self = Drift::default();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_corrected_once_it_stays() {
        let mut drift = Drift::default();
        // Noise around nothing.
        for difference in [1, -1, 2, 0, 1, 1, 1, -1, 3, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0] {
            assert!(!drift.is_due(difference), "{difference}");
        }
        // Noise around three.
        let due = [5, 4, 3, 4, 6, 3, 4, 5, 4, 3, 7].map(|difference| drift.is_due(difference));
        assert_eq!(due.iter().filter(|due| **due).count(), 1);
        assert!(due[9]);
        // A single one that stays.
        let mut drift = Drift::default();
        assert_eq!(
            (0..8).map(|_| drift.is_due(-1)).filter(|due| *due).count(),
            1
        );
    }
}
