//! The server against clients that write bytes.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_giop::message::{GiopError, Header, Message};
use evenkeel_giop::server::{DeferredReply, ReplyOutput, Server, Service, Settings};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// Answers each message with its own bytes, as a Reply; those whose body begins with `L` only
/// when the test says so, and those that begin with `X` are not valid.
#[derive(Default)]
struct Echo {
    seen: RefCell<Vec<(SocketAddr, u8)>>,
    later: RefCell<Vec<DeferredReply>>,
}

impl Service for Echo {
    type Connection = SocketAddr;

    fn connected(&self, peer: SocketAddr) -> SocketAddr {
        peer
    }

    fn message(
        &self,
        peer: &mut SocketAddr,
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> Result<(), GiopError> {
        let first = message.bytes.get(Header::LEN).copied().unwrap_or_default();
        self.seen.borrow_mut().push((*peer, first));
        match first {
            b'X' => return Err(GiopError::Type(b'X')),
            b'L' => self.later.borrow_mut().push(out.defer_answer()),
            _ => out.write(|to| {
                to.extend_from_slice(b"GIOP\x01\x02\x00\x01");
                to.extend_from_slice(message.bytes.get(8..).unwrap());
            }),
        }
        Ok(())
    }
}

fn request(body: &[u8]) -> Vec<u8> {
    let mut bytes = b"GIOP\x01\x02\x00\x00".to_vec();
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn reply(body: &[u8]) -> Vec<u8> {
    let mut bytes = request(body);
    bytes[7] = 1;
    bytes
}

const CLOSE: &[u8] = b"GIOP\x01\x00\x01\x05\0\0\0\0";
const ERROR: &[u8] = b"GIOP\x01\x00\x01\x06\0\0\0\0";

fn short() -> Settings {
    Settings {
        max_message: 100_000,
        ..Settings::default()
    }
}

/// Runs `clients` in a thread of their own, against a server that stops when they are done.
fn with<R: Send + 'static>(
    settings: Settings,
    clients: impl FnOnce(SocketAddr, &Server) -> R + Send + 'static,
) -> (R, Rc<Echo>) {
    let service = Rc::new(Echo::default());
    let server = Server::new(settings);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let result = runtime.block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (done, stop) = oneshot::channel::<()>();
        let theirs = Arc::clone(&server);
        let clients = std::thread::spawn(move || {
            let result = clients(address, &theirs);
            drop(done);
            result
        });
        let stop = async {
            let _ = stop.await;
        };
        server
            .serve_clients(listener, Rc::clone(&service), stop)
            .await;
        clients.join().unwrap()
    }));
    assert_eq!(server.counters().open.load(Ordering::Relaxed), 0);
    (result, service)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(100)))
        .unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn expect(stream: &mut TcpStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, wanted);
}

/// Returns true if the stream ends here, in order or not.
fn ends(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn messages_are_answered_in_order_however_they_arrive() {
    with(short(), |address, server| {
        let long = vec![b'l'; 90_000];
        let bodies = [&b"one"[..], b"", &long, b"four"];
        let all: Vec<u8> = bodies.iter().flat_map(|body| request(body)).collect();
        let wanted: Vec<u8> = bodies.iter().flat_map(|body| reply(body)).collect();
        for piece in [1, 11, 13, 40_000, all.len()] {
            let mut stream = connect(address);
            let mut writes = stream.try_clone().unwrap();
            let all = all.clone();
            let writer = std::thread::spawn(move || {
                // Single bytes where the headers are; 90,000 of them prove nothing more.
                let (head, tail) = all.split_at(60);
                for piece in head.chunks(piece).chain(tail.chunks(piece.max(40_000))) {
                    writes.write_all(piece).unwrap();
                }
            });
            expect(&mut stream, &wanted);
            writer.join().unwrap();
        }
        assert_eq!(server.counters().requests.load(Ordering::Relaxed), 20);
        assert_eq!(server.counters().accepted.load(Ordering::Relaxed), 5);
    });
}

#[test]
fn what_is_no_message_gets_a_message_error_and_the_end() {
    with(short(), |address, server| {
        let wrong: [&[u8]; 7] = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"GIOP\x02\x00\x00\x00\0\0\0\0",
            b"GIOP\x01\x03\x00\x00\0\0\0\0",
            b"GIOP\x01\x02\x00\x08\0\0\0\0",
            // A reply to a server, a fragment of nothing, and 4 GB.
            b"GIOP\x01\x02\x00\x01\0\0\0\0",
            b"GIOP\x01\x00\x00\x07\0\0\0\0",
            b"GIOP\x01\x02\x00\x00\xff\xff\xff\xff",
        ];
        for wrong in wrong {
            let mut stream = connect(address);
            stream.write_all(&request(b"before")).unwrap();
            stream.write_all(wrong).unwrap();
            expect(&mut stream, &reply(b"before"));
            expect(&mut stream, ERROR);
            assert!(ends(&mut stream), "{wrong:?}");
        }
        // And what the service refuses, although there is more behind it.
        let mut stream = connect(address);
        stream.write_all(&request(b"X")).unwrap();
        stream.write_all(&request(b"behind")).unwrap();
        expect(&mut stream, ERROR);
        assert!(ends(&mut stream));
        let errors = server.counters().message_errors.load(Ordering::Relaxed);
        assert_eq!(errors, wrong.len() as u64 + 1);
    });
}

