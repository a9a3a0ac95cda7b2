//! Rates of members: of files of a measurement, and their means.

use evenkeel_sim::svg::Line;

use crate::csv::cell_number;

pub(super) fn mean_of(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The mean of the points in between.
pub(super) fn mean_between(line: &Line, is_there: impl Fn(f64) -> bool) -> f64 {
    let there = line.points.iter().filter(|(at, _)| is_there(*at));
    mean_of(&there.map(|(_, rate)| *rate).collect::<Vec<f64>>())
}

/// Rates of each member, of a file of the measurement: `seconds,member,requests_per_s`.
pub(super) fn read_rates(rows: &[Vec<String>]) -> Vec<Line> {
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
