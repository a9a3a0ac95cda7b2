use evenkeel_kernel::forward::{CopyResult, TableCopy};
use evenkeel_manager::copy_queues::MAX_BODY;
use evenkeel_wire::connection_copies::ConnectionCopy;

use super::outbox::{ENTRIES_PER_SECOND, Item, Outbox};
use super::received::{Received, read_copy};
use super::rounds::Rounds;
use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn copy(number: u32) -> TableCopy {
    let ip = std::net::Ipv4Addr::from(0xc633_6400 + number / 60_000);
    TableCopy {
        client: SocketAddr::new(ip.into(), 1 + (number % 60_000) as u16),
        listener: "10.0.0.10:5432".parse().unwrap(),
        member: "10.0.1.2:5432".parse().unwrap(),
        seat: 3,
        source: None,
        is_direct: false,
        is_answered: true,
        has_client_fin: false,
        has_member_fin: true,
        client_side: (1, 2),
        member_side: (3, 4),
        shift: 0,
        began_ns: 10 * SECOND,
        seen_ns: 15 * SECOND,
    }
}

fn decode(bodies: &[Vec<u8>]) -> Vec<CopyMessage> {
    let decode = |body: &Vec<u8>| {
        assert!(body.len() <= MAX_BODY);
        CopyMessage::decode(body).unwrap()
    };
    bodies.iter().map(decode).collect()
}

fn list_copies(messages: &[CopyMessage]) -> Vec<ConnectionCopy> {
    let of = |message: &CopyMessage| match message {
        CopyMessage::Copies { connections, .. } => connections.clone(),
        _ => Vec::new(),
    };
    messages.iter().flat_map(of).collect()
}

#[test]
fn copies_are_the_same_at_the_other_end_by_another_clock() {
    let mut outbox = Outbox::default();
    assert!(outbox.push(Item::Copy(copy(7), 1)));
    let sent = list_copies(&decode(&outbox.take_bodies(at(0), 18 * SECOND)));
    assert_eq!((sent[0].age_ms, sent[0].silence_ms), (8_000, 3_000));
    // The clock of the other machine is 100 seconds ahead.
    let read = read_copy(&sent[0], 9, 118 * SECOND);
    let expected = TableCopy {
        seat: 9,
        began_ns: 110 * SECOND,
        seen_ns: 115 * SECOND,
        ..copy(7)
    };
    assert_eq!(read, expected);
    // A machine that has just started.
    assert_eq!(read_copy(&sent[0], 9, SECOND).began_ns, 1);
}

#[test]
fn bodies_are_bounded_and_in_order_and_not_more_than_allowed_in_a_second() {
    let mut outbox = Outbox::default();
    let end = ConnectionEnd {
        client: copy(0).client,
        listener: copy(0).listener,
        member: copy(0).member,
    };
    for number in 0..50_000 {
        assert!(outbox.push(Item::Copy(copy(number), 1)));
    }
    [Item::End(end), Item::End(end), Item::RoundEnd(1)]
        .into_iter()
        .for_each(|item| assert!(outbox.push(item)));
    let mut all = Vec::new();
    for step in 0..20 {
        let bodies = outbox.take_bodies(at(step * SECOND / 20), 20 * SECOND);
        all.extend(decode(&bodies));
    }
    let sent = list_copies(&all).len() as u64;
    assert!(
        (ENTRIES_PER_SECOND / 2..=ENTRIES_PER_SECOND * 11 / 10).contains(&sent),
        "{sent}"
    );
    let per_body = sent as usize / all.len();
    assert!(per_body >= 20, "{per_body} copies in a body");
    for step in 20..80 {
        all.extend(decode(
            &outbox.take_bodies(at(step * SECOND / 20), 20 * SECOND),
        ));
    }
    let clients: Vec<_> = list_copies(&all).iter().map(|one| one.client).collect();
    let expected: Vec<_> = (0..50_000).map(|number| copy(number).client).collect();
    assert!(clients == expected);
    let last = [
        CopyMessage::Ends(vec![end, end]),
        CopyMessage::RoundEnd { round: 1 },
    ];
    assert_eq!(all[all.len() - 2..], last);
    assert_eq!((outbox.count_sent(), outbox.count_lost()), (50_000, 0));
    // What finds no room is counted.
    let pushed = (0..70_000).filter(|number| outbox.push(Item::Copy(copy(*number), 2)));
    let pushed = pushed.count() as u64;
    assert_eq!(outbox.count_lost(), 70_000 - pushed);
    assert!(pushed < 70_000);
}

