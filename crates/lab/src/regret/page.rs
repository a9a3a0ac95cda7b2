//! A page with plots: regret of each strategy over the worlds, sorted.

use evenkeel_sim::svg::{Line, Plot, escaped};

use super::summary::{Regret, Summary};

/// The regret above which plots are cut off.
const MOST: f64 = 3.0;

/// Points of each line.
const POINTS: usize = 200;

/// HTML of the page: two plots, and the tables of [`Summary::text`].
pub fn to_html(summary: &Summary, tables: &str, origin: &str) -> String {
    let mean = plot(summary, "regret of the mean", |regret| regret.mean);
    let p99 = plot(summary, "regret of the 99th percentile", |regret| {
        regret.p99
    });
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Regret</title>\n\
         <style>body{{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em}}\
         pre{{overflow-x:auto}}</style>\n<h1>Regret in random worlds</h1>\n<p>{}</p>\n\
         <h2>Mean latency</h2>\n{}\n<h2>99th percentile</h2>\n{}\n<h2>Figures</h2>\n<pre>{}</pre>\n</html>\n",
        escaped(origin),
        mean.svg(),
        p99.svg(),
        escaped(tables),
    )
}

/// Plots a line for each strategy: its regret at each share of the worlds.
pub fn plot(summary: &Summary, up: &'static str, figure: fn(&Regret) -> f64) -> Plot {
    let line = |name: &str| {
        let regrets = summary
            .regrets
            .get(name)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut values: Vec<f64> = regrets.iter().map(|(_, regret)| figure(regret)).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1) as f64;
        let point = |index: usize| {
            let share = index as f64 / POINTS as f64;
            let value = values.get((share * last).round() as usize).copied();
            (100.0 * share, value.unwrap_or(1.0).min(MOST) - 1.0)
        };
        Line::new(name, (0..=POINTS).map(point).collect())
    };
    Plot {
        most: Some(MOST - 1.0),
        ..Plot::from_zero(
            "worlds with less (%)",
            up,
            summary.strategies().into_iter().map(line).collect(),
        )
    }
}
