//! Reading of rules: `[defaults]`, the checks of each rule, and the group of its own.

use std::collections::{HashMap, HashSet};

use evenkeel_core::address::Address as Listen;

use super::auth::Auth;
use super::ftp::FtpTls;
use super::group::{self, GroupConfig};
use super::group_name::unknown_group;
use super::limits::{FORGED, LimitKey, Limits, RequestLimit};
use super::parts::PartReader;
use super::pass_through::check_pass_through;
use super::responses;
use super::routes::{self, RuleFacts};
use super::rule::{Forward, OWN, Protocol, RULE, ReturnPath, Rule};
use super::timeouts::{TIMEOUTS, Timeouts};
use super::tls::DEEP_NAMES;
use super::udp::{self, UdpSession};
use crate::schema::document::Span;
use crate::schema::report::Report;
use crate::schema::table::Table;

/// Settings from `[defaults]`.
#[derive(Default)]
pub(crate) struct Defaults {
    pub rule: Rule,
    pub group: GroupConfig,
}

impl Defaults {
    /// Reads `[defaults]`, if it is there.
    pub(crate) fn read(top: &mut Table<'_>, report: &mut Report<'_>) -> Self {
        let mut defaults = Defaults::default();
        if let Some(mut table) = top.read_table("defaults", report) {
            read_shared(&mut defaults.rule, &mut table, report);
            defaults.group.read_shared(&mut table, report);
            table.report_unread(report);
        }
        defaults
    }
}

/// Reads what `[defaults]` can have, too.
fn read_shared(rule: &mut Rule, table: &mut Table<'_>, report: &mut Report<'_>) {
    table.read(RULE, rule, report);
    table.read(TIMEOUTS, &mut rule.timeouts, report);
    rule.responses.read(table, report);
}

/// Keys that only a rule with `protocol = "http"` may have, beside those of [`Responses`](super::responses).
const HTTP_ONLY: [&str; 10] = [
    "auth",
    "request_limits",
    "header_timeout",
    "keep_alive_timeout",
    "body_timeout",
    "response_timeout",
    "request_timeout",
    "attempt_timeout",
    "compression",
    "http",
];

/// A rule, and the group of its own if it names none. `shared` are the groups with a table of
/// their own. `parts` has the routes, if the table has none of them.
pub(crate) fn read(
    table: &mut Table<'_>,
    defaults: &Defaults,
    shared: &HashMap<String, Span>,
    parts: Option<&mut PartReader<'_>>,
    report: &mut Report<'_>,
) -> (Rule, Option<GroupConfig>) {
    let mut rule = Rule {
        name: table.name(),
        group: table.name(),
        ..defaults.rule.clone()
    };
    table.read(OWN, &mut rule, report);
    read_shared(&mut rule, table, report);
    table.require("listen", report);
    check_http(&rule, table, report);
    check_ftp(&rule, table, report);
    check_udp(&mut rule, table, report);
    check_forward(&rule, table, report);
    check_anycast(&rule, table, report);
    check_unix(&rule, table, report);
    check_names(&rule, table, shared, report);
    check_limits(&rule, table, report);
    check_other_groups(&rule, table, shared, report);
    let mut labels = HashSet::new();
    let of_rule = (None, rule.http.trust_forwarded);
    RequestLimit::check_list(&rule.request_limits, of_rule, &mut labels, table, report);
    let facts = RuleFacts {
        name: &rule.name,
        has_tls: rule.tls.is_some(),
        trusts_forwarded: rule.http.trust_forwarded,
        group: &rule.group,
        models: &rule.http.models,
        model_aliases: &rule.http.model_aliases,
    };
    rule.routes = match parts {
        Some(parts) => parts.read_routes(&facts, shared),
        None => routes::read_routes(&facts, &mut labels, table, shared, report),
    };
    let own = match table.has_key("group") {
        true => {
            refuse_group_keys(&rule, table, shared, report);
            None
        }
        false => read_own_group(&mut rule, defaults, table, shared, report),
    };
    check_pass_through(&rule, table, report);
    (rule, own)
}

