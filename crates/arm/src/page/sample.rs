//! Counts of a server, at a moment and between two moments.

use std::mem::offset_of;
use std::time::Duration;

use super::file::Words;
use super::lease::Lease;
use crate::layout::{self, BUCKETS, IN_FLIGHT_MAX, Lane};
use crate::process::ProcessId;

/// The part of a page that says how long something was in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Pulse {
    pub(super) since: u64,
    pub(super) busy: u64,
}

impl Pulse {
    /// Time with something in flight, in nanoseconds.
    pub(super) fn busy_time(self, now: u64) -> u64 {
        let open = if self.since == 0 {
            0
        } else {
            now.saturating_sub(self.since)
        };
        self.busy.saturating_add(open)
    }
}

/// State of a lane's owner, as the lane tells it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    id: ProcessId,
    namespace: u64,
    instances: u64,
    in_flight: u64,
}

/// Counters of an application at one moment. They only grow, until there is a new page;
/// what happened between two moments says [`Sample::interval_since`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time of the sample, on the clock of [`monotonic_nanos`](super::monotonic_nanos).
    pub at: u64,
    /// Number of the page: a new page has another number, and counts from 0.
    pub epoch: u64,
    /// Calls of `arm_init`.
    pub inits: u64,
    /// Calls of `arm_end`.
    pub ends: u64,
    /// Processes that run, and have the application open. 0 means that the server is
    /// down: on purpose if `ends` grew, else by a crash.
    pub processes: u32,
    /// Transactions in flight in these processes.
    pub in_flight: u64,
    /// The alert that holds now.
    pub alert: Option<Lease>,
    /// Time with something in flight.
    pub busy: Duration,
    /// Transactions that started.
    pub starts: u64,
    /// Transactions that stopped with `ARM_GOOD`.
    pub good: u64,
    /// Transactions that stopped with `ARM_ABORT`: a failure of the system, or a client that
    /// left.
    pub aborted: u64,
    /// Transactions that stopped with `ARM_FAILED`.
    pub failed: u64,
    /// Transactions that never stopped: their process died, ended the application, or had so
    /// many in flight that this one was given up.
    pub lost: u64,
    /// Sum over all transactions that stopped, however, of the time from start to stop.
    pub response_time: Duration,
    /// Number of transactions for which the server said how long they had been queued before
    /// they were served.
    pub waits: u64,
    /// Sum of the times that these transactions were queued.
    pub waiting_time: Duration,
    /// Good transactions with no other in flight at the application from start to stop.
    pub alone: u64,
    /// Sum of the response times of these transactions: they waited for nobody, so this is
    /// service time.
    pub alone_time: Duration,
    /// Number of times that a client's stop was followed by a start of the same client.
    pub thinks: u64,
    /// Sum of the times between these stops and starts.
    pub think_time: Duration,
    /// Response times of all transactions that stopped.
    pub histogram: Histogram,
}

impl Sample {
    /// Adds what a lane counted.
    pub(super) fn count(&mut self, lane: Words<'_>) -> Process {
        let word = |at| lane.word_at(at);
        let starts = word(offset_of!(Lane, starts));
        let good = word(offset_of!(Lane, good));
        let aborted = word(offset_of!(Lane, aborted));
        let failed = word(offset_of!(Lane, failed));
        let lost = word(offset_of!(Lane, lost));
        let add = |sum: &mut u64, value: u64| *sum = sum.wrapping_add(value);
        add(&mut self.starts, starts);
        add(&mut self.good, good);
        add(&mut self.aborted, aborted);
        add(&mut self.failed, failed);
        add(&mut self.lost, lost);
        add(&mut self.waits, word(offset_of!(Lane, waits)));
        add(&mut self.alone, word(offset_of!(Lane, alone)));
        add(&mut self.thinks, word(offset_of!(Lane, thinks)));
        let add = |sum: &mut Duration, at| {
            *sum = sum.saturating_add(Duration::from_nanos(word(at)));
        };
        add(&mut self.response_time, offset_of!(Lane, response_time));
        add(&mut self.waiting_time, offset_of!(Lane, waiting_time));
        add(&mut self.alone_time, offset_of!(Lane, alone_time));
        add(&mut self.think_time, offset_of!(Lane, think_time));
        for (index, count) in self.histogram.0.iter_mut().enumerate() {
            *count = count.wrapping_add(word(offset_of!(Lane, histogram) + index * 8));
        }

        let over = good
            .wrapping_add(aborted)
            .wrapping_add(failed)
            .wrapping_add(lost);
        let in_flight = starts.wrapping_sub(over);
        Process {
            id: ProcessId(word(offset_of!(Lane, owner))),
            namespace: word(offset_of!(Lane, namespace)),
            instances: word(offset_of!(Lane, instances)),
            // The words of a lane are not of one moment, which may make it negative.
            in_flight: if in_flight > IN_FLIGHT_MAX as u64 {
                0
            } else {
                in_flight
            },
        }
    }

