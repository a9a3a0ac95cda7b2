//! nginx's configuration: blocks, directives and what they mean.

mod locations;
mod servers;
mod words;

use std::collections::HashMap;

use words::{Directive, directives};

use crate::ConvertError;
use crate::model::{Group, Model};
use crate::toml::{Table, Value};
use crate::units::{DAY, parse_millis, time};

/// A variable whose value depends on the request.
#[derive(Clone, Debug)]
enum Variable {
    /// `map`: the variable that is looked at, values with what each gives, and what others give.
    Map {
        of: String,
        entries: Vec<(String, String)>,
        other: Option<String>,
    },
    /// `split_clients`: percentages with what each gives, and what the rest gives.
    Split {
        entries: Vec<(u64, String)>,
        other: Option<String>,
    },
}

/// Directives outside of servers.
#[derive(Clone, Debug, Default)]
struct World {
    variables: HashMap<String, Variable>,
    /// Zones of `limit_req_zone` with their rates.
    rates: HashMap<String, String>,
    /// True for zones that count by the client's address.
    by_client: HashMap<String, bool>,
}

/// Reads a configuration.
pub(crate) fn read(text: &str) -> Result<Model, ConvertError> {
    let all = directives(text)?;
    let mut model = Model::default();
    let (mut http, mut stream): (Vec<&Directive>, Vec<&Directive>) = (Vec::new(), Vec::new());
    for directive in &all {
        match directive.name.as_str() {
            "http" => http.extend(directive.inner_directives()),
            "stream" => stream.extend(directive.inner_directives()),
            "worker_processes" => {
                if let Ok(count @ 1..=1024) = directive.word_at(0).parse::<u64>() {
                    model.top.set("workers", count);
                }
            }
            "worker_shutdown_timeout" => match parse_millis(directive.word_at(0), 1000) {
                Some(millis) => model.top.set("shutdown_grace", time(millis, DAY)),
                None => model.notes.add_note(directive.line, "not a time"),
            },
            "events"
            | "pid"
            | "worker_rlimit_nofile"
            | "daemon"
            | "master_process"
            | "worker_priority"
            | "worker_cpu_affinity"
            | "pcre_jit"
            | "timer_resolution" => {
                model.notes.add_note(
                    directive.line,
                    "Evenkeel has no counterpart, and mostly needs none",
                );
            }
            "user" => model.notes.add_note(
                directive.line,
                "set the user with `user` of [process], or in the unit of systemd: docs/service.md",
            ),
            "error_log" => model
                .notes
                .add_note(directive.line, "the log goes to standard error"),
            "load_module" | "mail" => model
                .notes
                .add_note(directive.line, "Evenkeel has no counterpart"),
            // A part of a file, as it is included in `http`.
            _ => http.push(directive),
        }
    }
    let mut world = World::default();
    for directive in http.iter().chain(&stream) {
        world.take(directive, &mut model);
    }
    for directive in http
        .iter()
        .chain(&stream)
        .filter(|directive| directive.name == "upstream")
    {
        upstream(directive, &mut model);
    }
    servers::add_http(&http, &world, &mut model);
    servers::add_stream(&stream, &world, &mut model);
    Ok(model)
}

