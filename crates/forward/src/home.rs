//! Members as the program in the kernel has them.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_core::cost::Cost;
use evenkeel_core::group::{AnsweredRequests, Outcome, Ticket};
use evenkeel_core::member::Member;
use evenkeel_core::time::Instant;
use evenkeel_kernel::forward::{Pair, Terms};
use evenkeel_manager::snapshot::GroupHandle;

use crate::drift::Drift;
use crate::records::Target;
use crate::terms::{find_forwardable, free_terms};

/// Seat of a member.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) group: Arc<GroupHandle>,
    pub(crate) group_name: Arc<str>,
    pub(crate) cost: Cost,
    /// Index of the member in the group, as of the last round.
    pub(crate) index: usize,
    pub(crate) terms: Terms,
    /// Tickets of the member's connections, those that have answered included.
    pub(crate) tickets: u32,
    /// Connections that have answered.
    pub(crate) answered: AnsweredRequests,
    /// Connections that have answered since the last look at the table.
    pub(crate) answers: i64,
    /// Connections that have ended since then after their answers.
    pub(crate) ends: i64,
    /// Least number of answered connections that the last look found missing here; negative: too many.
    pub(crate) missing: i64,
    /// Difference between the kernel's count and the table.
    pub(crate) drift: Drift,
    /// True if a group of now has the member.
    pub(crate) is_used: bool,
}

impl Home {
    /// Returns the seat of a member that has no connections yet.
    pub(crate) fn new(group: Arc<GroupHandle>, group_name: Arc<str>, cost: Cost) -> Self {
        Home {
            group,
            group_name,
            cost,
            index: 0,
            terms: free_terms(),
            tickets: 0,
            answered: AnsweredRequests::default(),
            answers: 0,
            ends: 0,
            missing: 0,
            drift: Drift::default(),
            is_used: true,
        }
    }

    /// Counts a connection at the member; `None` if the member is at its limit, or no longer in the group.
    pub(crate) fn bind(&mut self, began: Instant) -> Option<Ticket> {
        let group = self.group.current.load();
        let (at, members) = (Some(self.terms.address), group.members());
        let is_here = |member: &Member| find_forwardable(&member.address) == at;
        // The group may be another one since the last round.
        let index = match members.get(self.index).is_some_and(is_here) {
            true => self.index,
            false => members.iter().position(is_here)?,
        };
        let ticket = group.bind_for(index, self.cost, began)?;
        self.tickets += 1;
        Some(ticket)
    }

    /// Ends an answered connection of `client`: somebody who waits in the group's queue may have its place. Returns false if
    /// there is none.
    pub(crate) fn end_answered(
        &mut self,
        outcome: Outcome,
        client: Option<IpAddr>,
        at: Instant,
    ) -> bool {
        let queue = &self.group.queue;
        let is_one = queue.vacate(|| self.answered.end_one(outcome, client, at));
        self.tickets = self.tickets.saturating_sub(u32::from(is_one));
        is_one
    }

    /// Corrects the number of answered connections, of which the table had `there` at the last look. Events since then
    /// may be of connections as the look has seen them or not, so there is a range of differences: what two looks in a
    /// row have found is corrected, and at the first look at once.
    pub(crate) fn correct_answered(&mut self, there: i64, is_first: bool, now: Instant) {
        let here = i64::try_from(self.answered.count()).unwrap_or(i64::MAX);
        let found = find_missing(there - here, self.answers, self.ends);
        let before = std::mem::replace(&mut self.missing, found);
        let by = match is_first {
            true => found,
            false if found.signum() == before.signum() => match found > 0 {
                true => found.min(before),
                false => found.max(before),
            },
            false => 0,
        };
        for _ in 0..by {
            let Some(ticket) = self.bind(now) else {
                break;
            };
            // A ticket without an answer is always taken.
            self.answered.add(ticket);
        }
        for _ in by..0 {
            self.end_answered(Outcome::Cancelled, None, now);
        }
        self.missing -= by;
    }

    /// Returns the member of a connection, as the access log names the member.
    pub(crate) fn find_target(&self, pair: Pair) -> Target {
        let group = self.group.current.load();
        let mut members = group.members().iter();
        let member = members.find(|member| find_forwardable(&member.address) == Some(pair.member));
        Target {
            group: Some(Arc::clone(&self.group_name)),
            member: match member {
                Some(member) => Arc::clone(&member.name),
                // The member is no longer in the group.
                None => pair.member.to_string().into(),
            },
            member_name: member.and_then(|member| member.given_name.clone()),
            cost: self.cost,
        }
    }
}

/// Returns the least number of answered connections that are missing at a seat, negative if there are too many: the
/// table had `difference` more than there are now, and `answers` and `ends` have come since the look began.
fn find_missing(difference: i64, answers: i64, ends: i64) -> i64 {
    // An end that the look had not seen yet makes the difference too large, and an answer too small.
    let (least, most) = (difference - ends, difference + answers);
    if least > 0 { least } else { most.min(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Events at any time around the look of a correct count change nothing; what is missing is found, but not more.
        #[test]
        fn what_is_missing_is_found_whenever_events_come(
            begun in 0..50i64,
            missing in -20..20i64,
            events in prop::collection::vec((any::<bool>(), any::<bool>()), 0..20),
        ) {
            // Each event is seen by the look or not, and by the count in any case.
            let (mut there, mut here) = (begun + missing, begun);
            let (mut answers, mut ends) = (0, 0);
            for (is_end, is_seen) in events {
                let by = if is_end { -1 } else { 1 };
                here += by;
                there += if is_seen { by } else { 0 };
                if is_end { ends += 1 } else { answers += 1 }
            }
            let found = find_missing(there - here, answers, ends);
            prop_assert!(found == 0 || found.signum() == missing.signum());
            prop_assert!(found.abs() <= missing.abs());
            if answers + ends == 0 {
                prop_assert_eq!(found, missing);
            }
        }
    }
}
