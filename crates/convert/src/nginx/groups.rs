//! Groups: upstreams, and single servers that are named by their addresses.

use super::words::Directive;
use crate::model::{Group, Model};
use crate::note::{NO_COUNTERPART, Notes, Remark};
use crate::toml::{Table, Value};
use crate::units::{parse_millis, time};

/// Adds an `upstream` as a group.
pub(super) fn upstream(directive: &Directive, model: &mut Model) {
    let mut keys = Table::default();
    let mut members: Vec<Table> = Vec::new();
    for inner in directive.inner_directives() {
        match inner.name.as_str() {
            "server" => members.extend(member(inner, &members, &mut keys, &mut model.notes)),
            "queue" => {
                if let Ok(most @ 0..=1_000_000) = inner.word_at(0).parse::<u64>() {
                    keys.set("max_queue", most);
                }
            }
            name => {
                let is_known = set_strategy(inner, &mut keys, &mut model.notes)
                    || model.notes.remark_on(inner.line, name, &REMARKS);
                if !is_known {
                    model.notes.add_remark(inner.line, NO_COUNTERPART);
                }
            }
        }
    }
    if members.is_empty() {
        return model
            .notes
            .add_note(directive.line, "the upstream has no servers");
    }
    let list = members.into_iter().map(|member| {
        let only = member.keys().count() == 1;
        match member.get("address").filter(|_| only) {
            Some(address) => address.clone(),
            None => Value::Table(member.clone()),
        }
    });
    let mut all = Table::default();
    all.set("members", Value::List(list.collect()));
    all.add_missing(&keys);
    let name = Model::name(directive.word_at(0), |_| false);
    model.add_group(directive.line, Group { name, keys: all });
}

/// Directives of an `upstream` that are not translated, with the remark for each.
const REMARKS: [(&[&str], Remark); 3] = [
    (
        &[
            "keepalive",
            "keepalive_timeout",
            "keepalive_requests",
            "keepalive_time",
            "zone",
        ],
        Remark::Needless,
    ),
    (
        &["sticky"],
        Remark::Note("clients are bound by a cookie of the balancer's: sticky = true"),
    ),
    (
        &["least_time"],
        Remark::Note("without a strategy the group uses `adaptive`, which compares times, too"),
    ),
];

/// Reads `server` of an `upstream`: returns a member, and sets the words that hold for the group in `keys`.
fn member(
    server: &Directive,
    known: &[Table],
    keys: &mut Table,
    notes: &mut Notes,
) -> Option<Table> {
    let line = server.line;
    let Some(address) = address(server.word_at(0), 80) else {
        notes.add_note(line, "not the address of a server");
        return None;
    };
    let value = Value::from(address.as_str());
    if known
        .iter()
        .any(|member| member.get("address") == Some(&value))
    {
        notes.add_note(line, "the group has this address twice");
        return None;
    }
    let mut member = Table::default();
    member.set("address", address);
    for word in server.words.iter().skip(1) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match (name, value.parse::<u64>()) {
            ("weight", Ok(weight @ 0..=1000)) => member.set("weight", weight),
            ("max_conns", Ok(most @ 1..=10_000_000)) => member.set("max_connections", most),
            ("backup", _) => member.set("backup", true),
            ("down", _) => member.set("drain", true),
            ("max_fails", Ok(failures @ 1..=1000)) => {
                keys.set("connection_failure_limit", failures);
            }
            ("fail_timeout", _) => {
                if let Some(millis) = parse_millis(value, 1000) {
                    keys.ensure_table("ejection")
                        .set("time", time(millis.clamp(1000, 300_000), 300_000));
                }
            }
            ("slow_start", _) => {
                if let Some(millis) = parse_millis(value, 1000) {
                    keys.set("slow_start", time(millis, 3_600_000));
                }
            }
            ("resolve" | "max_fails" | "max_conns", _) => {}
            _ => notes.add_note(line, format!("`{name}` of a server has no counterpart")),
        }
    }
    Some(member)
}

/// Sets the strategy that a directive names; false if the directive is another one.
fn set_strategy(directive: &Directive, keys: &mut Table, notes: &mut Notes) -> bool {
    let first = directive.word_at(0);
    let strategy = match directive.name.as_str() {
        "least_conn" => "least_connection",
        "ip_hash" => "source_ip_hash",
        "random" if first == "two" => "least_request",
        "random" => "random",
        "hash" => match hash_key(first) {
            Some(None) => "source_ip_hash",
            Some(Some(key)) => {
                keys.set("strategy", "hash");
                keys.set("hash_key", key);
                return true;
            }
            None => {
                notes.add_note(
                    directive.line,
                    "Evenkeel hashes the URI, the path, a field, a cookie or the address",
                );
                return true;
            }
        },
        _ => return false,
    };
    keys.set("strategy", strategy);
    true
}

/// The key of a hash; `Some(None)` is the client's address.
fn hash_key(text: &str) -> Option<Option<String>> {
    let name = text.strip_prefix('$')?;
    Some(Some(match name {
        "remote_addr" | "binary_remote_addr" => return Some(None),
        "request_uri" => "uri".into(),
        "uri" => "path".into(),
        "host" | "http_host" => "header:Host".into(),
        _ => match (name.strip_prefix("cookie_"), name.strip_prefix("http_")) {
            (Some(cookie), _) => format!("cookie:{cookie}"),
            (_, Some(field)) => format!("header:{}", field.replace('_', "-")),
            _ => return None,
        },
    }))
}

/// The address of a server, with a port.
fn address(text: &str, port: u16) -> Option<String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return path
            .starts_with('/')
            .then(|| format!("unix:{}", path.trim_end_matches(':')));
    }
    let has_port = text
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let text = if has_port {
        text.to_owned()
    } else {
        format!("{text}:{port}")
    };
    evenkeel_config::member_address(&text).ok().map(|_| text)
}

/// The group with this name, or one that is made for an address.
pub(super) fn group_of(to: &str, port: Option<u16>, model: &mut Model) -> Option<String> {
    let name = Model::name(to, |_| false);
    if model
        .find_group(&name)
        .is_some_and(|_| name == to || !to.contains(':'))
    {
        return Some(name);
    }
    let address = address(to, port.unwrap_or(80))?;
    let member = Value::List(vec![address.as_str().into()]);
    let known = model
        .groups
        .iter()
        .find(|group| group.keys.get("members") == Some(&member));
    if let Some(known) = known {
        return Some(known.name.clone());
    }
    let plain = address.replace([':', '/', '[', ']'], "-");
    let name = Model::name(plain.trim_matches('-'), |name| {
        model.find_group(name).is_some()
    });
    let mut keys = Table::default();
    keys.set("members", member);
    model.groups.push(Group {
        name: name.clone(),
        keys,
    });
    Some(name)
}
