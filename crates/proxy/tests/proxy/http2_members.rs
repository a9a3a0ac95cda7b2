//! Members that speak HTTP/2, for clients that do and clients that do not.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::support::*;
use bytes::Bytes;
use evenkeel_core::load::LoadId;
use evenkeel_core::time::Instant;
use evenkeel_http2::{
    Config, Connection, Event, Fields as H2Fields, Head, Next, Opening, Role, SensitiveParts,
};
use evenkeel_manager::config::MemberProtocol;
use evenkeel_manager::config::Protocol::Http;
use evenkeel_manager::config::sources::{Orca, Sources};
use evenkeel_proxy::access::End;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};

/// Runs `work` on a runtime of its own.
fn on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, work).await.unwrap()
}

/// A member that takes `most` streams in a connection, and serves each by `serve`, which gets the
/// number of the connection, too. It counts connections.
fn h2_member<F: Future<Output = ()> + 'static>(
    most: u32,
    connections: &Arc<AtomicUsize>,
    serve: impl Fn(usize, Request<RecvStream>, SendResponse<Bytes>) -> F + Send + 'static,
) -> SocketAddr {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(most);
    h2_member_of(builder, connections, serve)
}

/// Starts a member of HTTP/2 with these settings.
fn h2_member_of<F: Future<Output = ()> + 'static>(
    builder: h2::server::Builder,
    connections: &Arc<AtomicUsize>,
    serve: impl Fn(usize, Request<RecvStream>, SendResponse<Bytes>) -> F + Send + 'static,
) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let count = Arc::clone(connections);
    std::thread::spawn(move || {
        on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let serve = Rc::new(serve);
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let number = count.fetch_add(1, Ordering::SeqCst);
                let (serve, builder) = (Rc::clone(&serve), builder.clone());
                tokio::task::spawn_local(async move {
                    let mut connection = builder.handshake(socket).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        if request.uri().path() == "/goaway" {
                            connection.graceful_shutdown();
                        }
                        tokio::task::spawn_local(serve(number, request, respond));
                    }
                });
            }
        });
    });
    address
}

/// The whole body, and the trailers.
async fn body(stream: &mut RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        all.extend_from_slice(&data);
        stream.flow_control().release_capacity(data.len()).unwrap();
    }
    Ok((all, stream.trailers().await?))
}

fn status(status: u16) -> Response<()> {
    Response::builder().status(status).body(()).unwrap()
}

/// Answers as the path says; everything else with an echo, trailers included.
async fn answer(_: usize, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (parts, mut stream) = request.into_parts();
    match parts.uri.path() {
        "/204" => drop(respond.send_response(status(204), true)),
        "/empty" => drop(respond.send_response(status(200), true)),
        "/head" => {
            let mut head = status(200);
            head.headers_mut().insert("content-length", 10.into());
            drop(respond.send_response(head, true));
        }
        "/early" => {
            respond.send_informational(status(103)).unwrap();
            drop(respond.send_response(status(200), true));
        }
        "/reset" => {
            let mut out = respond.send_response(status(200), false).unwrap();
            out.send_data("half".into(), false).unwrap();
            stream.data().await;
            out.send_reset(Reason::INTERNAL_ERROR);
        }
        "/refuse" => respond.send_reset(Reason::REFUSED_STREAM),
        "/fields" => {
            let mut out = respond.send_response(status(200), false).unwrap();
            let mut text = format!("{} {}\n", parts.method, parts.uri);
            for (name, value) in &parts.headers {
                text += &format!("{name}: {}\n", value.to_str().unwrap());
            }
            out.send_data(text.into(), true).unwrap();
        }
        _ => {
            let (all, trailers) = body(&mut stream).await.unwrap();
            let mut head = status(200);
            let length = parts.headers.get("content-length").cloned();
            if let Some(length) = length {
                head.headers_mut().insert("content-length", length);
            }
            let mut out = respond.send_response(head, false).unwrap();
            out.send_data(all.into(), trailers.is_none()).unwrap();
            if let Some(trailers) = trailers {
                out.send_trailers(trailers).unwrap();
            }
        }
    }
}

fn bed_of(addresses: &[SocketAddr]) -> Bed {
    Bed::new(Http, addresses, |rule| {
        rule.http.member_protocol = MemberProtocol::Http2;
    })
}

