//! Any bytes as an access log, in each format: no panic, each line is a request or is counted.
#![no_main]

use evenkeel_sim::log::{Format, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for format in [
        None,
        Some(Format::Json),
        Some(Format::Combined),
        Some(Format::Haproxy),
    ] {
        let Ok(log) = read(bytes, format) else {
            continue;
        };
        let read = log.entries.len() as u64 + log.left_out;
        assert_eq!(log.lines, log.unreadable + read);
        assert!(log.shown.len() <= 10);
        let number = |name: Option<usize>| name.is_none_or(|name| name < log.names.len());
        assert!(
            log.entries
                .iter()
                .all(|entry| number(entry.member) && number(entry.class))
        );
        assert!(log.entries.iter().all(|entry| entry.at.is_finite()));
        let tried = |at: &usize| number(Some(*at));
        assert!(
            log.entries
                .iter()
                .all(|entry| entry.tried.iter().all(tried) && entry.tried.len() <= 16)
        );
    }
});
