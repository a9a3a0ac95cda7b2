//! TCP rules, with members that behave and members that do not.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::*;
use evenkeel_manager::config::Protocol::Tcp;
use evenkeel_proxy::access::End;

#[test]
fn bytes_go_both_ways_and_the_end_is_carried() {
    let bed = Bed::new(Tcp, &[member(|_, stream| echo_bytes(stream))], |_| {});
    let mut client = bed.connect_client();
    for _ in 0..3 {
        client.write_all(b"ping").unwrap();
        expect(&mut client, b"ping");
    }
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client), b"");
    let record = bed.next_record();
    assert_eq!(
        (record.end, record.bytes_received, record.bytes_sent),
        (End::Complete, 12, 12)
    );
    assert_eq!(&*record.attempts.unwrap().member, "m1");
    assert!(record.response_time.is_some());
    bed.wait_until_idle();
}

#[test]
fn bulk_data_arrives_as_it_was_sent_both_ways_at_once() {
    let bed = Bed::new(Tcp, &[member(|_, stream| echo_bytes(stream))], |_| {});
    let data = byte_pattern(20 << 20);
    let mut client = bed.connect_client();
    let mut sender = client.try_clone().unwrap();
    let sent = data.clone();
    let sending = std::thread::spawn(move || {
        // Small ones between large ones: a flow goes in and out of bulk mode.
        for part in sent.chunks(3 << 20) {
            let (bulk, small) = part.split_at(part.len() - 1000);
            sender.write_all(bulk).unwrap();
            for byte in small.chunks(10) {
                sender.write_all(byte).unwrap();
            }
        }
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let received = read_all(&mut client);
    sending.join().unwrap();
    assert!(received == data);
    assert_eq!(bed.next_record().end, End::Complete);
    let totals = bed.rule_totals();
    assert_eq!(totals.bytes_from_clients, data.len() as u64);
    assert_eq!(totals.bytes_to_clients, data.len() as u64);
}

#[test]
fn a_reader_that_stops_stops_the_writer() {
    let (report, written) = channel();
    let address = member(move |_, mut stream| {
        stream
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut total = 0;
        let block = vec![7; 1 << 20];
        while total < 1 << 30 {
            match stream.write(&block) {
                Ok(n) => total += n,
                Err(_) => break,
            }
        }
        report.send(total).unwrap();
    });
    let bed = Bed::new(Tcp, &[address], |_| {});
    let client = bed.connect_client();
    // The client reads nothing: what the member gets rid of are the kernel's buffers
    // and one buffer or pipe of the proxy.
    assert!(written.recv_timeout(HANG).unwrap() < 128 << 20);
    drop(client);
}

#[test]
fn half_close_can_be_switched_off() {
    let (report, seen) = channel();
    let address = member(move |_, mut stream| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        report.send(all).unwrap();
        // The client's connection ends though this one stays open.
        std::thread::sleep(HANG);
    });
    let bed = Bed::new(Tcp, &[address], |rule| rule.half_close = false);
    let mut client = bed.connect_client();
    client.write_all(b"bye").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client), b"");
    assert_eq!(seen.recv_timeout(HANG).unwrap(), b"bye");
}

#[test]
fn a_connect_that_fails_is_tried_on_another_member() {
    let good = member(|_, stream| echo_bytes(stream));
    let bed = Bed::new(Tcp, &[closed_address(), good, closed_address()], |_| {});
    for _ in 0..20 {
        let mut client = bed.connect_client();
        client.write_all(b"x").unwrap();
        expect(&mut client, b"x");
    }
    let totals = bed.rule_totals();
    assert!(totals.retries > 0);
    assert_eq!(totals.retries, totals.member_connect_failures);
    let waited: u64 = totals.waits.counts_by_limit().map(|(_, count)| count).sum();
    assert_eq!(waited, 20, "each until it was connected");
}

#[test]
fn a_client_for_whom_there_is_no_member_is_cut() {
    let bed = Bed::new(Tcp, &[closed_address()], |_| {});
    assert!(is_cut(&mut bed.connect_client()));
    assert_eq!(bed.next_record().end, End::Member);
    let bed = Bed::new(Tcp, &[], |_| {});
    assert!(is_cut(&mut bed.connect_client()));
    assert_eq!(bed.next_record().end, End::Refused);
    assert_eq!(bed.rule_totals().refused_no_member, 1);
}

#[test]
fn what_a_member_cuts_is_cut_for_the_client() {
    let address = member(|_, mut stream| {
        stream.write_all(b"half of the ans").unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        reset_stream(stream);
    });
    let bed = Bed::new(Tcp, &[address], |_| {});
    let mut client = bed.connect_client();
    expect(&mut client, b"half of the ans");
    client.write_all(b"!").unwrap();
    assert!(is_cut(&mut client));
    assert_eq!(bed.next_record().end, End::Member);
}

