//! `[rule.NAME]`: services that clients connect to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use evenkeel_core::address::Address as Listen;
use evenkeel_core::cost::Cost;
use evenkeel_core::key;

use super::auth::Auth;
use super::compression::Compression;
use super::ftp::{FtpOptions, FtpTls};
use super::group::{self, GroupConfig, unknown_group};
use super::hedge::Hedge;
use super::limits::{FORGED, LimitKey, Limits, RequestLimit};
use super::mirror::Mirror;
use super::priority::{ClientPriority, PRIORITY};
use super::protocol::MemberProtocol;
use super::request_id::RequestId;
use super::responses::{RESPONSES, Responses};
use super::route::{self, MaxBody, Routes, RuleFacts};
use super::timeouts::{TIMEOUTS, Timeouts};
use super::tls::{SERVER_NAMES, Tls};
use crate::fields;
use crate::schema::document::Span;
use crate::schema::field::{FileName, Texts, choice_field};
use crate::schema::foreign;
use crate::schema::key::{DAY, HOUR, docs, millis, secs, section};
use crate::schema::networks::Proxies;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table, is_name};

section! {
    /// A rule: a service that clients connect to, and the group that serves it.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Rule {
        /// Service name.
        name: String = String::new(),
        /// Time limits.
        timeouts: Timeouts = Timeouts::default(),
        /// What is done with some of its requests.
        routes: Routes = Routes::default(),
        /// Answers of the balancer's own, and changes to responses.
        responses: Responses = Responses::default(),
    }
    keys OWN {
        /// Addresses to listen on: one, or a list. **Required.** Two rules cannot use the same
        /// address. With port 0 the system chooses a free port. `unix:` and an absolute path, or
        /// `unix:@` and a name in the abstract namespace, is a Unix stream socket: see
        /// [behind Unix sockets](proxy-protocol.md#behind-unix-sockets).
        listen: Vec<Listen> = Vec::new(); r#"["0.0.0.0:8080", "[::1]:8080"]"#,
        /// Rights of the files of Unix sockets in `listen`: who may write to one may connect. By default
        /// what the process's file mode mask (umask) leaves of 0777.
        listen_mode: Option<String> [Text(MODE)] = None; r#""0660""#,
        /// The group that serves the rule, if several rules share one. A rule without it has a
        /// group of its own, of the same name, and may have all keys of a group.
        group: String = String::new(); r#""backends""#,
        /// TLS between clients and the rule: a table, see below. Without it clients connect without
        /// encryption.
        tls: Option<Tls> = None; r#"{ certificates = "/etc/evenkeel/www.pem" }"#,
        /// TCP: groups by the names that clients ask for (SNI), which speak TLS with the members:
        /// [pass-through](tls.md#pass-through). A name may begin with `*.` for all right below it.
        /// Clients with other names, or none, are for the group of the rule; without `group` and
        /// `members` they are refused.
        sni: BTreeMap<String, String> [Text(GROUP)] = BTreeMap::new(); r#"{ "www.example.org" = "backends" }"#,
    }
    keys RULE {
        /// Whether the rule accepts clients. The admin API can change this at run time.
        enabled: bool = true; "false",
        /// Protocol of clients and members: HTTP (1.x and 2), balanced per request, TCP, balanced per
        /// connection, or [FTP](ftp.md), balanced per session.
        protocol: Protocol = Protocol::Http; r#""tcp""#,
        /// Whether open connections are closed when the rule is disabled or removed. Otherwise they
        /// continue until they end.
        terminate_on_disable: bool = false; "true",
        /// TCP and FTP: maximum retries for a client, each at another member, when a member cannot be
        /// connected to. For HTTP, see `retries`.
        connect_retries: u32 [Number(0.0, 10.0, "retries")] = 2; "4",
        /// TCP and FTP: whether one side may close its direction while the other still sends. Otherwise the
        /// first close ends both.
        half_close: bool = true; "false",
        /// Networks of proxies that say who the client is, and `unix` for those that connect to Unix
        /// sockets in `listen`, by a PROXY header (version 1 or 2) before the client's first byte: see [behind another proxy](proxy-protocol.md). Its address then counts as
        /// the client's, everywhere. Connections from elsewhere, and those without a valid header,
        /// are closed. Without this key no header is expected.
        accept_proxy: Option<Proxies> = None; r#"["10.0.0.0/8"]"#,
        /// Maximum number of client connections at once, of all workers together. Further ones wait
        /// in the listen queue.
        max_connections: u32 [Number(1.0, 10_000_000.0, "connections")] = 100_000; "20000",
        /// What a request (HTTP), connection (TCP) or session (FTP) of the rule [costs](strategies.md#costs),
        /// compared with a usual one of the group: strategies count it so often. For rules of unequal
        /// work that share a group.
        cost: Cost = Cost::ONE; "10",
        /// Which requests (HTTP) or connections (TCP) go first when they [wait for a
        /// member](overload.md): those with the highest number.
        priority: u16 [Number(0.0, 7.0, "")] = PRIORITY; "6",
        /// Other priorities of some clients: a list of tables, see below. The first that names a client's
        /// network holds.
        client_priorities: Vec<ClientPriority> = Vec::new(); r#"[{ networks = ["10.0.0.0/8"], priority = 7 }]"#,
        /// HTTP: whose requests it takes, those of [users](routing.md#passwords) or those that [a
        /// group](routing.md#forward-authentication) lets pass: a table, see below, `false` for everybody.
        auth: Option<Auth> = None; r#"{ users_file = "/etc/evenkeel/users" }"#,
        /// [Limits](limits.md) for each client: a table, see below.
        limits: Limits = Limits::default(); r#"{ requests = "100/s" }"#,
        /// HTTP: [further limits](limits.md#several-limits) of requests, each with a key of its own: a list of
        /// tables, see below. A request must be within all of them.
        request_limits: Vec<RequestLimit> = Vec::new(); r#"[{ requests = "10/s", key = "header:X-Api-Key" }]"#,
        /// HTTP: [compression](routing.md#compression) of responses: `true`, or a table, see below. Without it
        /// they pass as members send them.
        compression: Option<Compression> = None; r#"{ codings = ["gzip"] }"#,
        /// Options of HTTP rules: a table, see below.
        http: HttpOptions = HttpOptions::default(); "{ retries = 1 }",
        /// Options of FTP rules: a table, see below.
        ftp: FtpOptions = FtpOptions::default(); r#"{ ports = "20000-20999" }"#,
    }
}

