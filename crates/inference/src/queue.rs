//! Work that has been sent to a member: requests that wait for their first token, and streams.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::request_count::RequestCount;

/// Work of one member. All workers share it.
#[derive(Debug, Default)]
pub struct MemberQueue {
    /// Tokens to be read for requests without a first token.
    queued_tokens: AtomicU64,
    /// Requests without a first token.
    waiting: RequestCount,
    /// Requests past their first token.
    streams: RequestCount,
    /// Tokens to be read for the requests that were sent since [`MemberQueue::take_mean`] was called, and their number.
    begun_tokens: AtomicU64,
    begun: AtomicU32,
    /// Time of the last first token, or at which the first of those that wait was sent, in nanoseconds.
    progress_at: AtomicU64,
    /// Time until which the member is taken for full, in nanoseconds.
    full_until: AtomicU64,
    /// Time of the last event of any stream, in nanoseconds.
    event_at: AtomicU64,
    /// Nanoseconds for which the member has stood still, all together, and the end of the last such time.
    stalled_nanos: AtomicU64,
    stalled_until: AtomicU64,
    /// Requests whose answers come as a whole, and tokens to be read for them.
    wholes: AtomicU32,
    whole_tokens: AtomicU64,
    /// Time at which the member is expected to have read the prompts of these requests, in nanoseconds.
    wholes_read_at: AtomicU64,
}

/// Mean work of a member since somebody has asked for it last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueMean {
    /// Tokens of prompts to be read.
    pub queued_tokens: f32,
    /// Requests without a first token.
    pub waiting: f32,
    /// Requests past their first token.
    pub streams: f32,
}

/// Work of a member at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueMoment {
    /// Tokens to be read, less those that the member must have read since its last first token.
    pub queued_tokens: f32,
    /// Requests without a first token.
    pub waiting: f32,
    /// Requests past their first token.
    pub streams: f32,
    /// Seconds by which the next first token is late: the member has had time to read all that is queued.
    pub overdue_seconds: f32,
    /// Seconds for which the member is still taken for full.
    pub full_seconds: f32,
}

/// Gaps between events of a stream in which the member read no prompt: what a prompt delays is in other terms of the
/// cost, and would make each stream look ten times as expensive.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    events: u64,
    seconds: f32,
    /// Sum over events of the other streams at the member.
    others: f32,
}

/// Phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Streaming,
    Over,
}

/// Entry of one request in the queue of a member. The request's owner keeps it, and ends it at the same member.
#[derive(Clone, Copy, Debug)]
pub struct QueueEntry {
    phase: Phase,
    tokens: u64,
    /// Tokens that were queued before, less those that must have been read.
    queued_before: f32,
    sent_at: u64,
    first_token_at: u64,
    /// Seconds from sending the request to its first token, once it is here.
    first_token_seconds: Option<f32>,
    /// True if the answer comes as a whole.
    is_whole: bool,
    /// Time of the last event; 0 before the first one, and if the time to the next one does not count.
    last_event_at: u64,
    /// Nanoseconds for which the member had stood still when the request was sent.
    stalled_before: u64,
    /// Gaps between events that tell the member's pace.
    gaps: Gaps,
}

impl MemberQueue {
    /// Counts a request that is sent, for which the member has to read `tokens`. `queued_before` are the tokens that it
    /// has to read before, by [`MemberQueue::read_moment`].
    pub fn begin_request(&self, tokens: u64, queued_before: f32, now_nanos: u64) -> QueueEntry {
        self.queued_tokens.fetch_add(tokens, Ordering::Relaxed);
        self.count_begun(tokens);
        if self.waiting.begin(now_nanos) == 0 {
            self.progress_at.store(now_nanos, Ordering::Relaxed);
        }
        QueueEntry {
            phase: Phase::Waiting,
            tokens,
            queued_before,
            sent_at: now_nanos,
            first_token_at: now_nanos,
            first_token_seconds: None,
            is_whole: false,
            last_event_at: 0,
            stalled_before: self.stalled_nanos.load(Ordering::Relaxed),
            gaps: Gaps::default(),
        }
    }

