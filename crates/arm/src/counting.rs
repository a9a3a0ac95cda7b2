//! Counting: the library's writes to a page.
//!
//! Processes of one application share a page, and each may be killed between any two
//! instructions. So there is no lock in it, and no invariant that takes two steps: sums
//! only grow, and what could go wrong by one step (a count in flight, a busy time) is put
//! right by whoever comes next.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::layout::{
    CLIENTS, COUNT_BIAS, COUNT_BITS, IN_FLIGHT_MAX, LANES, Lane, Page, Pulse, bucket_index, mix,
};
use crate::page::monotonic_nanos;
use crate::process::ProcessId;
use crate::transactions::Transaction;

/// A longer pause is not a thought but the end of a visit: half an hour.
pub(crate) const THINK_MAX_NANOS: u64 = 30 * 60 * 1_000_000_000;

/// Status with which a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Good,
    Aborted,
    Failed,
}

impl Page {
    /// The lane of an index; any index has one.
    #[inline]
    pub(crate) fn lane(&self, index: u16) -> &Lane {
        &self.lanes[usize::from(index) % LANES]
    }

    /// Counts a start: the number of the start if nothing else is in flight, else 0.
    #[inline]
    pub(crate) fn start(&self, lane: u16, client: Option<u64>, now: u64) -> u64 {
        let alone = self.header.pulse.start(now);
        let lane = self.lane(lane);
        lane.starts.fetch_add(1, Relaxed);
        if let Some(think) = client.and_then(|client| self.think(client, now)) {
            lane.thinks.fetch_add(1, Relaxed);
            lane.think_time.fetch_add(think, Relaxed);
        }
        alone
    }

    /// Counts a stop of what [`Self::start`] counted.
    #[inline]
    pub(crate) fn stop(&self, transaction: &Transaction, status: Status, now: u64) {
        // Before the counts: whoever sees in them that it has stopped may let the client go on.
        if let Some(client) = transaction.client {
            self.stopped(client, now);
        }
        let alone = self.header.pulse.stop(transaction.alone, now);
        let lane = self.lane(transaction.lane);
        // Threads read the clock at slightly different moments.
        let time = now.saturating_sub(transaction.start);
        let count = match status {
            Status::Good => &lane.good,
            Status::Aborted => &lane.aborted,
            Status::Failed => &lane.failed,
        };
        count.fetch_add(1, Relaxed);
        lane.response_time.fetch_add(time, Relaxed);
        lane.histogram[bucket_index(time)].fetch_add(1, Relaxed);
        if alone && status == Status::Good {
            lane.alone.fetch_add(1, Relaxed);
            lane.alone_time.fetch_add(time, Relaxed);
        }
        if let Some(wait) = transaction.wait {
            lane.waits.fetch_add(1, Relaxed);
            lane.waiting_time.fetch_add(wait, Relaxed);
        }
    }

    /// Counts a transaction that will never stop.
    pub(crate) fn count_lost(&self, lane: u16) {
        self.lane(lane).lost.fetch_add(1, Relaxed);
        self.header.pulse.lose(1, monotonic_nanos());
    }

    /// A lane for a thread of a process: a free one, or one whose owner died, or 0, which
    /// is everybody's.
    pub(crate) fn claim_lane(&self, me: ProcessId, namespace: u64) -> u16 {
        let free = self.claim_if(me, namespace, |_| false);
        let claimed = free.or_else(|| self.claim_if(me, namespace, |owner| !owner.is_running()));
        claimed.unwrap_or(0)
    }

    fn claim_if(
        &self,
        me: ProcessId,
        namespace: u64,
        dead: impl Fn(ProcessId) -> bool,
    ) -> Option<u16> {
        for (index, lane) in self.lanes.iter().enumerate().skip(1) {
            let owner = ProcessId(lane.owner.load(Acquire));
            let elsewhere = lane.namespace.load(Relaxed) != namespace;
            if owner.0 != 0 && (elsewhere || owner == me || !dead(owner)) {
                continue;
            }
            if self.take(lane, owner, me, namespace) {
                let used = &self.header.rare.lanes_used;
                used.fetch_max(index as u64 + 1, Relaxed);
                return u16::try_from(index).ok();
            }
        }
        None
    }

    fn take(&self, lane: &Lane, from: ProcessId, to: ProcessId, namespace: u64) -> bool {
        let taken = lane.owner.compare_exchange(from.0, to.0, AcqRel, Relaxed);
        if taken.is_err() {
            return false;
        }
        lane.namespace.store(namespace, Relaxed);
        lane.instances.store(0, Relaxed);
        let left = lane.in_flight();
        lane.lost.fetch_add(left, Relaxed);
        self.header.pulse.lose(left, monotonic_nanos());
        true
    }

    /// Gives a lane back, with nothing in flight.
    pub(crate) fn give_back(&self, lane: u16, me: ProcessId) {
        let cells = self.lane(lane);
        if lane != 0 && cells.owner.load(Relaxed) == me.0 {
            cells.instances.store(0, Relaxed);
            cells.owner.store(0, Release);
        }
    }

