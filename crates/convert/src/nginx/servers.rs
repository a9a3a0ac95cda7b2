//! Servers of nginx: rules, one for each address, with hosts as conditions of their routes.

use super::groups::group_of;
use super::locations::locations;
use super::scope::Scope;
use super::values::set_time;
use super::words::Directive;
use super::world::{Variable, World};
use crate::model::{Conditions, Model, Rule};
use crate::note::NO_COUNTERPART;
use crate::toml::{Table, Value};
use crate::units::DAY;

/// An address that servers listen on.
struct Listen {
    address: String,
    is_tls: bool,
    accept_proxy: bool,
    is_default: bool,
}

/// The addresses of a server.
fn listens(server: &Directive, model: &mut Model) -> Vec<Listen> {
    let mut all = Vec::new();
    let tls_of_server = server
        .inner_directives()
        .iter()
        .any(|inner| inner.name == "ssl" && inner.word_at(0) == "on");
    for listen in server
        .inner_directives()
        .iter()
        .filter(|inner| inner.name == "listen")
    {
        let has = |word: &str| listen.words.iter().any(|found| found == word);
        if has("quic") || has("udp") {
            model.notes.add_note(
                listen.line,
                "UDP is not converted: write a rule with protocol = \"udp\"",
            );
            continue;
        }
        let Some(address) = listen_address(listen.word_at(0)) else {
            model
                .notes
                .add_note(listen.line, "not an address to listen on");
            continue;
        };
        all.push(Listen {
            address,
            is_tls: has("ssl") || tls_of_server,
            accept_proxy: has("proxy_protocol"),
            is_default: has("default_server") || has("default"),
        });
    }
    if all.is_empty()
        && !server
            .inner_directives()
            .iter()
            .any(|inner| inner.name == "listen")
    {
        let address = "0.0.0.0:80".to_owned();
        all.push(Listen {
            address,
            is_tls: tls_of_server,
            accept_proxy: false,
            is_default: false,
        });
    }
    all
}

fn listen_address(text: &str) -> Option<String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return path.starts_with('/').then(|| format!("unix:{path}"));
    }
    if let Ok(port @ 1..) = text.parse::<u16>() {
        return Some(format!("0.0.0.0:{port}"));
    }
    let text = text
        .replace("*:", "0.0.0.0:")
        .replace("localhost", "127.0.0.1");
    match text.parse::<std::net::SocketAddr>() {
        Ok(address) => Some(address.to_string()),
        Err(_) => {
            let ip = text
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .ok()?;
            Some(std::net::SocketAddr::new(ip, 80).to_string())
        }
    }
}

/// True if the text is a name of a host.
fn is_host(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_label = |label: &str| (1..=63).contains(&label.len());
    text.len() <= 250 && text.chars().all(is_part) && text.split('.').all(is_label)
}

/// Hosts of a server, as conditions have them.
fn hosts(server: &Directive, model: &mut Model) -> Vec<String> {
    let mut hosts = Vec::new();
    for names in server
        .inner_directives()
        .iter()
        .filter(|inner| inner.name == "server_name")
    {
        for name in &names.words {
            let lower = name.to_ascii_lowercase();
            match (lower.strip_prefix("*."), lower.strip_prefix('.')) {
                _ if name == "_" || name.is_empty() || lower == "localhost" => {}
                (Some(below), _) if is_host(below) => hosts.push(lower.clone()),
                (_, Some(domain)) if is_host(domain) => {
                    hosts.extend([domain.to_owned(), format!("*.{domain}")])
                }
                _ if is_host(&lower) => hosts.push(lower.clone()),
                _ => model.notes.add_note(
                    names.line,
                    format!(
                        "{name} is not a host that a route can have: write a host, or *. and a host for \
                         all names right below it"
                    ),
                ),
            }
        }
    }
    hosts.dedup();
    hosts
}

/// A rule of `http` while its servers are read.
struct HttpRule {
    address: String,
    rule: Rule,
    /// Routes for requests that no other route takes.
    last: Vec<Table>,
}

