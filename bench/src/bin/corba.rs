//! Cost and effect of the CORBA service, measured as its authors measured theirs.
//!
//! - `overhead`: one client and one server that tells primes, without a balancer and bound
//!   per session, per request and on demand (Othman, O'Ryan and Schmidt, "Strategies for
//!   CORBA Middleware-Based Load Balancing", 2001, figures 3 and 4). The arms take short
//!   turns, all of them and then all the other way round; the figures to trust are the
//!   medians of the rounds' ratios.
//! - `effectiveness`: four members, four clients at 100 requests per second and four at 50,
//!   bound per session and on demand (the same, figures 5 and 6). All begin under round
//!   robin, which has the fast clients together; after five seconds the group gets the
//!   strategy that is named.
//! - `ends`: the same with clients at 10 and 5 requests per second that are bound per session
//!   and all send the same number of requests, so that the fast ones end first (figure 5).
//!   It takes `--iterations` a fifth of a second.
//! - `scalability`: throughput and latency for 1 to 16 clients and servers under
//!   RoundRobin, Random and LeastLoaded (Balasubramanian, Schmidt, Dowdy and Othman,
//!   "Evaluating the Performance of Middleware Load Balancing Strategies", 2004, figures 7
//!   to 12). There each server had a machine; here each serves one request at a time, which
//!   takes it 5 ms in which it sleeps, so that servers share two cores and still have a
//!   capacity of their own.
//!
//! Clients and servers are those of the end-to-end tests, of omniORB. Results are written as
//! CSV and as plots.
//!
//! `corba [overhead] [effectiveness] [ends] [scalability] [--evenkeel FILE] [--out FOLDER]`

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser;
use evenkeel_bench::report::median;
use evenkeel_corba::types::{Properties, Property, StrategyInfo};
use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::corba::LoadManager;
use evenkeel_e2e::omniorb::{self, Client, Server};
use evenkeel_giop::ior::Ior;
use evenkeel_sim::svg::{Line, Plot};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Parser)]
struct Options {
    /// Parts to measure; all parts if none is named.
    parts: Vec<Part>,
    /// Program of the balancer.
    #[arg(long, default_value = "target/dist/evenkeel")]
    evenkeel: PathBuf,
    /// Folder of the results.
    #[arg(long, default_value = "bench/results/corba")]
    out: PathBuf,
    /// Rounds of `overhead`, each of two turns of each arm.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Requests of a turn.
    #[arg(long, default_value_t = 10_000)]
    requests: usize,
    /// Seconds for which `effectiveness` watches each way of binding.
    #[arg(long, default_value_t = 30)]
    watch: u64,
    /// Seconds that each point of `scalability` takes.
    #[arg(long, default_value_t = 2.0)]
    point: f64,
    /// Requests of each client of `ends`.
    #[arg(long, default_value_t = 200)]
    iterations: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Overhead,
    Effectiveness,
    Ends,
    Scalability,
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corba: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    if !omniorb::can_run() {
        return Err("omniORB is missing: run scripts/setup omniorb".into());
    }
    let evenkeel = options.evenkeel.canonicalize().map_err(|error| {
        let file = options.evenkeel.display();
        format!("{file}: {error}; build it with make build")
    })?;
    // SAFETY: there is one thread yet.
    unsafe { std::env::set_var("EVENKEEL_BIN", evenkeel) };
    fs::create_dir_all(&options.out)?;
    let wanted = |part| options.parts.is_empty() || options.parts.contains(&part);
    if wanted(Part::Overhead) {
        overhead(options)?;
    }
    if wanted(Part::Effectiveness) {
        effectiveness(options)?;
    }
    if wanted(Part::Ends) {
        ends(options)?;
    }
    if wanted(Part::Scalability) {
        scalability(options)?;
    }
    Ok(())
}

const TYPE: &str = "IDL:evenkeel.org/PeerTest/Peer:1.0";

/// A balancer with the CORBA service, and a way to talk to it.
struct Service {
    _balancer: Balancer,
    manager: LoadManager,
    uri: String,
}