#[test]
fn a_client_that_says_that_it_goes_is_let_go() {
    with(short(), |address, _| {
        for word in [CLOSE, ERROR] {
            let mut stream = connect(address);
            stream.write_all(word).unwrap();
            assert!(ends(&mut stream));
        }
    });
}

#[test]
fn idle_connections_are_closed_with_a_word() {
    let settings = Settings {
        idle_timeout: Duration::from_millis(50),
        ..short()
    };
    with(settings, |address, server| {
        let mut stream = connect(address);
        expect(&mut stream, CLOSE);
        assert!(ends(&mut stream));
        assert_eq!(server.counters().idle_closed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_message_that_does_not_get_complete_ends_the_connection() {
    let settings = Settings {
        message_timeout: Duration::from_millis(50),
        ..short()
    };
    with(settings, |address, server| {
        for part in [5, 12, 15] {
            let mut stream = connect(address);
            stream.write_all(&request(b"whole")).unwrap();
            stream.write_all(&request(b"never")[..part]).unwrap();
            expect(&mut stream, &reply(b"whole"));
            assert!(ends(&mut stream));
        }
        assert_eq!(server.counters().too_slow.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn further_connections_wait_until_there_is_room() {
    let settings = Settings {
        max_connections: 1,
        ..short()
    };
    with(settings, |address, server| {
        let mut first = connect(address);
        first.write_all(&request(b"a")).unwrap();
        expect(&mut first, &reply(b"a"));
        let mut second = connect(address);
        second.write_all(&request(b"b")).unwrap();
        // The first one is served all the while.
        first.write_all(&request(b"c")).unwrap();
        expect(&mut first, &reply(b"c"));
        assert_eq!(server.counters().accepted.load(Ordering::Relaxed), 1);
        drop(first);
        expect(&mut second, &reply(b"b"));
    });
}

#[test]
fn a_client_that_does_not_read_is_not_read_and_cut_off() {
    let settings = Settings {
        write_timeout: Duration::from_millis(50),
        max_output: 10_000,
        ..short()
    };
    with(settings, |address, server| {
        let mut stream = connect(address);
        let message = request(&[b'x'; 50_000]);
        // Until the buffers on both ways are full and then nobody reads.
        while stream.write_all(&message).is_ok() {}
        assert_eq!(server.counters().too_slow.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_flood_on_one_connection_does_not_keep_the_others_waiting() {
    let (quiet, service) = with(short(), |address, _| {
        let mut flood = connect(address);
        let all = request(b"f").repeat(3000);
        flood.write_all(&all).unwrap();
        let mut quiet = connect(address);
        quiet.write_all(&request(b"q")).unwrap();
        expect(&mut quiet, &reply(b"q"));
        let local = quiet.local_addr().unwrap();
        expect(&mut flood, &reply(b"f").repeat(3000));
        local
    });
    let seen = service.seen.borrow();
    assert_eq!(seen.len(), 3001);
    // Both were there at about the same time; how many of the flood were handled before the
    // other one connected is the scheduler's business, but one turn's are not interrupted.
    assert!(seen.contains(&(quiet, b'q')));
}

#[test]
fn answers_may_come_later_and_an_orderly_stop_waits_for_them() {
    let service = Rc::new(Echo::default());
    let server = Server::new(short());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::task::spawn_local({
            let (server, service) = (Arc::clone(&server), Rc::clone(&service));
            async move {
                let stopped = async {
                    let _ = stopped.await;
                };
                server.serve_clients(listener, service, stopped).await;
            }
        });
        let client = tokio::task::spawn_blocking(move || {
            let mut stream = connect(address);
            stream.write_all(&request(b"L")).unwrap();
            expect(&mut stream, &reply(b"at last"));
            expect(&mut stream, CLOSE);
            assert!(ends(&mut stream));
        });
        while service.later.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(stop);
        // The connection stays until the answer is there.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!serving.is_finished());
        let later = service.later.borrow_mut().pop().unwrap();
        assert!(!later.is_gone());
        assert!(later.write(|to| to.extend(reply(b"at last"))).is_some());
        drop(later);
        client.await.unwrap();
        serving.await.unwrap();
    }));
}

#[test]
fn an_answer_for_a_client_that_is_gone_is_dropped() {
    let service = Rc::new(Echo::default());
    let server = Server::new(Settings {
        max_pending: 1,
        ..short()
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = connect(listener.local_addr().unwrap());
        let (_stop, stopped) = oneshot::channel::<()>();
        let theirs = Rc::clone(&service);
        tokio::task::spawn_local(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            server.serve_clients(listener, theirs, stopped).await;
        });
        stream.write_all(&request(b"L")).unwrap();
        while service.later.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        // One answer is outstanding, which is the most there may be: this is not read.
        stream.write_all(&request(b"2")).unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(service.seen.borrow().len(), 1);
        let later = service.later.borrow_mut().pop().unwrap();
        let again = later.clone();
        drop(later);
        drop(stream);
        assert_eq!(again.write(|to| to.extend(reply(b"x"))), Some(()));
        drop(again.clone());
        let gone = again.clone();
        drop(again);
        // Written for somebody who has just gone; then it is known.
        while !gone.is_gone() {
            tokio::task::yield_now().await;
            let _ = gone.write(|to| to.extend(reply(b"x")));
        }
        assert_eq!(gone.write(|_| ()), None);
    }));
}

#[test]
fn what_has_not_come_in_full_is_bounded_over_all_connections() {
    let settings = Settings {
        max_held: 100_000,
        ..short()
    };
    with(settings, |address, server| {
        let whole = request(&[b'w'; 90_000]);
        let mut first = connect(address);
        first.write_all(&whole[..80_000]).unwrap();
        // Others go on.
        let mut second = connect(address);
        second.write_all(&request(b"small")).unwrap();
        expect(&mut second, &reply(b"small"));
        // Together they would be too much, whoever of them is the last one.
        let _ = second.write_all(&whole[..80_000]);
        while server.counters().message_errors.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let mut third = connect(address);
        third.write_all(&request(b"small")).unwrap();
        expect(&mut third, &reply(b"small"));
    });
}

#[test]
fn fragments_are_joined_and_counted_as_held() {
    let settings = Settings {
        max_held: 50_000,
        ..short()
    };
    with(settings, |address, server| {
        let start = |size: u32| {
            let mut bytes = b"GIOP\x01\x02\x02\x00".to_vec();
            bytes.extend_from_slice(&(size - 12).to_be_bytes());
            bytes.resize(size as usize, b's');
            bytes
        };
        let mut stream = connect(address);
        stream.write_all(&start(800)).unwrap();
        let mut last = b"GIOP\x01\x02\x00\x07\0\0\0\x08".to_vec();
        last.extend_from_slice(b"ssssend.");
        stream.write_all(&last).unwrap();
        let mut whole = vec![b's'; 788];
        whole.extend_from_slice(b"end.");
        expect(&mut stream, &reply(&whole));
        // The beginnings of messages that take more than there may be.
        let mut stream = connect(address);
        stream.write_all(&start(60_000)).unwrap();
        expect(&mut stream, ERROR);
        assert_eq!(server.counters().requests.load(Ordering::Relaxed), 1);
    });
}
