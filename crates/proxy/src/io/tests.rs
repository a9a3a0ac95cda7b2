use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream as StdStream};

use super::*;
use crate::connection::tests::Wrapped;
use crate::http::flow::{Bounds, Flow, TURN_BYTES};
use crate::http1::Body;
use crate::worker::{Worker, tests::on_worker};

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
        Io::from(Wrapped::wrap_socket(ours))
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
        let mut flow = crate::tcp::flow::Flow::default();
        let done = std::future::poll_fn(|cx| {
            flow.poll(cx, from, to, worker, crate::tcp::flow::TURN_BYTES)
        });
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
            let (io, mut peer) = pair(wrapped);
            let Io::Connection(mut connection) = io else {
                unreachable!("it is a connection of its own");
            };
            assert!(connection.is_silent() && connection.is_quiet());
            peer.write_all(b"x").unwrap();
            assert!(!connection.is_silent());
            let socket = connection.watch_socket().unwrap();
            socket.readable().await.unwrap();
            assert!(!connection.is_quiet());
        });
    }
}