impl Service {
    fn start() -> Self {
        let balancer = Balancer::start(
            "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [corba]\nlisten = \"127.0.0.1:0\"\n\
             [corba.groups]\nload = \"requests_per_second\"\n",
        );
        let at = balancer.corba_address();
        Service {
            manager: LoadManager::at_address(at),
            uri: format!("corbaloc:iiop:{at}/LoadManager"),
            _balancer: balancer,
        }
    }

    /// A group with these properties.
    fn group(&self, strategy: &str, granularity: &str) -> Result<Ior> {
        let criteria = vec![
            strategy_info(strategy),
            Property::new("org.evenkeel.Granularity", &granularity.to_owned()),
        ];
        let group = self.manager.create_group(TYPE, criteria);
        let (group, _) = group.map_err(|error| format!("no group: {error:?}"))?;
        Ok(group)
    }

    /// Has an object of a server, its first one if none is named, join a group at a location
    /// of its own, and report the requests there.
    fn join(
        &self,
        server: &mut Server,
        at: &str,
        group: &Ior,
        object: Option<&str>,
        every: Duration,
    ) -> Result<()> {
        let (uri, object) = (&self.uri, object.unwrap_or_default());
        for line in [
            format!("location {at} manager={uri}"),
            format!("at {at} member {group} {object}"),
            format!("at {at} monitor {} requests", every.as_millis()),
        ] {
            let answer = server.ask_line(&line);
            if answer.starts_with("error") {
                return Err(format!("{line}: {answer}").into());
            }
        }
        match server.ask_line(&format!("at {at} wait 10000")).as_str() {
            "yes" => Ok(()),
            _ => Err(format!("{at} cannot join: {}", server.log()).into()),
        }
    }
}

fn strategy_info(strategy: &str) -> Property {
    let info = StrategyInfo {
        name: strategy.into(),
        props: Properties::new(),
    };
    Property::new("org.omg.CosLoadBalancing.StrategyInfo", &info)
}

/// Final report of a client that repeats an operation.
#[derive(Clone, Debug, Default)]
struct Turn {
    calls: f64,
    errors: u64,
    seconds: f64,
    /// Nanoseconds, and how many took so long.
    latencies: Vec<(f64, f64)>,
}

impl Turn {
    fn read(lines: impl IntoIterator<Item = String>) -> Result<Turn> {
        let mut turn = Turn::default();
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["latency", nanos, count] => {
                    turn.latencies.push((nanos.parse()?, count.parse()?));
                }
                ["done", _, errors, seconds] => {
                    (turn.errors, turn.seconds) = (errors.parse()?, seconds.parse()?);
                }
                _ => {}
            }
        }
        turn.calls = turn.latencies.iter().map(|(_, count)| count).sum();
        if turn.calls == 0.0 || turn.seconds == 0.0 {
            return Err("a client has ended without having measured anything".into());
        }
        Ok(turn)
    }

    fn throughput(&self) -> f64 {
        self.calls / self.seconds
    }

    /// Mean latency in microseconds.
    fn mean(&self) -> f64 {
        let sum: f64 = self
            .latencies
            .iter()
            .map(|(time, count)| time * count)
            .sum();
        sum / self.calls / 1e3
    }

    /// Standard deviation of latency in microseconds, which the papers call jitter.
    fn jitter(&self) -> f64 {
        let mean = self.mean() * 1e3;
        let squares = self.latencies.iter();
        let squares: f64 = squares.map(|(t, count)| (t - mean).powi(2) * count).sum();
        (squares / self.calls).sqrt() / 1e3
    }

    /// Quantile of the latency in microseconds.
    fn quantile(&self, share: f64) -> f64 {
        let mut left = share * self.calls;
        let reached = self.latencies.iter().find(|(_, count)| {
            left -= count;
            left <= 0.0
        });
        reached
            .or(self.latencies.last())
            .map_or(0.0, |(t, _)| t / 1e3)
    }
}

/// The median; of nothing it is not a number.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(values.collect()).unwrap_or(f64::NAN)
}

/// Something to know of a turn.
type Figure = fn(&Turn) -> f64;

/// A number of its own for each arm and figure.
type Figures = BTreeMap<&'static str, Vec<f64>>;

