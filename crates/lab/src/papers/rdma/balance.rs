//! Figures 5 to 9: what it is worth to know the load.

use std::time::Duration;

use crate::worlds::monitored::{Arrivals, Background, DataCentre, Site};
use evenkeel_sim::svg::{Line, Scale};

use super::real;
use super::world::{
    Arm, FRONT_ENDS, INTERVAL, PING_PONG, Played, Runs, front_ends_text, make_data_centre, plot,
    published,
};
use crate::findings::{Chart, Findings};
use crate::paper::{Play, Real};
use crate::run::Run;

/// Arms of tables.
const ALL: [Arm; 7] = [
    Arm::Random,
    Arm::RoundRobin,
    Arm::Ulm,
    Arm::OldUlm,
    Arm::Pklm,
    Arm::Klm,
    Arm::Adaptive,
];

const ALPHAS: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];

/// A world for each number of front-ends and each x: the worlds, and for each number of front-ends
/// the index of each.
fn worlds<X: Copy>(
    xs: &[X],
    of: impl Fn(usize, X) -> DataCentre,
) -> (Vec<DataCentre>, Vec<Vec<(X, usize)>>) {
    let (mut all, mut indices) = (Vec::new(), Vec::new());
    for front_ends in FRONT_ENDS {
        let mut here = Vec::new();
        for &x in xs {
            here.push((x, all.len()));
            all.push(of(front_ends, x));
        }
        indices.push(here);
    }
    (all, indices)
}

fn heads<X: std::fmt::Display>(worlds: &[(X, usize)]) -> Vec<(String, usize)> {
    let head = |(x, world): &(X, usize)| (x.to_string(), *world);
    worlds.iter().map(head).collect()
}

fn throughput(runs: &Runs, world: usize, arm: Arm) -> Vec<f64> {
    runs.figures(world, arm, Played::throughput)
}

fn indices<X>(worlds: &[(X, usize)]) -> Vec<usize> {
    worlds.iter().map(|(_, world)| *world).collect()
}

/// Figure 5.
pub(super) const ZIPF: Play = Play {
    experiment: "rdma-zipf",
    simulate: Some(zipf),
    real: None,
};

fn zipf(run: &Run<'_>) -> Findings {
    let (all, by) = worlds(&ALPHAS, |front_ends, alpha| {
        make_data_centre(run, front_ends, alpha)
    });
    let runs = Runs::play_worlds(run, &all, &ALL, 20);
    let mut findings = Findings::default();
    let ids = [
        [
            "klm-gain-16",
            "ulm-gain-16",
            "klm-over-ulm-16",
            "pklm-over-ulm-16",
            "klm-over-pklm-16",
            "small-alpha-16",
        ],
        [
            "klm-gain-1",
            "ulm-gain-1",
            "klm-over-ulm-1",
            "pklm-over-ulm-1",
            "klm-over-pklm-1",
            "small-alpha-1",
        ],
    ];
    for (worlds, [klm_gain, ulm_gain, over_ulm, pklm, over_pklm, small]) in by.iter().zip(ids) {
        let (Some(&(_, first)), Some(&(_, last))) = (worlds.first(), worlds.last()) else {
            continue;
        };
        let gain = |world, arm| runs.gains(world, arm, Played::throughput);
        let ratio = |pair| runs.ratios(&indices(worlds), pair, Played::throughput);
        findings.add_measured(klm_gain, gain(first, Arm::Klm));
        findings.add_measured(ulm_gain, gain(first, Arm::Ulm));
        findings.add_measured(over_ulm, ratio((Arm::Klm, Arm::Ulm)));
        findings.add_measured(pklm, ratio((Arm::Pklm, Arm::Ulm)));
        findings.add_measured(over_pklm, ratio((Arm::Klm, Arm::Pklm)));
        let gains = gain(first, Arm::Klm).into_iter().zip(gain(last, Arm::Klm));
        findings.add_measured(small, gains.map(|(one, other)| one - other).collect());
    }
    let names = [["throughput-16", "gain-16"], ["throughput-1", "gain-1"]];
    for ((worlds, front_ends), names) in by.iter().zip(FRONT_ENDS).zip(names) {
        let title = format!(
            "Requests per second (figure 5 a), {}",
            front_ends_text(front_ends)
        );
        let lines = runs.lines(&Arm::FIVE, worlds, throughput);
        findings.charts.push(Chart {
            name: names[0],
            title: title.clone(),
            plot: plot("Zipf exponent", "requests per second", Scale::Even, lines),
        });
        let head = (names[0], title, "requests per second; exponent");
        findings
            .tables
            .push(runs.table(head, &heads(worlds), throughput));
        let gain = |runs: &Runs, world, arm| runs.gains(world, arm, Played::throughput);
        let title = format!(
            "Improvement over random (figure 5 b), {}",
            front_ends_text(front_ends)
        );
        let mut lines = runs.lines(&[Arm::Ulm, Arm::Pklm, Arm::Klm], worlds, gain);
        // The text gives the largest ones, and says that they are at the smallest exponents.
        lines.push(published("KLM", (0.1, 22.0)));
        lines.push(published("ULM", (0.1, 12.0)));
        findings.charts.push(Chart {
            name: names[1],
            title: title.clone(),
            plot: plot("Zipf exponent", "improvement, %", Scale::FromZero, lines),
        });
        let head = (names[1], title, "improvement, %; exponent");
        findings.tables.push(runs.table(head, &heads(worlds), gain));
    }
    findings
}

