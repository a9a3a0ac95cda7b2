//! Specification of EvenkeelPolicies: targets, and keys of groups, members and rules, which become lines of a configuration.
//!
//! The parser of configurations checks the keys once, when the object is read.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::policy_spec::PolicyTarget;
use super::values::{Items, or_default};

/// Keys of groups that a policy may set, as in `[group.NAME]`. The others name members, files, and addresses of other
/// machines, or belong to other objects of the API.
pub(crate) const GROUP_KEYS: [&str; 23] = [
    "strategy",
    "granularity",
    "adaptive",
    "late_binding",
    "rebind_interval",
    "load",
    "hash_key",
    "load_max_age",
    "latency",
    "latency_decay",
    "failure_penalty",
    "slow_start",
    "panic_threshold",
    "alert",
    "ejection",
    "inference",
    "zones",
    "connection_failure_limit",
    "max_queue",
    "queue_target",
    "send_proxy",
    "health_check",
    "orca",
];

/// Keys of members that a policy may set, as in a table of `members`.
pub(crate) const MEMBER_KEYS: [&str; 1] = ["max_connections"];

/// Keys of rules for connections and datagrams that a policy may set, as in `[rule.NAME]`.
pub(crate) const RULE_KEYS: [&str; 4] = ["forward", "return_path", "anycast", "udp"];

/// Most bytes of the keys of a policy, which are written into each of its groups.
const MAX_LENGTH: usize = 16 * 1024;

/// Most tables and lists inside each other.
const MAX_DEPTH: usize = 8;

/// Key of a group, a member or a rule with its value, as the configuration has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyLine {
    /// Name of the key.
    pub key: String,
    /// Value in TOML.
    pub value: String,
}

impl PolicyLine {
    /// Writes the line.
    pub fn write(&self) -> String {
        format!("{} = {}", self.key, self.value)
    }
}

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
    /// Keys of the rules for connections and datagrams.
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
        let rule = read("rule", &RULE_KEYS, &raw.rule);
        let lines = group.iter().chain(&member).chain(&rule);
        let length: usize = lines.map(|line| line.key.len() + line.value.len()).sum();
        let problem = problem.or_else(|| match length > MAX_LENGTH {
            true => Some(format!(
                "spec.group, spec.member and spec.rule have {length} bytes; write {MAX_LENGTH} at most"
            )),
            false => find_problem(&group, &member).or_else(|| find_rule_problem(&rule)),
        });
        EvenkeelPolicySpec {
            target_refs: raw.target_refs,
            group,
            member,
            rule,
            problem,
        }
    }
}

/// True if nobody may set a key inside a table by a policy: keys that name files of the machine, memory that all groups
/// share, and ports beside those of the service, which could be those of others at the same address.
pub(crate) fn is_of_machine(key: &str) -> bool {
    let is_file = key.ends_with("_file") || key.ends_with("_files");
    is_file || matches!(key, "tls" | "index_memory" | "port")
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
        let (key, value) = (key.clone(), write_value(&path, value, MAX_DEPTH)?);
        Ok(PolicyLine { key, value })
    });
    lines.collect()
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

/// Returns what the parser of configurations finds wrong with these keys of a group and of its members.
fn find_problem(group: &[PolicyLine], member: &[PolicyLine]) -> Option<String> {
    const NAME: &str = "kubernetes.policy";
    let member = member.iter().map(|line| format!(", {}", line.write()));
    let member: String = member.collect();
    let mut text =
        format!("[group.\"{NAME}\"]\nmembers = [{{ kubernetes = \"a/b:80\"{member} }}]\n");
    for line in group {
        text.push_str(&line.write());
        text.push('\n');
    }
    let errors = evenkeel_config::parse_generated(&text).err()?;
    let messages = errors.problems.iter().map(|problem| {
        let message = match &problem.allowed {
            Some(allowed) => format!("{}; allowed: {allowed}", problem.message),
            None => problem.message.clone(),
        };
        let (_, key) = problem.key.split_once("policy").unwrap_or_default();
        if key.contains("members") {
            let key = key.rsplit('.').next().unwrap_or_default();
            return format!("spec.member.{key}: {message}");
        }
        match key.trim_start_matches(['"', '\'', '.']) {
            "" => message,
            key => format!("spec.group.{key}: {message}"),
        }
    });
    let messages: Vec<String> = messages.collect();
    Some(messages.join("; "))
}

/// Returns what the parser of configurations finds wrong with these keys of a rule. Keys that the parser wants beside
/// them may come from another policy.
fn find_rule_problem(lines: &[PolicyLine]) -> Option<String> {
    let find = |key: &str| lines.iter().find(|line| line.key == key);
    let write = |key: &str, other: &str| match find(key) {
        Some(line) => format!("{}\n", line.write()),
        None => other.to_owned(),
    };
    let needs_tunnel = find("anycast").is_some_and(|line| line.value == "true");
    let return_path = match needs_tunnel {
        true => "return_path = \"tunnel\"\n",
        false => "",
    };
    let connections = [
        write("forward", "forward = \"kernel\"\n"),
        write("return_path", return_path),
        write("anycast", ""),
    ];
    // A policy of a gateway may have keys of both protocols.
    for (protocol, keys) in [("tcp", connections.concat()), ("udp", write("udp", ""))] {
        let text = format!(
            "[rule.x]\nlisten = \"192.0.2.1:9\"\nprotocol = \"{protocol}\"\ngroup = \"x\"\n{keys}[group.x]\nmembers = [\"192.0.2.2:9\"]\n"
        );
        let Err(errors) = evenkeel_config::parse_generated(&text) else {
            continue;
        };
        let messages = errors.problems.iter().map(|problem| {
            let key = problem
                .key
                .trim_start_matches("rule.x")
                .trim_start_matches('.');
            let allowed = { problem.allowed.iter() }.map(|of| format!("; allowed: {of}"));
            let allowed: String = allowed.collect();
            format!("spec.rule.{key}: {}{allowed}", problem.message)
        });
        return Some(messages.collect::<Vec<_>>().join("; "));
    }
    None
}