fn overhead(options: &Options) -> Result<()> {
    const ARMS: [&str; 4] = ["none", "per_session", "per_request", "on_demand"];
    let service = Service::start();
    let mut server = Server::start("alone", &[]);
    let mut targets = vec![server.peer().to_owned()];
    for (arm, strategy) in [
        ("per_session", "RoundRobin"),
        ("per_request", "RoundRobin"),
        ("on_demand", "MinimumDispersion"),
    ] {
        let group = service.group(strategy, arm)?;
        // An object and a location of its own for each, all in the same server.
        let object = server.ask_line(&format!("peer {arm}"));
        let every = Duration::from_millis(500);
        service.join(&mut server, arm, &group, Some(&object), every)?;
        targets.push(group.to_string());
    }
    let (requests, warm) = (options.requests, options.requests / 20 + 1);
    let told = format!("--count {} --warm {warm} --latencies", requests + warm);
    let arguments: Vec<&str> = told.split_whitespace().collect();
    let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); ARMS.len()];
    let mut csv = String::from("round,arm,requests_per_s,mean_us,p50_us,p99_us,jitter_us\n");
    for round in 0..2 * options.rounds {
        let mut order: Vec<usize> = (0..ARMS.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for arm in order {
            let client = Client::repeat(&targets[arm], "is_prime 1299709", &arguments);
            let turn = Turn::read(client.finish_by_itself())?;
            if turn.errors > 0 {
                return Err(format!("{}: {} errors", ARMS[arm], turn.errors).into());
            }
            writeln!(
                csv,
                "{round},{},{:.0},{:.2},{:.2},{:.2},{:.2}",
                ARMS[arm],
                turn.throughput(),
                turn.mean(),
                turn.quantile(0.5),
                turn.quantile(0.99),
                turn.jitter()
            )?;
            turns[arm].push(turn);
        }
    }
    write(&options.out, "overhead.csv", &csv)?;
    println!(
        "overhead: median of {} turns, and of the ratios to no balancer",
        2 * options.rounds
    );
    println!(
        "{:12} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "", "requests/s", "mean us", "p50 us", "p99 us", "jitter us"
    );
    let measures: [(&str, Figure); 5] = [
        ("requests/s", Turn::throughput),
        ("mean", Turn::mean),
        ("p50", |turn| turn.quantile(0.5)),
        ("p99", |turn| turn.quantile(0.99)),
        ("jitter", Turn::jitter),
    ];
    let mut ratios = Figures::new();
    for (arm, name) in ARMS.iter().enumerate() {
        let (mut line, mut relative) = (format!("{name:12}"), format!("{:12}", ""));
        for (what, figure) in measures {
            let own = turns[arm].iter().map(figure);
            let pairs = turns[arm].iter().zip(&turns[0]);
            let ratio = middle(pairs.map(|(own, none)| figure(own) / figure(none)));
            write!(line, " {:10.1}", middle(own))?;
            write!(relative, " {ratio:10.3}")?;
            ratios.entry(what).or_default().push(ratio);
        }
        println!("{line}\n{relative}");
    }
    let bars = |what: &str| -> Vec<(f64, f64)> {
        let values = ratios.get(what).into_iter().flatten();
        values
            .enumerate()
            .map(|(arm, &value)| (arm as f64, value))
            .collect()
    };
    let plot = Plot::from_zero(
        "0 no balancer, 1 per session, 2 per request, 3 on demand",
        "ratio",
        vec![
            Line::new("mean latency", bars("mean")),
            Line::new("throughput", bars("requests/s")),
            Line::new("jitter", bars("jitter")),
        ],
    );
    let title = "Overhead: ratio to no balancer";
    write(&options.out, "overhead.svg", &plot.file(title))
}

/// Members of `effectiveness` and `ends`.
const MEMBERS: usize = 4;

/// Starts this many servers, each with a member of the group.
fn members(service: &Service, group: &Ior) -> Result<Vec<Server>> {
    let mut servers = Vec::new();
    for member in 1..=MEMBERS {
        let name = format!("member{member}");
        let mut server = Server::start(&name, &[]);
        service.join(&mut server, &name, group, None, Duration::from_millis(250))?;
        servers.push(server);
    }
    Ok(servers)
}

