//! Directives that hold in a server or in a location.

use super::values::{argument, limit_zone, push_network, set_time};
use super::words::Directive;
use super::world::World;
use crate::model::Model;
use crate::note::{NO_COUNTERPART, Remark};
use crate::toml::{Table, Value};
use crate::units::{DAY, TEN_MINUTES, size};

/// Directives of a server or a location; a location has what its server says.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// Keys of the rule.
    pub(super) rule: Table,
    pub(super) limits: Table,
    /// Networks of proxies in front, and true if a field of theirs names the client.
    pub(super) proxies: Vec<String>,
    pub(super) trusts_field: bool,
    certificates: Vec<String>,
    keys: Vec<String>,
    tls: Table,
    /// Keys of routes to members.
    pub(super) route: Table,
    pub(super) request: Vec<(usize, String, String)>,
    pub(super) response: Vec<(usize, String, String)>,
    pub(super) member_tls: Table,
    pub(super) verifies_members: bool,
    pub(super) access: Vec<(usize, bool, String)>,
    /// Lists of the server, which end where a location has one of its own.
    inherits: Inherited,
    pub(super) request_limits: Vec<Table>,
    is_limited_here: bool,
    pub(super) pass: Option<(usize, String)>,
    pub(super) answer: Option<(usize, Vec<String>)>,
    pub(super) asks: Option<(usize, String)>,
    pub(super) mirror: Option<(usize, String)>,
    pub(super) is_internal: bool,
    pub(super) files: Option<usize>,
}

/// True for each list that is the server's.
#[derive(Clone, Copy, Debug, Default)]
struct Inherited {
    access: bool,
    request: bool,
    response: bool,
}

impl Scope {
    /// Takes what a directive says.
    pub(super) fn take(&mut self, directive: &Directive, world: &World, model: &mut Model) {
        self.begin_own(&directive.name);
        self.is_internal |= directive.name == "stub_status";
        let is_taken = self.take_tls(directive, model)
            || self.take_member_tls(directive)
            || self.take_action(directive)
            || self.take_client(directive, model)
            || self.take_fields(directive)
            || self.take_time(directive, model)
            || self.take_retries(directive)
            || self.take_compression(directive)
            || self.take_limit(directive, world, model)
            || take_access_log(directive, model);
        if is_taken || self.take_files(directive) {
            return;
        }
        let (line, name) = (directive.line, directive.name.as_str());
        if !model.notes.remark_on(line, name, &REMARKS) && !is_needless(name) {
            model.notes.add_remark(line, NO_COUNTERPART);
        }
    }

    /// Takes a directive of TLS with clients; false if the directive is another one.
    fn take_tls(&mut self, directive: &Directive, model: &mut Model) -> bool {
        let first = directive.word_at(0);
        let set_of_clients = |tls: &mut Table, key: &str, value: Value| {
            tls.ensure_table("client_certificates").set(key, value);
        };
        match directive.name.as_str() {
            "ssl_certificate" => self.certificates.push(first.to_owned()),
            "ssl_certificate_key" => self.keys.push(first.to_owned()),
            "ssl_protocols" => {
                let has = |version: &str| directive.words.iter().any(|word| word == version);
                if has("TLSv1.3") && !has("TLSv1.2") {
                    self.tls.set("min_version", "1.3");
                }
                if has("TLSv1") || has("TLSv1.1") {
                    let why = "TLS 1.2 is the lowest version";
                    model.notes.add_note(directive.line, why);
                }
            }
            "ssl_client_certificate" => set_of_clients(&mut self.tls, "ca_file", first.into()),
            "ssl_crl" => set_of_clients(&mut self.tls, "crl_file", first.into()),
            "ssl_verify_client" if first == "off" => {}
            "ssl_verify_client" => {
                set_of_clients(&mut self.tls, "required", Value::Flag(first == "on"));
            }
            _ => return false,
        }
        true
    }

    /// Takes a directive of TLS with members; false if the directive is another one.
    fn take_member_tls(&mut self, directive: &Directive) -> bool {
        let first = directive.word_at(0);
        match directive.name.as_str() {
            "proxy_ssl_verify" => self.verifies_members = first == "on",
            "proxy_ssl_trusted_certificate" => self.member_tls.set("ca_file", first),
            "proxy_ssl_name" if !first.contains('$') => self.member_tls.set("server_name", first),
            "proxy_ssl_certificate" => self.member_tls.set("certificate", first),
            "proxy_ssl_certificate_key" => self.member_tls.set("key", first),
            _ => return false,
        }
        true
    }

