//! HTTP/2 from clients, to members that speak HTTP/1.1.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::*;
use bytes::Bytes;
use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_manager::config::MaxBody;
use evenkeel_manager::config::Protocol::Http;
use evenkeel_proxy::access::{CallStatus, End};
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};

/// A connection of HTTP/2 to the proxy, driven by a task.
async fn connect(bed: &Bed) -> SendRequest<Bytes> {
    connect_with(bed, &mut h2::client::Builder::new()).await
}

async fn connect_with(bed: &Bed, builder: &mut h2::client::Builder) -> SendRequest<Bytes> {
    let socket = tokio::net::TcpStream::connect(bed.address()).await.unwrap();
    let (send, connection) = builder.handshake(socket).await.unwrap();
    tokio::task::spawn_local(connection);
    send.ready().await.unwrap()
}

/// Runs a test, which hangs if it takes too long.
fn on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        tokio::time::timeout(HANG, test).await.unwrap()
    })
}

fn request(method: &str, path: &str) -> Request<()> {
    let uri = format!("http://test{path}");
    Request::builder().method(method).uri(uri).body(()).unwrap()
}

/// Sends a request without a body and reads the head of the answer.
async fn ask(client: &mut SendRequest<Bytes>, request: Request<()>) -> Response<RecvStream> {
    let (response, _) = client.send_request(request, true).unwrap();
    response.await.unwrap()
}

/// The body and the trailers.
async fn body(mut stream: RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        all.extend_from_slice(&data);
        stream.flow_control().release_capacity(data.len()).unwrap();
    }
    Ok((all, stream.trailers().await?))
}

async fn text(response: Response<RecvStream>) -> (u16, String) {
    let status = response.status().as_u16();
    let (body, _) = body(response.into_body()).await.unwrap();
    (status, String::from_utf8(body).unwrap())
}

fn path_of(head: &str) -> String {
    head.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// A member that reads a request with its body and answers with `answer(head, body)`.
fn reader(answer: impl Fn(&str, &[u8]) -> Vec<u8> + Send + Sync + 'static) -> std::net::SocketAddr {
    member(move |_, mut stream| {
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() {
                return;
            }
            let lower = head.to_ascii_lowercase();
            let mut body = Vec::new();
            if let Some((_, rest)) = lower.split_once("content-length: ") {
                let length = rest.split("\r\n").next().unwrap().parse().unwrap();
                body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
            } else if lower.contains("transfer-encoding: chunked") {
                let mut byte = [0];
                while !body.ends_with(b"0\r\n\r\n") && !body.ends_with(b"x: y\r\n\r\n") {
                    stream.read_exact(&mut byte).unwrap();
                    body.push(byte[0]);
                }
            }
            if stream.write_all(&answer(&head, &body)).is_err() {
                return;
            }
        }
    })
}

#[test]
fn each_stream_is_a_request_of_its_own() {
    let address = http_member(|head| ok(path_of(head)));
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        let mut waiting = Vec::new();
        for n in 0..50 {
            let request = request("GET", &format!("/{n}"));
            waiting.push((n, client.send_request(request, true).unwrap().0));
            client = client.ready().await.unwrap();
        }
        for (n, response) in waiting {
            assert_eq!(text(response.await.unwrap()).await, (200, format!("/{n}")));
        }
    });
    (0..50).for_each(|_| assert_eq!(bed.next_record().end, End::Complete));
    let totals = bed.rule_totals();
    assert_eq!((totals.requests, totals.responses_2xx), (50, 50));
    assert_eq!((totals.connections, totals.http2_connections), (1, 1));
    bed.wait_until_idle();
}

#[test]
fn a_member_gets_the_request_that_it_would_get_over_http1() {
    let address = http_member(|head| ok(head));
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.via = Some("edge".into());
    });
    let head = on(async {
        let mut client = connect(&bed).await;
        let mut request = request("GET", "/a?b=c");
        let fields = request.headers_mut();
        fields.insert("te", "trailers".parse().unwrap());
        fields.insert("x-forwarded-for", "6.6.6.6".parse().unwrap());
        fields.append("cookie", "a=1".parse().unwrap());
        fields.append("x-own", "x y".parse().unwrap());
        fields.append("cookie", "b=2".parse().unwrap());
        text(ask(&mut client, request).await).await.1
    });
    assert_eq!(
        head,
        "GET /a?b=c HTTP/1.1\r\nhost: test\r\ncookie: a=1; b=2\r\nx-own: x y\r\n\
         TE: trailers\r\nConnection: TE\r\nX-Forwarded-For: 127.0.0.1\r\n\
         X-Forwarded-Proto: http\r\nX-Forwarded-Host: test\r\nVia: 2.0 edge\r\n\r\n"
    );
}

