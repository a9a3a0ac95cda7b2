//! Parts of a change with 5,000 routes, 1,000 services and 20,000 endpoints: the time of each, and the memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_manager::lists::found::FoundMember;
use evenkeel_manager::{Generated, Manager};
use evenkeel_net::Clock;
use serde_json::{Value, json};

use super::super::objects::GROUP;
use super::super::translate::settle::{Kept, translate_again};
use super::*;

const ROUTES: usize = 5_000;
const SERVICES: usize = 1_000;
const MEMBERS: usize = 20;
const CHANGES: usize = 20;

/// Route as the API server sends it, with the status that the controller has written.
fn route(number: usize, version: usize) -> Value {
    let condition = |kind: &str| {
        json!({ "type": kind, "status": "True", "reason": kind, "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    let parent = json!({ "group": GROUP, "kind": "Gateway", "name": "g" });
    let target = json!({ "group": "", "kind": "Service", "name": format!("s{}", number % SERVICES), "port": 80, "weight": 1 });
    json!({ "metadata": { "namespace": "shop", "name": format!("r{number}"), "generation": 1,
                          "resourceVersion": version.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "parentRefs": [parent], "hostnames": [format!("r{number}.example")],
                      "rules": [{ "matches": [{ "path": { "type": "PathPrefix", "value": "/" } }], "backendRefs": [target] }] },
            "status": { "parents": [{ "parentRef": parent, "controllerName": "evenkeel.org/gateway",
                                      "conditions": [condition("Accepted"), condition("ResolvedRefs")] }] } })
}

fn members(service: usize) -> Vec<FoundMember> {
    let members = 0..MEMBERS;
    members
        .map(|number| {
            let address = format!("10.{}.{}.{}:8080", service / 250, service % 250, number + 1);
            FoundMember {
                address: address.parse().unwrap(),
                zone: None,
                drain: false,
            }
        })
        .collect()
}

/// Memory of the process in MB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = { status.lines() }.find(|line| line.starts_with("RssAnon"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse::<u64>().unwrap() / 1_000
}

/// Prints the least, the middle and the most of times.
fn print(part: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |place: usize| times.get(place).unwrap().as_secs_f64() * 1e3;
    let (middle, last) = (times.len() / 2, times.len() - 1);
    println!(
        "{part}: {:.2} ms ({:.2} to {:.2})",
        at(middle),
        at(0),
        at(last)
    );
}

#[tokio::test]
#[ignore = "measures: run it with --release --nocapture"]
async fn parts_of_a_change() {
    const OWN: &str = "[kubernetes.gateway]\n";
    let start = memory();
    let manager = Manager::new(Clock::start(), Arc::new(()));
    let own = evenkeel_config::parse("x", OWN).unwrap();
    manager.start(own, OWN.into()).await.unwrap();
    let mut cluster = plain();
    for service in 0..SERVICES {
        let metadata = json!({ "namespace": "shop", "name": format!("s{service}") });
        let spec = json!({ "ports": [{ "port": 80 }] });
        cluster.put(Kind::Service, json!({ "metadata": metadata, "spec": spec }));
    }
    for number in 0..ROUTES {
        cluster.put(Kind::HttpRoute, route(number, number + 1));
    }
    println!("objects: {} MB", memory() - start);
    let (settings, refused, mut kept) = (settings(), Refused::new(), Kept::default());
    let mut times: [Vec<Duration>; 5] = Default::default();
    let mut before = None;
    for change in 0..=2 * CHANGES {
        let number = ROUTES + change / 2;
        let begin = Instant::now();
        let mut lap = begin;
        let mut measure = |part: usize| {
            let took = lap.elapsed();
            // The first translation is of all routes.
            match change {
                0 => println!("first, part {part}: {took:?}"),
                _ => times[part].push(took),
            }
            lap = Instant::now();
        };
        match change % 2 {
            0 => cluster.put(Kind::HttpRoute, route(number, 2 * ROUTES + change)),
            _ => {
                let name = ObjectName::new("shop", &format!("r{number}"));
                cluster.0.remove(Kind::HttpRoute, &name);
            }
        }
        measure(0);
        let translation = translate_again(&cluster.0, &settings, &refused, &mut kept);
        measure(1);
        let generated = Generated {
            text: translation.text.clone(),
            files: Arc::new(translation.files.clone()),
        };
        assert!(manager.generated().unwrap_or_default() != generated);
        measure(2);
        let config = Arc::clone(translation.config.as_ref().unwrap());
        manager.apply_generated(generated, config).await.unwrap();
        measure(3);
        drop(before.replace(translation));
        measure(4);
        if change == 0 {
            println!("translated and applied: {} MB", memory() - start);
            for service in 0..SERVICES {
                manager.set_found_members(&format!("shop/s{service}:80"), members(service));
            }
            println!("with members: {} MB", memory() - start);
        }
    }
    let parts = ["object", "translation", "comparison", "effect", "freed"];
    for (part, times) in parts.into_iter().zip(times) {
        print(part, times);
    }
    println!("in the end: {} MB", memory() - start);
    let mut times = Vec::new();
    for service in 0..CHANGES {
        let begin = Instant::now();
        manager.set_found_members(&format!("shop/s{service}:80"), members(service + 1_000));
        times.push(begin.elapsed());
    }
    print("list of members", times);
}
