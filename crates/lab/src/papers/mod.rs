//! The papers: a file of texts and claims each (`papers/NAME.toml`), and a module with the experiments.

mod corba;
mod cygnus;
mod java_slb;
mod qos_broker;
mod rdma;
mod strategies;

use std::sync::LazyLock;

use crate::paper::{Experiment, Paper, Play};
use crate::paper_file::read;

/// Papers in their order: name, file, and functions of the experiments.
const FILES: [(&str, &str, &[Play]); 5] = [
    (
        "cygnus",
        include_str!("../../papers/cygnus.toml"),
        cygnus::PLAYS,
    ),
    (
        "strategies",
        include_str!("../../papers/strategies.toml"),
        strategies::PLAYS,
    ),
    (
        "java-slb",
        include_str!("../../papers/java-slb.toml"),
        java_slb::PLAYS,
    ),
    (
        "qos-broker",
        include_str!("../../papers/qos-broker.toml"),
        qos_broker::PLAYS,
    ),
    ("rdma", include_str!("../../papers/rdma.toml"), rdma::PLAYS),
];

/// Lists all papers.
///
/// # Panics
///
/// If a file of a paper is wrong. The files are part of the program, and a test reads all of them.
pub fn all_papers() -> &'static [Paper] {
    static PAPERS: LazyLock<Vec<Paper>> = LazyLock::new(|| {
        let papers = FILES.map(|(name, text, plays)| read(name, text, plays));
        let papers = papers.map(|paper| paper.unwrap_or_else(|errors| panic!("{errors}")));
        papers.into()
    });
    &PAPERS
}

/// Lists the experiments that a name stands for: one experiment, or all of a paper.
pub fn find(name: &str) -> Vec<(&'static Paper, &'static Experiment)> {
    let every = all_papers().iter().flat_map(|paper| {
        let experiments = paper.experiments.iter();
        experiments.map(move |experiment| (paper, experiment))
    });
    every
        .filter(|(paper, experiment)| ["all", paper.name, experiment.name.as_str()].contains(&name))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::claim::Verdict;
    use crate::paper::By;
    use crate::run::{Run, Scale};

    /// Names of files, and names on the command line.
    fn is_name(name: &str) -> bool {
        let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !name.is_empty() && name.chars().all(is_fit)
    }

    #[test]
    fn names_are_unique_and_rows_lead_to_experiments() {
        let mut names = BTreeSet::from(["all"]);
        for paper in all_papers() {
            assert!(
                is_name(paper.name) && names.insert(paper.name),
                "{}",
                paper.name
            );
            for experiment in &paper.experiments {
                let name = experiment.name.as_str();
                assert!(is_name(name) && names.insert(name), "{name}");
                assert!(
                    experiment.simulate.is_some() || experiment.real.is_some(),
                    "{name}"
                );
                let mut ids = BTreeSet::new();
                for claim in &experiment.claims {
                    assert!(
                        is_name(&claim.id) && ids.insert(&claim.id),
                        "{name}: {}",
                        claim.id
                    );
                }
                let shown = paper
                    .rows
                    .iter()
                    .any(|row| matches!(&row.by, By::Experiment(by) if by == name));
                assert!(shown, "{name}: no figure or table leads there");
            }
            for row in &paper.rows {
                if let By::Experiment(name) = &row.by {
                    let found = paper
                        .experiments
                        .iter()
                        .any(|experiment| experiment.name == *name);
                    assert!(found, "{} leads to {name}", row.what);
                }
            }
        }
    }

    #[test]
    fn nine_tenths_of_the_figures_and_tables_are_run() {
        let (run, rows) = all_papers().iter().fold((0, 0), |(run, rows), paper| {
            let (of, count) = crate::page::count_covered_rows(paper);
            (run + of, rows + count)
        });
        assert!(run * 10 >= rows * 9, "{run} of {rows}");
    }

    /// Each rule can say both, whatever is measured.
    #[test]
    fn each_claim_can_hold_and_can_fail() {
        for experiment in all_papers().iter().flat_map(|paper| &paper.experiments) {
            for claim in &experiment.claims {
                let place = format!("{}: {}", experiment.name, claim.id);
                let (from, to) = claim.rule.range();
                let off = |value: f64| 0.1 * value.abs() + 1e-9;
                let (good, bad) = match (from.is_finite(), to.is_finite()) {
                    (true, true) => ((from + to) / 2.0, [from - off(to), to + off(to)]),
                    (true, false) => (from + off(from), [from - off(from); 2]),
                    _ => (to - off(to), [to + off(to); 2]),
                };
                assert_eq!(claim.judge_values(&[good; 40]), Verdict::Holds, "{place}");
                let fails = bad.map(|bad| claim.judge_values(&[bad; 40]));
                let is_failure =
                    |verdict: &Verdict| matches!(verdict, Verdict::DoesNot | Verdict::Contradicts);
                assert!(fails.iter().any(is_failure), "{place}: {fails:?}");
            }
        }
    }

    /// All experiments of virtual time, small: whatever is claimed is measured.
    #[test]
    fn each_claim_is_measured() {
        for experiment in all_papers().iter().flat_map(|paper| &paper.experiments) {
            let Some(simulate) = experiment.simulate else {
                continue;
            };
            let run = Run {
                scale: Scale::Quick,
                seed: 1,
                progress: &|_| {},
                is_told: &|_| true,
            };
            let findings = simulate(&run);
            for claim in &experiment.claims {
                let values = findings.values.get(claim.id.as_str());
                let place = format!("{}: {}", experiment.name, claim.id);
                assert!(
                    values.is_some_and(|values| !values.is_empty()),
                    "{place} was not measured"
                );
                assert!(
                    values.into_iter().flatten().all(|value| value.is_finite()),
                    "{place}: {values:?}"
                );
            }
            for id in findings.values.keys() {
                let known = experiment.claims.iter().any(|claim| claim.id == *id);
                assert!(known, "{}: nobody claims {id}", experiment.name);
            }
            assert!(!findings.tables.is_empty(), "{}: no table", experiment.name);
        }
    }
}