    /// Takes a directive that says who answers requests, or is asked about them; false if the directive is another one.
    fn take_action(&mut self, directive: &Directive) -> bool {
        let (line, first) = (directive.line, directive.word_at(0));
        let unless_off = || (first != "off").then(|| (line, first.to_owned()));
        match directive.name.as_str() {
            "proxy_pass" | "grpc_pass" => self.pass = Some((line, first.to_owned())),
            "return" => self.answer = Some((line, directive.words.clone())),
            "internal" => self.is_internal = true,
            "auth_request" => self.asks = unless_off(),
            "mirror" => self.mirror = unless_off(),
            _ => return false,
        }
        true
    }

    /// Takes a directive about clients and their addresses; false if the directive is another one.
    fn take_client(&mut self, directive: &Directive, model: &mut Model) -> bool {
        let (line, first) = (directive.line, directive.word_at(0));
        match directive.name.as_str() {
            "allow" => self.access.push((line, true, first.to_owned())),
            "deny" => self.access.push((line, false, first.to_owned())),
            "set_real_ip_from" => push_network(&mut self.proxies, directive, model),
            "real_ip_header" => self.trusts_field = first != "proxy_protocol",
            "auth_basic" if first == "off" => {}
            _ => return false,
        }
        true
    }

    /// Takes a directive that changes fields; false if the directive is another one.
    fn take_fields(&mut self, directive: &Directive) -> bool {
        let (changes, value) = match directive.name.as_str() {
            "proxy_set_header" | "grpc_set_header" => (&mut self.request, directive.word_at(1)),
            "add_header" => (&mut self.response, directive.word_at(1)),
            "proxy_hide_header" => (&mut self.response, ""),
            _ => return false,
        };
        let name = directive.word_at(0).to_owned();
        changes.push((directive.line, name, value.to_owned()));
        true
    }

    /// Takes a time of [`TIMES`]; false if the directive is another one.
    fn take_time(&mut self, directive: &Directive, model: &mut Model) -> bool {
        let name = directive.name.as_str();
        let Some((_, owner, key, longest)) = TIMES.iter().find(|(names, ..)| names.contains(&name))
        else {
            return false;
        };
        let table = match owner {
            Owner::Rule => &mut self.rule,
            Owner::Route => &mut self.route,
        };
        if name != "keepalive_timeout" || directive.word_at(0) != "0" {
            set_time(table, key, directive, *longest, model);
        }
        true
    }

    /// Takes a directive of retries; false if the directive is another one.
    fn take_retries(&mut self, directive: &Directive) -> bool {
        let first = directive.word_at(0);
        match directive.name.as_str() {
            "proxy_next_upstream" => {
                let statuses = directive
                    .words
                    .iter()
                    .filter_map(|word| word.strip_prefix("http_")?.parse::<u64>().ok());
                let statuses: Vec<u64> = statuses
                    .filter(|status| (400..=599).contains(status))
                    .collect();
                if !statuses.is_empty() {
                    self.route.set("retry_statuses", statuses);
                }
                if directive.words.iter().any(|word| word == "non_idempotent") {
                    let methods = ["POST", "PATCH", "LOCK"].map(str::to_owned).to_vec();
                    self.route.set("retry_methods", methods);
                }
                if first == "off" {
                    self.route.set("retries", 0_u64);
                }
            }
            "proxy_next_upstream_tries" => {
                if let Ok(tries @ 1..) = first.parse::<u64>() {
                    self.route.set("retries", (tries - 1).min(10));
                }
            }
            _ => return false,
        }
        true
    }

    /// Takes a directive of compression; false if the directive is another one.
    fn take_compression(&mut self, directive: &Directive) -> bool {
        let first = directive.word_at(0);
        let is_on = self.rule.get("compression").is_some();
        match directive.name.as_str() {
            "gzip" if first == "on" => {
                let codings = vec!["gzip".to_owned()];
                self.rule
                    .ensure_table("compression")
                    .set("codings", codings);
            }
            "gzip" => {
                self.rule.remove("compression");
            }
            "gzip_types" if is_on => {
                let types = directive.words.iter().filter(|word| *word != "*");
                let types: Vec<String> = types.cloned().collect();
                if !types.is_empty() {
                    let html = ["text/html".to_owned()];
                    self.rule
                        .ensure_table("compression")
                        .set("types", [&html[..], &types].concat());
                }
            }
            "gzip_min_length" if is_on => {
                if let Some(size) = size(first) {
                    self.rule.ensure_table("compression").set("min_size", size);
                }
            }
            _ => return false,
        }
        true
    }

