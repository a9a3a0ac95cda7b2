//! A progress bar.

use std::io::{Write, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between two changes of the bar.
const EVERY: Duration = Duration::from_millis(100);

/// How far something has come, on a terminal.
pub(crate) struct Bar {
    shown: Option<Mutex<Instant>>,
}

impl Bar {
    /// One that is shown or not.
    pub(crate) fn new(is_shown: bool) -> Self {
        let shown = is_shown.then(|| Mutex::new(Instant::now()));
        Bar { shown }
    }

    /// Shows the share that is done, from 0 to 1.
    pub(crate) fn show(&self, done: f64) {
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

    /// Takes it away.
    pub(crate) fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(stderr(), "\r{:50}\r", "");
        }
    }
}