/// Rules for the servers of `http`.
pub(super) fn add_http(all: &[&Directive], world: &World, model: &mut Model) {
    let mut rules: Vec<HttpRule> = Vec::new();
    for server in all.iter().filter(|directive| directive.name == "server") {
        let hosts = hosts(server, model);
        let listens = listens(server, model);
        let scope = server_scope(server, all, world, model);
        for listen in &listens {
            let place = rules
                .iter()
                .position(|known| known.address == listen.address);
            let place = place.unwrap_or_else(|| {
                let rule = new_rule(&hosts, &listen.address, &rules, model);
                rules.push(rule);
                rules.len() - 1
            });
            let Some(known) = rules.get_mut(place) else {
                continue;
            };
            set_connection_keys(&mut known.rule, listen, &scope);
            add_routes(known, server, listen, &hosts, &scope, (all, world), model);
        }
    }
    for mut known in rules {
        if model.take_addresses(vec![known.address]).is_empty() {
            continue;
        }
        known.rule.routes.extend(known.last);
        finish(&mut known.rule, model);
        model.rules.push(known.rule);
    }
}

/// Returns what a server says outside of its locations, and what `http` says around it.
fn server_scope(server: &Directive, all: &[&Directive], world: &World, model: &mut Model) -> Scope {
    let mut scope = Scope::default();
    for outer in all.iter().filter(|directive| directive.block.is_none()) {
        scope.take(outer, world, &mut Model::default());
    }
    for inner in server.inner_directives() {
        if inner.block.is_none() {
            scope.take(inner, world, model);
        }
    }
    for inner in server.inner_directives() {
        if inner.name == "if" {
            let why = "put the condition into a route";
            model.notes.add_note(inner.line, why);
        }
    }
    scope
}

/// Returns a rule for an address, called by the first host there, or by the port.
fn new_rule(hosts: &[String], address: &str, rules: &[HttpRule], model: &Model) -> HttpRule {
    let wanted = hosts.first().filter(|host| !host.starts_with('*')).cloned();
    let port = address.rsplit(':').next().unwrap_or_default();
    let wanted = wanted
        .unwrap_or_else(|| format!("port-{}", port.trim_start_matches('/').replace('/', "-")));
    let name = Model::name(&wanted, |name| {
        model.has_rule(name) || rules.iter().any(|known| known.rule.name == name)
    });
    let mut rule = Rule {
        name,
        ..Rule::default()
    };
    rule.keys.set("listen", address);
    HttpRule {
        address: address.to_owned(),
        rule,
        last: Vec::new(),
    }
}

/// Sets the keys of a rule that hold before a request chooses a route: proxies in front, TLS, times and limits.
fn set_connection_keys(rule: &mut Rule, listen: &Listen, scope: &Scope) {
    if listen.accept_proxy {
        let networks = proxies(scope, &listen.address);
        rule.keys.set("accept_proxy", networks);
    } else if !scope.proxies.is_empty() && scope.trusts_field {
        rule.keys.ensure_table("http").set("trust_forwarded", true);
    }
    if listen.is_tls {
        scope.tls_of(rule.keys.ensure_table("tls"));
    }
    rule.keys.add_missing(&scope.rule);
    if !scope.limits.is_empty() {
        rule.keys.ensure_table("limits").add_missing(&scope.limits);
    }
}

