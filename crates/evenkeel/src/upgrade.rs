//! Another process takes the place of this one, without a client that notices: `evenkeel upgrade`
//! or SIGUSR2. Both sides are here; `docs/upgrade.md` describes what they do.

use std::fs::File;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use evenkeel_admin::ctl::Ctl;
use evenkeel_admin::wire::Upgraded;
use evenkeel_manager::Manager;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::Service;
use evenkeel_net::Clock;
use evenkeel_net::handover::{Offer, Predecessor, Successor, VARIABLE, Word};
use evenkeel_net::inherited::{self, InheritedSocket};
use rustix::process::{Pid, Signal, kill_process};
use tracing::{info, warn};

use crate::failure::Failure;
use crate::process::{self, Signals};
use crate::{cli, ctl};

/// Time that the new process must live before the old one gives up its place.
const PROBATION: Duration = Duration::from_secs(5);

/// Name of the file with the indexes of prompts, beside the sockets.
const PROMPTS: &str = "prompts";

/// Time that a process that has ended the conversation may take to end.
const END: Duration = Duration::from_secs(1);

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `evenkeel upgrade`.
pub(crate) fn run(args: &cli::Upgrade) -> Result<String, Failure> {
    let ctl = Ctl {
        client: ctl::make_client(&args.api)?.with_patience(cli::LONGEST_UPGRADE),
        json: args.json,
    };
    Ok(ctl.upgrade_process()?)
}

/// The process before, as this one sees it while it starts.
pub(crate) struct Before {
    predecessor: Predecessor,
    /// True if that process has given up its place for good.
    is_over: Arc<AtomicBool>,
}

impl Before {
    /// Finds the process before, if there is one, and takes its sockets; or the sockets of the
    /// service manager.
    pub(crate) fn find() -> Result<Option<Arc<Self>>, Failure> {
        process::take_sockets_of_service_manager()?;
        let cannot = |error| {
            Failure::new(format!(
                "upgrade: this process cannot understand the old one: {error}"
            ))
        };
        let Some((predecessor, sockets)) = Predecessor::find().map_err(cannot)? else {
            return Ok(None);
        };
        sockets.into_iter().for_each(inherited::put_socket);
        let is_over = Arc::default();
        Ok(Some(Arc::new(Before {
            predecessor,
            is_over,
        })))
    }

    /// Says in the log whose place this process takes.
    pub(crate) fn log_upgrade(&self) {
        let Offer {
            program, sockets, ..
        } = &self.predecessor.offer;
        let sockets = sockets.len();
        info!(
            sockets,
            version = program,
            "upgrade: this process takes over from the old one"
        );
    }

    /// Returns the clock of the process before.
    pub(crate) fn clock(&self) -> Clock {
        Clock::with_origin(self.predecessor.offer.clock)
    }

    /// Returns what the process before knows. The process before stops what only one of the two may
    /// do.
    pub(crate) fn take_state(&self) -> Handover {
        match self.predecessor.request_state() {
            Ok(document) => Handover::read(document),
            Err(error) => {
                warn!(%error, "upgrade: the old process sent no learnt state: starting without it");
                Handover::default()
            }
        }
    }

    /// Has the manager take over the prompts that the process before has learnt.
    pub(crate) fn take_prompts(&self, state: &Handover, manager: &Manager) {
        manager.take_over_prompts(state, inherited::take_file(PROMPTS));
    }

    /// Clients are served: it need not any more.
    pub(crate) fn tell_ready(self: &Arc<Self>) {
        let program = VERSION.to_owned();
        if let Err(error) = self
            .predecessor
            .send_handover_word(&Word::Ready { program })
        {
            warn!(%error, "upgrade: the old process has ended already");
        }
        let before = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            before.predecessor.wait_until_over();
            before.is_over.store(true, Ordering::Relaxed);
            // The service manager has been told who is who.
            process::notify_service_manager("READY=1");
        });
    }

    /// Tells the process before to go on, because this process cannot.
    pub(crate) fn tell_failed(&self, why: &str) {
        // Without it nobody is there to be told.
        let _ = self
            .predecessor
            .send_handover_word(&Word::Failed(why.to_owned()));
    }

    /// True if the process before may still come back.
    pub(crate) fn may_come_back(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }
}

/// Parts of a process that another process is to take over.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) subsystems: Vec<Arc<dyn Service>>,
    pub(crate) manager: Arc<Manager>,
    /// Time that the new process may take until it is ready.
    pub(crate) limit: Duration,
}

/// Reason why another process has not taken over.
pub(crate) enum NotUpgraded {
    /// The other process could not take over.
    Failed(String),
    /// A signal, whose name this is, told this process to end.
    Ended(&'static str),
}

impl Place {
    /// Starts another process from the file in which the program of this process is now, with the
    /// same arguments, and waits until the other process has taken over for good, or has failed.
    /// Then everything is as before.
    pub(crate) async fn pass_on(self, signals: &mut Signals) -> Result<Upgraded, NotUpgraded> {
        if std::process::id() == 1 {
            return Err(NotUpgraded::Failed(
                "this is process 1 of its container, which would end with the process; replace the container"
                    .into(),
            ));
        }
        let child: Arc<OnceLock<Pid>> = Arc::default();
        let started = Arc::clone(&child);
        let mut attempt = tokio::task::spawn_blocking(move || self.attempt(&started));
        let (result, ended) = tokio::select! {
            result = &mut attempt => (result, None),
            name = signals.wait_for_end() => {
                if let Some(pid) = child.get() {
                    let _ = kill_process(*pid, Signal::TERM);
                }
                (attempt.await, Some(name))
            }
        };
        match (result, ended) {
            (Ok(Ok(upgraded)), _) => Ok(upgraded),
            (_, Some(name)) => Err(NotUpgraded::Ended(name)),
            (Ok(Err(why)), None) => Err(NotUpgraded::Failed(why)),
            (Err(panic), None) => Err(NotUpgraded::Failed(panic.to_string())),
        }
    }