    /// Takes a limit of clients or requests; false if the directive is another one.
    fn take_limit(&mut self, directive: &Directive, world: &World, model: &mut Model) -> bool {
        let (line, first) = (directive.line, directive.word_at(0));
        match directive.name.as_str() {
            "client_max_body_size" => match (first, size(first)) {
                ("0", _) => {}
                (_, Some(size)) => self.route.set("max_body", size),
                _ => model.notes.add_note(line, "not a size"),
            },
            "limit_req" => self.limit_requests(directive, world, model),
            "limit_conn" => match (
                world.by_client.get(limit_zone(directive, true)),
                directive.word_at(1).parse::<u64>(),
            ) {
                (Some(true), Ok(most @ 1..=1_000_000)) => self.limits.set("connections", most),
                _ => model.notes.add_restriction(
                    line,
                    "connections are limited for each client: `connections` of [rule.NAME.limits]",
                ),
            },
            "limit_req_status" => {
                if let Ok(status @ 400..=599) = first.parse::<u64>()
                    && self.limits.get("requests").is_some()
                {
                    self.limits.set("status", status);
                }
            }
            _ => return false,
        }
        true
    }

    /// Takes a directive of a server's own answers; false if the directive is another one.
    fn take_files(&mut self, directive: &Directive) -> bool {
        match directive.name.as_str() {
            // The first directive that says where files are.
            "index" | "root" => {
                self.files.get_or_insert(directive.line);
            }
            name if OWN_ANSWERS.contains(&name) => self.files = Some(directive.line),
            _ => return false,
        }
        true
    }

    /// Ends a list of the server's where a location begins one of its own.
    fn begin_own(&mut self, name: &str) {
        match name {
            "allow" | "deny" if std::mem::take(&mut self.inherits.access) => self.access.clear(),
            "proxy_set_header" if std::mem::take(&mut self.inherits.request) => {
                self.request.clear()
            }
            "add_header" if std::mem::take(&mut self.inherits.response) => self.response.clear(),
            _ => {}
        }
    }

    fn limit_requests(&mut self, directive: &Directive, world: &World, model: &mut Model) {
        let zone = limit_zone(directive, false);
        let (Some(rate), Some(true)) = (world.rates.get(zone), world.by_client.get(zone)) else {
            let why = "requests are limited for each client, or by a key: `requests` and `key` of [rule.NAME.limits]";
            return model.notes.add_restriction(directive.line, why);
        };
        let mut limit = Table::default();
        limit.set("requests", rate.as_str());
        if let Some(Ok(burst @ 1..=10_000_000)) =
            argument(directive, "burst").map(str::parse::<u64>)
        {
            limit.set("burst", burst);
        }
        match self.is_limited_here {
            true => self.request_limits.push(limit),
            false => self.limits.add_missing(&limit),
        }
    }

    /// Adds what a server has of TLS.
    pub(super) fn tls_of(&self, table: &mut Table) {
        for (place, certificate) in self.certificates.iter().enumerate() {
            let mut one = Table::default();
            one.set("certificate", certificate.as_str());
            if let Some(key) = self.keys.get(place) {
                one.set("key", key.as_str());
            }
            table.push("certificates", one);
        }
        let mut more = self.tls.clone();
        let clients = more.get("client_certificates");
        if let Some(Value::Table(clients)) = clients
            && (clients.get("ca_file").is_none() || clients.get("required").is_none())
        {
            more.remove("client_certificates");
        }
        table.add_missing(&more);
    }

    /// Returns the scope of a location within this scope, with the inherited directives.
    pub(super) fn for_location(&self) -> Self {
        Scope {
            pass: None,
            answer: None,
            is_internal: false,
            request_limits: Vec::new(),
            is_limited_here: true,
            inherits: Inherited {
                access: true,
                request: true,
                response: true,
            },
            ..self.clone()
        }
    }
}

/// Takes `access_log`; false if the directive is another one.
fn take_access_log(directive: &Directive, model: &mut Model) -> bool {
    let first = directive.word_at(0);
    if directive.name != "access_log" {
        return false;
    }
    if first == "off" || first.contains('$') {
        return true;
    }
    let is_syslog = first.starts_with("syslog:");
    let output = if is_syslog { "stdout" } else { first };
    model.access_log.set_new("output", output);
    if is_syslog || directive.words.len() > 1 {
        let why = "`output` and `format` of [access_log] are for all rules: docs/cli.md";
        model.notes.add_note(directive.line, why);
    }
    true
}

