//! Schedule of questions to locations, worth of their answers, and the time when loads are unknown.
//!
//! No I/O, no clock and no randomness of its own: sockets and pages are around it.
//!
//! Every location has its own place in the schedule, so that a location which does not answer delays no
//! other. Nothing waits for an answer: each question is sent at its time, and an answer is matched with the
//! question by the number in it. So late, lost, doubled and reordered answers are all the same to the
//! schedule.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::Monitor;
use evenkeel_core::tally::Tally;
use evenkeel_core::time::Instant;
use evenkeel_kernel::query::{Answer, Key, Query};
use evenkeel_kernel::record::{Record, Source};

mod entry;
mod target;
mod verdict;

use crate::ahead::prefetch_value;
use entry::Entry;
pub use entry::State;
pub use target::{PollTarget, RecordSource};
pub use verdict::Verdict;

/// Questions to one location to which an answer may still come.
const OPEN: usize = 128;

/// Within this time, or the interval if that is shorter, everybody is asked for the first
/// time, each at a random moment.
const START_SPREAD: Duration = Duration::from_secs(1);

/// Whoever has not answered for long is asked less and less often, but at least so often.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bits of a reader number that say which place it stands for.
const PLACE_BITS: u32 = 24;

/// Upper bounds of the delays that are counted, in microseconds.
pub const DELAYS: [u64; 10] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
];

/// View of a location.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// Wanted location and its settings.
    pub target: &'a PollTarget,
    /// State of the location's loads.
    pub state: State,
    /// Time when the last news came.
    pub at: Option<Instant>,
    /// Time that the last answer had taken.
    pub round_trip: Option<Duration>,
    /// Writer of the last record.
    pub source: Option<Source>,
    /// Number of questions.
    pub question_count: u64,
    /// Number of questions that brought news.
    pub news_count: u64,
    /// Number of times that there was no answer when it was time for the next question.
    pub missed: u64,
    /// Answers that were refused.
    pub refused: u64,
    /// Questions that the system did not send, or pages that could not be read.
    pub unsent: u64,
    /// Number of times that the location's loads became unknown.
    pub expired: u64,
    /// Trouble of the last time, if nothing was right since.
    pub trouble: Option<&'a str>,
}

/// Task for a location that is due now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueTask {
    /// The question that was written goes there.
    Datagram {
        /// The place, for [`Poller::note_unsent`].
        index: usize,
        /// Address to which the question goes.
        to: SocketAddr,
    },
    /// The page is to be read, for [`Poller::read`].
    Page {
        /// The place.
        index: usize,
    },
}

/// The schedule of all locations.
pub struct Poller {
    /// The upper bits of the numbers by which back-ends know this process.
    reader: u64,
    /// Number of the last question; over all locations, so that it never falls for any.
    number: u64,
    rng: fastrand::Rng,
    entries: Vec<Option<Entry>>,
    by_name: HashMap<Arc<str>, usize>,
    free: Vec<usize>,
    queue: BinaryHeap<Reverse<(Instant, u32, u32)>>,
    stamp: u32,
    counts: Tally<{ Verdict::ALL.len() }>,
    asked: u64,
    delays: [u64; DELAYS.len() + 1],
    delay_sum: Duration,
}

impl Poller {
    /// A schedule of nobody. `reader` is a random number, `first` one that is larger than
    /// whatever an earlier process of this machine has used: its time in nanoseconds since
    /// 1970, say.
    pub fn new(reader: u64, first: u64, rng: fastrand::Rng) -> Self {
        Poller {
            reader: reader >> PLACE_BITS << PLACE_BITS,
            number: first,
            rng,
            entries: Vec::new(),
            by_name: HashMap::new(),
            free: Vec::new(),
            queue: BinaryHeap::new(),
            stamp: 0,
            counts: Tally::default(),
            asked: 0,
            delays: [0; DELAYS.len() + 1],
            delay_sum: Duration::ZERO,
        }
    }

