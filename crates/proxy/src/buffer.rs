//! Buffers, lent for as long as there are bytes in them.
//!
//! A connection that waits holds none, so ten thousand idle ones cost no buffer memory;
//! and the buffer that was returned last, still in the cache, is lent next.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

/// Size of a buffer in bytes: the small messages that it is for fit in many times, and
/// of large ones a system call moves enough to be worth it.
pub(crate) const BUFFER_BYTES: usize = 32 * 1024;

/// Buffers that a worker keeps when nobody needs them (8 MiB).
const KEPT: usize = 256;

/// Bytes that were read and not yet taken: `data[start..end]`.
#[derive(Debug)]
pub(crate) struct Buffer {
    data: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    fn new(size: usize) -> Self {
        Buffer {
            data: vec![0; size].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// The bytes that wait.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[self.start..self.end]
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Takes `n` bytes off the front.
    #[inline]
    pub(crate) fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.len());
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Makes room behind the bytes without moving more than needed: false if the buffer
    /// holds `limit` bytes already.
    pub(crate) fn make_room(&mut self, limit: usize) -> bool {
        if self.end < self.data.len() {
            return self.len() < limit;
        }
        if self.start > 0 {
            self.data.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        } else if self.data.len() < limit {
            let size = (self.data.len() * 2).min(limit);
            let mut data = vec![0; size].into_boxed_slice();
            data[..self.end].copy_from_slice(&self.data);
            self.data = data;
        }
        self.end < self.data.len()
    }

    /// Whether the last read filled the buffer, so that there is probably more to read.
    pub(crate) fn is_full(&self) -> bool {
        self.end == self.data.len()
    }

    /// The range of the bytes in the buffer, for parsers that answer with offsets.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Appends what the stream has: the number of bytes, 0 at its end. The caller makes
    /// sure that there is room, or a full buffer would look like the end.
    #[inline]
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut TcpStream,
    ) -> Poll<io::Result<usize>> {
        let mut space = ReadBuf::new(&mut self.data[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut space))?;
        let n = space.filled().len();
        self.end += n;
        Poll::Ready(Ok(n))
    }
}

/// A worker's spare buffers.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    spare: RefCell<Vec<Buffer>>,
}

impl BufferPool {
    /// An empty buffer of [`BUFFER_BYTES`].
    #[inline]
    pub(crate) fn take(&self) -> Buffer {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| Buffer::new(BUFFER_BYTES))
    }

    /// Takes a buffer back, whatever is in it.
    #[inline]
    pub(crate) fn give(&self, mut buffer: Buffer) {
        let mut spare = self.spare.borrow_mut();
        // One that grew for a large head is not worth keeping.
        if spare.len() < KEPT && buffer.data.len() == BUFFER_BYTES {
            buffer.start = 0;
            buffer.end = 0;
            spare.push(buffer);
        }
    }
}
