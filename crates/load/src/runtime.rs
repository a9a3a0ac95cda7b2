//! An event loop for one thread that is on time: tasks, sockets, timers and planned arrivals.
//!
//! Tokio's timers are whole milliseconds, which would be most of what is measured here. This loop
//! sleeps until shortly before the next arrival, and then looks at the clock until it is due.
//! Between two tasks it looks whether an arrival is due, so that answers never make sends late.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use crate::schedule::Arrivals;

/// Time before an arrival during which the loop does not sleep: waking up takes about as long.
const SPIN: Duration = Duration::from_micros(100);
/// Interval between checks of time limits.
const SWEEP: Duration = Duration::from_millis(20);
/// Tasks in a row before sockets are looked at again.
const IN_A_ROW: u32 = 64;
/// Bytes that are read at once.
const SCRATCH: usize = 64 * 1024;
/// No task.
const NOBODY: usize = usize::MAX;

/// A handle to the loop of this thread.
pub(crate) type Runtime = Rc<Loop>;

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
    /// True if the loop may end without this task.
    is_aside: bool,
}

/// Waker for a library: it may be on any thread, so its list is the only part with a lock.
struct LoopWaker {
    task: usize,
    all: Arc<Mutex<Vec<usize>>>,
}

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(self.task);
    }
}

/// State of a socket.
#[derive(Clone, Copy)]
struct Source {
    readable: bool,
    writable: bool,
    /// True if the other side sends no more: what is left can be read at any time.
    ended: bool,
    reader: usize,
    writer: usize,
}

/// A time limit of a task.
#[derive(Clone, Copy, Default)]
struct Limit {
    at: Option<Instant>,
    is_over: bool,
}

/// The loop.
pub(crate) struct Loop {
    epoll: OwnedFd,
    tasks: RefCell<Vec<Option<Task>>>,
    free_tasks: RefCell<Vec<usize>>,
    living: Cell<usize>,
    sources: RefCell<Vec<Source>>,
    free_sources: RefCell<Vec<usize>>,
    limits: RefCell<Vec<Limit>>,
    timers: RefCell<BinaryHeap<Reverse<(Instant, usize)>>>,
    ready: RefCell<VecDeque<usize>>,
    woken: Arc<Mutex<Vec<usize>>>,
    current: Cell<usize>,
    /// Tasks that wait for an arrival, longest first.
    idle: RefCell<VecDeque<usize>>,
    arrivals: RefCell<Arrivals>,
    scratch: RefCell<Vec<u8>>,
    /// Time for which the loop looked at the clock only.
    spun: Cell<Duration>,
}

/// Something that the loop does from time to time, and when next.
pub(crate) type Chore<'a> = &'a mut dyn FnMut(Instant) -> Instant;

