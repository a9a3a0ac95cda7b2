#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::query::{Answer, LONGEST, SHORT, WITH_PORTS};
use crate::record::{Base, Cpu, Scope, Source};

fn key(number: u16) -> Key {
    Key::new(number, [number as u8 + 1; 16])
}

fn record() -> Whole {
    let mut base = Base::new(Source::User, Scope::Machine);
    base.cpus = 2;
    base.capacity = 2000;
    base.totals.running = 7;
    Whole {
        base,
        ports: Vec::new(),
        cpus: vec![Cpu::default(); 2],
    }
}

fn responder(rate: u32) -> Responder {
    Responder::new(Settings {
        keys: vec![key(1), key(2)],
        allow: vec!["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
        rate,
        hosts: vec![Host::from_name("web-1"), Host::from_name("10.0.0.1")],
    })
}

fn query(number: u64) -> Query {
    Query {
        length: SHORT as u16,
        target: 0,
        first_cpu: 0,
        reader: 5,
        number,
        host: Host::from_name("web-1"),
    }
}

fn datagram(query: &Query, key: &Key) -> Vec<u8> {
    let mut datagram = Vec::new();
    query.write(key, &mut datagram);
    datagram
}

const NOW: Duration = Duration::from_secs(1000);

fn ask(responder: &mut Responder, datagram: &mut [u8]) -> Verdict {
    ask_from("10.1.2.3", NOW, responder, datagram)
}

fn ask_from(from: &str, now: Duration, responder: &mut Responder, bytes: &mut [u8]) -> Verdict {
    let whole = record();
    let before = bytes.to_vec();
    let verdict =
        responder.answer_query(from.parse().unwrap(), bytes, now, |target| match target {
            0 => Ok(&whole),
            1 => Err(Verdict::Gone),
            _ => Err(Verdict::Target),
        });
    assert_eq!(verdict != Verdict::Answered, bytes == before, "{verdict:?}");
    verdict
}

#[test]
fn queries_of_every_length_are_answered_as_long_as_they_are() {
    let mut responder = responder(0);
    for (number, length) in [SHORT, WITH_PORTS, WITH_PORTS + 176, LONGEST]
        .into_iter()
        .enumerate()
    {
        let query = Query {
            length: length as u16,
            ..query(number as u64 + 1)
        };
        let mut bytes = datagram(&query, &key(2));
        assert_eq!(ask(&mut responder, &mut bytes), Verdict::Answered);
        let answer = Answer::parse(&bytes, &key(2)).unwrap();
        assert_eq!(answer.query, query);
        assert_eq!(answer.record.base.totals.running, 7);
        let room = (length.saturating_sub(WITH_PORTS)) / 176;
        assert_eq!(answer.record.cpus().count(), room.min(2));
    }
    assert_eq!(responder.counters().count_of(Verdict::Answered), 4);
}

#[test]
fn everything_else_is_counted_and_left_as_it_is() {
    let mut responder = responder(0);
    let good = datagram(&query(9), &key(1));
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let target = |target| {
        let query = Query { target, ..query(7) };
        datagram(&query, &key(1))
    };
    let (gone, mut unknown) = (target(1), target(2));
    let cases = [
        (Vec::new(), Verdict::Foreign),
        (b"GET / HTTP/1.1".to_vec(), Verdict::Foreign),
        (good[..47].to_vec(), Verdict::Length),
        (good[..good.len() - 1].to_vec(), Verdict::Length),
        (change(4, 9), Verdict::Version),
        (change(5, 2), Verdict::Field),
        (change(14, 1), Verdict::Field),
        (change(8, 3), Verdict::Key),
        (change(8, 2), Verdict::Code),
        (change(16, 77), Verdict::Code),
        (change(32, good[32] ^ 1), Verdict::Code),
        (change(47, good[47] ^ 1), Verdict::Code),
        (gone, Verdict::Gone),
    ];
    for (mut bytes, expected) in cases {
        let before = responder.counters().count_of(expected);
        assert_eq!(ask(&mut responder, &mut bytes), expected);
        assert_eq!(responder.counters().count_of(expected), before + 1);
    }
    unknown[24] = 8;
    assert_eq!(ask(&mut responder, &mut unknown), Verdict::Code);
    assert_eq!(responder.counters().count_of(Verdict::Answered), 0);
    // It was good, and is so once.
    assert_eq!(ask(&mut responder, &mut good.clone()), Verdict::Answered);
    assert_eq!(ask(&mut responder, &mut good.clone()), Verdict::Replay);
    let mut older = datagram(&query(8), &key(1));
    assert_eq!(ask(&mut responder, &mut older), Verdict::Replay);
    let mut unknown = datagram(
        &Query {
            target: 2,
            ..query(10)
        },
        &key(1),
    );
    assert_eq!(ask(&mut responder, &mut unknown), Verdict::Target);
    let all: u64 = responder.counters().iter().map(|(_, count)| count).sum();
    assert_eq!(all, 18);
}

/// Two back-ends have one key. What is asked of one is not answered by the other, whoever on
/// the path sends it there, and an answer cannot be rewritten into one of the other.
#[test]
fn s21_who_is_not_meant_does_not_answer() {
    let mut responder = responder(0);
    let mut ask = |host: Host, number: u64| {
        let query = Query {
            host,
            ..query(number)
        };
        let mut bytes = datagram(&query, &key(1));
        (ask(&mut responder, &mut bytes), bytes)
    };
    assert_eq!(ask(Host::from_name("web-2"), 9).0, Verdict::OtherHost);
    assert_eq!(ask(Host::from_name("10.0.0.2"), 9).0, Verdict::OtherHost);
    // What was not meant for it is no number of its reader.
    let (verdict, answer) = ask(Host::from_name("web-1"), 1);
    assert_eq!(verdict, Verdict::Answered);
    assert_eq!(ask(Host::from_name("10.0.0.1"), 2).0, Verdict::Answered);
    assert_eq!(ask(Host::ANY, 3).0, Verdict::Answered);
    let mut forged = answer;
    forged[32..40].copy_from_slice(&Host::from_name("web-2").id().to_le_bytes());
    assert_eq!(
        Answer::parse(&forged, &key(1)),
        Err(crate::query::BadDatagram::Mac)
    );
}

#[test]
fn only_addresses_on_the_list_are_answered() {
    let mut responder = responder(0);
    for (number, (from, expected)) in [
        ("11.0.0.1", Verdict::NotAllowed),
        ("::2", Verdict::NotAllowed),
        ("::1", Verdict::Answered),
        ("::ffff:10.0.0.1", Verdict::Answered),
    ]
    .into_iter()
    .enumerate()
    {
        let mut bytes = datagram(&query(number as u64 + 1), &key(1));
        assert_eq!(
            ask_from(from, NOW, &mut responder, &mut bytes),
            expected,
            "{from}"
        );
    }
}

#[test]
fn an_address_may_ask_so_often() {
    let mut responder = responder(1000);
    let mut number = 0;
    let mut answered = |from: &str, queries: u32, now: Duration| {
        let verdicts = (0..queries).map(|_| {
            number += 1;
            let mut bytes = datagram(&query(number), &key(1));
            ask_from(from, now, &mut responder, &mut bytes)
        });
        let verdicts: Vec<_> = verdicts.collect();
        let only = [Verdict::Answered, Verdict::Rate];
        assert!(verdicts.iter().all(|verdict| only.contains(verdict)));
        let answered = verdicts.iter().filter(|v| **v == Verdict::Answered);
        answered.count()
    };
    // A tenth of a second's at once, and one that is due.
    assert_eq!(answered("10.0.0.1", 200, NOW), 101);
    assert_eq!(answered("10.0.0.2", 5, NOW), 5);
    let later = NOW + Duration::from_millis(20);
    assert_eq!(answered("10.0.0.1", 200, later), 20);
    let later = later + Duration::from_secs(9);
    assert_eq!(answered("10.0.0.1", 200, later), 101);
}

#[test]
fn readers_beyond_those_that_are_known_do_not_fill_the_memory() {
    let mut responder = responder(0);
    let mut ask_as = |reader: u64, number: u64| {
        let query = Query {
            reader,
            ..query(number)
        };
        ask(&mut responder, &mut datagram(&query, &key(1)))
    };
    for reader in 0..3 * KNOWN as u64 {
        assert_eq!(ask_as(reader, 7), Verdict::Answered);
        // One that goes on asking is not forgotten.
        if reader % 1000 == 0 {
            assert_eq!(ask_as(u64::MAX, reader + 1), Verdict::Answered);
        }
    }
    assert_eq!(ask_as(u64::MAX, 1), Verdict::Replay);
    assert!(responder.readers.young.len() + responder.readers.old.len() <= 2 * KNOWN);
}

proptest! {
    #[test]
    fn no_datagram_does_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..1600), length in prop::option::of(0usize..1600)) {
        if let Some(length) = length {
            bytes.resize(length, 0);
            for (byte, good) in bytes.iter_mut().zip(*b"EVKQ\x02\x01") {
                *byte = good;
            }
            if length >= 8 {
                bytes[6..8].copy_from_slice(&(length as u16).to_le_bytes());
            }
        }
        prop_assert_ne!(ask(&mut responder(10), &mut bytes), Verdict::Answered);
    }
}

