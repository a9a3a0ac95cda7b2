//! CRD of EvenkeelPolicy, written from the rows of the configuration's reference.

use std::fmt::Write as _;
use std::path::Path;

use evenkeel_config::reference::{KeyDoc, TableDoc, list_tables};
use serde_json::{Map, Value, json};

use super::super::group_policies::MAX_TARGETS;
use super::super::objects::Kind;
use super::super::policy_keys::{
    GROUP_KEYS, HTTP_KEYS, MEMBER_KEYS, ROUTE_KEYS, RULE_KEYS, is_of_machine,
};

/// Files with the CRD.
const FILES: [&str; 2] = [
    "../../packaging/kubernetes/policy-crd.yaml",
    "../../packaging/kubernetes/chart/crds/policy-crd.yaml",
];

/// Returns a text of Markdown without links and quotes of code.
fn write_plain(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain.replace(['[', ']', '`'], "")
}

/// Returns the bounds of a text such as `a whole number from 1 to 7 (checks)`.
fn read_bounds(allowed: &str) -> Option<[Value; 2]> {
    let (_, range) = allowed.split_once(" from ")?;
    let (low, rest) = range.split_once(" to ")?;
    let high = rest.split(' ').next()?;
    let read = |text: &str| {
        let number = serde_json::from_str::<Value>(text).ok()?;
        number.is_number().then_some(number)
    };
    Some([read(low)?, read(high)?])
}

/// True if a policy may set a key of a table inside another one.
fn may_be_set(header: &str, key: &KeyDoc) -> bool {
    let is_allowed = header != "[rule.NAME.http]" || HTTP_KEYS.contains(&key.name);
    is_allowed && !is_of_machine(key.name)
}

/// Returns the schema of a key's value, without a description. A value of several types is checked by the balancer alone.
fn make_schema(header: &str, key: &KeyDoc, tables: &[TableDoc]) -> Value {
    let (allowed, is_single) = (key.allowed.as_str(), !key.allowed.contains(", or "));
    let bounds = read_bounds(allowed).filter(|_| is_single);
    let header = format!("{}.{}]", header.trim_end_matches(']'), key.name);
    let table = tables.iter().find(|table| table.header == header);
    let texts: Vec<&str> = allowed.split(", ").collect();
    let are_texts = texts.iter().all(|text| {
        let inner = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        inner.is_some_and(|text| !text.contains('"'))
    });
    match (bounds, table) {
        _ if allowed == "true or false" => json!({ "type": "boolean" }),
        (Some([low, high]), _) if allowed.starts_with("a whole number") => {
            json!({ "type": "integer", "minimum": low, "maximum": high })
        }
        (Some([low, high]), _) if allowed.starts_with("a number") => {
            json!({ "type": "number", "minimum": low, "maximum": high })
        }
        (_, Some(table)) if allowed.starts_with("a table of") => {
            let keys = table.keys.iter().filter(|key| may_be_set(&header, key));
            json!({ "type": "object", "properties": describe_keys(&header, keys, tables) })
        }
        _ if allowed.starts_with("a time from") && is_single => json!({ "type": "string" }),
        _ if are_texts => {
            let texts = texts.iter().map(|text| text.trim_matches('"'));
            json!({ "type": "string", "enum": texts.collect::<Vec<_>>() })
        }
        _ => json!({ "x-kubernetes-preserve-unknown-fields": true }),
    }
}

fn describe_keys<'k>(
    header: &str,
    keys: impl Iterator<Item = &'k KeyDoc>,
    tables: &[TableDoc],
) -> Map<String, Value> {
    let keys = keys.map(|key| {
        let mut description = format!("{} Allowed: {}.", write_plain(&key.doc), key.allowed);
        if let Some(default) = &key.default {
            let _ = write!(description, " Default: {default}.");
        }
        let mut schema = json!({ "description": description });
        let fields = schema.as_object_mut().unwrap();
        fields.extend(
            make_schema(header, key, tables)
                .as_object()
                .unwrap()
                .clone(),
        );
        (key.name.to_owned(), schema)
    });
    keys.collect()
}

/// Returns the schema of a section: those keys of a table that a policy may set.
fn make_section(header: &str, names: &[&str], description: &str) -> Value {
    let tables = list_tables();
    let table = tables.iter().find(|table| table.header == header).unwrap();
    let keys: Vec<&KeyDoc> = names
        .iter()
        .map(|name| {
            let key = table.keys.iter().find(|key| key.name == *name);
            key.unwrap_or_else(|| panic!("{header} has no key {name}"))
        })
        .collect();
    let properties = describe_keys(header, keys.into_iter(), &tables);
    json!({ "description": description, "type": "object", "properties": properties })
}

