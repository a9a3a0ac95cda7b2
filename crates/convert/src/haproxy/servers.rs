//! Servers, and how they are chosen and checked.

use evenkeel_config::is_member_name;

use super::values::{Skipped, Words, next_value, read_millis, skip_word, without_family};
use super::words::Line;
use crate::note::{HARDLY_NEEDED, NO_COUNTERPART, Notes, Remark};
use crate::toml::{Table, Value};
use crate::units::{DAY, parse_millis, time};

/// The servers of a backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Servers {
    pub(super) members: Vec<Table>,
    /// Words that hold for all servers.
    common: Vec<String>,
    pub(super) strategy: Table,
    pub(super) group: Table,
    pub(super) check: Table,
    /// True if requests of HTTP are sent to check members.
    pub(super) is_http_check: bool,
    /// True if any server is checked.
    pub(super) has_checks: bool,
    pub(crate) speaks_http2: bool,
    cookie: Option<String>,
}

impl Servers {
    pub(crate) fn set_check(&mut self, key: &str, value: impl Into<Value>) {
        self.check.set(key, value);
    }

    pub(crate) fn stick_to_address(&mut self) {
        self.strategy.set_new("name", "source_ip_hash");
    }

    /// Takes what a line says.
    pub(crate) fn take(&mut self, line: &Line, notes: &mut Notes) {
        match line.word_at(0) {
            "balance" => self.balance(line, notes),
            "hash-type" => {}
            "hash-balance-factor" => match line.word_at(1).parse::<f64>() {
                Ok(percent) if (101.0..=10_000.0).contains(&percent) => {
                    self.strategy.set("bound", Value::Decimal(percent / 100.0));
                }
                _ => notes.add_note(line.number, "not a percentage above 100"),
            },
            "cookie" => self.cookie(line, notes),
            "default-server" => self.common.extend(line.from(1).iter().cloned()),
            "server" => self.server(line, notes),
            "server-template" => {
                let address = line.word_at(3).to_owned();
                let words = [&["server".to_owned(), String::new(), address], line.from(4)].concat();
                self.server(
                    &Line {
                        number: line.number,
                        words,
                    },
                    notes,
                );
                notes.add_note(
                    line.number,
                    "a name with several addresses is a member for each of them",
                );
            }
            "http-check" => self.http_check(line, notes),
            _ => notes.add_remark(line.number, NO_COUNTERPART),
        }
    }

    fn balance(&mut self, line: &Line, notes: &mut Notes) {
        let (name, argument) = match line.word_at(1).split_once('(') {
            Some((name, rest)) => (name, rest.trim_end_matches(')')),
            None => (line.word_at(1), ""),
        };
        let (strategy, key) =
            match name {
                "roundrobin" | "static-rr" => ("round_robin", None),
                "leastconn" => ("least_connection", None),
                "source" => ("source_ip_hash", None),
                "random" if argument == "1" => ("random", None),
                "random" => ("least_request", None),
                "uri" if line.word_at(2) == "path-only" => ("hash", Some("path".to_owned())),
                "uri" => ("hash", Some("uri".to_owned())),
                "hdr" => ("hash", Some(format!("header:{argument}"))),
                "hash" => {
                    let (_, inner) = line.word_at(2).split_once('(').unwrap_or_default();
                    let inner = inner.trim_end_matches(')');
                    match line.word_at(2).split('(').next().unwrap_or_default() {
                        "req.cook" => ("hash", Some(format!("cookie:{inner}"))),
                        "req.hdr" => ("hash", Some(format!("header:{inner}"))),
                        "src" => ("source_ip_hash", None),
                        "path" => ("hash", Some("path".to_owned())),
                        _ => return notes.add_note(
                            line.number,
                            "Evenkeel hashes the URI, the path, a field, a cookie or the address",
                        ),
                    }
                }
                _ => {
                    return notes.add_note(
                        line.number,
                        "Evenkeel has no such strategy: the group uses `adaptive`",
                    );
                }
            };
        self.strategy.set("name", strategy);
        if let Some(key) = key {
            self.group.set("hash_key", key);
        }
    }

