//! Speed and lateness of `evenkeel-lab load`: against a null server, which answers everything with the same bytes, on
//! the other processor. wrk is beside it in each round, if it is installed.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, Subcommand};
use evenkeel_bench::epoll::{Epoll, READ};
use evenkeel_bench::server::Server;
use serde_json::Value;

/// Answer of the null server.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Processor of the generators; the null server is on the next one.
const CPU: usize = 0;
/// Requests per second that are to be possible on a core.
const RATE_TARGET: f64 = 150_000.0;
/// Microseconds that the generator's own error is to stay below in 99 %.
const ERROR_TARGET: f64 = 50.0;

/// Measures the load generator itself.
#[derive(Parser)]
struct Arguments {
    /// Rounds: each measures all, one after another.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Number of connections.
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// The program; by default beside this one.
    #[arg(long)]
    program: Option<PathBuf>,
    /// File of the table, in Markdown.
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Be the null server.
    Null {
        /// Address on which the server listens.
        address: SocketAddr,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        Some(Role::Null { address }) => serve(address),
        None => measure(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load_own: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers everything that is read, once.
fn serve(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, READ, 0)?;
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        for index in 0..epoll.wait_for_events(None)? {
            let (token, _) = epoll.event(index);
            let Some(at) = (token as usize).checked_sub(1) else {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    let free = streams.iter().position(Option::is_none);
                    let at = free.unwrap_or_else(|| {
                        streams.push(None);
                        streams.len() - 1
                    });
                    epoll.add(&stream, READ, at as u64 + 1)?;
                    streams[at] = Some(stream);
                }
                continue;
            };
            let Some(stream) = &mut streams[at] else {
                continue;
            };
            let answered = match stream.read(&mut buffer) {
                Ok(0) => false,
                Ok(_) => stream.write_all(ANSWER).is_ok(),
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            };
            if !answered {
                streams[at] = None;
            }
        }
    }
}

/// Result of a round.
#[derive(Debug, Default)]
struct Round {
    rate: f64,
    busy: f64,
    own_p50: f64,
    own_p99: f64,
    own_busy: f64,
    /// Requests per second, and per second of CPU time.
    wrk: Option<(f64, f64)>,
}

fn measure(arguments: &Arguments) -> io::Result<()> {
    let this = std::env::current_exe()?;
    let program = match &arguments.program {
        Some(path) => path.clone(),
        None => this.with_file_name("evenkeel-lab"),
    };
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut null = Command::new(&this);
    null.arg("null").arg(free.to_string());
    let mut null = Server::start(null, CPU + 1, libc::SIGKILL)?;
    null.wait_for(&[free])?;
    let url = format!("http://{free}/");
    let has_wrk = Command::new("wrk")
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    let mut rounds = Vec::new();
    for number in 0..arguments.rounds {
        let mut round = Round::default();
        let run = |more: &[&str]| load(&program, &url, arguments, more);
        let fast = run(&[])?;
        round.rate = figure(&fast, "/rate")?;
        round.busy = figure(&fast, "/busy")?;
        let exact = run(&["--rate", "10000"])?;
        round.own_p50 = figure(&exact, "/own_error_us/p50")?;
        round.own_p99 = figure(&exact, "/own_error_us/p99")?;
        round.own_busy = figure(&exact, "/busy")?;
        if has_wrk {
            round.wrk = Some(wrk(&url, arguments)?);
        }
        eprintln!("round {}: {round:.1?}", number + 1);
        rounds.push(round);
    }
    let table = table(arguments, &rounds);
    if let Some(path) = &arguments.out {
        fs::write(path, &table)?;
    }
    io::stdout().write_all(table.as_bytes())
}

fn pinned(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &CPU.to_string()]).arg(program);
    command
}

fn load(program: &Path, url: &str, arguments: &Arguments, more: &[&str]) -> io::Result<Value> {
    let file = std::env::temp_dir().join(format!("load_own-{}.json", std::process::id()));
    let mut command = pinned(program);
    command
        .args(["load", url, "--quiet", "--warm-up", "500ms"])
        .args(["--duration", &format!("{}s", arguments.seconds)])
        .args(["--connections", &arguments.connections.to_string()])
        .arg("--json")
        .arg(&file)
        .args(more)
        .stdout(Stdio::null());
    let status = command.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("evenkeel-lab load: {status}")));
    }
    let text = fs::read_to_string(&file)?;
    fs::remove_file(&file)?;
    serde_json::from_str(&text).map_err(io::Error::other)
}

