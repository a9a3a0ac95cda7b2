//! Time limits of requests and of attempts, and retries at a member that has failed before. No clock is looked at: what
//! would never end without a limit ends.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::*;
use evenkeel_manager::config::Protocol::Http;
use evenkeel_manager::config::{Rule, Status};
use evenkeel_proxy::access::End;

/// Long enough for a request that nobody delays, on a busy machine.
const LIMIT: Option<Duration> = Some(Duration::from_millis(1500));

const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// A member that is silent on the first connections, so many, answers on others, and switches protocols if asked to.
fn silent_at_first(silent: usize) -> SocketAddr {
    member(move |number, mut stream| {
        loop {
            let head = read_head(&mut stream);
            if head.is_empty() {
                return;
            }
            if head.contains("Upgrade: websocket\r\n") {
                let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                    Upgrade: websocket\r\n\r\n";
                stream.write_all(head).unwrap();
                return echo_bytes(stream);
            }
            if number < silent || head.contains("/silent") {
                // Until the balancer gives it up.
                read_head(&mut stream);
                return;
            }
            stream.write_all(&ok("good")).unwrap();
        }
    })
}

/// A member that fails with the first requests for `/fail`, so many, and the number of these requests.
fn failing_at_first(failures: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let address = http_member(move |head| {
        if head.contains("/fail") && count.fetch_add(1, Ordering::SeqCst) < failures {
            return b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops".to_vec();
        }
        ok("good")
    });
    (address, requests)
}

/// A rule whose requests are repeated after a 500, at the same member if there is no other.
fn repeat(rule: &mut Rule) {
    rule.http.retries = 3;
    rule.http.retry_statuses = vec![Status(500)];
    rule.http.retry_same_member = true;
}

fn status_of(client: &mut TcpStream, request: &str) -> String {
    let head = send_request(client, request);
    head.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Time limit that ends a response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LimitOf {
    Request,
    Attempt,
    /// Pause of the member within the response.
    Pause,
}

#[test]
fn a_response_that_does_not_end_in_time_is_cut() {
    // A member that sends has not failed as a server, however long its response is. One that pauses has.
    for (limit_of, failures, in_a_row) in [
        (LimitOf::Request, 0, 0),
        (LimitOf::Attempt, 1, 0),
        (LimitOf::Pause, 1, 1),
    ] {
        let (report, gone) = channel();
        let address = member(move |_, mut stream| {
            read_head(&mut stream);
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nx";
            stream.write_all(head).unwrap();
            if limit_of == LimitOf::Pause {
                read_head(&mut stream);
            }
            // More often than anybody looks at the time.
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(2));
            }
            report.send(()).unwrap();
        });
        let bed = Bed::new(Http, &[address], |rule| match limit_of {
            LimitOf::Request => rule.timeouts.request = LIMIT,
            LimitOf::Attempt => rule.timeouts.attempt = LIMIT,
            LimitOf::Pause => rule.timeouts.response = LIMIT.unwrap(),
        });
        let mut client = bed.connect_client();
        assert_eq!(status_of(&mut client, &get("/")), "200");
        assert!(is_cut(&mut client), "{limit_of:?}");
        gone.recv_timeout(HANG).unwrap();
        let record = bed.next_record();
        assert_eq!((record.end, record.retries), (End::MemberTimeout, 0));
        bed.wait_until_idle();
        let group = bed.group.current.load();
        let slot = &group.members()[0].slot;
        let failed = slot.record().request_totals().failures;
        assert_eq!(
            (failed, slot.consecutive_failures()),
            (failures, in_a_row),
            "{limit_of:?}"
        );
    }
}

#[test]
fn a_request_without_a_response_in_time_gets_504_and_its_connection_goes_on() {
    let bed = Bed::new(Http, &[silent_at_first(0)], |rule| {
        repeat(rule);
        rule.timeouts.request = LIMIT;
    });
    let mut client = bed.connect_client();
    for _ in 0..2 {
        expect_get(&mut client, "/", "good");
        assert_eq!(bed.next_record().end, End::Complete);
        assert_eq!(status_of(&mut client, &get("/silent")), "504");
        expect(&mut client, b"The time limit of the request is over.\n");
        // No time is left for a retry.
        let record = bed.next_record();
        assert_eq!((record.end, record.retries), (End::MemberTimeout, 0));
    }
    bed.wait_until_idle();
}

#[test]
fn a_client_that_is_late_itself_gets_408() {
    let bed = Bed::new(Http, &[silent_at_first(0)], |rule| {
        rule.timeouts.request = LIMIT;
    });
    let mut client = bed.connect_client();
    let post = "POST /silent HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\nhalf";
    assert_eq!(status_of(&mut client, post), "408");
    assert_eq!(bed.next_record().end, End::ClientTimeout);
}

