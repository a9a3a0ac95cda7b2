//! Latency of connections while a member of four is slow, fails, or has other work.
//!
//! All balancers have members of their own and get the same connections at the same moments, whatever their answers do.
//! A member serves one connection after the other, and sleeps for the time that the client asks for.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_bench::report::quantile;
use evenkeel_bench::server::sharpen_timers;
use evenkeel_e2e::netns::Namespace;

use crate::ground::{Arm, Balancer, Ground, MEMBERS, PORT, load_nft, member_addresses, member_ip};
use crate::results::{ANTAGONIST, FAILING, MOVING, P50, P99, REFUSED, Results, SLOW};
use crate::traffic::{wake_accepting, widen_backlog};
use crate::{Result, Run};

const ARMS: [Arm; 4] = [Arm::Kernel, Arm::KernelLeast, Arm::Proxy, Arm::Nft];
const SCENARIOS: [&str; 4] = [SLOW, MOVING, FAILING, ANTAGONIST];

/// New connections in a second: 62 % of what three members and a slow one can serve.
const RATE: f64 = 500.0;
/// Mean time of work of a connection.
const WORK: Duration = Duration::from_millis(4);
/// Slowdown of the slow member.
const SLOWDOWN: u32 = 5;
/// Time for which a member is slow, if the slow one moves.
const MOVES: Duration = Duration::from_secs(3);
/// Connections in a second of the antagonist: 70 % of a member's time.
const ANTAGONIST_RATE: f64 = 175.0;
/// Part at the beginning that is not counted.
const SETTLE: Duration = Duration::from_secs(2);
/// Longest wait for an answer; more is a lost connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// Stack of the thread of a connection.
const STACK: usize = 128 << 10;

/// A connection: when it is due, and the work that it asks for.
type Order = (Duration, Duration);

/// A member with one worker; dropping it ends the worker.
struct Member {
    listener: Arc<TcpListener>,
    slowdown: Arc<AtomicU32>,
}

impl Member {
    fn start(members: &Namespace, number: u8) -> Result<Self> {
        let listener = members.run_inside(|| TcpListener::bind((member_ip(number), PORT)))?;
        widen_backlog(&listener);
        let (listener, slowdown) = (Arc::new(listener), Arc::new(AtomicU32::new(1)));
        let (accepting, factor) = (Arc::clone(&listener), Arc::clone(&slowdown));
        thread::spawn(move || {
            sharpen_timers();
            while let Ok((stream, _)) = accepting.accept() {
                // A client that breaks off is no failure of the member.
                let _ = serve(stream, &factor);
            }
        });
        Ok(Member { listener, slowdown })
    }

    fn set_slow(&self, is_slow: bool) {
        let slowdown = if is_slow { SLOWDOWN } else { 1 };
        self.slowdown.store(slowdown, Ordering::Relaxed);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        wake_accepting(&self.listener);
    }
}

fn serve(mut stream: TcpStream, slowdown: &AtomicU32) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut request = [0; 8];
    stream.read_exact(&mut request)?;
    let work = Duration::from_micros(u64::from_le_bytes(request));
    thread::sleep(work * slowdown.load(Ordering::Relaxed));
    stream.write_all(&[1])
}

/// Numbers and latencies of connections, by their end.
#[derive(Default)]
struct Outcomes {
    latencies: Vec<Duration>,
    refused: u32,
    lost: u32,
}

impl Outcomes {
    /// Quantile of the latencies in milliseconds.
    fn quantile(&self, share: f64) -> f64 {
        let millis = self
            .latencies
            .iter()
            .map(|latency| latency.as_secs_f64() * 1e3);
        quantile(millis, share)
    }
}

/// Times of connections at random, with exponential distances and work.
fn make_orders(seed: u64, rate: f64, length: Duration) -> Vec<Order> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut exponential = |mean: f64| -mean * (1.0 - rng.f64()).ln();
    let (mut due, mut orders) = (0.0, Vec::new());
    loop {
        due += exponential(1.0 / rate);
        if due > length.as_secs_f64() {
            return orders;
        }
        let work = exponential(WORK.as_secs_f64());
        orders.push((Duration::from_secs_f64(due), Duration::from_secs_f64(work)));
    }
}

