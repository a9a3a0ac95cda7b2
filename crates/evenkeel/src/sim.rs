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
    let mut plan = plan::load(&args.file, args.seed, args.seeds).map_err(check::refused)?;
    if args.ideal {
        plan = plan.with_ideal().map_err(check::refused)?;
    }
    let files = [
        (&args.html, html::page as fn(&_, &_) -> String),
        (&args.csv, export::csv),
        (&args.json, export::json),
    ];
    // A run may take long: better told now than after it.
    for path in files.iter().filter_map(|(path, _)| path.as_deref()) {
        let mut options = std::fs::OpenOptions::new();
        let opened = options.append(true).create(true).open(path);
        opened.map_err(|error| cannot_write(path, &error))?;
    }
    let bar = Bar::new(stderr().is_terminal() && !args.quiet);
    let results = experiment::run(&plan, &|done| bar.show(done));
    bar.clear();
    for (path, make) in files {
        if let Some(path) = path {
            write(path, &make(&plan, &results))?;
        }
    }
    print(text::tables(&plan, &results))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: cannot be written: {error}", path.display()))
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