    /// Counts what the processes that run have in flight.
    pub(super) fn count_in_flight(&mut self, lanes: &mut [Process], namespace: u64) {
        const NOBODY: ProcessId = ProcessId(0);
        lanes.sort_unstable_by_key(|lane| (lane.id.0, lane.namespace));
        let mut unowned = 0u64;
        for lanes in lanes.chunk_by(|a, b| (a.id, a.namespace) == (b.id, b.namespace)) {
            let Some(process) = lanes.first() else {
                continue;
            };
            let in_flight = lanes.iter().map(|lane| lane.in_flight).sum::<u64>();
            if process.id == NOBODY {
                unowned += in_flight;
                continue;
            }
            // Elsewhere the process id may be anybody's: then the page has the last word.
            if process.namespace == namespace && !process.id.is_running() {
                continue;
            }
            self.in_flight += in_flight;
            let instances = lanes.iter().map(|lane| lane.instances);
            let instances = instances.fold(0, u64::wrapping_add);
            self.processes += u32::from(instances.cast_signed() > 0);
        }
        // Threads that share a lane: theirs as long as there is anybody.
        if self.processes > 0 {
            self.in_flight += unowned;
        }
    }

    /// Returns the counts from `earlier` to this sample.
    ///
    /// If the application got a new page in between, or a counter went backwards, the
    /// interval is what the new page counted, and says so.
    pub fn interval_since(&self, earlier: &Sample) -> Interval {
        let length = Duration::from_nanos(self.at.saturating_sub(earlier.at));
        let restarted = self.epoch != earlier.epoch || self.starts < earlier.starts;
        let fresh = Sample::default();
        let earlier = if restarted { &fresh } else { earlier };
        let aborted = self.aborted.saturating_sub(earlier.aborted);
        let failed = self.failed.saturating_sub(earlier.failed);
        let good = self.good.saturating_sub(earlier.good);
        Interval {
            length,
            restarted,
            processes: self.processes,
            ended: self.ends > earlier.ends,
            in_flight: self.in_flight,
            starts: self.starts.saturating_sub(earlier.starts),
            completions: good.saturating_add(aborted).saturating_add(failed),
            aborted,
            failed,
            lost: self.lost.saturating_sub(earlier.lost),
            response_time_sum: self.response_time.saturating_sub(earlier.response_time),
            waits: self.waits.saturating_sub(earlier.waits),
            waiting_time_sum: self.waiting_time.saturating_sub(earlier.waiting_time),
            alone: self.alone.saturating_sub(earlier.alone),
            alone_time_sum: self.alone_time.saturating_sub(earlier.alone_time),
            busy: self.busy.saturating_sub(earlier.busy).min(length),
            thinks: self.thinks.saturating_sub(earlier.thinks),
            think_time_sum: self.think_time.saturating_sub(earlier.think_time),
            histogram: self.histogram.since(&earlier.histogram),
        }
    }
}

/// Counts of an application between two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// Time between the samples.
    pub length: Duration,
    /// True if the counters began anew in between.
    pub restarted: bool,
    /// Processes that had the application open at the end. 0: the server is down.
    pub processes: u32,
    /// True if a process called `arm_end`.
    pub ended: bool,
    /// Transactions in flight at the end.
    pub in_flight: u64,
    /// Transactions that started.
    pub starts: u64,
    /// Transactions that stopped, in whatever way.
    pub completions: u64,
    /// Transactions that were aborted, among those that stopped.
    pub aborted: u64,
    /// Transactions that failed, among those that stopped.
    pub failed: u64,
    /// Transactions found never to stop: a dead process', for one.
    pub lost: u64,
    /// Sum of the response times of the completions.
    pub response_time_sum: Duration,
    /// Transactions that said how long they were queued.
    pub waits: u64,
    /// Sum of what they said.
    pub waiting_time_sum: Duration,
    /// Good ones that had no other in flight beside them.
    pub alone: u64,
    /// Sum of their response times.
    pub alone_time_sum: Duration,
    /// Time with something in flight, at most `length`.
    pub busy: Duration,
    /// Think times that were seen.
    pub thinks: u64,
    /// Sum of the think times.
    pub think_time_sum: Duration,
    /// Response times of the completions.
    pub histogram: Histogram,
}

/// Response times by size, in buckets of which each ends at most a quarter above its
/// start, from a microsecond to four minutes.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram(pub(super) [u64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Histogram {
    /// Returns the number of response times.
    pub fn count(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the time below which the share `q` (0 to 1) of the response times lies, to
    /// within a bucket; `None` if there are no response times.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let total = self.count();
        let wanted = q.clamp(0.0, 1.0) * total as f64;
        let mut below = 0u64;
        for (index, &count) in self.0.iter().enumerate() {
            let with = below.saturating_add(count);
            if count > 0 && with as f64 >= wanted {
                // As if they were spread evenly over the bucket.
                let share = (wanted - below as f64) / count as f64;
                let start = layout::bucket_start(index);
                let end = layout::bucket_start(index + 1);
                let nanos = start as f64 + share * (end - start) as f64;
                return Some(Duration::from_nanos(nanos as u64));
            }
            below = with;
        }
        None
    }

    fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.0;
        for (count, earlier) in counts.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(earlier);
        }
        Self(counts)
    }
}
