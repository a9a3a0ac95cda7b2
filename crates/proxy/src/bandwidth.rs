//! Bytes per second of a rule, and of a connection: flows that are ahead of a rate pause until the next sweep.

use evenkeel_control::pace::Pace;

use crate::metrics::Counter;
use crate::watch::{TICK, Watch};

/// Both directions: of a rule, of all workers together; or of a connection with all its streams.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    pub(crate) from_clients: Pace,
    pub(crate) to_clients: Pace,
}

/// A flow that moves fewer bytes at a time costs more than it helps others.
const LEAST: u64 = 4096;

/// Number of parts into which the bytes that may pass between two sweeps are divided. A flow takes
/// one part at once: other flows come in between.
const PARTS: u64 = 80;

/// Allowance of one flow whose bandwidth is limited.
pub(crate) struct Gate<'a> {
    /// Paces of the rule and of its connection, each with its rate: a pace counts the bytes that
    /// have passed.
    pub(crate) paces: [Option<(&'a Pace, u64)>; 2],
    pub(crate) watch: &'a Watch,
    /// Number of pauses of the rule.
    pub(crate) pauses: &'a Counter,
}

impl Gate<'_> {
    /// About how many bytes may pass now, before others get their turn. If it is 0, the task is woken
    /// when there may be more.
    pub(crate) fn bytes_allowed(&self) -> u64 {
        let ahead = TICK.mul_f32(self.watch.jitter_factor());
        let now = self.watch.coarse_now();
        let mut paces = self.paces.iter().flatten();
        if paces.any(|(pace, _)| !pace.is_open(now, ahead)) {
            self.watch.nap_until_sweep();
            self.pauses.add(1);
            return 0;
        }
        let rates = self.paces.iter().flatten().map(|(_, rate)| rate / PARTS);
        rates.min().unwrap_or(u64::MAX).max(LEAST)
    }

    /// Notes what has passed.
    pub(crate) fn count_passed(&self, bytes: u64) {
        if bytes > 0 {
            for (pace, rate) in self.paces.iter().flatten() {
                pace.count_bytes(bytes, *rate, self.watch.coarse_now());
            }
        }
    }
}
