//! Departures: which clients are to leave which location in a pulse, as they are told when they
//! come.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_core::load::Location;
use evenkeel_core::member::{self, Member, MemberId};
use evenkeel_core::relocation::{Client, Relocation, RelocationTarget};
use evenkeel_core::time::{Instant, millis, millis_since};

/// Time for which a pulse still sends clients here after its end, in milliseconds.
const ECHO_MS: u32 = 100;

/// A plan that is not followed any more leaves no alert behind.
impl Drop for Plan {
    fn drop(&mut self) {
        self.departures.iter().for_each(|d| d.location.end_pulse());
    }
}

/// Departures from all locations in a round, with their targets.
#[derive(Debug)]
pub(super) struct Plan {
    departures: Vec<Departures>,
}

/// Departures from one location.
#[derive(Debug)]
pub(super) struct Departures {
    location: Arc<Location>,
    load: f32,
    orders: Vec<Order>,
    wanted: u32,
    left: AtomicU32,
    moved_at: AtomicU32,
    ended: AtomicU32,
    /// Nobody leaves: strangers are found to be clients of this member.
    roll_call: Option<MemberId>,
    /// Whoever leaves goes where the strategy says.
    rebinds: bool,
}

/// Order for a number of clients that bring such a load to go to member `target`.
#[derive(Debug)]
pub(super) struct Order {
    loads: RangeInclusive<f32>,
    target: MemberId,
    wanted: u32,
    left: AtomicU32,
}

impl Order {
    pub(super) fn new(loads: RangeInclusive<f32>, target: MemberId, wanted: u32) -> Self {
        Order {
            loads,
            target,
            wanted,
            left: AtomicU32::new(0),
        }
    }
}

impl Plan {
    pub(super) fn departures_at(&self, location: &Arc<Location>) -> Option<&Departures> {
        let mut all = self.departures.iter();
        all.find(|departures| Arc::ptr_eq(&departures.location, location))
    }

    pub(super) fn of(departures: Vec<Departures>) -> Plan {
        Plan { departures }
    }

    /// A roll call: no client of `location` leaves, but those that nobody knows are found to
    /// be clients of `member`.
    pub(super) fn calling(location: &Arc<Location>, load: f32, member: MemberId) -> Plan {
        let mut departures = Departures::new(location, load, Vec::new());
        departures.roll_call = Some(member);
        Plan::of(vec![departures])
    }

    /// Returns a plan by which `wanted` clients of `location`, where `member` is, are bound anew.
    /// Nobody knows how many strangers there are: for strangers the plan has no end.
    pub(super) fn rebinding(location: &Arc<Location>, wanted: u32, member: MemberId) -> Plan {
        let order = Order::new(0.0..=f32::INFINITY, member, wanted);
        let mut departures = Departures::new(location, 0.0, vec![order]);
        departures.rebinds = true;
        Plan::of(vec![departures])
    }

    /// The location of a roll call.
    pub(super) fn roll_call_location(&self) -> Option<&Arc<Location>> {
        let mut all = self.departures.iter();
        all.find(|d| d.roll_call.is_some()).map(|d| &d.location)
    }

    /// The member that an unknown client who comes now is counted for, while there is a roll call.
    pub(super) fn roll_call(&self) -> Option<MemberId> {
        let mut on = self.departures.iter().filter(|d| d.location.has_pulse());
        on.find_map(|departures| departures.roll_call)
    }

    /// The member that an unknown client leaves: one that is to give clients away.
    pub(super) fn move_stranger(&self, now: Instant) -> Option<MemberId> {
        let mut on = self.departures.iter().filter(|d| d.location.has_pulse());
        let leave = |d: &Departures| (!d.rebinds).then(|| d.leave_any(now)).flatten();
        on.find_map(leave)
    }

    pub(super) fn begin_pulses(&self) {
        self.departures
            .iter()
            .for_each(|d| d.location.begin_pulse());
    }

