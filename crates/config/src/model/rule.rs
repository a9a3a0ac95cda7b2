//! `[rule.NAME]`: services that clients connect to.

use std::collections::BTreeMap;

use evenkeel_core::address::Address as Listen;
use evenkeel_core::cost::Cost;

use super::auth::Auth;
use super::compression::Compression;
use super::ftp::FtpOptions;
use super::http_options::{HTTP, HttpOptions};
use super::limits::{Limits, RequestLimit};
use super::name_set::NameSet;
use super::priority::{ClientPriority, PRIORITY};
use super::responses::{RESPONSES, Responses};
use super::route::Routes;
use super::timeouts::{TIMEOUTS, Timeouts};
use super::tls::{DEEP_NAMES, Tls, UNNAMED};
use super::udp::UdpOptions;
use crate::schema::field::{FileName, Texts, choice_field};
use crate::schema::foreign;
use crate::schema::key::{describe_keys, section};
use crate::schema::networks::Proxies;
use crate::schema::reference::TableDoc;
use crate::schema::table::is_name;

/// Connections of a rule at once, if the file does not say so. The kernel's tables have limits of their own.
const MAX_CONNECTIONS: u32 = 100_000;

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
        /// TCP and UDP: place where the rule's connections or sessions are forwarded. With `kernel` a program in
        /// the kernel forwards them at a fraction of the cost, where your members' answers come back through the
        /// balancer: see [forwarding in the kernel](kernel-forwarding.md). The proxy serves all others.
        forward: Forward = Forward::Proxy; r#""kernel""#,
        /// Way of the members' answers with `forward = "kernel"`. With `route` members see the clients'
        /// addresses, and need a route to your clients through the balancer. With `nat` members see an
        /// address of the balancer, so their routes need no change. With `direct` members have the rule's address,
        /// and answer your clients without the balancer. With `tunnel` (TCP only) members do the same, and may be behind
        /// routers: see [return paths](kernel-forwarding.md#return-paths).
        return_path: ReturnPath = ReturnPath::Route; r#""nat""#,
        /// Other balancers have the rule's address, too, and a router spreads your clients' packets over the balancers
        /// (ECMP). A connection continues when its packets come to another balancer: see [several
        /// balancers](kernel-forwarding.md#several-balancers). Needs `return_path = "tunnel"`, and the same members in
        /// all balancers.
        anycast: bool = false; "true",
        /// TLS between clients and the rule: a table, see below. Without the table, clients connect without
        /// encryption.
        tls: Option<Tls> = None; r#"{ certificates = "/etc/evenkeel/www.pem" }"#,
        /// TCP: groups by the name requested by a client (SNI). Without `tls`, clients speak TLS with the members:
        /// [pass-through](tls.md#pass-through). With `tls`, TLS of clients ends at the balancer. Begin a name with `*.` to match all names right below the
        /// domain, or with `**.` to match all names below the domain at any depth. Clients with other names, or none, go to the group of the rule; if you set neither `group`
        /// nor `members`, they are refused.
        sni: BTreeMap<String, String> [Text(GROUP)] = BTreeMap::new(); r#"{ "www.example.org" = "backends" }"#,
        /// TCP with `tls` and `sni`: names of `sni` with TLS between clients and members, while TLS of all other
        /// clients ends at the balancer. Write `*` for clients of the rule's group: see
        /// [both at one port](tls.md#both-at-one-port).
        pass_through: Vec<String> [Text(PASSED)] = Vec::new(); r#"["www.example.org"]"#,
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
        /// client's first byte. Add `unix` for proxies which connect to Unix sockets in `listen`, or `self` for
        /// processes of the balancer's own user alone. The address in the header then counts as the client's,
        /// everywhere: see [behind another proxy](proxy-protocol.md). Connections from elsewhere, and
        /// connections without a valid header, are closed. Set this key only if all your clients come through such proxies; without the key no header
        /// is expected.
        accept_proxy: Option<Proxies> = None; r#"["10.0.0.0/8"]"#,
        /// Maximum number of client connections (UDP: sessions) at once, of all workers together. Further
        /// connections wait in the listen queue; datagrams of further UDP sessions are dropped. With
        /// `forward = "kernel"`, a number other than the default [counts connections of the kernel,
        /// too](kernel-forwarding.md#limits-of-a-rule).
        max_connections: u32 [Number(1.0, 10_000_000.0, "connections")] = MAX_CONNECTIONS; "20000",
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
        let routes = self.routes.list_special().iter();
        let routes = routes.filter_map(|route| route.auth.or_rule(None));
        self.auth.iter().chain(routes)
    }

    /// True if `max_connections` is for connections of the kernel, too.
    pub fn limits_kernel(&self) -> bool {
        self.forward == Forward::Kernel && self.max_connections != MAX_CONNECTIONS
    }

    /// True if a limit counts connections of the kernel together with those of the proxy.
    pub fn counts_with_kernel(&self) -> bool {
        let limits = &self.limits;
        let has_limits = limits.connections.is_some() || limits.new_connections.is_some();
        self.limits_kernel() || (self.forward == Forward::Kernel && has_limits)
    }

    /// The names of its groups, each once: first the one of clients that ask for no name.
    pub fn group_names(&self) -> Vec<&str> {
        let named = self.sni.values().chain(self.routed_groups());
        collect_groups(
            &self.group,
            named.chain(self.mirror_groups()).chain(self.asked_groups()),
        )
    }

    /// Returns the names of clients whose TLS passes through to members although the rule ends TLS. The name `*` stands
    /// for clients that go to the group of the rule.
    pub fn passed_names(&self) -> NameSet {
        self.pass_through.iter().collect()
    }

    /// Returns the names of the groups whose clients' TLS passes through although the rule ends TLS, each once and in
    /// order: those of the clients with the names `passed`.
    pub fn passed_groups(&self, passed: &NameSet) -> Vec<&str> {
        let named = { self.sni.iter() }.filter(|(name, _)| passed.contains(name));
        let own = Some(&self.group).filter(|_| passed.contains(UNNAMED));
        let mut groups: Vec<&str> = named.map(|(_, group)| &**group).collect();
        groups.extend(own.map(|group| &**group).filter(|group| !group.is_empty()));
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// The names of the groups that routes or models lead to.
    pub fn routed_groups(&self) -> impl Iterator<Item = &String> {
        let by_model = self.http.models.group_names();
        self.routes.group_names().iter().chain(by_model)
    }

    /// Names of models whose requests go to `group`, some of them perhaps several times.
    pub fn models_of_group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a str> {
        let of_routes = self.routes.list_special().iter();
        let of_routes = of_routes.filter_map(|route| route.models.as_ref());
        let all = std::iter::once(&self.http.models).chain(of_routes);
        let all = all.flat_map(|models| &models.0);
        let all = all.filter(move |models| models.groups.iter().any(|name| name == group));
        all.map(|models| &*models.name)
    }

    /// True if clients get the responses of a group.
    pub fn is_served_by(&self, group: &str) -> bool {
        // Thousands of routes may lead to as many groups; their names are in order.
        let by_routes = self.routes.group_names();
        let by_model = self.http.models.group_names();
        self.group == group
            || by_routes
                .binary_search_by(|name| name.as_str().cmp(group))
                .is_ok()
            || self.sni.values().chain(by_model).any(|name| name == group)
    }

    /// The names of the groups that get copies of requests.
    pub fn mirror_groups(&self) -> impl Iterator<Item = &String> {
        let of_routes = self.routes.list_special().iter();
        let of_routes = of_routes.flat_map(|route| route.named_mirrors());
        let of_rule = self.http.mirror.iter().flat_map(|mirrors| &mirrors.0);
        of_rule.chain(of_routes).map(|mirror| &mirror.group)
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

/// Place where connections of a TCP rule, or sessions of a UDP rule, are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// In the process.
    Proxy,
    /// In the kernel where possible, else in the process.
    Kernel,
}

choice_field!(Forward, "proxy" => Forward::Proxy, "kernel" => Forward::Kernel);

/// Way of members' answers to clients whose connections the kernel forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnPath {
    /// By the members' route to the client.
    Route,
    /// To an address of the balancer, which members see instead of the client's.
    Nat,
    /// From the rule's address, which members have, too, to the client without the balancer.
    Direct,
    /// Answers of members that get packets of clients by a tunnel, likewise.
    Tunnel,
}

impl ReturnPath {
    /// True if members have the rule's address, and answer clients without the balancer.
    pub fn is_direct(self) -> bool {
        matches!(self, ReturnPath::Direct | ReturnPath::Tunnel)
    }
}

choice_field!(ReturnPath,
    "route" => ReturnPath::Route,
    "nat" => ReturnPath::Nat,
    "direct" => ReturnPath::Direct,
    "tunnel" => ReturnPath::Tunnel);

/// Name of a group in `sni`.
const GROUP: Texts = ("the name of a group", is_name);

/// Name in `pass_through`.
const PASSED: Texts = (
    r#"a name of `sni`, or "*" for clients of the rule's group"#,
    |text| text == UNNAMED || (DEEP_NAMES.1)(text),
);

/// Rights of a file.
const MODE: Texts = ("rights of a file in octal, as in \"0660\"", |text| {
    let digits = text.strip_prefix('0').unwrap_or(text);
    digits.len() == 3 && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit))
});

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
