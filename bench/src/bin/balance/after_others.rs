//! Latency in one world after all other worlds in the same process of a balancer, beside that of a process
//! which has seen nothing else.
//!
//! A balancer can learn figures of its members in one world which are wrong in the next world. Each lane has one process of
//! each balancer for all its runs. A run plays seven other worlds, after which all members are as they were, and
//! then counts the latency in the world of interest: one request in ten costs twenty times the others, and one member,
//! another one in each run, is three times slower. A new process of the product has the same requests
//! at the same moments.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use evenkeel_bench::server::Server;
use evenkeel_demo::backend::Backend;
use serde::Serialize;
use tokio::time::Instant;

use crate::load::{self, Answer, Request};
use crate::results::values_at;
use crate::scenario::{Row, Scenario};
use crate::{Arm, Result, serves, start_members};

/// Worlds before the one that is counted.
const OTHERS: [Scenario; 7] = [
    Scenario::Equal,
    Scenario::Slow,
    Scenario::Moving,
    Scenario::Stall,
    Scenario::Failing,
    Scenario::Antagonist,
    Scenario::Mixed,
];
/// Members, workers of each, and mean cost of a request.
const MEMBERS: usize = 4;
const WORKERS: usize = 8;
const MEAN: Duration = Duration::from_millis(29);
/// Requests per second in the world that is counted.
const RATE: f64 = 600.0;
/// Slowness of the slow member there.
const SLOW: f64 = 3.0;
/// Lanes of runs that are played at the same time.
const LANES: usize = 2;

/// Latency of one balancer in one run.
#[derive(Clone, Serialize)]
struct Outcome {
    arm: String,
    /// True if the process has seen no other world.
    is_new: bool,
    run: u32,
    requests: usize,
    failed: usize,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
}

/// A balancer that serves, with members of its own.
struct Running {
    name: String,
    is_new: bool,
    members: Rc<Vec<Backend>>,
    target: SocketAddr,
    _server: Server,
}

impl Running {
    async fn start(arm: &Arm, is_new: bool, folder: &Path) -> Result<Running> {
        let members = start_members(MEMBERS, WORKERS, MEAN, false).await?;
        let addresses: Vec<_> = members.iter().map(Backend::address).collect();
        let (server, target) = arm.balancer.start(&arm.program, folder, &addresses).await?;
        serves(target, folder).await?;
        Ok(Running {
            name: arm.name.clone(),
            is_new,
            members: Rc::new(members),
            target,
            _server: server,
        })
    }

    /// Makes all members what they were at the start.
    fn restore_members(&self) {
        for member in self.members.iter() {
            member.set_slowdown(1.0);
            member.set_failing(0.0);
        }
    }

    /// Plays another world: what happens to the members, and its requests.
    async fn play_other(
        self: Rc<Self>,
        scenario: Scenario,
        length: Duration,
        seed: u64,
    ) -> Result<()> {
        let row = Row {
            scenario,
            members: MEMBERS,
            workers: WORKERS,
            mean: MEAN,
        };
        row.prepare(&self.members);
        let begin = Instant::now() + Duration::from_millis(50);
        let members = Rc::clone(&self.members);
        let events = tokio::task::spawn_local(row.play_events(members, begin, length, seed));
        let requests = row.draw_requests(length, seed);
        load::send_requests(begin, &requests, &[self.target]).await?;
        events.abort();
        self.restore_members();
        Ok(())
    }

    /// Plays the world that is counted.
    async fn count_latency(
        self: Rc<Self>,
        requests: Rc<[Request]>,
        begin: Instant,
        run: u32,
    ) -> Result<Outcome> {
        self.members[run as usize % MEMBERS].set_slowdown(SLOW);
        let answers = load::send_requests(begin, &requests, &[self.target]).await?;
        self.restore_members();
        let (answered, failed): (Vec<&Answer>, Vec<&Answer>) =
            answers.iter().partition(|answer| answer.is_answered);
        let latencies = answered
            .iter()
            .map(|answer| answer.latency.as_secs_f64() * 1e3)
            .collect();
        let at = values_at(latencies, &[0.5, 0.9, 0.99]);
        Ok(Outcome {
            arm: self.name.clone(),
            is_new: self.is_new,
            run,
            requests: answers.len(),
            failed: failed.len(),
            p50_ms: at[0],
            p90_ms: at[1],
            p99_ms: at[2],
        })
    }
}

