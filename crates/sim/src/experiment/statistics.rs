//! Figures of a run, and what several runs say of each.

use evenkeel_control::event::Event;

use super::plan::Point;
use crate::requests::{Outcomes, TokenOutcomes, WARM_UP};

/// Share of a run that is measured.
pub(super) const MEASURED: f64 = 1.0 - WARM_UP;

/// Result of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Seed of the run.
    pub seed: u64,
    /// Figures of the run, in the order of [`FIGURES`].
    pub figures: Vec<f64>,
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Things per second.
    Rate,
    /// A time in milliseconds.
    Millis,
    /// A share, 0 to 1.
    Share,
    /// Times as much.
    Times,
}

impl Unit {
    /// Label of an axis.
    pub(super) fn axis(self) -> &'static str {
        match self {
            Unit::Count => "number",
            Unit::Rate => "per second",
            Unit::Millis => "milliseconds",
            Unit::Share => "share",
            Unit::Times => "times",
        }
    }

    /// A value in it.
    pub fn format_value(self, value: f64) -> String {
        match self {
            Unit::Count => format!("{value:.0}"),
            Unit::Rate => format!("{value:.1}/s"),
            Unit::Share => format!("{:.2} %", value * 100.0),
            Unit::Times => format!("{value:.2}"),
            Unit::Millis => match value {
                _ if value >= 10_000.0 => format!("{:.1} s", value / 1000.0),
                _ if value >= 100.0 => format!("{value:.0} ms"),
                _ if value >= 1.0 => format!("{value:.1} ms"),
                _ => format!("{value:.3} ms"),
            },
        }
    }
}

/// A figure that every run has.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Name in files.
    pub name: &'static str,
    /// Title in tables.
    pub title: &'static str,
    /// Unit of the values.
    pub unit: Unit,
}

const fn figure(name: &'static str, title: &'static str, unit: Unit) -> Figure {
    Figure { name, title, unit }
}

/// All figures, in their order.
pub const FIGURES: [Figure; 25] = [
    figure("requests", "requests", Unit::Count),
    figure("answered_per_second", "answered", Unit::Rate),
    figure("failed_share", "failed", Unit::Share),
    figure("mean_ms", "mean", Unit::Millis),
    figure("p50_ms", "p50", Unit::Millis),
    figure("p90_ms", "p90", Unit::Millis),
    figure("p99_ms", "p99", Unit::Millis),
    figure("p999_ms", "p99.9", Unit::Millis),
    figure("utilisation", "busy", Unit::Share),
    figure("unevenness", "uneven", Unit::Share),
    figure("queued", "queued", Unit::Count),
    figure("timed_out", "timed out", Unit::Count),
    figure("retries", "retries", Unit::Count),
    figure("ejections", "ejections", Unit::Count),
    figure("alerts", "alerts", Unit::Count),
    figure("members_found_down", "down", Unit::Count),
    figure("p99_to_ideal", "p99/ideal", Unit::Times),
    figure("first_token_mean_ms", "first token", Unit::Millis),
    figure("first_token_p50_ms", "its p50", Unit::Millis),
    figure("first_token_p90_ms", "its p90", Unit::Millis),
    figure("others_first_token_p90_ms", "others' p90", Unit::Millis),
    figure("token_gap_p50_ms", "between tokens p50", Unit::Millis),
    figure("token_gap_p90_ms", "its p90", Unit::Millis),
    figure("hit_share", "hit rate", Unit::Share),
    figure("preemptions", "preempted", Unit::Count),
];