    /// Gives up what dead processes had in flight. It looks at each process of the
    /// application, so it is for when one comes, not for a transaction.
    ///
    /// `reborn` says that this process has no lane yet: one of its own is from before it
    /// became another program.
    pub(crate) fn release_dead_lanes(&self, me: ProcessId, namespace: u64, reborn: bool) {
        for (index, lane) in self.lanes.iter().enumerate().skip(1) {
            let owner = ProcessId(lane.owner.load(Acquire));
            if owner.0 == 0 || lane.namespace.load(Relaxed) != namespace {
                continue;
            }
            let dead = if owner == me {
                reborn
            } else if lane.in_flight() > 0 {
                !owner.is_running()
            } else {
                // Leaves nothing behind, so it is not worth the longer question.
                owner.is_gone()
            };
            if dead && self.take(lane, owner, me, namespace) {
                self.give_back(index as u16, me);
            }
        }
        self.header.pulse.audit(monotonic_nanos(), || {
            let lanes = self.lanes.iter().map(Lane::in_flight);
            lanes.fold(0, u64::wrapping_add)
        });
    }

    /// Returns the time since this client's last response, the first time it is asked.
    ///
    /// A cell of a fixed table, found by the client's key, holds the time and 24 other
    /// bits of the key. Two clients of one cell (8,192 of them) oust each other: the one
    /// that was ousted is not counted, so what is lost is a sample and never a wrong one,
    /// up to one in 2^24 of these cases.
    #[inline]
    fn think(&self, client: u64, now: u64) -> Option<u64> {
        let (cell, tag) = self.client(client);
        let seen = cell.load(Relaxed);
        let at = seen & TIME;
        if seen & !TIME != tag || at == 0 {
            return None;
        }
        // Whoever asks first has it: a client that sends several requests at once thinks
        // once.
        cell.compare_exchange(seen, tag, Relaxed, Relaxed).ok()?;
        let think = (now / 1000).wrapping_sub(at) & TIME;
        let think = think.saturating_mul(1000);
        (think <= THINK_MAX_NANOS).then_some(think)
    }

    #[inline]
    fn stopped(&self, client: u64, now: u64) {
        let (cell, tag) = self.client(client);
        let at = (now / 1000) & TIME;
        cell.store(tag | at.max(1), Relaxed);
    }

    #[inline]
    fn client(&self, client: u64) -> (&AtomicU64, u64) {
        // Keyed by the page, so that who collides is another matter on each.
        let key = mix(client ^ self.header.pulse.key.load(Relaxed));
        (&self.clients[key as usize % CLIENTS], key & !TIME)
    }
}

/// Microseconds of the clock, modulo 12 days.
const TIME: u64 = (1 << 40) - 1;

impl Lane {
    /// Returns the number of transactions that the lane's owner has in flight.
    fn in_flight(&self) -> u64 {
        let starts = self.starts.load(Relaxed);
        let over = [&self.good, &self.aborted, &self.failed, &self.lost];
        let over = over.iter().map(|cell| cell.load(Relaxed));
        let left = starts.wrapping_sub(over.fold(0, u64::wrapping_add));
        if left > IN_FLIGHT_MAX as u64 { 0 } else { left }
    }
}

/// Increment of [`Pulse::word`] for a start: one more in flight, and one more start.
const START: u64 = (1 << COUNT_BITS) + 1;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// Returns true if a word of the pulse says that something is in flight.
const fn is_busy(word: u64) -> bool {
    word & COUNT > COUNT_BIAS
}

/// The clock is read before a start or stop gets here. Who is interrupted in between
/// brings an old time, and busy time is wrong by as much as that: by a scheduler's slice
/// now and then, which is nothing in an interval, and never adds up.
impl Pulse {
    #[inline]
    fn start(&self, now: u64) -> u64 {
        let before = self.word.fetch_add(START, AcqRel);
        if is_busy(before) {
            return 0;
        }
        // If it is set, what was in flight stops at this moment, and busy goes on.
        let _ = self.busy_since.compare_exchange(0, now, AcqRel, Relaxed);
        (before >> COUNT_BITS) + 1
    }

    /// Counts a stop; whether the transaction was alone all the time, if `alone` is the
    /// number of its start.
    #[inline]
    fn stop(&self, alone: u64, now: u64) -> bool {
        let before = self.word.fetch_sub(1, AcqRel);
        if is_busy(before.wrapping_sub(1)) {
            return false;
        }
        self.rest(now, |time| {
            self.busy.fetch_add(time, Relaxed);
        });
        alone != 0 && before >> COUNT_BITS == alone
    }

