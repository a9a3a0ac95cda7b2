//! A back-end: a web server, other work, and all ways in which its load is read.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{CONTROL, HELPER, HELPER_PAGE, INTERVAL, KERNEL_PAGE, SECRET, addresses, set_up};
use crate::Result;
use crate::clock::{self, CpuClocks, Series};
use crate::ground::{self, Process, Scheduling};

/// Documents that the server keeps at hand, and microseconds of CPU time for a document that is at hand and for another
/// one: as in `evenkeel-lab run rdma`.
const CACHE: &str = "100";
const HIT: &str = "1000";
const MISS: &str = "8000";
/// For how long other work comes and goes, on average.
const CHANGE: f64 = 500e6;
/// Milliseconds for which the accuracy's process runs and sleeps.
const PHASE: [&str; 2] = ["200", "800"];
/// Interval of the true load's samples.
const TICK: Duration = Duration::from_millis(10);

/// Other work, which is stopped unless the front-end asks for it.
struct Others(Vec<Process>);

impl Others {
    fn load(&self, is_loaded: bool) {
        let signal = match is_loaded {
            true => libc::SIGCONT,
            false => libc::SIGSTOP,
        };
        self.0.iter().for_each(|other| other.signal(signal));
    }
}

/// A thread that continues until it is told to end.
struct Going<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Going<T> {
    fn start(what: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || what(&flag));
        Going { stop, thread }
    }

    fn end(self) -> Result<T> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| "a thread has panicked".into())
    }
}

pub(super) fn run(cable: u8) -> Result<()> {
    let (front, own) = addresses(cable);
    set_up(0, own)?;
    let how = Scheduling::default();
    let words = ["serve", &own.to_string(), CACHE, HIT, MISS];
    let mut server = Process::start_helper(&words, Stdio::null(), how)?;
    let mut web = String::new();
    BufReader::new(server.stdout().ok_or("no standard output")?).read_line(&mut web)?;
    let others = Others(ground::ping_pong(how)?);
    others.load(false);
    let (key, allow) = (key()?, format!("{front}/32"));
    let attach = [
        "kernel",
        "attach",
        "eth0",
        "--key-file",
        key,
        "--allow",
        &allow,
        "--rate",
        "0",
    ];
    println!("{}", ground::run("evenkeel", attach)?.trim());
    let kernel = offer(own, KERNEL_PAGE, &allow, &["--source", "kernel"])?;
    let interval = format!("{}ms", INTERVAL.as_millis());
    let respond = format!("{own}:{HELPER}");
    let words = [
        "--source",
        "proc",
        "--interval",
        &interval,
        "--respond",
        &respond,
        "--key-file",
        key,
        "--rate",
        "0",
    ];
    let helper = offer(own, HELPER_PAGE, &allow, &words)?;
    println!("this back-end is ready");
    let listener = TcpListener::bind((own, CONTROL))?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut backend = Backend {
        writer: stream.try_clone()?,
        server,
        others: Arc::new(others),
        kernel,
        helper,
        changing: None,
        sampling: None,
    };
    backend.say(web.trim())?;
    for line in BufReader::new(stream).lines() {
        if !backend.does(&line?)? {
            return Ok(());
        }
    }
    Err("the front-end has gone".into())
}

/// A file with the key.
fn key() -> Result<&'static str> {
    const FILE: &str = "/tmp/key";
    let secret: String = SECRET.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(FILE, format!("1:{secret}\n"))?;
    fs::set_permissions(FILE, fs::Permissions::from_mode(0o600))?;
    Ok(FILE)
}

/// `evenkeel kernel serve` with these words and a page over RDMA, once it is ready.
fn offer(own: Ipv4Addr, port: u16, allow: &str, words: &[&str]) -> Result<Process> {
    let mut command = Command::new("evenkeel");
    command.args(["kernel", "serve", "--rdma", &format!("{own}:{port}")]);
    command.args(["--allow", allow]).args(words);
    command.env("RUST_LOG", "warn").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut process = Process::start(command, Scheduling::default())?;
    let stdout = process.stdout().ok_or("no standard output")?;
    for line in BufReader::new(stdout).lines() {
        if line? == "ready" {
            return Ok(process);
        }
    }
    Err(format!("evenkeel kernel serve {words:?} has ended").into())
}

struct Backend {
    writer: TcpStream,
    server: Process,
    others: Arc<Others>,
    kernel: Process,
    helper: Process,
    changing: Option<Going<()>>,
    /// The process of the accuracy, and the CPU clocks of all.
    sampling: Option<(Process, Going<std::io::Result<Series>>)>,
}

impl Backend {
    fn say(&mut self, line: &str) -> Result<()> {
        Ok(self.writer.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Does what a line says, and answers; says whether there is more to come.
    fn does(&mut self, line: &str) -> Result<bool> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["load", is_loaded] => {
                if let Some(changing) = self.changing.take() {
                    changing.end()?;
                }
                self.others.load(is_loaded == "on");
            }
            ["change", seed] => {
                let (others, seed) = (Arc::clone(&self.others), seed.parse()?);
                let changing = Going::start(move |stop| change(&others, seed, stop));
                self.changing = Some(changing);
            }
            ["helper", is_on] => self.helper.signal(match is_on {
                "on" => libc::SIGCONT,
                _ => libc::SIGSTOP,
            }),
            ["sample", seed] => {
                let start = (clock::monotonic_nanos() + 100_000_000).to_string();
                let [least, most] = PHASE;
                let words = ["alternate", seed, &start, least, most];
                let process = Process::start_helper(&words, Stdio::null(), Scheduling::default())?;
                let all = [&process, &self.server, &self.kernel, &self.helper];
                let clocks = CpuClocks::new(all.map(Process::id))?;
                let sampling = Going::start(move |stop| {
                    clock::sample_series(TICK, stop, || clocks.total() as f64)
                });
                self.sampling = Some((process, sampling));
            }
            ["tell"] => {
                let (_process, sampling) = self.sampling.take().ok_or("nothing is sampled")?;
                let series = sampling.end()??;
                let line = |(at, value): &(u64, f64)| format!("{at} {value}\n");
                let told: String = series.samples().iter().map(line).collect();
                self.writer.write_all(told.as_bytes())?;
            }
            ["end"] => return Ok(false),
            _ => return Err(format!("what is {line}?").into()),
        }
        self.say("done")?;
        Ok(true)
    }
}

/// Lets other work come and go.
fn change(others: &Others, seed: u64, stop: &AtomicBool) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut is_loaded = rng.bool();
    while !stop.load(Ordering::Relaxed) {
        others.load(is_loaded);
        let until = clock::monotonic_nanos() + (-(1.0 - rng.f64()).ln() * CHANGE) as u64;
        while clock::monotonic_nanos() < until && !stop.load(Ordering::Relaxed) {
            clock::sleep_until(until.min(clock::monotonic_nanos() + 10_000_000));
        }
        is_loaded = !is_loaded;
    }
}