/// The figures of a run, in the order of [`FIGURES`]. A figure that is not known is not a number (NaN).
pub(super) fn figures(played: &Outcomes, point: &Point) -> Vec<f64> {
    let length = point.world.length.unwrap_or_default().as_secs_f64();
    let millis = |share: f64| played.quantile(share).as_secs_f64() * 1e3;
    // Of the time that is measured.
    let first = (played.samples.len() as f64 * (1.0 - MEASURED)) as usize;
    let samples = played.samples.get(first..).unwrap_or_default();
    let busy = samples.iter().flat_map(|sample| &sample.members);
    let count = busy.clone().count().max(1) as f64;
    let busy = busy.map(|member| member.busy).sum::<f64>() / count;
    let spread = samples.iter().map(|sample| {
        let all = sample.members.iter().map(|member| member.busy);
        all.clone().fold(0.0, f64::max) - all.fold(1.0, f64::min)
    });
    let uneven = spread.sum::<f64>() / samples.len().max(1) as f64;
    let events = |wanted: fn(&Event) -> bool| {
        let all = played.events.iter();
        all.filter(|(_, _, event)| wanted(event)).count() as f64
    };
    let down = played
        .health
        .iter()
        .filter(|(_, _, _, change)| matches!(change, evenkeel_control::health::Change::Down));
    let mut figures = vec![
        played.requests as f64,
        played.latencies.len() as f64 / (length * MEASURED).max(1e-9),
        played.failed_share(),
        played.mean().as_secs_f64() * 1e3,
        millis(0.5),
        millis(0.9),
        millis(0.99),
        millis(0.999),
        busy,
        uneven.max(0.0),
        played.queued as f64,
        played.timed_out as f64,
        played.retries as f64,
        events(|event| matches!(event, Event::Ejected { .. })),
        events(|event| matches!(event, Event::AlertRaised { .. })),
        down.count() as f64,
        f64::NAN,
    ];
    figures.extend(token_figures(played));
    figures
}

/// Figures of tokens, in the order of [`FIGURES`]; not a number if the members are no engines.
fn token_figures(played: &Outcomes) -> [f64; 8] {
    let Some(tokens) = &played.tokens else {
        return [f64::NAN; 8];
    };
    let (first, gaps) = (&tokens.first_tokens, &tokens.token_gaps);
    let millis = |times: &[u64], q: f64| TokenOutcomes::quantile_seconds(times, q) * 1e3;
    [
        TokenOutcomes::mean_seconds(first) * 1e3,
        millis(first, 0.5),
        millis(first, 0.9),
        millis(&tokens.others_first_tokens, 0.9),
        millis(gaps, 0.5),
        millis(gaps, 0.9),
        tokens.hit_share(),
        tokens.preemptions as f64,
    ]
}

/// Mean of a figure over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// Mean of the runs.
    pub mean: f64,
    /// Half the width of the mean's confidence interval at 95 % (Student's t). `None` with one run.
    pub within: Option<f64>,
}

/// 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Mean {
    /// Mean of these values.
    pub fn of_values(values: &[f64]) -> Self {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values
            .iter()
            .map(|value| (value - mean) * (value - mean))
            .sum();
        let freedom = values.len().saturating_sub(1);
        let within = (freedom > 0).then(|| {
            // From 31 on, the value for 30 is used, which is slightly too wide.
            let t = T[freedom.min(T.len()) - 1];
            t * (squares / freedom as f64 / count).sqrt()
        });
        Mean { mean, within }
    }

    /// Mean of each figure.
    pub fn of_runs(runs: &[Run]) -> Vec<Mean> {
        let of = |index: usize| {
            let values = runs.iter().filter_map(|run| run.figures.get(index));
            Mean::of_values(&values.copied().collect::<Vec<_>>())
        };
        (0..FIGURES.len()).map(of).collect()
    }

    /// In words: `12.3 ms ± 0.4 ms`.
    pub fn format_with(&self, unit: Unit) -> String {
        match self.within {
            Some(within) => format!(
                "{} ± {}",
                unit.format_value(self.mean),
                unit.format_value(within)
            ),
            None => unit.format_value(self.mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        let three = Mean::of_values(&[1.0, 2.0, 3.0]);
        assert_eq!(three.mean, 2.0);
        // 4.303 * 1 / sqrt(3)
        assert!((three.within.unwrap() - 2.4843).abs() < 1e-3);
        assert_eq!(Mean::of_values(&[5.0]).within, None);
        assert_eq!(three.format_with(Unit::Millis), "2.0 ms ± 2.5 ms");
    }
}
