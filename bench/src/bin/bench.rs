//! Side by side: Evenkeel, HAProxy, nginx, Envoy and the floor, in one run.
//!
//! `README.md` says what is measured and how; `results/README.md` how to read it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use evenkeel_bench::arms::{
    Arm, Features, Ground, PROFILE, Places, Result, Running, build_programs, start_member,
};
use evenkeel_bench::h2load::{self, Call};
use evenkeel_bench::load::{self, ECHO, HOST, Plan, Traffic};
use evenkeel_bench::report::{self, Pick, Sample};
use evenkeel_bench::server::{Server, pin_to, processors, raise_file_limit, sharpen_timers};

/// Measures Evenkeel beside other proxies on this machine.
///
/// With `BENCH_QUICK=1` in the environment less exactly, in about six minutes.
#[derive(Parser)]
struct Arguments {
    /// Measure what lies beside this program instead of building it.
    #[arg(long)]
    as_built: bool,
    /// Rounds over all arms and rows.
    #[arg(long)]
    rounds: Option<usize>,
    /// Only these rows, separated by commas.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Only these arms, separated by commas.
    #[arg(long, value_delimiter = ',')]
    arms: Vec<String>,
    /// An earlier build of Evenkeel, as another arm
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
}

/// Traffic of a row.
struct Row {
    name: &'static str,
    front: Front,
    traffic: Traffic,
    connections: usize,
    rate: Option<f64>,
}

/// Address of the proxy to which traffic is sent, by the back-end behind it.
#[derive(Clone, Copy)]
enum Front {
    /// Our back-end for HTTP.
    Http,
    /// Two members that are nginx.
    Members,
    /// Our back-end for TCP.
    Tcp,
    /// Our back-end for HTTP, behind TLS.
    Https,
    /// Our back-end for HTTP/2, behind TLS.
    H2,
    /// Our back-end for gRPC, behind TLS.
    Grpc,
}

impl Front {
    fn of(self, proxy: &Running) -> Option<SocketAddr> {
        match self {
            Self::Http => Some(proxy.http),
            Self::Members => proxy.members,
            Self::Tcp => proxy.tcp,
            Self::Https => proxy.https,
            Self::H2 => proxy.h2,
            Self::Grpc => proxy.grpc,
        }
    }
}

const SMALL: &str = "/";
const LARGE: &str = "/64k";
/// Answered in two small segments.
const APART: &str = "/apart";

const ROWS: &[Row] = &[
    row("http-small", Front::Http, Traffic::Http { path: SMALL }, 32),
    row("http-64k", Front::Http, Traffic::Http { path: LARGE }, 32),
    row(
        "http-close",
        Front::Http,
        Traffic::HttpClose { path: SMALL },
        32,
    ),
    // The second segment waits for the first one's acknowledgement, which a proxy may delay.
    row("http-apart", Front::Http, Traffic::Http { path: APART }, 32),
    row(
        "http-members",
        Front::Members,
        Traffic::Http { path: SMALL },
        32,
    ),
    row("tcp-rr", Front::Tcp, Traffic::TcpEcho { bytes: 64 }, 32),
    row("tcp-bulk", Front::Tcp, Traffic::TcpBulk, 4),
    // Latency of proxies that are not saturated, at the same load for all.
    Row {
        rate: Some(8000.0),
        ..row("http-rate", Front::Http, Traffic::Http { path: SMALL }, 32)
    },
    row(
        "https-small",
        Front::Https,
        Traffic::Https { path: SMALL },
        32,
    ),
    row(
        "https-64k",
        Front::Https,
        Traffic::Https { path: LARGE },
        32,
    ),
    row(
        "tls-full",
        Front::Https,
        Traffic::Handshake { resumed: false },
        32,
    ),
    row(
        "tls-resumed",
        Front::Https,
        Traffic::Handshake { resumed: true },
        32,
    ),
];

/// Traffic through a rule with a feature, and through a plain one of the same process.
struct FeatureRow {
    name: &'static str,
    featured: (fn(&Features) -> SocketAddr, Traffic),
    plain: (fn(&Features) -> SocketAddr, Traffic),
    connections: usize,
}

const FEATURE_ROWS: &[FeatureRow] = &[
    FeatureRow {
        name: "ftp-bulk",
        featured: (|process| process.ftp, Traffic::FtpBulk),
        plain: (|process| process.tcp, Traffic::TcpBulk),
        connections: 4,
    },
    FeatureRow {
        name: "http-routes",
        featured: (|process| process.routes, Traffic::Http { path: SMALL }),
        plain: (|process| process.http, Traffic::Http { path: SMALL }),
        connections: 32,
    },
    FeatureRow {
        name: "http-limits",
        featured: (|process| process.limits, Traffic::Http { path: SMALL }),
        plain: (|process| process.http, Traffic::Http { path: SMALL }),
        connections: 32,
    },
];

