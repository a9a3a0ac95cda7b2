//! Latency of clients while one of four servers turns slow: Evenkeel beside HAProxy, nginx and Envoy, each with the
//! policy that its users choose for this, in the same run.
//!
//! Every proxy has four back-ends of its own, of different speed (`evenkeel_demo::backend`), and gets
//! the same requests at the same moments, half of what the four can serve. In each turn one
//! back-end takes five times as long for half of the time.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use evenkeel_bench::arms::{Places, build_programs};
use evenkeel_bench::balancers::{Balancer, Program};
use evenkeel_bench::report::median;
use evenkeel_bench::server::Server;
use evenkeel_demo::backend::{Backend, Settings};
use evenkeel_demo::load::{self, Seen};
use evenkeel_demo::stage::{BACKENDS, SLOWDOWN, TURNS_SLOW, UTILISATION};
use evenkeel_sim::svg::{Line, Plot};
use serde::Serialize;
use tokio::task::LocalSet;

/// Proxies, with the balancing policy of each.
const ARMS: [(Program, &str); 4] = [
    (Program::Evenkeel, "adaptive (default)"),
    (Program::Haproxy, "leastconn"),
    (Program::Nginx, "least_conn"),
    (Program::Envoy, "LEAST_REQUEST"),
];

/// Part at the beginning of a phase that is not counted as a part of the phase: requests of the phase before are still
/// there. The picture shows it.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Parser)]
#[command(about = "Evenkeel, HAProxy, nginx and Envoy while one of four servers is slow")]
struct Arguments {
    /// Turns, each with a phase as usual and one in which a server is slow.
    #[arg(long, default_value_t = 6)]
    turns: u32,
    /// Length of a phase in seconds.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Measures what lies beside this program, without building.
    #[arg(long)]
    as_built: bool,
}

/// A line of the results.
#[derive(Serialize)]
struct Row {
    proxy: &'static str,
    /// Version of the proxy, if it is a peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    policy: &'static str,
    phase: &'static str,
    p50_ms: f64,
    p99_ms: f64,
    /// The 99th percentile relative to Evenkeel's in the same turn: median, lower and upper quartile.
    p99_ratio: [f64; 3],
}

struct Proxy {
    name: &'static str,
    version: Option<String>,
    policy: &'static str,
    listen: SocketAddr,
    backends: Vec<Backend>,
    seen: Arc<Mutex<Seen>>,
    _server: Server,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    if !arguments.as_built {
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, run(&arguments, &places))
}

async fn run(arguments: &Arguments, places: &Places) -> Result<(), Box<dyn Error>> {
    let mut proxies = Vec::new();
    for (program, policy) in ARMS {
        match start(Balancer { program, policy }, places).await {
            Ok(proxy) => proxies.push(proxy),
            Err(error) => println!("{} is skipped: {error}", program.name()),
        }
    }
    let capacity: f64 = proxies
        .first()
        .ok_or("nothing can be measured")?
        .backends
        .iter()
        .map(Backend::capacity)
        .sum();
    for proxy in &proxies {
        // The same seed, so that all get the same requests.
        let seen = Arc::clone(&proxy.seen);
        tokio::task::spawn_local(load::run(proxy.listen, UTILISATION * capacity, 1, seen));
    }
    // The first answers teach: connections open, latencies become known.
    tokio::time::sleep(SETTLE).await;

    let begin = Instant::now();
    let mut phases = Vec::new();
    for _ in 0..arguments.turns {
        for (phase, slowdown) in [("as usual", 1.0), ("one slow", SLOWDOWN)] {
            for proxy in &proxies {
                proxy.backends[TURNS_SLOW].set_slowdown(slowdown);
            }
            let from = Instant::now();
            tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
            phases.push((phase, from, Instant::now()));
        }
    }
    let rows = rows(&proxies, &phases);
    for row in &rows {
        println!(
            "{:<10} {:<8} {:<20} {:<9} p50 {:>7.1} ms  p99 {:>7.1} ms  beside Evenkeel's {:.2} ({:.2} to {:.2})",
            row.proxy,
            row.version.as_deref().unwrap_or_default(),
            row.policy,
            row.phase,
            row.p50_ms,
            row.p99_ms,
            row.p99_ratio[0],
            row.p99_ratio[1],
            row.p99_ratio[2],
        );
    }
    let results = places.bench.join("results");
    fs::create_dir_all(&results)?;
    fs::write(
        results.join("slow-member.json"),
        serde_json::to_string_pretty(&rows)? + "\n",
    )?;
    picture(&proxies, begin, arguments, &results.join("slow-member.svg"))
}

