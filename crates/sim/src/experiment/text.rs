//! Results as tables of a terminal.

use super::plan::Plan;
use super::statistics::{FIGURES, Mean};
use super::{Results, Unit};

/// Figures of which a table has a column in any case.
const ALWAYS: [&str; 10] = [
    "requests",
    "answered_per_second",
    "failed_share",
    "mean_ms",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "utilisation",
    "unevenness",
    "p90_ms",
];

/// All results, as text.
pub fn format_tables(plan: &Plan, results: &[Results]) -> String {
    let mut text = String::new();
    for warning in &plan.warnings {
        text += &format!("warning: {warning}\n");
    }
    if let Some(point) = plan.points.first() {
        let length = point.world.length.unwrap_or_default();
        let seeds = match plan.seeds {
            1 => format!("seed {}", plan.seed),
            more => format!("{more} seeds from {}", plan.seed),
        };
        text += &format!(
            "{}: group {}, {} members, {:?}, {seeds}\n\n",
            plan.file,
            point.group,
            point.members.len(),
            length
        );
    }
    let means: Vec<Vec<Mean>> = results.iter().map(|of| Mean::of_runs(&of.runs)).collect();
    let is_shown = |index: &usize| {
        let name = FIGURES[*index].name;
        ALWAYS.contains(&name) || means.iter().any(|means| means[*index].mean > 0.0)
    };
    let shown: Vec<usize> = (0..FIGURES.len()).filter(is_shown).collect();
    let mut head = plan.keys.clone();
    let strategy = !plan.sweeps_strategy();
    if strategy {
        head.push("strategy".into());
    }
    head.extend(shown.iter().map(|&index| FIGURES[index].title.to_owned()));
    let mut rows = vec![head];
    for (point, means) in plan.points.iter().zip(&means) {
        let mut row = point.values.clone();
        if strategy {
            row.push(point.strategy.clone());
        }
        let cells = shown
            .iter()
            .map(|&index| means[index].format_with(FIGURES[index].unit));
        row.extend(cells);
        rows.push(row);
    }
    text += &aligned(&rows, plan.keys.len() + usize::from(strategy));
    let worlds = plan.points.iter().filter(|point| !point.is_ideal).count();
    if let (1, [point, ..], [results, ..]) = (worlds, &plan.points[..], results) {
        text += "\n";
        text += &members(&point.members, results);
        let events = &results.first.events;
        if !events.is_empty() {
            text += "\n";
            for (at, balancer, what) in events.iter().take(20) {
                let at = at.as_secs_f64();
                text += &format!("{at:9.1} s  balancer {}  {what}\n", balancer + 1);
            }
            if events.len() > 20 {
                let more = events.len() - 20;
                text += &format!("and {more} more events: see --html or --json\n");
            }
        }
    }
    text
}

/// Table of the members' load in the first run.
fn members(names: &[String], results: &Results) -> String {
    let course = &results.first;
    let head = ["member", "share", "busy", "at once", "most at once"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let count = course.samples.len().max(1) as f64;
    for (index, name) in names.iter().enumerate().take(50) {
        let of = course.samples.iter().filter_map(|at| at.members.get(index));
        let busy = of.clone().map(|member| member.busy).sum::<f64>() / count;
        let in_flight = of
            .clone()
            .map(|member| f64::from(member.in_flight))
            .sum::<f64>()
            / count;
        let most = of.map(|member| member.in_flight).max().unwrap_or(0);
        let share = course.shares.get(index).copied().unwrap_or(0.0);
        rows.push(vec![
            name.clone(),
            Unit::Share.format_value(share),
            Unit::Share.format_value(busy),
            format!("{in_flight:.1}"),
            most.to_string(),
        ]);
    }
    let more = match names.len() {
        0..=50 => String::new(),
        all => format!("and {} more members: see --json\n", all - 50),
    };
    aligned(&rows, 1) + &more
}

/// Rows in columns, of which the first `left` begin at the left.
fn aligned(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column < left {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}
