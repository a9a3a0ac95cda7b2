//! Counts of a run: latencies, errors by kind, and the delays of sends.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The longest time that is told apart from longer ones.
const LONGEST: u64 = 3_600_000_000_000;
/// Statuses that there are.
const STATUSES: usize = 600;

/// Reason why a request got no whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nobody listens there.
    Refused,
    /// The connection could not be made for another reason.
    Connect,
    /// The handshake of TLS failed.
    Tls,
    /// The request took longer than `--timeout`.
    Timeout,
    /// The connection was closed before an answer.
    Closed,
    /// The connection was closed within an answer.
    HalfBody,
    /// The bytes that came are no answer of the protocol.
    Malformed,
    /// The head of an answer was too long.
    HeadTooLong,
    /// More redirects than are followed, or to where nobody can go.
    Redirect,
    /// The server said no in the words of its protocol: a reset stream, a reply of FTP.
    Rejected,
    /// The request was still waiting for its answer when the run had ended.
    Unfinished,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 11] = [
        Kind::Refused,
        Kind::Connect,
        Kind::Tls,
        Kind::Timeout,
        Kind::Closed,
        Kind::HalfBody,
        Kind::Malformed,
        Kind::HeadTooLong,
        Kind::Redirect,
        Kind::Rejected,
        Kind::Unfinished,
    ];

    /// Returns the name of the kind in files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Refused => "refused",
            Kind::Connect => "connect",
            Kind::Tls => "tls",
            Kind::Timeout => "timeout",
            Kind::Closed => "closed",
            Kind::HalfBody => "half_body",
            Kind::Malformed => "malformed",
            Kind::HeadTooLong => "head_too_long",
            Kind::Redirect => "redirect",
            Kind::Rejected => "rejected",
            Kind::Unfinished => "unfinished",
        }
    }

    /// Returns the kind in words.
    pub fn kind_name(self) -> &'static str {
        match self {
            Kind::Refused => "connections refused",
            Kind::Connect => "connections failed otherwise",
            Kind::Tls => "handshakes of TLS failed",
            Kind::Timeout => "took longer than the timeout",
            Kind::Closed => "closed before an answer",
            Kind::HalfBody => "closed within an answer",
            Kind::Malformed => "answers that break the protocol",
            Kind::HeadTooLong => "answers whose head is too long",
            Kind::Redirect => "redirects: too many, or not valid",
            Kind::Rejected => "rejected by the server's protocol",
            Kind::Unfinished => "without an answer at the end",
        }
    }
}

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(pub Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        // These bounds are good ones; others would be the library's fault.
        let made = Histogram::new_with_bounds(1, LONGEST, 3);
        #[allow(clippy::expect_used)]
        Latencies(made.expect("bounds that a histogram can have"))
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanos);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// The time that `share` of all (0 to 1) do not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        match self.0.is_empty() {
            true => Duration::ZERO,
            false => Duration::from_nanos(self.0.value_at_quantile(share)),
        }
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        self.quantile(1.0)
    }

    /// The mean.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// Counts all that another one has counted.
    pub fn add(&mut self, other: &Latencies) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }
}

/// Counts of some time.
#[derive(Clone, Debug)]
pub struct IntervalCounts {
    /// Latencies from when a request was due to its whole answer.
    pub corrected: Latencies,
    /// Latencies from when a request was sent to its whole answer.
    pub from_send: Latencies,
    /// Delays from when a request was due to when it was sent, of those requests for which a client was
    /// free when they were due.
    pub own_error: Latencies,
    /// Requests begun.
    pub begun_requests: u64,
    /// Answered in full.
    pub answered: u64,
    /// Answers with a status of 400 or more.
    pub refusals: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Connections made.
    pub connections: u64,
    /// Redirects followed.
    pub redirects: u64,
    /// Negotiations: redirects that are kept for their quantum.
    pub negotiations: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Requests that were due while nobody was free for them.
    pub waited: u64,
    /// Errors by kind, in the order of [`Kind::ALL`].
    pub errors: [u64; Kind::ALL.len()],
    /// Answers by status.
    pub statuses: Vec<u64>,
}

impl Default for IntervalCounts {
    fn default() -> Self {
        IntervalCounts {
            corrected: Latencies::default(),
            from_send: Latencies::default(),
            own_error: Latencies::default(),
            begun_requests: 0,
            answered: 0,
            refusals: 0,
            bytes: 0,
            connections: 0,
            redirects: 0,
            negotiations: 0,
            sessions: 0,
            waited: 0,
            errors: [0; Kind::ALL.len()],
            statuses: vec![0; STATUSES],
        }
    }
}

