//! The clusters of the paper, and the figures of a policy on them.

use std::time::Duration;

use crate::worlds::negotiated::{self, Negotiated, Played};
use evenkeel_core::strategy::{self, Values};
use evenkeel_load::surge::{Pace, Site};
use evenkeel_sim::Discipline;

use crate::run::Run;

/// The policies, as the paper and we call them.
pub(super) const POLICIES: [(&str, &str); 5] = [
    ("RR", "round_robin"),
    ("RAN", "random"),
    ("LU", "least_utilization"),
    ("LAS", "least_active_sessions"),
    ("LAS, r reported", "least_active_sessions"),
];

/// Number of the policies that real runs have: all but the last one.
pub(super) const REAL: usize = 4;

/// Indices of [`POLICIES`].
pub(super) const RR: usize = 0;
pub(super) const RAN: usize = 1;
pub(super) const LU: usize = 2;
pub(super) const LAS: usize = 3;
/// LAS as the paper has it: the response time is the reported one.
pub(super) const REPORTED: usize = 4;

/// Over which a utilisation is taken.
pub(super) const WINDOW: u64 = 10;

/// The site, which all clusters share.
pub(super) fn make_site() -> Site {
    Site::new(2000, &mut fastrand::Rng::with_seed(1998))
}

/// A cluster, as long as the run is to be.
pub(super) fn make_cluster(
    run: &Run<'_>,
    micros: [u64; 3],
    users: usize,
    off: f64,
    policy: usize,
) -> Option<Negotiated> {
    let (_, name) = POLICIES.get(policy)?;
    let mut strategy = Values::defaults(strategy::find(name)?);
    if policy == REPORTED {
        strategy.set("reported_response", 1.0).ok()?;
    }
    Some(Negotiated {
        service_times: micros.map(Duration::from_micros).to_vec(),
        discipline: Discipline::Sharing,
        users,
        pace: Pace { off, pages: 8.0 },
        own_addresses: false,
        quantum: Duration::from_secs(20),
        interval: Duration::from_secs(1),
        in_step: false,
        averaged: Duration::ZERO,
        think_averaged: Duration::ZERO,
        strategy,
        warm_up: Duration::from_secs(run.by_scale(60, 10)),
        length: Duration::from_secs(run.by_scale(600, 20)),
        window: Duration::from_secs(WINDOW),
    })
}

/// Figures of a policy in a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Requests per second.
    pub(super) rate: f64,
    /// Mean response time of all requests, in ms.
    pub(super) response: f64,
    /// By server: share of the requests in %, utilisation in %, mean response time in ms.
    pub(super) servers: [[f64; 3]; 3],
    /// Utilisation in % of each server in each window.
    pub(super) over_time: Vec<Vec<f64>>,
    /// Mean think time that agents report, in ms.
    pub(super) think: f64,
}

/// Indices of the figures of a server.
pub(super) const SHARE: usize = 0;
pub(super) const UTILIZATION: usize = 1;
pub(super) const RESPONSE: usize = 2;

impl Seen {
    /// The figure of a server.
    pub(super) fn server_figure(&self, server: usize, figure: usize) -> f64 {
        let server = self.servers.get(server);
        server
            .and_then(|server| server.get(figure))
            .map_or(f64::NAN, |&figure| figure)
    }

    /// Returns by how much the utilisations of servers differ at most, in points.
    pub(super) fn utilization_spread(&self) -> f64 {
        let all = || self.servers.iter().map(|server| server[UTILIZATION]);
        all().fold(f64::NEG_INFINITY, f64::max) - all().fold(f64::INFINITY, f64::min)
    }
}

/// Plays a cluster.
pub(super) fn play_cluster(cluster: Option<&Negotiated>, site: &Site, seed: u64) -> Seen {
    let Some(cluster) = cluster else {
        return Seen::default();
    };
    let played = negotiated::play_negotiated(cluster, site, seed).unwrap_or_default();
    seen(cluster, &played)
}

fn seen(cluster: &Negotiated, played: &Played) -> Seen {
    let mut servers = [[0.0; 3]; 3];
    for (index, (own, figures)) in servers.iter_mut().zip(&played.servers).enumerate() {
        *own = [
            100.0 * played.server_share(index),
            100.0 * figures.mean_utilization(),
            1e3 * figures.mean_response(),
        ];
    }
    let percent = |figures: &negotiated::Figures| {
        let all = figures.utilization.iter();
        all.map(|share| 100.0 * share).collect()
    };
    Seen {
        rate: played.requests() as f64 / cluster.length.as_secs_f64(),
        response: 1e3 * played.mean_response(),
        servers,
        over_time: played.servers.iter().map(percent).collect(),
        think: 1e3 * played.think,
    }
}

/// Returns the figures of all policies: with users who take times off by `offs.0`, and by `offs.1`,
/// which ask for the published load. Beside that, returns the most requests per second that any
/// policy served of the latter, for each seed.
pub(super) fn both_loads(
    run: &Run<'_>,
    micros: [u64; 3],
    users: usize,
    offs: (f64, f64),
) -> (Vec<Vec<Seen>>, Vec<Vec<Seen>>, Vec<f64>) {
    let site = make_site();
    let seeds = run.seeds(10);
    let variants: Vec<(f64, usize)> = [offs.0, offs.1]
        .iter()
        .flat_map(|&off| (0..POLICIES.len()).map(move |policy| (off, policy)))
        .collect();
    let mut all = run.run_grid(&variants, &seeds, |&(off, policy), seed| {
        let cluster = make_cluster(run, micros, users, off, policy);
        play_cluster(cluster.as_ref(), &site, seed)
    });
    let published = all.split_off(POLICIES.len());
    let most = (0..seeds.len()).map(|seed| {
        let rates = published.iter().filter_map(|policy| policy.get(seed));
        rates.map(|seen| seen.rate).fold(0.0, f64::max)
    });
    let most = most.collect();
    (all, published, most)
}

/// A value for each seed.
pub(super) fn map_seeds(seen: &[Seen], of: impl Fn(&Seen) -> f64) -> Vec<f64> {
    seen.iter().map(of).collect()
}

/// A value for each seed, of two policies.
pub(super) fn map_seed_pairs(
    one: &[Seen],
    other: &[Seen],
    of: impl Fn(&Seen, &Seen) -> f64,
) -> Vec<f64> {
    one.iter()
        .zip(other)
        .map(|(one, other)| of(one, other))
        .collect()
}