#[test]
fn bodies_and_trailers_pass_both_ways() {
    let address = reader(|head, body| {
        let mut answer = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Chunked: {}\r\n\r\n",
            head.contains("chunked")
        )
        .into_bytes();
        for part in body.chunks(10_000) {
            answer.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            answer.extend_from_slice(part);
            answer.extend_from_slice(b"\r\n");
        }
        answer.extend_from_slice(b"0\r\nServer-Timing: a\r\ngrpc-status: 7\r\n\r\n");
        answer
    });
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.request_trailers = vec!["X".into()];
    });
    let sent = byte_pattern(300_000);
    on(async {
        let mut client = connect(&bed).await;
        for (chunked, trailers) in [(false, false), (true, false), (true, true)] {
            let mut post = request("POST", "/");
            if !chunked {
                post.headers_mut()
                    .insert("content-length", sent.len().into());
            }
            let (response, mut stream) = client.send_request(post, false).unwrap();
            stream.send_data(sent.clone().into(), !trailers).unwrap();
            if trailers {
                let mut fields = HeaderMap::new();
                fields.insert("x", "y".parse().unwrap());
                stream.send_trailers(fields).unwrap();
            }
            let response = response.await.unwrap();
            assert_eq!(response.headers()["x-chunked"], chunked.to_string());
            assert!(!response.headers().contains_key("transfer-encoding"));
            let (found, fields) = body(response.into_body()).await.unwrap();
            if chunked {
                let end: &[u8] = if trailers {
                    b"0\r\nx: y\r\n\r\n"
                } else {
                    b"0\r\n\r\n"
                };
                assert!(found.ends_with(end));
                assert!(found.len() > sent.len() + end.len());
            } else {
                assert!(found == sent);
            }
            let fields = fields.unwrap();
            assert_eq!(fields["server-timing"], "a");
            assert_eq!(fields["grpc-status"], "7");
            client = client.ready().await.unwrap();
        }
    });
    assert_eq!(bed.next_record().bytes_received, 300_000);
}

/// In the head of a response without messages, or in trailers after them.
#[test]
fn a_call_of_grpc_is_logged_and_counted_with_its_status() {
    let address = reader(|head, _| {
        let head_of = |more: &str| {
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\n{more}\r\n").into_bytes()
        };
        let chunked = "Transfer-Encoding: chunked\r\n";
        let trailers = |end: &str| {
            let body = format!("5\r\nhello\r\n0\r\n{end}\r\n");
            [head_of(chunked), body.into_bytes()].concat()
        };
        match path_of(head).as_str() {
            "/head" => head_of("grpc-status: 12\r\nContent-Length: 0\r\n"),
            "/trailers" => trailers("grpc-status: 7\r\n"),
            "/odd" => trailers("grpc-status: 99\r\n"),
            "/none" => trailers(""),
            "/ok" => trailers("grpc-status: 0\r\n"),
            _ => b"nonsense\r\n\r\n".to_vec(),
        }
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        for (path, status) in [
            ("/head", Some("UNIMPLEMENTED")),
            ("/trailers", Some("PERMISSION_DENIED")),
            ("/odd", Some("other")),
            ("/none", None),
            ("/ok", Some("OK")),
            ("/nonsense", Some("UNAVAILABLE")),
        ] {
            let mut call = request("POST", path);
            let media_type = "application/grpc".parse().unwrap();
            call.headers_mut().insert("content-type", media_type);
            let response = ask(&mut client, call).await;
            assert_eq!(response.status(), 200, "{path}");
            let _ = body(response.into_body()).await;
            let record = bed.next_record();
            let found = record.grpc_status.map(CallStatus::name);
            assert_eq!(
                (found, record.status),
                (status, Some(if path == "/nonsense" { 502 } else { 200 })),
                "{path}"
            );
        }
        // No call.
        text(ask(&mut client, request("GET", "/ok")).await).await;
    });
    assert_eq!(bed.next_record().grpc_status, None);
    let counts: Vec<_> = bed
        .rule_totals()
        .calls
        .counts_by_status()
        .filter(|(_, count)| *count > 0)
        .collect();
    let wanted = [
        ("OK", 1),
        ("PERMISSION_DENIED", 1),
        ("UNIMPLEMENTED", 1),
        ("UNAVAILABLE", 1),
        ("other", 2),
    ];
    assert_eq!(counts, wanted);
}

#[test]
fn responses_without_a_body_or_a_length_end() {
    let address = member(|_, mut stream| {
        let head = read_head(&mut stream);
        let answer: &[u8] = match path_of(&head).as_str() {
            "/head" => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
            "/204" => b"HTTP/1.1 204 No Content\r\n\r\n",
            "/304" => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n",
            "/0" => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "/chunks" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            _ => b"HTTP/1.1 200 OK\r\nConnection: close, X-A\r\nX-A: b\r\n\r\nto the end",
        };
        stream.write_all(answer).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        for (method, path, status, content) in [
            ("HEAD", "/head", 200, ""),
            ("GET", "/204", 204, ""),
            ("GET", "/304", 304, ""),
            ("GET", "/0", 200, ""),
            ("GET", "/chunks", 200, ""),
            ("GET", "/close", 200, "to the end"),
        ] {
            let response = ask(&mut client, request(method, path)).await;
            let fields = response.headers().clone();
            assert!(!fields.contains_key("connection") && !fields.contains_key("x-a"));
            assert_eq!(text(response).await, (status, content.into()), "{path}");
            client = client.ready().await.unwrap();
        }
    });
}

