//! `[[rule.NAME.routes]]`: special treatment of some requests of a rule.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::key;
use toml::de::DeValue;

use super::auth::{Auth, RouteAuth};
use super::field_changes::{CHANGES, FieldChanges, VALUE};
use super::group::unknown_group;
use super::hedge::Hedge;
use super::limits::RequestLimit;
use super::mirror::Mirror;
use super::responses::{RESPONSES, Responses};
use super::timeouts::Timeouts;
use super::tls::SERVER_NAMES;
use crate::kept;
use crate::routing::path::{self, MAX_SEGMENT};
use crate::routing::template::{Part, Template};
use crate::routing::{Conditions, Index, Pattern, depth};
use crate::schema::document::{Item, Span, entries};
use crate::schema::errors::Problem;
use crate::schema::field::{
    Blank, Element, Field, FileName, Limits, Texts, WRONG_TYPE, blank, read_one,
};
use crate::schema::key::{DAY, describe_keys, millis, secs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::source::read_bytes;
use crate::schema::table::{AsTable, NAMES, Table};

section! {
    /// Route: requests selected by conditions that must all hold, and the actions for these requests.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Route {
        /// Conditions of the route.
        conditions: Conditions = Conditions::default(),
        /// Label of the route in logs: its name, or its number in the file, from 1.
        label: Arc<str> = Arc::from(""),
        /// The place of its table, for messages.
        line: usize = 0,
        /// Template of the redirect's address.
        location: Option<Template> = None,
        /// Number of path segments in the prefix that is rewritten.
        depth: usize = 0,
        /// Answers of the balancer's own, and changes to responses.
        responses: Responses = Responses::default(),
    }
    keys ROUTE {
        /// Name of the route in the access log. Without a name the route is logged by its number, from 1.
        name: Option<String> [Text(NAMES)] = None; r#""api""#,
        /// Hosts: one, or a list. The port does not count. Begin a name with `*.` to match all names right
        /// below the domain.
        host: Vec<String> [Text(HOST)] = Vec::new(); r#"["www.example.org", "*.example.com"]"#,
        /// Paths: one, or a list. `/shop` is this very path, `/shop/*` is `/shop` and all paths below.
        path: Vec<String> [Text(PATH)] = Vec::new(); r#"["/api/*", "/status"]"#,
        /// Methods: one, or a list.
        method: Vec<String> [Text(METHOD)] = Vec::new(); r#"["GET", "HEAD"]"#,
        /// Networks of clients: one, or a list; a single address is a network, too. The client's address is the
        /// address of its connection, or the address given by [a proxy in front](routing.md#clients).
        client: Networks = Networks::default(); r#"["10.0.0.0/8", "192.0.2.7"]"#,
        /// Networks of clients which do not match: one, or a list. For example, `path = "/admin/*"` with
        /// `except_client = ["10.0.0.0/8"]` and an `answer` with status 403 leaves the path to your internal
        /// clients.
        except_client: Networks = Networks::default(); r#"["10.0.0.0/8"]"#,
        /// Header fields which must be present, each with a value: an exact value, or the beginning of a value
        /// if you end the text in `*`; `"*"` is any value. With `false` the field must be absent. If there are
        /// several fields of a name, one must have the value.
        headers: Patterns [Text(FIELD)] = Patterns::default(); r#"{ "X-Canary" = "yes", Accept = "text/*" }"#,
        /// Parameters of the query which must be present, with values as in `headers`.
        query: Patterns [Text(PARAMETER)] = Patterns::default(); r#"{ version = "2" }"#,
        /// Cookies which must be present, with values as in `headers`.
        cookies: Patterns [Text(FIELD)] = Patterns::default(); r#"{ canary = "*" }"#,
        /// Group for the requests. If you set none of `group`, `groups`, `redirect` and `answer`, requests go
        /// to the group of the rule.
        group: String = String::new(); r#""api""#,
        /// Several groups, each with a weight: the group of a request is drawn. A client with a binding to a
        /// member of one of the groups stays there. Use weights to try a new version with a few of your
        /// clients.
        groups: Weights = Weights::default(); r#"{ stable = 95, canary = 5 }"#,
        /// Address of a redirect, which is the answer to the requests. In the address you can use `{scheme}`,
        /// `{host}` (without the port), `{port}` (with the colon, or nothing), `{path}`, `{query}` (with the
        /// question mark) and `{client}`, which are filled from the request; `{{` is a brace.
        redirect: Option<String> = None; r#""https://{host}{path}{query}""#,
        /// Status of the redirect. Set 301 or 308 for a permanent redirect.
        redirect_status: u16 [Number(301.0, 308.0, "")] = 302; "308",
        /// Answer of the balancer to the requests: a table, see below.
        answer: Option<FixedAnswer> = None; r#"{ status = 503, body = "Back at noon." }"#,
        /// Replacement for the prefix in `path`, in requests to members, or in `{path}` of a redirect. For
        /// example, with `path = "/api/*"` and `rewrite_prefix = "/v2"`, `/api/x` becomes `/v2/x`.
        rewrite_prefix: Option<String> [Text(PREFIX)] = None; r#""/v2""#,
        /// Changes to the fields of requests to members: a table, see below.
        request_fields: FieldChanges = FieldChanges::default(); r#"{ set = { "X-Real-IP" = "{client}" }, remove = ["Cookie"] }"#,
        /// Authentication for the route, instead of the rule's ([users](routing.md#passwords), or [a
        /// group](routing.md#forward-authentication) which decides): a table with the keys of the rule's. Set
        /// `false` to let everybody send requests.
        auth: RouteAuth = RouteAuth::OfRule; r#"{ users_file = "/etc/evenkeel/users" }"#,
        /// [Limits](limits.md#several-limits) of the route's requests, in addition to the rule's: a list of
        /// tables with the keys of the rule's.
        request_limits: Vec<RequestLimit> = Vec::new(); r#"[{ requests = "5/m" }]"#,
        /// Maximum size of a request's body, instead of the rule's.
        max_body: Option<MaxBody> = None; r#""10MiB""#,
        /// Statuses of members after which a request is sent to another member, if the request may be repeated.
        /// Retries stay within `retries` and the budget for retries. List statuses with which your members
        /// report failures that another member may not have.
        retry_statuses: Vec<Status> = Vec::new(); "[502, 503]",
        /// Maximum number of retries, instead of the rule's.
        retries: Option<u32> [Number(0.0, 10.0, "retries")] = None; "0",
        /// Priority of the requests when they [wait for a member](overload.md), instead of the rule's, the
        /// client's and the field's. The highest number goes first.
        priority: Option<u16> [Number(0.0, 7.0, "")] = None; "6",
        /// Second group which gets copies of the requests: a table as in the rule's `http`, and instead of the
        /// rule's.
        mirror: Option<Mirror> = None; r#"{ group = "canary", percent = 10 }"#,
        /// Second requests when the first takes long: a table as in the rule's `http`, and instead of the
        /// rule's.
        hedge: Option<Hedge> = None; r#"{ after = "200ms", percent = 2 }"#,
        /// Time limit for connecting to a member, instead of the rule's.
        connection_timeout: Option<Duration> [Time(millis(1), secs(600))] = None; r#""500ms""#,
        /// Time limit of a connection without data, instead of the rule's.
        idle_timeout: Option<Duration> [Time(millis(1), DAY)] = None; r#""1h""#,
        /// Time limit for waiting in the queue, instead of the rule's.
        queue_timeout: Option<Duration> [Time(secs(0), secs(600))] = None; r#""250ms""#,
        /// Time limit for pauses of a body, instead of the rule's.
        body_timeout: Option<Duration> [Time(millis(1), DAY)] = None; r#""10s""#,
        /// Time limit for a response, instead of the rule's.
        response_timeout: Option<Duration> [Time(millis(1), DAY)] = None; r#""5m""#,
    }
}

