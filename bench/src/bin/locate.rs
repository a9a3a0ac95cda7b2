//! Number of clients per second that one core can send to the members of an object group, beside a forwarding servant
//! of omniORB (`bench/corba/forwarder.cc`).
//!
//! Each has one processor, with all its threads, and this generator has another one. Connections stay open, and each
//! has one request outstanding. Both forward to the same four references in turn. They take turns, so that other load
//! of the machine affects both alike; the printed load average says how much other load there was.
//!
//! `locate [--rounds N] [--seconds S] [--evenkeel FILE] [--strategy NAME]`

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use evenkeel_bench::giop::{LOCATION_FORWARD, Outcome, Plan, run};
use evenkeel_bench::httpd::Folder;
use evenkeel_bench::report::median;
use evenkeel_bench::server::{Server, cpu_time, free_address, pin_to, processors};
use evenkeel_corba::name::Name;
use evenkeel_corba::types::Property;
use evenkeel_giop::any::Idl;
use evenkeel_giop::client::{Body, Call, Client, Settings};
use evenkeel_giop::ior::Ior;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
struct Options {
    /// Turns of each for each number of connections.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a turn.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The balancer.
    #[arg(long, default_value = "target/dist/evenkeel")]
    evenkeel: PathBuf,
    /// The group's strategy.
    #[arg(long, default_value = "round_robin")]
    strategy: String,
}

const TYPE: &str = "IDL:Bench/Member:1.0";
/// Connections of a turn.
const CONNECTIONS: [usize; 2] = [16, 64];
/// Longer than a call takes on any machine.
const HANG: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("locate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An arm of the comparison.
struct Arm {
    name: &'static str,
    server: Server,
    /// The group that it forwards from.
    group: Ior,
    /// Results of the turns, by the number of connections.
    figures: [Vec<Figures>; CONNECTIONS.len()],
}

/// Result of a turn.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
    longest_ms: f64,
    /// Fewest to most answers of a connection.
    fairness: f64,
}

fn measure(options: &Options) -> Result<()> {
    let processors = processors()?;
    let (Some(&serving), Some(&other)) = (processors.first(), processors.last()) else {
        return Err("no processor to run on".into());
    };
    if serving == other {
        return Err("two processors are needed: one for the generator".into());
    }
    let folder = Folder::new("locate")?;
    // Nobody goes there.
    let members: Vec<Ior> = (1..=4)
        .map(|port| Ior::new_iiop(TYPE, "127.0.0.1", port, b"member"))
        .collect();
    let mut arms = vec![evenkeel(options, folder.path(), serving, &members)?];
    match omniorb(folder.path(), serving, &members) {
        Ok(arm) => arms.push(arm),
        Err(error) => eprintln!("without omniORB (Debian: libomniorb4-dev, g++): {error}"),
    }
    pin_to(other)?;
    for round in 0..options.rounds {
        for (row, &connections) in CONNECTIONS.iter().enumerate() {
            let mut order: Vec<usize> = (0..arms.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let figures = turn(&arms[index], connections, options.seconds)?;
                arms[index].figures[row].push(figures);
            }
        }
    }
    println!("connections  who       forwards/s  CPU us  p50 us  p99 us  longest ms  least/most");
    for (row, connections) in CONNECTIONS.iter().enumerate() {
        for arm in &arms {
            let middle = |of: fn(&Figures) -> f64| {
                median(arm.figures[row].iter().map(of).collect()).unwrap_or(f64::NAN)
            };
            println!(
                "{connections:11}  {:8}  {:10.0}  {:6.2}  {:6.0}  {:6.0}  {:10.1}  {:10.2}",
                arm.name,
                middle(|f| f.per_second),
                middle(|f| f.cpu_us),
                middle(|f| f.p50_us),
                middle(|f| f.p99_us),
                middle(|f| f.longest_ms),
                middle(|f| f.fairness),
            );
        }
    }
    println!(
        "medians of {} turns of {} s",
        options.rounds, options.seconds
    );
    println!(
        "load average: {}",
        fs::read_to_string("/proc/loadavg")?.trim()
    );
    Ok(())
}

