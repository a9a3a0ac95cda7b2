//! `evenkeel-lab regret`: strategies in random worlds.

use std::fmt::Write as _;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::thread::available_parallelism;

use evenkeel_command::{Bar, print_result};
use evenkeel_core::strategy;
use evenkeel_lab::machine::Origin;
use evenkeel_lab::regret::{Played, Settings, Summary, World, page, play_worlds};

use crate::cli::Regret;

/// Name of the file with all figures, in the folder of the results.
const FIGURES: &str = "figures.json";

/// Worlds that are named, where single worlds may be looked at.
const NAMED: usize = 25;

/// Plays the worlds, and writes what came of them.
pub(crate) fn run(args: &Regret) -> Result<(), String> {
    let own = strategy::default_kind().name;
    let threads = args.threads.map_or_else(
        || available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    let odd = u64::from(args.judge);
    let worlds = match args.world {
        Some(number) => vec![number],
        None => (args.first..)
            .take(args.worlds)
            .map(|index| 2 * index + odd)
            .collect(),
    };
    let known = match &args.known {
        Some(path) => read_figures(path)?,
        None => Vec::new(),
    };
    let settings = Settings {
        worlds,
        seeds: args.seeds,
        threads,
        only: args.only.clone(),
    };
    let bar = Bar::new(stderr().is_terminal() && !args.quiet);
    let count = settings.worlds.len() as f64;
    let played = play_worlds(&settings, &known, &|done| {
        bar.draw_share(done as f64 / count)
    });
    bar.clear();
    let played = played?;
    if args.world.is_some() {
        return print_result(played.iter().map(describe).collect());
    }
    let summary = Summary::new(&played);
    let tables = summary.text(own, if args.judge { 0 } else { NAMED });
    if let Some(folder) = &args.out {
        let origin = Origin::of_this_machine(env!("CARGO_PKG_VERSION"));
        let commit = origin.commit.as_deref().unwrap_or("unknown");
        let origin = format!(
            "{count} worlds for {}, {} seeds each; Evenkeel {}, commit {commit}",
            if args.judge { "judging" } else { "tuning" },
            args.seeds,
            origin.version,
        );
        let figures = serde_json::to_string(&played).map_err(|error| error.to_string())?;
        let html = page::to_html(&summary, &tables, &origin);
        write_file(folder, FIGURES, &figures)?;
        write_file(folder, "index.html", &html)?;
        write_file(folder, "regret.txt", &tables)?;
    }
    print_result(tables)
}

fn read_figures(path: &Path) -> Result<Vec<Played>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

fn write_file(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = folder.join(name);
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Text about one world: what it is, and the figures of each strategy there.
fn describe(played: &Played) -> String {
    let world = World::draw(played.world);
    let mut text = format!("world {}: {}\n", world.number, world.text);
    for (name, figures) in &played.figures {
        let _ = writeln!(
            text,
            "{name:<20} mean {:>10.3} ms  p99 {:>10.3} ms  failed {:>6.2} %  useful {:>6.2} %",
            figures.mean,
            figures.p99,
            100.0 * figures.failed,
            100.0 * figures.useful
        );
    }
    text
}