section! {
    /// Answer of the balancer's own.
    #[derive(Clone, Debug, PartialEq)]
    pub struct FixedAnswer {}
    keys ANSWER {
        /// Status of the answer.
        status: u16 [Number(200.0, 599.0, "")] = 200; "503",
        /// Body of the answer, of at most 64 KiB.
        body: String [Text(BODY_TEXT)] = String::new(); r#""Back at noon.""#,
        /// File with the body, of at most 64 KiB, which the balancer reads at the start and at each reload. Use
        /// a file if you change the text often.
        file: Option<FileName> = None; r#""/etc/evenkeel/maintenance.html""#,
        /// Media type of the body.
        content_type: String [Text(VALUE)] = "text/plain; charset=utf-8".into(); r#""text/html; charset=utf-8""#,
    }
}

const HOST: Texts = (
    r#"a host name, "*." and a host name for all names right below it, or an IP address"#,
    |text| {
        let (_, is_server_name) = SERVER_NAMES;
        let address = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'));
        address.unwrap_or(text).parse::<std::net::IpAddr>().is_ok() || is_server_name(text)
    },
);

const PATH: Texts = (
    r#"a path that begins with "/", without a query, "//", "." or ".." as a segment and ";"; "*" only at the end, after "/""#,
    |text| {
        let plain = text.strip_suffix("/*").unwrap_or(text);
        let is_short = plain.split('/').all(|segment| segment.len() <= MAX_SEGMENT);
        let is_plain = |byte: u8| byte > b' ' && byte != 0x7f && !b"?#*;".contains(&byte);
        (plain.is_empty() && text == "/*" || path::check_path(plain).is_ok())
            && is_short
            && !(text != plain && plain.ends_with('/'))
            && plain.bytes().all(is_plain)
    },
);

