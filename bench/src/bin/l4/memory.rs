//! Memory of open connections, and the time of a decision.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use evenkeel_bench::server::{pin_to, raise_file_limit};

use crate::ground::{Arm, Balancer, Ground, PORT, member_addresses};
use crate::results::{BYTES, CHOICE, DECISION, ENTRIES, MEMORY, NANOSECONDS, Results};
use crate::traffic::{run_attempts, wake_accepting, widen_backlog};
use crate::{Result, Run};

/// Connections before the first look at the memory: what a program allocates once is not counted.
const BASE: usize = 64;
/// Number of SYNs in a turn.
const SYNS: usize = 1600;
/// Type of a hash map in the kernel.
const HASH_MAP: u64 = 1;
/// Switch of the kernel that lets it keep the times of BPF programs.
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Servers that keep all connections; dropping it ends them.
struct Keeper {
    listener: Arc<TcpListener>,
    kept: Arc<Mutex<Vec<TcpStream>>>,
}

impl Keeper {
    fn start(ground: &Ground) -> Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT));
        let listener = Arc::new(ground.pair.back.run_inside(bind)?);
        widen_backlog(&listener);
        let kept = Arc::<Mutex<Vec<TcpStream>>>::default();
        let (accepting, keeping) = (Arc::clone(&listener), Arc::clone(&kept));
        thread::spawn(move || {
            while let Ok((mut stream, _)) = accepting.accept() {
                let mut byte = [0];
                if stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {
                    let mut kept = keeping.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.push(stream);
                }
            }
        });
        Ok(Keeper { listener, kept })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        wake_accepting(&self.listener);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clear();
    }
}

/// Opens connections that answered once.
fn open(balancer: &Balancer, count: usize) -> Result<Vec<TcpStream>> {
    let target = balancer.arm.targets()[0];
    let open = balancer.ground.clients.run_inside(|| {
        let one = |_| {
            let mut stream = TcpStream::connect(target)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(&[1])?;
            stream.read_exact(&mut [0])?;
            Ok(stream)
        };
        (0..count).map(one).collect::<std::io::Result<Vec<_>>>()
    })?;
    Ok(open)
}

/// Measures the memory of open connections: resident memory of the balancer's process, and the tables of its programs.
///
/// # Errors
///
/// Returns an error if there are no namespaces.
pub(crate) fn measure_memory(run: &Run, results: &mut Results) -> Result<()> {
    // Clients and servers are in this process: two files for a connection, and some for all else.
    let room = raise_file_limit()?.saturating_sub(1024) / 2;
    let count = run.scale(15_000, 5000).min(usize::try_from(room)?);
    for arm in [Arm::Kernel, Arm::Proxy] {
        let ground = Ground::new()?;
        let _keeper = Keeper::start(&ground)?;
        let balancer = Balancer::start(run, arm, ground, run.cpu, &member_addresses(), "")?;
        if let Err(error) = balancer.wait_until_ready() {
            println!("{} is skipped: {error}", arm.name());
            continue;
        }
        let _base = open(&balancer, BASE)?;
        let before = settle(&balancer)?;
        let _open = open(&balancer, count)?;
        let after = settle(&balancer)?;
        let bytes = after.saturating_sub(before) as f64 / count as f64;
        results.add_metric(MEMORY, BYTES, arm.name(), 0, bytes);
        let entries = read_maps(&balancer)?
            .into_iter()
            .filter(|map| map.kind == HASH_MAP)
            .map(|map| map.max_entries)
            .max();
        if let Some(entries) = entries {
            results.add_metric(MEMORY, ENTRIES, arm.name(), 0, entries as f64);
        }
    }
    Ok(())
}

/// Memory once it has stopped changing, or after three seconds.
fn settle(balancer: &Balancer) -> Result<u64> {
    let read = || -> Result<u64> {
        let server = balancer.server.as_ref().ok_or("no process")?;
        let maps: u64 = read_maps(balancer)?.iter().map(|map| map.memory).sum();
        Ok(maps + server.resident_bytes()?)
    };
    let mut last = read()?;
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(300));
        let now = read()?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}