#[test]
fn rounds_send_new_connections_at_once_and_all_in_ten_sweeps() {
    let mut rounds = Rounds::new(5);
    let old: Vec<_> = (0..1000).map(|number| copy(number).client).collect();
    let young = copy(5000).client;
    let mut sweep = |now: u64| {
        rounds.begin_sweep(now * SECOND);
        let wanted = old.iter().filter(|one| rounds.wants(**one, SECOND));
        let wanted = wanted.count();
        let has_young = now > 20 && rounds.wants(young, 21 * SECOND);
        (wanted, has_young, rounds.end_sweep())
    };
    // Somebody has no copy yet: all are sent by one sweep.
    assert_eq!(sweep(10), (1000, false, Some(6)));
    let (mut sent, mut ended) = (0, Vec::new());
    for now in 11..21 {
        let (wanted, _, round) = sweep(now);
        assert!((50..200).contains(&wanted), "{wanted}");
        sent += wanted;
        ended.extend(round);
    }
    assert_eq!((sent, ended), (1000, vec![7]));
    // Too young, then new, then once in ten sweeps as all others.
    assert!(!sweep(21).1);
    assert!(sweep(22).1);
    let again = (23..43).filter(|now| sweep(*now).1).count();
    assert_eq!(again, 2);
    // A connection without room makes the round one that is not whole.
    rounds.begin_anew();
    rounds.begin_sweep(50 * SECOND);
    rounds.note_sent(false);
    assert_eq!(rounds.end_sweep(), None);
}

#[test]
fn a_large_table_is_sent_in_more_sweeps() {
    let mut rounds = Rounds::new(5);
    let mut sweep = |now: u64| {
        rounds.begin_sweep(now * SECOND);
        let wanted = (0..300_000).filter(|number| rounds.wants(copy(*number).client, SECOND));
        let wanted = wanted.count() as u64;
        rounds.note_sent(wanted < 65_536);
        (wanted, rounds.end_sweep())
    };
    // The size is not known yet.
    assert_eq!(sweep(10), (300_000, None));
    for now in 11..41 {
        let (wanted, round) = sweep(now);
        assert!(wanted <= ENTRIES_PER_SECOND, "{wanted}");
        assert_eq!(round.is_some(), now == 40, "{now}");
    }
}

#[test]
fn copies_that_two_rounds_do_not_name_are_over() {
    let (client, from) = (CopyKey::Connection(copy(1).client), copy(2).client);
    let mut received = Received::default();
    received.begin_sweep();
    assert!(!received.is_over(client), "nobody knows who has sent it");
    received.note_copy(client, from, 7);
    for (round, is_over) in [(7, false), (8, false), (9, true), (8, true)] {
        received.note_round(from, round);
        assert_eq!(received.is_over(client), is_over, "{round}");
    }
    received.note_copy(client, from, 9);
    assert!(!received.is_over(client));
    received.end_sweep();
    // Not in the table any more.
    received.begin_sweep();
    received.end_sweep();
    received.note_round(from, 99);
    assert!(!received.is_over(client));
    for result in [
        CopyResult::Failed,
        CopyResult::Failed,
        CopyResult::Port,
        CopyResult::NoListener,
        CopyResult::Malformed,
    ] {
        received.count(result);
    }
    let counts = received.list_counts();
    for (name, count) in &counts {
        let expected = match name.as_str() {
            "failed" => 2,
            "port" | "no_listener" | "malformed" => 1,
            _ => 0,
        };
        assert_eq!(*count, expected, "{name}");
    }
}
