//! Responses whose head comes before their body: when their latency ends, and what clients cost.

#![allow(clippy::unwrap_used)]

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as Moment};

use crate::support::*;
use bytes::Bytes;
use evenkeel_core::group::GroupSettings;
use evenkeel_core::latency::LatencyEnd;
use evenkeel_core::member::Slot;
use evenkeel_manager::config::MemberProtocol;
use evenkeel_manager::config::Protocol::Http;
use evenkeel_proxy::access::End;

/// Waits until something holds that another thread brings about.
#[track_caller]
fn until(holds: impl Fn() -> bool) {
    let limit = Moment::now() + HANG;
    while !holds() {
        assert!(Moment::now() < limit, "it never holds");
        std::thread::yield_now();
    }
}

fn bed(address: SocketAddr, latency: LatencyEnd, member_protocol: MemberProtocol) -> Bed {
    let settings = GroupSettings {
        latency,
        ..GroupSettings::default()
    };
    let group = group(members(&[address]), settings);
    Bed::with_group(Http, group, 16, |rule| {
        rule.http.member_protocol = member_protocol;
    })
}

fn slot(bed: &Bed) -> Arc<Slot> {
    Arc::clone(&bed.group.current.load().members()[0].slot)
}

/// A member that sends these fields at once, and the body when the test says so.
fn late_body(fields: &'static str, body: &'static [u8]) -> (SocketAddr, Sender<()>) {
    let (go, wait) = channel();
    let wait = Mutex::new(wait);
    let address = member(move |_, mut stream| {
        while !read_head(&mut stream).is_empty() {
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            if wait.lock().unwrap().recv().is_err() {
                return;
            }
            stream.write_all(body).unwrap();
        }
    });
    (address, go)
}

/// Starts a member of HTTP/2 that sends a head without a length at once, and the body when the test
/// says so.
fn late_body_over_http2() -> (SocketAddr, Sender<()>) {
    let (go, wait) = channel::<()>();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (send, mut signals) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || wait.iter().try_for_each(|()| send.send(())));
        runtime.block_on(async move {
            let socket = tokio::net::TcpStream::from_std(socket).unwrap();
            let mut connection = h2::server::handshake(socket).await.unwrap();
            let mut out: Option<h2::SendStream<Bytes>> = None;
            loop {
                tokio::select! {
                    accepted = poll_fn(|cx| connection.poll_accept(cx)) => {
                        let Some(Ok((_, mut respond))) = accepted else { return };
                        let head = http::Response::new(());
                        out = Some(respond.send_response(head, false).unwrap());
                    }
                    signal = signals.recv() => {
                        let (Some(()), Some(out)) = (signal, &mut out) else { return };
                        out.send_data("body".into(), true).unwrap();
                    }
                }
            }
        });
    });
    (address, go)
}

const CHUNKED: &str = "Transfer-Encoding: chunked";
const EVENTS: &str = "Transfer-Encoding: chunked\r\nContent-Type: text/event-stream; charset=utf-8";
const CHUNKS: &[u8] = b"4\r\nbody\r\n0\r\n\r\n";

/// Sends one request whose head is passed on before its body is there. True if its latency ended
/// before the body.
fn ends_with_head(bed: &Bed, go: &Sender<()>, method: &str) -> bool {
    let mut client = bed.connect_client();
    let asks = format!("{method} / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n");
    let head = send_request(&mut client, &asks);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let slot = slot(bed);
    let ended = slot.has_latency();
    // It has answered, whatever its latency is.
    assert_eq!(
        slot.record()
            .recent(bed.clock.now(), Duration::from_secs(60))
            .total,
        1
    );
    go.send(()).unwrap();
    let mut found = Vec::new();
    while !found.windows(4).any(|four| four == b"body") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        found.extend(byte);
    }
    let record = bed.next_record();
    assert_eq!(record.end, End::Complete);
    assert!(slot.has_latency());
    assert_eq!(slot.record().latencies().count(), 1);
    ended
}

