//! Any bytes as an ORCA report, in each of its forms: no panic, and only loads that are
//! wanted and valid come of it.
#![no_main]

use evenkeel_config::reports::OrcaLoads;
use evenkeel_report::orca::{parse, parse_binary, parse_message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|report: &[u8]| {
    let wanted = OrcaLoads::default();
    let reports = [
        parse(report, &wanted),
        parse_binary(report, &wanted),
        parse_message(report, &wanted),
    ];
    for loads in reports.iter().flatten() {
        assert!(loads.as_slice().len() <= wanted.loads().count());
        for (load, value) in loads.as_slice() {
            assert!(wanted.loads().any(|known| known == *load));
            assert!((0.0..=1e12).contains(&value.get()));
        }
    }
});
