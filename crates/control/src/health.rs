//! Active health, slow start and panic: what turns check results into reasons.
//!
//! A member is taken out after `fall` failed checks in a row and comes back after
//! `rise` passed ones, so that a single lost packet decides nothing. The one exception
//! is the first check of a member: nothing is known before it, so it counts at once,
//! and a member that was dead from the start gets no traffic beyond its first check.

use std::time::Duration;

use crate::opinion::{Source, SourceReport, SourceReports};
use evenkeel_core::member::{self, Reason, Slot, Weight};
use evenkeel_core::time::Instant;
use evenkeel_core::zone::RANKS;

/// Number of results in a row that change a member's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Failed checks in a row until an up member is down, at least 1.
    pub fall: u32,
    /// Passed checks in a row until a down member is up, at least 1.
    pub rise: u32,
}

/// A check that could not be made for want of something here, or that found a member dead,
/// is made again after this time, or the interval if that is shorter.
const RETRY: Duration = Duration::from_secs(1);

/// Within this time, or the interval if that is shorter, all members are checked for
/// the first time, each at a random moment.
const START_SPREAD: Duration = Duration::from_secs(1);

/// Returns the delay of the first check of a member that is checked every `interval`. `luck` is
/// random, from 0 to 1.
pub fn first_check(interval: Duration, luck: f32) -> Duration {
    interval.min(START_SPREAD).mul_f32(luck)
}

/// Returns the time from the begin of a check to the begin of the next one. The next check is to be
/// `soon` if the member is dead, or nothing was found out. `luck` is random, from 0 to 1.
pub fn next_check(interval: Duration, soon: bool, luck: f32) -> Duration {
    let interval = if soon { interval.min(RETRY) } else { interval };
    // A little earlier or later each time, so that checks do not fall into step.
    interval.mul_f32(0.95 + 0.1 * luck)
}

/// The active health of one member. A member that is not checked is up.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: State,
    /// Results in a row that contradict `state`.
    against: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not checked yet: counts as up.
    #[default]
    Unknown,
    Up,
    Down,
}

/// A member changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The member is in again.
    Up,
    /// The member is out.
    Down,
}

/// Result of an active check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The member is well.
    Passed,
    /// The member is not well.
    Failed,
    /// Certainly not alive: where clients would be sent nobody listens, or whoever answers says so.
    Certain,
}

/// Effects of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Change of the member's state, if any.
    pub change: Option<Change>,
    /// True if the member is dead: down, for certain. That is no matter of opinion, and panic must not override it.
    pub dead: bool,
    /// True if waiting requests may find a member now.
    pub makes_room: bool,
}

impl Health {
    /// Takes in the result of a check of a member with this weight, with what others think of
    /// it.
    pub fn apply_check(
        &mut self,
        check: Check,
        limits: Limits,
        (slot, opinions): (&Slot, &mut SourceReports),
        weight: Weight,
        now: Instant,
    ) -> Checked {
        let change = self.observe(check == Check::Passed, limits, slot, now);
        let dead = check == Check::Certain && self.is_down();
        let mut makes_room = change == Some(Change::Up);
        if dead != opinions.find_report(Source::HealthCheck).is_some() {
            let opinion = dead.then(|| SourceReport {
                dead,
                ..SourceReport::default()
            });
            opinions.set_report(Source::HealthCheck, opinion, now);
            makes_room |= opinions.publish(slot, weight, now).room;
        }
        Checked {
            change,
            dead,
            makes_room,
        }
    }

