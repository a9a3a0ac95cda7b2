//! Members, and the values read there.

use std::time::Duration;

use crate::engine::duration_nanos;
use crate::scenario::MemberModel;
use crate::server::Server;

/// A member, and the values read there.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) server: Server,
    /// True if the member has died.
    pub(super) dead: bool,
    /// Load that the member reports in place of its real load.
    pub(super) reported: Option<f64>,
    /// By reader.
    pub(super) reads: Vec<Read>,
    /// Busy time and the time itself, at the last update, variance, and sample.
    pub(super) updated: (f64, u64),
    pub(super) counted: (f64, u64),
    pub(super) sampled: (f64, u64),
    /// Value that was written down last.
    pub(super) written: Option<f64>,
    /// Requests and errors.
    pub(super) done: (u64, u64),
}

/// Values of a reader's last report: busy time, requests and errors, and the time of the report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    pub(super) busy: (f64, u64),
    pub(super) done: (u64, u64),
    pub(super) at: u64,
}

/// A report on its way, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Said {
    pub(super) load: u64,
    pub(super) requests_per_second: u64,
    pub(super) errors_per_second: u64,
}

impl Member {
    pub(super) fn new(model: &MemberModel, averages: bool, readers: usize) -> Self {
        let MemberModel {
            discipline,
            slots,
            slowness,
            failing,
            ..
        } = *model;
        Member {
            server: Server::new(discipline, slots, slowness, failing, averages),
            dead: false,
            reported: None,
            reads: vec![Read::default(); readers],
            updated: (0.0, 0),
            counted: (0.0, 0),
            sampled: (0.0, 0),
            written: None,
            done: (0, 0),
        }
    }

    /// The member has answered a request, or failed to.
    pub(super) fn count_answer(&mut self, failed: bool) {
        self.done.0 += 1;
        self.done.1 += u64::from(failed);
    }

    /// Builds the member's report of its requests and of a load.
    pub(super) fn say(&mut self, reader: usize, load: f64, now: u64) -> Said {
        let read = &mut self.reads[reader];
        let (before, since) = (read.done, read.at);
        (read.done, read.at) = (self.done, now);
        let (requests, errors) = (self.done.0 - before.0, self.done.1 - before.1);
        let elapsed = (now - since).max(1) as f64 / 1e9;
        let per_second = |count: u64| (count as f64 / elapsed * 1e3) as u64;
        Said {
            load: (load * 1e3) as u64,
            requests_per_second: per_second(requests),
            errors_per_second: per_second(errors),
        }
    }

    /// Share of its slots that was busy since the last sample.
    pub(super) fn busy_since_sample(&mut self, now: u64, every: Duration) -> f64 {
        utilization(&mut self.server, &mut self.sampled, every, now).unwrap_or(0.0)
    }
}

/// Share of a member's slots that was busy since `last`, or over `interval` if that is longer.
pub(super) fn utilization(
    server: &mut Server,
    last: &mut (f64, u64),
    interval: Duration,
    now: u64,
) -> Option<f64> {
    let busy = server.busy(now);
    let (then, at) = std::mem::replace(last, (busy, now));
    let elapsed = ((now - at) as f64).max(duration_nanos(interval)) * server.slots() as f64;
    (elapsed > 0.0).then(|| ((busy - then) / elapsed).clamp(0.0, 1.0))
}
