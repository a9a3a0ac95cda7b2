//! Counters with names and labels: in the Prometheus text exposition format, version 0.0.4, or as JSON.

use std::fmt::Write;
use std::time::Duration;

use evenkeel_core::observe::Latencies;

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

/// Type of a family of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// The value only rises, until the process ends.
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
    /// Number of samples that the family has so far, if JSON is written.
    json: Option<usize>,
}

impl Exposition {
    /// Returns an exposition that writes JSON: an array of families with `name`, `type`, `help` and
    /// `samples`. Each sample has `labels` and `value`, and a sample of a histogram has a `suffix`. A value
    /// that is no finite number is null.
    pub fn as_json() -> Self {
        Exposition {
            json: Some(0),
            ..Exposition::default()
        }
    }

    /// Begins a family. All its samples must follow, before the next one begins.
    pub fn begin_family(&mut self, name: &'static str, kind: Type, help: &str) {
        self.family = name;
        if self.json.is_some() {
            self.json = Some(0);
            let begin = if self.text.is_empty() { "[" } else { "]},\n" };
            self.text.push_str(begin);
            self.text.push_str("{\"name\":");
            quote(&mut self.text, name);
            self.text.push_str(",\"type\":");
            quote(&mut self.text, kind.name());
            self.text.push_str(",\"help\":");
            quote(&mut self.text, help);
            self.text.push_str(",\"samples\":[");
            return;
        }
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {}", kind.name());
    }

    /// Adds a sample to the current family.
    pub fn add_sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.sample_of("", labels, value);
    }

    /// Adds a sample whose name is that of the family and a `suffix` (`_bucket`).
    fn sample_of(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        if let Some(samples) = self.json {
            self.json = Some(samples + 1);
            return self.json_sample(samples == 0, suffix, labels, value);
        }
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

    fn json_sample(&mut self, is_first: bool, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let text = &mut self.text;
        text.push_str(if is_first { "{" } else { ",{" });
        if !suffix.is_empty() {
            text.push_str("\"suffix\":");
            quote(text, suffix);
            text.push(',');
        }
        text.push_str("\"labels\":{");
        for (index, (name, label)) in labels.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            quote(text, name);
            text.push(':');
            quote(text, label);
        }
        let _ = match value.is_finite() {
            true => write!(text, "}},\"value\":{value}}}"),
            false => write!(text, "}},\"value\":null}}"),
        };
    }

    /// Adds a histogram of times with buckets up to these limits.
    pub(crate) fn add_times(
        &mut self,
        labels: &[(&str, &str)],
        times: &Latencies,
        limits: impl Iterator<Item = Duration>,
    ) {
        let mut before = 0;
        let mut since = |count| count - std::mem::replace(&mut before, count);
        let counts = limits.map(|limit| (limit.as_secs_f64(), times.at_most(limit)));
        let counts = counts.chain([(f64::INFINITY, times.count())]);
        let counts = counts.map(|(limit, count)| (limit, since(count)));
        self.add_histogram(labels, counts, times.sum().as_secs_f64());
    }

    /// Adds the samples of a histogram to the current family: how many were above the limit
    /// before and at most each limit in seconds, of which the last is infinite; and their sum.
    pub fn add_histogram(
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
    pub fn finish(mut self) -> String {
        if self.json.is_some() {
            self.text
                .push_str(if self.text.is_empty() { "[]" } else { "]}]" });
        }
        self.text
    }
}

/// Writes a JSON string.
fn quote(out: &mut String, text: &str) {
    // A string can always be written.
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}

/// 1 if it holds, else 0.
pub fn flag_value(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families(mut out: Exposition) -> String {
        out.begin_family("a_total", Type::Counter, "What \"a\" is.");
        out.add_sample(&[("of", "x\"\\\n\u{1}é"), ("by", "y")], 2.5);
        out.add_sample(&[], f64::NAN);
        out.begin_family("none", Type::Gauge, "Empty.");
        out.begin_family("b", Type::Histogram, "Times.");
        out.add_histogram(&[], [(0.5, 1), (f64::INFINITY, 2)], 3.0);
        out.finish()
    }

    #[test]
    fn json_says_what_the_text_says() {
        let json = families(Exposition::as_json());
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            read,
            serde_json::json!([
                {"name": "a_total", "type": "counter", "help": "What \"a\" is.", "samples": [
                    {"labels": {"of": "x\"\\\n\u{1}é", "by": "y"}, "value": 2.5},
                    {"labels": {}, "value": null},
                ]},
                {"name": "none", "type": "gauge", "help": "Empty.", "samples": []},
                {"name": "b", "type": "histogram", "help": "Times.", "samples": [
                    {"suffix": "_bucket", "labels": {"le": "0.5"}, "value": 1},
                    {"suffix": "_bucket", "labels": {"le": "+Inf"}, "value": 3},
                    {"suffix": "_sum", "labels": {}, "value": 3},
                    {"suffix": "_count", "labels": {}, "value": 3},
                ]},
            ])
        );
        assert_eq!(Exposition::as_json().finish(), "[]");
        let text = families(Exposition::default());
        assert_eq!(text.lines().count(), 6 + 2 + 4, "{text}");
    }
}