async fn connect(bed: &Bed) -> SendRequest<Bytes> {
    let socket = tokio::net::TcpStream::connect(bed.address()).await.unwrap();
    let (send, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::task::spawn_local(connection);
    send.ready().await.unwrap()
}

fn request(method: &str, path: &str) -> Request<()> {
    let uri = format!("http://test{path}");
    Request::builder().method(method).uri(uri).body(()).unwrap()
}

#[test]
fn clients_of_http1_are_served() {
    let connections = Arc::default();
    let address = h2_member(100, &connections, answer);
    let bed = bed_of(&[address]);
    let mut client = bed.connect_client();
    let post = |path: &str, framing: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: test\r\n{framing}\r\n\r\n{body}")
    };
    for (request, status, framing, body) in [
        (get("/204"), 204, "", ""),
        (get("/empty"), 200, "content-length: 0\r\n", ""),
        (
            post("/", "Content-Length: 4", "body"),
            200,
            "content-length: 4\r\n",
            "body",
        ),
        (
            post("/", "Transfer-Encoding: chunked", "4\r\nbody\r\n0\r\n\r\n"),
            200,
            "transfer-encoding: chunked\r\n",
            "4\r\nbody\r\n0\r\n\r\n",
        ),
        (
            post(
                "/",
                "Transfer-Encoding: chunked",
                "4\r\nbody\r\n0\r\nDigest: y\r\n\r\n",
            ),
            200,
            "transfer-encoding: chunked\r\n",
            "4\r\nbody\r\n0\r\ndigest: y\r\n\r\n",
        ),
        (
            get("/head").replace("GET", "HEAD"),
            200,
            "content-length: 10\r\n",
            "",
        ),
    ] {
        let head = send_request(&mut client, &request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(head.to_ascii_lowercase().contains(framing), "{head}");
        expect(&mut client, body.as_bytes());
    }
    let early = send_request(&mut client, &get("/early"));
    assert!(early.starts_with("HTTP/1.1 103 "), "{early}");
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
    let totals = bed.rule_totals();
    assert_eq!(
        (totals.member_connects, totals.member_connections_reused),
        (1, 6)
    );
}

#[test]
fn a_member_gets_the_fields_of_http2() {
    let address = h2_member(100, &Arc::default(), answer);
    let bed = bed_of(&[address]);
    let mut client = bed.connect_client();
    let asks = "GET /fields?q HTTP/1.1\r\nHost: test\r\nConnection: TE, X-A, upgrade\r\nX-A: b\r\n\
        Upgrade: websocket\r\nTE: trailers\r\nX-Own: x\r\n\r\n";
    send_request(&mut client, asks);
    let mut found = String::new();
    while !found.ends_with("0\r\n\r\n") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut client, &mut byte).unwrap();
        found.push(byte[0].into());
    }
    let lines: Vec<_> = found.lines().skip(1).collect();
    assert_eq!(
        lines[..6],
        [
            "GET http://test/fields?q",
            "x-own: x",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-proto: http",
            "x-forwarded-host: test",
            "te: trailers",
        ]
    );
}

/// Sends and receives until `see` has seen what it waits for.
fn drive_until(
    stream: &mut TcpStream,
    connection: &mut Connection,
    mut see: impl FnMut(&mut Connection, Event) -> bool,
) {
    let mut bytes = [0; 4096];
    loop {
        let mut is_done = false;
        while let Some(event) = connection.next_event() {
            is_done |= see(connection, event);
        }
        let out = connection.pending_output().to_vec();
        connection.consume_output(out.len());
        stream.write_all(&out).unwrap();
        if is_done {
            return;
        }
        let n = stream.read(&mut bytes).unwrap();
        assert!(n > 0, "closed");
        let taken = connection.receive_bytes(&bytes[..n], Duration::ZERO);
        taken.unwrap();
    }
}

fn connection_of(role: Role) -> Connection {
    Connection::new(Config {
        role,
        max_streams: 20,
        max_head_bytes: 20_000,
        stream_window: 65_536,
        connection_window: 65_535,
    })
}

/// Two fields, of which the second is marked to be in no table.
fn marked_fields(names: [&str; 2]) -> H2Fields {
    let mut fields = H2Fields::new();
    for name in names {
        assert!(fields.push(name.as_bytes(), b"0"));
    }
    fields.mark_last_sensitive();
    fields
}

/// Names of the fields that are marked to be in no table.
fn marked_names(head: &Head) -> Vec<&str> {
    let marked = head.fields.marked().filter(|(_, _, is_marked)| *is_marked);
    marked.map(|(name, ..)| name).collect()
}