/// Refuses keys of HTTP in other rules.
fn check_http(rule: &Rule, table: &Table<'_>, report: &mut Report<'_>) {
    if rule.protocol == Protocol::Http {
        return;
    }
    if table.has_key("routes") {
        let message = "only a rule with `protocol = \"http\"` has routes";
        table.report_problem("routes", message, report);
    }
    let keys = HTTP_ONLY.into_iter().chain(responses::http_keys());
    for key in keys.filter(|key| table.has_key(key)) {
        let message = "only a rule with `protocol = \"http\"` has this key";
        table.report_problem(key, message, report);
    }
}

/// Looks at the groups that get copies of requests, get requests by models, or decide about requests.
fn check_other_groups(
    rule: &Rule,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    let is_http = rule.protocol == Protocol::Http;
    if is_http
        && rule.tls.is_none()
        && !rule.http.separate_hosts.is_empty()
        && let Some(http) = table.read_table("http", report)
        && http.has_key("separate_hosts")
    {
        let message = "without `tls` clients ask for no name, and the key has no effect: remove it, or add `tls`";
        let (span, path) = (
            http.span_of("separate_hosts"),
            http.path_of("separate_hosts"),
        );
        report.add_warning(&span, &path, message);
    }
    if let Some(mirrors) = &rule.http.mirror {
        let of_rule = (&*rule.name, Some(&*rule.group));
        match table.read_table("http", report) {
            Some(http) if http.has_key("mirror") => {
                mirrors.check_groups(of_rule, &http, shared, report);
            }
            // They come from the defaults.
            _ if is_http => mirrors.check_groups(of_rule, table, shared, report),
            _ => {}
        }
    }
    if is_http && !rule.http.models.is_empty() {
        let models = &rule.http.models;
        match table.read_table("http", report) {
            Some(mut http) if http.has_key("models") => {
                models.check_groups(&rule.name, &mut http, shared, report);
            }
            _ => models.check_groups(&rule.name, table, shared, report),
        }
        let aliases = &rule.http.model_aliases;
        if let Some(mut http) = table.read_table("http", report) {
            aliases.check_models(models, &mut http, report);
        }
    }
    if let Some(auth) = rule.auth.as_ref().filter(|_| is_http) {
        auth.check_group(&rule.name, table, shared, report);
    }
}

/// Looks at a rule that names a group: it has no keys of a group.
fn refuse_group_keys(
    rule: &Rule,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    let home = &rule.group;
    if !shared.contains_key(home) {
        unknown_group(table, "group", home, shared, report);
    }
    for key in group::keys()
        .filter(|key| table.has_key(key))
        .collect::<Vec<_>>()
    {
        table.note_key(key);
        let message = format!("belongs in [group.{home}], because the rule names a group");
        table.report_problem(key, message, report);
    }
}

