//! Metrics in Prometheus' text format (versions 0.0.4 and 1.0.0) and in OpenMetrics, line by line and in place.
//!
//! ```text
//! # HELP node_load1 1m load average.
//! # TYPE node_load1 gauge
//! node_load1 0.21
//! node_cpu_seconds_total{cpu="0",mode="idle"} 362812.78 1700000000000
//! ```
//!
//! The reader is strict: a page with one line that is not understood is refused as a
//! whole, because half of a sum is a wrong number. Names in quotes (`{"http.requests"} 1`) may have any text.
//! Of OpenMetrics it knows exemplars, which it leaves out, and times in seconds.

use std::borrow::Cow;

/// Most labels of a sample.
const MAX_LABELS: usize = 64;

/// Format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own.
    Text,
    /// OpenMetrics: `application/openmetrics-text`.
    OpenMetrics,
}

impl Format {
    /// Format of a page with this `Content-Type`. Pages without one are text.
    pub fn from_media_type(media_type: &str) -> Self {
        let name = media_type.split(';').next().unwrap_or_default().trim();
        match name.eq_ignore_ascii_case("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Text,
        }
    }
}

/// A value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'p> {
    /// Name of the metric; one in quotes as it is written between them.
    pub metric: &'p str,
    /// Labels of the sample.
    pub labels: Labels<'p>,
    /// Any number, and NaN.
    pub value: f64,
    /// Time of the measurement, in milliseconds since 1970; without it, just now.
    pub at_ms: Option<i64>,
}

/// Labels of a sample as they are written: valid, and no name twice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Labels<'p>(&'p str);

impl<'p> Labels<'p> {
    /// The text between the braces.
    pub fn as_str(&self) -> &'p str {
        self.0
    }

    /// Names and values, in the order in which they are written.
    pub fn iter(self) -> impl Iterator<Item = (&'p str, Cow<'p, str>)> {
        let mut rest = Some(self.0);
        std::iter::from_fn(move || {
            let (name, value, after) = split_label(rest?)?;
            rest = Some(after);
            Some((name, unescape_value(value)))
        })
    }

    /// The value of the label called `name`; empty if there is none.
    pub fn get(self, name: &str) -> Cow<'p, str> {
        let mut labels = self.iter();
        let found = labels.find(|(known, _)| *known == name);
        found.map(|(_, value)| value).unwrap_or_default()
    }
}

/// A page with a line that is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a metric in the text format of Prometheus")]
pub struct InvalidPage {
    /// Number of the line, from 1.
    pub line: usize,
}

/// Gives each sample of `page` to `take`, in order.
pub fn parse<'p>(
    page: &'p str,
    format: Format,
    mut take: impl FnMut(Sample<'p>),
) -> Result<(), InvalidPage> {
    for (index, line) in page.split('\n').enumerate() {
        let line = line.trim_matches([' ', '\t', '\r']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        take(parse_sample(line, format).ok_or(InvalidPage { line: index + 1 })?);
    }
    Ok(())
}

fn parse_sample(line: &str, format: Format) -> Option<Sample<'_>> {
    let (metric, inside) = match line.strip_prefix('{') {
        Some(inside) => {
            // The name is within the braces, in front of the labels.
            let (metric, rest) = split_quoted(inside.trim_start_matches(BLANK))?;
            let rest = rest.trim_start_matches(BLANK);
            match rest.strip_prefix(',') {
                Some(labels) => (metric, labels),
                None if rest.starts_with('}') => (metric, rest),
                None => return None,
            }
        }
        None => {
            let (metric, rest) = name(line, true)?;
            let rest = rest.trim_start_matches(BLANK);
            // Without labels it is white space that ends the name.
            if rest.len() + metric.len() == line.len() && !rest.starts_with('{') {
                return None;
            }
            match rest.strip_prefix('{') {
                Some(inside) => (metric, inside),
                None => return parse_numbers(metric, Labels(""), rest, format),
            }
        }
    };
    let (labels, rest) = split_labels(inside)?;
    parse_numbers(metric, labels, rest, format)
}

/// The labels at the start of `inside`, which is behind a brace, and what follows the other brace.
fn split_labels(inside: &str) -> Option<(Labels<'_>, &str)> {
    let after = check_labels(inside)?;
    let length = inside.len() - after.len();
    Some((Labels(inside.get(..length)?), after.strip_prefix('}')?))
}

/// The sample whose value, time and exemplars are `rest`.
fn parse_numbers<'p>(
    metric: &'p str,
    labels: Labels<'p>,
    rest: &str,
    format: Format,
) -> Option<Sample<'p>> {
    let rest = match (format, rest.split_once('#')) {
        (Format::OpenMetrics, Some((rest, exemplars))) => {
            exemplars_are_valid(exemplars).then_some(rest)?
        }
        _ => rest,
    };
    let (value, at) = value_and_time(rest)?;
    let at_ms = match (at, format) {
        (None, _) => None,
        (Some(at), Format::Text) => Some(at.parse().ok()?),
        (Some(at), Format::OpenMetrics) => {
            let seconds: f64 = at.parse().ok().filter(|at: &f64| at.is_finite())?;
            // What no time can be becomes the first or the last one.
            Some((seconds * 1000.0) as i64)
        }
    };
    Some(Sample {
        metric,
        labels,
        value,
        at_ms,
    })
}

