//! Any bytes as a load record: no panic, and the loads that come of it are no nonsense. What
//! the program writes of it is read as the same again.
#![no_main]

use evenkeel_kernel::loads::{Before, Loads};
use evenkeel_kernel::record::{BASE, Record};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Two records, of which the first is what the second is compared with.
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let before = Record::parse(first).ok();
    for copy in [bytes, second] {
        let Ok(record) = Record::parse(copy) else {
            continue;
        };
        let base = &record.base;
        assert!(record.ports().count() <= usize::from(base.ports));
        assert_eq!(record.cpus().count(), usize::from(base.entries));
        let mut again = [0; BASE];
        base.write(&mut again);
        let written = Record::parse(&again);
        // Entries that were in the copy are not in this one.
        if base.entries == 0 {
            assert_eq!(written.map(|record| record.base), Ok(*base));
        }
        let earlier = before.as_ref().map(|record| Before::new(&record.base));
        for compared in [None, earlier.as_ref(), Some(&Before::new(base))] {
            for (id, value) in Loads::since_last(compared, &record).iter() {
                assert!(value >= 0.0 && value.is_finite(), "{id}: {value}");
                if id.is_utilization() {
                    assert!(value <= 1.0, "{id}: {value}");
                }
            }
        }
    }
});
