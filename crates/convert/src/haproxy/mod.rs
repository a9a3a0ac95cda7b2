//! HAProxy's configuration: sections, lines and what they mean.

mod conditions;
mod rules;
mod servers;
mod words;

use std::collections::HashMap;

use conditions::Acls;
use words::{Line, Section, sections};

use crate::ConvertError;
use crate::model::{Changes, Model, Notes};
use crate::toml::Table;
use crate::units::{DAY, TEN_MINUTES, parse_millis, time};

/// Action for requests, instead of a member's answer.
#[derive(Clone, Debug)]
enum Action {
    Redirect {
        to: String,
        status: u64,
    },
    Answer {
        status: u64,
        body: String,
        file: String,
        content_type: String,
    },
}

/// A frontend, a backend, or both.
#[derive(Clone, Debug, Default)]
struct Proxy {
    name: String,
    line: usize,
    is_listening: bool,
    has_servers: bool,
    is_tcp: bool,
    binds: Vec<servers::Bind>,
    acls: Acls,
    actions: Vec<(usize, Action, Vec<String>)>,
    /// Changes of paths: the prefix that is replaced, and by what.
    rewrites: Vec<(usize, String, String, Vec<String>)>,
    uses: Vec<(usize, String, Vec<String>)>,
    default_backend: Option<(usize, String)>,
    request: Changes,
    response: Changes,
    /// Keys of the rule, if it is a frontend.
    rule: Table,
    http: Table,
    limits: Table,
    /// Keys of a rule or a route, by which requests get to it, if it is a backend.
    times: Table,
    /// Keys of a route.
    route: Table,
    servers: servers::Servers,
}

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
            "hard-stop-after" => match parse_millis(line.word_at(1), 1) {
                Some(millis) => model.top.set("shutdown_grace", time(millis, DAY)),
                None => model.notes.add_note(line.number, "not a time"),
            },
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

/// A line `log`: the access log goes to a file or to standard output.
fn log(line: &Line, model: &mut Model) {
    model.access_log.set_new("output", "stdout");
    let to = line.word_at(1);
    if to != "stdout" && to != "global" {
        model.notes.add_note(line.number, "the access log goes to a file or to standard output, not to syslog: `output` of [access_log]");
    }
}

/// Adds a condition that the frontend has for all its requests.
fn proxy(section: &Section, inherited: &[Line], model: &mut Model) -> Proxy {
    let is_listening = section.kind != "backend";
    let mut proxy = Proxy {
        name: section.name.clone(),
        line: section.head.number,
        is_listening,
        has_servers: section.kind != "frontend",
        ..Proxy::default()
    };
    let all = || inherited.iter().chain(&section.lines);
    if let Some(mode) = all().rfind(|line| line.word_at(0) == "mode") {
        proxy.is_tcp = mode.word_at(1) == "tcp";
        if !matches!(mode.word_at(1), "tcp" | "http") {
            model
                .notes
                .add_note(mode.number, "Evenkeel has rules of HTTP, TCP and FTP only");
        }
    }
    for line in all().filter(|line| line.word_at(0) == "acl") {
        let words = line.from(2).to_vec();
        proxy
            .acls
            .entry(line.word_at(1).to_owned())
            .or_default()
            .push(words);
    }
    for line in all() {
        proxy.take(line, model);
    }
    proxy
}