/// Rows that `h2load` drives.
const H2_ROWS: [(&str, Front, Call); 3] = [
    ("h2-small", Front::Https, Call::Get),
    ("h2-members", Front::H2, Call::Get),
    ("grpc-unary", Front::Grpc, Call::Grpc),
];
/// Connections, and streams at once in each.
const H2_LOAD: (usize, usize) = (8, 32);
/// Requests for each second that a turn is to take, and before the first turn.
const H2_PER_SECOND: f64 = 25_000.0;
const H2_WARM_UP: usize = 1000;

const IDLE: [(&str, Traffic, usize); 4] = [
    ("idle-http", Traffic::Http { path: SMALL }, IDLE_CONNECTIONS),
    ("idle-tcp", Traffic::TcpEcho { bytes: 64 }, IDLE_CONNECTIONS),
    // One byte of a head, and no more.
    (SLOW_HEADS, Traffic::Http { path: SMALL }, IDLE_CONNECTIONS),
    // Fewer, since each costs a handshake.
    ("idle-https", Traffic::Https { path: SMALL }, 2000),
];
const SLOW_HEADS: &str = "slow-heads";
/// Idle connections, if the limit of open files allows that many.
const IDLE_CONNECTIONS: usize = 10_000;
/// Opened before the first look at the memory: what a proxy allocates once, and the pages
/// of its program, are not counted to the connections.
const IDLE_BASE: usize = 64;

const fn row(name: &'static str, front: Front, traffic: Traffic, connections: usize) -> Row {
    Row {
        name,
        front,
        traffic,
        connections,
        rate: None,
    }
}

/// Measures a proxy in a turn; `None` where it does not have what the row needs.
type Measure<'a> = dyn FnMut(&Running, usize) -> Result<Option<BTreeMap<&'static str, f64>>> + 'a;

struct Pace {
    /// Rounds start cold: every program anew.
    rounds: usize,
    /// Turns of every arm, for each row in each round.
    turns: usize,
    /// Turns of each of the two in rows of features: a few per cent are asked for, which is less
    /// than a single turn differs from the next.
    feature_turns: usize,
    idle_rounds: usize,
    warm_up: Duration,
    measure: Duration,
}

