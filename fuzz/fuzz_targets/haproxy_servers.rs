//! Any text as what HAProxy says of its servers: no panic, and what is read can be put into commands of one line.
#![no_main]

use evenkeel_steer::haproxy::answers::{about, servers};
use evenkeel_steer::haproxy::plan::{Known, plan, restoration};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = about(text);
    let Ok(found) = servers(text, "web") else {
        return;
    };
    let known = Known::default();
    let orders = restoration("web", &found, &[], &known);
    assert!(orders.is_empty(), "nobody is a member");
    for server in &found {
        assert!(!server.name.contains([';', ' ', '\n', '\r', '/']));
    }
    let planned = plan("web", &found, &[], &known);
    assert!(planned.orders.is_empty() && planned.others.len() == found.len());
});
