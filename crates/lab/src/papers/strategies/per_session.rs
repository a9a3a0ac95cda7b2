//! Loads of members with clients that are bound per session: figure 5.

use std::time::Duration;

use crate::worlds::sessions::{Client, Sessions};
use evenkeel_sim::svg::{Line, Plot};

use super::rates::{mean_between, mean_of, read_rates};
use crate::findings::{Cell, Chart, Findings, Table};
use crate::machine::Need;
use crate::paper::{Play, Real};
use crate::papers::corba::{
    self, forwarded_sessions, play_or_default, rates, rates_plot, strategy,
};
use crate::run::Run;

pub(super) const PER_SESSION: Play = Play {
    experiment: "corba-per-session",
    simulate: Some(per_session),
    real: Some(Real {
        // Rates of 5 and 10 per second need next to no processor.
        needs: &[
            Need::Source,
            Need::Program("omniidl", "omniidl"),
            Need::Program("c++", "g++"),
            Need::Quiet(1.0),
        ],
        run: real_per_session,
    }),
};

/// Clients that come one after the other, so that round robin has them in this order.
fn in_turn(rates: [f64; 8], iterations: Option<u64>) -> Vec<Client> {
    let client = |(index, rate): (usize, f64)| Client {
        iterations,
        begins: Duration::from_millis(500 * index as u64),
        ..Client::at_rate(rate, None)
    };
    rates.into_iter().enumerate().map(client).collect()
}

/// By turns these give 20, 10, 15 and 15.
const SLOW: [f64; 8] = [10.0, 5.0, 10.0, 5.0, 10.0, 5.0, 5.0, 10.0];

fn per_session(run: &Run) -> Findings {
    let iterations = run.by_scale(200_000, 500);
    // That of the slow ones, which begin within four seconds.
    let seconds = iterations / 5;
    let one = |_: &(), seed: u64| {
        let sessions = Sessions {
            round: Duration::from_secs(1),
            length: Duration::from_secs(seconds + 60),
            // The next requests of those that came together are not sent together.
            ..forwarded_sessions(
                4,
                in_turn(SLOW, Some(iterations)),
                strategy("round_robin", &[]),
            )
        };
        play_or_default(&sessions, seed)
    };
    let seeds = run.seeds(5);
    let played = run.run_grid(&[()], &seeds, one).pop().unwrap_or_default();
    let window = seconds as usize / 100;
    compare_ends(played.iter().map(|played| rates(played, window)).collect())
}

/// Returns the findings from the rates of four members whose clients end.
pub(super) fn compare_ends(all: Vec<Vec<Line>>) -> Findings {
    let mut findings = Findings::default();
    let (mut uneven, mut alike, mut drop) = (Vec::new(), Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for (index, lines) in all.iter().enumerate() {
        let total = total(lines);
        let most = total.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let at_least = |share: f64| total.iter().filter(move |(_, rate)| *rate >= share * most);
        let all_there = at_least(0.75).next_back().map_or(f64::NAN, |(at, _)| *at);
        let end = at_least(0.2).next_back().map_or(f64::NAN, |(at, _)| *at);
        // Clients come at first, and both ends are parts of intervals.
        let between = |at: f64| at > all_there * 0.1 && at < all_there * 0.9;
        let means: Vec<f64> = (lines.iter())
            .map(|line| mean_between(line, between))
            .collect();
        let mean = mean_of(&means);
        let mut sorted = means.clone();
        sorted.sort_by(f64::total_cmp);
        if let [least, low, high, most] = sorted[..] {
            uneven.push(100.0 * (most - least) / mean);
            alike.push(100.0 * (high - low) / mean);
        }
        drop.push(100.0 * all_there / end);
        let mut row = vec![Cell::from(format!("{}", index + 1))];
        row.extend(means.into_iter().map(Cell::from));
        row.extend([Cell::from(all_there), Cell::from(end)]);
        rows.push(row);
    }
    findings.add_measured("uneven", uneven);
    findings.add_measured("alike", alike);
    findings.add_measured("drop", drop);
    let head = [
        "run",
        "member 1 (per s)",
        "member 2 (per s)",
        "member 3 (per s)",
    ];
    let more = [
        "member 4 (per s)",
        "fast clients end (s)",
        "slow clients end (s)",
    ];
    findings.tables.push(Table {
        name: "loads",
        title: "Figure 5: loads while all clients are there, and when clients end".into(),
        head: head.into_iter().chain(more).map(str::to_owned).collect(),
        rows,
    });
    findings.charts.push(Chart {
        name: "loads",
        title: "Figure 5: loads of members, bound per session (first run)".into(),
        plot: in_minutes(rates_plot(all.into_iter().next().unwrap_or_default(), None)),
    });
    findings
}

/// Over minutes rather than seconds, if it is so long.
fn in_minutes(mut plot: Plot) -> Plot {
    let times = |plot: &mut Plot, work: &mut dyn FnMut(&mut f64)| {
        let points = plot.lines.iter_mut().flat_map(|line| &mut line.points);
        points.for_each(|(at, _)| work(at));
    };
    let mut last = 0.0f64;
    times(&mut plot, &mut |at| last = last.max(*at));
    if last > 1000.0 {
        times(&mut plot, &mut |at| *at /= 60.0);
        plot.across = "minutes";
    }
    plot
}

/// Rates of all members together.
fn total(lines: &[Line]) -> Vec<(f64, f64)> {
    let points = lines.first().map_or(0, |line| line.points.len());
    let at = |index: usize| lines.iter().filter_map(move |line| line.points.get(index));
    (0..points)
        .map(|index| at(index).fold((0.0, 0.0), |(_, sum), (at, rate)| (*at, sum + rate)))
        .collect()
}

fn real_per_session(run: &Run) -> Result<Findings, String> {
    let iterations = run.by_scale(400, 100);
    let round = |_| {
        let arguments = ["--iterations".to_owned(), format!("{iterations}")];
        let folder = corba::run_bench("ends", &arguments)?;
        Ok(read_rates(&corba::read(&folder, "ends.csv")?))
    };
    let found = |rounds: &[Vec<Line>]| compare_ends(rounds.to_vec());
    run.repeat_rounds(run.by_scale(3, 1), round, found)
}
