//! Addresses, servers and how they are chosen and checked.

use evenkeel_config::is_member_name;

use super::words::Line;
use crate::note::Notes;
use crate::toml::{Table, Value};
use crate::units::{DAY, parse_millis, time};

/// Most addresses of a range of ports.
const MAX_PORTS: u16 = 100;

/// A line `bind`.
#[derive(Clone, Debug)]
pub(crate) struct Bind {
    pub(crate) addresses: Vec<String>,
    pub(crate) tls: Option<Table>,
    pub(crate) accept_proxy: bool,
    pub(crate) mode: Option<String>,
}

/// Reads a line `bind`; `None` if it names no address.
pub(crate) fn bind(line: &Line, notes: &mut Notes) -> Option<Bind> {
    let mut bind = Bind {
        addresses: Vec::new(),
        tls: None,
        accept_proxy: false,
        mode: None,
    };
    for text in line.word_at(1).split(',') {
        bind.addresses.extend(addresses(text)?);
    }
    let mut tls = Table::default();
    let mut is_tls = false;
    let mut words = line.from(2).iter();
    let number = line.number;
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().unwrap_or_default();
        match word.as_str() {
            "ssl" => is_tls = true,
            "crt" => {
                let path = value();
                if !path.ends_with(".pem") && !path.ends_with(".crt") && !path.contains('.') {
                    notes.add_note(
                        number,
                        "a folder of certificates: name each file in `certificates`",
                    );
                }
                tls.push("certificates", path);
            }
            "crt-list" => {
                value();
                notes.add_note(
                    number,
                    "a list of certificates: name each file in `certificates`",
                );
            }
            "alpn" => {
                let _ = value();
            }
            "ssl-min-ver" => match value().as_str() {
                "TLSv1.3" => tls.set("min_version", "1.3"),
                "TLSv1.2" => {}
                _ => notes.add_note(number, "TLS 1.2 is the lowest version"),
            },
            "ca-file" => {
                let path = value();
                tls.ensure_table("client_certificates").set("ca_file", path);
            }
            "crl-file" => {
                let path = value();
                tls.ensure_table("client_certificates")
                    .set("crl_file", path);
            }
            "verify" => {
                let how = value();
                if how == "optional" {
                    tls.ensure_table("client_certificates")
                        .set("required", false);
                }
            }
            "strict-sni" => tls.set("strict_sni", true),
            "accept-proxy" => bind.accept_proxy = true,
            "mode" => bind.mode = Some(value()),
            "v4v6"
            | "v6only"
            | "tfo"
            | "transparent"
            | "no-tls-tickets"
            | "allow-0rtt"
            | "prefer-client-ciphers" => {}
            "name" | "thread" | "process" | "proto" | "maxconn" | "backlog" | "interface"
            | "user" | "group" | "uid" | "gid" | "level" | "ciphers" | "ciphersuites"
            | "curves" | "ecdhe" | "ssl-max-ver" | "tcp-ut" | "id" | "nice" | "mss" | "shards"
            | "namespace" | "defer-accept" => {
                value();
            }
            _ => notes.add_note(number, format!("`{word}` of an address has no counterpart")),
        }
    }
    if is_tls {
        let clients = tls.get("client_certificates");
        let has_ca = matches!(clients, Some(Value::Table(table)) if table.get("ca_file").is_some());
        if clients.is_some() && !has_ca {
            tls.remove("client_certificates");
            notes.add_restriction(number, "clients' certificates need a `ca_file`");
        }
        if tls.get("certificates").is_none() {
            tls.set("certificates", vec!["certificate.pem".to_owned()]);
            notes.add_note(
                number,
                "the line names no certificate: put a file in place of certificate.pem",
            );
        }
        bind.tls = Some(tls);
    }
    if bind.accept_proxy {
        let why = "every peer may name the address of a client, as in the original: name the networks \
            of the proxies in `accept_proxy`";
        notes.add_note(number, why);
    }
    Some(bind)
}

/// Takes the family of the internet from the front of an address.
///
/// # Errors
///
/// The address of a Unix socket, if it is one.
fn without_family(text: &str) -> Result<&str, String> {
    let text = text
        .strip_prefix("ipv4@")
        .or_else(|| text.strip_prefix("ipv6@"))
        .unwrap_or(text);
    let path = text.strip_prefix("unix@");
    match path.or(text.starts_with('/').then_some(text)) {
        Some(path) => Err(format!("unix:{path}")),
        None => Ok(text),
    }
}

