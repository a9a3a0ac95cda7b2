//! Pipes for `splice`: bytes go from one socket to another without passing through
//! the process.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::files::{Files, PipeFiles};

/// Capacity asked for. More per system call, but still within a cache of usual size.
const PIPE_BYTES: usize = 512 * 1024;

/// Pipes that a worker keeps when nobody needs them.
const KEPT: usize = 32;

/// A pipe, and how many bytes are in it.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
    _files: PipeFiles,
}

impl Pipe {
    fn new(files: PipeFiles) -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        // Refused above the user's quota of pipe pages: the default size works, too.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES);
        Ok(Pipe {
            read,
            write,
            held: 0,
            _files: files,
        })
    }

    /// Bytes in the pipe.
    pub(crate) fn held(&self) -> usize {
        self.held
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
        debug_assert_eq!(self.held, 0);
        loop {
            ready!(from.poll_read_ready(cx))?;
            let moved = from.try_io(Interest::READABLE, || {
                let limit = limit.min(PIPE_BYTES);
                splice(|flags| rustix::pipe::splice(from, None, &self.write, None, limit, flags))
            });
            match moved {
                Ok(n) => {
                    self.held = n;
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
                splice(|flags| rustix::pipe::splice(&self.read, None, to, None, self.held, flags))
            });
            match moved {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => {
                    self.held = self.held.saturating_sub(n);
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
    spare: RefCell<Vec<Pipe>>,
    files: Arc<Files>,
}

impl PipePool {
    pub(crate) fn new(files: Arc<Files>) -> Self {
        PipePool {
            spare: RefCell::default(),
            files,
        }
    }

    /// An empty pipe; `None` if there may not be more.
    pub(crate) fn take(&self) -> Option<Pipe> {
        let spare = self.spare.borrow_mut().pop();
        spare.or_else(|| Pipe::new(self.files.pipe()?).ok())
    }

    /// Closes the pipes that nobody needs; answers whether there was one.
    pub(crate) fn clear(&self) -> bool {
        !std::mem::take(&mut *self.spare.borrow_mut()).is_empty()
    }

    /// Takes a pipe back; one that still holds bytes is closed.
    pub(crate) fn give(&self, pipe: Pipe) {
        let mut spare = self.spare.borrow_mut();
        if pipe.held == 0 && spare.len() < KEPT {
            spare.push(pipe);
        }
    }
}