const PREFIX: Texts = (
    r#"a path that begins with "/", without a query, "//" and "." or ".." as a segment"#,
    |text| {
        let is_plain = |byte: u8| byte > b' ' && byte < 0x7f && !b"?#".contains(&byte);
        path::check_path(text).is_ok() && text.bytes().all(is_plain)
    },
);

const METHOD: Texts = ("a method, as in \"GET\"", |text| {
    key::is_field_name(text) && !text.bytes().any(|byte| byte.is_ascii_lowercase())
});

const FIELD: Texts = ("the name of a header field", key::is_field_name);

const PARAMETER: Texts = ("the name of a parameter", |text| {
    (1..=128).contains(&text.len())
});

const BODY_TEXT: Texts = ("a text of at most 64 KiB", |text| {
    text.len() as u64 <= MAX_ANSWER
});

/// Conditions on values by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns(BTreeMap<String, Pattern>);

impl Field for Patterns {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        for entry in entries(&item.path, table) {
            if let Limits::Text((what, is_name)) = limits
                && !is_name(entry.name)
            {
                let message = format!("must be {what}");
                report.add_problem(&entry.key_span, &entry.item.path, message, None);
                continue;
            }
            let pattern = match entry.item.value {
                DeValue::Boolean(false) => Pattern::Absent,
                DeValue::Boolean(true) => Pattern::Prefix("".into()),
                DeValue::String(text) if (VALUE.1)(text) => Pattern::from_text(text),
                _ => {
                    let allowed =
                        "a value, the beginning of a value with \"*\" behind it, or false";
                    report.wrong(&entry.item, "not a value", allowed.into());
                    continue;
                }
            };
            if self.0.insert(entry.name.to_owned(), pattern).is_some() {
                report.add_problem(&entry.key_span, &entry.item.path, "is set twice", None);
            }
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of names, each with a value, the beginning of a value with \"*\" behind it, or false"
            .into()
    }
}

/// Groups with their weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights(pub Vec<(String, u32)>);

const WEIGHT: Limits = Limits::Number(0.0, 1_000_000.0, "parts");

