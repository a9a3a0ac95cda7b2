//! Locations of nginx: routes, the most exact path first, as nginx chooses.

use evenkeel_config::FieldChanges;

use super::servers::{group_of, limit_zone, push_network, set_time};
use super::words::Directive;
use super::{Variable, World, argument};
use crate::model::{Change, Changes, Conditions, Head, Model, ValueCondition};
use crate::toml::{Table, Value};
use crate::units::{DAY, TEN_MINUTES, is_network, size};

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
    route: Table,
    request: Vec<(usize, String, String)>,
    response: Vec<(usize, String, String)>,
    member_tls: Table,
    verifies_members: bool,
    access: Vec<(usize, bool, String)>,
    /// Lists of the server, which end where a location has one of its own.
    inherits: Inherited,
    request_limits: Vec<Table>,
    is_limited_here: bool,
    pass: Option<(usize, String)>,
    answer: Option<(usize, Vec<String>)>,
    asks: Option<(usize, String)>,
    mirror: Option<(usize, String)>,
    is_internal: bool,
    files: Option<usize>,
}

/// True for each list that is the server's.
#[derive(Clone, Copy, Debug, Default)]
struct Inherited {
    access: bool,
    request: bool,
    response: bool,
}

/// A text with parts of the request as Evenkeel writes them; `None` if it has others.
fn template(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(&before.replace('{', "{{"));
        let (name, after) = match after.strip_prefix('{') {
            Some(inner) => inner.split_once('}')?,
            None => {
                let end = after
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(after.len());
                after.split_at_checked(end)?
            }
        };
        out.push_str(match name {
            "remote_addr" | "realip_remote_addr" => "{client}",
            "host" | "http_host" | "server_name" => "{host}",
            "scheme" => "{scheme}",
            "request_uri" => "{path}{query}",
            "uri" | "document_uri" => "{path}",
            "is_args" => "",
            "args" | "query_string" => "{query}",
            _ => return None,
        });
        rest = after;
    }
    out.push_str(&rest.replace('{', "{{"));
    Some(out)
}

