//! Any text as a configuration: no panic, and errors that can be printed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // That key reads a file, which may be anything, and is not what is tested here.
    if text.contains("token_file") {
        return;
    }
    if let Err(errors) = evenkeel_config::parse("evenkeel.toml", text) {
        assert!(!errors.to_string().is_empty());
    }
});