/// Reads the group of a rule that names none; `None` if `sni` or the routes name all groups.
fn read_own_group(
    rule: &mut Rule,
    defaults: &Defaults,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) -> Option<GroupConfig> {
    let group = GroupConfig::of_table(table, &defaults.group, report);
    if rule.protocol != Protocol::Http {
        group.warn_of_key(table, report);
    }
    let has_members =
        table.has_key("members") || table.has_key("members_files") || group.agents_may_join;
    let has_routes = table.has_key("routes") || !rule.routes.list().is_empty();
    if (table.has_key("sni") || has_routes) && !has_members {
        let who = match table.has_key("sni") {
            true => "`sni` names",
            false => "the routes name",
        };
        for key in group::keys().filter(|key| table.has_key(key)) {
            let message =
                format!("belongs in the groups that {who}, because the rule has none of its own");
            table.report_problem(key, message, report);
        }
        rule.group.clear();
        let asked = rule.auth.as_ref().and_then(Auth::asked_group);
        if asked == Some(&*rule.name) && !shared.contains_key(&rule.name) {
            let message = "names the rule's own group, and it has none: write `members`";
            table.report_problem("auth", message, report);
        }
        let names_own = { rule.http.models.group_names() }.any(|group| *group == rule.name);
        if names_own && !shared.contains_key(&rule.name) {
            let message =
                "names the rule's own group in `models`, and it has none: write `members`";
            table.report_problem("http", message, report);
        }
        routes::need_own(&rule.routes, table, shared, report);
        return None;
    }
    match shared.get(&rule.name) {
        Some(_) if !has_members => {
            let message = format!(
                "names neither `members` nor a `group`; to use [group.{0}], write group = {0:?}",
                rule.name
            );
            table.lacks(message, None, report);
        }
        Some(span) => {
            let message = format!(
                "a rule with members has a group of its own name, so [group.{}] is a second one: \
                 give one of them another name",
                rule.name
            );
            report.add_problem(span, &group.path(), message, None);
        }
        None if !has_members => {
            let message = "names neither `members` nor a `group`";
            let allowed = r#"members = ["10.0.0.1:80", …], or group = "NAME" with [group.NAME]"#;
            table.lacks(message, Some(allowed.into()), report);
        }
        None => {}
    }
    Some(group)
}

/// Looks at what limits need of the rule.
fn check_limits(rule: &Rule, table: &mut Table<'_>, report: &mut Report<'_>) {
    let trusts = rule.http.trust_forwarded;
    let key = &rule.limits.key;
    let Some(limits) = table.read_table("limits", report) else {
        return;
    };
    if rule.protocol == Protocol::Ftp && limits.has_key("max_lifetime") {
        limits.report_problem(
            "max_lifetime",
            "a rule with `protocol = \"ftp\"` has no such limit",
            report,
        );
    }
    if rule.protocol != Protocol::Http {
        return Limits::check_tcp(&limits, report);
    }
    if *key == LimitKey::ForwardedFor && !trusts {
        limits.report_problem("key", FORGED, report);
    }
    let by_client = *key == LimitKey::default();
    if by_client && trusts && rule.accept_proxy.is_none() && rule.limits.requests.is_some() {
        let message = "`trust_forwarded` says that there is a proxy in front, so all its clients have \
                       one address here: if that is not meant, write key = \"forwarded_for\"";
        limits.report_warning(message, report);
    }
}

/// Gives a UDP rule its own limit of idle time, and reports keys that do not fit the rule's protocol.
fn check_udp(rule: &mut Rule, table: &mut Table<'_>, report: &mut Report<'_>) {
    if rule.protocol != Protocol::Udp {
        return udp::check_other_rule(table, report);
    }
    let has_socket_file = rule.listen.iter().any(|at| at.socket().is_none());
    udp::check_rule(has_socket_file, table, report);
    if !table.has_key("idle_timeout") && rule.timeouts.idle == Timeouts::default().idle {
        rule.timeouts.idle = udp::IDLE;
    }
}