/// Marks of parts that are for no table pass with them in heads and trailers, in both directions
/// (RFC 7541, section 7.1.3).
#[test]
fn parts_that_are_for_no_table_stay_so() {
    const FIELDS: [&str; 2] = ["x-plain", "x-note"];
    const TRAILERS: [&str; 2] = ["grpc-status", "grpc-message"];
    let sensitive = SensitiveParts {
        path: true,
        authority: false,
    };
    let address = member(move |_, mut stream| {
        drive_until(
            &mut stream,
            &mut connection_of(Role::Server),
            |it, event| {
                let (Event::Request(key) | Event::Readable(key)) = event else {
                    return false;
                };
                if let Some(head) = it.take_head(key) {
                    assert_eq!(marked_names(&head), ["x-note"]);
                    assert_eq!(head.sensitive(), sensitive);
                }
                if let Next::Data(data) = it.read(key) {
                    let n = data.len();
                    it.consume_body(key, n);
                }
                let Some(trailers) = it.take_trailers(key) else {
                    return false;
                };
                assert_eq!(marked_names(&trailers), ["grpc-message"]);
                it.send_head(key, 200, &marked_fields(FIELDS), false)
                    .unwrap();
                it.send_trailers(key, &marked_fields(TRAILERS)).unwrap();
                // The last one ends with the client.
                key.id() == 7
            },
        );
    });
    let bed = bed_of(&[address]);
    let mut stream = bed.connect_client();
    let mut client = connection_of(Role::Client);
    let opening = Opening {
        method: b"POST",
        scheme: b"http",
        authority: Some(b"test"),
        path: b"/",
        sensitive,
        ..Opening::default()
    };
    // Values that come again would be in the table otherwise.
    for _ in 0..4 {
        let opened = client.open_request(opening, &marked_fields(FIELDS), false);
        let key = opened.unwrap();
        assert_eq!(client.send_data(key, b"content", false), Ok(7));
        client.send_trailers(key, &marked_fields(TRAILERS)).unwrap();
        drive_until(&mut stream, &mut client, |it, event| {
            let Event::Readable(key) = event else {
                return false;
            };
            if let Some(head) = it.take_head(key) {
                assert_eq!(marked_names(&head), ["x-note"]);
            }
            let Some(trailers) = it.take_trailers(key) else {
                return false;
            };
            assert_eq!(marked_names(&trailers), ["grpc-message"]);
            true
        });
    }
}

#[test]
fn many_requests_share_a_connection() {
    let connections = Arc::default();
    let address = h2_member(100, &connections, answer);
    let bed = bed_of(&[address]);
    let sent = byte_pattern(200_000);
    on(in_time(async {
        let mut client = connect(&bed).await;
        let mut waiting = Vec::new();
        for trailers in [false, true].repeat(15) {
            let (response, mut out) = client.send_request(request("POST", "/"), false).unwrap();
            out.send_data(sent.clone().into(), !trailers).unwrap();
            if trailers {
                let mut fields = HeaderMap::new();
                fields.insert("grpc-status", "0".parse().unwrap());
                out.send_trailers(fields).unwrap();
            }
            let sent = sent.clone();
            waiting.push(tokio::task::spawn_local(async move {
                let mut stream = response.await.unwrap().into_body();
                let (all, fields) = body(&mut stream).await.unwrap();
                assert!(all == sent);
                assert_eq!(fields.is_some_and(|f| f["grpc-status"] == "0"), trailers);
            }));
            client = client.ready().await.unwrap();
        }
        for read in waiting {
            read.await.unwrap();
        }
    }));
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    assert_eq!(bed.rule_totals().member_connects, 1);
}

#[test]
fn both_sides_send_at_once() {
    let address = h2_member(100, &Arc::default(), |_, request, mut respond| async move {
        let mut stream = request.into_body();
        let mut out = respond.send_response(status(200), false).unwrap();
        while let Some(Ok(data)) = stream.data().await {
            stream.flow_control().release_capacity(data.len()).unwrap();
            out.send_data(data, false).unwrap();
        }
        out.send_data(Bytes::new(), true).unwrap();
    });
    let bed = bed_of(&[address]);
    on(in_time(async {
        let mut client = connect(&bed).await;
        let (response, mut out) = client.send_request(request("POST", "/"), false).unwrap();
        let mut stream = response.await.unwrap().into_body();
        for n in 0..10 {
            out.send_data(format!("message {n}").into(), false).unwrap();
            let answer = stream.data().await.unwrap().unwrap();
            assert_eq!(answer, format!("message {n}"));
            stream
                .flow_control()
                .release_capacity(answer.len())
                .unwrap();
        }
        out.send_data(Bytes::new(), true).unwrap();
        assert_eq!(body(&mut stream).await.unwrap().0, b"");
    }));
    assert_eq!(bed.next_record().end, End::Complete);
}

