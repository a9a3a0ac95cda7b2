//! Any text as what HAProxy says of its servers: no panic, and what is read can be put into commands of one line.
#![no_main]

use evenkeel_steer::haproxy::answers::{parse_info, parse_servers};
use evenkeel_steer::haproxy::plan::{BackendFacts, plan_orders, plan_restoration};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = parse_info(text);
    let Ok(found) = parse_servers(text, "web") else {
        return;
    };
    let known = BackendFacts::default();
    let orders = plan_restoration("web", &found, &[], &known);
    assert!(orders.is_empty(), "nobody is a member");
    for server in &found {
        assert!(!server.name.contains([';', ' ', '\n', '\r', '/']));
    }
    let planned = plan_orders("web", &found, &[], &known);
    assert!(planned.orders.is_empty() && planned.foreign_servers.len() == found.len());
});