/// Figure 6.
pub(super) const LOADED: Play = Play {
    experiment: "rdma-loaded",
    simulate: Some(loaded),
    real: Some(Real {
        needs: real::NEEDS,
        run: real::loaded,
    }),
};

const LOADED_BACK_ENDS: [usize; 6] = [0, 1, 2, 4, 6, 8];

fn loaded(run: &Run<'_>) -> Findings {
    let mut findings = Findings::default();
    let network = Background {
        tasks: 0,
        interrupts: 0.6,
        ..PING_PONG
    };
    let half = Duration::from_millis(500);
    let changing = Background {
        changes: Some((half, half)),
        ..PING_PONG
    };
    let arms = [
        Arm::Random,
        Arm::RoundRobin,
        Arm::Ulm,
        Arm::OldUlm,
        Arm::Pklm,
        Arm::PaperKlm,
        Arm::Klm,
        Arm::Adaptive,
    ];
    let kinds = [
        (
            "sixteen processes",
            ["processes-16", "processes-1"],
            PING_PONG,
        ),
        ("only network", ["network-16", "network-1"], network),
        ("comes and goes", ["changing-16", "changing-1"], changing),
    ];
    let xs: Vec<(usize, usize)> = (0..kinds.len())
        .flat_map(|kind| LOADED_BACK_ENDS.map(|backends| (kind, backends)))
        .collect();
    let (all, by) = worlds(&xs, |front_ends, (kind, backends)| {
        let mut centre = make_data_centre(run, front_ends, 0.9);
        if let Some(&(_, _, background)) = kinds.get(kind) {
            centre.background = Background {
                backends,
                ..background
            };
        }
        centre
    });
    let runs = Runs::play_worlds(run, &all, &arms, 6);
    let ids = [
        [
            "klm-over-pklm-16",
            "pklm-over-ulm-16",
            "klm-over-static-16",
            "pending-counts-16",
            "klm-over-ulm-16",
            "ulm-over-static-16",
        ],
        [
            "klm-over-pklm-1",
            "pklm-over-ulm-1",
            "klm-over-static-1",
            "pending-counts-1",
            "klm-over-ulm-1",
            "ulm-over-static-1",
        ],
    ];
    for (at, (worlds, front_ends)) in by.iter().zip(FRONT_ENDS).enumerate() {
        let of_kind = |kind: usize| -> Vec<(usize, usize)> {
            let these = worlds.iter().filter(|((of, _), _)| *of == kind);
            these
                .map(|((_, backends), world)| (*backends, *world))
                .collect()
        };
        let judged = |kind| -> Vec<usize> {
            let some = of_kind(kind).into_iter();
            some.filter(|(backends, _)| (1..8).contains(backends))
                .map(|(_, world)| world)
                .collect()
        };
        if let Some(&[over_pklm, pklm, over_static, pending, over_ulm, ulm]) = ids.get(at) {
            let ratio = |kind, pair| runs.ratios(&judged(kind), pair, Played::throughput);
            findings.add_measured(over_pklm, ratio(0, (Arm::Klm, Arm::Pklm)));
            findings.add_measured(pklm, ratio(0, (Arm::Pklm, Arm::Ulm)));
            findings.add_measured(over_static, ratio(0, (Arm::Klm, Arm::RoundRobin)));
            findings.add_measured(pending, ratio(1, (Arm::PaperKlm, Arm::Pklm)));
            findings.add_measured(over_ulm, ratio(0, (Arm::Klm, Arm::Ulm)));
            findings.add_measured(ulm, ratio(0, (Arm::Ulm, Arm::RoundRobin)));
        }
        for (kind, &(what, names, _)) in kinds.iter().enumerate() {
            let these = of_kind(kind);
            let points: Vec<(f64, usize)> =
                these.iter().map(|&(x, world)| (x as f64, world)).collect();
            let title = format!(
                "Requests per second, other work: {what} (figure 6), {}",
                front_ends_text(front_ends)
            );
            let lines = runs.lines(&arms, &points, throughput);
            let Some(&name) = names.get(at) else { continue };
            findings.charts.push(Chart {
                name,
                title: title.clone(),
                plot: plot(
                    "back-ends with other work",
                    "requests per second",
                    Scale::FromZero,
                    lines,
                ),
            });
            let head = (name, title, "requests per second; loaded back-ends");
            findings
                .tables
                .push(runs.table(head, &heads(&these), throughput));
        }
    }
    findings.notes.push(
        "Where pKLM has more than KLM, with one front-end, there are 32 clients for fewer CPUs without other work, and what it has more it takes from the \
         other work: see *rdma-order*. The same is so for interrupts: a back-end that lost 60 % of its CPUs to them still adds 40 %, and in a saturated closed loop \
         it is no gain to leave it out; that requests take longer there shows in its CPU utilisation, too."
            .into(),
    );
    findings
}

