//! Window of a peer's messages: which have come, and what is late, repeated or lost.

/// Sequence numbers of a peer that have come, as far as it matters.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Highest number that has come.
    pub last: u64,
    /// Bit n is set if `last - n` has come.
    pub seen_mask: u64,
    /// Numbers up to `last` that have not come.
    pub lost: u64,
}

/// Reason why a message is not the latest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowError {
    /// The message came before.
    Duplicate,
    /// A later one came before it.
    Reordered,
    /// The message is so old that the network cannot have kept it.
    Replayed,
}

impl Window {
    /// Returns the window of a peer whose first message is there, and no other one.
    pub fn new(first: u64) -> Self {
        Window {
            last: first,
            seen_mask: 1,
            lost: 0,
        }
    }

    /// Checks that `sequence` comes after all that came. A sequence number that is late, but has
    /// not come before, counts as come from now on.
    ///
    /// # Errors
    ///
    /// `sequence` does not come after all that came: the error says why not.
    pub fn check_sequence(&mut self, sequence: u64) -> Result<(), WindowError> {
        let Some(back) = self.last.checked_sub(sequence) else {
            return Ok(());
        };
        let bit = match back {
            0..64 => 1 << back,
            _ => return Err(WindowError::Replayed),
        };
        if self.seen_mask & bit != 0 {
            return Err(WindowError::Duplicate);
        }
        self.seen_mask |= bit;
        self.lost = self.lost.saturating_sub(1);
        Err(WindowError::Reordered)
    }

    /// Notes that `sequence` has come; answers whether that is after all others.
    pub fn take(&mut self, sequence: u64) -> bool {
        let Some(step @ 1..) = sequence.checked_sub(self.last) else {
            return false;
        };
        let shift = u32::try_from(step).unwrap_or(u32::MAX);
        self.seen_mask = self.seen_mask.checked_shl(shift).unwrap_or(0) | 1;
        self.lost = self.lost.saturating_add(step - 1);
        self.last = sequence;
        true
    }
}