/// The figures of each proxy and kind of phase: medians over the turns.
fn rows(proxies: &[Proxy], phases: &[(&'static str, Instant, Instant)]) -> Vec<Row> {
    let now = Instant::now();
    let mut rows = Vec::new();
    for phase in ["as usual", "one slow"] {
        let spans = || phases.iter().filter(move |(name, ..)| *name == phase);
        let figures = |proxy: &Proxy, share: fn(load::Quantiles) -> Duration| -> Vec<f64> {
            let seen = load::lock_seen(&proxy.seen);
            spans()
                .map(|(_, from, to)| seen.quantiles(*from + SETTLE, *to, now))
                .map(|quantiles| share(quantiles).as_secs_f64() * 1e3)
                .collect()
        };
        let ours = figures(&proxies[0], |quantiles| quantiles.p99);
        for proxy in proxies {
            let p99 = figures(proxy, |quantiles| quantiles.p99);
            let mut ratios: Vec<f64> = p99.iter().zip(&ours).map(|(one, our)| one / our).collect();
            ratios.sort_by(f64::total_cmp);
            let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share).round() as usize];
            rows.push(Row {
                proxy: proxy.name,
                version: proxy.version.clone(),
                policy: proxy.policy,
                phase,
                p50_ms: median(figures(proxy, |quantiles| quantiles.p50)).unwrap_or_default(),
                p99_ms: median(p99).unwrap_or_default(),
                p99_ratio: [at(0.5), at(0.25), at(0.75)],
            });
        }
    }
    rows
}

/// The 99th percentile of each second, averaged over the turns.
fn picture(
    proxies: &[Proxy],
    begin: Instant,
    arguments: &Arguments,
    file: &Path,
) -> Result<(), Box<dyn Error>> {
    const SECOND: Duration = Duration::from_secs(1);
    let turn = u32::try_from(2 * arguments.seconds)?;
    let now = Instant::now();
    let lines = proxies.iter().map(|proxy| {
        let seen = load::lock_seen(&proxy.seen);
        let points = (0..turn).map(|second| {
            let all = (0..arguments.turns).map(|number| begin + SECOND * (number * turn + second));
            let p99 = all.map(|from| seen.quantiles(from, from + SECOND, now).p99.as_secs_f64());
            let mean = p99.sum::<f64>() / f64::from(arguments.turns);
            (f64::from(second), mean * 1e3)
        });
        Line::new(format!("{} {}", proxy.name, proxy.policy), points.collect())
    });
    let title = format!(
        "One of four servers takes {} times as long from second {} on",
        SLOWDOWN, arguments.seconds
    );
    let plot = Plot::over_time("99th percentile of latency, ms", lines.collect());
    Ok(fs::write(file, plot.file(&title))?)
}

/// Starts a proxy in front of back-ends of its own.
async fn start(balancer: Balancer, places: &Places) -> Result<Proxy, Box<dyn Error>> {
    let name = balancer.program.name();
    let program = balancer.program.install(places)?;
    let mut backends = Vec::new();
    for (workers, mean) in BACKENDS {
        let settings = Settings {
            workers,
            mean,
            reports_load: false,
            seed: fastrand::u64(..),
        };
        backends.push(Backend::start(settings).await?);
    }
    let members: Vec<SocketAddr> = backends.iter().map(Backend::address).collect();
    let folder = places.cache.join("run").join(format!("slow-{name}"));
    let (server, listen) = balancer.start(&program, &folder, &members).await?;
    Ok(Proxy {
        name,
        version: balancer.program.version(&program),
        policy: balancer.policy,
        listen,
        backends,
        seen: Arc::default(),
        _server: server,
    })
}
