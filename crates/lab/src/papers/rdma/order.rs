//! Order of KLM and pKLM: when KLM, which sees more, has less throughput than pKLM. Figure 6 with
//! more or fewer clients.

use crate::worlds::monitored::{Arrivals, Background, DataCentre};
use evenkeel_sim::svg::Scale;

use super::world::{
    Arm, FRONT_ENDS, PING_PONG, Played, Runs, front_ends_text, make_data_centre, plot,
};
use crate::findings::{Chart, Findings};
use crate::paper::Play;
use crate::run::Run;

/// The experiment.
pub(super) const EXPERIMENT: Play = Play {
    experiment: "rdma-order",
    simulate: Some(simulate),
    real: None,
};

const CLIENTS: [usize; 7] = [4, 8, 16, 24, 32, 64, 96];

fn simulate(run: &Run<'_>) -> Findings {
    let worlds: Vec<(usize, usize)> = (FRONT_ENDS.iter())
        .flat_map(|&front_ends| CLIENTS.map(|clients| (front_ends, clients)))
        .collect();
    let world = |&(front_ends, clients): &(usize, usize)| {
        let mut centre = DataCentre {
            background: Background {
                backends: 4,
                ..PING_PONG
            },
            ..make_data_centre(run, front_ends, 0.9)
        };
        for site in &mut centre.sites {
            site.arrivals = Arrivals::Closed(clients);
        }
        centre
    };
    let all: Vec<DataCentre> = worlds.iter().map(world).collect();
    let arms = [
        Arm::RoundRobin,
        Arm::Ulm,
        Arm::Pklm,
        Arm::Klm,
        Arm::AverageKlm,
        Arm::Adaptive,
    ];
    let runs = Runs::play_worlds(run, &all, &arms, 6);
    let mut findings = Findings::default();
    let pair = (Arm::Klm, Arm::Pklm);
    let at = |clients: usize| {
        worlds
            .iter()
            .position(|of| *of == (16, clients))
            .unwrap_or(0)
    };
    findings.add_measured("few", runs.ratios(&[at(8)], pair, Played::throughput));
    findings.add_measured("many", runs.ratios(&[at(96)], pair, Played::throughput));
    findings.add_measured("others", runs.ratios(&[at(96)], pair, |of| of.others));
    findings.add_measured("tail", runs.ratios(&[at(96)], pair, |of| of.p99_ms));
    type Figure = fn(&Played) -> f64;
    let figures: [([&str; 2], &str, Figure); 3] = [
        (
            ["throughput-16", "throughput-1"],
            "requests per second",
            Played::throughput,
        ),
        (
            ["others-16", "others-1"],
            "CPUs that the other work has",
            |of| of.others,
        ),
        (
            ["p99-16", "p99-1"],
            "99th percentile of the response time, ms",
            |of| of.p99_ms,
        ),
    ];
    for (names, up, figure) in figures {
        for (name, front_ends) in names.into_iter().zip(FRONT_ENDS) {
            let here: Vec<(f64, usize)> = (worlds.iter().enumerate())
                .filter(|(_, (of, _))| *of == front_ends)
                .map(|(world, (_, clients))| (*clients as f64, world))
                .collect();
            let of = |runs: &Runs, world, arm| runs.figures(world, arm, figure);
            let title = format!(
                "Four loaded back-ends: {up}, {}",
                front_ends_text(front_ends)
            );
            findings.charts.push(Chart {
                name,
                title: title.clone(),
                plot: plot("clients", up, Scale::FromZero, runs.lines(&arms, &here, of)),
            });
            let heads: Vec<(String, usize)> = (here.iter())
                .map(|(clients, world)| (clients.to_string(), *world))
                .collect();
            let corner = format!("{up}; clients");
            findings
                .tables
                .push(runs.table((name, title, &corner), &heads, of));
        }
    }
    findings.notes.push(
        "CPUs are shared fairly: with n of our requests and b other tasks, a full back-end with c CPUs gives our requests n c / (n + b) of them. Where there is no other work (b = 0) \
         one request more adds nothing as soon as all its CPUs are in use; where there is, it adds b c / (n + b)^2, all of it taken from the other work. A closed loop that only counts its own requests therefore has most where \
         loaded back-ends get more than what would answer soonest, and gets that from a load that cannot see the other work. No load that was tried \
         has both the throughput of pKLM there and the shorter tail; they stand in `crates/kernel/src/loads.rs`."
            .into(),
    );
    findings
}