impl Field for Weights {
    fn read(&mut self, item: &Item<'_>, limits: &Limits, report: &mut Report<'_>) {
        let DeValue::Table(table) = item.value else {
            return report.wrong(item, WRONG_TYPE, self.allowed(limits));
        };
        let before = report.problem_count();
        for entry in entries(&item.path, table) {
            let weight = read_one(&entry.item, &WEIGHT, report);
            self.0
                .extend(weight.map(|weight: u32| (entry.name.to_owned(), weight)));
        }
        if report.problem_count() == before && self.0.iter().all(|(_, weight)| *weight == 0) {
            report.wrong(item, "no group has a weight above 0", self.allowed(limits));
        }
    }

    fn allowed(&self, _: &Limits) -> String {
        "a table of names of groups, each with a whole number from 0 to 1000000".into()
    }
}

/// A status that members answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

impl Blank for Status {
    fn blank() -> Self {
        Status(0)
    }
}

impl Field for Status {
    fn read(&mut self, item: &Item<'_>, _: &Limits, report: &mut Report<'_>) {
        self.0.read(item, &Limits::Number(400.0, 599.0, ""), report);
    }

    fn show(&self, _: &Limits) -> Option<String> {
        Some(self.0.to_string())
    }

    fn allowed(&self, _: &Limits) -> String {
        "a status from 400 to 599".into()
    }
}

impl Element for Status {
    const NONE: Option<&'static str> = None;
}

/// Most bytes of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxBody(pub u64);
blank!(MaxBody);

impl Field for MaxBody {
    fn read(&mut self, item: &Item<'_>, _: &Limits, report: &mut Report<'_>) {
        let mut bytes = 0_usize;
        let before = report.problem_count();
        bytes.read(item, &BODY, report);
        if report.problem_count() == before {
            self.0 = bytes as u64;
        }
    }

    fn show(&self, _: &Limits) -> Option<String> {
        (self.0 as usize).show(&BODY)
    }

    fn allowed(&self, _: &Limits) -> String {
        0_usize.allowed(&BODY)
    }
}

const BODY: Limits = Limits::Bytes(0, 1 << 40);

impl AsTable for FixedAnswer {
    const ALLOWED: &'static str = "a table of an answer";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ANSWER, self, report);
        if table.has_key("file") && table.has_key("body") {
            table.report_problem("body", "`file` is set, too: set only one of them", report);
        }
        let has_body = table.has_key("file") || !self.body.is_empty();
        if matches!(self.status, 204 | 205 | 304) && has_body {
            table.report_problem("status", "an answer with this status has no body", report);
        }
    }
}
blank!(FixedAnswer);

/// The routes of a rule, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Routes(Option<Arc<All>>);

#[derive(Debug)]
struct All {
    list: Vec<Route>,
    index: Index,
    /// The names of their groups, each once.
    groups: Vec<String>,
}

impl PartialEq for Routes {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a.list == b.list,
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl Routes {
    fn new(list: Vec<Route>) -> Self {
        if list.is_empty() {
            return Routes::default();
        }
        let groups = list.iter().flat_map(Route::group_names).map(str::to_owned);
        let mut groups: Vec<String> = groups.collect();
        groups.sort_unstable();
        groups.dedup();
        let conditions = list.iter().map(|route| route.conditions.clone());
        let index = Index::new(conditions.collect());
        Routes(Some(Arc::new(All {
            list,
            index,
            groups,
        })))
    }

    /// All of them.
    pub fn list(&self) -> &[Route] {
        self.0.as_ref().map_or(&[], |all| &all.list)
    }

    /// Finder of the route for a request; `None` if there are no routes.
    #[inline]
    pub fn index(&self) -> Option<&Index> {
        self.0.as_ref().map(|all| &all.index)
    }

    /// The names of their groups, each once.
    pub fn group_names(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |all| &all.groups)
    }

    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        let all = self.0.as_mut().and_then(Arc::get_mut);
        for route in all.into_iter().flat_map(|all| &mut all.list) {
            if let Some(file) = route
                .answer
                .as_mut()
                .and_then(|answer| answer.file.as_mut())
            {
                file.resolve(folder);
            }
            route.responses.resolve(folder);
            if let Some(auth) = route.auth.own_mut() {
                auth.resolve(folder);
            }
        }
    }

    /// The files with answers and pages.
    pub fn files(&self) -> impl Iterator<Item = &FileName> {
        self.list().iter().flat_map(|route| {
            let answer = route
                .answer
                .iter()
                .filter_map(|answer| answer.file.as_ref());
            answer.chain(route.responses.files())
        })
    }
}

