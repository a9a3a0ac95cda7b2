//! Failures that balancers have shown in the field, one test each. Each name says what
//! went wrong; the comment says where.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::common::*;
use evenkeel_core::group::{Group, GroupSettings, Outcome, Request, Ticket};
use evenkeel_core::load::LoadId;
use evenkeel_core::member::{Reason, Weight};
use evenkeel_core::time::Instant;

/// Requests at a fixed rate against members with a fixed service time each; a member
/// may fail after it. Answers how many each got between `count_from` and the end.
struct Traffic<'a> {
    group: &'a Group,
    /// Time between two requests, in microseconds.
    gap_us: u64,
    /// Service time of each member, in microseconds.
    service_us: &'a [u64],
    /// Function that says, by request number, if a member fails.
    fails: fn(usize, u64) -> bool,
    /// Called every second.
    reports: fn(&Group, u64),
}

impl Traffic<'_> {
    fn run(&self, requests: u64, count_from: u64, seed: u64) -> Vec<u64> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut counts = vec![0; self.service_us.len()];
        let mut flying: Vec<(u64, u64, Ticket)> = Vec::new();
        for number in 0..requests {
            let now_us = 100_000_000 + number * self.gap_us;
            let now = Instant::from_nanos(now_us * 1000);
            if now_us / 1_000_000 != (now_us - self.gap_us) / 1_000_000 {
                (self.reports)(self.group, now_us / 1000);
            }
            let mut at = 0;
            while at < flying.len() {
                if flying[at].0 > now_us {
                    at += 1;
                    continue;
                }
                let (end_us, number, ticket) = flying.swap_remove(at);
                let failed = (self.fails)(ticket.member_index(), number);
                let outcome = if failed {
                    Outcome::Failure
                } else {
                    Outcome::Success
                };
                ticket.finish(outcome, Instant::from_nanos(end_us * 1000));
            }
            let ticket = self.group.pick(&Request::at_time(now), &mut rng).unwrap();
            let index = ticket.member_index();
            if number >= count_from {
                counts[index] += 1;
            }
            flying.push((now_us + self.service_us[index], number, ticket));
        }
        counts
    }
}

const NEVER: fn(usize, u64) -> bool = |_, _| false;
const NONE: fn(&Group, u64) = |_, _| ();

/// Traefik issue 12306: one of five identical servers got 5 of 1,500 requests, because a
/// single slow answer at the start was never forgotten.
#[test]
fn a_slow_first_answer_does_not_starve_one_of_five_identical_servers() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 5]);
        answer_request(&group, 2, Outcome::Success, 99_000, 1000);
        let traffic = Traffic {
            group: &group,
            gap_us: 20_000,
            service_us: &[10_000; 5],
            fails: NEVER,
            reports: NONE,
        };
        // Three time constants after the slow answer.
        let counts = traffic.run(6000, 4500, 1);
        for &count in &counts {
            assert!(count >= 150, "{strategy}: {counts:?}");
        }
    }
}

/// Traefik issue 12306: a new server scored 0 and took everything.
#[test]
fn a_new_server_scores_average_and_not_zero() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 5]);
        for index in 0..4 {
            for _ in 0..20 {
                answer_request(&group, index, Outcome::Success, 99_000, 50);
            }
            report_load(&group, index, LoadId::CPU, 0.5, 99_990);
        }
        // Requests that stay: nothing is learnt about the new one meanwhile.
        let mut rng = fastrand::Rng::with_seed(4);
        let mut counts = [0; 5];
        let mut held = Vec::new();
        for _ in 0..100 {
            let ticket = group
                .pick(&Request::at_time(at_ms(100_000)), &mut rng)
                .unwrap();
            counts[ticket.member_index()] += 1;
            held.push(ticket);
        }
        assert!(counts[4] <= 35, "{strategy}: {counts:?}");
    }
}

/// Envoy issue 20907, ingress-nginx issue 9882: a server that fails at once looks fast
/// and idle, and draws traffic (sinkhole).
#[test]
fn a_server_that_fails_fast_does_not_draw_traffic() {
    // Strategies that know latency, failures or load. Counting requests in flight cannot detect such a server: there,
    // and for strategies that look at no figures, ejection is the remedy.
    let aware = [
        "peak_ewma",
        "least_loaded",
        "load_minimum",
        "load_average",
        "least_active_sessions",
        "least_utilization",
        "k_least_loaded",
        "weighted_by_load",
    ];
    for strategy in aware {
        let group = group_with(strategy, &[1.0; 4]);
        let traffic = Traffic {
            group: &group,
            gap_us: 3000,
            service_us: &[200, 20_000, 20_000, 20_000],
            fails: |index, _| index == 0,
            reports: |group, ms| {
                for index in 0..4 {
                    // The failing one has nothing to do.
                    let load = if index == 0 { 0.01 } else { 0.5 };
                    report_load(group, index, LoadId::CPU, load, ms);
                    report_load(group, index, LoadId::REQUESTS_PER_SECOND, load * 100.0, ms);
                }
            },
        };
        let counts = traffic.run(4000, 500, 2);
        // Round robin would give it 875.
        assert!(counts[0] < 600, "{strategy}: {counts:?}");
    }
}

