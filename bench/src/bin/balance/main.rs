//! Comparison of balancing: Evenkeel, unconfigured, beside HAProxy, nginx, Envoy and Traefik with the policies that
//! their users choose, over real sockets.
//!
//! Members spend time, not CPU (`evenkeel_demo::backend`), and requests are due at the same moments and cost the same
//! for each balancer (`load`). In each round every balancer has its turn in every row, with new members
//! and a new process; the next round begins with another one. A few rows run beside each other, through
//! the same kind of balancer.
//!
//! `balance [--only SCENARIO] [--members N] [--arms NAME] [--rounds N] [--seconds N]`

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use evenkeel_bench::arms::{Places, build_programs};
use evenkeel_bench::balancers::{Balancer, CLIENT_SIDE_WEIGHTED, Program};
use evenkeel_bench::server::{Server, pin_to, processors, raise_file_limit, sharpen_timers};
use evenkeel_demo::backend::{Backend, Settings};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};

mod after_others;
mod load;
mod results;
mod scenario;

use after_others::measure_after_others;
use load::Answer;
use results::{Results, Turn};
use scenario::{Row, SIZES, Scenario};

/// All that are measured, the product first.
const ARMS: [(Program, &str); 11] = [
    (Program::Evenkeel, "default"),
    (Program::Haproxy, "leastconn"),
    (Program::Haproxy, "random"),
    (Program::Nginx, "least_conn"),
    (Program::Nginx, "random two least_conn"),
    (Program::Envoy, "LEAST_REQUEST"),
    (Program::Envoy, CLIENT_SIDE_WEIGHTED),
    (Program::Traefik, "p2c"),
    (Program::Traefik, "leasttime"),
    (Program::HaproxySystem, "leastconn"),
    (Program::NginxSystem, "least_conn"),
];

/// Time at the start that is not counted: nothing is known then, which `cold` is for.
const WARM_UP: Duration = Duration::from_secs(2);

#[derive(Parser)]
#[command(about = "How well Evenkeel, HAProxy, nginx, Envoy and Traefik balance")]
struct Arguments {
    /// Only these scenarios.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// Number of members: 3, 4, 10 or 50; without it, all of them.
    #[arg(long, value_delimiter = ',')]
    members: Vec<usize>,
    /// Names of balancers, or parts of names, such as `evenkeel,least`; without it, all of them.
    #[arg(long, value_delimiter = ',')]
    arms: Vec<String>,
    /// Turns of each balancer in each row.
    #[arg(long)]
    rounds: Option<u32>,
    /// Length of the counted part of a turn.
    #[arg(long)]
    seconds: Option<u64>,
    /// Rows that run beside each other.
    #[arg(long, default_value_t = 3)]
    at_once: usize,
    /// Two rounds of short turns, and four members only; also if BENCH_QUICK is set.
    #[arg(long)]
    quick: bool,
    /// Folder of the results; by default bench/results/balance, or bench/.cache/balance if there is a selection.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Plays one world after all others in one process, this many times, instead of the rows.
    #[arg(long)]
    after_others: Option<u32>,
    /// Measures nothing, and makes the page anew from the turns that a run with the same options
    /// has written.
    #[arg(long)]
    page: bool,
    /// Measures what lies beside this program, without building.
    #[arg(long)]
    as_built: bool,
    /// Measures this build of the product.
    #[arg(long)]
    evenkeel: Option<PathBuf>,
}

/// A balancer that can be measured.
struct Arm {
    name: String,
    /// Version, if it is a peer.
    version: Option<String>,
    balancer: Balancer,
    program: PathBuf,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    arguments.quick |= std::env::var_os("BENCH_QUICK").is_some();
    if !arguments.as_built && !arguments.page && arguments.evenkeel.is_none() {
        build_programs()?;
    }
    let bench = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let programs = std::env::current_exe()?;
    let places = Places {
        cache: bench.join(".cache"),
        programs: programs.parent().ok_or("no folder of programs")?.into(),
        bench,
        before: None,
    };
    fs::create_dir_all(&places.cache)?;
    raise_file_limit()?;
    sharpen_timers();
    let first_served = first_served();
    // Balancers are on the last one.
    pin_to(*processors()?.first().ok_or("no processor")?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, measure(&arguments, &places, first_served))
}