    /// Takes in the result of a check, and sets or clears [`Reason::Down`] if the state
    /// changes by it. A member that comes back starts slowly, from `now`.
    pub fn observe(
        &mut self,
        passed: bool,
        limits: Limits,
        slot: &Slot,
        now: Instant,
    ) -> Option<Change> {
        let contradicts = match self.state {
            State::Unknown => {
                self.state = if passed { State::Up } else { State::Down };
                self.against = 0;
                return self.publish(slot, now);
            }
            State::Up => !passed,
            State::Down => passed,
        };
        if !contradicts {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let limit = if passed { limits.rise } else { limits.fall };
        if self.against < limit {
            return None;
        }
        self.against = 0;
        self.state = if passed { State::Up } else { State::Down };
        self.publish(slot, now)
    }

    /// Forgets everything: the member is no longer checked, and so not down.
    pub fn reset(&mut self, slot: &Slot, now: Instant) -> Option<Change> {
        *self = Health::default();
        self.publish(slot, now)
    }

    /// Returns whether checks have found the member up, and how many results in a row contradict
    /// that; `None` before the first check.
    pub fn known_state(&self) -> Option<(bool, u32)> {
        match self.state {
            State::Unknown => None,
            State::Up => Some((true, self.against)),
            State::Down => Some((false, self.against)),
        }
    }

    /// Goes on with what another process [has found](Health::known_state) of the member.
    pub fn go_on(&mut self, (is_up, against): (bool, u32), slot: &Slot) {
        self.state = if is_up { State::Up } else { State::Down };
        self.against = against;
        slot.set(Reason::Down, !is_up);
    }

    /// Returns true if checks say that the member is down.
    pub fn is_down(&self) -> bool {
        self.state == State::Down
    }

    fn publish(&self, slot: &Slot, now: Instant) -> Option<Change> {
        let down = self.is_down();
        if !slot.set(Reason::Down, down) {
            return None;
        }
        if !down {
            slot.set_ramp_from(Some(now));
        }
        Some(if down { Change::Down } else { Change::Up })
    }
}

/// Ends the slow start of a member that has had its time; answers whether it did.
pub fn end_slow_start(slot: &Slot, slow_start: Duration, now: Instant) -> bool {
    let over = slot
        .ramp_from()
        .is_some_and(|from| now.since(from) >= slow_start);
    if over {
        slot.set_ramp_from(None);
    }
    over
}

/// Returns true if a group is in panic: more than the share `threshold` (0 to 1) of its members is
/// down or ejected. These opinions then count no more, and all members are routed to. If that many
/// members look dead, it is more likely that the checks, or a shared dependency, are at fault than
/// that the few others can take all the load.
///
/// `reasons` are the [bits](Slot::decision_bits) of each member. A load alert speaks of no one's health
/// ([`Reason::SOFT`]). Members that are out for a fact
/// (drained, in maintenance, unresolved, dead) do not count at all: panic cannot bring
/// them back. With a threshold of 1 a group never panics.
///
/// If there are backups ([`Reason::Standby`]), they are there for members that are down, so the
/// share must be exceeded among the backups as well as among the others. The same is true of zones
/// of different ranks: there are others for a zone that is down.
pub fn panics(reasons: impl IntoIterator<Item = u32>, threshold: f32) -> bool {
    // Of members, and of backups, of each rank: how many count, and how many of those are out.
    let mut counts = [[(0u32, 0u32); 2]; RANKS];
    for bits in reasons {
        let rank = member::rank_of(bits);
        let hard = member::reasons_of(bits) & !Reason::SOFT;
        let Some([members, backups]) = counts.get_mut(rank.unwrap_or(0)) else {
            continue;
        };
        if hard & !Reason::OVERRIDDEN_BY_PANIC != 0 {
            continue;
        }
        let count = match bits & Reason::Standby as u32 {
            0 => members,
            _ => backups,
        };
        count.0 += 1;
        count.1 += u32::from(hard != 0);
    }
    let counts = counts.iter().flatten();
    let mut some = counts.filter(|(all, _)| *all > 0).peekable();
    // Multiplied out, so that nothing is divided by zero.
    some.peek().is_some() && some.all(|&(all, out)| out as f32 > threshold * all as f32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { fall: 3, rise: 2 };

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn run(health: &mut Health, slot: &Slot, results: &[bool]) -> Vec<Option<Change>> {
        let now = at(1);
        results
            .iter()
            .map(|&passed| health.observe(passed, LIMITS, slot, now))
            .collect()
    }

    #[test]
    fn falls_and_rises_after_results_in_a_row() {
        let (mut health, slot) = (Health::default(), Slot::new(Weight::ONE));
        let changes = run(
            &mut health,
            &slot,
            &[true, false, false, true, false, false, false],
        );
        assert_eq!(changes[6], Some(Change::Down));
        assert!(changes[..6].iter().all(Option::is_none), "{changes:?}");
        assert!(slot.has_reason(Reason::Down));
        assert_eq!(slot.ramp_from(), None);

        let changes = run(&mut health, &slot, &[true, false, true, true]);
        assert_eq!(changes, [None, None, None, Some(Change::Up)]);
        assert!(!slot.has_reason(Reason::Down));
        assert_eq!(slot.ramp_from(), Some(at(1)), "a returning member ramps up");
    }

    #[test]
    fn the_first_check_decides_at_once() {
        let (mut health, slot) = (Health::default(), Slot::new(Weight::ONE));
        assert_eq!(run(&mut health, &slot, &[false]), [Some(Change::Down)]);
        let (mut health, slot) = (Health::default(), Slot::new(Weight::ONE));
        assert_eq!(run(&mut health, &slot, &[true]), [None]);
        assert_eq!(slot.ramp_from(), None, "it was never out");
    }

    #[test]
    fn who_refuses_connections_is_dead_once_it_is_down_and_until_it_answers() {
        let (mut health, slot) = (Health::default(), Slot::new(Weight::ONE));
        let mut opinions = SourceReports::default();
        let mut checks = |check| {
            let of = (&slot, &mut opinions);
            let checked = health.apply_check(check, LIMITS, of, Weight::ONE, at(1));
            (checked.change, checked.dead, slot.has_reason(Reason::Dead))
        };
        assert_eq!(checks(Check::Passed), (None, false, false));
        assert_eq!(checks(Check::Certain), (None, false, false));
        assert_eq!(checks(Check::Certain), (None, false, false));
        let down = Some(Change::Down);
        assert_eq!(checks(Check::Certain), (down, true, true));
        // It listens again, and is not well yet.
        assert_eq!(checks(Check::Failed), (None, false, false));
        assert_eq!(checks(Check::Certain), (None, true, true));
        assert_eq!(checks(Check::Passed), (None, false, false));
        assert_eq!(checks(Check::Passed), (Some(Change::Up), false, false));
    }

    #[test]
    fn a_member_without_checks_is_not_down() {
        let (mut health, slot) = (Health::default(), Slot::new(Weight::ONE));
        run(&mut health, &slot, &[false]);
        assert_eq!(health.reset(&slot, at(2)), Some(Change::Up));
        assert!(!slot.has_reason(Reason::Down));
        assert_eq!(health.reset(&slot, at(2)), None);
    }

    #[test]
    fn slow_start_ends_after_its_time() {
        let slot = Slot::new(Weight::ONE);
        slot.set_ramp_from(Some(at(5)));
        let ten = Duration::from_secs(10);
        assert!(!end_slow_start(&slot, ten, at(14)));
        assert!(slot.ramp_from().is_some());
        assert!(end_slow_start(&slot, ten, at(15)));
        assert_eq!(slot.ramp_from(), None);
        assert!(!end_slow_start(&slot, ten, at(16)));
    }

    #[test]
    fn panic_counts_only_opinions_t1() {
        let (up, down, ejected) = (0, Reason::Down as u32, Reason::Ejected as u32);
        let drained = Reason::Draining as u32;
        assert!(!panics([up, down], 0.5), "exactly the share is allowed");
        assert!(panics([up, down, ejected], 0.5));
        assert!(panics([down], 0.5), "nobody else can take it");
        assert!(!panics([], 0.5));
        assert!(
            panics([up, down, ejected, drained, drained, drained], 0.5),
            "drained members are no part of the share"
        );
        assert!(!panics([up, up, drained | down, drained | ejected], 0.5));
        let shedding = Reason::Shedding as u32;
        assert!(!panics([shedding, shedding, down, up], 0.5));
        assert!(panics([shedding | down, down, shedding], 0.5));
        let dead = Reason::Dead as u32;
        assert!(
            !panics([up, down | dead, down | dead], 0.5),
            "who is down for certain is no part of the share"
        );
        assert!(panics([up, down | dead, down, down], 0.5));
        let backup = Reason::Standby as u32;
        assert!(
            !panics([down, down, backup], 0.5),
            "the backup is there for this"
        );
        assert!(panics([down, down, backup | down], 0.5));
        assert!(
            !panics([up, backup | down], 0.5),
            "backups are not needed, whatever they are"
        );
        assert!(
            panics([drained, dead, backup | down], 0.5),
            "only backups are left"
        );
        assert!(
            panics([down, backup | drained], 0.5),
            "a drained backup is none"
        );
        let of_rank = |rank: u32, bits: u32| bits | 1 << (24 + rank);
        assert!(
            !panics([of_rank(0, down), of_rank(0, down), of_rank(1, up)], 0.5),
            "another zone is there for this"
        );
        assert!(
            panics([of_rank(0, down), of_rank(0, down), of_rank(1, down)], 0.5),
            "it is down, too"
        );
        assert!(!panics([down, down], 1.0));
        assert!(panics([up, down], 0.0));
    }

    proptest! {
        /// The slot always says what the state says, and a change is reported exactly
        /// when it happens.
        #[test]
        fn slot_and_state_agree(
            results in proptest::collection::vec(any::<bool>(), 0..100),
            fall in 1u32..5,
            rise in 1u32..5,
        ) {
            let (mut health, slot) = (Health::default(), Slot::new(Weight::ONE));
            let limits = Limits { fall, rise };
            for (second, &passed) in results.iter().enumerate() {
                let before = slot.has_reason(Reason::Down);
                let change = health.observe(passed, limits, &slot, at(second as u64 + 1));
                let after = slot.has_reason(Reason::Down);
                prop_assert_eq!(health.is_down(), after);
                prop_assert_eq!(change.is_some(), before != after);
                // A change agrees with the result that caused it.
                if let Some(change) = change {
                    prop_assert_eq!(change == Change::Up, passed);
                }
            }
            // A full run of equal results always settles the state.
            for _ in 0..fall {
                health.observe(false, limits, &slot, at(1_000));
            }
            prop_assert!(health.is_down());
            for _ in 0..rise {
                health.observe(true, limits, &slot, at(1_000));
            }
            prop_assert!(!health.is_down());
        }
    }
}