    /// Locations whose pulse is on, and their load when it began.
    pub(super) fn active_pulses(&self) -> impl Iterator<Item = (&Arc<Location>, f32)> {
        let on = self.departures.iter().filter(|d| d.location.has_pulse());
        on.map(|departures| (&departures.location, departures.load))
    }

    /// Returns the time at which the last client left.
    pub(super) fn moved_at(&self) -> Option<u32> {
        let times = self.departures.iter();
        let times = times.map(|d| d.moved_at.load(Ordering::Relaxed));
        times.filter(|&at| at != 0).reduce(|a, b| {
            if a.wrapping_sub(b) < u32::MAX / 2 {
                a
            } else {
                b
            }
        })
    }
}

impl Departures {
    pub(super) fn new(location: &Arc<Location>, load: f32, orders: Vec<Order>) -> Self {
        Departures {
            location: Arc::clone(location),
            load,
            wanted: orders.iter().map(|order| order.wanted).sum(),
            orders,
            left: AtomicU32::new(0),
            moved_at: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            roll_call: None,
            rebinds: false,
        }
    }

    /// Returns the member to which a client goes that brings `load`, if the client is to leave.
    pub(super) fn move_client(&self, load: Option<f32>, now: Instant) -> Option<MemberId> {
        let Some(load) = load else {
            return self.leave_any(now);
        };
        let mut fitting = self
            .orders
            .iter()
            .filter(|order| order.loads.contains(&load));
        fitting.find_map(|order| self.take(order, now))
    }

    fn leave_any(&self, now: Instant) -> Option<MemberId> {
        // Those who are for strangers come first.
        self.orders
            .iter()
            .rev()
            .find_map(|order| self.take(order, now))
    }

    fn take(&self, order: &Order, now: Instant) -> Option<MemberId> {
        let one_more = |left: u32| (left < order.wanted).then_some(left + 1);
        order
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .ok()?;
        self.moved_at.store(millis(now), Ordering::Relaxed);
        if self.left.fetch_add(1, Ordering::AcqRel) + 1 >= self.wanted {
            self.end_pulse(now);
        }
        Some(order.target)
    }

    /// No more clients are to leave.
    pub(super) fn end_pulse(&self, now: Instant) {
        if self.location.has_pulse() {
            self.ended.store(millis(now), Ordering::Relaxed);
            self.location.end_pulse();
        }
    }

    /// Returns true if clients may come now that were sent away before the server heard of the end.
    pub(super) fn has_echoes(&self, now: Instant) -> bool {
        let ended = self.ended.load(Ordering::Relaxed);
        self.location.is_shut() || ended != 0 && millis_since(ended, now) < ECHO_MS
    }

    pub(super) fn count_left(&self) -> u32 {
        self.left.load(Ordering::Relaxed)
    }
}

impl Relocation for Plan {
    fn ask(
        &self,
        members: &[Member],
        client: &Client,
        at: &mut usize,
        now: Instant,
    ) -> Option<RelocationTarget> {
        let Some(id) = client.member() else {
            // It was not known before.
            return Some(match self.roll_call() {
                Some(to) => {
                    client.set_member(Some(to));
                    RelocationTarget {
                        to,
                        undecided: true,
                    }
                }
                // It counts for whoever is to give somebody away.
                None => RelocationTarget {
                    to: self.move_stranger(now)?,
                    undecided: false,
                },
            });
        };
        *at = member::find(members, id, *at)?;
        let location = &members[*at].location;
        let departures = self.departures_at(location)?;
        if location.has_pulse()
            && let Some(to) = departures.move_client(client.estimated_load(), now)
        {
            if departures.rebinds {
                // Nowhere until the strategy has chosen.
                client.set_member(None);
                return None;
            }
            return Some(RelocationTarget {
                to,
                undecided: false,
            });
        }
        let undecided = location.has_pulse();
        (undecided || departures.has_echoes(now)).then_some(RelocationTarget { to: id, undecided })
    }

    fn give_up(&self, location: &Location, now: Instant) {
        let mut all = self.departures.iter();
        if let Some(departures) = all.find(|d| std::ptr::eq(&*d.location, location)) {
            departures.end_pulse(now);
        }
    }
}
