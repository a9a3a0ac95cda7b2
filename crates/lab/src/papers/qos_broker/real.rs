//! Experiments of the paper with real Apaches: the end-to-end test `broker_experiment`, and its
//! tables.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::world::{POLICIES, REAL, Seen};
use crate::csv::{Csv, cell_number};
use crate::findings::Findings;
use crate::programs::{self, Folder, last_lines};
use crate::run::Run;

/// Repeats a test of an experiment, and returns the findings that `found` makes of the figures of each policy, by
/// round.
pub(super) fn repeat(
    run: &Run<'_>,
    (test, table): (&str, &str),
    found: impl Fn(&[Vec<Seen>]) -> Findings,
) -> Result<Findings, String> {
    let (least, times) = run.by_scale((3, "2"), (2, "1"));
    let round = |_| {
        let folder = Folder::new("broker")?;
        read(&play(test, table, times, folder.path())?)
    };
    let found = |rounds: &[Vec<Seen>]| {
        let of_policy = |policy: usize| rounds.iter().map(move |round| round[policy].clone());
        let all: Vec<Vec<Seen>> = (0..REAL)
            .map(|policy| of_policy(policy).collect())
            .collect();
        found(&all)
    };
    run.repeat_rounds(least, round, found)
}

/// Runs the test once; answers its table. What the test itself says of the figures does not count here.
fn play(test: &str, table: &str, times: &str, folder: &Path) -> Result<String, String> {
    let test_path = format!("broker_experiment::{test}");
    let command = [
        "test",
        "--release",
        "-p",
        "evenkeel-e2e",
        "--test",
        "workbench",
        "--",
        "--exact",
        &test_path,
    ];
    let mut cargo = Command::new("cargo");
    cargo
        .args(command)
        .env("EXPERIMENT_TIMES", times)
        .env("EXPERIMENT_FOLDER", folder);
    let output = programs::run_to_end(&mut cargo)
        .map_err(|error| format!("cargo: cannot be started: {error}"))?;
    let path = folder.join(format!("{table}.csv"));
    fs::read_to_string(path).map_err(|_| {
        format!(
            "the test {test} has written no table; it needs Apache (packages apache2 and apache2-dev), cc and make. It said: {}",
            last_lines(&output)
        )
    })
}

/// Reads the figures of each policy from the table.
fn read(text: &str) -> Result<Vec<Seen>, String> {
    let mut all = vec![Seen::default(); REAL];
    let csv = Csv::parse(text);
    for row in &csv.rows {
        let bad = || format!("the table of the test has a line that is none: {row:?}");
        let number = |column: usize| Some(cell_number(row, column)).filter(|n| !n.is_nan());
        let is = |column: usize, name: &str| row.get(column).is_some_and(|cell| cell == name);
        let policy = POLICIES.iter().position(|(policy, _)| is(0, policy));
        let server = ["S1", "S2", "S3"].iter().position(|server| is(1, server));
        let seen = policy
            .and_then(|policy| all.get_mut(policy))
            .ok_or_else(bad)?;
        let place = server
            .and_then(|server| seen.servers.get_mut(server))
            .ok_or_else(bad)?;
        let [Some(share), Some(busy), Some(response)] = [3, 4, 5].map(number) else {
            return Err(bad());
        };
        *place = [100.0 * share, 100.0 * busy, 1e3 * response];
        seen.response += share * 1e3 * response;
        seen.rate = f64::NAN;
    }
    match csv.rows.len() {
        12 => Ok(all),
        rows => Err(format!(
            "the table of the test has {rows} lines instead of 12"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_test_are_read() {
        let mut text = String::from(
            "policy,server,requests,share,utilization,mean_response_s,p50_s,p95_s,p99_s\n",
        );
        for (policy, _) in &POLICIES[..REAL] {
            for (server, share) in [("S1", 0.5), ("S2", 0.3), ("S3", 0.2)] {
                text += &format!("{policy},{server},100,{share},0.8,0.01,0.01,0.02,0.03\n");
            }
        }
        let all = read(&text).unwrap_or_default();
        assert_eq!(all.len(), 4);
        assert!((all[2].servers[1][0] - 30.0).abs() < 1e-9);
        assert!((all[3].response - 10.0).abs() < 1e-9);
        assert!(read("head\nXX,S1,1,1,1,1\n").is_err());
        assert!(read("head\nRR,S1,1,x,1,1\n").is_err());
        assert!(read("head\n").is_err());
    }
}
