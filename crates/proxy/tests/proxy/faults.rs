//! Members and clients that fail in the middle. What must hold: no wrong body, no hang,
//! and no request lost that could be answered.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::*;
use evenkeel_manager::config::Protocol::Http;
use evenkeel_proxy::access::End;

fn post(body: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn put(body: &str) -> String {
    post(body).replacen("POST", "PUT", 1)
}

/// A member that answers once, waits until told to go on, and closes. The next
/// connections are served well.
fn closes_after_one() -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let address = member(move |number, mut stream| {
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() {
                return;
            }
            if head.starts_with('P') {
                let mut body = [0; 4];
                stream.read_exact(&mut body).unwrap();
            }
            if number == 0 && count.load(Ordering::SeqCst) == 1 {
                // Read, and gone without a word: the idle connection "just closed".
                count.fetch_add(1, Ordering::SeqCst);
                return;
            }
            count.fetch_add(1, Ordering::SeqCst);
            stream.write_all(&ok("ok")).unwrap();
        }
    });
    (address, served)
}

#[test]
fn an_idle_connection_that_dies_costs_an_idempotent_request_nothing() {
    for request in [get("/"), put("body")] {
        let (address, served) = closes_after_one();
        let bed = Bed::new(Http, &[address], |rule| rule.http.retries = 0);
        let mut client = bed.connect_client();
        expect_get(&mut client, "/", "ok");
        let head = send_request(&mut client, &request);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        expect(&mut client, b"ok");
        assert_eq!(served.load(Ordering::SeqCst), 3);
        // The member is not blamed.
        bed.next_record();
        bed.next_record();
        assert_eq!(bed.rule_totals().member_failures, 0);
    }
}

#[test]
fn a_request_that_is_not_idempotent_is_never_sent_twice() {
    let (address, served) = closes_after_one();
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    expect_get(&mut client, "/", "ok");
    let head = send_request(&mut client, &post("body"));
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert_eq!(served.load(Ordering::SeqCst), 2);
}

#[test]
fn a_connection_closed_while_idle_is_not_used_for_anything() {
    let (report, closed) = channel();
    let address = member(move |number, mut stream| {
        read_head(&mut stream);
        stream.write_all(&ok("ok")).unwrap();
        if number == 0 {
            drop(stream);
            report.send(()).unwrap();
            return;
        }
        read_head(&mut stream);
    });
    let bed = Bed::new(Http, &[address], |rule| rule.http.retries = 0);
    let mut client = bed.connect_client();
    expect_get(&mut client, "/", "ok");
    closed.recv_timeout(HANG).unwrap();
    let head = send_request(&mut client, &post(""));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    bed.next_record();
    bed.next_record();
    assert_eq!(bed.rule_totals().member_connects, 2);
}

