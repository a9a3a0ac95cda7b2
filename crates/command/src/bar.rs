//! A progress bar.

use std::io::{Write, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between two changes of the bar.
const EVERY: Duration = Duration::from_millis(100);

/// Progress bar on a terminal (standard error).
#[derive(Debug)]
pub struct Bar {
    shown: Option<Mutex<Instant>>,
}

impl Bar {
    /// Returns a bar, which draws nothing unless `is_shown`.
    pub fn new(is_shown: bool) -> Self {
        let shown = is_shown.then(|| Mutex::new(Instant::now()));
        Bar { shown }
    }

    /// Draws the share that is done, from 0 to 1.
    pub fn draw_share(&self, done: f64) {
        // Another thread that draws at this moment is enough.
        let Some(mut last) = self.shown.as_ref().and_then(|last| last.try_lock().ok()) else {
            return;
        };
        if last.elapsed() < EVERY {
            return;
        }
        *last = Instant::now();
        let full = (done * 40.0) as usize;
        let (full, left) = ("#".repeat(full.min(40)), ".".repeat(40 - full.min(40)));
        // A bar that cannot be drawn is not worth a failure.
        let _ = write!(stderr(), "\r[{full}{left}] {:3.0} %", done * 100.0);
    }

    /// Removes the bar from the terminal.
    pub fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(stderr(), "\r{:50}\r", "");
        }
    }
}
