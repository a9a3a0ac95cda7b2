//! A member as it is modelled: a queue, a number of slots, and a speed.

use std::collections::VecDeque;

/// In which order a member works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// First come first served: at most `slots` at once, each at full speed; the
    /// others wait (a pool of worker threads).
    Fifo,
    /// All at once; with more than `slots` requests, they share the speed of `slots` (an event loop, or a thread per
    /// request, on this many cores).
    Sharing,
}

/// Time constant of the average of tasks, in nanoseconds, as the kernel's programs have it.
const QUEUE_AVERAGE: f64 = 100e6;

/// Interval of the timer that keeps the busy time for the load of the moment, in nanoseconds, as the kernel's programs
/// have it.
const TICK: u64 = 10_000_000;

/// Index of a job in the simulation's table.
pub type JobId = usize;

#[derive(Clone, Copy, Debug)]
struct Running {
    job: JobId,
    /// Work left, in nanoseconds at normal speed.
    left: f64,
}

/// The state of one member. All instants are nanoseconds of virtual time.
#[derive(Debug)]
pub struct Server {
    discipline: Discipline,
    slots: usize,
    /// Current slowness, as a multiple of the normal one.
    slowness: f64,
    /// Share of requests that it fails at once.
    pub failing: f64,
    running: Vec<Running>,
    waiting: VecDeque<Running>,
    /// Time at which `left` of the running requests was last up to date.
    updated: u64,
    /// Nanoseconds of work done, over all slots.
    worked: f64,
    /// Times of the last two ticks of the timer, the older one first, with the work done until then.
    ticks: [(u64, f64); 2],
    /// Tasks of other programs that always want a slot, and nanoseconds of work that they got.
    background: f64,
    others: f64,
    /// Share of each slot that interrupts take, before all tasks.
    interrupts: f64,
    /// Tasks that run or wait, averaged over [`QUEUE_AVERAGE`].
    queue: f64,
    /// True if that average is used.
    averages: bool,
    /// Time at which the next request will be done, as it was scheduled last, with the version of that schedule.
    due: Option<u64>,
    version: u32,
}

impl Server {
    /// A server without work. `averages` says that [`queue`](Self::queue) will be used.
    pub fn new(
        discipline: Discipline,
        slots: usize,
        slowness: f64,
        failing: f64,
        averages: bool,
    ) -> Self {
        Server {
            discipline,
            slots,
            slowness,
            failing,
            running: Vec::new(),
            waiting: VecDeque::new(),
            updated: 0,
            worked: 0.0,
            ticks: [(0, 0.0); 2],
            background: 0.0,
            others: 0.0,
            interrupts: 0.0,
            queue: 0.0,
            averages,
            due: None,
            version: 0,
        }
    }

    /// Number of requests that it works on at once.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Factor by which it is slower than normal now.
    pub fn slowness(&self) -> f64 {
        self.slowness
    }

    /// Version of the last answer of [`reschedule`](Self::reschedule).
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Requests that are at the member.
    pub fn in_flight(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Sets the number of other programs' tasks that always want a slot.
    pub fn set_background(&mut self, tasks: f64, now: u64) {
        self.advance(now);
        self.background = tasks;
    }

    /// Sets the share of each slot that interrupts take.
    pub fn set_interrupts(&mut self, share: f64, now: u64) {
        self.advance(now);
        self.interrupts = share.clamp(0.0, 0.99);
    }

    /// Nanoseconds of work that other programs' tasks got.
    pub fn others(&mut self, now: u64) -> f64 {
        self.advance(now);
        self.others
    }

    /// Interrupts that wait for a slot or have it at the moment, per slot: as many as in a queue with
    /// arrivals at random and exponential work (M/M/1).
    pub fn pending_interrupts(&self, rng: &mut fastrand::Rng) -> f64 {
        if self.interrupts <= 0.0 {
            return 0.0;
        }
        let count = |_| libm::floor(libm::log(1.0 - rng.f64()) / libm::log(self.interrupts));
        (0..self.slots).map(count).sum::<f64>() / self.slots as f64
    }

    /// Requests, and other programs' tasks, that run or wait.
    pub fn tasks(&self) -> f64 {
        self.in_flight() as f64 + self.background
    }

    /// Nanoseconds of work done, over all slots.
    pub fn busy(&mut self, now: u64) -> f64 {
        self.advance(now);
        self.worked
    }

    /// Share of the slots that was busy since the tick of the timer before the last one: for 10 to 20 ms.
    pub fn recent_utilization(&mut self, now: u64) -> Option<f64> {
        self.advance(now);
        let (at, worked) = self.ticks[0];
        let most = (now - at) as f64 * self.slots as f64;
        (most > 0.0).then(|| ((self.worked - worked) / most).clamp(0.0, 1.0))
    }

    /// Nanoseconds of work, at normal speed, left of each request that is running.
    pub fn left(&self, now: u64) -> impl Iterator<Item = f64> + '_ {
        let done = (now - self.updated) as f64 * self.rate();
        let left = self.running.iter().map(move |running| running.left - done);
        left.map(|left| left.max(1.0))
    }

