//! Two runs side by side: ratios, and whether these runs can show that they differ.

use std::fmt::Write;

use crate::report::{Record, Row};

/// A run as far as it is compared.
#[derive(Clone, Debug)]
pub struct Run {
    /// URL that the run was sent to, or what else is known of the run.
    pub what: String,
    /// Seconds of the run.
    pub rows: Vec<Row>,
    /// True if errors and refusals were counted.
    pub has_errors: bool,
    /// True if latencies from when requests were sent were counted.
    pub has_sends: bool,
    /// `open` or `closed`, and the planned rate per second, if that is known.
    pub planned: Option<(String, Option<f64>)>,
    /// Warnings: reasons to doubt the run's figures.
    pub warnings: Vec<String>,
}

impl From<Record> for Run {
    fn from(record: Record) -> Self {
        Run {
            what: record.url,
            rows: record.per_second,
            has_errors: true,
            has_sends: true,
            planned: Some((record.loop_kind, record.planned_rate)),
            warnings: record.warnings,
        }
    }
}

/// Comparison of two runs in one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the figure that is compared.
    pub what: &'static str,
    /// The first run's mean over its seconds.
    pub a: f64,
    /// The second run's mean over its seconds.
    pub b: f64,
    /// The geometric mean of b's seconds through that of a's, and the bounds within which it is with
    /// 99 %; `None` with fewer than three seconds of either run, or with zeros.
    pub ratio: Option<(f64, f64, f64)>,
}

impl Line {
    /// Returns true if the runs show a difference.
    pub fn differs(&self) -> bool {
        self.ratio
            .is_some_and(|(_, low, high)| low > 1.0 || high < 1.0)
    }
}

/// Mean and standard error of values of seconds, which are not independent of each other: what one
/// second says of the next is taken into account.
fn mean(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len() as f64;
    if values.len() < 3 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count;
    let from_mean: Vec<f64> = values.iter().map(|value| value - mean).collect();
    let squares: f64 = from_mean.iter().map(|d| d * d).sum();
    let pairs = from_mean.iter().zip(from_mean.iter().skip(1));
    let products: f64 = pairs.map(|(a, b)| a * b).sum();
    // The first autocorrelation, as far as it makes the error larger.
    let memory = match squares > 0.0 {
        true => (products / squares).clamp(0.0, 0.9),
        false => 0.0,
    };
    let variance = squares / (count - 1.0) / count * (1.0 + memory) / (1.0 - memory);
    Some((mean, variance.sqrt()))
}

/// The 99.5 % point of Student's distribution: with several lines, one in twenty would often be
/// wrong about one of them.
fn student(degrees: usize) -> f64 {
    const FEW: [f64; 10] = [
        63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
    ];
    match FEW.get(degrees.saturating_sub(1)) {
        Some(point) => *point,
        // Within 1 % of it.
        None => 2.576 + 5.5 / degrees as f64,
    }
}

fn line(what: &'static str, a: &[Row], b: &[Row], value: impl Fn(&Row) -> Option<f64>) -> Line {
    let of = |rows: &[Row]| -> Vec<f64> { rows.iter().filter_map(&value).collect() };
    let (a, b) = (of(a), of(b));
    let plain = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    // In logarithms, in which latencies are less skewed, and a ratio is symmetric.
    let logarithms = |values: &[f64]| -> Option<Vec<f64>> {
        let each = values
            .iter()
            .map(|&value| (value > 0.0).then(|| value.ln()));
        each.collect()
    };
    let means =
        (logarithms(&a).as_deref().and_then(mean)).zip(logarithms(&b).as_deref().and_then(mean));
    let ratio = means.map(|((mean_a, error_a), (mean_b, error_b))| {
        let reach = student(a.len().min(b.len()) - 1) * error_a.hypot(error_b);
        let ratio = mean_b - mean_a;
        (ratio.exp(), (ratio - reach).exp(), (ratio + reach).exp())
    });
    Line {
        what,
        a: plain(&a),
        b: plain(&b),
        ratio,
    }
}

/// Seconds that are whole: a last part of one is left out.
fn whole(run: &Run) -> Vec<Row> {
    let rows = run.rows.iter();
    rows.filter(|row| row.length > 0.9).copied().collect()
}

