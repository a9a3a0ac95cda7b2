//! Results on disk: a JSON file for each experiment and kind of run, with its CSV and SVG files
//! beside it.
//!
//! A quick run never takes the place of a full one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_sim::experiment::Mean;
use serde::{Deserialize, Serialize};

use crate::claim::{Claim, Mode, Verdict};
use crate::findings::Findings;
use crate::machine::Origin;
use crate::paper::{Experiment, Paper};
use crate::run::Scale;
use crate::search_path::is_on_path;

/// Record of a run that is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// True if the run was a quick one.
    pub is_quick: bool,
    /// Origin of the results.
    pub origin: Origin,
    /// End of the run, in seconds since 1970.
    pub ended: u64,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// Judged claims, by name.
    pub claims: BTreeMap<String, Judged>,
    /// Tables: their file, title, and Markdown.
    pub tables: Vec<Shown>,
    /// Plots: their file, title, and nothing.
    pub charts: Vec<Shown>,
    /// Further notes that a reader needs.
    pub notes: Vec<String>,
}

/// A claim and its verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judged {
    /// The values, one for each run.
    pub values: Vec<f64>,
    /// The verdict by the claim's rule.
    pub verdict: Verdict,
}

/// A table or plot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shown {
    /// The file's name, without its ending.
    pub file: String,
    /// Title: the subject of the table or plot.
    pub title: String,
    /// Text on the page; nothing for plots.
    pub text: String,
}

