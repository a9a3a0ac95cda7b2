//! Capacity of one core that reads the load of thousands of back-ends.
//!
//! The monitor is that of the balancer, pinned to one CPU with its thread. The back-ends are
//! simulated by one process on another CPU, with an address of 127.0.0.0/8 each, which
//! answers from the address that was asked: the monitor sees as many hosts. What counts is
//! the share of questions that had an answer, how late they were asked, and the CPU time of
//! the monitor's thread as the system accounts it. On loopback that includes what the system
//! does to hand a question to its receiver, and in its place not what it does to hand an answer
//! to the monitor, which happens on the other CPU.
//!
//! With `--rounds` it does so several times and says the median and the least and most of each
//! figure; with `--against FILE` this program of another build takes turns with it.
//!
//! `monitor [--locations N] [--interval-ms T] [--seconds S] [--rounds N [--against FILE]] [--csv FILE]`,
//! with `--release`

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use evenkeel_core::load::{LoadId, Location};
use evenkeel_kernel::query::{ENVELOPE, Key, LONGEST, Query, SHORT, WITH_PORTS};
use evenkeel_kernel::record::{Available, BASE, Base, Scope, Source};
use evenkeel_manager::config::Monitor as Config;
use evenkeel_monitor::poller::{PollTarget, RecordSource};
use evenkeel_monitor::{Monitor, MonitorStatus};
use evenkeel_net::Clock;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Datagrams of one call to the system.
const BATCH: usize = 64;