const QUICK: Pace = Pace {
    rounds: 2,
    turns: 3,
    feature_turns: 10,
    idle_rounds: 1,
    warm_up: Duration::from_millis(100),
    measure: Duration::from_millis(300),
};
const FULL: Pace = Pace {
    rounds: 4,
    turns: 7,
    feature_turns: 24,
    idle_rounds: 3,
    warm_up: Duration::from_millis(100),
    measure: Duration::from_millis(400),
};

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    let quick = std::env::var("BENCH_QUICK").is_ok_and(|value| value == "1");
    let pace = if quick { QUICK } else { FULL };
    let rounds = arguments.rounds.unwrap_or(pace.rounds);
    let wanted = |names: &[String], name: &str| {
        names.is_empty() || names.iter().any(|wanted| wanted == name)
    };
    let bench = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let own_program = std::env::current_exe()?;
    let own_folder = own_program.parent().ok_or("the program is in no folder")?;
    let programs = if arguments.as_built {
        own_folder.to_owned()
    } else {
        println!("Building what is measured.");
        build_programs()?;
        own_folder.with_file_name(PROFILE)
    };
    let places = Places {
        cache: bench.join(".cache"),
        bench,
        programs,
        before: arguments.before.clone(),
    };
    fs::create_dir_all(&places.cache)?;

    let mut arms = Vec::new();
    let mut versions = BTreeMap::new();
    for arm in Arm::ALL {
        let is_there = arm != Arm::Before || arguments.before.is_some();
        if !is_there || !wanted(&arguments.arms, arm.name()) {
            continue;
        }
        match arm.install(&places) {
            Ok(program) => {
                if let Some(version) = arm.version(&program) {
                    println!("{} is version {version}.", arm.name());
                    versions.insert(arm.name(), version);
                }
                arms.push((arm, program));
            }
            Err(error) => println!("{} is skipped: {error}", arm.name()),
        }
    }

    let cpus = processors()?;
    let (own_cpu, proxy_cpu) = match cpus.as_slice() {
        [] => return Err("no processor to run on".into()),
        [only] => {
            println!("One processor only: proxy, load and back-end share it.");
            (*only, *only)
        }
        [first, .., last] => (*first, *last),
    };
    pin_to(own_cpu)?;
    sharpen_timers();
    let max_descriptors = raise_file_limit()?;
    let mut rng = fastrand::Rng::new();
    let mut samples = Vec::new();

    let started = Instant::now();
    for round in 0..rounds {
        let (_backends, ground) =
            start_backends(&places, own_cpu, proxy_cpu, max_descriptors, &mut rng)?;
        // Cold in every round; who goes first changes.
        if round > 0 && !arms.is_empty() {
            arms.rotate_left(1);
        }
        let mut running: Vec<Running> = Vec::new();
        arms.retain(|(arm, program)| {
            let ready = arm.start(program, &places, &ground, &mut rng);
            match ready.and_then(|proxy| answers(&proxy).map(|()| proxy)) {
                Ok(proxy) => running.push(proxy),
                Err(error) => {
                    println!("{} is skipped: {error}", arm.name());
                    return false;
                }
            }
            true
        });
        let mut all = |name: &'static str, measure: &mut Measure<'_>| {
            if !wanted(&arguments.rows, name) {
                return;
            }
            let mut failed = Vec::new();
            for turn in 0..pace.turns {
                for proxy in &running {
                    if failed.contains(&proxy.arm) {
                        continue;
                    }
                    match measure(proxy, turn) {
                        Ok(Some(metrics)) => samples.push(Sample {
                            round: round * pace.turns + turn,
                            row: name,
                            arm: proxy.arm.name(),
                            metrics,
                        }),
                        Ok(None) => {}
                        Err(error) => {
                            println!("{} fails {name}: {error}", proxy.arm.name());
                            failed.push(proxy.arm);
                        }
                    }
                }
            }
        };
        for row in ROWS {
            all(row.name, &mut |proxy, _| measure_row(row, proxy, &pace));
        }
        for (name, front, call) in H2_ROWS {
            all(name, &mut |proxy, turn| {
                let Some(target) = front.of(proxy) else {
                    return Ok(None);
                };
                let requests = (pace.measure.as_secs_f64() * H2_PER_SECOND) as usize;
                let run = |requests| {
                    let meter = &mut || proxy.server.cpu_time();
                    h2load::run(target, call, requests, H2_LOAD, &places.cache, meter)
                };
                if turn == 0 {
                    run(H2_WARM_UP)?;
                }
                let outcome = run(requests)?;
                Ok(Some(BTreeMap::from([
                    (
                        report::CPU_PER_REQUEST,
                        outcome.cpu.as_secs_f64() * 1e6 / requests as f64,
                    ),
                    (report::REQUESTS, outcome.rate),
                ])))
            });
        }
        drop(running);
        let ours = arms.iter().find(|(arm, _)| *arm == Arm::Evenkeel);
        let rows: Vec<&FeatureRow> = FEATURE_ROWS
            .iter()
            .filter(|row| wanted(&arguments.rows, row.name))
            .collect();
        if let Some((_, program)) = ours.filter(|_| !rows.is_empty()) {
            let process = Features::start(program, &places, &ground, &mut rng);
            match process.and_then(|process| features_answer(&process).map(|()| process)) {
                Ok(process) => {
                    for row in rows {
                        if let Err(error) =
                            measure_features(row, &process, &pace, round, &mut samples)
                        {
                            println!("{} fails: {error}", row.name);
                        }
                    }
                }
                Err(error) => println!("Rows of features are skipped: {error}"),
            }
        }
        println!(
            "Round {} of {rounds} done after {:.0} s.",
            round + 1,
            started.elapsed().as_secs_f64()
        );
    }

    let most_idle = (max_descriptors.saturating_sub(1000) / 2) as usize;
    for round in 0..pace.idle_rounds.min(rounds) {
        for (name, traffic, idle) in IDLE
            .iter()
            .filter(|(name, ..)| wanted(&arguments.rows, name))
        {
            for (arm, program) in &arms {
                let (_backends, ground) =
                    start_backends(&places, own_cpu, proxy_cpu, max_descriptors, &mut rng)?;
                let measured = arm
                    .start(program, &places, &ground, &mut rng)
                    .and_then(|proxy| measure_idle(name, traffic, &proxy, most_idle.min(*idle)));
                match measured {
                    Ok(Some(bytes)) => samples.push(Sample {
                        round,
                        row: name,
                        arm: arm.name(),
                        metrics: BTreeMap::from([(report::MEMORY, bytes)]),
                    }),
                    Ok(None) => {}
                    Err(error) => println!("{} fails {name}: {error}", arm.name()),
                }
            }
        }
    }
    if most_idle < IDLE_CONNECTIONS {
        println!("Idle connections: {most_idle}, by the limit of {max_descriptors} open files.");
    }

    let picks = if wanted(&arguments.rows, "pick") {
        measure_picks(&places).unwrap_or_else(|error| {
            println!("pick is skipped: {error}");
            Vec::new()
        })
    } else {
        Vec::new()
    };

    let results = places.bench.join("results");
    fs::create_dir_all(&results)?;
    let raw = serde_json::to_string(&samples)?;
    fs::write(results.join("raw-latest.json"), raw)?;
    let mut comparisons = report::compare(&samples, &versions);
    comparisons.extend(report::compare_picks(&picks));
    println!("\n{}", report::median_table(&samples));
    println!("In brackets: Evenkeel's ratio to it, the median over all turns.\n");
    if arguments.before.is_some() {
        let before = Arm::Before.name();
        println!(
            "{}",
            report::ratio_table(&samples, before, "the build before")
        );
    }
    println!(
        "{}",
        report::ratio_table(&samples, report::PLAIN, "a plain rule")
    );
    println!("{}", report::pick_table(&picks));
    println!("Must reach:");
    print!("{}", report::limit_verdicts(&samples));
    println!("{}", report::pick_verdicts(&picks));
    let is_part = arguments.rounds.is_some()
        || !arguments.rows.is_empty()
        || !arguments.arms.is_empty()
        || arguments.before.is_some();
    if is_part {
        println!("Only a part was measured: latest.json stays as it is.");
        return Ok(());
    }
    let latest = results.join("latest.json");
    fs::write(&latest, serde_json::to_string_pretty(&comparisons)? + "\n")?;
    println!(
        "{} comparisons written to {} after {:.0} s.",
        comparisons.len(),
        latest.display(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn start_backends(
    places: &Places,
    own_cpu: usize,
    proxy_cpu: usize,
    max_descriptors: u64,
    rng: &mut fastrand::Rng,
) -> Result<([Server; 3], Ground)> {
    let mut command = Command::new(places.programs.join("backend"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut backend = Server::start(command, own_cpu, libc::SIGKILL)?;
    let stdout = backend.take_stdout().ok_or("the back-end has no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let addresses = line
        .split_whitespace()
        .map(str::parse)
        .collect::<std::result::Result<Vec<SocketAddr>, _>>()?;
    let [http, tcp, h2, ftp] = addresses[..] else {
        return Err(format!("the back-end said {line:?}, not four addresses").into());
    };
    let (one, one_address) = start_member(places, 1, own_cpu, rng)?;
    let (two, two_address) = start_member(places, 2, own_cpu, rng)?;
    let ground = Ground {
        http,
        members: [one_address, two_address],
        tcp,
        h2,
        ftp,
        proxy_cpu,
        max_descriptors,
    };
    Ok(([backend, one, two], ground))
}

/// Makes sure that the measurement is a real one: bodies come through whole.
fn answers(proxy: &Running) -> Result<()> {
    let http = [(proxy.http, SMALL, 46), (proxy.http, LARGE, 65_536)];
    let members = proxy.members.map(|members| (members, SMALL, 46));
    for (address, path, length) in http.into_iter().chain(members) {
        answers_http(address, path, length)?;
    }
    proxy.tcp.map_or(Ok(()), answers_tcp)
}

/// Checks that rules with features answer; the rule for FTP is checked by its measurement.
fn features_answer(process: &Features) -> Result<()> {
    for address in [process.http, process.routes, process.limits] {
        answers_http(address, SMALL, 46)?;
    }
    // Check that a route answers, and not the rule for any request.
    if answers_http(process.routes, "/elsewhere", 46).is_ok() {
        return Err("there is no route, and yet an answer".into());
    }
    answers_tcp(process.tcp)
}

fn answers_http(address: SocketAddr, path: &str, length: usize) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let body = head.map_or(0, |end| answer.len() - end - 4);
    if !answer.starts_with(b"HTTP/1.1 200 ") || body != length {
        return Err(format!(
            "GET {path} gave a body of {body} bytes instead of {length} after {:?}",
            String::from_utf8_lossy(&answer[..answer.len().min(40)])
        )
        .into());
    }
    Ok(())
}

fn answers_tcp(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let sent = [&[ECHO][..], b" is what comes back"].concat();
    stream.write_all(&sent)?;
    let mut back = vec![0; sent.len()];
    stream.read_exact(&mut back)?;
    if back != sent {
        return Err("TCP bytes came back changed".into());
    }
    Ok(())
}

/// Measures the featured rule and the plain one in turn. Each goes first in every other turn, so
/// that a machine that slows down, or what one leaves to the other, does not count for one of them.
fn measure_features(
    row: &FeatureRow,
    process: &Features,
    pace: &Pace,
    round: usize,
    samples: &mut Vec<Sample>,
) -> Result<()> {
    for turn in 0..pace.feature_turns {
        let mut both = [
            (Arm::Evenkeel.name(), &row.featured),
            (report::PLAIN, &row.plain),
        ];
        if turn % 2 == 1 {
            both.reverse();
        }
        for (arm, (target, traffic)) in both {
            let plan = Plan {
                target: target(process),
                traffic: traffic.clone(),
                connections: row.connections,
                rate: None,
                warm_up: pace.warm_up,
                measure: pace.measure,
            };
            samples.push(Sample {
                round: round * pace.feature_turns + turn,
                row: row.name,
                arm,
                metrics: drive(&plan, &process.server)?,
            });
        }
    }
    Ok(())
}

/// `None` where the arm does not have what the row needs.
fn measure_row(
    row: &Row,
    proxy: &Running,
    pace: &Pace,
) -> Result<Option<BTreeMap<&'static str, f64>>> {
    let Some(target) = row.front.of(proxy) else {
        return Ok(None);
    };
    let plan = Plan {
        target,
        traffic: row.traffic.clone(),
        connections: row.connections,
        rate: row.rate,
        warm_up: pace.warm_up,
        measure: pace.measure,
    };
    drive(&plan, &proxy.server).map(Some)
}

/// Makes a run through `server`.
fn drive(plan: &Plan, server: &Server) -> Result<BTreeMap<&'static str, f64>> {
    let outcome = load::run(plan, &mut || server.cpu_time())?;
    if outcome.failures > 0 {
        return Err(format!("{} requests failed", outcome.failures).into());
    }
    let cpu_us = outcome.cpu.as_secs_f64() * 1e6;
    let seconds = outcome.elapsed.as_secs_f64();
    if plan.traffic.is_bulk() {
        let mebibytes = outcome.bytes as f64 / (1024.0 * 1024.0);
        return Ok(BTreeMap::from([
            (report::CPU_PER_MIB, cpu_us / mebibytes),
            (report::MEBIBYTES, mebibytes / seconds),
        ]));
    }
    let requests = outcome.requests as f64;
    if matches!(plan.traffic, Traffic::Handshake { .. }) {
        let per_cpu_second = requests / outcome.cpu.as_secs_f64();
        return Ok(BTreeMap::from([(report::HANDSHAKES, per_cpu_second)]));
    }
    let mut metrics = BTreeMap::from([
        (report::CPU_PER_REQUEST, cpu_us / requests),
        (
            report::P50,
            outcome.latency.quantile(0.5).as_secs_f64() * 1e6,
        ),
        (
            report::P99,
            outcome.latency.quantile(0.99).as_secs_f64() * 1e6,
        ),
    ]);
    if matches!(plan.traffic, Traffic::Https { path: LARGE }) {
        metrics.insert(report::CPU_PER_MIB, cpu_us / requests * 16.0);
    }
    // At a fixed rate it is the rate.
    if plan.rate.is_none() {
        metrics.insert(report::REQUESTS, requests / seconds);
    }
    Ok(metrics)
}

/// Measures the cost of decisions, without any network.
fn measure_picks(places: &Places) -> Result<Vec<Pick>> {
    let program = places.programs.join("pick");
    let mut command = Command::new(&program);
    command.arg("--json").stdin(Stdio::null());
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("pick failed: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Resident memory per idle client connection, in bytes.
fn measure_idle(
    row: &str,
    traffic: &Traffic,
    proxy: &Running,
    count: usize,
) -> Result<Option<f64>> {
    let target = match traffic {
        Traffic::Http { .. } => Some(proxy.http),
        Traffic::Https { .. } => proxy.https,
        _ => proxy.tcp,
    };
    let Some(target) = target else {
        return Ok(None);
    };
    let _base = load::open_idle(target, traffic, IDLE_BASE)?;
    let before = settled_memory(proxy)?;
    let more = count - IDLE_BASE;
    let _idle = match row {
        SLOW_HEADS => load::open_slow(target, more)?,
        _ => load::open_idle(target, traffic, more)?,
    };
    let after = settled_memory(proxy)?;
    Ok(Some(after.saturating_sub(before) as f64 / more as f64))
}

/// Resident memory once it has stopped changing, or after three seconds.
fn settled_memory(proxy: &Running) -> Result<u64> {
    let mut last = proxy.server.resident_bytes()?;
    for _ in 0..15 {
        std::thread::sleep(Duration::from_millis(200));
        let now = proxy.server.resident_bytes()?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}
