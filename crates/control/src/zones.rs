//! Shares of a group's requests that leave a zone.
//!
//! Requests go to the balancer's own zone first ([`zone`]). In each round it is worked out which part of
//! what comes to a rank of zones stays there; the rest passes on to the next rank in which anybody can
//! serve. Two things make requests leave:
//!
//! - **Members that cannot serve.** With a share *u* of the weight usable, *u / min_usable* stays, at
//!   most all: at once, and back as soon as members are back.
//! - **Load.** As long as the mean load *l* of the members that can serve is above the threshold *t*, the
//!   part *k* that stays shrinks, and as long as it is below, it grows again:
//!
//! ```text
//! dk/dt = k (t / l - 1) / T
//! ```
//!
//! With a load that is in proportion to the requests this ends where *l = t*, and the way there does not
//! depend on how much more than *t* is asked for: the loop has a gain of one. *T* is 2 seconds, or eight
//! times the mean age of the load reports: a loop that integrates does not overshoot if it takes at
//! least *e* times as long as what it sees is old, and what a report says of the time before it is older
//! than the report. In a band of 5 % below *t* nothing changes.
//!
//! Requests that leave are a load elsewhere. So a zone sheds none to another one that is as loaded: *t* is
//! at least the load of the next rank, and a band above it. Two balancers that each prefer another zone
//! then never send each other what is too much for both.

use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::time::Instant;
use evenkeel_core::zone::{self, Measured, RANKS, Reading, SPILL_ABOVE};

use crate::event::{Event, ZoneStay};

/// The shortest time constant of what stays.
const REACTION: Duration = Duration::from_secs(2);

/// Least time constant, as a multiple of the age of load reports.
const AGES: f32 = 8.0;

/// Time constant of the mean of loads: what is in flight changes from round to round.
const SMOOTHING: Duration = Duration::from_secs(1);

/// Differences of loads up to this share are none.
const BAND: f32 = 0.05;

/// The least part that stays whatever the load is, so that it is seen when there is less.
const LEAST: f32 = 1.0 / 64.0;

/// A part that stays up to this one is less than all, in events: those about less are noise.
const PART: f32 = 0.95;

/// Part from which on all stays: what is left is less than is counted.
const ALL: f32 = 1.0 - 1.0 / zone::WHOLE as f32;

/// The longest time between two rounds that counts.
const LONGEST: Duration = Duration::from_secs(1);

/// State of a group's zones that is kept from round to round.
#[derive(Clone, Debug)]
pub struct Zones {
    ranks: [Rank; RANKS],
    /// The last round; `None` before the first one.
    at: Option<Instant>,
    stay: ZoneStay,
}

#[derive(Clone, Copy, Debug)]
struct Rank {
    /// The part that stays, as far as its load goes.
    kept: f32,
    /// Mean load of the last second or so.
    load: Option<f32>,
}

impl Default for Zones {
    fn default() -> Self {
        let none = Rank {
            kept: 1.0,
            load: None,
        };
        Zones {
            ranks: [none; RANKS],
            at: None,
            stay: ZoneStay::All,
        }
    }
}

impl Zones {
    /// A round: says in the group's state which part of the requests passes on from each rank.
    pub(crate) fn run_round(&mut self, group: &Group, now: Instant, act: &mut impl FnMut(Event)) {
        let readings = group.state().zones();
        let (Some(ranks), Some(settings)) = (group.ranks(), &group.settings().zones) else {
            if self.at.is_some() {
                *self = Zones::default();
                let none = Reading {
                    passed_share: 0,
                    load: None,
                    usable: 1.0,
                };
                (0..RANKS).for_each(|rank| readings.set(rank, none));
            }
            return;
        };
        let count = ranks.count().min(RANKS);
        if self.at.is_none() {
            // Perhaps a process before has found something out.
            for (rank, of_rank) in self.ranks.iter_mut().enumerate() {
                of_rank.kept = kept_of(readings.get(rank).passed_share).max(LEAST);
            }
        }
        let elapsed = self
            .at
            .replace(now)
            .map_or(Duration::ZERO, |at| now.since(at));
        let elapsed = elapsed.min(LONGEST).as_secs_f32();
        let measured = group.measure_ranks(now);
        for (rank, measured) in self.ranks.iter_mut().zip(&measured) {
            let part = (elapsed / SMOOTHING.as_secs_f32()).min(1.0);
            rank.load = match (rank.load, measured.load) {
                (Some(before), Some(load)) => Some(before + (load - before) * part),
                (_, load) => load,
            };
        }
        let threshold = settings.spill_above.unwrap_or(SPILL_ABOVE);
        let mut first = 1.0;
        for index in 0..count {
            let (Some(&rank), Some(of_rank)) = (self.ranks.get(index), measured.get(index)) else {
                break;
            };
            // The next one in which anybody can serve.
            let mut beyond = self.ranks.iter().zip(&measured).take(count).skip(index + 1);
            let beyond = beyond.find(|(_, measured)| measured.usable > 0.0);
            let beyond = beyond.map(|(next, measured)| (next.load, measured.usable));
            let kept = match beyond {
                None => {
                    self.set_kept(index, 1.0);
                    1.0
                }
                Some((next, usable)) => {
                    let step = Step {
                        load: rank.load,
                        next,
                        ratio: of_rank.usable / usable,
                        threshold,
                        share: elapsed / (AGES * of_rank.age).max(REACTION.as_secs_f32()),
                    };
                    let by_load = step.kept(rank.kept);
                    self.set_kept(index, by_load);
                    by_load.min(by_health(of_rank, settings.min_usable))
                }
            };
            if index == 0 {
                first = kept;
            }
            let usable = match of_rank.weight > 0.0 {
                true => of_rank.usable / of_rank.weight,
                false => 0.0,
            };
            let passed = ((1.0 - kept) * zone::WHOLE as f32) as u32;
            readings.set(
                index,
                Reading {
                    passed_share: passed.min(zone::WHOLE),
                    load: rank.load,
                    usable,
                },
            );
        }
        let stay = self.stay.after(first);
        if stay != self.stay {
            self.stay = stay;
            act(Event::Zone { stay, kept: first });
        }
    }

