//! Memory that the rules may have for large buffers and heads, over all workers (see
//! [`evenkeel_limits::memory`]). Nothing here happens per request, only when a worker has no spare
//! buffer, or a head is large.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_limits::memory::Shares;

use crate::files::take;

/// Size of a buffer in bytes. A response of 64 KiB with its head goes through in one
/// read and one write; what is much larger is spliced.
pub(crate) const BUFFER_BYTES: usize = 80 * 1024;

/// A buffer of this size every client may have, in bytes: what is larger is counted.
pub(crate) const SMALL_BYTES: usize = 4 * 1024;

/// Size of a head on its way, with a small body, that every client may have, in bytes: a larger one
/// is counted.
pub(crate) const HEAD_BYTES: usize = 16 * 1024;

/// Counts the bytes of large buffers and heads of all workers.
#[derive(Debug)]
pub(crate) struct Memory {
    most: AtomicUsize,
    held: AtomicUsize,
    kept: AtomicUsize,
}

/// The right to so many bytes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<Memory>,
    bytes: usize,
}

/// There may be no more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

impl Memory {
    /// Returns the memory that `shares` allow, for this number of workers.
    pub(crate) fn new(shares: Shares, workers: usize) -> Arc<Self> {
        let memory = Memory {
            most: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
        };
        memory.set_shares(shares, workers);
        Arc::new(memory)
    }

    /// Other shares count from now on.
    pub(crate) fn set_shares(&self, shares: Shares, workers: usize) {
        self.most.store(shares.buffers, Ordering::Relaxed);
        // What one keeps, another cannot have.
        let kept = shares.buffers / 4 / BUFFER_BYTES / workers.max(1);
        self.kept.store(kept, Ordering::Relaxed);
    }

    /// Most buffers that a worker may keep when nobody needs them.
    pub(crate) fn most_kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// Bytes for something large.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Charge, OutOfMemory> {
        if take(&self.held, &self.most, bytes) {
            Ok(Charge {
                memory: Arc::clone(self),
                bytes,
            })
        } else {
            Err(OutOfMemory)
        }
    }

    /// Takes bytes for something of which each client may have `free` bytes: these are not counted.
    pub(crate) fn take_above(
        self: &Arc<Self>,
        free: usize,
        bytes: usize,
    ) -> Result<Option<Charge>, OutOfMemory> {
        if bytes > free {
            self.take(bytes).map(Some)
        } else {
            Ok(None)
        }
    }
}

impl Charge {
    /// The right to `bytes`, which are no fewer.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 && !take(&self.memory.held, &self.memory.most, more) {
            return Err(OutOfMemory);
        }
        self.bytes += more;
        Ok(())
    }

    /// Gives back all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let fewer = self.bytes.saturating_sub(bytes);
        self.memory.held.fetch_sub(fewer, Ordering::Relaxed);
        self.bytes -= fewer;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests;