impl IntervalCounts {
    /// Adds what another one has.
    pub fn add(&mut self, other: &IntervalCounts) {
        self.corrected.add(&other.corrected);
        self.from_send.add(&other.from_send);
        self.own_error.add(&other.own_error);
        self.begun_requests += other.begun_requests;
        self.answered += other.answered;
        self.refusals += other.refusals;
        self.bytes += other.bytes;
        self.connections += other.connections;
        self.redirects += other.redirects;
        self.negotiations += other.negotiations;
        self.sessions += other.sessions;
        self.waited += other.waited;
        let errors = self.errors.iter_mut().zip(other.errors);
        errors.for_each(|(count, more)| *count += more);
        let statuses = self.statuses.iter_mut().zip(&other.statuses);
        statuses.for_each(|(count, more)| *count += more);
    }

    /// Errors of all kinds.
    pub fn failed_count(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Counts an error.
    pub fn count_error(&mut self, kind: Kind) {
        if let Some(count) = self.errors.get_mut(kind as usize) {
            *count += 1;
        }
    }

    fn clear(&mut self) {
        self.corrected.clear();
        self.from_send.clear();
        self.own_error.clear();
        self.statuses.fill(0);
        self.begun_requests = 0;
        self.answered = 0;
        self.refusals = 0;
        self.bytes = 0;
        self.connections = 0;
        self.redirects = 0;
        self.negotiations = 0;
        self.sessions = 0;
        self.waited = 0;
        self.errors = [0; Kind::ALL.len()];
    }
}

/// A part of a run of one thread.
#[derive(Debug)]
pub(crate) struct Interval {
    /// Number of the thread.
    pub thread: usize,
    /// Counts of the interval.
    pub counted: Box<IntervalCounts>,
    /// Begin of the interval, after the start of the counted time.
    pub from: Duration,
    /// End of the interval, after the start of the counted time.
    pub to: Duration,
    /// Requests without an answer at the end of the interval.
    pub in_flight: u64,
    /// True if this is the thread's last interval.
    pub is_last: bool,
    /// CPU time of the thread, without the time in which the thread only looked at the clock.
    pub busy: Duration,
}

/// Times of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Time when the request was due.
    pub due: Instant,
    /// Time since which a client was free for the request.
    pub free: Instant,
    /// Time when a client began with the request.
    pub begun_at: Instant,
    /// Time when the request was sent.
    pub sent: Instant,
    /// Time when the answer was whole.
    pub end: Instant,
}

/// Recorder of a thread's counts, for the present interval.
pub(crate) struct Recorder {
    now: Box<IntervalCounts>,
    begun: Instant,
    start: Instant,
    in_flight: u64,
    thread: usize,
    to: mpsc::Sender<Interval>,
    spare: mpsc::Receiver<Box<IntervalCounts>>,
}

impl Recorder {
    /// Counts requests that are due from `start` on.
    pub(crate) fn new(
        start: Instant,
        thread: usize,
        to: mpsc::Sender<Interval>,
        spare: mpsc::Receiver<Box<IntervalCounts>>,
    ) -> Self {
        Recorder {
            now: Box::default(),
            begun: start,
            start,
            in_flight: 0,
            thread,
            to,
            spare,
        }
    }

    /// A request is begun.
    pub(crate) fn begin_request(&mut self, due: Instant) {
        self.in_flight += 1;
        if due >= self.start {
            self.now.begun_requests += 1;
        }
    }

    /// A request has ended.
    pub(crate) fn finish_request(&mut self, times: &Times, outcome: Result<(u16, u64), Kind>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if times.due < self.start {
            return;
        }
        let now = &mut *self.now;
        if times.free > times.due {
            // It waited for somebody, who then was there at once: that says nothing of the generator.
            now.waited += 1;
        } else {
            now.own_error
                .record(times.begun_at.saturating_duration_since(times.due));
        }
        match outcome {
            Ok((status, bytes)) => {
                now.answered += 1;
                now.bytes = now.bytes.saturating_add(bytes);
                if let Some(count) = now.statuses.get_mut(usize::from(status)) {
                    *count += 1;
                }
                if status >= 400 {
                    // Refusals are often quick, and would make the others look good.
                    now.refusals += 1;
                    return;
                }
                let since = |from| times.end.saturating_duration_since(from);
                now.corrected.record(since(times.due));
                now.from_send.record(since(times.sent));
            }
            Err(kind) => now.count_error(kind),
        }
    }

    /// Counts events beside requests; not in the warm-up.
    pub(crate) fn count(&mut self, count: impl FnOnce(&mut IntervalCounts)) {
        if Instant::now() >= self.start {
            count(&mut self.now);
        }
    }

