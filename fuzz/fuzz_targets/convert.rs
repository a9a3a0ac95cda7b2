//! Any text as a configuration of HAProxy or nginx: no panic, and what it is translated to is accepted.
#![no_main]

use evenkeel_config::parse;
use evenkeel_convert::convert;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for begin in ["", "frontend f\n", "server {"] {
        if let Ok(converted) = convert(&format!("{begin}{text}")) {
            parse("converted.toml", &converted.toml).expect("a configuration");
        }
    }
});