    fn cookie(&mut self, line: &Line, notes: &mut Notes) {
        let options = line.from(2);
        let has = |word: &str| options.iter().any(|option| option == word);
        if !has("insert") {
            return notes.add_note(
                line.number,
                "the balancer sets a cookie of its own (`sticky`): cookies of members bind no clients",
            );
        }
        self.cookie = Some(line.word_at(1).to_owned());
        let mut sticky = Table::default();
        sticky.set("cookie", line.word_at(1));
        for (word, key) in [("maxidle", "max_idle"), ("maxlife", "max_life")] {
            let place = options.iter().position(|option| option == word);
            let value = place.and_then(|place| options.get(place + 1));
            let millis = value.and_then(|value| parse_millis(value, 1000));
            if let Some(millis) = millis {
                sticky.set(key, time(millis.max(1000), 400 * DAY));
            }
        }
        self.group.set("sticky", sticky);
    }

    /// `option httpchk` and the like.
    pub(crate) fn option_check(&mut self, line: &Line, notes: &mut Notes) {
        match line.word_at(1) {
            "httpchk" => {
                self.is_http_check = true;
                let words = line.from(2);
                let (method, uri) = match words {
                    [] => ("OPTIONS", "/"),
                    [uri] => ("OPTIONS", uri.as_str()),
                    [method, uri, ..] => (method.as_str(), uri.as_str()),
                };
                if !words.is_empty() {
                    self.path(uri);
                }
                if method != "GET" && !words.is_empty() {
                    notes.add_note(line.number, "health checks use GET");
                }
                let mut hosts = words.iter().filter_map(|word| word.split_once("Host:"));
                if let Some((_, host)) = hosts.next_back() {
                    self.check.set("host", host.trim());
                }
            }
            "tcp-check" | "log-health-checks" => {}
            "mysql-check" | "pgsql-check" | "redis-check" | "smtpchk" | "ldap-check"
            | "ssl-hello-chk" => {
                notes.add_note(
                    line.number,
                    "health checks use HTTP, gRPC, FTP or a TCP connection",
                );
            }
            _ => notes.add_remark(line.number, NO_COUNTERPART),
        }
    }

    fn path(&mut self, uri: &str) {
        if uri.starts_with('/') {
            self.check.set("path", uri);
        }
    }

    fn http_check(&mut self, line: &Line, notes: &mut Notes) {
        let words = line.from(2);
        let after = |name: &str| {
            let place = words.iter().position(|word| word == name)?;
            words.get(place + 1).map(String::as_str)
        };
        match line.word_at(1) {
            "send" => {
                if let Some(uri) = after("uri") {
                    self.path(uri);
                }
                if let Some(place) = words.iter().position(|word| word == "hdr")
                    && let (Some(name), Some(value)) = (words.get(place + 1), words.get(place + 2))
                    && name.eq_ignore_ascii_case("host")
                {
                    self.check.set("host", value.as_str());
                }
                if after("meth").is_some_and(|method| method != "GET") {
                    notes.add_note(line.number, "health checks use GET");
                }
            }
            "expect" => match (line.word_at(2), line.word_at(3)) {
                ("status", codes) => {
                    let codes: Vec<String> = codes.split(',').map(str::to_owned).collect();
                    self.check.set("response_code", Value::one_or_list(&codes));
                }
                ("string", text) => self.check.set("doc_text", text),
                _ => notes.add_note(
                    line.number,
                    "health checks compare the status and a text in the body",
                ),
            },
            "connect" | "disable-on-404" | "send-state" => {
                notes.add_remark(line.number, HARDLY_NEEDED);
            }
            _ => notes.add_remark(line.number, NO_COUNTERPART),
        }
    }