/// Figures 7 and 8.
fn shared_centre(run: &Run<'_>, front_ends: usize, alpha: f64) -> DataCentre {
    let site = |alpha| Site {
        alpha,
        arrivals: Arrivals::Closed(16),
    };
    DataCentre {
        sites: vec![site(0.9), site(alpha)],
        ..make_data_centre(run, front_ends, alpha)
    }
}

/// Figure 7.
pub(super) const SHARED: Play = Play {
    experiment: "rdma-shared",
    simulate: Some(shared),
    real: None,
};

fn site(of: &Played, site: usize) -> f64 {
    of.sites.get(site).copied().unwrap_or(f64::NAN)
}

fn shared(run: &Run<'_>) -> Findings {
    const OTHERS: [f64; 4] = [0.1, 0.25, 0.5, 0.75];
    let (all, by) = worlds(&OTHERS, |front_ends, alpha| {
        shared_centre(run, front_ends, alpha)
    });
    let runs = Runs::play_worlds(run, &all, &ALL, 14);
    let mut findings = Findings::default();
    let ids = [
        [
            "klm-first-16",
            "klm-second-16",
            "ulm-first-16",
            "ulm-second-16",
            "klm-over-ulm-16",
        ],
        [
            "klm-first-1",
            "klm-second-1",
            "ulm-first-1",
            "ulm-second-1",
            "klm-over-ulm-1",
        ],
    ];
    let names = [["first-16", "second-16"], ["first-1", "second-1"]];
    for (((worlds, front_ends), ids), names) in by.iter().zip(FRONT_ENDS).zip(ids).zip(names) {
        let Some(&(_, world)) = worlds.first() else {
            continue;
        };
        let gain = |arm, at| runs.gains(world, arm, |of| site(of, at));
        let [klm_first, klm_second, ulm_first, ulm_second, over_ulm] = ids;
        findings.add_measured(klm_first, gain(Arm::Klm, 0));
        findings.add_measured(klm_second, gain(Arm::Klm, 1));
        findings.add_measured(ulm_first, gain(Arm::Ulm, 0));
        findings.add_measured(ulm_second, gain(Arm::Ulm, 1));
        findings.add_measured(
            over_ulm,
            runs.ratios(&indices(worlds), (Arm::Klm, Arm::Ulm), Played::throughput),
        );
        let published_at_01 = [[25.0, 11.0], [21.0, 9.0]];
        for ((at, name), figures) in names.into_iter().enumerate().zip(published_at_01) {
            let which = if at == 0 {
                "the site with exponent 0.9"
            } else {
                "the other site"
            };
            let title = format!(
                "Improvement over random of {which} (figure 7), {}",
                front_ends_text(front_ends)
            );
            let gain = |runs: &Runs, world, arm| runs.gains(world, arm, |of| site(of, at));
            let mut lines = runs.lines(&[Arm::Ulm, Arm::Pklm, Arm::Klm], worlds, gain);
            let [klm, ulm] = figures;
            lines.push(published("KLM", (0.1, klm)));
            lines.push(published("ULM", (0.1, ulm)));
            findings.charts.push(Chart {
                name,
                title: title.clone(),
                plot: plot(
                    "Zipf exponent of the other site",
                    "improvement, %",
                    Scale::FromZero,
                    lines,
                ),
            });
            let head = (name, title, "improvement, %; exponent of the other site");
            findings.tables.push(runs.table(head, &heads(worlds), gain));
        }
    }
    findings
}

