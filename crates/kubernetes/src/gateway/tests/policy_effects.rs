//! Effects of the keys that EvenkeelPolicies may set: each key with the example of the reference.

use evenkeel_config::reference::list_tables;
use evenkeel_config::{Config, GroupConfig, Route, Rule};
use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

use super::super::objects::Kind;
use super::super::policy_keys::{GROUP_KEYS, HTTP_KEYS, MEMBER_KEYS, ROUTE_KEYS, RULE_KEYS};
use super::super::settings::Settings;
use super::super::translate::settle::translate;
use super::super::translate::{Refused, Translation};
use super::{Cluster, settings, show, status_of, web};

const ACCEPTED: [&str; 1] = ["Accepted=True/Accepted"];

/// Values in place of examples that a policy may not set here.
const OTHER_EXAMPLES: [(&str, &str, &str); 3] = [
    // Policies know no other ports of members.
    (
        "[group.NAME]",
        "prometheus",
        r#"{ url = "http://{host}:{port}/metrics", loads = { utilization = "a / b" } }"#,
    ),
    ("[rule.NAME]", "http", "{ retry_budget = 0.1 }"),
    // Not all rules have requests.
    ("[rule.NAME]", "limits", "{ connections = 50 }"),
];

/// Keys that need others beside them.
const COMPANIONS: [(&str, &str, &str); 3] = [
    ("group", "inference", r#"strategy = "inference""#),
    ("rule", "return_path", r#"forward = "kernel""#),
    (
        "rule",
        "anycast",
        "forward = \"kernel\"\nreturn_path = \"tunnel\"",
    ),
];

fn to_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Integer(number) => json!(number.to_string().parse::<i64>().unwrap()),
        DeValue::Float(number) => json!(number.to_string().parse::<f64>().unwrap()),
        DeValue::Boolean(is_set) => json!(is_set),
        DeValue::Array(list) => list.iter().map(|of| to_json(of.get_ref())).collect(),
        DeValue::Table(table) => Value::Object(read_table(table)),
        DeValue::Datetime(_) => panic!("no key has a date"),
    }
}

fn read_table(table: &DeTable<'_>) -> Map<String, Value> {
    let entries = table.iter();
    entries
        .map(|(key, value)| (key.get_ref().to_string(), to_json(value.get_ref())))
        .collect()
}

fn parse_toml(text: &str) -> Map<String, Value> {
    read_table(DeTable::parse(text).unwrap().get_ref())
}

/// Returns the example of a key of a table.
fn example(header: &str, key: &str) -> Value {
    let others = OTHER_EXAMPLES.iter();
    let other = { others.clone() }.find(|(of, name, _)| (*of, *name) == (header, key));
    let text = match other {
        Some((_, _, text)) => (*text).to_owned(),
        None => {
            let tables = list_tables();
            let table = tables.iter().find(|table| table.header == header).unwrap();
            let row = table.keys.iter().find(|row| row.name == key);
            row.unwrap_or_else(|| panic!("{header} has no key {key}"))
                .example
                .to_owned()
        }
    };
    let mut table = parse_toml(&format!("value = {text}\n"));
    table.remove("value").unwrap()
}

/// Cluster with a gateway for HTTP, TCP and UDP, a route for requests, one for connections and one for datagrams.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.gateway(
        "g",
        json!([{ "name": "http", "port": 80, "protocol": "HTTP" },
               { "name": "tcp", "port": 5432, "protocol": "TCP" },
               { "name": "udp", "port": 53, "protocol": "UDP" }]),
    );
    let parents = || json!([{ "name": "g" }]);
    cluster.route("page", json!([]), json!([{ "backendRefs": web() }]));
    let rules = json!([{ "backendRefs": [{ "name": "canary", "port": 80 }] }]);
    cluster.route_at(Kind::TcpRoute, "db", parents(), Value::Null, rules);
    let rules = json!([{ "backendRefs": [{ "name": "canary", "port": 53 }] }]);
    cluster.route_at(Kind::UdpRoute, "dns", parents(), Value::Null, rules);
    cluster
}

/// Adds a policy `shop/NAME` for an object.
fn put(cluster: &mut Cluster, name: &str, (kind, of): (Kind, &str), settings: Value) {
    let mut spec = settings;
    spec["targetRefs"] = json!([{ "group": kind.api_group(), "kind": kind.name(), "name": of }]);
    cluster.put(
        Kind::EvenkeelPolicy,
        json!({ "metadata": { "namespace": "shop", "name": name, "generation": 2 }, "spec": spec }),
    );
}

fn translate_cluster(cluster: &Cluster, settings: Settings) -> Translation {
    translate(&cluster.0, &settings, &Refused::new())
}

fn config(translation: &Translation) -> &Config {
    translation.config.as_ref().unwrap()
}