impl Route {
    /// The names of its groups; none if it is the rule's, or if there is none.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        let one = Some(self.group.as_str()).filter(|group| !group.is_empty());
        let several = self.groups.0.iter().map(|(group, _)| group.as_str());
        one.into_iter().chain(several)
    }

    /// Returns the copies of the route's requests, in a rule with the copies `rule`.
    pub fn mirror_in_rule<'a>(&'a self, rule: Option<&'a Mirror>) -> Option<&'a Mirror> {
        self.mirror
            .as_ref()
            .or(rule)
            .filter(|_| !self.answers_itself())
    }

    /// True if the balancer answers by itself.
    pub fn answers_itself(&self) -> bool {
        self.redirect.is_some() || self.answer.is_some()
    }

    /// True if the route's requests go to the group of the rule.
    pub fn uses_rule_group(&self) -> bool {
        !self.answers_itself() && self.group_names().next().is_none()
    }

    /// The time limits of its requests in a rule with these.
    pub fn timeouts_in_rule(&self, rule: &Timeouts) -> Timeouts {
        Timeouts {
            connect: self.connection_timeout.unwrap_or(rule.connect),
            idle: self.idle_timeout.unwrap_or(rule.idle),
            queue: self.queue_timeout.unwrap_or(rule.queue),
            body: self.body_timeout.unwrap_or(rule.body),
            response: self.response_timeout.unwrap_or(rule.response),
            ..rule.clone()
        }
    }
}

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
}

