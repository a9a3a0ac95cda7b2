//! The scenarios of the examples say what they seem to say.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::path::{Path, PathBuf};

use evenkeel_sim::experiment::plan::load;
use evenkeel_sim::experiment::{FIGURES, Mean, Results, run};

fn path(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("examples/scenarios").join(name)
}

fn play(name: &str) -> Vec<Results> {
    let plan = load(&path(name), None, None).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(plan.warnings, [], "{name}");
    run(&plan, &|_| ())
}

fn figure(results: &Results, name: &str) -> f64 {
    let index = FIGURES.iter().position(|figure| figure.name == name);
    Mean::all(&results.runs)[index.unwrap()].mean
}

#[test]
fn all_examples_are_played_here() {
    let known = [
        "bursts.toml",
        "evenkeel.toml",
        "full.toml",
        "pause.toml",
        "sessions.toml",
    ];
    let files = std::fs::read_dir(path("")).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, known);
}

#[test]
fn a_pause_costs_those_little_that_see_requests_pile_up() {
    let results = play("pause.toml");
    let p99: Vec<f64> = results.iter().map(|of| figure(of, "p99_ms")).collect();
    assert!(p99[0].max(p99[1]) < p99[2] / 3.0, "{p99:?}");
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
fn the_full_example_is_played() {
    let results = play("full.toml");
    assert!(figure(&results[0], "p50_ms") < figure(&results[1], "p50_ms"));
}
