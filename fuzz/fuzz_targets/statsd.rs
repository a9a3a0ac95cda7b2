//! Any bytes as a line of StatsD: no panic, and what is understood has parts of the line.
#![no_main]

use evenkeel_report::statsd::Gauge;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    let Ok(Some(gauge)) = Gauge::parse(line) else {
        return;
    };
    assert!(gauge.value.is_finite() && !gauge.name.is_empty() && !gauge.name.contains(':'));
    for tag in gauge.tags() {
        assert!(!tag.is_empty() && !tag.contains([',', '|']));
        if let Some((name, _)) = tag.split_once(':') {
            assert!(gauge.tag(name).is_some());
        }
    }
});
