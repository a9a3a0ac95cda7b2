//! Common parts of the papers about CORBA: clients that a manager forwards, and the program of
//! `bench` that measures them with real ones.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::worlds::sessions::{self, Client, Played, Sessions};
use evenkeel_core::alert::AlertSettings;
use evenkeel_core::group::Granularity;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{Values, default_kind, find};
use evenkeel_manager::config::Reach;
use evenkeel_sim::svg::{Line, Plot, Scale};

use crate::csv::Csv;
use crate::programs::{Folder, run};

/// A strategy of the registry with these parameters; others keep their defaults.
pub(super) fn strategy(name: &str, parameters: &[(&str, f64)]) -> Values {
    let kind = find(name);
    debug_assert!(kind.is_some(), "no strategy is called {name}");
    let mut values = Values::defaults(kind.unwrap_or_else(default_kind));
    for (name, value) in parameters {
        let set = values.set(name, *value);
        debug_assert!(set.is_ok(), "{name}: {set:?}");
    }
    values
}

/// Clients that are forwarded to members by a strategy, which gets loads in requests per second.
pub(super) fn forwarded_sessions(
    members: usize,
    clients: Vec<Client>,
    strategy: Values,
) -> Sessions {
    Sessions {
        members,
        clients,
        poisson: false,
        report_interval: Duration::from_secs(1),
        in_step: true,
        message: Duration::from_millis(1),
        round: Duration::from_millis(100),
        known: true,
        strangers: false,
        strategy,
        alert: AlertSettings::default(),
        dies: None,
        rebind_interval: None,
        reach: Reach::Forwarded,
        granularity: Granularity::PerSession,
        load_id: LoadId::REQUESTS_PER_SECOND,
        service: Duration::ZERO,
        report_work: Duration::ZERO,
        length: Duration::from_secs(1),
    }
}

/// Plays the experiment. Without members there is no result.
pub(super) fn play_or_default(sessions: &Sessions, seed: u64) -> Played {
    sessions::play_sessions(sessions, seed).unwrap_or_default()
}

/// Rates of each member in whole seconds, as means over this many seconds.
pub(super) fn rates(played: &Played, seconds: usize) -> Vec<Line> {
    rates_of(&played.served, seconds)
}

/// Rates of each member, of the requests that each served in each second.
pub(super) fn rates_of(served: &[Vec<u32>], seconds: usize) -> Vec<Line> {
    let members = served.first().map_or(0, Vec::len);
    let seconds = seconds.max(1);
    // The last second is not a whole one.
    let whole = served.split_last().map_or(&[][..], |(_, rest)| rest);
    let mut lines: Vec<Line> = (1..=members)
        .map(|member| Line {
            name: format!("member {member}"),
            ..Line::default()
        })
        .collect();
    for (index, part) in whole.chunks(seconds).enumerate() {
        let at = index as f64 * seconds as f64 + part.len() as f64 / 2.0;
        for (member, line) in lines.iter_mut().enumerate() {
            let count: u32 = part.iter().filter_map(|served| served.get(member)).sum();
            let rate = f64::from(count) / part.len() as f64;
            line.points.push((at, rate));
        }
    }
    lines
}

/// A plot of rates over time.
pub(super) fn rates_plot(lines: Vec<Line>, most: Option<f64>) -> Plot {
    Plot {
        lines,
        across: "seconds",
        up: "requests per second",
        scales: (Scale::FromZero, Scale::FromZero),
        most,
        marks: Vec::new(),
        names: Vec::new(),
    }
}

/// Runs the program `corba` of `bench`, built as it is measured, with these arguments. Its files
/// are in the folder that it answers.
pub(super) fn run_bench(part: &str, arguments: &[String]) -> Result<Folder, String> {
    let mut build = Command::new("cargo");
    build.args([
        "build",
        "--release",
        "-p",
        "evenkeel",
        "-p",
        "evenkeel-bench",
    ]);
    build.args(["--bin", "evenkeel", "--bin", "corba"]);
    run("building the measurement", &mut build)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let programs = Path::new(&target).join("release");
    let folder = Folder::new(part)?;
    let mut program = Command::new(programs.join("corba"));
    program.arg(part).arg("--out").arg(folder.path());
    program
        .arg("--evenkeel")
        .arg(programs.join("evenkeel"))
        .args(arguments);
    run("the measurement (bench, corba)", &mut program)?;
    Ok(folder)
}

/// Rows of a CSV file, without its head.
pub(super) fn read(folder: &Folder, name: &str) -> Result<Vec<Vec<String>>, String> {
    Ok(Csv::read(&folder.path().join(name))?.rows)
}

/// The median; of nothing it is not a number.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    match values.len() % 2 {
        0 => (at(middle.wrapping_sub(1)) + at(middle)) / 2.0,
        _ => at(middle),
    }
}

/// Returns the settings of alerts that are pulses.
pub(super) fn pulse_settings() -> AlertSettings {
    AlertSettings {
        pulses: true,
        ..AlertSettings::default()
    }
}