/// Compares two runs in what both have.
pub fn compare_runs(a: &Run, b: &Run) -> Vec<Line> {
    let has_errors = a.has_errors && b.has_errors;
    let has_sends = a.has_sends && b.has_sends;
    let (a, b) = (whole(a), whole(b));
    let good = |row: &Row| row.answered > row.refusals;
    let time = |value: fn(&Row) -> f64| move |row: &Row| good(row).then(|| value(row));
    let mut lines = vec![line("good answers per s", &a, &b, |row| {
        Some(row.answered.saturating_sub(row.refusals) as f64 / row.length)
    })];
    if has_errors {
        lines.push(line("errors per second", &a, &b, |row| {
            Some((row.errors + row.refusals) as f64 / row.length)
        }));
    }
    lines.extend([
        line("p50 from due, us", &a, &b, time(|row| row.p50_us)),
        line("p90 from due, us", &a, &b, time(|row| row.p90_us)),
        line("p99 from due, us", &a, &b, time(|row| row.p99_us)),
    ]);
    if has_sends {
        lines.extend([
            line("p50 from send, us", &a, &b, time(|row| row.sent_p50_us)),
            line("p99 from send, us", &a, &b, time(|row| row.sent_p99_us)),
        ]);
    }
    lines
}

/// Returns the comparison in words.
pub fn text(names: [&str; 2], a: &Run, b: &Run) -> String {
    let mut text = format!("A: {}, {}\nB: {}, {}\n", names[0], a.what, names[1], b.what);
    let _ = writeln!(
        text,
        "{:<20}{:>13}{:>13}   {:<24}",
        "mean of seconds", "A", "B", "B / A (with 99 %)"
    );
    for line in compare_runs(a, b) {
        let _ = write!(text, "{:<20}{:13.1}{:13.1}   ", line.what, line.a, line.b);
        let _ = match line.ratio {
            None if line.a == line.b => writeln!(text, "the same"),
            None => writeln!(text, "no ratio: fewer than three whole seconds, or zeros"),
            Some((ratio, low, high)) => {
                let verdict = match line.differs() {
                    true if ratio > 1.0 => "B is higher",
                    true => "B is lower",
                    false => "no difference that this run can show",
                };
                writeln!(text, "{ratio:.3} ({low:.3} to {high:.3}): {verdict}")
            }
        };
    }
    for (name, run) in [("A", a), ("B", b)] {
        for warning in &run.warnings {
            let _ = writeln!(text, "warning about {name}: {warning}");
        }
    }
    let planned = a.planned.as_ref().zip(b.planned.as_ref());
    if planned.is_some_and(|(a, b)| a != b) {
        text.push_str("warning: the two runs did not have the same loop and rate\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rates: &[f64]) -> Vec<Row> {
        let row = |(second, rate): (usize, &f64)| Row {
            second: second as f64,
            length: 1.0,
            begun: *rate as u64,
            answered: *rate as u64,
            refusals: 0,
            errors: 0,
            bytes: 0,
            in_flight: 0,
            p50_us: 1e6 / rate,
            p90_us: 2e6 / rate,
            p99_us: 3e6 / rate,
            max_us: 4e6 / rate,
            sent_p50_us: 1e6 / rate,
            sent_p99_us: 3e6 / rate,
            own_p99_us: 1.0,
        };
        rates.iter().enumerate().map(row).collect()
    }

    fn rate_line(a: &[f64], b: &[f64]) -> Line {
        line("rate", &rows(a), &rows(b), |row| {
            Some(row.answers_per_second())
        })
    }

    #[test]
    fn a_difference_is_told_from_noise() {
        let noisy = [100.0, 110.0, 90.0, 105.0, 95.0];
        let other = [104.0, 92.0, 108.0, 97.0, 103.0];
        let faster = [150.0, 160.0, 140.0, 155.0, 145.0];
        assert!(!rate_line(&noisy, &other).differs());
        let line = rate_line(&noisy, &faster);
        assert!(line.differs());
        let (ratio, low, high) = line.ratio.unwrap();
        assert!(low < ratio && ratio < high && (ratio - 1.5).abs() < 0.01);
        assert!(rate_line(&faster, &noisy).differs());
    }

    #[test]
    fn too_little_says_nothing() {
        assert_eq!(rate_line(&[100.0, 100.0], &[200.0; 9]).ratio, None);
        assert_eq!(rate_line(&[0.0; 9], &[200.0; 9]).ratio, None);
    }

    #[test]
    fn what_drifts_shows_less() {
        let drift: Vec<f64> = (0..20).map(|n| 100.0 + f64::from(n)).collect();
        let mixed: Vec<f64> = (0..20).map(|n| 100.0 + f64::from(n * 7 % 20)).collect();
        let (_, of_drift) = mean(&drift).unwrap();
        let (_, of_mixed) = mean(&mixed).unwrap();
        assert!(of_drift > 2.0 * of_mixed);
    }
}
