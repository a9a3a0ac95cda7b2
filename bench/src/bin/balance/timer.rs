//! Timers that fire when they are due: those of tokio come up to a millisecond later, which is much
//! beside a request of 6 ms.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// A timer of the kernel.
pub(crate) struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// One that is not set.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an `OwnedFd` stays the same open descriptor until it is dropped.
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? };
        Ok(Timer(watched))
    }

    /// Waits until `time`.
    pub(crate) async fn until(&mut self, time: Instant) -> io::Result<()> {
        let left = time.saturating_duration_since(Instant::now());
        if left < Duration::from_micros(1) {
            return Ok(());
        }
        let set = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: left.as_secs() as libc::time_t,
                tv_nsec: libc::c_long::from(left.subsec_nanos()),
            },
        };
        let fd = self.0.get_ref().as_raw_fd();
        // SAFETY: `set` is valid for reading, and the old value is not asked for.
        if unsafe { libc::timerfd_settime(fd, 0, &set, std::ptr::null_mut()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|fd| {
                let mut fired = [0u8; 8];
                // SAFETY: `fired` is valid for writing that many bytes.
                let count =
                    unsafe { libc::read(fd.as_raw_fd(), fired.as_mut_ptr().cast(), fired.len()) };
                match count {
                    8 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
            if let Ok(read) = read {
                return read;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn timers_fire_again_and_never_early() {
        let mut timer = Timer::new().unwrap();
        for wait in [300, 0, 2000, 50] {
            let time = Instant::now() + Duration::from_micros(wait);
            timer.until(time).await.unwrap();
            assert!(Instant::now() >= time);
        }
    }
}