async fn measure(arguments: &Arguments, places: &Places, first_served: bool) -> Result<()> {
    if !first_served {
        println!("not root: other programs of this machine can delay what is measured");
    }
    let arms = arms(arguments, places)?;
    if let Some(runs) = arguments.after_others {
        let length = Duration::from_secs(arguments.seconds.unwrap_or(12));
        let out = arguments.out.clone();
        let out = out.unwrap_or_else(|| places.bench.join("results"));
        return measure_after_others(arms, runs, length, &places.cache, &out).await;
    }
    let rows = rows(arguments);
    if rows.is_empty() {
        return Err("no such row: --members is 3, 4, 10 or 50".into());
    }
    let (rounds, seconds) = match arguments.quick {
        true => (2, 4),
        false => (4, 10),
    };
    let rounds = arguments.rounds.unwrap_or(rounds);
    let counted = Duration::from_secs(arguments.seconds.unwrap_or(seconds));
    let is_selection =
        !(arguments.only.is_empty() && arguments.members.is_empty() && arguments.arms.is_empty());
    let out = arguments.out.clone().unwrap_or(match is_selection {
        true => places.cache.join("balance"),
        false => places.bench.join("results/balance"),
    });
    let mut results = Results::new(
        &rows,
        arms.iter().map(|arm| arm.name.clone()),
        counted,
        first_served,
    );
    if arguments.page {
        results.read(&out)?;
        return results.write(&out);
    }
    for (batch, beside) in rows.chunks(arguments.at_once.max(1)).enumerate() {
        for round in 0..rounds {
            for place in 0..arms.len() {
                // All places in the order come in turn, for each arm.
                let arm = &arms[(place + batch + round as usize * 4) % arms.len()];
                let turns: Vec<_> = beside
                    .iter()
                    .map(|row| {
                        let folder = places.cache.join("run").join(row.name());
                        let (balancer, program) = (arm.balancer, arm.program.clone());
                        let turn = turn(*row, balancer, program, folder, round, counted);
                        tokio::task::spawn_local(async { turn.await.map_err(|e| e.to_string()) })
                    })
                    .collect();
                let machine = results::Machine::read_counters();
                for (row, turn) in beside.iter().zip(turns) {
                    let name = row.name();
                    match turn.await? {
                        Ok(turn) => results.add_turn(&name, arm, round, turn, &machine),
                        Err(error) => println!("{name}: no turn of {}: {error}", arm.name),
                    }
                }
            }
        }
        for row in beside {
            results.print(row);
        }
        // What has been measured is kept, whatever comes.
        results.write(&out)?;
    }
    println!("results are in {}", out.display());
    Ok(())
}

fn arms(arguments: &Arguments, places: &Places) -> Result<Vec<Arm>> {
    let mut arms = Vec::new();
    for (program, policy) in ARMS {
        let name = format!("{} {policy}", program.name());
        let asked = &arguments.arms;
        if !asked.is_empty() && !asked.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let balancer = Balancer { program, policy };
        let peer = program;
        let own = (program == Program::Evenkeel).then(|| arguments.evenkeel.clone());
        let program = match own.flatten() {
            Some(path) => Ok(path),
            None => program.install(places),
        };
        match program {
            Ok(program) => arms.push(Arm {
                version: peer.version(&program),
                name,
                balancer,
                program,
            }),
            Err(error) => println!("{name} is skipped: {error}"),
        }
    }
    if arms.is_empty() {
        return Err("nothing can be measured: --arms is a part of a name, such as haproxy".into());
    }
    Ok(arms)
}

fn rows(arguments: &Arguments) -> Vec<Row> {
    let mut rows = Vec::new();
    for (members, workers, mean) in SIZES {
        let asked = match arguments.members.is_empty() {
            true => !arguments.quick || members == 4,
            false => arguments.members.contains(&members),
        };
        let all = <Scenario as clap::ValueEnum>::value_variants();
        let asked = all.iter().filter(|scenario| {
            asked && (arguments.only.is_empty() || arguments.only.contains(scenario))
        });
        rows.extend(asked.map(|&scenario| Row {
            scenario,
            members,
            workers,
            mean: Duration::from_millis(mean),
        }));
    }
    rows
}

