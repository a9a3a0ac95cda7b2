//! Errors of the system that say something about this process or machine, and nothing
//! about the peer.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use strum::VariantArray;

use crate::Throttle;

/// Resource that has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Shortage {
    /// Open files of this process (`EMFILE`).
    Files,
    /// Open files of the whole machine (`ENFILE`).
    SystemFiles,
    /// Memory (`ENOMEM`, `ENOBUFS`).
    Memory,
    /// Local ports towards one destination (`EADDRNOTAVAIL`).
    Ports,
    /// Threads, or entries in a table of the kernel (`EAGAIN` where nothing is waited for).
    Threads,
    /// Room on a file system (`ENOSPC`, `EDQUOT`).
    Disk,
}

impl Shortage {
    /// Returns the resource that has run out, if `error` says so. Made for errors of `socket`, `connect`,
    /// `accept`, `read`, `write`, `open` and of starting threads.
    ///
    /// `EAGAIN` counts: ask only about errors of calls that had nothing to wait for, which excludes reading
    /// from and writing to a socket that does not block.
    pub fn of_error(error: &io::Error) -> Option<Shortage> {
        Some(match error.raw_os_error()? {
            libc::EMFILE => Shortage::Files,
            libc::ENFILE => Shortage::SystemFiles,
            libc::ENOMEM | libc::ENOBUFS => Shortage::Memory,
            libc::EADDRNOTAVAIL => Shortage::Ports,
            libc::EAGAIN => Shortage::Threads,
            libc::ENOSPC | libc::EDQUOT => Shortage::Disk,
            _ => return None,
        })
    }

    /// All shortages, in the order of their numbers.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Counts that the shortage has been met, and says so in the log from time to time. `what` could not be
    /// done.
    pub fn report_failure(self, what: &str) {
        static THROTTLES: [Throttle; Shortage::ALL.len()] =
            [const { Throttle::new() }; Shortage::ALL.len()];
        COUNTS[self as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = THROTTLES[self as usize].allow_line() {
            tracing::warn!(left_out, "cannot {what}: {}", self.advice());
        }
    }

    /// Returns the number of times that the shortage was met in this process.
    pub fn count(self) -> u64 {
        COUNTS[self as usize].load(Ordering::Relaxed)
    }

    /// Returns the name of the resource in one word.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// True if closing a connection that nobody needs may help.
    pub fn is_of_files(self) -> bool {
        matches!(self, Shortage::Files | Shortage::SystemFiles)
    }

    /// Returns what has run out, and what to do about it: the end of a sentence in a log.
    pub fn advice(self) -> &'static str {
        match self {
            Shortage::Files => {
                "this process may open no more files: raise its limit (ulimit -Hn, or \
                 LimitNOFILE= of the service)"
            }
            Shortage::SystemFiles => "the machine may open no more files: raise fs.file-max",
            Shortage::Memory => {
                "there is not enough memory: raise the memory limit of the service, or net.ipv4.tcp_mem"
            }
            Shortage::Ports => {
                "no local port is left for this destination: widen net.ipv4.ip_local_port_range, or give \
                 the member more addresses"
            }
            Shortage::Threads => {
                "no thread can be started: raise the limit on tasks (ulimit -u, or TasksMax= of \
                 the service)"
            }
            Shortage::Disk => "the file system is full: make room on it",
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.advice())
    }
}

static COUNTS: [AtomicU64; Shortage::ALL.len()] =
    [const { AtomicU64::new(0) }; Shortage::ALL.len()];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s5_what_runs_out_here_is_told_from_what_peers_do() {
        let of = |code| Shortage::of_error(&io::Error::from_raw_os_error(code));
        assert_eq!(of(libc::EMFILE), Some(Shortage::Files));
        assert_eq!(of(libc::ENFILE), Some(Shortage::SystemFiles));
        assert_eq!(of(libc::ENOBUFS), Some(Shortage::Memory));
        assert_eq!(of(libc::ENOMEM), Some(Shortage::Memory));
        assert_eq!(of(libc::EADDRNOTAVAIL), Some(Shortage::Ports));
        assert_eq!(of(libc::EAGAIN), Some(Shortage::Threads));
        assert_eq!(of(libc::ENOSPC), Some(Shortage::Disk));
        for theirs in [
            libc::ECONNREFUSED,
            libc::ECONNRESET,
            libc::ETIMEDOUT,
            libc::EHOSTUNREACH,
            libc::ENETUNREACH,
            libc::EPIPE,
        ] {
            assert_eq!(of(theirs), None, "{theirs}");
        }
        assert_eq!(Shortage::of_error(&io::Error::other("no code")), None);
    }

    #[test]
    fn s5_each_kind_is_counted_for_itself() {
        for (index, kind) in Shortage::ALL.iter().copied().enumerate() {
            assert_eq!(kind as usize, index);
        }
        let before = Shortage::Disk.count();
        Shortage::Disk.report_failure("write a test");
        Shortage::Disk.report_failure("write a test");
        assert_eq!(Shortage::Disk.count(), before + 2);
        assert_eq!(Shortage::Threads.count(), 0);
    }
}
