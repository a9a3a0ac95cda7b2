//! Load alerts, as the proxy honours them: what may move does, at a safe moment.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::*;
use evenkeel_core::alert::AlertSettings;
use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::member::Reason;
use evenkeel_manager::config::Protocol;
use evenkeel_proxy::access::End;

/// Leave at once, with as little idle time as there can be.
fn alert() -> AlertSettings {
    AlertSettings {
        shed_time: Duration::ZERO,
        close_idle: Some(Duration::from_millis(100)),
        ..AlertSettings::default()
    }
}

/// Says its number, then sends back what it gets. A `?` gets no answer.
fn named(number: u8) -> SocketAddr {
    member(move |_, mut stream| {
        stream.write_all(&[b'0' + number]).unwrap();
        let mut byte = [0];
        while let Ok(1) = stream.read(&mut byte) {
            if byte[0] != b'?' && stream.write_all(&byte).is_err() {
                return;
            }
        }
    })
}

fn bed(alert: AlertSettings) -> Bed {
    let settings = GroupSettings {
        granularity: Granularity::OnDemand,
        alert,
        ..GroupSettings::default()
    };
    let members = members(&[named(0), named(1)]);
    Bed::with_group(Protocol::Tcp, group(members, settings), 16, |_| {})
}

fn set_shedding(bed: &Bed, index: u8, sheds: bool) {
    let group = bed.group.current.load();
    let slot = &group.members()[usize::from(index)].slot;
    slot.set(Reason::Shedding, sheds);
}

fn greeted(bed: &Bed) -> (TcpStream, u8) {
    let mut client = bed.connect_client();
    let mut number = [0];
    client.read_exact(&mut number).unwrap();
    (client, number[0] - b'0')
}

/// A client at the member `number`.
fn client_of(bed: &Bed, number: u8) -> TcpStream {
    loop {
        let (client, found) = greeted(bed);
        if found == number {
            return client;
        }
    }
}

fn talk(client: &mut TcpStream) {
    client.write_all(b"x").unwrap();
    expect(client, b"x");
}

#[test]
fn idle_connections_are_closed_and_come_back_elsewhere() {
    let bed = bed(alert());
    let (mut idle, mut calm) = (client_of(&bed, 0), client_of(&bed, 1));
    talk(&mut idle);
    set_shedding(&bed, 0, true);
    // In order, not with a reset.
    assert_eq!(read_all(&mut idle), b"");
    for _ in 0..20 {
        assert_eq!(greeted(&bed).1, 1, "nobody new goes there");
    }
    talk(&mut calm);
    bed.wait_for_count(|totals| totals.closed_by_alert, 1);
    let records = std::iter::from_fn(|| Some(bed.next_record()));
    let record = { records }.find(|record| record.end == End::Alert).unwrap();
    assert_eq!(&*record.attempts.unwrap().member, "m1");
}

#[test]
fn whoever_waits_for_an_answer_or_talks_is_left_alone() {
    let bed = bed(AlertSettings {
        close_idle: Some(Duration::from_secs(2)),
        ..alert()
    });
    let (mut waiting, mut busy) = (client_of(&bed, 0), client_of(&bed, 0));
    let mut probe = client_of(&bed, 0);
    waiting.write_all(b"?").unwrap();
    talk(&mut busy);
    set_shedding(&bed, 0, true);
    // It talks until an idle one is gone: never silent for two seconds, even on a machine
    // that has much else to do.
    probe.set_nonblocking(true).unwrap();
    let mut talked = 0;
    while let Err(error) = probe.read(&mut [0]) {
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        busy.write_all(b"?").unwrap();
        talked += 1;
    }
    assert!(talked > 0);
    bed.wait_for_count(|totals| totals.closed_by_alert, 1);
    // The one that waited gets its answer, and is let go only then.
    talk(&mut waiting);
    assert_eq!(read_all(&mut waiting), b"");
    talk(&mut busy);
    assert_eq!(read_all(&mut busy), b"");
    bed.wait_for_count(|totals| totals.closed_by_alert, 3);
}

/// Answers requests with its number, or switches protocols and sends back what it gets.
fn web(number: u8) -> SocketAddr {
    member(move |_, mut stream| {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => return,
                }
            }
            if head
                .windows(7)
                .any(|word| word.eq_ignore_ascii_case(b"upgrade"))
            {
                let switch = "HTTP/1.1 101 Switching Protocols\r\n\
                              Connection: upgrade\r\nUpgrade: echo\r\n\r\n";
                stream.write_all(switch.as_bytes()).unwrap();
                return echo_bytes(stream);
            }
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    })
}

fn web_bed(granularity: Granularity, alert: AlertSettings) -> Bed {
    let settings = GroupSettings {
        granularity,
        alert,
        ..GroupSettings::default()
    };
    let members = members(&[web(0), web(1)]);
    Bed::with_group(Protocol::Http, group(members, settings), 16, |_| {})
}

fn answer_to(client: &mut TcpStream, extra: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{extra}\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    String::from_utf8(answer).unwrap()
}

/// The number of the member that answers.
fn served_by(client: &mut TcpStream) -> u8 {
    answer_to(client, "");
    let mut body = [0];
    client.read_exact(&mut body).unwrap();
    body[0] - b'0'
}

#[test]
fn clients_that_are_bound_leave_between_two_requests() {
    for (granularity, move_sessions, moves) in [
        (Granularity::OnDemand, false, true),
        (Granularity::PerSession, true, true),
        (Granularity::PerSession, false, false),
    ] {
        let alert = AlertSettings {
            move_sessions,
            ..alert()
        };
        let bed = web_bed(granularity, alert);
        let mut clients: Vec<_> = (0..8).map(|_| bed.connect_client()).collect();
        let homes: Vec<_> = clients.iter_mut().map(served_by).collect();
        assert_eq!(clients.iter_mut().map(served_by).collect::<Vec<_>>(), homes);
        let home = homes[0];
        set_shedding(&bed, home, true);
        let now: Vec<_> = clients.iter_mut().map(served_by).collect();
        let expected = if moves {
            vec![1 - home; 8]
        } else {
            homes.clone()
        };
        assert_eq!(now, expected, "{granularity:?} {move_sessions}");
        // They stay where they are when it is over.
        set_shedding(&bed, home, false);
        let then: Vec<_> = clients.iter_mut().map(served_by).collect();
        assert_eq!(then, now);
        let moved = homes.iter().zip(&now).filter(|(a, b)| a != b).count();
        assert_eq!(bed.rule_totals().moved_alert, moved as u64);
    }
}

#[test]
fn an_upgraded_connection_is_closed_when_it_is_idle() {
    let bed = web_bed(Granularity::OnDemand, alert());
    let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n";
    let mut client = bed.connect_client();
    let answer = answer_to(&mut client, upgrade);
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    talk(&mut client);
    // Wherever it is.
    let group = bed.group.current.load();
    let home = group.members().iter().position(|m| m.slot.in_flight() > 0);
    set_shedding(&bed, home.unwrap() as u8, true);
    assert_eq!(read_all(&mut client), b"");
    let record = bed.next_record();
    assert_eq!((record.end, record.status), (End::Alert, Some(101)));
    bed.wait_for_count(|totals| totals.closed_by_alert, 1);
}