/// Linkerd2 issue 15374: with little traffic one failure out of few requests looked like
/// a success rate of nothing.
#[test]
fn one_failure_at_low_traffic_is_no_verdict() {
    let group = group_with("least_utilization", &[1.0; 2]);
    let slot = &group.members()[0].slot;
    answer_request(&group, 0, Outcome::Failure, 100_000, 10);
    let decay = Duration::from_secs(10);
    assert!(slot.failure_share(at_ms(100_010), decay) < 0.1);
    let recent = slot.record().recent(at_ms(100_010), decay);
    assert_eq!((recent.total, recent.failures), (1, 1));
}

/// Envoy issue 11004: best of two drew the same host twice.
#[test]
fn two_draws_are_never_the_same_member() {
    for strategy in ["least_request", "peak_ewma"] {
        let params = [("choices", 2.0), ("scan_up_to", 0.0)];
        let params = if strategy == "peak_ewma" {
            &params[..1]
        } else {
            &params[..]
        };
        let settings = GroupSettings::default();
        let group = build_group(
            &values(strategy, params),
            settings,
            build_members(&[1.0; 3]),
        );
        let mut rng = fastrand::Rng::with_seed(6);
        for step in 0..300 {
            group.state().want_trace();
            drop(group.pick(&Request::at_time(at_ms(step)), &mut rng));
            let decision = group.state().last_decision().unwrap();
            let mut drawn: Vec<_> = decision
                .explanation
                .candidates
                .iter()
                .map(|c| c.index)
                .collect();
            drawn.sort_unstable();
            drawn.dedup();
            assert_eq!(drawn.len(), 2, "{strategy}: {decision:?}");
        }
    }
}

/// Envoy issues 14859 and 4481: in a small pool best of two misses the idle host.
#[test]
fn in_a_small_pool_the_idle_member_is_always_found() {
    for strategy in ["least_request", "least_connection"] {
        let group = group_with(strategy, &[1.0; 5]);
        let mut rng = fastrand::Rng::with_seed(7);
        let _held: Vec<_> = (0..4).map(|index| group.bind(index, at_ms(1))).collect();
        for step in 0..100 {
            let ticket = group
                .pick(&Request::at_time(at_ms(step)), &mut rng)
                .unwrap();
            assert_eq!(ticket.member_index(), 4, "{strategy}");
        }
    }
}

/// brpc issue 3340: when two of four are slow, best of two meets both slow ones in a
/// sixth of the decisions, whatever it knows about them. More choices remove that floor.
#[test]
fn more_choices_remove_the_floor_of_best_of_two() {
    let slow_share = |choices| {
        let values = values("peak_ewma", &[("choices", choices)]);
        let group = build_group(&values, GroupSettings::default(), build_members(&[1.0; 4]));
        let traffic = Traffic {
            group: &group,
            gap_us: 1000,
            service_us: &[500, 500, 200_000, 200_000],
            fails: NEVER,
            reports: NONE,
        };
        let counts = traffic.run(6000, 2000, 8);
        (counts[2] + counts[3]) as f64 / 4000.0
    };
    let (two, four) = (slow_share(2.0), slow_share(4.0));
    assert!(two > 0.1, "{two}");
    assert!(four < 0.04, "{four}");
}

/// Envoy issue 35935: least request is good with one proxy and bad with two, because
/// each sees its own requests only. Reported requests in flight count all of them.
#[test]
fn reported_requests_in_flight_show_what_other_balancers_do() {
    for strategy in ["least_request", "least_connection", "peak_ewma", "prequal"] {
        let settings = GroupSettings {
            load_id: LoadId::IN_FLIGHT,
            ..GroupSettings::default()
        };
        let group = build_group(&values(strategy, &[]), settings, build_members(&[1.0; 2]));
        for index in 0..2 {
            answer_request(&group, index, Outcome::Success, 99_000, 10);
        }
        // We have nothing at either; somebody else has 30 at the first.
        report_load(&group, 0, LoadId::IN_FLIGHT, 30.0, 100_000);
        report_load(&group, 1, LoadId::IN_FLIGHT, 0.0, 100_000);
        let mut rng = fastrand::Rng::with_seed(9);
        let held: Vec<_> = (0..20)
            .map(|_| {
                group
                    .pick(&Request::at_time(at_ms(100_001)), &mut rng)
                    .unwrap()
            })
            .collect();
        assert!(
            held.iter().filter(|t| t.member_index() == 1).count() >= 18,
            "{strategy}"
        );
    }
}