    /// Counts a request whose answer comes as a whole. Its first token cannot be seen. The first token is expected after
    /// `first_token_seconds`: until then the prompt is queued, and then the request counts as a stream. `queued_before` is
    /// as in [`MemberQueue::begin_request`].
    pub fn begin_whole(
        &self,
        tokens: u64,
        queued_before: f32,
        first_token_seconds: f32,
        now_nanos: u64,
    ) -> QueueEntry {
        self.streams.begin(now_nanos);
        self.count_begun(tokens);
        // Numbers that are too large become the largest one.
        let reading = (first_token_seconds.max(0.0) * 1e9) as u64;
        let read_at = now_nanos.saturating_add(reading);
        self.whole_tokens.fetch_add(tokens, Ordering::Relaxed);
        match self.wholes.fetch_add(1, Ordering::Relaxed) {
            // What was expected before does not count: those requests are over.
            0 => self.wholes_read_at.store(read_at, Ordering::Relaxed),
            _ => {
                self.wholes_read_at.fetch_max(read_at, Ordering::Relaxed);
            }
        }
        QueueEntry {
            phase: Phase::Streaming,
            tokens,
            queued_before,
            sent_at: now_nanos,
            first_token_at: read_at,
            first_token_seconds: None,
            is_whole: true,
            last_event_at: 0,
            stalled_before: self.stalled_nanos.load(Ordering::Relaxed),
            gaps: Gaps::default(),
        }
    }

    /// Has a request whose answer was expected as a whole wait for its first token from now on, as its answer is a stream of
    /// events.
    pub fn begin_stream(&self, entry: &mut QueueEntry, now_nanos: u64) {
        if !entry.is_whole || entry.is_over() {
            return;
        }
        self.end_whole(entry, now_nanos);
        self.queued_tokens
            .fetch_add(entry.tokens, Ordering::Relaxed);
        if self.waiting.begin(now_nanos) == 0 {
            self.progress_at.fetch_max(entry.sent_at, Ordering::Relaxed);
        }
        entry.is_whole = false;
        entry.phase = Phase::Waiting;
        entry.first_token_at = entry.sent_at;
    }

    /// Counts the first token of a request. Returns the seconds since the request was sent; `None` if this is not the
    /// first token.
    pub fn take_first_token(&self, entry: &mut QueueEntry, now_nanos: u64) -> Option<f32> {
        if entry.phase != Phase::Waiting {
            return None;
        }
        self.leave_queue(entry, now_nanos);
        self.progress_at.store(now_nanos, Ordering::Relaxed);
        entry.phase = Phase::Streaming;
        entry.first_token_at = now_nanos;
        self.streams.begin(now_nanos);
        let stalled = self.stalled_nanos.load(Ordering::Relaxed);
        let stalled = stalled.saturating_sub(entry.stalled_before);
        let working = now_nanos.saturating_sub(stalled);
        entry.first_token_seconds = Some(seconds_between(entry.sent_at, working));
        entry.first_token_seconds
    }

    /// Ends the time in which no stream of the member had an event, and returns its seconds. To be called before the
    /// event is counted. 0 if the member had no stream that could have had one.
    #[inline]
    pub fn end_silence(&self, now_nanos: u64) -> f32 {
        let before = self.event_at.swap(now_nanos, Ordering::Relaxed);
        match before > 0 && self.streams.get() > 0 {
            true => seconds_between(before, now_nanos),
            false => 0.0,
        }
    }

    /// Notes that the member has stood still for these seconds, until now: they tell nothing of its speeds.
    pub fn note_stall(&self, seconds: f32, now_nanos: u64) {
        let nanos = (seconds.max(0.0) * 1e9) as u64;
        self.stalled_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.stalled_until.store(now_nanos, Ordering::Relaxed);
    }

