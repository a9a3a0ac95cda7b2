//! `[[rule.NAME.routes]]`: special treatment of some requests of a rule.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::key;

use super::auth::RouteAuth;
use super::field_changes::{CHANGES, FieldChanges};
use super::fixed_answer::{ANSWER, FixedAnswer};
use super::hedge::Hedge;
use super::limits::RequestLimit;
use super::mirror::{Mirror, Mirrors};
use super::model_aliases::ModelAliases;
use super::models::Models;
use super::responses::{RESPONSES, Responses};
use super::route_values::{MaxBody, PREFIX, Patterns, Status};
use super::timeouts::Timeouts;
use super::tls::DEEP_NAMES;
use super::weights::{GROUP_SHARE, GroupShare, Weights};
use crate::difference::find_difference;
use crate::routing::path::{self, MAX_SEGMENT};
use crate::routing::template::Template;
use crate::routing::value_regex::ValueRegex;
use crate::routing::{Conditions, Index};
use crate::schema::field::{FileName, Texts};
use crate::schema::key::{DAY, describe_keys, millis, secs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::TableDoc;
use crate::schema::table::NAMES;

section! {
    /// Route: requests selected by conditions that must all hold, and the actions for these requests.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Route {
        /// Conditions of the route, which the finder of routes shares.
        conditions: Arc<Conditions> = Arc::default(),
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
        /// below the domain, or with `**.` to match all names below the domain at any depth.
        host: Vec<String> [Text(HOST)] = Vec::new(); r#"["www.example.org", "*.example.com"]"#,
        /// Paths: one, or a list. `/shop` is this very path, `/shop/*` is `/shop` and all paths below.
        path: Vec<String> [Text(PATH)] = Vec::new(); r#"["/api/*", "/status"]"#,
        /// [Regular expressions](routing.md#regular-expressions) of paths: one, or a list. The whole path must
        /// match one of them, and `path`, if you set both.
        path_regex: Vec<ValueRegex> = Vec::new(); r#"["/v[0-9]+/users/.*"]"#,
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
        /// if you end the text in `*`; `"*"` is any value. With `false` the field must be absent, and
        /// `{ regex = "…" }` is a value that matches a [regular expression](routing.md#regular-expressions) as a
        /// whole. If there are several fields of a name, one must have the value.
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
        /// clients. In place of a weight you can write a table with the weight, and actions for the requests
        /// of this group alone, see below.
        groups: Weights = Weights::default(); r#"{ stable = 95, canary = 5 }"#,
        /// Address of a redirect, which is the answer to the requests. In the address you can use `{scheme}`,
        /// `{host}` (without the port), `{port}` (with the colon, or nothing), `{path}`, `{query}` (with the
        /// question mark), `{escaped_uri}` (path and query, percent-encoded as a value of a query) and `{client}`, which
        /// are filled from the request; `{{` is a brace.
        redirect: Option<String> = None; r#""https://{host}{path}{query}""#,
        /// Status of the redirect. Set 301 or 308 for a permanent redirect.
        redirect_status: u16 [Number(301.0, 308.0, "")] = 302; "308",
        /// Answer of the balancer to the requests: a table, see below.
        answer: Option<FixedAnswer> = None; r#"{ status = 503, body = "Back at noon." }"#,
        /// Replacement for the prefix in `path`, in requests to members, or in `{path}` of a redirect. For
        /// example, with `path = "/api/*"` and `rewrite_prefix = "/v2"`, `/api/x` becomes `/v2/x`.
        rewrite_prefix: Option<String> [Text(PREFIX)] = None; r#""/v2""#,
        /// Path in requests to members, instead of the whole path of the request. The query stays.
        rewrite_path: Option<String> [Text(PREFIX)] = None; r#""/index.html""#,
        /// Changes to the fields of requests to members: a table, see below.
        request_fields: FieldChanges = FieldChanges::default(); r#"{ set = { "X-Real-IP" = "{client}" }, remove = ["Cookie"] }"#,
        /// Authentication for the route, instead of the rule's ([users](routing.md#passwords), or [a
        /// group](routing.md#forward-authentication) which decides): a table with the keys of the rule's. Set
        /// `false` to let everybody send requests.
        auth: RouteAuth = RouteAuth::OfRule; r#"{ users_file = "/etc/evenkeel/users" }"#,
        /// [Limits](limits.md#several-limits) of the route's requests, in addition to the rule's: a list of
        /// tables with the keys of the rule's. Requests of routes with the same `name` and equal limits count
        /// together.
        request_limits: Vec<RequestLimit> = Vec::new(); r#"[{ requests = "5/m" }]"#,
        /// Maximum size of a request's body, instead of the rule's.
        max_body: Option<MaxBody> = None; r#""10MiB""#,
        /// Statuses of members after which a request is sent to another member, instead of the rule's; `[]` for
        /// none.
        retry_statuses: Option<Vec<Status>> = None; "[502, 503]",
        /// Maximum number of retries, instead of the rule's.
        retries: Option<u32> [Number(0.0, 10.0, "retries")] = None; "0",
        /// Methods whose requests may be repeated, instead of the rule's
        /// ([`http.retry_methods`](routing.md#retries)).
        retry_methods: Option<Vec<String>> [Text(METHOD)] = None; r#"["POST"]"#,
        /// Maximum size of a body that is kept for a retry, instead of the rule's.
        retry_max_body: Option<usize> [Bytes(0, 64 * 1024 * 1024)] = None; r#""256KiB""#,
        /// Maximum share of retries, relative to the route's requests, instead of the rule's. All routes of a rule
        /// have one budget: the requests of each route add the route's share.
        retry_budget: Option<f32> [Number(0.0, 1.0, "")] = None; "1.0",
        /// Lets retries go to members which have failed before, if no other is left, or does not, instead of the
        /// rule's setting.
        retry_same_member: Option<bool> = None; "true",
        /// Pause before a retry, instead of the rule's.
        retry_backoff: Option<Duration> [Time(secs(0), secs(60))] = None; r#""100ms""#,
        /// Ends requests whose clients close their connections, or does not, instead of the rule's setting.
        abort_on_close: Option<bool> = None; "true",
        /// Priority of the requests when they [wait for a member](overload.md), instead of the rule's, the
        /// client's and the field's. The highest number goes first.
        priority: Option<u16> [Number(0.0, 7.0, "")] = None; "6",
        /// Second group which gets copies of the requests: a table, or a list of tables, as in the rule's
        /// `http`, and instead of the rule's. With `[]` no request is copied.
        mirror: Option<Mirrors> = None; r#"{ group = "canary", percent = 10 }"#,
        /// Groups by the name of the model in the body: a table as in the rule's `http`, and instead of the
        /// rule's. With `{}` no body is read for a name.
        models: Option<Models> = None; r#"{ "llama-*" = "big" }"#,
        /// Names of models for clients: a table as in the rule's `http`, and instead of the rule's. With `{}` the
        /// route has no aliases.
        model_aliases: Option<ModelAliases> = None; r#"{ "gpt-4o-mini" = "Qwen/Qwen2.5-7B-Instruct" }"#,
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
        /// Time limit of a whole request, instead of the rule's.
        request_timeout: Option<Duration> [Time(millis(1), DAY)] = None; r#""10s""#,
        /// Time limit of one attempt at a member, instead of the rule's.
        attempt_timeout: Option<Duration> [Time(millis(1), DAY)] = None; r#""2s""#,
    }
}

