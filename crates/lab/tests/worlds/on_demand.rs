//! Alerts and bindings together: load that is already there is moved until it is even.
//!
//! The experiment of Balasubramanian, Schmidt, Dowdy and Othman, "Evaluating the
//! Performance of Middleware Load Balancing Strategies" (2004), in virtual time: four
//! members, eight clients, four of them with 100 requests per second and four with 50.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use evenkeel_core::alert::AlertSettings;
use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{Values, find};
use evenkeel_lab::worlds::sessions::{Client, Sessions, play_sessions};
use evenkeel_manager::config::{Reach, carries_in_pulses, default_for};

const MEMBERS: usize = 4;
/// Requests per second of each client.
const CLIENTS: [u32; 8] = [100, 100, 100, 100, 50, 50, 50, 50];

/// Members of the clients at first: the busy clients share two members, and the others the other
/// two.
const STARTS: [usize; 8] = [0, 0, 1, 1, 2, 2, 3, 3];

/// Parameters of a run.
struct Play {
    granularity: Granularity,
    /// `None` is the default.
    strategy: Option<&'static str>,
    /// Reported load, and the interval in seconds.
    load_id: LoadId,
    interval: u64,
    starts: [usize; 8],
}

impl Play {
    fn of(granularity: Granularity, strategy: &'static str) -> Self {
        Play {
            granularity,
            strategy: Some(strategy),
            load_id: LoadId::REQUESTS_PER_SECOND,
            interval: 1,
            starts: STARTS,
        }
    }
}

/// Requests per second at each member, for each second of the run.
fn run(played: &Play, seconds: u64, seed: u64) -> Vec<[u32; MEMBERS]> {
    let settings = GroupSettings {
        granularity: played.granularity,
        load_id: played.load_id,
        ..GroupSettings::default()
    };
    let strategy = match played.strategy {
        Some(name) => Values::defaults(find(name).unwrap()),
        None => default_for(&settings, Reach::Carried),
    };
    let clients = CLIENTS.into_iter().zip(played.starts);
    let client = |(rate, start): (u32, usize)| Client::at_rate(rate.into(), Some(start));
    let sessions = Sessions {
        members: MEMBERS,
        clients: clients.map(client).collect(),
        poisson: false,
        report_interval: Duration::from_secs(played.interval),
        in_step: true,
        message: Duration::ZERO,
        round: Duration::from_millis(100),
        known: true,
        strangers: false,
        alert: AlertSettings {
            pulses: carries_in_pulses(&settings, strategy.kind()),
            ..AlertSettings::default()
        },
        strategy,
        dies: None,
        rebind_interval: None,
        reach: Reach::Carried,
        granularity: played.granularity,
        load_id: played.load_id,
        service: Duration::ZERO,
        report_work: Duration::ZERO,
        length: Duration::from_secs(seconds),
    };
    let mut served = play_sessions(&sessions, seed).unwrap().served;
    served.truncate(seconds as usize);
    let rates = |rates: Vec<u32>| <[u32; MEMBERS]>::try_from(rates).unwrap();
    served.into_iter().map(rates).collect()
}

#[test]
fn load_minimum_evens_out_what_is_bound_as_far_as_its_excess_goes() {
    for seed in 0..10 {
        let play = Play::of(Granularity::OnDemand, "load_minimum");
        let history = run(&play, 600, seed);
        assert_eq!(history[0], [200, 200, 100, 100]);
        for rates in &history[history.len() - 100..] {
            // A location without any load is no measure.
            let least = rates.iter().filter(|&&rate| rate > 0).min().unwrap();
            let most = rates.iter().max().unwrap();
            assert!(
                *most as f32 <= 1.4 * *least as f32,
                "seed {seed}: {rates:?}"
            );
        }
    }
}

#[test]
fn per_session_stays_as_it_began() {
    let play = Play::of(Granularity::PerSession, "load_minimum");
    let history = run(&play, 100, 1);
    assert!(history.iter().all(|rates| *rates == [200, 200, 100, 100]));
}

/// The second from which on all members have the same load.
fn settled(history: &[[u32; MEMBERS]]) -> usize {
    let off = history.iter().rposition(|rates| *rates != [150; MEMBERS]);
    off.map_or(0, |at| at + 1)
}

#[test]
fn b2_without_any_setting_clients_that_are_carried_settle() {
    for (load_id, interval) in [
        (LoadId::REQUESTS_PER_SECOND, 1),
        (LoadId::CPU, 1),
        (LoadId::CPU, 5),
    ] {
        for starts in [STARTS, [0; 8], [0, 0, 0, 0, 1, 1, 1, 1]] {
            let mut slowest = 0;
            for seed in 0..20 {
                let play = Play {
                    granularity: Granularity::OnDemand,
                    strategy: None,
                    load_id,
                    interval,
                    starts,
                };
                let history = run(&play, 400, seed);
                slowest = slowest.max(settled(&history));
            }
            println!("{load_id}, every {interval} s, {starts:?}: {slowest} s at most");
            assert!(
                slowest <= 60 * interval as usize,
                "{load_id} {interval} {starts:?}: {slowest}"
            );
        }
    }
}

#[test]
fn b2_by_default_nobody_moves_who_is_bound_per_session() {
    let play = Play {
        strategy: None,
        ..Play::of(Granularity::PerSession, "")
    };
    let history = run(&play, 100, 1);
    assert!(history.iter().all(|rates| *rates == [200, 200, 100, 100]));
}