/// Returns the configuration with a policy that has these keys in a section, and checks that the policy is accepted.
fn apply(section: &str, target: (Kind, &str), keys: Map<String, Value>) -> Config {
    let mut cluster = cluster();
    put(&mut cluster, "p", target, json!({ section: keys.clone() }));
    let settings = Settings {
        // The kernel cannot forward for all addresses.
        listen: vec!["192.0.2.10".parse().unwrap()],
        ..settings()
    };
    let translation = translate_cluster(&cluster, settings);
    let conditions =
        &status_of(&translation, Kind::EvenkeelPolicy, "p")["ancestors"][0]["conditions"];
    assert_eq!(show(conditions), ACCEPTED, "{keys:?}: {conditions}");
    assert_eq!(conditions[0]["message"], "", "{keys:?}");
    config(&translation).clone()
}

/// Checks that the documented example of a key changes a part of the configuration.
fn check_effect<T: PartialEq + std::fmt::Debug>(
    section: &str,
    header: &str,
    key: &str,
    target: (Kind, &str),
    find: impl Fn(&Config) -> T,
) {
    let companions = COMPANIONS.iter();
    let mut companions = companions.filter(|(of, name, _)| (*of, *name) == (section, key));
    let mut keys = companions
        .next()
        .map(|(_, _, text)| parse_toml(text))
        .unwrap_or_default();
    let without = find(&apply(section, target, keys.clone()));
    keys.insert(key.to_owned(), example(header, key));
    let with = find(&apply(section, target, keys));
    assert!(
        with != without,
        "{section}.{key} has no effect: its example is the default, or nobody reads it\n{with:?}"
    );
}

fn find_group(config: &Config) -> GroupConfig {
    let mut groups = config.groups.iter();
    let group = groups.find(|group| group.name.starts_with("kubernetes.shop.web.80"));
    GroupConfig::clone(group.unwrap())
}

fn find_route(config: &Config) -> Route {
    Route::clone(&find_rule(config, "kubernetes.80").routes.list()[0])
}

fn find_rule(config: &Config, name: &str) -> Rule {
    let mut rules = config.rules.iter();
    let rule = rules.find(|rule| rule.name == name);
    rule.unwrap_or_else(|| panic!("no rule {name}")).clone()
}

#[test]
fn each_key_of_groups_has_its_effect() {
    for key in GROUP_KEYS {
        let header = "[group.NAME]";
        check_effect("group", header, key, (Kind::Service, "web"), find_group);
    }
    for key in MEMBER_KEYS {
        let header = "[[group.NAME.members]]";
        check_effect("member", header, key, (Kind::Service, "web"), find_group);
    }
}

#[test]
fn each_key_of_routes_has_its_effect() {
    for target in [(Kind::HttpRoute, "page"), (Kind::Gateway, "g")] {
        for key in ROUTE_KEYS {
            check_effect("route", "[[rule.NAME.routes]]", key, target, find_route);
        }
    }
}

#[test]
fn each_key_of_rules_has_its_effect() {
    for key in RULE_KEYS {
        let name = match key {
            "udp" => "kubernetes.53.udp",
            "forward" | "return_path" | "anycast" => "kubernetes.5432",
            _ => "kubernetes.80",
        };
        let find = |config: &Config| find_rule(config, name);
        // The port for datagrams cannot have what the one for connections has.
        let target = match key {
            "anycast" => (Kind::TcpRoute, "db"),
            _ => (Kind::Gateway, "g"),
        };
        check_effect("rule", "[rule.NAME]", key, target, find);
    }
    let header = "[rule.NAME.http]";
    let find = |config: &Config| find_rule(config, "kubernetes.80").http;
    let base = find(&apply("rule", (Kind::Gateway, "g"), Map::new()));
    for key in HTTP_KEYS {
        let keys = parse_toml(&format!("http = {{ {key} = 1 }}\n"));
        let mut keys = keys;
        keys["http"][key] = example(header, key);
        let with = find(&apply("rule", (Kind::Gateway, "g"), keys));
        assert!(with != base, "{key}");
    }
}

#[test]
fn limits_of_a_gateway_hold_for_all_its_protocols() {
    let keys = parse_toml("max_connections = 7\nlimits = { connections = 3 }\n");
    let config = apply("rule", (Kind::Gateway, "g"), keys);
    for name in ["kubernetes.80", "kubernetes.5432", "kubernetes.53.udp"] {
        let rule = find_rule(&config, name);
        assert_eq!(
            (rule.max_connections, rule.limits.connections),
            (7, Some(3)),
            "{name}"
        );
    }
}

