//! Deadlines and orders to stop, for all connections of a worker.
//!
//! Time limits of a proxy are long and rarely met, and they move with every message.
//! So a deadline is one number in a table; a sweep looks at all of them ten times a
//! second and wakes the tasks whose time is over. Setting one costs a store, where a
//! timer would cost a walk through a wheel. A limit is never met early, and at most
//! two [`TICK`]s late, not counting time in which the worker did not run.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_core::alert::AlertSettings;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;

/// Time between two sweeps.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Interval at which a task that waits for a member looks whether its client is still there: a
/// reset is noticed within this time and two [`TICK`]s.
const LOOK: Duration = Duration::from_millis(500);

/// Reason why a task has to stop waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The deadline has passed.
    Expired,
    /// The connection is to be cut: its rule was disabled, or the process ends.
    Cut,
}

/// The table of a worker.
#[derive(Debug)]
pub(crate) struct Watchers {
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<u32>>,
    /// The time of the last sweep.
    swept: Cell<Instant>,
    /// True if any tie may have noticed an alert.
    alerted: Cell<bool>,
    /// True if any task pauses until the next sweep.
    napping: Cell<bool>,
    /// Index of the pausing task that is woken first: another one each time.
    first: Cell<usize>,
}

#[derive(Debug)]
struct Entry {
    deadline: Instant,
    /// Latest time that a deadline may have: the end of all, or the end of a part of it.
    latest: Instant,
    /// End of all that the task does.
    end: Instant,
    waker: Option<Waker>,
    service: ServiceId,
    expired: bool,
    cut: bool,
    /// True if a load alert wants the connection closed, if it is at rest.
    called: bool,
    /// Time at which the task is to look after its client next, and whether it is to do so now.
    look_at: Instant,
    look: bool,
    /// True if the task pauses until the next sweep.
    naps: bool,
    tie: Option<MemberTie>,
}

/// Tie of a connection to a member: what a load alert needs to know of it.
#[derive(Debug)]
struct MemberTie {
    member: MemberId,
    /// Time since which nothing was sent after the member's last word; `None` while the client may
    /// be waiting for an answer.
    quiet: Option<Instant>,
    /// Time at which the alert was noticed first.
    alerted: Option<Instant>,
    /// Part of the member's clients that leaves before this client: 0 to 1.
    jitter: f32,
}

/// The members whose idle connections are to be closed, and how.
pub(crate) type SheddingMembers = HashMap<MemberId, AlertSettings>;

/// Identifies a service within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceId(pub(crate) u32);