    /// Notes events of a request's stream. The time since the events before counts for the member's pace if no request
    /// has waited at the member meanwhile.
    pub fn note_events(&self, entry: &mut QueueEntry, events: u64, now_nanos: u64) {
        let before = std::mem::replace(&mut entry.last_event_at, now_nanos);
        let has_read = self.waiting.get() > 0
            || self.progress_at.load(Ordering::Relaxed) > before
            || self.wholes_read_at.load(Ordering::Relaxed) > before;
        let has_stalled = self.stalled_until.load(Ordering::Relaxed) > before;
        if before == 0 || has_read || has_stalled || now_nanos < before {
            return;
        }
        entry.gaps.events = entry.gaps.events.saturating_add(events);
        entry.gaps.seconds += seconds_between(before, now_nanos);
        entry.gaps.others += events as f32 * self.count_others();
    }

    /// Other streams at the member of a stream.
    fn count_others(&self) -> f32 {
        self.streams.get().saturating_sub(1) as f32
    }

    /// Other streams at the member now, and seconds for each of the `tokens` of an answer that came as a whole. `None`
    /// if the answer tells too little.
    pub fn measure_whole(
        &self,
        entry: &QueueEntry,
        tokens: u32,
        now_nanos: u64,
    ) -> Option<(f32, f32)> {
        let seconds = seconds_between(entry.first_token_at, now_nanos);
        if !entry.is_whole || entry.is_over() || tokens < 8 || seconds <= 0.0 {
            return None;
        }
        Some((self.count_others(), seconds / (tokens - 1) as f32))
    }

    /// Ends a request, however it ends. A second call does nothing. A time of 0 is unknown: the request has ended since
    /// [`MemberQueue::take_mean`] was called last.
    ///
    /// The end of a request without a first token is no progress of the member: clients give up at a member that stands
    /// still.
    pub fn end_request(&self, entry: &mut QueueEntry, now_nanos: u64) {
        let ended_at = match now_nanos {
            0 => self.waiting.taken_nanos().max(entry.last_known_nanos()),
            now => now,
        };
        match entry.phase {
            Phase::Waiting => self.leave_queue(entry, ended_at),
            Phase::Streaming if entry.is_whole => self.end_whole(entry, ended_at),
            Phase::Streaming => self.streams.end(ended_at),
            Phase::Over => {}
        }
        entry.phase = Phase::Over;
    }

    /// Counts a request no longer whose answer comes as a whole.
    fn end_whole(&self, entry: &QueueEntry, now_nanos: u64) {
        self.streams.end(now_nanos);
        subtract(&self.wholes, 1);
        subtract_long(&self.whole_tokens, entry.tokens);
    }