/// Makes connections when they are due, each in a thread of its own.
fn drive(clients: &Namespace, target: SocketAddr, orders: &[Order], began: Instant) -> Outcomes {
    let outcomes = Mutex::new(Outcomes::default());
    let seen = &outcomes;
    clients.run_inside(|| {
        sharpen_timers();
        thread::scope(|scope| {
            for &(due, work) in orders {
                let moment = began + due;
                thread::sleep(moment.saturating_duration_since(Instant::now()));
                let one = move || {
                    let answer = ask(target, work);
                    let latency = moment.elapsed();
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    match answer {
                        Ok(()) if due > SETTLE => seen.latencies.push(latency),
                        Ok(()) => {}
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                            seen.refused += 1;
                        }
                        Err(_) => seen.lost += 1,
                    }
                };
                let thread = thread::Builder::new().stack_size(STACK);
                if thread.spawn_scoped(scope, one).is_err() {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.lost += 1;
                }
            }
        });
    });
    outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

fn ask(target: SocketAddr, work: Duration) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&(work.as_micros() as u64).to_le_bytes())?;
    stream.read_exact(&mut [0])
}

/// A balancer with its members.
struct Stage {
    balancer: Balancer,
    members: Vec<Member>,
}

impl Stage {
    fn start(run: &Run, arm: Arm) -> Result<Self> {
        let ground = Ground::new()?;
        let members: Result<Vec<Member>> = (0..MEMBERS)
            .map(|number| Member::start(&ground.pair.back, number))
            .collect();
        let members = members?;
        let balancer = Balancer::start(run, arm, ground, run.cpu, &member_addresses(), "")?;
        balancer.wait_until_ready()?;
        Ok(Stage { balancer, members })
    }

    /// Plays the part of the members in a scenario, and of the antagonist, for this time.
    fn play(&self, scenario: &str, antagonist: &[Order], began: Instant, length: Duration) {
        match scenario {
            SLOW => self.members[0].set_slow(true),
            MOVING => {
                let mut slow = 0;
                while began.elapsed() < length {
                    for (number, member) in self.members.iter().enumerate() {
                        member.set_slow(number == slow % self.members.len());
                    }
                    slow += 1;
                    let next = began + MOVES * slow as u32;
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }
            ANTAGONIST => {
                let target = (member_ip(0), PORT).into();
                drive(&self.balancer.ground.pair.back, target, antagonist, began);
            }
            _ => {}
        }
    }
}

/// Rules by which the first member's machine refuses every other connect.
fn refuse_half() -> String {
    format!(
        "table ip fail {{\n chain in {{\n  type filter hook input priority 0;\n  ip daddr {} tcp dport {PORT} \
         tcp flags & (syn | ack) == syn numgen inc mod 2 0 reject with tcp reset\n }}\n}}\n",
        member_ip(0)
    )
}

/// Measures all scenarios.
///
/// # Errors
///
/// Returns an error if there are no namespaces.
pub(crate) fn measure(run: &Run, results: &mut Results) -> Result<()> {
    let length = Duration::from_secs(run.scale(20, 10));
    for round in 0..run.rounds(7, 2) {
        for scenario in SCENARIOS {
            let mut stages = Vec::new();
            for arm in ARMS {
                match Stage::start(run, arm) {
                    Ok(stage) => stages.push(stage),
                    Err(error) => println!("{} is skipped: {error}", arm.name()),
                }
            }
            if scenario == FAILING {
                let refuse = refuse_half();
                let refused = stages
                    .iter()
                    .try_for_each(|stage| load_nft(&stage.balancer.ground.pair.back, &refuse));
                if let Err(error) = refused {
                    println!("{scenario} is skipped: {error}");
                    continue;
                }
            }
            let seed = round as u64 + 1;
            let orders = make_orders(seed, RATE, length);
            let antagonist = make_orders(seed + 1000, ANTAGONIST_RATE, length);
            let began = Instant::now() + Duration::from_millis(100);
            let seen: Vec<(Arm, Outcomes)> = thread::scope(|scope| {
                let running: Vec<_> = stages
                    .iter()
                    .map(|stage| {
                        let (orders, antagonist) = (&orders, &antagonist);
                        scope.spawn(move || stage.play(scenario, antagonist, began, length));
                        scope.spawn(move || {
                            let clients = &stage.balancer.ground.clients;
                            let target = stage.balancer.arm.targets()[0];
                            (stage.balancer.arm, drive(clients, target, orders, began))
                        })
                    })
                    .collect();
                running
                    .into_iter()
                    .filter_map(|arm| arm.join().ok())
                    .collect()
            });
            for (arm, outcomes) in seen {
                let name = arm.name();
                results.add_metric(scenario, P50, name, round, outcomes.quantile(0.5));
                results.add_metric(scenario, P99, name, round, outcomes.quantile(0.99));
                let failed = f64::from(outcomes.refused + outcomes.lost);
                results.add_metric(scenario, REFUSED, name, round, failed);
            }
        }
    }
    Ok(())
}
