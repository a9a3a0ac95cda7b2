//! Pages of results: one for each paper, and an index, in Markdown.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::claim::{Claim, Contradiction, Mode, Verdict};
use crate::findings::format_number;
use crate::paper::{By, Experiment, Paper};
use crate::papers::all_papers;
use crate::record::{self, Judged, Record};

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
    text += "This page is written by `evenkeel-lab`. ";
    text += JUDGING;
    text += "\n\n";
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

/// Explanation of how claims are judged.
const JUDGING: &str = "\
A number of the paper has to be met within 20 %, unless its rule says otherwise; an order of two cases needs half of the published \
difference at least. A claim *holds* if the whole 95 % confidence interval of what was measured is where its rule wants it. It is \
*better than published* if the whole interval is beyond that, on the side that users want. It *does not hold* if no part of the \
interval is where the rule wants it, and otherwise it *cannot be told*. *The paper contradicts itself* if the claim does not hold and \
other statements of the paper exclude it; the arithmetic is given. Where the paper shows a single draw of chance, single draws \
are judged: the claim holds if more than half of them show what was published, and does not if fewer than a fifth do. Claims \
marked *by set-up* come out of the set-up whatever the balancer does, and those marked *ours* are not the paper's, or are about a set-up that the paper \
does not have: both are counted apart. The rules are in `crates/lab/papers`.";

/// Classes of claims, which are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Claims of the paper.
    Paper,
    /// Claims that the set-up decides.
    SetUp,
    /// Claims, or set-ups, of this project.
    Own,
}

impl Class {
    fn of(claim: &Claim, mode: Mode) -> Self {
        if claim.is_own {
            Class::Own
        } else if claim.by_set_up.contains(&mode) {
            Class::SetUp
        } else {
            Class::Paper
        }
    }

    /// Mark behind a claim.
    fn mark(self) -> &'static str {
        match self {
            Class::Paper => "",
            Class::SetUp => " *(by set-up)*",
            Class::Own => " *(ours)*",
        }
    }
}

/// Numbers of claims by class and verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally([[usize; Verdict::ALL.len()]; 3]);

impl Tally {
    fn count(&mut self, class: Class, verdict: Verdict) {
        let row = self.0.get_mut(class as usize);
        if let Some(count) = row.and_then(|row| row.get_mut(verdict as usize)) {
            *count += 1;
        }
    }

    fn add(&mut self, other: &Tally) {
        let own = self.0.iter_mut().flatten();
        own.zip(other.0.iter().flatten())
            .for_each(|(own, other)| *own += other);
    }

    fn get(&self, class: Class, verdict: Verdict) -> usize {
        let row = self.0.get(class as usize);
        row.and_then(|row| row.get(verdict as usize))
            .map_or(0, |count| *count)
    }

    fn all(&self, class: Class) -> usize {
        self.0.get(class as usize).map_or(0, |row| row.iter().sum())
    }

    fn good(&self, class: Class) -> usize {
        let all = Verdict::ALL.into_iter();
        all.filter(|verdict| verdict.is_good())
            .map(|verdict| self.get(class, verdict))
            .sum()
    }