#[test]
fn a_socket_answers_from_the_address_at_which_it_was_asked() {
    let socket = bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let mut batch = Batch::new(8);
    let mut turn = |answer: fn(&mut [u8]) -> bool| {
        batch.answer_waiting(&socket, |from, bytes| {
            assert_eq!(from.ip(), IpAddr::from([127, 0, 0, 1]));
            answer(bytes)
        })
    };
    let nothing = turn(|_| true).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let places: Vec<SocketAddr> = (1..=12u8)
        .map(|last| ([127, 0, 9, last], port).into())
        .collect();
    for (at, place) in places.iter().enumerate() {
        client.send_to(&[at as u8; 100], place).unwrap();
    }
    // One is too long, and one is empty.
    client.send_to(&[0; LONGEST + 9], places[0]).unwrap();
    client.send_to(&[], places[0]).unwrap();
    let mut taken = 0;
    while taken < places.len() + 2 {
        match turn(|bytes| {
            let odd = bytes.first().is_some_and(|first| first % 2 == 1);
            bytes.reverse();
            assert!([0, 100, LONGEST + 1].contains(&bytes.len()));
            odd
        }) {
            Ok(more) => taken += more,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    let mut bytes = [0; 2000];
    for (at, place) in places.iter().enumerate().filter(|(at, _)| at % 2 == 1) {
        let (length, from) = client.recv_from(&mut bytes).unwrap();
        assert_eq!((length, from, bytes[0]), (100, *place, at as u8));
    }
}

#[test]
fn a_socket_for_both_families_answers_both() {
    let Ok(socket) = bind("[::]:0".parse().unwrap()) else {
        crate::testing::report_skipped("no IPv6 here");
        return;
    };
    let port = socket.local_addr().unwrap().port();
    let mut batch = Batch::new(4);
    for (own, place) in [("127.0.0.1:0", "127.0.0.77"), ("[::1]:0", "::1")] {
        let Ok(client) = std::net::UdpSocket::bind(own) else {
            crate::testing::report_skipped(format_args!("no {own} here"));
            continue;
        };
        client
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let place: IpAddr = place.parse().unwrap();
        client.send_to(b"query", (place, port)).unwrap();
        let expected = client.local_addr().unwrap();
        while batch
            .answer_waiting(&socket, |from, _| {
                assert_eq!(from, expected);
                true
            })
            .is_err()
        {}
        let mut bytes = [0; 9];
        let (_, from) = client.recv_from(&mut bytes).unwrap();
        assert_eq!(from, (place, port).into());
    }
}
