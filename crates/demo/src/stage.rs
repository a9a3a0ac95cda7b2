//! The stage: back-ends and load in a thread of their own, and the balancer in a process
//! of its own, just as a user would run it.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Settings};
use crate::error::DemoError;
use crate::load::{self, Seen};

/// Requests that each back-end serves at once, and the mean time of one. Four back-ends
/// of different speed: the slowest has half the capacity of the fastest.
pub const BACKENDS: [(usize, Duration); 4] = [
    (2, Duration::from_millis(8)),
    (2, Duration::from_millis(10)),
    (2, Duration::from_millis(12)),
    (2, Duration::from_millis(16)),
];

/// The back-end that turns slow.
pub const TURNS_SLOW: usize = 1;

/// Factor by which that back-end is then slower.
pub const SLOWDOWN: f64 = 5.0;

/// Share of the four back-ends' capacity that the load asks for.
pub const UTILISATION: f64 = 0.5;

/// The arms that Evenkeel serves, by the names of their rules, groups and strategies. The first
/// is the default strategy.
pub const ARMS: [&str; 3] = ["adaptive", "least_connection", "round_robin"];

/// The arm of HAProxy with its `leastconn`, the last one, if it is installed.
pub const HAPROXY: &str = "haproxy";

/// Longest time that the balancer may take to get ready.
pub(crate) const READY: Duration = Duration::from_secs(10);

/// Arm of the comparison: a balancer with four back-ends of its own.
#[derive(Debug)]
pub struct Arm {
    /// Name of the arm: one of [`ARMS`], or [`HAPROXY`].
    pub name: &'static str,
    /// Address that the arm's balancer listens on.
    pub listen: SocketAddr,
    /// Back-ends of the arm.
    pub backends: Vec<Backend>,
    /// Samples and counts that the arm's clients have seen.
    pub seen: Arc<Mutex<Seen>>,
}

/// Processes, back-ends and load of the demo. Dropping the stage stops the balancer and removes what was
/// written.
#[derive(Debug)]
pub struct Stage {
    /// The arms: [`ARMS`], and [`HAPROXY`] if it is installed.
    pub arms: Vec<Arm>,
    /// Requests per second that each arm gets.
    pub rate: f64,
    /// Address of the balancer's admin API.
    pub admin: SocketAddr,
    /// The balancer's configuration.
    pub config: PathBuf,
    /// File that the balancer logs to.
    pub log: PathBuf,
    balancer: Child,
    /// Ends with this.
    _haproxy: Option<Haproxy>,
    start_load: mpsc::Sender<()>,
}