#[test]
fn a_member_that_takes_few_streams_gets_more_connections() {
    let connections = Arc::default();
    let (go, wait) = tokio::sync::watch::channel(false);
    let (started, count) = tokio::sync::mpsc::unbounded_channel();
    let address = h2_member(2, &connections, move |_, _, mut respond| {
        let (mut wait, started) = (wait.clone(), started.clone());
        async move {
            started.send(()).unwrap();
            wait.wait_for(|go| *go).await.unwrap();
            drop(respond.send_response(status(204), true));
        }
    });
    let bed = bed_of(&[address]);
    on(in_time(async {
        let mut count = count;
        let mut client = connect(&bed).await;
        // The member has said how many it takes when the first one is there.
        let mut waiting = Vec::new();
        for _ in 0..6 {
            let (response, _) = client.send_request(request("GET", "/"), true).unwrap();
            waiting.push(response);
            client = client.ready().await.unwrap();
            count.recv().await.unwrap();
        }
        go.send(true).unwrap();
        for response in waiting {
            assert_eq!(response.await.unwrap().status(), 204);
        }
    }));
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

#[test]
fn a_request_that_was_not_processed_is_sent_to_another_member() {
    let refuses = h2_member(100, &Arc::default(), |_, _, mut respond| async move {
        respond.send_reset(Reason::REFUSED_STREAM);
    });
    let works = h2_member(100, &Arc::default(), answer);
    let bed = bed_of(&[refuses, works]);
    for _ in 0..10 {
        let mut client = bed.connect_client();
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
        assert!(send_request(&mut client, post).starts_with("HTTP/1.1 200 "));
        expect(&mut client, b"hi");
    }
    assert!(bed.rule_totals().retries > 0);
}

/// All of the body has come with the head, so that it can be sent again.
#[test]
fn a_small_body_without_a_length_is_sent_to_another_member() {
    let refuses = h2_member(100, &Arc::default(), |_, _, mut respond| async move {
        respond.send_reset(Reason::REFUSED_STREAM);
    });
    let works = h2_member(100, &Arc::default(), answer);
    let bed = bed_of(&[refuses, works]);
    let head = fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", "/"),
    ]);
    for _ in 0..10 {
        let mut client = connect_raw(&bed);
        let head = frame(HEADERS, END_HEADERS, 1, &head);
        let sent = [head, frame(0, END_STREAM, 1, b"hi")].concat();
        client.write_all(&sent).unwrap();
        let (kind, _, payload) = until_frame(&mut client, &[0, RST_STREAM]).unwrap();
        assert_eq!((kind, &payload[..]), (0, &b"hi"[..]));
    }
    assert!(bed.rule_totals().retries > 0);
}

#[test]
fn after_a_goaway_there_is_a_new_connection() {
    let connections = Arc::default();
    let address = h2_member(100, &connections, answer);
    let bed = bed_of(&[address]);
    let mut client = bed.connect_client();
    for _ in 0..5 {
        for path in ["/empty", "/goaway", "/empty"] {
            let head = send_request(&mut client, &get(path));
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            if path == "/goaway" {
                expect(&mut client, b"0\r\n\r\n");
            }
        }
    }
    assert!(connections.load(Ordering::SeqCst) > 1);
}

#[test]
fn a_response_that_is_reset_is_cut() {
    let address = h2_member(100, &Arc::default(), answer);
    let bed = bed_of(&[address]);
    let mut client = bed.connect_client();
    let post = "POST /reset HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n";
    assert!(send_request(&mut client, post).starts_with("HTTP/1.1 200 "));
    expect(&mut client, b"4\r\nhalf\r\n");
    client.write_all(b"hi").unwrap();
    assert!(is_cut(&mut client));
    assert_eq!(bed.next_record().end, End::Member);
}

#[test]
fn a_member_that_speaks_something_else_is_a_failure() {
    let address = http_member(|_| ok("x"));
    let bed = bed_of(&[address]);
    let head = send_request(&mut bed.connect_client(), &get("/"));
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    let bed = bed_of(&[closed_address()]);
    let head = send_request(&mut bed.connect_client(), &get("/"));
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
}

fn call(path: &str) -> Request<()> {
    let mut request = request("POST", path);
    let media_type = "application/grpc".parse().unwrap();
    request.headers_mut().insert("content-type", media_type);
    request
}

