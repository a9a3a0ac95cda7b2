use std::collections::BTreeMap;

use proptest::prelude::*;

use super::Health::{Alive, Dead, Silent};
use super::*;

/// A group with its factories, in virtual time.
struct World {
    now: Instant,
    rng: fastrand::Rng,
    membership: Membership,
    factories: Vec<String>,
    /// Location to load, and state.
    members: BTreeMap<String, (Option<f32>, Health)>,
    minimum: usize,
    initial: usize,
    maximum: Option<usize>,
}

impl World {
    fn new(factories: usize, minimum: usize, maximum: Option<usize>) -> Self {
        World {
            now: Instant::from_nanos(1),
            rng: fastrand::Rng::with_seed(7),
            membership: Membership::default(),
            factories: (0..factories).map(|n| format!("f{n}")).collect(),
            members: BTreeMap::new(),
            minimum,
            initial: 0,
            maximum,
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }

    fn step(&mut self) -> Vec<Action> {
        let desired = Desired {
            minimum: self.minimum,
            initial: self.initial,
            maximum: self.maximum,
            factories: &self.factories,
            critical: Some(1.0),
        };
        let observed = self
            .members
            .iter()
            .map(|(location, &(load, health))| Observed {
                location,
                made_by_factory: location.starts_with('f'),
                health,
                load,
            });
        let observed: Vec<_> = observed.collect();
        self.membership
            .next_actions(self.now, &desired, &observed, &mut self.rng)
    }

    /// A step whose orders are carried out, by factories that all work.
    fn step_and_do(&mut self) -> Vec<Action> {
        let actions = self.step();
        for action in &actions {
            match action {
                Action::Make(location) => {
                    self.membership.record_new_member(location);
                    let before = self.members.insert(location.clone(), (None, Alive));
                    assert_eq!(before, None, "two members at {location}");
                }
                Action::Remove(location) => {
                    assert!(self.members.remove(location).is_some());
                }
                Action::Drain(_) | Action::Resume(_) => {}
            }
        }
        actions
    }

    fn load(&mut self, load: f32) {
        self.members
            .values_mut()
            .for_each(|member| member.0 = Some(load));
    }

    fn serving(&self) -> Vec<&str> {
        let alive = self.members.iter().filter(|(_, member)| member.1 == Alive);
        alive.map(|(location, _)| location.as_str()).collect()
    }
}

fn make(location: &str) -> Action {
    Action::Make(location.into())
}

fn remove(location: &str) -> Action {
    Action::Remove(location.into())
}

#[test]
fn the_minimum_is_made_by_the_preferred_factories() {
    let mut world = World::new(4, 2, None);
    assert_eq!(world.step(), [make("f0"), make("f1")]);
    // They are being made.
    assert_eq!(world.step(), []);
    world.membership.record_new_member("f0");
    world.membership.record_new_member("f1");
    world.members.insert("f0".into(), (None, Alive));
    world.members.insert("f1".into(), (None, Alive));
    assert_eq!(world.step(), []);
}

#[test]
fn members_that_the_application_has_added_count() {
    let mut world = World::new(4, 2, None);
    world.members.insert("elsewhere".into(), (None, Alive));
    assert_eq!(world.step(), [make("f0")]);
}

#[test]
fn a_member_that_failed_is_dropped_and_replaced_elsewhere() {
    let mut world = World::new(3, 2, None);
    world.step_and_do();
    world.pass(1);
    world.step();
    world.members.insert("f0".into(), (None, Dead));
    assert_eq!(world.step_and_do(), [remove("f0"), make("f2")]);
    // Where it was is free again, for the next one.
    world.pass(2);
    world.members.insert("f1".into(), (None, Dead));
    assert_eq!(world.step_and_do(), [remove("f1"), make("f0")]);
    assert_eq!(world.serving(), ["f0", "f2"]);
}

#[test]
fn with_no_other_factory_the_one_that_failed_is_tried_again_after_a_pause() {
    let mut world = World::new(2, 2, None);
    world.step_and_do();
    world.step();
    world.members.insert("f0".into(), (None, Dead));
    assert_eq!(world.step_and_do(), [remove("f0")]);
    world.pass(1);
    assert_eq!(world.step_and_do(), [make("f0")]);
}

#[test]
fn a_factory_that_fails_is_left_alone_for_longer_and_longer() {
    let mut world = World::new(1, 1, None);
    let mut tries = Vec::new();
    for second in 0..3600u64 {
        for action in world.step() {
            assert_eq!(action, make("f0"));
            world
                .membership
                .record_creation_failure(world.now, "f0", &mut world.rng);
            tries.push(second);
        }
        world.pass(1);
    }
    // 1, 2, 4 ... 256, 300, 300: with half of each pause by chance.
    assert!((15..=32).contains(&tries.len()), "{tries:?}");
    assert!(tries.windows(2).all(|two| two[1] - two[0] <= 300));
}

/// Files or ports that have run out here are no failure of a factory: it stays the preferred
/// one, and is called again with the next step.
#[test]
fn s5_a_factory_that_could_not_be_called_has_not_failed() {
    let mut world = World::new(2, 1, None);
    for _ in 0..100 {
        assert_eq!(world.step(), [make("f0")]);
        world.membership.record_uncalled_factory("f0");
    }
    assert_eq!(world.membership.factories["f0"].failures, 0);
}

#[test]
fn a_factory_that_fails_gives_way_to_another() {
    let mut world = World::new(2, 1, None);
    assert_eq!(world.step(), [make("f0")]);
    world
        .membership
        .record_creation_failure(world.now, "f0", &mut world.rng);
    assert_eq!(world.step_and_do(), [make("f1")]);
    // And stays behind until a member of its own has lived.
    world.pass(3600);
    world.step();
    world.members.insert("f1".into(), (None, Dead));
    assert_eq!(world.step_and_do(), [remove("f1"), make("f0")]);
    world.step();
    world.pass(60);
    world.step();
    assert_eq!(world.membership.factories["f0"].failures, 0);
}

/// A server that is slow, and so in no time answers, keeps its object until another one has
/// its clients and some minutes are over; the last member that is not certainly gone stays.
#[test]
fn tao_1_a_silent_member_is_replaced_before_it_is_removed() {
    let mut world = World::new(4, 3, None);
    world.step_and_do();
    world.members.insert("f1".into(), (None, Silent));
    // The replacement comes first, and nothing is deleted.
    assert_eq!(world.step_and_do(), [make("f3")]);
    for _ in 0..299 {
        assert_eq!(world.step_and_do(), []);
        world.pass(1);
    }
    // Back in time: its minutes begin anew when it is silent again.
    world.members.insert("f1".into(), (None, Alive));
    assert_eq!(world.step_and_do(), []);
    world.pass(1000);
    world.members.insert("f1".into(), (None, Silent));
    assert_eq!(world.step_and_do(), []);
    world.pass(299);
    assert_eq!(world.step_and_do(), []);
    world.pass(1);
    assert_eq!(world.step_and_do(), [remove("f1")]);
    assert_eq!(world.serving(), ["f0", "f2", "f3"]);
}

/// The factory of a silent member may be the only one that can replace it, and may answer.
#[test]
fn tao_1_a_silent_member_without_replacement_goes_after_minutes_if_another_serves() {
    let mut world = World::new(2, 2, None);
    world.step_and_do();
    world.members.insert("f0".into(), (None, Silent));
    assert_eq!(world.step_and_do(), []);
    world.pass(300);
    assert_eq!(world.step_and_do(), [remove("f0")]);
    world.pass(1);
    assert_eq!(world.step_and_do(), [make("f0")]);
    // The last one is not deleted on suspicion, however long it takes.
    for at in ["f0", "f1"] {
        world.members.insert(at.into(), (None, Silent));
    }
    for _ in 0..100 {
        assert_eq!(world.step_and_do(), []);
        world.pass(300);
    }
    // Certainty is something else.
    world.members.insert("f1".into(), (None, Dead));
    assert_eq!(world.step_and_do()[0], remove("f1"));
}

#[test]
fn tao_1_a_member_that_is_to_go_and_falls_silent_is_to_go_no_more() {
    let mut world = World::new(5, 1, Some(4));
    for n in 0..2 {
        world.members.insert(format!("f{n}"), (Some(0.1), Alive));
    }
    world.step();
    world.pass(300);
    assert_eq!(world.step(), [Action::Drain("f0".into())]);
    world.members.insert("f0".into(), (Some(0.1), Silent));
    assert_eq!(world.step(), [Action::Resume("f0".into())]);
    world.pass(30);
    assert_eq!(world.step(), []);
}

#[test]
fn a_group_grows_while_all_are_overloaded_and_not_beyond_its_maximum() {
    let mut world = World::new(5, 2, Some(4));
    world.step_and_do();
    world.load(1.5);
    assert_eq!(world.step(), []);
    world.pass(9);
    assert_eq!(world.step(), []);
    world.pass(1);
    assert_eq!(world.step_and_do(), [make("f2")]);
    // Its load is not known yet: not all are overloaded.
    world.pass(100);
    assert_eq!(world.step(), []);
    world.load(1.5);
    world.step();
    world.pass(10);
    assert_eq!(world.step_and_do(), [make("f3")]);
    world.load(9.0);
    world.step();
    world.pass(1000);
    assert_eq!(world.step(), []);
}

#[test]
fn a_group_does_not_grow_while_one_can_take_more_or_for_a_moment() {
    let mut world = World::new(5, 2, Some(4));
    world.step_and_do();
    world.load(1.5);
    world.members.insert("f1".into(), (Some(0.9), Alive));
    world.step();
    world.pass(100);
    assert_eq!(world.step(), []);
    // For a moment, again and again.
    for _ in 0..10 {
        world.load(1.5);
        world.step();
        world.pass(9);
        assert_eq!(world.step(), []);
        world.load(0.9);
        assert_eq!(world.step(), []);
        world.pass(9);
    }
}

#[test]
fn without_a_maximum_a_group_does_not_grow() {
    let mut world = World::new(5, 2, None);
    world.step_and_do();
    world.load(9.0);
    world.step();
    world.pass(1000);
    assert_eq!(world.step(), []);
}

#[test]
fn a_group_shrinks_when_fewer_have_been_enough_for_long() {
    let mut world = World::new(5, 2, Some(4));
    for n in 0..4 {
        world.members.insert(format!("f{n}"), (Some(0.1), Alive));
    }
    world.members.insert("f2".into(), (Some(0.05), Alive));
    world.step();
    world.pass(299);
    assert_eq!(world.step(), []);
    world.pass(1);
    // The least loaded one, which gets no new clients before it goes.
    assert_eq!(world.step(), [Action::Drain("f2".into())]);
    world.pass(29);
    assert_eq!(world.step(), []);
    world.pass(1);
    assert_eq!(world.step_and_do(), [remove("f2")]);
    // The next one has the same time.
    world.step();
    world.pass(299);
    assert_eq!(world.step(), []);
    world.pass(1);
    world.step();
    world.pass(30);
    world.step_and_do();
    assert_eq!(world.serving().len(), 2);
    // The minimum stays.
    world.step();
    world.pass(3600);
    assert_eq!(world.step(), []);
}

#[test]
fn a_group_does_not_shrink_below_what_it_started_with_or_if_the_others_had_too_much() {
    let mut world = World::new(5, 1, Some(4));
    world.initial = 3;
    for n in 0..3 {
        world.members.insert(format!("f{n}"), (Some(0.0), Alive));
    }
    world.step();
    world.pass(3600);
    assert_eq!(world.step(), []);
    world.initial = 0;
    // Two would have 0.75 each.
    world.load(0.5);
    world.step();
    world.pass(3600);
    assert_eq!(world.step(), []);
    // Nobody knows.
    world.load(0.1);
    world.members.insert("f1".into(), (None, Alive));
    world.step();
    world.pass(3600);
    assert_eq!(world.step(), []);
}

#[test]
fn a_member_that_is_to_go_stays_if_it_is_needed() {
    let mut world = World::new(5, 1, Some(4));
    for n in 0..2 {
        world.members.insert(format!("f{n}"), (Some(0.1), Alive));
    }
    world.step();
    world.pass(300);
    assert_eq!(world.step(), [Action::Drain("f0".into())]);
    world.members.insert("f1".into(), (Some(0.1), Dead));
    assert_eq!(
        world.step_and_do(),
        [remove("f1"), Action::Resume("f0".into())]
    );
    world.pass(1000);
    assert_eq!(world.step(), []);
}

#[test]
fn members_of_the_application_are_not_taken_away() {
    let mut world = World::new(2, 1, Some(4));
    for name in ["a", "b", "c"] {
        world.members.insert(name.into(), (Some(0.0), Alive));
    }
    world.step();
    world.pass(3600);
    assert_eq!(world.step(), []);
}

#[test]
fn a_lower_maximum_counts_at_once() {
    let mut world = World::new(5, 1, Some(2));
    for n in 0..4 {
        world.members.insert(format!("f{n}"), (Some(5.0), Alive));
    }
    for _ in 0..2 {
        assert!(matches!(world.step()[..], [Action::Drain(_)]));
        world.pass(30);
        assert!(matches!(world.step_and_do()[..], [Action::Remove(_)]));
    }
    assert_eq!(world.step(), []);
}

#[test]
fn few_are_made_at_the_same_time() {
    let mut world = World::new(100, 100, None);
    assert_eq!(world.step().len(), MOST_AT_ONCE);
    assert_eq!(world.step(), []);
    world.membership.record_new_member("f3");
    world.members.insert("f3".into(), (None, Alive));
    assert_eq!(world.step().len(), 1);
}

proptest! {
    /// Whatever happens: never two members at a place, never more than the maximum, nobody
    /// is ordered twice, no silent member is removed that is the last; and when it is over,
    /// the minimum is there.
    #[test]
    fn a_group_keeps_its_bounds_and_recovers(
        factories in 1usize..6,
        minimum in 0usize..4,
        growth in proptest::option::of(0usize..4),
        events in proptest::collection::vec((0u8..8, any::<u8>()), 0..200),
        seed in any::<u64>(),
    ) {
        let maximum = growth.map(|growth| minimum + growth);
        let mut world = World::new(factories, minimum, maximum);
        world.rng = fastrand::Rng::with_seed(seed);
        let mut ordered: Vec<String> = Vec::new();
        // Members that were replaced while they were silent, and are back.
        let mut back = 0;
        let mut run = |world: &mut World, event: u8, number: u8| {
            let index = usize::from(number);
            match event {
                0 => world.pass(u64::from(number)),
                1 if !ordered.is_empty() => {
                    let location = ordered.remove(index % ordered.len());
                    world.members.insert(location.clone(), (None, Alive));
                    world.membership.record_new_member(&location);
                }
                2 if !ordered.is_empty() => {
                    let location = ordered.remove(index % ordered.len());
                    world.membership.record_creation_failure(world.now, &location, &mut world.rng);
                }
                3 | 5 | 6 => {
                    let place = index % world.members.len().max(1);
                    if let Some(member) = world.members.values_mut().nth(place) {
                        back += usize::from(event == 5 && member.1 == Silent);
                        member.1 = [Dead, Alive, Silent][usize::from(event / 2 - 1)];
                    }
                }
                4 => world.load(f32::from(number) / 128.0),
                _ => {}
            }
            for action in world.step() {
                match action {
                    Action::Make(location) => {
                        assert!(!world.members.contains_key(&location));
                        assert!(!ordered.contains(&location));
                        ordered.push(location);
                    }
                    Action::Remove(location) => {
                        let removed = world.members.remove(&location).unwrap();
                        assert!(removed.1 != Silent || !world.serving().is_empty());
                    }
                    Action::Drain(location) | Action::Resume(location) => {
                        assert!(world.members.contains_key(&location));
                    }
                }
            }
            let most = maximum.unwrap_or(minimum).max(minimum);
            assert!(world.serving().len() + ordered.len() <= most + back);
        };
        for (event, number) in events {
            run(&mut world, event, number);
        }
        for place in 0..=u8::MAX {
            let silent = world.members.values().nth(usize::from(place));
            if silent.is_some_and(|member| member.1 == Silent) {
                run(&mut world, 5, place);
            }
        }
        for _ in 0..50 {
            run(&mut world, 0, 200);
            run(&mut world, 1, 0);
        }
        prop_assert!(world.serving().len() >= minimum.min(factories));
    }
}
