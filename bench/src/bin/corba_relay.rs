//! Cost of relaying each CORBA request, beside a forwarding servant of omniORB: `corba_relay --help`.
//!
//! Both relay to the same member, one after the other in each round. The relay is pinned to one processor, the load and
//! the member to another. The member is as small as possible, so that it does not limit the relays; with
//! `--real-member` it is omniORB's, too.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use evenkeel_bench::giop::{NO_EXCEPTION, Outcome, Plan, run};
use evenkeel_bench::report::median;
use evenkeel_bench::server::{self, Server};
use evenkeel_corba::call::{self, Call};
use evenkeel_corba::directory::{Directory, Entry, Reference};
use evenkeel_corba::dispatcher::{self, Dispatcher, Objects};
use evenkeel_corba::keys::{Key, Level};
use evenkeel_corba::relay::{self, Relay};
use evenkeel_core::group::{Granularity, Group, GroupSettings, GroupState};
use evenkeel_core::load::Location;
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{
    Content, GiopError, LocateReply, LocateStatus, Message, Reply, ReplyStatus,
};
use evenkeel_giop::server::{ReplyOutput, Server as Giop, Service, Settings};
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_net::Clock;
use tokio::net::TcpListener;
use tokio::task::LocalSet;

/// Measures the relay on loopback: requests per second, CPU time and latency of each.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Connections, each with one request outstanding.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    connections: Vec<usize>,
    /// Seconds that are counted in each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Pairs of runs.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Relays to a member of omniORB.
    #[arg(long)]
    real_member: bool,
    /// Lets both use all processors.
    #[arg(long)]
    unpinned: bool,
}

/// Role of this program in a run.
#[derive(Subcommand)]
enum Role {
    /// A member that answers everything with one octet.
    Member,
    /// The relay, in front of these members.
    Relay {
        /// Stringified references.
        members: Vec<String>,
    },
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Required ratio of the throughput to the other relay's.
const NEEDED: f64 = 2.0;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.role {
        Some(Role::Member) => serve(|| Rc::new(Smallest), b"member"),
        Some(Role::Relay { members }) => relay(members),
        None => measure(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corba_relay: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves on a free port, and writes the reference with `key` to standard output.
fn serve<S: Service>(service: impl FnOnce() -> Rc<S>, key: &[u8]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        println!(
            "{}",
            Ior::new_iiop("IDL:evenkeel.org/Bench/Member:1.0", "127.0.0.1", port, key)
        );
        let server = Giop::new(Settings::default());
        server
            .serve_clients(listener, service(), std::future::pending())
            .await;
        Ok(())
    })
}

/// The smallest member.
struct Smallest;

impl Service for Smallest {
    type Connection = ();

    fn connected(&self, _peer: SocketAddr) {}

    fn message(
        &self,
        _connection: &mut (),
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> std::result::Result<(), GiopError> {
        let (version, endian) = (message.header.version, message.header.endian);
        match message.read_content()? {
            Content::Request(request) => {
                let reply = Reply::new(request.request_id, ReplyStatus::NoException, &[1]);
                out.write(|out| reply.encode(version, endian, out))?;
            }
            // ORBs ask before the first request.
            Content::LocateRequest(reply_to) => {
                let reply = LocateReply {
                    request_id: reply_to.request_id,
                    status: LocateStatus::ObjectHere,
                    body: &[],
                };
                out.write(|out| reply.encode(version, endian, out))?;
            }
            _ => {}
        }
        Ok(())
    }
}

struct Nothing;

impl Objects for Nothing {
    fn manager(&self, _: Call) -> impl Future<Output = call::Outcome> + use<> {
        std::future::ready(no_implement())
    }

