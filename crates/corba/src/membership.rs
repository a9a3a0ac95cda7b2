//! Infrastructure-controlled membership: when the load manager makes a member, by which
//! factory, and when it takes one away again.
//!
//! Othman, Balasubramanian and Schmidt, "The Design of an Adaptive Middleware Load
//! Balancing and Monitoring Service" (2003), make members on demand for bursty load. A
//! [`Membership`] decides for one group; it is told what is there and what became of its
//! orders, and does nothing itself.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use evenkeel_core::time::Instant;

/// Time for which all members must be overloaded before another one is made. The loads then have as
/// long to settle.
pub const GROW_AFTER: Duration = Duration::from_secs(10);

/// Time for which the group must be able to do with one member less before it loses one.
pub const SHRINK_AFTER: Duration = Duration::from_secs(300);

/// A group can do with one member less if the others would then have at most this share of
/// the critical load.
pub const SPARE: f32 = 0.6;

/// Time for which a member that is to go gets no new clients before it goes.
pub const DRAIN: Duration = Duration::from_secs(30);

/// Pause of a factory after its first failure. Each further failure doubles the pause.
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest time for which a factory is left alone.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// A member that lives for so long clears its factory of earlier failures.
pub const STABLE: Duration = Duration::from_secs(60);

/// Time after which a member that does not answer is removed, if another one serves. A server
/// that is only slow may be back by then: deleting its object would end the sessions of its
/// clients.
pub const SILENT_FOR: Duration = Duration::from_secs(300);

/// Most members of a group that are being made at the same time.
pub const MOST_AT_ONCE: usize = 16;

/// Target of a group: the numbers of its members, its factories and its threshold.
#[derive(Clone, Debug)]
pub struct Desired<'a> {
    /// Members that it is to have at least.
    pub minimum: usize,
    /// Members that it started with: it does not shrink below.
    pub initial: usize,
    /// Members that it may have while all are overloaded; `None` is no growth.
    pub maximum: Option<usize>,
    /// Locations of its factories, all different, the preferred one first.
    pub factories: &'a [String],
    /// The load above which a member is overloaded, if its strategy has one.
    pub critical: Option<f32>,
}

/// State of a member, as its answers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The member answers.
    Alive,
    /// The member does not answer in time: it may be slow, or gone.
    Silent,
    /// The member is gone for certain.
    Dead,
}

/// A member as it is.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// Location of the member.
    pub location: &'a str,
    /// True if a factory made the member.
    pub made_by_factory: bool,
    /// State of the member.
    pub health: Health,
    /// Effective load of the member, if it is known.
    pub load: Option<f32>,
}

/// Step that changes a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Have the factory at this location make a member; [`Membership::record_new_member`],
    /// [`Membership::record_creation_failure`] or [`Membership::record_uncalled_factory`] is called when it is known how it
    /// went.
    Make(String),
    /// Give the member there no new clients.
    Drain(String),
    /// Give it new clients again.
    Resume(String),
    /// Take the member there out of the group; have its factory, if it has one, delete it.
    Remove(String),
}

/// State of a group's membership.
#[derive(Debug, Default)]
pub struct Membership {
    factories: HashMap<String, Record>,
    /// Since when all members are overloaded.
    strained: Option<Instant>,
    /// Since when the group could do with one member less.
    idle: Option<Instant>,
    /// The member that is to go, and when.
    draining: Option<(String, Instant)>,
    /// Locations of members that do not answer, and since when.
    silent: HashMap<String, Instant>,
}

/// History of a factory.
#[derive(Debug, Default)]
struct Record {
    /// A member is being made.
    making: bool,
    /// In a row.
    failures: u32,
    /// Not to be used before.
    pause_until: Option<Instant>,
    /// Time at which the factory was last used.
    used: Option<Instant>,
    /// Since when its member is there.
    alive_since: Option<Instant>,
}

