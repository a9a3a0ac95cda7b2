//! The Prometheus text exposition format as tests read it.

/// A parser for the format, as strict as the specification, for tests.
pub(crate) mod strict {
    use std::collections::{BTreeMap, HashSet};

    /// Samples by name and labels, written `name{a="b"}` with labels in their order.
    pub(crate) type Samples = BTreeMap<String, f64>;

    /// Parses `text`; panics with the line at anything that a scraper could stumble on.
    pub(crate) fn parse(text: &str) -> Samples {
        assert!(text.ends_with('\n'), "the last line must end");
        let mut samples = Samples::new();
        let mut seen = HashSet::new();
        let mut family = (String::new(), String::new());
        let mut helped = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect(line);
                assert!(seen.insert(name.to_owned()), "family twice: {line}");
                assert!(!help.trim().is_empty(), "no help: {line}");
                helped = name.into();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect(line);
                assert_eq!(name, helped, "TYPE follows HELP");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(is_name(name), "{line}");
                family = (name.into(), kind.into());
            } else {
                let (key, value) = sample(line);
                let name = key.split('{').next().unwrap();
                let suffix = name.strip_prefix(&family.0);
                let allowed: &[_] = match family.1.as_str() {
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                assert!(
                    suffix.is_some_and(|suffix| allowed.contains(&suffix)),
                    "not of family {}: {line}",
                    family.0
                );
                if family.1 == "counter" {
                    assert!(value >= 0.0, "{line}");
                }
                assert!(samples.insert(key, value).is_none(), "sample twice: {line}");
            }
        }
        samples
    }

    fn is_name(name: &str) -> bool {
        let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
    }

    fn sample(line: &str) -> (String, f64) {
        let name_end = line.find(['{', ' ']).expect(line);
        assert!(is_name(&line[..name_end]), "{line}");
        let mut rest = &line[name_end..];
        if let Some(mut labels) = rest.strip_prefix('{') {
            let mut names = HashSet::new();
            loop {
                let (name, value) = labels.split_once("=\"").expect(line);
                assert!(is_name(name) && names.insert(name), "{line}");
                let end = end_of_value(value).expect(line);
                labels = &value[end + 1..];
                match labels.chars().next() {
                    Some(',') => labels = &labels[1..],
                    Some('}') => break,
                    _ => panic!("{line}"),
                }
            }
            rest = &labels[1..];
        }
        let value = rest.strip_prefix(' ').expect(line);
        let number = match value {
            "NaN" => f64::NAN,
            "+Inf" => f64::INFINITY,
            "-Inf" => f64::NEG_INFINITY,
            number => {
                assert!(
                    number.starts_with(|c: char| c.is_ascii_digit() || c == '-'),
                    "{line}"
                );
                number.parse().expect(line)
            }
        };
        (line[..line.len() - value.len() - 1].into(), number)
    }

    /// Returns the index of the quote that ends a label's value.
    fn end_of_value(text: &str) -> Option<usize> {
        let mut chars = text.char_indices();
        while let Some((index, char)) = chars.next() {
            match char {
                '"' => return Some(index),
                '\\' => assert!(matches!(chars.next()?.1, '\\' | '"' | 'n')),
                _ => {}
            }
        }
        None
    }
}

mod tests {
    use evenkeel_manager::exposition::{Exposition, Type};

    use super::*;

    #[test]
    fn labels_and_help_are_escaped() {
        let mut out = Exposition::default();
        out.begin_family("evenkeel_x", Type::Gauge, "a \\ b\nc");
        out.add_sample(&[("a", "q\"b\\n\n"), ("b", "")], 0.25);
        out.add_sample(&[], f64::INFINITY);
        let text = out.finish();
        let wanted = "# HELP evenkeel_x a \\\\ b\\nc\n# TYPE evenkeel_x gauge\n\
                      evenkeel_x{a=\"q\\\"b\\\\n\\n\",b=\"\"} 0.25\nevenkeel_x +Inf\n";
        assert_eq!(text, wanted);
        assert_eq!(strict::parse(&text)["evenkeel_x"], f64::INFINITY);
    }

    #[test]
    #[should_panic(expected = "family twice")]
    fn the_parser_refuses_a_family_in_two_places() {
        strict::parse("# HELP a h\n# TYPE a gauge\na 1\n# HELP a h\n# TYPE a gauge\na 2\n");
    }

    #[test]
    #[should_panic(expected = "not of family")]
    fn the_parser_refuses_a_sample_without_family() {
        strict::parse("# HELP a h\n# TYPE a gauge\nb 1\n");
    }
}
