//! mod_evenkeel in Apache httpd: what it counts, and how it sends clients back.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use arm::page::{self, Lease, Reader, Sample};
use evenkeel_e2e::httpd::{Httpd, MPMS, can_run, eventually_sampled};
use evenkeel_e2e::process::{Signal, signal};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::{Message, Wire};

/// Fits no buffer between a server and a client that does not read.
const LARGE: usize = 64 * 1024 * 1024;

fn with_each_mpm(lines: &str, test: impl Fn(&mut Httpd, &mut Reader)) {
    if !can_run() {
        return;
    }
    for mpm in MPMS {
        let mut httpd = Httpd::start(mpm, lines);
        let mut page = httpd.page();
        test(&mut httpd, &mut page);
    }
}

fn ask(wire: &mut Wire, target: &str) -> Message {
    wire.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    wire.read_response()
}

fn get(address: SocketAddr, target: &str) -> Message {
    ask(&mut Wire::connect(address), target)
}

fn sample(page: &mut Reader) -> Sample {
    page.sample(page::monotonic_nanos()).unwrap()
}

/// Waits for so many transactions to stop: a client has its response a moment before.
fn stopped(page: &mut Reader, count: u64) -> Sample {
    let what = format!("{count} transactions have stopped");
    eventually_sampled(&what, page, |sample| {
        let stopped = sample.good + sample.aborted + sample.failed;
        assert!(stopped <= count, "{stopped} of {count} have stopped");
        stopped == count
    })
}

