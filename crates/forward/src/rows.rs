//! Rows of candidates of groups whose rules have `anycast`: all balancers with the same members make the same rows.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::ReturnPath;
use evenkeel_core::time::Instant;
use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{Family, Forwarder, Listener, NatPorts, RowMember, RowTable};

use crate::plan::PlannedRule;
use crate::terms::MemberTerms;

/// Rows of all groups that have some.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    groups: HashMap<Arc<str>, GroupRows>,
}

/// Rows of a group.
#[derive(Debug, Default)]
struct GroupRows {
    /// Number of the group in the tables.
    number: Option<u32>,
    /// True if a rule of this round has `anycast`.
    is_wanted: bool,
    /// Time for which members that have left stay in the rows: the longest silence of a connection.
    idle: Duration,
    /// Members, and those that have left, with the time of it.
    members: Vec<(RowMember, Option<Instant>)>,
    /// Members as they were when the rows were written.
    written: Vec<RowMember>,
}

impl Rows {
    /// Begins a round with these rules.
    pub(crate) fn begin_round(&mut self, rules: &[PlannedRule]) {
        for rows in self.groups.values_mut() {
            (rows.is_wanted, rows.idle) = (false, Duration::ZERO);
        }
        for rule in rules.iter().filter(|rule| rule.anycast) {
            let group = rule.group.current.load();
            let rows = self.groups.entry(Arc::clone(group.name())).or_default();
            rows.is_wanted = true;
            rows.idle = rows.idle.max(rule.idle);
        }
        self.groups.retain(|_, rows| rows.is_wanted);
    }

    /// Writes the rows of a group where they have changed. `find_seat` returns the seat of an address.
    pub(crate) fn write(
        &mut self,
        forwarder: &Forwarder,
        (name, number): (&Arc<str>, u32),
        members: &[MemberTerms],
        find_seat: impl Fn(SocketAddr) -> Option<u32>,
        now: Instant,
    ) -> Result<(), BpfError> {
        let Some(rows) = self.groups.get_mut(name) else {
            return Ok(());
        };
        let here = members.iter().filter_map(|member| {
            Some(RowMember {
                seat: find_seat(member.address)?,
                address: member.address,
                is_eligible: member.limit > 0,
            })
        });
        rows.update_members(here.collect(), now);
        let next: Vec<_> = rows.members.iter().map(|(member, _)| *member).collect();
        if rows.number == Some(number) && rows.written == next {
            return Ok(());
        }
        // A family that the kernel refuses is written again, also if the members are those of before then.
        rows.number = None;
        for family in [Family::V4, Family::V6] {
            let is_of_family = |member: &&RowMember| Family::of_address(&member.address) == family;
            let members: Vec<_> = next.iter().filter(is_of_family).copied().collect();
            forwarder.set_rows(number, family, &RowTable::fill(&members))?;
        }
        (rows.number, rows.written) = (Some(number), next);
        Ok(())
    }

    /// True if the member at a seat is in a row.
    pub(crate) fn has_seat(&self, seat: u32) -> bool {
        let mut members = self.groups.values().flat_map(|rows| &rows.members);
        members.any(|(member, _)| member.seat == seat)
    }
}

impl GroupRows {
    /// Takes the members of this round. Those that have left stay for a while, for connections of before.
    fn update_members(&mut self, here: Vec<RowMember>, now: Instant) {
        let is_here = |old: &RowMember| here.iter().any(|member| member.address == old.address);
        let mut left: Vec<_> = self
            .members
            .iter()
            .filter(|(old, _)| !is_here(old))
            .map(|(old, since)| (*old, since.unwrap_or(now)))
            .filter(|(_, since)| now.since(*since) < self.idle)
            .collect();
        left.iter_mut()
            .for_each(|(member, _)| member.is_eligible = false);
        let here = here.into_iter().map(|member| (member, None));
        let left = left
            .into_iter()
            .map(|(member, since)| (member, Some(since)));
        self.members = here.chain(left).collect();
    }
}

/// Returns the listening addresses of a TCP rule with the group's number.
pub(crate) fn list_listeners(
    rule: &PlannedRule,
    group: u32,
    nat: Option<NatPorts>,
) -> impl Iterator<Item = Listener> {
    rule.listeners.iter().map(move |address| Listener {
        address: *address,
        group,
        retries: rule.retries,
        nat,
        is_direct: rule.return_path.is_direct(),
        has_tunnel: rule.return_path == ReturnPath::Tunnel,
        has_rows: rule.anycast,
        is_limited: rule.is_limited,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s41_members_that_have_left_stay_in_rows_while_connections_may_live() {
        let member = |last: u8, is_eligible| RowMember {
            seat: last.into(),
            address: SocketAddr::from(([10, 77, 0, last], 80)),
            is_eligible,
        };
        let mut rows = GroupRows {
            idle: Duration::from_secs(60),
            ..GroupRows::default()
        };
        let at = |seconds: u64| Instant::from_nanos(1 + seconds * 1_000_000_000);
        let list = |rows: &GroupRows| {
            let members = rows.members.iter().map(|(member, _)| *member);
            members.collect::<Vec<_>>()
        };
        rows.update_members(vec![member(1, true), member(2, true)], at(0));
        rows.update_members(vec![member(1, true)], at(10));
        assert_eq!(list(&rows), [member(1, true), member(2, false)]);
        rows.update_members(vec![member(1, true)], at(69));
        assert_eq!(list(&rows), [member(1, true), member(2, false)]);
        rows.update_members(vec![member(1, true)], at(70));
        assert_eq!(list(&rows), [member(1, true)]);
        // A member that comes back is one of them again.
        rows.update_members(vec![], at(71));
        rows.update_members(vec![member(1, true)], at(72));
        assert_eq!(list(&rows), [member(1, true)]);
    }
}
