//! A weight is a share: equal members get traffic in proportion to their weights, under
//! every strategy, however few or many requests there are at once. And what a weight does not
//! say still counts: members that are slower, fail or report more load get less.

#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "../../../core/tests/core/common/mod.rs"]
mod common;

use std::net::IpAddr;
use std::time::Duration;

use common::*;
use evenkeel_core::group::{Group, GroupSettings, Outcome, Request};
use evenkeel_core::key::{Key, hash};
use evenkeel_core::load::LoadId;
use evenkeel_core::member::Weight;
use evenkeel_sim::{
    Change, ChangeEffect, Discipline, Dispatch, Outcomes, Reports, Scenario, Service, run,
};

/// Shares may be off by one percentage point.
const POINT: f64 = 0.01;

/// Strategies that go by latencies. Where costs differ by chance they take equal members for
/// different ones for a while, so that only all members of one weight together have what they
/// should.
const BY_LATENCY: [&str; 3] = ["adaptive", "peak_ewma", "prequal"];

fn play(scenario: &Scenario, strategy: &str) -> Outcomes {
    run(scenario, &Dispatch::Strategy(values(strategy, &[])), 7)
}

fn shares_of(outcomes: &Outcomes) -> Vec<f64> {
    let all: usize = outcomes.per_member.iter().sum();
    let share = |&count: &usize| count as f64 / all as f64;
    outcomes.per_member.iter().map(share).collect()
}

/// Says if a share is off by more than a point.
fn off(scenario: &Scenario, strategy: &str, together: bool) -> Option<String> {
    let weights: Vec<f64> = scenario
        .members
        .iter()
        .map(|member| member.weight)
        .collect();
    let total: f64 = weights.iter().sum();
    let shares = shares_of(&play(scenario, strategy));
    let sum = |of: &[f64], index: usize| -> f64 {
        let counts = |&other: &usize| match together {
            true => weights[other] == weights[index],
            false => other == index,
        };
        (0..of.len()).filter(counts).map(|other| of[other]).sum()
    };
    let off = |index: usize| (sum(&shares, index) - sum(&weights, index) / total).abs();
    let worst = (0..weights.len()).map(off).fold(0.0, f64::max);
    let percent: Vec<f64> = shares
        .iter()
        .map(|share| (share * 1e3).round() / 10.0)
        .collect();
    // Chance in one run moves those that go by latencies a little further.
    let most = if together { 1.1 * POINT } else { POINT };
    (worst > most).then(|| {
        format!(
            "{strategy}, {}, {} clients: off by {:.1} points, weights {weights:?}, shares {percent:?}",
            scenario.name,
            scenario.clients,
            100.0 * worst
        )
    })
}

/// Groups of 2, 3 and 16 members, and one that is larger than what strategies look through.
fn groups() -> Vec<Vec<f64>> {
    let mut sixteen = vec![1.0; 16];
    sixteen[3] = 4.0;
    sixteen[9] = 0.5;
    let many = (0..40).map(|index| [1.0, 3.0, 0.25, 1.0][index % 4]);
    vec![
        vec![1.0, 1.0],
        vec![19.0, 1.0],
        vec![0.19, 0.01],
        vec![3.0, 2.0],
        vec![5.0, 2.0, 1.0],
        vec![1.0, 1.5, 0.75],
        sixteen,
        many.collect(),
    ]
}

