//! Estimates of active sessions: think times by address, and response times.

use std::time::Duration;

use crate::worlds::negotiated::Negotiated;

use super::equal;
use super::world::{
    LAS, LU, REPORTED, RESPONSE, RR, SHARE, Seen, make_cluster, make_site, map_seed_pairs,
    map_seeds, play_cluster,
};
use crate::findings::{Cell, Findings, Table};
use crate::paper::Play;
use crate::run::Run;

/// The unequal servers.
const SERVICE_TIMES: [u64; 3] = [3_000, 6_000, 15_000];
const USERS: usize = 1650;
const OFF: f64 = 0.92;

pub(super) const ADDRESSES: Play = Play {
    experiment: "broker-addresses",
    simulate: Some(addresses),
    real: None,
};

fn addresses(run: &Run<'_>) -> Findings {
    let site = make_site();
    let variants = [(LU, false), (LU, true), (LAS, false), (LAS, true)];
    let seen = run.run_grid(
        &variants,
        &run.seeds(30),
        |&(policy, own_addresses), seed| {
            let cluster = make_cluster(run, SERVICE_TIMES, USERS, OFF, policy);
            let cluster = cluster.map(|cluster| Negotiated {
                own_addresses,
                ..cluster
            });
            play_cluster(cluster.as_ref(), &site, seed)
        },
    );
    let of = |variant: usize| seen.get(variant).map_or(&[][..], Vec::as_slice);
    let mut found = Findings::default();
    let ratio = |one: &Seen, other: &Seen| one.response / other.response;
    found.add_measured("own-as-good", map_seed_pairs(of(3), of(2), ratio));
    let slowest = |one: &Seen, other: &Seen| {
        one.server_figure(2, RESPONSE) / other.server_figure(2, RESPONSE)
    };
    found.add_measured("own-slowest", map_seed_pairs(of(3), of(1), slowest));
    let names = [
        "LU, one address",
        "LU, own addresses",
        "LAS, one address",
        "LAS, own addresses",
    ];
    let rows = names.iter().zip(&seen).map(|(name, seen)| {
        let mut row = vec![Cell::from(*name)];
        row.push(map_seeds(seen, |seen| seen.think).as_slice().into());
        row.push(map_seeds(seen, |seen| seen.response).as_slice().into());
        for figure in [SHARE, RESPONSE] {
            row.extend((0..3).map(|server| {
                Cell::from(map_seeds(seen, |seen| seen.server_figure(server, figure)).as_slice())
            }));
        }
        row
    });
    found.tables.push(Table {
        name: "addresses",
        title: "One client address, and one for each user".into(),
        head: [
            "policy",
            "think time h, ms",
            "mean response, ms",
            "share S1, %",
            "share S2, %",
            "share S3, %",
            "response S1, ms",
            "response S2, ms",
            "response S3, ms",
        ]
        .map(String::from)
        .to_vec(),
        rows: rows.collect(),
    });
    found.notes.push(
        "With an address for each, h is seconds and r milliseconds: active sessions are those of users who think, N s = u h, and LAS is LU. \
         Think times have no finite variance, and what a server sees of a user who was elsewhere meanwhile is part of them; \
         so the mean of one interval at one server says next to nothing. LAS therefore takes the mean of all servers, by their rates. With that of each server for \
         itself it overloaded some of them: the mean response time was 340 ms (two seeds), and 330 if agents averaged h over a minute."
            .into(),
    );
    found
}

/// A variant of LAS on equal servers.
#[derive(Clone, Copy, Default)]
struct Variant {
    says: &'static str,
    policy: usize,
    /// Quantum in seconds.
    quantum: u64,
    interval: u64,
    averaged: u64,
    in_step: bool,
    own_addresses: bool,
}

const BASE: Variant = Variant {
    says: "LAS",
    policy: LAS,
    quantum: 20,
    interval: 1,
    averaged: 0,
    in_step: false,
    own_addresses: false,
};

const PAPER: Variant = Variant {
    says: "LAS, r as reported",
    policy: REPORTED,
    ..BASE
};