#[test]
fn interim_responses_come_first() {
    let address = member(|_, mut stream| {
        let head = read_head(&mut stream);
        assert!(head.contains("expect: 100-continue"), "{head}");
        let early = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
        stream.write_all(early).unwrap();
        expect(&mut stream, b"body");
        stream.write_all(&ok("done")).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        let mut post = request("POST", "/");
        post.headers_mut().insert("content-length", 4.into());
        post.headers_mut()
            .insert("expect", "100-continue".parse().unwrap());
        let (mut response, mut stream) = client.send_request(post, false).unwrap();
        for status in [103, 100] {
            let next = std::future::poll_fn(|cx| response.poll_informational(cx)).await;
            assert_eq!(next.unwrap().unwrap().status(), status);
        }
        stream.send_data("body".into(), true).unwrap();
        assert_eq!(text(response.await.unwrap()).await, (200, "done".into()));
    });
}

#[test]
fn the_proxy_answers_for_members_that_cannot() {
    let bed = Bed::new(Http, &[closed_address()], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        let (status, why) = text(ask(&mut client, request("GET", "/")).await).await;
        assert_eq!(
            (status, why.trim()),
            (502, "The server could not be reached.")
        );
        set_down(&bed, 0, true);
        let response = ask(&mut client, request("GET", "/")).await;
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(text(response).await.0, 503);
        let response = ask(&mut client, request("HEAD", "/")).await;
        assert_eq!(text(response).await, (503, String::new()));
    });
    assert_eq!(bed.next_record().status, Some(502));
    assert_eq!(bed.rule_totals().refused_no_member, 2);
}

#[test]
fn a_request_is_tried_again_elsewhere() {
    let breaks = member(|_, mut stream| drop(read_head(&mut stream)));
    let works = http_member(|_| ok("here"));
    let bed = Bed::new(Http, &[breaks, works], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        for _ in 0..10 {
            let answer = text(ask(&mut client, request("GET", "/")).await).await;
            assert_eq!(answer, (200, "here".into()));
            client = client.ready().await.unwrap();
        }
    });
}

#[test]
fn a_response_that_breaks_off_is_reset() {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let address = member(move |_, mut stream| {
        read_head(&mut stream);
        let half = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
        stream.write_all(half).unwrap();
        wait.lock().unwrap().recv().unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        let response = ask(&mut client, request("GET", "/")).await;
        go.send(()).unwrap();
        let broken = body(response.into_body()).await.unwrap_err();
        assert_eq!(broken.reason(), Some(Reason::INTERNAL_ERROR));
        // The connection goes on.
        assert!(client.ready().await.is_ok());
    });
    assert_eq!(bed.next_record().end, End::Member);
    assert_eq!(bed.rule_totals().member_failures, 1);
}

#[test]
fn a_client_that_gives_up_frees_its_member() {
    let (told, cut) = channel();
    let (got, head) = channel();
    let address = member(move |_, mut stream| {
        read_head(&mut stream);
        got.send(()).unwrap();
        told.send(is_cut(&mut stream)).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        let (response, mut stream) = client.send_request(request("POST", "/"), false).unwrap();
        // Before that the request is in flight already, and the member may never hear of it.
        while head.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        stream.send_reset(Reason::CANCEL);
        drop(response);
        while bed.in_flight() == 1 {
            tokio::task::yield_now().await;
        }
    });
    assert!(cut.recv_timeout(HANG).unwrap());
    assert_eq!(bed.next_record().end, End::Client);
    assert_eq!(bed.rule_totals().client_aborts, 1);
}

/// A member's bytes stop when their client takes no more, and only in that stream.
#[test]
fn a_slow_stream_holds_up_its_member_and_no_other_stream() {
    let written = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&written);
    let address = member(move |_, mut stream| {
        let head = read_head(&mut stream);
        if path_of(&head) == "/small" {
            return stream.write_all(&ok("small")).unwrap();
        }
        let endless = b"HTTP/1.1 200 OK\r\n\r\n";
        stream.write_all(endless).unwrap();
        while stream.write_all(&[b'x'; 10_000]).is_ok() {
            counted.fetch_add(10_000, Ordering::SeqCst);
        }
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut builder = h2::client::Builder::new();
        builder.initial_connection_window_size(1 << 20);
        let mut client = connect_with(&bed, &mut builder).await;
        let response = ask(&mut client, request("GET", "/large")).await;
        // It stands still when all buffers on the way are full.
        let mut before = u64::MAX;
        while before != written.load(Ordering::SeqCst) {
            before = written.load(Ordering::SeqCst);
            for _ in 0..20 {
                let small = ask(&mut client, request("GET", "/small")).await;
                assert_eq!(text(small).await, (200, "small".into()));
                client = client.ready().await.unwrap();
            }
        }
        assert!(before < 32 << 20, "{before}");
        let mut stream = response.into_body();
        let first = stream.data().await.unwrap().unwrap();
        assert!(first.iter().all(|byte| *byte == b'x'));
    });
}

