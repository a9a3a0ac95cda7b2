//! Findings from made-up files of measurements.

use evenkeel_sim::svg::Line;

use super::on_demand::{average_seconds, off_from_even, settling_time};
use super::overhead::{OVERHEAD, compare_ways, read_turns};
use super::per_session::{PER_SESSION, compare_ends};
use super::rates::read_rates;
use crate::claim::Verdict;
use crate::findings::Findings;
use crate::paper::Play;
use crate::papers::find;
use crate::record;

fn verdict(play: &Play, findings: &Findings, claim: &str) -> Verdict {
    let (_, experiment) = find(play.experiment)[0];
    record::judge_claims(&experiment.claims, findings)[claim].verdict
}

/// A file of the measurement in which `on demand` has this share of the throughput.
fn overhead_of(share: f64) -> Findings {
    let mut text = String::from("round,arm,requests_per_s,mean_us,p50_us,p99_us,jitter_us\n");
    for round in 0..12 {
        // From round to round everything changes, and once one way is disturbed.
        let speed = 10_000.0 + 1000.0 * f64::from(round % 4);
        let disturbed = if round == 5 { 0.3 } else { 1.0 };
        for (arm, share) in [
            ("none", 1.0),
            ("per_session", 1.0),
            ("per_request", 0.5),
            ("on_demand", share * disturbed),
        ] {
            let rate = speed * share;
            text += &format!("{round},{arm},{rate},{},1,1,20\n", 1e6 / rate);
        }
    }
    compare_ways(&read_turns(&crate::csv::Csv::parse(&text).rows), 4)
}

#[test]
fn one_per_cent_is_told_from_five_in_spite_of_a_disturbed_turn() {
    for (share, wanted) in [(0.995, Verdict::Holds), (0.95, Verdict::DoesNot)] {
        let findings = overhead_of(share);
        for claim in ["on-demand-throughput", "on-demand-latency"] {
            let told = verdict(&OVERHEAD, &findings, claim);
            assert_eq!(told, wanted, "{share}: {claim}: {:?}", findings.values);
        }
        let told = verdict(&OVERHEAD, &findings, "per-session-throughput");
        assert_eq!(told, Verdict::Holds);
    }
}

/// Rates of four members in steps of half a second.
fn loads(rates: impl Fn(f64) -> [f64; 4]) -> Vec<Line> {
    let mut text = String::from("seconds,member,requests_per_s\n");
    for step in 1..=80 {
        let at = f64::from(step) / 2.0;
        for (member, rate) in rates(at).into_iter().enumerate() {
            text += &format!("{at},{},{rate}\n", member + 1);
        }
    }
    read_rates(&crate::csv::Csv::parse(&text).rows)
}

#[test]
fn half_way_is_told_from_the_end() {
    for (drop, wanted) in [(20.0, Verdict::Holds), (36.0, Verdict::DoesNot)] {
        let rates = |at: f64| match at {
            _ if at <= drop => [20.0, 10.0, 15.0, 15.0],
            _ if at <= 39.0 => [0.0, 10.0, 5.0, 5.0],
            _ => [0.0; 4],
        };
        let findings = compare_ends(vec![loads(rates); 3]);
        assert_eq!(verdict(&PER_SESSION, &findings, "drop"), wanted, "{drop}");
        for claim in ["uneven", "alike"] {
            assert_eq!(verdict(&PER_SESSION, &findings, claim), Verdict::Holds);
        }
    }
    let even = compare_ends(vec![loads(|_| [15.0; 4]); 3]);
    assert_eq!(verdict(&PER_SESSION, &even, "uneven"), Verdict::DoesNot);
}

#[test]
fn members_settle_when_the_last_of_them_does_and_stays() {
    let lines = loads(|at| match at {
        _ if at <= 6.0 => [200.0, 100.0, 200.0, 100.0],
        _ if at <= 8.0 => [150.0, 150.0, 150.0, 150.0],
        // One sample alone is the way that periods fall into it.
        _ if at <= 8.5 => [154.0, 146.0, 150.0, 150.0],
        _ if at <= 12.0 => [160.0, 140.0, 150.0, 150.0],
        _ => [150.0; 4],
    });
    let lines = average_seconds(&lines);
    assert!(
        (12.0..=12.5).contains(&settling_time(&lines)),
        "{}",
        settling_time(&lines)
    );
    assert_eq!(off_from_even(&lines, 10.0), 0.0);
    let apart = average_seconds(&loads(|_| [200.0, 100.0, 200.0, 100.0]));
    assert!(settling_time(&apart) > 39.0);
    assert!((off_from_even(&apart, 10.0) - 100.0 / 3.0).abs() < 1e-9);
}