/// A value, and the time behind it as it is written.
fn value_and_time(text: &str) -> Option<(f64, Option<&str>)> {
    let mut words = text.split(BLANK).filter(|word| !word.is_empty());
    let value = words.next()?.parse().ok()?;
    let at = words.next();
    words.next().is_none().then_some((value, at))
}

/// True for exemplars, each of which has labels, a value and perhaps a time; `text` is behind the first `#`.
fn exemplars_are_valid(mut text: &str) -> bool {
    loop {
        let inside = text.trim_start_matches(BLANK).strip_prefix('{');
        let Some((_, rest)) = inside.and_then(split_labels) else {
            return false;
        };
        let (numbers, next) = match rest.split_once('#') {
            Some((numbers, next)) => (numbers, Some(next)),
            None => (rest, None),
        };
        let is_time = |at: Option<&str>| at.is_none_or(|at| at.parse::<f64>().is_ok());
        if !value_and_time(numbers).is_some_and(|(_, at)| is_time(at)) {
            return false;
        }
        match next {
            Some(next) => text = next,
            None => return true,
        }
    }
}

/// The text in quotes at the start of `text`, as it is written, and what is behind it.
fn split_quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    let (value, rest) = text.split_at_checked(end)?;
    Some((value, rest.strip_prefix('"')?))
}

/// The name at the start of `text`, and the rest.
fn name(text: &str, is_metric: bool) -> Option<(&str, &str)> {
    let valid =
        |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || (is_metric && byte == b':');
    let end = text.bytes().position(|byte| !valid(byte));
    let (name, rest) = text.split_at_checked(end.unwrap_or(text.len()))?;
    let start = name.bytes().next()?;
    (!start.is_ascii_digit()).then_some((name, rest))
}

/// Checks the labels at the start of `text`; answers what follows them, from the brace.
fn check_labels(text: &str) -> Option<&str> {
    let mut rest = text;
    let mut names = [""; MAX_LABELS];
    for at in 0..=MAX_LABELS {
        if rest.trim_start_matches(BLANK).starts_with('}') {
            return Some(rest.trim_start_matches(BLANK));
        }
        let (name, _, after) = split_label(rest)?;
        if names.get(..at)?.contains(&name) {
            return None;
        }
        *names.get_mut(at)? = name;
        rest = after;
    }
    None
}

const BLANK: [char; 2] = [' ', '\t'];

/// The label at the start of `text`: its name, its value as it is written, and what
/// follows it and its comma.
fn split_label(text: &str) -> Option<(&str, &str, &str)> {
    let text = text.trim_start_matches(BLANK);
    let (name, rest) = match text.starts_with('"') {
        true => split_quoted(text)?,
        false => name(text, false)?,
    };
    let rest = rest.trim_start_matches(BLANK).strip_prefix('=')?;
    let (value, rest) = split_quoted(rest.trim_start_matches(BLANK))?;
    let rest = rest.trim_start_matches(BLANK);
    let rest = match rest.strip_prefix(',') {
        Some(rest) => rest,
        None if rest.is_empty() || rest.starts_with('}') => rest,
        None => return None,
    };
    Some((name, value, rest))
}

