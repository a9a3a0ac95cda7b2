//! The bytes below a connection of HTTP/2.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

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
