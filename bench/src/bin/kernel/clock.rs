//! Time as measured here: the monotonic clock, CPU clocks of processes, and threads that are
//! not kept waiting.

use std::io;
use std::time::Duration;

/// Nanoseconds of the monotonic clock.
pub(crate) fn monotonic_nanos() -> u64 {
    read(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Sleeps until a moment of [`now`].
pub(crate) fn sleep_until(at: u64) {
    let time = libc::timespec {
        tv_sec: (at / 1_000_000_000) as libc::time_t,
        tv_nsec: (at % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `time` outlives the call; the rest is not wanted. It is called again if a signal
    // interrupts it.
    while unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &time,
            std::ptr::null_mut(),
        )
    } == libc::EINTR
    {}
}

/// Clocks of the CPU time of processes, all their threads included.
pub(crate) struct CpuClocks(Vec<libc::clockid_t>);

impl CpuClocks {
    pub(crate) fn new(processes: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        let clock = |process: u32| {
            let mut clock = 0;
            // SAFETY: `clock` is written through a valid pointer.
            match unsafe { libc::clock_getcpuclockid(process as libc::pid_t, &mut clock) } {
                0 => Ok(clock),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        let clocks: io::Result<Vec<_>> = processes.into_iter().map(clock).collect();
        Ok(CpuClocks(clocks?))
    }

    /// Nanoseconds that all of them have used. A process that has ended counts as nothing.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().filter_map(|clock| read(*clock)).sum()
    }
}

fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is written through a valid pointer.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
        _ => None,
    }
}

/// Gives the calling thread a real-time priority, 1 to 99.
pub(crate) fn be_first(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `parameters` outlives the call.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Samples a growing figure at fixed times, so that what it grew by between any two moments
/// can be told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Vec<(u64, f64)>);

impl Series {
    pub(crate) fn push(&mut self, at: u64, value: f64) {
        self.0.push((at, value));
    }

    /// The samples: moments and figures.
    pub(crate) fn samples(&self) -> &[(u64, f64)] {
        &self.0
    }

    /// The figure at a moment, by the line between the samples around it.
    pub(crate) fn value_at(&self, moment: u64) -> Option<f64> {
        let after = self.0.partition_point(|(at, _)| *at < moment);
        let &(right, high) = self.0.get(after)?;
        let Some(&(left, low)) = after.checked_sub(1).and_then(|before| self.0.get(before)) else {
            return (right == moment).then_some(high);
        };
        let share = (moment - left) as f64 / (right - left) as f64;
        Some(low + (high - low) * share)
    }

    /// By how much it grew, per nanosecond.
    pub(crate) fn growth_rate(&self, from: u64, to: u64) -> Option<f64> {
        let grown = self.value_at(to)? - self.value_at(from)?;
        (to > from).then(|| grown / (to - from) as f64)
    }
}

/// Samples `figure` every `interval` on a thread that comes first, until `stop` says so.
pub(crate) fn sample_series(
    interval: Duration,
    stop: &std::sync::atomic::AtomicBool,
    mut figure: impl FnMut() -> f64,
) -> io::Result<Series> {
    be_first(70)?;
    let interval = interval.as_nanos() as u64;
    let mut series = Series::default();
    let mut next = monotonic_nanos();
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        sleep_until(next);
        // Both clocks are read before and after: a thread can still be interrupted.
        let before = monotonic_nanos();
        let value = figure();
        series.push(before + (monotonic_nanos() - before) / 2, value);
        next += interval;
    }
    Ok(series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_a_line_between_its_samples() {
        let mut series = Series::default();
        series.push(100, 1.0);
        series.push(200, 3.0);
        series.push(400, 3.0);
        assert_eq!(series.value_at(100), Some(1.0));
        assert_eq!(series.value_at(150), Some(2.0));
        assert_eq!(series.value_at(300), Some(3.0));
        assert_eq!(series.value_at(50), None);
        assert_eq!(series.value_at(401), None);
        assert_eq!(series.growth_rate(100, 300), Some(0.01));
        assert_eq!(series.growth_rate(300, 300), None);
    }
}
