//! HTTP rules with members that behave.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::support::*;
use evenkeel_core::cost::Cost;
use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::load::LoadId;
use evenkeel_core::time::Instant;
use evenkeel_manager::config::Protocol::Http;
use evenkeel_manager::config::sources::{Orca, Sources};
use evenkeel_manager::config::{Compression, Frequency, parse};
use evenkeel_manager::counts::{Origin, ReportOutcome};
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_proxy::access::{End, Record};

fn path_of(head: &str) -> String {
    head.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn both_sides_are_kept_alive() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let address = member(move |number, mut stream| {
        counted.fetch_max(number + 1, Ordering::SeqCst);
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() {
                return;
            }
            stream.write_all(&ok(path_of(&head))).unwrap();
        }
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    for n in 0..10 {
        let path = format!("/{n}");
        expect_get(&mut client, &path, &path);
    }
    // Another client uses the same connection to the member.
    drop(client);
    expect_get(&mut bed.connect_client(), "/x", "/x");
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    let record = bed.next_record();
    (1..11).for_each(|_| drop(bed.next_record()));
    let totals = bed.rule_totals();
    assert_eq!((totals.requests, totals.responses_2xx), (11, 11));
    assert_eq!(
        (totals.member_connects, totals.member_connections_reused),
        (1, 10)
    );
    assert_eq!(record.end, End::Complete);
    let (method, target) = record.request.unwrap();
    assert_eq!(
        (&*method, &*target, record.status),
        ("GET", "/0", Some(200))
    );
}

#[test]
fn load_reports_in_responses_are_taken_in_and_kept_from_clients() {
    let reports = [
        "endpoint-load-metrics: TEXT cpu_utilization=0.25, mem_utilization=0.5\r\n",
        "Endpoint-Load-Metrics: JSON {\"cpu_utilization\": 0.5}\r\nX: y\r\n",
        "ENDPOINT-LOAD-METRICS-BIN: CQAAAAAAANA/\r\n",
        "endpoint-load-metrics: TEXT cpu_utilization=NaN\r\n",
        "endpoint-load-metrics: TEXT cpu_utilization=1\r\nendpoint-load-metrics: TEXT cpu_utilization=0\r\n",
        "X: y\r\n",
    ];
    let address = http_member(move |head| {
        let fields = reports[path_of(head)[1..].parse::<usize>().unwrap()];
        // A report in an interim response is none.
        let early =
            "HTTP/1.1 103 Early Hints\r\nendpoint-load-metrics: TEXT cpu_utilization=1\r\n\r\n";
        format!("{early}HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n").into_bytes()
    });
    // What the client sees, the load that the member has then, and what was counted.
    let ask = |orca: Option<Orca>, paths: &[usize]| {
        let sources = Sources {
            orca: orca.map(Arc::new),
            ..Sources::default()
        };
        let bed = Bed::with_sources(Http, &[address], sources);
        let mut client = bed.connect_client();
        let answer = |&path: &usize| {
            let early = send_request(&mut client, &get(&format!("/{path}")));
            assert!(early.starts_with("HTTP/1.1 103 "), "{early}");
            let head = read_head(&mut client);
            let group = bed.group.current.load();
            let cpu = group.members()[0]
                .location
                .last_load(LoadId::CPU, Instant::ZERO);
            (early + &head, cpu.map(|cpu| cpu.value.get()))
        };
        let (heads, loads): (Vec<_>, Vec<_>) = paths.iter().map(answer).unzip();
        let fates = [
            ReportOutcome::Taken,
            ReportOutcome::BadValue,
            ReportOutcome::Malformed,
        ];
        let counts = fates.map(|fate| bed.group.reports.count_of(Origin::ORCA_HEADER, fate));
        (heads, loads, counts)
    };
    // Nothing is read unless it is wanted.
    let (heads, loads, counts) = ask(None, &[0]);
    assert!(heads[0].contains("endpoint-load-metrics: TEXT cpu_utilization=0.25, mem"));
    assert_eq!((loads[0], counts), (None, [0; 3]));
    let elsewhere = Orca {
        headers: false,
        ..Orca::default()
    };
    let (heads, loads, counts) = ask(Some(elsewhere), &[0]);
    assert!(heads[0].contains("endpoint-load-metrics: TEXT cpu_utilization=0.25, mem"));
    assert_eq!((loads[0], counts), (None, [0; 3]));

    let (heads, loads, counts) = ask(Some(Orca::default()), &[0, 1, 2, 3, 4, 5]);
    for head in heads {
        assert!(
            !head.to_ascii_lowercase().contains("load-metrics"),
            "{head}"
        );
    }
    assert_eq!(loads, [0.25, 0.5, 0.25, 0.25, 0.25, 0.25].map(Some));
    assert_eq!(counts, [3, 1, 1]);
    let kept = Orca {
        strip: false,
        ..Orca::default()
    };
    let (heads, ..) = ask(Some(kept), &[1]);
    assert!(heads[0].contains("Endpoint-Load-Metrics: JSON {\"cpu_utilization\": 0.5}\r\nX: y"));
}

#[test]
fn fronts_d6_load_reports_in_trailers_are_taken_in_and_kept_from_clients() {
    let address = http_member(|_| {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n";
        let trailers =
            "Server-Timing: a\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.25\r\n\r\n";
        format!("{head}{trailers}").into_bytes()
    });
    for (strip, version, rest) in [
        (true, "1.1", "2\r\nok\r\n0\r\nServer-Timing: a\r\n\r\n"),
        (
            false,
            "1.1",
            "2\r\nok\r\n0\r\nServer-Timing: a\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.25\r\n\r\n",
        ),
        (true, "1.0", "ok"),
    ] {
        let orca = Orca {
            strip,
            ..Orca::default()
        };
        let sources = Sources {
            orca: Some(orca.into()),
            ..Sources::default()
        };
        let bed = Bed::with_sources(Http, &[address], sources);
        let mut client = bed.connect_client();
        send_request(
            &mut client,
            &format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n"),
        );
        expect(&mut client, rest.as_bytes());
        // It is written when all is settled.
        bed.next_record();
        let group = bed.group.current.load();
        let cpu = group.members()[0]
            .location
            .last_load(LoadId::CPU, Instant::ZERO);
        assert_eq!(cpu.map(|cpu| cpu.value.get()), Some(0.25), "{rest}");
        let taken = bed
            .group
            .reports
            .count_of(Origin::ORCA_HEADER, ReportOutcome::Taken);
        assert_eq!(taken, 1);
    }
}

#[test]
fn fronts_d6_members_are_asked_for_reports_where_that_is_wanted() {
    let address = http_member(|head| {
        let lines = head
            .lines()
            .filter(|line| line.to_ascii_lowercase().starts_with("endpoint"));
        ok(lines.collect::<Vec<_>>().join("|"))
    });
    for (format, asked) in [
        (Some("text"), "endpoint-load-metrics-format: text"),
        (None, "Endpoint-Load-Metrics-Format: JSON"),
    ] {
        let sources = Sources {
            orca: Some(Arc::new(Orca {
                request_format: format.map(str::to_owned),
                ..Orca::default()
            })),
            ..Sources::default()
        };
        let bed = Bed::with_sources(Http, &[address], sources);
        let mut client = bed.connect_client();
        let request = "GET / HTTP/1.1\r\nHost: a\r\nEndpoint-Load-Metrics-Format: JSON\r\n\r\n";
        send_request(&mut client, request);
        expect(&mut client, asked.as_bytes());
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let address = http_member(|head| ok(path_of(head)));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let mut all = String::new();
    for n in 0..50 {
        all += &get(&format!("/{n}"));
    }
    all += "POST /last HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    // Cut at awkward places.
    for part in all.as_bytes().chunks(97) {
        client.write_all(part).unwrap();
    }
    for n in 0..50 {
        read_head(&mut client);
        expect(&mut client, format!("/{n}").as_bytes());
    }
    read_head(&mut client);
    expect(&mut client, b"/last");
}

#[test]
fn the_head_is_rewritten_for_each_side() {
    let (report, seen) = channel();
    let address = http_member(move |head| {
        report.send(head.to_owned()).unwrap();
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nX: y\r\n\
          Content-Length: 0\r\n\r\n"
            .to_vec()
    });
    let bed = Bed::new(Http, &[address], |rule| rule.http.via = Some("ek".into()));
    let mut client = bed.connect_client();
    let head = send_request(
        &mut client,
        "GET /a HTTP/1.1\r\nHost: h\r\nConnection: x-mine\r\nX-Mine: 1\r\n\
         X-Forwarded-For: 6.6.6.6\r\n\r\n",
    );
    assert_eq!(head, "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 0\r\n\r\n");
    let seen = seen.recv_timeout(HANG).unwrap();
    assert!(seen.contains("X-Forwarded-For: 127.0.0.1\r\n"), "{seen}");
    assert!(seen.contains("Via: 1.1 ek\r\n"), "{seen}");
    assert!(
        !seen.contains("6.6.6.6") && !seen.contains("Mine"),
        "{seen}"
    );
}

/// Reads a body of `len` bytes, then answers with it.
fn mirror(stream: &mut TcpStream) -> bool {
    let head = read_head(stream);
    let Some(at) = head.find("Content-Length: ") else {
        return false;
    };
    let len: String = head[at + 16..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let mut body = vec![0; len.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    stream.write_all(&ok(body)).is_ok()
}

#[test]
fn bodies_of_all_sizes_arrive_as_they_were_sent() {
    let address = member(|_, mut stream| while mirror(&mut stream) {});
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let sizes = [
        0,
        1,
        8191,
        8192,
        8193,
        32_768,
        65_536,
        70_000,
        200_000,
        5 << 20,
    ];
    for size in sizes {
        let body = byte_pattern(size);
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n");
        let mut sender = client.try_clone().unwrap();
        let sent = body.clone();
        let sending = std::thread::spawn(move || {
            sender.write_all(head.as_bytes()).unwrap();
            sender.write_all(&sent).unwrap();
        });
        let head = read_head(&mut client);
        assert!(
            head.contains(&format!("Content-Length: {size}\r\n")),
            "{head}"
        );
        let mut received = vec![0; size];
        client.read_exact(&mut received).unwrap();
        assert!(received == body, "{size}");
        sending.join().unwrap();
    }
    let total: usize = sizes.iter().sum();
    let received: u64 = sizes.iter().map(|_| bed.next_record().bytes_received).sum();
    assert_eq!(received, total as u64);
}

#[test]
fn chunks_and_trailers_are_passed_on_as_they_come() {
    let body = "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n";
    let (report, seen) = channel();
    let address = member(move |_, mut stream| {
        for _ in 0..2 {
            let head = read_head(&mut stream);
            assert!(head.contains("Transfer-Encoding: chunked\r\n"), "{head}");
            let mut found = vec![0; body.len()];
            stream.read_exact(&mut found).unwrap();
            report.send(found).unwrap();
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head).unwrap();
            for byte in body.as_bytes().chunks(3) {
                stream.write_all(byte).unwrap();
            }
        }
    });
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.request_trailers = vec!["X-Sum".into()];
    });
    let mut client = bed.connect_client();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for part in [1, 1000] {
        client.write_all(head.as_bytes()).unwrap();
        for bytes in body.as_bytes().chunks(part) {
            client.write_all(bytes).unwrap();
        }
        assert_eq!(seen.recv_timeout(HANG).unwrap(), body.as_bytes());
        let head = read_head(&mut client);
        assert!(head.contains("Transfer-Encoding: chunked\r\n"));
        expect(&mut client, body.as_bytes());
    }
    assert_eq!(bed.rule_totals().member_connects, 1);
}

#[test]
fn both_bodies_flow_at_once() {
    // A member that answers each piece of the request before the next one is sent.
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head).unwrap();
        let mut piece = [0; 6];
        for _ in 0..20 {
            stream.read_exact(&mut piece).unwrap();
            stream.write_all(&piece).unwrap();
        }
        stream.read_exact(&mut piece[..5]).unwrap();
        stream.write_all(&piece[..5]).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    send_request(&mut client, head);
    for _ in 0..20 {
        client.write_all(b"1\r\nx\r\n").unwrap();
        expect(&mut client, b"1\r\nx\r\n");
    }
    client.write_all(b"0\r\n\r\n").unwrap();
    expect(&mut client, b"0\r\n\r\n");
    assert_eq!(read_all(&mut client), b"");
}