impl ServiceId {
    /// The worker's own tasks, which no rule stops.
    pub(crate) const WORKER: ServiceId = ServiceId(u32::MAX);
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Watchers {
    pub(crate) fn new(now: Instant) -> Rc<Self> {
        Rc::new(Watchers {
            entries: RefCell::default(),
            free: RefCell::default(),
            swept: Cell::new(now),
            alerted: Cell::new(false),
            napping: Cell::new(false),
            first: Cell::new(0),
        })
    }

    /// Watches over the calling task until the answer is dropped.
    pub(crate) fn watch_task(self: &Rc<Self>, service: ServiceId) -> Watch {
        let entry = Entry {
            deadline: NEVER,
            latest: NEVER,
            end: NEVER,
            waker: None,
            service,
            expired: false,
            cut: false,
            called: false,
            look_at: NEVER,
            look: false,
            naps: false,
            tie: None,
        };
        let mut entries = self.entries.borrow_mut();
        let index = match self.free.borrow_mut().pop() {
            Some(index) => {
                entries[index as usize] = entry;
                index
            }
            None => {
                entries.push(entry);
                (entries.len() - 1) as u32
            }
        };
        Watch {
            table: Rc::clone(self),
            index,
        }
    }

    /// Wakes the tasks whose deadline has passed.
    pub(crate) fn wake_expired(&self, now: Instant) {
        // A worker that stood still (suspended, throttled) could not see what arrived
        // meanwhile: that time is taken from nobody's limit.
        let lag = now.since(self.swept.replace(now)).saturating_sub(2 * TICK);
        for entry in self.entries.borrow_mut().iter_mut() {
            for time in [&mut entry.deadline, &mut entry.latest, &mut entry.end] {
                *time = time.after(lag);
            }
            if entry.deadline <= now {
                entry.deadline = NEVER;
                entry.expired = true;
                wake_entry(entry);
            }
            if entry.look_at <= now {
                entry.look_at = now.after(LOOK);
                entry.look = true;
                wake_entry(entry);
            }
        }
        if self.napping.take() {
            self.wake_napping();
        }
    }

    /// Wakes the tasks that pause. The task that comes first takes what there is, so another task
    /// comes first each time.
    fn wake_napping(&self) {
        let mut entries = self.entries.borrow_mut();
        let len = entries.len();
        // A step by the golden ratio comes to all places alike.
        let first = (self.first.get() + len * 618 / 1000) % len.max(1);
        self.first.set(first);
        let (before, from) = entries.split_at_mut(first);
        for entry in from.iter_mut().chain(before) {
            if std::mem::take(&mut entry.naps) {
                wake_entry(entry);
            }
        }
    }

    /// Wakes the tasks whose connections a load alert wants closed: those to members that
    /// are `shedding`, when it is their turn, and when they are at rest for long enough.
    /// Costs nothing while nobody is.
    pub(crate) fn wake_shedding(&self, shedding: &SheddingMembers, now: Instant) {
        if shedding.is_empty() && !self.alerted.get() {
            return;
        }
        self.alerted.set(!shedding.is_empty());
        for entry in self.entries.borrow_mut().iter_mut() {
            let Some(tie) = &mut entry.tie else {
                continue;
            };
            let Some(settings) = shedding.get(&tie.member) else {
                tie.alerted = None;
                continue;
            };
            let alerted = *tie.alerted.get_or_insert(now);
            let (Some(quiet), Some(limit)) = (tie.quiet, settings.close_idle) else {
                continue;
            };
            // The coarse time may be a tick old; without that tick this would be early.
            if now.since(quiet) >= limit.saturating_add(TICK)
                && now.since(alerted) >= settings.patience(tie.jitter)
            {
                entry.called = true;
                wake_entry(entry);
            }
        }
    }

    /// Cuts all connections of `service`, or all of the worker.
    pub(crate) fn cut_connections(&self, service: Option<ServiceId>) {
        self.change_entries(service, |entry| entry.cut = true);
    }

    /// Wakes the tasks of `service`, or of the whole worker, to look at its state.
    pub(crate) fn wake_tasks(&self, service: Option<ServiceId>) {
        self.change_entries(service, |_| {});
    }

    fn change_entries(&self, service: Option<ServiceId>, change: impl Fn(&mut Entry)) {
        for entry in self.entries.borrow_mut().iter_mut() {
            let meant = entry.service != ServiceId::WORKER
                && service.is_none_or(|service| service == entry.service);
            if meant {
                change(entry);
                wake_entry(entry);
            }
        }
    }

    /// Time of the last sweep: at most a [`TICK`] old, and free.
    pub(crate) fn coarse_now(&self) -> Instant {
        self.swept.get()
    }
}

impl Entry {
    /// Sets the deadline, which is no later than the latest one that it may be. One that is over stays over: what comes
    /// in small pieces does not put it off.
    #[inline]
    fn set_deadline(&mut self, deadline: Instant, now: Instant) {
        self.deadline = deadline.min(self.latest);
        self.expired = self.latest <= now;
    }
}

fn wake_entry(entry: &Entry) {
    if let Some(waker) = &entry.waker {
        waker.wake_by_ref();
    }
}

/// A deadline that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paused {
    deadline: Instant,
    look_at: Instant,
    at: Instant,
}

