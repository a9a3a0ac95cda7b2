//! Any text as a format of the access log: no panic, and an error has a place in it.
#![no_main]

use evenkeel_config::LogTemplate;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| match LogTemplate::parse(input) {
    Ok(template) => {
        let braces: usize = template
            .pieces()
            .filter(|(_, field)| field.is_some())
            .count();
        assert!(braces <= input.matches('{').count());
    }
    Err(error) => assert!((1..=input.chars().count() + 1).contains(&error.at)),
});