impl Scope {
    /// Takes what a directive says.
    pub(super) fn take(&mut self, directive: &Directive, world: &World, model: &mut Model) {
        let line = directive.line;
        let first = directive.word_at(0);
        self.begin_own(&directive.name);
        match directive.name.as_str() {
            "listen" | "server_name" | "ssl" | "http2" | "ssl_preread" => {}
            "ssl_certificate" => self.certificates.push(first.to_owned()),
            "ssl_certificate_key" => self.keys.push(first.to_owned()),
            "ssl_protocols" => {
                let has = |version: &str| directive.words.iter().any(|word| word == version);
                if has("TLSv1.3") && !has("TLSv1.2") {
                    self.tls.set("min_version", "1.3");
                }
                if has("TLSv1") || has("TLSv1.1") {
                    model.notes.add_note(line, "TLS 1.2 is the lowest version");
                }
            }
            "ssl_client_certificate" => self
                .tls
                .ensure_table("client_certificates")
                .set("ca_file", first),
            "ssl_crl" => self
                .tls
                .ensure_table("client_certificates")
                .set("crl_file", first),
            "ssl_verify_client" => match first {
                "off" => {}
                "on" => self
                    .tls
                    .ensure_table("client_certificates")
                    .set("required", true),
                _ => self
                    .tls
                    .ensure_table("client_certificates")
                    .set("required", false),
            },
            "proxy_pass" | "grpc_pass" => self.pass = Some((line, first.to_owned())),
            "return" => self.answer = Some((line, directive.words.clone())),
            "internal" => self.is_internal = true,
            "allow" => self.access.push((line, true, first.to_owned())),
            "deny" => self.access.push((line, false, first.to_owned())),
            "auth_request" => self.asks = (first != "off").then(|| (line, first.to_owned())),
            "auth_basic" if first == "off" => {}
            "auth_basic" => model.notes.add_restriction(
                line,
                "passwords belong to the rule or a route: auth = { users_file = \"FILE\" }",
            ),
            "auth_jwt" | "satisfy" | "secure_link" | "valid_referers" | "limit_except" => model
                .notes
                .add_restriction(line, "Evenkeel has no counterpart"),
            "auth_basic_user_file" | "auth_request_set" => {}
            "mirror" => self.mirror = (first != "off").then(|| (line, first.to_owned())),
            "set_real_ip_from" => push_network(&mut self.proxies, directive, model),
            "real_ip_header" => self.trusts_field = first != "proxy_protocol",
            "proxy_set_header" | "grpc_set_header" => {
                self.request
                    .push((line, first.to_owned(), directive.word_at(1).to_owned()))
            }
            "add_header" => {
                self.response
                    .push((line, first.to_owned(), directive.word_at(1).to_owned()))
            }
            "proxy_hide_header" => self.response.push((line, first.to_owned(), String::new())),
            "proxy_connect_timeout" | "grpc_connect_timeout" => set_time(
                &mut self.route,
                "connection_timeout",
                directive,
                TEN_MINUTES,
                model,
            ),
            "proxy_read_timeout" | "grpc_read_timeout" => {
                set_time(&mut self.route, "response_timeout", directive, DAY, model)
            }
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
                if first == "off" {
                    self.route.set("retries", 0_u64);
                }
            }
            "proxy_next_upstream_tries" => {
                if let Ok(tries @ 1..) = first.parse::<u64>() {
                    self.route.set("retries", (tries - 1).min(10));
                }
            }
            "client_max_body_size" => match (first, size(first)) {
                ("0", _) => {}
                (_, Some(size)) => self.route.set("max_body", size),
                _ => model.notes.add_note(line, "not a size"),
            },
            "client_body_timeout" => {
                set_time(&mut self.rule, "body_timeout", directive, DAY, model)
            }
            "client_header_timeout" => set_time(
                &mut self.rule,
                "header_timeout",
                directive,
                3_600_000,
                model,
            ),
            "keepalive_timeout" if first == "0" => {}
            "keepalive_timeout" => {
                set_time(&mut self.rule, "keep_alive_timeout", directive, DAY, model)
            }
            "proxy_ssl_verify" => self.verifies_members = first == "on",
            "proxy_ssl_trusted_certificate" => self.member_tls.set("ca_file", first),
            "proxy_ssl_name" if !first.contains('$') => self.member_tls.set("server_name", first),
            "proxy_ssl_certificate" => self.member_tls.set("certificate", first),
            "proxy_ssl_certificate_key" => self.member_tls.set("key", first),
            "gzip" if first == "on" => {
                self.rule
                    .ensure_table("compression")
                    .set("codings", vec!["gzip".to_owned()]);
            }
            "gzip" => {
                self.rule.remove("compression");
            }
            "gzip_types" if self.rule.get("compression").is_some() => {
                let types: Vec<String> = directive
                    .words
                    .iter()
                    .filter(|word| *word != "*")
                    .cloned()
                    .collect();
                if !types.is_empty() {
                    let html = ["text/html".to_owned()];
                    self.rule
                        .ensure_table("compression")
                        .set("types", [&html[..], &types].concat());
                }
            }
            "gzip_min_length" if self.rule.get("compression").is_some() => {
                if let Some(size) = size(first) {
                    self.rule.ensure_table("compression").set("min_size", size);
                }
            }
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
            "access_log" if first == "off" || first.contains('$') => {}
            "access_log" => {
                let is_syslog = first.starts_with("syslog:");
                model
                    .access_log
                    .set_new("output", if is_syslog { "stdout" } else { first });
                if is_syslog || directive.words.len() > 1 {
                    model.notes.add_note(
                        line,
                        "`output` and `format` of [access_log] are for all rules: docs/cli.md",
                    );
                }
            }
            "root"
            | "alias"
            | "try_files"
            | "index"
            | "autoindex"
            | "fastcgi_pass"
            | "uwsgi_pass"
            | "scgi_pass"
            | "memcached_pass"
            | "empty_gif"
            | "dav_methods"
            | "perl"
            | "js_content"
            | "content_by_lua_block" => {
                if !matches!(directive.name.as_str(), "index" | "root") || self.files.is_none() {
                    self.files = Some(line);
                }
            }
            "stub_status" => {
                self.is_internal = true;
                model.notes.add_note(
                    line,
                    "metrics are at http://127.0.0.1:9900/metrics by default",
                );
            }
            "rewrite"
            | "set"
            | "sub_filter"
            | "recursive_error_pages"
            | "proxy_intercept_errors" => {
                model.notes.add_note(
                    line,
                    "Evenkeel has no counterpart: routes have `redirect`, \
                    `rewrite_prefix` and `answer`",
                );
            }
            "error_page" => {
                model.notes.add_note(
                    line,
                    "`error_pages` names a file for each status: docs/routing.md#error-pages",
                );
            }
            "proxy_cache" | "proxy_cache_valid" | "proxy_cache_key" | "proxy_cache_path"
            | "expires" | "proxy_store" => {
                model.notes.add_note(line, "Evenkeel has no cache");
            }
            "include" => model
                .notes
                .add_note(line, "the file is not read: convert it, too"),
            "log_format" => model.notes.add_note(
                line,
                "`format` of [access_log] has fields of its own: docs/cli.md",
            ),
            name if is_needless(name) => {}
            _ => model.notes.add_note(line, "Evenkeel has no counterpart"),
        }
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
    fn for_location(&self) -> Self {
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

/// Adds the routes of a server's locations to `out`.
pub(super) fn locations(
    server: &Directive,
    scope: &Scope,
    conditions: &Conditions,
    world: &World,
    model: &mut Model,
    out: &mut Vec<Table>,
) {
    if scope.answer.is_some() {
        return route(server, scope, conditions, "", world, model, out);
    }
    let mut all: Vec<(u8, &str, &Directive)> = Vec::new();
    for location in server
        .inner_directives()
        .iter()
        .filter(|inner| inner.name == "location")
    {
        match (location.word_at(0), location.words.len()) {
            ("=", _) => all.push((0, location.word_at(1), location)),
            ("^~", _) => all.push((1, location.word_at(1), location)),
            ("~" | "~*", _) => model
                .notes
                .add_note(location.line, "routes have no regular expressions"),
            (path, 1) if path.starts_with('/') => all.push((1, path, location)),
            _ => model
                .notes
                .add_note(location.line, "not a path that a route can have"),
        }
    }
    // Exact ones first, then the longest.
    all.sort_by_key(|(kind, path, _)| (*kind, std::cmp::Reverse(path.len())));
    let has_rest = all.iter().any(|(kind, path, _)| *kind == 1 && *path == "/");
    for (kind, path, location) in all {
        let mut own = scope.for_location();
        for directive in location.inner_directives() {
            match directive.name.as_str() {
                "location" | "if" | "limit_except" => {
                    model.notes.add_note(
                        directive.line,
                        "blocks within a location are not translated: write them beside the location",
                    );
                }
                _ => own.take(directive, world, model),
            }
        }
        let is_plain = |c: char| c.is_ascii_graphic() && !"?#*;%\\".contains(c);
        if !path.chars().all(is_plain)
            || path.contains("//")
            || path.split('/').any(|part| part == "." || part == "..")
        {
            model
                .notes
                .add_note(location.line, "not a path that a route can have");
            continue;
        }
        let mut conditions = conditions.clone();
        let prefix = path.trim_end_matches('/');
        match (kind, prefix) {
            (0, _) => conditions.paths.push(path.to_owned()),
            (_, "") => {}
            _ => conditions.paths.push(format!("{prefix}/*")),
        }
        let before = out.len();
        route(
            server,
            &own,
            &conditions,
            if kind == 0 { "" } else { prefix },
            world,
            model,
            out,
        );
        if kind == 0 {
            for route in out.iter_mut().skip(before) {
                route.remove("rewrite_prefix");
            }
        }
    }
    if !has_rest && scope.files.is_some() {
        route(server, scope, conditions, "", world, model, out);
    }
}

/// Adds the routes of a location: those that refuse clients, then the one that serves the rest.
fn route(
    server: &Directive,
    scope: &Scope,
    conditions: &Conditions,
    prefix: &str,
    world: &World,
    model: &mut Model,
    out: &mut Vec<Table>,
) {
    if scope.is_internal {
        return;
    }
    if let Some(refused) = refused(scope, conditions, model) {
        let is_all = refused.clients.is_empty() && refused.except_clients.is_empty();
        let mut route = refused.to_route();
        let mut answer = Table::default();
        answer.set("status", 403_u64);
        route.set("answer", answer);
        out.push(route);
        if is_all {
            return;
        }
    }
    if let Some((line, words)) = &scope.answer {
        let mut route = conditions.to_route();
        answer(*line, words, &mut route, model);
        respond(scope, &mut route, model);
        return out.push(route);
    }
    let Some((line, pass)) = &scope.pass else {
        if let Some(line) = scope.files {
            model.notes.add_note(
                line,
                "Evenkeel serves no files: put a web server behind it as a member. Requests get 404",
            );
            let mut route = conditions.to_route();
            let mut answer = Table::default();
            answer.set("status", 404_u64);
            route.set("answer", answer);
            out.push(route);
        }
        return;
    };
    for (more, to) in targets(*line, pass, world, model) {
        let Some(conditions) = conditions.merge_with(&more) else {
            model
                .notes
                .add_note(*line, "a route can have only one condition of each kind");
            continue;
        };
        let mut route = conditions.to_route();
        let mut rewrites = None;
        for (weight, to) in &to {
            let Some((group, uri)) = target(*line, to, scope, model) else {
                continue;
            };
            rewrites = rewrites.or(uri);
            match weight {
                Some(weight) => route.ensure_table("groups").set(&group, *weight),
                None => route.set("group", group),
            }
        }
        if route.get("group").is_none() && route.get("groups").is_none() {
            let mut answer = Table::default();
            answer.set("status", 503_u64);
            route.set("answer", answer);
            model
                .notes
                .add_note(*line, "the location has no servers: requests get 503");
            out.push(route);
            continue;
        }
        if let Some(uri) = rewrites {
            let from = if prefix.is_empty() {
                "/*".to_owned()
            } else {
                format!("{prefix}/*")
            };
            let to = if uri == "/" {
                uri
            } else {
                uri.trim_end_matches('/').to_owned()
            };
            if !(prefix.is_empty() && to == "/") {
                route.set_new("path", from);
                route.set("rewrite_prefix", to);
            }
        }
        request(scope, &mut route, model);
        respond(scope, &mut route, model);
        if !scope.request_limits.is_empty() {
            let limits = scope
                .request_limits
                .iter()
                .cloned()
                .map(Value::from)
                .collect();
            route.set("request_limits", Value::List(limits));
        }
        if let Some((line, path)) = &scope.asks {
            match group_at(server, path, model) {
                Some(group) => {
                    let auth = route.ensure_table("auth");
                    auth.set("group", group);
                    auth.set("path", path.as_str());
                }
                None => model
                    .notes
                    .add_restriction(*line, "the location that is asked does not exist"),
            }
        }
        if let Some((line, path)) = &scope.mirror {
            match group_at(server, path, model) {
                Some(group) => route.ensure_table("mirror").set("group", group),
                None => model
                    .notes
                    .add_note(*line, "the location that gets copies does not exist"),
            }
        }
        route.add_missing(&scope.route);
        out.push(route);
    }
}

/// The group to which the location at `path` sends requests: the one of this path, or the longest that it begins with.
fn group_at(server: &Directive, path: &str, model: &mut Model) -> Option<String> {
    let locations = server
        .inner_directives()
        .iter()
        .filter(|inner| inner.name == "location");
    let paths = locations.filter_map(|location| {
        let place = location.words.last()?;
        path.starts_with(place.as_str())
            .then_some((place.len(), location))
    });
    let (_, location) = paths.max_by_key(|(length, _)| *length)?;
    let pass = location
        .inner_directives()
        .iter()
        .find(|inner| inner.name == "proxy_pass")?;
    let to = pass.word_at(0).strip_prefix("http://")?;
    group_of(to.split(['/', '$']).next()?, None, model)
}

/// Destination of the requests of some conditions: to one address, or to several with their weights.
type Target = (Conditions, Vec<(Option<u64>, String)>);

/// Conditions on the values of a variable, each with where requests go.
fn targets(line: usize, pass: &str, world: &World, model: &mut Model) -> Vec<Target> {
    let (scheme, name) = match pass.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), pass),
    };
    let variable = name
        .starts_with('$')
        .then(|| name.split('/').next().unwrap_or_default());
    let Some(variable) = variable else {
        return vec![(Conditions::default(), vec![(None, pass.to_owned())])];
    };
    let whole = |to: &str| format!("{scheme}{to}");
    match world.variables.get(variable) {
        Some(Variable::Split { entries, other }) => {
            let taken: u64 = entries.iter().map(|(share, _)| *share).sum();
            let rest = other
                .iter()
                .map(|to| (Some(100_000_u64.saturating_sub(taken)), whole(to)));
            let all = entries.iter().map(|(share, to)| (Some(*share), whole(to)));
            vec![(Conditions::default(), all.chain(rest).collect())]
        }
        Some(Variable::Map { of, entries, other }) => {
            let mut all = Vec::new();
            for (value, to) in entries {
                match on_value(of, value) {
                    Some(conditions) => all.push((conditions, vec![(None, whole(to))])),
                    None => model.notes.add_note(
                        line,
                        format!("routes have no condition like {of} = {value}"),
                    ),
                }
            }
            all.extend(
                other
                    .iter()
                    .map(|to| (Conditions::default(), vec![(None, whole(to))])),
            );
            all
        }
        None => {
            model.notes.add_note(
                line,
                format!("{variable} is not a variable of a map or split_clients"),
            );
            vec![(Conditions::default(), Vec::new())]
        }
    }
}

