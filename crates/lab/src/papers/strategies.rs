//! Othman, O'Ryan and Schmidt, Strategies for CORBA Middleware-Based Load Balancing (IEEE Distributed Systems Online 2(3), 2001).

use std::time::Duration;

use crate::worlds::advisories::{self, Advised, Advisories};
use crate::worlds::sessions::{self, Answered, Client, Sessions};
use evenkeel_core::alert::AlertSettings;
use evenkeel_core::group::Granularity;
use evenkeel_manager::config::Reach;
use evenkeel_sim::experiment::Mean;
use evenkeel_sim::svg::{Line, Plot, Scale};

use super::corba::{self, forwarded_sessions, play_or_default, rates, rates_plot, strategy};
use crate::csv::cell_number;
use crate::findings::{Cell, Chart, Findings, Table};
use crate::machine::Need;
use crate::paper::{Play, Real};
use crate::run::Run;

/// Functions of the experiments; texts and claims are in `papers/strategies.toml`.
pub(super) const PLAYS: &[Play] = &[OVERHEAD, PER_SESSION, ON_DEMAND];

const OVERHEAD: Play = Play {
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

const PER_SESSION: Play = Play {
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

const ON_DEMAND: Play = Play {
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

/// Ways of binding, in the order of figures 3 and 4.
const WAYS: [&str; 4] = ["no balancer", "per session", "per request", "on demand"];

/// Figures of a turn of a client: requests per second; mean latency and jitter in microseconds.
#[derive(Clone, Copy, Debug)]
struct Turn {
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
                alert: pulses(),
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
    let mut findings = overheads(&turns, 1);
    findings.notes.push(
        "In virtual time the jitter of a message is what the set-up gives it. Four messages that vary, instead of two, \
         make the standard deviation larger by the square root of two, whatever the balancer does; the paper's messages varied \
         less than its other work."
            .into(),
    );
    findings
}

/// Returns the settings of alerts that are pulses.
fn pulses() -> AlertSettings {
    AlertSettings {
        pulses: true,
        ..AlertSettings::default()
    }
}

/// Returns the findings from turns of all ways; turns at the same place in a round are compared. A
/// value is the median over `block` rounds.
fn overheads(turns: &[Vec<Turn>], block: usize) -> Findings {
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

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
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
    Ok(overheads(&turns(&rows), block))
}

/// Turns of each way, of a file of the measurement: `round,arm,requests_per_s,mean_us,p50_us,p99_us,jitter_us`.
fn turns(rows: &[Vec<String>]) -> [Vec<Turn>; 4] {
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
    ends(played.iter().map(|played| rates(played, window)).collect())
}

/// Returns the findings from the rates of four members whose clients end.
fn ends(all: Vec<Vec<Line>>) -> Findings {
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
        let mean = mean(&means);
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

/// The mean of the points in between.
fn mean_between(line: &Line, is_there: impl Fn(f64) -> bool) -> f64 {
    let there = line.points.iter().filter(|(at, _)| is_there(*at));
    mean(&there.map(|(_, rate)| *rate).collect::<Vec<f64>>())
}

fn real_per_session(run: &Run) -> Result<Findings, String> {
    let iterations = run.by_scale(400, 100);
    let round = |_| {
        let arguments = ["--iterations".to_owned(), format!("{iterations}")];
        let folder = corba::run_bench("ends", &arguments)?;
        Ok(members(&corba::read(&folder, "ends.csv")?))
    };
    let found = |rounds: &[Vec<Line>]| ends(rounds.to_vec());
    run.repeat_rounds(run.by_scale(3, 1), round, found)
}

/// Rates of each member, of a file of the measurement: `seconds,member,requests_per_s`.
fn members(rows: &[Vec<String>]) -> Vec<Line> {
    let line = |member: usize| {
        let own = rows
            .iter()
            .filter(|row| cell_number(row, 1) == member as f64);
        Line {
            name: format!("member {member}"),
            points: own
                .map(|row| (cell_number(row, 0), cell_number(row, 2)))
                .collect(),
            ..Line::default()
        }
    };
    (1..=4).map(line).collect()
}

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
                alert: pulses(),
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
            .map(|played| settles(&rates(played, 1)))
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
fn off_from_even(lines: &[Line], last: f64) -> f64 {
    let end = |line: &Line| line.points.last().map_or(0.0, |(at, _)| *at);
    let off = lines.iter().map(|line| {
        let from = end(line) - last;
        100.0 * (mean_between(line, |at| at > from) - EVEN).abs() / EVEN
    });
    off.fold(0.0, f64::max)
}

/// Returns the time from which on every member is within 5 %, by means over a second; the end if there is no such time.
fn settles(lines: &[Line]) -> f64 {
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
    mean(
        &seconds
            .map(|served| 100.0 * sessions::dispersion_of(served))
            .collect::<Vec<f64>>(),
    )
}

fn real_on_demand(run: &Run) -> Result<Findings, String> {
    let watch = run.by_scale(30, 20);
    let round = |_| {
        let folder = corba::run_bench("effectiveness", &["--watch".into(), format!("{watch}")])?;
        let read = |name: &str| corba::read(&folder, name).map(|rows| seconds(&members(&rows)));
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
        let at = (settles(demand) - CHANGE).max(0.0);
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
fn seconds(lines: &[Line]) -> Vec<Line> {
    let pairs = |line: &Line| {
        let pairs = line.points.chunks_exact(2);
        let means = pairs.map(|pair| {
            let (at, rates): (Vec<f64>, Vec<f64>) = pair.iter().copied().unzip();
            (mean(&at), mean(&rates))
        });
        Line {
            points: means.collect(),
            ..line.clone()
        }
    };
    lines.iter().map(pairs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;
    use crate::papers::find;
    use crate::record;

    fn verdict(play: &Play, findings: &Findings, claim: &str) -> Verdict {
        let (_, experiment) = find(play.experiment)[0];
        record::judge_claims(&experiment.claims, findings)[claim].verdict
    }

    /// A file of the measurement in which `on demand` has this share of the throughput.
    fn overhead_of(share: f64) -> Findings {
        let mut text = String::from("round,arm,requests_per_s,mean_us,p50_us,p99_us,jitter_us\n");
        for round in 0..12 {
            // From round to round everything changes, and once one way is disturbed.
            let speed = 10_000.0 + 1000.0 * f64::from(round % 4);
            let disturbed = if round == 5 { 0.3 } else { 1.0 };
            for (arm, share) in [
                ("none", 1.0),
                ("per_session", 1.0),
                ("per_request", 0.5),
                ("on_demand", share * disturbed),
            ] {
                let rate = speed * share;
                text += &format!("{round},{arm},{rate},{},1,1,20\n", 1e6 / rate);
            }
        }
        overheads(&turns(&crate::csv::Csv::parse(&text).rows), 4)
    }

    #[test]
    fn one_per_cent_is_told_from_five_in_spite_of_a_disturbed_turn() {
        for (share, wanted) in [(0.995, Verdict::Holds), (0.95, Verdict::DoesNot)] {
            let findings = overhead_of(share);
            for claim in ["on-demand-throughput", "on-demand-latency"] {
                let told = verdict(&OVERHEAD, &findings, claim);
                assert_eq!(told, wanted, "{share}: {claim}: {:?}", findings.values);
            }
            let told = verdict(&OVERHEAD, &findings, "per-session-throughput");
            assert_eq!(told, Verdict::Holds);
        }
    }

    /// Rates of four members in steps of half a second.
    fn loads(rates: impl Fn(f64) -> [f64; 4]) -> Vec<Line> {
        let mut text = String::from("seconds,member,requests_per_s\n");
        for step in 1..=80 {
            let at = f64::from(step) / 2.0;
            for (member, rate) in rates(at).into_iter().enumerate() {
                text += &format!("{at},{},{rate}\n", member + 1);
            }
        }
        members(&crate::csv::Csv::parse(&text).rows)
    }

    #[test]
    fn half_way_is_told_from_the_end() {
        for (drop, wanted) in [(20.0, Verdict::Holds), (36.0, Verdict::DoesNot)] {
            let rates = |at: f64| match at {
                _ if at <= drop => [20.0, 10.0, 15.0, 15.0],
                _ if at <= 39.0 => [0.0, 10.0, 5.0, 5.0],
                _ => [0.0; 4],
            };
            let findings = ends(vec![loads(rates); 3]);
            assert_eq!(verdict(&PER_SESSION, &findings, "drop"), wanted, "{drop}");
            for claim in ["uneven", "alike"] {
                assert_eq!(verdict(&PER_SESSION, &findings, claim), Verdict::Holds);
            }
        }
        let even = ends(vec![loads(|_| [15.0; 4]); 3]);
        assert_eq!(verdict(&PER_SESSION, &even, "uneven"), Verdict::DoesNot);
    }

    #[test]
    fn members_settle_when_the_last_of_them_does_and_stays() {
        let lines = loads(|at| match at {
            _ if at <= 6.0 => [200.0, 100.0, 200.0, 100.0],
            _ if at <= 8.0 => [150.0, 150.0, 150.0, 150.0],
            // One sample alone is the way that periods fall into it.
            _ if at <= 8.5 => [154.0, 146.0, 150.0, 150.0],
            _ if at <= 12.0 => [160.0, 140.0, 150.0, 150.0],
            _ => [150.0; 4],
        });
        let lines = seconds(&lines);
        assert!(
            (12.0..=12.5).contains(&settles(&lines)),
            "{}",
            settles(&lines)
        );
        assert_eq!(off_from_even(&lines, 10.0), 0.0);
        let apart = seconds(&loads(|_| [200.0, 100.0, 200.0, 100.0]));
        assert!(settles(&apart) > 39.0);
        assert!((off_from_even(&apart, 10.0) - 100.0 / 3.0).abs() < 1e-9);
    }
}