/// Adds the routes of a server at an address. Requests for other hosts get to the default server of the address, or to
/// the first server there.
fn add_routes(
    known: &mut HttpRule,
    server: &Directive,
    listen: &Listen,
    hosts: &[String],
    scope: &Scope,
    (all, world): (&[&Directive], &World),
    model: &mut Model,
) {
    let is_first = known.rule.routes.is_empty() && known.last.is_empty();
    let has_other = all.iter().any(|other| {
        other.name == "server" && !std::ptr::eq(*other, server) && shares(other, &listen.address)
    });
    let is_rest = listen.is_default || hosts.is_empty() || !has_other;
    let mut conditions = Conditions::default();
    if !is_rest {
        conditions.hosts = hosts.to_vec();
    }
    let mut routes = Vec::new();
    locations(server, scope, &conditions, world, model, &mut routes);
    match is_rest {
        true if known.last.is_empty() || listen.is_default => known.last = routes,
        _ => known.rule.routes.extend(routes),
    }
    let has_default = || all.iter().any(|other| is_default(other, &listen.address));
    if is_first && has_other && !is_rest && !has_default() {
        let (any, mut unnoted) = (Conditions::default(), Model::default());
        let mut routes = Vec::new();
        locations(server, scope, &any, world, &mut unnoted, &mut routes);
        known.last = routes;
    }
}

fn shares(server: &Directive, address: &str) -> bool {
    listens(server, &mut Model::default())
        .iter()
        .any(|listen| listen.address == address)
}

fn is_default(server: &Directive, address: &str) -> bool {
    server.name == "server"
        && listens(server, &mut Model::default())
            .iter()
            .any(|listen| listen.address == address && listen.is_default)
}

/// Networks of proxies in front of an address.
fn proxies(scope: &Scope, address: &str) -> Vec<String> {
    let networks = scope.proxies.iter().filter(|network| *network != "unix");
    let mut all: Vec<String> = networks.cloned().collect();
    if all.is_empty() {
        all = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
    }
    all.extend(address.starts_with("unix:").then(|| "unix".to_owned()));
    all
}

/// Makes a last route with nothing but a group the group of the rule, and completes TLS.
fn finish(rule: &mut Rule, model: &mut Model) {
    if let Some(last) = rule.routes.last()
        && let Some(Value::Text(group)) = last.get("group").cloned()
        && last.keys().all(|key| {
            matches!(
                key,
                "group" | "connection_timeout" | "response_timeout" | "body_timeout"
            )
        })
        && let Some(mut last) = rule.routes.pop()
    {
        last.remove("group");
        rule.keys.set("group", group);
        rule.keys.add_missing(&last);
    }
    complete_tls(rule, model);
    if rule.routes.is_empty() && rule.keys.get("group").is_none() {
        let mut answer = Table::default();
        answer.set("status", 404_u64);
        let mut route = Table::default();
        route.set("answer", answer);
        rule.routes.push(route);
    }
}

/// Names a certificate where there is none.
fn complete_tls(rule: &mut Rule, model: &mut Model) {
    if let Some(Value::Table(tls)) = rule.keys.get("tls")
        && tls.get("certificates").is_none()
    {
        rule.keys
            .ensure_table("tls")
            .set("certificates", vec!["certificate.pem".to_owned()]);
        model.notes.add_note(
            1,
            "a server with TLS names no certificate: put one in place of certificate.pem",
        );
    }
}

/// Rules for the servers of `stream`.
pub(super) fn add_stream(all: &[&Directive], world: &World, model: &mut Model) {
    for server in all.iter().filter(|directive| directive.name == "server") {
        let listens = listens(server, model);
        let Some(listen) = listens.first() else {
            continue;
        };
        let port = listen.address.rsplit(':').next().unwrap_or_default();
        let name = Model::name(&format!("tcp-{}", port.replace('/', "-")), |name| {
            model.has_rule(name)
        });
        let mut rule = Rule {
            name,
            ..Rule::default()
        };
        let addresses = listens.iter().map(|listen| listen.address.clone());
        let addresses = model.take_addresses(addresses.collect());
        if addresses.is_empty() {
            let why = "another rule listens on this address: this rule is left out";
            model.notes.add_note(server.line, why);
            continue;
        }
        rule.keys.set("listen", Value::one_or_list(&addresses));
        rule.keys.set("protocol", "tcp");
        let stream = Stream::read(server, &mut rule.keys, world, model);
        if listen.is_tls {
            stream.scope.tls_of(rule.keys.ensure_table("tls"));
        }
        if listen.accept_proxy {
            let networks = proxies(&stream.scope, &listen.address);
            rule.keys.set("accept_proxy", networks);
        }
        if !stream.set_groups(&mut rule.keys, world, model) {
            model.notes.add_note(
                server.line,
                "no member serves this server: the server is left out",
            );
            continue;
        }
        complete_tls(&mut rule, model);
        model.rules.push(rule);
    }
}

