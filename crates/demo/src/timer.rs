//! Timers that fire when they are due: those of tokio come up to a millisecond later, which is much
//! beside a request of 6 ms.

#![allow(unsafe_code)] // A descriptor's registration, once.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// A timer of the kernel.
#[derive(Debug)]
pub struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// Makes a timer that is not set.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no more descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: an `OwnedFd` stays the same open descriptor until it is dropped.
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? };
        Ok(Timer(watched))
    }

    /// Waits until `time`.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel refuses the timer.
    pub async fn wait_until(&mut self, time: Instant) -> io::Result<()> {
        let left = time.saturating_duration_since(Instant::now());
        if left < Duration::from_micros(1) {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(left).map_err(io::Error::other)?,
        };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|fd| {
                let mut fired = [0; 8];
                match rustix::io::read(fd, &mut fired) {
                    Ok(8) => Ok(()),
                    Ok(_) => Err(Errno::IO.into()),
                    Err(error) => Err(error.into()),
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
            timer.wait_until(time).await.unwrap();
            assert!(Instant::now() >= time);
        }
    }
}