const HOST: Texts = (
    r#"a host name, "*." and a host name for all names right below it, "**." and a host name for all names below it, or an IP address"#,
    |text| {
        let (_, is_server_name) = DEEP_NAMES;
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

pub(super) const METHOD: Texts = ("a method, as in \"GET\"", |text| {
    key::is_field_name(text) && !text.bytes().any(|byte| byte.is_ascii_lowercase())
});

const FIELD: Texts = ("the name of a header field", key::is_field_name);

const PARAMETER: Texts = ("the name of a parameter", |text| {
    (1..=128).contains(&text.len())
});

/// The routes of a rule, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Routes(Option<Arc<All>>);

#[derive(Debug)]
struct All {
    list: Vec<Arc<Route>>,
    index: Index,
    /// The names of their groups, each once, in order.
    groups: Arc<[String]>,
    /// Number of times that the routes name each of `groups`.
    uses: Vec<usize>,
    /// Routes of [`Routes::list_special`].
    special: Arc<[Arc<Route>]>,
}

impl PartialEq for Routes {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => {
                let mut pairs = a.list.iter().zip(&b.list);
                let is_same = |(a, b): (&Arc<Route>, &Arc<Route>)| Arc::ptr_eq(a, b) || a == b;
                Arc::ptr_eq(a, b) || a.list.len() == b.list.len() && pairs.all(is_same)
            }
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl All {
    /// Returns the number of times that each group is named once routes have gone and others have come; `None` if other
    /// groups are named then.
    fn change_uses(&self, gone: &[Arc<Route>], new: &[Arc<Route>]) -> Option<Vec<usize>> {
        let mut uses = self.uses.clone();
        let mut change = |routes: &[Arc<Route>], by: isize| {
            for name in routes.iter().flat_map(|route| list_all_groups(route)) {
                let place = self.groups.binary_search_by(|of| of.as_str().cmp(name));
                let count = uses.get_mut(place.ok()?)?;
                *count = count.checked_add_signed(by)?;
            }
            Some(())
        };
        change(new, 1)?;
        change(gone, -1)?;
        (!uses.contains(&0)).then_some(uses)
    }
}

/// Returns the names of the groups to which a route or its models lead, some of them perhaps several times.
fn list_all_groups(route: &Route) -> impl Iterator<Item = &str> {
    let by_model = route.models.iter().flat_map(Models::group_names);
    route.group_names().chain(by_model.map(String::as_str))
}

/// Returns the names of the groups of routes, each once and in order, with the number of times that they are named.
fn count_groups(list: &[Arc<Route>]) -> (Arc<[String]>, Vec<usize>) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in list.iter().flat_map(|route| list_all_groups(route)) {
        *counts.entry(name).or_default() += 1;
    }
    let names = counts.keys().map(|name| (*name).to_owned());
    (names.collect(), counts.values().copied().collect())
}

/// Returns the routes of [`Routes::list_special`].
fn find_special(list: &[Arc<Route>]) -> Arc<[Arc<Route>]> {
    let special = list.iter().filter(|route| route.is_special());
    special.map(Arc::clone).collect()
}

/// Returns the conditions of routes.
fn list_conditions(list: &[Arc<Route>]) -> Vec<Arc<Conditions>> {
    let conditions = list.iter().map(|route| Arc::clone(&route.conditions));
    conditions.collect()
}

impl Routes {
    pub(super) fn new(list: Vec<Arc<Route>>) -> Self {
        let groups = count_groups(&list);
        let index = Index::of_shared(list_conditions(&list));
        let special = find_special(&list);
        Routes::with_parts(list, index, groups, special)
    }

    /// Returns the routes of `list`, which has nearly all routes of `before`.
    pub(super) fn next(before: &Routes, list: Vec<Arc<Route>>) -> Self {
        let Some(all) = before.0.as_ref() else {
            return Routes::new(list);
        };
        let (places, new) = find_difference(&all.list, &list, Arc::ptr_eq);
        if places.is_empty() && new.is_empty() {
            return before.clone();
        }
        let (gone, new) = (all.list.get(places.clone()), list.get(new));
        let (gone, new) = (gone.unwrap_or_default(), new.unwrap_or_default());
        let groups = match all.change_uses(gone, new) {
            Some(uses) => (Arc::clone(&all.groups), uses),
            None => count_groups(&list),
        };
        let index = all.index.with_others(places, &list_conditions(new));
        let special = match gone.iter().chain(new).any(|route| route.is_special()) {
            true => find_special(&list),
            false => Arc::clone(&all.special),
        };
        Routes::with_parts(list, index, groups, special)
    }

    /// True if these routes name the same groups as others, of which [`Routes::next`] has made them, and differ from them by
    /// plain routes to such groups only.
    pub(super) fn are_like(&self, before: &Routes) -> bool {
        let (Some(all), Some(known)) = (&self.0, &before.0) else {
            return self.0.is_none() && before.0.is_none();
        };
        let (_, new) = find_difference(&known.list, &all.list, Arc::ptr_eq);
        let new = all.list.get(new).unwrap_or_default();
        Arc::ptr_eq(&all.groups, &known.groups)
            && Arc::ptr_eq(&all.special, &known.special)
            && !new.iter().any(|route| route.uses_rule_group())
    }

    /// True if both have the same objects of [`Routes::list_special`].
    pub(super) fn has_same_special(&self, other: &Routes) -> bool {
        let (some, others) = (self.list_special(), other.list_special());
        std::ptr::eq(some, others) || some.is_empty() && others.is_empty()
    }

    fn with_parts(
        list: Vec<Arc<Route>>,
        index: Index,
        (groups, uses): (Arc<[String]>, Vec<usize>),
        special: Arc<[Arc<Route>]>,
    ) -> Self {
        if list.is_empty() {
            return Routes::default();
        }
        Routes(Some(Arc::new(All {
            list,
            index,
            groups,
            uses,
            special,
        })))
    }

    /// All of them.
    pub fn list(&self) -> &[Arc<Route>] {
        self.0.as_ref().map_or(&[], |all| &all.list)
    }

    /// Routes that have files, authentication, mirrors, models or limits of requests, in the order of the file. Few of
    /// thousands have any, so that nobody needs to look at all of them.
    pub fn list_special(&self) -> &[Arc<Route>] {
        self.0.as_ref().map_or(&[], |all| &all.special)
    }

    /// Finder of the route for a request; `None` if there are no routes.
    #[inline]
    pub fn index(&self) -> Option<&Index> {
        self.0.as_ref().map(|all| &all.index)
    }

    /// The names of their groups, each once.
    pub fn group_names(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |all| &all.groups[..])
    }

    /// A relative path starts at `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        let Some(all) = self.0.as_mut().and_then(Arc::get_mut) else {
            return;
        };
        // Otherwise routes would have two holders.
        all.special = Arc::default();
        let own = all.list.iter_mut();
        // Generated routes, which others may share, have no files.
        for route in own.filter_map(Arc::get_mut) {
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
        all.special = find_special(&all.list);
    }

    /// The files with answers and pages.
    pub fn files(&self) -> impl Iterator<Item = &FileName> {
        self.list_special().iter().flat_map(|route| {
            let answer = route
                .answer
                .iter()
                .filter_map(|answer| answer.file.as_ref());
            answer.chain(route.responses.files())
        })
    }
}

