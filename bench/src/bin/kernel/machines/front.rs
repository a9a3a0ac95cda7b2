//! The front-end: its clients, its decisions, and how it reads the load.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_bench::report::quantile;
use evenkeel_core::group::{Group, GroupSettings, Outcome, Request};
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_core::strategy::{self, Values};
use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::query::{DEFAULT_PORT, Key};
use evenkeel_kernel::rdma::{ConnectionId, Reader};
use evenkeel_kernel::record::Base;
use evenkeel_load::stats::Latencies;
use evenkeel_net::Clock;

use super::{
    BACKENDS, CONTROL, HELPER, HELPER_PAGE, INTERVAL, KERNEL_PAGE, ROW, SECRET, addresses, set_up,
};
use crate::Result;
use crate::ask::Asker;
use crate::clock::{self, Series};
use crate::traffic::{Connection, popularity};

/// Longest time until the machines are ready, and until any other step is done.
const PATIENCE: Duration = Duration::from_secs(180);
/// Longest wait for a page.
const READ: Duration = Duration::from_millis(200);
/// Longest time of a query to a back-end without load, in milliseconds.
const MOST_MS: f64 = 20.0;
/// Two for each processor of a back-end, as `evenkeel-lab run rdma` has.
const CLIENTS: usize = 4;
const DOCUMENTS: usize = 1000;
const ALPHA: f64 = 0.9;
/// Interval over which the true load is compared, in nanoseconds.
const TICK: u64 = 10_000_000;

/// Way of reading a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A page over RDMA.
    Rdma,
    /// A query over UDP.
    Query,
}

/// Source and kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A process: CPU load.
    Ulm,
    /// The kernel: CPU load.
    Pklm,
    /// The kernel: CPU load and pending interrupts.
    Klm,
    /// The kernel: the product's composite load.
    Composite,
}

struct Arm {
    name: &'static str,
    strategy: &'static str,
    by: Option<(Way, Known)>,
}

const fn by_load(name: &'static str, way: Way, known: Known) -> Arm {
    Arm {
        name,
        strategy: "k_least_loaded",
        by: Some((way, known)),
    }
}

const ARMS: [Arm; 9] = [
    Arm {
        name: "round robin",
        strategy: "round_robin",
        by: None,
    },
    by_load("ULM by RDMA", Way::Rdma, Known::Ulm),
    by_load("pKLM by RDMA", Way::Rdma, Known::Pklm),
    by_load("KLM by RDMA", Way::Rdma, Known::Klm),
    by_load("composite by RDMA", Way::Rdma, Known::Composite),
    by_load("ULM by query", Way::Query, Known::Ulm),
    by_load("pKLM by query", Way::Query, Known::Pklm),
    by_load("KLM by query", Way::Query, Known::Klm),
    by_load("composite by query", Way::Query, Known::Composite),
];

/// Back-ends with other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// A single back-end, all the time: another one in each round.
    Steady,
    /// All back-ends, with work that comes and goes.
    Changing,
}

/// A back-end as it is seen from here.
struct Backend {
    back: Ipv4Addr,
    control: BufReader<TcpStream>,
    web: SocketAddr,
    location: Arc<Location>,
    kernel_page: Page,
    helper_page: Page,
    kernel: Asker,
    helper: Asker,
}

/// A page that is read over RDMA.
struct Page {
    id: ConnectionId,
    before: Option<Base>,
    last: Option<Loads>,
}

/// Result of a reading.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Time of its arrival, by the front-end's clock.
    at: u64,
    took: u64,
    /// Time at which the record was made, by the back-end's clock.
    made: u64,
    running: f64,
    loads: Loads,
}

