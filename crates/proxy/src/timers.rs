//! Short waits, to the millisecond, for what is in a hurry: the sweep comes every
//! [`TICK`](crate::watch::TICK) only. One file of the system serves all that wait in a worker.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_net::Clock;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A file that becomes readable when a time is over.
#[derive(Debug)]
pub(crate) struct TimerFile(AsyncFd<OwnedFd>);

/// An open timer file, before the runtime watches it.
pub(crate) fn timer_file() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

/// Has it ring after `first`, and then each `every`, unless that is zero.
pub(crate) fn set(timer: &OwnedFd, first: Duration, every: Duration) -> io::Result<()> {
    let spec = |time: Duration| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let times = Itimerspec {
        it_interval: spec(every),
        // 0 would mean never.
        it_value: spec(first.max(Duration::from_nanos(1))),
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &times)?;
    Ok(())
}

impl TimerFile {
    /// Has the runtime watch it.
    pub(crate) fn new_watched(timer: OwnedFd) -> io::Result<Self> {
        // SAFETY: the file is owned, so it stays open and the same until it is dropped.
        let watched = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) };
        Ok(TimerFile(watched?))
    }

    /// Waits until it rings.
    pub(crate) async fn wait_for_ring(&self) -> io::Result<()> {
        loop {
            let mut guard = self.0.readable().await?;
            let mut count = [0; 8];
            match guard.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut count)?)) {
                Ok(result) => return result.map(drop),
                Err(_would_block) => {}
            }
        }
    }
}

/// Tasks of a worker that wait.
#[derive(Debug)]
pub(crate) struct Timers {
    clock: Clock,
    waiting: RefCell<BTreeMap<(Instant, u64), Waker>>,
    next: Cell<u64>,
    /// There from the first wait on.
    file: RefCell<Option<Rc<TimerFile>>>,
    rings_at: Cell<Option<Instant>>,
}

/// A wait until a time.
#[derive(Debug)]
pub(crate) struct TimerWait {
    timers: Rc<Timers>,
    place: (Instant, u64),
}

impl Timers {
    pub(crate) fn new(clock: Clock) -> Rc<Self> {
        Rc::new(Timers {
            clock,
            waiting: RefCell::default(),
            next: Cell::new(0),
            file: RefCell::default(),
            rings_at: Cell::new(None),
        })
    }

    /// Waits until `at`; for ever if the system has no timer for that.
    pub(crate) fn nap_until(self: &Rc<Self>, at: Instant) -> TimerWait {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        TimerWait {
            timers: Rc::clone(self),
            place: (at, number),
        }
    }

    /// Makes sure that it rings at `at`, or before.
    fn ring_by(self: &Rc<Self>, at: Instant) -> io::Result<()> {
        if self.rings_at.get().is_some_and(|rings| rings <= at) {
            return Ok(());
        }
        let known = self.file.borrow().clone();
        let file = match known {
            Some(file) => file,
            None => {
                let file = Rc::new(TimerFile::new_watched(timer_file()?)?);
                self.file.replace(Some(Rc::clone(&file)));
                tokio::task::spawn_local(Rc::clone(self).run_timer(Rc::clone(&file)));
                file
            }
        };
        set(file.0.get_ref(), at.since(self.clock.now()), Duration::ZERO)?;
        self.rings_at.set(Some(at));
        Ok(())
    }

    async fn run_timer(self: Rc<Self>, file: Rc<TimerFile>) {
        while file.wait_for_ring().await.is_ok() {
            self.rings_at.set(None);
            let now = self.clock.now();
            let mut waiting = self.waiting.borrow_mut();
            while let Some(first) = waiting.first_entry()
                && first.key().0 <= now
            {
                first.remove().wake();
            }
            let next = waiting.first_key_value().map(|((at, _), _)| *at);
            drop(waiting);
            if let Some(at) = next
                && let Err(error) = self.ring_by(at)
            {
                tracing::error!(%error, "the timer of a worker cannot be set");
                break;
            }
        }
        // The next one who waits begins anew.
        self.file.replace(None);
    }
}

impl Future for TimerWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let TimerWait { timers, place } = &*self;
        if timers.clock.now() >= place.0 {
            return Poll::Ready(());
        }
        let mut waiting = timers.waiting.borrow_mut();
        let waker = waiting.entry(*place).or_insert_with(|| cx.waker().clone());
        if !waker.will_wake(cx.waker()) {
            waker.clone_from(cx.waker());
        }
        drop(waiting);
        if let Err(error) = timers.ring_by(place.0) {
            evenkeel_limits::warn_throttled!(%error, "the timer of a worker cannot be made or set");
        }
        Poll::Pending
    }
}

impl Drop for TimerWait {
    fn drop(&mut self) {
        self.timers.waiting.borrow_mut().remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::on_worker;

    #[test]
    fn waits_end_in_the_order_of_their_times_and_never_early() {
        on_worker(async |worker| {
            let (timers, clock) = (&worker.timers, worker.clock);
            let ended: Rc<RefCell<Vec<u64>>> = Rc::default();
            let far = clock.now().after(Duration::from_secs(3600));
            let mut given_up = timers.nap_until(far);
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut given_up).poll(cx).is_pending());
            let tasks = [30, 5, 15].map(|millis| {
                let at = clock.now().after(Duration::from_millis(millis));
                let (nap, ended) = (timers.nap_until(at), Rc::clone(&ended));
                tokio::task::spawn_local(async move {
                    nap.await;
                    assert!(clock.now() >= at, "{millis}");
                    ended.borrow_mut().push(millis);
                })
            });
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*ended.borrow(), [5, 15, 30]);
            drop(given_up);
            assert!(timers.waiting.borrow().is_empty());
            // What is over needs no timer.
            timers.nap_until(clock.now()).await;
        });
    }
}