impl Rule {
    /// The users of the rule and of its routes.
    pub fn auths(&self) -> impl Iterator<Item = &Auth> {
        let routes = self.routes.list().iter();
        let routes = routes.filter_map(|route| route.auth.or(None));
        self.auth.iter().chain(routes)
    }

    /// The names of its groups, each once: first the one of clients that ask for no name.
    pub fn groups(&self) -> Vec<&str> {
        let named = self.sni.values().chain(self.routes.groups());
        groups(&self.group, named.chain(self.mirrors()).chain(self.asked()))
    }

    /// Whether clients get the responses of a group.
    pub fn is_served_by(&self, group: &str) -> bool {
        let mut named = self.sni.values().chain(self.routes.groups());
        self.group == group || named.any(|name| name == group)
    }

    /// The names of the groups that get copies of requests.
    pub fn mirrors(&self) -> impl Iterator<Item = &String> {
        let of_routes = self.routes.list().iter();
        let of_routes = of_routes.filter_map(|route| route.mirror.as_ref());
        let all = self.http.mirror.iter().chain(of_routes);
        all.map(|mirror| &mirror.group)
    }

    /// The names of the groups that are asked whether requests may pass.
    pub fn asked(&self) -> impl Iterator<Item = &String> {
        let asks = |auth: &&Auth| auth.asked().is_some();
        self.auths().filter(asks).map(|auth| &auth.group)
    }

    /// Files with answers and pages.
    pub fn answer_files(&self) -> impl Iterator<Item = &FileName> {
        self.responses.files().chain(self.routes.files())
    }

    /// A rule with all defaults: HTTP, enabled.
    pub fn new(name: &str, listen: Vec<Listen>, group: &str) -> Self {
        let (name, group) = (name.into(), group.into());
        Rule {
            name,
            listen,
            group,
            ..Rule::default()
        }
    }

    /// Rights of the files of its Unix sockets, if they are said.
    pub fn socket_mode(&self) -> Option<u32> {
        let mode = self.listen_mode.as_ref()?;
        u32::from_str_radix(mode, 8).ok()
    }
}

/// The names of a rule's groups, each once: its own, if there is one, and the others.
pub fn groups<'a>(own: &'a str, others: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut groups: Vec<&str> = others.map(String::as_str).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|group| *group != own);
    let own = Some(own).filter(|own| !own.is_empty());
    own.into_iter().chain(groups).collect()
}

