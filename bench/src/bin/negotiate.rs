//! Cost of a negotiation: `negotiate --help`.
//!
//! The balancer is pinned to one processor, the load to another. CPU time is that of the
//! negotiator's thread, which does nothing else.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use evenkeel_bench::arms;
use evenkeel_bench::load::{Outcome, Plan, Traffic, run};
use evenkeel_bench::server::{self, Server};

/// Measures the negotiator on loopback: negotiations per second of CPU time, and latency
/// at a fixed rate.
#[derive(Parser)]
struct Arguments {
    /// The `evenkeel` program; by default it is built.
    #[arg(long)]
    evenkeel: Option<PathBuf>,
    /// Connections at once.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Members of the group.
    #[arg(long, default_value_t = 10)]
    members: usize,
    /// Negotiations per second of the run at a fixed rate.
    #[arg(long, default_value_t = 20_000.0)]
    rate: f64,
    /// Seconds that are counted in each run.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Runs of each kind.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Required negotiations per second on one core.
const NEEDED_PER_SECOND: f64 = 20_000.0;
const NEEDED_P99: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("negotiate: {error}");
            ExitCode::FAILURE
        }
    }
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn measure(arguments: &Arguments) -> Result<()> {
    let evenkeel = match &arguments.evenkeel {
        Some(path) => path.clone(),
        None => {
            arms::build_programs()?;
            let own = std::env::current_exe()?;
            let target = own.parent().and_then(|profile| profile.parent());
            target
                .ok_or("no target folder")?
                .join(arms::PROFILE)
                .join("evenkeel")
        }
    };
    let processors = server::processors()?;
    match processors[..] {
        [broker_cpu, load_cpu, ..] => drive(arguments, &evenkeel, broker_cpu, load_cpu),
        _ => Err("two processors are needed, one for each side".into()),
    }
}