/// Envoy issues 27440 and 29008: a new member was hit by a surge. Slow start is a factor
/// on the weight, which every strategy honours, also while requests stay.
#[test]
fn a_new_member_is_not_hit_by_a_surge() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 5]);
        for index in 0..4 {
            answer_request(&group, index, Outcome::Success, 99_000, 10);
        }
        group.members()[4].slot.set_ramp_from(Some(at_ms(100_000)));
        let mut rng = fastrand::Rng::with_seed(10);
        let held: Vec<_> = (0..200)
            .map(|_| {
                group
                    .pick(&Request::at_time(at_ms(100_000)), &mut rng)
                    .unwrap()
            })
            .collect();
        let new = held
            .iter()
            .filter(|ticket| ticket.member_index() == 4)
            .count();
        assert!(new <= 16, "{strategy}: {new} of 200");
    }
}

/// Envoy issue 39552: a change of weight rebuilt connection pools. Here the change is a store to the slot: the snapshot
/// and all bindings stay.
#[test]
fn a_change_of_weight_needs_no_new_snapshot() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0, 1.0]);
        let held = group.bind(0, at_ms(0)).unwrap();
        group.members()[0]
            .slot
            .set_weight(Weight::new(0.0).unwrap());
        assert_eq!(count_picks(&group, 50, 100_000, 1), [0, 50], "{strategy}");
        assert_eq!(group.members()[0].slot.in_flight(), 1);
        drop(held);
    }
}

/// HAProxy issue 899: a latency limit ejected everybody when all were slow. Above the
/// panic threshold opinions about health are ignored, by every strategy.
#[test]
fn when_everybody_is_ejected_everybody_is_routed_to() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 4]);
        for member in group.members() {
            member.slot.set(Reason::Ejected, true);
        }
        let mut rng = fastrand::Rng::with_seed(1);
        assert!(
            group
                .pick(&Request::at_time(at_ms(100_000)), &mut rng)
                .is_err()
        );
        group.state().set_panicking(true);
        for count in count_picks(&group, 4000, 100_000, 3) {
            assert!((850..1150).contains(&count), "{strategy}: {count}");
        }
    }
}

/// Without ejection, and with failures of all members alike, every member gets a share.
#[test]
fn when_everybody_fails_everybody_gets_a_share() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 4]);
        let traffic = Traffic {
            group: &group,
            gap_us: 5000,
            service_us: &[10_000; 4],
            fails: |_, _| true,
            reports: NONE,
        };
        let counts = traffic.run(4000, 1000, 3);
        for &count in &counts {
            assert!((450..1050).contains(&count), "{strategy}: {counts:?}");
        }
    }
}

/// Herding: until the next report everybody runs to the member that reported least.
#[test]
fn the_least_loaded_member_is_not_swamped_until_its_next_report() {
    let by_load = [
        "least_loaded",
        "load_minimum",
        "least_utilization",
        "k_least_loaded",
        "least_active_sessions",
        "weighted_by_load",
        "client_weighted_round_robin",
    ];
    for strategy in by_load {
        let group = group_with(strategy, &[1.0; 4]);
        for index in 0..4 {
            let load = if index == 0 { 0.1 } else { 0.3 };
            report_load(&group, index, LoadId::CPU, load, 100_000);
            report_load(
                &group,
                index,
                LoadId::REQUESTS_PER_SECOND,
                load * 100.0,
                100_000,
            );
        }
        let counts = count_picks(&group, 1000, 100_100, 12);
        assert!(counts[0] < 700, "{strategy}: {counts:?}");
        assert!(
            counts.iter().all(|&count| count > 30),
            "{strategy}: {counts:?}"
        );
    }
}

/// linkerd2 issues 14086 and 5017: some pods get no requests, and the cause cannot be seen.
#[test]
fn a_member_that_gets_nothing_is_explained() {
    for strategy in all_strategies() {
        let group = group_with(strategy, &[1.0; 3]);
        group.members()[1].slot.set(Reason::Draining, true);
        let mut rng = fastrand::Rng::with_seed(1);
        let decision = group.explain_next(&Request::at_time(at_ms(100_000)), &mut rng);
        let why = decision
            .explanation
            .candidates
            .iter()
            .find(|candidate| candidate.index == 1)
            .unwrap();
        assert!(why.verdict.contains("draining"), "{strategy}: {why:?}");
    }
}