impl Loop {
    /// A loop without tasks.
    pub(crate) fn new(arrivals: Arrivals) -> io::Result<Runtime> {
        // The usual 50 us would be added to every sleep. Without it the loop is less exact.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        Ok(Rc::new(Loop {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            tasks: RefCell::default(),
            free_tasks: RefCell::default(),
            living: Cell::new(0),
            sources: RefCell::default(),
            free_sources: RefCell::default(),
            limits: RefCell::default(),
            timers: RefCell::default(),
            ready: RefCell::default(),
            woken: Arc::default(),
            current: Cell::new(NOBODY),
            idle: RefCell::default(),
            arrivals: RefCell::new(arrivals),
            scratch: RefCell::new(vec![0; SCRATCH]),
            spun: Cell::new(Duration::ZERO),
        }))
    }

    /// Adds a task.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.add(Box::pin(future), false);
    }

    /// Adds a task that others need: the loop ends without it.
    pub(crate) fn spawn_aside(&self, future: impl Future<Output = ()> + 'static) {
        self.add(Box::pin(future), true);
    }

    fn add(&self, future: Pin<Box<dyn Future<Output = ()>>>, is_aside: bool) {
        let id = self.free_tasks.borrow_mut().pop();
        let mut tasks = self.tasks.borrow_mut();
        let id = id.unwrap_or_else(|| {
            tasks.push(None);
            self.limits.borrow_mut().push(Limit::default());
            tasks.len() - 1
        });
        let waker = Waker::from(Arc::new(LoopWaker {
            task: id,
            all: Arc::clone(&self.woken),
        }));
        if let Some(place) = tasks.get_mut(id) {
            *place = Some(Task {
                future,
                waker,
                is_aside,
            });
            self.living.set(self.living.get() + usize::from(!is_aside));
            self.ready.borrow_mut().push_back(id);
        }
    }

    /// Ends all tasks: they hold what holds the loop.
    pub(crate) fn clear(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
    }

    /// Time for which the loop looked at the clock only.
    pub(crate) fn spin_time(&self) -> Duration {
        self.spun.get()
    }

    /// The arrivals.
    pub(crate) fn arrivals(&self) -> std::cell::RefMut<'_, Arrivals> {
        self.arrivals.borrow_mut()
    }

    /// Runs until all tasks have ended, or until `until` says that it is time to.
    pub(crate) fn run(&self, chore: Chore<'_>, until: &dyn Fn(Instant) -> bool) -> io::Result<()> {
        let mut events = Vec::with_capacity(1024);
        let mut sweep = Instant::now() + SWEEP;
        let mut next_chore = chore(Instant::now());
        loop {
            let mut left = IN_A_ROW;
            while left > 0 {
                self.take_woken();
                let next = self.ready.borrow_mut().pop_front();
                let Some(id) = next else { break };
                self.poll(id);
                self.arrive();
                left -= 1;
            }
            let now = Instant::now();
            if now >= next_chore {
                next_chore = chore(now);
            }
            if self.living.get() == 0 || until(now) {
                return Ok(());
            }
            self.fire(now);
            if now >= sweep {
                sweep = now + SWEEP;
                self.sweep(now);
            }
            self.arrive();
            self.take_woken();
            let due = self.next_due();
            let is_busy = !self.ready.borrow().is_empty();
            let (timeout, is_spinning) = match due {
                _ if is_busy => (Duration::ZERO, false),
                Some(due) => {
                    let left = due.saturating_duration_since(now);
                    (left.saturating_sub(SPIN), left <= SPIN)
                }
                None => (SWEEP, false),
            };
            let calm = sweep.min(next_chore).saturating_duration_since(now);
            let mut timeout = timespec(timeout.min(calm));
            if due.is_some() && !is_busy && !is_spinning {
                // `epoll_wait` sleeps for whole milliseconds.
                let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
                match rustix::event::poll(&mut epoll, Some(&timeout)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                timeout = timespec(Duration::ZERO);
            }
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if is_spinning && events.is_empty() {
                self.spun.set(self.spun.get() + now.elapsed());
            }
            for event in &events {
                self.tell(*event);
            }
        }
    }

    fn poll(&self, id: usize) {
        let task = self.tasks.borrow_mut().get_mut(id).and_then(Option::take);
        // Whoever has ended is woken for nothing.
        let Some(mut task) = task else { return };
        self.current.set(id);
        let done = task
            .future
            .as_mut()
            .poll(&mut Context::from_waker(&task.waker));
        self.current.set(NOBODY);
        if done.is_ready() {
            self.living
                .set(self.living.get() - usize::from(!task.is_aside));
            drop(task);
            self.free_tasks.borrow_mut().push(id);
        } else if let Some(place) = self.tasks.borrow_mut().get_mut(id) {
            *place = Some(task);
        }
    }

    /// Has those who wait take the arrivals that are due.
    fn arrive(&self) {
        loop {
            let due = self.arrivals.borrow_mut().next();
            let Some(due) = due else {
                // There will be none: whoever waits for one is told. In a closed loop nobody waits.
                self.ready
                    .borrow_mut()
                    .extend(self.idle.borrow_mut().drain(..));
                return;
            };
            if self.idle.borrow().is_empty() || due > Instant::now() {
                return;
            }
            let id = self.idle.borrow_mut().pop_front();
            if let Some(id) = id {
                self.poll(id);
            }
        }
    }

    /// Returns the next time at which a task wants to be punctual.
    fn next_due(&self) -> Option<Instant> {
        let timer = self.timers.borrow().peek().map(|Reverse((at, _))| *at);
        let arrival = match self.idle.borrow().is_empty() {
            true => None,
            false => self.arrivals.borrow_mut().next(),
        };
        timer.into_iter().chain(arrival).min()
    }

    fn fire(&self, now: Instant) {
        let mut timers = self.timers.borrow_mut();
        while let Some(Reverse((at, task))) = timers.peek().copied() {
            if at > now {
                return;
            }
            timers.pop();
            self.ready.borrow_mut().push_back(task);
        }
    }

    fn sweep(&self, now: Instant) {
        for (task, limit) in self.limits.borrow_mut().iter_mut().enumerate() {
            if limit.at.is_some_and(|at| at <= now) {
                *limit = Limit {
                    at: None,
                    is_over: true,
                };
                self.ready.borrow_mut().push_back(task);
            }
        }
    }

    fn take_woken(&self) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        if !woken.is_empty() {
            self.ready.borrow_mut().extend(woken.drain(..));
        }
    }

    fn tell(&self, event: epoll::Event) {
        use epoll::EventFlags as Flags;
        let (flags, token) = (event.flags, event.data.u64());
        let mut sources = self.sources.borrow_mut();
        let Some(source) = sources.get_mut(token as usize) else {
            return;
        };
        let broken = flags.intersects(Flags::ERR | Flags::HUP);
        if broken || flags.intersects(Flags::IN | Flags::RDHUP) {
            source.readable = true;
            source.ended |= broken || flags.contains(Flags::RDHUP);
            let reader = std::mem::replace(&mut source.reader, NOBODY);
            if reader != NOBODY {
                self.ready.borrow_mut().push_back(reader);
            }
        }
        if broken || flags.contains(Flags::OUT) {
            source.writable = true;
            let writer = std::mem::replace(&mut source.writer, NOBODY);
            if writer != NOBODY {
                self.ready.borrow_mut().push_back(writer);
            }
        }
    }

    /// Watches a socket, which must not block. Closing it ends that; its number is then to be
    /// given back with [`Loop::forget`].
    pub(crate) fn watch_socket(&self, socket: impl AsFd) -> io::Result<usize> {
        use epoll::EventFlags as Flags;
        let id = self.free_sources.borrow_mut().pop();
        let mut sources = self.sources.borrow_mut();
        let fresh = Source {
            readable: false,
            writable: false,
            ended: false,
            reader: NOBODY,
            writer: NOBODY,
        };
        let id = match id {
            Some(id) => {
                if let Some(source) = sources.get_mut(id) {
                    *source = fresh;
                }
                id
            }
            None => {
                sources.push(fresh);
                sources.len() - 1
            }
        };
        let flags = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
        let added = epoll::add(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(id as u64),
            flags,
        );
        if let Err(error) = added {
            self.free_sources.borrow_mut().push(id);
            return Err(error.into());
        }
        Ok(id)
    }

    /// The number of a socket that is closed can be used again.
    pub(crate) fn forget_socket(&self, source: usize) {
        self.free_sources.borrow_mut().push(source);
    }

    /// Returns true if the other side has sent something that nobody has read yet, or has ended.
    pub(crate) fn has_ended(&self, source: usize) -> bool {
        self.sources
            .borrow()
            .get(source)
            .is_none_or(|source| source.ended)
    }

    /// Tries `read`; if there is nothing, the current task is told when there is.
    pub(crate) fn poll_read(
        &self,
        source: usize,
        room: usize,
        mut read: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let mut sources = self.sources.borrow_mut();
        let Some(source) = sources.get_mut(source) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        while source.readable {
            match read() {
                Ok(count) => {
                    // Less than there was room for is all that there was; more is told anew.
                    source.readable = count == room || source.ended;
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => source.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        source.reader = self.current.get();
        Poll::Pending
    }

    /// Tries `write`; if there is no room, the current task is told when there is.
    pub(crate) fn poll_write(
        &self,
        source: usize,
        mut write: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let mut sources = self.sources.borrow_mut();
        let Some(source) = sources.get_mut(source) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        while source.writable {
            match write() {
                Ok(count) => return Poll::Ready(Ok(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => source.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        source.writer = self.current.get();
        Poll::Pending
    }

    /// Waits until something can be written: a connection is there then, or has failed.
    pub(crate) async fn wait_until_writable(&self, source: usize) {
        std::future::poll_fn(|_| {
            let mut sources = self.sources.borrow_mut();
            match sources.get_mut(source) {
                Some(source) if !source.writable => {
                    source.writer = self.current.get();
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// A buffer for what is read and used at once.
    pub(crate) fn with_scratch<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        work(&mut self.scratch.borrow_mut())
    }

    /// Waits until a moment.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        let mut is_set = false;
        std::future::poll_fn(|_| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            if !is_set {
                is_set = true;
                self.timers
                    .borrow_mut()
                    .push(Reverse((at, self.current.get())));
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits for a future until a moment; `None` if it takes longer. A task has one limit at a
    /// time: limits do not nest.
    pub(crate) async fn limit_until<F: Future>(&self, at: Instant, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut is_set = false;
        std::future::poll_fn(|context| {
            let task = self.current.get();
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                if is_set {
                    self.set_limit(task, None);
                }
                return Poll::Ready(Some(output));
            }
            if !is_set {
                is_set = true;
                self.set_limit(task, Some(at));
                return Poll::Pending;
            }
            let is_over = self.limits.borrow().get(task).is_some_and(|l| l.is_over);
            if is_over {
                self.set_limit(task, None);
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    fn set_limit(&self, task: usize, at: Option<Instant>) {
        if let Some(limit) = self.limits.borrow_mut().get_mut(task) {
            *limit = Limit { at, is_over: false };
        }
    }

    /// The next thing to do: when it was due, and since when somebody was free for it. `None` is
    /// the end.
    pub(crate) async fn next_arrival(&self, free: Instant) -> Option<Arrival> {
        let mut is_waiting = false;
        std::future::poll_fn(|_| {
            let now = if is_waiting { Instant::now() } else { free };
            let mut arrivals = self.arrivals.borrow_mut();
            if let Some(taken) = arrivals.take(now) {
                return Poll::Ready(taken.map(|(due, number)| Arrival {
                    due,
                    free,
                    taken_at: now,
                    number,
                }));
            }
            is_waiting = true;
            self.idle.borrow_mut().push_back(self.current.get());
            Poll::Pending
        })
        .await
    }

    /// Wakes all who wait for an arrival: there will be none.
    pub(crate) fn close(&self) {
        self.arrivals.borrow_mut().close();
        let all = std::mem::take(&mut *self.idle.borrow_mut());
        self.ready.borrow_mut().extend(all);
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(0),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Arrival of a request to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Time when the request was due.
    pub due: Instant,
    /// Time since which a client was free for the request.
    pub free: Instant,
    /// Time when a client took the request.
    pub taken_at: Instant,
    /// Number of the arrival, from 0, in this thread.
    pub number: u64,
}
