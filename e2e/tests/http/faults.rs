//! Members and clients that fail in the middle of things. What must hold: no wrong body,
//! no hang, and no request lost that could be answered.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::sync::Arc;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::member::{Member, Seen, Signal, ok_response};
use evenkeel_e2e::server::address;
use evenkeel_e2e::wire::Ended;

#[test]
fn a_body_that_breaks_off_breaks_off_for_the_client_too() {
    for start in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n",
    ] {
        let member = Member::closing_after(start);
        let balancer = Balancer::start_http(&[member.address()], "");
        let mut client = balancer.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
        let all = String::from_utf8(client.read_to_end()).unwrap();
        // The client sees an unfinished body: neither an end nor a second response.
        assert_eq!(all.matches("HTTP/1.1").count(), 1, "{start:?} gave {all:?}");
        assert!(!all.ends_with("\r\n0\r\n\r\n"), "{start:?} gave {all:?}");
        assert!(all.contains("hello"), "{start:?} gave {all:?}");
    }
}

#[test]
fn a_body_with_bad_chunks_breaks_off() {
    let member = Member::closing_after(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n+5\r\nworld\r\n0\r\n\r\n",
    );
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let all = String::from_utf8(client.read_to_end()).unwrap();
    assert!(
        !all.contains("world") && !all.contains("\r\n0\r\n\r\n"),
        "{all:?}"
    );
}

#[test]
fn a_member_that_closes_at_once_costs_no_request() {
    // It takes the connection, and closes it when the request comes.
    let bad = Member::start(|script, mut wire| {
        script.read_request(&mut wire);
    });
    let good = Member::echoing_targets();
    let balancer = Balancer::start_http(
        &[bad.address(), good.address()],
        "[rule.web.http]\nretry_budget = 1.0",
    );
    let mut client = balancer.connect();
    for number in 0..50 {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = client.read_response();
        assert_eq!(
            (response.second_word(), response.text()),
            ("200", &*format!("/{number}"))
        );
    }
}

#[test]
fn a_member_that_is_not_there_costs_no_request() {
    let gone = address();
    let good = Member::echoing_targets();
    let balancer = Balancer::start_http(&[gone, good.address()], "");
    let mut client = balancer.connect();
    for number in 0..50 {
        client.send(format!(
            "POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
        ));
        let response = client.read_response();
        assert_eq!(
            (response.second_word(), response.text()),
            ("200", &*format!("/{number}"))
        );
        assert_eq!(good.next_request().1.text(), "hi");
    }
}

#[test]
fn a_connection_that_the_member_closed_while_idle_costs_no_request() {
    let member = Member::start(|script, mut wire| {
        // One request a connection, but it does not say so.
        if let Some(request) = script.read_request(&mut wire) {
            wire.send(ok_response(request.second_word()));
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "[rule.web.http]\nretry_budget = 1.0");
    let mut client = balancer.connect();
    for number in 0..50 {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_response().text(), format!("/{number}"));
    }
}

#[test]
fn a_post_is_not_sent_twice() {
    let member = Member::start(|script, mut wire| {
        script.read_request(&mut wire);
    });
    let other = Member::start(|script, mut wire| {
        script.read_request(&mut wire);
    });
    let members = [member.address(), other.address()];
    let balancer = Balancer::start_http(&members, "[rule.web.http]\nretry_budget = 1.0");
    let mut client = balancer.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(client.read_response().second_word(), "502");
    let requests = member.seen_events().len() + other.seen_events().len();
    assert_eq!(
        requests, 1,
        "a request that may have had an effect is not repeated"
    );
}

#[test]
fn a_member_that_never_answers_is_given_up() {
    let given_up = Arc::new(Signal::default());
    let member = Member::start({
        let given_up = Arc::clone(&given_up);
        move |script, mut wire| {
            script.read_request(&mut wire);
            assert!(wire.is_at_end());
            given_up.release_one();
        }
    });
    let more = "response_timeout = \"200ms\"\n[rule.web.http]\nretries = 0";
    let balancer = Balancer::start_http(&[member.address()], more);
    let mut client = balancer.connect();
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().second_word(), "504");
        given_up.wait_for_release();
    }
}