#[test]
fn continue_is_asked_for_and_passed_on() {
    let address = member(|_, mut stream| {
        let head = read_head(&mut stream);
        assert!(head.contains("Expect: 100-continue\r\n"), "{head}");
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        expect(&mut stream, b"body");
        stream.write_all(&ok("done")).unwrap();
        expect_end(&mut stream);
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    assert_eq!(
        send_request(&mut client, head),
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    client.write_all(b"body").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
    expect(&mut client, b"done");
}

fn expect_end(stream: &mut TcpStream) {
    let _ = stream.read(&mut [0]);
}

#[test]
fn a_refused_expectation_ends_the_connection_in_order() {
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        let no = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno";
        stream.write_all(no).unwrap();
        expect_end(&mut stream);
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    let head = send_request(&mut client, head);
    assert!(
        head.starts_with("HTTP/1.1 413 ") && head.contains("Connection: close"),
        "{head}"
    );
    assert_eq!(read_all(&mut client), b"no");
}

#[test]
fn interim_responses_are_passed_on_but_not_to_old_clients() {
    let address = http_member(|_| {
        let mut all = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec();
        all.extend_from_slice(b"HTTP/1.1 102 Processing\r\n\r\n");
        all.extend(ok("x"));
        all
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = send_request(&mut client, &get("/"));
    assert_eq!(head, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    assert_eq!(read_head(&mut client), "HTTP/1.1 102 Processing\r\n\r\n");
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
    expect(&mut client, b"x");
    let mut old = bed.connect_client();
    assert!(send_request(&mut old, "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(read_all(&mut old), b"x");
}

#[test]
fn responses_without_a_body_end_with_their_heads() {
    let address = http_member(|head| {
        let response = match path_of(head).as_str() {
            "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
            "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
            _ => "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\nETag: \"x\"\r\n\r\n",
        };
        response.into()
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    for _ in 0..3 {
        let head = send_request(&mut client, "HEAD /head HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(head.contains("Content-Length: 1000\r\n"), "{head}");
        assert_eq!(
            send_request(&mut client, &get("/204")),
            "HTTP/1.1 204 No Content\r\n\r\n"
        );
        let head = send_request(&mut client, &get("/304"));
        assert!(
            head.starts_with("HTTP/1.1 304 ") && head.contains("ETag"),
            "{head}"
        );
    }
    assert_eq!(bed.rule_totals().member_connects, 1);
}

#[test]
fn a_switch_of_protocols_becomes_a_tunnel() {
    let address = member(|_, mut stream| {
        let head = read_head(&mut stream);
        assert!(head.contains("Upgrade: websocket\r\n"), "{head}");
        let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
            Upgrade: websocket\r\n\r\nhello";
        stream.write_all(head).unwrap();
        echo_bytes(stream);
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let head = send_request(&mut client, &format!("{head}early"));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("Upgrade: websocket\r\n"), "{head}");
    expect(&mut client, b"helloearly");
    client
        .write_all(b"GET / nothing is parsed here\r\n\r\n")
        .unwrap();
    expect(&mut client, b"GET / nothing is parsed here\r\n\r\n");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client), b"");
    let record = bed.next_record();
    assert_eq!((record.status, record.end), (Some(101), End::Complete));
    bed.wait_until_idle();
}

#[test]
fn clients_of_http_1_0_get_what_they_understand() {
    let address = http_member(|head| match path_of(head).as_str() {
        "/chunked" => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            format!("{head}3\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\r\n").into()
        }
        _ => ok("length"),
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = send_request(&mut client, "GET /chunked HTTP/1.0\r\n\r\n");
    assert!(
        !head.to_ascii_lowercase().contains("transfer-encoding"),
        "{head}"
    );
    assert_eq!(read_all(&mut client), b"abcde");
    let mut client = bed.connect_client();
    for _ in 0..2 {
        let head = send_request(
            &mut client,
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        );
        assert!(head.contains("Connection: keep-alive\r\n"), "{head}");
        expect(&mut client, b"length");
    }
    let head = send_request(&mut client, "GET / HTTP/1.0\r\n\r\n");
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert_eq!(read_all(&mut client), b"length");
}

#[test]
fn a_body_that_ends_with_the_connection_does_so_for_the_client() {
    let body = byte_pattern(300_000);
    let sent = body.clone();
    let address = member(move |_, mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        stream.write_all(&sent).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = send_request(&mut client, &get("/"));
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert!(read_all(&mut client) == body);
}

#[test]
fn malformed_requests_are_refused_and_never_forwarded() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let address = http_member(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        ok("")
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: a\n\n", 400),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 501),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\nz\r\n0\r\n\r\n",
            400,
        ),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", 400),
    ] {
        let mut client = bed.connect_client();
        let head = send_request(&mut client, &format!("{request}{smuggled}"));
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:?}: {head}"
        );
        assert!(head.contains("Connection: close\r\n"), "{head}");
        let body = read_all(&mut client);
        assert!(body.ends_with(b"\n") && body.iter().filter(|b| **b == b'\n').count() == 1);
    }
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    assert_eq!(bed.rule_totals().refused_malformed, 7);
}

#[test]
fn chunks_that_turn_bad_later_cut_the_request() {
    let (report, seen) = channel();
    let address = member(move |_, mut stream| {
        read_head(&mut stream);
        expect(&mut stream, b"1\r\nx\r\n");
        report.send(()).unwrap();
        let mut rest = Vec::new();
        assert!(stream.read_to_end(&mut rest).is_err() && rest.is_empty());
        report.send(()).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
    client.write_all(head.as_bytes()).unwrap();
    seen.recv_timeout(HANG).unwrap();
    client.write_all(b"zz\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 400 "));
    seen.recv_timeout(HANG).unwrap();
}

#[test]
fn heads_up_to_the_limit_pass() {
    let address = http_member(|head| ok(head.len().to_string()));
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.max_header_bytes = 100_000;
        rule.http.x_forwarded = false;
    });
    let mut client = bed.connect_client();
    for size in [10, 30_000, 40_000, 99_000] {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "y".repeat(size)
        );
        let head = send_request(&mut client, &request);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        expect(&mut client, request.len().to_string().as_bytes());
    }
    let request = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "y".repeat(100_000)
    );
    assert!(send_request(&mut client, &request).starts_with("HTTP/1.1 431 "));
}

/// A member that answers `/slow` only when somebody waits at the barrier, too.
fn gated_member() -> (Arc<Barrier>, SocketAddr) {
    let barrier = Arc::new(Barrier::new(2));
    let gate = Arc::clone(&barrier);
    let address = http_member(move |head| {
        if path_of(head) == "/slow" {
            gate.wait();
        }
        ok(path_of(head))
    });
    (barrier, address)
}

/// A member with room for one request, a client whose `/slow` it works on, and one whose
/// `/2` waits in the queue.
fn with_one_waiting() -> (Bed, Arc<Barrier>, TcpStream, TcpStream) {
    let (barrier, address) = gated_member();
    let mut members = members(&[address]);
    members[0].max_connections = Some(1);
    let bed = Bed::with_members(Http, members, 1, |_| {});
    let mut first = bed.connect_client();
    first.write_all(get("/slow").as_bytes()).unwrap();
    bed.wait_until_busy();
    let mut second = bed.connect_client();
    second.write_all(get("/2").as_bytes()).unwrap();
    while bed.group.queue.waiting() == 0 {
        std::thread::yield_now();
    }
    (bed, barrier, first, second)
}

/// Returns the cost of everything in flight.
fn cost_in_flight(bed: &Bed) -> f32 {
    let group = bed.group.current.load();
    group
        .members()
        .iter()
        .map(|m| m.slot.cost_in_flight())
        .sum()
}

#[test]
fn a_request_costs_what_its_field_or_its_rule_says() {
    for (fields, cost) in [
        ("", 2.5),
        ("X-Cost: 12\r\n", 12.0),
        ("x-cost:0.5\r\nX-Cost: 9\r\n", 0.5),
        ("X-Cost: 1e9\r\n", 1000.0),
        ("X-Cost: -4\r\n", 2.5),
        ("X-Cost: NaN\r\n", 2.5),
        ("X-Cost: many\r\n", 2.5),
    ] {
        let (barrier, address) = gated_member();
        let bed = Bed::new(Http, &[address], |rule| {
            rule.cost = Cost::new(2.5).unwrap();
            rule.http.cost_header = Some("X-Cost".into());
        });
        let mut client = bed.connect_client();
        let head = format!("GET /slow HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        client.write_all(head.as_bytes()).unwrap();
        bed.wait_until_busy();
        assert_eq!(cost_in_flight(&bed), cost, "{fields}");
        barrier.wait();
        read_head(&mut client);
        expect(&mut client, b"/slow");
        assert_eq!(bed.next_record().cost.get(), cost);
        bed.wait_until_idle();
        assert_eq!(cost_in_flight(&bed), 0.0);
    }
}

#[test]
fn a_field_says_nothing_of_the_cost_unless_it_is_named() {
    let address = http_member(|head| ok(head.contains("X-Cost: 12").to_string()));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Cost: 12\r\n\r\n";
    client.write_all(head.as_bytes()).unwrap();
    // The member gets it.
    read_head(&mut client);
    expect(&mut client, b"true");
    assert_eq!(bed.next_record().cost, Cost::ONE);
}

#[test]
fn members_at_their_limit_are_waited_for() {
    let (bed, barrier, mut first, mut second) = with_one_waiting();
    let mut third = bed.connect_client();
    let head = send_request(&mut third, &get("/3"));
    assert!(
        head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After"),
        "{head}"
    );
    barrier.wait();
    read_head(&mut first);
    read_head(&mut second);
    expect(&mut second, b"/2");
    // Refused for now: the connection is good for another try.
    read_text(&mut third, &head);
    expect_get(&mut third, "/3", "/3");
}

#[test]
fn a_client_that_is_gone_leaves_the_queue() {
    let (bed, barrier, mut first, second) = with_one_waiting();
    reset_stream(second);
    assert_eq!(bed.next_record().end, End::Client);
    assert_eq!(bed.group.queue.waiting(), 0);
    barrier.wait();
    read_head(&mut first);
    expect(&mut first, b"/slow");
}

fn read_text(client: &mut TcpStream, head: &str) {
    let at = head.find("Content-Length: ").unwrap() + 16;
    let len: String = head[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let mut text = vec![0; len.parse().unwrap()];
    client.read_exact(&mut text).unwrap();
}

#[test]
fn without_a_member_the_answer_is_503() {
    let bed = Bed::new(Http, &[], |_| {});
    let mut client = bed.connect_client();
    for _ in 0..2 {
        let head = send_request(&mut client, &get("/"));
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        read_text(&mut client, &head);
    }
    let head = send_request(&mut client, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let head = send_request(&mut client, &get("/"));
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!(bed.rule_totals().refused_no_member, 4);
}

/// Found by the fuzz target `exchange`: content behind the head of such an answer is read as
/// the answer to the next request.
#[test]
fn p6_a_refusal_of_a_malformed_head_request_has_no_content() {
    let bed = Bed::new(Http, &[closed_address()], |rule| {
        rule.timeouts.header = Duration::from_millis(50);
    });
    for (request, status) in [
        ("HEAD / HTTP/1.1\r\nHost: a b\r\n\r\n", "400"),
        ("\r\nHEAD / HTTP/1.1\r\n\r\n", "400"),
        (
            "HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx",
            "400",
        ),
        ("HEAD / HTTP/1.1\r\nHost: a\r\n", "408"),
    ] {
        let mut client = bed.connect_client();
        let head = send_request(&mut client, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(!head.contains("Content-Length: 0"), "{head}");
        assert_eq!(read_all(&mut client), b"", "{request:?}");
    }
    // Others hear why.
    let mut client = bed.connect_client();
    let head = send_request(&mut client, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(!read_all(&mut client).is_empty());
}

#[test]
fn a_drain_finishes_what_is_in_progress_and_closes_what_is_idle() {
    let (barrier, address) = gated_member();
    let bed = Bed::new(Http, &[address], |_| {});
    let (mut idle, mut busy, mut fresh) = (
        bed.connect_client(),
        bed.connect_client(),
        bed.connect_client(),
    );
    let mut late = bed.connect_client();
    expect_get(&mut idle, "/", "/");
    expect_get(&mut late, "/", "/");
    busy.write_all(get("/slow").as_bytes()).unwrap();
    bed.wait_until_busy();
    // Under way while its connection looks idle.
    late.write_all(get("/late").as_bytes()).unwrap();
    bed.proxy.drain(HANG);
    let head = read_head(&mut late);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    expect(&mut late, b"/late");
    assert_eq!(read_all(&mut late), b"");
    assert_eq!(read_all(&mut idle), b"");
    barrier.wait();
    let head = read_head(&mut busy);
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert_eq!(read_all(&mut busy), b"/slow");
    // One that has asked nothing yet is still answered.
    let head = send_request(&mut fresh, &get("/fresh"));
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert_eq!(read_all(&mut fresh), b"/fresh");
    bed.proxy.join_workers();
}

#[test]
fn a_drain_closes_what_is_idle_of_rules_that_are_gone() {
    let address = http_member(|head| ok(path_of(head)));
    let mut bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    expect_get(&mut client, "/", "/");
    bed.remove_rule();
    bed.proxy.drain(2 * HANG);
    assert_eq!(read_all(&mut client), b"");
    bed.proxy.join_workers();
}

#[test]
fn a_removed_rule_answers_its_open_connections_once_more() {
    let address = http_member(|head| ok(path_of(head)));
    let mut bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    expect_get(&mut client, "/1", "/1");
    bed.remove_rule();
    // The order reaches the worker before the listener is gone.
    let head = loop {
        let head = send_request(&mut client, &get("/2"));
        expect(&mut client, b"/2");
        if head.contains("Connection: close\r\n") {
            break head;
        }
    };
    assert!(head.starts_with("HTTP/1.1 200 "));
    assert_eq!(read_all(&mut client), b"");
}

#[test]
fn idle_connections_follow_a_reload() {
    let [old, new] = ["old", "new"].map(|name| http_member(move |_| ok(name)));
    let mut first = members(&[old, new]);
    let second = first.split_off(1);
    let mut bed = Bed::with_members(Http, first, 16, |_| {});
    let mut idle = bed.connect_client();
    expect_get(&mut idle, "/", "old");
    let second = group(second, GroupSettings::default());
    bed.group = Arc::new(GroupHandle::new(Arc::new(second), 16));
    bed.apply_change(|_| {});
    // What a new client sees, the worker knows.
    let mut body = [0; 3];
    while body != *b"new" {
        let mut other = bed.connect_client();
        send_request(&mut other, &get("/"));
        other.read_exact(&mut body).unwrap();
    }
    expect_get(&mut idle, "/", "new");
}

#[test]
fn limits_on_time_are_kept() {
    let short = Duration::from_millis(20);
    let address = member(|_, mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    // No request: closed without a word.
    let bed = Bed::new(Http, &[address], |rule| rule.timeouts.keep_alive = short);
    assert_eq!(read_all(&mut bed.connect_client()), b"");
    // Half a head.
    let bed = Bed::new(Http, &[address], |rule| rule.timeouts.header = short);
    let head = send_request(&mut bed.connect_client(), "GET / HT");
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    // Half a body.
    let bed = Bed::new(Http, &[address], |rule| rule.timeouts.body = short);
    let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf";
    let head = send_request(&mut bed.connect_client(), request);
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    assert_eq!(bed.next_record().end, End::ClientTimeout);
    // No response.
    let bed = Bed::new(Http, &[address], |rule| rule.timeouts.response = short);
    let head = send_request(&mut bed.connect_client(), &get("/"));
    assert!(head.starts_with("HTTP/1.1 504 "), "{head}");
    assert_eq!(bed.next_record().end, End::MemberTimeout);
    assert_eq!(bed.rule_totals().member_timeouts, 1);
    assert_eq!(bed.rule_totals().retries, 0);
}

#[test]
fn a_session_stays_with_its_member_until_that_is_taken_out() {
    let addresses: Vec<_> = (0..4)
        .map(|n: u32| http_member(move |_| ok(n.to_string())))
        .collect();
    let settings = GroupSettings {
        granularity: Granularity::PerSession,
        ..GroupSettings::default()
    };
    let bed = Bed::with_group(Http, group(members(&addresses), settings), 16, |_| {});
    let mut client = bed.connect_client();
    let mut served_by = || {
        send_request(&mut client, &get("/"));
        let mut body = [0];
        client.read_exact(&mut body).unwrap();
        usize::from(body[0] - b'0')
    };
    let first = served_by();
    for _ in 0..30 {
        assert_eq!(served_by(), first);
    }
    set_down(&bed, first, true);
    let second = served_by();
    assert_ne!(first, second);
    set_down(&bed, first, false);
    for _ in 0..30 {
        assert_eq!(served_by(), second);
    }
}

/// Trailers cannot claim what the balancer vouches for, as there are servers that take trailers for
/// fields of the head. So members get the trailers that somebody has thought of.
#[test]
fn n1_members_get_no_trailers_of_requests_but_those_of_a_list() {
    let (report, seen) = channel();
    let address = member(move |_, mut stream| {
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() {
                return;
            }
            let mut body = Vec::new();
            let mut byte = [0];
            while head.starts_with("POST") && !body.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                body.push(byte[0]);
            }
            report.send(String::from_utf8(body).unwrap()).unwrap();
            stream.write_all(&ok("x")).unwrap();
        }
    });
    let bed = Bed::new(Http, &[address], |rule| {
        rule.http.request_trailers = vec!["X-Sum".into()];
    });
    let long = format!("X-{}: y\r\n", "long".repeat(100));
    let mut client = bed.connect_client();
    for (sent, passed) in [
        ("", ""),
        ("X-Remote-User: root\r\n", ""),
        ("x_remote_user: root\r\nX-Real-IP: 6.6.6.6\r\n", ""),
        ("X-Client-Cert-Verified: yes\r\n", ""),
        ("traceparent: x\r\nX-Evenkeel-Mirror: 1\r\n", ""),
        (
            "Content-Digest: a\r\nX-User: b\r\ndigest: c\r\n",
            "Content-Digest: a\r\ndigest: c\r\n",
        ),
        ("X-User: b\r\nX-SUM: 1\r\n", "X-SUM: 1\r\n"),
        ("X_Sum: 1\r\nX-Sums: 1\r\nX-Su: 1\r\n", ""),
        (&long, ""),
        (&[&long, "X-Sum: 1\r\n", &long].concat(), "X-Sum: 1\r\n"),
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\n{sent}\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
        );
        for part in [1, 7, 10_000] {
            for bytes in request.as_bytes().chunks(part) {
                client.write_all(bytes).unwrap();
            }
            let found = seen.recv_timeout(HANG).unwrap();
            assert_eq!(
                found,
                format!("3\r\nabc\r\n0\r\n{passed}\r\n"),
                "{sent} by {part}"
            );
            assert_eq!(seen.recv_timeout(HANG).unwrap(), "", "the next request");
            for _ in 0..2 {
                read_head(&mut client);
                expect(&mut client, b"x");
            }
        }
    }
}

#[test]
fn n10_sessions_of_the_console_are_for_no_member() {
    let address = http_member(|head| ok(head));
    let mut bed = Bed::new(Http, &[address], |_| {});
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\
        Cookie: a=1; evenkeel_session=secret; b=2\r\nCookie: __Host-evenkeel_session=secret\r\n\r\n";
    let told = |bed: &Bed| {
        let mut client = bed.connect_client();
        let length = send_request(&mut client, request);
        let (_, length) = length.split_once("Content-Length: ").unwrap();
        let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
        client.read_exact(&mut body).unwrap();
        String::from_utf8(body).unwrap()
    };
    let head = told(&bed);
    assert!(
        head.contains("Cookie: a=1; b=2\r\n") && !head.contains("secret"),
        "{head}"
    );
    // Unless the members are consoles.
    bed.apply_change(|rule| rule.http.console_members = true);
    let head = told(&bed);
    assert_eq!(head.matches("secret").count(), 2, "{head}");
}

/// A member that knows the client of a connection once it has authenticated that, as IIS does.
fn ntlm_member() -> SocketAddr {
    member(|_, mut stream| {
        let (mut challenged, mut user) = (false, None);
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() {
                return;
            }
            let line = head
                .lines()
                .find_map(|line| line.strip_prefix("Authorization: "));
            let asks = |challenge: &str| {
                format!(
                    "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nWWW-Authenticate: {challenge}\r\n\r\n"
                )
            };
            let answer = match line.map(|line| line.split_once(' ').unwrap()) {
                Some(("NTLM", "one")) => {
                    challenged = true;
                    asks("NTLM two")
                }
                Some(("NTLM", name)) if challenged => {
                    user = Some(name.to_owned());
                    String::new()
                }
                Some(("Negotiate", name)) => {
                    user = Some(name.to_owned());
                    String::new()
                }
                Some(_) => "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_owned(),
                None => String::new(),
            };
            let answer = match (&user, answer.is_empty()) {
                (_, false) => answer.into_bytes(),
                (Some(user), true) => ok(user),
                (None, true) => asks("Negotiate\r\nWWW-Authenticate: NTLM").into_bytes(),
            };
            stream.write_all(&answer).unwrap();
        }
    })
}

/// A connection that a member has authenticated is its client's: no other client becomes that user, and the client stays
/// with the connection.
#[test]
fn d2_a_connection_that_is_authenticated_belongs_to_its_client() {
    let bed = Bed::new(Http, &[ntlm_member(), ntlm_member(), ntlm_member()], |_| {});
    let status = |client: &mut TcpStream, authorization: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{authorization}\r\n");
        let head = send_request(client, &request);
        let (_, length) = head.split_once("Content-Length: ").unwrap();
        let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
        client.read_exact(&mut body).unwrap();
        let status = head.split(' ').nth(1).unwrap().to_owned();
        (status, String::from_utf8(body).unwrap())
    };
    let is = |status: &str, body: &str| (status.to_owned(), body.to_owned());
    let names = ["xenia", "yves", "zoe"];
    let mut clients = names.map(|_| bed.connect_client());
    // All of them log in at the same time.
    for authorization in ["", "Authorization: NTLM one\r\n"] {
        for client in &mut clients {
            assert_eq!(status(client, authorization), is("401", ""));
        }
    }
    for (client, name) in clients.iter_mut().zip(names) {
        let authorization = format!("Authorization: NTLM {name}\r\n");
        assert_eq!(status(client, &authorization), is("200", name));
    }
    for _ in 0..10 {
        for (client, name) in clients.iter_mut().zip(names) {
            assert_eq!(status(client, ""), is("200", name));
        }
        assert_eq!(status(&mut bed.connect_client(), ""), is("401", ""));
    }
    drop(clients);
    // What is said with one request is remembered by the connection, too.
    let negotiate = "Authorization: Negotiate anna\r\n";
    assert_eq!(
        status(&mut bed.connect_client(), negotiate),
        is("200", "anna")
    );
    for _ in 0..10 {
        assert_eq!(status(&mut bed.connect_client(), ""), is("401", ""));
    }
}

/// A client that was told to try again later can do so.
#[test]
fn h9_the_page_of_a_rule_in_maintenance_uses_no_limit_up() {
    let address = http_member(|_| ok("x"));
    let mut bed = Bed::new(Http, &[address], |rule| {
        rule.limits.requests = Some(Frequency {
            count: 3,
            per: Duration::from_secs(3600),
        });
        let maintenance = rule.responses.maintenance.get_or_insert_default();
        maintenance.on = true;
    });
    let status = |bed: &Bed| {
        let head = send_request(&mut bed.connect_client(), &get("/"));
        head.split(' ').nth(1).unwrap().to_owned()
    };
    for _ in 0..5 {
        assert_eq!(status(&bed), "503");
    }
    bed.apply_change(|rule| rule.responses.maintenance = None);
    for wanted in ["200", "200", "200", "429"] {
        assert_eq!(status(&bed), wanted);
    }
}

/// A path that begins with a slash and a backslash is another host to browsers, as two slashes are.
#[test]
fn n12_redirects_lead_to_no_other_host() {
    let rule = r#"
[rule.a]
listen = "127.0.0.1:0"
members = ["127.0.0.1:1"]
[[rule.a.routes]]
query = { x = "y" }
redirect = "{path}/new"
"#;
    let routes = parse("evenkeel.toml", rule).unwrap().rules.remove(0).routes;
    let bed = Bed::new(Http, &[closed_address()], |rule| rule.routes = routes);
    for (path, status) in [
        ("/a", "302"),
        ("/\\evil.com", "400"),
        ("//evil.com", "400"),
        ("/a\\b", "302"),
    ] {
        let head = send_request(&mut bed.connect_client(), &get(&format!("{path}?x=y")));
        assert_eq!(head.split(' ').nth(1).unwrap(), status, "{path}: {head}");
    }
}

/// A 204 ends with its head. The connection that it came by is not used again: who knows what follows.
#[test]
fn d6_a_response_without_content_passes_whatever_frames_it() {
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        let answer = b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        stream.write_all(answer).unwrap();
        // It is closed, and gets no other request.
        assert_eq!(read_head(&mut stream), "");
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    for _ in 0..5 {
        let head = send_request(
            &mut client,
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!(head, "HTTP/1.1 204 No Content\r\n\r\n");
    }
    let totals = bed.rule_totals();
    assert_eq!((totals.member_connects, totals.bad_responses), (5, 0));
}

#[test]
fn d6_bad_responses_are_counted_and_clients_told_what_they_were_after_retries_too() {
    let bad = || {
        http_member(|_| {
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_vec()
        })
    };
    let bed = Bed::new(Http, &[bad(), bad()], |rule| rule.http.retry_budget = 1.0);
    let mut client = bed.connect_client();
    let head = send_request(&mut client, &get("/"));
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    expect(&mut client, b"The server's answer could not be read.");
    assert_eq!(bed.rule_totals().bad_responses, 2);
}

#[test]
fn http_d6_the_log_says_what_was_wrong_with_a_response() {
    let bad = http_member(|_| b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n".to_vec());
    let good = http_member(|_| ok("good"));
    let bed = Bed::new(Http, &[bad, good], |rule| rule.http.retry_budget = 1.0);
    set_down(&bed, 1, true);
    let mut client = bed.connect_client();
    let head = send_request(&mut client, &get("/"));
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    let why = |record: &Record<'_>| record.attempts.as_ref().unwrap().member_error.clone();
    let record = bed.next_record();
    assert_eq!(record.end, End::Member);
    let length = "invalid Content-Length: expected decimal digits";
    assert_eq!(why(&record).as_deref(), Some(length));
    // Also where another member has answered then.
    set_down(&bed, 1, false);
    let mut client = bed.connect_client();
    loop {
        expect_get(&mut client, "/", "good");
        let record = bed.next_record();
        assert_eq!(record.end, End::Complete);
        if record.retries == 1 {
            assert_eq!(why(&record).as_deref(), Some(length));
            break;
        }
        assert_eq!(why(&record), None);
    }
}

#[test]
fn http_d6_a_response_that_breaks_in_its_middle_is_counted_and_logged() {
    for (rest, counted, why) in [
        (
            &b"zz\r\n"[..],
            1,
            "invalid chunk size: expected hexadecimal digits, then CR LF",
        ),
        (b"4\r\nab", 0, "the response ends within its body"),
    ] {
        let (begun, wait) = channel();
        let wait = Mutex::new(wait);
        let address = member(move |_, mut stream| {
            read_head(&mut stream);
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
            stream.write_all(head).unwrap();
            // The client has the beginning.
            wait.lock().unwrap().recv_timeout(HANG).unwrap();
            stream.write_all(rest).unwrap();
        });
        let bed = Bed::new(Http, &[address], |_| {});
        let mut client = bed.connect_client();
        let head = send_request(&mut client, &get("/"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        expect(&mut client, b"3\r\nabc\r\n");
        begun.send(()).unwrap();
        assert!(is_cut(&mut client));
        let record = bed.next_record();
        assert_eq!(
            (record.end, bed.rule_totals().bad_responses),
            (End::Member, counted)
        );
        let error = record.attempts.unwrap().member_error;
        assert_eq!(error.as_deref(), Some(why));
    }
}

#[test]
fn http_d7_a_304_has_the_fields_of_what_was_compressed() {
    let address =
        http_member(|_| b"HTTP/1.1 304 Not Modified\r\nDate: x\r\nETag: \"v1\"\r\n\r\n".to_vec());
    let bed = Bed::new(Http, &[address], |rule| {
        rule.compression = Some(Compression::default())
    });
    let mut client = bed.connect_client();
    let as_it_was = "HTTP/1.1 304 Not Modified\r\nDate: x\r\nETag: \"v1\"\r\n\r\n";
    let weak =
        "HTTP/1.1 304 Not Modified\r\nDate: x\r\nVary: Accept-Encoding\r\nETag: W/\"v1\"\r\n\r\n";
    for (fields, answer) in [
        ("Accept-Encoding: gzip\r\nIf-None-Match: W/\"v1\"\r\n", weak),
        (
            "Accept-Encoding: gzip\r\nIf-None-Match: \"v1\"\r\n",
            as_it_was,
        ),
        ("Accept-Encoding: gzip\r\n", as_it_was),
        ("If-None-Match: W/\"v1\"\r\n", as_it_was),
    ] {
        let head = send_request(
            &mut client,
            &format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
        );
        assert_eq!(head, answer, "{fields}");
    }
}

#[test]
fn http_d7_a_redirect_may_keep_the_port() {
    let bed = Bed::new(Http, &[closed_address()], |rule| {
        let text = "[rule.test]\nlisten = \"127.0.0.1:1\"\nmembers = [\"a:1\"]\n[[rule.test.routes]]\n\
            redirect = \"https://{host}{port}/new{path}\"\n";
        rule.routes = parse("f", text).unwrap().rules.remove(0).routes;
    });
    let mut client = bed.connect_client();
    for (host, location) in [
        ("a.example:8080", "https://a.example:8080/new/x"),
        ("a.example", "https://a.example/new/x"),
        ("[::1]:1", "https://[::1]:1/new/x"),
    ] {
        let head = send_request(
            &mut client,
            &format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        );
        assert!(
            head.contains(&format!("Location: {location}\r\n")),
            "{head}"
        );
    }
}
