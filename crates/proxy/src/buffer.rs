//! Buffers, lent for as long as there are bytes in them.
//!
//! A connection that waits holds none, so ten thousand idle ones cost no buffer memory;
//! and the buffer that was returned last, still in the cache, is lent next.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::memory::{BUFFER_BYTES, Charge, HEAD_BYTES, Memory, OutOfMemory, SMALL_BYTES};
use crate::spare::Spare;

/// Size of the buffer of a connection that waits in the middle of a head, in bytes. It
/// grows if need be.
const PARTIAL_BYTES: usize = 2 * 1024;

/// Buffers that a worker keeps for a while when nobody needs them (5 MiB), if there is memory for that.
const KEPT: usize = 64;

/// Vectors of heads that a worker keeps likewise. Streams of HTTP/2 need many at once.
const KEPT_HEADS: usize = 256;

/// Bytes that were read and not yet taken: `data[start..end]`.
#[derive(Debug)]
pub(crate) struct Buffer {
    data: Box<[u8]>,
    start: usize,
    end: usize,
    /// Charge for the buffer's memory, unless the buffer is a small one.
    charge: Option<Charge>,
}

impl Buffer {
    fn new(size: usize, charge: Option<Charge>) -> Self {
        Buffer {
            data: vec![0; size].into_boxed_slice(),
            start: 0,
            end: 0,
            charge,
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

    /// The bytes that wait, to be changed in place.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.start..self.end]
    }

    /// Takes out the bytes between the first `kept` bytes and the bytes from `end` on.
    #[inline]
    pub(crate) fn cut_out(&mut self, kept: usize, end: usize) {
        if kept < end {
            let bytes = self.bytes_mut();
            let left = bytes.len().saturating_sub(end);
            bytes.copy_within(end..end + left, kept);
            self.truncate(kept + left);
        }
    }

    /// Keeps only the first `n` bytes.
    pub(crate) fn truncate(&mut self, n: usize) {
        self.end = self.end.min(self.start + n);
        self.consume(0);
    }

    /// Makes room to read into, by growing to at most `limit` bytes if need be; answers
    /// whether there is any.
    ///
    /// # Errors
    ///
    /// It had to grow, and there may be no more in `memory`.
    pub(crate) fn make_room(
        &mut self,
        limit: usize,
        memory: &Arc<Memory>,
    ) -> Result<bool, OutOfMemory> {
        if self.end == self.data.len() {
            if self.start > 0 {
                self.data.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            } else if self.data.len() < limit {
                let size = (self.data.len() * 2).min(limit);
                let charge = memory.take_above(SMALL_BYTES, size)?;
                let mut data = vec![0; size].into_boxed_slice();
                data[..self.end].copy_from_slice(&self.data);
                self.data = data;
                self.charge = charge;
            }
        }
        Ok(self.end < self.data.len())
    }

    /// True if the last read filled the buffer, so that there is probably more to read.
    pub(crate) fn is_full(&self) -> bool {
        self.end == self.data.len()
    }

    /// True if the pool keeps the buffer: the buffer was neither made small, for a part of a head
    /// or for want of memory, nor grown for a large head.
    pub(crate) fn is_pooled(&self) -> bool {
        self.data.len() == BUFFER_BYTES
    }

    /// Appends what the connection has: the number of bytes, 0 at its end. The caller makes
    /// sure that there is room, or a full buffer would look like the end.
    #[inline]
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        let mut space = ReadBuf::new(&mut self.data[self.end..]);
        ready!(Pin::new(from).poll_read(cx, &mut space))?;
        let n = space.filled().len();
        self.end += n;
        Poll::Ready(Ok(n))
    }
}

/// A worker's spare buffers.
#[derive(Debug)]
pub(crate) struct BufferPool {
    spare: Spare<Buffer>,
    heads: Spare<Vec<u8>>,
    memory: Arc<Memory>,
}