    fn set_kept(&mut self, rank: usize, kept: f32) {
        if let Some(rank) = self.ranks.get_mut(rank) {
            rank.kept = kept;
        }
    }
}

/// The part that stays by the load where this one passes on: all of them do only where nobody can serve.
fn kept_of(passed: u32) -> f32 {
    match passed >= zone::WHOLE {
        true => 1.0,
        false => 1.0 - passed as f32 / zone::WHOLE as f32,
    }
}

/// The part that stays by how many members can serve.
fn by_health(measured: &Measured, least: f32) -> f32 {
    if measured.usable <= 0.0 {
        return 0.0;
    }
    match measured.usable < least * measured.weight {
        true => measured.usable / (least * measured.weight),
        false => 1.0,
    }
}

/// A step of the part that stays by the load.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Load of the rank.
    load: Option<f32>,
    /// Load of the next rank.
    next: Option<f32>,
    /// Usable weight of the rank, divided by that of the next rank.
    ratio: f32,
    threshold: f32,
    /// Time since the last step, by the time constant.
    share: f32,
}

impl Step {
    fn kept(&self, before: f32) -> f32 {
        let share = self.share.min(0.5);
        let Some(load) = self.load else {
            return before + (1.0 - before) * share;
        };
        let next = self.next.unwrap_or(0.0) * (1.0 + BAND);
        // What leaves one that is larger loads a smaller one by more than it relieves itself.
        let (target, share) = match next > self.threshold {
            true => (next, share / (1.0 + self.ratio)),
            false => (self.threshold, share),
        };
        if load <= target && load >= target * (1.0 - BAND) {
            return before;
        }
        // At most twice as fast as with a load that is half as high, or twice.
        let error = (target / load.max(f32::MIN_POSITIVE)).clamp(0.5, 2.0) - 1.0;
        (before * (1.0 + share * error)).clamp(LEAST, 1.0)
    }
}