    /// Ends all work; answers which.
    pub fn abort(&mut self, now: u64) -> Vec<JobId> {
        self.advance(now);
        let waiting = self.waiting.drain(..);
        let all = self.running.drain(..).chain(waiting);
        all.map(|running| running.job).collect()
    }

    /// Adds a request with this much work.
    pub fn push(&mut self, job: JobId, work: f64, now: u64) {
        self.advance(now);
        let job = Running { job, left: work };
        if self.discipline == Discipline::Sharing || self.running.len() < self.slots {
            self.running.push(job);
        } else {
            self.waiting.push_back(job);
        }
    }

    /// Tasks per slot that run or wait, averaged over 100 ms.
    pub fn mean_queue(&mut self, now: u64) -> f64 {
        self.advance(now);
        self.queue / self.slots as f64
    }

    /// Sets the factor by which it is slower than normal.
    pub fn set_slowness(&mut self, slowness: f64, now: u64) {
        self.advance(now);
        self.slowness = slowness;
    }

    /// Returns the time at which the next request will be done, if nothing happens before, and the version of this
    /// schedule: older versions are void. `None` if the time has not changed, or nothing runs.
    pub fn reschedule(&mut self) -> Option<(u64, u32)> {
        let due = self.next_completion();
        if due == self.due {
            return None;
        }
        self.due = due;
        self.version = self.version.wrapping_add(1);
        due.map(|at| (at, self.version))
    }

    fn next_completion(&self) -> Option<u64> {
        let least = self.running.iter().map(|running| running.left);
        let least = least.min_by(f64::total_cmp)?;
        let after = least / self.rate();
        // Rounded up; `ceil` is a call of a function on most machines.
        let whole = after as u64;
        let after = whole.saturating_add(u64::from((whole as f64) < after));
        Some(self.updated.saturating_add(after))
    }

    /// Takes out the request that is done at `now`.
    pub fn complete(&mut self, now: u64) -> Option<JobId> {
        self.advance(now);
        self.due = None;
        let done = (0..self.running.len())
            .min_by(|&a, &b| self.running[a].left.total_cmp(&self.running[b].left))?;
        let done = self.running.swap_remove(done).job;
        if self.discipline == Discipline::Fifo
            && let Some(next) = self.waiting.pop_front()
        {
            self.running.push(next);
        }
        Some(done)
    }

    /// Brings `left` of the running up to date before something changes.
    fn advance(&mut self, now: u64) {
        let elapsed = (now - self.updated) as f64;
        let rate = self.rate();
        let done = elapsed * rate;
        self.others += done * self.slowness * self.background;
        for running in &mut self.running {
            running.left = (running.left - done).max(0.0);
        }
        let wanted = self.running.len() as f64 + self.background;
        let working = wanted.min(self.slots as f64);
        self.tick(now, working);
        self.worked += elapsed * working;
        if self.averages {
            let tasks = self.tasks();
            self.queue = tasks + (self.queue - tasks) * libm::exp(-elapsed / QUEUE_AVERAGE);
        }
        self.updated = now;
    }

    /// Keeps the work done until the last two ticks, if there was one since the last update; so many slots worked since.
    #[inline]
    fn tick(&mut self, now: u64, working: f64) {
        let last = now - now % TICK;
        if last <= self.updated {
            return;
        }
        let worked = |at: u64| self.worked + (at - self.updated) as f64 * working;
        let before = match last.checked_sub(TICK).filter(|at| *at > self.updated) {
            Some(at) => (at, worked(at)),
            None => self.ticks[1],
        };
        self.ticks = [before, (last, worked(last))];
    }

