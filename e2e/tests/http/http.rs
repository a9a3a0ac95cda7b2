//! HTTP/1.x through the balancer: nothing that it allows is lost, changed or reordered.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::Write;
use std::sync::Arc;
use std::thread;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, Signal, ok_response};
use evenkeel_e2e::wire::Wire;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Larger than what the sockets and the balancer between them can hold: 32 MiB in the receive buffer of each of two, and 4 MiB for
/// what each of two sends, where the kernel may give so much.
const LARGE: usize = 80 * 1024 * 1024;

/// Numbered blocks, so that lost, doubled or moved parts show.
fn large_body() -> Vec<u8> {
    let mut body = Vec::with_capacity(LARGE);
    let mut number = 0u64;
    while body.len() < LARGE {
        body.extend_from_slice(&number.to_le_bytes().repeat(512));
        number += 1;
    }
    body
}

/// A body in chunks of changing sizes.
fn in_chunks(body: &[u8]) -> Vec<u8> {
    let mut chunked = Vec::with_capacity(body.len() + body.len() / 100);
    let mut rest = body;
    let mut size = 1;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        write!(chunked, "{:x}\r\n", chunk.len()).unwrap();
        chunked.extend_from_slice(chunk);
        chunked.extend_from_slice(b"\r\n");
        rest = after;
        size = size * 3 % 70_001 + 1;
    }
    chunked.extend_from_slice(b"0\r\nDigest: 1\r\n\r\n");
    chunked
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    let requests: String = (0..100)
        .map(|number| match number % 3 {
            0 => format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"),
            1 => format!("POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
            _ => format!(
                "PUT /{number} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                 5\r\nhello\r\n0\r\n\r\n"
            ),
        })
        .collect();
    client.send(requests);
    for number in 0..100 {
        assert_eq!(client.read_response().text(), format!("/{number}"));
        let (_, request) = member.next_request();
        let body = if number % 3 == 0 { "" } else { "hello" };
        assert_eq!(
            (request.second_word(), request.text()),
            (format!("/{number}").as_str(), body)
        );
    }
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    let request = "POST /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
        5;x=y\r\nhello\r\n0\r\nDigest: y\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    for byte in request.bytes() {
        client.send([byte]);
    }
    assert_eq!(client.read_response().text(), "/slow");
    assert_eq!(client.read_response().text(), "/next");
    let (_, request) = member.next_request();
    assert_eq!(
        (request.text(), request.trailers.as_str()),
        ("hello", "Digest: y\r\n")
    );
}

