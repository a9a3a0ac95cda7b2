//! Numbers of requests in flight at locations, over all balancers.
//!
//! Each balancer tells its own number, whenever it has changed by a quarter. These are notes from
//! each balancer to each, so this is for fleets that are not large, and off unless it is asked for.

use std::collections::BTreeSet;

use evenkeel_core::key;
use evenkeel_core::time::Instant;

use crate::fleet::Fleet;
use crate::note::{Key, Note};

/// More than so many of one balancer at a location are so many.
const MOST: u32 = 1_000_000;

impl Fleet {
    /// Tells all others how many requests of this balancer are in flight at the locations of a group, with
    /// [numbers](evenkeel_core::key) for their names, in place of what it has told of these before. Groups may share
    /// locations.
    pub fn announce_flights(&mut self, group: &str, locations: &[(u64, u32)], now: Instant) {
        let number = key::hash(group.as_bytes());
        if locations.is_empty() && !self.flights.contains_key(&number) {
            return;
        }
        let before = self.board.last_change();
        for &(location, count) in locations {
            let count = count.min(MOST);
            let told = self.told_flight(location);
            match count {
                0 if told > 0 => {
                    self.board.remove(Key::Flight { location });
                }
                _ if count.abs_diff(told) * 4 >= told.max(1) && count != told => {
                    self.board.put_note(Note::Flight { location, count });
                }
                _ => {}
            }
        }
        let now_there = locations.iter().map(|(location, _)| *location).collect();
        let there = self.flights.insert(number, now_there).unwrap_or_default();
        self.land(there);
        if locations.is_empty() {
            self.flights.remove(&number);
        }
        if self.board.last_change() != before {
            self.flush(now);
        }
    }

    /// Returns the number of other balancers' requests in flight at a location, as they have said
    /// last.
    pub fn flights_of_others(&self, location: u64) -> u32 {
        let others = self.peers.values().filter(|peer| peer.active);
        others
            .map(|peer| peer.copy.requests_at(location).min(MOST))
            .fold(0, u32::saturating_add)
    }

    /// Takes off what is told of locations of groups that this balancer no longer has.
    pub(crate) fn forget_flights(&mut self) {
        let groups = self.flights.keys();
        let gone = groups.filter(|group| !self.groups.contains_key(group));
        for group in gone.copied().collect::<Vec<u64>>() {
            let there = self.flights.remove(&group).unwrap_or_default();
            self.land(there);
        }
    }

    /// Takes off what is told of those of these locations that no group has any more.
    fn land(&mut self, locations: Vec<u64>) {
        let still: BTreeSet<u64> = self.flights.values().flatten().copied().collect();
        for location in locations {
            if !still.contains(&location) {
                self.board.remove(Key::Flight { location });
            }
        }
    }

    fn told_flight(&self, location: u64) -> u32 {
        match self.board.get(Key::Flight { location }) {
            Some(Note::Flight { count, .. }) => count,
            _ => 0,
        }
    }
}
