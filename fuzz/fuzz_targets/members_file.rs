//! Any text as a file with members: no panic, and every member has an address.
#![no_main]

use evenkeel_manager::lists::file::{MAX_MEMBERS, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(members) = parse(text) {
        assert!(members.len() <= MAX_MEMBERS);
        assert!(
            members
                .iter()
                .all(|member| member.port > 0 && !member.host.is_empty())
        );
    }
});
