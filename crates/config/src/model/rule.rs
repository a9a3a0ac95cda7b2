//! `[rule.NAME]`: services that clients connect to.

use std::collections::{BTreeMap, HashMap, HashSet};

use evenkeel_core::address::Address as Listen;
use evenkeel_core::cost::Cost;

use super::auth::Auth;
use super::compression::Compression;
use super::ftp::{FtpOptions, FtpTls};
use super::group::{self, GroupConfig};
use super::group_name::unknown_group;
use super::http_options::{HTTP, HttpOptions};
use super::limits::{FORGED, LimitKey, Limits, RequestLimit};
use super::priority::{ClientPriority, PRIORITY};
use super::responses::{RESPONSES, Responses};
use super::route::Routes;
use super::routes::{self, RuleFacts};
use super::timeouts::{TIMEOUTS, Timeouts};
use super::tls::{SERVER_NAMES, Tls};
use super::udp::{self, UdpOptions};
use crate::schema::document::Span;
use crate::schema::field::{FileName, Texts, choice_field};
use crate::schema::foreign;
use crate::schema::key::{describe_keys, section};
use crate::schema::networks::Proxies;
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{Table, is_name};

section! {
    /// A rule: a service that clients connect to, and the group that serves it.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Rule {
        /// Service name.
        name: String = String::new(),
        /// Time limits.
        timeouts: Timeouts = Timeouts::default(),
        /// Routes: special treatment of some requests.
        routes: Routes = Routes::default(),
        /// Answers of the balancer's own, and changes to responses.
        responses: Responses = Responses::default(),
    }
    keys OWN {
        /// Addresses to listen on: one, or a list. You cannot use an address in two rules. With port 0 the
        /// system chooses a free port. `unix:` and an absolute path, or `unix:@` and a name in the abstract
        /// namespace, is a Unix stream socket: see [behind Unix
        /// sockets](proxy-protocol.md#behind-unix-sockets). **Required.**
        listen: Vec<Listen> = Vec::new(); r#"["0.0.0.0:8080", "[::1]:8080"]"#,
        /// Rights of the files of Unix sockets in `listen`: everybody with the right to write may connect. By
        /// default 0777 without the bits of the process's file mode mask (umask). Set rights if your proxy runs
        /// as another user.
        listen_mode: Option<String> [Text(MODE)] = None; r#""0660""#,
        /// Group which serves the rule. Name a group if several of your rules share one. A rule without this
        /// key has its own group, of the same name, and you may set all keys of a group in the rule.
        group: String = String::new(); r#""backends""#,
        /// TCP: place where the rule's connections are forwarded. With `kernel` a program in the kernel forwards
        /// connections of IPv4, at a fraction of the cost, where your members' answers come back through the
        /// balancer: see [forwarding in the kernel](kernel-forwarding.md). The proxy serves all other
        /// connections.
        forward: Forward = Forward::Proxy; r#""kernel""#,
        /// TLS between clients and the rule: a table, see below. Without the table, clients connect without
        /// encryption.
        tls: Option<Tls> = None; r#"{ certificates = "/etc/evenkeel/www.pem" }"#,
        /// TCP: groups by the name requested by a client (SNI), for clients which speak TLS with the members:
        /// [pass-through](tls.md#pass-through). Begin a name with `*.` to match all names right below the
        /// domain. Clients with other names, or none, go to the group of the rule; if you set neither `group`
        /// nor `members`, they are refused.
        sni: BTreeMap<String, String> [Text(GROUP)] = BTreeMap::new(); r#"{ "www.example.org" = "backends" }"#,
    }
    keys RULE {
        /// Acceptance of clients. Set `false` to keep a rule without serving it. You can change the state at
        /// run time with the admin API.
        enabled: bool = true; "false",
        /// Protocol of clients and members: HTTP (1.x and 2), balanced per request, TCP, balanced per
        /// connection, [FTP](ftp.md), balanced per session, or [UDP](udp.md), balanced per session or datagram.
        protocol: Protocol = Protocol::Http; r#""tcp""#,
        /// Closes open connections when you disable or remove the rule. With `false` open connections continue
        /// until they end.
        terminate_on_disable: bool = false; "true",
        /// TCP and FTP: maximum retries for a client, each at another member, when a connection to a member
        /// fails. UDP: when a member refuses the datagram of a session. For HTTP, set `retries`.
        connect_retries: u32 [Number(0.0, 10.0, "retries")] = 2; "4",
        /// TCP and FTP: lets one side close its direction while the other still sends. With `false` the first
        /// close ends both directions.
        half_close: bool = true; "false",
        /// Networks of proxies which send a PROXY header (version 1 or 2) with the client's address before the
        /// client's first byte. Add `unix` for proxies which connect to Unix sockets in `listen`. The address
        /// in the header then counts as the client's, everywhere: see [behind another
        /// proxy](proxy-protocol.md). Connections from elsewhere, and connections without a valid header, are
        /// closed. Set this key only if all your clients come through such proxies; without the key no header
        /// is expected.
        accept_proxy: Option<Proxies> = None; r#"["10.0.0.0/8"]"#,
        /// Maximum number of client connections (UDP: sessions) at once, of all workers together. Further
        /// connections wait in the listen queue; datagrams of further UDP sessions are dropped.
        max_connections: u32 [Number(1.0, 10_000_000.0, "connections")] = 100_000; "20000",
        /// [Cost](strategies.md#costs) of a request (HTTP), connection (TCP) or session (FTP, UDP) of the rule,
        /// relative to a usual one of the group: strategies count the request as often. Set a cost if your
        /// rules share a group, but bring unequal work.
        cost: Cost = Cost::ONE; "10",
        /// Priority of requests (HTTP) or connections (TCP) when they [wait for a member](overload.md): the
        /// highest number goes first.
        priority: u16 [Number(0.0, 7.0, "")] = PRIORITY; "6",
        /// Other priorities for some clients: a list of tables, see below. The first table with the client's
        /// network applies.
        client_priorities: Vec<ClientPriority> = Vec::new(); r#"[{ networks = ["10.0.0.0/8"], priority = 7 }]"#,
        /// HTTP: authentication of requests, by [users](routing.md#passwords) with passwords or by [a
        /// group](routing.md#forward-authentication) which decides: a table (see below). Set `false` to let
        /// everybody send requests.
        auth: Option<Auth> = None; r#"{ users_file = "/etc/evenkeel/users" }"#,
        /// [Limits](limits.md) for each client: a table, see below.
        limits: Limits = Limits::default(); r#"{ requests = "100/s" }"#,
        /// HTTP: [further limits](limits.md#several-limits) of requests, each with its own key: a list of
        /// tables, see below. A request must be within all limits.
        request_limits: Vec<RequestLimit> = Vec::new(); r#"[{ requests = "10/s", key = "header:X-Api-Key" }]"#,
        /// HTTP: [compression](routing.md#compression) of responses: `true`, or a table, see below. If you
        /// leave the key out, responses pass as members send them.
        compression: Option<Compression> = None; r#"{ codings = ["gzip"] }"#,
        /// Options of HTTP rules: a table, see below.
        http: HttpOptions = HttpOptions::default(); "{ retries = 1 }",
        /// Options of FTP rules: a table, see below.
        ftp: FtpOptions = FtpOptions::default(); r#"{ ports = "20000-20999" }"#,
        /// Options of UDP rules: a table, see below.
        udp: UdpOptions = UdpOptions::default(); r#"{ session = "datagram" }"#,
    }
}