/// What a rule speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes, unread.
    Tcp,
    /// HTTP/1.x.
    Http,
    /// FTP with its data connections.
    Ftp,
}

choice_field!(Protocol,
    "http" => Protocol::Http,
    "tcp" => Protocol::Tcp,
    "ftp" => Protocol::Ftp;
    foreign::protocol);

section! {
    /// Options of HTTP rules.
    #[derive(Clone, Debug, PartialEq)]
    pub struct HttpOptions {
        /// Beginnings of names of fields that are removed from requests: what only the balancer
        /// says.
        reserved: Vec<String> = Vec::new(),
    }
    keys HTTP {
        /// Whether clients may speak HTTP/2 without TLS, by prior knowledge: their first bytes say
        /// so.
        http2: bool = true; "false",
        /// Maximum number of requests at once in a connection of HTTP/2.
        http2_streams: u32 [Number(1.0, 10_000.0, "streams")] = 128; "32",
        /// Maximum size of a request's body. A larger one gets 413: at once if the request says so, else
        /// when so much has come. Without it there is no limit.
        max_body: Option<MaxBody> = None; r#""10MiB""#,
        /// Rules with routes: whether paths are let through that servers read differently. They are
        /// refused with 400 otherwise, so that no spelling of a path gets around a route: those with
        /// `.` or `..` as a segment, also with dots or spaces behind it, `//`, a backslash, and an encoded slash (`%2F`), backslash,
        /// semicolon or control character. If they are let through, routes compare them as they are.
        ambiguous_paths: bool = false; "true",
        /// What members speak: HTTP/1.1 (`http1`), or HTTP/2 (`h2`), with many requests at once in a
        /// connection. With `member_tls` that is what they are offered (ALPN); `auto` offers both, and
        /// they choose. Without, it is known before, and `auto` is HTTP/1.1.
        member_protocol: MemberProtocol = MemberProtocol::Http1; r#""h2""#,
        /// HTTP/2 to members: after this time with requests under way a member is asked for a sign of
        /// life (PING), and again each time.
        ping_interval: Duration [Time(millis(100), HOUR)] = secs(30); r#""10s""#,
        /// Time that it has for that. Then the connection is closed, and its requests have failed.
        ping_timeout: Duration [Time(millis(100), HOUR)] = secs(10); r#""3s""#,
        /// Maximum size of the head of a request or response. A larger request gets 431, a larger
        /// response counts as a failure of the member.
        max_header_bytes: usize [Bytes(1024, 1024 * 1024)] = 32 * 1024; r#""64KiB""#,
        /// Maximum number of header fields in a head.
        max_header_count: usize [Number(8.0, 256.0, "fields")] = 128; "200",
        /// Whether members get `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.
        x_forwarded: bool = true; "false",
        /// Whether members get a `Forwarded` field (RFC 7239).
        forwarded: bool = false; "true",
        /// Name that the balancer adds to `Via` (RFC 9110, section 7.6.3), or `false` for none. With a `Via` servers such as nginx and
        /// IIS do not compress their responses unless they are told to (`gzip_proxied`, `noCompressionForProxies`).
        via: Option<String> [Text(VIA)] = None; r#""edge-1""#,
        /// Whether these fields are kept as clients send them. Switch it on only behind another
        /// proxy: otherwise clients can forge their address. If off, the balancer removes them and
        /// writes its own.
        trust_forwarded: bool = false; "true",
        /// Names of further [trailers of requests](routing.md#trailers) that members get. Others are taken
        /// out, but for those that checksums, signatures and gRPC have: there are servers that take trailers for
        /// fields of the head.
        request_trailers: Vec<String> [Text(TRAILER)] = Vec::new(); r#"["X-Checksum"]"#,
        /// Whether members are consoles of balancers, which get the cookies of sessions at a console. All others
        /// do not: whoever has such a cookie is that administrator.
        console_members: bool = false; "true",
        /// A name for each request, in a header field for members and in the access log: `true`, or a table, see below.
        /// Without it no request gets one. See [request ids](telemetry.md#request-ids).
        request_id: Option<RequestId> = None; "true",
        /// Name of a field with what a request [costs](strategies.md#costs). Requests without it, and
        /// those in which it is not a number above 0, cost the rule's `cost`; one beyond 0.01 to 1000
        /// counts as the bound. Name one only where clients are trusted, or where a proxy in front
        /// sets it: whoever can set it can make the balancer avoid a member, or crowd one.
        cost_header: Option<String> [Text(FIELD)] = None; r#""X-Cost""#,
        /// Name of a field with the [priority](overload.md#priorities) of a request, a number from 0 to 7.
        /// Requests without it, and those in which it is something else, have that of the client or
        /// the rule. Name one only where clients are trusted, or where a proxy in front sets it.
        priority_header: Option<String> [Text(FIELD)] = None; r#""X-Priority""#,
        /// Maximum retries, each at another member, of a request that may be repeated safely: none
        /// of it was sent, or it is idempotent (RFC 9110, section 9.2.2) and the member closed the
        /// connection, sent an invalid response or did not answer.
        retries: u32 [Number(0.0, 10.0, "retries")] = 2; "1",
        /// Maximum share of retries, relative to requests, so that retries cannot overload slow
        /// members. 0.2 is 20 %.
        retry_budget: f32 [Number(0.0, 1.0, "")] = 0.2; "0.1",
        /// Requests that may be sent to a [second member](routing.md#hedging) when the first one takes
        /// long: a table, see below.
        hedge: Option<Hedge> = None; r#"{ after = "50ms" }"#,
        /// A second group that gets [copies](routing.md#mirroring) of the requests: a table, see below.
        mirror: Option<Mirror> = None; r#"{ group = "canary", percent = 10 }"#,
        /// Maximum number of idle connections to a member that each worker keeps for later
        /// requests.
        pool_idle_connections: usize [Number(0.0, 65_536.0, "connections")] = 512; "16",
        /// How long idle connections to members are kept. Should be shorter than the keep-alive
        /// timeout of the members.
        pool_idle_timeout: Duration [Time(millis(1), DAY)] = secs(30); r#""4s""#,
    }
}