#[test]
fn a_policy_of_a_pool_sets_keys_of_its_engines() {
    let mut cluster = cluster();
    let pool = |name: &str| json!({ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name });
    cluster.put(
        Kind::InferencePool,
        json!({ "metadata": { "namespace": "shop", "name": "llama" },
                "spec": { "selector": { "matchLabels": { "app": "vllm" } }, "targetPorts": [{ "number": 8000 }] } }),
    );
    cluster.route(
        "chat",
        json!(["chat.example"]),
        json!([{ "backendRefs": [pool("llama")] }]),
    );
    let base = config(&translate_cluster(&cluster, settings())).clone();
    put(
        &mut cluster,
        "p",
        (Kind::InferencePool, "llama"),
        json!({ "group": { "strategy": "random", "max_queue": 7, "inference": { "max_prompt": "64KiB" } },
                "member": { "max_connections": 9 } }),
    );
    put(
        &mut cluster,
        "q",
        (Kind::HttpRoute, "chat"),
        json!({ "route": { "request_limits": [{ "tokens": "1000/m" }], "response_timeout": "30s" } }),
    );
    let translation = translate_cluster(&cluster, settings());
    for name in ["p", "q"] {
        let status = &status_of(&translation, Kind::EvenkeelPolicy, name)["ancestors"][0];
        assert_eq!(show(&status["conditions"]), ACCEPTED, "{status}");
    }
    let now = config(&translation);
    let find = |config: &Config| {
        let mut groups = config.groups.iter();
        GroupConfig::clone(
            groups
                .find(|of| of.name == "kubernetes.shop.llama.pool")
                .unwrap(),
        )
    };
    let (before, after) = (find(&base), find(now));
    // The strategy of engines is the same in any case.
    assert_eq!(after.strategy.kind().name, "inference");
    assert_eq!((before.max_queue, after.max_queue), (1024, 7));
    assert_eq!(after.services[0].max_connections, Some(9));
    assert_ne!(before.settings.inference, after.settings.inference);
    let rule = find_rule(now, "kubernetes.80");
    let mut routes = rule.routes.list().iter();
    let route = routes.find(|route| route.host == ["chat.example"]).unwrap();
    assert!(route.request_limits[0].tokens.is_some());
    // The policy goes before the time that engines have by default.
    assert_eq!(route.response_timeout.unwrap().as_secs(), 30);
}

#[test]
fn a_policy_of_a_service_holds_for_ingresses() {
    let mut cluster = Cluster::new();
    cluster.put(
        Kind::IngressClass,
        json!({ "metadata": { "name": "edge" }, "spec": { "controller": "evenkeel.org/ingress" } }),
    );
    let paths = json!([super::ingress::path("/", "Prefix", "web")]);
    let spec = super::ingress::spec("a.example", paths);
    super::ingress::put_ingress(&mut cluster, "a", &[("load-balance", "ewma")], spec);
    put(
        &mut cluster,
        "p",
        (Kind::Service, "web"),
        json!({ "group": { "strategy": "random", "max_queue": 7 }, "member": { "max_connections": 9 } }),
    );
    let translation = translate_cluster(&cluster, super::ingress::settings());
    let group = find_group(config(&translation));
    // Annotations of the Ingress go first.
    assert_eq!(
        (group.strategy.kind().name, group.max_queue),
        ("peak_ewma", 7)
    );
    assert_eq!(group.services[0].max_connections, Some(9));
}

#[test]
fn an_annotation_of_a_service_is_the_lowest_layer() {
    let annotate = |cluster: &mut Cluster, value: &str| {
        cluster.put(
            Kind::Service,
            json!({ "metadata": { "namespace": "shop", "name": "web", "uid": "u",
                                  "annotations": { "evenkeel.org/orca": value } },
                    "spec": { "ports": [{ "port": 80 }, { "port": 53, "protocol": "UDP" }] } }),
        );
    };
    let orca = |translation: &Translation| find_group(config(translation)).sources.orca.clone();
    let mut cluster = cluster();
    assert!(orca(&translate_cluster(&cluster, settings())).is_none());
    annotate(&mut cluster, "true");
    let translation = translate_cluster(&cluster, settings());
    assert!(orca(&translation).unwrap().strip);
    assert_eq!(
        find_group(config(&translation)).name,
        "kubernetes.shop.web.80"
    );
    annotate(&mut cluster, r#"{"strip": false}"#);
    assert!(
        !orca(&translate_cluster(&cluster, settings()))
            .unwrap()
            .strip
    );
    // Each policy goes first, and other keys of policies leave the annotation in effect.
    put(
        &mut cluster,
        "p",
        (Kind::Gateway, "g"),
        json!({ "group": { "max_queue": 5 } }),
    );
    let translation = translate_cluster(&cluster, settings());
    assert!(orca(&translation).is_some());
    assert_eq!(find_group(config(&translation)).max_queue, 5);
    put(
        &mut cluster,
        "p",
        (Kind::Gateway, "g"),
        json!({ "group": { "orca": false } }),
    );
    assert!(orca(&translate_cluster(&cluster, settings())).is_none());
    // An annotation that cannot be used is told, and harms nobody.
    annotate(&mut cluster, "yes");
    let translation = translate_cluster(&cluster, settings());
    let [notice] = &translation.notices[..] else {
        panic!("{:?}", translation.notices);
    };
    assert_eq!(
        (notice.kind, notice.reason, &*notice.uid),
        (Kind::Service, "Ignored", "u")
    );
    assert!(notice.message.contains("neither true nor false"));
}