#[test]
fn a_member_that_is_gone_is_left_out() {
    let good = http_member(|_| ok("good"));
    let bed = Bed::new(Http, &[closed_address(), good], |rule| {
        rule.http.retry_budget = 1.0
    });
    let mut client = bed.connect_client();
    for _ in 0..30 {
        expect_get(&mut client, "/", "good");
        let head = send_request(&mut client, &post("body"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        expect(&mut client, b"good");
        // What the member made of the body is of no interest here.
        client = bed.connect_client();
    }
    assert!(bed.rule_totals().retries > 0);
}

#[test]
fn a_member_that_answers_garbage_is_tried_only_when_nothing_else_is_left() {
    let good = http_member(|_| ok("good"));
    let bad = http_member(|_| b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec());
    let bed = Bed::new(Http, &[bad, good], |rule| rule.http.retry_budget = 1.0);
    let mut client = bed.connect_client();
    for _ in 0..20 {
        expect_get(&mut client, "/", "good");
    }
    let bed = Bed::new(Http, &[bad], |_| {});
    let head = send_request(&mut bed.connect_client(), &get("/"));
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert_eq!(bed.next_record().end, End::Member);
}

#[test]
fn a_member_that_closes_in_its_head_or_says_nothing_is_retried() {
    for answer in ["", "HTTP/1.1 200 OK\r\nContent-Le"] {
        let good = http_member(|_| ok("good"));
        let bad = member(move |_, mut stream| {
            read_head(&mut stream);
            let _ = stream.write_all(answer.as_bytes());
        });
        let bed = Bed::new(Http, &[bad, good], |rule| rule.http.retry_budget = 1.0);
        let mut client = bed.connect_client();
        for _ in 0..20 {
            expect_get(&mut client, "/", "good");
        }
        assert!(bed.rule_totals().retries > 0);
    }
}

#[test]
fn retries_stop_at_the_budget() {
    let silent = || {
        member(|_, mut stream| {
            read_head(&mut stream);
        })
    };
    let bed = Bed::new(Http, &[silent(), silent(), silent(), silent()], |rule| {
        rule.http.retry_budget = 0.0;
        rule.http.retries = 3;
    });
    let mut client = bed.connect_client();
    for _ in 0..40 {
        let head = send_request(&mut client, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    }
    let totals = bed.rule_totals();
    // Ten are saved up, and one more comes with every second.
    assert!((10..30).contains(&totals.retries), "{totals:?}");
    assert!(totals.retries_over_budget > 0);
}

#[test]
fn a_member_that_cannot_be_reached_is_passed_by_without_a_budget() {
    let good = http_member(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec());
    let bed = Bed::new(Http, &[closed_address(), good, closed_address()], |rule| {
        rule.http.retry_budget = 0.0;
        rule.http.retries = 2;
    });
    let mut client = bed.connect_client();
    for _ in 0..40 {
        let head = send_request(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
}

#[test]
fn a_response_that_is_cut_is_seen_to_be_cut() {
    let responses = [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nha",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalfWRONG\r\n",
    ];
    for (response, orderly) in responses.iter().flat_map(|r| [(*r, true), (*r, false)]) {
        let address = member(move |_, mut stream| {
            read_head(&mut stream);
            stream.write_all(response.as_bytes()).unwrap();
            // Not before the first part has arrived.
            expect(&mut stream, b"");
            if orderly {
                drop(stream.shutdown(Shutdown::Write))
            } else {
                reset_stream(stream)
            }
        });
        let bed = Bed::new(Http, &[address], |_| {});
        for version in ["1.1", "1.0"] {
            let mut client = bed.connect_client();
            let request = format!("GET / HTTP/{version}\r\nConnection: close\r\nHost: a\r\n\r\n");
            client.write_all(request.as_bytes()).unwrap();
            let mut all = Vec::new();
            let ended = client.read_to_end(&mut all).map_err(|error| error.kind());
            let text = String::from_utf8_lossy(&all).into_owned();
            let answered = text.starts_with("HTTP/1.1 502 ");
            let cut = ended == Err(std::io::ErrorKind::ConnectionReset);
            assert!(answered || cut, "{response:?}: {ended:?} {text}");
            assert!(!text.ends_with("\r\n0\r\n\r\n"), "{text}");
        }
    }
}

#[test]
fn a_large_response_that_is_cut_is_seen_to_be_cut() {
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&byte_pattern(5_000_000)).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    client.write_all(get("/").as_bytes()).unwrap();
    let mut all = Vec::new();
    assert!(client.read_to_end(&mut all).is_err());
    assert!(all.len() < 5_100_000);
    let record = bed.next_record();
    assert_eq!((record.end, record.status), (End::Member, Some(200)));
}

#[test]
fn a_member_that_falls_silent_in_its_body_is_given_up() {
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        let half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf";
        stream.write_all(half).unwrap();
        let _ = stream.read(&mut [0]);
    });
    // Long enough for the head on a machine that has much else to do.
    let bed = Bed::new(Http, &[address], |rule| {
        rule.timeouts.response = Duration::from_secs(3);
    });
    let mut client = bed.connect_client();
    send_request(&mut client, &get("/"));
    expect(&mut client, b"half");
    assert!(is_cut(&mut client));
    assert_eq!(bed.next_record().end, End::MemberTimeout);
}

#[test]
fn a_client_that_goes_away_in_its_body_is_seen_by_the_member() {
    for orderly in [true, false] {
        let (report, seen) = channel();
        let address = member(move |_, mut stream| {
            read_head(&mut stream);
            expect(&mut stream, b"half");
            report.send(true).unwrap();
            let mut rest = Vec::new();
            report.send(stream.read_to_end(&mut rest).is_err()).unwrap();
        });
        let bed = Bed::new(Http, &[address], |_| {});
        let mut client = bed.connect_client();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf";
        client.write_all(head.as_bytes()).unwrap();
        assert!(seen.recv_timeout(HANG).unwrap());
        if orderly {
            drop(client)
        } else {
            reset_stream(client)
        }
        assert!(
            seen.recv_timeout(HANG).unwrap(),
            "the member saw a whole request"
        );
        assert_eq!(bed.next_record().end, End::Client);
        bed.wait_until_idle();
    }
}

#[test]
fn a_client_that_goes_away_in_the_response_stops_the_member() {
    let (report, seen) = channel();
    let address = member(move |_, mut stream| {
        read_head(&mut stream);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let block = vec![1; 1 << 20];
        let stopped = (0..1000).any(|_| stream.write_all(&block).is_err());
        report.send(stopped).unwrap();
    });
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    send_request(&mut client, &get("/"));
    expect(&mut client, &[1; 1000]);
    reset_stream(client);
    assert!(seen.recv_timeout(HANG).unwrap());
    assert_eq!(bed.next_record().end, End::Client);
}

#[test]
fn a_client_that_has_ended_its_side_still_gets_its_answer() {
    let address = http_member(|_| ok("answer"));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    client.write_all(get("/").as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    read_head(&mut client);
    assert_eq!(read_all(&mut client), b"answer");
}

#[test]
fn an_answer_before_the_end_of_the_request_reaches_the_client() {
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        let no = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
        stream.write_all(no).unwrap();
        // Closed with the request unread: the proxy's writes fail.
    });
    let bed = Bed::new(Http, &[address], |_| {});
    for _ in 0..10 {
        let mut client = bed.connect_client();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n";
        client.write_all(head.as_bytes()).unwrap();
        let mut sender = client.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            let block = vec![1; 1 << 16];
            while sender.write_all(&block).is_ok() {}
        });
        let head = read_head(&mut client);
        let expected = ["HTTP/1.1 403 ", "HTTP/1.1 502 "];
        assert!(
            expected.iter().any(|status| head.starts_with(status)),
            "{head:?}"
        );
        drop(client.shutdown(Shutdown::Both));
        sending.join().unwrap();
    }
}

