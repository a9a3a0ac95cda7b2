//! HAProxy's configuration: sections, lines and what they mean.

mod binds;
mod conditions;
mod proxy;
mod routes;
mod rules;
mod servers;
mod values;
mod words;

use std::collections::HashMap;

use proxy::{Proxy, log, proxy};
use values::read_millis;
use words::{Line, Section, sections};

use crate::error::ConvertError;
use crate::model::Model;
use crate::units::{DAY, time};

/// Reads a configuration.
pub(crate) fn read(text: &str) -> Result<Model, ConvertError> {
    let sections = sections(text)?;
    let mut model = Model::default();
    let mut defaults: HashMap<String, Vec<Line>> = HashMap::new();
    let mut last_defaults: Vec<Line> = Vec::new();
    let mut proxies: Vec<Proxy> = Vec::new();
    for section in &sections {
        let has_variable = |line: &&Line| line.words.iter().any(|word| word.contains("${"));
        for line in section.lines.iter().filter(has_variable) {
            let why = "variables of the environment are not translated: write \"${NAME}\" where you want one";
            model.notes.add_note(line.number, why);
        }
        match section.kind.as_str() {
            "global" => global(section, &mut model),
            "defaults" => {
                last_defaults.clone_from(&section.lines);
                defaults.insert(section.name.clone(), section.lines.clone());
            }
            "frontend" | "backend" | "listen" => {
                let from = section.head.words.iter().position(|word| word == "from");
                let from = from.and_then(|place| defaults.get(section.head.word_at(place + 1)));
                let inherited = from.unwrap_or(&last_defaults);
                proxies.push(proxy(section, inherited, &mut model));
            }
            "userlist" => {
                let why = "users are in a file that `evenkeel users` writes: set auth = { users_file = \
                    \"FILE\" } in the rule";
                model.notes.add_note(section.head.number, why);
            }
            "peers" | "resolvers" | "mailers" | "ring" => {
                model.notes.add_note(
                    section.head.number,
                    "Evenkeel has no counterpart, and mostly needs none",
                );
            }
            _ => model
                .notes
                .add_note(section.head.number, "Evenkeel has no counterpart"),
        }
    }
    for proxy in &proxies {
        if proxy.has_servers && !proxy.servers.is_empty() {
            let group = proxy.group(&mut model.notes);
            model.add_group(proxy.line, group);
        }
    }
    for proxy in proxies.iter().filter(|proxy| proxy.is_listening) {
        proxy.add_rules(&proxies, &mut model);
    }
    Ok(model)
}

fn global(section: &Section, model: &mut Model) {
    for line in &section.lines {
        match line.word_at(0) {
            "nbthread" => match line.word_at(1).parse::<u64>() {
                Ok(threads @ 1..=1024) => model.top.set("workers", threads),
                _ => model.notes.add_note(line.number, "not a number of threads"),
            },
            "hard-stop-after" => {
                if let Some(millis) = read_millis(line.word_at(1), line.number, &mut model.notes) {
                    model.top.set("shutdown_grace", time(millis, DAY));
                }
            }
            "log" => log(line, model),
            "maxconn" => model.notes.add_note(
                line.number,
                "connections are limited for each rule, by `max_connections`",
            ),
            "user" | "group" | "uid" | "gid" | "chroot" => {
                model.notes.add_note(
                    line.number,
                    "set the user with `user` of [process], or in the \
                    unit of systemd: docs/service.md",
                );
            }
            "stats" => model.notes.add_note(
                line.number,
                "the admin API, with `evenkeel ctl` and metrics, is on by default",
            ),
            "daemon" | "master-worker" | "pidfile" | "nbproc" | "cpu-map" | "log-send-hostname"
            | "log-tag" | "description" | "node" | "ca-base" | "localpeer" | "external-check"
            | "set-dumpable" | "spread-checks" | "quiet" => {
                model.notes.add_note(
                    line.number,
                    "Evenkeel has no counterpart, and mostly needs none",
                );
            }
            "crt-base" => model.notes.add_note(
                line.number,
                "paths of certificates begin at the folder of the configuration: write full paths",
            ),
            word if word.starts_with("ssl-") => {
                model.notes.add_note(
                    line.number,
                    "Evenkeel speaks TLS 1.2 and 1.3 with safe ciphers; \
                    you can only set `min_version` of `tls`",
                );
            }
            word if word.starts_with("tune.") => model
                .notes
                .add_note(line.number, "Evenkeel needs no such tuning"),
            word if word.starts_with("lua") => model
                .notes
                .add_note(line.number, "Evenkeel runs no scripts"),
            _ => model
                .notes
                .add_note(line.number, "Evenkeel has no counterpart"),
        }
    }
}
