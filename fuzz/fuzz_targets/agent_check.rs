//! Any bytes as the line of an agent: no panic, and what is understood can be said again
//! and means the same.
#![no_main]

use evenkeel_wire::agent_check::Answer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    let Ok(answer) = Answer::parse(line) else {
        return;
    };
    assert_eq!(Answer::parse(answer.to_string().as_bytes()), Ok(answer));
});
