//! Requests within connections: the kernel's sums go to the members' estimates, and its counts are compared with the table.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_core::group::Ticket;
use evenkeel_core::requests::{AwaitedRequests, RequestRatio, RequestSums};
use evenkeel_core::time::Instant;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{Awaited, Forwarder, RequestCounts};

use crate::drift::Drift;
use crate::failures::{EntryErrors, EntryKind};
use crate::home::Home;
use crate::rule_counts::describe_member;
use crate::status::ForwardedMember;
use crate::terms::find_forwardable;
use crate::tickets::Homes;

/// Requests of a member as of the last round.
#[derive(Debug, Default)]
struct MemberRequests {
    /// Counts up to which requests were learnt from; `None` before the first round: the process before has learnt from
    /// what is older.
    known: Option<(RequestCounts, u64)>,
    awaited: AwaitedRequests,
    drift: Drift,
}

/// Requests of all members.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    members: HashMap<u32, MemberRequests>,
    groups: HashMap<Arc<str>, RequestRatio>,
    /// False if members are compared by first answers in any case.
    learns: bool,
}

/// Requests of a member since the last round.
struct News {
    seat: u32,
    sums: RequestSums,
    awaited: Awaited,
}

impl Requests {
    /// True if members of the group are compared by requests, and not by first answers.
    pub(crate) fn is_long(&self, group: &str) -> bool {
        self.learns && self.groups.get(group).is_some_and(RequestRatio::is_long)
    }

    /// Lets members be compared by requests, or no longer.
    pub(crate) fn set_learning(&mut self, learns: bool) {
        self.learns = learns;
    }

    /// True if members of some groups may be compared by requests.
    pub(crate) fn learns(&self) -> bool {
        self.learns
    }

    /// Notes that a member has accepted a connection. The connection's first answer does not count where requests do.
    pub(crate) fn accept(&self, homes: &Homes, found: Option<(u32, &mut Ticket)>) {
        if let Some((seat, ticket)) = found
            && let Some(home) = homes.get(&seat)
            && self.is_long(&home.group_name)
        {
            ticket.leave_latency();
        }
    }

    /// Lists the members with their counts, for administrators.
    pub(crate) fn list_members(
        &self,
        forwarder: &Forwarder,
        homes: &Homes,
    ) -> Vec<ForwardedMember> {
        let read = |(seat, home): (&u32, &Home)| {
            let counts = forwarder.read_counts(*seat).unwrap_or_default();
            let is_long = self.is_long(&home.group_name);
            describe_member(&home.group_name, &home.terms, &counts, is_long)
        };
        let mut members: Vec<_> = homes.iter().map(read).collect();
        members.sort_by(|a, b| (&a.group, &a.member).cmp(&(&b.group, &b.member)));
        members
    }

    /// Learns from the requests since the last round. `now_ns` is the time by the machine's clock.
    pub(crate) fn learn(
        &mut self,
        (forwarder, errors): (&Forwarder, &mut EntryErrors),
        homes: &Homes,
        (now, now_ns): (Instant, u64),
    ) -> Result<(), BpfError> {
        self.members.retain(|seat, _| homes.contains_key(seat));
        let mut news = Vec::new();
        let mut groups: HashMap<Arc<str>, (u64, u64)> = HashMap::new();
        for (&seat, home) in homes {
            // A member without connections has no requests; its last ones were learnt from in the round before.
            if home.tickets == 0 && !self.members.contains_key(&seat) {
                continue;
            }
            let counts = errors.take(EntryKind::Member, forwarder.read_counts(seat))?;
            let Some(counts) = counts else { continue };
            let (requests, first_answers) = (counts.requests, counts.answers.0);
            let member = self.members.entry(seat).or_default();
            let known = member.known.replace((requests, first_answers));
            let (old, old_answers) = known.unwrap_or((requests, first_answers));
            let sums = subtract(&requests, &old);
            let sum = groups.entry(Arc::clone(&home.group_name)).or_default();
            sum.0 += u64::from(sums.answered);
            sum.1 += first_answers.saturating_sub(old_answers);
            let awaited = requests.awaited;
            news.push(News {
                seat,
                sums,
                awaited,
            });
        }
        for (name, (requests, first_answers)) in groups {
            let ratio = self.groups.entry(name).or_default();
            ratio.note(requests, first_answers, now);
        }
        for News {
            seat,
            sums,
            awaited,
        } in news
        {
            let (Some(home), Some(member)) = (homes.get(&seat), self.members.get_mut(&seat)) else {
                continue;
            };
            let ratio = self.groups.get(&home.group_name);
            let is_long = self.learns && ratio.is_some_and(RequestRatio::is_long);
            if !is_long {
                member.awaited.release();
                continue;
            }
            let group = home.group.current.load();
            let members = group.members();
            let is_at = |at: &evenkeel_core::member::Member| {
                find_forwardable(&at.address) == Some(home.terms.address)
            };
            if let Some(index) = members.iter().position(is_at)
                && let Some(found) = members.get(index)
            {
                group.learn_requests(index, &sums, now);
                let ages = awaited.sum_ages(now_ns);
                member
                    .awaited
                    .update(&found.slot, awaited.count(), ages, now);
            }
        }
        Ok(())
    }

    /// Compares a member's count of requests without an answer with the table, and corrects the count.
    pub(crate) fn compare(
        &mut self,
        forwarder: &Forwarder,
        seat: u32,
        counted: Awaited,
        found: Awaited,
    ) -> Result<(), BpfError> {
        let Some(member) = self.members.get_mut(&seat) else {
            return Ok(());
        };
        let mut difference = i64::from(counted.count()) - i64::from(found.count());
        // Nothing waits, and the sum of the beginnings says otherwise.
        if counted.count() == 0 && found.count() == 0 && counted != found {
            difference = 1;
        }
        let rounds = counted.correct_rounds(found);
        if rounds.is_some() {
            difference = 1;
        }
        if member.drift.is_due(difference) {
            let correction = rounds.unwrap_or_else(|| found.correct(counted));
            forwarder.correct_requests(seat, correction)?;
        }
        Ok(())
    }
}

/// Returns the requests of `new` that `old` does not have.
fn subtract(new: &RequestCounts, old: &RequestCounts) -> RequestSums {
    let answered = new.answered.saturating_sub(old.answered);
    RequestSums {
        answered: u32::try_from(answered).unwrap_or(u32::MAX),
        latency: new.sum_latencies().saturating_sub(old.sum_latencies()),
        others: new.others.saturating_sub(old.others),
        example: new.read_last(),
    }
}
