//! Accuracy of the CPU load of a back-end as known from outside: a back-end on which processes load
//! the CPU and sleep in turn.

use std::time::Duration;

use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::record::{Available, BASE, Base, Record, Scope, Source};
use evenkeel_sim::engine::{draw_exponential, duration_nanos};
use evenkeel_sim::server::{Discipline, Server};

/// Parameters of the world.
#[derive(Clone, Copy, Debug)]
pub struct Accuracy {
    /// Number of CPUs.
    pub cpus: usize,
    /// Processes that load a CPU each and sleep in turn, in step.
    pub processes: usize,
    /// Shortest and longest phase of load or sleep, drawn evenly between them.
    pub phase: (Duration, Duration),
    /// Time between two readings, and between two turns of the process that writes its page, to within
    /// 5 %.
    pub interval: Duration,
    /// Time that this process waits for a CPU, for each task above the number of CPUs, per CPU: a
    /// random time, this on average.
    pub wait: Duration,
    /// Duration of the run.
    pub length: Duration,
}

/// Mean absolute errors of the load that a front-end reads, at the moments of reading, against the true
/// CPU load of the 10 ms that end then.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    /// Error of the page that a process writes (ULM).
    pub user: f64,
    /// Error of the product's CPU load, out of the kernel's record (KLM).
    pub cpu: f64,
    /// Error of the CPU utilisation since the last reading, out of the kernel: what the record had before it had the
    /// busy time of the last 10 to 20 ms.
    pub since_last: f64,
    /// Error of the tasks of the moment that run or wait, per CPU, out of the kernel (KLM).
    pub tasks: f64,
    /// The first two seconds: time, true load, and the load by ULM, by KLM, and by the tasks of the moment.
    pub shown: Vec<[f64; 5]>,
}

/// Time over which the true load is taken, in nanoseconds.
const TRUTH: u64 = 10_000_000;
/// Steps of time.
const STEP: u64 = 100_000;
/// Interval of the kernel's timer.
const TICK: u64 = 10_000_000;

/// The kernel of the back-end, with what its timer keeps for its records.
struct Kernel {
    cpus: u32,
    /// Times of the last two ticks, the older one first, with the busy time until then.
    ticks: [(u64, u64); 2],
    /// Time of the next tick.
    next: u64,
    /// Record of the last reading.
    before: Option<Before>,
}

impl Kernel {
    /// Notes what the timer sees when its time has come.
    fn tick(&mut self, now: u64, busy: f64) {
        if now >= self.next {
            self.ticks = [self.ticks[1], (now, busy as u64)];
            self.next += TICK;
        }
    }

    /// Returns the product's loads of a record of this moment, as a front-end reads it.
    fn read(&mut self, now: u64, busy: f64, tasks: f64) -> Loads {
        let mut base = Base::new(Source::Responder, Scope::Machine);
        (base.epoch, base.time_ns) = (1, now);
        (base.cpus, base.capacity) = (self.cpus, self.cpus * 1000);
        base.available = [Available::BUSY, Available::RUNNING, Available::RECENT]
            .into_iter()
            .fold(Available(0), Available::with_parts);
        base.totals.busy_ns = busy as u64;
        base.totals.running = tasks as u32;
        let (at, before) = self.ticks[0];
        base.recent_ns = (now - at) as u32;
        base.recent_busy_ns = base.totals.busy_ns - before;
        let mut bytes = [0; BASE];
        base.write(&mut bytes);
        let loads = Record::parse(&bytes)
            .map(|record| Loads::since_last(self.before.as_ref(), &record))
            .unwrap_or_default();
        self.before = Some(Before::new(&base));
        loads
    }
}