impl AsTable for HttpOptions {
    const ALLOWED: &'static str = "a table of HTTP options";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(HTTP, self, report);
    }
}

/// What `sni` names.
const GROUP: Texts = ("the name of a group", is_name);

/// The name of a field.
const FIELD: Texts = ("the name of a header field", key::is_field_name);

/// The name of a trailer.
const TRAILER: Texts = (
    "the name of a header field that may be a trailer, with at most 64 characters",
    |text| {
        key::is_field_name(text)
            && text.len() <= fields::MAX_TRAILER_NAME
            && !fields::is_no_trailer(text)
    },
);

/// A token of RFC 9110, section 5.6.2.
const VIA: Texts = (
    "a token of RFC 9110 (letters, digits, - . _ and a few more)",
    |text| {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        (1..=64).contains(&text.len()) && text.bytes().all(is_token)
    },
);

/// What `[defaults]` says.
#[derive(Default)]
pub(crate) struct Defaults {
    pub rule: Rule,
    pub group: GroupConfig,
}

impl Defaults {
    /// Reads `[defaults]`, if it is there.
    pub(crate) fn read(top: &mut Table<'_>, report: &mut Report<'_>) -> Self {
        let mut defaults = Defaults::default();
        if let Some(mut table) = top.table("defaults", report) {
            read_shared(&mut defaults.rule, &mut table, report);
            defaults.group.read_shared(&mut table, report);
            table.finish(report);
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

/// Keys that only a rule with `protocol = "http"` may have.
const HTTP_ONLY: [&str; 11] = [
    "auth",
    "cors",
    "error_pages",
    "response_fields",
    "request_limits",
    "header_timeout",
    "keep_alive_timeout",
    "body_timeout",
    "response_timeout",
    "compression",
    "http",
];

/// A rule, and the group of its own if it names none. `shared` are the groups with a table of
/// their own.
pub(crate) fn read(
    table: &mut Table<'_>,
    defaults: &Defaults,
    shared: &HashMap<String, Span>,
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
    if rule.protocol != Protocol::Http {
        if table.given("routes") {
            let message = "only a rule with `protocol = \"http\"` has routes";
            table.problem("routes", message, report);
        }
        for key in HTTP_ONLY.into_iter().filter(|key| table.given(key)) {
            let message = "only a rule with `protocol = \"http\"` has this key";
            table.problem(key, message, report);
        }
    }
    check_ftp(&rule, table, report);
    check_unix(&rule, table, report);
    check_names(&rule, table, shared, report);
    check_limits(&rule, table, report);
    let facts = RuleFacts {
        name: &rule.name,
        has_tls: rule.tls.is_some(),
        trusts_forwarded: rule.http.trust_forwarded,
        group: &rule.group,
    };
    if let Some(mirror) = &rule.http.mirror
        && let Some(http) = table.table("http", report)
        && http.given("mirror")
    {
        mirror.check((&rule.name, Some(&rule.group)), &http, shared, report);
    } else if let Some(mirror) = &rule.http.mirror
        && rule.protocol == Protocol::Http
    {
        // It comes from the defaults.
        mirror.check((&rule.name, Some(&rule.group)), table, shared, report);
    }
    if let Some(auth) = rule
        .auth
        .as_ref()
        .filter(|_| rule.protocol == Protocol::Http)
    {
        auth.check(&rule.name, table, shared, report);
    }
    let mut labels = HashSet::new();
    let trusts = rule.http.trust_forwarded;
    RequestLimit::check(
        &rule.request_limits,
        (None, trusts),
        &mut labels,
        table,
        report,
    );
    rule.routes = route::read(&facts, &mut labels, table, shared, report);
    if table.given("group") {
        if !shared.contains_key(&rule.group) {
            unknown_group(table, "group", &rule.group, shared, report);
        }
        for key in group::keys()
            .filter(|key| table.given(key))
            .collect::<Vec<_>>()
        {
            table.know(key);
            let home = &rule.group;
            let message = format!("belongs in [group.{home}], because the rule names a group");
            table.problem(key, message, report);
        }
        return (rule, None);
    }

    let group = GroupConfig::of_table(table, &defaults.group, report);
    if rule.protocol != Protocol::Http {
        group.warn_of_key(table, report);
    }
    let has_members =
        table.given("members") || table.given("members_files") || group.agents_may_join;
    if (table.given("sni") || table.given("routes")) && !has_members {
        for key in group::keys().filter(|key| table.given(key)) {
            let message = match table.given("sni") {
                true => {
                    "belongs in the groups that `sni` names, because the rule has none of its own"
                }
                false => {
                    "belongs in the groups that the routes name, because the rule has none of its own"
                }
            };
            table.problem(key, message, report);
        }
        rule.group.clear();
        let asked = rule.auth.as_ref().and_then(Auth::asked);
        if asked == Some(&*rule.name) && !shared.contains_key(&rule.name) {
            let message = "names the rule's own group, and it has none: write `members`";
            table.problem("auth", message, report);
        }
        route::need_own(&rule.routes, table, shared, report);
        return (rule, None);
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
            report.problem(span, &group.path(), message, None);
        }
        None if !has_members => {
            let message = "names neither `members` nor a `group`";
            let allowed = r#"members = ["10.0.0.1:80", …], or group = "NAME" with [group.NAME]"#;
            table.lacks(message, Some(allowed.into()), report);
        }
        None => {}
    }
    (rule, Some(group))
}

/// Looks at what limits need of the rule.
fn check_limits(rule: &Rule, table: &mut Table<'_>, report: &mut Report<'_>) {
    let trusts = rule.http.trust_forwarded;
    let key = &rule.limits.key;
    let Some(limits) = table.table("limits", report) else {
        return;
    };
    if rule.protocol == Protocol::Ftp && limits.given("max_lifetime") {
        limits.problem(
            "max_lifetime",
            "a rule with `protocol = \"ftp\"` has no such limit",
            report,
        );
    }
    if rule.protocol != Protocol::Http {
        return Limits::check_tcp(&limits, report);
    }
    if *key == LimitKey::ForwardedFor && !trusts {
        limits.problem("key", FORGED, report);
    }
    let by_client = *key == LimitKey::default();
    if by_client && trusts && rule.accept_proxy.is_none() && rule.limits.requests.is_some() {
        let message = "`trust_forwarded` says that there is a proxy in front, so all its clients have \
                       one address here: if that is not meant, write key = \"forwarded_for\"";
        limits.warning(message, report);
    }
}

/// Rights of a file.
const MODE: Texts = ("rights of a file in octal, as in \"0660\"", |text| {
    let digits = text.strip_prefix('0').unwrap_or(text);
    digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit))
});

