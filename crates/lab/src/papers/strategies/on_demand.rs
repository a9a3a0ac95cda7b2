//! Loads of members with clients that are bound on demand, and advisories: figure 6.

use std::time::Duration;

use crate::worlds::advisories::{self, Advised, Advisories};
use crate::worlds::sessions::{self, Client, Sessions};
use evenkeel_core::group::Granularity;
use evenkeel_sim::svg::Line;

use super::rates::{mean_between, mean_of, read_rates};
use crate::findings::{Cell, Chart, Findings, Table};
use crate::machine::Need;
use crate::paper::{Play, Real};
use crate::papers::corba::{
    self, forwarded_sessions, play_or_default, pulse_settings, rates, rates_plot, strategy,
};
use crate::run::Run;

pub(super) const ON_DEMAND: Play = Play {
    experiment: "corba-on-demand",
    simulate: Some(on_demand),
    real: Some(Real {
        // 600 requests per second are about a twentieth of what the machine holds.
        needs: &[
            Need::Source,
            Need::Program("omniidl", "omniidl"),
            Need::Program("c++", "g++"),
            Need::Quiet(0.5),
        ],
        run: real_on_demand,
    }),
};

/// Rate that every member is to come to.
const EVEN: f64 = 150.0;

/// Arms of figure 6: their names, and how much is dampened.
const ARMS: [(&str, f64); 8] = [
    ("per session", 0.0),
    ("on demand, pulses", 0.0),
    ("on demand, no pulses, no dampening", 0.0),
    ("on demand, no pulses, dampening 0.8", 0.8),
    ("on demand, no pulses, dampening 0.2", 0.2),
    ("on demand, no pulses, dampening 0.5", 0.5),
    ("on demand, no pulses, dampening 0.9", 0.9),
    ("on demand, no pulses, dampening 0.95", 0.95),
];

/// Thresholds of TAO's rule, as multiples of the average load: the earlier one, and 1 + 1.5 / n for four members.
const TAO_THRESHOLDS: [f64; 2] = [1.05, 1.375];

/// Dampening that is tried with TAO's rule.
const TAO_DAMPENING: [f64; 6] = [0.0, 0.2, 0.5, 0.8, 0.9, 0.95];

/// By turns all fast ones are at the first and third member.
const FAST: [f64; 8] = [100.0, 50.0, 100.0, 50.0, 100.0, 50.0, 100.0, 50.0];

fn on_demand(run: &Run) -> Findings {
    let seconds = run.by_scale(300, 60);
    let arm = |&(arm, dampening): &(usize, f64), seed: u64| {
        let clients = FAST.iter().enumerate();
        let clients = clients.map(|(index, &rate)| Client {
            iterations: Some(750_000),
            ..Client::at_rate(rate, Some(index % 4))
        });
        let by_load = strategy("minimum_dispersion", &[("dampening", dampening)]);
        let plain = Sessions {
            report_interval: Duration::from_millis(500),
            in_step: false,
            length: Duration::from_secs(seconds + 1),
            granularity: Granularity::OnDemand,
            ..forwarded_sessions(4, clients.collect(), by_load)
        };
        let sessions = match arm {
            0 => Sessions {
                granularity: Granularity::PerSession,
                strategy: strategy("round_robin", &[]),
                ..plain
            },
            1 => Sessions {
                alert: pulse_settings(),
                ..plain
            },
            _ => plain,
        };
        play_or_default(&sessions, seed)
    };
    let seeds = run.seeds(20);
    let arms: Vec<(usize, f64)> = (ARMS.iter().enumerate())
        .map(|(index, (_, dampening))| (index, *dampening))
        .collect();
    let all = run.run_grid(&arms, &seeds, arm);
    let last = run.by_scale(60, 20);
    let mut findings = Findings::default();
    let of = |arm: usize| all.get(arm).map_or(&[][..], Vec::as_slice);
    let off = |arm: usize| -> Vec<f64> {
        let own = of(arm)
            .iter()
            .map(|played| off_from_even(&rates(played, 1), last as f64));
        own.collect()
    };
    let unrest = |arm: usize| -> Vec<f64> {
        of(arm)
            .iter()
            .map(|played| dispersion(&played.served, last))
            .collect()
    };
    let settled = |arm: usize| -> Vec<f64> {
        of(arm)
            .iter()
            .map(|played| settling_time(&rates(played, 1)))
            .collect()
    };
    findings.add_measured("reach-150", off(1));
    findings.add_measured("settles", settled(1));
    findings.add_measured("non-adaptive", off(0));
    findings.add_measured("oscillates", unrest(2));
    findings.add_measured("dampening-valve", unrest(3));
    findings.add_measured("pulses", unrest(1));
    let row = |(arm, (name, _)): (usize, &(&str, f64))| {
        let rebound = of(arm)
            .iter()
            .map(|played| f64::from(played.rebound.iter().sum::<u32>()));
        let alerts = of(arm).iter().map(|played| f64::from(played.alerts));
        vec![
            Cell::from(*name),
            off(arm).as_slice().into(),
            unrest(arm).as_slice().into(),
            settled(arm).as_slice().into(),
            rebound.collect::<Vec<f64>>().as_slice().into(),
            alerts.collect::<Vec<f64>>().as_slice().into(),
        ]
    };
    findings.tables.push(Table {
        name: "arms",
        title: "Figure 6: how even members are at the end, and what it took".into(),
        head: [
            "binding",
            "largest difference from 150 at the end (%)",
            "largest difference within a second at the end (%)",
            "within 5 % of 150 from (s)",
            "clients moved",
            "alerts",
        ]
        .map(str::to_owned)
        .into(),
        rows: ARMS.iter().enumerate().map(row).collect(),
    });
    let charts = ["per-session", "pulses", "undampened", "dampened"];
    for ((name, (arm, _)), played) in charts.into_iter().zip(ARMS).zip(&all) {
        let mut lines = played
            .first()
            .map(|played| rates(played, 2))
            .unwrap_or_default();
        lines.push(published(seconds as f64));
        findings.charts.push(Chart {
            name,
            title: format!("Figure 6: loads of members, {arm} (first run)"),
            plot: rates_plot(lines, None),
        });
    }
    note_advisories(run, seconds, last, &mut findings);
    findings.notes.push(
        "Where alerts are no pulses, a member under alert sends each request back until its load has fallen, and so all of its \
         clients leave within the 20 ms between two requests of the slow ones. Dampening makes the analysis see that later, not \
         earlier: an alert comes later, and stays on for longer after everybody has gone. TAO's rule moves one client for each advisory, \
         which is a few hundred moves in place of many thousand; but there, too, a dampened load stays above the \
         threshold after enough clients have left, and the more it is dampened the wider loads swing. One run in forty becomes even, as figure 6 does. Above \
         1.375 times the average there is no advisory at all, since 200 requests per second are 1.33 times 150. Pulses are how Evenkeel ends an alert when \
         those have left who are to."
            .into(),
    );
    findings.notes.push(format!(
        "A run that does not settle counts with its whole length, {seconds} s."
    ));
    findings
}