#[test]
fn what_a_client_cuts_is_cut_for_the_member() {
    let (report, cut) = channel();
    let address = member(move |_, mut stream| {
        expect(&mut stream, b"half");
        stream.write_all(b"ok").unwrap();
        report.send(is_cut(&mut stream)).unwrap();
    });
    let bed = Bed::new(Tcp, &[address], |_| {});
    let mut client = bed.connect_client();
    client.write_all(b"half").unwrap();
    expect(&mut client, b"ok");
    reset_stream(client);
    assert!(cut.recv_timeout(HANG).unwrap());
    assert_eq!(bed.next_record().end, End::Client);
}

#[test]
fn idle_connections_are_cut() {
    let address = member(|_, stream| echo_bytes(stream));
    // Long enough for what is sent to come back on a machine that has much else to do.
    let bed = Bed::new(Tcp, &[address], |rule| {
        rule.timeouts.idle = Duration::from_secs(3);
    });
    let mut client = bed.connect_client();
    client.write_all(b"x").unwrap();
    expect(&mut client, b"x");
    assert!(is_cut(&mut client));
    assert_eq!(bed.next_record().end, End::ClientTimeout);
}

#[test]
fn members_at_their_limit_are_waited_for_in_a_bounded_queue() {
    let mut members = members(&[member(|_, stream| echo_bytes(stream))]);
    members[0].max_connections = Some(1);
    let bed = Bed::with_members(Tcp, members, 1, |_| {});
    let mut first = bed.connect_client();
    first.write_all(b"1").unwrap();
    expect(&mut first, b"1");
    let mut second = bed.connect_client();
    second.write_all(b"2").unwrap();
    while bed.group.queue.waiting() == 0 {
        std::thread::yield_now();
    }
    assert!(is_cut(&mut bed.connect_client()));
    assert_eq!(bed.rule_totals().refused_queue_full, 1);
    drop(first);
    expect(&mut second, b"2");
    assert_eq!(bed.group.queue.waiting(), 0);
}

#[test]
fn waiting_for_a_member_has_an_end() {
    let mut members = members(&[member(|_, stream| echo_bytes(stream))]);
    members[0].max_connections = Some(1);
    let bed = Bed::with_members(Tcp, members, 1, |rule| {
        rule.timeouts.queue = Duration::from_millis(20);
    });
    let mut first = bed.connect_client();
    first.write_all(b"1").unwrap();
    expect(&mut first, b"1");
    assert!(is_cut(&mut bed.connect_client()));
    assert_eq!(bed.rule_totals().refused_queue_timeout, 1);
}

#[test]
fn clients_above_the_limit_wait_to_be_accepted() {
    let address = member(|_, stream| echo_bytes(stream));
    let mut bed = Bed::new(Tcp, &[address], |rule| rule.max_connections = 2);
    let mut clients: Vec<_> = (0..4).map(|_| bed.connect_client()).collect();
    for client in &mut clients {
        client.write_all(b"x").unwrap();
    }
    expect(&mut clients[0], b"x");
    expect(&mut clients[1], b"x");
    assert_eq!(bed.rule_totals().connections, 2);
    drop(clients.remove(0));
    expect(&mut clients[1], b"x");
    // A higher limit lets the rest in.
    bed.apply_change(|rule| rule.max_connections = 10);
    expect(&mut clients[2], b"x");
}

#[test]
fn a_disabled_rule_keeps_or_cuts_its_connections() {
    let address = member(|_, stream| echo_bytes(stream));
    let mut bed = Bed::new(Tcp, &[address], |_| {});
    let at = bed.address();
    let mut client = bed.connect_client();
    client.write_all(b"1").unwrap();
    expect(&mut client, b"1");
    bed.apply_change(|rule| rule.enabled = false);
    client.write_all(b"2").unwrap();
    expect(&mut client, b"2");
    while std::net::TcpStream::connect(at).is_ok() {
        std::thread::yield_now();
    }
    bed.apply_change(|rule| {
        rule.terminate_on_disable = true;
    });
    assert!(is_cut(&mut client));
    // On again, at another port.
    bed.apply_change(|rule| rule.enabled = true);
    let mut client = bed.connect_client();
    client.write_all(b"3").unwrap();
    expect(&mut client, b"3");
}

