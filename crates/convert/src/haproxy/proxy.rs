//! Proxies: frontends, backends, and sections that are both.

use super::binds::{Bind, bind};
use super::conditions::Acls;
use super::servers::Servers;
use super::values::read_millis;
use super::words::{Line, Section};
use crate::model::{Changes, Group, Model};
use crate::note::{HARDLY_NEEDED, NO_COUNTERPART, Notes, Remark};
use crate::toml::{Table, Value};
use crate::units::{DAY, TEN_MINUTES, time};

/// Action for requests, instead of a member's answer.
#[derive(Clone, Debug)]
pub(super) enum Action {
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
pub(super) struct Proxy {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) is_listening: bool,
    pub(super) has_servers: bool,
    pub(super) is_tcp: bool,
    pub(super) binds: Vec<Bind>,
    pub(super) acls: Acls,
    pub(super) actions: Vec<(usize, Action, Vec<String>)>,
    /// Changes of paths: the prefix that is replaced, and by what.
    pub(super) rewrites: Vec<(usize, String, String, Vec<String>)>,
    pub(super) uses: Vec<(usize, String, Vec<String>)>,
    pub(super) default_backend: Option<(usize, String)>,
    pub(super) request: Changes,
    pub(super) response: Changes,
    /// Keys of the rule, if it is a frontend.
    pub(super) rule: Table,
    pub(super) http: Table,
    pub(super) limits: Table,
    /// Keys of a rule or a route, by which requests get to it, if it is a backend.
    pub(super) times: Table,
    /// Keys of a route.
    pub(super) route: Table,
    pub(super) servers: Servers,
}

/// Reads the proxy of a section, with the lines that it inherits from `defaults`.
pub(super) fn proxy(section: &Section, inherited: &[Line], model: &mut Model) -> Proxy {
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

/// A line `log`: the access log goes to a file or to standard output.
pub(super) fn log(line: &Line, model: &mut Model) {
    model.access_log.set_new("output", "stdout");
    let to = line.word_at(1);
    if to != "stdout" && to != "global" {
        model.notes.add_note(line.number, "the access log goes to a file or to standard output, not to syslog: `output` of [access_log]");
    }
}

/// Lines that are not translated, with the remark for each.
const REMARKS: [(&[&str], Remark); 5] = [
    (&["mode", "acl"], Remark::Needless),
    (
        &[
            "log-format",
            "log-format-sd",
            "unique-id-format",
            "error-log-format",
        ],
        Remark::Note(
            "`format` of [access_log] has fields of its own, as {member_name} for %s: docs/cli.md",
        ),
    ),
    (
        &[
            "errorfiles",
            "errorloc",
            "errorloc302",
            "errorloc303",
            "http-error",
        ],
        Remark::Note("`error_pages` names a file for each status: docs/routing.md#error-pages"),
    ),
    (
        &["stats"],
        Remark::Note("the console is at http://127.0.0.1:9900/console/ by default"),
    ),
    (
        &[
            "fullconn",
            "backlog",
            "description",
            "id",
            "load-server-state-from-file",
            "tcp-check",
            "enabled",
            "guid",
            "max-keep-alive-queue",
            "http-reuse",
            "no",
        ],
        HARDLY_NEEDED,
    ),
];

impl Proxy {
    /// Takes what a line says.
    pub(super) fn take(&mut self, line: &Line, model: &mut Model) {
        let notes = &mut model.notes;
        match line.word_at(0) {
            "bind" => match bind(line, notes) {
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
                    self.route.set("retry_same_member", true);
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
            "unique-id-header" => {
                let mut id = Table::default();
                id.set("field", line.word_at(1));
                self.http.set("request_id", id);
            }
            "errorfile" => self.error_page(line, notes),
            "disabled" => self.rule.set("enabled", false),
            name => {
                if !notes.remark_on(line.number, name, &REMARKS) {
                    notes.add_remark(line.number, NO_COUNTERPART);
                }
            }
        }
    }

    fn timeout(&mut self, line: &Line, notes: &mut Notes) {
        let Some(millis) = read_millis(line.word_at(2), line.number, notes) else {
            return;
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
                return notes.add_remark(line.number, HARDLY_NEEDED);
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
            _ => notes.add_remark(line.number, NO_COUNTERPART),
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
            _ => notes.add_remark(line.number, HARDLY_NEEDED),
        }
    }

    /// The group of a backend.
    pub(super) fn group(&self, notes: &mut Notes) -> Group {
        let name = Model::name(&self.name, |_| false);
        let mut keys = Table::default();
        let members = self.servers.members.iter().map(|member| {
            let mut member = member.clone();
            if self.servers.has_host_of_other(&member) {
                member.remove("name");
            }
            let only = member.keys().count() == 1;
            match member.get("address").filter(|_| only) {
                Some(address) => address.clone(),
                None => Value::Table(member),
            }
        });
        keys.set("members", Value::List(members.collect()));
        let strategy = &self.servers.strategy;
        let has_bound = strategy.get("bound").is_some();
        match (strategy.get("name"), has_bound) {
            (Some(Value::Text(name)), true) if name == "hash" || name == "source_ip_hash" => {
                keys.set("strategy", strategy.clone())
            }
            (Some(name), _) => keys.set("strategy", name.clone()),
            (None, _) => {}
        }
        let mut more = self.servers.group.clone();
        if self.is_tcp && more.remove("sticky").is_some() {
            notes.add_note(self.line, "TCP rules see no cookies");
        }
        keys.add_missing(&more);
        let mut check = self.servers.check.clone();
        if self.servers.has_checks {
            if !self.servers.is_http_check {
                for key in ["path", "host", "response_code", "doc_text"] {
                    check.remove(key);
                }
            }
            check.set(
                "type",
                if self.servers.is_http_check {
                    "http"
                } else {
                    "tcp"
                },
            );
            keys.set("health_check", check);
        }
        Group { name, keys }
    }
}
