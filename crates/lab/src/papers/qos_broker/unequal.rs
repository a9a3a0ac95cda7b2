//! Three servers of 3, 6 and 15 ms: figures 5 to 10.

use evenkeel_sim::experiment::Mean;
use evenkeel_sim::svg::{Line, Plot, Scale};

use super::real;
use super::world::{
    LAS, LU, POLICIES, RAN, REPORTED, RESPONSE, RR, SHARE, Seen, UTILIZATION, WINDOW, both_loads,
    map_seed_pairs, map_seeds,
};
use crate::findings::{Cell, Chart, Findings, Table};
use crate::machine::Need;
use crate::paper::{Play, Real};
use crate::run::Run;

/// Mean service time of each server, in microseconds.
const SERVICE_TIMES: [u64; 3] = [3_000, 6_000, 15_000];
const USERS: usize = 1650;
/// For a utilisation of 82 %, and for 660 requests per second if they could be served.
const OFF: f64 = 0.92;
const OFF_PUBLISHED: f64 = 0.60;

pub(super) const EXPERIMENT: Play = Play {
    experiment: "broker-heterogeneous",
    simulate: Some(simulate),
    real: Some(Real {
        needs: &[
            Need::Source,
            Need::Program("apxs", "apache2-dev"),
            Need::Quiet(0.2),
        ],
        run: |run| {
            let test = (
                "reports_balance_servers_of_different_capacity",
                "heterogeneous",
            );
            real::repeat(run, test, |rounds| {
                let mut found = Findings::default();
                judge(&mut found, rounds);
                found.tables.push(policy_table(rounds));
                found.charts.extend(charts(rounds));
                found
            })
        },
    }),
};

fn simulate(run: &Run<'_>) -> Findings {
    let (all, published, most) = both_loads(run, SERVICE_TIMES, USERS, (OFF, OFF_PUBLISHED));
    let mut found = Findings::default();
    judge(&mut found, &all);
    judge_reported(&mut found, &all);
    found.add_measured("published-rate", most);
    found.tables.push(policy_table(&all));
    found.tables.push(Table {
        name: "published-load",
        title: "With users who ask for 660 requests per second, of which 567 can be served".into(),
        ..policy_table(&published)
    });
    found.charts.extend(charts(&all));
    found.charts.extend(over_time(&all));
    found.notes.push(
        "LU's shares follow from the service times alone: servers that are equally busy get requests as 1/3 to 1/6 to 1/15, which is 58.8, 29.4 and \
         11.8 %. Those of LAS depend on the utilisation: with requests at random, N s is the same at all three if u s / (1 - u) is, which \
         at 465 requests per second gives 63, 28 and 9 %. For 68.5 % of 660 requests per second S1 would have to serve 452 per second, \
         of 3 ms each, which is 136 % of its time."
            .into(),
    );
    found
}

