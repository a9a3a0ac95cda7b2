//! Overhead of the ways of binding: figures 3 and 4.

use std::time::Duration;

use crate::worlds::sessions::{Answered, Client, Sessions};
use evenkeel_core::group::Granularity;
use evenkeel_manager::config::Reach;
use evenkeel_sim::experiment::Mean;
use evenkeel_sim::svg::{Line, Plot, Scale};

use crate::csv::cell_number;
use crate::findings::{Cell, Chart, Findings, Table};
use crate::machine::Need;
use crate::paper::{Play, Real};
use crate::papers::corba::{self, forwarded_sessions, play_or_default, pulse_settings, strategy};
use crate::run::Run;

pub(super) const OVERHEAD: Play = Play {
    experiment: "corba-overhead",
    simulate: Some(overhead),
    real: Some(Real {
        // Ratios within a round of half a second, and medians of 40 of them: what comes and goes
        // slower than that cancels, so the machine must only not be taken away altogether.
        needs: &[
            Need::Source,
            Need::Program("omniidl", "omniidl"),
            Need::Program("c++", "g++"),
            Need::Quiet(0.25),
        ],
        run: real_overhead,
    }),
};

/// Ways of binding, in the order of figures 3 and 4.
const WAYS: [&str; 4] = ["no balancer", "per session", "per request", "on demand"];

/// Figures of a turn of a client: requests per second; mean latency and jitter in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    throughput: f64,
    latency: f64,
    jitter: f64,
}

impl Turn {
    fn of(answered: &Answered) -> Self {
        Turn {
            throughput: answered.throughput(),
            latency: answered.mean() * 1e6,
            jitter: answered.jitter() * 1e6,
        }
    }
}

/// Figure of a turn, by which a column is filled.
type Figure = fn(&Turn) -> f64;

const FIGURES: [(&str, Figure); 3] = [
    ("requests per second", |turn| turn.throughput),
    ("mean latency (us)", |turn| turn.latency),
    ("jitter (us)", |turn| turn.jitter),
];

fn overhead(run: &Run) -> Findings {
    let iterations = run.by_scale(200_000, 2_000);
    let way = |way: &usize, seed: u64| {
        let client = Client {
            iterations: Some(iterations),
            ..Client::at_rate(f64::INFINITY, (*way == 0).then_some(0))
        };
        let plain = Sessions {
            // Nobody asks for loads unless on demand.
            report_interval: Duration::from_secs(3600),
            message: Duration::from_micros(30),
            service: Duration::from_micros(18),
            report_work: Duration::from_micros(60),
            length: Duration::from_secs(3600),
            ..forwarded_sessions(1, vec![client], strategy("round_robin", &[]))
        };
        let sessions = match way {
            2 => Sessions {
                reach: Reach::Carried,
                granularity: Granularity::PerRequest,
                ..plain
            },
            3 => Sessions {
                granularity: Granularity::OnDemand,
                strategy: strategy("minimum_dispersion", &[]),
                alert: pulse_settings(),
                report_interval: Duration::from_millis(500),
                ..plain
            },
            _ => plain,
        };
        let played = play_or_default(&sessions, seed);
        Turn::of(&played.answered.first().copied().unwrap_or_default())
    };
    let seeds = run.seeds(10);
    let turns = run.run_grid(&[0, 1, 2, 3], &seeds, way);
    let mut findings = compare_ways(&turns, 1);
    findings.notes.push(
        "In virtual time the jitter of a message is what the set-up gives it. Four messages that vary, instead of two, \
         make the standard deviation larger by the square root of two, whatever the balancer does; the paper's messages varied \
         less than its other work."
            .into(),
    );
    findings
}