impl Stage {
    /// Starts the back-ends, and the balancer in front of them. `evenkeel` is the
    /// product's binary.
    pub fn set_up(evenkeel: &Path) -> Result<Stage, DemoError> {
        let haproxy = find_haproxy();
        let names: Vec<_> = ARMS
            .into_iter()
            .chain(haproxy.is_some().then_some(HAPROXY))
            .collect();
        // Kept until the balancers start, so that no back-end gets one of these ports.
        let mut held = free_listeners(names.len() + 1).map_err(DemoError::Backends)?;
        let mut ports = addresses(&held).map_err(DemoError::Backends)?;
        let admin = ports.pop().ok_or_else(lost_world)?;
        let (tell_backends, backends) = mpsc::channel();
        let (start_load, load_may_start) = mpsc::channel();
        let rate = UTILISATION
            * BACKENDS
                .iter()
                .map(|(workers, mean)| *workers as f64 / mean.as_secs_f64())
                .sum::<f64>();
        let mut arms: Vec<Arm> = names
            .into_iter()
            .zip(ports)
            .map(|(name, listen)| Arm {
                name,
                listen,
                backends: Vec::new(),
                seen: Arc::default(),
            })
            .collect();
        let targets: Vec<_> = arms
            .iter()
            .map(|arm| (arm.listen, Arc::clone(&arm.seen)))
            .collect();
        std::thread::Builder::new()
            .name("demo-world".into())
            .spawn(move || world(&tell_backends, &load_may_start, rate, targets))
            .map_err(DemoError::Backends)?;
        for arm in &mut arms {
            let started = backends.recv().map_err(|_| lost_world())?;
            arm.backends = started.map_err(DemoError::Backends)?;
        }

        let base = std::env::temp_dir().join(format!("evenkeel-demo-{}", std::process::id()));
        let (config, log) = (base.with_extension("toml"), base.with_extension("log"));
        let written = |path: &PathBuf| {
            let path = path.clone();
            move |source| DemoError::Write { path, source }
        };
        fs::write(&config, configuration(&arms, admin)).map_err(written(&config))?;
        let log_file = fs::File::create(&log).map_err(written(&log))?;
        let log_too = log_file.try_clone().map_err(written(&log))?;
        let mut command = Command::new(evenkeel);
        command
            .arg("run")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log_file)
            .stderr(log_too)
            // Ctrl-C goes to the whole foreground group: the balancer stays until it is
            // told, so that the last figures can still be read.
            .process_group(0);
        // Without it the demo has an arm less, which is no reason not to show the others.
        let haproxy = haproxy.and_then(|binary| {
            held.remove(arms.len().checked_sub(1)?);
            Haproxy::start(&binary, arms.last()?, &base).ok()
        });
        if haproxy.is_none() {
            arms.retain(|arm| arm.name != HAPROXY);
        }
        drop(held);
        let balancer = command.spawn().map_err(|source| DemoError::Balancer {
            log: log.clone(),
            reason: source.to_string(),
        })?;
        Ok(Stage {
            arms,
            rate,
            admin,
            config,
            log,
            balancer,
            _haproxy: haproxy,
            start_load,
        })
    }

    /// Starts the load, once the balancer is ready.
    pub fn start_load(&self) -> Result<(), DemoError> {
        self.start_load.send(()).map_err(|_| lost_world())
    }

    /// Returns how the balancer has ended, if it has.
    pub fn balancer_ended(&mut self) -> Option<DemoError> {
        let status = self.balancer.try_wait().ok()??;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rev().take(5).collect::<Vec<_>>();
        let last: Vec<_> = last.into_iter().rev().collect();
        Some(DemoError::Balancer {
            log: self.log.clone(),
            reason: format!("the process ended with {status}:\n{}", last.join("\n")),
        })
    }

    /// Returns the arms that Evenkeel serves.
    pub fn own_arms(&self) -> impl Iterator<Item = &Arm> {
        self.arms.iter().filter(|arm| arm.name != HAPROXY)
    }

    /// Returns an arm of Evenkeel through which no request was answered.
    pub fn silent_arm(&self) -> Option<&'static str> {
        let silent = |arm: &&Arm| load::lock_seen(&arm.seen).answered == 0;
        self.own_arms().find(silent).map(|arm| arm.name)
    }

    /// Makes the chosen back-end of each arm slow, or normal again.
    pub fn set_slow(&self, slow: bool) {
        for arm in &self.arms {
            if let Some(backend) = arm.backends.get(TURNS_SLOW) {
                backend.set_slowdown(if slow { SLOWDOWN } else { 1.0 });
            }
        }
    }
}

/// HAProxy in front of the last arm's back-ends, set up as its users would.
#[derive(Debug)]
struct Haproxy {
    process: Child,
    config: PathBuf,
}