/// Plays TAO's rule, and notes the result.
fn note_advisories(run: &Run, seconds: u64, last: usize, findings: &mut Findings) {
    let variants: Vec<(f64, f64)> = (TAO_THRESHOLDS.iter())
        .flat_map(|&threshold| TAO_DAMPENING.map(|dampening| (threshold, dampening)))
        .collect();
    let seeds = run.seeds(40);
    let clients = FAST.iter().enumerate();
    let world = Advisories {
        members: 4,
        clients: clients.map(|(index, &rate)| (rate, index % 4)).collect(),
        report_interval: Duration::from_secs(1),
        dampening: 0.0,
        threshold: 1.0,
        length: Duration::from_secs(seconds + 1),
    };
    let all = run.run_grid(&variants, &seeds, |&(threshold, dampening), seed| {
        let world = Advisories {
            threshold,
            dampening,
            ..world.clone()
        };
        advisories::play_advisories(&world, seed)
    });
    let unrest = |runs: &[Advised]| -> Vec<f64> {
        runs.iter()
            .map(|advised| dispersion(&advised.served, last))
            .collect()
    };
    let of = |dampening: f64| {
        let is_it = |variant: &(f64, f64)| *variant == (TAO_THRESHOLDS[0], dampening);
        let at = variants.iter().position(is_it);
        at.and_then(|at| all.get(at)).map_or(&[][..], Vec::as_slice)
    };
    findings.add_measured("dampening", unrest(of(0.8)));
    findings.add_measured("dampening-needed", unrest(of(0.0)));
    let row = |(variant, runs): (&(f64, f64), &Vec<Advised>)| {
        let unrest = unrest(runs);
        let settled = unrest.iter().filter(|unrest| **unrest <= 5.0).count();
        let of_runs = |count: fn(&Advised) -> u32| -> Vec<f64> {
            runs.iter().map(|run| f64::from(count(run))).collect()
        };
        vec![
            Cell::from(format!("{} times the average", variant.0)),
            Cell::from(format!("{}", variant.1)),
            Cell::from(format!("{settled} of {}", runs.len())),
            unrest.as_slice().into(),
            of_runs(|run| run.moved).as_slice().into(),
            of_runs(|run| run.advisories).as_slice().into(),
        ]
    };
    findings.tables.push(Table {
        name: "advisories",
        title: "Figure 6 with TAO's rule: one request sent back for each advisory".into(),
        head: [
            "advisory above",
            "dampening",
            "runs that are even at the end (within 5 %)",
            "largest difference within a second at the end (%)",
            "clients moved",
            "advisories",
        ]
        .map(str::to_owned)
        .into(),
        rows: variants.iter().zip(&all).map(row).collect(),
    });
    for (name, dampening) in [("tao-undampened", 0.0), ("tao-dampened", 0.8)] {
        let served = of(dampening)
            .first()
            .map(|advised| advised.served.as_slice());
        let mut lines = corba::rates_of(served.unwrap_or_default(), 2);
        lines.push(published(seconds as f64));
        findings.charts.push(Chart {
            name,
            title: format!(
                "Figure 6: loads of members, TAO's rule, dampening {dampening} (first run)"
            ),
            plot: rates_plot(lines, None),
        });
    }
}

