//! A trial under way: a request that asks a member that is ejected, or gets hardly any requests after a failure, whether it is well again.

use std::sync::Arc;
use std::time::Duration;

use super::ticket::Ticket;
use crate::member::Slot;

/// Least time in which a member must begin to answer a trial.
const LEAST_TIME: Duration = Duration::from_secs(1);

/// Factor by which an answer to a trial may take longer than the slowest recent answer of the other members.
const SLOWNESS: f32 = 8.0;

/// A trial under way. Dropping a trial without an end says nothing of the member.
#[derive(Debug)]
pub struct Trial {
    slot: Arc<Slot>,
    is_open: bool,
    has_failed: bool,
}

impl Trial {
    /// Takes a trial of a member, if the member has one.
    pub(super) fn take_of(slot: &Arc<Slot>) -> Option<Self> {
        let is_taken = slot.has_record() && slot.trials().take_trial();
        is_taken.then(|| Trial {
            slot: Arc::clone(slot),
            is_open: true,
            has_failed: false,
        })
    }

    /// The member has answered well.
    pub fn succeed(&mut self) {
        self.end(Some(true));
    }

    /// The member has failed; also after an answer that had begun well and was broken off. Only the first call counts.
    pub fn fail(&mut self) {
        if std::mem::replace(&mut self.has_failed, true) {
            return;
        }
        match self.is_open {
            true => self.end(Some(false)),
            false => self.slot.trials().count_end(false),
        }
    }

    fn end(&mut self, is_well: Option<bool>) {
        if std::mem::take(&mut self.is_open) {
            self.slot.trials().end_trial(is_well);
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// A request that is bound to a member for a trial.
#[derive(Debug)]
pub struct BoundTrial {
    /// The request at the member.
    pub ticket: Ticket,
    /// The trial that the request has taken.
    pub trial: Trial,
    /// Time in which the member must begin to answer.
    pub time: Duration,
}

/// Returns the time in which a member must begin to answer a trial, if the slowest recent answer of the other members
/// took `slowest` seconds.
pub(super) fn time_to_answer(slowest: f32) -> Duration {
    let usual = Duration::try_from_secs_f32(SLOWNESS * slowest).unwrap_or(Duration::MAX);
    usual.max(LEAST_TIME)
}
