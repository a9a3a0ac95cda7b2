//! The show of `make demo`: the same load through the default strategy, through the strategies that everybody
//! knows and, if it is installed, through HAProxy, side by side, while one back-end turns slow.
//!
//! The balancer is the product's own binary in a process of its own, asked through its
//! admin API like any other; what the demo adds are back-ends, a load and a view.

#![deny(unsafe_code)]

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_admin::client::Client;
use evenkeel_manager::config::ClientTls;
use evenkeel_manager::status::Status;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

pub mod backend;
mod error;
mod history;
pub mod load;
mod script;
mod show;
pub mod stage;
mod summary;
pub mod timer;
mod view;

pub use error::DemoError;

use show::Show;
use stage::{READY, Stage};

/// Interval in which the view is drawn.
const REFRESH: Duration = Duration::from_millis(250);

/// Interval in which a few lines are printed, without a terminal.
const PLAIN: Duration = Duration::from_secs(5);

/// Runs the demo for `seconds`, or until Ctrl-C if 0, with `evenkeel` as the balancer's
/// binary, and prints a summary.
pub fn run(evenkeel: &Path, seconds: u64) -> Result<(), DemoError> {
    let interrupted = interrupted().map_err(DemoError::Terminal)?;
    let mut stage = Stage::set_up(evenkeel)?;
    let client = Client::new(&stage.admin.to_string(), None, &ClientTls::default())?;
    wait_until_ready(&mut stage, &client)?;
    println!("{}", view::where_to_look(&stage));
    stage.start_load()?;
    let mut show = Show::new(stage, client, seconds);
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
}
