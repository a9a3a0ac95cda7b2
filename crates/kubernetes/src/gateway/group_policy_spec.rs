//! Specification of EvenkeelPolicies: targets, and keys of groups, members, routes and rules, which become lines of a
//! configuration.
//!
//! The parser of configurations checks the keys once, when the object is read.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::policy_check::{find_problem, find_route_problem, find_rule_problem};
use super::policy_keys::{
    GROUP_KEYS, HTTP_KEYS, LIMITS, MEMBER_KEYS, PolicyLine, ROUTE_KEYS, RULE_KEYS, is_of_machine,
    is_url_of_member,
};
use super::policy_spec::PolicyTarget;
use super::values::{Items, or_default};

/// Most bytes of the keys of a policy, which are written into each of its groups.
const MAX_LENGTH: usize = 16 * 1024;

/// Most bytes of the keys of routes, which are written into each route of the configuration.
const MAX_ROUTE_LENGTH: usize = 2 * 1024;

/// Number of clients that a limit of requests remembers, with 16 bytes each.
const LIMITED_CLIENTS: usize = 8_192;

/// Most tables and lists inside each other.
const MAX_DEPTH: usize = 8;

/// Specification of an EvenkeelPolicy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "RawSpec")]
pub struct EvenkeelPolicySpec {
    /// Objects for which the policy holds.
    pub target_refs: Items<PolicyTarget>,
    /// Keys of the groups.
    pub group: Vec<PolicyLine>,
    /// Keys of each member.
    pub member: Vec<PolicyLine>,
    /// Keys of the routes of requests.
    pub route: Vec<PolicyLine>,
    /// Limits of requests among the keys of routes, without those of tokens; `None` if no limit is one of tokens.
    pub limits_without_tokens: Option<PolicyLine>,
    /// Keys of the rules.
    pub rule: Vec<PolicyLine>,
    /// Reason why the keys cannot be used.
    pub problem: Option<String>,
}

/// Specification as the API server sends it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawSpec {
    target_refs: Items<PolicyTarget>,
    #[serde(deserialize_with = "or_default")]
    group: Map<String, Value>,
    #[serde(deserialize_with = "or_default")]
    member: Map<String, Value>,
    #[serde(deserialize_with = "or_default")]
    route: Map<String, Value>,
    #[serde(deserialize_with = "or_default")]
    rule: Map<String, Value>,
}

impl From<RawSpec> for EvenkeelPolicySpec {
    fn from(raw: RawSpec) -> Self {
        let mut problem = None;
        let mut read = |section: &str, keys: &[&str], map: &Map<String, Value>| {
            read_lines(section, keys, map).unwrap_or_else(|message| {
                problem.get_or_insert(message);
                Vec::new()
            })
        };
        let group = read("group", &GROUP_KEYS, &raw.group);
        let member = read("member", &MEMBER_KEYS, &raw.member);
        let route = read("route", &ROUTE_KEYS, &raw.route);
        let rule = read("rule", &RULE_KEYS, &raw.rule);
        let count = |lines: &[PolicyLine]| -> usize {
            let lengths = lines.iter().map(|line| line.key.len() + line.value.len());
            lengths.sum()
        };
        let length = count(&group) + count(&member) + count(&rule);
        let problem = problem.or_else(|| {
            if length > MAX_LENGTH {
                return Some(format!(
                    "spec.group, spec.member and spec.rule have {length} bytes; write {MAX_LENGTH} at most"
                ));
            }
            if count(&route) > MAX_ROUTE_LENGTH {
                return Some(format!(
                    "spec.route has {} bytes; write {MAX_ROUTE_LENGTH} at most",
                    count(&route)
                ));
            }
            find_problem("spec.group.", &group, &member)
                .or_else(|| find_route_problem(&route))
                .or_else(|| find_rule_problem(&rule))
        });
        let limits = raw.route.get(LIMITS).filter(|_| problem.is_none());
        EvenkeelPolicySpec {
            limits_without_tokens: limits.and_then(leave_out_tokens),
            target_refs: raw.target_refs,
            group,
            member,
            route,
            rule,
            problem,
        }
    }
}

/// Returns limits of requests without those of tokens; `None` if no limit is one of tokens.
fn leave_out_tokens(limits: &Value) -> Option<PolicyLine> {
    let list = list_limits(limits);
    let is_plain = |limit: &&Value| limit.get("tokens").is_none();
    let plain: Vec<Value> = list.iter().filter(is_plain).cloned().collect();
    if plain.len() == list.len() {
        return None;
    }
    // All limits together could be read.
    read_limits(LIMITS, &plain.into()).ok()
}

