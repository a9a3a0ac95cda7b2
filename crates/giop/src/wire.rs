//! The two directions of a connection, for servers and relays on single-threaded runtimes:
//! whole messages come in, bytes go out, and an idle connection holds no buffer.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::message::{GiopError, Header, Message};

/// How much is read at once.
const READ: usize = 32 << 10;
/// Buffers up to this capacity are used again.
const KEEP: usize = 64 << 10;
/// Most free buffers that are kept.
const FREE: usize = 256;

/// Buffers that the connections of a thread share.
pub struct Buffers {
    /// Where everything is read to first.
    scratch: RefCell<Box<[u8]>>,
    free: RefCell<Vec<Vec<u8>>>,
}

impl Default for Buffers {
    fn default() -> Self {
        Buffers {
            scratch: RefCell::new(vec![0; READ].into_boxed_slice()),
            free: RefCell::default(),
        }
    }
}

impl Buffers {
    /// An empty buffer, with capacity if one is free.
    pub fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a buffer for the next one who needs one.
    pub fn give_back(&self, mut buffer: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if (1..=KEEP).contains(&buffer.capacity()) && free.len() < FREE {
            buffer.clear();
            free.push(buffer);
        }
    }
}

/// Why no more messages come.
#[derive(Debug)]
pub enum Stop<E> {
    /// The other side has closed the connection, or it broke.
    Gone(Option<io::Error>),
    /// What came is no message.
    NotValid(GiopError),
    /// Who handles the messages has had enough.
    Handler(E),
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    /// What has been read of the next messages, if not all is handled yet.
    held: Vec<u8>,
    /// How much of the output is sent.
    sent: usize,
}

impl Wire {
    /// Takes a connection over.
    pub fn new(stream: TcpStream) -> Self {
        Wire {
            stream,
            held: Vec::new(),
            sent: 0,
        }
    }

    /// Whether a message has begun to arrive, or waits to be handled.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Sends `out` as far as the other side takes it; answers how many bytes it took. What
    /// is sent is removed at some later time: until `out` is empty, more may be appended
    /// but nothing else changed.
    pub fn send(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        buffers: &Buffers,
    ) -> io::Result<usize> {
        let before = self.sent;
        while let Some(rest) = out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(cx, rest)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(len) => self.sent += len,
                Poll::Pending => {
                    let sent = self.sent;
                    // What is sent makes room, so that limits are about what is not.
                    if sent >= out.len() / 2 {
                        out.drain(..sent);
                        self.sent = 0;
                    }
                    return Ok(sent - before);
                }
            }
        }
        let sent = self.sent;
        self.sent = 0;
        if out.capacity() > 0 {
            buffers.give_back(std::mem::take(out));
        }
        Ok(sent - before)
    }

    /// Gives `handle` up to `budget` whole messages: those that are here already, or else
    /// those that one read brings. `limit` is for the length of a message. Pending means
    /// that the task is woken when more is there.
    pub fn receive<E>(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        limit: usize,
        budget: &mut usize,
        mut handle: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Poll<Result<(), Stop<E>>> {
        if self.held.is_empty() {
            let mut scratch = buffers.scratch.borrow_mut();
            let mut into = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut into) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !into.filled().is_empty() => {}
                Poll::Ready(read) => return Poll::Ready(Err(Stop::Gone(read.err()))),
            }
            let handled = messages(into.filled(), limit, budget, &mut handle);
            return Poll::Ready(handled.map(|len| {
                let rest = into.filled().get(len..).unwrap_or_default();
                if !rest.is_empty() {
                    self.held = buffers.take();
                    self.held.extend_from_slice(rest);
                }
            }));
        }
        let missing = match Header::peek(&self.held, limit) {
            Ok(Some(header)) => header.total().saturating_sub(self.held.len()),
            Ok(None) => Header::LEN,
            Err(error) => return Poll::Ready(Err(Stop::NotValid(error))),
        };
        if missing == 0 {
            let handled = messages(&self.held, limit, budget, &mut handle);
            return Poll::Ready(handled.map(|len| self.forget(len, buffers)));
        }
        // Room for what is known to come, but not more than has come already: a length is
        // only a claim.
        let len = self.held.len();
        let room = missing.min(len.max(READ));
        self.held.resize(len + room, 0);
        let mut into = ReadBuf::new(self.held.get_mut(len..).unwrap_or_default());
        let read = Pin::new(&mut self.stream).poll_read(cx, &mut into);
        let filled = into.filled().len();
        self.held.truncate(len + filled);
        match read {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) if filled > 0 => Poll::Ready(Ok(())),
            Poll::Ready(read) => Poll::Ready(Err(Stop::Gone(read.err()))),
        }
    }

    /// Forgets the first `len` bytes of what is held.
    fn forget(&mut self, len: usize, buffers: &Buffers) {
        match len >= self.held.len() {
            true => buffers.give_back(std::mem::take(&mut self.held)),
            false => drop(self.held.drain(..len)),
        }
    }

    /// Says that nothing more is sent, and waits until the other side says so too. What it
    /// still sends is taken and dropped: closing with unread input could cost it what was
    /// sent last.
    pub fn close(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<()> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        if !matches!(shut, Poll::Ready(Ok(()))) {
            return Poll::Ready(());
        }
        let mut scratch = buffers.scratch.borrow_mut();
        // Not for ever in one go: others want their turn.
        for _ in 0..16 {
            let mut into = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut into) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !into.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Handles the messages at the start of `bytes`; answers how many bytes they take.
fn messages<E>(
    bytes: &[u8],
    limit: usize,
    budget: &mut usize,
    handle: &mut impl FnMut(Message<'_>) -> Result<(), E>,
) -> Result<usize, Stop<E>> {
    let mut handled = 0;
    while *budget > 0 {
        let rest = bytes.get(handled..).unwrap_or_default();
        let Some(header) = Header::peek(rest, limit).map_err(Stop::NotValid)? else {
            break;
        };
        let Some(bytes) = rest.get(..header.total()) else {
            break;
        };
        handled += bytes.len();
        *budget -= 1;
        handle(Message::new(header, bytes)).map_err(Stop::Handler)?;
    }
    Ok(handled)
}
