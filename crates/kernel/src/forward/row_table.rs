//! Rows of candidates for several balancers with the same listening addresses, and tunnels to members.
//!
//! Each row of a group's table has up to three members. All balancers with the same members fill the table alike, by
//! rendezvous hashing (Thaler and Ravishankar, *Using Name-Based Mappings to Increase Hit Rates*, 1998): a member that
//! comes or goes changes only the rows that have, or get, the member. `bpf/rows.bpf.h` uses the table.

use std::cmp::Reverse;
use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip::SipHasher13;

use super::layout::write_ip;

/// Number of rows in a table.
pub const ROWS: usize = 512;

/// Members of a row: two of them get new connections, the third has those of the time before a change.
pub const ROW_SEATS: usize = 3;

/// Seat of nobody.
const NOBODY: u16 = u16::MAX;

/// Member in the rows of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowMember {
    /// Number of the member's seat.
    pub seat: u32,
    /// Address of the member, which decides about the rows of the member.
    pub address: SocketAddr,
    /// True if the member may get new connections.
    pub is_eligible: bool,
}

/// Table of rows, each with the seats of its members in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowTable(Vec<[u16; ROW_SEATS]>);

impl RowTable {
    /// Fills the table for members of a family. A row without a member that may get new connections gets the next one
    /// that may.
    pub fn fill(members: &[RowMember]) -> Self {
        let rows = (0..ROWS as u16).map(|row| fill_row(row, members));
        RowTable(rows.collect())
    }

    /// Returns the rows.
    pub fn rows(&self) -> &[[u16; ROW_SEATS]] {
        &self.0
    }

    /// Returns `struct evk_rows`.
    pub(super) fn write(&self) -> Vec<u8> {
        let padded = self.0.iter().map(|[a, b, c]| [*a, *b, *c, NOBODY]);
        padded.flatten().flat_map(u16::to_ne_bytes).collect()
    }
}

/// Returns the seats of a row.
fn fill_row(row: u16, members: &[RowMember]) -> [u16; ROW_SEATS] {
    let mut ranked: Vec<_> = members.iter().collect();
    ranked.sort_by_cached_key(|member| (Reverse(rank(row, member.address)), member.address));
    let first_eligible = ranked.iter().position(|member| member.is_eligible);
    if let Some(at) = first_eligible.filter(|at| *at >= ROW_SEATS) {
        ranked.swap(ROW_SEATS - 1, at);
    }
    let mut seats = [NOBODY; ROW_SEATS];
    for (seat, member) in seats.iter_mut().zip(ranked) {
        *seat = u16::try_from(member.seat).unwrap_or(NOBODY);
    }
    seats
}

/// Returns the rank of a member in a row, the same on all machines and in all versions.
fn rank(row: u16, member: SocketAddr) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(&row.to_be_bytes());
    hasher.write(&write_ip(member.ip()));
    hasher.write(&member.port().to_be_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn member(last: u8, is_eligible: bool) -> RowMember {
        RowMember {
            seat: last.into(),
            address: SocketAddr::from(([10, 77, 0, last], 80)),
            is_eligible,
        }
    }

    fn members(lasts: impl IntoIterator<Item = u8>) -> Vec<RowMember> {
        lasts.into_iter().map(|last| member(last, true)).collect()
    }

    #[test]
    fn s41_rows_do_not_depend_on_the_order_of_members() {
        let forth = RowTable::fill(&members(1..9));
        let back = RowTable::fill(&members((1..9).rev()));
        assert_eq!(forth, back);
        // Balancers of different versions share the address.
        assert_eq!(forth.rows()[..2], [[7, 5, 8], [4, 3, 2]]);
    }

    #[test]
    fn s41_rows_have_different_members_and_all_members_have_their_share() {
        let table = RowTable::fill(&members(1..9));
        let mut counts = HashMap::<u16, usize>::new();
        for [first, second, third] in table.rows() {
            assert!(first != second && second != third && first != third);
            *counts.entry(*first).or_default() += 1;
            *counts.entry(*second).or_default() += 1;
        }
        assert_eq!(counts.len(), 8);
        let mean = 2 * ROWS / 8;
        let is_fair = |count: &usize| (mean * 2 / 3..mean * 3 / 2).contains(count);
        assert!(counts.values().all(is_fair), "{counts:?}");
    }

    #[test]
    fn s41_members_of_a_row_stay_in_it_when_another_one_comes_or_drains() {
        let before = RowTable::fill(&members(1..9));
        let after = RowTable::fill(&members(1..10));
        for (old, new) in before.rows().iter().zip(after.rows()) {
            // Whoever may have connections is found.
            let [first, second, _] = old;
            assert!(
                new.contains(first) && new.contains(second),
                "{old:?} {new:?}"
            );
        }
        let mut drained = members(1..9);
        drained[2].is_eligible = false;
        assert_eq!(RowTable::fill(&drained), before);
    }

    #[test]
    fn s41_rows_without_a_member_that_serves_get_another_one() {
        let only: Vec<_> = (1..9).map(|last| member(last, last == 4)).collect();
        let all = RowTable::fill(&members(1..9));
        let table = RowTable::fill(&only);
        for (row, full) in table.rows().iter().zip(all.rows()) {
            assert!(row.contains(&4), "{row:?}");
            assert_eq!(row[..2], full[..2]);
        }
        let none: Vec<_> = (1..9).map(|last| member(last, false)).collect();
        assert_eq!(RowTable::fill(&none), all);
    }

    #[test]
    fn s41_rows_of_few_members_are_short() {
        let table = RowTable::fill(&members([7]));
        assert!(table.rows().iter().all(|row| *row == [7, NOBODY, NOBODY]));
        let table = RowTable::fill(&[]);
        assert!(table.rows().iter().all(|row| *row == [NOBODY; 3]));
        assert_eq!(table.write().len(), ROWS * 8);
    }
}