#[test]
fn calls_of_grpc_get_its_statuses() {
    let bed = bed_of(&[closed_address()]);
    on(in_time(async {
        let mut client = connect(&bed).await;
        let (response, _out) = client.send_request(call("/"), false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let fields = response.headers();
        assert_eq!(fields["content-type"], "application/grpc");
        assert_eq!(fields["grpc-status"], "14");
        assert_eq!(fields["grpc-message"], "The server could not be reached.");
        assert!(response.body().is_end_stream());
    }));
    assert_eq!(bed.next_record().status, Some(502));
}

#[test]
fn the_time_of_a_call_is_a_deadline() {
    let address = h2_member(
        100,
        &Arc::default(),
        |_, mut request, _respond| async move {
            // Until it is given up.
            while let Some(Ok(_)) = request.body_mut().data().await {}
        },
    );
    let bed = bed_of(&[address, address]);
    on(in_time(async {
        let mut client = connect(&bed).await;
        let mut request = call("/");
        let timeout = "50m".parse().unwrap();
        request.headers_mut().insert("grpc-timeout", timeout);
        let (response, _out) = client.send_request(request, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "4");
    }));
    let record = bed.next_record();
    assert_eq!((record.end, record.retries), (End::MemberTimeout, 0));
}

#[test]
fn a_response_that_does_not_end_in_time_is_reset_on_both_sides() {
    let (report, resets) = std::sync::mpsc::channel();
    let address = h2_member(100, &Arc::default(), move |_, _, mut respond| {
        let report = report.clone();
        async move {
            let mut out = respond.send_response(status(200), false).unwrap();
            // More often than anybody looks at the time.
            while out.send_data("x".into(), false).is_ok() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            report.send(()).unwrap();
        }
    });
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.member_protocol = MemberProtocol::Http2;
        rule.timeouts.request = Some(Duration::from_millis(1500));
    });
    on(in_time(async {
        let mut client = connect(&bed).await;
        let (response, _) = client.send_request(request("GET", "/"), true).unwrap();
        let mut response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(body(response.body_mut()).await.unwrap_err().is_reset());
    }));
    resets.recv_timeout(HANG).unwrap();
    assert_eq!(bed.next_record().end, End::MemberTimeout);
}

