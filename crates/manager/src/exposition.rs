//! The Prometheus text exposition format, version 0.0.4.

use std::fmt::Write;
use std::time::Duration;

/// The media type of what [`Exposition`] writes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Limits of histograms of times: from what a local service takes to the longest that people
/// wait, at most a factor of three apart.
pub const TIME_LIMITS: [Duration; 16] = [
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// What a family of samples is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Only rises, until the process ends.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts up to limits (`_bucket`), `_sum` and `_count`.
    Histogram,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        }
    }
}

/// Writes samples, family by family.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    family: &'static str,
}

impl Exposition {
    /// Begins a family. All its samples must follow, before the next one begins.
    pub fn family(&mut self, name: &'static str, kind: Type, help: &str) {
        self.family = name;
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {}", kind.name());
    }

    /// Adds a sample to the current family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.sample_of("", labels, value);
    }

    /// Adds a sample whose name is that of the family and a `suffix` (`_bucket`).
    fn sample_of(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(self.family);
        self.text.push_str(suffix);
        for (index, (name, value)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{name}=\"", if index == 0 { '{' } else { ',' });
            for char in value.chars() {
                match char {
                    '\\' => self.text.push_str(r"\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str(r"\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = if value.is_nan() {
            writeln!(self.text, " NaN")
        } else if value.is_infinite() {
            writeln!(self.text, " {}Inf", if value > 0.0 { '+' } else { '-' })
        } else {
            writeln!(self.text, " {value}")
        };
    }

    /// Adds the samples of a histogram to the current family: how many were above the limit
    /// before and at most each limit in seconds, of which the last is infinite; and their sum.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        counts: impl IntoIterator<Item = (f64, u64)>,
        sum: f64,
    ) {
        let mut count = 0;
        for (limit, more) in counts {
            count += more;
            let limit = if limit.is_infinite() {
                "+Inf".into()
            } else {
                limit.to_string()
            };
            let labels = [labels, &[("le", &limit)]].concat();
            self.sample_of("_bucket", &labels, count as f64);
        }
        self.sample_of("_sum", labels, sum);
        self.sample_of("_count", labels, count as f64);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// 1 if it holds, else 0.
pub fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}
