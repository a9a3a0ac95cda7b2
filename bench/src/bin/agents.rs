//! Many agents that report to one broker: does anything get lost, and what does it cost?
//!
//! The broker is that of a real `evenkeel run`, with its groups, control loop and admin
//! API. The agents are as many sessions of the agent's own state machine in this process,
//! over a few hundred sockets. What was lost is counted by the broker (gaps in sequence
//! numbers) and again here (Updates sent against Updates taken); what it costs is the CPU
//! time of the broker's thread as the system accounts it.
//!
//! `agents [--agents N] [--seconds S]`, after `cargo build --release -p evenkeel`

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use evenkeel_bench::server::{Server, free_address, processors};
use evenkeel_core::load::{LoadId, LoadValue};
use evenkeel_core::time::Instant;
use evenkeel_net::Clock;
use evenkeel_wire::reporting::client::{Poll, Session, State};
use evenkeel_wire::reporting::keys::Keys;
use evenkeel_wire::reporting::message::{self, Registration};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const KEYS: &str = "1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

/// Members of each group, each of them at a location of its own.
const GROUP: usize = 100;

/// Loads that an agent with a server reports.
const LOADS: [LoadId; 6] = [
    LoadId::CPU,
    LoadId::MEMORY,
    LoadId::UTILIZATION,
    LoadId::RESPONSE_TIME,
    LoadId::SERVICE_TIME,
    LoadId::REQUESTS_PER_SECOND,
];