    fn server(&mut self, line: &Line, notes: &mut Notes) {
        let number = line.number;
        let Some(address) = member(line.word_at(2)) else {
            return notes.add_note(number, "not the address of a server");
        };
        let mut member = Table::default();
        member.set("address", address);
        match line.word_at(1) {
            // A template names nobody.
            "" => {}
            name if !is_member_name(name) => notes.add_note(
                number,
                "not a name that a member can have: the member is called by its address",
            ),
            name if self.has_name(name) => notes.add_note(
                number,
                "another server has that name: the member is called by its address",
            ),
            name => member.set("name", name),
        }
        let all = [self.common.as_slice(), line.from(3)].concat();
        let mut words = all.iter();
        let mut tls = MemberTls::default();
        while let Some(word) = words.next() {
            let is_known = set_member(word, &mut words, &mut member, number, notes)
                || self.take_check(word, &mut words, number, notes)
                || self.take_group(word, &mut words, number, notes)
                || tls.take(word, &mut words, number, notes)
                || skip_word(word, &mut words, SERVER_SKIPPED, number, notes);
            if !is_known {
                notes.add_note(number, format!("`{word}` of a server has no counterpart"));
            }
        }
        if let Some(tls) = tls.value() {
            self.group.set("member_tls", tls);
        }
        if self
            .members
            .iter()
            .any(|known| known.get("address") == member.get("address"))
        {
            return notes.add_note(number, "the group has this address twice");
        }
        self.members.push(member);
    }

    /// Takes a word of health checks; false if the word is another one.
    fn take_check(
        &mut self,
        word: &str,
        words: &mut Words<'_>,
        line: usize,
        notes: &mut Notes,
    ) -> bool {
        match word {
            "check" => self.has_checks = true,
            "inter" => {
                if let Some(millis) = read_millis(next_value(words), line, notes) {
                    // The least interval of checks.
                    self.check.set("interval", time(millis.max(10), DAY));
                }
            }
            "fall" | "rise" => {
                if let Ok(count @ 1..=1000) = next_value(words).parse::<u64>() {
                    self.check.set(word, count);
                }
            }
            "port" => {
                if let Ok(port @ 1..=65_535) = next_value(words).parse::<u64>() {
                    self.check.set("port", port);
                }
            }
            _ => return false,
        }
        true
    }

    /// Takes a word that becomes a key of the group; false if the word is another one.
    fn take_group(
        &mut self,
        word: &str,
        words: &mut Words<'_>,
        line: usize,
        notes: &mut Notes,
    ) -> bool {
        match word {
            "slowstart" => {
                if let Some(millis) = read_millis(next_value(words), line, notes) {
                    self.group.set("slow_start", time(millis, 3_600_000));
                }
            }
            "send-proxy" => self.group.set("send_proxy", "v1"),
            "send-proxy-v2" => self.group.set("send_proxy", "v2"),
            "proto" => self.speaks_http2 |= next_value(words) == "h2",
            "agent-port" => {
                if let Ok(port @ 1..=65_535) = next_value(words).parse::<u64>() {
                    self.group.ensure_table("agent_check").set("port", port);
                }
            }
            _ => return false,
        }
        true
    }

    /// Returns true if one of the members has the name.
    fn has_name(&self, name: &str) -> bool {
        let name = Value::from(name);
        self.members
            .iter()
            .any(|known| known.get("name") == Some(&name))
    }