fn make_crd() -> Value {
    let text = json!({ "type": "string" });
    let kinds = [
        "Service",
        "InferencePool",
        "HTTPRoute",
        "GRPCRoute",
        "TLSRoute",
        "TCPRoute",
        "UDPRoute",
        "Gateway",
    ];
    let name = json!({ "type": "string", "minLength": 1, "maxLength": 253 });
    let target = json!({ "type": "object", "required": ["group", "kind", "name"], "properties": {
        "group": { "description": "Group of the API; empty for a Service.", "type": "string", "maxLength": 253 },
        "kind": { "description": "Kind of the target.", "type": "string", "enum": kinds },
        "name": name,
        "sectionName": { "description": "Name of a port of a Service.", "type": "string", "maxLength": 253 },
    } });
    let spec = json!({ "type": "object", "required": ["targetRefs"], "properties": {
        "targetRefs": { "description": "Objects of the policy's namespace for which the policy holds.",
                        "type": "array", "minItems": 1, "maxItems": MAX_TARGETS, "items": target },
        "group": make_section("[group.NAME]", &GROUP_KEYS,
                              "Settings of the groups of members, as in [group.NAME] of the configuration."),
        "route": make_section("[[rule.NAME.routes]]", &ROUTE_KEYS,
                              "Settings of the routes of requests, as in the list routes of a rule of the configuration."),
        "rule": make_section("[rule.NAME]", &RULE_KEYS,
                             "Settings of the rules, one for each port, as in [rule.NAME] of the configuration."),
        "member": make_section("[[group.NAME.members]]", &MEMBER_KEYS,
                               "Settings of each member, as in the list members of a group of the configuration."),
    } });
    let status = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let kind = Kind::EvenkeelPolicy;
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{}", kind.plural(), kind.api_group()),
            "labels": { "gateway.networking.k8s.io/policy": "Inherited" },
        },
        "spec": {
            "group": kind.api_group(),
            "names": { "kind": kind.name(), "listKind": format!("{}List", kind.name()),
                       "plural": kind.plural(), "singular": "evenkeelpolicy" },
            "scope": "Namespaced",
            "versions": [{
                "name": kind.versions()[0], "served": true, "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "description": "Settings of the groups of members to which gateways send requests, and of rules and their routes.",
                    "type": "object", "required": ["spec"],
                    "properties": { "apiVersion": text, "kind": text, "metadata": { "type": "object" },
                                    "spec": spec, "status": status },
                } },
            }],
        },
    })
}

/// Writes a value as YAML.
fn write_yaml(value: &Value, indent: usize, yaml: &mut String) {
    let start = " ".repeat(indent);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let is_block = match value {
                    Value::Object(map) => !map.is_empty(),
                    Value::Array(list) => list.iter().any(Value::is_object),
                    _ => false,
                };
                if is_block {
                    let _ = writeln!(yaml, "{start}{key}:");
                    write_yaml(value, indent + 2, yaml);
                } else {
                    let _ = writeln!(yaml, "{start}{key}: {value}");
                }
            }
        }
        Value::Array(list) => {
            for item in list {
                let mut block = String::new();
                write_yaml(item, indent + 2, &mut block);
                let _ = write!(yaml, "{start}- {}", block.trim_start());
            }
        }
        other => {
            let _ = writeln!(yaml, "{start}{other}");
        }
    }
}

/// `UPDATE_DOCS=1 cargo test -p evenkeel-kubernetes policy_crd` writes the files.
#[test]
fn the_crd_has_the_keys_of_the_configuration() {
    let mut text = "# EvenkeelPolicy: docs/kubernetes.md, Settings of groups. Written by a test from the keys of the \
                    configuration.\n"
        .to_owned();
    write_yaml(&make_crd(), 0, &mut text);
    for file in FILES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            known == text,
            "{file} is old: UPDATE_DOCS=1 cargo test -p evenkeel-kubernetes policy_crd"
        );
    }
}

/// Rows whose values are paths of files have names by which policies refuse them.
#[test]
fn keys_with_paths_of_files_are_of_the_machine() {
    let tables = list_tables();
    let mut count = 0;
    for table in &tables {
        let inside = table.header.trim_matches(['[', ']']);
        let homes = [
            ("group.NAME.", &GROUP_KEYS[..]),
            ("rule.NAME.routes.", &ROUTE_KEYS),
            ("rule.NAME.", &RULE_KEYS),
        ];
        let home = homes.iter().find(|(prefix, _)| inside.starts_with(prefix));
        let Some((prefix, allowed)) = home else {
            continue;
        };
        let mut parts = inside.trim_start_matches(prefix).split('.');
        let is_reached = parts.next().is_some_and(|part| allowed.contains(&part))
            && parts.all(|part| !is_of_machine(part));
        for key in table.keys.iter().filter(|_| is_reached) {
            if key.allowed.starts_with("the path of a file") {
                assert!(is_of_machine(key.name), "{} {}", table.header, key.name);
                count += 1;
            }
        }
    }
    assert!(count > 0);
}