impl Haproxy {
    fn start(binary: &Path, arm: &Arm, base: &Path) -> io::Result<Self> {
        let config = base.with_extension("cfg");
        let members = arm.backends.iter().map(Backend::address);
        fs::write(&config, haproxy_configuration(arm.listen, members))?;
        let process = Command::new(binary)
            .arg("-db")
            .arg("-f")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let process = process.inspect_err(|_| drop(fs::remove_file(&config)))?;
        let mut haproxy = Haproxy { process, config };
        let deadline = Instant::now() + READY;
        while TcpStream::connect(arm.listen).is_err() {
            if haproxy.process.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(io::Error::other("HAProxy does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(haproxy)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.config);
    }
}

/// Returns where `haproxy` is installed; daemons are not always in the path of a user.
fn find_haproxy() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
        .map(|folder| folder.join("haproxy"))
        .find(|file| file.is_file())
}

/// Returns the configuration of HAProxy with `leastconn` in front of `members`, as its users would write it.
pub fn haproxy_configuration(
    listen: SocketAddr,
    members: impl Iterator<Item = SocketAddr>,
) -> String {
    let mut text = format!(
        "global\n  nbthread 1\n\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  \
         timeout server 60s\n\nlisten demo\n  bind {listen}\n  balance leastconn\n"
    );
    for (index, member) in members.enumerate() {
        text.push_str(&format!("  server backend-{} {member} check\n", index + 1));
    }
    text
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.balancer.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let deadline = Instant::now() + Duration::from_secs(3);
        while matches!(self.balancer.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.balancer.kill();
        let _ = self.balancer.wait();
        let _ = fs::remove_file(&self.config);
        let _ = fs::remove_file(&self.log);
    }
}

fn lost_world() -> DemoError {
    DemoError::Backends(io::Error::other("the thread of the back-ends has ended"))
}

/// Runs back-ends and load, on a runtime of their own, until the process ends.
fn world(
    tell_backends: &mpsc::Sender<io::Result<Vec<Backend>>>,
    load_may_start: &mpsc::Receiver<()>,
    rate: f64,
    targets: Vec<(SocketAddr, Arc<Mutex<Seen>>)>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = tell_backends.send(Err(error));
            return;
        }
    };
    let local = tokio::task::LocalSet::new();
    for _ in &targets {
        let started = local.block_on(&runtime, async {
            let mut started = Vec::new();
            for (workers, mean) in BACKENDS {
                let settings = Settings {
                    workers,
                    mean,
                    reports_load: false,
                    seed: fastrand::u64(..),
                };
                started.push(Backend::start(settings).await?);
            }
            Ok(started)
        });
        if tell_backends.send(started).is_err() {
            return;
        }
    }
    // The back-ends must answer health checks while the balancer starts.
    local.block_on(&runtime, async {
        while let Err(mpsc::TryRecvError::Empty) = load_may_start.try_recv() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (target, seen) in targets {
            // One seed: all arms get the same requests at the same moments.
            tokio::task::spawn_local(load::run(target, rate, 1, seen));
        }
        std::future::pending::<()>().await;
    });
}

/// Returns listeners on ports that nobody else uses. A program that is to listen on a port gets it when the
/// listener here is dropped.
fn free_listeners(count: usize) -> io::Result<Vec<TcpListener>> {
    (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect()
}

/// Addresses of the listeners.
fn addresses(listeners: &[TcpListener]) -> io::Result<Vec<SocketAddr>> {
    listeners.iter().map(TcpListener::local_addr).collect()
}

/// Returns the name of a location: what a back-end's load is reported for.
pub fn location_name(arm: &str, index: usize) -> String {
    format!("{arm}-{}", index + 1)
}

fn configuration(arms: &[Arm], admin: SocketAddr) -> String {
    let mut text =
        format!("# What `evenkeel-lab demo` runs.\nworkers = 1\n\n[admin]\nlisten = \"{admin}\"\n");
    for Arm {
        name,
        listen,
        backends,
        ..
    } in arms.iter().filter(|arm| arm.name != HAPROXY)
    {
        text.push_str(&format!(
            "\n[rule.{name}]\nlisten = \"{listen}\"\nprotocol = \"http\"\ngroup = \"{name}\"\n\n\
             [group.{name}]\n"
        ));
        // The first arm names no strategy: what runs there is the default.
        if *name != ARMS[0] {
            text.push_str(&format!("strategy = \"{name}\"\n"));
        }
        text.push_str("members = [\n");
        for (index, backend) in backends.iter().enumerate() {
            text.push_str(&format!(
                "  {{ address = \"{}\", location = \"{}\" }},\n",
                backend.address(),
                location_name(name, index)
            ));
        }
        text.push_str("]\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_valid() {
        let arms: Vec<Arm> = ARMS
            .iter()
            .chain([&HAPROXY])
            .zip([
                "127.0.0.1:7001",
                "127.0.0.1:7002",
                "127.0.0.1:7003",
                "127.0.0.1:7004",
            ])
            .map(|(name, listen)| Arm {
                name,
                listen: listen.parse().unwrap(),
                backends: Vec::new(),
                seen: Arc::default(),
            })
            .collect();
        let text = configuration(&arms, "127.0.0.1:7005".parse().unwrap());
        let text = text.replace("members = [\n]", "members = [\"127.0.0.1:1\"]");
        let config = evenkeel_manager::config::parse("demo.toml", &text).unwrap();
        let strategies = config.groups.iter().map(|group| group.strategy.kind().name);
        assert_eq!(strategies.collect::<Vec<_>>(), ARMS);
    }
}
