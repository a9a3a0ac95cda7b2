//! Effects of a scenario's events on members: effects that overlap add up.

use std::time::Duration;

use evenkeel_manager::config::scenario::{Event, Strikes};

use crate::engine::{draw_exponential, duration_nanos};
use crate::scenario::{Change, ChangeEffect, MemberModel};

/// Slowness of a member that pauses: so large that nothing gets done.
const PAUSE: f64 = 1e9;

/// An event whose members were looked up.
#[derive(Clone, Debug)]
pub(super) struct ResolvedEvent {
    pub(super) event: Event,
    /// Members that it may happen to, by index.
    pub(super) members: Vec<usize>,
}

/// An effect on a member over a time.
#[derive(Clone, Copy, Debug)]
struct Stroke {
    member: usize,
    start: u64,
    end: u64,
    /// Index of its event.
    event: usize,
}

/// The most strokes of a run on single members.
pub(super) const MAX_STROKES: u128 = 5_000_000;

impl ResolvedEvent {
    /// About how many strokes on single members there are in a run.
    pub(super) fn strokes(&self, duration: Duration) -> u128 {
        let left = duration.saturating_sub(self.event.at).as_nanos();
        let every = self.event.every.map_or(u128::MAX, |every| every.as_nanos());
        let members = match self.event.strikes {
            Strikes::All => self.members.len() as u128,
            Strikes::Next | Strikes::Random => 1,
        };
        (1 + left / every.max(1)) * members
    }

    fn play(&self, index: usize, end: u64, rng: &mut fastrand::Rng, strokes: &mut Vec<Stroke>) {
        let event = &self.event;
        let mut time = |duration: Duration| match event.random {
            true => draw_exponential(duration_nanos(duration), rng).max(1.0) as u64,
            false => duration.as_nanos() as u64,
        };
        let mut times = Vec::new();
        let mut at = event.at.as_nanos() as u64;
        while at < end {
            let length = event.length.map_or(u64::MAX, &mut time);
            times.push((at, at.saturating_add(length).min(end)));
            match event.every {
                Some(every) => at = at.saturating_add(time(every).max(1)),
                None => break,
            }
        }
        for (turn, (start, end)) in times.into_iter().enumerate() {
            let mut strike = |member: usize| {
                strokes.push(Stroke {
                    member,
                    start,
                    end,
                    event: index,
                });
            };
            match event.strikes {
                Strikes::All => self.members.iter().copied().for_each(strike),
                Strikes::Next => strike(self.members[turn % self.members.len()]),
                Strikes::Random => {
                    // Not `usize()`, which depends on the width of the machine's words.
                    let luck = (rng.f64() * self.members.len() as f64) as usize;
                    strike(self.members[luck.min(self.members.len() - 1)]);
                }
            }
        }
    }
}

/// Returns the changes of all members in the order of time.
pub(super) fn changes(
    events: &[ResolvedEvent],
    members: &[MemberModel],
    duration: Duration,
    seed: u64,
) -> Vec<Change> {
    let mut strokes = Vec::new();
    let end = duration.as_nanos() as u64;
    for (index, happening) in events.iter().enumerate() {
        // Each event has its own random numbers, so that one more event does not change the others.
        let mut rng = fastrand::Rng::with_seed(seed ^ (0x5eed_0000 + index as u64));
        if !happening.members.is_empty() {
            happening.play(index, end, &mut rng, &mut strokes);
        }
    }
    let mut edges: Vec<(usize, u64, usize, bool)> = Vec::new();
    for (index, stroke) in strokes.iter().enumerate() {
        edges.push((stroke.member, stroke.start, index, true));
        edges.push((stroke.member, stroke.end, index, false));
    }
    edges.sort_unstable();
    let mut changes = Vec::new();
    let mut active: Vec<usize> = Vec::new();
    for same in edges.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let (member, at) = (same[0].0, same[0].1);
        let before = effects(&active, &strokes, events, &members[member]);
        for &(_, _, stroke, begins) in same {
            match begins {
                true => active.push(stroke),
                false => active.retain(|other| *other != stroke),
            }
        }
        let after = effects(&active, &strokes, events, &members[member]);
        if at >= end {
            continue;
        }
        let at = Duration::from_nanos(at);
        let differ = before.into_iter().zip(after).filter(|(a, b)| a != b);
        changes.extend(differ.map(|(_, to)| Change { at, member, to }));
    }
    // Changes of one moment stay in the order of members.
    changes.sort_by_key(|change| change.at);
    changes
}

