//! Content that waits in a connection of HTTP/2 until the peer takes it, and memory for it.
//!
//! The flows' buffers are counted where they are lent. What they have handed over, the `h2` library
//! holds for each stream, also for one that is over for the flows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use evenkeel_limits::Shortage;

use crate::memory::{Charge, Memory};

/// What each connection may hold, in bytes: what is above is counted.
const FREE_BYTES: usize = 32 * 1024;

/// What is held for all streams of a connection.
#[derive(Debug)]
pub(super) struct Held {
    memory: Arc<Memory>,
    bytes: Cell<usize>,
    /// Who waits until it is less.
    waiting: RefCell<Vec<Waker>>,
}

/// A part of a body that is to be sent.
#[derive(Debug)]
pub(crate) struct Part {
    bytes: Bytes,
    /// Where it is counted, and how long it was.
    held: Option<(Rc<Held>, usize)>,
    _charge: Option<Charge>,
}

impl Held {
    pub(super) fn new(memory: &Arc<Memory>) -> Rc<Self> {
        Rc::new(Held {
            memory: Arc::clone(memory),
            bytes: Cell::new(0),
            waiting: RefCell::default(),
        })
    }

    /// A part that is some of `bytes`, which are not empty. With no memory for it waits until the peer
    /// has taken others.
    pub(super) fn poll_part(self: &Rc<Self>, cx: &Context<'_>, bytes: &[u8]) -> Poll<Part> {
        let free = FREE_BYTES.saturating_sub(self.bytes.get());
        let mut charge = None;
        let mut here = bytes;
        if bytes.len() > free {
            charge = self.memory.take(bytes.len()).ok();
            if charge.is_none() {
                Shortage::Memory.met("hold more that goes out over HTTP/2");
                here = bytes.get(..free).unwrap_or_default();
            }
        }
        if here.is_empty() {
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        self.bytes.set(self.bytes.get() + here.len());
        Poll::Ready(Part {
            bytes: Bytes::copy_from_slice(here),
            held: Some((Rc::clone(self), here.len())),
            _charge: charge,
        })
    }
}

impl Part {
    /// One that is not counted: an end, or a short text.
    pub(super) fn of(bytes: impl Into<Bytes>) -> Self {
        Part {
            bytes: bytes.into(),
            held: None,
            _charge: None,
        }
    }
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, n: usize) {
        self.bytes.advance(n);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let Some((held, bytes)) = &self.held else {
            return;
        };
        let left = held.bytes.get().saturating_sub(*bytes);
        held.bytes.set(left);
        if left < FREE_BYTES {
            held.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::memory;

    #[test]
    fn what_is_held_beyond_a_little_needs_memory() {
        let cx = &Context::from_waker(Waker::noop());
        let memory = memory(10_000);
        let held = Held::new(&memory);
        let piece = |n: usize| match held.poll_part(cx, &vec![b'x'; n]) {
            Poll::Ready(piece) => Some(piece),
            Poll::Pending => None,
        };
        let length = |piece: &Option<Part>| piece.as_ref().map(Buf::remaining);
        let first = piece(FREE_BYTES - 1);
        assert_eq!(length(&first), Some(FREE_BYTES - 1));
        assert!(memory.take(10_000).is_ok(), "it is not counted");
        let second = piece(10_000);
        assert_eq!(length(&second), Some(10_000));
        assert!(memory.take(1).is_err(), "it is counted");
        // There is none left: no more than what is free, and then nothing.
        assert!(piece(10_000).is_none());
        drop(first);
        let third = piece(60_000);
        assert_eq!(length(&third), Some(FREE_BYTES - 10_000));
        assert!(piece(1).is_none());
        assert_eq!(held.waiting.borrow().len(), 1, "however often it asks");
        drop(second);
        assert!(memory.take(10_000).is_ok(), "it was given back");
        drop(third);
        assert_eq!(held.bytes.get(), 0);
        assert!(held.waiting.borrow().is_empty());
    }
}