pub(super) fn run(rounds: u64, length: Duration) -> Result<()> {
    for cable in 0..BACKENDS {
        set_up(cable, addresses(cable).0)?;
    }
    let mut reader = Reader::new()?;
    let backends = (0..BACKENDS).map(|cable| Backend::connect(cable, &mut reader));
    let mut backends = backends.collect::<Result<Vec<_>>>()?;
    let until = Instant::now() + PATIENCE;
    let ids = backends
        .iter()
        .flat_map(|backend| [backend.kernel_page.id, backend.helper_page.id]);
    let ids: Vec<ConnectionId> = ids.collect();
    while !ids.iter().all(|id| reader.is_connected(*id)) {
        poll(&mut reader, |_, _, _| {})?;
        if Instant::now() > until {
            return Err("there is no connection over RDMA".into());
        }
    }
    for backend in &mut backends {
        backend.kernel.wait_for_answer("the kernel")?;
        backend.helper.wait_for_answer("the helper")?;
    }
    println!("all back-ends are there");
    // A quick run shows no more than that everything runs.
    if rounds > 1 {
        for backend in &mut backends {
            backend.is_quick_to_answer()?;
        }
    }
    for round in 0..rounds {
        let backend = backends.first_mut().ok_or("no back-end")?;
        accuracy(backend, &mut reader, round, length)?;
    }
    println!("the accuracy is measured");
    for scene in [Scene::Steady, Scene::Changing] {
        for round in 0..rounds {
            let mut order: Vec<&Arm> = ARMS.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for arm in order {
                let played = play(&mut backends, &mut reader, arm, (scene, round), length);
                played.map_err(|error| format!("{}: {error}", arm.name))?;
            }
            println!("{scene:?}: {} of {rounds} rounds", round + 1);
        }
    }
    for backend in &mut backends {
        backend.control.get_mut().write_all(b"end\n")?;
    }
    Ok(())
}

impl Backend {
    fn connect(cable: u8, reader: &mut Reader) -> Result<Self> {
        let (front, back) = addresses(cable);
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match TcpStream::connect_timeout(&(back, CONTROL).into(), Duration::from_secs(2)) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > until => {
                    return Err(format!("the back-end {back}: {error}").into());
                }
                // The back-end is still booting.
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut control = BufReader::new(stream);
        let mut web = String::new();
        control.read_line(&mut web)?;
        let key = Key::new(1, SECRET);
        let mut page = |port| Page {
            id: reader.connect((back, port).into(), Instant::now()),
            before: None,
            last: None,
        };
        Ok(Backend {
            back,
            control,
            web: web.trim().parse()?,
            location: Arc::new(Location::new(back.to_string())),
            kernel_page: page(KERNEL_PAGE),
            helper_page: page(HELPER_PAGE),
            kernel: Asker::between_machines(front, back, DEFAULT_PORT, &key)?,
            helper: Asker::between_machines(front, back, HELPER, &key)?,
        })
    }

    /// Has it do something; gives what it says beside that.
    fn tell(&mut self, line: &str) -> Result<String> {
        self.control
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())?;
        let mut said = String::new();
        loop {
            let begin = said.len();
            if self.control.read_line(&mut said)? == 0 {
                return Err(format!("the back-end {} has gone", self.back).into());
            }
            if said.get(begin..) == Some("done\n") {
                said.truncate(begin);
                return Ok(said);
            }
        }
    }

    /// By how much its clock is before the one here now, by the quickest of some queries.
    fn offset(&mut self) -> Result<(u64, i64)> {
        let mut best: Option<(u64, u64, i64)> = None;
        for _ in 0..10 {
            let sent = clock::monotonic_nanos();
            let Some((took, _)) = self.kernel.query_loads() else {
                continue;
            };
            let made = self.kernel.last.map_or(0, |base| base.time_ns);
            let by = made as i64 - (sent + took / 2) as i64;
            if best.is_none_or(|(quickest, ..)| took < quickest) {
                best = Some((took, sent, by));
            }
        }
        let (_, at, by) = best.ok_or_else(|| format!("the kernel of {} is silent", self.back))?;
        Ok((at, by))
    }

    /// Refuses a machine that is too busy to emulate this: a query to an idle back-end takes too long there.
    fn is_quick_to_answer(&mut self) -> Result<()> {
        let took = (0..21).map(|_| {
            self.kernel
                .query_loads()
                .map_or(PATIENCE.as_nanos() as f64, |(took, _)| took as f64)
        });
        let middle = quantile(took, 0.5) / 1e6;
        if middle <= MOST_MS {
            return Ok(());
        }
        Err(format!(
            "this machine is too busy: half of the queries to a back-end without load take more than {middle:.0} ms (at \
             most {MOST_MS} ms): stop other programs, or take a machine with more processors"
        )
        .into())
    }

    fn page(&mut self, known: Known) -> &mut Page {
        match known {
            Known::Ulm => &mut self.helper_page,
            _ => &mut self.kernel_page,
        }
    }

    fn ask(&mut self, known: Known) -> Option<Reading> {
        let asker = match known {
            Known::Ulm => &mut self.helper,
            _ => &mut self.kernel,
        };
        let (took, loads) = asker.query_loads()?;
        let base = asker.last?;
        Some(Reading {
            at: clock::monotonic_nanos(),
            took,
            made: base.time_ns,
            running: f64::from(base.totals.running),
            loads,
        })
    }
}

