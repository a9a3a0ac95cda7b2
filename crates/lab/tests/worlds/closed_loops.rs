//! Clients that wait for their answers, members that work on one request after the other, and
//! what it costs to be bound, carried or watched, in virtual time.

#![allow(clippy::expect_used)] // helpers of tests

use std::time::Duration;

use evenkeel_core::alert::AlertSettings;
use evenkeel_core::group::Granularity;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{Values, find};
use evenkeel_lab::worlds::sessions::{Client, Played, Sessions};
use evenkeel_manager::config::Reach;

const ITERATIONS: u64 = 10_000;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Clients that the manager binds by turns, each of which sends its requests one after the other.
fn sessions(members: usize, clients: usize) -> Sessions {
    let strategy = find("round_robin").expect("a strategy of the registry");
    let client = Client {
        iterations: Some(ITERATIONS),
        ..Client::at_rate(f64::INFINITY, None)
    };
    Sessions {
        members,
        clients: vec![client; clients],
        poisson: false,
        report_interval: Duration::from_secs(5),
        in_step: true,
        message: us(100),
        round: Duration::from_millis(100),
        known: true,
        strangers: false,
        strategy: Values::defaults(strategy),
        alert: AlertSettings::default(),
        dies: None,
        rebind_interval: None,
        reach: Reach::Forwarded,
        granularity: Granularity::PerSession,
        load_id: LoadId::REQUESTS_PER_SECOND,
        service: us(100),
        report_work: Duration::ZERO,
        length: Duration::from_secs(600),
    }
}

fn play(sessions: &Sessions) -> Played {
    evenkeel_lab::worlds::sessions::play_sessions(sessions, 7).expect("members")
}

/// Mean response time of all clients, in microseconds.
fn mean(played: &Played) -> f64 {
    let means = played.answered.iter().map(|client| client.mean());
    1e6 * means.sum::<f64>() / played.answered.len() as f64
}

#[test]
fn a_client_alone_waits_for_two_messages_and_the_member() {
    let played = play(&sessions(1, 1));
    let client = &played.answered[0];
    assert_eq!(client.requests, ITERATIONS);
    // A message takes 75 us on average.
    assert!((mean(&played) - 250.0).abs() < 2.0, "{}", mean(&played));
    assert!((client.throughput() - 4000.0).abs() < 40.0, "{client:?}");
    // Two messages of 50 to 100 us.
    let jitter = 1e6 * client.jitter();
    assert!(
        (jitter - 50.0 * (2.0f64 / 12.0).sqrt()).abs() < 2.0,
        "{jitter}"
    );
}

#[test]
fn a_member_that_is_busy_serves_one_after_the_other() {
    for clients in [4, 8] {
        let played = play(&sessions(1, clients));
        let wanted = 100.0 * clients as f64;
        let mean = mean(&played);
        assert!((mean / wanted - 1.0).abs() < 0.02, "{clients}: {mean}");
        let served: u32 = played.served.iter().flatten().sum();
        assert_eq!(u64::from(served), ITERATIONS * clients as u64);
    }
}

#[test]
fn clients_with_a_rate_end_when_they_have_sent_what_they_have_to() {
    let mut sessions = sessions(2, 0);
    sessions.clients = [10.0, 5.0]
        .map(|rate| Client {
            iterations: Some(100),
            ..Client::at_rate(rate, None)
        })
        .into();
    let played = play(&sessions);
    let [fast, slow] = &played.answered[..] else {
        panic!("{played:?}");
    };
    assert_eq!((fast.requests, slow.requests), (100, 100));
    assert!((9.8..=10.2).contains(&fast.seconds), "{fast:?}");
    assert!((19.7..=20.3).contains(&slow.seconds), "{slow:?}");
    assert_eq!(
        played.served[15].iter().filter(|&&rate| rate == 5).count(),
        1
    );
}

#[test]
fn one_that_begins_later_is_counted_from_then_on() {
    let mut sessions = sessions(2, 2);
    sessions.clients[1].begins = Duration::from_secs(3);
    let played = play(&sessions);
    let [first, second] = [0, 1].map(|client| played.answered[client].throughput());
    assert!((second / first - 1.0).abs() < 0.02, "{first} {second}");
}

#[test]
fn who_is_carried_pays_for_two_messages_more_and_reports_cost_what_they_take() {
    let direct = mean(&play(&sessions(1, 1)));
    let mut carried = sessions(1, 1);
    carried.reach = Reach::Carried;
    let carried = mean(&play(&carried));
    assert!((carried - direct - 150.0).abs() < 2.0, "{direct} {carried}");
    let mut watched = sessions(1, 1);
    watched.report_interval = Duration::from_millis(10);
    watched.report_work = Duration::from_millis(1);
    // A tenth of its time, of which a half of a millisecond each time is somebody's wait.
    let share = mean(&play(&watched)) / direct;
    assert!((1.05..1.15).contains(&share), "{share}");
}