    /// Returns true if the name of the member is the host of another member, which no name may be.
    pub(super) fn has_host_of_other(&self, member: &Table) -> bool {
        let Some(Value::Text(name)) = member.get("name") else {
            return false;
        };
        let has_host = |of: &Table| match of.get("address") {
            Some(Value::Text(address)) => address
                .rsplit_once(':')
                .is_some_and(|(host, _)| host.eq_ignore_ascii_case(name)),
            _ => false,
        };
        !has_host(member) && self.members.iter().any(has_host)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// Takes a word that becomes a key of the member; false if the word is another one.
fn set_member(
    word: &str,
    words: &mut Words<'_>,
    member: &mut Table,
    line: usize,
    notes: &mut Notes,
) -> bool {
    match word {
        "weight" => match next_value(words).parse::<u64>() {
            Ok(weight @ 0..=256) => member.set("weight", weight),
            _ => notes.add_note(line, "not a weight"),
        },
        "maxconn" => {
            if let Ok(most @ 1..=10_000_000) = next_value(words).parse::<u64>() {
                member.set("max_connections", most);
            }
        }
        "backup" => member.set("backup", true),
        "disabled" => {
            member.set("drain", true);
            let why = "a disabled server drains: `evenkeel ctl maintenance GROUP MEMBER` takes it out at once";
            notes.add_note(line, why);
        }
        _ => return false,
    }
    true
}

/// TLS to members, of a line `server`.
#[derive(Debug, Default)]
struct MemberTls {
    is_on: bool,
    verifies: Option<bool>,
    keys: Table,
}

impl MemberTls {
    /// Takes a word of TLS to members; false if the word is another one.
    fn take(&mut self, word: &str, words: &mut Words<'_>, line: usize, notes: &mut Notes) -> bool {
        match word {
            "ssl" => self.is_on = true,
            "verify" => self.verifies = Some(next_value(words) == "required"),
            "ca-file" => self.keys.set("ca_file", next_value(words)),
            "crl-file" => self.keys.set("crl_file", next_value(words)),
            "crt" => self.keys.set("certificate", next_value(words)),
            "sni" => match next_value(words) {
                text if text.starts_with("str(") => self.keys.set(
                    "server_name",
                    text.trim_start_matches("str(").trim_end_matches(')'),
                ),
                _ => notes.add_note(
                    line,
                    "the TLS server name of members is fixed: set `server_name` of `member_tls`",
                ),
            },
            "verifyhost" => self.keys.set("server_name", next_value(words)),
            _ => return false,
        }
        true
    }

    /// Value of `member_tls`; `None` without TLS.
    fn value(mut self) -> Option<Value> {
        if self.verifies == Some(false) {
            self.keys.remove("ca_file");
            self.keys.remove("crl_file");
            self.keys.set("verify", false);
        }
        let value = match self.keys.is_empty() {
            true => Value::Flag(true),
            false => self.keys.into(),
        };
        self.is_on.then_some(value)
    }
}

const SERVER_SKIPPED: &Skipped = &[
    (
        true,
        &["observe", "error-limit", "on-error"],
        Remark::Note("members that fail requests are ejected by default: see `ejection`"),
    ),
    (
        true,
        &["track"],
        Remark::Note("each group checks its own members"),
    ),
    (
        true,
        &[
            "fastinter",
            "downinter",
            "cookie",
            "id",
            "namespace",
            "resolvers",
            "resolve-prefer",
            "init-addr",
            "on-marked-down",
            "on-marked-up",
            "source",
            "minconn",
            "maxqueue",
            "pool-max-conn",
            "pool-purge-delay",
            "alpn",
            "check-alpn",
            "check-sni",
            "ciphers",
            "ciphersuites",
            "ssl-min-ver",
            "ssl-max-ver",
            "addr",
            "agent-addr",
            "agent-inter",
            "agent-send",
            "max-reuse",
            "pool-low-conn",
            "redir",
            "tcp-ut",
            "check-proto",
            "resolve-opts",
            "resolve-net",
        ],
        Remark::Needless,
    ),
    (
        false,
        &[
            "no-check",
            "agent-check",
            "check-ssl",
            "check-send-proxy",
            "no-ssl",
            "non-stick",
            "no-backup",
            "enabled",
            "tfo",
            "no-tls-tickets",
            "check-via-socks4",
            "allow-0rtt",
            "no-verifyhost",
        ],
        Remark::Needless,
    ),
];

/// The address of a member.
fn member(text: &str) -> Option<String> {
    let text = match without_family(text) {
        Ok(text) => text,
        Err(socket) => return Some(socket),
    };
    let address = match text.rsplit_once(':') {
        // An address of IPv6 without brackets, whose port is behind the last colon.
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => {
            format!("[{host}]:{port}")
        }
        Some(_) => text.to_owned(),
        None => format!("{text}:80"),
    };
    evenkeel_config::member_address(&address)
        .ok()
        .map(|_| address)
}
