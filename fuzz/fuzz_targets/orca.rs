//! Any bytes as an ORCA report, in each of its forms: no panic, and only loads that are
//! wanted and valid come of it.
#![no_main]

use evenkeel_config::sources::Orca;
use evenkeel_wire::orca::{parse, parse_binary, parse_message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|report: &[u8]| {
    let Orca { loads, .. } = Orca::default();
    let wanted = |table: &str, field: &str| loads.find_load(table, field);
    let reports = [
        parse(report, &wanted),
        parse_binary(report, &wanted),
        parse_message(report, &wanted),
    ];
    for report in reports.iter().flatten() {
        assert!(report.as_slice().len() <= loads.load_ids().count());
        for (load, value) in report.as_slice() {
            assert!(loads.load_ids().any(|known| known == *load));
            assert!((0.0..=1e12).contains(&value.get()));
        }
    }
});