/// Directives of a server of `stream`.
#[derive(Default)]
struct Stream<'d> {
    scope: Scope,
    sends_proxy: bool,
    is_tls_to_members: bool,
    pass: Option<&'d Directive>,
}

impl<'d> Stream<'d> {
    /// Reads the directives of a server; times are set in `keys` of its rule.
    fn read(server: &'d Directive, keys: &mut Table, world: &World, model: &mut Model) -> Self {
        let mut stream = Stream::default();
        for inner in server.inner_directives() {
            match inner.name.as_str() {
                "listen" | "ssl_preread" | "ssl" => {}
                "proxy_pass" => stream.pass = Some(inner),
                "proxy_protocol" => stream.sends_proxy = inner.word_at(0) == "on",
                "proxy_ssl" => stream.is_tls_to_members = inner.word_at(0) == "on",
                "proxy_connect_timeout" => {
                    set_time(keys, "connection_timeout", inner, 600_000, model);
                }
                "proxy_timeout" => set_time(keys, "idle_timeout", inner, DAY, model),
                "allow" | "deny" => model
                    .notes
                    .add_restriction(inner.line, "TCP rules refuse no networks: use the firewall"),
                name if name.starts_with("ssl_") || name == "set_real_ip_from" => {
                    stream.scope.take(inner, world, model);
                }
                _ => model.notes.add_remark(inner.line, NO_COUNTERPART),
            }
        }
        stream
    }

    /// Sets the groups in `keys` of the rule; false if there are none.
    fn set_groups(&self, keys: &mut Table, world: &World, model: &mut Model) -> bool {
        let groups = self.pass.map(|pass| tcp_groups(pass, world, model));
        let mut is_served = false;
        for (server_name, group) in groups.into_iter().flatten() {
            is_served = true;
            if let Some(found) = model.groups.iter_mut().find(|found| found.name == group) {
                if self.sends_proxy {
                    found.keys.set("send_proxy", "v1");
                }
                if self.is_tls_to_members {
                    found.keys.set("member_tls", true);
                }
            }
            match server_name {
                Some(server_name) => keys.ensure_table("sni").set(&server_name, group),
                None => keys.set("group", group),
            }
        }
        is_served
    }
}

/// Groups of a `proxy_pass` of TCP, with the name that clients ask for.
fn tcp_groups(pass: &Directive, world: &World, model: &mut Model) -> Vec<(Option<String>, String)> {
    let text = pass.word_at(0);
    if !text.starts_with('$') {
        return group_of(text, None, model)
            .map(|group| (None, group))
            .into_iter()
            .collect();
    }
    match world.variables.get(text) {
        Some(Variable::Map { of, entries, other }) if of == "$ssl_preread_server_name" => {
            let mut all = Vec::new();
            for (name, to) in entries {
                let name = name.to_ascii_lowercase();
                let is_name = is_host(name.strip_prefix("*.").unwrap_or(&name));
                match group_of(to, None, model).filter(|_| is_name) {
                    Some(group) => all.push((Some(name), group)),
                    None => model.notes.add_note(
                        pass.line,
                        format!("{name} is not a name that a server can have"),
                    ),
                }
            }
            let other = other
                .as_ref()
                .and_then(|other| group_of(other, None, model));
            all.extend(other.map(|group| (None, group)));
            all
        }
        _ => {
            model.notes.add_note(
                pass.line,
                "the variable is not a map of $ssl_preread_server_name",
            );
            Vec::new()
        }
    }
}