#[test]
fn statuses_and_load_reports_in_trailers_count() {
    let address = h2_member(100, &Arc::default(), |_, request, mut respond| async move {
        let status = request.uri().path()[1..].to_owned();
        let mut out = respond.send_response(self::status(200), false).unwrap();
        out.send_data("message".into(), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        let report = "TEXT cpu_utilization=0.25".parse().unwrap();
        trailers.insert("endpoint-load-metrics", report);
        out.send_trailers(trailers).unwrap();
    });
    let sources = Sources {
        orca: Some(Orca::default().into()),
        ..Sources::default()
    };
    let mut bed = Bed::with_sources(Http, &[address], sources);
    bed.apply_change(|rule| rule.http.member_protocol = MemberProtocol::Http2);
    on(in_time(async {
        let mut client = connect(&bed).await;
        // Of several failures in a row, and a status that is not the member's fault.
        for (status, failures) in [("14", 1), ("14", 2), ("5", 0)] {
            let path = format!("/{status}");
            let (response, _out) = client.send_request(call(&path), false).unwrap();
            let mut stream = response.await.unwrap().into_body();
            let (all, trailers) = body(&mut stream).await.unwrap();
            assert_eq!(all, b"message");
            let trailers = trailers.unwrap();
            assert_eq!(trailers["grpc-status"], status);
            assert!(!trailers.contains_key("endpoint-load-metrics"));
            while bed.in_flight() > 0 {
                tokio::task::yield_now().await;
            }
            let group = bed.group.current.load();
            let member = &group.members()[0];
            assert_eq!(member.slot.consecutive_failures(), failures);
            let cpu = member
                .location
                .last_load(LoadId::CPU, Instant::ZERO)
                .unwrap();
            assert_eq!(cpu.value.get(), 0.25);
            client = client.ready().await.unwrap();
        }
    }));
}

/// Requests that HTTP/1.1 takes, and the library for HTTP/2 does not.
#[test]
fn http_d5_what_http2_cannot_say_is_encoded_or_refused_and_no_fault_of_the_member() {
    let address = h2_member(100, &Arc::default(), |_, request, mut respond| async move {
        let mut out = respond.send_response(status(200), false).unwrap();
        out.send_data(request.uri().to_string().into(), true)
            .unwrap();
    });
    let bed = bed_of(&[address]);
    for (path, target) in [
        (
            r#"/a?filter={"a":"b"}"#,
            "http://test/a?filter={%22a%22:%22b%22}",
        ),
        ("/<a>`?<b>`", "http://test/%3Ca%3E%60?%3Cb%3E%60"),
        ("/a%22\"?b", "http://test/a%22%22?b"),
    ] {
        let mut client = bed.connect_client();
        let head = send_request(
            &mut client,
            &format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"),
        );
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let chunk = format!("{:x}\r\n{target}\r\n", target.len());
        expect(&mut client, chunk.as_bytes());
        bed.next_record();
    }
    let mut client = bed.connect_client();
    let head = send_request(&mut client, "GET / HTTP/1.1\r\nHost: a%20b\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let record = bed.next_record();
    assert_eq!((record.end, record.retries), (End::Client, 0));
    let group = bed.group.current.load();
    assert_eq!(group.members()[0].slot.consecutive_failures(), 0);
}

/// A member that takes WebSocket, and sends back what it gets; `/403` it refuses.
fn websocket_member() -> SocketAddr {
    let mut builder = h2::server::Builder::new();
    builder.enable_connect_protocol();
    h2_member_of(
        builder,
        &Arc::default(),
        |_, request, mut respond| async move {
            let (parts, mut stream) = request.into_parts();
            let protocol = parts.extensions.get::<h2::ext::Protocol>();
            let protocol = protocol.map(|protocol| protocol.as_str().to_owned());
            if parts.uri.path() == "/403" {
                drop(respond.send_response(status(403), true));
                return;
            }
            assert_eq!(
                (parts.method.as_str(), protocol.as_deref()),
                ("CONNECT", Some("websocket"))
            );
            assert_eq!(parts.uri, "http://test/chat?q");
            for name in [
                "upgrade",
                "connection",
                "sec-websocket-key",
                "content-length",
            ] {
                assert!(!parts.headers.contains_key(name), "{name}");
            }
            assert_eq!(parts.headers["sec-websocket-version"], "13");
            let mut head = status(200);
            let protocol = "chat".parse().unwrap();
            head.headers_mut()
                .insert("sec-websocket-protocol", protocol);
            let mut out = respond.send_response(head, false).unwrap();
            out.send_data("hello".into(), false).unwrap();
            while let Some(Ok(data)) = stream.data().await {
                stream.flow_control().release_capacity(data.len()).unwrap();
                out.send_data(data, false).unwrap();
            }
            out.send_data(Bytes::new(), true).unwrap();
        },
    )
}

fn upgrade(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
}

#[test]
fn websocket_of_http1_becomes_a_stream() {
    let bed = bed_of(&[websocket_member()]);
    for _ in 0..2 {
        let mut client = bed.connect_client();
        // What comes right behind the head waits for the switch.
        let head = send_request(&mut client, &(upgrade("/chat?q") + " there"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let lower = head.to_ascii_lowercase();
        for line in [
            "upgrade: websocket\r\n",
            "connection: upgrade\r\n",
            "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n",
            "sec-websocket-protocol: chat\r\n",
        ] {
            assert!(lower.contains(line), "{head}");
        }
        expect(&mut client, b"hello there");
        client.write_all(b", and more").unwrap();
        expect(&mut client, b", and more");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(std::io::Read::read(&mut client, &mut [0]).unwrap(), 0);
        let record = bed.next_record();
        assert_eq!((record.end, record.status), (End::Complete, Some(101)));
    }
    let head = send_request(&mut bed.connect_client(), &upgrade("/403"));
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert_eq!(bed.rule_totals().member_connects, 1);
}

#[test]
fn websocket_of_http2_is_a_stream_on_both_sides() {
    let bed = bed_of(&[websocket_member()]);
    on(in_time(async {
        let mut client = connect(&bed).await;
        while !client.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        for (path, status) in [("/chat?q", 200), ("/403", 403)] {
            let mut connect = request("CONNECT", path);
            let websocket = h2::ext::Protocol::from_static("websocket");
            connect.extensions_mut().insert(websocket);
            let version = "13".parse().unwrap();
            let fields = connect.headers_mut();
            fields.insert("sec-websocket-version", version);
            let (response, mut stream) = client.send_request(connect, false).unwrap();
            let mut response = response.await.unwrap();
            assert_eq!(response.status(), status);
            assert!(!response.headers().contains_key("sec-websocket-accept"));
            if status == 200 {
                stream.send_data(" there".into(), true).unwrap();
                let (all, _) = body(response.body_mut()).await.unwrap();
                assert_eq!(all, b"hello there");
            }
            client = client.ready().await.unwrap();
        }
    }));
    assert_eq!(bed.next_record().end, End::Complete);
}

#[test]
fn websocket_is_refused_where_the_settings_do_not_allow_it() {
    let unable = h2_member(100, &Arc::default(), answer);
    let bed = bed_of(&[unable]);
    // With a connection that is new, and with one that was used.
    for _ in 0..2 {
        let mut client = bed.connect_client();
        let head = send_request(&mut client, &upgrade("/chat?q"));
        assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
        expect(&mut client, b"The server takes no WebSocket over HTTP/2.\n");
        let record = bed.next_record();
        assert_eq!((record.end, record.status), (End::Refused, Some(501)));
        let head = send_request(&mut bed.connect_client(), &get("/empty"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(bed.next_record().end, End::Complete);
    }
    let totals = bed.rule_totals();
    assert_eq!(
        (totals.refused_no_websocket, totals.member_failures),
        (2, 0)
    );
    // Another member may be able to.
    let bed = bed_of(&[unable, websocket_member()]);
    for _ in 0..8 {
        let mut client = bed.connect_client();
        let head = send_request(&mut client, &upgrade("/chat?q"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        expect(&mut client, b"hello");
    }
    // What is no proper handshake is a request like any other.
    let bed = bed_of(&[unable]);
    let head = upgrade("/empty").replace("dGhl", "");
    assert!(send_request(&mut bed.connect_client(), &head).starts_with("HTTP/1.1 200 "));
}

#[test]
fn websocket_to_who_does_not_speak_http2_is_a_failure() {
    let bed = bed_of(&[http_member(|_| ok("x"))]);
    let head = send_request(&mut bed.connect_client(), &upgrade("/"));
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
}

/// A member that closes each connection when the second request comes, as one does that closes
/// what was idle for too long just then.
fn closing_member(connections: &Arc<AtomicUsize>) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let count = Arc::clone(connections);
    std::thread::spawn(move || {
        on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let mut connection = h2::server::handshake(socket).await.unwrap();
                let (_, mut respond) = connection.accept().await.unwrap().unwrap();
                respond.send_response(status(204), true).unwrap();
                // Nothing of the second one is answered.
                let _second = connection.accept().await;
            }
        });
    });
    address
}

#[test]
fn a_connection_that_was_idle_and_closes_is_replaced() {
    let connections = Arc::default();
    let bed = bed_of(&[closing_member(&connections)]);
    for _ in 0..6 {
        let head = send_request(&mut bed.connect_client(), &get("/"));
        assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
        assert_eq!(bed.next_record().retries, 0);
    }
    assert!(connections.load(Ordering::SeqCst) > 3);
    // What may have been processed is not sent twice, and is no failure of the member.
    let bed = bed_of(&[closing_member(&connections)]);
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    assert!(send_request(&mut bed.connect_client(), post).starts_with("HTTP/1.1 204 "));
    assert!(send_request(&mut bed.connect_client(), post).starts_with("HTTP/1.1 502 "));
    let ends = [bed.next_record().end, bed.next_record().end];
    assert!(ends.contains(&End::Stale), "{ends:?}");
    assert_eq!(bed.rule_totals().member_failures, 0);
}

/// A member whose first connection takes one request, says goodbye, and tells `ended` how the connection has ended. The
/// goodbye comes when the member has its answer, or, if `is_idle`, with the next request. Other connections answer all.
fn leaving_member(is_idle: bool, ended: Sender<bool>) -> SocketAddr {
    let ended = std::sync::Mutex::new(ended);
    member(move |number, mut stream| {
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface).unwrap();
        stream.write_all(&frame(4, 0, 0, &[])).unwrap();
        let goodbye = frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
        while let Some((_, of, _)) = until_frame(&mut stream, &[HEADERS]) {
            let head = fields(&[(":status", "204")]);
            let answer = frame(HEADERS, END_STREAM | END_HEADERS, of, &head);
            let leaves = number == 0 && is_idle == (of > 1);
            let out = match (leaves, is_idle) {
                (false, _) => answer,
                (true, true) => goodbye.clone(),
                (true, false) => [goodbye.clone(), answer].concat(),
            };
            stream.write_all(&out).unwrap();
            if leaves {
                let mut rest = Vec::new();
                let is_closed = stream.read_to_end(&mut rest).is_ok();
                let _ = ended.lock().unwrap().send(is_closed);
                return;
            }
        }
    })
}

fn leaving_bed(is_idle: bool, ended: Sender<bool>) -> Bed {
    Bed::new(Http, &[leaving_member(is_idle, ended)], |rule| {
        rule.http.member_protocol = MemberProtocol::Http2;
        rule.http.retries = 0;
        // Nothing but the goodbye ends the connection.
        rule.http.ping_interval = 10 * HANG;
        rule.http.pool_idle_timeout = 10 * HANG;
    })
}

/// A goodbye that crosses the first request after a pause is no failure: the request goes over a new connection.
#[test]
fn a_goodbye_to_the_first_request_after_a_pause_costs_no_retry() {
    let (ended, ends) = std::sync::mpsc::channel();
    let bed = leaving_bed(true, ended);
    for _ in 0..3 {
        let head = send_request(&mut bed.connect_client(), &get("/"));
        assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
        assert_eq!(bed.next_record().retries, 0);
    }
    let totals = bed.rule_totals();
    assert_eq!((totals.member_connects, totals.member_failures), (2, 0));
    assert!(ends.recv_timeout(2 * HANG).unwrap());
}

/// The last request of a connection ends it, if the member has said goodbye.
#[test]
fn a_connection_ends_with_its_last_request_after_a_goodbye() {
    let (ended, ends) = std::sync::mpsc::channel();
    let bed = leaving_bed(false, ended);
    let head = send_request(&mut bed.connect_client(), &get("/"));
    assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
    assert!(ends.recv_timeout(2 * HANG).unwrap());
}

/// A member that answers the second request with `bad(stream)`, and the first one when it is told of the error. It tells
/// `begun` of each.
fn raw_member(
    begun: Sender<()>,
    bad: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static,
) -> SocketAddr {
    let begun = std::sync::Mutex::new(begun);
    member(move |_, mut stream| {
        let mut preface = [0; PREFACE.len()];
        if stream.read_exact(&mut preface).is_err() {
            return;
        }
        stream.write_all(&frame(4, 0, 0, &[])).unwrap();
        // Streams whose requests have begun, in the order of their numbers.
        let mut waiting = Vec::new();
        while let Some((kind, of, _)) = next_frame(&mut stream) {
            match kind {
                HEADERS => {
                    waiting.push(of);
                    let _ = begun.lock().unwrap().send(());
                }
                _ => continue,
            }
            if let [good, last] = waiting[..] {
                if stream.write_all(&bad(last)).is_err() {
                    return;
                }
                while let Some((kind, of, _)) = next_frame(&mut stream) {
                    if kind == GOAWAY {
                        return;
                    }
                    if kind == RST_STREAM && of == last {
                        break;
                    }
                }
                let head = fields(&[(":status", "204")]);
                let head = frame(HEADERS, END_STREAM | END_HEADERS, good, &head);
                if stream.write_all(&head).is_err() {
                    return;
                }
                waiting.clear();
            }
        }
    })
}

/// Whatever a member says in one stream, a request in another one of the connection is answered.
#[test]
fn http_d3_c_a_malformed_response_is_an_error_of_its_stream() {
    let begin = |stream: u32| frame(HEADERS, END_HEADERS, stream, &fields(&[(":status", "200")]));
    for (why, block, is_trailers) in [
        ("capital", fields(&[(":status", "200"), ("X", "y")]), false),
        ("blank", fields(&[(":status", "200"), ("x y", "z")]), false),
        ("NUL", fields(&[(":status", "200"), ("x", "\0")]), false),
        ("LF", fields(&[(":status", "200"), ("x", "a\nb")]), false),
        ("unknown", fields(&[(":status", "200"), (":x", "y")]), false),
        ("no number", fields(&[(":status", "abc")]), false),
        ("no status", fields(&[("x", "y")]), false),
        ("trailer with a capital", fields(&[("X", "y")]), true),
        ("trailer with LF", fields(&[("x", "a\nb")]), true),
        (
            "pseudo-field as a trailer",
            fields(&[(":status", "200")]),
            true,
        ),
    ] {
        let (begun, begins) = std::sync::mpsc::channel();
        let address = raw_member(begun, move |stream| {
            let mut out = Vec::new();
            if is_trailers {
                out.extend(begin(stream));
            }
            out.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &block));
            out
        });
        let bed = Bed::new(Http, &[address], |rule| {
            rule.http.member_protocol = MemberProtocol::Http2;
            rule.http.retries = 0;
        });
        on(in_time(async {
            let mut client = connect(&bed).await;
            let (good, _body) = client.send_request(request("POST", "/"), false).unwrap();
            while begins.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            let (bad, _) = client.send_request(request("GET", "/bad"), true).unwrap();
            assert_eq!(good.await.unwrap().status(), 204, "{why}");
            match bad.await {
                // If nothing of it has been passed on, the answer is a 502.
                Ok(response) if is_trailers && response.status() == 200 => {
                    let mut stream = response.into_body();
                    let broken = body(&mut stream).await.unwrap_err();
                    assert_eq!(broken.reason(), Some(Reason::INTERNAL_ERROR), "{why}");
                }
                bad => assert_eq!(bad.unwrap().status(), 502, "{why}"),
            }
        }));
        assert_eq!(bed.rule_totals().member_connects, 1, "{why}");
    }
}