    fn count_begun(&self, tokens: u64) {
        self.begun_tokens.fetch_add(tokens, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the mean work since the last call, at a member whose work is `moment` now. For one caller.
    pub fn take_mean(&self, moment: &QueueMoment, now_nanos: u64) -> QueueMean {
        let tokens = self.begun_tokens.swap(0, Ordering::Relaxed) as f32;
        let begun = self.begun.swap(0, Ordering::Relaxed);
        // Requests whose answers come as a whole are streams from the beginning, and wait until their prompts are read.
        let unread = (moment.waiting - self.waiting.get() as f32).max(0.0);
        let unread_share = unread / (moment.streams + unread).max(1.0);
        let streams = self.streams.take_mean(now_nanos);
        let waiting = self.waiting.take_mean(now_nanos) + unread_share * streams;
        let each = match moment.waiting > 0.0 {
            true => moment.queued_tokens / moment.waiting,
            // On average, half of a prompt has been read.
            false => tokens / begun.max(1) as f32 / 2.0,
        };
        QueueMean {
            queued_tokens: each * waiting,
            waiting,
            streams: (1.0 - unread_share) * streams,
        }
    }

    /// Takes the member for full until this time: it has refused a request because of its queue.
    pub fn mark_full(&self, until_nanos: u64) {
        self.full_until.fetch_max(until_nanos, Ordering::Relaxed);
    }

    /// Work at this moment, at a member with these speeds.
    #[inline]
    pub fn read_moment(
        &self,
        delay_seconds: f32,
        seconds_per_token: f32,
        now_nanos: u64,
    ) -> QueueMoment {
        let queued = self.queued_tokens.load(Ordering::Relaxed) as f32;
        let waiting = self.waiting.get() as f32;
        let streams = self.streams.get() as f32;
        let full_until = self.full_until.load(Ordering::Relaxed);
        let (mut left, mut overdue) = (queued, 0.0);
        if waiting > 0.0 {
            let age = seconds_between(self.progress_at.load(Ordering::Relaxed), now_nanos);
            // The member works on one of those that wait, whose tokens are not known: at most their mean is read.
            let read = age / seconds_per_token.max(1e-9);
            left = queued - read.min(queued / waiting);
            overdue = (age - delay_seconds - seconds_per_token * queued).max(0.0);
        }
        let moment = QueueMoment {
            queued_tokens: left.max(0.0),
            waiting,
            streams,
            overdue_seconds: overdue,
            full_seconds: seconds_between(now_nanos, full_until),
        };
        match self.whole_tokens.load(Ordering::Relaxed) {
            0 => moment,
            tokens => self.add_wholes(moment, tokens as f32, seconds_per_token, now_nanos),
        }
    }

    /// Adds prompts of requests whose answers come as a whole, as far as the member is not expected to have read them.
    #[cold]
    fn add_wholes(
        &self,
        moment: QueueMoment,
        tokens: f32,
        seconds_per_token: f32,
        now_nanos: u64,
    ) -> QueueMoment {
        let read_at = self.wholes_read_at.load(Ordering::Relaxed);
        let seconds = seconds_between(now_nanos, read_at);
        let left = (seconds / seconds_per_token.max(1e-9)).min(tokens);
        let requests = self.wholes.load(Ordering::Relaxed) as f32 * left / tokens;
        // The member may have read these prompts before the next first token.
        let overdue = moment.overdue_seconds - seconds_per_token * tokens;
        QueueMoment {
            queued_tokens: moment.queued_tokens + left,
            waiting: moment.waiting + requests,
            streams: (moment.streams - requests).max(0.0),
            overdue_seconds: overdue.max(0.0),
            ..moment
        }
    }

    fn leave_queue(&self, entry: &QueueEntry, now_nanos: u64) {
        subtract_long(&self.queued_tokens, entry.tokens);
        self.waiting.end(now_nanos);
    }
}

impl QueueEntry {
    /// Tokens to be read of those that were queued before and of the request itself.
    pub fn tokens_to_first(&self) -> f32 {
        self.queued_before + self.tokens as f32
    }

    /// Tokens that were queued before, less those that the member must have read.
    pub fn queued_before(&self) -> f32 {
        self.queued_before
    }

    /// Seconds from sending the request to its first token; `None` before it, and if the answer comes as a whole.
    pub fn first_token_seconds(&self) -> Option<f32> {
        self.first_token_seconds
    }

    /// Time of the first token, in nanoseconds; `None` before it, and if the answer comes as a whole.
    pub fn first_token_nanos(&self) -> Option<u64> {
        self.first_token_seconds.map(|_| self.first_token_at)
    }

    /// True if the answer comes as a whole.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// True after the end.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Last time at which the request was there for certain, in nanoseconds.
    fn last_known_nanos(&self) -> u64 {
        match self.is_whole {
            true => self.sent_at,
            false => self.first_token_at.max(self.last_event_at),
        }
    }

    /// Leaves out the time to the next event: the client takes nothing, so that the member cannot write.
    pub fn skip_gap(&mut self) {
        self.last_event_at = 0;
    }

    /// Takes the gaps between events so far, if there are at least this many: other streams at the member on average,
    /// and seconds for each event.
    pub fn take_pace(&mut self, least_events: u64) -> Option<(f32, f32)> {
        if self.gaps.events < least_events.max(1) {
            return None;
        }
        let gaps = std::mem::take(&mut self.gaps);
        let events = gaps.events as f32;
        Some((gaps.others / events, gaps.seconds / events))
    }
}

fn seconds_between(from_nanos: u64, to_nanos: u64) -> f32 {
    to_nanos.saturating_sub(from_nanos) as f32 / 1e9
}

/// Subtracts without going below 0.
fn subtract(word: &AtomicU32, value: u32) {
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
        Some(held.saturating_sub(value))
    });
}