/// Plays it with a seed.
pub fn play_accuracy(of: &Accuracy, seed: u64) -> Errors {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut server = Server::new(Discipline::Sharing, of.cpus, 1.0, 0.0, false);
    let steps = |time: Duration| (duration_nanos(time) / STEP as f64).max(1.0) as u64;
    let cpus = of.cpus as f64;
    // Busy times of the last 10 ms, a step each.
    let mut last = std::collections::VecDeque::from(vec![0.0; (TRUTH / STEP) as usize]);
    let interval = steps(of.interval);
    // Two clocks that never keep in step.
    let next =
        |rng: &mut fastrand::Rng| rng.u64(interval - interval / 20..=interval + interval / 20);
    let (mut is_on, mut turns_at) = (false, 0);
    let (mut reads_at, mut wakes_at) = (rng.u64(1..=interval), rng.u64(1..=interval));
    let mut writes_at = None;
    let (mut read, mut page) = ((0.0, 0), (0.0, 0));
    let mut written = None;
    let mut kernel = Kernel {
        cpus: of.cpus as u32,
        ticks: [(0, 0); 2],
        next: STEP * rng.u64(1..=TICK / STEP),
        before: None,
    };
    let mut errors = Errors::default();
    let mut count = 0.0;
    for step in 1..=steps(of.length) {
        let now = step * STEP;
        let busy = server.busy(now);
        kernel.tick(now, busy);
        last.push_back(busy);
        let before = last.pop_front().unwrap_or(busy);
        if step >= wakes_at {
            let above = (server.tasks() - cpus).max(0.0) / cpus;
            let late = draw_exponential(duration_nanos(of.wait) * above, &mut rng);
            let at = step + (late / STEP as f64) as u64;
            (writes_at, wakes_at) = (Some(at), at + next(&mut rng));
        }
        if writes_at.is_some_and(|at| step >= at) {
            written = Some((busy - page.0) / ((now - page.1) as f64 * cpus));
            (page, writes_at) = ((busy, now), None);
        }
        if step >= reads_at {
            reads_at += next(&mut rng);
            let first = TRUTH / STEP;
            let truth = (busy - before) / (TRUTH as f64 * cpus);
            let since_last = (busy - read.0) / ((now - read.1) as f64 * cpus);
            read = (busy, now);
            let loads = kernel.read(now, busy, server.tasks());
            let cpu = loads.cpu.unwrap_or_default();
            let tasks = loads.run_queue.unwrap_or_default().min(1.0);
            if let Some(user) = written.filter(|_| step > first.max(2 * interval)) {
                count += 1.0;
                errors.user += (user - truth).abs();
                errors.cpu += (cpu - truth).abs();
                errors.since_last += (since_last - truth).abs();
                errors.tasks += (tasks - truth).abs();
                let at = now as f64 / 1e9;
                if at <= 2.0 {
                    errors.shown.push([at, truth, user, cpu, tasks]);
                }
            }
        }
        if step >= turns_at {
            is_on = !is_on;
            let tasks = if is_on { of.processes as f64 } else { 0.0 };
            server.set_background(tasks, now);
            let (least, most) = (steps(of.phase.0), steps(of.phase.1));
            turns_at = step + rng.u64(least..=most.max(least));
        }
    }
    let count: f64 = f64::max(count, 1.0);
    for error in [
        &mut errors.user,
        &mut errors.cpu,
        &mut errors.since_last,
        &mut errors.tasks,
    ] {
        *error /= count;
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulators_kernels_are_read_as_the_product_reads_kernels() {
        let limits = (
            evenkeel_kernel::loads::RECENT_UP_TO,
            evenkeel_sim::scenario::RECENT_UP_TO,
        );
        assert_eq!(limits.0, limits.1);
    }

    #[test]
    fn a_page_is_older_than_what_is_read_at_the_moment() {
        let of = Accuracy {
            cpus: 2,
            processes: 2,
            phase: (Duration::from_millis(200), Duration::from_millis(800)),
            interval: Duration::from_millis(50),
            wait: Duration::ZERO,
            length: Duration::from_secs(60),
        };
        let errors: Vec<Errors> = (1..=5).map(|seed| play_accuracy(&of, seed)).collect();
        let mean = |error: fn(&Errors) -> f64| errors.iter().map(error).sum::<f64>() / 5.0;
        let (user, cpu, tasks) = (mean(|e| e.user), mean(|e| e.cpu), mean(|e| e.tasks));
        let since_last = mean(|e| e.since_last);
        // The load changes every 500 ms. A change makes each reading wrong that has it in its window, and not in the 10 ms
        // of the truth, by the share of the window: together by half of the difference of the windows, and by the age.
        let by_arithmetic = |window: f64, age: f64| ((window - 10.0) / 2.0 + age) / 500.0;
        let off = |found: f64, expected: f64| (found / expected - 1.0).abs();
        assert!(
            off(since_last, by_arithmetic(50.0, 0.0)) < 0.2,
            "{since_last}"
        );
        assert!(off(user, by_arithmetic(50.0, 25.0)) < 0.2, "{user}");
        // An error of some milliseconds is found by few readings.
        assert!(off(cpu, by_arithmetic(15.0, 0.0)) < 0.5, "{cpu}");
        assert!(
            cpu < user / 10.0 && tasks < since_last / 2.0,
            "{user} {cpu} {tasks}"
        );
        assert_eq!(play_accuracy(&of, 1).user, errors[0].user);
    }
}
