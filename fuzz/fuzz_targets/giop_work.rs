//! Any bytes as a stream of GIOP messages that comes in pieces of any size: reading them, with
//! the Anys and references in them, takes work in proportion to them. Work is counted twice, in
//! the reader's own steps and in bytes that are allocated or cleared, which count what the
//! steps forget.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use evenkeel_giop::any::Any;
use evenkeel_giop::cdr::{Endian, Reader, STEPS_FREE, STEPS_PER_BYTE, Writer};
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::{Content, Message};
use evenkeel_giop::wire::{Buffers, Stop, Wire};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that may be allocated for each byte that comes, and in any case. A TypeCode of 4 bytes
/// is a node of some 150, in a table that doubles; what is written again is copied once for each
/// level that it is nested.
const PER_BYTE: usize = 1024;
const FREE: usize = 256 << 10;

const MOST: usize = 1 << 16;

struct Drip<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Drip<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let piece = self.piece.min(into.remaining()).min(self.rest.len());
        let (now, rest) = self.rest.split_at(piece);
        // What the reader has cleared for this piece, beyond the buffer that all share.
        if into.initialized().len() != 32 << 10 {
            ALLOCATED.fetch_add(into.initialized().len(), Ordering::Relaxed);
        }
        into.put_slice(now);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Drip<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

/// Reads Anys and references until no more can be read.
fn values(mut reader: Reader<'_>) {
    let all = reader.remaining_bytes();
    loop {
        let before = reader.remaining_bytes();
        let at = reader.clone();
        match Any::read(&mut reader) {
            Ok(any) => {
                let mut writer = Writer::new(Endian::NATIVE);
                any.write(&mut writer);
                assert!(
                    any.type_code()
                        .is_equivalent(&any.type_code().without_aliases())
                );
            }
            Err(_) => {
                reader = at;
                let Ok(ior) = Ior::read(&mut reader) else {
                    break;
                };
                ior.iiop_profiles().for_each(drop);
            }
        }
        if reader.remaining_bytes() == before {
            break;
        }
    }
    assert!(reader.work_left() <= STEPS_FREE + STEPS_PER_BYTE * all);
}

fuzz_target!(|bytes: &[u8]| {
    let [piece, form, bytes @ ..] = bytes else {
        return;
    };
    let buffers = Buffers::new(MOST * 4);
    let mut wire = Wire::new(
        Drip {
            rest: bytes,
            piece: 1 << (piece % 16),
        },
        &buffers,
        MOST,
    );
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut cx = Context::from_waker(Waker::noop());
    let handle = |message: Message<'_>| -> Result<(), Infallible> {
        let (endian, minor) = (message.header.endian, message.header.version.minor());
        let (body, at) = match message.read_content() {
            Ok(Content::Request(request)) => (request.body, request.body_at),
            Ok(Content::Reply(reply)) => (reply.body, reply.body_at),
            _ => return Ok(()),
        };
        let reader = Reader::at_offset(at, body, endian).of_minor(minor);
        values(reader.of_fragments(message.joints));
        Ok(())
    };
    loop {
        match wire.receive_messages(&mut cx, &mut 32, handle) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(Stop::Gone(_) | Stop::NotValid(_))) | Poll::Pending => break,
            Poll::Ready(Err(Stop::Handler(never))) => match never {},
        }
    }
    drop(wire);
    // The same as values only.
    let endian = if form & 1 == 0 {
        Endian::Big
    } else {
        Endian::Little
    };
    values(
        Reader::at_offset(usize::from(form >> 1 & 7), bytes, endian).of_minor(1 + (form >> 4 & 1)),
    );
    let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
    assert!(
        allocated <= FREE + PER_BYTE * bytes.len(),
        "{allocated} bytes for {}",
        bytes.len()
    );
});
