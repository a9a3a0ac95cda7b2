//! Locations of nginx: routes, the most exact path first, as nginx chooses.

use evenkeel_config::FieldChanges;

use super::groups::group_of;
use super::scope::Scope;
use super::words::Directive;
use super::world::{Variable, World};
use crate::model::{Change, Changes, Conditions, Head, Model, ValueCondition};
use crate::regex::whole_regex;
use crate::toml::{Table, Value};
use crate::units::is_network;

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

/// A location, or a server as far as it answers outside of its locations.
struct Place<'a> {
    server: &'a Directive,
    scope: &'a Scope,
    conditions: &'a Conditions,
    /// Beginning of its paths, without a slash at the end; empty if an address of members takes no place of it.
    prefix: &'a str,
    world: &'a World,
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
    let whole = Place {
        server,
        scope,
        conditions,
        prefix: "",
        world,
    };
    if scope.answer.is_some() {
        return whole.add_routes(model, out);
    }
    let all = sorted_locations(server, model);
    let has_rest = all
        .iter()
        .any(|(kind, path, _)| kind.is_prefix() && *path == "/");
    for (kind, path, location) in all {
        let own = location_scope(location, scope, world, model);
        let mut conditions = conditions.clone();
        let prefix = match kind.is_prefix() {
            true => path.trim_end_matches('/'),
            false => "",
        };
        match (kind, prefix) {
            (Kind::Regex { ignores_case }, _) => match whole_regex(path, ignores_case) {
                Ok(regex) => conditions.path_regexes.push(regex),
                Err(error) => {
                    model.notes.add_note(location.line, error);
                    continue;
                }
            },
            _ if !is_route_path(path) => {
                let why = "not a path that a route can have";
                model.notes.add_note(location.line, why);
                continue;
            }
            (Kind::Exact, _) => conditions.paths.push(path.to_owned()),
            (_, "") => {}
            _ => conditions.paths.push(format!("{prefix}/*")),
        }
        let before = out.len();
        let place = Place {
            scope: &own,
            conditions: &conditions,
            prefix,
            ..whole
        };
        place.add_routes(model, out);
        if !kind.is_prefix() {
            for route in out.iter_mut().skip(before) {
                route.remove("rewrite_prefix");
            }
        }
    }
    if !has_rest && scope.files.is_some() {
        whole.add_routes(model, out);
    }
}

/// Kind of a location, in the order in which nginx looks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Exact,
    /// Prefix that comes before regular expressions (`^~`).
    FirstPrefix,
    Regex {
        ignores_case: bool,
    },
    Prefix,
}

impl Kind {
    fn is_prefix(self) -> bool {
        matches!(self, Kind::FirstPrefix | Kind::Prefix)
    }
}

/// Locations of a server as nginx tries them: exact ones first, then regular expressions in the order of the file, then
/// the longest. Each has its kind, and its path or expression.
fn sorted_locations<'d>(
    server: &'d Directive,
    model: &mut Model,
) -> Vec<(Kind, &'d str, &'d Directive)> {
    let mut all: Vec<(Kind, &str, &Directive)> = Vec::new();
    for location in server
        .inner_directives()
        .iter()
        .filter(|inner| inner.name == "location")
    {
        let ignores_case = location.word_at(0) == "~*";
        match (location.word_at(0), location.words.len()) {
            ("=", _) => all.push((Kind::Exact, location.word_at(1), location)),
            ("^~", _) => all.push((Kind::FirstPrefix, location.word_at(1), location)),
            ("~" | "~*", _) => {
                all.push((Kind::Regex { ignores_case }, location.word_at(1), location));
            }
            (path, 1) if path.starts_with('/') => all.push((Kind::Prefix, path, location)),
            _ => model
                .notes
                .add_note(location.line, "not a path that a route can have"),
        }
    }
    // Below a prefix with `^~`, a longer prefix comes first, as it does with nginx.
    let firsts: Vec<&str> = { all.iter() }
        .filter(|(kind, ..)| *kind == Kind::FirstPrefix)
        .map(|(_, path, _)| *path)
        .collect();
    for (kind, path, _) in &mut all {
        let is_below = |first: &&str| path.len() > first.len() && path.starts_with(*first);
        if *kind == Kind::Prefix && firsts.iter().any(is_below) {
            *kind = Kind::FirstPrefix;
        }
    }
    // Expressions stay in their order.
    all.sort_by_key(|(kind, path, _)| match kind {
        Kind::Regex { .. } => (
            Kind::Regex {
                ignores_case: false,
            },
            std::cmp::Reverse(0),
        ),
        kind => (*kind, std::cmp::Reverse(path.len())),
    });
    all
}

