//! The two directions of a connection, for servers and relays on single-threaded runtimes:
//! whole messages come in, bytes go out, and an idle connection holds no buffer.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::fragment::Assembler;
use crate::message::{GiopError, Header, Kind, Message};

/// Most bytes that are read at once.
const READ: usize = 32 << 10;
/// Buffers up to this capacity are used again.
const KEEP: usize = 64 << 10;
/// Most free buffers that are kept.
const FREE: usize = 256;

/// Most messages of a connection that lack fragments at a time.
const MOST_OPEN: usize = 16;

/// Buffers that the connections of a thread share.
pub struct Buffers {
    /// Buffer to which all data is read first.
    scratch: RefCell<Box<[u8]>>,
    free: RefCell<Vec<Vec<u8>>>,
    /// Bytes of messages that have not come in full, over all connections.
    held: Cell<usize>,
    max_held: usize,
}

impl Buffers {
    /// Buffers of which messages that have not come in full take `max_held` bytes at most,
    /// over all connections: the one that would need more ends.
    pub fn new(max_held: usize) -> Rc<Self> {
        Rc::new(Buffers {
            scratch: RefCell::new(vec![0; READ].into_boxed_slice()),
            free: RefCell::default(),
            held: Cell::new(0),
            max_held,
        })
    }

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

/// Reason why no more messages come.
#[derive(Debug)]
pub enum Stop<E> {
    /// The other side has closed the connection, or it broke.
    Gone(Option<io::Error>),
    /// The bytes that came are no message.
    NotValid(GiopError),
    /// The handler of the messages wants no more.
    Handler(E),
}

/// A connection.
pub struct Wire<S = TcpStream> {
    stream: S,
    buffers: Rc<Buffers>,
    /// Longest message.
    limit: usize,
    /// Bytes that have been read of the next messages, if not all is handled yet.
    held: Vec<u8>,
    /// Messages that lack fragments.
    assembler: Option<Box<Assembler>>,
    /// Bytes of this connection that are counted in the buffers' sum.
    charged: usize,
    /// Bytes of the output that are sent.
    sent: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Takes a connection over, on which messages are `limit` bytes long at most.
    pub fn new(stream: S, buffers: &Rc<Buffers>, limit: usize) -> Self {
        Wire {
            stream,
            buffers: Rc::clone(buffers),
            limit,
            held: Vec::new(),
            assembler: None,
            charged: 0,
            sent: 0,
        }
    }

    /// Returns true if a message has begun to arrive, or waits to be handled.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty() || self.assembler.as_ref().is_some_and(|open| open.is_open())
    }

    /// Sends `out` as far as the other side takes it; answers how many bytes it took. The bytes
    /// that are sent are removed at some later time: until `out` is empty, more may be appended but
    /// nothing else changed.
    pub fn send_buffer(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> io::Result<usize> {
        let before = self.sent;
        while let Some(rest) = out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                // What was sent before it counts: the failure comes again with the next call.
                Poll::Ready(Err(_) | Ok(0)) if self.sent > before => {
                    cx.waker().wake_by_ref();
                    return Ok(self.sent - before);
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(len)) => self.sent += len,
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
            self.buffers.give_back(std::mem::take(out));
        }
        Ok(sent - before)
    }

    /// Gives `handle` up to `budget` whole messages, their fragments joined: those that are
    /// here already, or else those that one read brings. Pending means that the task is
    /// woken when more is there.
    pub fn receive_messages<E>(
        &mut self,
        cx: &mut Context<'_>,
        budget: &mut usize,
        mut handle: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Poll<Result<(), Stop<E>>> {
        let (assembler, limit) = (&mut self.assembler, self.limit);
        if self.held.is_empty() {
            let mut scratch = self.buffers.scratch.borrow_mut();
            let mut into = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut into) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !into.filled().is_empty() => {}
                Poll::Ready(read) => return Poll::Ready(Err(Stop::Gone(read.err()))),
            }
            let handled = messages(into.filled(), limit, assembler, budget, &mut handle);
            let rest = into.filled().get(handled?..).unwrap_or_default();
            if !rest.is_empty() {
                self.held = self.buffers.take();
                self.held.extend_from_slice(rest);
            }
            drop(scratch);
            return Poll::Ready(self.charge());
        }
        let missing = match Header::peek(&self.held, limit).map_err(Stop::NotValid)? {
            Some(header) => header.total().saturating_sub(self.held.len()),
            None => Header::LEN,
        };
        if missing == 0 {
            let handled = messages(&self.held, limit, assembler, budget, &mut handle)?;
            self.forget(handled);
            return Poll::Ready(self.charge());
        }
        // Room for what is known to come, but not more than has come already: a length is
        // only a claim. It is not cleared: that would cost as much again with each read.
        let (len, capacity) = (self.held.len(), self.held.capacity());
        if capacity - len < missing.min(READ) {
            self.held.reserve(missing.min(len.max(READ)));
        }
        match pin!(self.stream.read_buf(&mut self.held)).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(1..)) => Poll::Ready(self.charge()),
            Poll::Ready(read) => Poll::Ready(Err(Stop::Gone(read.err()))),
        }
    }

    /// Has what is held counted.
    fn charge<E>(&mut self) -> Result<(), Stop<E>> {
        let joining = self.assembler.as_ref().map_or(0, |open| open.held_bytes());
        let holds = self.held.len() + joining;
        if holds != self.charged {
            let others = self.buffers.held.get().saturating_sub(self.charged);
            self.buffers.held.set(others + holds);
            self.charged = holds;
            let limit = self.buffers.max_held;
            if others + holds > limit {
                let size = others + holds;
                return Err(Stop::NotValid(GiopError::TooLarge { size, limit }));
            }
        }
        Ok(())
    }

    /// Forgets the first `len` bytes of what is held.
    fn forget(&mut self, len: usize) {
        match len >= self.held.len() {
            true => self.buffers.give_back(std::mem::take(&mut self.held)),
            false => drop(self.held.drain(..len)),
        }
    }

    /// Says that nothing more is sent, and waits until the other side says so too. What it
    /// still sends is taken and dropped: closing with unread input could cost it what was
    /// sent last.
    pub fn close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        if !matches!(shut, Poll::Ready(Ok(()))) {
            return Poll::Ready(());
        }
        let mut scratch = self.buffers.scratch.borrow_mut();
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

impl<S> Drop for Wire<S> {
    fn drop(&mut self) {
        let others = self.buffers.held.get().saturating_sub(self.charged);
        self.buffers.held.set(others);
        self.buffers.give_back(std::mem::take(&mut self.held));
    }
}

/// Handles the messages at the start of `bytes`; answers how many bytes they take.
fn messages<E>(
    bytes: &[u8],
    limit: usize,
    assembler: &mut Option<Box<Assembler>>,
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
        let message = Message::new(header, bytes);
        if assembler.is_none() && !header.more && header.kind != Kind::Fragment {
            handle(message).map_err(Stop::Handler)?;
            continue;
        }
        let open = assembler.get_or_insert_with(|| Box::new(Assembler::new(limit, MOST_OPEN)));
        if let Some(message) = open.add_message(message).map_err(Stop::NotValid)? {
            handle(message).map_err(Stop::Handler)?;
        }
        if !open.is_open() {
            *assembler = None;
        }
    }
    Ok(handled)
}

#[cfg(test)]
mod tests;