fn drive(
    arguments: &Arguments,
    evenkeel: &std::path::Path,
    broker_cpu: usize,
    load_cpu: usize,
) -> Result<()> {
    let mut rng = fastrand::Rng::new();
    let negotiator = server::free_address(&mut rng)?;
    let admin = server::free_address(&mut rng)?;
    let folder = std::env::temp_dir().join(format!("evenkeel-negotiate-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("evenkeel.toml");
    fs::write(&file, config(arguments.members, negotiator, admin))?;
    let mut command = Command::new(evenkeel);
    command.args(["run".as_ref(), file.as_os_str()]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut broker = Server::start(command, broker_cpu, libc::SIGKILL)?;
    broker.wait_for(&[negotiator, admin])?;
    for member in 0..arguments.members {
        let mut report = Command::new(evenkeel);
        report.args(["ctl", "--admin", &admin.to_string(), "loads", "push"]);
        report.args([
            format!("l{member}"),
            "cpu=0.5".into(),
            "response_time=0.01".into(),
        ]);
        let reported = report.stdout(Stdio::null()).status()?;
        if !reported.success() {
            return Err("the loads could not be reported".into());
        }
    }
    server::pin_to(load_cpu)?;
    server::sharpen_timers();
    let thread = negotiator_thread(broker.id())?;
    println!(
        "{} members, {} connections, one thread; median of {} runs of {} s",
        arguments.members, arguments.connections, arguments.rounds, arguments.seconds
    );
    println!("form          run        per s   cpu us  per cpu s   p50 us   p99 us  failed");
    let mut all_reached = true;
    for (form, traffic) in forms() {
        for rate in [None, Some(arguments.rate)] {
            let mut runs = Vec::new();
            for _ in 0..arguments.rounds.max(1) {
                let measure = Duration::try_from_secs_f64(arguments.seconds)?;
                let plan = Plan {
                    target: negotiator,
                    traffic: traffic.clone(),
                    connections: arguments.connections,
                    rate,
                    warm_up: measure / 10,
                    measure,
                };
                runs.push(run(&plan, &mut || on_cpu(broker.id(), thread))?);
            }
            let reached = report(form, rate, &runs);
            all_reached &= reached;
        }
    }
    println!("{}", if all_reached { "pass" } else { "MISS" });
    // Nothing depends on it.
    let _ = fs::remove_dir_all(&folder);
    Ok(())
}

/// Returns the requests, by the form of their answers.
fn forms() -> [(&'static str, Traffic); 4] {
    let negotiate = "/.well-known/evenkeel/negotiate?cluster=shop";
    [
        (
            "redirect",
            Traffic::Redirect {
                path: "/catalogue?page=2",
            },
        ),
        ("json", Traffic::Http { path: negotiate }),
        (
            "json, class",
            Traffic::Http {
                path: "/.well-known/evenkeel/negotiate?cluster=shop&class=gold&response_time=50ms",
            },
        ),
        ("close", Traffic::HttpClose { path: negotiate }),
    ]
}

fn config(members: usize, negotiator: SocketAddr, admin: SocketAddr) -> String {
    let member = |n: usize| {
        let (high, low) = (n / 250, n % 250 + 1);
        format!("{{ address = \"192.0.{high}.{low}:80\", location = \"l{n}\" }}")
    };
    let members: Vec<_> = (0..members).map(member).collect();
    format!(
        "workers = 1\n[admin]\nlisten = \"{admin}\"\n\
         [group.pool]\nstrategy = \"least_utilization\"\nload_max_age = \"1h\"\nmembers = [{}]\n\
         [negotiator]\nlisten = \"{negotiator}\"\n\
         [cluster.shop]\ngroup = \"pool\"\nhosts = [\"bench.local\"]\n\
         quantum = {{ min = \"5s\", max = \"60s\" }}\n\
         [cluster.shop.class.gold]\nresponse_time = \"20ms\"\n",
        members.join(", ")
    )
}

/// Prints the median run; whether it reaches what must be reached.
fn report(form: &str, rate: Option<f64>, runs: &[Outcome]) -> bool {
    let cost = |run: &Outcome| run.cpu.as_secs_f64() / run.requests.max(1) as f64;
    let mut order: Vec<_> = runs.iter().collect();
    order.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    let Some(run) = order.get(order.len() / 2) else {
        return false;
    };
    let per_second = run.requests as f64 / run.elapsed.as_secs_f64();
    let p99 = run.latency.quantile(0.99);
    let kind = match rate {
        None => "closed loop".to_owned(),
        Some(rate) => format!("{rate:.0}/s"),
    };
    println!(
        "{form:<13} {kind:<11} {per_second:>6.0} {:>7.2} {:>10.0} {:>8.0} {:>8.0} {:>7}",
        cost(run) * 1e6,
        1.0 / cost(run),
        run.latency.quantile(0.5).as_secs_f64() * 1e6,
        p99.as_secs_f64() * 1e6,
        run.failures
    );
    // A connection for each is beside what must be reached.
    form == "close"
        || match rate {
            None => 1.0 / cost(run) >= NEEDED_PER_SECOND,
            Some(rate) => rate < NEEDED_PER_SECOND || p99 < NEEDED_P99,
        }
}

/// The thread of the negotiator.
fn negotiator_thread(process: u32) -> io::Result<u32> {
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        let name = fs::read_to_string(task.path().join("comm"))?;
        if name.trim() == "negotiator" {
            let id = task.file_name().to_string_lossy().parse();
            return id.map_err(|_| io::Error::other("a thread without a number"));
        }
    }
    Err(io::Error::other(
        "the process has no thread called negotiator",
    ))
}

/// Time that a thread was on a processor.
fn on_cpu(process: u32, thread: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat"))?;
    let nanos = text.split(' ').next().and_then(|word| word.parse().ok());
    nanos
        .map(Duration::from_nanos)
        .ok_or_else(|| io::Error::other("schedstat has no time"))
}
