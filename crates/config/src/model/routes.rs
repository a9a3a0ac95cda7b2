//! Reading of the routes of a rule: the checks of each route, and of the routes together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::auth::Auth;
use super::group_name::unknown_group;
use super::limits::RequestLimit;
use super::model_aliases::ModelAliases;
use super::models::Models;
use super::route::{ROUTE, Route, Routes};
use crate::routing::path::WHOLE_PATH;
use crate::routing::template::{Part, Template};
use crate::routing::{Conditions, Pattern, depth};
use crate::schema::document::Span;
use crate::schema::report::Report;
use crate::schema::table::Table;

/// Most pairs of a host and a path in a route.
const MAX_PAIRS: usize = 10_000;

/// Facts of a rule that its routes need.
pub(crate) struct RuleFacts<'a> {
    pub(crate) name: &'a str,
    /// True if clients of the rule speak TLS.
    pub(crate) has_tls: bool,
    /// True if the rule trusts `X-Forwarded-For`.
    pub(crate) trusts_forwarded: bool,
    /// Group of the requests without another group.
    pub(crate) group: &'a str,
    /// Groups of the rule by models.
    pub(crate) models: &'a Models,
    /// Aliases of models of the rule.
    pub(crate) model_aliases: &'a ModelAliases,
}

/// Limits of requests of routes with a name, by the name: routes of the same name with equal limits count together.
#[derive(Debug, Default)]
pub(super) struct LimitedRoutes(HashMap<String, Vec<RequestLimit>>);

impl LimitedRoutes {
    /// True if an earlier route has the same name and equal limits.
    pub(super) fn has_twin(&self, route: &Route) -> bool {
        let known = route.name.as_ref().and_then(|name| self.0.get(name));
        known.is_some_and(|limits| *limits == route.request_limits)
    }

    /// Notes the limits of a route.
    pub(super) fn add(&mut self, route: &Route) {
        if let Some(name) = route
            .name
            .as_ref()
            .filter(|_| !route.request_limits.is_empty())
        {
            let known = self.0.entry(name.clone());
            known.or_insert_with(|| route.request_limits.clone());
        }
    }
}

/// Reads the routes of a rule. `labels` are those of its limits of requests.
pub(crate) fn read_routes(
    rule: &RuleFacts<'_>,
    labels: &mut HashSet<String>,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) -> Routes {
    let (mut list, mut places) = (Vec::new(), Vec::new());
    let mut limited = LimitedRoutes::default();
    for mut table in table.read_tables("routes", report) {
        let (number, before) = (list.len() + 1, report.problem_count());
        let route = read_one_route(number, rule, &mut table, shared, report);
        let line = match report.is_generated() {
            // The route is the same one wherever it stands.
            true => 0,
            false => report.line_of(table.name_span()),
        };
        let route = Route { line, ..route };
        let of = (Some(&*route.label), rule.trusts_forwarded);
        if !limited.has_twin(&route) {
            RequestLimit::check_list(&route.request_limits, of, labels, &table, report);
        }
        limited.add(&route);
        list.push(Arc::new(route));
        let (span, path) = (table.name_span().clone(), table.path().to_owned());
        table.report_unread(report);
        // A condition that is wrong is not there, and what is not there covers everything.
        let is_whole = report.problem_count() == before;
        places.push(RoutePlace {
            span,
            path,
            is_whole,
        });
    }
    let routes = Routes::new(list);
    check_order(&routes, &places, report);
    routes
}

/// Reads a route, which is the one at `number`, from 1.
pub(super) fn read_one_route(
    number: usize,
    rule: &RuleFacts<'_>,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) -> Route {
    let (mut route, before) = (Route::default(), report.problem_count());
    table.read(ROUTE, &mut route, report);
    route.responses.read(table, report);
    let is_whole = report.problem_count() == before;
    route.label = match &route.name {
        Some(name) => name.as_str().into(),
        None => number.to_string().into(),
    };
    let lower = |(name, pattern): (&String, &Pattern)| (name.to_ascii_lowercase(), pattern.clone());
    let conditions = Conditions {
        hosts: route.host.iter().map(|host| host_as_asked(host)).collect(),
        paths: route.path.clone(),
        path_regexes: route.path_regex.clone(),
        methods: route.method.clone(),
        clients: route.client.clone(),
        except_clients: route.except_client.clone(),
        headers: route.headers.0.iter().map(lower).collect(),
        query: route.query.0.clone(),
        cookies: route.cookies.0.clone(),
    };
    route.conditions = Arc::new(conditions);
    check_conditions(&route, is_whole, table, report);
    check_groups(&route, rule, table, shared, report);
    check_action(table, report);
    check_redirect(&mut route, rule, table, report);
    check_rewrite(&mut route, table, report);
    if route.answers_itself() {
        for key in OF_MEMBERS.into_iter().filter(|key| table.has_key(key)) {
            table.report_problem(key, "has no effect, as no member gets the request", report);
        }
    }
    route
}

