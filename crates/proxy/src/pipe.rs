//! Pipes for `splice`: bytes go from one socket to another without passing through
//! the process.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_core::time::Instant;
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::files::{Files, PipeFiles};
use crate::spare::Spare;

/// Capacity asked for. More per system call, but still within a cache of usual size.
const PIPE_BYTES: usize = 512 * 1024;

/// The usual size of a pipe. A smaller one is worse than copying: it is what a process gets
/// whose user has too many pages in pipes already.
const LEAST_BYTES: usize = 64 * 1024;

/// Time for which nothing is spliced after there was no pipe to be had.
const PAUSE: Duration = Duration::from_secs(1);

/// Pipes that a worker keeps for a while when nobody needs them.
const KEPT: usize = 32;

/// A pipe, and how many bytes are in it. In a box, since every connection has room for one
/// and few need it; pipes are kept for others, so that is no allocation for each use.
#[derive(Debug)]
pub(crate) struct Pipe(Box<Ends>);

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
    /// Number of bytes that go into the pipe: [`PIPE_BYTES`] unless the kernel refused that.
    size: usize,
    _files: PipeFiles,
}

impl Pipe {
    /// A pipe of `size`, or smaller if the user has too many pages in pipes.
    fn new(files: PipeFiles, size: usize) -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let size = rustix::pipe::fcntl_setpipe_size(&write, size)
            .or_else(|_| rustix::pipe::fcntl_getpipe_size(&write))?;
        Ok(Pipe(Box::new(Ends {
            read,
            write,
            held: 0,
            size,
            _files: files,
        })))
    }

    /// Bytes in the pipe.
    pub(crate) fn held_bytes(&self) -> usize {
        self.0.held
    }

    /// Fills the empty pipe with at most `limit` bytes from `from`; 0 is its end.
    ///
    /// The pipe must be empty: "would block" then means the socket and never the pipe.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        limit: usize,
    ) -> Poll<io::Result<usize>> {
        debug_assert_eq!(self.0.held, 0);
        loop {
            ready!(from.poll_read_ready(cx))?;
            let moved = from.try_io(Interest::READABLE, || {
                let limit = limit.min(PIPE_BYTES);
                splice(|flags| rustix::pipe::splice(from, None, &self.0.write, None, limit, flags))
            });
            match moved {
                Ok(n) => {
                    self.0.held = n;
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Moves what is in the pipe to `to`: the number of bytes.
    pub(crate) fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        to: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            let moved = to.try_io(Interest::WRITABLE, || {
                splice(|flags| {
                    rustix::pipe::splice(&self.0.read, None, to, None, self.0.held, flags)
                })
            });
            match moved {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => {
                    self.0.held = self.0.held.saturating_sub(n);
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

fn splice(call: impl Fn(SpliceFlags) -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call(SpliceFlags::NONBLOCK | SpliceFlags::MOVE) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// A worker's spare pipes.
#[derive(Debug)]
pub(crate) struct PipePool {
    spare: Spare<Pipe>,
    files: Arc<Files>,
    /// Time before which no new pipes are made.
    pause: Cell<Instant>,
}

impl PipePool {
    pub(crate) fn new(files: Arc<Files>) -> Self {
        PipePool {
            spare: Spare::default(),
            files,
            pause: Cell::new(Instant::from_nanos(0)),
        }
    }

    /// An empty pipe; `None` if there may not be more, or the kernel gives only small ones,
    /// and for a while after that.
    pub(crate) fn take(&self, now: Instant) -> Option<Pipe> {
        let spare = self.spare.take();
        if spare.is_some() || now < self.pause.get() {
            return spare;
        }
        let fresh = self
            .files
            .take_pipe()
            .map(|files| Pipe::new(files, PIPE_BYTES));
        let fresh = fresh.and_then(Result::ok);
        let fresh = fresh.filter(|pipe| pipe.0.size >= LEAST_BYTES);
        if fresh.is_none() {
            self.pause.set(now.after(PAUSE));
        }
        fresh
    }

    /// Closes the pipes that nobody needs; answers whether there was one.
    pub(crate) fn clear(&self) -> bool {
        self.spare.clear()
    }

    /// Takes a pipe back. A pipe that still holds bytes is closed, and so is a pipe that was made
    /// small under pressure: the pressure will be over.
    pub(crate) fn give_back(&self, pipe: Pipe) {
        if pipe.0.held == 0 && pipe.0.size >= PIPE_BYTES {
            self.spare.give_back(pipe, KEPT);
        }
    }

    /// Closes the pipes that nobody has needed since the last call.
    pub(crate) fn release_unused(&self) {
        self.spare.release_unused();
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_limits::files::{Shares, Users};

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn files() -> Arc<Files> {
        let users = Users {
            workers: 1,
            ..Users::default()
        };
        Files::new(Shares::new(1024, users))
    }

    #[test]
    fn s17_pipes_that_were_made_small_are_not_kept() {
        let files = files();
        let pool = PipePool::new(Arc::clone(&files));
        let small = || Pipe::new(files.take_pipe().unwrap(), LEAST_BYTES).unwrap();
        assert!(small().0.size < PIPE_BYTES);
        pool.give_back(small());
        assert!(pool.spare.len() == 0);
        let mut large = small();
        large.0.size = PIPE_BYTES;
        pool.give_back(large);
        assert_eq!(pool.take(at(0)).unwrap().0.size, PIPE_BYTES);
    }

    #[test]
    fn after_a_refusal_nothing_is_made_for_a_while() {
        let pool = PipePool::new(files());
        pool.pause.set(at(1000));
        assert!(pool.take(at(999)).is_none());
        let pipe = pool.take(at(1000));
        // Whoever tests may have no pages left for it.
        assert_eq!(pipe.is_none(), pool.pause.get() > at(1000));
    }
}