fn unescape_value(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => {}
            },
            _ => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Plain = (String, Vec<(String, String)>, f64, Option<i64>);

    fn read(page: &str) -> Result<Vec<Plain>, InvalidPage> {
        read_as(page, Format::Text)
    }

    fn read_as(page: &str, format: Format) -> Result<Vec<Plain>, InvalidPage> {
        let mut samples = Vec::new();
        parse(page, format, |sample| {
            let labels = sample.labels.iter();
            samples.push((
                sample.metric.to_owned(),
                labels.map(|(n, v)| (n.into(), v.into_owned())).collect(),
                sample.value,
                sample.at_ms,
            ));
        })?;
        Ok(samples)
    }

    #[test]
    fn reads_what_the_format_allows() {
        let page = "# HELP a Any text { \"\n# TYPE a counter\n\na 1\n\
            a_b:c{x=\"1\"} -2.5e3 1700000000000\r\n\
            \ta { x = \"a b\" , y=\"\\\"q\\\\\\n\", } +Inf -1 \n\
            a{} 0x\n";
        let error = read(page).unwrap_err();
        assert_eq!(error.line, 7, "{error}");
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let page = page.replace("0x", "7");
        let samples = read(&page).unwrap();
        assert_eq!(
            samples,
            [
                ("a".into(), vec![], 1.0, None),
                (
                    "a_b:c".into(),
                    vec![label("x", "1")],
                    -2500.0,
                    Some(1_700_000_000_000)
                ),
                (
                    "a".into(),
                    vec![label("x", "a b"), label("y", "\"q\\\n")],
                    f64::INFINITY,
                    Some(-1)
                ),
                ("a".into(), vec![], 7.0, None),
            ]
        );
        assert!(read("a NaN").unwrap()[0].2.is_nan());
        parse("a{x=\"1\"} 1", Format::Text, |sample| {
            assert_eq!(sample.labels.get("x"), "1");
            assert_eq!(sample.labels.get("y"), "");
        })
        .unwrap();
    }

    #[test]
    fn fronts_d7_pages_of_openmetrics_are_read_whole() {
        let page = "# TYPE a counter\n# UNIT a seconds\na_total 1 # {trace_id=\"a#b}\"} 0.5\n\
            a_total{x=\"#\"} 2 1700000000.123 # {} 1 1700000000.5 # {y=\"z\"} 2e3\n\
            a_created 1 1700000000\n{\"http.requests\",\"a.b\"=\"c\"} 3\n{ \"d\\\"e\" } 4\n{\"f\",} 5\n# EOF\n";
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let samples = read_as(page, Format::OpenMetrics).unwrap();
        assert_eq!(
            samples,
            [
                ("a_total".into(), vec![], 1.0, None),
                (
                    "a_total".into(),
                    vec![label("x", "#")],
                    2.0,
                    Some(1_700_000_000_123)
                ),
                ("a_created".into(), vec![], 1.0, Some(1_700_000_000_000)),
                ("http.requests".into(), vec![label("a.b", "c")], 3.0, None),
                ("d\\\"e".into(), vec![], 4.0, None),
                ("f".into(), vec![], 5.0, None),
            ]
        );
        // Prometheus does not read these in its own format either.
        for line in ["a 1 # {x=\"y\"} 0.5", "a 1 1700000000.123"] {
            assert!(read(line).is_err(), "{line}");
            assert!(read_as(line, Format::OpenMetrics).is_ok(), "{line}");
        }
        assert_eq!(read("{\"a b\"} 1").unwrap()[0].0, "a b");
        for line in [
            "a 1 #",
            "a 1 # 0.5",
            "a 1 # {x} 1",
            "a 1 # {x=\"y\"}",
            "a 1 # {x=\"y\"} z",
            "a 1 # {} 1 2 3",
            "a 1 # {} 1 z",
            "a 1 # {} 1 #",
            "a 1 inf",
            "{\"a\" 1",
            "{\"a\"x=\"y\"} 1",
            "{\"a} 1",
            "{x=\"y\"} 1",
            "{} 1",
            "a{\"x\"} 1",
            "a{\"x\"=\"y\",x=\"z\"} 1",
        ] {
            assert!(read_as(line, Format::OpenMetrics).is_err(), "{line}");
        }
        for (media_type, format) in [
            (
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                Format::OpenMetrics,
            ),
            ("Application/OpenMetrics-Text", Format::OpenMetrics),
            ("text/plain; version=0.0.4", Format::Text),
            ("", Format::Text),
        ] {
            assert_eq!(Format::from_media_type(media_type), format, "{media_type}");
        }
    }

    #[test]
    fn what_is_no_metric_is_refused() {
        for line in [
            "a",
            "1a 1",
            "a 1 2 3",
            "a 1 2.5",
            "a one",
            "a{ 1",
            "a{x} 1",
            "a{x=1} 1",
            "a{x=\"1} 1",
            "a{x=\"1\\\"} 1",
            "a{x=\"1\" y=\"2\"} 1",
            "a{x=\"1\",x=\"2\"} 1",
            "a{,} 1",
            "a{x:y=\"1\"} 1",
            "a-b 1",
            "a=1",
            "<html>",
            "a{x=\"1\"}",
            "a{x=\"1\"} ",
        ] {
            assert_eq!(read(line), Err(InvalidPage { line: 1 }), "{line:?}");
        }
        let many: String = (0..=MAX_LABELS).map(|n| format!("l{n}=\"\",")).collect();
        assert!(read(&format!("a{{{many}}} 1")).is_err());
    }

    proptest! {
        #[test]
        fn no_page_breaks_it(page in "([a-c:{}=\"\\\\,0-9. #\n]|\\PC){0,60}") {
            let _ = read(&page);
            let _ = read_as(&page, Format::OpenMetrics);
        }

        #[test]
        fn what_is_written_is_read(
            labels in proptest::collection::btree_map("[a-z_][a-z0-9_]{0,5}", "\\PC{0,8}", 0..5),
            value in proptest::num::f64::NORMAL,
            at in any::<Option<i64>>(),
        ) {
            let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let written: Vec<_> = labels.iter().map(|(n, v)| format!("{n}=\"{}\"", escaped(v))).collect();
            let stamp = at.map(|at| format!(" {at}")).unwrap_or_default();
            let page = format!("m{{{}}} {value:e}{stamp}\n", written.join(","));
            let expected = ("m".to_owned(), labels.into_iter().collect(), value, at);
            prop_assert_eq!(read(&page), Ok(vec![expected]));
        }
    }
}