/// The equilibrium of figure 6.
fn published(seconds: f64) -> Line {
    Line {
        name: "published: 150 Hz".into(),
        points: vec![(0.0, EVEN), (seconds, EVEN)],
        is_published: true,
        ..Line::default()
    }
}

/// Returns how far the mean rate of a member is from what it should be in the last seconds, in
/// percent.
pub(super) fn off_from_even(lines: &[Line], last: f64) -> f64 {
    let end = |line: &Line| line.points.last().map_or(0.0, |(at, _)| *at);
    let off = lines.iter().map(|line| {
        let from = end(line) - last;
        100.0 * (mean_between(line, |at| at > from) - EVEN).abs() / EVEN
    });
    off.fold(0.0, f64::max)
}

/// Returns the time from which on every member is within 5 %, by means over a second; the end if there is no such time.
pub(super) fn settling_time(lines: &[Line]) -> f64 {
    let off = lines.iter().filter_map(|line| {
        let is_off = |(_, rate): &&(f64, f64)| (rate - EVEN).abs() > 0.05 * EVEN;
        line.points
            .iter()
            .rev()
            .find(is_off)
            .map(|(at, _)| *at + 0.5)
    });
    off.fold(0.0, f64::max)
}

/// The mean dispersion in the last seconds, in percent.
fn dispersion(served: &[Vec<u32>], last: usize) -> f64 {
    let whole = served.len().saturating_sub(1);
    let seconds = served.get(whole.saturating_sub(last)..whole);
    let seconds = seconds.unwrap_or_default().iter();
    mean_of(
        &seconds
            .map(|served| 100.0 * sessions::dispersion_of(served))
            .collect::<Vec<f64>>(),
    )
}

fn real_on_demand(run: &Run) -> Result<Findings, String> {
    let watch = run.by_scale(30, 20);
    let round = |_| {
        let folder = corba::run_bench("effectiveness", &["--watch".into(), format!("{watch}")])?;
        let read =
            |name: &str| corba::read(&folder, name).map(|rows| average_seconds(&read_rates(&rows)));
        Ok([
            read("effectiveness-per_session.csv")?,
            read("effectiveness-on_demand.csv")?,
        ])
    };
    let found = |rounds: &[[Vec<Line>; 2]]| on_demand_found(rounds, watch);
    run.repeat_rounds(run.by_scale(3, 1), round, found)
}

/// Findings from the rates of real members, bound per session and on demand, in each round.
fn on_demand_found(rounds: &[[Vec<Line>; 2]], watch: u32) -> Findings {
    /// Seconds after which the group gets its strategy.
    const CHANGE: f64 = 5.0;
    let mut findings = Findings::default();
    let (mut even, mut settled, mut uneven) = (Vec::new(), Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for (round, [session, demand]) in rounds.iter().enumerate() {
        let (off, off_session) = (off_from_even(demand, 10.0), off_from_even(session, 10.0));
        let at = (settling_time(demand) - CHANGE).max(0.0);
        rows.push(vec![
            Cell::from(format!("{}", round + 1)),
            off_session.into(),
            off.into(),
            at.into(),
        ]);
        even.push(off);
        settled.push(at);
        uneven.push(off_session);
        if round == 0 {
            for (name, arm, lines) in [
                ("per-session", ARMS[0].0, session),
                ("pulses", ARMS[1].0, demand),
            ] {
                let mut lines = lines.clone();
                lines.push(published(watch.into()));
                let mut plot = rates_plot(lines, None);
                plot.marks = vec![CHANGE];
                findings.charts.push(Chart {
                    name,
                    title: format!("Figure 6: loads of real members, {arm} (first run)"),
                    plot,
                });
            }
        }
    }
    findings.add_measured("reach-150", even);
    findings.add_measured("settles", settled);
    findings.add_measured("non-adaptive", uneven);
    findings.tables.push(Table {
        name: "arms",
        title: "Figure 6: how even real members are at the end".into(),
        head: [
            "run",
            "per session: difference from 150 (%)",
            "on demand: difference from 150 (%)",
            "on demand: within 5 % from (s after it got its strategy)",
        ]
        .map(str::to_owned)
        .into(),
        rows,
    });
    findings
}

/// Two points at a time: half a second does not hold a whole number of periods.
pub(super) fn average_seconds(lines: &[Line]) -> Vec<Line> {
    let pairs = |line: &Line| {
        let pairs = line.points.chunks_exact(2);
        let means = pairs.map(|pair| {
            let (at, rates): (Vec<f64>, Vec<f64>) = pair.iter().copied().unzip();
            (mean_of(&at), mean_of(&rates))
        });
        Line {
            points: means.collect(),
            ..line.clone()
        }
    };
    lines.iter().map(pairs).collect()
}
