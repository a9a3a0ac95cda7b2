//! The few system calls of a single-threaded event loop.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Interest in bytes to read, or in the peer's end of stream.
pub const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
/// Interest in room to write.
pub const WRITE: u32 = libc::EPOLLOUT as u32;
/// Report a change once, not a state again and again.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Reported: an error, or both directions closed.
pub const BROKEN: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Reported: the peer sends no more.
pub const END: u32 = libc::EPOLLRDHUP as u32;

/// An epoll instance and its buffer of events.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// A new instance that takes up to 512 events at once.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is ours alone once it is known to be good.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: just created, owned by nobody else.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            events: vec![libc::epoll_event { events: 0, u64: 0 }; 512],
        })
    }

    /// Watches `source`; its events come with `token`. Closing `source` ends it.
    pub fn add(&self, source: &impl AsRawFd, interest: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, source, interest, token)
    }

    /// Changes what `source` is watched for.
    pub fn modify(&self, source: &impl AsRawFd, interest: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, source, interest, token)
    }

    fn control(
        &self,
        operation: libc::c_int,
        source: &impl AsRawFd,
        interest: u32,
        token: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest,
            u64: token,
        };
        // SAFETY: `event` lives through the call; the kernel checks the descriptors.
        let done = unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                operation,
                source.as_raw_fd(),
                &mut event,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits for events, at most `timeout` (`None`: for ever), and returns how many came.
    pub fn wait_for_events(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let limit = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        });
        let limit_pointer = limit
            .as_ref()
            .map_or(std::ptr::null(), |limit| limit as *const libc::timespec);
        // epoll_pwait2: the millisecond of epoll_wait is too coarse for a schedule of sends.
        // SAFETY: `events` has room for as many as are asked for, `limit` outlives the call,
        // and a null signal mask is allowed.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as libc::c_int,
                limit_pointer,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        match usize::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Event `index` of the last [`wait`](Self::wait): its token and what happened.
    pub fn event(&self, index: usize) -> (u64, u32) {
        let event = self.events[index];
        (event.u64, event.events)
    }
}