fn judge(found: &mut Findings, all: &[Vec<Seen>]) {
    let [rr, ran, lu, las] =
        [RR, RAN, LU, LAS].map(|policy| all.get(policy).map_or(&[][..], Vec::as_slice));
    for (server, ids) in [
        ("lu-share-1", "las-share-1"),
        ("lu-share-2", "las-share-2"),
        ("lu-share-3", "las-share-3"),
    ]
    .into_iter()
    .enumerate()
    {
        found.add_measured(
            ids.0,
            map_seeds(lu, |seen| seen.server_figure(server, SHARE)),
        );
        found.add_measured(
            ids.1,
            map_seeds(las, |seen| seen.server_figure(server, SHARE)),
        );
    }
    let slowest = |seen: &Seen| seen.server_figure(2, RESPONSE);
    found.add_measured(
        "las-slowest",
        map_seed_pairs(las, lu, |las, lu| slowest(las) / slowest(lu)),
    );
    let others = map_seed_pairs(rr, ran, |rr, ran| slowest(rr).min(slowest(ran)));
    let others: Vec<f64> = others
        .into_iter()
        .zip(lu)
        .map(|(other, lu)| other.min(slowest(lu)))
        .collect();
    let best = las
        .iter()
        .zip(others)
        .map(|(las, other)| slowest(las) / other);
    found.add_measured("las-best-slowest", best.collect());
    found.add_measured(
        "las-shifts",
        map_seed_pairs(las, lu, |las, lu| {
            las.server_figure(0, SHARE) - lu.server_figure(0, SHARE)
        }),
    );
    let fixed = map_seed_pairs(rr, ran, |rr, ran| rr.response.min(ran.response));
    let dynamic = map_seed_pairs(lu, las, |lu, las| lu.response.max(las.response));
    found.add_measured(
        "static-inferior",
        fixed
            .iter()
            .zip(dynamic)
            .map(|(fixed, dynamic)| fixed / dynamic)
            .collect(),
    );
    let first = |seen: &Seen| seen.server_figure(0, UTILIZATION);
    found.add_measured(
        "static-fastest",
        map_seed_pairs(rr, ran, |rr, ran| first(rr).max(first(ran))),
    );
    let slow = |seen: &Seen| {
        seen.server_figure(1, UTILIZATION)
            .min(seen.server_figure(2, UTILIZATION))
    };
    found.add_measured(
        "static-slow",
        map_seed_pairs(rr, ran, |rr, ran| slow(rr).min(slow(ran))),
    );
    found.add_measured("lu-even", map_seeds(lu, Seen::utilization_spread));
    found.add_measured(
        "las-less-even",
        map_seed_pairs(las, lu, |las, lu| {
            las.utilization_spread() - lu.utilization_spread()
        }),
    );
}

/// Notes what LAS does with the reported response time, as the paper has it.
fn judge_reported(found: &mut Findings, all: &[Vec<Seen>]) {
    let [lu, reported] =
        [LU, REPORTED].map(|policy| all.get(policy).map_or(&[][..], Vec::as_slice));
    let ids = ["reported-share-1", "reported-share-2", "reported-share-3"];
    for (server, id) in ids.into_iter().enumerate() {
        found.add_measured(
            id,
            map_seeds(reported, |seen| seen.server_figure(server, SHARE)),
        );
    }
    let slowest = |seen: &Seen| seen.server_figure(2, RESPONSE);
    found.add_measured(
        "reported-slowest",
        map_seed_pairs(reported, lu, |one, lu| slowest(one) / slowest(lu)),
    );
}

/// Returns a table of the figures of each policy.
pub(super) fn policy_table(all: &[Vec<Seen>]) -> Table {
    // Real runs do not count requests by time.
    let has_rate = all.iter().flatten().any(|seen| seen.rate.is_finite());
    let mut head = vec!["policy".to_owned()];
    if has_rate {
        head.push("requests per second".into());
    }
    head.push("mean response, ms".into());
    for what in ["share", "utilisation", "response"] {
        let unit = if what == "response" { "ms" } else { "%" };
        head.extend((1..=3).map(|server| format!("{what} S{server}, {unit}")));
    }
    let rows = POLICIES.iter().zip(all).map(|((policy, _), seen)| {
        let mut row = vec![Cell::from(*policy)];
        if has_rate {
            row.push(map_seeds(seen, |seen| seen.rate).as_slice().into());
        }
        row.push(map_seeds(seen, |seen| seen.response).as_slice().into());
        for figure in [SHARE, UTILIZATION, RESPONSE] {
            row.extend((0..3).map(|server| {
                Cell::from(map_seeds(seen, |seen| seen.server_figure(server, figure)).as_slice())
            }));
        }
        row
    });
    Table {
        name: "policies",
        title: "The four policies, and their servers".into(),
        head,
        rows: rows.collect(),
    }
}