/// Reads the keys of a section.
///
/// # Errors
///
/// The reason why a key cannot be used.
fn read_lines(
    section: &str,
    keys: &[&str],
    map: &Map<String, Value>,
) -> Result<Vec<PolicyLine>, String> {
    let lines = map.iter().map(|(key, value)| {
        let path = format!("spec.{section}.{key}");
        if !keys.contains(&key.as_str()) {
            return Err(format!(
                "{path} cannot be set by a policy; remove the key. Allowed keys: {}",
                keys.join(", ")
            ));
        }
        match (key.as_str(), value) {
            ("http", Value::Object(options)) => read_http_keys(&path, options),
            (LIMITS, _) => Ok(vec![read_limits(&path, value)?]),
            _ => Ok(vec![read_line(&path, key, value)?]),
        }
    });
    let lines = lines.collect::<Result<Vec<_>, String>>()?;
    Ok(lines.into_iter().flatten().collect())
}

/// Reads keys of `http` of rules, each as a line: other lines of the rule may set others.
///
/// # Errors
///
/// The reason why a key cannot be used.
fn read_http_keys(path: &str, options: &Map<String, Value>) -> Result<Vec<PolicyLine>, String> {
    let lines = options.iter().map(|(key, value)| {
        let path = format!("{path}.{key}");
        match HTTP_KEYS.contains(&key.as_str()) {
            true => read_line(&path, &format!("http.{key}"), value),
            false => Err(format!(
                "{path} cannot be set by a policy; remove the key. Allowed keys: {}",
                HTTP_KEYS.join(", ")
            )),
        }
    });
    lines.collect()
}

/// Returns the limits of a list, or a single limit.
fn list_limits(limits: &Value) -> &[Value] {
    match limits {
        Value::Array(list) => list.as_slice(),
        single => std::slice::from_ref(single),
    }
}

/// Reads limits of requests, which remember fewer clients than usual: each rule of a route has tables of its own.
///
/// # Errors
///
/// The reason why the limits cannot be used.
fn read_limits(path: &str, limits: &Value) -> Result<PolicyLine, String> {
    let tables = list_limits(limits).iter().map(|table| {
        let text = write_value(path, table, MAX_DEPTH)?;
        let keys = { text.strip_prefix("{ ") }.filter(|keys| !keys.trim_start().starts_with('}'));
        Ok(match keys {
            Some(keys) => format!("{{ table_size = {LIMITED_CLIENTS}, {keys}"),
            None => text,
        })
    });
    let tables = tables.collect::<Result<Vec<String>, String>>()?;
    let value = format!("[{}]", tables.join(", "));
    let key = LIMITS.to_owned();
    Ok(PolicyLine { key, value })
}

/// Reads a key with its value. `path` is the place of the key, for messages.
///
/// # Errors
///
/// The reason why the value cannot be used.
pub(crate) fn read_line(path: &str, key: &str, value: &Value) -> Result<PolicyLine, String> {
    let (key, value) = (key.to_owned(), write_value(path, value, MAX_DEPTH)?);
    Ok(PolicyLine { key, value })
}

/// Writes a value in TOML. `path` is the place of the value, for messages.
///
/// # Errors
///
/// The reason why the value cannot be used.
fn write_value(path: &str, value: &Value, depth: usize) -> Result<String, String> {
    let Some(below) = depth.checked_sub(1) else {
        return Err(format!(
            "{path} has too many tables inside each other; remove some"
        ));
    };
    // The escapes of JSON are those of TOML, too.
    let quote = |text: &str| Value::from(text).to_string();
    Ok(match value {
        Value::Null => return Err(format!("{path} has no value; set one, or remove the key")),
        Value::Bool(is_set) => is_set.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quote(text),
        Value::Array(list) => {
            let items = list.iter().map(|item| write_value(path, item, below));
            format!("[{}]", items.collect::<Result<Vec<_>, _>>()?.join(", "))
        }
        Value::Object(map) => {
            let items = map.iter().map(|(key, value)| {
                let path = format!("{path}.{key}");
                if is_of_machine(key) {
                    return Err(format!(
                        "{path} cannot be set by a policy, because it is about the machine of the balancer, or about other ports than the service's; remove the key"
                    ));
                }
                let is_of_others = |url: &str| !is_url_of_member(url);
                if key == "url" && value.as_str().is_some_and(is_of_others) {
                    return Err(format!(
                        "{path} is not one of the member; write one as \"http://{{host}}:{{port}}/metrics\""
                    ));
                }
                Ok(format!(
                    "{} = {}",
                    quote(key),
                    write_value(&path, value, below)?
                ))
            });
            let items = items.collect::<Result<Vec<_>, _>>()?;
            format!("{{ {} }}", items.join(", "))
        }
    })
}