/// Looks at the groups that a route names.
fn check_groups(
    route: &Route,
    rule: &RuleFacts<'_>,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    for name in route
        .group_names()
        .filter(|name| !shared.contains_key(*name))
    {
        // The group of a rule is one of its own name, too.
        if name != rule.name {
            let key = if route.group.is_empty() {
                "groups"
            } else {
                "group"
            };
            unknown_group(table, key, name, shared, report);
        }
    }
    if let Some(mirrors) = &route.mirror {
        let primary = match (route.group.as_str(), route.groups.0.as_slice()) {
            ("", []) => Some(rule.group),
            ("", [only]) => Some(only.name.as_str()),
            ("", _) => None,
            (group, _) => Some(group),
        };
        mirrors.check_groups((rule.name, primary), table, shared, report);
    }
    check_shares(route, rule, table, shared, report);
    if let Some(models) = &route.models {
        models.check_groups(rule.name, table, shared, report);
        if let Some(aliases) = &route.model_aliases {
            aliases.check_models(models, table, report);
        }
    }
    if let Some(auth) = route.auth.or_rule(None) {
        auth.check_group(rule.name, table, shared, report);
    }
}

/// Checks the mirrors of the groups that have weights, and refuses actions of groups beside `models`.
fn check_shares(
    route: &Route,
    rule: &RuleFacts<'_>,
    table: &Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    let mut shares = route.groups.0.iter();
    for share in shares.clone() {
        let groups = table.inner_table("groups");
        let own = groups.and_then(|groups| groups.inner_table(&share.name));
        if let (Some(mirrors), Some(own)) = (&share.mirror, own) {
            let of_rule = (rule.name, Some(&*share.name));
            mirrors.check_groups(of_rule, &own, shared, report);
        }
    }
    let models = route.models_in_rule(rule.models);
    let aliases = route.aliases_in_rule(rule.model_aliases);
    if (models.is_some() || aliases.is_some())
        && let Some(share) = shares.find(|share| share.has_actions())
    {
        let message = format!(
            "{:?} has actions, and the model that a request names decides on the group: set `models = {{}}` and \
             `model_aliases = {{}}`, or move the actions to the route",
            share.name
        );
        table.report_problem("groups", message, report);
    }
}

/// Refuses a second action.
fn check_action(table: &Table<'_>, report: &mut Report<'_>) {
    let actions = ["group", "groups", "redirect", "answer"];
    let given: Vec<_> = actions
        .into_iter()
        .filter(|key| table.has_key(key))
        .collect();
    if let [first, second, ..] = given.as_slice() {
        let message = format!("`{first}` is set, too: a route takes only one of these actions");
        table.report_problem(second, message, report);
    }
}

/// Keys of a route that only members' answers need.
const OF_MEMBERS: [&str; 23] = [
    "rewrite_path",
    "request_fields",
    "max_body",
    "retry_statuses",
    "retries",
    "retry_methods",
    "retry_max_body",
    "retry_budget",
    "retry_same_member",
    "retry_backoff",
    "abort_on_close",
    "priority",
    "mirror",
    "models",
    "model_aliases",
    "hedge",
    "connection_timeout",
    "idle_timeout",
    "queue_timeout",
    "body_timeout",
    "response_timeout",
    "request_timeout",
    "attempt_timeout",
];

/// A host as requests have it.
fn host_as_asked(host: &str) -> String {
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match inside.unwrap_or(host).parse::<std::net::Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => host.to_ascii_lowercase(),
    }
}

