//! Record of what the clients have seen, second by second.

use std::time::{Duration, Instant};

use crate::load;
use crate::stage::Stage;

/// Seconds that are judged again when another one is over.
const REJUDGED: usize = 15;

/// 99th percentile of each second so far, per arm.
#[derive(Debug, Default)]
pub(crate) struct History(pub(crate) Vec<Vec<Duration>>);

impl History {
    /// Adds the seconds that are over, and judges the latest ones again: some of their
    /// requests may have been waiting.
    pub(crate) fn add_finished_seconds(&mut self, stage: &Stage, started: Instant) {
        const SECOND: Duration = Duration::from_secs(1);
        let now = Instant::now();
        let seconds = usize::try_from(now.duration_since(started).as_secs()).unwrap_or(0);
        self.0.resize(stage.arms.len(), Vec::new());
        for (arm, past) in stage.arms.iter().zip(&mut self.0) {
            if past.len() == seconds {
                continue;
            }
            past.truncate(past.len().saturating_sub(REJUDGED));
            let seen = load::lock_seen(&arm.seen);
            for second in past.len()..seconds {
                let from = started + SECOND * u32::try_from(second).unwrap_or(u32::MAX);
                past.push(seen.quantiles(from, from + SECOND, now).p99);
            }
        }
    }
}