fn turn(arm: &Arm, connections: usize, seconds: f64) -> Result<Figures> {
    let profile = arm.group.iiop_profiles().next();
    let profile = profile.ok_or("the group has no address")?;
    let plan = Plan {
        target: SocketAddr::new(profile.host.parse()?, profile.port),
        key: profile.object_key,
        status: LOCATION_FORWARD,
        connections,
        warm_up: Duration::from_millis(300),
        measure: Duration::from_secs_f64(seconds),
    };
    let pid = i32::try_from(arm.server.id())?;
    let outcome = run(&plan, &mut || cpu_time(pid))
        .map_err(|error| format!("{} with {connections} connections: {error}", arm.name))?;
    Ok(figures(&outcome))
}

fn figures(outcome: &Outcome) -> Figures {
    let forwards = outcome.replies as f64;
    let (fewest, most) = outcome.fewest_and_most();
    Figures {
        per_second: forwards / outcome.elapsed.as_secs_f64(),
        cpu_us: outcome.cpu.as_secs_f64() * 1e6 / forwards,
        p50_us: outcome.latency.quantile(0.5).as_secs_f64() * 1e6,
        p99_us: outcome.latency.quantile(0.99).as_secs_f64() * 1e6,
        longest_ms: outcome.longest.as_secs_f64() * 1e3,
        fairness: fewest as f64 / most as f64,
    }
}

/// The balancer with one group.
fn evenkeel(options: &Options, folder: &Path, cpu: usize, members: &[Ior]) -> Result<Arm> {
    let config = folder.join("evenkeel.toml");
    let ior_file = folder.join("lm.ior");
    fs::write(
        &config,
        format!(
            "workers = 1\n[corba]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nstate_file = false\n\
             liveness = false\nior_file = {ior_file:?}\n[corba.groups]\nstrategy = \"{}\"\n",
            options.strategy
        ),
    )?;
    let mut command = Command::new(&options.evenkeel);
    command.arg("run").arg(&config);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server::start(command, cpu, libc::SIGTERM)
        .map_err(|error| format!("{}: {error}", options.evenkeel.display()))?;
    lines_until(&mut server, |line| line == "ready")?;
    let manager: Ior = fs::read_to_string(&ior_file)?.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let group = runtime.block_on(make_group(&manager, members))?;
    Ok(Arm {
        name: "evenkeel",
        server,
        group,
        figures: Default::default(),
    })
}

async fn make_group(manager: &Ior, members: &[Ior]) -> Result<Ior> {
    let client = Client::new(Settings::default());
    let deadline = || tokio::time::Instant::now() + HANG;
    let by_hand = Property::new("org.omg.PortableGroup.MembershipStyle", &0i32);
    let call = Call::new(manager, "create_object", deadline()).with_arguments(|writer| {
        TYPE.to_owned().write(writer);
        vec![by_hand].write(writer);
    });
    let reference = |body: Body| Ior::read(&mut body.reader());
    let group = reference(client.call(&call).await?)?;
    for (number, member) in members.iter().enumerate() {
        let call = Call::new(manager, "add_member", deadline()).with_arguments(|writer| {
            group.write(writer);
            Name::from_id(&format!("host{number}")).write(writer);
            member.write(writer);
        });
        client.call(&call).await?;
    }
    Ok(group)
}

/// The forwarding servant of omniORB.
fn omniorb(folder: &Path, cpu: usize, members: &[Ior]) -> Result<Arm> {
    let program = folder.join("forwarder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("corba/forwarder.cc");
    let built = Command::new("g++")
        .args(["-O2", "-std=c++17", "-o"])
        .args([&program, &source])
        .args(["-lomniORB4", "-lomnithread"])
        .stderr(Stdio::null())
        .status()?;
    if !built.success() {
        return Err("forwarder.cc does not compile".into());
    }
    let address = free_address(&mut fastrand::Rng::new())?;
    let mut command = Command::new(&program);
    command.args(["-ORBendPoint", &format!("giop:tcp:{address}")]);
    command.args(members.iter().map(Ior::to_string));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server::start(command, cpu, libc::SIGTERM)?;
    let lines = lines_until(&mut server, |line| line.starts_with("IOR:"))?;
    let group = lines.last().ok_or("it says no reference")?.parse()?;
    server.wait_for(&[address])?;
    Ok(Arm {
        name: "omniORB",
        server,
        group,
        figures: Default::default(),
    })
}

/// Reads what a server says until a certain line, which is the last one.
fn lines_until(server: &mut Server, last: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let stdout = server.take_stdout().ok_or("no standard output")?;
    let mut lines = Vec::new();
    for line in BufReader::new(stdout).lines() {
        lines.push(line?);
        if lines.last().is_some_and(|line| last(line)) {
            return Ok(lines);
        }
    }
    Err("a server does not start".into())
}