#[derive(Parser)]
struct Options {
    /// Number of agents.
    #[arg(long, default_value_t = 10_000)]
    agents: usize,
    /// Sockets that they share.
    #[arg(long, default_value_t = 250)]
    sockets: usize,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Seconds between registration and measurement.
    #[arg(long, default_value_t = 5)]
    warm_up: u64,
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("agents: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the measurement; true if no report was lost and less than half a core was used.
fn measure(options: &Options) -> Result<bool> {
    let mut rng = fastrand::Rng::new();
    let folder = std::env::temp_dir().join(format!("evenkeel-agents-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let _gone_at_the_end = Folder(folder.clone());
    let keys = folder.join("keys");
    fs::write(&keys, KEYS)?;
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
    let (admin, broker) = (free_address(&mut rng)?, free_address(&mut rng)?);
    let file = folder.join("evenkeel.toml");
    fs::write(&file, configuration(options.agents, admin, broker, &keys))?;

    let program = std::env::current_exe()?.with_file_name("evenkeel");
    if !program.exists() {
        return Err("build it first: cargo build --release -p evenkeel".into());
    }
    let mut command = Command::new(program);
    command.arg("run").arg(&file);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let cpus = processors()?;
    let first = *cpus.first().ok_or("no processor")?;
    let mut server = Server::start(command, first, libc::SIGTERM)?;
    server.wait_for(&[admin])?;
    // The admin API is bound first and answers last: then agents can report.
    Counts::read(admin)?;
    let thread = thread_of(server.id(), "evenkeel-broker")?;

    let mut agents = Agents::new(options, broker, &keys, &mut rng)?;
    let started = agents.clock.now();
    agents.run(|agents| agents.registered == options.agents || agents.since(started) > 60.0)?;
    println!(
        "{} of {} agents registered in {:.2} s",
        agents.registered,
        options.agents,
        agents.since(started)
    );
    let warm = agents.clock.now();
    agents.run(|agents| agents.since(warm) > options.warm_up as f64)?;

    let before = agents.updates;
    let cpu = (thread_cpu(server.id(), thread)?, server.cpu_time()?);
    let start = agents.clock.now();
    agents.run(|agents| agents.since(start) > options.seconds as f64)?;
    let seconds = agents.since(start);
    let cpu = (
        thread_cpu(server.id(), thread)? - cpu.0,
        server.cpu_time()? - cpu.1,
    );
    let rate = (agents.updates - before) as f64 / seconds;
    // Messages still under way are not lost.
    let end = agents.clock.now();
    agents.pause = true;
    agents.run(|agents| agents.since(end) > 1.0)?;
    let counts = Counts::read(admin)?;

    let share = |time: Duration| time.as_secs_f64() / seconds * 100.0;
    println!("updates per second{rate:10.0}");
    println!(
        "updates sent      {:10} from the first one on",
        agents.updates
    );
    println!("updates taken     {:10}", counts.updated);
    println!("lost, by sequence {:10}", counts.lost);
    println!("receive buffer    {:10} bytes", counts.receive_buffer);
    println!("broker's thread   {:9.1} % of a core", share(cpu.0));
    println!("whole process     {:9.1} % of a core", share(cpu.1));
    let is_good =
        agents.registered == options.agents && agents.updates == counts.updated && counts.lost == 0;
    Ok(is_good && share(cpu.0) < 50.0)
}

/// Groups of members with a location each, and a broker.
fn configuration(agents: usize, admin: SocketAddr, broker: SocketAddr, keys: &Path) -> String {
    let mut text = format!(
        "workers = 1\n[admin]\nlisten = \"{admin}\"\n[broker]\nlisten = \"{broker}\"\n\
         key_file = {keys:?}\ninterval = \"1s\"\n"
    );
    for group in 0..agents.div_ceil(GROUP) {
        text.push_str(&format!("[group.g{group}]\nmembers = [\n"));
        for n in group * GROUP..((group + 1) * GROUP).min(agents) {
            text.push_str(&format!(
                "{{ address = \"{}:80\", location = \"n{n}\" }},\n",
                address(n)
            ));
        }
        text.push_str("]\n");
    }
    text
}

fn address(n: usize) -> String {
    format!("127.{}.{}.{}", 1 + n / 62_500, n / 250 % 250, 1 + n % 250)
}

/// A folder that goes at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All agents of this process.
struct Agents {
    clock: Clock,
    sockets: Vec<UdpSocket>,
    agents: Vec<Agent>,
    /// Timers: the time, and the index of the agent that is due.
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    rng: fastrand::Rng,
    registered: usize,
    updates: u64,
    /// No more measurements.
    pause: bool,
}

struct Agent {
    session: Session,
    measure_at: Instant,
    is_registered: bool,
}

impl Agents {
    fn new(
        options: &Options,
        broker: SocketAddr,
        keys: &Path,
        rng: &mut fastrand::Rng,
    ) -> Result<Self> {
        let clock = Clock::start();
        let keys = Keys::parse(&std::fs::read_to_string(keys)?)?;
        let mut sockets = Vec::new();
        for _ in 0..options.sockets {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.connect(broker)?;
            socket.set_nonblocking(true)?;
            sockets.push(socket);
        }
        let now = clock.now();
        let mut agents = Vec::new();
        let mut timers = BinaryHeap::new();
        for n in 0..options.agents {
            let server = message::Server {
                group: format!("g{}", n / GROUP),
                host: address(n),
                port: 80,
                weight: None,
            };
            let registration = Registration::new(format!("n{n}"), "agent", vec![server])?;
            // Agents do not start at the same moment, nor measure in step.
            let start = now.after(Duration::from_secs(1).mul_f32(rng.f32()));
            timers.push(Reverse((start, n)));
            agents.push(Agent {
                session: Session::new(registration, keys.clone(), start, rng.fork()),
                measure_at: start,
                is_registered: false,
            });
        }
        Ok(Agents {
            clock,
            sockets,
            agents,
            timers,
            rng: rng.fork(),
            registered: 0,
            updates: 0,
            pause: false,
        })
    }

    fn since(&self, start: Instant) -> f64 {
        self.clock.now().since(start).as_secs_f64()
    }

    /// Sends and receives until `done`.
    fn run(&mut self, done: impl Fn(&Self) -> bool) -> Result<()> {
        while !done(self) {
            let now = self.clock.now();
            while let Some(&Reverse((at, n))) = self.timers.peek() {
                if at > now {
                    break;
                }
                self.timers.pop();
                let deadline = self.turn(n, now)?;
                self.timers.push(Reverse((deadline, n)));
            }
            for socket in 0..self.sockets.len() {
                self.receive(socket)?;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Runs the due work of agent `n`; returns the time of its next work.
    fn turn(&mut self, n: usize, now: Instant) -> Result<Instant> {
        let agent = &mut self.agents[n];
        if now >= agent.measure_at && !self.pause {
            let mut loads = Vec::with_capacity(LOADS.len());
            for id in LOADS {
                loads.push((id, LoadValue::new(self.rng.f64())?));
            }
            agent.session.update_loads(&loads, &[], now);
            agent.measure_at = agent.measure_at.after(agent.session.measuring_interval());
        }
        let wait = self.send(n, now)?;
        let agent = &self.agents[n];
        Ok(if self.pause {
            wait
        } else {
            wait.min(agent.measure_at)
        })
    }

    fn send(&mut self, n: usize, now: Instant) -> Result<Instant> {
        let socket = &self.sockets[n % self.sockets.len()];
        let agent = &mut self.agents[n];
        loop {
            match agent.session.poll(now) {
                Poll::Send(datagram) => {
                    let kind = message::peek_header(&datagram)?.kind;
                    self.updates += u64::from(kind == message::Kind::Update);
                    socket.send(&datagram)?;
                }
                Poll::Wait(until) => return Ok(until),
                Poll::Done => return Err("an agent has ended".into()),
            }
        }
    }

    fn receive(&mut self, socket: usize) -> Result<()> {
        let mut buffer = [0; message::MAX_DATAGRAM];
        while let Ok(len) = self.sockets[socket].recv(&mut buffer) {
            let datagram = &buffer[..len];
            let nonce = message::peek_header(datagram)?.nonce;
            let mut mine = (socket..self.agents.len()).step_by(self.sockets.len());
            let Some(n) = mine.find(|&n| self.agents[n].session.nonce() == nonce) else {
                continue;
            };
            let now = self.clock.now();
            let agent = &mut self.agents[n];
            let _ = agent.session.receive_datagram(datagram, now);
            let is_registered = agent.session.state() == State::Registered;
            if is_registered != agent.is_registered {
                agent.is_registered = is_registered;
                if is_registered {
                    self.registered += 1
                } else {
                    self.registered -= 1
                }
            }
            self.send(n, now)?;
        }
        Ok(())
    }
}

/// Counters at one moment.
struct Counts {
    updated: u64,
    lost: u64,
    receive_buffer: u64,
}

impl Counts {
    fn read(admin: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(admin)?;
        write!(stream, "GET /v1/broker HTTP/1.0\r\nHost: {admin}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let status: serde_json::Value = serde_json::from_str(body)?;
        let number = |value: &serde_json::Value| value.as_u64().ok_or("no number");
        let datagrams = status["datagrams"].as_array().ok_or("no counters")?;
        let updated = datagrams.iter().find(|count| count["result"] == "updated");
        Ok(Counts {
            updated: number(&updated.ok_or("no counter of updates")?["count"])?,
            lost: number(&status["lost"])?,
            receive_buffer: number(&status["receive_buffer"])?,
        })
    }
}

/// The thread of a process that has this name.
fn thread_of(pid: u32, name: &str) -> Result<i32> {
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("comm"))?.trim() == name {
            return Ok(entry.file_name().to_string_lossy().parse()?);
        }
    }
    Err(format!("no thread is called {name}").into())
}

/// CPU time of a thread, from the scheduler's own count in nanoseconds.
fn thread_cpu(pid: u32, thread: i32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat"))?;
    let nanos = text.split(' ').next().unwrap_or_default();
    Ok(Duration::from_nanos(nanos.parse()?))
}