/// Returns a member's state while the strokes `active` last.
fn effects(
    active: &[usize],
    strokes: &[Stroke],
    events: &[ResolvedEvent],
    member: &MemberModel,
) -> [ChangeEffect; 4] {
    let (mut slowness, mut failing) = (member.slowness, member.failing);
    let (mut tasks, mut dead) = (0.0, false);
    for &stroke in active {
        let event = &events[strokes[stroke].event].event;
        slowness *= event.slowness;
        if event.pause {
            slowness *= PAUSE;
        }
        failing = failing.max(event.failing);
        tasks += event.tasks;
        dead |= event.dead;
    }
    [
        ChangeEffect::Slowness(slowness.min(1e15)),
        ChangeEffect::Failing(failing),
        ChangeEffect::Background(tasks),
        ChangeEffect::Dead(dead),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn play(events: &[Event], seed: u64) -> Vec<(u64, usize, ChangeEffect)> {
        let all: Vec<ResolvedEvent> = events
            .iter()
            .map(|event| ResolvedEvent {
                event: event.clone(),
                members: vec![0, 1, 2],
            })
            .collect();
        let changes = changes(&all, &[MemberModel::NORMAL; 3], 10 * SECOND, seed);
        let plain = |change: &Change| (change.at.as_millis() as u64, change.member, change.to);
        changes.iter().map(plain).collect()
    }

    #[test]
    fn what_overlaps_adds_up_and_ends() {
        let slow = Event {
            at: SECOND,
            length: Some(3 * SECOND),
            slowness: 2.0,
            strikes: Strikes::Next,
            ..Event::default()
        };
        let slower = Event {
            at: 2 * SECOND,
            slowness: 5.0,
            ..slow.clone()
        };
        let expected = [
            (1000, 0, ChangeEffect::Slowness(2.0)),
            (2000, 0, ChangeEffect::Slowness(10.0)),
            (4000, 0, ChangeEffect::Slowness(5.0)),
            (5000, 0, ChangeEffect::Slowness(1.0)),
        ];
        assert_eq!(play(&[slow, slower], 1), expected);
    }

    #[test]
    fn events_strike_all_at_once_or_one_after_the_other() {
        let event = Event {
            every: Some(4 * SECOND),
            length: Some(SECOND),
            dead: true,
            ..Event::default()
        };
        let deaths = |strikes| {
            let event = Event {
                strikes,
                ..event.clone()
            };
            let all = play(&[event], 1).into_iter();
            let deaths = all.filter(|(_, _, to)| *to == ChangeEffect::Dead(true));
            deaths.map(|(at, who, _)| (at, who)).collect::<Vec<_>>()
        };
        assert_eq!(deaths(Strikes::All).len(), 9);
        assert_eq!(deaths(Strikes::All)[2], (0, 2));
        assert_eq!(deaths(Strikes::Next), [(0, 0), (4000, 1), (8000, 2)]);
        assert_eq!(deaths(Strikes::Random).len(), 3);
    }

    #[test]
    fn chance_is_that_of_the_seed() {
        let event = Event {
            every: Some(SECOND),
            length: Some(SECOND / 2),
            random: true,
            pause: true,
            ..Event::default()
        };
        let of = |seed| play(std::slice::from_ref(&event), seed);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!(of(1).contains(&(0, 0, ChangeEffect::Slowness(PAUSE))));
    }
}