#[test]
fn websocket_passes_over_a_stream() {
    let address = member(|_, mut stream| {
        let head = read_head(&mut stream);
        assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
        for line in [
            "Upgrade: websocket\r\n",
            "Connection: upgrade\r\n",
            "Sec-WebSocket-Version: 13\r\n",
        ] {
            assert!(head.contains(line), "{head}");
        }
        let key = head.split_once("Sec-WebSocket-Key: ").unwrap().1;
        assert!(key.find("==\r\n") == Some(22), "{head}");
        let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: chat\r\n\r\nhello";
        stream.write_all(switch.as_bytes()).unwrap();
        echo_bytes(stream);
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        while !client.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        let mut connect = request("CONNECT", "/chat");
        let websocket = h2::ext::Protocol::from_static("websocket");
        connect.extensions_mut().insert(websocket);
        let version = "13".parse().unwrap();
        connect
            .headers_mut()
            .insert("sec-websocket-version", version);
        let (response, mut stream) = client.send_request(connect, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let fields = response.headers();
        assert_eq!(fields["sec-websocket-protocol"], "chat");
        assert!(!fields.contains_key("sec-websocket-accept") && !fields.contains_key("upgrade"));
        stream.send_data(" there".into(), true).unwrap();
        let (all, _) = body(response.into_body()).await.unwrap();
        assert_eq!(all, b"hello there");
    });
    assert_eq!(bed.next_record().end, End::Complete);
}

#[test]
fn http_d7_requests_without_content_that_usually_have_some_say_so() {
    let address = http_member(|head| {
        let lines = head
            .lines()
            .filter(|line| line.to_ascii_lowercase().contains("length"));
        ok(lines.collect::<Vec<_>>().join("|"))
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        for (method, said) in [
            ("POST", "Content-Length: 0"),
            ("PUT", "Content-Length: 0"),
            ("PATCH", "Content-Length: 0"),
            ("GET", ""),
            ("DELETE", ""),
        ] {
            let answer = ask(&mut client, request(method, "/")).await;
            assert_eq!(text(answer).await, (200, said.to_owned()), "{method}");
            client = client.ready().await.unwrap();
        }
    });
}

#[test]
fn a_member_that_does_not_switch_gives_no_tunnel() {
    let address = http_member(|head| match path_of(head).as_str() {
        "/200" => ok("no tunnel"),
        _ => b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec(),
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        while !client.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        for (path, status) in [("/200", 502), ("/403", 403)] {
            let mut connect = request("CONNECT", path);
            let websocket = h2::ext::Protocol::from_static("websocket");
            connect.extensions_mut().insert(websocket);
            let (response, _stream) = client.send_request(connect, false).unwrap();
            assert_eq!(response.await.unwrap().status(), status);
            client = client.ready().await.unwrap();
        }
    });
}

#[test]
fn each_stream_has_its_own_cost_and_takes_it_along() {
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        is_cut(&mut stream);
    });
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.cost_header = Some("X-Cost".into());
    });
    let cost = || {
        let group = bed.group.current.load();
        group.members()[0].slot.cost_in_flight()
    };
    on(async {
        let mut client = connect(&bed).await;
        let mut streams = Vec::new();
        for (said, together) in [("4", 4.0), ("2.5", 6.5), ("none", 7.5)] {
            let mut asked = request("POST", "/");
            asked.headers_mut().insert("x-cost", said.parse().unwrap());
            client = client.ready().await.unwrap();
            streams.push(client.send_request(asked, false).unwrap());
            while cost() != together {
                tokio::task::yield_now().await;
            }
        }
        // Those that are given up take with them what they have added.
        for (left, (response, mut stream)) in [3.5, 1.0, 0.0].into_iter().zip(streams) {
            stream.send_reset(Reason::CANCEL);
            drop(response);
            while cost() != left {
                tokio::task::yield_now().await;
            }
        }
    });
    bed.wait_until_idle();
}

#[test]
fn streams_end_before_their_connection_does() {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let address = http_member(move |_| {
        wait.lock().unwrap().recv().unwrap();
        ok("late")
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let socket = tokio::net::TcpStream::connect(bed.address()).await.unwrap();
        let (client, connection) = h2::client::handshake(socket).await.unwrap();
        let connection = tokio::task::spawn_local(connection);
        let mut client = client.ready().await.unwrap();
        let (response, _) = client.send_request(request("GET", "/"), true).unwrap();
        while bed.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        bed.proxy.drain(HANG);
        // Told that there are to be no new streams.
        while client.clone().ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
        go.send(()).unwrap();
        assert_eq!(text(response.await.unwrap()).await, (200, "late".into()));
        let ended = connection.await.unwrap();
        assert!(ended.is_ok_and(|()| true));
    });
    bed.proxy.join_workers();
}

#[test]
fn the_streams_of_a_client_share_its_binding() {
    let picked: Vec<_> = (0..8)
        .map(|n| http_member(move |_| ok(n.to_string())))
        .collect();
    let settings = GroupSettings {
        granularity: Granularity::PerSession,
        ..GroupSettings::default()
    };
    let group = group(members(&picked), settings);
    let bed = Bed::with_group(Http, group, 16, |_| {});
    on(async {
        let mut client = connect(&bed).await;
        let first = text(ask(&mut client, request("GET", "/")).await).await;
        for _ in 0..20 {
            let next = text(ask(&mut client, request("GET", "/")).await).await;
            assert_eq!(next, first);
            client = client.ready().await.unwrap();
        }
    });
}