fn figure(of: &Value, name: &str) -> io::Result<f64> {
    let found = of.pointer(name).and_then(Value::as_f64);
    found.ok_or_else(|| io::Error::other(format!("evenkeel-lab load does not tell {name}")))
}

/// CPU time of processes that have ended, in seconds.
fn cpu_of_children() -> f64 {
    // SAFETY: a struct of numbers, for which zeros are good ones.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the struct lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Requests per second, and per second of CPU time.
fn wrk(url: &str, arguments: &Arguments) -> io::Result<(f64, f64)> {
    let before = cpu_of_children();
    let output = pinned(Path::new("wrk"))
        .args(["-t", "1", "-c", &arguments.connections.to_string()])
        .args(["-d", &format!("{}s", arguments.seconds), url])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    let rate: Option<f64> = rate.and_then(|rate| rate.trim().parse().ok());
    // `12345 requests in 3.00s, 1.2MB read`
    let all = text
        .lines()
        .find_map(|line| line.trim().split_once(" requests in "));
    let all: Option<f64> = all.and_then(|(count, _)| count.parse().ok());
    let found = rate.zip(all.map(|all| all / (cpu_of_children() - before)));
    found.ok_or_else(|| io::Error::other(format!("wrk says no rate: {text}")))
}

/// Median, lowest and highest.
fn spread(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values[..] {
        [] => "-".into(),
        [lowest, .., highest] => format!(
            "{:.digits$} ({lowest:.digits$} to {highest:.digits$})",
            values[values.len() / 2]
        ),
        [only] => format!("{only:.digits$}"),
    }
}

fn table(arguments: &Arguments, rounds: &[Round]) -> String {
    let of = |value: fn(&Round) -> f64, digits| spread(rounds.iter().map(value), digits);
    let with_wrk = || rounds.iter().filter_map(|round| Some((round, round.wrk?)));
    let met = |count: usize| format!("{count} of {} rounds", rounds.len());
    let fast = rounds.iter().filter(|round| round.rate >= RATE_TARGET);
    let able = rounds
        .iter()
        .filter(|round| round.rate / round.busy >= RATE_TARGET);
    let exact = rounds.iter().filter(|round| round.own_p99 < ERROR_TARGET);
    format!(
        "| what | median (lowest to highest) | target | met in |\n|---|---|---|---|\n\
         | requests per second on one core | {} | {RATE_TARGET} | {} |\n\
         | share of the core that it got | {} | | |\n\
         | requests per second of its CPU time | {} | {RATE_TARGET} | {} |\n\
         | wrk in the same rounds, requests per second | {} | | |\n\
         | ratio to wrk, within each round | {} | | |\n\
         | wrk, requests per second of its CPU time | {} | | |\n\
         | ratio to wrk of these, within each round | {} | | |\n\
         | own error at 10,000 per second, p50, us | {} | | |\n\
         | own error at 10,000 per second, p99, us | {} | {ERROR_TARGET} | {} |\n\
         | share of the core that it used then | {} | | |\n\n\
         {} rounds of {} s each, {} connections.\n",
        of(|round| round.rate, 0),
        met(fast.count()),
        of(|round| round.busy, 2),
        of(|round| round.rate / round.busy, 0),
        met(able.count()),
        spread(with_wrk().map(|(_, (wrk, _))| wrk), 0),
        spread(with_wrk().map(|(round, (wrk, _))| round.rate / wrk), 2),
        spread(with_wrk().map(|(_, (_, wrk))| wrk), 0),
        spread(
            with_wrk().map(|(round, (_, wrk))| round.rate / round.busy / wrk),
            2
        ),
        of(|round| round.own_p50, 1),
        of(|round| round.own_p99, 1),
        met(exact.count()),
        of(|round| round.own_busy, 2),
        rounds.len(),
        arguments.seconds,
        arguments.connections
    )
}
