//! Requests that try ejected members: the member's answer is the client's if it is good, and else another member
//! answers.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::*;
use evenkeel_core::group::GroupSettings;
use evenkeel_core::member::Reason;
use evenkeel_core::observe::TrialTotals;
use evenkeel_manager::config::Protocol::Http;
use evenkeel_proxy::access::End;

/// A proxy that repeats no request of its own accord. Its first member is ejected.
fn bed(addresses: &[SocketAddr]) -> Bed {
    let bed = Bed::new(Http, addresses, |rule| rule.http.retries = 0);
    let group = bed.group.current.load();
    group.members()[0].slot.set(Reason::Ejected, true);
    bed
}

/// Grants the first member a trial, as a round of control does.
fn grant(bed: &Bed) {
    let group = bed.group.current.load();
    group.members()[0].slot.trials().grant_trials(1);
    group.state().set_trials(true);
}

fn totals(bed: &Bed) -> (u64, u64, u64) {
    let group = bed.group.current.load();
    let trials = group.members()[0].slot.trials();
    let TrialTotals {
        sent,
        succeeded,
        failed,
    } = trials.totals();
    (sent, succeeded, failed)
}

fn pending(bed: &Bed) -> u32 {
    let group = bed.group.current.load();
    group.members()[0].slot.trials().pending()
}

/// Waits for the ends of trials: a client may have its answer a moment before.
#[track_caller]
fn wait_for_totals(bed: &Bed, wanted: (u64, u64, u64)) {
    let limit = Instant::now() + HANG;
    while totals(bed) != wanted || pending(bed) > 0 {
        let found = (totals(bed), pending(bed));
        assert!(Instant::now() < limit, "{found:?}, and not {wanted:?}");
        std::thread::yield_now();
    }
}

/// Asks over HTTP/1.1 and HTTP/2, each with a trial before. Returns the bodies of the answers, whose status is 200.
fn ask_both(bed: &Bed) -> [String; 2] {
    grant(bed);
    let mut client = bed.connect_client();
    let head = send_request(&mut client, &get("/"));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut body = [0; 5];
    client.read_exact(&mut body).unwrap();
    grant(bed);
    let mut client = connect_raw(bed);
    client.write_all(&get_frame(1)).unwrap();
    let (_, _, data) = until_frame(&mut client, &[0, RST_STREAM]).unwrap();
    [body.to_vec(), data].map(|body| String::from_utf8(body).unwrap())
}

#[test]
fn a_trial_that_succeeds_is_an_answer() {
    let [tried, other] = ["tried", "other"].map(|name| http_member(move |_| ok(name)));
    let bed = bed(&[tried, other]);
    let mut client = bed.connect_client();
    expect_get(&mut client, "/", "other");
    assert_eq!(ask_both(&bed), ["tried", "tried"]);
    wait_for_totals(&bed, (2, 2, 0));
    // One request takes a trial.
    for _ in 0..10 {
        expect_get(&mut client, "/", "other");
    }
    assert_eq!(totals(&bed), (2, 2, 0));
    assert!(!bed.group.state.has_trials());
    bed.wait_until_idle();
}