#[test]
fn a_response_may_come_byte_by_byte() {
    let member = Member::start(|script, mut wire| {
        while script.read_request(&mut wire).is_some() {
            let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n\
                5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\n\r\n";
            for byte in response.bytes() {
                wire.send([byte]);
            }
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    for _ in 0..3 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = client.read_response();
        assert_eq!(
            (response.text(), response.trailers.as_str()),
            ("hello!", "X: y\r\n")
        );
    }
}

#[test]
fn responses_without_a_body_keep_the_connection_in_step() {
    let member = Member::answering_with(|request| match request.second_word() {
        "/204" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "/304" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n".to_owned(),
        "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".to_owned(),
        "/head-chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        target => ok_response(target),
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    for (method, target, status) in [
        ("GET", "/204", "204"),
        ("GET", "/304", "304"),
        ("HEAD", "/head", "200"),
        ("HEAD", "/head-chunked", "200"),
    ] {
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_head().second_word(), status, "{target}");
        client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "/next", "after {target}");
    }
}

#[test]
fn a_refusal_of_head_has_no_body() {
    let member = Member::closing_after("garbage\r\n\r\n");
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.read_head().second_word(), "502");
    assert!(client.is_at_end());
}

#[test]
fn a_client_may_wait_for_100_continue() {
    let member = Member::start(|script, mut wire| {
        let head = wire.read_head();
        assert_eq!(head.values("expect"), ["100-continue"]);
        wire.send("HTTP/1.1 100 Continue\r\n\r\n");
        let body = wire.try_read_exact(5).unwrap();
        wire.send(ok_response(std::str::from_utf8(&body).unwrap()));
        while script.read_request(&mut wire).is_some() {
            wire.send(ok_response("next"));
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.read_head().second_word(), "100");
    client.send("hello");
    assert_eq!(client.read_response().text(), "hello");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "next");
}

#[test]
fn a_member_may_refuse_instead_of_continuing() {
    let member = Member::start(|_, mut wire| {
        wire.read_head();
        wire.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno");
        // The body is not read: the balancer must give up on it.
        wire.end_sending();
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.second_word(), response.text()), ("413", "no"));
}

#[test]
fn interim_responses_are_passed_on() {
    let member = Member::start(|script, mut wire| {
        while script.read_request(&mut wire).is_some() {
            wire.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
            wire.send("HTTP/1.1 103 Early Hints\r\nLink: </b>\r\n\r\n");
            wire.send(ok_response("done"));
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_head().values("link"), ["</a>"]);
    assert_eq!(client.read_head().values("link"), ["</b>"]);
    assert_eq!(client.read_response().text(), "done");
    // An HTTP/1.0 client does not know them.
    let mut client = balancer.connect();
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.read_response().text(), "done");
}

#[test]
fn a_switch_of_protocols_makes_a_tunnel() {
    let member = Member::start(|script, mut wire| {
        let request = script.read_request(&mut wire).unwrap();
        assert_eq!(request.values("upgrade"), ["websocket"]);
        assert_eq!(request.values("connection"), ["upgrade"]);
        wire.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\n\r\nfrom member",
        );
        assert_eq!(wire.try_read_exact(11).unwrap(), b"from client");
        wire.send("\0bye");
        assert!(wire.is_at_end());
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send(
        "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\n\
         Upgrade: websocket\r\n\r\nfrom ",
    );
    let response = client.read_head();
    assert_eq!(response.second_word(), "101");
    assert_eq!(response.values("upgrade"), ["websocket"]);
    assert_eq!(client.try_read_exact(11).unwrap(), b"from member");
    client.send("client");
    assert_eq!(client.try_read_exact(4).unwrap(), b"\0bye");
    client.end_sending();
    assert!(client.is_at_end());
}

#[test]
fn a_switch_of_protocols_may_be_declined() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client
        .send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.read_response().text(), "/chat");
    client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "/next");
}

#[test]
fn http_1_0_clients_get_what_they_understand() {
    let member = Member::answering_with(|request| match request.second_word() {
        "/chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            5\r\nhello\r\n1;x\r\n!\r\n0\r\nX: y\r\n\r\n"
            .to_owned(),
        target => ok_response(target),
    });
    let balancer = Balancer::start_http(&[member.address()], "");

    let mut client = balancer.connect();
    client.send("GET /plain HTTP/1.0\r\n\r\n");
    assert_eq!(client.read_response().text(), "/plain");
    assert!(client.is_at_end());
    let (_, request) = member.next_request();
    assert!(request.start_line().ends_with("HTTP/1.1"));
    let host = balancer.address("web").to_string();
    assert_eq!(request.values("host"), [host.as_str()]);

    let mut client = balancer.connect();
    for target in ["/one", "/two"] {
        client.send(format!(
            "GET {target} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        ));
        let response = client.read_response();
        assert_eq!(response.text(), target);
        assert_eq!(response.values("connection"), ["keep-alive"]);
    }
    client.send("GET /chunked HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let response = client.read_head();
    assert!(response.values("transfer-encoding").is_empty());
    assert_eq!(response.values("connection"), ["close"]);
    assert_eq!(client.read_to_end(), b"hello!");
}

#[test]
fn a_body_that_ends_with_the_connection_is_passed_on_whole() {
    let member = Member::closing_after("HTTP/1.0 200 OK\r\n\r\nuntil the end");
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = client.read_response();
    assert_eq!(response.text(), "until the end");
    assert_eq!(response.values("connection"), ["close"]);
}

#[test]
fn the_client_decides_whether_its_connection_goes_on() {
    let member = Member::answering_with(|_| {
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".to_owned()
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    for _ in 0..3 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = client.read_response();
        assert!(response.values("connection").is_empty());
    }
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.read_response().values("connection"), ["close"]);
    assert!(client.is_at_end());
}

/// Sends `bytes` in the background.
fn send_all(wire: &Wire, bytes: Vec<u8>) -> thread::JoinHandle<()> {
    let mut writer = wire.writer();
    thread::spawn(move || writer.send(bytes))
}

#[test]
fn large_chunked_bodies_go_both_ways_unchanged() {
    let body = Arc::new(large_body());
    let (expected, sent) = (Arc::clone(&body), in_chunks(&body));
    let response = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        sent.clone(),
    ]
    .concat();
    let member = Member::start(move |_, mut wire| {
        let request = wire.read_request().unwrap();
        assert!(
            request.body == *expected,
            "the request's body arrives whole"
        );
        assert_eq!(request.trailers, "Digest: 1\r\n");
        wire.send(&response);
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let sending = send_all(&client, sent);
    let response = client.read_response();
    assert!(response.body == *body, "the response's body arrives whole");
    assert_eq!(response.trailers, "Digest: 1\r\n");
    sending.join().unwrap();
}

#[test]
fn a_response_may_begin_before_the_request_has_ended() {
    let body = Arc::new(large_body());
    let member = Member::start({
        let body = Arc::clone(&body);
        move |_, mut wire| {
            wire.read_head();
            wire.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                body.len()
            ));
            // An echo: each part as it comes.
            for _ in body.chunks(64 * 1024) {
                let len = (64 * 1024).min(body.len());
                let Some(part) = wire.try_read_exact(len) else {
                    break;
                };
                wire.send(part);
            }
        }
    });
    // A whole number of parts, so that the echo needs no rest.
    let body = body[..body.len() / (64 * 1024) * (64 * 1024)].to_vec();
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    let head_first = send_all(&client, body.clone());
    client.read_head();
    let echoed = client.try_read_exact(body.len()).unwrap();
    assert!(echoed == body, "the echo is whole");
    head_first.join().unwrap();
}

#[test]
fn a_client_that_does_not_read_holds_the_member_back() {
    let stuck = Arc::new(Signal::default());
    let member = Member::start({
        let stuck = Arc::clone(&stuck);
        move |script, mut wire| {
            let body = large_body();
            if script
                .read_request(&mut wire)
                .is_some_and(|r| r.second_word() == "/other")
            {
                wire.send(ok_response("other"));
                return;
            }
            wire.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                body.len()
            ));
            let sent = wire.send_until_stuck(&body);
            assert!(sent < body.len(), "the balancer has taken it all");
            stuck.release_one();
            wire.send(&body[sent..]);
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    stuck.wait_for_release();
    // Others are served meanwhile.
    let mut other = balancer.connect();
    other.send("GET /other HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(other.read_response().text(), "other");
    let response = client.read_response();
    assert!(response.body == large_body(), "the body arrives whole");
}

#[test]
fn a_member_that_does_not_read_holds_the_client_back() {
    let go_on = Arc::new(Signal::default());
    let member = Member::start({
        let go_on = Arc::clone(&go_on);
        move |_, mut wire| {
            wire.read_head();
            go_on.wait_for_release();
            let body = large_body();
            let arrived = wire.try_read_exact(body.len()).unwrap();
            assert!(arrived == body, "the body arrives whole");
            wire.send(ok_response("whole"));
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "");
    let body = large_body();
    let mut client = balancer.connect();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    let sent = client.send_until_stuck(&body);
    assert!(sent < body.len(), "the balancer has taken it all");
    go_on.release_one();
    client.send(&body[sent..]);
    assert_eq!(client.read_response().text(), "whole");
}

/// Memory of a process that is its own, in bytes.
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

#[test]
fn s7_clients_that_are_slow_with_a_head_cost_little_memory() {
    // So many that tables which double, up to a megabyte once, are shared by enough of them.
    const CLIENTS: usize = 2000;
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).expect("up to the maximum is allowed");
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "");
    let open = |count: usize| -> Vec<Wire> {
        let slow = |_| {
            let mut client = balancer.connect();
            client.send("G");
            client
        };
        let clients = (0..count).map(slow).collect();
        // Whoever came before is served before, by the only worker.
        let mut client = balancer.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.read_response();
        clients
    };
    let _first = open(64);
    let before = resident(balancer.id());
    let mut slow = open(CLIENTS);
    let each = resident(balancer.id()).saturating_sub(before) / CLIENTS as u64;
    println!("{each} bytes each");
    assert!(each <= 8 * 1024, "{each} bytes each");
    // They are not forgotten.
    for client in &mut slow {
        client.send("ET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "/slow");
    }
}

/// All come over one connection, as from a proxy in front: nothing but the key decides.
#[test]
fn requests_with_the_same_key_go_to_the_same_member() {
    let members =
        ["one", "two", "three"].map(|name| Member::answering_with(move |_| ok_response(name)));
    let addresses = members.each_ref().map(Member::address);
    /// The head of a request with a key, and with something else that must not count.
    type Head = fn(u32, u32) -> String;
    let keys: [(&str, Head); 3] = [
        ("path", |key, other| {
            format!("GET /{key}?{other} HTTP/1.1\r\n")
        }),
        ("header:X-User", |key, other| {
            format!("GET /{other} HTTP/1.1\r\nx-user: {key}\r\n")
        }),
        ("cookie:sid", |key, other| {
            format!("GET /{other} HTTP/1.1\r\nCookie: lang={other}; sid={key}\r\n")
        }),
    ];
    for (name, line) in keys {
        let more = format!("strategy = \"hash\"\nhash_key = {name:?}\nslow_start = \"0s\"");
        let balancer = Balancer::start_http(&addresses, &more);
        let mut client = balancer.connect();
        let mut who = |key, other| {
            client.send(format!("{}Host: a\r\n\r\n", line(key, other)));
            client.read_response().text().to_owned()
        };
        let homes: Vec<String> = (0..240).map(|key| who(key, 0)).collect();
        for member in ["one", "two", "three"] {
            let got = homes.iter().filter(|home| *home == member).count();
            // A third is 80 of them; five standard deviations less, or seven more, is a fault.
            assert!((44..130).contains(&got), "{name}: {got} of 240 at {member}");
        }
        for other in 1..4 {
            for (key, home) in (0..).zip(&homes) {
                assert_eq!(who(key, other), *home, "{name} {key}");
            }
        }
    }
}