#[test]
fn an_attempt_without_a_response_in_time_is_made_again() {
    // Both members are at the address, so that the first one is silent in any case.
    for (members, same, method, status, retries) in [
        (2, false, "GET", "200", 1),
        (1, true, "GET", "200", 1),
        (1, false, "GET", "504", 0),
        // The member may have done it.
        (1, true, "POST", "504", 0),
    ] {
        let address = silent_at_first(1);
        let bed = Bed::new(Http, &vec![address; members], |rule| {
            rule.timeouts.attempt = LIMIT;
            rule.http.retry_same_member = same;
        });
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let found = status_of(&mut bed.connect_client(), &request);
        let what = format!("{members} members, {same}, {method}");
        assert_eq!(found, status, "{what}");
        assert_eq!(bed.next_record().retries, retries, "{what}");
    }
}

#[test]
fn a_single_member_is_tried_again_if_the_rule_says_so() {
    for (failures, same, status, sent) in [
        (2, true, "200", 3),
        (9, true, "500", 4),
        (2, false, "500", 1),
    ] {
        let (address, requests) = failing_at_first(failures);
        let bed = Bed::new(Http, &[address], |rule| {
            repeat(rule);
            rule.http.retry_same_member = same;
        });
        let mut client = bed.connect_client();
        assert_eq!(status_of(&mut client, &get("/fail")), status);
        // What the client gets is the last response, whole.
        let body = if status == "200" { "good" } else { "oops" };
        expect(&mut client, body.as_bytes());
        assert_eq!(requests.load(Ordering::SeqCst), sent, "{failures} {same}");
        bed.wait_until_idle();
    }
}

#[test]
fn untried_members_come_first() {
    let (address, requests) = failing_at_first(usize::MAX);
    let bed = Bed::new(Http, &[address, silent_at_first(0)], |rule| {
        repeat(rule);
        // However often the member that fails is asked first.
        rule.http.retry_budget = 1.0;
    });
    for asked in 1..=20 {
        assert_eq!(status_of(&mut bed.connect_client(), &get("/fail")), "200");
        assert!(requests.load(Ordering::SeqCst) <= asked);
    }
}

#[test]
fn a_connection_that_cannot_be_opened_is_tried_again() {
    for (same, connects) in [(true, 4), (false, 1)] {
        let bed = Bed::new(Http, &[closed_address()], |rule| {
            repeat(rule);
            rule.http.retry_same_member = same;
        });
        assert_eq!(status_of(&mut bed.connect_client(), &get("/")), "502");
        assert_eq!(bed.rule_totals().member_connect_failures, connects);
    }
}

#[test]
fn connections_to_the_same_member_use_up_the_budget() {
    let bed = Bed::new(Http, &[closed_address()], |rule| {
        repeat(rule);
        rule.http.retries = 10;
        rule.http.retry_budget = 0.0;
    });
    // A budget begins with ten retries, and gets one each second.
    let is_used_up = (0..100).any(|_| {
        assert_eq!(status_of(&mut bed.connect_client(), &get("/")), "502");
        bed.rule_totals().retries_over_budget > 0
    });
    assert!(is_used_up);
}

#[test]
fn a_retry_comes_after_a_pause_that_ends_with_the_request_s_time() {
    let (address, requests) = failing_at_first(1);
    let bed = Bed::new(Http, &[address], |rule| {
        repeat(rule);
        rule.http.retry_backoff = Duration::from_millis(50);
    });
    assert_eq!(status_of(&mut bed.connect_client(), &get("/fail")), "200");
    assert_eq!(requests.load(Ordering::SeqCst), 2);

    let (address, requests) = failing_at_first(1);
    let bed = Bed::new(Http, &[address], |rule| {
        repeat(rule);
        rule.http.retry_backoff = HANG;
        rule.timeouts.request = LIMIT;
    });
    assert_eq!(status_of(&mut bed.connect_client(), &get("/fail")), "504");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    assert_eq!(bed.next_record().end, End::MemberTimeout);
}

#[test]
fn a_pause_takes_no_place_and_ends_with_its_client() {
    let (address, requests) = failing_at_first(1);
    let bed = Bed::new(Http, &[address], |rule| {
        repeat(rule);
        rule.http.retry_backoff = HANG;
    });
    let mut waiting = bed.connect_client();
    waiting.write_all(get("/fail").as_bytes()).unwrap();
    while requests.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    bed.wait_until_idle();
    // The only worker goes on.
    expect_get(&mut bed.connect_client(), "/", "good");
    assert_eq!(bed.next_record().status, Some(200));
    reset_stream(waiting);
    assert_eq!(bed.next_record().end, End::Client);
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[test]
fn a_tunnel_has_no_end_and_the_queue_has() {
    let address = silent_at_first(0);
    let mut all = members(&[address]);
    all[0].max_connections = Some(1);
    let bed = Bed::with_members(Http, all, 16, |rule| {
        rule.timeouts.request = LIMIT;
        rule.timeouts.attempt = LIMIT;
    });
    let mut tunnel = bed.connect_client();
    assert_eq!(status_of(&mut tunnel, UPGRADE), "101");
    // The tunnel has the only place, so this one waits, and has come later.
    assert_eq!(status_of(&mut bed.connect_client(), &get("/")), "504");
    assert_eq!(bed.next_record().end, End::MemberTimeout);
    tunnel.write_all(b"still here").unwrap();
    expect(&mut tunnel, b"still here");
    drop(tunnel);
    assert_eq!(bed.next_record().status, Some(101));
}