#[test]
fn a_trial_that_fails_is_answered_by_another_member() {
    let nonsense = http_member(|_| b"nonsense\r\n\r\n".to_vec());
    let breaks = member(|_, mut stream| drop(read_head(&mut stream)));
    let within = member(|_, mut stream| {
        read_head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConte");
    });
    let hangs = member(|_, mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = http_member(|_| b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops".to_vec());
    let busy = http_member(|_| b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec());
    for (name, bad) in [
        ("nonsense", nonsense),
        ("breaks", breaks),
        ("within the head", within),
        ("hangs", hangs),
        ("error", error),
        ("busy", busy),
        ("closed", closed_address()),
    ] {
        let bed = bed(&[bad, http_member(|_| ok("other"))]);
        assert_eq!(ask_both(&bed), ["other", "other"], "{name}");
        wait_for_totals(&bed, (2, 0, 2));
        assert_eq!(bed.rule_totals().retries, 0, "{name}");
        for _ in 0..2 {
            let record = bed.next_record();
            assert_eq!(
                (record.end, record.status),
                (End::Complete, Some(200)),
                "{name}"
            );
        }
        bed.wait_until_idle();
    }
}

#[test]
fn a_request_that_fails_everywhere_says_nothing_of_the_member() {
    let error = || http_member(|_| b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops".to_vec());
    let bed = bed(&[error(), error()]);
    grant(&bed);
    let head = send_request(&mut bed.connect_client(), &get("/"));
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    wait_for_totals(&bed, (1, 0, 0));
}

/// A member that tells the first line of each request, and answers once it has read `body` bytes more.
fn telling(body: usize) -> (SocketAddr, Receiver<String>) {
    let (sender, told) = channel();
    let sender = std::sync::Mutex::new(sender);
    let address = member(move |_, mut stream| {
        loop {
            let head = read_head(&mut stream);
            let mut rest = vec![0; body];
            if head.is_empty() || stream.read_exact(&mut rest).is_err() {
                return;
            }
            let line = head.lines().next().unwrap().to_owned();
            let _ = sender.lock().unwrap().send(line);
            if stream.write_all(&ok("other")).is_err() {
                return;
            }
        }
    });
    (address, told)
}

#[test]
fn requests_that_change_something_or_are_not_whole_are_no_trials() {
    let (tried, told) = telling(0);
    let (other, _others) = telling(4);
    let bed = bed(&[tried, other]);
    grant(&bed);
    let mut client = bed.connect_client();
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        let head = send_request(&mut client, &request);
        assert!(head.starts_with("HTTP/1.1 200 "), "{method}: {head}");
        expect(&mut client, b"other");
    }
    // The rest of the body of this one comes later.
    let begun = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo";
    client.write_all(begun.as_bytes()).unwrap();
    bed.wait_for_count(|totals| totals.requests, 5);
    client.write_all(b"dy").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
    assert_eq!((totals(&bed), pending(&bed)), ((0, 0, 0), 1));
    assert!(told.try_recv().is_err());
}

#[test]
fn an_answer_that_breaks_off_is_a_failure_of_the_trial() {
    let breaks = member(|_, mut stream| {
        read_head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    });
    let bed = bed(&[breaks, http_member(|_| ok("other"))]);
    grant(&bed);
    let mut client = bed.connect_client();
    client.write_all(get("/").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(answer.ends_with(b"half"));
    wait_for_totals(&bed, (1, 1, 1));
}

#[test]
fn a_client_that_leaves_ends_its_trial_without_a_result() {
    let hangs = member(|_, mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let bed = bed(&[hangs, http_member(|_| ok("other"))]);
    // The trial lasts longer than the client.
    let group = bed.group.current.load();
    let ticket = group.bind(1, bed.clock.now()).unwrap();
    let late = bed.clock.now().after(Duration::from_secs(100));
    ticket.finish(evenkeel_core::group::Outcome::Success, late);
    drop(group);
    grant(&bed);
    let mut client = bed.connect_client();
    client.write_all(get("/").as_bytes()).unwrap();
    let limit = Instant::now() + HANG;
    while totals(&bed).0 == 0 {
        assert!(Instant::now() < limit);
        std::thread::yield_now();
    }
    reset_stream(client);
    wait_for_totals(&bed, (1, 0, 0));
}

#[test]
fn no_request_tries_members_if_that_is_not_wanted() {
    let [tried, other] = ["tried", "other"].map(|name| http_member(move |_| ok(name)));
    let mut settings = GroupSettings::default();
    settings.ejection.trials = false;
    let group = group(members(&[tried, other]), settings);
    let bed = Bed::with_group(Http, group, 16, |_| {});
    let members = bed.group.current.load();
    members.members()[0].slot.set(Reason::Ejected, true);
    assert_eq!(ask_both(&bed), ["other", "other"]);
    assert_eq!(totals(&bed), (0, 0, 0));
}