/// Reason why results cannot be written.
#[derive(Debug)]
pub struct Error(String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Returns the name of the files of a run, without the ending.
fn stem(experiment: &Experiment, mode: Mode) -> String {
    match mode {
        Mode::Simulated => experiment.name.clone(),
        Mode::Real => format!("{}-real", experiment.name),
    }
}

fn file(folder: &Path, paper: &Paper, experiment: &Experiment, mode: Mode) -> PathBuf {
    let name = stem(experiment, mode) + ".json";
    folder.join(paper.name).join(name)
}

/// Reads the record of an earlier run. Files that cannot be read are none.
pub fn read(folder: &Path, paper: &Paper, experiment: &Experiment, mode: Mode) -> Option<Record> {
    let text = fs::read(file(folder, paper, experiment, mode)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Checks that a run may be written to the folder.
///
/// # Errors
///
/// If the run is quick and a full one is there, or if the folder cannot be made.
pub fn may_write(
    folder: &Path,
    (paper, experiment): (&Paper, &Experiment),
    mode: Mode,
    scale: Scale,
) -> Result<(), Error> {
    let place = folder.join(paper.name);
    fs::create_dir_all(&place)
        .map_err(|error| Error(format!("{}: cannot be made: {error}", place.display())))?;
    let before = read(folder, paper, experiment, mode);
    match before {
        Some(record) if scale == Scale::Quick && !record.is_quick => Err(Error(format!(
            "{}: has the results of a full run, which a quick one does not replace: give another folder (--out)",
            file(folder, paper, experiment, mode).display()
        ))),
        _ => Ok(()),
    }
}

/// Judges the stored values of a run by the present rules of the claims, and keeps the verdicts. Returns the number of
/// verdicts that differ; nothing if there is no such run.
///
/// # Errors
///
/// If the file cannot be written.
pub fn judge_again(
    folder: &Path,
    (paper, experiment): (&Paper, &Experiment),
    mode: Mode,
) -> Result<Option<usize>, Error> {
    let Some(record) = read(folder, paper, experiment, mode) else {
        return Ok(None);
    };
    let path = file(folder, paper, experiment, mode);
    let failed = |error: std::io::Error| Error(format!("{}: {error}", path.display()));
    let mut text = fs::read_to_string(&path).map_err(failed)?;
    let mut changed = 0;
    for claim in &experiment.claims {
        if let Some(judged) = record.claims.get(&claim.id) {
            let verdict = claim.judge_values(&judged.values);
            if verdict != judged.verdict && replace_verdict(&mut text, &claim.id, verdict) {
                changed += 1;
            }
        }
    }
    if changed > 0 {
        fs::write(&path, text).map_err(failed)?;
    }
    Ok(Some(changed))
}

/// Replaces the verdict of a claim in the text of a record, whose numbers stay as they were written. False if the claim is
/// not there.
fn replace_verdict(text: &mut String, claim: &str, verdict: Verdict) -> bool {
    const KEY: &str = "\"verdict\": ";
    let after = |text: &str, from: usize, what: &str| {
        let rest = text.get(from..)?;
        Some(from + rest.find(what)? + what.len())
    };
    let place = after(text, 0, &format!("\"{claim}\": {{"))
        .and_then(|at| after(text, at, KEY))
        .and_then(|from| Some((from, after(text, from + 1, "\"")?)));
    let (Some((from, to)), Ok(word)) = (place, serde_json::to_string(&verdict)) else {
        return false;
    };
    text.replace_range(from..to, &word);
    true
}

/// A run that has ended.
pub struct Ended<'a> {
    /// Paper of the experiment.
    pub paper: &'a Paper,
    /// Experiment that was run.
    pub experiment: &'a Experiment,
    /// Mode of the run.
    pub mode: Mode,
    /// Scale of the run.
    pub scale: Scale,
    /// Origin of the results.
    pub origin: Origin,
    /// End of the run, in seconds since 1970.
    pub ended: u64,
    /// Duration of the run, in seconds.
    pub seconds: f64,
}

/// Judges the measured values by the rules of the claims.
pub fn judge_claims(claims: &[Claim], findings: &Findings) -> BTreeMap<String, Judged> {
    let judged = |claim: &Claim| {
        let mut values = findings.values.get(claim.id.as_str())?.clone();
        // JSON has no infinity; what is not finite was not measured.
        if values.iter().any(|value| !value.is_finite()) {
            values.clear();
        }
        Some((claim.id.clone(), Judged::new(claim, values)))
    };
    claims.iter().filter_map(judged).collect()
}

impl Judged {
    /// Judges the values of a claim.
    fn new(claim: &Claim, values: Vec<f64>) -> Self {
        let verdict = claim.judge_values(&values);
        Judged { values, verdict }
    }

    /// The mean, and its interval.
    pub fn mean(&self) -> Option<Mean> {
        (!self.values.is_empty()).then(|| Mean::of_values(&self.values))
    }
}

/// Writes the findings. Returns the record written, and a note if plots are not there as PNG.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write(
    folder: &Path,
    run: &Ended<'_>,
    findings: &Findings,
) -> Result<(Record, Option<String>), Error> {
    let place = folder.join(run.paper.name);
    let stem = stem(run.experiment, run.mode);
    let put = |name: &str, text: &str| {
        let path = place.join(name);
        fs::write(&path, text)
            .map_err(|error| Error(format!("{}: cannot be written: {error}", path.display())))
    };
    let (mut tables, mut charts) = (Vec::new(), Vec::new());
    for table in &findings.tables {
        let file = format!("{stem}-{}", table.name);
        put(&format!("{file}.csv"), &table.to_csv())?;
        tables.push(Shown {
            file,
            title: table.title.clone(),
            text: table.to_markdown(),
        });
    }
    for chart in &findings.charts {
        let file = format!("{stem}-{}", chart.name);
        put(&format!("{file}.svg"), &chart.plot.file(&chart.title))?;
        charts.push(Shown {
            file,
            title: chart.title.clone(),
            text: String::new(),
        });
    }
    let note = pictures(&place, &charts)?;
    let record = Record {
        is_quick: run.scale == Scale::Quick,
        origin: run.origin.clone(),
        ended: run.ended,
        seconds: run.seconds,
        claims: judge_claims(&run.experiment.claims, findings),
        tables,
        charts,
        notes: findings.notes.clone(),
    };
    let text = serde_json::to_string_pretty(&record)
        .map_err(|error| Error(format!("{stem}: cannot be written as JSON: {error}")))?;
    put(&format!("{stem}.json"), &(text + "\n"))?;
    Ok((record, note))
}

/// The program that makes PNG files of SVG files.
const RENDERER: &str = "rsvg-convert";

/// Makes a PNG file of each plot, at twice its size; returns a note if no program can do so.
fn pictures(place: &Path, charts: &[Shown]) -> Result<Option<String>, Error> {
    if charts.is_empty() {
        return Ok(None);
    }
    if !is_on_path(RENDERER) {
        return Ok(Some(format!(
            "plots are written as SVG only: PNG needs {RENDERER} (package librsvg2-bin)"
        )));
    }
    for chart in charts {
        let (from, to) = (format!("{}.svg", chart.file), format!("{}.png", chart.file));
        let output = Command::new(RENDERER)
            .args(["--zoom", "2", "--output", &to, &from])
            .current_dir(place)
            .output()
            .map_err(|error| Error(format!("{RENDERER}: cannot be started: {error}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error(format!("{RENDERER} {from}: {}", said.trim())));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_verdict_leaves_the_numbers_of_a_record_as_they_are() {
        let text = "{\n  \"claims\": {\n    \"a\": {\n      \"values\": [\n        0.30000000000000004\n      ],\n      \
                    \"verdict\": \"does_not\"\n    },\n    \"b\": {\n      \"values\": [],\n      \"verdict\": \"holds\"\n    }\n  }\n}\n";
        let mut new = text.to_owned();
        assert!(replace_verdict(&mut new, "a", Verdict::CannotBeTold));
        assert_eq!(new, text.replace("does_not", "cannot_be_told"));
        assert!(replace_verdict(&mut new, "b", Verdict::Better));
        assert!(new.contains("\"verdict\": \"better\""), "{new}");
        assert!(!replace_verdict(&mut new, "c", Verdict::Holds));
    }
}