impl ZoneStay {
    /// Returns the stay after this part is kept now. A part that is almost all counts as all again
    /// only when it is all.
    fn after(self, kept: f32) -> ZoneStay {
        match kept {
            kept if kept <= 0.0 => ZoneStay::Nothing,
            kept if kept < PART => ZoneStay::Part,
            kept if kept < ALL && self == ZoneStay::Part => ZoneStay::Part,
            _ => ZoneStay::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_core::group::GroupSettings;
    use evenkeel_core::load::{LoadId, LoadValue};
    use evenkeel_core::member::{Member, Reason};
    use evenkeel_core::strategy::{self, Values};
    use evenkeel_core::zone::ZoneSettings;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::make_member;

    const ROUND: u64 = 100_000_000;

    /// A group with a member in each of these zones, as a balancer in zone `a` sees it.
    struct World {
        group: Group,
        zones: Zones,
        now: Instant,
        events: Vec<Event>,
    }

    impl World {
        fn new(zones: &[&str], settings: ZoneSettings) -> Self {
            let member = |(id, zone): (usize, &&str)| Member {
                zone: Some((*zone).into()),
                ..make_member(id as u64)
            };
            let members = zones.iter().enumerate().map(member).collect();
            let settings = GroupSettings {
                zones: Some(ZoneSettings {
                    balancer_zone: Some("a".into()),
                    ..settings
                }),
                ..GroupSettings::default()
            };
            let values = Values::defaults(strategy::find("random").unwrap());
            let group = Group::new("g", settings, &values, members, Arc::default());
            group.take_ranks();
            World {
                group,
                zones: Zones::default(),
                now: Instant::from_nanos(1_000 * ROUND),
                events: Vec::new(),
            }
        }

        fn report(&self, member: usize, load: f32) {
            let load = LoadValue::new(f64::from(load).max(0.0)).unwrap();
            let location = &self.group.members()[member].location;
            location.report_load(LoadId::CPU, load, self.now).unwrap();
        }

        fn set(&self, member: usize, reason: Reason, holds: bool) {
            self.group.members()[member].slot.set(reason, holds);
        }

        fn round(&mut self) {
            let events = &mut self.events;
            self.zones
                .run_round(&self.group, self.now, &mut |event| events.push(event));
            self.now = Instant::from_nanos(self.now.as_nanos() + ROUND);
        }

        /// The shares of the first three ranks.
        fn shares(&self) -> Vec<f64> {
            let ranks = self.group.ranks().map_or(1, |ranks| ranks.count());
            self.group.state().zones().rank_shares(ranks)
        }

        /// Goes on for so many rounds with this load of the second zone and, in the first one, so much by
        /// others and so much by the requests, if all stay. Reports come after each `every` rounds, and
        /// say what was since. Answers which part has stayed in each round.
        fn play(
            &mut self,
            rounds: usize,
            (own, others): (f32, f32),
            other: f32,
            every: usize,
        ) -> Vec<f64> {
            let (mut loads, mut kept) = (Vec::new(), Vec::new());
            for round in 0..rounds {
                loads.push((others + own * self.shares()[0] as f32).min(1.0));
                if round % every == every - 1 {
                    self.report(0, loads.iter().sum::<f32>() / loads.len() as f32);
                    self.report(1, other);
                    loads.clear();
                }
                self.round();
                kept.push(self.shares()[0]);
            }
            kept
        }
    }

    fn part_stays(events: &[Event]) -> Vec<ZoneStay> {
        let stay = |event: &Event| match event {
            Event::Zone { stay, .. } => Some(*stay),
            _ => None,
        };
        events.iter().filter_map(stay).collect()
    }

    #[test]
    fn all_stay_in_a_zone_that_is_well_and_leave_one_that_is_down_within_a_round() {
        let mut world = World::new(&["a", "a", "a", "b", "c"], ZoneSettings::default());
        for load in [0.1, 0.5, 0.79, 0.8] {
            (0..3).for_each(|member| world.report(member, load));
            world.round();
            assert_eq!(world.shares(), [1.0, 0.0]);
        }
        (0..3).for_each(|member| world.set(member, Reason::Down, true));
        world.round();
        assert_eq!(world.shares(), [0.0, 1.0]);
        // As many as are back, and then all.
        world.set(0, Reason::Down, false);
        world.round();
        let [kept, _] = world.shares()[..] else {
            panic!("two ranks");
        };
        assert!((kept - 1.0 / 3.0 / 0.7).abs() < 1e-3, "{kept}");
        (0..3).for_each(|member| world.set(member, Reason::Down, false));
        world.round();
        assert_eq!(world.shares(), [1.0, 0.0]);
        // Nobody else can serve.
        (3..5).for_each(|member| world.set(member, Reason::Draining, true));
        (0..3).for_each(|member| world.set(member, Reason::Down, true));
        world.round();
        assert_eq!(world.shares(), [1.0, 0.0]);
        let stay = [ZoneStay::Nothing, ZoneStay::Part, ZoneStay::All];
        assert_eq!(part_stays(&world.events), stay);
    }

    #[test]
    fn a_zone_that_comes_after_one_that_is_down_passes_on_in_turn() {
        let order = vec!["b".into()];
        let settings = ZoneSettings {
            order,
            ..ZoneSettings::default()
        };
        let mut world = World::new(&["a", "b", "b", "b", "b", "c"], settings);
        world.round();
        assert_eq!(world.shares(), [1.0, 0.0, 0.0]);
        world.set(0, Reason::Maintenance, true);
        world.round();
        assert_eq!(world.shares(), [0.0, 1.0, 0.0]);
        for member in [1, 2] {
            world.set(member, Reason::Dead, true);
        }
        world.round();
        let shares = world.shares();
        assert!((shares[1] - 0.5 / 0.7).abs() < 1e-3, "{shares:?}");
        assert!((shares[2] - 0.2 / 0.7).abs() < 1e-3, "{shares:?}");
    }

    #[test]
    fn a_group_without_zones_has_nothing_to_draw() {
        let mut world = World::new(&["a", "a"], ZoneSettings::default());
        world.report(0, 1.0);
        world.report(1, 1.0);
        world.round();
        assert!(world.group.ranks().is_none());
        assert_eq!(world.shares(), [1.0]);
        assert!(world.events.is_empty());
    }

    /// Reports that stop say nothing against a zone.
    #[test]
    fn what_is_not_known_brings_requests_back() {
        let mut world = World::new(&["a", "b"], ZoneSettings::default());
        let kept = world.play(600, (2.0, 0.0), 0.1, 5);
        assert!(kept[599] < 0.5, "{}", kept[599]);
        for _ in 0..600 {
            world.round();
        }
        assert!(world.shares()[0] > 0.99, "{:?}", world.shares());
        assert_eq!(part_stays(&world.events), [ZoneStay::Part, ZoneStay::All]);
    }

    /// Two balancers, each in a zone of its own, that have more requests than both zones can serve.
    #[test]
    fn zones_that_are_both_loaded_share_and_do_not_swap_requests() {
        let mut worlds = [
            World::new(&["a", "b"], ZoneSettings::default()),
            World::new(&["a", "b"], ZoneSettings::default()),
        ];
        // Of what each zone can serve.
        let asked = [1.5, 0.6];
        for round in 0..3000 {
            let kept = [0, 1].map(|at: usize| worlds[at].shares()[0] as f32);
            let load = |at: usize| asked[at] * kept[at] + asked[1 - at] * (1.0 - kept[1 - at]);
            for (at, world) in worlds.iter_mut().enumerate() {
                if round % 5 == 0 {
                    // Each calls its own zone a.
                    world.report(0, load(at));
                    world.report(1, load(1 - at));
                }
                world.round();
            }
        }
        let kept = [0, 1].map(|at: usize| worlds[at].shares()[0] as f32);
        assert!(kept[1] > 0.99, "{kept:?}");
        let loads = [asked[0] * kept[0], asked[1] + asked[0] * (1.0 - kept[0])];
        assert!(
            (loads[0] / loads[1] - 1.0).abs() < 0.12,
            "{loads:?} {kept:?}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        /// The part that stays gets to where the load is at the threshold, passes that by little,
        /// and rests there, however much is asked for and however seldom load is reported; and
        /// comes back.
        #[test]
        fn what_stays_settles_and_comes_back(
            own in 0.1f32..3.0,
            others in 0.0f32..0.4,
            other in 0.0f32..0.7,
            every in prop_oneof![Just(1usize), 2usize..20, Just(50usize)],
        ) {
            let mut world = World::new(&["a", "b"], ZoneSettings::default());
            let rounds = 1_000 + 40 * every;
            let kept = world.play(rounds, (own, others), other, every);
            let wanted = f64::from((0.8 - others) / own).clamp(f64::from(LEAST), 1.0);
            let least = kept.iter().copied().fold(1.0, f64::min);
            let (last, rest) = (kept[rounds - 1], &kept[rounds / 2..]);
            let highest = rest.iter().copied().fold(0.0, f64::max);
            let lowest = rest.iter().copied().fold(1.0, f64::min);
            if wanted == 1.0 {
                prop_assert!(least == 1.0, "{least}");
            } else {
                prop_assert!(least > 0.85 * wanted, "{least} of {wanted}");
                prop_assert!((last / wanted - 1.0).abs() < 0.2, "{last} of {wanted}");
                prop_assert!(highest / lowest < 1.2, "{lowest} to {highest}");
            }
            let kept = world.play(rounds, (own.min(0.5), 0.0), other, every);
            prop_assert!(kept[rounds - 1] > 0.98, "{}", kept[rounds - 1]);
        }

        /// The more there is too much, the more leaves.
        #[test]
        fn more_load_keeps_less(
            loads in prop::array::uniform2(0.0f32..2.0),
            before in LEAST..1.0,
            next in prop::option::of(0.0f32..2.0),
            ratio in 0.01f32..100.0,
            share in 0.0f32..1.0,
        ) {
            let kept = loads.map(|load| {
                let step = Step { load: Some(load), next, ratio, threshold: 0.8, share };
                step.kept(before)
            });
            let in_range = kept.iter().all(|kept| (LEAST..=1.0).contains(kept));
            prop_assert!(in_range, "{kept:?}");
            let [low, high] = if loads[0] <= loads[1] { kept } else { [kept[1], kept[0]] };
            prop_assert!(low >= high, "{loads:?}: {kept:?}");
        }

        /// In the end, too, the more is asked for, the more leaves.
        #[test]
        fn the_more_is_asked_for_the_more_leaves(asked in prop::array::uniform2(0.5f32..2.5)) {
            let kept = asked.map(|own| {
                let mut world = World::new(&["a", "b"], ZoneSettings::default());
                world.play(1_000, (own, 0.0), 0.3, 5)[999]
            });
            let [less, more] = if asked[0] <= asked[1] { kept } else { [kept[1], kept[0]] };
            prop_assert!(less >= more - 0.06, "{asked:?}: {kept:?}");
        }
    }
}
