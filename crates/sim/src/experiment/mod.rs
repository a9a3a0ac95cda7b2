//! Scenarios of users: a file that describes a world around a configuration, its runs, and what
//! they say.
//!
//! [`plan::load_plan`] reads, [`run`] plays every world with every seed, and the other modules show the results:
//! [`text`], [`export`] and [`html`].

pub mod advice;
mod costs;
mod engines;
mod events;
pub mod export;
pub mod html;
pub mod plan;
mod replay;
mod service_times;
mod statistics;
mod study;
pub mod text;
mod thresholds;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_control::event::{Event, ZoneStay};
use evenkeel_control::health::Change;

use crate::requests::{Dispatch, Outcomes, Sample, play_watched};
use plan::{Plan, Point};
pub use statistics::{FIGURES, Figure, Mean, Run, Unit};

/// Shares of requests for which the response time is kept, in thousandths of a per cent.
const QUANTILES: [u32; 25] = [
    0, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000, 45_000, 50_000, 55_000,
    60_000, 65_000, 70_000, 75_000, 80_000, 85_000, 90_000, 95_000, 98_000, 99_000, 99_500, 99_900,
    99_990,
];

/// Results of all runs of a world.
#[derive(Clone, Debug)]
pub struct Results {
    /// All runs.
    pub runs: Vec<Run>,
    /// Course of the first run.
    pub first: Course,
}

/// The course of a run.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// Samples in the order of time.
    pub samples: Vec<Sample>,
    /// Shares of the requests (0 to 1), and the response times below which they stayed.
    pub quantiles: Vec<(f64, Duration)>,
    /// Share of the requests that each member got.
    pub shares: Vec<f64>,
    /// Events: time, balancer, and text.
    pub events: Vec<(Duration, usize, String)>,
}

/// Plays each world of a plan with each seed, on all processors. `progress` is called with the finished share, from 0
/// to 1.
pub fn run(plan: &Plan, progress: &(dyn Fn(f64) + Sync)) -> Vec<Results> {
    let jobs = plan.points.len() * plan.seeds;
    let length = |point: &Point| point.world.length.unwrap_or_default().as_millis() as u64;
    let all: u64 = plan.points.iter().map(length).sum::<u64>() * plan.seeds as u64;
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let slots: Vec<Mutex<Option<(Run, Course)>>> = (0..jobs).map(|_| Mutex::default()).collect();
    let work = || {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = slots.get(job) else {
                return;
            };
            let (point, turn) = (&plan.points[job / plan.seeds], job % plan.seeds);
            let mut told = 0;
            let mut tell = |to: u64| {
                let before = done.fetch_add(to - told, Ordering::Relaxed);
                let now = before + to - told;
                told = to;
                progress(now as f64 / all.max(1) as f64);
            };
            let seed = plan.seed + turn as u64;
            let played = play(point, seed, turn == 0, &mut |at| {
                tell((at.as_millis() as u64).min(length(point)));
            });
            tell(length(point));
            let figures = statistics::figures(&played, point);
            let course = match turn {
                0 => course(point, played),
                _ => Course::default(),
            };
            if let Ok(mut slot) = slot.lock() {
                *slot = Some((Run { seed, figures }, course));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..threads.min(jobs)).for_each(|_| {
            scope.spawn(work);
        });
    });
    let mut slots = slots
        .into_iter()
        .filter_map(|slot| slot.into_inner().ok().flatten());
    let mut results = Vec::new();
    for _ in &plan.points {
        let (mut runs, mut first) = (Vec::new(), None);
        for (run, course) in slots.by_ref().take(plan.seeds) {
            runs.push(run);
            first.get_or_insert(course);
        }
        let first = first.unwrap_or_default();
        results.push(Results { runs, first });
    }
    compare(plan, &mut results);
    results
}

/// Fills in the ratios of the response times to those of the central queue, for each run.
fn compare(plan: &Plan, results: &mut [Results]) {
    let of = |name: &str| FIGURES.iter().position(|figure| figure.name == name);
    let (Some(p99), Some(ratio)) = (of("p99_ms"), of("p99_to_ideal")) else {
        return;
    };
    for index in 0..results.len() {
        let Some(ideal) = plan.ideal_of(index) else {
            continue;
        };
        for run in 0..results[index].runs.len() {
            let best = results[ideal].runs[run].figures[p99];
            let figures = &mut results[index].runs[run].figures;
            figures[ratio] = figures[p99] / best;
        }
    }
}

/// Plays a world once.
fn play(point: &Point, seed: u64, is_first: bool, tell: &mut dyn FnMut(Duration)) -> Outcomes {
    let mut world = point.world.clone();
    let length = world.length.unwrap_or_default();
    world.changes = events::changes(&point.events, &world.members, length, seed);
    if let Some(engines) = &point.engines {
        return engines.play(world.changes, seed, &mut |now| {
            tell(now);
            true
        });
    }
    let dispatch = match point.is_ideal {
        true => Dispatch::Central {
            knows_costs: world.announced,
        },
        false => Dispatch::Configured,
    };
    let source = point.source(seed, is_first);
    play_watched(&world, &dispatch, vec![source], seed, &mut |now| {
        tell(now);
        true
    })
}

/// Extracts the part of a run's outcomes that is kept beside the figures.
fn course(point: &Point, played: Outcomes) -> Course {
    let quantile = |share: &u32| {
        let share = f64::from(*share) / 1e5;
        (share, played.quantile(share))
    };
    let all = played.per_member.iter().sum::<usize>().max(1) as f64;
    let mut events: Vec<(Duration, usize, String)> = Vec::new();
    let name = |member: usize| point.members.get(member).map_or("", String::as_str);
    for (at, balancer, event) in &played.events {
        events.push((*at, *balancer, said(event, &name)));
    }
    for (at, balancer, member, change) in &played.health {
        let what = match change {
            Change::Up => "health checks find the member up",
            Change::Down => "health checks find the member down",
        };
        events.push((*at, *balancer, format!("{}: {what}", name(*member))));
    }
    events.sort();
    Course {
        quantiles: QUANTILES.iter().map(quantile).collect(),
        shares: (played.per_member.iter())
            .map(|&count| count as f64 / all)
            .collect(),
        events,
        samples: played.samples,
    }
}

/// An event in words.
fn said<'n>(event: &Event, name: &dyn Fn(usize) -> &'n str) -> String {
    match event {
        Event::Ejected { member, time, .. } => {
            format!("{}: ejected for {} s", name(*member), time.as_secs_f64())
        }
        Event::Returned(member) => format!("{}: back from ejection", name(*member)),
        Event::Recovered(member) => format!("{}: back from ejection after trials", name(*member)),
        Event::SlowStartOver(member) => format!("{}: slow start is over", name(*member)),
        Event::Panic => "too many members are out: all members are used".into(),
        Event::PanicOver => "enough members are back: members that are out are not used".into(),
        Event::Zone { stay, kept } => match stay {
            ZoneStay::All => "all requests stay in the first zone".into(),
            ZoneStay::Part => format!(
                "{:.0} % of the requests stay in the first zone",
                kept * 100.0
            ),
            ZoneStay::Nothing => "no member of the first zone can serve".into(),
        },
        Event::AlertRaised {
            location,
            load,
            level,
            ..
        } => format!("{location}: load alert ({load:.2} above {level:.2})"),
        Event::AlertLifted { location, .. } => format!("{location}: load alert is over"),
    }
}

#[cfg(test)]
mod tests;