/// Place of a task in the table.
#[derive(Debug)]
pub(crate) struct Watch {
    table: Rc<Watchers>,
    index: u32,
}

impl Watch {
    /// The task has `limit` from now on; replaces the deadline before.
    #[inline]
    pub(crate) fn arm_deadline(&self, limit: Duration) {
        // The coarse time may be a tick old; without that tick the limit would be early.
        let now = self.table.swept.get();
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.set_deadline(now.after(limit.saturating_add(TICK)), now);
        entry.look_at = NEVER;
    }

    /// [`Watch::arm_deadline`] for a task that waits for somebody else than its client: it is woken
    /// now and then to look whether that is still there ([`Watch::take_look`]).
    #[inline]
    pub(crate) fn arm_and_look(&self, limit: Duration) {
        let now = self.table.swept.get();
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.set_deadline(now.after(limit.saturating_add(TICK)), now);
        // A response that comes in many pieces does not put the next look off.
        if entry.look_at == NEVER {
            entry.look = false;
        }
        entry.look_at = entry.look_at.min(now.after(LOOK));
    }

    /// True if it is time to look after the client. Once asked, the answer is forgotten until the
    /// next time.
    #[inline]
    pub(crate) fn take_look(&self) -> bool {
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        std::mem::take(&mut entry.look)
    }

    /// The deadline, to be [resumed](Watch::resume_deadline) after something else was waited for.
    pub(crate) fn pause_deadline(&self) -> Paused {
        let entry = &self.table.entries.borrow()[self.index as usize];
        Paused {
            deadline: entry.deadline,
            look_at: entry.look_at,
            at: self.table.swept.get(),
        }
    }

    /// Goes on with a deadline, later by what the pause took.
    pub(crate) fn resume_deadline(&self, paused: Paused) {
        let now = self.table.swept.get();
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.set_deadline(paused.deadline.after(now.since(paused.at)), now);
        entry.look_at = paused.look_at;
    }

    /// From now on the task's connection leads to `member`: a load alert may close it.
    /// `jitter` (0 to 1) says when it is its turn.
    pub(crate) fn tie_to_member(&self, member: MemberId, jitter: f32) {
        let quiet = Some(self.table.swept.get());
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.tie = Some(MemberTie {
            member,
            quiet,
            alerted: None,
            jitter,
        });
    }

    /// [`Watch::arm_deadline`] for a tied connection on which something was sent; `answered` if
    /// the member had the last word.
    #[inline]
    pub(crate) fn arm_after_traffic(&self, limit: Duration, answered: bool) {
        let now = self.table.swept.get();
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.set_deadline(now.after(limit.saturating_add(TICK)), now);
        entry.called = false;
        if let Some(tie) = &mut entry.tie {
            tie.quiet = answered.then_some(now);
        }
    }

    /// The task pauses until the next sweep, which wakes it. Nobody else is to blame for that: no
    /// deadline passes meanwhile but that of [`Watch::set_total_limit`].
    pub(crate) fn nap_until_sweep(&self) {
        let now = self.table.swept.get();
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.naps = true;
        entry.set_deadline(NEVER, now);
        entry.look_at = NEVER;
        self.table.napping.set(true);
    }

    /// Time of the last sweep.
    pub(crate) fn coarse_now(&self) -> Instant {
        self.table.swept.get()
    }

    /// A number from 0.5 to 1.5 that is another one after each sweep: workers that sweep a moment
    /// after others would come too late each time otherwise.
    pub(crate) fn jitter_factor(&self) -> f32 {
        let bits = self
            .table
            .swept
            .get()
            .as_nanos()
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        0.5 + (bits >> 40) as f32 / (1 << 24) as f32
    }

    /// True if a load alert wants the connection closed. Once asked, the answer is forgotten until
    /// the next sweep.
    #[inline]
    pub(crate) fn take_call(&self) -> bool {
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        std::mem::take(&mut entry.called)
    }

