//! Seats of members: their terms in the program, which a refusal of the kernel leaves as they were.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_kernel::bpf::BpfError;
use evenkeel_kernel::forward::{SEATS, Terms};

use crate::engine::Engine;
use crate::failures::EntryKind;
use crate::home::Home;
use crate::plan::PlannedRule;
use crate::terms::MemberTerms;

impl Engine {
    /// Writes the terms of a member of the group with this name and owner's number, and returns the member's seat. Returns
    /// `None` if there is no seat, or the kernel refuses the terms: the member then gets no new connections of the kernel.
    pub(crate) fn write_seat(
        &mut self,
        rule: &PlannedRule,
        (name, owner): (&Arc<str>, u64),
        member: &MemberTerms,
    ) -> Result<Option<u32>, BpfError> {
        let Some(seat) = self.find_seat(owner, member.address) else {
            if !self.seatless.note(owner, member.address) {
                return Ok(None);
            }
            let full = BpfError::File(format!(
                "the kernel has room for {SEATS} members, and others have taken all of it: the member {} of the group \
                 {name} gets connections of the proxy only",
                member.address
            ));
            return self.errors.take(EntryKind::Member, Err(full));
        };
        let home = self.homes.get(&seat);
        let (tickets, known) = home.map_or((0, None), |home| (home.tickets, Some(home.terms)));
        let others = member.in_flight.saturating_sub(tickets);
        let next = Terms {
            owner,
            address: member.address,
            base: member.base,
            others,
            room: member.limit.saturating_sub(others),
            must_leave: member.must_leave,
            name_hash: member.name_hash,
            weight: member.weight,
        };
        let mut is_written = known == Some(next);
        if !is_written {
            let written = self.forwarder.set_terms(seat, &next);
            is_written = self.errors.take(EntryKind::Member, written)?.is_some();
        }
        if !is_written && known.is_none() {
            // The seat is nobody's, or that of the process before.
            if !self.unclaimed.contains_key(&seat) {
                self.seats.remove(&(owner, member.address));
            }
            return Ok(None);
        }
        let home = self
            .homes
            .entry(seat)
            .or_insert_with(|| Home::new(Arc::clone(&rule.group), Arc::clone(name), rule.cost));
        self.unclaimed.remove(&seat);
        home.is_used = true;
        home.index = member.index;
        home.group = Arc::clone(&rule.group);
        if is_written {
            home.terms = next;
        }
        Ok(is_written.then_some(seat))
    }

    /// Returns the seat of a member, a free one for a new member; `None` if there is none.
    fn find_seat(&mut self, owner: u64, address: SocketAddr) -> Option<u32> {
        if let Some(seat) = self.seats.get(&(owner, address)) {
            return Some(*seat);
        }
        if self.seatless.is_full() {
            return None;
        }
        let used = |seat: &u32| self.homes.contains_key(seat) || self.unclaimed.contains_key(seat);
        let seat = (0..SEATS).find(|seat| !used(seat))?;
        self.seats.insert((owner, address), seat);
        Some(seat)
    }

    /// Lets members that are in no group get no new connections. A member whose terms the kernel refuses is tried again in
    /// the next round.
    pub(crate) fn close_unused(&mut self) -> Result<(), BpfError> {
        for (seat, home) in &mut self.homes {
            if home.is_used || home.terms.room == 0 {
                continue;
            }
            let closed = Terms {
                room: 0,
                ..home.terms
            };
            let written = self.forwarder.set_terms(*seat, &closed);
            if self.errors.take(EntryKind::Member, written)?.is_some() {
                home.terms = closed;
            }
        }
        Ok(())
    }
}