    /// Ends a busy time, after the count in flight was set to none; `busy` gets its length.
    #[inline]
    fn rest(&self, now: u64, busy: impl FnOnce(u64)) {
        let since = self.busy_since.swap(0, AcqRel);
        if since != 0 {
            busy(now.saturating_sub(since));
        }
        // What started meanwhile may have found `busy_since` set, and relied on it.
        if is_busy(self.word.load(Acquire)) {
            let again = self.busy_since.compare_exchange(0, now, AcqRel, Relaxed);
            if again.is_ok() && !is_busy(self.word.load(Acquire)) {
                self.busy_since.store(0, Relaxed);
            }
        }
    }

    /// Takes out transactions that will never stop. How long they kept the application
    /// busy nobody knows: if they were the last ones, that time is not counted.
    fn lose(&self, count: u64, now: u64) {
        let without = |word: u64| {
            let in_flight = (word & COUNT).saturating_sub(COUNT_BIAS).min(count);
            (in_flight > 0).then(|| word - in_flight)
        };
        let before = self.word.fetch_update(AcqRel, Acquire, without);
        if before.is_ok() && !is_busy(self.word.load(Acquire)) {
            self.rest(now, |_| ());
        }
    }

    /// Puts the count right if it is not what the lanes say while nothing happens: a
    /// process can be killed after it changed the one and before it changed the other.
    fn audit(&self, now: u64, in_flight: impl Fn() -> u64) {
        let word = self.word.load(Acquire);
        let right = word & !COUNT | ((COUNT_BIAS + in_flight()) & COUNT);
        // Every start and every stop changes the word: unchanged, nothing happened.
        let audited = word != right
            && self
                .word
                .compare_exchange(word, right, AcqRel, Relaxed)
                .is_ok();
        if audited && !is_busy(right) {
            self.rest(now, |_| ());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn pulse() -> Pulse {
        Pulse {
            alert_until: AtomicU64::new(0),
            key: AtomicU64::new(0),
            word: AtomicU64::new(COUNT_BIAS),
            busy_since: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    fn busy(pulse: &Pulse) -> (u64, u64) {
        (pulse.busy.load(Relaxed), pulse.busy_since.load(Relaxed))
    }

    #[test]
    fn busy_is_the_union_of_what_is_in_flight() {
        let pulse = pulse();
        let first = pulse.start(100);
        let second = pulse.start(150);
        assert!(first != 0 && second == 0);
        assert_eq!(busy(&pulse), (0, 100));
        assert!(!pulse.stop(first, 200));
        assert!(!pulse.stop(second, 300));
        assert_eq!(busy(&pulse), (200, 0));
        let third = pulse.start(1000);
        assert!(pulse.stop(third, 1005));
        assert_eq!(busy(&pulse), (205, 0));
    }

    #[test]
    fn alone_is_who_had_nobody_beside_it_from_start_to_stop() {
        let pulse = pulse();
        let first = pulse.start(1);
        let short = pulse.start(2);
        assert!(!pulse.stop(short, 3));
        // Alone at both ends, and not in between.
        assert!(!pulse.stop(first, 4));
        let last = pulse.start(5);
        assert!(pulse.stop(last, 6));
    }

    #[test]
    fn the_lost_are_taken_out_and_never_more() {
        let pulse = pulse();
        pulse.start(1);
        pulse.start(2);
        pulse.lose(1, 3);
        assert_eq!(busy(&pulse), (0, 1));
        pulse.lose(7, 4);
        assert_eq!(busy(&pulse), (0, 0));
        pulse.lose(u64::MAX, 5);
        let alone = pulse.start(6);
        assert!(alone != 0 && pulse.stop(alone, 7));
    }

    #[test]
    fn a_miscount_is_put_right_when_nothing_happens() {
        for wrong in [COUNT_BIAS - 3, COUNT_BIAS + 1, COUNT] {
            let pulse = pulse();
            pulse.word.store(wrong | 77 << COUNT_BITS, Relaxed);
            pulse.busy_since.store(5, Relaxed);
            pulse.audit(9, || 0);
            assert_eq!(busy(&pulse), (0, 0));
            let alone = pulse.start(10);
            assert!(pulse.stop(alone, 12));
            assert_eq!(busy(&pulse), (2, 0));
        }
        // Something happens while it is looked at: then nothing is changed.
        let pulse = pulse();
        pulse.audit(1, || {
            pulse.start(1);
            0
        });
        assert!(is_busy(pulse.word.load(Relaxed)));
    }

    #[test]
    fn threads_leave_the_pulse_at_rest() {
        let pulse = pulse();
        let clock = AtomicU64::new(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let alone = pulse.start(clock.fetch_add(1, Relaxed));
                        pulse.stop(alone, clock.fetch_add(1, Relaxed));
                    }
                });
            }
        });
        assert!(!is_busy(pulse.word.load(Relaxed)));
        let (before, since) = busy(&pulse);
        assert_eq!(since, 0);
        // And one that counts rightly from there.
        let now = clock.load(Relaxed);
        let alone = pulse.start(now);
        assert!(pulse.stop(alone, now + 7));
        assert_eq!(busy(&pulse), (before + 7, 0));
    }
}
