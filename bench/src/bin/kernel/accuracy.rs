//! Accuracy of the CPU load that each way of monitoring reports.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_core::group::{Group, GroupSettings};
use evenkeel_core::load::{LoadId, Location};
use evenkeel_core::member::{Member, MemberId, Slot, Weight};
use evenkeel_kernel::query::DEFAULT_PORT;
use evenkeel_net::Clock;
use evenkeel_sim::svg::{Line, Plot};
use evenkeel_wire::reporting::directory::Directory;
use evenkeel_wire::reporting::keys::Keys;
use evenkeel_wire::reporting::server::{Broker, Peer, Settings};

use super::ask::{Asker, Page};
use super::clock::{self, CpuClocks, Series};
use super::ground::{self, Cgroup, Folder, Link, Namespace, Process, Responder, Scheduling};
use super::table::{Table, Verdict};
use super::{Result, Run};

/// Interval of the truth's samples and of the front-end's decisions.
const TICK: Duration = Duration::from_millis(10);
/// Priority of helpers with a real-time class.
const FIFO: i32 = 50;

/// Source of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// A process for each CPU spins and sleeps in turn.
    Alone,
    /// Sixteen processes spin and sleep, all at the same times.
    Bursts,
    /// The load of a cgroup is measured; 16 processes outside of it never rest.
    Beside,
}

impl Scene {
    const ALL: [Scene; 3] = [Scene::Alone, Scene::Bursts, Scene::Beside];

    fn name(self) -> &'static str {
        match self {
            Scene::Alone => "alone",
            Scene::Bursts => "bursts",
            Scene::Beside => "beside",
        }
    }
}

/// A reader of load.
enum Reader {
    Query(Box<Asker>),
    Page(Box<Page>),
    Agent(Arc<Location>, Clock),
}

impl Reader {
    fn cpu(&mut self) -> Option<f64> {
        match self {
            Reader::Query(asker) => asker.query_loads()?.1.cpu,
            Reader::Page(page) => page.read()?.cpu,
            Reader::Agent(location, clock) => {
                let load = location.last_load(LoadId::CPU, clock.now())?;
                Some(f64::from(load.value.get()))
            }
        }
    }
}

/// A way of monitoring.
struct Arm {
    name: &'static str,
    /// Ticks between two readings.
    every: u64,
    reader: Reader,
    readings: Vec<Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    tick: u64,
    /// Time at which the reading was there.
    at: u64,
    cpu: f64,
}

/// The paper's ULM, the paper's KLM, and the same with the same window.
const ULM: &str = "ULM every 50 ms";
const KLM: &str = "KLM";
const ULM_50: &str = "ULM every 50 ms, read every 50 ms";
const KLM_50: &str = "KLM, asked every 50 ms";

/// Mean absolute error in each scene.
pub(crate) fn measure(run: &Run) -> Result<Vec<Verdict>> {
    let mut csv =
        String::from("scene,arm,mean_absolute_error,p95_error,error_when_read,readings\n");
    let mut heads = vec!["monitor"];
    heads.extend(Scene::ALL.map(Scene::name));
    let mut table = Table::new(&heads);
    let mut errors: Vec<(&str, Scene, f64)> = Vec::new();
    for scene in Scene::ALL {
        for (name, mean, p95, when_read, readings) in play(run, scene)? {
            writeln!(
                csv,
                "{},\"{name}\",{mean:.4},{p95:.4},{when_read:.4},{readings}",
                scene.name()
            )?;
            println!("{:7} {name:36} {mean:.4}", scene.name());
            errors.push((name, scene, mean));
        }
    }
    let error = |name: &str, scene: Scene| {
        let mut known = errors.iter();
        known
            .find(|(arm, at, _)| *arm == name && *at == scene)
            .map(|(_, _, mean)| *mean)
    };
    let mut names: Vec<&str> = Vec::new();
    for (name, ..) in &errors {
        if !names.contains(name) {
            names.push(name);
        }
    }
    for name in names {
        let cell = |scene| error(name, scene).map_or("-".to_owned(), |mean| format!("{mean:.3}"));
        let cells = Scene::ALL.map(cell);
        table.add_row([name.to_owned()].into_iter().chain(cells));
    }
    run.write("accuracy.csv", &csv)?;
    run.write("accuracy.md", table.text())?;
    println!("{}", table.text());

    let mut verdicts = Vec::new();
    for scene in Scene::ALL {
        let name = scene.name();
        let what = format!("error of CPU load at most a third of ULM's at 50 ms ({name})");
        verdicts.push(match (error(KLM, scene), error(ULM, scene)) {
            (Some(klm), Some(ulm)) => {
                let seen = format!("{klm:.3} to {ulm:.3}: 1/{:.1}", ulm / klm);
                Verdict::new("accuracy", &what, seen, klm * 3.0 <= ulm)
            }
            _ => Verdict::not_measured("accuracy", &what, "no responder in the kernel".into()),
        });
        if let (Some(klm), Some(ulm)) = (error(KLM_50, scene), error(ULM_50, scene)) {
            println!("{name}, both read every 50 ms: {klm:.3} to {ulm:.3}");
        }
    }
    Ok(verdicts)
}

