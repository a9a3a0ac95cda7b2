//! Any text as the expression of a load, worked out over any page of metrics: no panic, and
//! an error that points into the text. Text and page are separated by a line `---`.
#![no_main]

use std::sync::OnceLock;
use std::time::Duration;

use evenkeel_config::expression::Expression;
use evenkeel_config::sources::{MetricLoad, Prometheus};
use evenkeel_core::load::LoadId;
use evenkeel_report::prometheus::Readings;
use evenkeel_wire::exposition::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| {
    let (text, page) = input.split_once("\n---\n").unwrap_or((input, ""));
    let expression = match Expression::parse(text) {
        Ok(expression) => expression,
        Err(error) => {
            assert!((1..=text.len() + 1).contains(&error.at), "{error}");
            return;
        }
    };
    let loads = Prometheus {
        loads: vec![MetricLoad {
            load: LoadId::CPU,
            expression,
            optional: false,
        }],
        ..settings().clone()
    };
    let Ok(readings) = Readings::from_page(page, Format::Text, &loads, i64::MIN) else {
        return;
    };
    let first = readings.loads_since(&loads, None);
    assert_eq!(first.len(), 1);
    let again = readings.loads_since(&loads, Some((&readings, Duration::from_secs(1))));
    assert_eq!(again.len(), 1);
    // What is known at once does not depend on the time that has passed.
    if let Ok(value) = &first[0].1 {
        let later = again[0].1.as_ref().expect("it was known before");
        assert!(value == later || (value.is_nan() && later.is_nan()));
    }
});

/// How a group is scraped, but for the expressions.
fn settings() -> &'static Prometheus {
    static SETTINGS: OnceLock<Prometheus> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let text = "[rule.a]\nlisten = \"127.0.0.1:1\"\nmembers = [\"127.0.0.1:2\"]\n\
            [rule.a.prometheus]\nurl = \"http://{host}:9100/metrics\"\nloads = { cpu = \"a\" }\n";
        let config = evenkeel_config::parse("a", text).expect("it is valid");
        let group = config.groups.into_iter().next().expect("it has a group");
        Prometheus::clone(group.sources.prometheus.as_ref().expect("it is scraped"))
    })
}
