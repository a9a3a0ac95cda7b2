//! Runs whose figures queueing theory knows.

use evenkeel_core::strategy::Values;

use super::*;
use crate::server::Discipline;

/// Mean of the response times in units of the mean service time.
fn mean(outcomes: &Outcomes) -> f64 {
    duration_nanos(outcomes.mean()) / Service::MEAN
}

fn random() -> Dispatch {
    let kind = evenkeel_core::strategy::find("random").unwrap();
    Dispatch::Strategy(Values::defaults(kind))
}

#[test]
fn random_choice_is_the_m_m_1_queue() {
    let scenario = Scenario {
        requests: 400_000,
        ..Scenario::new("", 10)
    };
    let outcomes = run(&scenario, &random(), 1);
    // 1 / (1 - 0.6), and the exponential quantile of that.
    assert!((mean(&outcomes) - 2.5).abs() < 0.1, "{}", mean(&outcomes));
    let p99 = duration_nanos(outcomes.quantile(0.99)) / Service::MEAN;
    assert!((p99 - 2.5 * libm::log(100.0)).abs() < 0.6, "{p99}");
}

#[test]
fn the_central_queue_is_the_m_m_k_queue() {
    // Erlang C for 2 servers at 60 %: 0.45 wait, for 1 / (2 - 1.2) on average.
    for knows_costs in [false, true] {
        let scenario = Scenario {
            requests: 400_000,
            ..Scenario::new("", 2)
        };
        let outcomes = run(&scenario, &Dispatch::Central { knows_costs }, 1);
        let expected = 1.0 + 0.45 / 0.8;
        assert!(
            (mean(&outcomes) - expected).abs() < 0.03,
            "{}",
            mean(&outcomes)
        );
    }
}

#[test]
fn random_choice_of_sharing_members_is_the_m_m_1_queue_too() {
    let scenario = Scenario {
        requests: 400_000,
        ..Scenario::new("", 3)
    };
    let scenario = scenario.with_discipline(Discipline::Sharing, 1);
    let outcomes = run(&scenario, &random(), 1);
    assert!((mean(&outcomes) - 2.5).abs() < 0.1, "{}", mean(&outcomes));
}

#[test]
fn the_central_queue_avoids_a_slow_and_a_failing_member() {
    for scenario in [
        Scenario::new("", 10).one_slow(5.0),
        Scenario::new("", 10).one_failing(0.5),
    ] {
        let outcomes = run(&scenario, &Dispatch::Central { knows_costs: false }, 1);
        let share = outcomes.per_member[0] as f64 / outcomes.requests as f64;
        assert!(share < 0.005, "{share}");
    }
}

#[test]
fn a_run_repeats_itself() {
    let scenario = Scenario::new("", 5).with_balancers(2);
    let first = run(&scenario, &random(), 7);
    let second = run(&scenario, &random(), 7);
    assert_eq!(first.latencies, second.latencies);
    assert_ne!(first.latencies, run(&scenario, &random(), 8).latencies);
}

fn adaptive() -> Dispatch {
    let kind = evenkeel_core::strategy::find("adaptive").unwrap();
    Dispatch::Strategy(Values::defaults(kind))
}

#[test]
fn streams_are_balanced_as_responses_are_that_have_no_head_of_their_own() {
    for network in [Duration::ZERO, Duration::from_millis(1)] {
        let ordinary = Scenario {
            network,
            requests: 20_000,
            ..Scenario::new("", 4)
        };
        let ordinary = ordinary.with_discipline(Discipline::Fifo, 4).one_slow(4.0);
        let streams = Scenario {
            streams: true,
            ..ordinary.clone()
        };
        let [ordinary, streams] = [ordinary, streams].map(|of| run(&of, &adaptive(), 3));
        assert_eq!(ordinary.latencies, streams.latencies);
        assert_eq!(ordinary.per_member, streams.per_member);
    }
}

#[test]
fn members_with_the_same_long_polls_get_the_same() {
    // One request in ten waits twenty times as long as the others, and no work is done for it.
    let scenario = Scenario {
        streams: true,
        requests: 20_000,
        ..Scenario::new("", 2)
    };
    let scenario = scenario
        .with_discipline(Discipline::Fifo, 40)
        .with_service(Service::Mixed);
    let outcomes = run(&scenario, &adaptive(), 5);
    let share = outcomes.per_member[0] as f64 / outcomes.requests as f64;
    assert!((0.47..0.53).contains(&share), "{share}");
}

#[test]
fn requests_at_a_member_that_stands_still_at_the_end_count_if_the_run_drains() {
    let mut scenario = Scenario {
        requests: 2_000,
        ..Scenario::new("", 2)
    };
    let end = scenario.duration();
    for (share, to) in [(0.8, 1e9), (1.2, 1.0)] {
        scenario.changes.push(crate::scenario::Change {
            at: end.mul_f64(share),
            member: 0,
            to: ChangeEffect::Slowness(to),
        });
    }
    let cut = run(&scenario, &random(), 1);
    assert!(cut.latencies.len() < 1_700, "{}", cut.latencies.len());
    scenario.drains = true;
    let whole = run(&scenario, &random(), 1);
    assert_eq!((whole.requests, whole.latencies.len()), (2_000, 1_800));
    assert!(whole.mean() > cut.mean());
    // Nobody waits for ever for a member that never goes on.
    scenario.changes.pop();
    let stuck = run(&scenario, &random(), 1);
    assert!(stuck.latencies.len() < 1_800);
}