/// A broker in this process, which keeps what an agent reports.
struct Desk {
    location: Arc<Location>,
    clock: Clock,
    _agent: Process,
    id: u32,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Desk {
    fn start(run: &Run, folder: &Folder) -> Result<Self> {
        const KEYS: &str = "1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
        let member = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
        let location = Arc::new(Location::new("127.0.0.1"));
        let members = vec![Member {
            id: MemberId(0),
            name: "one".into(),
            given_name: None,
            address: member.into(),
            host: "192.0.2.1".into(),
            max_connections: None,
            location: Arc::clone(&location),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        }];
        let kind = evenkeel_core::strategy::find("random").ok_or("no strategy")?;
        let values = evenkeel_core::strategy::Values::defaults(kind);
        let settings = GroupSettings::default();
        let group = Group::new("www", settings, &values, members, Arc::default());
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let address = socket.local_addr()?;
        let settings = Settings {
            interval: Duration::from_millis(100),
            lease: 10,
            keepalive: Duration::from_secs(1),
            forget: Duration::from_secs(60),
            max_agents: 10,
        };
        let mut rng = fastrand::Rng::new();
        let secret = std::array::from_fn(|_| rng.u8(..));
        let keys = Keys::parse(KEYS).map_err(|error| error.to_string())?;
        let broker = Broker::new(settings, keys, &secret, rng);
        let mut broker = broker.map_err(|error| error.to_string())?;
        broker.set_directory(Arc::new(Directory::new([&group])));

        let key = folder.join("broker.key");
        fs::write(&key, KEYS)?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let config = folder.join("agent.toml");
        fs::write(
            &config,
            format!(
                "interval = \"100ms\"\nstate_file = false\narm_dir = {:?}\n\
                 [broker.bench]\naddress = \"{address}\"\nkey_file = {key:?}\n\
                 [host]\nlocation = \"127.0.0.1\"\n\
                 [server.www]\ngroup = \"www\"\naddress = \"{member}\"\n",
                folder.join("pages")
            ),
        )?;
        fs::create_dir(folder.join("pages"))?;
        let mut command = Command::new(&run.evenkeel);
        command.arg("agent").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.env_remove("RUST_LOG").stderr(Stdio::null());
        let agent = Process::start(command, Scheduling::default())?;

        let clock = Clock::start();
        let stop = Arc::new(AtomicBool::new(false));
        let mut desk = Desk {
            location,
            clock,
            id: agent.id(),
            _agent: agent,
            stop: Arc::clone(&stop),
            thread: None,
        };
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            let mut out = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let peer = Peer {
                        socket: 0,
                        address: from,
                    };
                    let (_, answer) = broker.receive_datagram(peer, &buffer[..length], clock.now());
                    if let Some(answer) = answer {
                        // A datagram that is lost is sent again.
                        let _ = socket.send_to(&answer, from);
                    }
                }
                broker.poll(clock.now(), &mut out);
                for (peer, datagram) in out.drain(..) {
                    let _ = socket.send_to(&datagram, peer.address);
                }
            }
        });
        desk.thread = Some(thread);
        Ok(desk)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Outcome of an arm: its name, the mean and 95th percentile of its error at each tick, the mean error at the moments of
