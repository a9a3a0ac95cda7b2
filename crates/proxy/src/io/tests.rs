use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream as StdStream};

use super::*;
use crate::http::flow::{Bounds, Flow, TURN_BYTES};
use crate::http1::Body;
use crate::worker::{Worker, tests::on_worker};

/// A transport that turns each byte over on its way, and holds back what is written until
/// it is flushed.
#[derive(Debug)]
pub(crate) struct Wrapped {
    socket: TcpStream,
    held: Vec<u8>,
}

impl Wrapped {
    fn io(socket: TcpStream) -> Io {
        let held = Vec::new();
        Io::Wrapped(Box::new(Wrapped { socket, held }))
    }
}

impl Transport for Wrapped {
    fn scheme(&self) -> &'static str {
        "https"
    }

    fn socket(&self) -> Option<SockRef<'_>> {
        Some(SockRef::from(&self.socket))
    }

    fn watched(&mut self) -> Option<&TcpStream> {
        Some(&self.socket)
    }
}

impl AsyncRead for Wrapped {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        let read = Pin::new(&mut self.get_mut().socket).poll_read(cx, space);
        for byte in &mut space.filled_mut()[before..] {
            *byte = !*byte;
        }
        read
    }
}

impl AsyncWrite for Wrapped {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.held.len() > 10_000 {
            std::task::ready!(Pin::new(&mut *this).poll_flush(cx))?;
        }
        this.held.extend(bytes.iter().map(|byte| !byte));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while !this.held.is_empty() {
            let written = Pin::new(&mut this.socket).poll_write(cx, &this.held);
            this.held.drain(..std::task::ready!(written)?);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        std::task::ready!(Pin::new(&mut *this).poll_flush(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}

#[test]
fn s5_what_runs_out_here_is_neither_sides_fault() {
    let by =
        |code| TransferError::of_error(&io::Error::from_raw_os_error(code), TransferError::From);
    assert_eq!(
        by(libc::ENOBUFS),
        TransferError::Exhausted(Shortage::Memory)
    );
    assert_eq!(by(libc::ENOMEM), TransferError::Exhausted(Shortage::Memory));
    assert_eq!(by(libc::ECONNRESET), TransferError::From);
}

/// Bytes enough for splicing.
const LONG: usize = 6 << 20;

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// A connection, with or without a transport in between, and its other end.
fn pair(wrapped: bool) -> (Io, StdStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = StdStream::connect(listener.local_addr().unwrap()).unwrap();
    ours.set_nonblocking(true).unwrap();
    let ours = TcpStream::from_std(ours).unwrap();
    let io = if wrapped {
        Wrapped::io(ours)
    } else {
        Io::from(ours)
    };
    (io, listener.accept().unwrap().0)
}

/// Has `carry` bring [`LONG`] bytes, and then the end, from one connection to another, for
/// all transports on both sides.
fn each_way(carry: impl AsyncFn(&mut Io, &mut Io, &Worker)) {
    for (from_wrapped, to_wrapped) in [(false, false), (true, false), (false, true), (true, true)] {
        on_worker(async |worker| {
            let (mut from, mut sender) = pair(from_wrapped);
            let (mut to, mut receiver) = pair(to_wrapped);
            let mut sent = message(LONG);
            if from_wrapped {
                sent.iter_mut().for_each(|byte| *byte = !*byte);
            }
            let sending = std::thread::spawn(move || sender.write_all(&sent).unwrap());
            let receiving = std::thread::spawn(move || {
                let mut received = Vec::new();
                receiver.read_to_end(&mut received).unwrap();
                received
            });
            carry(&mut from, &mut to, worker).await;
            drop(to);
            sending.join().unwrap();
            let mut received = receiving.join().unwrap();
            if to_wrapped {
                received.iter_mut().for_each(|byte| *byte = !*byte);
            }
            assert!(received == message(LONG), "{from_wrapped} {to_wrapped}");
            let spliced = worker.pipes.clear();
            assert_eq!(spliced, !from_wrapped && !to_wrapped);
        });
    }
}

#[test]
fn a_tunnel_carries_the_bytes_of_any_transport() {
    each_way(async |from, to, worker| {
        let mut flow = crate::tcp::Flow::default();
        let done =
            std::future::poll_fn(|cx| flow.poll(cx, from, to, worker, crate::tcp::TURN_BYTES));
        assert_eq!(done.await, Ok(()));
        assert_eq!(flow.moved, LONG as u64);
    });
}

#[test]
fn a_message_passes_over_any_transport() {
    each_way(async |from, to, worker| {
        let body = Body::Length(LONG as u64);
        let mut flow =
            Flow::new(Vec::new(), body, false, None, Bounds::NONE, &worker.memory).unwrap();
        let done = std::future::poll_fn(|cx| flow.poll(cx, from, to, worker, TURN_BYTES));
        assert_eq!(done.await, Ok(()));
        assert!(flow.is_done());
        flow.end_flow(worker);
    });
}

#[test]
fn what_a_transport_holds_back_is_sent_before_a_message_counts_as_sent() {
    on_worker(async |worker| {
        let ((mut from, _sender), (mut to, mut receiver)) = (pair(false), pair(true));
        let mut flow = Flow::new(
            b"head".to_vec(),
            Body::None,
            false,
            None,
            Bounds::NONE,
            &worker.memory,
        )
        .unwrap();
        let done = std::future::poll_fn(|cx| flow.poll(cx, &mut from, &mut to, worker, TURN_BYTES));
        assert_eq!(done.await, Ok(()));
        let mut head = [0; 4];
        receiver.read_exact(&mut head).unwrap();
        assert_eq!(head.map(|byte| !byte), *b"head");
    });
}

#[test]
fn an_idle_connection_is_judged_whatever_its_transport() {
    for wrapped in [false, true] {
        on_worker(async |_| {
            let (mut io, mut peer) = pair(wrapped);
            assert!(io.is_silent() && io.is_quiet());
            peer.write_all(b"x").unwrap();
            assert!(!io.is_silent());
            io.watch_socket().unwrap().readable().await.unwrap();
            assert!(!io.is_quiet());
        });
    }
}