fn subtract_long(word: &AtomicU64, value: u64) {
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
        Some(held.saturating_sub(value))
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_request_waits_streams_and_ends() {
        let queue = MemberQueue::default();
        let mut one = queue.begin_request(1000, 0.0, 0);
        let mut two = queue.begin_request(3000, 1000.0, 0);
        assert_eq!(
            (one.tokens_to_first(), two.tokens_to_first()),
            (1000.0, 4000.0)
        );
        let moment = queue.read_moment(0.0, 1e-3, 0);
        assert_eq!(
            (moment.queued_tokens, moment.waiting, moment.streams),
            (4000.0, 2.0, 0.0)
        );
        assert_eq!(one.first_token_nanos(), None);
        assert_eq!(queue.take_first_token(&mut one, SECOND), Some(1.0));
        assert_eq!(one.first_token_nanos(), Some(SECOND));
        assert_eq!(queue.take_first_token(&mut one, 2 * SECOND), None);
        let moment = queue.read_moment(0.0, 1e-3, SECOND);
        assert_eq!(
            (moment.queued_tokens, moment.waiting, moment.streams),
            (3000.0, 1.0, 1.0)
        );
        queue.take_first_token(&mut two, 4 * SECOND);
        for entry in [&mut one, &mut two] {
            queue.end_request(entry, 0);
            queue.end_request(entry, 0);
        }
        assert_eq!(
            queue.read_moment(0.0, 1e-3, 11 * SECOND),
            QueueMoment::default()
        );
    }

    #[test]
    fn time_for_which_a_member_stands_still_is_not_its_speed() {
        let queue = MemberQueue::default();
        let mut one = queue.begin_request(1000, 0.0, 0);
        assert_eq!(queue.end_silence(SECOND), 0.0, "nobody could speak");
        queue.take_first_token(&mut one, SECOND);
        queue.note_events(&mut one, 1, SECOND);
        let mut two = queue.begin_request(1000, 0.0, 2 * SECOND);
        assert_eq!(queue.end_silence(9 * SECOND), 8.0);
        queue.note_stall(6.0, 9 * SECOND);
        queue.note_events(&mut one, 1, 9 * SECOND);
        assert_eq!(one.take_pace(1), None);
        assert_eq!(queue.take_first_token(&mut two, 10 * SECOND), Some(2.0));
        let mut three = queue.begin_request(1000, 0.0, 10 * SECOND);
        assert_eq!(queue.take_first_token(&mut three, 11 * SECOND), Some(1.0));
    }

    #[test]
    fn the_pace_is_that_of_gaps_without_reading() {
        let queue = MemberQueue::default();
        let mut one = queue.begin_request(1000, 0.0, 0);
        queue.take_first_token(&mut one, SECOND);
        queue.note_events(&mut one, 1, SECOND);
        assert_eq!(one.take_pace(1), None);
        queue.note_events(&mut one, 10, 2 * SECOND);
        assert_eq!(one.take_pace(11), None);
        assert_eq!(one.take_pace(10), Some((0.0, 0.1)));
        assert_eq!(one.take_pace(0), None);
        // Another request is read: two gaps do not count.
        let mut two = queue.begin_request(1000, 0.0, 2 * SECOND);
        queue.note_events(&mut one, 1, 3 * SECOND);
        queue.take_first_token(&mut two, 4 * SECOND);
        queue.note_events(&mut one, 1, 5 * SECOND);
        assert_eq!(one.take_pace(1), None);
        queue.note_events(&mut one, 5, 6 * SECOND);
        assert_eq!(one.take_pace(1), Some((1.0, 0.2)));
        // The client takes nothing for a while.
        one.skip_gap();
        queue.note_events(&mut one, 1, 60 * SECOND);
        queue.note_events(&mut one, 1, 61 * SECOND);
        assert_eq!(one.take_pace(1), Some((1.0, 1.0)));
    }

    #[test]
    fn the_queue_shrinks_with_time_and_a_stalled_member_is_late() {
        let queue = MemberQueue::default();
        let _entries = [1000, 1000].map(|tokens| queue.begin_request(tokens, 0.0, 0));
        let at = |now: u64| queue.read_moment(0.1, 1e-3, now);
        assert_eq!(at(SECOND / 2).queued_tokens, 1500.0);
        // Without a first token, no more than the first of them has been read.
        assert_eq!(at(SECOND * 2).queued_tokens, 1000.0);
        assert_eq!(at(SECOND * 2).overdue_seconds, 0.0);
        assert!((at(SECOND * 5).overdue_seconds - 2.9).abs() < 1e-3);
    }

    #[test]
    fn a_member_that_refuses_is_full_for_a_while() {
        let queue = MemberQueue::default();
        queue.mark_full(2 * SECOND);
        queue.mark_full(SECOND);
        assert_eq!(queue.read_moment(0.0, 1e-3, SECOND).full_seconds, 1.0);
        assert_eq!(queue.read_moment(0.0, 1e-3, 3 * SECOND).full_seconds, 0.0);
        // A request that was refused has left no trace.
        let mut entry = queue.begin_request(500, 0.0, 0);
        queue.end_request(&mut entry, 0);
        assert_eq!(
            queue.read_moment(0.0, 1e-3, 3 * SECOND),
            QueueMoment::default()
        );
    }

    #[test]
    fn the_prompt_of_an_answer_that_comes_as_a_whole_is_queued_until_it_should_be_read() {
        let queue = MemberQueue::default();
        let at = |now: u64| {
            let moment = queue.read_moment(0.0, 0.5, now);
            (moment.queued_tokens, moment.waiting, moment.streams)
        };
        let mut one = queue.begin_whole(2, 0.0, 1.0, 0);
        let mut two = queue.begin_whole(6, 0.0, 4.0, 0);
        assert_eq!(at(0), (8.0, 2.0, 0.0));
        assert_eq!(at(2 * SECOND), (4.0, 1.0, 1.0));
        assert_eq!(at(4 * SECOND), (0.0, 0.0, 2.0));
        // A stream whose first token comes after these prompts is not late.
        let mut stream = queue.begin_request(2, 8.0, 0);
        let overdue = |now| queue.read_moment(0.0, 0.5, now).overdue_seconds;
        assert_eq!((overdue(5 * SECOND), overdue(6 * SECOND)), (0.0, 1.0));
        // Answers that come early, or requests that are given up, leave nothing.
        queue.end_request(&mut two, 0);
        queue.end_request(&mut two, 0);
        assert_eq!(at(SECOND).1, 2.0);
        queue.end_request(&mut one, 0);
        queue.end_request(&mut stream, 0);
        assert_eq!(at(SECOND), (0.0, 0.0, 0.0));
        // What was expected of them does not count for the next one.
        let mut next = queue.begin_whole(2, 0.0, 0.1, SECOND);
        assert_eq!(at(2 * SECOND), (0.0, 0.0, 1.0));
        queue.end_request(&mut next, 0);
    }

    #[test]
    fn an_answer_that_turns_out_to_be_a_stream_has_a_first_token() {
        let queue = MemberQueue::default();
        let mut one = queue.begin_whole(4, 2.0, 3.0, SECOND);
        queue.begin_stream(&mut one, 2 * SECOND);
        assert!(!one.is_whole() && one.first_token_nanos().is_none());
        let moment = queue.read_moment(0.0, 0.5, 2 * SECOND);
        // A second of reading since the request was sent.
        assert_eq!(
            (moment.queued_tokens, moment.waiting, moment.streams),
            (2.0, 1.0, 0.0)
        );
        assert_eq!(one.tokens_to_first(), 6.0);
        assert_eq!(queue.take_first_token(&mut one, 4 * SECOND), Some(3.0));
        // Only once, and not after the end.
        let mut other = queue.begin_whole(100, 0.0, 0.1, 5 * SECOND);
        queue.begin_stream(&mut one, 5 * SECOND);
        assert_eq!(one.first_token_nanos(), Some(4 * SECOND));
        queue.end_request(&mut one, 6 * SECOND);
        queue.end_request(&mut other, 6 * SECOND);
        queue.begin_stream(&mut other, 7 * SECOND);
        assert_eq!(
            queue.read_moment(0.0, 1e-3, 7 * SECOND),
            QueueMoment::default()
        );
    }

    #[test]
    fn the_mean_work_has_the_prompts_that_wait_now() {
        let queue = MemberQueue::default();
        let take = |now| queue.take_mean(&queue.read_moment(0.0, 0.5, now), now);
        let mean = |queued_tokens, waiting, streams| QueueMean {
            queued_tokens,
            waiting,
            streams,
        };
        let mut stream = queue.begin_request(6, 0.0, SECOND);
        // Half of the time, and two of the tokens are read.
        assert_eq!(take(2 * SECOND), mean(2.0, 0.5, 0.0));
        assert_eq!(take(3 * SECOND), mean(2.0, 1.0, 0.0));
        queue.take_first_token(&mut stream, 3 * SECOND);
        assert_eq!(take(4 * SECOND), mean(0.0, 0.0, 1.0));
        // A client that has given up: nobody says when.
        queue.end_request(&mut stream, 0);
        assert_eq!(take(5 * SECOND), mean(0.0, 0.0, 0.0));
        // Answers that come as a whole wait until their prompts should be read.
        let mut whole = queue.begin_whole(4, 0.0, 2.0, 5 * SECOND);
        assert_eq!(take(6 * SECOND), mean(2.0, 0.5, 0.5));
        assert_eq!(take(7 * SECOND), mean(0.0, 0.0, 1.0));
        queue.end_request(&mut whole, 7 * SECOND);
        assert_eq!(take(8 * SECOND), mean(0.0, 0.0, 0.0));
    }

    #[test]
    fn an_answer_that_comes_as_a_whole_counts_as_a_stream() {
        let queue = MemberQueue::default();
        let mut entry = queue.begin_whole(1000, 0.0, 1.0, 0);
        let moment = queue.read_moment(0.0, 1e-3, 60 * SECOND);
        assert_eq!(
            (moment.streams, moment.waiting, moment.overdue_seconds),
            (1.0, 0.0, 0.0)
        );
        assert_eq!(queue.take_first_token(&mut entry, SECOND), None);
        let at = 11 * SECOND;
        assert_eq!(queue.measure_whole(&entry, 101, at), Some((0.0, 0.1)));
        assert_eq!(queue.measure_whole(&entry, 7, at), None);
        assert_eq!(queue.measure_whole(&entry, 101, SECOND / 2), None);
        queue.end_request(&mut entry, 0);
        assert_eq!(queue.read_moment(0.0, 1e-3, SECOND), QueueMoment::default());
    }

    proptest! {
        /// Requests at random, most of which end before somebody looks again: the mean is that of the time.
        #[test]
        fn the_mean_work_is_that_of_the_time(
            requests in prop::collection::vec(
                (0u64..3 * SECOND, 0u64..SECOND / 5, 0u64..SECOND / 5, 1u64..9000, any::<bool>()),
                0..300,
            ),
        ) {
            const ROUND: u64 = SECOND / 10;
            let queue = MemberQueue::default();
            let mut events = Vec::new();
            for (number, (begin, wait, write, _, is_whole)) in requests.iter().enumerate() {
                events.push((*begin, 0, number));
                if !is_whole {
                    events.push((begin + wait, 1, number));
                }
                events.push((begin + wait + write, 2, number));
            }
            let rounds = 4 * SECOND / ROUND;
            events.extend((1..=rounds).map(|round| (round * ROUND, 3, 0)));
            events.sort_unstable();
            let mut entries: Vec<Option<QueueEntry>> = vec![None; requests.len()];
            for (now, kind, number) in events {
                if kind < 3 {
                    let (.., tokens, is_whole) = requests[number];
                    match (kind, &mut entries[number]) {
                        (0, entry) if is_whole => *entry = Some(queue.begin_whole(tokens, 0.0, 0.1, now)),
                        (0, entry) => *entry = Some(queue.begin_request(tokens, 0.0, now)),
                        (1, Some(entry)) => drop(queue.take_first_token(entry, now)),
                        (_, entry) => queue.end_request(entry.as_mut().unwrap(), now),
                    }
                    continue;
                }
                let within = |from: u64, to: u64| to.min(now).saturating_sub(from.max(now - ROUND));
                let (mut waiting, mut streams, mut tokens, mut begun) = (0u64, 0u64, 0u64, 0u32);
                for (begin, wait, write, unread, is_whole) in &requests {
                    let first = if *is_whole { *begin } else { begin + wait };
                    waiting += within(*begin, first);
                    streams += within(first, begin + wait + write);
                    if *begin <= now && (*begin > now - ROUND || now == ROUND) {
                        (tokens, begun) = (tokens + unread, begun + 1);
                    }
                }
                // As if nothing waited now: the prompts count that have come since.
                let mean = queue.take_mean(&QueueMoment::default(), now);
                let is_near = |is: f32, expected: f64| (f64::from(is) - expected).abs() < 0.01 + 1e-3 * expected;
                let (waiting, streams) = (waiting as f64 / ROUND as f64, streams as f64 / ROUND as f64);
                prop_assert!(is_near(mean.waiting, waiting), "{mean:?} {waiting}");
                prop_assert!(is_near(mean.streams, streams), "{mean:?} {streams}");
                let each = tokens as f64 / f64::from(begun.max(1)) / 2.0;
                prop_assert!((f64::from(mean.queued_tokens) - each * waiting).abs() < 0.01 * (1.0 + waiting) * (1.0 + each));
            }
        }

        /// Whatever begins and ends in whatever order: nothing is left, and nothing is no number.
        #[test]
        fn nothing_is_left(
            steps in prop::collection::vec((0usize..8, 0u8..4, any::<u64>(), any::<f32>()), 0..100),
        ) {
            let queue = MemberQueue::default();
            let mut entries: [Option<QueueEntry>; 8] = [None; 8];
            for (index, step, now, speed) in steps {
                let speed = if speed.is_finite() { speed.abs() } else { 1.0 };
                let tokens = now % 1_000_000;
                match (&mut entries[index], step) {
                    (entry @ None, _) => *entry = Some(queue.begin_request(tokens, speed, now)),
                    (Some(entry), 0 | 1) => drop(queue.take_first_token(entry, now)),
                    (Some(entry), 2) => queue.note_events(entry, tokens, now),
                    (entry, _) => {
                        let mut entry = entry.take().unwrap();
                        queue.end_request(&mut entry, 0);
                    }
                }
                let moment = queue.read_moment(0.0, speed, now);
                prop_assert!(moment.queued_tokens >= 0.0 && moment.overdue_seconds >= 0.0);
            }
            for entry in entries.iter_mut().flatten() {
                queue.end_request(entry, 0);
            }
            prop_assert_eq!(queue.read_moment(0.0, 1.0, 0), QueueMoment::default());
        }
    }
}