    /// Makes `wanted` what is asked for. Whoever stays keeps its place in the schedule, its
    /// counts and, at the same back-end, its history. The loads of those that go are unknown
    /// until somebody else reports them.
    pub fn set_targets(&mut self, wanted: Vec<PollTarget>, now: Instant) {
        let mut gone = std::mem::take(&mut self.by_name);
        for wanted in wanted {
            let name = Arc::clone(wanted.location.name());
            let known = gone.remove(&name);
            match known {
                Some(index) => self.change(index, wanted, now),
                None => self.add(name, wanted, now),
            }
        }
        for index in gone.into_values() {
            if let Some(entry) = self.entries.get_mut(index).and_then(Option::take) {
                entry.wanted.location.expire(Monitor::reported_loads());
                self.free.push(index);
            }
        }
    }

    fn add(&mut self, name: Arc<str>, wanted: PollTarget, now: Instant) {
        let next = now.after(self.begin(wanted.config.interval));
        let entry = Entry::new(wanted, next);
        let free = self.free.pop();
        let index = free.unwrap_or(self.entries.len());
        match self.entries.get_mut(index) {
            Some(place) => *place = Some(entry),
            // Reader numbers cannot tell more locations apart; nobody has so many.
            None if index >> PLACE_BITS > 0 => return,
            None => self.entries.push(Some(entry)),
        }
        self.by_name.insert(name, index);
        self.enqueue(index);
    }

    fn change(&mut self, index: usize, wanted: PollTarget, now: Instant) {
        let soon = self.begin(wanted.config.interval);
        let name = Arc::clone(wanted.location.name());
        let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        self.by_name.insert(name, index);
        if entry.wanted.is_same(&wanted) {
            return;
        }
        if !Arc::ptr_eq(&entry.wanted.location, &wanted.location) {
            entry.expire_loads();
            entry.state = State::Waiting;
        }
        if !entry.wanted.is_continued_by(&wanted) {
            // Its loads go on to count, until the new place has had its time to answer.
            entry.before = None;
            entry.open.clear();
            entry.silent_since = Some(now);
            entry.source = None;
            entry.round_trip = None;
        }
        entry.trouble = None;
        entry.pause = wanted.config.interval;
        entry.host = wanted.host();
        entry.wanted = wanted;
        entry.next = entry.next.min(now.after(soon));
        self.enqueue(index);
    }

    fn begin(&mut self, interval: Duration) -> Duration {
        interval.min(START_SPREAD).mul_f64(self.rng.f64())
    }

