//! `evenkeel sim`: what a configuration would do, in virtual time.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;

use evenkeel_command::Bar;
use evenkeel_sim::experiment::{self, advice, export, html, plan, text};
use evenkeel_sim::log;

use crate::cli::Sim;
use crate::failure::{Failure, refuse_config};
use crate::output::print;

/// Plays a scenario and shows the results.
pub(crate) fn run(args: &Sim) -> Result<(), Failure> {
    let (mut plan, study) = match &args.from_log {
        None => {
            let plan = plan::load_plan(&args.file, args.seed, args.seeds).map_err(refuse_config)?;
            (plan, None)
        }
        Some(path) => {
            let (plan, study) = from_log(args, path)?;
            (plan, Some(study))
        }
    };
    if args.ideal {
        plan = plan.with_ideal().map_err(refuse_config)?;
    }
    // A run may take long: better told now than after it.
    for path in [&args.html, &args.csv, &args.json].into_iter().flatten() {
        let mut options = std::fs::OpenOptions::new();
        let opened = options.append(true).create(true).open(path);
        opened.map_err(|error| cannot_write(path, &error))?;
    }
    let bar = Bar::new(stderr().is_terminal() && !args.quiet);
    let results = experiment::run(&plan, &|done| bar.draw_share(done));
    bar.clear();
    let advice = study
        .as_ref()
        .map(|study| (study, advice::make_advice(&plan, &results, study)));
    if let Some(path) = &args.html {
        let page = html::html_page(&plan, &results);
        let page = match &advice {
            Some((study, advice)) => advice::to_html(&page, study, advice),
            None => page,
        };
        write(path, &page)?;
    }
    if let Some(path) = &args.csv {
        write(path, &export::to_csv(&plan, &results))?;
    }
    if let Some(path) = &args.json {
        let all = export::to_json(&plan, &results);
        let all = match &advice {
            Some((study, advice)) => advice::to_json(&all, &plan, study, advice),
            None => all,
        };
        write(path, &all)?;
    }
    let mut shown = text::format_tables(&plan, &results);
    if let Some((study, advice)) = &advice {
        shown += &advice::text(study, advice);
    }
    print(shown)
}

/// Returns the plan to play of a log, with its study.
fn from_log(args: &Sim, path: &Path) -> Result<(plan::Plan, advice::Study), Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::new(format!("{}: cannot be read: {error}", path.display()))
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let format = args.log_format.map(log::Format::from);
    let log = log::read(std::io::BufReader::new(file), format).map_err(unreadable)?;
    let question = advice::Question {
        group: args.group.as_deref(),
        service: args.service_time,
        seed: args.seed,
        seeds: args.seeds,
    };
    advice::make_plan(&args.file, &log, &question).map_err(|errors| {
        // A log that says nothing says why.
        log.shown.iter().for_each(|line| {
            let _ = writeln!(stderr(), "{}: {line}", path.display());
        });
        refuse_config(errors)
    })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: cannot be written: {error}", path.display()))
}