/// The condition that a variable has a value.
fn on_value(variable: &str, value: &str) -> Option<Conditions> {
    if value.starts_with('~') || value.contains('*') || value.is_empty() {
        return None;
    }
    let name = variable.strip_prefix('$')?;
    let one = |name: &str| vec![(name.to_owned(), ValueCondition::Like(value.to_owned()))];
    let mut conditions = Conditions::default();
    match name {
        "host" | "http_host" => conditions.hosts = vec![value.to_ascii_lowercase()],
        "request_method" => conditions.methods = vec![value.to_owned()],
        "remote_addr" if is_network(value) => conditions.clients = vec![value.to_owned()],
        _ => match (
            name.strip_prefix("http_"),
            name.strip_prefix("cookie_"),
            name.strip_prefix("arg_"),
        ) {
            (Some(field), ..) => conditions.headers = one(&field.replace('_', "-")),
            (_, Some(cookie), _) => conditions.cookies = one(cookie),
            (_, _, Some(parameter)) => conditions.query = one(parameter),
            _ => return None,
        },
    }
    Some(conditions)
}

/// The group of an address of `proxy_pass`, and the path there if it has one.
fn target(
    line: usize,
    to: &str,
    scope: &Scope,
    model: &mut Model,
) -> Option<(String, Option<String>)> {
    let (scheme, rest) = to.split_once("://").unwrap_or(("http", to));
    let rest = rest
        .strip_suffix("$request_uri")
        .or_else(|| rest.strip_suffix("$uri"))
        .unwrap_or(rest);
    let (host, uri) = match rest.find('/').filter(|_| !rest.starts_with("unix:")) {
        Some(place) => rest.split_at_checked(place)?,
        None => (rest, ""),
    };
    let is_tls = matches!(scheme, "https" | "grpcs");
    let group = group_of(host, Some(if is_tls { 443 } else { 80 }), model);
    let Some(group) = group else {
        model.notes.add_note(line, "not the address of a server");
        return None;
    };
    if is_tls {
        let mut tls = scope.member_tls.clone();
        if tls.get("certificate").is_none() {
            tls.remove("key");
        }
        if !scope.verifies_members {
            tls.remove("ca_file");
            tls.set("verify", false);
            model.notes.add_note(
                line,
                "members' certificates are not verified, as in the original: \
                name a `ca_file` in `member_tls`",
            );
        }
        if let Some(found) = model.groups.iter_mut().find(|found| found.name == group) {
            found.keys.set(
                "member_tls",
                match tls.is_empty() {
                    true => Value::Flag(true),
                    false => tls.into(),
                },
            );
        }
    }
    if scheme.starts_with("grpc") {
        model.notes.add_note(
            line,
            "members that speak HTTP/2 only need `member_protocol = \"h2\"` in `http` of the rule",
        );
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    let uri = match uri {
        "" => None,
        uri if uri.chars().all(is_plain) && !uri.contains("//") => Some(uri.to_owned()),
        _ => {
            model.notes.add_note(
                line,
                "`rewrite_prefix` cannot have the path behind the address",
            );
            None
        }
    };
    Some((group, uri))
}

/// Conditions of clients that are refused; `None` if none are.
fn refused(scope: &Scope, conditions: &Conditions, model: &mut Model) -> Option<Conditions> {
    let (line, ..) = scope.access.first()?;
    let kind = |allowed: bool| {
        let of_kind = scope
            .access
            .iter()
            .filter(move |(_, is_allowed, what)| *is_allowed == allowed && what != "all");
        let networks = of_kind
            .map(|(_, _, what)| what.clone())
            .filter(|what| what != "unix:");
        networks.collect::<Vec<_>>()
    };
    let (allowed, denied) = (kind(true), kind(false));
    let is_closed = matches!(scope.access.last(), Some((_, false, what)) if what == "all");
    let networks_are = |list: &[String]| list.iter().all(|network| is_network(network));
    if !networks_are(&allowed) || !networks_are(&denied) {
        model.notes.add_restriction(*line, "not networks");
        return None;
    }
    let mut refused = conditions.clone();
    match (allowed.as_slice(), denied.as_slice(), is_closed) {
        (_, [], true) => refused.except_clients = allowed,
        ([], _, false) if !denied.is_empty() => refused.clients = denied,
        (_, [], false) => return None,
        _ => {
            let why = "allowed and denied networks alternate: write a route for each, with `client` and \
                `except_client`";
            model.notes.add_restriction(*line, why);
            return None;
        }
    }
    Some(refused)
}

/// `return` as an action of a route.
fn answer(line: usize, words: &[String], route: &mut Table, model: &mut Model) {
    let first = words.first().map_or("", String::as_str);
    let (status, text) = match first.parse::<u64>() {
        Ok(status) => (status, words.get(1).map_or("", String::as_str)),
        Err(_) => (302, first),
    };
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    if is_redirect && !text.is_empty() {
        let to = template(text).filter(|to| {
            let begins = ["http://", "https://", "{scheme}://", "/", "{path}"];
            begins.iter().any(|begin| to.starts_with(begin))
                && !to.starts_with("//")
                && to.is_ascii()
                && !to.contains(' ')
        });
        match to {
            Some(to) => {
                route.set("redirect", to);
                if status != 302 {
                    route.set("redirect_status", status);
                }
                return;
            }
            None => model.notes.add_note(
                line,
                "a redirect can use {scheme}, {host}, {path}, {query} and {client} of the request only",
            ),
        }
    }
    let mut answer = Table::default();
    let known = (200..=599).contains(&status) && !is_redirect;
    answer.set("status", if known { status } else { 403 });
    if !known {
        model
            .notes
            .add_note(line, "an answer cannot have this status: 403 is used");
    }
    if !text.is_empty() && !text.contains('$') && !matches!(status, 204 | 205 | 304) && !is_redirect
    {
        answer.set("body", text.replace("\\n", "\n"));
    }
    route.set("answer", answer);
}

/// Adds changes of the fields of requests.
fn request(scope: &Scope, route: &mut Table, model: &mut Model) {
    let mut changes = Changes::default();
    for (line, name, value) in &scope.request {
        // How to speak with members over which connection is for the balancer to say.
        let is_name = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let is_of_balancer = is_name && FieldChanges::refusal(name).is_some();
        let is_host = name.eq_ignore_ascii_case("host");
        let is_kept = matches!(
            value.as_str(),
            "$host" | "$http_host" | "$host:$server_port"
        );
        if is_of_balancer || is_host && is_kept {
            continue;
        }
        let change = match value.is_empty() && !is_host {
            true => Change::Remove,
            false => Change::Set,
        };
        if let Err(why) = changes.take(Head::Request, (change, name), template(value)) {
            model.notes.add_note(*line, why);
        }
    }
    changes.write_to(Head::Request, route);
}

/// Adds changes of the fields of responses.
fn respond(scope: &Scope, route: &mut Table, model: &mut Model) {
    let mut changes = Changes::default();
    for (line, name, value) in &scope.response {
        let change = match value.is_empty() {
            true => Change::Remove,
            false => Change::Set,
        };
        let value = Some(value.clone()).filter(|value| !value.contains('$'));
        if let Err(why) = changes.take(Head::Response, (change, name), value) {
            model.notes.add_note(*line, why);
        }
    }
    changes.write_to(Head::Response, route);
}