#[test]
fn each_request_counts_once() {
    with_each_mpm("", |httpd, page| {
        let port = httpd.address().port();
        assert_eq!(page.application(), format!("apache.example:{port}"));
        httpd.put_document("part", "part");
        let include = "<!--#include virtual=\"/files/part\" -->";
        httpd.put_document("whole.shtml", format!("{include} and {include}"));
        let mut wire = Wire::connect(httpd.address());
        for _ in 0..3 {
            assert_eq!(ask(&mut wire, "/files/name").text(), "name");
        }
        // Subrequests, and an internal redirect.
        assert_eq!(ask(&mut wire, "/files/whole.shtml").text(), "part and part");
        let lost = ask(&mut wire, "/nowhere");
        assert_eq!((lost.second_word(), lost.text()), ("404", "lost"));
        let broken = ask(&mut wire, "/broken");
        assert_eq!(broken.second_word(), "503");
        // Pipelined, on another connection: that one is closed.
        let mut wire = Wire::connect(httpd.address());
        wire.send("GET /files/name HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3));
        for _ in 0..3 {
            assert_eq!(wire.read_response().text(), "name");
        }
        // About the server, and not of it.
        wire.send("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(wire.read_response().second_word(), "200");
        let counted = stopped(page, 9);
        assert_eq!((counted.starts, counted.in_flight, counted.lost), (9, 0, 0));
        assert_eq!((counted.failed, counted.aborted), (1, 0));
        // Never two at once; the server may still be at the end of one when the next comes.
        assert!(counted.alone > 0 && counted.busy <= counted.response_time);

        // Many at once.
        let clients: Vec<_> = (0..6)
            .map(|_| {
                let address = httpd.address();
                thread::spawn(move || {
                    let mut wire = Wire::connect(address);
                    for _ in 0..50 {
                        assert_eq!(ask(&mut wire, "/files/name").text(), "name");
                    }
                })
            })
            .collect();
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        let counted = stopped(page, 309);
        assert_eq!(
            (counted.starts, counted.in_flight, counted.lost),
            (309, 0, 0)
        );
        assert_eq!(counted.histogram.count(), 309);
    });
}

#[test]
fn a_client_thinks_between_its_requests() {
    let lines = "RemoteIPHeader X-Client\nRemoteIPInternalProxy 127.0.0.0/8";
    with_each_mpm(lines, |httpd, page| {
        let mut served = 0;
        let mut serve = |client: &str, page: &mut Reader| {
            let mut wire = Wire::connect(httpd.address());
            wire.send(format!(
                "GET /files/name HTTP/1.1\r\nHost: a\r\nX-Client: {client}\r\n\r\n"
            ));
            assert_eq!(wire.read_response().text(), "name");
            served += 1;
            stopped(page, served)
        };
        let start = page::monotonic_nanos();
        serve("192.0.2.1", page);
        serve("192.0.2.2", page);
        assert_eq!(serve("2001:db8::1", page).thinks, 0);
        let end = serve("192.0.2.1", page);
        assert_eq!(end.thinks, 1);
        let all = Duration::from_nanos(end.at - start);
        assert!(end.think_time > Duration::ZERO && end.think_time < all);
        assert_eq!(serve("2001:db8::1", page).thinks, 2);
    });
}

#[test]
fn a_response_is_in_flight_until_it_is_sent_and_aborted_if_the_client_leaves() {
    with_each_mpm("", |httpd, page| {
        httpd.put_document("large", vec![b'x'; LARGE]);
        let request = "GET /files/large HTTP/1.1\r\nHost: a\r\n\r\n";
        let (mut leaving, mut staying) = (
            Wire::connect(httpd.address()),
            Wire::connect(httpd.address()),
        );
        leaving.send(request);
        staying.send(request);
        // Both are about to send for as long as nobody reads.
        leaving.read_head();
        staying.read_head();
        assert_eq!(sample(page).in_flight, 2);
        drop(leaving);
        let left = eventually_sampled("one is aborted", page, |sample| sample.aborted == 1);
        assert_eq!((left.in_flight, left.good, left.failed), (1, 0, 0));
        staying.try_read_exact(LARGE).unwrap();
        let counted = stopped(page, 2);
        assert_eq!((counted.good, counted.aborted, counted.alone), (1, 1, 0));
        assert!(counted.busy < counted.response_time);
    });
}

#[test]
fn under_alert_clients_are_sent_to_the_balancer_with_what_they_asked_for() {
    let lines = "EvenkeelBalancer http://balancer.example:8080/\n\
                 EvenkeelShedExempt /health /status/";
    with_each_mpm(lines, |httpd, page| {
        httpd.put_document("health", "");
        let address = httpd.address();
        assert_eq!(get(address, "/files/name").second_word(), "200");
        stopped(page, 1);

        let alert = Lease::new(page::monotonic_nanos(), Duration::from_secs(300));
        page.set_alert(Some(alert)).unwrap();
        let mut wire = Wire::connect(address);
        for (target, path) in [
            ("/files/name?a=b&c=%20", "/files/name?a=b&c=%20"),
            ("/", "/"),
            ("/healthy", "/healthy"),
            ("/a%0d%0aSet-Cookie:x", "/a%0d%0aSet-Cookie:x"),
            ("//evil.example/x", "/evil.example/x"),
            ("http://evil.example/x?y", "/x?y"),
        ] {
            let answer = ask(&mut wire, target);
            assert_eq!(answer.second_word(), "307", "{target}");
            let url = format!("http://balancer.example:8080{path}");
            assert_eq!(answer.values("Location"), [url], "{target}");
            assert_eq!(answer.values("Cache-Control"), ["no-store"]);
        }
        // Whatever the method: 307 keeps it.
        wire.send("POST /files/name HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(wire.read_response().second_word(), "307");
        // What is sent away is no load of this server.
        assert_eq!(sample(page).starts, 1);
        // Health checks are answered by the server itself.
        for target in ["/health", "/health/deep", "/status/x", "/health?x"] {
            assert_eq!(ask(&mut wire, target).second_word(), "404", "{target}");
        }
        stopped(page, 5);

        page.set_alert(None).unwrap();
        assert_eq!(ask(&mut wire, "/files/name").second_word(), "200");
        // An alert ends by itself.
        page.set_alert(Some(Lease::new(
            page::monotonic_nanos(),
            Duration::from_millis(300),
        )))
        .unwrap();
        wait_until("the alert is over", || {
            ask(&mut wire, "/files/name").second_word() == "200"
        });
    });
}

#[test]
fn requests_of_proxies_and_of_servers_that_do_not_shed_are_served_under_alert() {
    let served = [
        "EvenkeelBalancer http://b.example\nEvenkeelProxy 192.0.2.1 127.0.0.0/8",
        "EvenkeelBalancer http://b.example\nEvenkeelShed Off",
        "",
    ];
    if !can_run() {
        return;
    }
    for lines in served {
        let httpd = Httpd::start("event", lines);
        let alert = Lease::new(page::monotonic_nanos(), Duration::from_secs(300));
        httpd.page().set_alert(Some(alert)).unwrap();
        assert_eq!(
            get(httpd.address(), "/files/name").second_word(),
            "200",
            "{lines}"
        );
    }
    // Another address is no proxy.
    let lines = "EvenkeelBalancer https://b.example/in/\nEvenkeelProxy ::1 192.0.2.0/24";
    let httpd = Httpd::start("event", lines);
    let alert = Lease::new(page::monotonic_nanos(), Duration::from_secs(300));
    httpd.page().set_alert(Some(alert)).unwrap();
    let answer = get(httpd.address(), "/x");
    assert_eq!(answer.values("Location"), ["https://b.example/in/x"]);
}

#[test]
fn a_virtual_host_may_be_an_application_of_its_own() {
    if !can_run() {
        return;
    }
    let lines = "EvenkeelApplication shop\n\
                 <VirtualHost *>\nServerName main\n</VirtualHost>\n\
                 <VirtualHost *>\nServerName other\nEvenkeelApplication other\n</VirtualHost>";
    let httpd = Httpd::start("event", lines);
    let mut pages = httpd.pages();
    pages.sort_by(|a, b| a.application().cmp(b.application()));
    let names: Vec<_> = pages.iter().map(Reader::application).collect();
    assert_eq!(names, ["other", "shop"]);
    for host in ["main", "other", "main"] {
        let mut wire = Wire::connect(httpd.address());
        wire.send(format!("GET /files/name HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        wire.read_response();
    }
    stopped(&mut pages[0], 1);
    stopped(&mut pages[1], 2);
}

#[test]
fn a_killed_child_leaves_nothing_in_flight() {
    with_each_mpm("", |httpd, page| {
        httpd.put_document("large", vec![b'x'; LARGE]);
        let mut wire = Wire::connect(httpd.address());
        wire.send("GET /files/large HTTP/1.1\r\nHost: a\r\n\r\n");
        wire.read_head();
        assert_eq!(sample(page).in_flight, 1);
        for child in httpd.children() {
            signal(child, Signal::KILL);
        }
        eventually_sampled("nothing is in flight", page, |sample| sample.in_flight == 0);
        // The parent has new ones, whose requests count as before, and the dead one's is
        // written off.
        wait_until("a request is served", || {
            let mut wire = Wire::connect(httpd.address());
            wire.try_send("GET /files/name HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                && wire
                    .try_read_head()
                    .is_some_and(|head| head.second_word() == "200")
        });
        let after = eventually_sampled("it is counted", page, |sample| {
            sample.good == 1 && sample.in_flight == 0
        });
        assert_eq!((after.starts, after.lost, after.ends), (2, 1, 0));
    });
}

#[test]
fn a_graceful_restart_loses_nothing_and_an_end_is_seen() {
    with_each_mpm("", |httpd, page| {
        httpd.put_document("large", vec![b'x'; LARGE]);
        assert_eq!(get(httpd.address(), "/files/name").second_word(), "200");
        stopped(page, 1);
        let mut wire = Wire::connect(httpd.address());
        wire.send("GET /files/large HTTP/1.1\r\nHost: a\r\n\r\n");
        wire.read_head();
        for _ in 0..2 {
            httpd.restart_gracefully();
            let during = sample(page);
            assert!(during.processes > 0);
            assert_eq!(during.in_flight, 1);
        }
        assert_eq!(get(httpd.address(), "/files/name").second_word(), "200");
        wire.try_read_exact(LARGE).unwrap();
        let before = stopped(page, 3);
        assert_eq!((before.good, before.lost), (3, 0));
        httpd.stop_process();
        let interval = sample(page).interval_since(&before);
        assert_eq!((interval.processes, interval.in_flight), (0, 0));
        assert!(interval.ended && !interval.restarted);
    });
}

#[test]
fn httpd_serves_where_there_is_no_place_for_a_page() {
    if !can_run() {
        return;
    }
    for mpm in MPMS {
        let httpd = Httpd::start_without_pages(mpm);
        let mut wire = Wire::connect(httpd.address());
        for _ in 0..10 {
            assert_eq!(ask(&mut wire, "/files/name").text(), "name");
        }
        assert!(
            httpd
                .log()
                .contains("no agent can see the requests of 'apache.example:")
        );
    }
}

#[test]
fn wrong_settings_are_refused_with_what_is_wrong() {
    if !can_run() {
        return;
    }
    let long = format!("EvenkeelApplication {}", "x".repeat(128));
    for (lines, expected) in [
        (long.as_str(), "1 to 127 bytes"),
        ("EvenkeelApplication \"a\tb\"", "control characters"),
        (
            "EvenkeelBalancer balancer:80",
            "not like http://balancer.example:8080",
        ),
        ("EvenkeelBalancer ftp://a", "not like"),
        ("EvenkeelBalancer http://", "not like"),
        (
            "EvenkeelBalancer \"http://a b\"",
            "a character that no URL has",
        ),
        (
            "EvenkeelBalancer http://me@a/",
            "no user, query or fragment",
        ),
        ("EvenkeelBalancer http://a/?b", "no user, query or fragment"),
        ("EvenkeelShed maybe", "On or Off"),
        ("EvenkeelShed On", "there is no EvenkeelBalancer"),
        ("EvenkeelShedExempt health", "does not start with a slash"),
        ("EvenkeelProxy somewhere", "neither an address nor like"),
        ("EvenkeelProxy 10.0.0.0/99", "neither an address nor like"),
    ] {
        let refusal = Httpd::complaint_about(lines);
        assert!(refusal.contains(expected), "{lines}: {refusal}");
    }
}