impl Proxy {
    /// Takes what a line says.
    fn take(&mut self, line: &Line, model: &mut Model) {
        let notes = &mut model.notes;
        match line.word_at(0) {
            "mode" | "acl" => {}
            "bind" => match servers::bind(line, notes) {
                Some(bind) => self.binds.push(bind),
                None => notes.add_note(line.number, "not an address to listen on"),
            },
            "default_backend" => {
                self.default_backend = Some((line.number, line.word_at(1).to_owned()))
            }
            "use_backend" => {
                let name = line.word_at(1).to_owned();
                self.uses.push((line.number, name, line.from(2).to_vec()));
            }
            "maxconn" => match line.word_at(1).parse::<u64>() {
                Ok(most @ 1..=10_000_000) => self.rule.set("max_connections", most),
                _ => notes.add_note(line.number, "not a number of connections"),
            },
            "timeout" => self.timeout(line, notes),
            "retries" => match line.word_at(1).parse::<u64>() {
                Ok(retries) => self.times.set("retries", retries.min(10)),
                Err(_) => notes.add_note(line.number, "not a number"),
            },
            "retry-on" => {
                let statuses = line
                    .from(1)
                    .iter()
                    .filter_map(|word| word.parse::<u64>().ok());
                let statuses: Vec<u64> = statuses
                    .filter(|status| (400..=599).contains(status))
                    .collect();
                if !statuses.is_empty() {
                    self.route.set("retry_statuses", statuses);
                }
            }
            "balance"
            | "hash-type"
            | "hash-balance-factor"
            | "cookie"
            | "server"
            | "default-server"
            | "server-template"
            | "http-check"
            | "dynamic-cookie-key" => self.servers.take(line, notes),
            "option" => self.option(line, model),
            "http-request"
            | "http-response"
            | "http-after-response"
            | "redirect"
            | "block"
            | "reqdeny" => {
                self.http_rule(line, notes);
            }
            "tcp-request" | "tcp-response" => self.tcp_rule(line, notes),
            "stick-table" => self.stick_table(line),
            "stick" => match (line.word_at(1), line.word_at(2)) {
                ("on", "src") => self.servers.stick_to_address(),
                _ => notes.add_note(
                    line.number,
                    "clients are bound by a cookie of the balancer's (`sticky`), or by a hash",
                ),
            },
            "compression" => self.compression(line, notes),
            "log" => log(line, model),
            "log-format" | "log-format-sd" | "unique-id-format" | "error-log-format" => {
                notes.add_note(
                    line.number,
                    "`format` of [access_log] has fields of its own, as {member_name} for %s: docs/cli.md",
                );
            }
            "unique-id-header" => {
                let mut id = Table::default();
                id.set("field", line.word_at(1));
                self.http.set("request_id", id);
            }
            "errorfile" => self.error_page(line, notes),
            "errorfiles" | "errorloc" | "errorloc302" | "errorloc303" | "http-error" => {
                notes.add_note(
                    line.number,
                    "`error_pages` names a file for each status: docs/routing.md#error-pages",
                );
            }
            "stats" => notes.add_note(
                line.number,
                "the console is at http://127.0.0.1:9900/console/ by default",
            ),
            "capture" | "monitor-uri" | "monitor" | "rate-limit" | "declare" | "filter"
            | "email-alert" => {
                notes.add_note(line.number, "Evenkeel has no counterpart");
            }
            "fullconn"
            | "backlog"
            | "description"
            | "id"
            | "load-server-state-from-file"
            | "tcp-check"
            | "enabled"
            | "guid"
            | "max-keep-alive-queue"
            | "http-reuse"
            | "no" => {
                notes.add_note(
                    line.number,
                    "Evenkeel has no counterpart, and mostly needs none",
                );
            }
            "disabled" => self.rule.set("enabled", false),
            _ => notes.add_note(line.number, "Evenkeel has no counterpart"),
        }
    }

    fn timeout(&mut self, line: &Line, notes: &mut Notes) {
        let Some(millis) = parse_millis(line.word_at(2), 1) else {
            return notes.add_note(line.number, "not a time");
        };
        if millis == 0 {
            return notes.add_note(
                line.number,
                "Evenkeel always has a limit: the default is used",
            );
        }
        let (times, key, longest) = match (line.word_at(1), self.is_tcp) {
            ("connect", _) => (&mut self.times, "connection_timeout", TEN_MINUTES),
            ("queue", _) => (&mut self.times, "queue_timeout", TEN_MINUTES),
            ("server", false) => (&mut self.times, "response_timeout", DAY),
            ("tunnel", _) => (&mut self.times, "idle_timeout", DAY),
            ("server", true) => {
                self.times.set_new("idle_timeout", time(millis, DAY));
                return;
            }
            ("client", false) => (&mut self.rule, "body_timeout", DAY),
            ("client", true) => {
                self.rule.set_new("idle_timeout", time(millis, DAY));
                return;
            }
            ("http-request", _) => (&mut self.rule, "header_timeout", 3_600_000),
            ("http-keep-alive", _) => (&mut self.rule, "keep_alive_timeout", DAY),
            ("check", _) => {
                self.servers.set_check("timeout", time(millis, 3_600_000));
                return;
            }
            _ => {
                return notes.add_note(
                    line.number,
                    "Evenkeel has no counterpart, and mostly needs none",
                );
            }
        };
        times.set(key, time(millis, longest));
    }

