//! Course of a request, for counters, logs and traces.

use std::time::Duration;

use evenkeel_core::group::Ticket;
use evenkeel_core::time::Instant;

use crate::access::{End, Hedged, Limit, MemberAttempts};

/// Course of a request: how it ended, and what it took.
pub(super) struct Summary {
    pub(super) end: End,
    /// The status that the client got.
    pub(super) status: Option<u16>,
    pub(super) tries: Option<Box<MemberAttempts>>,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) response_time: Option<Duration>,
    /// Time at which the head of the member's response had arrived.
    pub(super) answered: Option<Instant>,
    pub(super) retries: u32,
    pub(super) limit: Option<Limit>,
    pub(super) hedged: Option<Hedged>,
}

impl Summary {
    pub(super) fn new(end: End) -> Self {
        Summary {
            end,
            status: None,
            tries: None,
            received: 0,
            sent: 0,
            response_time: None,
            answered: None,
            retries: 0,
            limit: None,
            hedged: None,
        }
    }

    /// Has the log say when the first byte of the body came, if that was after the head.
    pub(super) fn note_first_byte(&mut self, ticket: &Ticket) {
        if let Some(tries) = &mut self.tries {
            tries.first_byte = ticket.first_byte();
        }
    }
}
