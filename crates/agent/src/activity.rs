//! Activity of a server in a measurement interval, as the pages of its processes say.

use std::time::Duration;

use arm::page::Interval;

/// Activity of one server in one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// Length of the interval.
    pub length: Duration,
    /// Processes that have an application of the server open.
    pub processes: u32,
    /// Requests in flight at the end.
    pub in_flight: u64,
    /// Requests that started.
    pub starts: u64,
    /// Requests that stopped.
    pub completions: u64,
    /// Among them, those that failed or were aborted.
    pub errors: u64,
    /// Sum of the response times of the completions.
    pub response_time: Duration,
    /// Requests that said how long they were queued.
    pub waits: u64,
    /// Sum of what they said.
    pub waiting_time: Duration,
    /// Requests that were served with no other beside them.
    pub alone: u64,
    /// Sum of their response times.
    pub alone_time: Duration,
    /// Time with something in flight.
    pub busy: Duration,
    /// Think times that were seen.
    pub thinks: u64,
    /// Sum of the think times.
    pub think_time: Duration,
}

impl Activity {
    /// Nothing, for an interval of a length.
    pub fn empty_interval(length: Duration) -> Self {
        Activity {
            length,
            ..Activity::default()
        }
    }

    /// Adds what happened on one more page of the server.
    pub fn add_interval(&mut self, page: &Interval) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        let time = |a: &mut Duration, b: Duration| *a = a.saturating_add(b);
        self.processes = self.processes.saturating_add(page.processes);
        sum(&mut self.in_flight, page.in_flight);
        sum(&mut self.starts, page.starts);
        sum(&mut self.completions, page.completions);
        sum(&mut self.errors, page.aborted.saturating_add(page.failed));
        time(&mut self.response_time, page.response_time_sum);
        sum(&mut self.waits, page.waits);
        time(&mut self.waiting_time, page.waiting_time_sum);
        sum(&mut self.alone, page.alone);
        time(&mut self.alone_time, page.alone_time_sum);
        sum(&mut self.thinks, page.thinks);
        time(&mut self.think_time, page.think_time_sum);
        // At least as long as the busiest page; how much two of them overlap is not known.
        self.busy = self.busy.max(page.busy).min(self.length);
    }
}
