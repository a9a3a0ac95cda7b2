//! Tests of translations that follow one another: each is the one that is made from scratch.

use evenkeel_config::GeneratedParser;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::translate::settle::translate_again;
use super::settle::bad_rules;
use super::*;

const SERVICES: [&str; 2] = ["web", "canary"];

/// Change of a world.
#[derive(Clone, Debug)]
enum Step {
    /// A route comes, or changes: its number, its host, and the number of its rule.
    Route(usize, usize, usize),
    /// A route goes.
    NoRoute(usize),
    /// A service comes (true), or goes.
    Service(usize, bool),
    /// The gateway has so many listeners.
    Gateway(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_usize, 0..4_usize, 0..40_usize).prop_map(|(n, host, rule)| Step::Route(n, host, rule)),
        2 => (0..6_usize).prop_map(Step::NoRoute),
        1 => (0..2_usize, any::<bool>()).prop_map(|(n, is_there)| Step::Service(n, is_there)),
        1 => (0..4_usize).prop_map(Step::Gateway),
    ]
}

/// Rules, most of them good.
fn rule(number: usize) -> Value {
    let target = json!([{ "name": (SERVICES[number % 2]), "port": 80 }]);
    match bad_rules().get(number) {
        Some(bad) if number.is_multiple_of(3) => bad.clone(),
        _ if number.is_multiple_of(5) => {
            json!({ "backendRefs": target, "sessionPersistence": { "sessionName": format!("s{number}") } })
        }
        _ => {
            json!({ "matches": [{ "path": { "type": "PathPrefix", "value": format!("/{number}") } }],
                     "backendRefs": target })
        }
    }
}

fn listeners(count: usize) -> Value {
    let all = [
        json!({ "name": "http", "port": 80, "protocol": "HTTP" }),
        json!({ "name": "other", "port": 81, "protocol": "HTTP", "hostname": "*.example" }),
        json!({ "name": "tls", "port": 443, "protocol": "HTTPS" }),
    ];
    all.into_iter().take(count).collect()
}

fn apply(cluster: &mut Cluster, step: &Step) {
    let hosts = ["a.example", "b.example", "*.example", "a b"];
    match *step {
        Step::Route(number, host, of) => cluster.put(
            Kind::HttpRoute,
            json!({ "metadata": { "namespace": "shop", "name": format!("r{number}"),
                                  "creationTimestamp": format!("2026-01-01T00:00:0{}Z", number % 3) },
                    "spec": { "parentRefs": [{ "name": "g" }], "hostnames": [hosts[host]], "rules": [rule(of)] } }),
        ),
        Step::NoRoute(number) => {
            let name = ObjectName::new("shop", &format!("r{number}"));
            cluster.0.remove(Kind::HttpRoute, &name);
        }
        Step::Service(number, true) => cluster.put(
            Kind::Service,
            json!({ "metadata": { "namespace": "shop", "name": (SERVICES[number]) },
                    "spec": { "ports": [{ "port": 80 }] } }),
        ),
        Step::Service(number, false) => {
            let name = ObjectName::new("shop", SERVICES[number]);
            cluster.0.remove(Kind::Service, &name);
        }
        Step::Gateway(count) => cluster.gateway("g", listeners(count)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_translation_after_others_is_the_one_from_scratch(
        steps in proptest::collection::vec(any_step(), 1..30),
    ) {
        let (mut cluster, mut parser) = (plain(), GeneratedParser::default());
        for step in steps {
            apply(&mut cluster, &step);
            let refused = Refused::new();
            let again = translate_again(&cluster.0, &settings(), &refused, &mut parser);
            let scratch = translate(&cluster.0, &settings(), &refused);
            prop_assert_eq!(&again.text, &scratch.text);
            prop_assert_eq!(&again.statuses, &scratch.statuses);
            prop_assert_eq!((&again.rules, &again.files), (&scratch.rules, &scratch.files));
            let whole = evenkeel_config::parse_generated(&again.text).unwrap();
            prop_assert_eq!(&**again.config.as_ref().unwrap(), &whole);
            prop_assert_eq!(&**scratch.config.as_ref().unwrap(), &whole);
        }
    }
}