/// Reads the routes of a rule. `labels` are those of its limits of requests.
pub(crate) fn read(
    rule: &RuleFacts<'_>,
    labels: &mut HashSet<String>,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) -> Routes {
    let (mut list, mut places) = (Vec::new(), Vec::new());
    for mut table in table.read_tables("routes", report) {
        let (number, before) = (list.len() + 1, report.problem_count());
        let route = read_one_route(number, rule, &mut table, shared, report);
        let route = Route {
            line: report.line_of(table.name_span()),
            ..route
        };
        let of = (Some(&*route.label), rule.trusts_forwarded);
        RequestLimit::check_list(&route.request_limits, of, labels, &table, report);
        list.push(route);
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

fn read_one_route(
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
    route.conditions = Conditions {
        hosts: route.host.iter().map(|host| host_as_asked(host)).collect(),
        paths: route.path.clone(),
        methods: route.method.clone(),
        clients: route.client.clone(),
        except_clients: route.except_client.clone(),
        headers: route.headers.0.iter().map(lower).collect(),
        query: route.query.0.clone(),
        cookies: route.cookies.0.clone(),
    };
    check_conditions(&route, is_whole, table, report);
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
    if let Some(mirror) = &route.mirror {
        let primary = match (route.group.as_str(), route.groups.0.as_slice()) {
            ("", []) => Some(rule.group),
            ("", [(only, _)]) => Some(only.as_str()),
            ("", _) => None,
            (group, _) => Some(group),
        };
        mirror.check_group((rule.name, primary), table, shared, report);
    }
    if let Some(auth) = route.auth.or_rule(None) {
        auth.check_group(rule.name, table, shared, report);
    }
    let actions = ["group", "groups", "redirect", "answer"];
    let given: Vec<_> = actions
        .into_iter()
        .filter(|key| table.has_key(key))
        .collect();
    if let [first, second, ..] = given.as_slice() {
        let message = format!("`{first}` is set, too: a route takes only one of these actions");
        table.report_problem(second, message, report);
    }
    check_redirect(&mut route, rule, table, report);
    check_rewrite(&mut route, table, report);
    if route.answers_itself() {
        let of_members = [
            "request_fields",
            "max_body",
            "retry_statuses",
            "retries",
            "priority",
            "mirror",
            "hedge",
            "connection_timeout",
            "idle_timeout",
            "queue_timeout",
            "body_timeout",
            "response_timeout",
        ];
        for key in of_members.into_iter().filter(|key| table.has_key(key)) {
            table.report_problem(key, "has no effect, as no member gets the request", report);
        }
    }
    route
}

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
    for key in ["host", "path", "method"] {
        let is_empty = match key {
            "host" => route.host.is_empty(),
            "path" => route.path.is_empty(),
            _ => route.method.is_empty(),
        };
        if table.has_key(key) && is_empty && is_whole {
            let message = "an empty list: nothing is one of none, so the route can never match";
            table.report_problem(key, message, report);
        }
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

fn check_rewrite(route: &mut Route, table: &Table<'_>, report: &mut Report<'_>) {
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
        let mut depths = route.path.iter().map(|path| depth(path));
        match depths.next().flatten() {
            Some(first) if depths.all(|other| other == Some(first)) => {
                route.depth = first;
                return;
            }
            _ => "needs `path` with prefixes only, as in \"/api/*\", of as many segments each",
        }
    };
    table.report_problem("rewrite_prefix", message, report);
}

/// Reports routes for the group of a rule that has none.
pub(crate) fn need_own(
    routes: &Routes,
    table: &Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    let own = table.name();
    let names_own = |route: &Route| {
        let mirror = route.mirror.iter().map(|mirror| mirror.group.as_str());
        let asked = route.auth.or_rule(None).and_then(Auth::asked_group);
        let mut all = route.group_names().chain(mirror).chain(asked);
        all.any(|group| group == own)
    };
    if let Some(route) = routes.list().iter().find(|route| names_own(route))
        && !shared.contains_key(&own)
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
    let Some(index) = routes.index() else {
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

/// Most bytes of a file with an answer.
const MAX_ANSWER: u64 = 64 * 1024;

/// Returns the contents of a file with an answer.
///
/// # Errors
///
/// The file cannot be read.
pub fn content_of(file: &FileName) -> Result<Arc<[u8]>, Box<Problem>> {
    let problem = |error: &String| {
        let message = format!("{}: {error}", file.path.display());
        Box::new(file.place.problem(message))
    };
    let read = |source: &kept::Source| source.read(&file.path, |path| read_bytes(path, MAX_ANSWER));
    let content = kept::load_or_keep(read, |error| problem(error).to_string());
    content.map_err(|error| problem(&error))
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 3] {
    let route = "Routes: special treatment of some requests of a rule with `protocol = \"http\"`, \
                 see [routing](routing.md). Routes are tried in file order; the first route whose \
                 conditions all match handles the request. Requests without a matching route go to \
                 the group of the rule, or get 404 if you set no group.";
    [
        TableDoc::new(
            "[[rule.NAME.routes]]",
            route,
            [
                describe_keys(ROUTE, Route::default()),
                describe_keys(RESPONSES, Responses::default()),
            ],
        ),
        TableDoc::new(
            "[rule.NAME.routes.answer]",
            "An answer of the balancer's own.",
            [describe_keys(ANSWER, FixedAnswer::default())],
        ),
        TableDoc::new(
            "[rule.NAME.routes.request_fields]",
            "Changes to the fields of a head; `response_fields` has the same keys. You cannot \
             change fields which frame a message, or belong to one connection.",
            [describe_keys(CHANGES, FieldChanges::default())],
        ),
    ]
}