#[test]
fn an_idle_connection_is_told_to_go() {
    let address = http_member(|_| ok("x"));
    let bed = Bed::new(Http, &[address], |rule| {
        rule.timeouts.keep_alive = Duration::from_millis(50);
    });
    on(async {
        let socket = tokio::net::TcpStream::connect(bed.address()).await.unwrap();
        let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
        let connection = tokio::task::spawn_local(connection);
        let answer = text(ask(&mut client, request("GET", "/")).await).await;
        assert_eq!(answer, (200, "x".into()));
        assert!(connection.await.unwrap().is_ok());
    });
}

#[test]
fn what_is_ambiguous_is_refused() {
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    let address = http_member(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        ok("x")
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let with = |more: &[(&'static str, &'static str)]| [&GET[..], more].concat();
    let without = |name: &str| {
        let rest = GET.iter().filter(|(known, _)| *known != name);
        rest.copied().collect::<Vec<_>>()
    };
    let instead = |name: &'static str, value: &'static str| {
        let swap = |(known, old): (&'static str, &'static str)| {
            if known == name {
                (known, value)
            } else {
                (known, old)
            }
        };
        GET.map(swap).to_vec()
    };
    for (why, head) in [
        ("connection", with(&[("connection", "close")])),
        ("keep-alive", with(&[("keep-alive", "1")])),
        ("proxy-connection", with(&[("proxy-connection", "close")])),
        (
            "transfer-encoding",
            with(&[("transfer-encoding", "chunked")]),
        ),
        ("upgrade", with(&[("upgrade", "websocket")])),
        ("te", with(&[("te", "gzip")])),
        ("upper case", with(&[("X-Upper", "x")])),
        ("space in a name", with(&[("x y", "x")])),
        ("colon in a name", with(&[("x:y", "x")])),
        ("LF in a value", with(&[("x", "a\nGET /hidden HTTP/1.1")])),
        ("CR in a value", with(&[("x", "a\rb")])),
        ("NUL in a value", with(&[("x", "a\0b")])),
        ("LF in the path", instead(":path", "/a\nb")),
        ("space in the path", instead(":path", "/a b HTTP/1.1")),
        ("no path", without(":path")),
        ("empty path", instead(":path", "")),
        ("path without a slash", instead(":path", "a")),
        ("path of a URI", instead(":path", "http://a/")),
        ("asterisk", instead(":path", "*")),
        ("no method", without(":method")),
        ("method with a space", instead(":method", "GET /")),
        ("CONNECT", instead(":method", "CONNECT")),
        ("no scheme", without(":scheme")),
        ("no authority", without(":authority")),
        ("user in the authority", instead(":authority", "u@test")),
        ("slash in the authority", instead(":authority", "a/b")),
        ("repeated pseudo-field", with(&[(":path", "/")])),
        ("unknown pseudo-field", with(&[(":x", "/")])),
        ("status", with(&[(":status", "200")])),
        (
            "pseudo-field at the end",
            [&[("x", "y")], &GET[..]].concat(),
        ),
        (
            "protocol without CONNECT",
            with(&[(":protocol", "websocket")]),
        ),
        ("another host", with(&[("host", "other")])),
        ("two hosts", with(&[("host", "test"), ("host", "test")])),
        ("content-length", with(&[("content-length", "5")])),
        (
            "two lengths",
            with(&[("content-length", "0"), ("content-length", "0")]),
        ),
        ("bad length", with(&[("content-length", "+0")])),
        ("alias of a length", with(&[("content_length", "0")])),
        ("expectation", with(&[("expect", "200-ok")])),
    ] {
        let mut client = connect_raw(&bed);
        let block = fields(&head);
        let head = frame(HEADERS, END_STREAM | END_HEADERS, 1, &block);
        client.write_all(&head).unwrap();
        let answer = until_frame(&mut client, &[HEADERS, RST_STREAM, GOAWAY]);
        let (kind, _, payload) = answer.unwrap_or_else(|| panic!("{why}: ended"));
        if kind == HEADERS {
            // An index of the static table (400), or a literal beginning with `:status`.
            assert!(
                matches!(payload[0], 0x8c | 0x48 | 0x08),
                "{why}: {payload:x?}"
            );
        }
    }
    assert_eq!(served.load(Ordering::SeqCst), 0);
    // The same without what is wrong.
    let mut client = connect_raw(&bed);
    client.write_all(&get_frame(1)).unwrap();
    let (_, _, payload) = until_frame(&mut client, &[HEADERS, RST_STREAM]).unwrap();
    assert_eq!(payload[0], 0x88, "200");
}

#[test]
fn a_body_that_does_not_fit_its_length_is_refused() {
    let (seen, heads) = channel();
    let address = member(move |_, mut stream| {
        let head = read_head(&mut stream);
        let mut rest = Vec::new();
        let cut = stream.read_to_end(&mut rest).is_err();
        seen.send((head, cut)).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    for data in [&b"123"[..], b"123456"] {
        let mut client = connect_raw(&bed);
        let mut head = GET.to_vec();
        head[0].1 = "POST";
        head.push(("content-length", "5"));
        let head = frame(HEADERS, END_HEADERS, 1, &fields(&head));
        let body = frame(0, END_STREAM, 1, data);
        client.write_all(&[head, body].concat()).unwrap();
        let (kind, ..) = until_frame(&mut client, &[HEADERS, RST_STREAM]).unwrap();
        assert_eq!(kind, RST_STREAM);
    }
    // A member that has seen the beginning sees that it was cut.
    for _ in 0..bed.rule_totals().member_connects {
        let (head, cut) = heads.recv_timeout(HANG).unwrap();
        assert!(head.is_empty() || cut, "{head}");
    }
}

#[test]
fn a_body_beyond_max_body_without_a_length_gets_413_and_no_member_gets_it_whole() {
    let (seen, bodies) = channel();
    let address = member(move |_, mut stream| {
        let head = read_head(&mut stream);
        if head.is_empty() {
            return;
        }
        let (mut body, mut bytes) = (Vec::new(), [0; 4096]);
        // Up to the last chunk, or to the end of the connection.
        while !body.ends_with(b"\r\n0\r\n\r\n") {
            match stream.read(&mut bytes) {
                Ok(n) if n > 0 => body.extend_from_slice(&bytes[..n]),
                _ => break,
            }
        }
        let is_whole = body.ends_with(b"\r\n0\r\n\r\n");
        seen.send((head, is_whole)).unwrap();
        if is_whole {
            // The connection ends here: the next request must not come by it.
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
            let _ = stream.write_all(format!("{head}whole").as_bytes());
        }
    });
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.max_body = Some(MaxBody(100_000));
    });
    for (parts, status) in [(5, 200), (6, 413), (60, 413)] {
        on(async {
            let mut client = connect(&bed).await;
            let (response, mut body) = client.send_request(request("POST", "/x"), false).unwrap();
            let part = Bytes::from_static(&[b'x'; 20_000]);
            for number in 1..=parts {
                // What is refused is not taken to its end.
                if body.send_data(part.clone(), number == parts).is_err() {
                    break;
                }
            }
            let response = response.await.unwrap();
            assert_eq!(response.status(), status);
        });
        let (head, is_whole) = bodies.recv_timeout(HANG).unwrap();
        let lower = head.to_ascii_lowercase();
        assert!(lower.contains("transfer-encoding: chunked"), "{head}");
        assert_eq!(is_whole, status == 200);
    }
    assert_eq!(bed.rule_totals().refused_too_large, 2);
}

/// The reason in a GOAWAY, when the connection has ended.
fn reason_of_end(client: &mut TcpStream) -> Option<u32> {
    let mut reason = None;
    while let Some((kind, _, payload)) = next_frame(client) {
        if kind == GOAWAY {
            reason = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
    }
    reason
}

const CALM: u32 = 11;

/// Sends parts until the connection takes no more.
fn flood(bed: &Bed, start: &[u8], part: impl Fn(u32) -> Vec<u8>) -> Option<u32> {
    let mut client = connect_raw(bed);
    client.write_all(start).unwrap();
    let mut reader = client.try_clone().unwrap();
    let reader = std::thread::spawn(move || reason_of_end(&mut reader));
    for n in 0..1_000_000 {
        if client.write_all(&part(n)).is_err() {
            break;
        }
    }
    reader.join().unwrap()
}

#[test]
fn floods_end_the_connection_and_are_counted() {
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        read_all(&mut stream);
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let open = frame(HEADERS, END_HEADERS, 1, &fields(&GET));
    let settings = |_| frame(4, 0, 0, &[]);
    let ping = |_| frame(6, 0, 0, &[0; 8]);
    let priority = |_| frame(2, 0, 1, &[0, 0, 0, 0, 1]);
    let window = |_| frame(8, 0, 0, &[0, 0, 0, 1]);
    for part in [settings, ping, priority, window] {
        let before = bed.rule_totals().http2_flood_control;
        // The GOAWAY may get lost with what was sent after it.
        let reason = flood(&bed, &open, part);
        assert!(matches!(reason, Some(CALM) | None));
        bed.wait_for_count(|totals| totals.http2_flood_control, before + 1);
    }
    let empty = flood(&bed, &open, |_| frame(0, 0, 1, &[]));
    assert!(matches!(empty, Some(CALM) | None));
    bed.wait_for_count(|totals| totals.http2_flood_data, 1);
    // Rapid reset (CVE-2023-44487).
    let resets = flood(&bed, &[], |n| {
        let stream = 2 * n + 1;
        [
            get_frame(stream),
            frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
        ]
        .concat()
    });
    assert!(matches!(resets, Some(CALM) | None));
    bed.wait_for_count(|totals| totals.http2_flood_resets, 1);
    // CONTINUATION without end (CVE-2024-27316).
    let start = frame(HEADERS, END_STREAM, 1, &fields(&GET));
    let more = fields(&[("x", "0123456789")]);
    flood(&bed, &start, |_| frame(9, 0, 1, &more));
    flood(&bed, &start, |_| frame(9, 0, 1, &[]));
    bed.wait_for_count(|totals| totals.http2_flood_headers, 2);
    bed.wait_until_idle();
}

/// A field in the table costs a byte each time that it is named, and 4,000 when it is read.
#[test]
fn a_header_bomb_is_refused() {
    let address = http_member(|_| ok("x"));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = connect_raw(&bed);
    let mut block = fields(&GET);
    block.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    block.extend([b'y'; 4000]);
    block.extend([0xbe; 10_000]);
    let head = frame(HEADERS, END_STREAM | END_HEADERS, 1, &block);
    client.write_all(&head).unwrap();
    let answer = until_frame(&mut client, &[HEADERS, RST_STREAM, GOAWAY]);
    if let Some((HEADERS, _, payload)) = answer {
        assert_ne!(payload[0], 0x88);
    }
    assert_eq!(bed.rule_totals().responses_2xx, 0);
}

/// A window that is opened byte by byte costs a frame for each byte.
#[test]
fn a_window_of_one_byte_is_a_flood() {
    let address = http_member(|_| ok(vec![b'x'; 100_000]));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    client.write_all(PREFACE).unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE = 1
    client
        .write_all(&frame(4, 0, 0, &[0, 4, 0, 0, 0, 1]))
        .unwrap();
    client.write_all(&get_frame(1)).unwrap();
    let mut bytes = 0;
    let reason = loop {
        match next_frame(&mut client) {
            Some((0, _, data)) => {
                bytes += data.len();
                let _ = client.write_all(&frame(8, 0, 1, &[0, 0, 0, 1]));
            }
            Some((GOAWAY, _, payload)) => break payload[7],
            Some(_) => {}
            None => break CALM as u8,
        }
    };
    assert_eq!(u32::from(reason), CALM);
    assert!((900..5000).contains(&bytes), "{bytes}");
    bed.wait_for_count(|totals| totals.http2_flood_control, 1);
}

/// A client that opens no window at all is cut off when the time limit for clients is over.
#[test]
fn a_window_that_stays_shut_is_a_client_that_takes_nothing() {
    let address = http_member(|_| ok(vec![b'x'; 1_000_000]));
    let bed = Bed::new(Http, &[address], |rule| {
        rule.timeouts.body = Duration::from_millis(200);
    });
    let mut client = connect_raw(&bed);
    client.write_all(&get_frame(1)).unwrap();
    let (_, stream, _) = until_frame(&mut client, &[RST_STREAM]).unwrap();
    assert_eq!(stream, 1);
    assert_eq!(bed.next_record().end, End::ClientTimeout);
    assert_eq!(bed.rule_totals().client_timeouts, 1);
}

#[test]
fn http2_without_tls_can_be_switched_off() {
    let address = http_member(|_| ok("x"));
    let bed = Bed::new(Http, &[address], |rule| rule.http.http2 = false);
    let mut client = bed.connect_client();
    client.write_all(PREFACE).unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 505 "));
}

#[test]
fn a_preface_that_comes_in_parts_is_one() {
    let address = http_member(|_| ok("x"));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    client.set_nodelay(true).unwrap();
    for byte in PREFACE {
        client.write_all(&[*byte]).unwrap();
    }
    client.write_all(&frame(4, 0, 0, &[])).unwrap();
    client.write_all(&get_frame(1)).unwrap();
    let (_, _, payload) = until_frame(&mut client, &[HEADERS]).unwrap();
    assert_eq!(payload[0], 0x88);
    // What only begins like one is HTTP/1.1.
    let mut client = bed.connect_client();
    client.write_all(b"P").unwrap();
    client
        .write_all(b"UT / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
}

#[test]
fn n1_trailers_of_requests_pass_by_a_list_over_http2_too() {
    let address = reader(|_, body| ok(body));
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.request_trailers = vec!["X".into()];
    });
    on(async {
        let mut client = connect(&bed).await;
        let (response, mut stream) = client.send_request(request("POST", "/"), false).unwrap();
        stream.send_data("abc".into(), false).unwrap();
        let mut fields = HeaderMap::new();
        for name in ["x-remote-user", "x_remote_user", "x-real-ip", "x"] {
            fields.insert(name, "y".parse().unwrap());
        }
        stream.send_trailers(fields).unwrap();
        let (_, found) = text(response.await.unwrap()).await;
        assert_eq!(found, "3\r\nabc\r\n0\r\nx: y\r\n\r\n");
    });
}

#[test]
fn d2_a_connection_that_is_authenticated_over_http2_is_used_by_nobody_else() {
    let address = member(|_, mut stream| {
        let mut user = String::from("nobody");
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() {
                return;
            }
            if head.contains("authorization: Negotiate anna\r\n") {
                user = "anna".into();
            }
            stream.write_all(&ok(&user)).unwrap();
        }
    });
    let bed = Bed::new(Http, &[address], |_| {});
    on(async {
        let mut client = connect(&bed).await;
        let mut login = request("GET", "/");
        let credentials = "Negotiate anna".parse().unwrap();
        login.headers_mut().insert("authorization", credentials);
        assert_eq!(text(ask(&mut client, login).await).await.1, "anna");
        for _ in 0..5 {
            let answer = text(ask(&mut client, request("GET", "/")).await).await;
            assert_eq!(answer.1, "nobody");
        }
    });
}