/// Returns what a location says, within the scope of its server.
fn location_scope(location: &Directive, scope: &Scope, world: &World, model: &mut Model) -> Scope {
    let mut own = scope.for_location();
    for directive in location.inner_directives() {
        match directive.name.as_str() {
            "location" | "if" | "limit_except" => model.notes.add_note(
                directive.line,
                "blocks within a location are not translated: write them beside the location",
            ),
            _ => own.take(directive, world, model),
        }
    }
    own
}

/// True if a route can have the path.
fn is_route_path(path: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_graphic() && !"?#*;%\\".contains(c);
    path.chars().all(is_plain)
        && !path.contains("//")
        && !path.split('/').any(|part| part == "." || part == "..")
}

/// Has a route answer with a status.
fn set_status(route: &mut Table, status: u64) {
    let mut answer = Table::default();
    answer.set("status", status);
    route.set("answer", answer);
}

impl Place<'_> {
    /// Adds the routes: those that refuse clients, then the one that serves the rest.
    fn add_routes(&self, model: &mut Model, out: &mut Vec<Table>) {
        let scope = self.scope;
        if scope.is_internal {
            return;
        }
        if let Some(refused) = refused(scope, self.conditions, model) {
            let is_all = refused.clients.is_empty() && refused.except_clients.is_empty();
            let mut route = refused.to_route();
            set_status(&mut route, 403);
            out.push(route);
            if is_all {
                return;
            }
        }
        if let Some((line, words)) = &scope.answer {
            let mut route = self.conditions.to_route();
            answer(*line, words, &mut route, model);
            respond(scope, &mut route, model);
            return out.push(route);
        }
        if let Some((line, pass)) = &scope.pass {
            for target in targets(*line, pass, self.world, model) {
                out.extend(self.route_to_members(*line, &target, model));
            }
        } else if let Some(line) = scope.files {
            model.notes.add_note(
                line,
                "Evenkeel serves no files: put a web server behind it as a member. Requests get 404",
            );
            let mut route = self.conditions.to_route();
            set_status(&mut route, 404);
            out.push(route);
        }
    }

    /// Returns the route to the members of a target; `None` if no route can have its conditions.
    fn route_to_members(
        &self,
        line: usize,
        (more, to): &Target,
        model: &mut Model,
    ) -> Option<Table> {
        let Some(conditions) = self.conditions.merge_with(more) else {
            let why = "a route can have only one condition of each kind";
            model.notes.add_note(line, why);
            return None;
        };
        let scope = self.scope;
        let mut route = conditions.to_route();
        let mut rewrites = None;
        for (weight, to) in to {
            let Some((group, uri)) = target(line, to, scope, model) else {
                continue;
            };
            rewrites = rewrites.or(uri);
            match weight {
                Some(weight) => route.ensure_table("groups").set(&group, *weight),
                None => route.set("group", group),
            }
        }
        if route.get("group").is_none() && route.get("groups").is_none() {
            set_status(&mut route, 503);
            let why = "the location has no servers: requests get 503";
            model.notes.add_note(line, why);
            return Some(route);
        }
        if let Some(uri) = rewrites {
            set_rewrite(self.prefix, &uri, &mut route);
        }
        request(scope, &mut route, model);
        respond(scope, &mut route, model);
        if !scope.request_limits.is_empty() {
            let limits = scope.request_limits.iter().cloned().map(Value::from);
            route.set("request_limits", Value::List(limits.collect()));
        }
        self.set_other_groups(&mut route, model);
        route.add_missing(&scope.route);
        Some(route)
    }

    /// Sets the groups beside the one that answers: the group that is asked before, and the one that gets copies.
    fn set_other_groups(&self, route: &mut Table, model: &mut Model) {
        if let Some((line, path)) = &self.scope.asks {
            match group_at(self.server, path, model) {
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
        if let Some((line, path)) = &self.scope.mirror {
            match group_at(self.server, path, model) {
                Some(group) => route.ensure_table("mirror").set("group", group),
                None => model
                    .notes
                    .add_note(*line, "the location that gets copies does not exist"),
            }
        }
    }
}

/// Has a route replace the prefix of its paths by the path behind the members' address.
fn set_rewrite(prefix: &str, uri: &str, route: &mut Table) {
    let to = match uri {
        "/" => uri,
        _ => uri.trim_end_matches('/'),
    };
    if !(prefix.is_empty() && to == "/") {
        route.set_new("path", format!("{prefix}/*"));
        route.set("rewrite_prefix", to);
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