/// Addresses to listen on.
fn addresses(text: &str) -> Option<Vec<String>> {
    let text = match without_family(text) {
        Ok(text) => text,
        Err(socket) => return Some(vec![socket]),
    };
    if let Some(name) = text.strip_prefix("abns@") {
        return Some(vec![format!("unix:@{name}")]);
    }
    let (host, ports) = text.rsplit_once(':')?;
    let host = match host.trim_matches(['[', ']']) {
        "" | "*" => "0.0.0.0".to_owned(),
        host => host.parse::<std::net::IpAddr>().ok().map(|ip| match ip {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        })?,
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    if first > last || last - first >= MAX_PORTS || first == 0 {
        return None;
    }
    Some(
        (first..=last)
            .map(|port| format!("{host}:{port}"))
            .collect(),
    )
}

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
            _ => notes.add_note(line.number, "Evenkeel has no counterpart"),
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
            _ => notes.add_note(line.number, "Evenkeel has no counterpart"),
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
                notes.add_note(
                    line.number,
                    "Evenkeel has no counterpart, and mostly needs none",
                );
            }
            _ => notes.add_note(line.number, "Evenkeel has no counterpart"),
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
        let mut is_tls = false;
        let mut tls = Table::default();
        let mut verifies = None;
        while let Some(word) = words.next() {
            let mut value = || words.next().map(String::as_str).unwrap_or_default();
            match word.as_str() {
                "weight" => match value().parse::<u64>() {
                    Ok(weight @ 0..=256) => member.set("weight", weight),
                    _ => notes.add_note(number, "not a weight"),
                },
                "maxconn" => {
                    if let Ok(most @ 1..=10_000_000) = value().parse::<u64>() {
                        member.set("max_connections", most);
                    }
                }
                "backup" => member.set("backup", true),
                "check" => self.has_checks = true,
                "no-check" => {}
                "disabled" => {
                    member.set("drain", true);
                    notes.add_note(number, "a disabled server drains: `evenkeel ctl maintenance GROUP MEMBER` takes it out at once");
                }
                "inter" => self.check_time("interval", value(), DAY, notes, number),
                "fastinter" | "downinter" => {
                    value();
                }
                "fall" | "rise" => {
                    if let Ok(count @ 1..=1000) = value().parse::<u64>() {
                        self.check.set(word, count);
                    }
                }
                "slowstart" => match parse_millis(value(), 1) {
                    Some(millis) => self.group.set("slow_start", time(millis, 3_600_000)),
                    None => notes.add_note(number, "not a time"),
                },
                "port" => {
                    if let Ok(port @ 1..=65_535) = value().parse::<u64>() {
                        self.check.set("port", port);
                    }
                }
                "send-proxy" => self.group.set("send_proxy", "v1"),
                "send-proxy-v2" => self.group.set("send_proxy", "v2"),
                "ssl" => is_tls = true,
                "verify" => verifies = Some(value() == "required"),
                "ca-file" => tls.set("ca_file", value()),
                "crl-file" => tls.set("crl_file", value()),
                "crt" => tls.set("certificate", value()),
                "sni" => match value() {
                    text if text.starts_with("str(") => tls.set(
                        "server_name",
                        text.trim_start_matches("str(").trim_end_matches(')'),
                    ),
                    _ => notes.add_note(
                        number,
                        "the TLS server name of members is fixed: set \
                        `server_name` of `member_tls`",
                    ),
                },
                "verifyhost" => tls.set("server_name", value()),
                "proto" => self.speaks_http2 |= value() == "h2",
                "cookie" | "id" | "namespace" | "resolvers" | "resolve-prefer" | "init-addr"
                | "on-marked-down" | "on-marked-up" | "on-error" | "observe" | "error-limit"
                | "track" | "source" | "minconn" | "maxqueue" | "pool-max-conn"
                | "pool-purge-delay" | "alpn" | "check-alpn" | "check-sni" | "ciphers"
                | "ciphersuites" | "ssl-min-ver" | "ssl-max-ver" | "addr" | "agent-addr"
                | "agent-inter" | "agent-send" | "max-reuse" | "pool-low-conn" | "redir"
                | "tcp-ut" | "check-proto" | "resolve-opts" | "resolve-net" => {
                    value();
                    if matches!(word.as_str(), "observe" | "error-limit" | "on-error") {
                        notes.add_note(
                            number,
                            "members that fail requests are ejected by default: see \
                            `ejection`",
                        );
                    }
                    if word == "track" {
                        notes.add_note(number, "each group checks its own members");
                    }
                }
                "agent-port" => {
                    if let Ok(port @ 1..=65_535) = value().parse::<u64>() {
                        self.group.ensure_table("agent_check").set("port", port);
                    }
                }
                "agent-check" | "check-ssl" | "check-send-proxy" | "no-ssl" | "non-stick"
                | "no-backup" | "enabled" | "tfo" | "no-tls-tickets" | "check-via-socks4"
                | "allow-0rtt" | "no-verifyhost" => {}
                _ => notes.add_note(number, format!("`{word}` of a server has no counterpart")),
            }
        }
        if is_tls {
            if verifies == Some(false) {
                tls.remove("ca_file");
                tls.remove("crl_file");
                tls.set("verify", false);
            }
            self.group.set(
                "member_tls",
                match tls.is_empty() {
                    true => Value::Flag(true),
                    false => tls.into(),
                },
            );
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

    fn check_time(&mut self, key: &str, text: &str, longest: u64, notes: &mut Notes, line: usize) {
        match parse_millis(text, 1) {
            // The least interval of checks.
            Some(millis) => self.check.set(key, time(millis.max(10), longest)),
            None => notes.add_note(line, "not a time"),
        }
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
