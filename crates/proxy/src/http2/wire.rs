//! The bytes below a connection of HTTP/2, and how they move.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_http2::{Connection, Event};
use tokio::io::AsyncWrite;

use super::engine::{Engine, Step};

use crate::buffer::Buffer;
use crate::connection::PeerConnection;
use crate::files::ConnectionFile;
use crate::worker::Worker;

/// A connection whose first bytes may have been read already.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) connection: PeerConnection,
    pub(super) read: Option<Buffer>,
    pub(super) worker: Rc<Worker>,
    /// The right to it, if it leads to a member.
    pub(super) _file: Option<ConnectionFile>,
}

impl Wire {
    /// Has `take` see the bytes that have come: its answer, or `None` at the end of the connection.
    pub(super) fn poll_read<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<Option<T>>> {
        let buffers = &self.worker.buffers;
        let buffer = match self.read.take() {
            Some(read) if !read.is_empty() => read,
            spare => {
                let mut buffer = spare.unwrap_or_else(|| buffers.take());
                let filled = buffer.poll_fill(cx, &mut self.connection);
                if !matches!(filled, Poll::Ready(Ok(1..))) {
                    buffers.give_back(buffer);
                    return Poll::Ready(ready!(filled).map(|_| None));
                }
                buffer
            }
        };
        let result = take(buffer.bytes());
        buffers.give_back(buffer);
        Poll::Ready(Ok(Some(result)))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(read) = self.read.take() {
            self.worker.buffers.give_back(read);
        }
    }
}

impl Engine {
    /// Moves bytes, and tells streams what has happened to them.
    pub(super) fn poll_step(
        &self,
        cx: &mut Context<'_>,
        wire: &mut Wire,
        now: Instant,
    ) -> Poll<Step> {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
        drop(task);
        let now = Duration::from_nanos(now.as_nanos());
        loop {
            while let Some(event) = self.next_event() {
                match event {
                    Event::Request(key) => return Poll::Ready(Step::Request(key)),
                    Event::Settled => return Poll::Ready(Step::Settled),
                    Event::Pong => return Poll::Ready(Step::Pong),
                    Event::Readable(key) | Event::Writable(key) | Event::Broken(key) => {
                        self.wake_stream(key);
                    }
                }
            }
            let mut connection = self.connection.borrow_mut();
            let mut is_stuck = false;
            while !connection.pending_output().is_empty() && !is_stuck {
                match Pin::new(&mut wire.connection).poll_write(cx, connection.pending_output()) {
                    Poll::Ready(Ok(n)) if n > 0 => {
                        connection.consume_output(n);
                        self.sent.set(self.sent.get() + n as u64);
                    }
                    Poll::Ready(_) => return Poll::Ready(Self::end_connection(&mut connection)),
                    Poll::Pending => is_stuck = true,
                }
            }
            // TLS has records of its own to send.
            let is_flushed = match Pin::new(&mut wire.connection).poll_flush(cx) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(_)) => return Poll::Ready(Self::end_connection(&mut connection)),
                Poll::Pending => false,
            };
            if connection.has_events() {
                continue;
            }
            if connection.is_done() {
                if is_stuck || !is_flushed {
                    return Poll::Pending;
                }
                drop(connection);
                // Whether the peer hears of the end or not, it is over.
                let _ = ready!(Pin::new(&mut wire.connection).poll_shutdown(cx));
                return Poll::Ready(Step::Over);
            }
            if !connection.wants_input() {
                return Poll::Pending;
            }
            let read = ready!(wire.poll_read(cx, |bytes| connection.receive_bytes(bytes, now)));
            match read {
                Ok(Some(Ok(()))) => {}
                Ok(Some(Err(failure))) => return Poll::Ready(Step::Failed(failure)),
                Ok(None) | Err(_) => return Poll::Ready(Self::end_connection(&mut connection)),
            }
        }
    }

    /// Takes note that the peer is gone.
    fn end_connection(connection: &mut Connection) -> Step {
        connection.mark_disconnected();
        Step::Gone
    }
}
