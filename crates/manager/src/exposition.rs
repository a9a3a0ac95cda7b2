//! The Prometheus text exposition format, version 0.0.4.

use std::fmt::Write;

/// The media type of what [`Exposition`] writes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

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
    pub fn sample_of(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
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

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// 1 if it holds, else 0.
pub fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}
