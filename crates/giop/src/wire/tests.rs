use std::cell::RefCell;
use std::convert::Infallible;
use std::task::Waker;

use super::*;
use crate::cdr::Endian;
use crate::message::{Request, Target, Version};

/// Stream on which the other side sends `bytes`, `piece` bytes at a time.
struct Drip {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
    /// Bytes of room that were cleared beforehand, over all reads into other buffers than
    /// the one that all connections share.
    cleared: Rc<Cell<usize>>,
}

impl AsyncRead for Drip {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.at > 0 {
            self.cleared
                .set(self.cleared.get() + into.initialized().len());
        }
        let end = self
            .bytes
            .len()
            .min(self.at + self.piece.min(into.remaining()));
        into.put_slice(&self.bytes[self.at..end]);
        self.at = end;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Drip {
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

fn request(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut request = Request::new(1, Target::Key(b"key"), "ping");
    request.body = body;
    let encoded = request.encode(Version::V1_2, Endian::Big, &mut out);
    encoded.unwrap();
    out
}

/// Reads all that comes; answers the messages, how many bytes were cleared for them, and how
/// often the room for them grew.
fn read(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, usize, usize) {
    let cleared = Rc::default();
    let drip = Drip {
        bytes: bytes.to_vec(),
        at: 0,
        piece,
        cleared: Rc::clone(&cleared),
    };
    let buffers = Buffers::new(16 << 20);
    let mut wire = Wire::new(drip, &buffers, 4 << 20);
    let got = RefCell::new(Vec::new());
    let mut cx = Context::from_waker(Waker::noop());
    let (mut grown, mut room) = (0, 0);
    loop {
        let mut budget = 32;
        let handle = |message: Message<'_>| -> Result<(), Infallible> {
            got.borrow_mut().push(message.bytes.to_vec());
            Ok(())
        };
        match wire.receive_messages(&mut cx, &mut budget, handle) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(Stop::Gone(None))) => break,
            other => panic!("{other:?}"),
        }
        grown += usize::from(wire.held.capacity() > room);
        room = wire.held.capacity();
    }
    drop(wire);
    assert_eq!(buffers.held.get(), 0);
    (got.into_inner(), cleared.get(), grown)
}

#[test]
fn s3_a_claimed_length_costs_nothing_with_each_read() {
    let message = request(&vec![7; 2 << 20]);
    for piece in [97, 1460, 1 << 20] {
        let (got, cleared, grown) = read(&message, piece);
        assert!(got == [&message[..]], "pieces of {piece}");
        assert!(
            cleared <= message.len(),
            "{cleared} bytes cleared for pieces of {piece}"
        );
        assert!(grown <= 16, "the room grew {grown} times");
    }
}

#[test]
fn messages_are_the_same_however_they_are_cut() {
    let mut bytes = Vec::new();
    for len in [0, 1, 100, 70_000, 5, 33_000, 8, 8] {
        bytes.extend(request(&vec![len as u8; len]));
    }
    let (whole, ..) = read(&bytes, usize::MAX);
    assert_eq!(whole.concat(), bytes);
    for piece in [1, 7, 1000, 32 << 10, 50_000] {
        assert!(read(&bytes, piece).0 == whole, "pieces of {piece}");
    }
}