    /// Work that each running request gets done per nanosecond.
    fn rate(&self) -> f64 {
        let tasks = self.running.len() as f64 + self.background;
        let share = self.slots as f64 / tasks.max(1.0);
        share.min(1.0) * (1.0 - self.interrupts) / self.slowness
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_finishes_in_order_and_at_its_speed() {
        let mut server = Server::new(Discipline::Fifo, 1, 2.0, 0.0, true);
        server.push(0, 100.0, 0);
        server.push(1, 10.0, 0);
        assert_eq!(server.next_completion(), Some(200));
        server.set_slowness(1.0, 100);
        assert_eq!(server.next_completion(), Some(150));
        assert_eq!(server.complete(150), Some(0));
        assert_eq!(server.next_completion(), Some(160));
        assert_eq!(server.complete(160), Some(1));
        assert_eq!(server.next_completion(), None);
    }

    #[test]
    fn background_takes_its_share() {
        let mut server = Server::new(Discipline::Sharing, 2, 1.0, 0.0, true);
        server.set_background(3.0, 0);
        server.push(0, 100.0, 0);
        // Four tasks share two slots.
        assert_eq!(server.next_completion(), Some(200));
        assert_eq!(server.busy(100), 200.0);
        assert_eq!(server.complete(200), Some(0));
        assert!((server.mean_queue(10_000_000_000) - 1.5).abs() < 1e-6);
    }

    #[test]
    fn interrupts_come_first_and_wait_as_in_a_queue() {
        let mut server = Server::new(Discipline::Sharing, 2, 1.0, 0.0, true);
        let mut rng = fastrand::Rng::with_seed(1);
        assert_eq!(server.pending_interrupts(&mut rng), 0.0);
        server.set_interrupts(0.5, 0);
        server.set_background(3.0, 0);
        server.push(0, 100.0, 0);
        // Four tasks share one of two slots.
        assert_eq!(server.next_completion(), Some(400));
        assert_eq!(server.others(400), 300.0);
        let mean = (0..10_000)
            .map(|_| server.pending_interrupts(&mut rng))
            .sum::<f64>()
            / 1e4;
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn the_load_of_the_moment_is_that_since_the_tick_before_the_last() {
        const MS: u64 = 1_000_000;
        let mut server = Server::new(Discipline::Sharing, 2, 1.0, 0.0, false);
        assert_eq!(server.recent_utilization(0), None);
        assert_eq!(server.recent_utilization(3 * MS), Some(0.0));
        server.set_background(1.0, 35 * MS);
        // One of two slots since 35 ms, and the tick before the last was at 30.
        assert_eq!(server.recent_utilization(47 * MS), Some(12.0 / 34.0));
        assert_eq!(server.recent_utilization(50 * MS), Some(0.5));
        server.set_background(0.0, 52 * MS);
        assert_eq!(server.recent_utilization(70 * MS), Some(0.0));
        // Nothing happens for long.
        server.set_background(2.0, 1000 * MS);
        assert_eq!(server.recent_utilization(1995 * MS), Some(1.0));
    }

    #[test]
    fn completions_are_told_once_each() {
        let mut server = Server::new(Discipline::Fifo, 1, 1.0, 0.0, false);
        assert_eq!(server.reschedule(), None);
        server.push(0, 100.0, 0);
        assert_eq!(server.reschedule(), Some((100, 1)));
        server.push(1, 50.0, 10);
        assert_eq!(server.reschedule(), None);
        assert_eq!(server.complete(100), Some(0));
        assert_eq!(server.reschedule(), Some((150, 2)));
        server.abort(120);
        assert_eq!(server.reschedule(), None);
        assert_ne!(server.version(), 2);
    }

    #[test]
    fn sharing_lets_the_short_overtake() {
        let mut server = Server::new(Discipline::Sharing, 1, 1.0, 0.0, true);
        server.push(0, 100.0, 0);
        server.push(1, 10.0, 0);
        assert_eq!(server.next_completion(), Some(20));
        assert_eq!(server.complete(20), Some(1));
        assert_eq!(server.next_completion(), Some(110));
        assert_eq!(server.in_flight(), 1);
    }
}
