//! `evenkeel sim`: what a configuration would do, in virtual time.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use evenkeel_sim::experiment::{self, export, html, plan, text};

use crate::cli::Sim;
use crate::{Failure, check, print};

/// Plays a scenario and shows what came of it.
pub(crate) fn run(args: &Sim) -> Result<(), Failure> {
    let plan = plan::load(&args.file, args.seed, args.seeds).map_err(check::refused)?;
    let bar = Bar::new(stderr().is_terminal() && !args.quiet);
    let results = experiment::run(&plan, &|done| bar.show(done));
    bar.clear();
    for (path, make) in [
        (&args.html, html::page as fn(&_, &_) -> String),
        (&args.csv, export::csv),
        (&args.json, export::json),
    ] {
        if let Some(path) = path {
            write(path, &make(&plan, &results))?;
        }
    }
    print(text::tables(&plan, &results))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let path_name = path.display();
    std::fs::write(path, text)
        .map_err(|error| Failure::new(format!("{path_name}: cannot be written: {error}")))
}

/// Time between two changes of the bar.
const EVERY: Duration = Duration::from_millis(100);

/// How far it has come, on a terminal.
struct Bar {
    shown: Option<Mutex<Instant>>,
}

impl Bar {
    fn new(is_shown: bool) -> Self {
        let shown = is_shown.then(|| Mutex::new(Instant::now()));
        Bar { shown }
    }

    fn show(&self, done: f64) {
        // Whoever finds somebody else at it leaves it to them.
        let Some(mut last) = self.shown.as_ref().and_then(|last| last.try_lock().ok()) else {
            return;
        };
        if last.elapsed() < EVERY {
            return;
        }
        *last = Instant::now();
        let full = (done * 40.0) as usize;
        let (full, left) = ("#".repeat(full.min(40)), ".".repeat(40 - full.min(40)));
        // Nobody misses a bar that cannot be drawn.
        let _ = write!(stderr(), "\r[{full}{left}] {:3.0} %", done * 100.0);
    }

    fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(stderr(), "\r{:50}\r", "");
        }
    }
}