#[test]
fn the_latency_of_a_stream_ends_with_the_first_byte_of_its_body() {
    use LatencyEnd::{Auto, FirstByte, Head, LastByte};
    let sized = "Content-Length: 4";
    for (latency, method, fields, body, with_head) in [
        (Auto, "GET", CHUNKED, CHUNKS, false),
        (Auto, "POST", EVENTS, CHUNKS, false),
        // Who subscribes to events waits for news, and not for the member.
        (Auto, "GET", EVENTS, CHUNKS, true),
        (Auto, "GET", sized, b"body", true),
        (Head, "POST", EVENTS, CHUNKS, true),
        (FirstByte, "GET", EVENTS, CHUNKS, false),
        (FirstByte, "GET", sized, b"body", false),
        (LastByte, "GET", sized, b"body", false),
    ] {
        let (address, go) = late_body(fields, body);
        let bed = bed(address, latency, MemberProtocol::Http1);
        let ended = ends_with_head(&bed, &go, method);
        assert_eq!(ended, with_head, "{latency:?} {method} {fields}");
        let streams = slot(&bed).record().streams();
        let is_stream = fields != sized;
        assert_eq!(
            streams.ended_streams,
            u64::from(is_stream),
            "{latency:?} {fields}"
        );
    }
}

#[test]
fn members_that_speak_http2_are_measured_alike() {
    for (latency, with_head) in [(LatencyEnd::Auto, false), (LatencyEnd::Head, true)] {
        let (address, go) = late_body_over_http2();
        let bed = bed(address, latency, MemberProtocol::Http2);
        assert_eq!(ends_with_head(&bed, &go, "GET"), with_head, "{latency:?}");
        assert_eq!(slot(&bed).record().streams().ended_streams, 1);
    }
}

#[test]
fn clients_that_speak_http2_are_measured_alike() {
    let (address, go) = late_body(CHUNKED, CHUNKS);
    let bed = bed(address, LatencyEnd::Auto, MemberProtocol::Http1);
    let mut client = connect_raw(&bed);
    client.write_all(&get_frame(1)).unwrap();
    until_frame(&mut client, &[HEADERS]).unwrap();
    assert!(!slot(&bed).has_latency());
    go.send(()).unwrap();
    let (_, _, data) = until_frame(&mut client, &[0]).unwrap();
    assert_eq!(data, b"body");
    let record = bed.next_record();
    assert!(slot(&bed).has_latency());
    let tries = record.attempts.unwrap();
    assert!(tries.first_byte > record.response_time);
    assert!(tries.first_byte <= Some(record.total_time));
}

#[test]
fn a_body_that_comes_with_its_head_has_no_first_byte_of_its_own() {
    let address = http_member(|_| {
        let head = format!("HTTP/1.1 200 OK\r\n{CHUNKED}\r\n\r\n");
        [head.as_bytes(), CHUNKS].concat()
    });
    let bed = bed(address, LatencyEnd::Auto, MemberProtocol::Http1);
    let mut client = bed.connect_client();
    send_request(&mut client, &get("/"));
    expect(&mut client, CHUNKS);
    let tries = bed.next_record().attempts.unwrap();
    assert_eq!(tries.first_byte, None);
    let slot = slot(&bed);
    assert!(slot.has_latency());
    assert_eq!(slot.record().streams().ended_streams, 0);
}

#[test]
fn time_in_which_a_client_does_not_read_is_not_the_members() {
    // Longer than what sockets hold.
    let body = vec![b'x'; 32 << 20];
    let size = body.len();
    let address = http_member(move |head| match head.contains("/small") {
        true => ok("small"),
        false => ok(&body),
    });
    let bed = bed(address, LatencyEnd::LastByte, MemberProtocol::Http1);
    expect_get(&mut bed.connect_client(), "/small", "small");
    bed.next_record();
    let slot = slot(&bed);
    let before = slot.record().latencies();
    let mean = slot.service_time(bed.clock.now()).unwrap();
    let mut client = bed.connect_client();
    let head = send_request(&mut client, &get("/large"));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    // The age that a request has in an hour would show, if it counted.
    let in_an_hour = bed.clock.now().after(Duration::from_secs(3600));
    let counts = || slot.service_time(in_an_hour).unwrap() > 2.0 * mean;
    until(|| !counts());
    let began = Moment::now();
    std::thread::sleep(Duration::from_millis(200));
    assert!(!counts());
    let waited = began.elapsed();
    let mut left = size;
    let mut buffer = vec![0; 1 << 20];
    while left > 0 {
        left -= client.read(&mut buffer).unwrap();
    }
    let record = bed.next_record();
    assert_eq!(record.end, End::Complete);
    let latencies = slot.record().latencies().since(&before);
    assert_eq!(latencies.count(), 1);
    assert!(latencies.sum() + waited <= record.total_time);
}