    fn option(&mut self, line: &Line, model: &mut Model) {
        let notes = &mut model.notes;
        match line.word_at(1) {
            "forwardfor" => {
                let options = line.from(2);
                if options.iter().any(|word| word == "if-none") {
                    self.http.set("trust_forwarded", true);
                    let why = "X-Forwarded-For of clients is trusted, as in the original: remove \
                        `trust_forwarded` if no proxy is in front";
                    notes.add_note(line.number, why);
                }
                if options.iter().any(|word| word == "header") {
                    notes.add_note(
                        line.number,
                        "the field is X-Forwarded-For; for another field set \
                        request_fields = { set = { \"NAME\" = \"{client}\" } } in a route",
                    );
                }
            }
            "httpchk" | "tcp-check" | "ssl-hello-chk" | "mysql-check" | "pgsql-check"
            | "redis-check" | "smtpchk" | "ldap-check" | "external-check" | "log-health-checks" => {
                self.servers.option_check(line, notes)
            }
            "httplog" | "tcplog" | "httpslog" => model.access_log.set_new("output", "stdout"),
            "dontlognull"
            | "dontlog-normal"
            | "logasap"
            | "log-separate-errors"
            | "redispatch"
            | "http-server-close"
            | "http-keep-alive"
            | "httpclose"
            | "forceclose"
            | "http-tunnel"
            | "tcpka"
            | "clitcpka"
            | "srvtcpka"
            | "tcp-smart-accept"
            | "tcp-smart-connect"
            | "splice-auto"
            | "splice-request"
            | "splice-response"
            | "abortonclose"
            | "prefer-last-server"
            | "http-use-htx"
            | "http-no-delay"
            | "contstats"
            | "nolinger"
            | "checkcache"
            | "http-buffer-request"
            | "allbackups"
            | "idle-close-on-response" => {}
            _ => notes.add_note(line.number, "Evenkeel has no counterpart"),
        }
    }

    /// A table of clients that are counted, for the limits that name it.
    fn stick_table(&mut self, line: &Line) {
        let store = line.words.iter().position(|word| word == "store");
        let stored = store
            .map(|place| line.word_at(place + 1))
            .unwrap_or_default();
        for counted in stored.split(',') {
            for (name, key) in [
                ("http_req_rate(", "requests"),
                ("conn_rate(", "new_connections"),
            ] {
                if let Some(period) = counted.strip_prefix(name) {
                    self.limits
                        .set(&format!("period of {key}"), period.trim_end_matches(')'));
                }
            }
        }
    }

    /// Takes `errorfile STATUS FILE`.
    fn error_page(&mut self, line: &Line, notes: &mut Notes) {
        let status = line.word_at(1).parse().ok();
        match (
            status.filter(|status| (400..=599_u16).contains(status)),
            line.word_at(2),
        ) {
            (None, _) | (_, "") => {
                notes.add_note(line.number, "`error_pages` has statuses from 400 to 599");
            }
            (_, "/dev/null") => notes.add_note(line.number, "Evenkeel answers each error"),
            (Some(status), file) => {
                self.rule
                    .ensure_table("error_pages")
                    .set(&status.to_string(), file);
                notes.add_note(
                    line.number,
                    "translated to `error_pages`, whose files are pages without a head: remove the head \
                     from the file, up to the first empty line",
                );
            }
        }
    }

    fn compression(&mut self, line: &Line, notes: &mut Notes) {
        let table = self.rule.ensure_table("compression");
        match line.word_at(1) {
            "algo" => {
                let known = line
                    .from(2)
                    .iter()
                    .filter(|word| matches!(word.as_str(), "gzip"));
                let known: Vec<String> = known.cloned().collect();
                match known.is_empty() {
                    true => {
                        notes.add_note(line.number, "responses are compressed by zstd, br and gzip")
                    }
                    false => table.set("codings", known),
                }
            }
            "type" => table.set("types", line.from(2).to_vec()),
            _ => notes.add_note(
                line.number,
                "Evenkeel has no counterpart, and mostly needs none",
            ),
        }
    }
}