/// A map of BPF programs.
struct Map {
    kind: u64,
    max_entries: u64,
    memory: u64,
}

/// Fields of the descriptors of a process that have this one, each map or program once.
fn read_descriptors(balancer: &Balancer, key: &str) -> Result<Vec<HashMap<String, u64>>> {
    let server = balancer.server.as_ref().ok_or("no process")?;
    let mut found = HashMap::new();
    for entry in fs::read_dir(format!("/proc/{}/fdinfo", server.id()))?.flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let fields: HashMap<String, u64> = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter_map(|(key, value)| Some((key.to_owned(), value.trim().parse().ok()?)))
            .collect();
        if let Some(&id) = fields.get(key) {
            found.insert(id, fields);
        }
    }
    Ok(found.into_values().collect())
}

fn read_maps(balancer: &Balancer) -> Result<Vec<Map>> {
    let maps = read_descriptors(balancer, "map_id")?;
    let field = |map: &HashMap<String, u64>, key: &str| map.get(key).copied().unwrap_or_default();
    let maps = maps.iter().map(|map| Map {
        kind: field(map, "map_type"),
        max_entries: field(map, "max_entries"),
        memory: field(map, "memlock"),
    });
    Ok(maps.collect())
}

/// Number of runs of the balancer's programs, and their time in nanoseconds.
fn read_runs(balancer: &Balancer) -> Result<(u64, u64)> {
    let programs = read_descriptors(balancer, "prog_id")?;
    let sum = |key: &str| programs.iter().filter_map(|program| program.get(key)).sum();
    Ok((sum("run_cnt"), sum("run_time_ns")))
}

/// Measures the program's time for a SYN, of which the decision is a part, among one member and among 64.
///
/// # Errors
///
/// Returns an error if there are no namespaces.
pub(crate) fn measure_decision(run: &Run, results: &mut Results) -> Result<()> {
    pin_to(run.cpu)?;
    let before = fs::read_to_string(STATISTICS)?;
    fs::write(STATISTICS, "1")?;
    let measured = measure_decisions(run, results);
    fs::write(STATISTICS, before)?;
    measured
}

fn measure_decisions(run: &Run, results: &mut Results) -> Result<()> {
    for round in 0..run.rounds(9, 3) {
        let few = time_syn(run, 1)?;
        let many = time_syn(run, 64)?;
        results.add_metric(DECISION, NANOSECONDS, "1 member", round, few);
        results.add_metric(DECISION, NANOSECONDS, "64 members", round, many);
        results.add_metric(DECISION, NANOSECONDS, CHOICE, round, many - few);
    }
    Ok(())
}

/// Returns the program's time for a SYN to a rule with so many members, in nanoseconds.
fn time_syn(run: &Run, count: u8) -> Result<f64> {
    let ground = Ground::new()?;
    // Nobody answers there, so that the program sees SYNs alone.
    let members: Vec<SocketAddr> = (1..=count)
        .map(|last| SocketAddr::from((Ipv4Addr::new(10, 79, 0, last), PORT)))
        .collect();
    let more = "health_check = false";
    let balancer = Balancer::start(run, Arm::Kernel, ground, run.cpu, &members, more)?;
    balancer.wait_until_forwarding()?;
    let (clients, target) = (&balancer.ground.clients, balancer.arm.targets()[0]);
    run_attempts(clients, target, SYNS / 10);
    let (runs, time) = read_runs(&balancer)?;
    run_attempts(clients, target, SYNS);
    let (runs_after, time_after) = read_runs(&balancer)?;
    let runs = runs_after.saturating_sub(runs);
    if runs < SYNS as u64 {
        return Err("the kernel does not tell the times of programs".into());
    }
    Ok(time_after.saturating_sub(time) as f64 / runs as f64)
}