    fn enqueue(&mut self, index: usize) {
        self.stamp = self.stamp.wrapping_add(1);
        let stamp = self.stamp;
        if let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) {
            entry.stamp = stamp;
            let event = (entry.next_event(), index as u32, stamp);
            self.queue.push(Reverse(event));
        }
    }

    /// Returns the time when there is something to do next.
    pub fn next_event(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((at, ..))| *at)
    }

    /// Returns the next question that is due at `now`. A question for a datagram is written to `out`.
    pub fn next(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<DueTask> {
        loop {
            let Reverse((at, index, stamp)) = *self.queue.peek()?;
            if at > now {
                return None;
            }
            self.queue.pop();
            let index = index as usize;
            let entry = self.entries.get_mut(index).and_then(Option::as_mut);
            let Some(entry) = entry.filter(|entry| entry.stamp == stamp) else {
                continue;
            };
            if entry.is_read_elsewhere(now) {
                entry.skip_question(now, self.rng.f64());
                let event = (entry.next_event(), index as u32, stamp);
                self.queue.push(Reverse(event));
                continue;
            }
            if entry.deadline().is_some_and(|deadline| deadline <= now) {
                entry.expire_loads();
                entry.state = State::Stale;
                entry.expired += 1;
            }
            if entry.next > now {
                let event = (entry.next_event(), index as u32, stamp);
                self.queue.push(Reverse(event));
                continue;
            }
            return Some(self.ask(index, now, out));
        }
    }

    fn ask(&mut self, index: usize, now: Instant, out: &mut Vec<u8>) -> DueTask {
        // The caller has just found it there.
        let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) else {
            return DueTask::Page { index };
        };
        let (interval, timeout) = (entry.wanted.config.interval, entry.wanted.config.timeout());
        let is_silent = entry.silent_since.is_some();
        if is_silent && entry.asked > 0 {
            entry.missed += 1;
        }
        // What a process before this one has read there counts no longer than what this one reads.
        let is_over = |since| now.since(since) >= timeout;
        if entry.state == State::Waiting && entry.silent_since.is_some_and(is_over) {
            entry.expire_loads();
        }
        let delay = now.since(entry.next);
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let bucket = DELAYS.iter().position(|limit| micros <= *limit);
        if let Some(count) = self.delays.get_mut(bucket.unwrap_or(DELAYS.len())) {
            *count += 1;
        }
        self.delay_sum = self.delay_sum.saturating_add(delay);
        // A datagram may have been lost, so whoever does not answer is asked again soon. When
        // nothing has come for long, it is down, and asking it often only fills queues.
        entry.pause = match (is_silent, entry.state) {
            (false, _) | (true, State::Fresh | State::Elsewhere) => entry.wanted.retry(),
            (true, _) => {
                let longest = interval.min(PATIENCE).max(PATIENCE / 2);
                (entry.pause.min(PATIENCE) * 2).min(longest)
            }
        };
        entry.due = entry.next;
        entry.go_on(now, self.rng.f64());
        entry.silent_since.get_or_insert(now);
        entry.asked += 1;
        self.asked += 1;
        let ask = match (&entry.wanted.place, &entry.wanted.key) {
            (RecordSource::Udp(to), Some(key)) => {
                self.number += 1;
                let query = Query {
                    length: entry.question_length() as u16,
                    target: entry.wanted.config.target,
                    first_cpu: 0,
                    reader: self.reader | index as u64,
                    number: self.number,
                    host: entry.host,
                };
                query.write(key, out);
                while entry.open.len() >= OPEN
                    || entry
                        .open
                        .front()
                        .is_some_and(|(_, sent)| now.since(*sent) > timeout)
                {
                    entry.open.pop_front();
                }
                entry.open.push_back((self.number, now));
                DueTask::Datagram { index, to: *to }
            }
            _ => DueTask::Page { index },
        };
        let event = (entry.next_event(), index as u32, entry.stamp);
        self.queue.push(Reverse(event));
        self.fetch_next();
        ask
    }

    /// Fetches those whose turn is next: the first of the queue, and the two of which one is the
    /// second.
    fn fetch_next(&self) {
        for Reverse((_, index, _)) in self.queue.as_slice().iter().take(3) {
            if let Some(entry) = self.entries.get(*index as usize) {
                prefetch_value(entry);
            }
        }
    }

    /// The system did not send the last question of a location.
    pub fn note_unsent(&mut self, index: usize, error: &dyn std::fmt::Display) {
        if let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) {
            entry.unsent += 1;
            entry.open.pop_back();
            entry.trouble = Some(error.to_string());
        }
    }

    /// Returns the entry whose answer a datagram seems to be; nothing of the datagram is checked yet.
    fn place(&self, datagram: &[u8]) -> Option<&Option<Entry>> {
        let reader = Answer::claimed_reader(datagram)?;
        self.entries.get((reader ^ self.reader) as usize)
    }

    /// Fetches what is looked at first when this datagram is [received](Poller::receive_datagram), before
    /// its turn.
    pub fn prefetch_entry(&self, datagram: &[u8]) {
        if let Some(entry) = self.place(datagram) {
            prefetch_value(entry);
        }
    }

    /// Fetches what is looked at then, a little later.
    pub fn expect_soon(&self, datagram: &[u8]) {
        if let Some(Some(entry)) = self.place(datagram) {
            prefetch_value(&*entry.wanted.location);
            prefetch_value(entry.open.as_slices().0);
        }
    }

    /// A datagram has come from `from` at `at`.
    pub fn receive_datagram(&mut self, datagram: &[u8], from: SocketAddr, at: Instant) -> Verdict {
        let verdict = self.judge(datagram, from, at);
        self.counts.count_at(verdict as usize);
        verdict
    }

    fn judge(&mut self, datagram: &[u8], from: SocketAddr, at: Instant) -> Verdict {
        let Some((reader, number)) = Answer::claimed_ids(datagram) else {
            // Whatever the key, it says why it is none.
            let error = Answer::parse(datagram, &Key::new(0, [0; 16])).err();
            return error.map_or(Verdict::Malformed, Verdict::of);
        };
        let index = (reader ^ self.reader) as usize;
        let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) else {
            return Verdict::Unasked;
        };
        let (RecordSource::Udp(to), Some(key)) = (&entry.wanted.place, &entry.wanted.key) else {
            return Verdict::Unasked;
        };
        if (to.ip(), to.port()) != (from.ip(), from.port()) {
            return Verdict::Foreign;
        }
        // From the end: nearly always it is the last one.
        let place = entry.open.iter().rposition(|(open, _)| *open == number);
        let open = place.and_then(|place| Some((place, entry.open.get(place)?.1)));
        let timeout = entry.wanted.config.timeout();
        // What is older than that would be unknown already.
        let open = open.filter(|(_, sent)| at.since(*sent) <= timeout);
        let Some((place, sent)) = open else {
            return Verdict::Unasked;
        };
        let answer = match Answer::parse(datagram, key) {
            Ok(answer) => answer,
            Err(error) => {
                let verdict = Verdict::of(error);
                entry.note_refusal(&error);
                return verdict;
            }
        };
        // The code covers both: only the back-end that is meant has answered.
        let is_asked = answer.query.host == entry.host
            && answer.query.target == entry.wanted.config.target
            && answer.record.base.target == entry.wanted.config.target
            && entry.wanted.is_answer_length(datagram.len());
        if !is_asked {
            entry.note_refusal(&"an answer of another host, target or length than was asked for");
            return Verdict::Record;
        }
        entry.open.remove(place);
        let verdict = entry.take(&answer.record, Some(at.since(sent)), at);
        self.settle(index, verdict, at);
        verdict
    }

    /// Settles the next question after a verdict. If there was news, the question is due after the interval,
    /// and not as soon, or as late, as if there had been none.
    fn settle(&mut self, index: usize, verdict: Verdict, now: Instant) {
        let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let interval = entry.wanted.config.interval;
        if verdict == Verdict::Taken && entry.pause != interval {
            entry.pause = interval;
            entry.go_on(now, self.rng.f64());
            self.enqueue(index);
        }
    }

    /// A page was read: its record, or what is wrong with it.
    pub fn read(
        &mut self,
        index: usize,
        page: Result<&Record<'_>, (Verdict, &dyn std::fmt::Display)>,
        round_trip: Option<Duration>,
        at: Instant,
    ) -> Verdict {
        let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) else {
            return Verdict::Unasked;
        };
        let verdict = match page {
            Ok(record) => entry.take(record, round_trip, at),
            Err((Verdict::Unreadable, error)) => {
                entry.unsent += 1;
                entry.trouble = Some(error.to_string());
                Verdict::Unreadable
            }
            Err((verdict, error)) => {
                entry.note_refusal(&error);
                verdict
            }
        };
        self.counts.count_at(verdict as usize);
        self.settle(index, verdict, at);
        verdict
    }

    /// Returns what is wanted of a place.
    pub fn wanted(&self, index: usize) -> Option<&PollTarget> {
        let entry = self.entries.get(index)?.as_ref()?;
        Some(&entry.wanted)
    }

    /// Returns views of all locations, in no order.
    pub fn views(&self) -> impl Iterator<Item = View<'_>> {
        self.entries.iter().flatten().map(|entry| View {
            target: &entry.wanted,
            state: entry.state,
            at: entry.at,
            round_trip: entry.round_trip,
            source: entry.source,
            question_count: entry.asked,
            news_count: entry.taken,
            missed: entry.missed,
            refused: entry.refused,
            unsent: entry.unsent,
            expired: entry.expired,
            trouble: entry.trouble.as_deref(),
        })
    }

    /// True if there is nobody to ask.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Questions so far.
    pub fn count_asked(&self) -> u64 {
        self.asked
    }

    /// Answers and readings, by what became of them.
    pub fn counts(&self) -> impl Iterator<Item = (Verdict, u64)> + '_ {
        self.counts.totals_by_kind(Verdict::ALL)
    }

    /// Returns the number of questions by their delay: a count for each of [`DELAYS`], and at the end the
    /// count of questions that were later still; and the sum of all delays.
    pub fn question_delays(&self) -> ([u64; DELAYS.len() + 1], Duration) {
        (self.delays, self.delay_sum)
    }
}

#[cfg(test)]
mod tests;
