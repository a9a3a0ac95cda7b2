//! CPU time of everything that a connection needs: clients, balancer, members and the kernel.
//!
//! Clients, members and the balancer share one processor. All work of the kernel for their packets then runs in one of
//! them or in the kernel's threads of this processor, whose clocks are exact; other programs of the machine are not in
//! the sum. The same for a plain router is subtracted.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::process;
use std::time::Duration;

use evenkeel_bench::server::{cpu_time, pin_to};
use evenkeel_e2e::netns::Namespace;

use crate::ground::{Arm, Balancer, Ground, member_addresses};
use crate::results::{BULK, CONNECTION, EXCHANGE, QUERY, Results};
use crate::traffic::{self, Servers};
use crate::{Result, Run};

/// Balancers of the rows of TCP, the router first.
const TCP_ARMS: [Arm; 6] = [
    Arm::Router,
    Arm::Kernel,
    Arm::KernelNat,
    Arm::Proxy,
    Arm::Nft,
    Arm::Ipvs,
];
/// Balancers of the row of UDP, the router first.
const UDP_ARMS: [Arm; 6] = [
    Arm::Router,
    Arm::UdpKernel,
    Arm::UdpSingle,
    Arm::Udp,
    Arm::NginxUdp,
    Arm::EnvoyUdp,
];

/// Clocks of this process, a balancer and the kernel's threads of one processor.
pub(crate) struct Meter<'a> {
    balancer: &'a Balancer,
    cpu: usize,
    threads: HashMap<i32, Duration>,
    before: Duration,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(balancer: &'a Balancer, cpu: usize) -> Result<Self> {
        let threads = kernel_threads(cpu)?;
        let mut meter = Meter {
            balancer,
            cpu,
            threads,
            before: Duration::ZERO,
        };
        meter.before = meter.processes()?;
        Ok(meter)
    }

    fn processes(&self) -> Result<Duration> {
        let balancer = match &self.balancer.server {
            Some(server) => server.cpu_time()?,
            None => Duration::ZERO,
        };
        Ok(balancer + cpu_time(process::id() as i32)?)
    }

    /// Returns the CPU time since the start, in microseconds.
    pub(crate) fn stop(self) -> Result<f64> {
        let processes = self.processes()?.saturating_sub(self.before);
        let threads: Duration = kernel_threads(self.cpu)?
            .into_iter()
            .map(|(id, now)| now.saturating_sub(self.threads.get(&id).copied().unwrap_or_default()))
            .sum();
        Ok((processes + threads).as_secs_f64() * 1e6)
    }
}

/// Returns the CPU time of the threads that work for the kernel on a processor.
fn kernel_threads(cpu: usize) -> Result<HashMap<i32, Duration>> {
    let (interrupts, worker) = (format!("ksoftirqd/{cpu}"), format!("kworker/{cpu}:"));
    let mut found = HashMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(id) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.trim_end() == interrupts || name.starts_with(&worker) {
            // A worker may have ended meanwhile.
            if let Ok(time) = cpu_time(id) {
                found.insert(id, time);
            }
        }
    }
    Ok(found)
}

/// Starts balancers with servers behind each. Balancers that cannot be had are told.
fn start_all(run: &Run, arms: &[Arm], cpu: usize) -> Result<Vec<(Balancer, Servers)>> {
    let mut started = Vec::new();
    for &arm in arms {
        let start = || {
            let ground = Ground::new()?;
            let servers = Servers::start(&ground.pair.back)?;
            let balancer = Balancer::start(run, arm, ground, cpu, &member_addresses(), "")?;
            balancer.wait_until_ready()?;
            Ok::<_, Box<dyn std::error::Error>>((balancer, servers))
        };
        match start() {
            Ok(both) => started.push(both),
            Err(error) if arm == Arm::Router => return Err(error),
            Err(error) => println!("{} is skipped: {error}", arm.name()),
        }
    }
    Ok(started)
}