impl Rule {
    /// The users of the rule and of its routes.
    pub fn auths(&self) -> impl Iterator<Item = &Auth> {
        let routes = self.routes.list().iter();
        let routes = routes.filter_map(|route| route.auth.or_rule(None));
        self.auth.iter().chain(routes)
    }

    /// The names of its groups, each once: first the one of clients that ask for no name.
    pub fn group_names(&self) -> Vec<&str> {
        let named = self.sni.values().chain(self.routes.group_names());
        collect_groups(
            &self.group,
            named.chain(self.mirror_groups()).chain(self.asked_groups()),
        )
    }

    /// True if clients get the responses of a group.
    pub fn is_served_by(&self, group: &str) -> bool {
        let mut named = self.sni.values().chain(self.routes.group_names());
        self.group == group || named.any(|name| name == group)
    }

    /// The names of the groups that get copies of requests.
    pub fn mirror_groups(&self) -> impl Iterator<Item = &String> {
        let of_routes = self.routes.list().iter();
        let of_routes = of_routes.filter_map(|route| route.mirror.as_ref());
        let all = self.http.mirror.iter().chain(of_routes);
        all.map(|mirror| &mirror.group)
    }

    /// The names of the groups that are asked whether requests may pass.
    pub fn asked_groups(&self) -> impl Iterator<Item = &String> {
        let asks = |auth: &&Auth| auth.asked_group().is_some();
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
pub fn collect_groups<'a>(own: &'a str, others: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut groups: Vec<&str> = others.map(String::as_str).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|group| *group != own);
    let own = Some(own).filter(|own| !own.is_empty());
    own.into_iter().chain(groups).collect()
}