    /// Cells of a table.
    fn cells(&self) -> String {
        let own = Verdict::ALL.map(|verdict| self.get(Class::Paper, verdict).to_string());
        let apart = [Class::SetUp, Class::Own].map(|class| match self.all(class) {
            0 => "-".to_owned(),
            all => format!("{} of {all}", self.good(class)),
        });
        [own.join(" | "), apart.join(" | ")].join(" | ")
    }
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
        "Measured on {}: version {}, commit {commit}, {}; {:.0} s.\n\n",
        date(record.ended),
        record.origin.version,
        record.origin.machine,
        record.seconds
    );
    let claims = judged_claims(experiment, record);
    if !claims.is_empty() {
        text += "| claim | published | here | holds if | verdict |\n|---|---|---|---|---|\n";
        for (claim, judged) in &claims {
            let _ = writeln!(
                text,
                "| {}{} | {} | {}: {} | {} | **{}** |",
                claim.says,
                Class::of(claim, mode).mark(),
                claim.published,
                claim.measured,
                format_measured(judged, claim),
                claim.rule_text(),
                judged.verdict.text()
            );
        }
        text.push('\n');
        let reasons = claims
            .iter()
            .filter(|(_, judged)| !judged.verdict.is_good());
        for (index, (claim, judged)) in reasons.enumerate() {
            if index == 0 {
                text += "Why not:\n\n";
            }
            let _ = writeln!(
                text,
                "- {}: *{}*. {}",
                claim.says,
                judged.verdict.text(),
                reason(experiment, claim, judged)
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
pub fn judged_claims<'e>(
    experiment: &'e Experiment,
    record: &'e Record,
) -> Vec<(&'e Claim, &'e Judged)> {
    let all = experiment.claims.iter();
    all.filter_map(|claim| Some((claim, record.claims.get(&claim.id)?)))
        .collect()
}

/// Reason why a claim neither holds nor is better than published.
fn reason(experiment: &Experiment, claim: &Claim, judged: &Judged) -> String {
    let proof = match &claim.contradiction {
        Some(Contradiction::Arithmetic { text, .. }) => text.clone(),
        Some(Contradiction::Excludes(other)) => {
            let other = experiment.claims.iter().find(|one| one.id == *other);
            other.map_or_else(String::new, |other| {
                format!(
                    "The paper also says: {} ({}); both cannot be.",
                    other.says, other.published
                )
            })
        }
        None => String::new(),
    };
    let why = match judged.verdict {
        Verdict::CannotBeTold if claim.why.is_empty() => {
            "The interval is on both sides of the limit: it takes more runs."
        }
        _ => claim.why.as_str(),
    };
    [proof.as_str(), why].join(" ").trim().to_owned()
}

/// Measured values, in words.
pub fn format_measured(judged: &Judged, claim: &Claim) -> String {
    let unit = if claim.unit.is_empty() {
        String::new()
    } else {
        format!(" {}", claim.unit)
    };
    let mean = match judged.mean() {
        Some(mean) => match mean.within {
            Some(within) => format!(
                "{} ± {}{unit}",
                format_number(mean.mean),
                format_number(within)
            ),
            None => format!("{}{unit}", format_number(mean.mean)),
        },
        None => return "not measured".into(),
    };
    match claim.is_draw {
        true => format!(
            "{} of {} draws; mean {mean}",
            claim.count_draws(&judged.values),
            judged.values.len()
        ),
        false => mean,
    }
}

/// Day of a time in seconds since 1970, in UTC: `2026-11-25`.
fn date(seconds: u64) -> String {
    // Howard Hinnant, chrono-Compatible Low-Level Date Algorithms (2014): civil from days.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{of_month:02}", era * 400 + year + next)
}

/// Returns how many rows of a paper are run, and how many there are.
pub fn count_covered_rows(paper: &Paper) -> (usize, usize) {
    let run = paper
        .rows
        .iter()
        .filter(|row| matches!(row.by, By::Experiment(_)));
    (run.count(), paper.rows.len())
}

fn index(folder: &Path) -> String {
    let mut text = String::from(
        "# The lab\n\nThe experiments of five papers, repeated on Evenkeel. `evenkeel-lab list` names them, `make lab` runs all in \
         virtual time. These pages are written by the program. ",
    );
    text += JUDGING;
    text += "\n\n| paper | figures and tables repeated |\n|---|---|\n";
    let (mut run, mut rows) = (0, 0);
    for paper in all_papers() {
        let (of, count) = count_covered_rows(paper);
        (run, rows) = (run + of, rows + count);
        let _ = writeln!(
            text,
            "| [{}]({}.md) | {of} of {count} |",
            paper.title, paper.name
        );
    }
    let share = percent(run, rows);
    let _ = write!(
        text,
        "\n{run} of {rows} figures and tables are run ({share}).\n"
    );
    for mode in [Mode::Simulated, Mode::Real] {
        let _ = write!(
            text,
            "\n## {}\n\n| paper | holds | better than published | does not hold | cannot be told | contradicts itself | by set-up: hold | \
             ours: hold |\n|---|---|---|---|---|---|---|---|\n",
            heading(mode)
        );
        let mut total = Tally::default();
        for paper in all_papers() {
            let tally = tally(folder, paper, mode);
            total.add(&tally);
            let _ = writeln!(
                text,
                "| [{}]({}.md) | {} |",
                paper.title,
                paper.name,
                tally.cells()
            );
        }
        let _ = writeln!(text, "| all | {} |", total.cells());
        let (good, of) = (total.good(Class::Paper), total.all(Class::Paper));
        let excluded = total.get(Class::Paper, Verdict::Contradicts);
        let _ = write!(
            text,
            "\nOf the papers' own claims, {good} of {of} hold or are better than published ({}); of those that the paper does not contradict \
             itself, {good} of {} ({}).\n",
            percent(good, of),
            of - excluded,
            percent(good, of - excluded)
        );
    }
    text
}

fn percent(part: usize, of: usize) -> String {
    format!("{:.0} %", 100.0 * part as f64 / of.max(1) as f64)
}

/// Counts the verdicts of a paper.
fn tally(folder: &Path, paper: &Paper, mode: Mode) -> Tally {
    let mut tally = Tally::default();
    for experiment in &paper.experiments {
        if let Some(record) = record::read(folder, paper, experiment, mode) {
            for (claim, judged) in judged_claims(experiment, &record) {
                tally.count(Class::of(claim, mode), judged.verdict);
            }
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::claim::Rule;
    use crate::claim::tests::claim;

    /// The results that are committed.
    fn results() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/results")
    }

    /// All claims that were judged, with their experiments and verdicts.
    fn judged() -> Vec<(&'static Experiment, &'static Claim, Judged)> {
        let folder = results();
        let mut all_judged = Vec::new();
        for paper in all_papers() {
            for experiment in &paper.experiments {
                for (_, record) in records(&folder, paper, experiment) {
                    let Some(record) = record else { continue };
                    for claim in &experiment.claims {
                        if let Some(judged) = record.claims.get(&claim.id) {
                            all_judged.push((experiment, claim, judged.clone()));
                        }
                    }
                }
            }
        }
        all_judged
    }

    /// Each verdict of the committed results follows from the rule that the claim has now, and each claim that does not hold
    /// says why.
    #[test]
    fn committed_verdicts_are_those_of_the_rules_and_are_explained() {
        let all = judged();
        assert!(all.len() > 100, "{}", all.len());
        for (experiment, claim, judged) in all {
            let place = format!("{}: {}", experiment.name, claim.id);
            let now = claim.judge_values(&judged.values);
            assert_eq!(
                now, judged.verdict,
                "{place}: `evenkeel-lab judge --out lab/results`"
            );
            if !judged.verdict.is_good() {
                assert!(
                    !reason(experiment, claim, &judged).is_empty(),
                    "{place}: it does not hold, and the paper's file has no `why`"
                );
            }
        }
    }

    #[test]
    fn claims_of_the_paper_are_counted_apart_from_others() {
        let paper = claim(Rule::AtLeast(1.0));
        let set_up = Claim {
            by_set_up: vec![Mode::Real],
            ..paper.clone()
        };
        let own = Claim {
            is_own: true,
            by_set_up: vec![Mode::Real],
            ..paper.clone()
        };
        let mut tally = Tally::default();
        for (claim, verdict) in [
            (&paper, Verdict::Holds),
            (&paper, Verdict::Better),
            (&paper, Verdict::DoesNot),
            (&paper, Verdict::CannotBeTold),
            (&paper, Verdict::Contradicts),
            (&set_up, Verdict::Holds),
            (&own, Verdict::Better),
            (&own, Verdict::DoesNot),
        ] {
            tally.count(Class::of(claim, Mode::Real), verdict);
        }
        assert_eq!(tally.cells(), "1 | 1 | 1 | 1 | 1 | 1 of 1 | 1 of 2");
        assert_eq!((tally.good(Class::Paper), tally.all(Class::Paper)), (2, 5));
        assert_eq!(Class::of(&set_up, Mode::Simulated), Class::Paper);
        let mut twice = tally;
        twice.add(&tally);
        assert_eq!(twice.cells(), "2 | 2 | 2 | 2 | 2 | 2 of 2 | 2 of 4");
    }

    #[test]
    fn single_draws_are_told_with_their_number() {
        let draws = Claim {
            is_draw: true,
            ..claim(Rule::AtLeast(1.1))
        };
        let judged = Judged {
            values: vec![1.2, 1.0, 1.4, 1.0],
            verdict: Verdict::CannotBeTold,
        };
        assert_eq!(
            format_measured(&judged, &draws),
            "2 of 4 draws; mean 1.15 ± 0.305 times"
        );
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_795_617_043, "2026-11-25"),
            (1_798_761_599, "2026-12-31"),
            (1_798_761_600, "2027-01-01"),
        ] {
            assert_eq!(date(seconds), day);
        }
    }
}
