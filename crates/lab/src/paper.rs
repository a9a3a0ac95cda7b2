//! Papers: what they show, and the experiments that repeat it.

use crate::claim::Claim;
use crate::findings::Findings;
use crate::machine::Need;
use crate::run::Run;

/// A paper.
#[derive(Debug)]
pub struct Paper {
    /// Its name here: small letters and dashes.
    pub name: &'static str,
    /// What it is about, in a few words.
    pub title: &'static str,
    /// Authors, title, where and when it was published.
    pub cite: &'static str,
    /// What is not as in the paper in all experiments, and why: paragraphs in Markdown.
    pub differs: &'static str,
    /// Its figures and tables with results, in their order.
    pub rows: &'static [Row],
    /// Experiments.
    pub experiments: &'static [Experiment],
}

/// A figure or table of a paper.
#[derive(Debug)]
pub struct Row {
    /// Which one: `figure 7`.
    pub what: &'static str,
    /// What it shows.
    pub shows: &'static str,
    /// How it is repeated.
    pub by: By,
}

/// How a figure or table is repeated.
#[derive(Debug)]
pub enum By {
    /// By the experiment of this name.
    Experiment(&'static str),
    /// Not at all, for this reason.
    Nothing(&'static str),
}

/// An experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Its name: small letters and dashes, unique in the lab.
    pub name: &'static str,
    /// What it asks.
    pub title: &'static str,
    /// What is set up, and where that differs from the paper: paragraphs in Markdown.
    pub set_up: &'static str,
    /// What is judged.
    pub claims: &'static [Claim],
    /// In virtual time, at the scale of the paper.
    pub simulate: Option<fn(&Run) -> Findings>,
    /// With real programs, at the scale that this machine holds.
    pub real: Option<Real>,
}

/// An experiment with real programs.
#[derive(Debug)]
pub struct Real {
    /// What is not as in the simulated one.
    pub set_up: &'static str,
    /// What it takes.
    pub needs: &'static [Need],
    /// Runs it. The claims that it measures are judged.
    pub run: fn(&Run) -> Result<Findings, String>,
}

/// All papers.
pub fn all() -> [&'static Paper; 5] {
    use crate::papers::{cygnus, java_slb, qos_broker, rdma, strategies};
    [
        &cygnus::PAPER,
        &strategies::PAPER,
        &java_slb::PAPER,
        &qos_broker::PAPER,
        &rdma::PAPER,
    ]
}

/// What a name stands for: one experiment, or all of a paper.
pub fn find(name: &str) -> Vec<(&'static Paper, &'static Experiment)> {
    let every = all().into_iter().flat_map(|paper| {
        let experiments = paper.experiments.iter();
        experiments.map(move |experiment| (paper, experiment))
    });
    every
        .filter(|(paper, experiment)| ["all", paper.name, experiment.name].contains(&name))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::claim::Verdict;
    use crate::run::Scale;

    /// Names of files, and of what is asked for at the command line.
    fn is_name(name: &str) -> bool {
        let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !name.is_empty() && name.chars().all(is_fit)
    }

    #[test]
    fn names_are_unique_and_rows_lead_to_experiments() {
        let mut names = BTreeSet::from(["all"]);
        for paper in all() {
            assert!(
                is_name(paper.name) && names.insert(paper.name),
                "{}",
                paper.name
            );
            for experiment in paper.experiments {
                let name = experiment.name;
                assert!(is_name(name) && names.insert(name), "{name}");
                assert!(
                    experiment.simulate.is_some() || experiment.real.is_some(),
                    "{name}"
                );
                let mut ids = BTreeSet::new();
                for claim in experiment.claims {
                    assert!(
                        is_name(claim.id) && ids.insert(claim.id),
                        "{name}: {}",
                        claim.id
                    );
                }
                let shown = paper
                    .rows
                    .iter()
                    .any(|row| matches!(row.by, By::Experiment(by) if by == name));
                assert!(shown, "{name}: no figure or table leads there");
            }
            for row in paper.rows {
                if let By::Experiment(name) = row.by {
                    let found = paper
                        .experiments
                        .iter()
                        .any(|experiment| experiment.name == name);
                    assert!(found, "{} leads to {name}", row.what);
                }
            }
        }
    }

    #[test]
    fn nine_tenths_of_the_figures_and_tables_are_run() {
        let (run, rows) = all().iter().fold((0, 0), |(run, rows), paper| {
            let (of, count) = crate::page::covered(paper);
            (run + of, rows + count)
        });
        assert!(run * 10 >= rows * 9, "{run} of {rows}");
    }

    /// Each rule can say both, whatever is measured.
    #[test]
    fn each_claim_can_hold_and_can_fail() {
        for experiment in all().iter().flat_map(|paper| paper.experiments) {
            for claim in experiment.claims {
                let (good, bad) = claim.rule.examples();
                let place = format!("{}: {}", experiment.name, claim.id);
                assert_eq!(claim.rule.judge(&[good; 3]), Verdict::Holds, "{place}");
                assert_eq!(claim.rule.judge(&[bad; 3]), Verdict::DoesNot, "{place}");
            }
        }
    }

    /// All experiments of virtual time, small: whatever is claimed is measured.
    #[test]
    fn each_claim_is_measured() {
        for experiment in all().iter().flat_map(|paper| paper.experiments) {
            let Some(simulate) = experiment.simulate else {
                continue;
            };
            let run = Run {
                scale: Scale::Quick,
                seed: 1,
                progress: &|_| {},
            };
            let findings = simulate(&run);
            for claim in experiment.claims {
                let values = findings.values.get(claim.id);
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
