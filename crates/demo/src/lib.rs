//! The show of `make demo`: the same load through the default strategy, through the strategies that everybody
//! knows and, if it is installed, through HAProxy, side by side, while one back-end turns slow.
//!
//! The balancer is the product's own binary in a process of its own, asked through its
//! admin API like any other; what the demo adds are back-ends, a load and a view.

#![deny(unsafe_code)]

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_admin::client::{Client, ClientError};
use evenkeel_admin::wire::{Done, Report};
use evenkeel_manager::config::ClientTls;
use evenkeel_manager::status::Status;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

pub mod backend;
pub mod load;
mod script;
pub mod stage;
mod summary;
pub mod timer;
mod view;

use script::{Phase, Script};
use stage::Stage;

/// Interval in which the view is drawn, and interval in which the balancer is asked.
const REFRESH: Duration = Duration::from_millis(250);
const ASK: Duration = Duration::from_millis(500);

/// Interval in which a few lines are printed, without a terminal.
const PLAIN: Duration = Duration::from_secs(5);

/// Longest time that the balancer may take to get ready.
const READY: Duration = Duration::from_secs(10);

/// Samples older than this are forgotten in a run without an end.
const REMEMBER: Duration = Duration::from_secs(600);

/// Reason why the demo cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The back-ends cannot be started.
    #[error("cannot start the demo's back-ends on loopback: {0}")]
    Backends(io::Error),
    /// A file cannot be written.
    #[error("cannot write {path}: {source}; TMPDIR names another folder")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file cannot be written.
        source: io::Error,
    },
    /// The balancer does not run.
    #[error("the balancer does not run: {reason}\n(its log was {log})")]
    Balancer {
        /// Log of the balancer.
        log: PathBuf,
        /// Reason why the balancer does not run.
        reason: String,
    },
    /// The balancer's admin API does not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No answer came back through an arm.
    #[error("no request of the arm {0} was answered")]
    NoAnswer(&'static str),
    /// The terminal does not work.
    #[error("the terminal cannot be used: {0}; with output to a pipe the demo needs none")]
    Terminal(io::Error),
}

/// Runs the demo for `seconds`, or until Ctrl-C if 0, with `evenkeel` as the balancer's
/// binary, and prints a summary.
pub fn run(evenkeel: &Path, seconds: u64) -> Result<(), DemoError> {
    let interrupted = interrupted().map_err(DemoError::Terminal)?;
    let mut stage = Stage::set_up(evenkeel)?;
    let client = Client::new(&stage.admin.to_string(), None, &ClientTls::default())?;
    wait_until_ready(&mut stage, &client)?;
    println!("{}", view::where_to_look(&stage));
    stage.start_load()?;
    let mut show = Show {
        script: Script::new(seconds),
        started: Instant::now(),
        phases: Vec::new(),
        history: view::History::default(),
        stage,
        client,
        status: None,
        asked: None,
        busy: Vec::new(),
        shares: Vec::new(),
    };
    if io::stdout().is_terminal() {
        let mut terminal = ratatui::try_init().map_err(DemoError::Terminal)?;
        let result = show.in_terminal(&mut terminal, &interrupted);
        ratatui::restore();
        result?;
    } else {
        show.in_lines(&interrupted)?;
    }
    print!("{}", summary::format_summary(&show));
    match show.stage.silent_arm() {
        Some(arm) => Err(DemoError::NoAnswer(arm)),
        None => Ok(()),
    }
}

/// Returns a flag that is set when somebody wants the demo to end.
fn interrupted() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let told = Arc::clone(&flag);
    std::thread::Builder::new()
        .name("demo-signals".into())
        .spawn(move || {
            runtime.block_on(async {
                use tokio::signal::unix::{SignalKind, signal};
                let (Ok(mut interrupt), Ok(mut terminate)) = (
                    signal(SignalKind::interrupt()),
                    signal(SignalKind::terminate()),
                ) else {
                    return;
                };
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    told.store(true, Ordering::Relaxed);
                }
            });
        })?;
    Ok(flag)
}