/// Starts members that work on `workers` requests at once, whose requests cost `mean` on average, and that report their
/// loads with each response or not.
async fn start_members(
    count: usize,
    workers: usize,
    mean: Duration,
    reports_load: bool,
) -> Result<Vec<Backend>> {
    let mut members = Vec::with_capacity(count);
    for index in 0..count {
        let settings = Settings {
            workers,
            mean,
            reports_load,
            seed: index as u64,
        };
        members.push(Backend::start(settings).await?);
    }
    Ok(members)
}

/// A turn of a balancer in a row.
async fn turn(
    row: Row,
    balancer: Balancer,
    program: PathBuf,
    folder: PathBuf,
    round: u32,
    counted: Duration,
) -> Result<Turn> {
    let reports = balancer.policy == CLIENT_SIDE_WEIGHTED;
    let members = start_members(row.members, row.workers, row.mean, reports).await?;
    let addresses: Vec<_> = members.iter().map(Backend::address).collect();
    let (mut servers, mut targets) = (Vec::new(), Vec::new());
    for instance in 0..row.scenario.instance_count() {
        let folder = folder.join(instance.to_string());
        let (server, listen) = balancer.start(&program, &folder, &addresses).await?;
        serves(listen, &folder).await?;
        servers.push(server);
        targets.push(listen);
    }
    row.prepare(&members);
    let members = Rc::new(members);
    let warm_up = match row.scenario {
        Scenario::Cold => Duration::ZERO,
        _ => WARM_UP,
    };
    let seed = u64::from(round) + 1;
    let length = warm_up + counted;
    let requests = row.draw_requests(length, seed);
    let begin = Instant::now() + Duration::from_millis(50);
    let happening =
        tokio::task::spawn_local(row.play_events(Rc::clone(&members), begin, length, seed));
    let used = tokio::task::spawn_local(used(Rc::clone(&members), begin + warm_up, counted));
    let cpu = cpu_time(&servers);
    let answers = load::send_requests(begin, &requests, &targets).await?;
    let cpu = cpu_time(&servers).saturating_sub(cpu);
    happening.abort();
    // Ending takes until the process has gone, for which nobody should have to wait.
    let ending = tokio::task::spawn_blocking(move || drop(servers));
    let answers: Vec<Answer> = answers
        .into_iter()
        .filter(|answer| answer.due >= warm_up)
        .collect();
    let capacity = counted.as_secs_f64() * row.workers as f64;
    let used = used.await?.into_iter();
    let turn = Turn::new(
        &answers,
        used.map(|used| used.as_secs_f64() / capacity).collect(),
        cpu.as_secs_f64() / begin.elapsed().as_secs_f64(),
    );
    ending.await?;
    Ok(turn)
}

/// Gives this process and its children the processors before all others, if it may: the measured processes take little
/// of them, but must have it at once.
fn first_served() -> bool {
    let order = libc::sched_param { sched_priority: 1 };
    // SAFETY: `order` is valid for reading.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &order) == 0 }
}

/// CPU time that balancers have used so far.
fn cpu_time(servers: &[Server]) -> Duration {
    let each = servers.iter().map(|server| server.cpu_time());
    each.map(std::result::Result::unwrap_or_default).sum()
}

/// Worker time that each member spends in the time that is counted.
async fn used(members: Rc<Vec<Backend>>, from: Instant, counted: Duration) -> Vec<Duration> {
    let busy = || members.iter().map(Backend::assigned_time);
    sleep_until(from).await;
    let before: Vec<Duration> = busy().collect();
    sleep_until(from + counted).await;
    busy().zip(before).map(|(now, then)| now - then).collect()
}

/// Waits until a balancer has an answer: it may listen before it knows its members.
async fn serves(listen: std::net::SocketAddr, folder: &Path) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while evenkeel_demo::load::send_request(listen, None, "/work/0")
        .await
        .is_err()
    {
        if Instant::now() > end {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            let last = log.lines().last().unwrap_or_default();
            return Err(format!("does not answer; its last words: {last}").into());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
