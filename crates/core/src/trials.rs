//! Trials: requests that ask a member that is ejected, or gets hardly any requests after a failure, whether it is well again.
//!
//! A round of control grants a trial; the next request that can be sent again takes the trial, and reports its end.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Trials of a member: those granted, those under way, and those that are over.
#[derive(Debug)]
pub struct Trials {
    /// Trials that are granted and that no request has taken.
    granted: AtomicU32,
    open: AtomicU32,
    sent: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
}

/// Trials of a member since the process began, by their ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialTotals {
    /// Number of trials that requests have taken.
    pub sent: u64,
    /// Number of trials that the member has answered well.
    pub succeeded: u64,
    /// Number of trials that the member has failed.
    pub failed: u64,
}

impl Trials {
    /// Trials of a member that was never tried.
    pub(crate) const fn new() -> Self {
        Trials {
            granted: AtomicU32::new(0),
            open: AtomicU32::new(0),
            sent: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Sets the number of trials that requests may take.
    pub fn grant_trials(&self, count: u32) {
        self.granted.store(count, Ordering::Relaxed);
    }

    /// Number of trials that are granted, or under way.
    pub fn pending(&self) -> u32 {
        let open = self.open.load(Ordering::Relaxed);
        self.granted.load(Ordering::Relaxed).saturating_add(open)
    }

    /// Trials since the process began.
    pub fn totals(&self) -> TrialTotals {
        TrialTotals {
            sent: self.sent.load(Ordering::Relaxed),
            succeeded: self.succeeded.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    /// Takes a trial that is granted. Returns true if there was one.
    pub(crate) fn take_trial(&self) -> bool {
        let less = |granted: u32| granted.checked_sub(1);
        let taken = self
            .granted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if taken.is_ok() {
            self.open.fetch_add(1, Ordering::Relaxed);
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Ends a trial that a request has taken: `is_well` says how the member has answered, and `None` that nothing is
    /// known.
    pub(crate) fn end_trial(&self, is_well: Option<bool>) {
        if let Some(is_well) = is_well {
            self.count_end(is_well);
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an answer to a trial.
    pub(crate) fn count_end(&self, is_well: bool) {
        let counter = match is_well {
            true => &self.succeeded,
            false => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
