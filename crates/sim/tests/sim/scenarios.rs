//! The scenarios of the examples say what they seem to say.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::path::{Path, PathBuf};

use evenkeel_sim::experiment::plan::load_plan;
use evenkeel_sim::experiment::{FIGURES, Mean, Results, export, run};

fn path(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("examples/scenarios").join(name)
}

fn play(name: &str) -> Vec<Results> {
    let plan = load_plan(&path(name), None, None).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(plan.warnings, [], "{name}");
    run(&plan, &|_| ())
}

fn figure(results: &Results, name: &str) -> f64 {
    let index = FIGURES.iter().position(|figure| figure.name == name);
    Mean::of_runs(&results.runs)[index.unwrap()].mean
}

/// Scenarios of docs/choosing-a-strategy.md.
const CHOOSING: [&str; 14] = [
    "choosing-balancers.toml",
    "choosing-caches.toml",
    "choosing-connections.toml",
    "choosing-constant.toml",
    "choosing-equal.toml",
    "choosing-failing.toml",
    "choosing-late.toml",
    "choosing-misled.toml",
    "choosing-mixed.toml",
    "choosing-moving.toml",
    "choosing-pauses.toml",
    "choosing-reports.toml",
    "choosing-sizes.toml",
    "choosing-slow.toml",
];

#[test]
fn all_examples_are_played_here() {
    let known = [
        "bursts.toml",
        "evenkeel.toml",
        "fleet-evenkeel.toml",
        "fleet.toml",
        "full.toml",
        "inference-agents.toml",
        "inference-evenkeel.toml",
        "inference-flood.toml",
        "inference-slow.toml",
        "inference-stall.toml",
        "inference-trace.jsonl",
        "inference-trace.toml",
        "pause.toml",
        "sessions.toml",
        "streams.toml",
        "zones-evenkeel.toml",
        "zones.toml",
    ];
    let files = std::fs::read_dir(path("")).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    names.retain(|name| !CHOOSING.iter().any(|choosing| name == choosing));
    names.sort();
    assert_eq!(names, known);
}

#[test]
fn what_the_page_about_strategies_shows_can_be_played() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/choosing-a-strategy.md")).unwrap();
    for name in CHOOSING {
        let plan =
            load_plan(&path(name), Some(1), Some(1)).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(plan.warnings, [], "{name}");
        assert!(page.contains(name), "{name} is not in the page");
    }
}

#[test]
fn the_page_about_strategies_is_right_about_a_slow_member_that_changes() {
    let results = play("choosing-moving.toml");
    let p99: Vec<f64> = results.iter().map(|of| figure(of, "p99_ms")).collect();
    let [adaptive, least_request, .., prequal, _, random] = p99[..] else {
        panic!("{p99:?}");
    };
    assert!(adaptive.max(prequal) < 0.65 * least_request, "{p99:?}");
    assert!(least_request < 0.1 * random, "{p99:?}");
}

#[test]
fn a_pause_costs_those_little_that_see_requests_pile_up() {
    let results = play("pause.toml");
    let p99: Vec<f64> = results.iter().map(|of| figure(of, "p99_ms")).collect();
    assert!(p99[0].max(p99[1]) < p99[2] / 3.0, "{p99:?}");
}

#[test]
fn a_member_that_is_slow_in_its_streams_is_seen_by_their_first_bytes() {
    let results = play("streams.toml");
    let [auto, head] = [&results[0], &results[1]];
    assert!(auto.first.shares[0] < 0.12, "{:?}", auto.first.shares);
    assert!(head.first.shares[0] > 0.18, "{:?}", head.first.shares);
}

#[test]
fn the_strategy_for_engines_is_the_best_for_agents() {
    let results = play("inference-agents.toml");
    let means: Vec<f64> = results.iter().map(|of| figure(of, "mean_ms")).collect();
    let hits: Vec<f64> = results.iter().map(|of| figure(of, "hit_share")).collect();
    for other in 1..means.len() {
        assert!(means[0] < 0.9 * means[other], "{means:?}");
        assert!(hits[0] > hits[other], "{hits:?}");
    }
}

#[test]
fn a_slow_engine_costs_less_than_with_rules_of_other_routers() {
    let results = play("inference-slow.toml");
    let means: Vec<f64> = results.iter().map(|of| figure(of, "mean_ms")).collect();
    assert!(
        means[1..].iter().all(|other| means[0] < *other),
        "{means:?}"
    );
    assert!(results[0].first.shares[0] < 0.2);
}

#[test]
fn engines_that_stand_still_are_avoided() {
    let results = play("inference-stall.toml");
    let means: Vec<f64> = results.iter().map(|of| figure(of, "mean_ms")).collect();
    let [evenkeel, lmetric, least_request] = means[..] else {
        panic!("{means:?}");
    };
    assert!(
        evenkeel < 1.15 * lmetric && evenkeel < least_request,
        "{means:?}"
    );
}

#[test]
fn a_trace_of_the_user_is_played() {
    let results = play("inference-trace.toml");
    let hits: Vec<f64> = results.iter().map(|of| figure(of, "hit_share")).collect();
    let means: Vec<f64> = results.iter().map(|of| figure(of, "mean_ms")).collect();
    let lines = std::fs::read_to_string(path("inference-trace.jsonl")).unwrap();
    let requests = lines.lines().count() as f64;
    for results in &results {
        assert_eq!(figure(results, "requests"), requests);
        assert_eq!(figure(results, "failed_share"), 0.0);
    }
    assert!(
        hits[0] > hits[2] + 0.05 && hits[0] > hits[3] + 0.05,
        "{hits:?}"
    );
    assert!(means[0] < means[2].min(means[3]), "{means:?}");
}

