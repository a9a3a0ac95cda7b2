//! The page of results.

use std::fmt::Write as _;

use evenkeel_sim::inference::Router;
use serde_json::{Value, json};

use crate::{Figures, Options, Row};

/// Figures that are compared: title, the figure, and the number of decimals.
type Compared = (&'static str, fn(&Figures) -> f64);

/// Results as a page in Markdown.
pub(crate) fn format_page(rows: &[Row], options: &Options) -> String {
    let mut text = String::from("# Routers for engines of language models, in virtual time\n\n");
    let _ = writeln!(
        text,
        "`make bench-inference` has written this page: {} seeds from {}. Lower is better, except for hit rates. \
         Figures in brackets are ratios to the best of the other routers.\n",
        options.seeds, options.first_seed
    );
    text += include_str!("about.md");
    if rows.iter().any(|row| row.router == Router::Evenkeel) {
        text += &format_summary(rows);
    }
    let figures: [Compared; 4] = [
        ("Mean time to the end, in seconds", |of| of.end_mean),
        (
            "Time to the first token, 90th percentile, in seconds",
            |of| of.first_token_p90,
        ),
        ("Time to the first token, mean, in seconds", |of| {
            of.first_token_mean
        }),
        (
            "Time between tokens, 90th percentile, in milliseconds",
            |of| of.token_gap_p90 * 1e3,
        ),
    ];
    for (title, figure) in figures {
        let _ = writeln!(text, "\n## {title}\n");
        text += &format_table(rows, figure, true);
    }
    text += "\n## Share of the tokens of prompts that engines remembered\n\n";
    text += &format_table(rows, |of| of.hit_share, false);
    text
}

/// Ratios to the best of the other routers in each world, and to the routers whose first tokens count.
fn format_summary(rows: &[Row]) -> String {
    let mut text = String::from(
        "\n## Beside the best of the other routers\n\nMean time to the end, as a ratio to the best of the other routers in \
         this world: of the means of all seeds, and the lowest and the highest of a seed. 1 is asked, and 0.9 with a slow \
         engine.\n\n| world | best of the others | ratio | seeds | asked | reached |\n|---|---|---|---|---|---|\n",
    );
    let mut ratios = Vec::new();
    for world in worlds(rows) {
        let others = rows.iter();
        let others = others.filter(|row| row.world == world && !row.router.is_balancer());
        let best = others.min_by(|one, other| mean_end(one).total_cmp(&mean_end(other)));
        let (Some(own), Some(best)) = (find(rows, world, Router::Evenkeel), best) else {
            continue;
        };
        let ratio = mean_end(own) / mean_end(best);
        let pairs = own.runs.iter().zip(&best.runs);
        let of_seeds = pairs.map(|(own, best)| own.end_mean / best.end_mean);
        let (low, high) = of_seeds.fold((f64::MAX, 0.0), |(low, high): (f64, f64), ratio| {
            (low.min(ratio), high.max(ratio))
        });
        let asked = if world.ends_with("one slow") {
            0.9
        } else {
            1.0
        };
        let is_reached = if ratio <= asked { "yes" } else { "no" };
        let _ = writeln!(
            text,
            "| {world} | {} | {ratio:.3} | {low:.2} to {high:.2} | {asked:.1} | {is_reached} |",
            best.router.name()
        );
        ratios.push((ratio, world));
    }
    if let Some((mean, worst, world)) = summarize_ratios(&ratios) {
        let _ = writeln!(
            text,
            "\nGeometric mean of all worlds: {mean:.3}. Worst: {worst:.3} ({world})."
        );
    }
    text += "\nTime to the first token, 90th percentile, as a ratio to two of the routers. A geometric mean of 0.8 and at most \
             1.15 in a world are asked.\n\n| router | geometric mean | worst | in the world | reached |\n|---|---|---|---|---|\n";
    for router in [Router::LMetric, Router::LlmD] {
        let of_world = |world| {
            let own = find(rows, world, Router::Evenkeel)?;
            let other = find(rows, world, router)?;
            let p90 = |of: &Row| of.mean(|of| of.first_token_p90);
            Some((p90(own) / p90(other), world))
        };
        let ratios: Vec<_> = worlds(rows).into_iter().filter_map(of_world).collect();
        if let Some((mean, worst, world)) = summarize_ratios(&ratios) {
            let is_reached = match mean <= 0.8 && worst <= 1.15 {
                true => "yes",
                false => "no",
            };
            let name = router.name();
            let _ = writeln!(
                text,
                "| {name} | {mean:.2} | {worst:.2} | {world} | {is_reached} |"
            );
        }
    }
    text += &format_metrics(rows);
    text
}

/// Ratios to the balancer with the metrics of engines.
fn format_metrics(rows: &[Row]) -> String {
    let of_world = |world| {
        let own = find(rows, world, Router::Evenkeel)?;
        let other = find(rows, world, Router::EvenkeelMetrics)?;
        let first = |of: &Row| of.mean(|of| of.first_token_p90);
        Some((
            world,
            mean_end(own) / mean_end(other),
            first(own) / first(other),
        ))
    };
    let ratios: Vec<_> = worlds(rows).into_iter().filter_map(of_world).collect();
    if ratios.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n## Without metrics of engines\n\nThe strategy needs no metrics. `evenkeel-metrics` reads them once a second: requests \
         that wait, and all requests of an engine. Times without them, as ratios to times with them; 1.05 is asked.\n\n\
         | world | mean time to the end | first token, 90th percentile |\n|---|---|---|\n",
    );
    for (world, end, first) in &ratios {
        let _ = writeln!(text, "| {world} | {end:.3} | {first:.3} |");
    }
    for (what, is_end) in [("Mean time to the end", true), ("First token", false)] {
        let of_kind = ratios
            .iter()
            .map(|of| (if is_end { of.1 } else { of.2 }, of.0));
        if let Some((mean, worst, world)) = summarize_ratios(&of_kind.collect::<Vec<_>>()) {
            let is_reached = if worst <= 1.05 {
                "reached"
            } else {
                "not reached"
            };
            let _ = writeln!(
                text,
                "\n{what}: geometric mean {mean:.3}, worst {worst:.3} ({world}): {is_reached}."
            );
        }
    }
    text
}