/// Returns the findings from turns of all ways; turns at the same place in a round are compared. A
/// value is the median over `block` rounds.
pub(super) fn compare_ways(turns: &[Vec<Turn>], block: usize) -> Findings {
    let medians = |values: Vec<f64>| -> Vec<f64> {
        let blocks = values.chunks(block.max(1));
        blocks.map(|block| corba::median(block.to_vec())).collect()
    };
    let of = |way: usize| turns.get(way).map_or(&[][..], Vec::as_slice);
    let ratios = |way: usize, figure: Figure| {
        let pairs = of(way).iter().zip(of(0));
        medians(
            pairs
                .map(|(own, none)| figure(own) / figure(none))
                .collect(),
        )
    };
    let [throughput, latency, jitter] = FIGURES.map(|(_, figure)| figure);
    let mut findings = Findings::default();
    findings.add_measured("per-session-latency", ratios(1, latency));
    findings.add_measured("per-session-throughput", ratios(1, throughput));
    findings.add_measured("on-demand-latency", ratios(3, latency));
    findings.add_measured("on-demand-throughput", ratios(3, throughput));
    findings.add_measured("per-request-throughput", ratios(2, throughput));
    findings.add_measured("per-request-jitter", ratios(2, jitter));
    let both = ratios(1, jitter).into_iter().zip(ratios(3, jitter));
    findings.add_measured("bound-jitter", both.map(|(a, b)| a.max(b)).collect());
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for (name, figure) in FIGURES {
        let all: Vec<Vec<f64>> = (0..WAYS.len()).map(|way| ratios(way, figure)).collect();
        let means: Vec<Mean> = all.iter().map(|values| Mean::of_values(values)).collect();
        let points = means.iter().enumerate();
        lines.push(Line {
            name: name.split(" (").next().unwrap_or(name).into(),
            points: points.map(|(way, mean)| (way as f64, mean.mean)).collect(),
            within: means
                .iter()
                .map(|mean| mean.within.unwrap_or(0.0))
                .collect(),
            is_published: false,
        });
    }
    for (way, name) in WAYS.iter().enumerate() {
        let mut row = vec![Cell::from(*name)];
        for (_, figure) in FIGURES {
            let values = medians(of(way).iter().map(figure).collect());
            row.push(values.as_slice().into());
            row.push(ratios(way, figure).as_slice().into());
        }
        rows.push(row);
    }
    let mut head = vec!["binding".to_owned()];
    for (name, _) in FIGURES {
        head.extend([name.into(), "to no balancer (times)".into()]);
    }
    findings.tables.push(Table {
        name: "ways",
        title: "Figures 3 and 4: overhead of the ways of binding".into(),
        head,
        rows,
    });
    findings.charts.push(Chart {
        name: "ways",
        title: "Figures 3 and 4: overhead, to no balancer".into(),
        plot: Plot {
            lines,
            across: "way of binding",
            up: "times that of no balancer",
            scales: (Scale::Even, Scale::FromZero),
            most: None,
            marks: Vec::new(),
            names: WAYS.map(str::to_owned).into(),
        },
    });
    findings
}

fn real_overhead(run: &Run) -> Result<Findings, String> {
    let (rounds, block) = run.by_scale((400, 40), (6, 4));
    let requests = run.by_scale(2_500, 500);
    let arguments = [
        "--rounds",
        &format!("{rounds}"),
        "--requests",
        &format!("{requests}"),
    ];
    let folder = corba::run_bench("overhead", &arguments.map(str::to_owned))?;
    let rows = corba::read(&folder, "overhead.csv")?;
    Ok(compare_ways(&read_turns(&rows), block))
}

/// Turns of each way, of a file of the measurement: `round,arm,requests_per_s,mean_us,p50_us,p99_us,jitter_us`.
pub(super) fn read_turns(rows: &[Vec<String>]) -> [Vec<Turn>; 4] {
    ["none", "per_session", "per_request", "on_demand"].map(|arm| {
        let own = rows
            .iter()
            .filter(|row| row.get(1).is_some_and(|name| name == arm));
        let turn = |row: &Vec<String>| Turn {
            throughput: cell_number(row, 2),
            latency: cell_number(row, 3),
            jitter: cell_number(row, 6),
        };
        own.map(turn).collect()
    })
}