/// Table that a key belongs to.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Rule,
    Route,
}

/// Names of directives with a time, the owner of the key, the key, and its longest time.
const TIMES: [(&[&str], Owner, &str, u64); 5] = [
    (
        &["proxy_connect_timeout", "grpc_connect_timeout"],
        Owner::Route,
        "connection_timeout",
        TEN_MINUTES,
    ),
    (
        &["proxy_read_timeout", "grpc_read_timeout"],
        Owner::Route,
        "response_timeout",
        DAY,
    ),
    (&["client_body_timeout"], Owner::Rule, "body_timeout", DAY),
    (
        &["client_header_timeout"],
        Owner::Rule,
        "header_timeout",
        3_600_000,
    ),
    (
        &["keepalive_timeout"],
        Owner::Rule,
        "keep_alive_timeout",
        DAY,
    ),
];

/// Directives by which a server answers requests by itself.
const OWN_ANSWERS: [&str; 12] = [
    "alias",
    "try_files",
    "autoindex",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "memcached_pass",
    "empty_gif",
    "dav_methods",
    "perl",
    "js_content",
    "content_by_lua_block",
];

/// Directives that are not translated, with the remark for each.
const REMARKS: [(&[&str], Remark); 9] = [
    (
        &[
            "listen",
            "server_name",
            "ssl",
            "http2",
            "ssl_preread",
            "auth_basic_user_file",
            "auth_request_set",
        ],
        Remark::Needless,
    ),
    (
        &["auth_basic"],
        Remark::Restriction(
            "passwords belong to the rule or a route: auth = { users_file = \"FILE\" }",
        ),
    ),
    (
        &[
            "auth_jwt",
            "satisfy",
            "secure_link",
            "valid_referers",
            "limit_except",
        ],
        Remark::Restriction("Evenkeel has no counterpart"),
    ),
    (
        &["stub_status"],
        Remark::Note("metrics are at http://127.0.0.1:9900/metrics by default"),
    ),
    (
        &[
            "rewrite",
            "set",
            "sub_filter",
            "recursive_error_pages",
            "proxy_intercept_errors",
        ],
        Remark::Note(
            "Evenkeel has no counterpart: routes have `redirect`, `rewrite_prefix` and `answer`",
        ),
    ),
    (
        &["error_page"],
        Remark::Note("`error_pages` names a file for each status: docs/routing.md#error-pages"),
    ),
    (
        &[
            "proxy_cache",
            "proxy_cache_valid",
            "proxy_cache_key",
            "proxy_cache_path",
            "expires",
            "proxy_store",
        ],
        Remark::Note("Evenkeel has no cache"),
    ),
    (
        &["include"],
        Remark::Note("the file is not read: convert it, too"),
    ),
    (
        &["log_format"],
        Remark::Note("`format` of [access_log] has fields of its own: docs/cli.md"),
    ),
];

/// True for directives without which nothing is missed.
fn is_needless(name: &str) -> bool {
    let prefixes = [
        "ssl_",
        "proxy_buffer",
        "proxy_ssl_",
        "proxy_http_version",
        "proxy_redirect",
        "proxy_busy",
        "proxy_max_temp",
        "proxy_temp",
        "proxy_request_buffering",
        "proxy_send_timeout",
        "proxy_pass_",
        "proxy_headers_hash",
        "proxy_socket_keepalive",
        "gzip_",
        "client_body_buffer",
        "client_header_buffer",
        "client_body_temp",
        "large_client_header",
        "keepalive_",
        "tcp_no",
        "send",
        "server_tokens",
        "types_hash",
        "server_names_hash",
        "map_hash",
        "variables_hash",
        "default_type",
        "types",
        "etag",
        "if_modified_since",
        "charset",
        "open_file_cache",
        "reset_timedout",
        "resolver",
        "underscores_in_headers",
        "http2_",
        "log_",
        "limit_req_log",
        "limit_conn_log",
        "limit_conn_status",
        "limit_req_zone",
        "limit_conn_zone",
        "port_in_redirect",
        "aio",
        "real_ip_recursive",
        "absolute_redirect",
        "server_name_in_redirect",
        "error_log",
        "chunked_transfer",
        "merge_slashes",
        "proxy_ignore",
        "proxy_next_upstream_timeout",
        "grpc_",
        "output_buffers",
        "lingering_",
        "directio",
        "zone",
        "quic_",
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}