fn effectiveness(options: &Options) -> Result<()> {
    const STEP: Duration = Duration::from_millis(500);
    /// Time after which the group gets the strategy under test.
    const CHANGE: Duration = Duration::from_secs(5);
    for (binding, strategy) in [
        ("per_session", "RoundRobin"),
        ("on_demand", "MinimumDispersion"),
    ] {
        let service = Service::start();
        let group = service.group("RoundRobin", binding)?;
        let mut servers = members(&service, &group)?;
        // Fast and slow clients in turn, so that round robin has the fast ones together.
        let rates = [100, 50, 100, 50, 100, 50, 100, 50];
        let mut clients = Vec::new();
        for rate in rates {
            let rate = rate.to_string();
            let client = Client::repeat(&group.to_string(), "is_prime 10007", &["--rate", &rate]);
            client.read_line();
            clients.push(client);
        }
        let start = Instant::now();
        let mut before: Vec<f64> = vec![0.0; MEMBERS];
        let mut at = 0.0;
        let mut csv = String::from("seconds,member,requests_per_s\n");
        let mut lines: Vec<Vec<(f64, f64)>> = vec![Vec::new(); MEMBERS];
        let mut changed = None;
        while start.elapsed() < Duration::from_secs(options.watch) {
            if changed.is_none() && start.elapsed() > CHANGE {
                let properties = vec![strategy_info(strategy)];
                let set = service.manager.set_properties(&group, &properties);
                set.map_err(|error| format!("no other strategy: {error:?}"))?;
                changed = Some(start.elapsed().as_secs_f64());
            }
            sleep(STEP);
            let now = start.elapsed().as_secs_f64();
            for (member, server) in servers.iter_mut().enumerate() {
                let served = server.served_count() as f64;
                let rate = (served - before[member]) / (now - at);
                before[member] = served;
                writeln!(csv, "{now:.2},{},{rate:.1}", member + 1)?;
                lines[member].push((now, rate));
            }
            at = now;
        }
        drop(clients);
        write(&options.out, &format!("effectiveness-{binding}.csv"), &csv)?;
        // From when on every member stays within 5 % of 150: two samples at a time, since
        // a step does not hold a whole number of periods.
        let steps = lines[0].len();
        let even = |step: usize| {
            lines.iter().all(|line| {
                let rate = (line[step - 1].1 + line[step].1) / 2.0;
                (rate - 150.0).abs() <= 7.5
            })
        };
        let settled = (1..steps).rev().take_while(|&step| even(step)).last();
        let ends: Vec<f64> = lines
            .iter()
            .map(|line| {
                line.iter()
                    .rev()
                    .take(10)
                    .map(|(_, rate)| rate)
                    .sum::<f64>()
                    / 10.0
            })
            .collect();
        println!(
            "effectiveness, {binding} ({strategy}): at the end {ends:.1?} requests per second; {}",
            match settled {
                Some(step) => format!(
                    "all within 5 % of 150 from {:.1} s after it got its strategy to the end",
                    lines[0][step].0 - changed.unwrap_or_default()
                ),
                None => "not all within 5 % of 150".into(),
            }
        );
        let line =
            |member: usize| Line::new(format!("member {}", member + 1), lines[member].clone());
        let plot = Plot::over_time("requests per second", (0..MEMBERS).map(line).collect());
        let title = format!("Effectiveness: {binding}, {strategy}");
        let name = format!("effectiveness-{binding}.svg");
        write(&options.out, &name, &plot.file(&title))?;
    }
    Ok(())
}