#[test]
fn a_trace_that_cannot_be_used_is_told_with_its_line() {
    let folder = std::env::temp_dir().join(format!("evenkeel-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let config = std::fs::read_to_string(path("inference-evenkeel.toml")).unwrap();
    write("evenkeel.toml", &config);
    write(
        "trace.toml",
        "config = \"evenkeel.toml\"\n[engines]\n[prompts]\nkind = \"trace\"\nfile = \"own.jsonl\"\n",
    );
    let load = || load_plan(&folder.join("trace.toml"), None, None).map(|_| ());
    let missing = load().unwrap_err().to_string();
    let line = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}"#;
    write("own.jsonl", &format!("{line}\n{{\"timestamp\": 1}}\n"));
    let bad = load().unwrap_err().to_string();
    write("own.jsonl", &format!("{line}\n{line}\n"));
    let good = load();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(missing.contains("own.jsonl"), "{missing}");
    assert!(
        bad.contains("own.jsonl:2: `input_length` is missing"),
        "{bad}"
    );
    assert!(bad.contains("trace.toml:5"), "{bad}");
    good.unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn more_members_carry_a_burst() {
    let results = play("bursts.toml");
    let p99: Vec<f64> = results.iter().map(|of| figure(of, "p99_ms")).collect();
    assert!(p99.windows(2).all(|pair| pair[1] < pair[0]), "{p99:?}");
    assert!(p99[0] > 4.0 * p99[3], "{p99:?}");
}

#[test]
fn an_antagonist_takes_its_share_of_a_member() {
    let results = play("sessions.toml");
    assert!(figure(&results[0], "requests") > 10_000.0);
    let shares = &results[0].first.shares;
    let others = [shares[0], shares[2], shares[3]];
    assert!(
        others.iter().all(|share| *share > 1.3 * shares[1]),
        "{shares:?}"
    );
}

#[test]
fn a_zone_that_is_loaded_for_a_while_sends_some_away() {
    let results = play("zones.toml");
    let away = |of: &Results| of.first.shares[2] + of.first.shares[3];
    let [spills, stays, alike] = [0, 1, 2].map(|index| &results[index]);
    let shares = [spills, stays, alike].map(away);
    assert!((0.05..0.35).contains(&shares[0]), "{shares:?}");
    assert_eq!(shares[1], 0.0);
    assert!((shares[2] - 0.5).abs() < 0.15, "{shares:?}");
    let p99 = [spills, stays, alike].map(|of| figure(of, "p99_ms"));
    assert!(p99[0] < p99[1] / 3.0, "{p99:?}");
    // What is away is back in the end.
    let words: Vec<&str> = spills
        .first
        .events
        .iter()
        .map(|(_, _, said)| said.as_str())
        .collect();
    assert!(words.len() >= 2 && words.len() <= 6, "{words:?}");
    assert!(words[0].contains("of the requests stay"), "{words:?}");
    assert_eq!(
        *words.last().unwrap(),
        "all requests stay in the first zone"
    );
}

#[test]
fn the_full_example_is_played() {
    let results = play("full.toml");
    assert!(figure(&results[0], "p50_ms") < figure(&results[1], "p50_ms"));
}

/// FNV-1a (Fowler, Noll, Vo), which is the same everywhere and always.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// If this fails on one machine only, something there is not the same arithmetic. If it fails after
/// a change of decisions or of the world, the new values belong here.
#[test]
fn the_same_seed_gives_the_same_bytes_on_all_machines() {
    let expected = [
        ("pause.toml", 7_650_253_860_726_977_741),
        ("bursts.toml", 8_235_712_700_758_812_714),
        ("sessions.toml", 9_907_647_786_072_173_507),
        ("full.toml", 9_346_261_179_805_665_030),
    ];
    let found = expected.map(|(name, _)| {
        let mut plan = load_plan(&path(name), None, Some(1)).unwrap();
        // Not the folder of this machine.
        plan.file = name.into();
        (name, hash(&export::to_json(&plan, &run(&plan, &|_| ()))))
    });
    assert_eq!(found, expected);
}

/// Balancers that know of each other's requests in flight avoid members that are slow, and do not all choose
/// the same one.
#[test]
fn requests_in_flight_of_a_fleet_make_no_strategy_worse_and_most_better() {
    let results = play("fleet.toml");
    let (without, with) = results.split_at(results.len() / 2);
    assert_eq!(with.len(), 4);
    for (without, with) in without.iter().zip(with).take(3) {
        let ratio = |figure: &str| self::figure(with, figure) / self::figure(without, figure);
        let (mean, p99) = (ratio("mean_ms"), ratio("p99_ms"));
        assert!(mean < 0.9 && p99 < 0.75, "{mean} {p99}");
    }
    // This one does not go by them.
    let adaptive = [&without[3], &with[3]].map(|of| figure(of, "mean_ms"));
    assert_eq!(adaptive[0], adaptive[1]);
}