impl World {
    fn take(&mut self, directive: &Directive, model: &mut Model) {
        match directive.name.as_str() {
            "map" => {
                let mut entries = Vec::new();
                let mut other = None;
                for entry in directive.inner_directives() {
                    let value = entry.word_at(0).to_owned();
                    match entry.name.as_str() {
                        "default" => other = Some(value),
                        "hostnames" | "volatile" => {}
                        name => entries.push((name.to_owned(), value)),
                    }
                }
                let of = directive.word_at(0).to_owned();
                let variable = Variable::Map { of, entries, other };
                self.variables
                    .insert(directive.word_at(1).to_owned(), variable);
            }
            "split_clients" => {
                let mut entries = Vec::new();
                let mut other = None;
                for entry in directive.inner_directives() {
                    let value = entry.word_at(0).to_owned();
                    match entry.name.trim_end_matches('%').parse::<f64>() {
                        // Weights are thousandths of a percent.
                        Ok(percent) if (0.0..=100.0).contains(&percent) => {
                            entries.push(((percent * 1000.0).round() as u64, value))
                        }
                        _ => other = Some(value),
                    }
                }
                self.variables.insert(
                    directive.word_at(1).to_owned(),
                    Variable::Split { entries, other },
                );
            }
            "limit_req_zone" => {
                if let (Some(zone), Some(rate)) =
                    (argument(directive, "zone"), argument(directive, "rate"))
                {
                    let zone = zone.split(':').next().unwrap_or_default().to_owned();
                    let rate = rate.trim_end_matches("r/s").trim_end_matches("r/m");
                    let unit = if directive.words.iter().any(|word| word.ends_with("r/m")) {
                        "m"
                    } else {
                        "s"
                    };
                    self.by_client
                        .insert(zone.clone(), directive.word_at(0).contains("remote_addr"));
                    if rate.parse::<u64>().is_ok_and(|rate| rate > 0) {
                        self.rates.insert(zone, format!("{rate}/{unit}"));
                    }
                }
            }
            "limit_conn_zone" => {
                if let Some(zone) = argument(directive, "zone") {
                    let zone = zone.split(':').next().unwrap_or_default().to_owned();
                    self.by_client
                        .insert(zone, directive.word_at(0).contains("remote_addr"));
                }
            }
            "geo" => model.notes.add_restriction(
                directive.line,
                "networks are conditions of routes: `client` and `except_client`",
            ),
            "include" => model
                .notes
                .add_note(directive.line, "the file is not read: convert it, too"),
            _ => {}
        }
    }
}

/// The value of a word `name=value`.
fn argument<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    let words = directive.words.iter();
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.next()
}

/// An `upstream` as a group.
fn upstream(directive: &Directive, model: &mut Model) {
    let mut keys = Table::default();
    let mut members: Vec<Table> = Vec::new();
    for inner in directive.inner_directives() {
        let line = inner.line;
        match inner.name.as_str() {
            "server" => {
                let Some(address) = address(inner.word_at(0), 80) else {
                    model.notes.add_note(line, "not the address of a server");
                    continue;
                };
                if members
                    .iter()
                    .any(|member| member.get("address") == Some(&Value::from(address.as_str())))
                {
                    model
                        .notes
                        .add_note(line, "the group has this address twice");
                    continue;
                }
                let mut member = Table::default();
                member.set("address", address);
                for word in inner.words.iter().skip(1) {
                    let (name, value) = word.split_once('=').unwrap_or((word, ""));
                    match (name, value.parse::<u64>()) {
                        ("weight", Ok(weight @ 0..=1000)) => member.set("weight", weight),
                        ("max_conns", Ok(most @ 1..=10_000_000)) => {
                            member.set("max_connections", most)
                        }
                        ("backup", _) => member.set("backup", true),
                        ("down", _) => member.set("drain", true),
                        ("max_fails", Ok(failures @ 1..=1000)) => {
                            keys.set("connection_failure_limit", failures)
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
                        _ => model
                            .notes
                            .add_note(line, format!("`{name}` of a server has no counterpart")),
                    }
                }
                members.push(member);
            }
            "least_conn" => keys.set("strategy", "least_connection"),
            "ip_hash" => keys.set("strategy", "source_ip_hash"),
            "random" => keys.set(
                "strategy",
                if inner.word_at(0) == "two" {
                    "least_request"
                } else {
                    "random"
                },
            ),
            "hash" => match hash_key(inner.word_at(0)) {
                Some(None) => keys.set("strategy", "source_ip_hash"),
                Some(Some(key)) => {
                    keys.set("strategy", "hash");
                    keys.set("hash_key", key);
                }
                None => model.notes.add_note(
                    line,
                    "Evenkeel hashes the URI, the path, a field, a cookie or the address",
                ),
            },
            "keepalive" | "keepalive_timeout" | "keepalive_requests" | "keepalive_time"
            | "zone" => {}
            "queue" => {
                if let Ok(most @ 0..=1_000_000) = inner.word_at(0).parse::<u64>() {
                    keys.set("max_queue", most);
                }
            }
            "sticky" => model.notes.add_note(
                line,
                "clients are bound by a cookie of the balancer's: sticky = true",
            ),
            "least_time" => model.notes.add_note(
                line,
                "without a strategy the group uses `adaptive`, which compares times, too",
            ),
            _ => model.notes.add_note(line, "Evenkeel has no counterpart"),
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