fn ends(options: &Options) -> Result<()> {
    const STEP: Duration = Duration::from_secs(2);
    // By turns they give 20, 10, 15 and 15: figure 5 has the third and the fourth alike.
    const RATES: [u64; 8] = [10, 5, 10, 5, 10, 5, 5, 10];
    let service = Service::start();
    let group = service.group("RoundRobin", "per_session")?;
    let mut servers = members(&service, &group)?;
    let count = options.iterations.to_string();
    let mut clients = Vec::new();
    for rate in RATES.map(|rate| rate.to_string()) {
        let arguments = ["--rate", &rate, "--count", &count];
        let client = Client::repeat(&group.to_string(), "is_prime 10007", &arguments);
        client.read_line();
        clients.push(client);
    }
    let start = Instant::now();
    // The slowest has sent everything, and nobody comes after that.
    let length = Duration::from_secs(options.iterations / 5) + 2 * STEP;
    let mut before = [0.0; MEMBERS];
    let mut at = 0.0;
    let mut csv = String::from("seconds,member,requests_per_s\n");
    while start.elapsed() < length {
        sleep(STEP);
        let now = start.elapsed().as_secs_f64();
        for (member, (server, before)) in servers.iter_mut().zip(&mut before).enumerate() {
            let served = server.served_count() as f64;
            writeln!(
                csv,
                "{now:.2},{},{:.2}",
                member + 1,
                (served - *before) / (now - at)
            )?;
            *before = served;
        }
        at = now;
    }
    drop(clients);
    write(&options.out, "ends.csv", &csv)
}

fn scalability(options: &Options) -> Result<()> {
    const SIZES: [usize; 5] = [1, 2, 4, 8, 16];
    /// Options of omniORB for one request at a time.
    const ONE_THREAD: [&str; 4] = [
        "-ORBthreadPerConnectionPolicy",
        "0",
        "-ORBmaxServerThreadPoolSize",
        "1",
    ];
    let mut csv = String::from("strategy,servers,clients,requests_per_s,mean_us,p99_us\n");
    for strategy in ["RoundRobin", "Random", "LeastLoaded"] {
        let mut throughput = Vec::new();
        let mut latency = Vec::new();
        for count in SIZES {
            let mut servers: Vec<Server> = Vec::new();
            for member in 0..count {
                servers.push(Server::start(&format!("member{member}"), &ONE_THREAD));
            }
            let (mut rates, mut means) = (Vec::new(), Vec::new());
            for clients in SIZES {
                // A balancer of its own, so that no point inherits loads or turns.
                let service = Service::start();
                let group = service.group(strategy, "per_session")?;
                for (member, server) in servers.iter_mut().enumerate() {
                    let at = format!("member{member}-{clients}");
                    service.join(server, &at, &group, None, Duration::from_millis(250))?;
                }
                let group = group.to_string();
                let mut running: Vec<Client> = (0..clients)
                    .map(|_| Client::repeat(&group, "sleep 5", &["--warm", "2", "--latencies"]))
                    .collect();
                sleep(Duration::from_secs_f64(options.point));
                let turns: Result<Vec<Turn>> = running
                    .iter_mut()
                    .map(|client| Turn::read(client.end_input()))
                    .collect();
                let turns = turns?;
                let rate: f64 = turns.iter().map(Turn::throughput).sum();
                let calls: f64 = turns.iter().map(|turn| turn.calls).sum();
                let weighted = |figure: Figure| {
                    turns
                        .iter()
                        .map(|turn| figure(turn) * turn.calls)
                        .sum::<f64>()
                        / calls
                };
                let (mean, p99) = (weighted(Turn::mean), weighted(|turn| turn.quantile(0.99)));
                writeln!(
                    csv,
                    "{strategy},{count},{clients},{rate:.0},{mean:.0},{p99:.0}"
                )?;
                rates.push((clients as f64, rate));
                means.push((clients as f64, mean));
                for (member, server) in servers.iter_mut().enumerate() {
                    server.ask_line(&format!("at member{member}-{clients} leave 0"));
                }
            }
            let last = rates.last().map_or(0.0, |(_, rate)| *rate);
            println!(
                "scalability, {strategy}, {count} servers: {last:.0} requests per second with 16 clients"
            );
            throughput.push(Line::new(format!("{count} servers"), rates));
            latency.push(Line::new(format!("{count} servers"), means));
        }
        for (what, unit, lines) in [
            ("throughput", "requests per second", throughput),
            ("latency", "mean latency, us", latency),
        ] {
            let plot = Plot::from_zero("clients", unit, lines);
            let name = format!("scalability-{strategy}-{what}.svg");
            write(
                &options.out,
                &name,
                &plot.file(&format!("{strategy}: {what}")),
            )?;
        }
    }
    write(&options.out, "scalability.csv", &csv)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    Ok(fs::write(folder.join(name), text)?)
}