    /// Whatever the task waits for, it has `limit` from now on, or less if there is a shorter limit already.
    pub(crate) fn set_total_limit(&self, limit: Duration) {
        let end = self.table.swept.get().after(limit.saturating_add(TICK));
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.end = entry.end.min(end);
        entry.latest = entry.latest.min(end);
    }

    /// A part of the task has `limit` from now on, or as long as the whole with `None`. Replaces the limit of the part
    /// before.
    pub(crate) fn limit_part(&self, limit: Option<Duration>) {
        let now = self.table.swept.get();
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.latest = match limit {
            Some(limit) => now.after(limit.saturating_add(TICK)).min(entry.end),
            None => entry.end,
        };
        entry.set_deadline(NEVER, now);
    }

    /// Lifts the limits of [`Watch::set_total_limit`] and [`Watch::limit_part`].
    #[inline]
    pub(crate) fn lift_limits(&self) {
        let now = self.table.swept.get();
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        (entry.end, entry.latest) = (NEVER, NEVER);
        entry.set_deadline(NEVER, now);
    }

    /// True if the time of [`Watch::set_total_limit`] is over.
    pub(crate) fn is_over(&self) -> bool {
        let entry = &self.table.entries.borrow()[self.index as usize];
        entry.end <= self.table.swept.get()
    }

    /// True if the time of [`Watch::limit_part`], or that of the whole task, is over.
    pub(crate) fn is_part_over(&self) -> bool {
        let entry = &self.table.entries.borrow()[self.index as usize];
        entry.latest <= self.table.swept.get()
    }

    /// Wakes the task, if it waits.
    pub(crate) fn wake_task(&self) {
        wake_entry(&self.table.entries.borrow()[self.index as usize]);
    }

    /// The task may take as long as it likes.
    #[inline]
    pub(crate) fn disarm_deadline(&self) {
        let now = self.table.swept.get();
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.set_deadline(NEVER, now);
        entry.look_at = NEVER;
    }