    /// Ends the present interval, and begins the next.
    pub(crate) fn cut_interval(&mut self, at: Instant, busy: Duration, is_last: bool) {
        let mut fresh = self.spare.try_recv().unwrap_or_default();
        std::mem::swap(&mut self.now, &mut fresh);
        if is_last && self.in_flight > 0 {
            for _ in 0..self.in_flight {
                fresh.count_error(Kind::Unfinished);
            }
        }
        let interval = Interval {
            thread: self.thread,
            counted: fresh,
            from: self.begun.saturating_duration_since(self.start),
            to: at.saturating_duration_since(self.start),
            in_flight: self.in_flight,
            is_last,
            busy,
        };
        self.begun = at;
        // Nobody listens any more only if the run is over.
        let _ = self.to.send(interval);
    }
}

/// A second of a run, of all threads.
#[derive(Clone, Debug, Default)]
pub struct Second {
    /// Begin of the second, in seconds after the start of the counted time.
    pub from: f64,
    /// Length of this second in seconds.
    pub length: f64,
    /// Requests begun in this second.
    pub begun: u64,
    /// Whole answers.
    pub answered: u64,
    /// Answers with a status of 400 or more.
    pub refusals: u64,
    /// Number of errors.
    pub failed: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Requests without an answer at the end of the second.
    pub in_flight: u64,
    /// Quantiles of corrected latencies: 50, 90, 99 %, and the longest.
    pub corrected: [Duration; 4],
    /// Quantiles of latencies from when requests were sent: 50, 90, 99 %, and the longest.
    pub from_send: [Duration; 4],
    /// 99 % quantile, and longest, of the delays of sends.
    pub own_error: [Duration; 2],
}

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// All counts of the run.
    pub counted: IntervalCounts,
    /// Each second.
    pub seconds: Vec<Second>,
    /// Length of what is counted.
    pub elapsed: Duration,
    /// The busiest thread's share of its core, that in which it only looked at the clock left out.
    pub busy: f64,
    /// Planned requests that nobody was free to begin.
    pub never_begun: u64,
}

/// Adds up intervals of all threads.
pub(crate) struct Collector {
    /// For each thread: its intervals that other threads have not told of yet, and whether the thread
    /// has ended.
    threads: Vec<(VecDeque<Interval>, bool)>,
    /// Senders that return used counts to the threads.
    spares: Vec<mpsc::Sender<Box<IntervalCounts>>>,
    /// Counts of the last second.
    last: IntervalCounts,
    outcome: Outcome,
    busy: Duration,
}

fn quantiles(latencies: &Latencies) -> [Duration; 4] {
    [0.5, 0.9, 0.99, 1.0].map(|share| latencies.quantile(share))
}

impl Collector {
    /// Makes a collector for as many threads as there are `spares`: the threads get back the counts
    /// that they have sent.
    pub(crate) fn new(spares: Vec<mpsc::Sender<Box<IntervalCounts>>>) -> Self {
        Collector {
            threads: spares.iter().map(|_| (VecDeque::new(), false)).collect(),
            spares,
            last: IntervalCounts::default(),
            outcome: Outcome::default(),
            busy: Duration::ZERO,
        }
    }

    /// Takes a thread's interval; tells of the second when all threads have told of it.
    pub(crate) fn take_interval(
        &mut self,
        interval: Interval,
    ) -> Option<(&Second, &IntervalCounts)> {
        if let Some((waiting, _)) = self.threads.get_mut(interval.thread) {
            waiting.push_back(interval);
        }
        let has_all = |(waiting, ended): &(VecDeque<_>, bool)| *ended || !waiting.is_empty();
        if !self.threads.iter().all(has_all) {
            return None;
        }
        self.last.clear();
        let all = &mut self.last;
        let mut second = Second::default();
        let (mut from, mut to) = (Duration::MAX, Duration::ZERO);
        for ((waiting, ended), spare) in self.threads.iter_mut().zip(&self.spares) {
            let Some(mut interval) = waiting.pop_front() else {
                continue;
            };
            all.add(&interval.counted);
            second.in_flight += interval.in_flight;
            from = from.min(interval.from);
            to = to.max(interval.to);
            self.busy = self.busy.max(interval.busy);
            *ended |= interval.is_last;
            interval.counted.clear();
            let _ = spare.send(interval.counted);
        }
        second.from = from.as_secs_f64();
        second.length = to.saturating_sub(from).as_secs_f64();
        second.begun = all.begun_requests;
        second.answered = all.answered;
        second.refusals = all.refusals;
        second.failed = all.failed_count();
        second.bytes = all.bytes;
        second.corrected = quantiles(&all.corrected);
        second.from_send = quantiles(&all.from_send);
        second.own_error = [0.99, 1.0].map(|share| all.own_error.quantile(share));
        self.outcome.counted.add(all);
        self.outcome.elapsed = self.outcome.elapsed.max(to);
        // In the warm-up there is nothing, and between two ends there is next to nothing.
        if second.length > 0.0 {
            self.outcome.seconds.push(second);
            return self
                .outcome
                .seconds
                .last()
                .map(|second| (second, &self.last));
        }
        None
    }