#[derive(Parser)]
struct Options {
    /// Number of locations.
    #[arg(long, default_value_t = 10_000)]
    locations: u32,
    /// Time between two questions to each, in milliseconds.
    #[arg(long, default_value_t = 50)]
    interval_ms: u64,
    /// Share of the locations that do not answer.
    #[arg(long, default_value_t = 0.0)]
    dead: f64,
    /// Asks for listen backlogs, too.
    #[arg(long)]
    listen_backlogs: bool,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// A file that the result is added to.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Number of measurements.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Program of another build, which takes turns with this one.
    #[arg(long)]
    against: Option<PathBuf>,
    /// Be the back-ends.
    #[arg(long, hide = true)]
    back_ends: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if options.back_ends {
        back_ends().map(|()| true)
    } else if options.rounds > 1 || options.against.is_some() {
        take_turns(&options)
    } else {
        measure(&options)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("monitor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn key() -> Key {
    Key::new(1, *b"only for a bench")
}

/// Pins this thread, and the threads that it starts, to that CPU.
fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: a set of CPUs is plain data, for which all zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours; a number that is too large for it changes nothing.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set has that size.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process that answers; it goes with the measurement.
struct BackEnds(Child);

impl Drop for BackEnds {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the measurement; true if nearly all questions were answered, with one core.
fn measure(options: &Options) -> Result<bool> {
    let child = Command::new(std::env::current_exe()?)
        .arg("--back-ends")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut back_ends = BackEnds(child);
    let stdout = back_ends.0.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let port: u16 = line.trim().parse()?;

    pin(0)?;
    let clock = Clock::start();
    let monitor = Monitor::new(clock)?;
    monitor.start_thread()?;
    let config = Config {
        interval: Duration::from_millis(options.interval_ms),
        listen_backlogs: options.listen_backlogs,
        ..Config::default()
    };
    let dead = (f64::from(options.locations) * options.dead) as u32;
    let wanted = |index: u32| {
        // Nobody listens at port 9 of the dead.
        let port = if index < dead { 9 } else { port };
        let ip = Ipv4Addr::from(0x7f01_0000 + index);
        PollTarget {
            location: Arc::new(Location::new(ip.to_string())),
            config: config.clone(),
            place: RecordSource::Udp((ip, port).into()),
            key: Some(key()),
        }
    };
    let wanted: Vec<PollTarget> = (0..options.locations).map(wanted).collect();
    let locations: Vec<_> = wanted.iter().map(|w| Arc::clone(&w.location)).collect();
    monitor.set_targets(wanted);
    // Until the first questions are spread, and the dead are known to be so.
    std::thread::sleep(Duration::from_secs(4));
    let sums = |monitor: &Monitor| {
        let all = monitor.locations();
        let alive = all.iter().filter(|view| !view.address.ends_with(":9"));
        alive.fold((0, 0), |(asked, answered), view| {
            (asked + view.asked, answered + view.answered)
        })
    };
    let before = (monitor.status().ok_or("nobody is asked")?, sums(&monitor));
    let (started, cpu) = (Instant::now(), cpu_time()?);
    std::thread::sleep(Duration::from_secs(options.seconds));
    let (elapsed, cpu) = (started.elapsed().as_secs_f64(), cpu_time()? - cpu);
    let after = (monitor.status().ok_or("nobody is asked")?, sums(&monitor));
    let asked = after.1.0 - before.1.0;
    let answered = after.1.1 - before.1.1;
    let all_asked = after.0.asked - before.0.asked;
    let share = answered as f64 / asked as f64;
    let planned = f64::from(options.locations - dead) * 1e3 / options.interval_ms as f64;
    let now = clock.now();
    let max_age = Duration::from_secs(1);
    let known = |location: &&Arc<Location>| {
        location
            .fresh_load(LoadId::COMPOSITE, now, max_age)
            .is_some()
    };
    let known = locations.iter().filter(known).count();
    let late = |share: f64| late(&before.0, &after.0, share);
    let row = [
        options.locations.to_string(),
        options.interval_ms.to_string(),
        options.dead.to_string(),
        match options.listen_backlogs {
            true => WITH_PORTS,
            false => SHORT,
        }
        .to_string(),
        format!("{:.0}", asked as f64 / elapsed),
        format!("{:.4}", asked as f64 / elapsed / planned),
        format!("{share:.6}"),
        known.to_string(),
        late(0.5),
        late(0.99),
        format!("{:.3}", cpu / elapsed),
        format!("{:.2}", cpu / all_asked as f64 * 1e6),
    ];
    const HEAD: &str = "locations,interval_ms,dead_share,datagram_bytes,asked_per_s,asked_of_planned,\
        answered_share,fresh_at_end,p50_delay_at_most_ms,p99_delay_at_most_ms,cpu_share,cpu_us_per_question";
    for (name, value) in HEAD.split(',').zip(&row) {
        println!("{name:>24}: {value}");
    }
    if let Some(path) = &options.csv {
        let is_new = !path.exists();
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)?;
        if is_new {
            writeln!(file, "{HEAD}")?;
        }
        writeln!(file, "{}", row.join(","))?;
    }
    Ok(share > 0.99 && asked as f64 / elapsed > 0.97 * planned)
}

/// Measures several times, each time in a process of its own, and in turns with another build.
/// Whether all rounds of this one were good.
fn take_turns(options: &Options) -> Result<bool> {
    let own = std::env::current_exe()?;
    let other = options.against.iter().map(|other| ("other build", other));
    let programs: Vec<_> = other.chain([("this build", &own)]).collect();
    let mut rows: Vec<Vec<Vec<f64>>> = vec![Vec::new(); programs.len()];
    let mut all_good = true;
    println!("round, build: {}", FIGURES.join(", "));
    for round in 0..options.rounds {
        for ((name, program), rows) in programs.iter().zip(&mut rows) {
            let mut command = Command::new(program);
            command.args(["--locations", &options.locations.to_string()]);
            command.args(["--interval-ms", &options.interval_ms.to_string()]);
            command.args(["--dead", &options.dead.to_string()]);
            command.args(["--seconds", &options.seconds.to_string()]);
            command.args(options.listen_backlogs.then_some("--listen-backlogs"));
            let output = command.stderr(Stdio::inherit()).output()?;
            let text = String::from_utf8(output.stdout)?;
            let value = |name: &&str| -> Option<f64> {
                let mut lines = text.lines().filter_map(|line| line.split_once(':'));
                let (_, value) = lines.find(|(known, _)| known.trim() == *name)?;
                value.trim().parse().ok()
            };
            let row: Option<Vec<f64>> = FIGURES.iter().map(value).collect();
            let row = row.ok_or_else(|| format!("{}: no result", program.display()))?;
            let figures: Vec<_> = row.iter().map(f64::to_string).collect();
            println!("{round}, {name}: {}", figures.join(", "));
            all_good &= output.status.success() || *program != &own;
            rows.push(row);
        }
    }
    for ((name, _), rows) in programs.iter().zip(&rows) {
        println!("{name}, median (least to most):");
        for (at, figure) in FIGURES.iter().enumerate() {
            let mut values: Vec<f64> = rows.iter().map(|row| row[at]).collect();
            values.sort_by(f64::total_cmp);
            if let (Some(least), Some(most)) = (values.first(), values.last()) {
                let spread = format!("({least} to {most})");
                let middle = evenkeel_bench::report::median(values).unwrap_or(f64::NAN);
                println!("{figure:>24}: {middle} {spread}");
            }
        }
    }
    Ok(all_good)
}

/// Figures that are reported for several rounds.
const FIGURES: [&str; 4] = [
    "asked_of_planned",
    "answered_share",
    "cpu_share",
    "cpu_us_per_question",
];

/// The limit in milliseconds below which that share of the questions was late.
fn late(before: &MonitorStatus, after: &MonitorStatus, share: f64) -> String {
    let counts = after.delays.iter().zip(&before.delays);
    let counts: Vec<_> = counts
        .map(|((limit, after), (_, before))| (*limit, after - before))
        .collect();
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    let mut sum = 0;
    for (limit, count) in counts {
        sum += count;
        if sum as f64 >= share * all as f64 {
            return limit.map_or("more".into(), |limit| format!("{}", limit * 1e3));
        }
    }
    "none".into()
}

/// CPU time of the monitor's thread in seconds.
fn cpu_time() -> Result<f64> {
    let first = std::process::id().to_string();
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        // The first thread is called as the program, which may be the same name.
        if task.ends_with(&first) {
            continue;
        }
        // The system cuts names after 15 bytes.
        if fs::read_to_string(task.join("comm"))?.trim() == "monitor" {
            let text = fs::read_to_string(task.join("schedstat"))?;
            let ns = text.split(' ').next().ok_or("no time")?;
            return Ok(ns.parse::<f64>()? / 1e9);
        }
    }
    Err("the monitor has no thread".into())
}

/// Answers as fast as it can, on another CPU.
fn back_ends() -> Result<()> {
    let cpus = std::thread::available_parallelism()?.get();
    pin(cpus - 1)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    for (level, option, value) in [
        (libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20),
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 64 << 20),
    ] {
        let value: libc::c_int = value;
        let size = size_of_val(&value) as libc::socklen_t;
        let fd = socket.as_raw_fd();
        // SAFETY: these options take an int. Without rights the buffers stay small, and
        // the result says what that costs.
        unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size) };
    }
    let address: SocketAddr = socket.local_addr()?;
    println!("{}", address.port());
    io::stdout().flush()?;

    let keys = [key()];
    let mut base = Base::new(Source::Responder, Scope::Machine);
    base.available = Available::BUSY
        .with_parts(Available::RUNNING)
        .with_parts(Available::BACKLOG)
        .with_parts(Available::PRESSURE)
        .with_parts(Available::MEMORY);
    (base.cpus, base.capacity) = (2, 2000);
    (base.memory.total, base.memory.available) = (8 << 30, 4 << 30);
    let began = Instant::now();
    let mut bytes = vec![[0u8; LONGEST]; BATCH];
    // SAFETY: all of these are plain data of C, for which all zeros are valid.
    let mut names: Vec<libc::sockaddr_in> = vec![unsafe { std::mem::zeroed() }; BATCH];
    let mut control = vec![[0u64; 8]; BATCH];
    loop {
        // SAFETY: as above.
        let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { std::mem::zeroed() };
        for at in 0..BATCH {
            vectors[at].iov_base = bytes[at].as_mut_ptr().cast();
            vectors[at].iov_len = LONGEST;
            let header = &mut messages[at].msg_hdr;
            header.msg_name = (&raw mut names[at]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_iov = &raw mut vectors[at];
            header.msg_iovlen = 1;
            header.msg_control = control[at].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&control[at]);
        }
        let (fd, all) = (socket.as_raw_fd(), messages.as_mut_ptr());
        // SAFETY: the messages point to what lives in this function, with its lengths.
        let count = unsafe {
            let flags = libc::MSG_WAITFORONE;
            libc::recvmmsg(fd, all, BATCH as libc::c_uint, flags, std::ptr::null_mut())
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let mut good = 0;
        for at in 0..count {
            let length = (messages[at].msg_len as usize).min(LONGEST);
            let datagram = &mut bytes[at][..length];
            let Ok((query, key)) = Query::parse(datagram, &keys) else {
                continue;
            };
            base.time_ns = began.elapsed().as_nanos() as u64;
            base.totals.busy_ns = base.time_ns / 2;
            base.updates += 1;
            if let Some(place) = datagram[ENVELOPE..].first_chunk_mut::<BASE>() {
                base.write(place);
            }
            query.answer(key, datagram);
            vectors[at].iov_len = length;
            // The answer comes from where the question went: the system reads the same
            // control message, whose second field is the address to send from.
            messages.swap(good, at);
            good += 1;
        }
        let mut sent = 0;
        while sent < good {
            let rest = (good - sent) as libc::c_uint;
            // SAFETY: as above; the system has set the lengths of names and control.
            let result = unsafe { libc::sendmmsg(fd, all.add(sent), rest, 0) };
            // A datagram that cannot be sent is lost, and counted as such.
            sent += usize::try_from(result).unwrap_or(1).max(1);
        }
    }
}