/// Consistent hashing: a member that goes away moves its own clients only, and a member that fills up hands on the
/// requests above its bound.
#[test]
fn a_lost_member_moves_only_its_own_clients() {
    let group = group_with("source_ip_hash", &[1.0, 1.0, 2.0, 1.0, 1.0]);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut homes = || -> Vec<usize> {
        (0..2000u32)
            .map(|client| {
                let request = Request {
                    client: Some(client.to_be_bytes().into()),
                    ..Request::at_time(at_ms(100_000))
                };
                group.pick(&request, &mut rng).unwrap().member_index()
            })
            .collect()
    };
    let before = homes();
    group.members()[3].slot.set(Reason::Down, true);
    let after = homes();
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || *before == 3);
        assert_ne!(*after, 3);
    }
    group.members()[3].slot.set(Reason::Down, false);
    assert_eq!(before, homes());
}

#[test]
fn one_client_cannot_overload_its_member() {
    let group = group_with("source_ip_hash", &[1.0; 4]);
    let mut rng = fastrand::Rng::with_seed(1);
    let request = Request {
        client: Some([192, 0, 2, 1].into()),
        ..Request::at_time(at_ms(100_000))
    };
    let held: Vec<_> = (0..100)
        .map(|_| group.pick(&request, &mut rng).unwrap())
        .collect();
    for member in group.members() {
        // ceil(1.25 * 100 / 4)
        assert!(member.slot.in_flight() <= 32);
    }
    drop(held);
}

/// `least_loaded`: requests are turned away from a member only while others can take
/// them.
#[test]
fn a_reject_threshold_that_all_exceed_rejects_nobody() {
    let values = values("least_loaded", &[("reject_threshold", 0.8)]);
    let group = build_group(&values, GroupSettings::default(), build_members(&[1.0; 3]));
    for (index, load) in [0.9, 0.85, 0.5].into_iter().enumerate() {
        report_load(&group, index, LoadId::CPU, load, 100_000);
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let pick = |rng: &mut fastrand::Rng| {
        let index = group.choose_member(&Request::at_time(at_ms(100_001)), rng);
        index.unwrap()
    };
    assert_eq!(pick(&mut rng), 2);
    report_load(&group, 2, LoadId::CPU, 0.95, 100_010);
    assert_eq!(pick(&mut rng), 1);
}

/// `weighted_by_load`: members of different sizes end at the same utilisation, although their sizes are not configured,
/// and without oscillating.
#[test]
fn utilisation_becomes_equal_and_stays_so() {
    let group = group_with("weighted_by_load", &[1.0; 4]);
    // Requests per second that make a member fully busy.
    let capacity = [500.0, 1000.0, 1000.0, 2000.0];
    let mut rng = fastrand::Rng::with_seed(1);
    let mut counts = [0.0; 4];
    let mut worst = Vec::new();
    for step in 0..120_000u64 {
        let now = 100_000 + step / 2;
        if step > 0 && step % 2000 == 0 {
            let used: Vec<f64> = (0..4).map(|i| counts[i] / capacity[i]).collect();
            for (index, &used) in used.iter().enumerate() {
                report_load(&group, index, LoadId::CPU, used, now);
            }
            let mean = used.iter().sum::<f64>() / 4.0;
            worst.push(
                used.iter()
                    .map(|u| (u / mean - 1.0).abs())
                    .fold(0.0, f64::max),
            );
            counts = [0.0; 4];
        }
        let ticket = group.pick(&Request::at_time(at_ms(now)), &mut rng).unwrap();
        counts[ticket.member_index()] += 1.0;
    }
    assert!(worst[0] > 0.5, "{worst:?}");
    for &late in &worst[30..] {
        assert!(late < 0.1, "{worst:?}");
    }
}

/// `prequal`: the fast member is preferred while it is cold, not beyond.
#[test]
fn a_fast_member_gets_more_but_not_all() {
    for members in [10, 40] {
        let group = group_with("prequal", &vec![1.0; members]);
        let mut service = vec![20_000; members];
        service[0] = 5000;
        let traffic = Traffic {
            group: &group,
            gap_us: 5000 / members as u64,
            service_us: &service,
            fails: NEVER,
            reports: NONE,
        };
        let counts = traffic.run(8000, 2000, 5);
        let fair = 6000 / members as u64;
        assert!(counts[0] > fair, "{counts:?}");
        assert!(counts[0] < 4500, "{counts:?}");
    }
}
