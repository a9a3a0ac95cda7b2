//! Bytes per second of a rule: flows that are ahead of the rate pause until the next sweep.

use evenkeel_control::pace::Pace;

use crate::listen::Session;
use crate::watch::{TICK, Watch};

/// Both directions of a rule, of all workers together.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    from_clients: Pace,
    to_clients: Pace,
}

/// A flow that moves fewer bytes at a time costs more than it helps others.
const LEAST: u64 = 4096;

/// Parts of what may pass between two sweeps that one flow takes at once: others come in between.
const PARTS: u64 = 80;

/// What one flow of a rule with a bandwidth may do.
pub(crate) struct Gate<'a> {
    pace: &'a Pace,
    rate: u64,
    watch: &'a Watch,
}

impl Session {
    /// What stands before bytes of its rule that go from clients, and to them; `None` if nothing does.
    #[inline]
    pub(crate) fn gates(&self) -> Option<[Gate<'_>; 2]> {
        let rate = self.service.bandwidth().filter(|_| !self.is_apart)?;
        let paces = &self.service.shared.paces;
        let watch = &self.watch;
        let gate = |pace| Gate { pace, rate, watch };
        Some([&paces.from_clients, &paces.to_clients].map(gate))
    }
}

impl Gate<'_> {
    /// About how many bytes may pass now, before others get their turn. If it is 0, the task is woken
    /// when there may be more.
    pub(crate) fn open(&self) -> u64 {
        let ahead = TICK.mul_f32(self.watch.patience());
        if self.pace.is_open(self.watch.coarse_now(), ahead) {
            return (self.rate / PARTS).max(LEAST);
        }
        self.watch.nap();
        0
    }

    /// Notes what has passed.
    pub(crate) fn passed(&self, bytes: u64) {
        if bytes > 0 {
            self.pace.passed(bytes, self.rate, self.watch.coarse_now());
        }
    }
}