/// Geometric mean of ratios, the highest ratio, and the world of the highest one.
fn summarize_ratios<'r>(ratios: &[(f64, &'r str)]) -> Option<(f64, f64, &'r str)> {
    let logs: f64 = ratios.iter().map(|(ratio, _)| libm::log(*ratio)).sum();
    let worst = ratios
        .iter()
        .max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some((libm::exp(logs / ratios.len() as f64), worst.0, worst.1))
}

fn mean_end(row: &Row) -> f64 {
    row.mean(|figures| figures.end_mean)
}

fn worlds(rows: &[Row]) -> Vec<&str> {
    let mut worlds: Vec<&str> = rows.iter().map(|row| row.world.as_str()).collect();
    worlds.dedup();
    worlds
}

fn find<'r>(rows: &'r [Row], world: &str, router: Router) -> Option<&'r Row> {
    let mut rows = rows.iter();
    rows.find(|row| row.world == world && row.router == router)
}

fn format_table(rows: &[Row], figure: fn(&Figures) -> f64, has_ratio: bool) -> String {
    let mut routers: Vec<Router> = Vec::new();
    for row in rows {
        if !routers.contains(&row.router) {
            routers.push(row.router);
        }
    }
    let mut text = String::from("| world |");
    for router in &routers {
        let _ = write!(text, " {} |", router.name());
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(routers.len()));
    for world in worlds(rows) {
        let _ = write!(text, "| {world} |");
        let of = |router: &Router| find(rows, world, *router).map(|row| row.mean(figure));
        let others = routers.iter().filter(|of| !of.is_balancer());
        let best = others.filter_map(of).fold(f64::MAX, f64::min);
        for router in &routers {
            let value = of(router).unwrap_or(f64::NAN);
            let number = match value {
                _ if value < 10.0 => format!("{value:.3}"),
                _ => format!("{value:.1}"),
            };
            let _ = match has_ratio && *router == Router::Evenkeel && best < f64::MAX {
                true => write!(text, " **{number}** ({:.2}) |", value / best),
                false => write!(text, " {number} |"),
            };
        }
        text.push('\n');
    }
    text
}

/// Results as JSON, with each run: a line for each world and router.
pub(crate) fn format_json(rows: &[Row], options: &Options) -> String {
    let rows = rows.iter().map(|row| {
        let runs = row.runs.iter().map(|run| {
            let rounded = |value: f64| (value * 1e6).round() / 1e6;
            json!({
                "first_token_mean": rounded(run.first_token_mean),
                "first_token_p90": rounded(run.first_token_p90),
                "token_gap_p90": rounded(run.token_gap_p90),
                "end_mean": rounded(run.end_mean),
                "end_p90": rounded(run.end_p90),
                "hit_share": rounded(run.hit_share),
            })
        });
        let runs: Vec<Value> = runs.collect();
        json!({ "world": row.world, "router": row.router.name(), "runs": runs })
    });
    let lines: Vec<String> = rows.map(|row| row.to_string()).collect();
    format!(
        "{{\"first_seed\": {}, \"seeds\": {}, \"rows\": [\n{}\n]}}\n",
        options.first_seed,
        options.seeds,
        lines.join(",\n")
    )
}

/// Rows of an earlier `results.json`, with the same seeds.
pub(crate) fn read_rows(text: &str, options: &Options) -> Result<Vec<Row>, String> {
    let all: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let number = |key: &str| all.get(key).and_then(Value::as_u64);
    if (number("first_seed"), number("seeds")) != (Some(options.first_seed), Some(options.seeds)) {
        return Err("the results are of other seeds".into());
    }
    let rows = all.get("rows").and_then(Value::as_array);
    let rows = rows.into_iter().flatten().map(|row| {
        let text = |key: &str| row.get(key).and_then(Value::as_str);
        let mut routers = Router::ALL.iter();
        let router = routers.find(|(name, _)| text("router") == Some(name))?.1;
        let runs = row.get("runs").and_then(Value::as_array)?;
        let runs = runs.iter().map(|run| {
            let figure = |key: &str| run.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
            Figures {
                first_token_mean: figure("first_token_mean"),
                first_token_p90: figure("first_token_p90"),
                token_gap_p90: figure("token_gap_p90"),
                end_mean: figure("end_mean"),
                end_p90: figure("end_p90"),
                hit_share: figure("hit_share"),
            }
        });
        Some(Row {
            world: text("world")?.to_owned(),
            router,
            runs: runs.collect(),
        })
    });
    let rows: Option<Vec<Row>> = rows.collect();
    rows.ok_or_else(|| "a row has no world, router or runs".into())
}