/// Members that work on all requests at once, and members that are full with one; costs that
/// are all the same, and that differ by chance. With fifty clients and one worker each, members
/// with much weight are full: then what they have in flight is no reason to give them less.
#[test]
fn u1_a_weight_is_a_share_under_every_strategy_at_every_load() {
    let mut wrong = Vec::new();
    for strategy in all_strategies() {
        for weights in groups() {
            for clients in [1, 4, 50] {
                for (name, service, slots) in [
                    ("at once, constant", Service::Constant, 64),
                    ("at once, exponential", Service::Exponential, 64),
                    ("one worker, exponential", Service::Exponential, 1),
                ] {
                    let by_chance = service != Service::Constant || weights.len() > 24;
                    let together = by_chance && BY_LATENCY.contains(&strategy);
                    let mut scenario = Scenario::new(name, weights.len())
                        .with_weights(&weights)
                        .with_clients(clients)
                        .with_service(service)
                        .with_discipline(Discipline::Sharing, slots);
                    scenario.requests = 24_000;
                    wrong.extend(off(&scenario, strategy, together));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Any 200 requests that follow each other, where members are mostly idle when one comes: no member has more than four points above what is
/// even, or six where one of ten requests costs twenty times as much (two is the aim).
#[test]
fn equal_members_with_little_to_do_take_turns() {
    const WINDOW: usize = 200;
    let mut wrong = Vec::new();
    for members in [2, 3, 5, 10] {
        for (name, service) in [
            ("constant", Service::Constant),
            ("exponential", Service::Exponential),
            ("mixed", Service::Mixed),
        ] {
            for slots in [1, 8] {
                for rate in [1.0, 2.0, 5.0] {
                    // The mean service time is 10 ms.
                    let most = 100.0 * (members * slots) as f64;
                    let mut scenario = Scenario::new(name, members)
                        .with_service(service)
                        .with_discipline(Discipline::Fifo, slots)
                        .with_utilisation(rate / most);
                    scenario.requests = 6_000;
                    for seed in 1..=3 {
                        let dispatch = Dispatch::Strategy(values("adaptive", &[]));
                        let share = run(&scenario, &dispatch, seed).largest_share(WINDOW);
                        let above = share - 1.0 / members as f64;
                        let room = if name == "mixed" { 0.06 } else { 0.04 };
                        if above > room {
                            wrong.push(format!(
                                "{members} members, {slots} workers, {name}, {rate} a second, seed {seed}: {:.1} points above",
                                100.0 * above
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Four networks of ten thousand clients, one after the other. What chance does to one of them
/// is up to 1.5 points.
#[test]
fn u1_a_weight_is_a_share_of_the_addresses_that_are_hashed() {
    const EACH: u32 = 10_000;
    let mut wrong = Vec::new();
    for weights in groups() {
        let group = group_with("source_ip_hash", &weights);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut counts = vec![0.0; weights.len()];
        for network in [
            [10, 0, 0, 0],
            [10, 9, 0, 0],
            [172, 16, 0, 0],
            [192, 168, 0, 0],
        ] {
            let first = u32::from_be_bytes(network);
            for client in first..first + EACH {
                let request = Request {
                    client: Some(IpAddr::from(client.to_be_bytes())),
                    ..Request::at_time(at_ms(100_000))
                };
                let index = group.pick(&request, &mut rng).unwrap().member_index();
                counts[index] += 0.25 / f64::from(EACH);
            }
        }
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(&weights) {
            if (count - weight / total).abs() > POINT {
                wrong.push(format!("{weights:?}: {counts:?}"));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn picked(group: &Group, key: Option<u64>, rng: &mut fastrand::Rng) -> usize {
    let request = Request {
        client: Some([10, 0, 0, 1].into()),
        key,
        ..Request::at_time(at_ms(100_000))
    };
    group.pick(&request, rng).unwrap().member_index()
}

/// Ten thousand users, who all come from one address: a proxy in front.
#[test]
fn a_weight_is_a_share_of_the_keys_that_are_hashed() {
    const KEYS: u32 = 10_000;
    for weights in groups() {
        let group = group_with("hash", &weights);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut counts = vec![0.0; weights.len()];
        for user in 0..KEYS {
            let key = Some(hash(format!("user-{user}").as_bytes()));
            let index = picked(&group, key, &mut rng);
            assert_eq!(picked(&group, key, &mut rng), index, "user-{user}");
            counts[index] += 1.0 / f64::from(KEYS);
        }
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(&weights) {
            // Of so few a share differs by chance: three standard deviations.
            let share = weight / total;
            let chance = 3.0 * (share * (1.0 - share) / f64::from(KEYS)).sqrt();
            let ring = if weights.len() > 128 {
                0.2 * share
            } else {
                0.0
            };
            assert!(
                (count - share).abs() <= chance + ring + 0.001,
                "{weights:?}: {counts:?}"
            );
        }
    }
}

#[test]
fn when_a_member_leaves_only_its_keys_move() {
    let (all, mut rng) = (group_with("hash", &[1.0; 5]), fastrand::Rng::with_seed(1));
    let key = |user: u32| Some(hash(format!("user-{user}").as_bytes()));
    let before: Vec<_> = (0..1000)
        .map(|user| picked(&all, key(user), &mut rng))
        .collect();
    all.members()[2].slot.set_weight(Weight::new(0.0).unwrap());
    let mut moved = 0;
    for (user, before) in (0..).zip(before) {
        let now = picked(&all, key(user), &mut rng);
        moved += usize::from(now != before);
        assert!(now != 2 && (before == 2 || now == before), "user-{user}");
    }
    assert!((150..250).contains(&moved), "{moved}");
}

/// A request without a key is drawn by weight, and a key that is the client's address is that of `source_ip_hash`.
#[test]
fn a_key_may_be_missing_or_the_clients_address() {
    let (by_key, mut rng) = (group_with("hash", &[3.0, 1.0]), fastrand::Rng::with_seed(1));
    let first = (0..4000)
        .filter(|_| picked(&by_key, None, &mut rng) == 0)
        .count();
    assert!((2900..3100).contains(&first), "{first}");
    let settings = GroupSettings {
        hash_key: Key::Client,
        ..GroupSettings::default()
    };
    let by_client = build_group(&values("hash", &[]), settings, build_members(&[3.0, 1.0]));
    let by_address = group_with("source_ip_hash", &[3.0, 1.0]);
    assert!(by_client.wants_key().is_none() && by_address.wants_key().is_none());
    for client in 0..100u32 {
        let request = Request {
            client: Some(IpAddr::from(client.to_be_bytes())),
            key: Some(u64::from(client)),
            ..Request::at_time(at_ms(100_000))
        };
        let index = |group: &Group| {
            group
                .pick(&request, &mut fastrand::Rng::new())
                .unwrap()
                .member_index()
        };
        assert_eq!(index(&by_client), index(&by_address));
    }
}

/// Slow start is a factor on the weight, also while requests stay: half way through, 0.55.
#[test]
fn u1_a_ramp_is_a_share() {
    const HALF: u64 = 500_000_000;
    for strategy in all_strategies() {
        let settings = GroupSettings {
            slow_start: Duration::from_millis(2 * HALF),
            ..GroupSettings::default()
        };
        let group = build_group(&values(strategy, &[]), settings, build_members(&[1.0; 3]));
        group.members()[2].slot.set_ramp_from(Some(at_ms(HALF)));
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut counts, mut held) = ([0.0; 3], std::collections::VecDeque::new());
        for number in 0..20_000u64 {
            let now = at_ms(2 * HALF + number);
            let ticket = group.pick(&Request::at_time(now), &mut rng).unwrap();
            counts[ticket.member_index()] += 1.0 / 20_000.0;
            held.push_back(ticket);
            if held.len() > 12 {
                held.pop_front().unwrap().finish(Outcome::Success, now);
            }
        }
        let off = (counts[2] - 0.55 / 2.55f64).abs();
        assert!(off < POINT, "{strategy}: {counts:?}");
    }
}

/// Changes of weight count at once, and who was away has no arrears.
#[test]
fn u1_nobody_catches_up_with_what_was_before() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[4.0, 1.0]);
        let down = evenkeel_core::member::Reason::Down;
        group.members()[0].slot.set(down, true);
        count_picks(&group, 1000, 100_000, 1);
        group.members()[0].slot.set(down, false);
        let counts = count_picks(&group, 1000, 101_000, 2);
        assert!((750..850).contains(&counts[0]), "{strategy}: {counts:?}");
        group.members()[0].slot.set_weight(Weight::ONE);
        let counts = count_picks(&group, 1000, 102_000, 3);
        assert!((430..570).contains(&counts[0]), "{strategy}: {counts:?}");
    }
}

/// Weights do not make anybody blind: the default gives less to a member with much weight
/// that is slow or fails.
#[test]
fn u1_worse_members_get_less_whatever_their_weight() {
    let weighted = |name: &str, clients| {
        let mut scenario = Scenario::new(name, 2)
            .with_weights(&[4.0, 1.0])
            .with_clients(clients)
            .with_discipline(Discipline::Sharing, 64);
        scenario.requests = 20_000;
        scenario
    };
    for clients in [1, 4] {
        let slow = weighted("slow", clients).one_slow(10.0);
        let share = shares_of(&play(&slow, "adaptive"))[0];
        // With many requests there, most of what they take may be a queue that the weight made.
        let most = if clients == 1 { 0.5 } else { 0.78 };
        assert!(share < most, "slow, {clients} clients: {share}");
        let failing = weighted("failing", clients).one_failing(0.5);
        let share = shares_of(&play(&failing, "adaptive"))[0];
        assert!(share < 0.4, "failing, {clients} clients: {share}");
    }
}

/// Two equal members of 10 ms that work on all requests at once report 0.9 and 0.1, and then
/// the other way round. Nothing else tells them apart.
#[test]
fn u3_traffic_follows_a_reversed_report_within_two_seconds() {
    for clients in [4, 8, 20] {
        for (millis, discipline) in [(10, Discipline::Sharing), (500, Discipline::Fifo)] {
            let mut scenario = Scenario::new("reports", 2)
                .with_clients(clients)
                .with_service(Service::Constant)
                .with_discipline(discipline, 64);
            scenario.requests = 1000 * clients;
            scenario.reports = Some(Reports {
                id: LoadId::CPU,
                interval: Duration::from_millis(millis),
                delay: Duration::ZERO,
                noise: 0.0,
            });
            let at = |seconds, member, load| Change {
                at: Duration::from_millis(seconds),
                member,
                to: ChangeEffect::Load(load),
            };
            scenario.changes = vec![
                at(0, 0, 0.9),
                at(0, 1, 0.1),
                at(5000, 0, 0.1),
                at(5000, 1, 0.9),
            ];
            let outcomes = play(&scenario, "adaptive");
            let share = |from, to| {
                let [from, to] = [from, to].map(Duration::from_secs);
                outcomes.share(0, from, to)
            };
            let (before, after) = (share(2, 5), share(7, 9));
            let what = format!("{clients} clients, a report every {millis} ms");
            assert!(before < 0.35, "{what}: {before}");
            assert!(after > 0.65, "{what}: {after}");
        }
    }
}