    fn strategy(&self, _: Level<'_>, _: Call) -> impl Future<Output = call::Outcome> + use<> {
        std::future::ready(no_implement())
    }
}

fn no_implement() -> call::Outcome {
    call::Outcome::System(SystemException::new(Kind::NoImplement))
}

fn relay(members: &[String]) -> Result<()> {
    let references = members
        .iter()
        .map(|ior| Ok(Arc::new(Reference::new(ior.parse()?))))
        .collect::<Result<Vec<_>>>()?;
    let seats: Vec<Member> = (0..references.len())
        .map(|index| Member {
            id: MemberId(index as u64),
            name: index.to_string().into(),
            given_name: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            host: "192.0.2.1".into(),
            max_connections: None,
            location: Arc::new(Location::new(index.to_string())),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        })
        .collect();
    let kind = strategy::find("round_robin").ok_or("there is no round_robin")?;
    let settings = GroupSettings {
        granularity: Granularity::PerRequest,
        slow_start: Duration::ZERO,
        ..GroupSettings::default()
    };
    let group = Group::new(
        "g",
        settings,
        &Values::defaults(kind),
        seats,
        Arc::new(GroupState::default()),
    );
    let handle = Arc::new(GroupHandle::new(Arc::new(group), 0));
    let key = Key::Group(1).to_bytes();
    let own = Ior::new_iiop("IDL:evenkeel.org/Bench/Member:1.0", "127.0.0.1", 1, &key);
    let known = |name: &str| references.get(name.parse::<usize>().ok()?).cloned();
    let directory = Arc::new(Directory::default());
    directory.publish_groups([Arc::new(Entry::new(1, own, handle, known, None, None))]);
    let service = || {
        let clock = Clock::start();
        let rng = fastrand::Rng::new();
        let relay = Relay::start(relay::Settings::default(), Arc::default(), clock, rng);
        let counters = Arc::new(dispatcher::Counters::default());
        Rc::new(Dispatcher::new(
            clock,
            relay,
            directory,
            Rc::new(Nothing),
            counters,
        ))
    };
    serve(service, &key)
}

/// An arm of the comparison.
struct Arm {
    name: &'static str,
    server: Server,
    target: SocketAddr,
    key: Vec<u8>,
}

impl Arm {
    fn start(name: &'static str, mut command: Command, cpu: usize) -> Result<(Self, String)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = Server::start(command, cpu, libc::SIGKILL)?;
        let mut line = String::new();
        let stdout = server.take_stdout().ok_or("no standard output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let ior: Ior = line.parse()?;
        let profile = ior
            .iiop_profiles()
            .next()
            .ok_or("a reference without address")?;
        let mut addresses = (profile.host.as_str(), profile.port).to_socket_addrs()?;
        let arm = Arm {
            name,
            server,
            target: addresses.next().ok_or("no address")?,
            key: profile.object_key,
        };
        Ok((arm, line.trim().into()))
    }

    fn run(&self, connections: usize, seconds: f64) -> Result<Outcome> {
        let plan = Plan {
            target: self.target,
            key: self.key.clone(),
            status: NO_EXCEPTION,
            connections,
            warm_up: Duration::from_millis(300),
            measure: Duration::from_secs_f64(seconds),
        };
        Ok(run(&plan, &mut || self.server.cpu_time())?)
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    let [relay_cpu, load_cpu] = match server::processors()?[..] {
        [first, second, ..] => [first, second],
        _ => return Err("two processors are needed, one for each side".into()),
    };
    let folder = std::env::temp_dir().join(format!("evenkeel-relay-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let peer = build(&folder)?;
    let own = std::env::current_exe()?;
    let mut member = if arguments.real_member {
        Command::new(&peer)
    } else {
        Command::new(&own)
    };
    member.arg("member");
    let (_member, reference) = Arm::start("member", member, load_cpu)?;
    let mut ours = Command::new(&own);
    ours.args(["relay", &reference]);
    let mut theirs = Command::new(&peer);
    theirs.args(["forward", &reference]);
    // As many connections as there can be calls: omniORB's default of five makes calls wait.
    theirs.args(["-ORBmaxGIOPConnectionPerServer", "100"]);
    let arms = [
        Arm::start("evenkeel", ours, relay_cpu)?.0,
        Arm::start("omniORB", theirs, relay_cpu)?.0,
    ];
    if arguments.unpinned {
        for arm in &arms {
            let all = Command::new("taskset")
                .args(["--all-tasks", "--pid", "0xffffffff"])
                .arg(arm.server.id().to_string())
                .stdout(Stdio::null())
                .status()?;
            if !all.success() {
                return Err("taskset has failed".into());
            }
        }
    } else {
        server::pin_to(load_cpu)?;
    }
    println!(
        "one member; {} pairs of runs of {} s",
        arguments.rounds, arguments.seconds
    );
    println!("connections  relay        per s  cpu us   p50 us   p99 us");
    let mut reached = true;
    for &connections in &arguments.connections {
        let (mut ratios, mut costs) = (Vec::new(), Vec::new());
        let mut shown: [Vec<[f64; 4]>; 2] = Default::default();
        for round in 0..arguments.rounds {
            let mut pair = [[0.0; 4]; 2];
            // The first arm changes with each round, so that both share a drift.
            for index in [round % 2, (round + 1) % 2] {
                let outcome = arms[index].run(connections, arguments.seconds)?;
                let replies = outcome.replies.max(1) as f64;
                pair[index] = [
                    replies / outcome.elapsed.as_secs_f64(),
                    outcome.cpu.as_secs_f64() * 1e6 / replies,
                    outcome.latency.quantile(0.5).as_secs_f64() * 1e6,
                    outcome.latency.quantile(0.99).as_secs_f64() * 1e6,
                ];
            }
            ratios.push(pair[0][0] / pair[1][0]);
            costs.push(pair[1][1] / pair[0][1]);
            shown[0].push(pair[0]);
            shown[1].push(pair[1]);
        }
        for (arm, runs) in arms.iter().zip(&shown) {
            let [rate, cpu, p50, p99] = [0, 1, 2, 3]
                .map(|i| median(runs.iter().map(|run| run[i]).collect()).unwrap_or(0.0));
            let name = arm.name;
            println!("{connections:>11}  {name:<9} {rate:>8.0} {cpu:>7.1} {p50:>8.0} {p99:>8.0}");
        }
        let ratio = median(ratios).unwrap_or(0.0);
        let cost = median(costs).unwrap_or(0.0);
        println!("{connections:>11}  throughput x {ratio:.2}, requests per CPU time x {cost:.2}");
        reached &= ratio >= NEEDED;
    }
    let verdict = if reached { "reached" } else { "NOT reached" };
    println!("at least {NEEDED} times the throughput: {verdict}");
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Builds the forwarding servant.
fn build(folder: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("corba");
    let program = folder.join("relay");
    let script = format!(
        "set -e; cd '{0}'; omniidl -bcxx '{1}/member.idl'; \
         c++ -O2 -o relay '{1}/relay.cc' memberSK.cc -I. $(pkg-config --cflags --libs omniORB4)",
        folder.display(),
        source.display(),
    );
    if Command::new("sh").args(["-c", &script]).status()?.success() {
        Ok(program)
    } else {
        Err("the forwarding servant cannot be built: is omniORB installed?".into())
    }
}
