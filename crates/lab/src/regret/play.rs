//! Strategies play worlds.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::Dispatch;
use evenkeel_sim::requests::play_sources;
use serde::{Deserialize, Serialize};

use super::world::World;

/// Strategies that play each world, the default first.
pub const STRATEGIES: [&str; 7] = [
    "adaptive",
    "least_connection",
    "least_request",
    "peak_ewma",
    "prequal",
    "round_robin",
    "random",
];

/// Strategies that play besides where members report loads.
pub const BY_LOAD: [&str; 2] = ["least_utilization", "k_least_loaded"];

/// The worlds and the runs of each.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Numbers of the worlds.
    pub worlds: Vec<u64>,
    /// Runs of each strategy in each world, with other arrivals each time.
    pub seeds: u64,
    /// Number of threads.
    pub threads: usize,
    /// Strategies that are played; empty is all. The others are taken from `known`.
    pub only: Vec<String>,
}

/// Figures of a strategy in a world: means over the seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Figures {
    /// Mean latency in milliseconds.
    pub mean: f64,
    /// 99th percentile of the latency in milliseconds.
    pub p99: f64,
    /// Share of requests that failed.
    pub failed: f64,
    /// Share of requests that were answered in time to be of use ([`World::useful`]).
    pub useful: f64,
}

/// Figures of all strategies in a world.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Played {
    /// The world's number.
    pub world: u64,
    /// Figures by strategy.
    pub figures: BTreeMap<String, Figures>,
}

/// Plays all worlds of `settings`, and adds the results `known` of other strategies there; `tell` is called with the
/// number of finished worlds.
///
/// # Errors
///
/// The name of a strategy that there is not.
pub fn play_worlds(
    settings: &Settings,
    known: &[Played],
    tell: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Played>, String> {
    for name in &settings.only {
        if strategy::find(name).is_none() {
            return Err(format!("{name:?} is no strategy"));
        }
    }
    let next = AtomicU64::new(0);
    let played = Mutex::new(Vec::with_capacity(settings.worlds.len()));
    std::thread::scope(|scope| {
        for _ in 0..settings.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(&number) = settings.worlds.get(index) else {
                        return;
                    };
                    let old = known.iter().find(|played| played.world == number);
                    let figures = play_world(number, settings, old);
                    let mut played = played.lock().unwrap_or_else(|error| error.into_inner());
                    played.push(figures);
                    tell(played.len());
                }
            });
        }
    });
    let mut played = played
        .into_inner()
        .unwrap_or_else(|error| error.into_inner());
    played.sort_by_key(|played| played.world);
    Ok(played)
}

fn play_world(number: u64, settings: &Settings, known: Option<&Played>) -> Played {
    let world = World::draw(number);
    let mut figures = known.map(|known| known.figures.clone()).unwrap_or_default();
    let by_load = match world.scenario.reports {
        Some(_) => BY_LOAD.as_slice(),
        None => &[],
    };
    for &name in STRATEGIES.iter().chain(by_load) {
        let is_wanted = settings.only.is_empty() || settings.only.iter().any(|only| only == name);
        if (is_wanted || !figures.contains_key(name))
            && let Some(played) = play_strategy(&world, name, settings.seeds)
        {
            figures.insert(name.to_owned(), played);
        }
    }
    Played {
        world: number,
        figures,
    }
}

/// Plays one strategy in a world with this many seeds; `None` if there is no such strategy.
pub fn play_strategy(world: &World, name: &str, seeds: u64) -> Option<Figures> {
    let dispatch = Dispatch::Strategy(Values::defaults(strategy::find(name)?));
    let mut sum = Figures::default();
    let useful = world.useful() as u64;
    for seed in 1..=seeds {
        let seed = world.number.wrapping_mul(1_000).wrapping_add(seed);
        let outcomes = play_sources(&world.scenario, &dispatch, world.sources(), seed);
        let in_time = outcomes.latencies.partition_point(|&took| took <= useful);
        // Requests before the warm-up's end fail, too, but are not among the latencies.
        let asked = outcomes.requests as f64 * (1.0 - evenkeel_sim::requests::WARM_UP);
        sum.mean += outcomes.mean().as_secs_f64() * 1e3;
        sum.p99 += outcomes.quantile(0.99).as_secs_f64() * 1e3;
        sum.failed += outcomes.failed_share();
        sum.useful += in_time as f64 / asked.max(1.0);
    }
    let share = 1.0 / seeds.max(1) as f64;
    Some(Figures {
        mean: sum.mean * share,
        p99: sum.p99 * share,
        failed: sum.failed * share,
        useful: sum.useful * share,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_strategies_play_the_same_arrivals_and_known_ones_are_not_played_again() {
        let settings = Settings {
            worlds: vec![7],
            seeds: 1,
            threads: 2,
            only: Vec::new(),
        };
        let first = play_worlds(&settings, &[], &|_| ()).unwrap();
        assert!(first[0].figures.len() >= STRATEGIES.len());
        let mut known = first.clone();
        let random = known[0].figures.get_mut("random").unwrap();
        random.mean = 1e9;
        let only = vec!["adaptive".to_owned()];
        let again = play_worlds(&Settings { only, ..settings }, &known, &|_| ()).unwrap();
        assert_eq!(again[0].figures["random"].mean, 1e9);
        assert_eq!(again[0].figures["adaptive"], first[0].figures["adaptive"]);
    }
}
