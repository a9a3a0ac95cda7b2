//! Accuracy of the CPU load of a back-end as known from outside: a back-end on which processes load
//! the CPU and sleep in turn.

use std::time::Duration;

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
    /// Error of the CPU utilisation since the last reading, out of the kernel (KLM).
    pub cpu: f64,
    /// Error of the tasks of the moment that run or wait, per CPU, out of the kernel (KLM).
    pub tasks: f64,
    /// The first two seconds: time, true load, and the load by each of the three ways.
    pub shown: Vec<[f64; 5]>,
}

/// Time over which the true load is taken, in nanoseconds.
const TRUTH: u64 = 10_000_000;
/// Steps of time.
const STEP: u64 = 100_000;

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
    let mut errors = Errors::default();
    let mut count = 0.0;
    for step in 1..=steps(of.length) {
        let now = step * STEP;
        let busy = server.busy(now);
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
            let cpu = (busy - read.0) / ((now - read.1) as f64 * cpus);
            read = (busy, now);
            let tasks = (server.tasks() / cpus).min(1.0);
            if let Some(user) = written.filter(|_| step > first.max(2 * interval)) {
                count += 1.0;
                errors.user += (user - truth).abs();
                errors.cpu += (cpu - truth).abs();
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
    for error in [&mut errors.user, &mut errors.cpu, &mut errors.tasks] {
        *error /= count;
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // A change is wrong in one reading of KLM by 0.4 on average, and in ULM's by the age of the page more.
        let changes = 1.0 / 10.0;
        assert!((cpu / (0.4 * changes) - 1.0).abs() < 0.2, "{cpu}");
        assert!(user > 1.5 * cpu && tasks < 0.5 * cpu, "{user} {tasks}");
        assert_eq!(play_accuracy(&of, 1).user, errors[0].user);
    }
}