impl Route {
    /// True if the route is one of [`Routes::list_special`].
    fn is_special(&self) -> bool {
        self.auth != RouteAuth::OfRule
            || self.answer.is_some()
            || self.mirror.is_some()
            || self.models.is_some()
            || !self.groups.0.is_empty()
            || !self.request_limits.is_empty()
            || !self.responses.is_empty()
    }

    /// The names of its groups; none if it is the rule's, or if there is none.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        let one = Some(self.group.as_str()).filter(|group| !group.is_empty());
        let several = self.groups.0.iter().map(|share| share.name.as_str());
        one.into_iter().chain(several)
    }

    /// Returns the mirrors of the route's requests, in a rule with the mirrors `rule`. Groups of the route may have
    /// further mirrors.
    pub fn mirrors_in_rule<'a>(&'a self, rule: Option<&'a Mirrors>) -> &'a [Mirror] {
        let mirrors = self.mirror.as_ref().or(rule);
        let mirrors = mirrors.filter(|_| !self.answers_itself());
        mirrors.map_or(&[], |mirrors| &mirrors.0)
    }

    /// Returns all mirrors that the route names, those of its groups too.
    pub fn named_mirrors(&self) -> impl Iterator<Item = &Mirror> {
        let of_groups = self.groups.0.iter().flat_map(|share| &share.mirror);
        let all = self.mirror.iter().chain(of_groups);
        all.flat_map(|mirrors| &mirrors.0)
    }

    /// Returns the groups by models for the route's requests, in a rule with the groups `rule`.
    pub fn models_in_rule<'a>(&'a self, rule: &'a Models) -> Option<&'a Models> {
        Some(self.models.as_ref().unwrap_or(rule))
            .filter(|models| !models.is_empty() && !self.answers_itself())
    }

    /// Returns the aliases of models for the route's requests, in a rule with the aliases `rule`.
    pub fn aliases_in_rule<'a>(&'a self, rule: &'a ModelAliases) -> Option<&'a ModelAliases> {
        Some(self.model_aliases.as_ref().unwrap_or(rule))
            .filter(|aliases| !aliases.is_empty() && !self.answers_itself())
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
            request: self.request_timeout.or(rule.request),
            attempt: self.attempt_timeout.or(rule.attempt),
            ..rule.clone()
        }
    }
}

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 4] {
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
            "[rule.NAME.routes.groups.GROUP]",
            "A group in `groups` of a route, with actions for the requests that go to the group. The actions are \
             done in addition to the route's; if both change the same field, or the path, the group's count.",
            [describe_keys(GROUP_SHARE, GroupShare::default())],
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