impl BufferPool {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        BufferPool {
            spare: Spare::default(),
            heads: Spare::default(),
            memory,
        }
    }

    /// An empty buffer of [`BUFFER_BYTES`], or a small one if there is no memory for that.
    #[inline]
    pub(crate) fn take(&self) -> Buffer {
        self.spare.take().unwrap_or_else(|| self.new_buffer())
    }

    /// Returns a buffer that begins with the bytes of `other`, which are few.
    #[cold]
    pub(crate) fn take_with(&self, other: &Buffer) -> Buffer {
        let mut buffer = self.take();
        if let Some(place) = buffer.data.get_mut(..other.len()) {
            place.copy_from_slice(other.bytes());
            buffer.end = other.len();
        }
        buffer
    }

    #[cold]
    fn new_buffer(&self) -> Buffer {
        match self.memory.take(BUFFER_BYTES) {
            Ok(charge) => Buffer::new(BUFFER_BYTES, Some(charge)),
            Err(OutOfMemory) => Buffer::new(SMALL_BYTES, None),
        }
    }

    /// Takes a buffer back, whatever is in it.
    #[inline]
    pub(crate) fn give_back(&self, mut buffer: Buffer) {
        // One that grew for a large head is not worth keeping.
        if buffer.is_pooled() {
            buffer.start = 0;
            buffer.end = 0;
            self.spare
                .give_back(buffer, KEPT.min(self.memory.most_kept()));
        }
    }

    /// Returns the buffer that a connection keeps while it waits for the rest of a head: the bytes
    /// that it has, in a buffer little larger than they are, with room for more. The large buffer
    /// is for connections whose bytes are there.
    pub(crate) fn shrink_buffer(&self, buffer: Buffer) -> Buffer {
        if !buffer.is_pooled() || buffer.len() > BUFFER_BYTES / 4 {
            return buffer;
        }
        let size = (buffer.len() + 1).next_power_of_two().max(PARTIAL_BYTES);
        let Ok(charge) = self.memory.take_above(SMALL_BYTES, size) else {
            // It has its own already.
            return buffer;
        };
        let mut small = Buffer::new(size, charge);
        if let Some(place) = small.data.get_mut(..buffer.len()) {
            place.copy_from_slice(buffer.bytes());
            small.end = buffer.len();
        }
        self.give_back(buffer);
        small
    }

    /// An empty vector to write a head into.
    #[inline]
    pub(crate) fn take_head(&self) -> Vec<u8> {
        self.heads.take().unwrap_or_default()
    }

    /// Takes a vector back.
    #[inline]
    pub(crate) fn give_head(&self, mut head: Vec<u8>) {
        if (1..=HEAD_BYTES).contains(&head.capacity()) {
            head.clear();
            self.heads.give_back(head, KEPT_HEADS);
        }
    }

    /// Drops what nobody has needed since the last call.
    pub(crate) fn release_unused(&self) {
        self.spare.release_unused();
        self.heads.release_unused();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::new_memory;

    fn pool() -> BufferPool {
        BufferPool::new(new_memory(1 << 30))
    }

    fn buffer(size: usize, bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(size, None);
        buffer.data[..bytes.len()].copy_from_slice(bytes);
        buffer.end = bytes.len();
        buffer
    }

    #[test]
    fn room_is_made_by_moving_first_and_growing_last() {
        let memory = new_memory(1 << 30);
        let mut full = buffer(4, b"abcd");
        assert!(!full.make_room(4, &memory).unwrap());
        full.consume(3);
        assert!(full.make_room(4, &memory).unwrap());
        assert_eq!((full.bytes(), full.data.len()), (b"d".as_slice(), 4));

        let mut full = buffer(4, b"abcd");
        assert!(full.make_room(6, &memory).unwrap());
        assert_eq!((full.bytes(), full.data.len()), (b"abcd".as_slice(), 6));
    }

    #[test]
    fn s7_a_part_of_a_head_is_kept_in_little_more_than_its_bytes() {
        for (bytes, room) in [(1, 2048), (2047, 2048), (2048, 4096), (20_000, 32_768)] {
            let pool = pool();
            let small = pool.shrink_buffer(buffer(BUFFER_BYTES, &vec![7; bytes]));
            assert_eq!((small.len(), small.data.len()), (bytes, room));
            assert_eq!(pool.spare.len(), 1, "the large one is back");
            // It is small already, and grows as it fills.
            let mut small = pool.shrink_buffer(small);
            assert_eq!(small.data.len(), room);
            small.end = room;
            assert!(small.make_room(BUFFER_BYTES, &pool.memory).unwrap());
            assert!(small.data.len() <= 2 * room);
            pool.give_back(small);
            assert_eq!(pool.spare.len(), 1, "small ones are not lent");
        }
        let large = pool().shrink_buffer(buffer(BUFFER_BYTES, &[7; 60_000]));
        assert_eq!(large.data.len(), BUFFER_BYTES, "not worth copying");
    }

    /// Without memory buffers are small, and those that are lent are as many as there may be.
    #[test]
    fn s5_buffers_are_small_when_there_is_no_memory_for_large_ones() {
        let pool = BufferPool::new(new_memory(8 * BUFFER_BYTES));
        let mut lent: Vec<_> = (0..12).map(|_| pool.take()).collect();
        let large = lent.iter().filter(|buffer| buffer.is_pooled()).count();
        assert_eq!(large, 8);
        let mut small = lent.pop().unwrap();
        assert_eq!(small.data.len(), SMALL_BYTES);
        // It cannot grow, but serves on.
        small.end = SMALL_BYTES;
        assert!(small.make_room(BUFFER_BYTES, &pool.memory).is_err());
        small.consume(1);
        assert!(small.make_room(BUFFER_BYTES, &pool.memory).unwrap());
        // Part of a head stays where it is rather than to need more.
        let mut part = lent.remove(0);
        part.end = 10_000;
        assert_eq!(pool.shrink_buffer(part).data.len(), BUFFER_BYTES);
        let mut part = lent.remove(0);
        part.end = 1;
        assert_eq!(pool.shrink_buffer(part).data.len(), PARTIAL_BYTES);
        // A worker keeps a part only, so that others get some.
        lent.into_iter().for_each(|buffer| pool.give_back(buffer));
        assert_eq!(pool.spare.len(), 2);
        assert!(pool.memory.take(6 * BUFFER_BYTES).is_ok());
    }

    #[test]
    fn buffers_come_back_empty_unless_they_grew() {
        let pool = pool();
        let mut one = pool.take();
        one.end = 7;
        pool.give_back(one);
        assert!(pool.take().is_empty());
        pool.give_back(buffer(2 * BUFFER_BYTES, b""));
        assert!(pool.spare.len() == 0);
    }
}
