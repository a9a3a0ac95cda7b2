//! Processes of this machine: which exist, and which run.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A process, for as long as the machine runs: process ids come back, start times do not.
///
/// Process id in the high half, start time (clock ticks since boot) in the low one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId(pub(crate) u64);

impl ProcessId {
    fn new(pid: u32, start: u64) -> Self {
        // The low half: two processes of one id are not 2^32 ticks apart to the tick.
        Self(u64::from(pid) << 32 | start & u64::from(u32::MAX))
    }

    /// The calling process.
    pub(crate) fn current() -> Self {
        let start = look("self").map_or(0, |(_, _, start)| start);
        Self::new(std::process::id(), start)
    }

    /// The number that the kernel knows it by.
    pub(crate) fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns true if there is no process with this number: a cheap question, with no false
    /// yes.
    pub(crate) fn is_gone(self) -> bool {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }

    /// Returns true if the process runs. A process that is gone or waits to be reaped does not
    /// run; a process that this process may not look at is taken for a running one.
    pub(crate) fn is_running(self) -> bool {
        if self.is_gone() {
            return false;
        }
        match look(&self.pid().to_string()) {
            Some((_, state, start)) => {
                !matches!(state, 'Z' | 'X') && Self::new(self.pid(), start) == self
            }
            // It may be hidden.
            None => !self.is_gone(),
        }
    }
}

/// Inode of this process' PID namespace; 0 where `/proc` does not say.
pub(crate) fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Process id, state and start time of a process, from `/proc/PID/stat`.
fn look(pid: &str) -> Option<(u32, char, u64)> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<(u32, char, u64)> {
    let pid = stat.split_once(' ')?.0.parse().ok()?;
    // The second field is the program's name in parentheses, and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of all; the state was the third.
    let start = fields.nth(18)?.parse().ok()?;
    Some((pid, state, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_programs_name() {
        let stat = "17 (a) R 1 (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(parse(stat), Some((17, 'S', 4711)));
        for cut in 0..stat.len() - "11 20 21".len() {
            assert_ne!(parse(&stat[..cut]), Some((17, 'S', 4711)));
        }
    }

    #[test]
    fn a_process_runs_until_it_is_killed_even_if_nobody_waits_for_it() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let (pid, _, start) = look(&child.id().to_string()).unwrap();
        let process = ProcessId::new(pid, start);
        assert!(process.is_running());
        // One that had its number before.
        assert!(!ProcessId::new(pid, start.wrapping_sub(1)).is_running());
        child.kill().unwrap();
        while process.is_running() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.is_running());
        assert!(!ProcessId(0).is_running());
    }
}