/// Lets each balancer take a turn, first one way round and then the other, and keeps the figures.
fn take_turns(
    all: &mut [(Balancer, Servers)],
    row: &'static str,
    round: usize,
    cpu: usize,
    count: usize,
    drive: impl Fn(&Balancer, usize) -> Result<()>,
    results: &mut Results,
) -> Result<()> {
    for (balancer, _) in &*all {
        // Caches and neighbours are warm.
        drive(balancer, count / 10)?;
        let meter = Meter::start(balancer, cpu)?;
        drive(balancer, count)?;
        let figure = meter.stop()? / count as f64;
        results.add(row, balancer.arm.name(), round, figure);
    }
    all.reverse();
    Ok(())
}

/// Traffic of clients in their namespace to addresses, as much as the number says.
type Traffic = fn(&Namespace, &[SocketAddr], usize) -> Result<()>;

/// Measures the rows of TCP.
///
/// # Errors
///
/// Returns an error if there are no namespaces, or a connection fails.
pub(crate) fn measure_tcp(run: &Run, results: &mut Results) -> Result<()> {
    let cpu = run.cpu;
    pin_to(cpu)?;
    let mut all = start_all(run, &TCP_ARMS, cpu)?;
    let rows: [(_, _, Traffic); 3] = [
        (CONNECTION, run.scale(4000, 1600), traffic::run_connections),
        (EXCHANGE, run.scale(32_000, 8000), traffic::run_exchanges),
        (BULK, run.scale(400, 100), traffic::run_bulk),
    ];
    for round in 0..run.rounds(15, 5) {
        for (row, count, drive) in rows {
            let drive = |balancer: &Balancer, count| {
                drive(&balancer.ground.clients, &balancer.arm.targets(), count)
            };
            take_turns(&mut all, row, round, cpu, count, drive, results)?;
        }
    }
    check_arm(&all, Arm::Kernel)
}

/// Checks that the kernel did forward in an arm, if the arm was measured.
fn check_arm(all: &[(Balancer, Servers)], arm: Arm) -> Result<()> {
    match all.iter().find(|(one, _)| one.arm == arm) {
        Some((kernel, _)) => check_forwarded(kernel),
        None => Ok(()),
    }
}

/// Checks that the kernel did forward: else the proxy would have been measured.
fn check_forwarded(kernel: &Balancer) -> Result<()> {
    let answer = kernel.ask_admin("/v1/forward")?;
    let Some((_, body)) = answer.split_once('{') else {
        return Err(format!("/v1/forward says {answer}").into());
    };
    for key in [
        "proxied_strategy",
        "proxied_full",
        "proxied_table",
        "proxied_rate",
        "proxied_ports",
        "proxied_route",
        "proxied_session",
        "dropped",
    ] {
        let count = body.split_once(&format!("\"{key}\":")).map(|(_, rest)| {
            let digits = rest.split(|sign: char| !sign.is_ascii_digit());
            digits.into_iter().next().unwrap_or_default().to_owned()
        });
        if count.as_deref().is_some_and(|count| count != "0") {
            let (name, count) = (kernel.arm.name(), count.unwrap_or_default());
            println!("{name}: {count} packets counted as {key}");
        }
    }
    Ok(())
}

/// Measures the row of UDP.
///
/// # Errors
///
/// Returns an error if there are no namespaces.
pub(crate) fn measure_udp(run: &Run, results: &mut Results) -> Result<()> {
    let cpu = run.cpu;
    pin_to(cpu)?;
    let mut all = start_all(run, &UDP_ARMS, cpu)?;
    let queries = run.scale(16_000, 4800);
    for round in 0..run.rounds(15, 5) {
        take_turns(
            &mut all,
            QUERY,
            round,
            cpu,
            queries,
            |balancer, count| {
                let clients = &balancer.ground.clients;
                let lost = traffic::run_queries(clients, &balancer.arm.targets(), count)?;
                if lost > 0 {
                    println!(
                        "{}: {lost} of {count} queries had no answer",
                        balancer.arm.name()
                    );
                }
                Ok(())
            },
            results,
        )?;
    }
    check_arm(&all, Arm::UdpKernel)?;
    check_arm(&all, Arm::UdpSingle)
}