/// Looks at what Unix sockets lack.
fn check_unix(rule: &Rule, table: &Table<'_>, report: &mut Report<'_>) {
    let is_unix = |at: &Listen| matches!(at, Listen::Unix(_));
    let has_file = |at: &Listen| matches!(at, Listen::Unix(path) if !path.starts_with('@'));
    if table.has_key("listen_mode") && !rule.listen.iter().any(has_file) {
        let message = "`listen` names no Unix socket with a file";
        let key = "listen_mode";
        report.add_warning(&table.span_of(key), &table.path_of(key), message);
    }
    let believes = rule.accept_proxy.as_ref();
    let believes = believes.map(|proxies| proxies.contains(None, || true));
    if !rule.listen.iter().any(is_unix) {
        if believes == Some(true) {
            let message = "has \"unix\" or \"self\", but `listen` names no Unix socket";
            table.report_problem("accept_proxy", message, report);
        }
        return;
    }
    if rule.protocol == Protocol::Ftp {
        let message = "clients of a rule with `protocol = \"ftp\"` need addresses for data: they cannot \
                       come over a Unix socket";
        table.report_problem("listen", message, report);
    }
    if believes == Some(false) {
        let message = "no client can connect to the Unix socket of `listen`: add \"unix\" for the proxy there";
        table.report_problem("accept_proxy", message, report);
    }
    let limits = &rule.limits;
    let by_address = limits.connections.is_some()
        || limits.new_connections.is_some()
        || limits.requests.is_some() && limits.key == LimitKey::default();
    if believes.is_none() && by_address && table.has_key("limits") {
        let message = "clients of the Unix socket have no address, so limits by address are not for \
                       them; with `accept_proxy = [\"unix\"]` a proxy in front says their addresses";
        report.add_warning(&table.span_of("limits"), &table.path_of("limits"), message);
    }
}

/// Looks at what an FTP rule has, and what others have of it.
fn check_ftp(rule: &Rule, table: &mut Table<'_>, report: &mut Report<'_>) {
    if rule.protocol != Protocol::Ftp {
        if table.has_key("ftp") {
            let message = "only a rule with `protocol = \"ftp\"` has this key";
            table.report_problem("ftp", message, report);
        }
        return;
    }
    let (auth, has_tls) = (rule.ftp.auth_tls, rule.tls.is_some());
    let ends_here = auth.unwrap_or_default() == FtpTls::End && has_tls;
    if auth == Some(FtpTls::End) && !has_tls {
        let message = "`auth_tls = \"end\"` needs a table `tls` with certificates";
        table.report_problem("ftp", message, report);
    }
    if rule.ftp.require_tls && !ends_here {
        let message =
            "`require_tls` needs TLS that ends here: a table `tls`, and no other `auth_tls`";
        table.report_problem("ftp", message, report);
    }
    if has_tls && !ends_here {
        let message =
            "the certificates are not used, since `auth_tls` says that TLS does not end here";
        report.add_warning(&table.span_of("tls"), &table.path_of("tls"), message);
    }
    if auth == Some(FtpTls::Pass) {
        let message = "after AUTH TLS, which is passed on, the balancer cannot prepare data \
                       connections: clients must reach the members' ports themselves";
        report.add_warning(&table.span_of("ftp"), &table.path_of("ftp"), message);
    }
}

/// Looks at the way to members of a rule whose address other balancers have, too.
fn check_anycast(rule: &Rule, table: &Table<'_>, report: &mut Report<'_>) {
    if rule.anycast && rule.return_path != ReturnPath::Tunnel {
        let message = "`anycast` needs `forward = \"kernel\"` and `return_path = \"tunnel\"`: set both, or remove this key";
        table.report_problem("anycast", message, report);
    }
}

/// Returns why the kernel cannot forward the sessions of a UDP rule on its return path.
fn find_session_obstacle(rule: &Rule) -> Option<&'static str> {
    let udp = &rule.udp;
    match (udp.session, rule.return_path) {
        (UdpSession::Datagram, ReturnPath::Route) if udp.expect_answer => Some(
            "with \"kernel\" and `session = \"datagram\"` an answer is found by the port that each datagram has towards the \
             member: set `return_path = \"nat\"`, or \"direct\" if your members answer clients themselves, or `expect_answer = false` in `udp` if your members never answer, or \
             remove this key",
        ),
        (UdpSession::Datagram, ReturnPath::Nat) if !udp.expect_answer => Some(
            "with \"kernel\", `session = \"datagram\"` and `expect_answer = false` no answer needs a way back, so a port \
             for each datagram is of no use: remove `return_path`, so that your members see the clients' addresses, or \
             remove this key",
        ),
        _ => None,
    }
}