/// its readings, and the number of readings.
type Error = (&'static str, f64, f64, f64, usize);

fn play(run: &Run, scene: Scene) -> Result<Vec<Error>> {
    let folder = Folder::new()?;
    let (file, key) = folder.make_key()?;
    let front = Namespace::new()?;
    let (link, plain) = (Link::new(&front)?, Link::new(&front)?);
    // The helpers are among those that are busy.
    let crowd = Cgroup::new()?;
    let alone = Cgroup::new()?;
    let watched = Cgroup::new()?;
    watched.set_weight(8)?;
    let (told, target): (&[&Cgroup], u16) = match scene {
        Scene::Beside => (&[&watched], 1),
        _ => (&[], 0),
    };
    let cgroup = (scene == Scene::Beside).then_some(&watched);
    let mut helpers = Vec::new();
    let mut arms: Vec<Arm> = Vec::new();
    let mut arm = |name, every, reader| {
        arms.push(Arm {
            name,
            every,
            reader,
            readings: Vec::new(),
        });
    };

    let _responder = match Responder::attach(&run.evenkeel, &link, &file, "native", told) {
        Ok(responder) => {
            for (name, every) in [(KLM, 1), (KLM_50, 5)] {
                let mut asker = Asker::new(&link, DEFAULT_PORT, &key, target)?;
                asker.wait_for_answer("the kernel")?;
                arm(name, every, Reader::Query(Box::new(asker)));
            }
            Some(responder)
        }
        Err(error) => {
            println!("KLM is missing: {error}");
            None
        }
    };
    let among = Scheduling {
        cgroup: Some(&crowd),
        ..Scheduling::default()
    };
    let own = Scheduling {
        cgroup: Some(&alone),
        ..Scheduling::default()
    };
    let first = Scheduling::default();
    let pages: [(&str, u64, u64, Scheduling<'_>, bool); 6] = [
        (ULM, 50, 1, among, false),
        (ULM_50, 50, 5, among, false),
        ("ULM every 50 ms, own cgroup", 50, 1, own, false),
        ("ULM every 50 ms, SCHED_FIFO", 50, 1, first, true),
        ("ULM every 10 ms", 10, 1, among, false),
        ("ULM every 10 ms, SCHED_FIFO", 10, 1, first, true),
    ];
    for (index, (name, interval, every, how, is_first)) in pages.into_iter().enumerate() {
        let page = folder.join(&format!("page{index}"));
        let interval = Duration::from_millis(interval);
        let mut words = ground::page_arguments(&page, interval, cgroup);
        if is_first {
            words.extend(["--fifo".to_owned(), FIFO.to_string()]);
        }
        let helper = ground::start_serve(run, &words, how)?;
        match Page::open(&page) {
            Ok(page) => {
                helpers.push(helper);
                arm(name, every, Reader::Page(Box::new(page)));
            }
            Err(error) => println!("{name} is missing: {error}"),
        }
    }
    let mut words = ground::respond_arguments(&plain, DEFAULT_PORT, &file);
    words.extend(cgroup.map(ground::target_arguments).into_iter().flatten());
    let helper = ground::start_serve(run, &words, among)?;
    let mut asker = Asker::new(&plain, DEFAULT_PORT, &key, target)?;
    match asker.wait_for_answer("the helper") {
        Ok(()) => {
            helpers.push(helper);
            let reader = Reader::Query(Box::new(asker));
            arm("user process, asked every 10 ms", 1, reader);
        }
        Err(error) => println!("user process is missing: {error}"),
    }
    // An agent tells the load of the machine, or of its own cgroup.
    let desk = match scene {
        Scene::Beside => None,
        _ => Some(Desk::start(run, &folder)?),
    };
    if let Some(desk) = &desk {
        let reader = Reader::Agent(Arc::clone(&desk.location), desk.clock);
        arm("agent every 100 ms", 1, reader);
    }

    let load = loaders(scene, &crowd, &watched)?;
    let mut counted: Vec<u32> = load.watched.iter().map(Process::id).collect();
    if scene != Scene::Beside {
        // The monitors' own work is load, too.
        counted.extend(helpers.iter().map(Process::id));
        counted.extend(desk.iter().map(|desk| desk.id));
        counted.push(std::process::id());
    }
    let clocks = CpuClocks::new(counted)?;
    let seconds = run.scale(30, 6);
    let start = clock::monotonic_nanos() + 1_000_000_000;
    let end = start + seconds * 1_000_000_000;
    let stop = AtomicBool::new(false);
    let truth = std::thread::scope(|scope| -> Result<Series> {
        let sampler = scope.spawn(|| clock::sample_series(TICK, &stop, || clocks.total() as f64));
        let readers: Vec<_> = arms
            .iter_mut()
            .map(|arm| scope.spawn(move || watch(arm, start, end)))
            .collect();
        let done: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        // A sample more, so that there is one on each side of the last reading.
        std::thread::sleep(3 * TICK);
        stop.store(true, Ordering::Relaxed);
        for done in done {
            let done = done.map_err(|_| "a thread has panicked")?;
            done.map_err(|error| format!("a front-end: {error}"))?;
        }
        Ok(sampler.join().map_err(|_| "a thread has panicked")??)
    })?;
    if helpers.iter_mut().any(Process::has_ended) {
        return Err("a helper has ended".into());
    }
    drop((load, helpers, desk));

    let processors = ground::count_processors()? as f64;
    // A CPU clock counts all CPUs.
    let truth_at = |at: u64| {
        let rate = truth.growth_rate(at - TICK.as_nanos() as u64, at)?;
        Some((rate / processors).min(1.0))
    };
    plot(run, scene, &arms, start, &truth_at)?;
    let ticks = (end - start) / TICK.as_nanos() as u64;
    let errors = arms.iter().filter_map(|arm| {
        if arm.readings.is_empty() {
            println!("{} has told nothing", arm.name);
        }
        let mut errors: Vec<f64> = known(arm, start, ticks)
            .filter_map(|(at, cpu)| Some((cpu - truth_at(at)?).abs()))
            .collect();
        errors.sort_by(f64::total_cmp);
        let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        let p95 = *errors.get(errors.len() * 95 / 100)?;
        let when_read: Vec<f64> = (arm.readings.iter())
            .filter_map(|reading| Some((reading.cpu - truth_at(reading.at)?).abs()))
            .collect();
        let when_read = when_read.iter().sum::<f64>() / when_read.len().max(1) as f64;
        Some((arm.name, mean, p95, when_read, arm.readings.len()))
    });
    Ok(errors.collect())
}

/// Processes that make load.
struct Loaders {
    watched: Vec<Process>,
    _others: Vec<Process>,
}

fn loaders(scene: Scene, crowd: &Cgroup, watched: &Cgroup) -> Result<Loaders> {
    // Milliseconds for which they spin and sleep.
    let (least, most) = ("20", "200");
    let start = (clock::monotonic_nanos() + 200_000_000).to_string();
    let count = match scene {
        Scene::Bursts => 16,
        _ => ground::count_processors()?,
    };
    let how = Scheduling {
        cgroup: Some(match scene {
            Scene::Beside => watched,
            _ => crowd,
        }),
        ..Scheduling::default()
    };
    let mut processes = Vec::new();
    for index in 0..count {
        let seed = match scene {
            Scene::Bursts => 1,
            _ => 1 + index,
        };
        let words = ["alternate", &seed.to_string(), &start, least, most];
        processes.push(Process::start_helper(&words, Stdio::null(), how)?);
    }
    let others = match scene {
        Scene::Beside => ground::start_busy_processes(Some(crowd))?,
        _ => Vec::new(),
    };
    Ok(Loaders {
        watched: processes,
        _others: others,
    })
}

/// The front-end of an arm: reads the load at its ticks.
fn watch(arm: &mut Arm, start: u64, end: u64) -> std::io::Result<()> {
    clock::be_first(60)?;
    let tick_ns = TICK.as_nanos() as u64;
    let mut tick = 0;
    loop {
        let due = start + tick * tick_ns;
        if due >= end {
            return Ok(());
        }
        clock::sleep_until(due);
        if let Some(cpu) = arm.reader.cpu() {
            let at = clock::monotonic_nanos();
            arm.readings.push(Reading { tick, at, cpu });
        }
        let passed = clock::monotonic_nanos().saturating_sub(start) / tick_ns + 1;
        tick = passed.max(tick + 1).next_multiple_of(arm.every);
    }
}

/// Returns the load that an arm's front-end knew at each tick, with the exact time: that of the reading's arrival if
/// there was one in the tick, else that of the tick.
fn known(arm: &Arm, start: u64, ticks: u64) -> impl Iterator<Item = (u64, f64)> + '_ {
    let tick_ns = TICK.as_nanos() as u64;
    let mut readings = arm.readings.iter().peekable();
    let mut last: Option<f64> = None;
    (0..ticks).filter_map(move |tick| {
        let due = start + tick * tick_ns;
        // The reading may have come later than the next tick.
        let is_there = |reading: &&Reading| reading.tick < tick && reading.at <= due;
        while let Some(reading) = readings.next_if(is_there) {
            last = Some(reading.cpu);
        }
        let now = readings.peek().filter(|reading| reading.tick == tick);
        match now {
            Some(reading) if reading.at < due + tick_ns => {
                last = Some(reading.cpu);
                Some((reading.at, reading.cpu))
            }
            _ => Some((due, last?)),
        }
    })
}

/// Plots their figure 4: three seconds of the true load and of the reported one.
fn plot(
    run: &Run,
    scene: Scene,
    arms: &[Arm],
    start: u64,
    truth_at: &dyn Fn(u64) -> Option<f64>,
) -> Result<()> {
    let (from, ticks) = (100, 300);
    let seconds = |at: u64| at.saturating_sub(start) as f64 / 1e9 - from as f64 / 100.0;
    let mut csv = String::from("ms,arm,cpu\n");
    let actual = (from..from + ticks).filter_map(|tick| {
        let at = start + tick * TICK.as_nanos() as u64;
        Some((seconds(at), truth_at(at)?))
    });
    let mut lines = vec![("actual".to_owned(), actual.collect::<Vec<_>>())];
    for arm in arms.iter().filter(|arm| [KLM, ULM].contains(&arm.name)) {
        let points = known(arm, start, from + ticks)
            .skip_while(|(at, _)| seconds(*at) < 0.0)
            .map(|(at, cpu)| (seconds(at), cpu));
        lines.push((arm.name.to_owned(), points.collect()));
    }
    for (name, points) in &lines {
        for (at, cpu) in points {
            writeln!(csv, "{:.1},{name},{cpu:.3}", at * 1e3)?;
        }
    }
    run.write(&format!("accuracy-{}.csv", scene.name()), &csv)?;
    let title = match scene {
        Scene::Alone => "CPU load, a process per CPU",
        Scene::Bursts => "CPU load, sixteen processes in step",
        Scene::Beside => "CPU load of a cgroup beside 16 busy processes",
    };
    let lines = lines.into_iter();
    let lines = lines.map(|(name, points)| Line::new(name, points));
    let plot = Plot::over_time("share of the CPUs", lines.collect());
    run.write(&format!("accuracy-{}.svg", scene.name()), &plot.file(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_the_last_reading_that_came() {
        let ms = 1_000_000;
        let readings = [(0, 1, 0.1), (1, 25, 0.2), (4, 41, 0.3)];
        let reading = |(tick, at, cpu)| Reading {
            tick,
            at: at * ms,
            cpu,
        };
        let arm = Arm {
            name: "",
            every: 1,
            reader: Reader::Agent(Arc::new(Location::new("")), Clock::start()),
            readings: readings.map(reading).to_vec(),
        };
        let known: Vec<_> = known(&arm, 0, 6).map(|(at, cpu)| (at / ms, cpu)).collect();
        let expected = [
            (1, 0.1),
            (10, 0.1),
            (20, 0.1),
            (30, 0.2),
            (41, 0.3),
            (50, 0.3),
        ];
        assert_eq!(known, expected);
    }
}