fn check_conditions(route: &Route, is_whole: bool, table: &Table<'_>, report: &mut Report<'_>) {
    for key in ["host", "path", "path_regex", "method"] {
        let is_empty = match key {
            "host" => route.host.is_empty(),
            "path" => route.path.is_empty(),
            "path_regex" => route.path_regex.is_empty(),
            _ => route.method.is_empty(),
        };
        if table.has_key(key) && is_empty && is_whole {
            let message = "an empty list: nothing is one of none, so the route can never match";
            table.report_problem(key, message, report);
        }
    }
    for regex in route
        .path_regex
        .iter()
        .filter(|regex| regex.is_for_no_path())
    {
        let message = format!(
            "{:?} matches no path: the expression must match the whole path, which begins with \"/\"",
            regex.text()
        );
        report.add_warning(
            &table.span_of("path_regex"),
            &table.path_of("path_regex"),
            message,
        );
    }
    if route.host.len().saturating_mul(route.path.len()) > MAX_PAIRS {
        let message = format!("more than {MAX_PAIRS} pairs of a host and a path: split the route");
        table.report_problem("path", message, report);
    }
    if !route.client.0.is_empty() && route.except_client.cover(&route.client) {
        let message = "has all networks of `client` in it, so the route can never match";
        table.report_problem("except_client", message, report);
    }
    if route.conditions.headers.contains_key("host") {
        table.report_problem("headers", "a condition on Host is `host`", report);
    }
    if route.conditions.headers.contains_key("cookie") {
        table.report_problem("headers", "a condition on Cookie is `cookies`", report);
    }
    if route.conditions.headers.len() < route.headers.0.len() {
        let message =
            "a name is set twice: upper and lower case make no difference in names of fields";
        table.report_problem("headers", message, report);
    }
}

fn check_redirect(
    route: &mut Route,
    rule: &RuleFacts<'_>,
    table: &Table<'_>,
    report: &mut Report<'_>,
) {
    let Some(redirect) = &route.redirect else {
        if table.has_key("redirect_status") {
            table.report_problem(
                "redirect_status",
                "has no effect without `redirect`",
                report,
            );
        }
        return;
    };
    if !matches!(route.redirect_status, 301 | 302 | 303 | 307 | 308) {
        let message = "must be 301, 302, 303, 307 or 308";
        table.report_problem("redirect_status", message, report);
    }
    let template = match Template::parse(redirect) {
        Ok(template) => template,
        Err(error) => return table.report_problem("redirect", error.to_string(), report),
    };
    let begins = ["http://", "https://", "{scheme}://", "/", "{path}"];
    let is_ascii = redirect.is_ascii() && redirect.bytes().all(|byte| byte > b' ' && byte != 0x7f);
    if !is_ascii
        || !begins.iter().any(|begin| redirect.starts_with(begin))
        || redirect.starts_with("//")
        || redirect.starts_with("/{path}")
    {
        let message = "must begin with \"https://\", \"http://\", \"{scheme}://\", \"/\" or \
                       \"{path}\", and have no spaces";
        table.report_problem("redirect", message, report);
    }
    let to_itself = |to: &str| redirect == to;
    let is_tls = rule.has_tls;
    let scheme = if is_tls { "https" } else { "http" };
    let same = [scheme, "{scheme}"].iter().any(|scheme| {
        to_itself(&format!("{scheme}://{{host}}{{path}}{{query}}"))
            || to_itself(&format!("{scheme}://{{host}}{{port}}{{path}}{{query}}"))
    });
    if route.rewrite_prefix.is_none() && (to_itself("{path}{query}") || same) {
        let message = "redirects a request to its own address, in a loop";
        report.add_warning(
            &table.span_of("redirect"),
            &table.path_of("redirect"),
            message,
        );
    }
    route.location = Some(template);
}

/// Returns the number of segments of the prefixes in `path`, which all have as many.
fn prefix_depth(path: &[String]) -> Option<usize> {
    let mut depths = path.iter().map(|path| depth(path));
    let first = depths.next().flatten()?;
    depths.all(|other| other == Some(first)).then_some(first)
}

/// Problem of a prefix that is not the route's.
const NEEDS_PREFIX: &str =
    "needs `path` with prefixes only, as in \"/api/*\", of as many segments each";

