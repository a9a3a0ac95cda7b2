//! Results for programs.

use serde_json::{Value, json};

use super::plan::Plan;
use super::statistics::{FIGURES, Mean};
use super::{Course, Results};

/// Exports a line for each run: the values of the swept keys, the seed, and all figures.
pub fn to_csv(plan: &Plan, results: &[Results]) -> String {
    let mut head: Vec<String> = plan.keys.iter().map(|key| quoted(key)).collect();
    head.extend(["strategy".to_owned(), "seed".to_owned()]);
    head.extend(FIGURES.iter().map(|figure| figure.name.to_owned()));
    let mut text = head.join(",") + "\n";
    for (point, results) in plan.points.iter().zip(results) {
        for run in &results.runs {
            let mut row: Vec<String> = point.values.iter().map(|value| quoted(value)).collect();
            row.extend([point.strategy.clone(), run.seed.to_string()]);
            let cell = |value: &f64| match value.is_nan() {
                true => String::new(),
                false => value.to_string(),
            };
            row.extend(run.figures.iter().map(cell));
            text += &(row.join(",") + "\n");
        }
    }
    text
}

/// A cell, in quotes where it needs them (RFC 4180).
fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

/// Exports the plan and all results as JSON.
pub fn to_json(plan: &Plan, results: &[Results]) -> String {
    let points = plan.points.iter().zip(results);
    let points: Vec<Value> = points
        .map(|(point, results)| {
            let swept = plan.keys.iter().zip(&point.values);
            let swept: serde_json::Map<String, Value> = swept
                .map(|(key, value)| (key.clone(), json!(value)))
                .collect();
            let named = |values: Vec<Value>| -> serde_json::Map<String, Value> {
                let names = FIGURES.iter().map(|figure| figure.name.to_owned());
                names.zip(values).collect()
            };
            let means = Mean::of_runs(&results.runs).into_iter();
            let means = means.map(|of| json!({ "mean": of.mean, "within": of.within }));
            let runs = results.runs.iter().map(|run| {
                let figures = run.figures.iter().map(|&value| json!(value)).collect();
                json!({ "seed": run.seed, "figures": named(figures) })
            });
            json!({
                "values": swept,
                "group": point.group,
                "strategy": point.strategy,
                "members": point.members,
                "offered_per_second": point.offered,
                "capacity_per_second": point.capacity,
                "figures": named(means.collect()),
                "runs": runs.collect::<Vec<_>>(),
                "first_run": course(&results.first),
            })
        })
        .collect();
    let warnings: Vec<String> = plan.warnings.iter().map(ToString::to_string).collect();
    let all = json!({ "scenario": plan.file, "warnings": warnings, "points": points });
    format!("{all:#}\n")
}

fn course(course: &Course) -> Value {
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let samples = course.samples.iter().map(|sample| {
        let each = |value: fn(&crate::MemberSample) -> Value| {
            sample.members.iter().map(value).collect::<Vec<_>>()
        };
        json!({
            "at_s": sample.at.as_secs_f64(),
            "waiting": sample.waiting,
            "answered": sample.answered,
            "failed_so_far": sample.failed,
            "p50_ms": millis(sample.p50),
            "p99_ms": millis(sample.p99),
            "busy": each(|member| json!(member.busy)),
            "in_flight": each(|member| json!(member.in_flight)),
            "answered_so_far": each(|member| json!(member.answered)),
        })
    });
    let quantiles = course.quantiles.iter();
    let quantiles = quantiles.map(|(share, time)| json!([share, millis(*time)]));
    let events = course.events.iter();
    let events = events.map(|(at, balancer, what)| {
        json!({ "at_s": at.as_secs_f64(), "balancer": balancer + 1, "what": what })
    });
    json!({
        "shares": course.shares,
        "quantiles_ms": quantiles.collect::<Vec<_>>(),
        "samples": samples.collect::<Vec<_>>(),
        "events": events.collect::<Vec<_>>(),
    })
}