#[test]
fn a_slow_client_gets_everything() {
    let body = byte_pattern(3_000_000);
    let sent = body.clone();
    let address = http_member(move |_| ok(&sent));
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = TcpStream::connect(bed.address()).unwrap();
    set_timeouts(&client);
    for byte in get("/").as_bytes() {
        client.write_all(&[*byte]).unwrap();
    }
    read_head(&mut client);
    let mut received = Vec::new();
    let mut part = [0; 997];
    while received.len() < body.len() {
        let n = client.read(&mut part).unwrap();
        assert!(n > 0);
        received.extend_from_slice(&part[..n]);
        std::thread::yield_now();
    }
    assert!(received == body);
    expect_get_large(&mut client, &body);
}

fn expect_get_large(client: &mut TcpStream, body: &[u8]) {
    send_request(client, &get("/"));
    let mut received = vec![0; body.len()];
    client.read_exact(&mut received).unwrap();
    assert!(received == body);
}

#[test]
fn reloads_under_load_lose_nothing() {
    let address = http_member(|head| ok(head.split(' ').nth(1).unwrap()));
    let mut bed = Bed::new(Http, &[address, address], |_| {});
    let at = bed.address();
    let running = Arc::new(AtomicUsize::new(4));
    let clients: Vec<_> = (0..4)
        .map(|id| {
            let running = Arc::clone(&running);
            std::thread::spawn(move || {
                for n in 0..200 {
                    let mut client = TcpStream::connect(at).unwrap();
                    set_timeouts(&client);
                    for m in 0..3 {
                        let path = format!("/{id}/{n}/{m}");
                        expect_get(&mut client, &path, &path);
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    let mut reloads = 0_u32;
    while running.load(Ordering::SeqCst) > 0 {
        reloads += 1;
        bed.apply_change(|rule| rule.http.retries = reloads % 3);
        // One at a time: a request is answered under the new rule.
        expect_get(&mut bed.connect_client(), "/reload", "/reload");
    }
    clients
        .into_iter()
        .for_each(|client| client.join().unwrap());
    assert_eq!(bed.rule_totals().requests, 4 * 200 * 3 + u64::from(reloads));
    assert!(reloads > 1);
}

/// A failure in a row of the only member.
fn failures_in_a_row(bed: &Bed) -> u32 {
    let group = bed.group.current.load();
    group.members()[0].slot.consecutive_failures()
}

#[test]
fn s18_a_post_that_dies_on_an_idle_connection_is_no_failure_of_the_member() {
    let (address, served) = closes_after_one();
    let bed = Bed::new(Http, &[address], |_| {});
    let mut client = bed.connect_client();
    expect_get(&mut client, "/", "ok");
    let head = send_request(&mut client, &post("body"));
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert_eq!(served.load(Ordering::SeqCst), 2);
    bed.next_record();
    assert_eq!(bed.next_record().end, End::Stale);
    assert_eq!(bed.rule_totals().member_failures, 0);
    assert_eq!(failures_in_a_row(&bed), 0);
    // On a connection of its own it is one.
    let address = member(|_, mut stream| {
        read_head(&mut stream);
    });
    let bed = Bed::new(Http, &[address], |_| {});
    send_request(&mut bed.connect_client(), &post(""));
    assert_eq!(bed.next_record().end, End::Member);
    assert_eq!(failures_in_a_row(&bed), 1);
}

#[test]
fn s18_interim_responses_have_an_end() {
    let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let large = format!(
        "HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n",
        "a".repeat(3000)
    );
    for hint in [hint, &large] {
        let flood = hint.repeat(10);
        let address = member(move |_, mut stream| {
            read_head(&mut stream);
            while stream.write_all(flood.as_bytes()).is_ok() {}
        });
        let bed = Bed::new(Http, &[address], |rule| rule.http.retries = 0);
        let mut client = bed.connect_client();
        let mut head = send_request(&mut client, &get("/"));
        let mut count = 0;
        while head.starts_with("HTTP/1.1 103 ") && count < 1000 {
            count += 1;
            head = read_head(&mut client);
        }
        assert!(head.starts_with("HTTP/1.1 502 "), "{count}: {head}");
        assert!((1..=32).contains(&count), "{count}");
        assert_eq!(bed.next_record().end, End::Member);
        assert_eq!(failures_in_a_row(&bed), 1);
    }
}

#[test]
fn s18_interim_responses_do_not_put_off_the_final_one() {
    let address = member(|_, mut stream| {
        read_head(&mut stream);
        // Fewer than there may be, and later than the time limit altogether.
        while stream.write_all(b"HTTP/1.1 103 Hints\r\n\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(150));
        }
    });
    let bed = Bed::new(Http, &[address], |rule| {
        rule.timeouts.response = Duration::from_millis(300);
        rule.http.retries = 0;
    });
    let mut client = bed.connect_client();
    let mut head = send_request(&mut client, &get("/"));
    while head.starts_with("HTTP/1.1 103 ") {
        head = read_head(&mut client);
    }
    assert!(head.starts_with("HTTP/1.1 504 "), "{head}");
    assert_eq!(bed.next_record().end, End::MemberTimeout);
}

#[test]
fn s18_a_client_that_resets_while_a_member_works_is_noticed() {
    // What it has sent besides must not hide that it is gone.
    for more in ["", "GET /next HTTP/1.1\r\nHo"] {
        for begun in [false, true] {
            let (report, working) = channel();
            let address = member(move |_, mut stream| {
                read_head(&mut stream);
                if begun {
                    let part = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart";
                    stream.write_all(part).unwrap();
                }
                report.send(()).unwrap();
                // It would work for ever.
                let _ = stream.read(&mut [0]);
                report.send(()).unwrap();
            });
            let bed = Bed::new(Http, &[address], |_| {});
            let mut client = bed.connect_client();
            let request = get("/") + more;
            client.write_all(request.as_bytes()).unwrap();
            working.recv_timeout(HANG).unwrap();
            if begun {
                read_head(&mut client);
                expect(&mut client, b"part");
            }
            reset_stream(client);
            // Long before any time limit, and the member is told.
            assert_eq!(bed.next_record().end, End::Client, "{more:?} {begun}");
            working.recv_timeout(HANG).unwrap();
            bed.wait_until_idle();
            assert_eq!(failures_in_a_row(&bed), 0);
        }
    }
}

#[test]
fn s13_a_member_that_is_silent_about_an_expectation_is_to_blame() {
    let expects = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    let (soon, late) = (Duration::from_millis(20), Duration::from_secs(60));
    let silent = member(|_, mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let bed = Bed::new(Http, &[silent], |rule| {
        rule.timeouts.response = soon;
        rule.timeouts.body = late;
    });
    let head = send_request(&mut bed.connect_client(), expects);
    assert!(head.starts_with("HTTP/1.1 504 "), "{head}");
    assert_eq!(bed.next_record().end, End::MemberTimeout);
    assert_eq!(failures_in_a_row(&bed), 1);

    // Once it has said that it goes on, it is the client's turn.
    let willing = member(|_, mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0]);
    });
    let bed = Bed::new(Http, &[willing], |rule| {
        rule.timeouts.response = late;
        rule.timeouts.body = soon;
    });
    let mut client = bed.connect_client();
    let head = send_request(&mut client, expects);
    assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    assert_eq!(bed.next_record().end, End::ClientTimeout);
    assert_eq!(failures_in_a_row(&bed), 0);

    // So it is when the client sends the body unasked, as it may.
    let bed = Bed::new(Http, &[silent], |rule| {
        rule.timeouts.response = late;
        rule.timeouts.body = soon;
    });
    let head = send_request(&mut bed.connect_client(), &format!("{expects}bo"));
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    assert_eq!(failures_in_a_row(&bed), 0);
}

#[test]
fn s12_a_client_that_is_stuck_in_an_interim_response_is_cut_off() {
    let (report, given_up) = channel();
    let address = member(move |_, mut stream| {
        read_head(&mut stream);
        let mut hints = b"HTTP/1.1 103 Early Hints\r\nLink: ".to_vec();
        // More than the sockets take between them.
        hints.resize(12_000_000, b'x');
        hints.extend_from_slice(b"\r\n\r\n");
        stream.write_all(&hints).unwrap();
        let _ = stream.read(&mut [0]);
        report.send(()).unwrap();
    });
    let bed = Bed::new(Http, &[address], |rule| {
        rule.timeouts.body = Duration::from_secs(1);
        rule.http.max_header_bytes = 16 << 20;
        rule.http.retries = 0;
    });
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&bed.address().into()).unwrap();
    let mut client = TcpStream::from(socket);
    set_timeouts(&client);
    client.write_all(get("/").as_bytes()).unwrap();
    // Not before the proxy has given up does the client take anything.
    given_up.recv_timeout(HANG).unwrap();
    let mut all = Vec::new();
    let ended = client.read_to_end(&mut all).map_err(|error| error.kind());
    assert_eq!(ended, Err(std::io::ErrorKind::ConnectionReset));
    let text = String::from_utf8_lossy(&all);
    assert!(!text.contains("408"), "an answer in the middle of a head");
    let record = bed.next_record();
    assert_eq!((record.end, record.status), (End::ClientTimeout, None));
}

#[test]
fn s11_the_log_keeps_only_the_beginning_of_a_method() {
    let bed = Bed::new(Http, &[http_member(|_| ok("ok"))], |_| {});
    let long = "M".repeat(10_000);
    let request = format!("{long} / HTTP/1.1\r\nHost: a\r\n\r\n");
    send_request(&mut bed.connect_client(), &request);
    let (method, _) = bed.next_record().request.unwrap();
    assert_eq!(&*method, &long[..32]);
}

/// Heads and chunks that drip go through, and what is wrong is seen long before the end.
#[test]
fn s8_a_head_that_drips_is_judged_as_it_comes() {
    let bed = Bed::new(Http, &[http_member(|_| ok("ok"))], |_| {});
    let mut client = bed.connect_client();
    let request = format!(
        "\r\nGET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "y".repeat(3000)
    );
    for part in request.as_bytes().chunks(7) {
        client.write_all(part).unwrap();
    }
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    expect(&mut client, b"ok");
    // It never ends, and never gets as long as a head may be.
    let wrong = format!("GET / HTTP/1.1\r\nHost : a\r\nX: {}", "y".repeat(3000));
    let mut client = bed.connect_client();
    for part in wrong.as_bytes().chunks(7) {
        if client.write_all(part).is_err() {
            break;
        }
    }
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    // A head that is too long is refused at once.
    let bed = Bed::new(Http, &[closed_address()], |rule| {
        rule.http.max_header_bytes = 1024
    });
    let mut client = bed.connect_client();
    let mut long = b"GET / HTTP/1.1\r\nX: ".to_vec();
    long.resize(1024, b'y');
    for part in long.chunks(100) {
        client.write_all(part).unwrap();
    }
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
}