const VARIANTS: [Variant; 16] = [
    Variant {
        says: "RR",
        policy: RR,
        ..BASE
    },
    Variant {
        says: "LU",
        policy: LU,
        ..BASE
    },
    PAPER,
    BASE,
    Variant {
        says: "LAS, r as reported, quantum 4 s",
        quantum: 4,
        ..PAPER
    },
    Variant {
        says: "LAS, quantum 4 s",
        quantum: 4,
        ..BASE
    },
    Variant {
        says: "LAS, r as reported, quantum 60 s",
        quantum: 60,
        ..PAPER
    },
    Variant {
        says: "LAS, quantum 60 s",
        quantum: 60,
        ..BASE
    },
    Variant {
        says: "LAS, r as reported, a report every 5 s",
        interval: 5,
        ..PAPER
    },
    Variant {
        says: "LAS, a report every 5 s",
        interval: 5,
        ..BASE
    },
    Variant {
        says: "LAS, r as reported, all agents report at once",
        in_step: true,
        ..PAPER
    },
    Variant {
        says: "LAS, all agents report at once",
        in_step: true,
        ..BASE
    },
    Variant {
        says: "LAS, r as reported, averaged over 5 s",
        averaged: 5,
        ..PAPER
    },
    Variant {
        says: "LAS, r as reported, averaged over 20 s",
        averaged: 20,
        ..PAPER
    },
    Variant {
        says: "LAS, r as reported, own addresses",
        own_addresses: true,
        ..PAPER
    },
    Variant {
        says: "LAS, own addresses",
        own_addresses: true,
        ..BASE
    },
];

/// Variants that claims are about.
const JUDGED: [&str; 4] = [
    PAPER.says,
    BASE.says,
    "LAS, r as reported, a report every 5 s",
    "LAS, a report every 5 s",
];

const LAS_CAUSES: &str = "\
What makes LAS worse than RR on equal servers, one cause at a time. The reported r is that of the last second: of a \
backlog that the clients of the seconds before made, and that goes on when they are gone. Near saturation it changes as 1 / (1 - u)², \
so each report names another server, which gets all clients until the next one. Averaging r in the agents helps where reports are \
frequent, and makes it later. Rarer reports make it far worse, and a shorter quantum, too: more clients choose by each \
report; with a long one both are alike. Reports at once or one by one make little difference. If r is calculated from the utilisation that the server \
will have with the clients that were sent there since its report, LAS is about as steady as LU; what is left is the price of looking at all.";

pub(super) const CAUSES: Play = Play {
    experiment: "broker-las",
    simulate: Some(causes),
    real: None,
};

fn causes(run: &Run<'_>) -> Findings {
    let site = make_site();
    let play_variant = |variant: &Variant, seed: u64| {
        let cluster = make_cluster(
            run,
            equal::SERVICE_TIMES,
            equal::USERS,
            equal::OFF,
            variant.policy,
        );
        let cluster = cluster.map(|cluster| Negotiated {
            quantum: Duration::from_secs(variant.quantum),
            interval: Duration::from_secs(variant.interval),
            averaged: Duration::from_secs(variant.averaged),
            in_step: variant.in_step,
            own_addresses: variant.own_addresses,
            ..cluster
        });
        play_cluster(cluster.as_ref(), &site, seed)
    };
    let seeds = run.seeds(20);
    let (few, more) = seeds.split_at(seeds.len().min(5));
    let mut seen = run.run_grid(&VARIANTS, few, play_variant);
    // Variants that are judged get all seeds.
    let is_judged = |variant: &Variant| JUDGED.contains(&variant.says);
    let judged: Vec<(usize, Variant)> = (VARIANTS.into_iter().enumerate())
        .filter(|(_, variant)| is_judged(variant))
        .collect();
    let rest = run.run_grid(&judged, more, |(_, variant), seed| {
        play_variant(variant, seed)
    });
    for ((at, _), rest) in judged.into_iter().zip(rest) {
        seen[at].extend(rest);
    }
    let of = |says: &str| {
        let index = VARIANTS.iter().position(|variant| variant.says == says);
        index
            .and_then(|index| seen.get(index))
            .map_or(&[][..], Vec::as_slice)
    };
    let ratio = |one: &Seen, other: &Seen| one.response / other.response;
    let mut found = Findings::default();
    found.add_measured(
        "calculated-better",
        map_seed_pairs(of(BASE.says), of(PAPER.says), ratio),
    );
    found.add_measured(
        "steady",
        map_seed_pairs(of("LAS, a report every 5 s"), of(BASE.says), ratio),
    );
    found.add_measured(
        "steady-reported",
        map_seed_pairs(
            of("LAS, r as reported, a report every 5 s"),
            of(PAPER.says),
            ratio,
        ),
    );
    let blind = of("RR");
    let rows = VARIANTS.iter().zip(&seen).map(|(variant, seen)| {
        vec![
            variant.says.into(),
            map_seeds(seen, |seen| seen.rate).as_slice().into(),
            map_seeds(seen, |seen| seen.response).as_slice().into(),
            map_seed_pairs(seen, blind, ratio).as_slice().into(),
        ]
    });
    found.tables.push(Table {
        name: "causes",
        title: "Equal servers: one cause at a time".into(),
        head: [
            "policy",
            "requests per second",
            "mean response, ms",
            "in those of RR",
        ]
        .map(String::from)
        .to_vec(),
        rows: rows.collect(),
    });
    found.notes.push(LAS_CAUSES.into());
    found
}
