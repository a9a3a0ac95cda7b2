//! Groups in the maps of the program.

use libbpf_rs::{MapCore, MapFlags};

use super::{Forwarder, GROUP_SEATS, GROUPS, GroupTerms, SEATS, read_element};
use crate::bpf::{self, BpfError, failed_to, find_map};

/// Map with the seats of groups of more than [`GROUP_SEATS`] members.
const LISTS: &str = "evk_seat_lists";

impl Forwarder {
    /// Writes the decisions of a group.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_group(&self, number: u32, terms: &GroupTerms) -> Result<(), BpfError> {
        let key = number.to_ne_bytes();
        let is_large = terms.seats.len() > GROUP_SEATS;
        if is_large {
            bpf::update_map(&self.object, LISTS, &key, &write_list(&terms.seats))?;
        }
        bpf::update_map(&self.object, "evk_groups", &key, &terms.write())?;
        // A list takes memory.
        let lists = find_map(&self.object, LISTS)?;
        let read = lists.lookup(&key, MapFlags::ANY);
        if !is_large && read.map_err(failed_to("read a list of seats"))?.is_some() {
            lists
                .delete(&key)
                .map_err(failed_to("delete a list of seats"))?;
        }
        Ok(())
    }

    /// Returns the numbers of the groups of the table with the seat of the first member of each.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn list_groups(&self) -> Result<Vec<(u32, u32)>, BpfError> {
        let map = find_map(&self.object, "evk_groups")?;
        let mut found = Vec::new();
        for number in 0..GROUPS {
            let first = GroupTerms::read_first_seat(&read_element(&map, number)?);
            found.extend(first.map(|seat| (number, seat)));
        }
        Ok(found)
    }
}

/// Returns `struct evk_seat_list`.
fn write_list(seats: &[u32]) -> Vec<u8> {
    let places = SEATS as usize;
    let count = seats.len().min(places) as u32;
    let seats = seats.iter().map(|seat| *seat as u16);
    let seats = seats.chain(std::iter::repeat(0)).take(places);
    let seats = seats.flat_map(u16::to_ne_bytes);
    count.to_ne_bytes().into_iter().chain(seats).collect()
}
