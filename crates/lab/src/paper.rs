//! Papers: their figures and claims, and the experiments that repeat them.

use crate::claim::{Claim, Verdict};
use crate::findings::Findings;
use crate::machine::Need;
use crate::run::Run;

/// A paper.
#[derive(Debug)]
pub struct Paper {
    /// Name in the lab: small letters, digits and dashes.
    pub name: &'static str,
    /// Subject of the paper, in a few words.
    pub title: String,
    /// Authors, title, place and year of publication.
    pub cite: String,
    /// Differences from the paper that all experiments share, and why: paragraphs in Markdown.
    pub differs: String,
    /// Figures and tables of the paper with results, in their order.
    pub rows: Vec<Row>,
    /// Experiments that repeat results of the paper.
    pub experiments: Vec<Experiment>,
}

/// A figure or table of a paper.
#[derive(Debug, PartialEq)]
pub struct Row {
    /// Name in the paper: `figure 7`.
    pub what: String,
    /// Subject of the figure or table.
    pub shows: String,
    /// Way in which the figure or table is repeated.
    pub by: By,
}

/// Way in which a figure or table is repeated.
#[derive(Debug, PartialEq)]
pub enum By {
    /// Experiment of this name.
    Experiment(String),
    /// No repetition, for this reason.
    Nothing(String),
}

/// An experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Name, unique in the lab: small letters, digits and dashes.
    pub name: String,
    /// Question that it answers.
    pub title: String,
    /// Set-up, and where that differs from the paper: paragraphs in Markdown.
    pub set_up: String,
    /// Differences of the run with real programs from the simulated one; empty without such a run.
    pub set_up_real: String,
    /// Claims that are judged.
    pub claims: Vec<Claim>,
    /// Run in virtual time, at the scale of the paper.
    pub simulate: Option<fn(&Run) -> Findings>,
    /// Run with real programs, at the scale that this machine holds.
    pub real: Option<Real>,
}

impl Experiment {
    /// Returns true if each claim of the experiment that was measured can be told. Single draws are left out: most of
    /// them cannot be told however many there are.
    pub fn is_told(&self, findings: &Findings) -> bool {
        self.claims.iter().all(|claim| {
            let values = findings.values.get(claim.id.as_str());
            claim.is_draw
                || values.is_none_or(|values| claim.judge_values(values) != Verdict::CannotBeTold)
        })
    }
}

/// Functions of an experiment; its texts and claims are in the file of its paper.
#[derive(Clone, Copy, Debug)]
pub struct Play {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Function of [`Experiment::simulate`].
    pub simulate: Option<fn(&Run) -> Findings>,
    /// Function of [`Experiment::real`].
    pub real: Option<Real>,
}

/// An experiment with real programs.
#[derive(Clone, Copy, Debug)]
pub struct Real {
    /// Requirements of the experiment on the machine.
    pub needs: &'static [Need],
    /// Runs the experiment. The claims that it measures are judged.
    pub run: fn(&Run) -> Result<Findings, String>,
}
