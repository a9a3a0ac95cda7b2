//! Any text as a page of metrics: no panic, and what is read can be written and reads the
//! same.
#![no_main]

use evenkeel_wire::exposition::{Format, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|page: &str| {
    let _ = parse(page, Format::OpenMetrics, |_| ());
    let mut again = String::new();
    let mut samples = 0;
    let read = parse(page, Format::Text, |sample| {
        samples += 1;
        assert!(sample.labels.iter().count() <= 64);
        again += &format!(
            "{{\"{}\",{}}} {}\n",
            sample.metric,
            sample.labels.as_str(),
            sample.value
        );
    });
    if read.is_ok() {
        let mut rest = samples;
        assert_eq!(
            parse(&again, Format::Text, |_| rest -= 1),
            Ok(()),
            "{again:?}"
        );
        assert_eq!(rest, 0);
    }
});