/// Figure 8.
pub(super) const VARIANCE: Play = Play {
    experiment: "rdma-variance",
    simulate: Some(variance),
    real: None,
};

fn variance(run: &Run<'_>) -> Findings {
    let (all, by) = worlds(&[0.1], |front_ends, alpha| {
        shared_centre(run, front_ends, alpha)
    });
    let runs = Runs::play_worlds(run, &all, &ALL, 20);
    let mut findings = Findings::default();
    let ids = [
        [
            "half-of-ulm-16",
            "half-of-random-16",
            "half-of-round-robin-16",
            "ulm-a-bit-less-16",
        ],
        [
            "half-of-ulm-1",
            "half-of-random-1",
            "half-of-round-robin-1",
            "ulm-a-bit-less-1",
        ],
    ];
    for ((worlds, front_ends), ids) in by.iter().zip(FRONT_ENDS).zip(ids) {
        let pairs = [
            (Arm::Klm, Arm::Ulm),
            (Arm::Klm, Arm::Random),
            (Arm::Klm, Arm::RoundRobin),
            (Arm::Ulm, Arm::Random),
        ];
        for (id, pair) in ids.into_iter().zip(pairs) {
            findings.add_measured(
                id,
                runs.ratios(&indices(worlds), pair, Played::mean_variance),
            );
        }
        let name = if front_ends == 1 { "mean-1" } else { "mean-16" };
        let title = format!(
            "Variance of CPU load between back-ends in 50 ms, mean over time, {}",
            front_ends_text(front_ends)
        );
        let worlds: Vec<(&str, usize)> = worlds
            .iter()
            .map(|(_, world)| ("variance", *world))
            .collect();
        let of = |runs: &Runs, world, arm| runs.figures(world, arm, Played::mean_variance);
        findings
            .tables
            .push(runs.table((name, title, "by"), &heads(&worlds), of));
        let Some(&(_, world)) = worlds.first() else {
            continue;
        };
        let line = |arm: Arm| Line {
            name: arm.name().into(),
            // Five seconds of it, as there is no more room.
            points: (runs.runs_of(world, arm).first().into_iter())
                .flat_map(|of| of.variances.iter().take(100).enumerate())
                .map(|(step, variance)| (step as f64 * 0.05, *variance))
                .collect(),
            ..Line::default()
        };
        findings.charts.push(Chart {
            name: if front_ends == 1 { "time-1" } else { "time-16" },
            title: format!(
                "Variance of CPU load between back-ends (figure 8), {}",
                front_ends_text(front_ends)
            ),
            plot: plot(
                "seconds",
                "variance",
                Scale::FromZero,
                [Arm::Random, Arm::RoundRobin, Arm::Ulm, Arm::Klm]
                    .map(line)
                    .to_vec(),
            ),
        });
    }
    findings
}

