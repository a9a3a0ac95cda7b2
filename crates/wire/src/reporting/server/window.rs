//! Which messages of an agent have come: what is late, repeated or lost.

use super::Outcome;

/// Which sequence numbers of an agent have come, as far as it matters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) last: u64,
    /// Bit n is set if `last - n` has come.
    pub(super) seen: u64,
    /// Numbers up to `last` that have not come.
    pub(super) lost: u64,
}

impl Window {
    pub(super) fn new(first: u64) -> Self {
        Window {
            last: first,
            seen: 1,
            lost: 0,
        }
    }

    /// Whether `sequence` comes after all that came, or else why it is of no use.
    pub(super) fn look(&mut self, sequence: u64) -> Result<(), Outcome> {
        let Some(back) = self.last.checked_sub(sequence) else {
            return Ok(());
        };
        let bit = match back {
            0..64 => 1 << back,
            _ => return Err(Outcome::Replayed),
        };
        if self.seen & bit != 0 {
            return Err(Outcome::Duplicate);
        }
        self.seen |= bit;
        self.lost = self.lost.saturating_sub(1);
        Err(Outcome::Reordered)
    }

    /// Notes that `sequence` has come; answers whether that is after all others.
    pub(super) fn take(&mut self, sequence: u64) -> bool {
        let Some(step @ 1..) = sequence.checked_sub(self.last) else {
            return false;
        };
        let shift = u32::try_from(step).unwrap_or(u32::MAX);
        self.seen = self.seen.checked_shl(shift).unwrap_or(0) | 1;
        self.lost = self.lost.saturating_add(step - 1);
        self.last = sequence;
        true
    }
}