/// Looks at what Unix sockets lack.
fn check_unix(rule: &Rule, table: &Table<'_>, report: &mut Report<'_>) {
    let is_unix = |at: &Listen| matches!(at, Listen::Unix(_));
    let has_file = |at: &Listen| matches!(at, Listen::Unix(path) if !path.starts_with('@'));
    if table.given("listen_mode") && !rule.listen.iter().any(has_file) {
        let message = "`listen` names no Unix socket with a file";
        let key = "listen_mode";
        report.warning(&table.span_of(key), &table.path_of(key), message);
    }
    let believes = rule.accept_proxy.as_ref();
    let believes = believes.map(|proxies| proxies.contains(None));
    if !rule.listen.iter().any(is_unix) {
        if believes == Some(true) {
            let message = "has \"unix\", but `listen` names no Unix socket";
            table.problem("accept_proxy", message, report);
        }
        return;
    }
    if rule.protocol == Protocol::Ftp {
        let message = "clients of a rule with `protocol = \"ftp\"` need addresses for data: they cannot \
                       come over a Unix socket";
        table.problem("listen", message, report);
    }
    if believes == Some(false) {
        let message =
            "nobody can connect to the Unix socket of `listen`: add \"unix\" for the proxy there";
        table.problem("accept_proxy", message, report);
    }
    let limits = &rule.limits;
    let by_address = limits.connections.is_some()
        || limits.new_connections.is_some()
        || limits.requests.is_some() && limits.key == LimitKey::default();
    if believes.is_none() && by_address && table.given("limits") {
        let message = "clients of the Unix socket have no address, so limits by address are not for \
                       them; with `accept_proxy = [\"unix\"]` a proxy in front says their addresses";
        report.warning(&table.span_of("limits"), &table.path_of("limits"), message);
    }
}