    /// The end.
    pub(crate) fn into_outcome(self, never_begun: u64) -> Outcome {
        let mut outcome = self.outcome;
        outcome.never_begun = never_begun;
        let elapsed = outcome.elapsed.as_secs_f64();
        if elapsed > 0.0 {
            outcome.busy = self.busy.as_secs_f64() / elapsed;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn times(start: Instant, due: u32, free: u32, begun: u32, end: u32) -> Times {
        Times {
            due: start + MS * due,
            free: start + MS * free,
            begun_at: start + MS * begun,
            sent: start + MS * begun,
            end: start + MS * end,
        }
    }

    #[test]
    fn latencies_count_from_when_requests_were_due() {
        let (tell, told) = mpsc::channel();
        let (_spare, spares) = mpsc::channel();
        let start = Instant::now();
        let mut recorder = Recorder::new(start, 0, tell, spares);
        // One that was sent 2 ms late; one that waited 32 ms for a connection.
        recorder.begin_request(start);
        recorder.finish_request(&times(start, 10, 0, 12, 15), Ok((200, 7)));
        recorder.begin_request(start);
        recorder.finish_request(&times(start, 10, 40, 42, 45), Ok((200, 7)));
        recorder.begin_request(start);
        recorder.finish_request(&times(start, 10, 0, 10, 99), Ok((503, 1)));
        recorder.begin_request(start);
        recorder.finish_request(&times(start, 10, 0, 10, 99), Err(Kind::Timeout));
        // Due in the warm-up, and without an answer at the end.
        let mut early = times(start, 0, 0, 1, 20);
        early.due = start - MS;
        recorder.begin_request(early.due);
        recorder.finish_request(&early, Ok((200, 7)));
        recorder.begin_request(start);
        recorder.cut_interval(start + MS * 100, MS * 50, true);
        let counted = told.recv().unwrap().counted;
        let about = |found: Duration, expected: Duration| {
            let ratio = found.as_secs_f64() / expected.as_secs_f64();
            assert!((0.99..1.01).contains(&ratio), "{found:?} {expected:?}");
        };
        about(counted.corrected.quantile(0.5), MS * 5);
        about(counted.corrected.max(), MS * 35);
        about(counted.from_send.max(), MS * 3);
        about(counted.own_error.max(), MS * 2);
        assert_eq!(
            (counted.begun_requests, counted.answered, counted.refusals),
            (5, 3, 1)
        );
        assert_eq!((counted.waited, counted.bytes), (1, 15));
        assert_eq!(counted.failed_count(), 2);
        assert_eq!(counted.errors[Kind::Unfinished as usize], 1);
    }

    #[test]
    fn seconds_are_those_of_all_threads() {
        let interval = |thread, second: u64, answered, is_last| Interval {
            thread,
            counted: Box::new(IntervalCounts {
                answered,
                ..IntervalCounts::default()
            }),
            from: Duration::from_secs(second),
            to: Duration::from_secs(second + 1),
            in_flight: 1,
            is_last,
            busy: Duration::from_secs(second + 1) / 2,
        };
        let (spares, backs): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel()).unzip();
        let mut collector = Collector::new(spares);
        assert!(collector.take_interval(interval(0, 0, 5, false)).is_none());
        assert!(collector.take_interval(interval(0, 1, 6, true)).is_none());
        let (second, counted) = collector.take_interval(interval(1, 0, 50, false)).unwrap();
        assert_eq!((second.answered, second.in_flight), (55, 2));
        assert_eq!(counted.answered, 55);
        let (second, counted) = collector.take_interval(interval(1, 1, 60, false)).unwrap();
        assert_eq!((second.answered, counted.answered), (66, 66));
        // The other thread has ended.
        let (second, _) = collector.take_interval(interval(1, 2, 70, true)).unwrap();
        assert_eq!(second.answered, 70);
        let outcome = collector.into_outcome(3);
        assert_eq!((outcome.counted.answered, outcome.never_begun), (191, 3));
        assert_eq!(outcome.seconds.len(), 3);
        assert!((outcome.busy - 0.5).abs() < 1e-9);
        assert_eq!(
            backs[0].try_iter().map(|spare| spare.answered).sum::<u64>(),
            0
        );
    }
}