    /// Ready if the task has to stop; otherwise the task will be woken when it has to.
    #[inline]
    pub(crate) fn poll_stop(&self, cx: &mut Context<'_>) -> Poll<Stop> {
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        if entry.cut {
            return Poll::Ready(Stop::Cut);
        }
        if entry.expired {
            return Poll::Ready(Stop::Expired);
        }
        match &entry.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => entry.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns the output of `poll`, unless the task has to stop first.
    pub(crate) async fn poll_until_stop<T>(
        &self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Stop> {
        std::future::poll_fn(|cx| match poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => self.poll_stop(cx).map(Err),
        })
        .await
    }

    /// Waits for `time`, or until the connection is cut.
    pub(crate) async fn sleep_or_stop(&self, time: Duration) -> Stop {
        self.arm_deadline(time);
        std::future::poll_fn(|cx| self.poll_stop(cx)).await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let entry = &mut self.table.entries.borrow_mut()[self.index as usize];
        entry.deadline = NEVER;
        entry.look_at = NEVER;
        entry.naps = false;
        entry.waker = None;
        entry.service = ServiceId::WORKER;
        entry.tie = None;
        self.table.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn stop(watch: &Watch) -> Poll<Stop> {
        watch.poll_stop(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_limit_is_never_met_early_and_at_most_two_ticks_late() {
        let watchers = Watchers::new(at(1000));
        let watch = watchers.watch_task(ServiceId(0));
        // Armed just before the next sweep: the coarse time is almost a tick old.
        watch.arm_deadline(Duration::from_millis(50));
        watchers.wake_expired(at(1100));
        assert_eq!(stop(&watch), Poll::Pending);
        watchers.wake_expired(at(1200));
        assert_eq!(stop(&watch), Poll::Ready(Stop::Expired));
        watch.arm_deadline(Duration::from_millis(50));
        assert_eq!(stop(&watch), Poll::Pending);
        watch.disarm_deadline();
        watchers.wake_expired(at(9000));
        assert_eq!(stop(&watch), Poll::Pending);
    }

    #[test]
    fn a_total_limit_is_not_put_off_and_has_parts() {
        let watchers = Watchers::new(at(1000));
        let watch = watchers.watch_task(ServiceId(0));
        watch.set_total_limit(Duration::from_millis(500));
        watch.set_total_limit(Duration::from_secs(60));
        watch.limit_part(Some(Duration::from_millis(200)));
        let ends = |ms: u64| {
            watchers.wake_expired(at(ms));
            // Something has come, as it does all the time.
            watch.arm_and_look(Duration::from_secs(10));
            assert_eq!(stop(&watch).is_ready(), watch.is_part_over());
            (watch.is_part_over(), watch.is_over())
        };
        assert_eq!([1100, 1200].map(ends), [(false, false); 2]);
        assert_eq!([1300, 1400].map(ends), [(true, false); 2]);
        // The next part takes what is left of the whole.
        watch.limit_part(Some(Duration::from_secs(10)));
        assert_eq!(ends(1500), (false, false));
        assert_eq!([1600, 1700].map(ends), [(true, true); 2]);
        watch.limit_part(None);
        assert_eq!(ends(1800), (true, true));
        watch.lift_limits();
        assert_eq!([1900, 9900].map(ends), [(false, false); 2]);
    }

    #[test]
    fn time_in_which_the_worker_stood_still_does_not_count() {
        let watchers = Watchers::new(at(1000));
        let (before, after) = (
            watchers.watch_task(ServiceId(0)),
            watchers.watch_task(ServiceId(0)),
        );
        before.arm_deadline(Duration::from_millis(300));
        watchers.wake_expired(at(1100));
        before.set_total_limit(Duration::from_millis(500));
        // Nothing runs until here, where a task is armed before the sweep.
        after.arm_deadline(Duration::from_millis(300));
        watchers.wake_expired(at(9000));
        assert_eq!(stop(&before), Poll::Pending);
        assert_eq!(stop(&after), Poll::Pending);
        assert!(!before.is_over());
        for ms in [9100, 9200, 9300, 9400] {
            watchers.wake_expired(at(ms));
        }
        assert_eq!(stop(&before), Poll::Ready(Stop::Expired));
        assert_eq!(stop(&after), Poll::Ready(Stop::Expired));
    }

    #[test]
    fn orders_reach_the_service_they_are_for() {
        let watchers = Watchers::new(at(0));
        let (a, b) = (
            watchers.watch_task(ServiceId(0)),
            watchers.watch_task(ServiceId(1)),
        );
        let own = watchers.watch_task(ServiceId::WORKER);
        watchers.cut_connections(Some(ServiceId(1)));
        assert_eq!(stop(&a), Poll::Pending);
        assert_eq!(stop(&b), Poll::Ready(Stop::Cut));
        watchers.cut_connections(None);
        assert_eq!(stop(&a), Poll::Ready(Stop::Cut));
        assert_eq!(stop(&own), Poll::Pending);
    }

    #[test]
    fn an_alert_calls_who_is_at_rest_one_after_the_other() {
        let watchers = Watchers::new(at(1000));
        let watches: Vec<_> = (0..4).map(|_| watchers.watch_task(ServiceId(0))).collect();
        let (early, late) = (MemberId(1), MemberId(2));
        watches[0].tie_to_member(early, 0.0);
        watches[1].tie_to_member(early, 0.9);
        watches[2].tie_to_member(early, 0.0);
        watches[3].tie_to_member(late, 0.0);
        // One waits for an answer.
        watches[2].arm_after_traffic(Duration::from_secs(600), false);
        let settings = AlertSettings {
            shed_time: Duration::from_secs(10),
            close_idle: Some(Duration::from_secs(2)),
            ..AlertSettings::default()
        };
        let shedding = SheddingMembers::from([(early, settings)]);
        let called = |shedding: &SheddingMembers, ms| {
            watchers.wake_expired(at(ms));
            watchers.wake_shedding(shedding, at(ms));
            watches.iter().map(Watch::take_call).collect::<Vec<_>>()
        };
        let nobody = [false; 4];
        assert_eq!(called(&SheddingMembers::new(), 2000), nobody);
        assert_eq!(
            called(&shedding, 3000),
            nobody,
            "not silent for long enough"
        );
        assert_eq!(called(&shedding, 3200), [true, false, false, false]);
        watches[0].arm_after_traffic(Duration::from_secs(600), true);
        assert_eq!(called(&shedding, 5000), nobody, "it has spoken again");
        assert_eq!(called(&shedding, 11_000), [true, false, false, false]);
        // The alert is lifted in between: everybody has all the time again.
        assert_eq!(called(&SheddingMembers::new(), 11_500), nobody);
        watches[2].arm_after_traffic(Duration::from_secs(600), true);
        assert_eq!(called(&shedding, 12_500), [true, false, false, false]);
        assert_eq!(called(&shedding, 14_000), [true, false, true, false]);
        assert_eq!(called(&shedding, 22_000), [true, true, true, false]);
        let silent = AlertSettings {
            close_idle: None,
            ..shedding[&early].clone()
        };
        assert_eq!(
            called(&SheddingMembers::from([(early, silent)]), 40_000),
            nobody
        );
    }

    #[test]
    fn a_task_looks_after_its_client_while_it_waits_for_a_member() {
        let watchers = Watchers::new(at(1000));
        let watch = watchers.watch_task(ServiceId(0));
        watch.arm_and_look(Duration::from_secs(60));
        let looks = |ms| {
            watchers.wake_expired(at(ms));
            assert_eq!(stop(&watch), Poll::Pending);
            watch.take_look()
        };
        let times = (1..=20).map(|tick| 1000 + tick * 100);
        let looked: Vec<_> = times.filter(|&ms| looks(ms)).collect();
        assert_eq!(looked, [1500, 2000, 2500, 3000]);
        // Progress of the member does not put the look off.
        let looks_again = |ms| {
            watch.arm_and_look(Duration::from_secs(60));
            looks(ms)
        };
        let times = (1..=10).map(|tick| 3000 + tick * 100);
        let looked: Vec<_> = times.filter(|&ms| looks_again(ms)).collect();
        assert_eq!(looked, [3500, 4000]);
        watch.arm_deadline(Duration::from_secs(60));
        assert!(
            !looks(4500) && !looks(5000),
            "it waits for the client itself"
        );
    }

    #[test]
    fn s18_a_pause_neither_shortens_a_limit_nor_begins_it_anew() {
        let watchers = Watchers::new(at(1000));
        let watch = watchers.watch_task(ServiceId(0));
        watch.arm_deadline(Duration::from_millis(300));
        watchers.wake_expired(at(1200));
        let paused = watch.pause_deadline();
        watch.arm_deadline(Duration::from_secs(60));
        for ms in [1300, 1400, 1500] {
            watchers.wake_expired(at(ms));
        }
        watch.resume_deadline(paused);
        // 200 of 400 ms, a tick included, were left.
        watchers.wake_expired(at(1600));
        assert_eq!(stop(&watch), Poll::Pending);
        watchers.wake_expired(at(1700));
        assert_eq!(stop(&watch), Poll::Ready(Stop::Expired));
    }

    #[test]
    fn places_are_used_again_and_come_clean() {
        let watchers = Watchers::new(at(0));
        let watch = watchers.watch_task(ServiceId(0));
        watch.arm_deadline(Duration::ZERO);
        watchers.cut_connections(None);
        drop(watch);
        watchers.wake_expired(at(5000));
        let watch = watchers.watch_task(ServiceId(3));
        assert_eq!(watchers.entries.borrow().len(), 1);
        assert_eq!(stop(&watch), Poll::Pending);
    }
}