/// Requests that are malformed (RFC 9113, section 8.1.1), each as a block of fields.
fn malformed() -> Vec<(String, Vec<u8>)> {
    type Field<'a> = (&'a [u8], &'a [u8]);
    let get: Vec<Field<'_>> = GET
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect();
    let mut all = Vec::new();
    for (name, _) in GET {
        for value in [&b"\xe9"[..], b"", b"a\0b", b"a\r\nb", b"a\nb"] {
            let mut block = get.clone();
            for field in &mut block {
                if field.0 == name.as_bytes() {
                    field.1 = value;
                }
            }
            all.push((format!("{name} {}", value.escape_ascii()), fields(&block)));
        }
    }
    for (name, value) in [
        (&b"X-Capital"[..], &b"a"[..]),
        (b"a b", b"c"),
        (b"a[b]", b"c"),
        (b"\xe9", b"c"),
        (b"", b"c"),
        (b"a:b", b"c"),
        (b"a", b"b\0c"),
        (b"a", b"b\r\nc"),
        (b"a", b"b\nc"),
        (b":unknown", b"a"),
        (b":status", b"200"),
        (b":path", b"/"),
        (b"connection", b"close"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"1x"),
    ] {
        let block = [&get[..], &[(name, value)]].concat();
        let why = format!("{}: {}", name.escape_ascii(), value.escape_ascii());
        all.push((why, fields(&block)));
    }
    all
}

