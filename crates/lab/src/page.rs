//! Pages of results: one for each paper, and an index, in Markdown.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::claim::{Claim, Verdict};
use crate::findings::number;
use crate::paper::{By, Experiment, Paper};
use crate::papers::all;
use crate::record::{self, Judged, Mode, Record};

/// Writes the page of a paper from all results that are in the folder, and the index.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write(folder: &Path, paper: &Paper) -> std::io::Result<()> {
    fs::write(
        folder.join(format!("{}.md", paper.name)),
        page(folder, paper),
    )?;
    fs::write(folder.join("README.md"), index(folder))
}

/// The results of an experiment that are in the folder.
fn records(folder: &Path, paper: &Paper, experiment: &Experiment) -> [(Mode, Option<Record>); 2] {
    [Mode::Simulated, Mode::Real].map(|mode| (mode, record::read(folder, paper, experiment, mode)))
}

fn page(folder: &Path, paper: &Paper) -> String {
    let mut text = format!("# {}\n\n{}\n\n", paper.title, paper.cite);
    text += "This page is written by `evenkeel-lab run`. A claim *holds* if the whole 95 % confidence interval of what was \
             measured is where its rule wants it, it *does not* if none of it is, and otherwise it *cannot be told*. \
             The rules are in the program (`crates/lab`), and were there before the run.\n\n";
    let _ = write!(
        text,
        "## What is not as in the paper\n\n{}\n\n",
        paper.differs
    );
    text += "## Figures and tables\n\n| of the paper | shows | here |\n|---|---|---|\n";
    for row in &paper.rows {
        let here = match &row.by {
            By::Experiment(name) => format!("[{name}](#{name})"),
            By::Nothing(why) => format!("not run: {why}"),
        };
        let _ = writeln!(text, "| {} | {} | {here} |", row.what, row.shows);
    }
    for experiment in &paper.experiments {
        let _ = write!(
            text,
            "\n## {}\n\n{}\n\n{}\n",
            experiment.name, experiment.title, experiment.set_up
        );
        for (mode, record) in records(folder, paper, experiment) {
            match record {
                Some(record) => text += &section(paper, experiment, mode, &record),
                None if is_there(experiment, mode) => {
                    let option = if mode == Mode::Real { " --real" } else { "" };
                    let _ = write!(
                        text,
                        "\n### {}\n\nNot run yet: `evenkeel-lab run {}{option}`.\n",
                        heading(mode),
                        experiment.name
                    );
                }
                None => {}
            }
        }
    }
    text
}

fn is_there(experiment: &Experiment, mode: Mode) -> bool {
    match mode {
        Mode::Simulated => experiment.simulate.is_some(),
        Mode::Real => experiment.real.is_some(),
    }
}

fn heading(mode: Mode) -> &'static str {
    match mode {
        Mode::Simulated => "In virtual time",
        Mode::Real => "With real programs",
    }
}

fn section(paper: &Paper, experiment: &Experiment, mode: Mode, record: &Record) -> String {
    let mut text = format!("\n### {}\n\n", heading(mode));
    if mode == Mode::Real && !experiment.set_up_real.is_empty() {
        let _ = write!(text, "{}\n\n", experiment.set_up_real);
    }
    if record.is_quick {
        text += "**A quick run, which says little.** ";
    }
    let commit = record.origin.commit.as_deref().unwrap_or("unknown");
    let _ = write!(
        text,
        "Version {}, commit {commit}, {}; {:.0} s.\n\n",
        record.origin.version, record.origin.machine, record.seconds
    );
    let claims = claims(experiment, record);
    if !claims.is_empty() {
        text += "| claim | published | here | holds if | verdict |\n|---|---|---|---|---|\n";
        for (claim, judged) in claims {
            let _ = writeln!(
                text,
                "| {} | {} | {}: {} | {} | **{}** |",
                claim.says,
                claim.published,
                claim.measured,
                seen(judged, claim),
                claim.rule.text(&claim.unit),
                judged.verdict.text()
            );
        }
        text.push('\n');
    }
    for note in &record.notes {
        let _ = write!(text, "{note}\n\n");
    }
    for chart in &record.charts {
        let _ = write!(
            text,
            "![{}]({}/{}.svg)\n\n",
            chart.title.replace(['[', ']'], ""),
            paper.name,
            chart.file
        );
    }
    for table in &record.tables {
        let _ = write!(
            text,
            "{} ([CSV]({}/{}.csv)):\n\n{}\n",
            table.title, paper.name, table.file, table.text
        );
    }
    text
}

/// The claims that a run has judged, in the order of the experiment, and what became of them.
pub fn claims<'e>(experiment: &'e Experiment, record: &'e Record) -> Vec<(&'e Claim, &'e Judged)> {
    let all = experiment.claims.iter();
    all.filter_map(|claim| Some((claim, record.claims.get(&claim.id)?)))
        .collect()
}

/// What was measured, in words.
pub fn seen(judged: &Judged, claim: &Claim) -> String {
    let unit = if claim.unit.is_empty() {
        String::new()
    } else {
        format!(" {}", claim.unit)
    };
    match judged.mean() {
        Some(mean) => match mean.within {
            Some(within) => format!("{} ± {}{unit}", number(mean.mean), number(within)),
            None => format!("{}{unit}", number(mean.mean)),
        },
        None => "not measured".into(),
    }
}

/// How many rows of a paper are run, and how many there are.
pub fn covered(paper: &Paper) -> (usize, usize) {
    let run = paper
        .rows
        .iter()
        .filter(|row| matches!(row.by, By::Experiment(_)));
    (run.count(), paper.rows.len())
}

fn index(folder: &Path) -> String {
    let mut text = String::from(
        "# The lab\n\nThe experiments of five papers, repeated on Evenkeel. `evenkeel-lab list` names them, `make lab` runs all in \
         virtual time. These pages are written by the program.\n\n\
         | paper | figures and tables repeated | in virtual time | with real programs |\n|---|---|---|---|\n",
    );
    let (mut run, mut rows) = (0, 0);
    for paper in all() {
        let (of, count) = covered(paper);
        (run, rows) = (run + of, rows + count);
        let _ = write!(
            text,
            "| [{}]({}.md) | {of} of {count} |",
            paper.title, paper.name
        );
        for mode in [Mode::Simulated, Mode::Real] {
            let mut counts = [0; 3];
            for experiment in &paper.experiments {
                let Some(record) = record::read(folder, paper, experiment, mode) else {
                    continue;
                };
                for (_, judged) in claims(experiment, &record) {
                    counts[match judged.verdict {
                        Verdict::Holds => 0,
                        Verdict::DoesNot => 1,
                        Verdict::CannotBeTold => 2,
                    }] += 1;
                }
            }
            let _ = match counts {
                [0, 0, 0] => write!(text, " - |"),
                [holds, not, unknown] => write!(
                    text,
                    " {holds} claims hold, {not} do not, {unknown} cannot be told |"
                ),
            };
        }
        text.push('\n');
    }
    let share = 100.0 * run as f64 / rows.max(1) as f64;
    let _ = write!(
        text,
        "\n{run} of {rows} figures and tables are run ({share:.0} %).\n"
    );
    text
}