/// Looks at what an FTP rule has, and what others have of it.
fn check_ftp(rule: &Rule, table: &mut Table<'_>, report: &mut Report<'_>) {
    if rule.protocol != Protocol::Ftp {
        if table.given("ftp") {
            let message = "only a rule with `protocol = \"ftp\"` has this key";
            table.problem("ftp", message, report);
        }
        return;
    }
    let (auth, has_tls) = (rule.ftp.auth_tls, rule.tls.is_some());
    let ends_here = auth.unwrap_or_default() == FtpTls::End && has_tls;
    if auth == Some(FtpTls::End) && !has_tls {
        let message = "`auth_tls = \"end\"` needs a table `tls` with certificates";
        table.problem("ftp", message, report);
    }
    if rule.ftp.require_tls && !ends_here {
        let message =
            "`require_tls` needs TLS that ends here: a table `tls`, and no other `auth_tls`";
        table.problem("ftp", message, report);
    }
    if has_tls && !ends_here {
        let message =
            "nobody uses its certificates, since `auth_tls` says that TLS does not end here";
        report.warning(&table.span_of("tls"), &table.path_of("tls"), message);
    }
    if auth == Some(FtpTls::Pass) {
        let message = "after AUTH TLS, which is passed on, the balancer cannot prepare data \
                       connections: clients must reach the members' ports themselves";
        report.warning(&table.span_of("ftp"), &table.path_of("ftp"), message);
    }
}

/// Looks at the groups by name.
fn check_names(
    rule: &Rule,
    table: &mut Table<'_>,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    if !table.given("sni") {
        return;
    }
    if rule.protocol != Protocol::Tcp {
        let message = "only a rule with `protocol = \"tcp\"` has this key";
        table.problem("sni", message, report);
    } else if table.given("tls") {
        let message = "names are for `tls` here, which ends at the balancer; members of a rule \
                       with `sni` have the certificates";
        table.problem("sni", message, report);
    }
    let Some(names) = table.table("sni", report) else {
        return;
    };
    if names.is_empty() {
        table.problem("sni", "has no name", report);
    }
    let (what, is_server_name) = SERVER_NAMES;
    let mut lower = HashMap::new();
    for (name, group) in &rule.sni {
        if !is_server_name(name) {
            names.problem(name, format!("the name must be {what}"), report);
        }
        if let Some(twin) = lower.insert(name.to_ascii_lowercase(), name) {
            names.problem(name, format!("the same name as {twin:?}"), report);
        }
        if !shared.contains_key(group) {
            unknown_group(&names, name, group, shared, report);
        }
    }
}

/// What the reference says of the tables.
pub(crate) fn tables() -> [TableDoc; 2] {
    let doc = "A rule: a service that clients connect to. `NAME` is any name (letters, digits, \
               `-`, `_` and `.`, at most 64).";
    let rule = [
        docs(OWN, Rule::default()),
        docs(RULE, Rule::default()),
        docs(TIMEOUTS, Timeouts::default()),
        docs(RESPONSES, Responses::default()),
    ];
    let http = [docs(HTTP, HttpOptions::default())];
    [
        TableDoc::new("[rule.NAME]", doc, rule),
        TableDoc::new("[rule.NAME.http]", "Options of HTTP rules.", http),
    ]
}