/// A request that has begun ends well, whatever comes in another stream of the connection.
#[test]
fn http_d3_a_malformed_request_is_an_error_of_its_stream() {
    let address = reader(|_, _| ok("good"));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut post = GET.to_vec();
    post[0].1 = "POST";
    let trailers = [
        ("trailer with a capital", fields(&[("X", "y")])),
        ("trailer with LF", fields(&[("x", "a\nb")])),
        ("pseudo-field in trailers", fields(&[(":path", "/")])),
    ];
    let in_trailers = trailers.map(|(why, block)| {
        let open = frame(HEADERS, END_HEADERS, 3, &fields(&post));
        let end = frame(HEADERS, END_STREAM | END_HEADERS, 3, &block);
        (why.to_owned(), [open, end].concat())
    });
    let in_heads = malformed().into_iter().map(|(why, block)| {
        let frame = frame(HEADERS, END_STREAM | END_HEADERS, 3, &block);
        (why, frame)
    });
    let mut count = 0;
    for (why, bad) in in_heads.chain(in_trailers) {
        let mut client = connect_raw(&bed);
        let good = frame(HEADERS, END_HEADERS, 1, &fields(&post));
        client.write_all(&[good, bad].concat()).unwrap();
        let answer = until_frame(&mut client, &[RST_STREAM, GOAWAY, HEADERS]);
        let (kind, stream, payload) = answer.unwrap_or_else(|| panic!("{why}: ended"));
        assert_eq!((kind, stream), (RST_STREAM, 3), "{why}");
        assert_eq!(payload, [0, 0, 0, 1], "{why}");
        client.write_all(&frame(0, END_STREAM, 1, b"rest")).unwrap();
        let answer = until_frame(&mut client, &[RST_STREAM, GOAWAY, HEADERS]);
        let (kind, stream, payload) = answer.unwrap_or_else(|| panic!("{why}: ended"));
        assert_eq!((kind, stream, payload[0]), (HEADERS, 1, 0x88), "{why}");
        count += 1;
        bed.wait_for_count(|totals| totals.refused_malformed, count);
    }
    assert!(count > 30);
}

