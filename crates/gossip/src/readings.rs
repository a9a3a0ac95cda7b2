//! Loads that one balancer reads for all.
//!
//! If back-ends are not to be asked by all balancers, the balancer that decides upon a group's
//! alerts asks those of the group's locations, and tells the others the loads that it has read. The
//! loads are not noted ([`note`](crate::note)), as nobody needs to confirm them: changed loads are
//! told at once, all loads once a second, and loads that are not told for [`EXPIRY`](crate::reading::EXPIRY) are not known
//! any more. Loads therefore hold up nothing else.

use std::net::SocketAddr;

use evenkeel_core::key;
use evenkeel_core::time::Instant;

use crate::fleet::Fleet;
use crate::owners::Role;
use crate::reading::{AnnouncedLocation, MAX_ENTRY, Reading};
use crate::seal::{Kind, MAX_BODY};

/// Balancer that reads the loads of a location.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reader {
    /// The reader is this balancer, for all.
    Here,
    /// The reader is another balancer, which has read this.
    Another(Reading),
    /// No balancer says that it reads the loads: each balancer reads for itself.
    Nobody,
}

impl Fleet {
    /// Finds out who reads the loads of a group's locations, which are [numbers](evenkeel_core::key) for their names.
    /// If that is this balancer, it tells the others what it has read: `own`, for the place of a location.
    pub fn share_loads(
        &mut self,
        group: &str,
        locations: &[u64],
        own: impl Fn(usize) -> Reading,
        now: Instant,
    ) -> Vec<Reader> {
        let role = self.role_in(group, now);
        let holds = matches!(role, Role::Holder | Role::Settling);
        let group = key::hash(group.as_bytes());
        let holder = self.groups.get(&group).and_then(|group| group.holder);
        let holder = holder.and_then(|holder| {
            let peer = self.peers.get(&holder.address);
            peer.filter(|peer| peer.is_process(holder.node, holder.session))
        });
        let (mut datagrams, mut body) = (Vec::new(), Vec::new());
        let mut readers = Vec::with_capacity(locations.len());
        for (place, &location) in locations.iter().enumerate() {
            if !self.readings.is_for(location, group, now) {
                readers.push(Reader::Nobody);
                continue;
            }
            if !holds {
                self.readings.told.remove(&location);
                let said = holder.and_then(|peer| peer.heard_loads.get(location, now));
                readers.push(said.map_or(Reader::Nobody, Reader::Another));
                continue;
            }
            readers.push(Reader::Here);
            let reading = own(place);
            let told = self
                .readings
                .told
                .entry(location)
                .or_insert(AnnouncedLocation {
                    since: now,
                    last: None,
                });
            if told.is_due(&reading, now) {
                told.last = Some((reading, now));
                if body.len() + MAX_ENTRY > MAX_BODY {
                    datagrams.push(std::mem::take(&mut body));
                }
                reading.encode(location, &mut body);
            }
        }
        self.readings.sweep(now);
        if !body.is_empty() {
            datagrams.push(body);
        }
        if !datagrams.is_empty() {
            let there = self.peers.iter();
            let there = there.filter(|(_, peer)| peer.active && peer.out.is_some());
            let there: Vec<SocketAddr> = there.map(|(address, _)| *address).collect();
            for address in there {
                for body in &datagrams {
                    self.send_to(address, Kind::Loads, body);
                }
            }
        }
        readers
    }

    /// Returns the number of locations of which the balancer at this address says what it has read.
    pub fn locations_read_by(&self, address: SocketAddr, now: Instant) -> usize {
        let peer = self.peers.get(&address);
        peer.map_or(0, |peer| peer.heard_loads.count(now))
    }

    /// Returns the number of locations that this balancer reads for all.
    pub fn locations_read(&self) -> usize {
        self.readings.told.len()
    }

    /// Takes in what another balancer has read.
    pub(crate) fn hear_loads(
        &mut self,
        from: SocketAddr,
        body: &[u8],
        count: u64,
        now: Instant,
    ) -> Option<()> {
        let said = Reading::decode(body)?;
        let peer = self.peers.get_mut(&from)?;
        peer.heard_loads.take(said, count, now);
        Some(())
    }
}
