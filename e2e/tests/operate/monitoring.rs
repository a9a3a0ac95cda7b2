//! The alert rules for Prometheus and the dashboard for Grafana: every metric and label that they name is one that the balancer
//! really has, and the rules do what their tests say.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::process::are_installed;
use serde_json::Value;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

fn promtool(arguments: &[&str]) -> (bool, String) {
    let mut command = evenkeel_e2e::process::program("promtool");
    let command: &mut Command = command.args(arguments);
    let output = command
        .current_dir(packaging().join("prometheus"))
        .output()
        .unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn rules_fire_when_they_are_to() {
    if !are_installed(&["promtool"]) {
        return;
    }
    let (valid, said) = promtool(&["check", "rules", "evenkeel.rules.yml"]);
    assert!(valid, "{said}");
    let (passed, said) = promtool(&["test", "rules", "evenkeel.rules.test.yml"]);
    assert!(passed, "{said}");
    // And each has a test.
    let rules = fs::read_to_string(packaging().join("prometheus/evenkeel.rules.yml")).unwrap();
    let tests = fs::read_to_string(packaging().join("prometheus/evenkeel.rules.test.yml")).unwrap();
    let names = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let names: Vec<_> = names.collect();
    assert!(names.len() > 10);
    for name in names {
        assert!(
            tests.contains(&format!("alertname: {name}\n")),
            "{name} is not tested"
        );
    }
}

/// The families of the balancer's page, with the labels of their samples where there are any.
fn exposed() -> BTreeMap<String, BTreeSet<String>> {
    let balancer = Balancer::start_http(&["127.0.0.1:1".parse().unwrap()], "");
    let page = balancer.admin_get("/metrics").text().to_owned();
    let mut families: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let name = family.split(' ').next().unwrap();
            families.entry(name.to_owned()).or_default();
        } else if let Some((name, rest)) = line.split_once('{') {
            let (labels, _) = rest.rsplit_once('}').unwrap();
            let names = labels
                .split("\",")
                .map(|label| label.split('=').next().unwrap());
            let all = families.entry(name.to_owned()).or_default();
            all.extend(names.map(str::to_owned));
        }
    }
    families
}

/// Names of metrics in an expression: ours, and those of any process.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':');
    let words = expression.split(|letter| !is_part(letter));
    let ours = words.filter(|word| word.starts_with("evenkeel_") || word.starts_with("process_"));
    ours.map(str::to_owned).collect()
}

/// Expressions of PromQL in the dashboard, wherever they stand.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text)
                        if ["expr", "query", "definition"].contains(&name.as_str()) =>
                    {
                        found.push(text.clone());
                    }
                    other => expressions(other, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn every_metric_of_rules_and_dashboard_is_there() {
    let exposed = exposed();
    let is_there = |metric: &str| {
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| metric.strip_suffix(end));
        exposed.contains_key(metric) || family.is_some_and(|family| exposed.contains_key(family))
    };
    let rules = fs::read_to_string(packaging().join("prometheus/evenkeel.rules.yml")).unwrap();
    // Tests name series of the same metrics.
    let tests = fs::read_to_string(packaging().join("prometheus/evenkeel.rules.test.yml")).unwrap();
    let dashboard = fs::read_to_string(packaging().join("grafana/evenkeel.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut of_dashboard = Vec::new();
    expressions(&dashboard, &mut of_dashboard);
    assert!(of_dashboard.len() > 30, "{of_dashboard:?}");
    let mut named = metrics_in(&rules);
    named.extend(metrics_in(&tests));
    named.extend(of_dashboard.iter().flat_map(|one| metrics_in(one)));
    assert!(named.len() > 30, "{named:?}");
    // Only where certificates come by ACME.
    named.retain(|metric| !metric.starts_with("evenkeel_acme_"));
    let missing: Vec<_> = named.iter().filter(|metric| !is_there(metric)).collect();
    assert!(missing.is_empty(), "the balancer has no {missing:?}");
    // What is compared, grouped or shown by labels that the balancer does not give would be empty for ever.
    for (metric, labels) in [
        ("evenkeel_member_up", &["group", "member"][..]),
        ("evenkeel_rule_responses_total", &["rule", "class"]),
        ("evenkeel_rule_refused_total", &["rule", "reason"]),
        ("evenkeel_rule_retries_total", &["rule", "result"]),
        ("evenkeel_rule_timeouts_total", &["rule", "side"]),
        (
            "evenkeel_member_requests_total",
            &["group", "member", "outcome"],
        ),
        ("evenkeel_shortages_total", &["resource"]),
        ("evenkeel_group_queue_overloaded", &["group"]),
        ("evenkeel_rule_bytes_total", &["rule", "direction"]),
    ] {
        for label in labels {
            assert!(exposed[metric].contains(*label), "{metric} has no {label}");
        }
    }
}

#[test]
fn expressions_of_the_dashboard_are_valid() {
    if !are_installed(&["promtool"]) {
        return;
    }
    let dashboard = fs::read_to_string(packaging().join("grafana/evenkeel.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    // Each becomes a rule, which promtool parses; Grafana fills the variables in.
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    let mut panels = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression.replace("$__rate_interval", "5m");
            let expression = expression
                .replace("$instance", ".*")
                .replace("$rule", ".*")
                .replace("$group", ".*");
            assert!(!expression.contains('$'), "{expression}");
            panels += 1;
            rules.push_str(&format!(
                "      - record: panel:{panels}\n        expr: {}\n",
                Value::from(expression)
            ));
        }
    }
    assert!(panels > 30, "{panels}");
    let folder = evenkeel_e2e::folder::Folder::new();
    let file = folder.write("dashboard.yml", rules);
    let (valid, said) = promtool(&["check", "rules", file.to_str().unwrap()]);
    assert!(valid, "{said}");
}