#[test]
fn who_waits_for_a_place_is_cut_with_the_rest() {
    let address = member(|_, stream| echo_bytes(stream));
    let mut bed = Bed::new(Tcp, &[address], |rule| rule.max_connections = 1);
    let mut served = bed.connect_client();
    served.write_all(b"1").unwrap();
    expect(&mut served, b"1");
    let mut waits = bed.connect_client();
    waits.write_all(b"2").unwrap();
    bed.apply_change(|rule| {
        rule.enabled = false;
        rule.terminate_on_disable = true;
    });
    assert!(is_cut(&mut served));
    assert!(is_cut(&mut waits));
}

#[test]
fn a_reload_that_changes_nothing_disturbs_nobody() {
    let address = member(|_, stream| echo_bytes(stream));
    let mut bed = Bed::new(Tcp, &[address], |_| {});
    let at = bed.address();
    let mut client = bed.connect_client();
    for _ in 0..20 {
        bed.apply_change(|_| {});
        client.write_all(b"x").unwrap();
        expect(&mut client, b"x");
        let mut other = bed.connect_client();
        other.write_all(b"y").unwrap();
        expect(&mut other, b"y");
    }
    assert_eq!(bed.address(), at);
}

#[test]
fn who_has_connected_before_the_rule_goes_is_served() {
    let address = member(|_, stream| echo_bytes(stream));
    for _ in 0..20 {
        let mut bed = Bed::new(Tcp, &[address], |_| {});
        let mut clients: Vec<_> = (0..50).map(|_| bed.connect_client()).collect();
        bed.remove_rule();
        for client in &mut clients {
            client.write_all(b"x").unwrap();
            expect(client, b"x");
        }
    }
}

#[test]
fn a_listener_that_cannot_be_bound_changes_nothing() {
    use evenkeel_manager::subsystem::Subsystem;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = member(|_, stream| echo_bytes(stream));
    let mut bed = Bed::new(Tcp, &[address], |_| {});
    let (rule, group) = (bed.rule.clone(), bed.group.clone());
    let mut other = rule.clone();
    other.name = "other".into();
    other.listen = vec![taken.local_addr().unwrap().into()];
    let snapshot = |rule| {
        use evenkeel_manager::snapshot::{RuleSnapshot, Target};
        std::sync::Arc::new(RuleSnapshot::new(rule, Target::new(group.clone())))
    };
    let next = evenkeel_manager::snapshot::Snapshot {
        generation: 2,
        rules: vec![snapshot(other), snapshot(rule)],
        ..Default::default()
    };
    let errors = bed.proxy.prepare(&std::sync::Arc::new(next)).err().unwrap();
    assert_eq!(errors.len(), 1);
    let error = errors[0].to_string();
    assert!(
        error.contains("other") && error.contains("cannot listen on"),
        "{error}"
    );
    let mut client = bed.connect_client();
    client.write_all(b"x").unwrap();
    expect(&mut client, b"x");
    bed.apply_change(|_| {});
}

#[test]
fn a_drain_lets_connections_end_and_cuts_what_is_left() {
    let address = member(|_, stream| echo_bytes(stream));
    let bed = Bed::new(Tcp, &[address], |_| {});
    let (mut a, mut b) = (bed.connect_client(), bed.connect_client());
    for client in [&mut a, &mut b] {
        client.write_all(b"x").unwrap();
        expect(client, b"x");
    }
    bed.proxy.drain(HANG);
    a.write_all(b"y").unwrap();
    expect(&mut a, b"y");
    a.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut a), b"");
    bed.proxy.drain(Duration::ZERO);
    assert!(is_cut(&mut b));
    bed.proxy.join_workers();
    assert_eq!(bed.rule_totals().terminated, 1);
}

fn failures(bed: &Bed) -> (u32, u64) {
    let group = bed.group.current.load();
    let slot = &group.members()[0].slot;
    (
        slot.consecutive_failures(),
        slot.record().request_totals().failures,
    )
}

#[test]
fn b12_a_reset_by_a_member_is_no_failure_in_a_row() {
    // With something unread, closing is a reset: whoever sends can bring that about.
    for greets in [true, false] {
        let address = member(move |_, mut stream| {
            if greets {
                stream.write_all(b"?").unwrap();
            }
            expect(&mut stream, b"!");
        });
        let bed = Bed::new(Tcp, &[address], |_| {});
        for _ in 0..5 {
            let mut client = bed.connect_client();
            if greets {
                expect(&mut client, b"?");
            }
            client.write_all(b"!!").unwrap();
            assert!(is_cut(&mut client));
            assert_eq!(bed.next_record().end, End::Member);
        }
        // Before its first byte it counts by its share, against that of the others.
        assert_eq!(failures(&bed), (0, if greets { 0 } else { 5 }));
    }
}