/// Notes how much of the path is rewritten for the groups that rewrite paths.
fn check_share_rewrites(route: &mut Route, table: &Table<'_>, report: &mut Report<'_>) {
    let depth = prefix_depth(&route.path);
    for share in &mut route.groups.0 {
        if share.rewrite_path.is_some() {
            share.depth = WHOLE_PATH;
        } else if share.rewrite_prefix.is_some() {
            match (depth, table.inner_table("groups")) {
                (Some(depth), _) => share.depth = depth,
                (None, Some(groups)) => match groups.inner_table(&share.name) {
                    Some(own) => own.report_problem("rewrite_prefix", NEEDS_PREFIX, report),
                    None => groups.report_problem(&share.name, NEEDS_PREFIX, report),
                },
                (None, None) => table.report_problem("groups", NEEDS_PREFIX, report),
            }
        }
    }
}

fn check_rewrite(route: &mut Route, table: &Table<'_>, report: &mut Report<'_>) {
    check_share_rewrites(route, table, report);
    if route.rewrite_path.is_some() {
        if route.rewrite_prefix.is_some() {
            let message =
                "is set beside `rewrite_path`, which replaces the whole path: remove a key";
            table.report_problem("rewrite_prefix", message, report);
        }
        route.depth = WHOLE_PATH;
        return;
    }
    if route.rewrite_prefix.is_none() {
        return;
    }
    let message = if route.answer.is_some() {
        "has no effect, as no member gets the request"
    } else if route
        .location
        .as_ref()
        .is_some_and(|location| !location.has_part(Part::Path))
    {
        "has no effect, as the redirect has no {path}"
    } else {
        match prefix_depth(&route.path) {
            Some(depth) => {
                route.depth = depth;
                return;
            }
            None => NEEDS_PREFIX,
        }
    };
    table.report_problem("rewrite_prefix", message, report);
}

/// Returns the names of all groups that a route names, some of them perhaps several times.
pub(super) fn list_groups(route: &Route) -> impl Iterator<Item = &str> {
    let mirror = route.named_mirrors().map(|mirror| mirror.group.as_str());
    let asked = route.auth.or_rule(None).and_then(Auth::asked_group);
    let by_model = route.models.iter().flat_map(Models::group_names);
    let by_model = by_model.map(String::as_str);
    let named = route.group_names();
    named.chain(mirror).chain(asked).chain(by_model)
}

/// Reports routes for the group of a rule that has none.
pub(crate) fn need_own(
    routes: &Routes,
    table: &Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    let own = table.name();
    let names_own = |route: &&Arc<Route>| list_groups(route).any(|group| group == own);
    // Mirrors and authentication make a route special.
    let is_named = routes.group_names().contains(&own) || { routes.list_special().iter() }
        .any(|route| names_own(&route));
    if is_named
        && !shared.contains_key(&own)
        && let Some(route) = routes.list().iter().find(names_own)
    {
        let message = format!(
            "route {} in line {} names the rule's own group, and it has none: write \
                               `members`",
            route.label, route.line
        );
        table.report_problem("routes", message, report);
    }
    if let Some(route) = routes.list().iter().find(|route| route.uses_rule_group()) {
        let message = format!(
            "route {} in line {} has no `group`, `groups`, `redirect` or `answer`, and the rule has no group of its own: set one of these keys, or give the rule `members`",
            route.label, route.line
        );
        table.report_problem("routes", message, report);
    }
}

/// Place of a route in the file.
struct RoutePlace {
    span: Span,
    path: String,
    /// True if nothing is wrong with the route.
    is_whole: bool,
}

/// Looks for routes that earlier ones leave nothing.
fn check_order(routes: &Routes, places: &[RoutePlace], report: &mut Report<'_>) {
    // Objects of several people may have the same conditions: the first one serves.
    let Some(index) = routes.index().filter(|_| !report.is_generated()) else {
        return;
    };
    let is_whole = |number: usize| places.get(number).is_some_and(|place| place.is_whole);
    for (number, RoutePlace { span, path, .. }) in places.iter().enumerate() {
        if report.is_full() {
            return;
        }
        if is_whole(number)
            && let Some(earlier) = index.covering(number).filter(|earlier| is_whole(*earlier))
            && let Some(earlier) = routes.list().get(earlier)
        {
            let message = format!(
                "can never match: route {} in line {} takes all of its requests. Write the narrower route first",
                earlier.label, earlier.line
            );
            report.add_misplaced(span, path, message, None);
        }
    }
}