impl Page {
    /// The loads between the last two times that the page was written, as far as they were read.
    fn take(&mut self, base: &Base, since: impl FnOnce(Option<&Before>) -> Loads) -> Loads {
        match (self.before, self.last) {
            (Some(before), Some(last)) if before.time_ns == base.time_ns => last,
            (before, _) => {
                let loads = since(before.as_ref().map(Before::new).as_ref());
                (self.before, self.last) = (Some(*base), Some(loads));
                loads
            }
        }
    }
}

/// The moment of a back-end's clock, by what it was before the one here at two moments.
fn there(at: u64, [(first, from), (last, to)]: [(u64, i64); 2]) -> u64 {
    let share = (at as f64 - first as f64) / (last.saturating_sub(first).max(1)) as f64;
    let by = from as f64 + (to - from) as f64 * share;
    at.saturating_add_signed(by as i64)
}

/// Waits for something to be read, but not for long, and hands it out with the time that it took.
fn poll(
    reader: &mut Reader,
    mut each: impl FnMut(ConnectionId, u64, &evenkeel_kernel::record::Record<'_>),
) -> Result<()> {
    let mut wait = libc::pollfd {
        fd: reader.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, which is open, and is there as long as the call.
    unsafe { libc::poll(&mut wait, 1, 10) };
    // A connection that is lost is made again, and its reading is missing.
    reader.poll(Instant::now(), |id, answer| {
        if let Ok(answer) = answer {
            each(id, answer.round_trip.as_nanos() as u64, &answer.record);
        }
    })?;
    Ok(())
}

/// Reads pages, each of its own back-end or not.
fn read(reader: &mut Reader, pages: &mut [&mut Page]) -> Result<Vec<Option<Reading>>> {
    let until = Instant::now() + READ;
    let mut readings: Vec<Option<Reading>> = vec![None; pages.len()];
    let mut wanted: HashMap<ConnectionId, usize> = HashMap::new();
    for (index, page) in pages.iter().enumerate() {
        if reader.begin_read(page.id, Instant::now()) {
            wanted.insert(page.id, index);
        }
    }
    while !wanted.is_empty() && Instant::now() < until {
        poll(reader, |id, took, record| {
            let Some(index) = wanted.remove(&id) else {
                return;
            };
            let loads = pages[index].take(&record.base, |before| Loads::since_last(before, record));
            readings[index] = Some(Reading {
                at: clock::monotonic_nanos(),
                took,
                made: record.base.time_ns,
                running: f64::from(record.base.totals.running),
                loads,
            });
        })?;
    }
    Ok(readings)
}

/// The load by which an arm decides.
fn value(known: Known, loads: &Loads) -> Option<(LoadId, f64)> {
    match known {
        Known::Ulm | Known::Pklm => Some((LoadId::CPU, loads.cpu?)),
        Known::Klm => Some((
            LoadId::CPU,
            loads.cpu? + loads.pending_work.unwrap_or_default(),
        )),
        Known::Composite => Some((LoadId::COMPOSITE, loads.composite?)),
    }
}

/// Prints a result.
fn row(scene: &str, arm: &str, round: u64, figure: &str, value: f64) {
    println!("{ROW}{scene},{arm},{round},{figure},{value:.5}");
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .into_iter()
        .fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// Measures how near the readings are to the load of a back-end, on which a process runs and sleeps in turn.
fn accuracy(
    backend: &mut Backend,
    reader: &mut Reader,
    round: u64,
    length: Duration,
) -> Result<()> {
    backend.tell("load off")?;
    backend.tell("helper on")?;
    let first = backend.offset()?;
    backend.tell(&format!("sample {round}"))?;
    let arms = [
        ("ULM by RDMA", Known::Ulm),
        ("KLM by RDMA", Known::Klm),
        ("ULM by query", Known::Ulm),
        ("KLM by query", Known::Klm),
    ];
    let mut all: [Vec<Reading>; 4] = Default::default();
    let mut work = || -> Result<()> {
        clock::be_first(50)?;
        let begin = clock::monotonic_nanos() + 300_000_000;
        let mut due = begin;
        while due < begin + length.as_nanos() as u64 {
            clock::sleep_until(due);
            // Readings one after the other: none waits for the answer of another.
            for ((_, known), readings) in arms[..2].iter().zip(&mut all) {
                let page = backend.page(*known);
                readings.extend(read(reader, &mut [page])?.into_iter().flatten());
            }
            for ((_, known), readings) in arms[2..].iter().zip(&mut all[2..]) {
                readings.extend(backend.ask(*known));
            }
            due = next(due);
        }
        Ok(())
    };
    // A thread of its own, as what it starts would come first, too.
    let done = std::thread::scope(|scope| scope.spawn(|| work().map_err(told)).join());
    done.map_err(|_| "the monitor has panicked")??;
    let samples = backend.tell("tell")?;
    let offsets = [first, backend.offset()?];
    let mut truth = Series::default();
    for line in samples.lines() {
        let (at, value) = line.split_once(' ').ok_or("no sample")?;
        truth.push(at.parse()?, value.parse()?);
    }
    let errors = |readings: &[Reading], value: fn(&Reading) -> Option<f64>| -> Vec<f64> {
        let error = |reading: &Reading| {
            let at = there(reading.at, offsets);
            let actual = truth.growth_rate(at - TICK, at)?.min(1.0);
            Some((value(reading)? - actual).abs())
        };
        // The first one has no reading before it.
        readings.iter().skip(1).filter_map(error).collect()
    };
    for ((name, known), readings) in arms.iter().zip(&all) {
        let error = mean(errors(readings, |of| of.loads.cpu));
        row("accuracy", name, round, "error", error);
        if *known == Known::Klm {
            let name = name.replace("KLM", "tasks of the moment");
            let error = mean(errors(readings, |of| Some(of.running.min(1.0))));
            row("accuracy", &name, round, "error", error);
        }
        row("accuracy", name, round, "readings", readings.len() as f64);
    }
    Ok(())
}

/// Returns the time of the next reading; times that have passed are left out.
fn next(due: u64) -> u64 {
    let interval = INTERVAL.as_nanos() as u64;
    due + (clock::monotonic_nanos().saturating_sub(due) / interval + 1) * interval
}

/// Results of the clients.
#[derive(Default)]
struct Seen {
    /// Requests to each back-end.
    requests: [u64; BACKENDS as usize],
    failures: u64,
    latency: Latencies,
}

/// A turn of an arm. The same round has the same requests for all arms.
fn play(
    backends: &mut [Backend],
    reader: &mut Reader,
    arm: &Arm,
    (scene, round): (Scene, u64),
    length: Duration,
) -> Result<()> {
    let loaded = (round % u64::from(BACKENDS)) as usize;
    for (index, backend) in backends.iter_mut().enumerate() {
        let needs = matches!(arm.by, Some((_, Known::Ulm)));
        backend.tell(if needs { "helper on" } else { "helper off" })?;
        match scene {
            Scene::Steady if index == loaded => backend.tell("load on")?,
            Scene::Steady => backend.tell("load off")?,
            Scene::Changing => {
                backend.tell("load off")?;
                backend.tell(&format!("change {}", 100 * round + index as u64))?
            }
        };
    }
    let group = group(arm, backends)?;
    let webs: Vec<SocketAddr> = backends.iter().map(|backend| backend.web).collect();
    let firsts = backends.iter_mut().map(Backend::offset);
    let firsts = firsts.collect::<Result<Vec<_>>>()?;
    let clock = Clock::start();
    let begin = clock::monotonic_nanos() + length.as_nanos() as u64 / 8 + 200_000_000;
    let end = begin + length.as_nanos() as u64;
    let stop = AtomicBool::new(false);
    let popular = popularity(DOCUMENTS, ALPHA);
    let mut seen = Seen::default();
    let mut heard: Vec<Heard> = backends.iter().map(|_| Heard::default()).collect();
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|client| {
                let (group, webs, popular) = (&group, &webs, &popular);
                let seed = 1000 * round + client;
                let work = move || ask(group, webs, popular, (seed, clock), (begin, end));
                scope.spawn(move || work().map_err(told))
            })
            .collect();
        let (backends, heard, how) = (&mut *backends, &mut heard, (begin, clock, &stop));
        let watching = arm
            .by
            .map(|by| scope.spawn(move || watch(backends, reader, by, heard, how).map_err(told)));
        let mut failed = None;
        for client in clients {
            match client.join().map_err(|_| "a client has panicked")? {
                Ok(one) => seen.add(&one),
                Err(error) => failed = Some(error),
            }
        }
        stop.store(true, Ordering::Relaxed);
        if let Some(watching) = watching {
            watching.join().map_err(|_| "the monitor has panicked")??;
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    })?;
    let mut ages = Vec::new();
    for ((backend, first), heard) in backends.iter_mut().zip(firsts).zip(&heard) {
        let offsets = [first, backend.offset()?];
        let age = |of: &Reading| there(of.at, offsets).saturating_sub(of.made) as f64 / 1e6;
        ages.extend(heard.readings.iter().map(age));
    }
    let scene = match scene {
        Scene::Steady => "steady",
        Scene::Changing => "changing",
    };
    let put = |figure: &str, value: f64| row(scene, arm.name, round, figure, value);
    let all: u64 = seen.requests.iter().sum();
    // On a machine that is very busy it may be that nothing was answered: that is a result, too.
    put("requests_per_s", all as f64 / length.as_secs_f64());
    put("p50_ms", seen.latency.quantile(0.5).as_secs_f64() * 1e3);
    put("p99_ms", seen.latency.quantile(0.99).as_secs_f64() * 1e3);
    put("failures", seen.failures as f64);
    if scene == "steady" {
        let there = seen.requests.get(loaded).copied().unwrap_or_default();
        put("to_loaded", there as f64 / all.max(1) as f64);
    }
    if arm.by.is_some() {
        let readings: Vec<&Reading> = heard.iter().flat_map(|heard| &heard.readings).collect();
        let took = || readings.iter().map(|of| of.took as f64 / 1e6);
        let pending = || {
            let work = |of: &&Reading| of.loads.pending_work.unwrap_or_default();
            readings.iter().map(work)
        };
        put("read_ms", mean(took()));
        put("read_p99_ms", quantile(took(), 0.99));
        put("age_ms", mean(ages.iter().copied()));
        put("age_p99_ms", quantile(ages, 0.99));
        put("pending", mean(pending()));
        let seen = pending().map(|work| f64::from(work > 0.0));
        put("pending_share", mean(seen));
        put("readings", readings.len() as f64);
        let missing: u64 = heard.iter().map(|heard| heard.missing).sum();
        put("missing", missing as f64);
    }
    Ok(())
}

/// Readings of a back-end.
#[derive(Default)]
struct Heard {
    readings: Vec<Reading>,
    /// Number of readings that did not come, or not in time.
    missing: u64,
}

impl Heard {
    /// Says it to the location; counts it if that `counts`.
    fn note(
        &mut self,
        location: &Location,
        known: Known,
        reading: Option<Reading>,
        (counts, clock): (bool, Clock),
    ) -> Result<()> {
        let Some(reading) = reading else {
            self.missing += u64::from(counts);
            return Ok(());
        };
        let load = value(known, &reading.loads);
        let load = load.and_then(|(id, value)| Some((id, LoadValue::new(value).ok()?)));
        location.observe_loads(load, clock.now())?;
        if counts {
            self.readings.push(reading);
        }
        Ok(())
    }
}

/// Reads the loads of all back-ends until `stop` is set, and counts the readings from `begin` on. No back-end waits for
/// the answer of another one.
fn watch(
    backends: &mut [Backend],
    reader: &mut Reader,
    (way, known): (Way, Known),
    heard: &mut [Heard],
    (begin, clock, stop): (u64, Clock, &AtomicBool),
) -> Result<()> {
    let start = clock::monotonic_nanos();
    match way {
        Way::Rdma => {
            clock::be_first(50)?;
            let mut due = start;
            while !stop.load(Ordering::Relaxed) {
                clock::sleep_until(due);
                let mut pages: Vec<_> = backends.iter_mut().map(|one| one.page(known)).collect();
                let readings = read(reader, &mut pages)?;
                let all = backends.iter().zip(&mut *heard).zip(readings);
                for ((backend, heard), reading) in all {
                    let how = (due >= begin, clock);
                    heard.note(&backend.location, known, reading, how)?;
                }
                due = next(due);
            }
            Ok(())
        }
        Way::Query => {
            let ask = |backend: &mut Backend, heard: &mut Heard| -> Result<()> {
                clock::be_first(50)?;
                let mut due = start;
                while !stop.load(Ordering::Relaxed) {
                    clock::sleep_until(due);
                    let reading = backend.ask(known);
                    let how = (due >= begin, clock);
                    heard.note(&backend.location, known, reading, how)?;
                    due = next(due);
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let ask = &ask;
                let asking: Vec<_> = (backends.iter_mut().zip(heard))
                    .map(|(one, heard)| scope.spawn(move || ask(one, heard).map_err(told)))
                    .collect();
                for one in asking {
                    one.join().map_err(|_| "a monitor has panicked")??;
                }
                Ok(())
            })
        }
    }
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        for (all, one) in self.requests.iter_mut().zip(other.requests) {
            *all += one;
        }
        self.failures += other.failures;
        self.latency.add(&other.latency);
    }
}

