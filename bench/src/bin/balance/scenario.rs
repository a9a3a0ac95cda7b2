//! Scenarios: changes of the members while they serve, for real members and for the simulator's ideal.

use std::rc::Rc;
use std::time::Duration;

use clap::ValueEnum;
use evenkeel_demo::backend::Backend;
use evenkeel_sim::{
    Change, ChangeEffect, Discipline, Dispatch, Outcomes, Scenario as World, Service, run,
};
use tokio::time::{Instant, sleep, sleep_until};

use crate::load::{self, Request};

/// Slowness of a slow member, as a multiple of the normal one.
const SLOW: f64 = 5.0;
/// Time after which another member becomes the slow one.
const MOVES: Duration = Duration::from_secs(3);
/// Length of a stall, and time from the start of a stall to the start of the next one.
const STALL: Duration = Duration::from_millis(300);
const STALLS: Duration = Duration::from_secs(1);
/// Requests that a member is slow for after a restart.
const COLD: u32 = 50;
/// Share of the capacity of half of the members that another balancer uses.
const ANTAGONIST: f64 = 0.3;
/// Load, as a share of what members can serve.
const UTILISATION: f64 = 0.6;

/// Scenario of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// All members are equal and nothing changes.
    Equal,
    /// A single member takes five times as long.
    Slow,
    /// A single member takes five times as long, another one every three seconds.
    Moving,
    /// Every second another member stalls for 300 ms.
    Stall,
    /// A single member fails half of its requests at once: 503, or a reset.
    Failing,
    /// The costs differ: one request in ten costs 20 times the others.
    Mixed,
    /// Another balancer, round robin, loads the first half of the members by 30 %.
    Antagonist,
    /// Two instances share the members and get every other request each.
    Two,
    /// The balancer has just been started, and a third of the members too: their first 50
    /// requests take three times as long. Nothing is left out of the count.
    Cold,
}

/// A scenario with a number of members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) scenario: Scenario,
    pub(crate) members: usize,
    /// Requests that a member works on at once.
    pub(crate) workers: usize,
    /// Mean cost of a request.
    pub(crate) mean: Duration,
}

/// Members with their workers and mean costs in ms: from the table of the ideal in the simulator;
/// costs such that a few hundred requests per second are a load.
pub(crate) const SIZES: [(usize, usize, u64); 4] =
    [(3, 1, 6), (4, 8, 48), (10, 1, 12), (50, 1, 40)];

