//! Answered requests that stay in flight for long, as numbers instead of a ticket for each one.

use std::net::IpAddr;
use std::sync::Arc;

use super::ticket::{Kept, Ticket};
use crate::cost::Cost;
use crate::member::Slot;
use crate::observe::Outcome;
use crate::time::Instant;

/// Answered requests that are in flight at a member, counted instead of kept as one [`Ticket`] each. Requests of one
/// cost cannot be told from each other: the end of one is the end of any. Dropping this ends all of them as
/// [`Outcome::Cancelled`].
#[derive(Debug, Default)]
pub struct AnsweredRequests {
    /// More than one only after the member's slot or the cost has changed.
    parts: Vec<Part>,
}

/// Requests of one slot and one cost.
#[derive(Debug)]
struct Part {
    kept: Kept,
    count: usize,
}

impl Part {
    fn end_one(&mut self, outcome: Outcome, at: Option<Instant>) {
        self.count -= 1;
        self.kept.end_request(outcome, at);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        while self.count > 0 {
            self.end_one(Outcome::Cancelled, None);
        }
    }
}

impl AnsweredRequests {
    /// Takes over a request. The age of the request counts no longer, whether or not an answer was recorded. Gives the
    /// ticket back if it must be kept: the response is followed, the member has failed, or the request is one at an engine.
    pub fn add(&mut self, ticket: Ticket) -> Option<Ticket> {
        let kept = match ticket.keep() {
            Ok(kept) => kept,
            Err(ticket) => return Some(*ticket),
        };
        match self.find_part(&kept.slot, kept.cost) {
            Some(part) => {
                // The last answer says best how many failures came before.
                part.kept = kept;
                part.count += 1;
            }
            None => self.parts.push(Part { kept, count: 1 }),
        }
        None
    }

    fn find_part(&mut self, slot: &Arc<Slot>, cost: Cost) -> Option<&mut Part> {
        let mut parts = self.parts.iter_mut();
        parts.find(|part| Arc::ptr_eq(&part.kept.slot, slot) && part.kept.cost == cost)
    }

    /// Returns the number of requests.
    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| part.count).sum()
    }

    /// Ends a request of `client`, one of the oldest slot if there are several. An outcome that is neither a success nor
    /// cancelled means that the member broke off. Returns false if there is no request.
    pub fn end_one(&mut self, outcome: Outcome, client: Option<IpAddr>, now: Instant) -> bool {
        let Some(part) = self.parts.first_mut() else {
            return false;
        };
        if !matches!(outcome, Outcome::Success | Outcome::Cancelled) {
            part.kept.break_off(outcome, client, now);
        }
        part.end_one(outcome, Some(now));
        if part.count == 0 {
            self.parts.remove(0);
        }
        true
    }
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;
    use crate::group::{Group, GroupSettings};
    use crate::strategy::kind::Values;
    use crate::testing::make_member;

    fn make_group(members: u64) -> Group {
        let values = Values::defaults(crate::strategy::find("adaptive").unwrap());
        let members = (0..members).map(make_member).collect();
        let settings = GroupSettings::default();
        Group::new("g", settings, &values, members, Arc::default())
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos((1000 + ms) * 1_000_000)
    }

    fn in_flight(group: &Group) -> u32 {
        group.members()[0].slot.in_flight()
    }

    #[test]
    fn answered_requests_count_as_in_flight_until_their_ends() {
        let group = make_group(1);
        let mut answered = AnsweredRequests::default();
        for _ in 0..3 {
            let mut ticket = group.bind(0, at(0)).unwrap();
            ticket.record_response(Outcome::Success, at(5));
            assert!(answered.add(ticket).is_none());
        }
        assert_eq!((answered.count(), in_flight(&group)), (3, 3));
        let slot = &group.members()[0].slot;
        assert_eq!(slot.record().latencies().count(), 3);
        assert!(answered.end_one(Outcome::Success, None, at(9)));
        assert_eq!((answered.count(), in_flight(&group)), (2, 2));
        drop(answered);
        assert_eq!(in_flight(&group), 0);
        assert!(!AnsweredRequests::default().end_one(Outcome::Success, None, at(9)));
    }

    #[test]
    fn members_that_break_off_each_answered_request_are_ejected_as_with_tickets() {
        for (outcome, in_a_row) in [(Outcome::Failure, 9), (Outcome::Error, 0)] {
            let (one, other) = (make_group(1), make_group(1));
            let mut answered = AnsweredRequests::default();
            let failures = |group: &Group| group.members()[0].slot.consecutive_failures();
            for turn in 0..9 {
                let (begin, end) = (at(turn * 10), at(turn * 10 + 5));
                for group in [&one, &other] {
                    let mut ticket = group.bind(0, begin).unwrap();
                    ticket.record_response(Outcome::Success, begin);
                    if std::ptr::eq(group, &raw const other) {
                        ticket.finish(outcome, end);
                    } else {
                        assert!(answered.add(ticket).is_none());
                        assert!(answered.end_one(outcome, None, end));
                    }
                }
                assert_eq!(failures(&one), failures(&other));
            }
            assert_eq!(failures(&one), in_a_row, "{outcome:?}");
        }
    }

    #[test]
    fn failed_requests_are_given_back() {
        let group = make_group(1);
        let mut ticket = group.bind(0, at(0)).unwrap();
        ticket.record_response(Outcome::Error, at(1));
        let mut answered = AnsweredRequests::default();
        assert!(answered.add(ticket).is_some());
        assert_eq!((answered.count(), in_flight(&group)), (0, 0));
    }

    #[test]
    fn ages_of_requests_that_are_taken_over_do_not_count() {
        let group = make_group(1);
        let mut answered = AnsweredRequests::default();
        assert!(answered.add(group.bind(0, at(0)).unwrap()).is_none());
        let slot = &group.members()[0].slot;
        assert_eq!(slot.unanswered(), 0);
        assert_eq!(slot.in_flight(), 1);
    }

    proptest! {
        /// Counts agree with tickets after any sequence of beginnings and ends at two slots and costs.
        #[test]
        fn counts_agree_with_tickets(steps in prop::collection::vec((0..2usize, 0..2u8, any::<bool>()), 0..60)) {
            let (one, other) = (make_group(2), make_group(2));
            let mut answered = AnsweredRequests::default();
            let mut tickets = Vec::new();
            for (time, (index, cost, begins)) in (0..).zip(steps) {
                let cost = Cost::new(f64::from(cost) + 1.0).unwrap();
                if begins {
                    let mut ticket = one.bind_for(index, cost, at(time)).unwrap();
                    ticket.record_response(Outcome::Success, at(time));
                    prop_assert!(answered.add(ticket).is_none());
                    tickets.push(other.bind_for(index, cost, at(time)).unwrap());
                } else {
                    prop_assert_eq!(answered.end_one(Outcome::Success, None, at(time)), !tickets.is_empty());
                    tickets.pop();
                }
                let sum = |group: &Group| group.members().iter().map(|member| member.slot.in_flight()).sum::<u32>();
                prop_assert_eq!(sum(&one), sum(&other));
                prop_assert_eq!(answered.count(), tickets.len());
            }
            drop((answered, tickets));
            prop_assert!(one.members().iter().all(|member| member.slot.in_flight() == 0));
        }
    }
}