/// Most networks that the kernel excepts from the limits of a rule.
const MAX_EXCEPTIONS: usize = 16;

/// Looks at what a rule cannot have if the kernel forwards its connections.
fn check_forward(rule: &Rule, table: &Table<'_>, report: &mut Report<'_>) {
    if rule.forward == Forward::Proxy {
        if rule.return_path != ReturnPath::Route {
            let message = "\"nat\", \"direct\" and \"tunnel\" are only for a rule with `forward = \"kernel\"`: set it, or \
                           remove this key";
            table.report_problem("return_path", message, report);
        }
        return;
    }
    let mut refuse = |message: String| table.report_problem("forward", message, report);
    match rule.protocol {
        Protocol::Tcp => {}
        Protocol::Udp if rule.return_path == ReturnPath::Tunnel => {
            let message = "\"tunnel\" is only for `protocol = \"tcp\"`: write \"route\", \"nat\" or \"direct\"";
            table.report_problem("return_path", message, report);
            return;
        }
        Protocol::Udp => {
            if let Some(message) = find_session_obstacle(rule) {
                refuse(message.into());
            }
        }
        _ => {
            return refuse(
                "\"kernel\" is only for a rule with `protocol = \"tcp\"` or `protocol = \"udp\"`"
                    .into(),
            );
        }
    }
    let limits = &rule.limits;
    let wants = [
        ("tls", rule.tls.is_some()),
        ("sni", table.has_key("sni")),
        ("accept_proxy", rule.accept_proxy.is_some()),
        ("max_lifetime` in `limits", limits.max_lifetime.is_some()),
        ("bandwidth` in `limits", limits.bandwidth.is_some()),
        (
            "connection_bandwidth` in `limits",
            limits.connection_bandwidth.is_some(),
        ),
        ("half_close = false", !rule.half_close),
        ("terminate_on_disable", rule.terminate_on_disable),
    ];
    for (key, _) in wants.into_iter().filter(|(_, is_wanted)| *is_wanted) {
        refuse(format!(
            "with \"kernel\" the rule cannot have `{key}`, which needs the proxy: remove one of the two"
        ));
    }
    let exceptions = limits.except.as_ref().map_or(0, |except| except.0.len());
    if exceptions > MAX_EXCEPTIONS {
        refuse(format!(
            "with \"kernel\" the rule can have {MAX_EXCEPTIONS} networks in `except` of `limits`, and there are {exceptions}: \
             write fewer, larger networks, or remove this key"
        ));
    }
    for listen in &rule.listen {
        let why = match listen {
            Listen::Ip(at) if at.ip().is_unspecified() => {
                "stands for all addresses: name each address"
            }
            Listen::Ip(at) if at.port() == 0 => "has no port: name the port",
            Listen::Ip(_) => continue,
            _ => "is no IP address: use a separate rule for it",
        };
        refuse(format!(
            "the kernel cannot forward for {listen}, which {why}"
        ));
    }
}

/// Looks at the groups by name.
fn check_names(
    rule: &Rule,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    if !table.has_key("sni") {
        return;
    }
    if rule.protocol != Protocol::Tcp {
        let message = "only a rule with `protocol = \"tcp\"` has this key";
        table.report_problem("sni", message, report);
    }
    let Some(names) = table.read_table("sni", report) else {
        return;
    };
    if names.is_empty() {
        table.report_problem("sni", "has no name", report);
    }
    let (what, is_server_name) = DEEP_NAMES;
    let mut lower = HashMap::new();
    for (name, group) in &rule.sni {
        if !is_server_name(name) {
            names.report_problem(name, format!("the name must be {what}"), report);
        }
        if let Some(twin) = lower.insert(name.to_ascii_lowercase(), name) {
            names.report_problem(name, format!("the same name as {twin:?}"), report);
        }
        if !shared.contains_key(group) {
            unknown_group(&names, name, group, shared, report);
        }
    }
}