/// Protocol of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes, unread.
    Tcp,
    /// HTTP of versions 1.x and 2.
    Http,
    /// FTP with its data connections.
    Ftp,
    /// Datagrams of UDP.
    Udp,
}

choice_field!(Protocol,
    "http" => Protocol::Http,
    "tcp" => Protocol::Tcp,
    "ftp" => Protocol::Ftp,
    "udp" => Protocol::Udp;
    foreign::protocol);

/// Place where connections of a TCP rule are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// In the process.
    Proxy,
    /// In the kernel where possible, else in the process.
    Kernel,
}

choice_field!(Forward, "proxy" => Forward::Proxy, "kernel" => Forward::Kernel);

/// Name of a group in `sni`.
const GROUP: Texts = ("the name of a group", is_name);

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
        if table.has_key("routes") {
            let message = "only a rule with `protocol = \"http\"` has routes";
            table.report_problem("routes", message, report);
        }
        for key in HTTP_ONLY.into_iter().filter(|key| table.has_key(key)) {
            let message = "only a rule with `protocol = \"http\"` has this key";
            table.report_problem(key, message, report);
        }
    }
    check_ftp(&rule, table, report);
    check_udp(&mut rule, table, report);
    check_forward(&rule, table, report);
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
        && let Some(http) = table.read_table("http", report)
        && http.has_key("mirror")
    {
        mirror.check_group((&rule.name, Some(&rule.group)), &http, shared, report);
    } else if let Some(mirror) = &rule.http.mirror
        && rule.protocol == Protocol::Http
    {
        // It comes from the defaults.
        mirror.check_group((&rule.name, Some(&rule.group)), table, shared, report);
    }
    if let Some(auth) = rule
        .auth
        .as_ref()
        .filter(|_| rule.protocol == Protocol::Http)
    {
        auth.check_group(&rule.name, table, shared, report);
    }
    let mut labels = HashSet::new();
    let trusts = rule.http.trust_forwarded;
    RequestLimit::check_list(
        &rule.request_limits,
        (None, trusts),
        &mut labels,
        table,
        report,
    );
    rule.routes = routes::read_routes(&facts, &mut labels, table, shared, report);
    if table.has_key("group") {
        if !shared.contains_key(&rule.group) {
            unknown_group(table, "group", &rule.group, shared, report);
        }
        for key in group::keys()
            .filter(|key| table.has_key(key))
            .collect::<Vec<_>>()
        {
            table.note_key(key);
            let home = &rule.group;
            let message = format!("belongs in [group.{home}], because the rule names a group");
            table.report_problem(key, message, report);
        }
        return (rule, None);
    }

    let group = GroupConfig::of_table(table, &defaults.group, report);
    if rule.protocol != Protocol::Http {
        group.warn_of_key(table, report);
    }
    let has_members =
        table.has_key("members") || table.has_key("members_files") || group.agents_may_join;
    if (table.has_key("sni") || table.has_key("routes")) && !has_members {
        for key in group::keys().filter(|key| table.has_key(key)) {
            let message = match table.has_key("sni") {
                true => {
                    "belongs in the groups that `sni` names, because the rule has none of its own"
                }
                false => {
                    "belongs in the groups that the routes name, because the rule has none of its own"
                }
            };
            table.report_problem(key, message, report);
        }
        rule.group.clear();
        let asked = rule.auth.as_ref().and_then(Auth::asked_group);
        if asked == Some(&*rule.name) && !shared.contains_key(&rule.name) {
            let message = "names the rule's own group, and it has none: write `members`";
            table.report_problem("auth", message, report);
        }
        routes::need_own(&rule.routes, table, shared, report);
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
            report.add_problem(span, &group.path(), message, None);
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

/// Rights of a file.
const MODE: Texts = ("rights of a file in octal, as in \"0660\"", |text| {
    let digits = text.strip_prefix('0').unwrap_or(text);
    digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit))
});

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
    let believes = believes.map(|proxies| proxies.contains(None));
    if !rule.listen.iter().any(is_unix) {
        if believes == Some(true) {
            let message = "has \"unix\", but `listen` names no Unix socket";
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

/// Looks at what a rule cannot have if the kernel forwards its connections.
fn check_forward(rule: &Rule, table: &Table<'_>, report: &mut Report<'_>) {
    if rule.forward == Forward::Proxy {
        return;
    }
    let mut refuse = |message: String| table.report_problem("forward", message, report);
    if rule.protocol != Protocol::Tcp {
        return refuse("\"kernel\" is only for a rule with `protocol = \"tcp\"`".into());
    }
    let base = Rule::default();
    let wants = [
        ("tls", rule.tls.is_some()),
        ("sni", table.has_key("sni")),
        ("accept_proxy", rule.accept_proxy.is_some()),
        ("limits", rule.limits != base.limits),
        (
            "max_connections",
            rule.max_connections != base.max_connections,
        ),
        ("half_close = false", !rule.half_close),
        ("terminate_on_disable", rule.terminate_on_disable),
    ];
    for (key, _) in wants.into_iter().filter(|(_, is_wanted)| *is_wanted) {
        refuse(format!(
            "with \"kernel\" the rule cannot have `{key}`, which needs the proxy: remove one of the two"
        ));
    }
    for listen in &rule.listen {
        let why = match listen {
            Listen::Ip(at) if at.ip().is_unspecified() => {
                "stands for all addresses: name each address"
            }
            Listen::Ip(at) if at.port() == 0 => "has no port: name the port",
            Listen::Ip(at) if at.is_ipv4() => continue,
            _ => "is no address of IPv4: use a separate rule for it",
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
    } else if table.has_key("tls") {
        let message = "names are for `tls` here, which ends at the balancer; members of a rule \
                       with `sni` have the certificates";
        table.report_problem("sni", message, report);
    }
    let Some(names) = table.read_table("sni", report) else {
        return;
    };
    if names.is_empty() {
        table.report_problem("sni", "has no name", report);
    }
    let (what, is_server_name) = SERVER_NAMES;
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

/// Reference of the tables.
pub(crate) fn describe_tables() -> [TableDoc; 2] {
    let doc = "A rule: a service for your clients. You choose `NAME` (letters, digits, `-`, `_` and \
               `.`, at most 64).";
    let rule = [
        describe_keys(OWN, Rule::default()),
        describe_keys(RULE, Rule::default()),
        describe_keys(TIMEOUTS, Timeouts::default()),
        describe_keys(RESPONSES, Responses::default()),
    ];
    let http = [describe_keys(HTTP, HttpOptions::default())];
    [
        TableDoc::new("[rule.NAME]", doc, rule),
        TableDoc::new("[rule.NAME.http]", "Options of HTTP rules.", http),
    ]
}