fn wait_until_ready(stage: &mut Stage, client: &Client) -> Result<(), DemoError> {
    let deadline = Instant::now() + READY;
    loop {
        let asked = client.get::<Status>(&["v1", "status"], &[]);
        match asked {
            Ok(status) if status.generation > 0 => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            _ => {}
        }
        if let Some(error) = stage.balancer_ended() {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A run under way.
pub(crate) struct Show {
    script: Script,
    started: Instant,
    /// The phases so far, the current one last.
    phases: Vec<Phase>,
    history: view::History,
    stage: Stage,
    client: Client,
    status: Option<Status>,
    asked: Option<Instant>,
    /// Worker time of each back-end when its load was last reported.
    busy: Vec<Duration>,
    /// Shares of the members at the end of the last slow phase, per arm.
    shares: Vec<Vec<f64>>,
}

impl Show {
    fn in_terminal(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        interrupted: &AtomicBool,
    ) -> Result<(), DemoError> {
        while !interrupted.load(Ordering::Relaxed) && self.step()? {
            terminal
                .draw(|frame| view::draw_view(self, frame))
                .map_err(DemoError::Terminal)?;
            if event::poll(REFRESH).map_err(DemoError::Terminal)? {
                let Event::Key(key) = event::read().map_err(DemoError::Terminal)? else {
                    continue;
                };
                let control_c =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn in_lines(&mut self, interrupted: &AtomicBool) -> Result<(), DemoError> {
        let mut next = self.started + PLAIN;
        while !interrupted.load(Ordering::Relaxed) && self.step()? {
            if Instant::now() >= next {
                println!("{}", view::plain_text(self));
                next += PLAIN;
            }
            std::thread::sleep(REFRESH);
        }
        Ok(())
    }

    /// Follows the script and asks the balancer; answers whether the run goes on.
    fn step(&mut self) -> Result<bool, DemoError> {
        if let Some(error) = self.stage.balancer_ended() {
            return Err(error);
        }
        let Some(phase) = self.script.phase_at(self.started.elapsed()) else {
            return Ok(false);
        };
        if self.phases.last() != Some(&phase) {
            if self.phases.last().is_some_and(|last| last.slow) {
                self.shares = self.status.iter().flat_map(shares).collect();
            }
            self.stage.set_slow(phase.slow);
            self.phases.push(phase);
        }
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            self.report_loads()?;
            self.status = Some(self.client.get(&["v1", "status"], &[])?);
            self.asked = Some(Instant::now());
        }
        self.history.add_finished_seconds(&self.stage, self.started);
        if let Some(forget) = Instant::now().checked_sub(REMEMBER) {
            for arm in &self.stage.arms {
                load::lock_seen(&arm.seen).forget_before(forget);
            }
        }
        Ok(true)
    }

    /// Tells the balancer how busy each back-end has been, as back-ends that know their
    /// load would do themselves.
    fn report_loads(&mut self) -> Result<(), DemoError> {
        let elapsed = self.asked.map(|asked| asked.elapsed());
        let mut busy = Vec::new();
        for arm in self.stage.own_arms() {
            for (index, backend) in arm.backends.iter().enumerate() {
                let before = self.busy.get(busy.len()).copied();
                let now = backend.busy_time();
                busy.push(now);
                let (Some(before), Some(elapsed)) = (before, elapsed) else {
                    continue;
                };
                let possible = elapsed.as_secs_f64() * backend.workers() as f64;
                let used = now.saturating_sub(before).as_secs_f64() / possible.max(1e-3);
                let location = stage::location_name(arm.name, index);
                let report = Report {
                    loads: [("cpu".to_owned(), used)].into(),
                };
                let path = ["v1", "locations", &location, "loads"];
                let _: Done = self.client.post_resource(&path, &report)?;
            }
        }
        self.busy = busy;
        Ok(())
    }
}

/// Shares of the members, per arm.
fn shares(status: &Status) -> Vec<Vec<f64>> {
    let groups = status.groups.iter();
    groups
        .map(|group| group.members.iter().map(|member| member.share).collect())
        .collect()
}