/// Figure 9.
pub(super) const INTERVAL_OF_POLLING: Play = Play {
    experiment: "rdma-interval",
    simulate: Some(interval),
    real: None,
};

fn interval(run: &Run<'_>) -> Findings {
    const MILLIS: [u64; 7] = [1, 5, 20, 50, 100, 300, 1000];
    let half = Duration::from_millis(500);
    let (all, by) = worlds(&MILLIS, |front_ends, millis| DataCentre {
        background: Background {
            backends: 2,
            changes: Some((half, half)),
            ..PING_PONG
        },
        poll: Duration::from_millis(millis),
        ..make_data_centre(run, front_ends, 0.5)
    });
    let arms = [Arm::Random, Arm::Ulm, Arm::Pklm, Arm::Klm];
    let runs = Runs::play_worlds(run, &all, &arms, 6);
    let mut findings = Findings::default();
    let ids = [
        ["klm-long-16", "ulm-long-16", "ulm-short-16", "klm-short-16"],
        ["klm-long-1", "ulm-long-1", "ulm-short-1", "klm-short-1"],
    ];
    for ((worlds, front_ends), [klm_long, ulm_long, ulm_short, klm_short]) in
        by.iter().zip(FRONT_ENDS).zip(ids)
    {
        let at = |millis: u64| {
            worlds
                .iter()
                .find(|(x, _)| *x == millis)
                .map(|(_, world)| *world)
        };
        let (Some(short), Some(usual), Some(long)) =
            (at(1), at(INTERVAL.as_millis() as u64), at(1000))
        else {
            continue;
        };
        let ratio = |world, arm| -> Vec<f64> {
            let pairs = throughput(&runs, world, arm)
                .into_iter()
                .zip(throughput(&runs, usual, arm));
            pairs.map(|(one, other)| one / other).collect()
        };
        findings.add_measured(klm_long, ratio(long, Arm::Klm));
        findings.add_measured(ulm_long, ratio(long, Arm::Ulm));
        findings.add_measured(ulm_short, ratio(short, Arm::Ulm));
        findings.add_measured(klm_short, ratio(short, Arm::Klm));
        let name = if front_ends == 1 {
            "throughput-1"
        } else {
            "throughput-16"
        };
        let title = format!(
            "Requests per second against the polling interval (figure 9), {}",
            front_ends_text(front_ends)
        );
        let points: Vec<(f64, usize)> =
            worlds.iter().map(|&(x, world)| (x as f64, world)).collect();
        let mut drawn = plot(
            "polling interval, ms",
            "requests per second",
            Scale::Even,
            runs.lines(&arms, &points, throughput),
        );
        drawn.scales.0 = Scale::Powers;
        findings.charts.push(Chart {
            name,
            title: title.clone(),
            plot: drawn,
        });
        let head = (name, title, "requests per second; interval, ms");
        findings
            .tables
            .push(runs.table(head, &heads(worlds), throughput));
    }
    findings
}