/// The back-ends as the product's group.
fn group(arm: &Arm, backends: &mut [Backend]) -> Result<Group> {
    let kind = strategy::find(arm.strategy).ok_or("no such strategy")?;
    let values = Values::defaults(kind);
    let mut members = Vec::new();
    for (index, backend) in backends.iter_mut().enumerate() {
        // Nothing is known of it from the turn before.
        backend.location = Arc::new(Location::new(backend.back.to_string()));
        members.push(Member {
            id: MemberId(index as u64),
            name: backend.back.to_string().into(),
            given_name: None,
            address: backend.web.into(),
            host: backend.back.to_string().into(),
            max_connections: None,
            location: Arc::clone(&backend.location),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        });
    }
    let load_id = match arm.by {
        Some((_, Known::Composite)) => LoadId::COMPOSITE,
        _ => LoadId::CPU,
    };
    let settings = GroupSettings {
        load_id,
        slow_start: Duration::ZERO,
        ..GroupSettings::default()
    };
    Ok(Group::new(
        "site",
        settings,
        &values,
        members,
        Arc::default(),
    ))
}

/// A client: sends one request after the other until `end`, and counts the answers from `begin` on.
fn ask(
    group: &Group,
    webs: &[SocketAddr],
    popular: &[f64],
    (seed, clock): (u64, Clock),
    (begin, end): (u64, u64),
) -> Result<Seen> {
    let mut rng = fastrand::Rng::with_seed(seed);
    // Decisions take as many numbers as they like, and requests stay the same.
    let mut chance = fastrand::Rng::with_seed(!seed);
    let connections = webs.iter().map(|web| Connection::new(*web));
    let mut connections = connections.collect::<std::io::Result<Vec<_>>>()?;
    let mut seen = Seen::default();
    loop {
        let asked = clock::monotonic_nanos();
        if asked >= end {
            return Ok(seen);
        }
        let luck = rng.f64();
        let document = popular.partition_point(|&below| below < luck);
        let ticket = group.pick(&Request::at_time(clock.now()), &mut chance)?;
        let index = ticket.member_index();
        let connection = connections.get_mut(index).ok_or("no such back-end")?;
        let is_good = connection.get(0, document)?;
        ticket.finish(Outcome::Success, clock.now());
        let now = clock::monotonic_nanos();
        // Requests that end after the end would make slow arms seem faster.
        if (begin..end).contains(&now) {
            if let Some(requests) = seen.requests.get_mut(index) {
                *requests += 1;
            }
            seen.failures += u64::from(!is_good);
            seen.latency.record(Duration::from_nanos(now - asked));
        }
    }
}

