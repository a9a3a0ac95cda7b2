//! Any bytes as what stands in the store, as the last good copy, and as messages of etcd: no panic, and what was read is bounded and
//! written as it was.
#![no_main]

use evenkeel_config::Rollout;
use evenkeel_store::judge::judge_change;
use evenkeel_store::model::{Head, MAX_PAST, Report, Revision};
use evenkeel_store::{copy, etcd};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    etcd::decode(bytes);
    if let Ok(head) = Head::read(bytes) {
        assert!(head.past.len() <= MAX_PAST);
        assert_eq!(Head::read(&head.write()).as_ref(), Ok(&head));
        assert!(head.follows(&head.mark()));
        let _ = head.target_of("a");
    }
    if let Ok(revision) = Revision::read_any(bytes) {
        assert_eq!(
            Revision::read(&revision.write(), &revision.pointer()),
            Ok(revision)
        );
    }
    if let Ok(report) = Report::read(bytes) {
        let _ = judge_change(&report.counts, &report.before, &Rollout::default());
        let _ = report.counts.since(&report.before);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = copy::read(text);
    }
});
