//! `evenkeel-lab list` and `evenkeel-lab run`: the experiments of five papers.

use std::fmt::Write as _;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use evenkeel_command::{Bar, print_result};
use evenkeel_lab::claim::Mode;
use evenkeel_lab::machine::{self, Origin};
use evenkeel_lab::page;
use evenkeel_lab::paper::{Experiment, Paper};
use evenkeel_lab::papers;
use evenkeel_lab::record::{self, Ended, Record};
use evenkeel_lab::run::{Run, Scale};

use crate::cli::Experiments;

/// Runs the experiments of a name.
pub(crate) fn run(args: &Experiments) -> Result<(), String> {
    let name = &args.name;
    let mode = if args.real {
        Mode::Real
    } else {
        Mode::Simulated
    };
    let found = papers::find(name);
    if found.is_empty() {
        return Err(format!(
            "no experiment is called {name}: `evenkeel-lab list` names them"
        ));
    }
    let runs = |experiment: &Experiment| match mode {
        Mode::Simulated => experiment.simulate.is_some(),
        Mode::Real => experiment.real.is_some(),
    };
    let chosen: Vec<_> = (found.into_iter())
        .filter(|(_, experiment)| runs(experiment))
        .collect();
    if chosen.is_empty() {
        let other = if args.real {
            "only runs in virtual time: leave --real out"
        } else {
            "only runs with --real"
        };
        return Err(format!("{name} {other}"));
    }
    let scale = if args.quick {
        Scale::Quick
    } else {
        Scale::Full
    };
    // Whatever stands against it is said before anything runs.
    for (paper, experiment) in &chosen {
        record::may_write(&args.out, (paper, experiment), mode, scale)
            .map_err(|error| error.to_string())?;
    }
    let mut lacking = Vec::new();
    for (_, experiment) in &chosen {
        let needs = experiment
            .real
            .as_ref()
            .filter(|_| args.real)
            .map_or(&[][..], |real| real.needs);
        let lacks = machine::missing_needs(needs);
        lacking.extend(
            lacks
                .into_iter()
                .map(|lack| format!("{}: {lack}", experiment.name)),
        );
    }
    if !lacking.is_empty() {
        return Err(format!(
            "this machine cannot run the experiments; nothing was started\n{}",
            lacking.join("\n")
        ));
    }
    if args.real {
        end_at_signals()?;
    }
    for (paper, experiment) in chosen {
        one(args, (paper, experiment), mode, scale)?;
    }
    Ok(())
}

/// A signal ends a real run with all its programs and files.
fn end_at_signals() -> Result<(), String> {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    evenkeel_net::start_thread("signals", move |runtime| {
        runtime.block_on(async {
            let mut waiting = tokio::task::JoinSet::new();
            for kind in kinds {
                // A signal that cannot be waited for ends the process as it always does.
                if let Ok(mut signal) = signal(kind) {
                    waiting.spawn(async move {
                        signal.recv().await;
                        kind.as_raw_value()
                    });
                }
            }
            if let Some(Ok(number)) = waiting.join_next().await {
                // Exit code as in shells.
                evenkeel_lab::end_on_signal(128 + number);
            }
        });
    })
    .map_err(|error| error.to_string())?;
    Ok(())
}

/// Runs an experiment, writes the findings, and shows the verdicts.
fn one(
    args: &Experiments,
    (paper, experiment): (&'static Paper, &'static Experiment),
    mode: Mode,
    scale: Scale,
) -> Result<(), String> {
    let origin = Origin::of_this_machine(env!("CARGO_PKG_VERSION"));
    let bar = Bar::new(stderr().is_terminal() && !args.quiet);
    let run = Run {
        scale,
        seed: args.seed.into(),
        progress: &|done| bar.draw_share(done),
        is_told: &|findings| experiment.is_told(findings),
    };
    let begun = Instant::now();
    let findings = match (mode, experiment.simulate, &experiment.real) {
        (Mode::Simulated, Some(simulate), _) => Ok(simulate(&run)),
        (Mode::Real, _, Some(real)) => (real.run)(&run),
        _ => Err("the experiment does not run in this mode".into()),
    };
    bar.clear();
    let findings = findings.map_err(|error| format!("{}: {error}", experiment.name))?;
    let ended = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let ended = Ended {
        paper,
        experiment,
        mode,
        scale,
        origin,
        ended: ended.as_secs(),
        seconds: begun.elapsed().as_secs_f64(),
    };
    let (record, note) =
        record::write(&args.out, &ended, &findings).map_err(|error| error.to_string())?;
    write_page(&args.out, paper)?;
    let mut text = shown(experiment, &record);
    if let Some(note) = note {
        let _ = writeln!(text, "  {note}");
    }
    print_result(text)
}

fn write_page(folder: &Path, paper: &Paper) -> Result<(), String> {
    let failed = |error| format!("{}: cannot be written: {error}", folder.display());
    page::write(folder, paper).map_err(failed)
}

/// The verdicts of a run.
fn shown(experiment: &Experiment, record: &Record) -> String {
    let mut text = format!(
        "{}: {} ({:.0} s)\n",
        experiment.name, experiment.title, record.seconds
    );
    for (claim, judged) in page::judged_claims(experiment, record) {
        let _ = writeln!(
            text,
            "  {:28} {}\n                               {}: {}; {}; published: {}",
            judged.verdict.text(),
            claim.says,
            claim.measured,
            page::format_measured(judged, claim),
            claim.rule_text(),
            claim.published
        );
    }
    text
}

/// Judges stored results by the rules that claims have now, and writes the pages anew.
pub(crate) fn judge(folder: &Path) -> Result<(), String> {
    let (mut runs, mut changed) = (0, 0);
    for paper in papers::all_papers() {
        let mut is_there = false;
        for experiment in &paper.experiments {
            for mode in [Mode::Simulated, Mode::Real] {
                let judged = record::judge_again(folder, (paper, experiment), mode);
                if let Some(verdicts) = judged.map_err(|error| error.to_string())? {
                    is_there = true;
                    runs += 1;
                    changed += verdicts;
                }
            }
        }
        if is_there {
            write_page(folder, paper)?;
        }
    }
    if runs == 0 {
        return Err(format!(
            "{}: there are no results: `evenkeel-lab run NAME --out FOLDER` writes some",
            folder.display()
        ));
    }
    print_result(format!(
        "runs judged: {runs}; verdicts that have changed: {changed}\n"
    ))
}

/// Lists all experiments, by paper.
pub(crate) fn list() -> String {
    let mut text = String::new();
    for paper in papers::all_papers() {
        let (run, rows) = page::count_covered_rows(paper);
        let _ = writeln!(
            text,
            "{}: {}\n  {}\n  {run} of {rows} figures and tables are run",
            paper.name, paper.title, paper.cite
        );
        for experiment in &paper.experiments {
            let ways = match (experiment.simulate.is_some(), experiment.real.is_some()) {
                (true, true) => "virtual time, --real",
                (true, false) => "virtual time",
                (false, _) => "--real",
            };
            let _ = writeln!(
                text,
                "    {:24} {} ({ways})",
                experiment.name, experiment.title
            );
        }
    }
    text
}