fn told(error: Box<dyn std::error::Error>) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_here_are_moments_there() {
        // 10 ahead at 1,000, 20 at 2,000.
        let offsets = [(1000, 10), (2000, 20)];
        assert_eq!(there(1500, offsets), 1515);
        assert_eq!(there(1000, [(1000, -10), (2000, -10)]), 990);
    }

    #[test]
    fn a_value_is_at_its_share_of_the_way() {
        let values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(quantile(values, 0.5), 3.0);
        assert_eq!(quantile(values, 1.0), 5.0);
        assert!(quantile([], 0.5).is_nan());
        assert_eq!(mean([1.0, 2.0]), 1.5);
    }

    #[test]
    fn arms_differ_in_what_they_count() {
        let loads = Loads {
            cpu: Some(0.5),
            pending_work: Some(0.25),
            composite: Some(2.0),
            ..Loads::default()
        };
        let of = |known| value(known, &loads).map(|(_, value)| value);
        assert_eq!(of(Known::Ulm), Some(0.5));
        assert_eq!(of(Known::Pklm), Some(0.5));
        assert_eq!(of(Known::Klm), Some(0.75));
        assert_eq!(of(Known::Composite), Some(2.0));
        assert_eq!(value(Known::Klm, &Loads::default()), None);
    }
}