    fn attempt(&self, started: &OnceLock<Pid>) -> Result<Upgraded, String> {
        let no_sockets = |error| format!("cannot make a connection to the new process: {error}");
        let (link, end) = Successor::new_pair().map_err(no_sockets)?;
        let mut child = start(end)?;
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            let _ = started.set(pid);
        }
        info!(
            pid = child.id(),
            "upgrade: a new process was started, and is to take over"
        );
        match self.follow(&link) {
            Ok(version) => {
                let pid = child.id();
                process::notify_service_manager(&format!("MAINPID={pid}"));
                // If it has just ended, the service manager starts another one.
                let _ = link.announce_end();
                Ok(Upgraded { pid, version })
            }
            Err(why) => {
                let status = end_of(&mut child);
                self.resume();
                let status = status.map_or(String::new(), |status| format!(" ({status})"));
                Err(format!("{why}{status}"))
            }
        }
    }

    /// Has the conversation with the new process; answers its version.
    fn follow(&self, link: &Successor) -> Result<String, String> {
        let end = Instant::now() + self.limit;
        let limit = self.limit;
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => {
                format!("the new process was not ready within {limit:?}, and was ended")
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
                "the new process ended before it was ready; see its lines in the log".into()
            }
            _ => format!("the new process cannot be understood: {error}"),
        };
        let left = || end.saturating_duration_since(Instant::now());
        let sockets = self.subsystems.iter().map(|one| one.sockets());
        let sockets = sockets.collect::<io::Result<Vec<_>>>();
        let sockets = sockets
            .map_err(|error| format!("cannot pass all sockets to the new process: {error}"))?;
        let mut sockets: Vec<_> = sockets.into_iter().flatten().collect();
        let prompts = self.create_prompt_file();
        sockets.extend(prompts.as_ref().and_then(to_socket));
        let clock = self.manager.clock().origin();
        link.offer_sockets(VERSION, clock, &sockets)
            .map_err(broken)?;
        drop(sockets);
        let mut handover = Handover::default();
        // Meanwhile the new process starts, and nothing waits for it yet.
        if let Some(file) = prompts {
            // Most of the time is for the new process.
            let limit = self.limit / 4;
            self.manager.copy_prompts(&file, &mut handover, limit);
        }
        let mut has_state = false;
        let version = loop {
            match link.next(left()).map_err(broken)? {
                Word::WantsState if !has_state => {
                    has_state = true;
                    link.send_state(
                        self.hand_over(std::mem::take(&mut handover))
                            .into_document(),
                    )
                    .map_err(broken)?;
                }
                Word::WantsState => {}
                Word::Failed(why) => return Err(format!("the new process cannot start: {why}")),
                Word::Ready { program } => break program,
            }
        };
        self.subsystems.iter().for_each(|one| one.rest());
        match link.next(PROBATION) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(version),
            Ok(Word::Failed(why)) => Err(format!("the new process has failed: {why}")),
            _ => Err(format!(
                "the new process ended within {PROBATION:?} after it was ready; see its lines in the log"
            )),
        }
    }

    /// Creates a file for the indexes of prompts, if a group has one.
    fn create_prompt_file(&self) -> Option<File> {
        let file = self
            .manager
            .has_prompts()
            .then(|| inherited::create_memory_file(PROMPTS))?;
        file.inspect_err(|error| {
            warn!(%error, "upgrade: no memory for the index of prompts: the new process starts without it");
        })
        .ok()
    }

    fn hand_over(&self, mut handover: Handover) -> Handover {
        for one in &self.subsystems {
            one.hand_over(&mut handover);
        }
        self.manager.hand_over(&mut handover);
        handover
    }

    fn resume(&self) {
        self.subsystems.iter().for_each(|one| one.resume());
    }
}

/// The file as one of the sockets that are passed on.
fn to_socket(file: &File) -> Option<InheritedSocket> {
    let socket = file.try_clone().ok()?.into();
    let name = PROMPTS.to_owned().into();
    Some(InheritedSocket { name, socket })
}

/// Starts the program that is now where this process was started from, with the same arguments.
fn start(end: std::os::fd::OwnedFd) -> Result<Child, String> {
    let mut arguments = std::env::args_os();
    let called = arguments.next().unwrap_or_default();
    let arguments: Vec<_> = arguments.collect();
    let mut command = Command::new(&called);
    command
        .args(arguments)
        .stdin(Stdio::from(end))
        .env(VARIABLE, std::process::id().to_string());
    // They are about this process.
    for name in [
        "LISTEN_PID",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "LISTEN_PIDFDID",
    ] {
        command.env_remove(name);
    }
    command
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", called.to_string_lossy()))
}

/// Sees to it that the process ends, and says how.
fn end_of(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + END;
    while Instant::now() < end {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}