/// Points with their 95 % intervals, at 0, 1 and so on.
fn line(name: String, values: impl Iterator<Item = Vec<f64>>) -> Line {
    let means: Vec<Mean> = values.map(|values| Mean::of_values(&values)).collect();
    let points = means.iter().enumerate();
    Line {
        name,
        points: points.map(|(at, mean)| (at as f64, mean.mean)).collect(),
        within: means
            .iter()
            .map(|mean| mean.within.unwrap_or(0.0))
            .collect(),
        ..Line::default()
    }
}

/// Names of the policies that were played.
fn policies(all: &[Vec<Seen>]) -> Vec<String> {
    POLICIES
        .iter()
        .take(all.len())
        .map(|(policy, _)| (*policy).to_owned())
        .collect()
}

/// Figures 5, 9 and 10, and the shares.
fn charts(all: &[Vec<Seen>]) -> Vec<Chart> {
    let by_policy = |name: &str, of: &dyn Fn(&Seen) -> f64| {
        line(name.into(), all.iter().map(|seen| map_seeds(seen, of)))
    };
    let mut response = vec![by_policy("all requests", &|seen| seen.response)];
    response.extend((0..3).map(|server| {
        by_policy(&format!("S{}", server + 1), &move |seen| {
            seen.server_figure(server, RESPONSE)
        })
    }));
    let mut shares = Vec::new();
    for (policy, published) in [
        (LU, Some([59.0, 30.0, 11.0])),
        (LAS, Some([68.5, 24.5, 7.0])),
        (REPORTED, None),
    ] {
        let Some(seen) = all.get(policy) else {
            continue;
        };
        let name = POLICIES.get(policy).map_or("", |(name, _)| name);
        let own = (0..3).map(|server| map_seeds(seen, |seen| seen.server_figure(server, SHARE)));
        shares.push(line(name.into(), own));
        if let Some(published) = published {
            let published = published.into_iter().map(|share| vec![share]);
            shares.push(Line {
                is_published: true,
                ..line(format!("{name}, published"), published)
            });
        }
    }
    let plot = |lines, across, up, scale, names| Plot {
        lines,
        across,
        up,
        scales: (Scale::Even, scale),
        most: None,
        marks: Vec::new(),
        names,
    };
    vec![
        Chart {
            name: "response",
            title: "Mean response times (figures 5, 9 and 10)".into(),
            plot: plot(response, "policy", "ms", Scale::Powers, policies(all)),
        },
        Chart {
            name: "shares",
            title: "Shares of the requests (section 5.1)".into(),
            plot: plot(
                shares,
                "server",
                "%",
                Scale::FromZero,
                ["S1", "S2", "S3"].map(String::from).to_vec(),
            ),
        },
    ]
}

/// Figures 6 to 8, of the first seed.
fn over_time(all: &[Vec<Seen>]) -> Vec<Chart> {
    let figures = [
        ("utilization-rr", RR, "Utilisation under RR (figure 6)"),
        ("utilization-ran", RAN, "Utilisation under RAN (figure 6)"),
        ("utilization-lu", LU, "Utilisation under LU (figure 7)"),
        ("utilization-las", LAS, "Utilisation under LAS (figure 8)"),
    ];
    let chart = |(name, policy, title): (&'static str, usize, &str)| {
        let first = all.get(policy)?.first()?;
        let lines = first
            .over_time
            .iter()
            .enumerate()
            .map(|(server, values)| Line {
                name: format!("S{}", server + 1),
                points: values
                    .iter()
                    .enumerate()
                    .map(|(window, value)| (((window + 1) as u64 * WINDOW) as f64, *value))
                    .collect(),
                ..Line::default()
            });
        let plot = Plot {
            most: Some(100.0),
            ..Plot::over_time("% busy", lines.collect())
        };
        Some(Chart {
            name,
            title: title.into(),
            plot,
        })
    };
    figures.into_iter().filter_map(chart).collect()
}