impl Membership {
    /// Returns the steps that are due. Call it at least every second or so, and after
    /// [`Membership::record_new_member`] and [`Membership::record_creation_failure`].
    pub fn next_actions(
        &mut self,
        now: Instant,
        desired: &Desired<'_>,
        members: &[Observed<'_>],
        rng: &mut fastrand::Rng,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        self.look_at(now, desired, members, rng);
        let health = |location: &str| {
            let member = members.iter().find(|member| member.location == location);
            member.map(|member| member.health)
        };
        if let Some((location, _)) = self
            .draining
            .take_if(|(location, _)| health(location.as_str()) != Some(Health::Alive))
            && health(&location) == Some(Health::Silent)
        {
            // If it is back, the group may need it.
            actions.push(Action::Resume(location));
        }
        let drained = self.departing_location().map(str::to_owned);
        let serving: Vec<_> = members
            .iter()
            .filter(|m| m.health == Health::Alive && Some(m.location) != drained.as_deref())
            .collect();
        for member in members {
            let is_over = match member.health {
                Health::Alive => false,
                Health::Silent => !serving.is_empty() && self.is_given_up(now, member.location),
                Health::Dead => true,
            };
            if is_over {
                if member.health == Health::Silent {
                    self.note_failure(now, member.location, rng);
                }
                actions.push(Action::Remove(member.location.into()));
            }
        }
        let making = self.factories.values().filter(|of| of.making).count();
        let strained = self.is_strained(now, desired, &serving);
        let idle = self.is_idle(now, desired, &serving);

        let lacking = desired.minimum.saturating_sub(serving.len() + making);
        if lacking > 0 || strained {
            if let Some((location, _)) = self.draining.take() {
                // It is there: that is faster than a new one.
                actions.push(Action::Resume(location));
                self.settle();
                return actions;
            }
            let room = desired.maximum.unwrap_or(0).saturating_sub(serving.len());
            let growth = usize::from(strained && making == 0 && room > 0);
            let there = members.iter().map(|member| member.location).collect();
            for _ in making..lacking.max(growth).saturating_add(making).min(MOST_AT_ONCE) {
                let Some(location) = self.next_factory(now, desired, &there) else {
                    break;
                };
                let of = self.factories.entry(location.clone()).or_default();
                (of.making, of.used) = (true, Some(now));
                actions.push(Action::Make(location));
                self.settle();
            }
        } else if let Some((location, at)) = &self.draining {
            if now >= *at {
                actions.push(Action::Remove(location.clone()));
            }
        } else if idle && let Some(least) = least_loaded(&serving) {
            self.draining = Some((least.to_owned(), now.after(DRAIN)));
            actions.push(Action::Drain(least.to_owned()));
            self.settle();
        }
        actions
    }

    /// The factory there has made a member.
    pub fn record_new_member(&mut self, location: &str) {
        if let Some(of) = self.factories.get_mut(location) {
            of.making = false;
        }
        self.settle();
    }

    /// The factory there has not made a member.
    pub fn record_creation_failure(
        &mut self,
        now: Instant,
        location: &str,
        rng: &mut fastrand::Rng,
    ) {
        if let Some(of) = self.factories.get_mut(location) {
            of.making = false;
            of.fail(now, rng);
        }
    }

    /// The factory there could not be called, for want of something here: it is called again
    /// with the next step, and has not failed.
    pub fn record_uncalled_factory(&mut self, location: &str) {
        if let Some(of) = self.factories.get_mut(location) {
            (of.making, of.used) = (false, None);
        }
    }

    /// The location of the member that gets no new clients because it is to go.
    pub fn departing_location(&self) -> Option<&str> {
        self.draining.as_ref().map(|(location, _)| &**location)
    }

    /// Loads have to settle before they say anything.
    fn settle(&mut self) {
        (self.strained, self.idle) = (None, None);
    }

    /// Keeps a record of the factories.
    fn look_at(
        &mut self,
        now: Instant,
        desired: &Desired<'_>,
        members: &[Observed<'_>],
        rng: &mut fastrand::Rng,
    ) {
        let listed: HashSet<&str> = desired.factories.iter().map(String::as_str).collect();
        self.factories
            .retain(|location, of| of.making || listed.contains(&**location));
        for member in members {
            if !listed.contains(member.location) {
                continue;
            }
            let of = self.factories.entry(member.location.into()).or_default();
            match member.health {
                Health::Alive => {
                    let since = *of.alive_since.get_or_insert(now);
                    if now >= since.after(STABLE) {
                        of.failures = 0;
                    }
                }
                Health::Silent => {}
                Health::Dead => self.note_failure(now, member.location, rng),
            }
        }
        self.silent.retain(|location, _| {
            let mut members = members.iter();
            members.any(|m| m.location == location && m.health == Health::Silent)
        });
        for member in members.iter().filter(|m| m.health == Health::Silent) {
            if !self.silent.contains_key(member.location) {
                self.silent.insert(member.location.into(), now);
            }
        }
        let there: HashSet<&str> = members.iter().map(|member| member.location).collect();
        for (location, of) in &mut self.factories {
            if !there.contains(&**location) {
                of.alive_since = None;
            }
        }
    }

    /// Counts a failure of the factory whose member is gone: once, until the member has left
    /// the group.
    fn note_failure(&mut self, now: Instant, location: &str, rng: &mut fastrand::Rng) {
        if let Some(of) = self.factories.get_mut(location)
            && (of.alive_since.take().is_some() || of.failures == 0)
        {
            of.fail(now, rng);
        }
    }

    /// Returns true if the member there has not answered for too long.
    fn is_given_up(&self, now: Instant, location: &str) -> bool {
        let since = self.silent.get(location);
        since.is_some_and(|since| now >= since.after(SILENT_FOR))
    }

    /// Returns true if all members have been overloaded for [`GROW_AFTER`].
    fn is_strained(
        &mut self,
        now: Instant,
        desired: &Desired<'_>,
        serving: &[&Observed<'_>],
    ) -> bool {
        let over = |member: &&Observed<'_>| match (member.load, desired.critical) {
            (Some(load), Some(critical)) => load > critical,
            _ => false,
        };
        let grows = desired.maximum.is_some();
        let all = grows && !serving.is_empty() && serving.iter().all(over);
        lasts(&mut self.strained, all, now, GROW_AFTER)
    }

    /// Returns true if the group could have done with one member less for [`SHRINK_AFTER`], or has
    /// more members than it may.
    fn is_idle(&mut self, now: Instant, desired: &Desired<'_>, serving: &[&Observed<'_>]) -> bool {
        let (Some(maximum), None) = (desired.maximum, &self.draining) else {
            self.idle = None;
            return false;
        };
        if serving.len() > maximum.max(desired.minimum) {
            return true;
        }
        let others = serving.len().saturating_sub(1);
        let total = serving
            .iter()
            .map(|member| member.load)
            .sum::<Option<f32>>();
        let spare = match (total, desired.critical) {
            (Some(total), Some(critical)) => total <= SPARE * critical * others as f32,
            _ => false,
        };
        let idle = spare && others >= desired.minimum.max(desired.initial).max(1);
        lasts(&mut self.idle, idle, now, SHRINK_AFTER)
    }

    /// The factory to be used next: one with no member at its location, and that has not
    /// just failed; of those the one with the fewest failures, then the one not used for
    /// longest, then the preferred one.
    fn next_factory(
        &self,
        now: Instant,
        desired: &Desired<'_>,
        there: &HashSet<&str>,
    ) -> Option<String> {
        let free = desired.factories.iter().filter_map(|location| {
            if there.contains(&**location) {
                return None;
            }
            let Some(of) = self.factories.get(location) else {
                return Some((0, None, location));
            };
            let pauses = of.pause_until.is_some_and(|until| now < until);
            (!of.making && !pauses).then_some((of.failures, of.used, location))
        });
        let next = free.min_by_key(|&(failures, used, _)| (failures, used));
        next.map(|(_, _, location)| location.clone())
    }
}

impl Record {
    fn fail(&mut self, now: Instant, rng: &mut fastrand::Rng) {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        // Not all at once, where one cause has stopped many.
        let pause = doubled.min(LONGEST_PAUSE).mul_f32(0.5 + rng.f32() / 2.0);
        self.pause_until = Some(now.after(pause));
    }
}

/// Returns true if `holds` has been true for `time`. `since` keeps when it became true.
fn lasts(since: &mut Option<Instant>, holds: bool, now: Instant, time: Duration) -> bool {
    match holds {
        true => now >= since.get_or_insert(now).after(time),
        false => {
            *since = None;
            false
        }
    }
}

/// The least loaded of the members that factories made.
fn least_loaded<'a>(serving: &[&Observed<'a>]) -> Option<&'a str> {
    let made = serving.iter().filter(|member| member.made_by_factory);
    let load = |member: &&&Observed<'_>| member.load.unwrap_or(f32::INFINITY);
    let least = made.min_by(|one, other| load(one).total_cmp(&load(other)));
    least.map(|member| member.location)
}

#[cfg(test)]
mod tests;