/// A proxy in front sends the requests of many people in one connection.
#[test]
fn http_d3_b_nobody_can_fail_the_requests_of_others_behind_a_proxy() {
    let address = http_member(|_| ok("good"));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = connect_raw(&bed);
    let mut bad = GET.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    bad[2].1 = b"/caf\xe9";
    let bad = fields(&bad);
    let mut sent = Vec::new();
    for stream in (1..80).step_by(2) {
        sent.extend(match stream % 4 {
            1 => get_frame(stream),
            _ => frame(HEADERS, END_STREAM | END_HEADERS, stream, &bad),
        });
    }
    client.write_all(&sent).unwrap();
    let mut seen = [0, 0];
    while seen != [20, 20] {
        match until_frame(&mut client, &[RST_STREAM, GOAWAY, HEADERS]).unwrap() {
            (HEADERS, stream, payload) => {
                assert_eq!((stream % 4, payload[0]), (1, 0x88));
                seen[0] += 1;
            }
            (RST_STREAM, stream, payload) => {
                assert_eq!((stream % 4, &payload[..]), (3, &[0, 0, 0, 1][..]));
                seen[1] += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Paths pass as they are, the same ones as over HTTP/1.1.
#[test]
fn http_d5_paths_that_are_no_uris_pass_as_over_http1() {
    let address = http_member(|head| ok(path_of(head)));
    let bed = Bed::new(Http, &[address], |_| {});
    for byte in b'!'..=b'~' {
        for path in [
            format!("/a{}b", byte as char),
            format!("/?a{}b", byte as char),
        ] {
            let mut head = GET.to_vec();
            head[2].1 = &path;
            let mut client = connect_raw(&bed);
            let block = fields(&head);
            let sent = frame(HEADERS, END_STREAM | END_HEADERS, 1, &block);
            client.write_all(&sent).unwrap();
            let (kind, ..) = until_frame(&mut client, &[HEADERS, RST_STREAM, GOAWAY]).unwrap();
            assert_eq!(kind, HEADERS, "{path}");
            let (_, _, body) = until_frame(&mut client, &[0]).unwrap();
            let mut client = bed.connect_client();
            let same = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
            let answer = crate::support::send_request(&mut client, &same);
            let is_served = answer.starts_with("HTTP/1.1 200 ");
            assert_eq!(body == path.as_bytes(), is_served, "{path}");
        }
    }
}