#[test]
fn a_body_that_stops_coming_is_given_up() {
    let given_up = Arc::new(Signal::default());
    let member = Member::start({
        let given_up = Arc::clone(&given_up);
        move |script, mut wire| {
            script.read_request(&mut wire);
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
            assert!(wire.is_at_end());
            given_up.release_one();
        }
    });
    // Long enough for the head to arrive on a machine that has much else to do.
    let balancer = Balancer::start_http(&[member.address()], "response_timeout = \"3s\"");
    let mut client = balancer.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.read_head();
    assert_eq!(client.read_to_end(), b"hello");
    given_up.wait_for_release();
}

#[test]
fn a_client_that_goes_away_costs_the_others_nothing() {
    let gone = Arc::new(Signal::default());
    let member = Member::start({
        let gone = Arc::clone(&gone);
        move |script, mut wire| {
            while let Some(request) = script.read_request(&mut wire) {
                if request.second_word() == "/slow" {
                    gone.wait_for_release();
                    // More than fits into the sockets: the balancer finds nobody there.
                    let large = "x".repeat(8 << 20);
                    wire.try_send(ok_response(&large));
                } else if !wire.try_send(ok_response(request.second_word())) {
                    break;
                }
            }
        }
    });
    let balancer = Balancer::start_http(&[member.address()], "max_connections = 1");
    for _ in 0..5 {
        let mut client = balancer.connect();
        client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(member.next_request().1.second_word(), "/slow");
        drop(client);
        gone.release_one();
        // There is room for one connection: this one waits for the end of the other.
        let mut client = balancer.connect();
        client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "/next");
        member.next_request();
    }
}

#[test]
fn a_client_that_goes_away_within_its_body_breaks_the_request_off() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "");
    for half in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ] {
        let mut client = balancer.connect();
        client.send(half);
        client.end_sending();
        client.read_to_end();
        // The member sees that this was no whole request, or never hears of it.
        let mut client = balancer.connect();
        client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "/next");
        assert_eq!(member.next_request().1.second_word(), "/next", "{half:?}");
    }
}

#[test]
fn a_request_broken_off_is_broken_off_for_the_member() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "");
    let mut client = balancer.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    client.send(vec![b'x'; 500_000]);
    drop(client);
    assert_eq!(member.next(), Seen::End(0, Ended::Within));
}

#[test]
fn slow_heads_are_refused() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "header_timeout = \"200ms\"");
    let mut client = balancer.connect();
    client.send("GET / HTTP/1.1\r\nHost:");
    assert_eq!(client.read_response().second_word(), "408");
    assert!(client.is_at_end());
}

#[test]
fn slow_bodies_are_refused() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "body_timeout = \"200ms\"");
    let mut client = balancer.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert_eq!(client.read_response().second_word(), "408");
    assert!(client.is_at_end());
}

#[test]
fn idle_connections_end_in_silence() {
    let member = Member::echoing_targets();
    let balancer = Balancer::start_http(&[member.address()], "keep_alive_timeout = \"200ms\"");
    let mut client = balancer.connect();
    assert!(client.is_at_end());
}

#[test]
fn heads_have_limits() {
    let member = Member::echoing_targets();
    let more = "[rule.web.http]\nmax_header_bytes = 2048\nmax_header_count = 10";
    let balancer = Balancer::start_http(&[member.address()], more);
    let large = "x".repeat(3000);
    for (head, status) in [
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {large}\r\n\r\n"),
            "431",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(10)),
            "431",
        ),
        (format!("GET /{large} HTTP/1.1\r\nHost: a\r\n\r\n"), "414"),
    ] {
        let mut client = balancer.connect();
        client.send(head);
        assert_eq!(client.read_head().second_word(), status);
    }
    assert_eq!(member.seen_events(), []);
}

#[test]
fn responses_have_limits() {
    let large = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(3000));
    let endless = "HTTP/1.1 200 OK\r\n".to_owned() + &"X: y\r\n".repeat(200);
    for answer in [large, endless] {
        let member = Member::closing_after(answer);
        let more = "[rule.web.http]\nmax_header_bytes = 2048\nmax_header_count = 10";
        let balancer = Balancer::start_http(&[member.address()], more);
        let mut client = balancer.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().second_word(), "502");
    }
}