/// Plays `runs` runs of all balancers and writes `after-other-worlds.json` into the folder.
pub(crate) async fn measure_after_others(
    arms: Vec<Arm>,
    runs: u32,
    length: Duration,
    cache: &Path,
    out: &Path,
) -> Result<()> {
    let arms: Rc<[Arm]> = arms.into();
    let lanes = (0..LANES).map(|lane| {
        let own = (lane as u32..runs).step_by(LANES);
        let folder = cache.join("run").join(format!("after-others-{lane}"));
        play_lane(Rc::clone(&arms), own, length, folder)
    });
    let mut outcomes = Vec::new();
    for lane in play_together(lanes.collect()).await? {
        outcomes.extend(lane);
    }
    outcomes.sort_by(|one, other| {
        (&one.arm, one.is_new, one.run).cmp(&(&other.arm, other.is_new, other.run))
    });
    fs::create_dir_all(out)?;
    let file = out.join("after-other-worlds.json");
    fs::write(&file, serde_json::to_string_pretty(&outcomes)? + "\n")?;
    print_table(&outcomes);
    println!("results are in {}", file.display());
    Ok(())
}

async fn play_lane(
    arms: Rc<[Arm]>,
    runs: impl Iterator<Item = u32>,
    length: Duration,
    folder: PathBuf,
) -> Result<Vec<Outcome>> {
    let mut kept = Vec::new();
    for (index, arm) in arms.iter().enumerate() {
        let folder = folder.join(index.to_string());
        kept.push(Rc::new(Running::start(arm, false, &folder).await?));
    }
    let mut outcomes = Vec::new();
    for run in runs {
        for scenario in OTHERS {
            let seed = u64::from(run) * 1_000 + scenario as u64;
            let played = kept
                .iter()
                .map(|running| Rc::clone(running).play_other(scenario, length / 2, seed));
            play_together(played.collect()).await?;
        }
        let requests = load::draw_requests(RATE, length, MEAN, true, u64::from(run) + 1);
        let requests: Rc<[Request]> = requests.into();
        let new = Rc::new(Running::start(&arms[0], true, &folder.join("new")).await?);
        let begin = Instant::now() + Duration::from_millis(50);
        let counted = kept
            .iter()
            .chain([&new])
            .map(|running| Rc::clone(running).count_latency(Rc::clone(&requests), begin, run));
        for outcome in play_together(counted.collect()).await? {
            println!(
                "run {run}: {}{}: p50 {:.0} ms, p90 {:.0}, p99 {:.0}, {} of {} failed",
                outcome.arm,
                if outcome.is_new { " (new)" } else { "" },
                outcome.p50_ms,
                outcome.p90_ms,
                outcome.p99_ms,
                outcome.failed,
                outcome.requests,
            );
            outcomes.push(outcome);
        }
    }
    Ok(outcomes)
}

/// Runs all at the same time, and returns their results in order.
async fn play_together<T: 'static>(
    all: Vec<impl Future<Output = Result<T>> + 'static>,
) -> Result<Vec<T>> {
    let all: Vec<_> = all
        .into_iter()
        .map(|one| tokio::task::spawn_local(async { one.await.map_err(|e| e.to_string()) }))
        .collect();
    let mut results = Vec::with_capacity(all.len());
    for one in all {
        results.push(one.await??);
    }
    Ok(results)
}

fn print_table(outcomes: &[Outcome]) {
    println!("p99 in ms: median, quartiles, least and most");
    let mut rest = outcomes;
    while let Some(first) = rest.first() {
        let same = |other: &&Outcome| other.arm == first.arm && other.is_new == first.is_new;
        let count = rest.iter().take_while(same).count();
        let (group, after) = rest.split_at(count);
        let p99 = group.iter().map(|outcome| outcome.p99_ms).collect();
        let at = values_at(p99, &[0.5, 0.25, 0.75, 0.0, 1.0]);
        println!(
            "{}{}: {:.0} ({:.0} to {:.0}), {:.0} to {:.0}, {} runs",
            first.arm,
            if first.is_new { " (new process)" } else { "" },
            at[0],
            at[1],
            at[2],
            at[3],
            at[4],
            count,
        );
        rest = after;
    }
}