impl Row {
    /// Name in tables and files.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}x{}", self.scenario.name(), self.members, self.workers)
    }

    /// Requests per second through the balancer.
    pub(crate) fn rate(&self) -> f64 {
        let lost = match self.scenario {
            Scenario::Slow | Scenario::Moving => 1.0 - 1.0 / SLOW,
            Scenario::Failing => 0.5,
            Scenario::Antagonist => ANTAGONIST * self.antagonised() as f64,
            _ => 0.0,
        };
        let stalled = match self.scenario {
            Scenario::Stall => STALL.as_secs_f64() / STALLS.as_secs_f64(),
            _ => 0.0,
        };
        let members = self.members as f64 - lost - stalled;
        UTILISATION * members * self.workers as f64 / self.mean.as_secs_f64()
    }

    /// The requests of a turn.
    pub(crate) fn draw_requests(&self, length: Duration, seed: u64) -> Vec<Request> {
        let mixed = self.scenario == Scenario::Mixed;
        load::draw_requests(self.rate(), length, self.mean, mixed, seed)
    }

    /// Number of members that another balancer loads.
    fn antagonised(&self) -> usize {
        self.members.div_ceil(2)
    }

    /// Number of members that have just been restarted.
    fn restarted(&self) -> usize {
        self.members.div_ceil(3)
    }

    /// The slow one after the one with this index: not its neighbour, so that order cannot help.
    fn next(&self, slow: usize) -> usize {
        (slow + ((self.members / 3).max(1) | 1)) % self.members
    }

    /// Makes members what they are at the start.
    pub(crate) fn prepare(&self, members: &[Backend]) {
        match self.scenario {
            Scenario::Slow | Scenario::Moving => members[0].set_slowdown(SLOW),
            Scenario::Failing => members[0].set_failing(0.5),
            Scenario::Cold => {
                let restarted = members.iter().take(self.restarted());
                restarted.for_each(|member| member.set_cold(COLD));
            }
            _ => {}
        }
    }

    /// Lets happen what happens, from `begin` until it is dropped.
    pub(crate) async fn play_events(
        self,
        members: Rc<Vec<Backend>>,
        begin: Instant,
        length: Duration,
        seed: u64,
    ) {
        sleep_until(begin).await;
        match self.scenario {
            Scenario::Moving => {
                let mut slow = 0;
                loop {
                    sleep(MOVES).await;
                    members[slow].set_slowdown(1.0);
                    slow = self.next(slow);
                    members[slow].set_slowdown(SLOW);
                }
            }
            Scenario::Stall => {
                for member in members.iter().cycle() {
                    sleep(STALLS).await;
                    member.stall(STALL);
                }
            }
            Scenario::Antagonist => {
                let theirs: Vec<_> = members.iter().take(self.antagonised()).collect();
                let rate = ANTAGONIST * theirs.len() as f64 * self.workers as f64
                    / self.mean.as_secs_f64();
                let requests = load::draw_requests(rate, length, self.mean, false, !seed);
                let addresses: Vec<_> = theirs.iter().map(|member| member.address()).collect();
                // Without it the turn would be an easy one for all.
                let _ = load::send_requests(begin, &requests, &addresses).await;
            }
            _ => {}
        }
    }

    /// The ideal in the simulator: one queue that knows every speed. `None` if the simulator has no such world.
    pub(crate) fn ideal_outcomes(&self) -> Option<Outcomes> {
        let world = World::new(self.name(), self.members)
            .with_discipline(Discipline::Fifo, self.workers)
            .with_utilisation(UTILISATION);
        // The simulator's requests take 10 ms.
        let scale = Service::MEAN / 1e9 / self.mean.as_secs_f64();
        let world = match self.scenario {
            Scenario::Equal | Scenario::Two => world,
            Scenario::Slow => world.one_slow(SLOW),
            Scenario::Moving => world.moving_slow(SLOW, MOVES.mul_f64(scale)),
            Scenario::Failing => world.one_failing(0.5),
            Scenario::Mixed => world.with_service(Service::Mixed),
            Scenario::Stall => self.stalling(world, scale),
            Scenario::Antagonist | Scenario::Cold => return None,
        };
        let ideals = [false, true].map(|knows_costs| {
            let ideal = Dispatch::Central { knows_costs };
            run(&world, &ideal, 1)
        });
        ideals.into_iter().min_by_key(|ideal| ideal.quantile(0.99))
    }

    fn stalling(&self, mut world: World, scale: f64) -> World {
        world.utilisation *= 1.0 - STALL.as_secs_f64() / STALLS.as_secs_f64() / self.members as f64;
        let end = world.duration();
        let mut at = STALLS.mul_f64(scale);
        for member in (0..self.members).cycle() {
            if at >= end {
                return world;
            }
            let after = at + STALL.mul_f64(scale);
            // As good as at a standstill.
            for (at, to) in [(at, 1e6), (after, 1.0)] {
                let to = ChangeEffect::Slowness(to);
                world.changes.push(Change { at, member, to });
            }
            at += STALLS.mul_f64(scale);
        }
        world
    }
}

impl Scenario {
    /// Name in tables and files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Slow => "slow",
            Self::Moving => "moving",
            Self::Stall => "stall",
            Self::Failing => "failing",
            Self::Mixed => "mixed",
            Self::Antagonist => "antagonist",
            Self::Two => "two",
            Self::Cold => "cold",
        }
    }

    /// Instances of the balancer.
    pub(crate) fn instance_count(self) -> usize {
        if self == Self::Two { 2 } else { 1 }
    }

    /// Returns a description of the scenario.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Equal => "equal members",
            Self::Slow => "one member takes five times as long",
            Self::Moving => "one member takes five times as long, another one every 3 s",
            Self::Stall => "every second another member stalls for 300 ms",
            Self::Failing => "one member fails half of its requests at once (503 or reset)",
            Self::Mixed => "one request in ten costs 20 times the others",
            Self::Antagonist => "a round-robin balancer loads half of the members by 30 %",
            Self::Two => "two instances of the balancer share the members",
            Self::Cold => "new balancer; a third of the members restarted and slow for 50 requests",
        }
    }
}
