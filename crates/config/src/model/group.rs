//! `[group.NAME]`: members which serve together, and the strategy which chooses one.

use std::time::Duration;

use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::key::Key;
use evenkeel_core::latency::LatencyEnd;
use evenkeel_core::strategy::{RequestNeeds, Values, default_kind};

use super::chooser::Chooser;
use super::ejection::LIMIT;
use super::health::HealthCheck;
use super::inference;
use super::member::{MEMBERS_FILES, MemberConfig};
use super::monitor::Monitor;
use super::protocol::{MemberProtocol, SendProxy, Source};
use super::reach::Reach;
use super::responses::{RESPONSES, Responses};
use super::sources::{Hosts, SOURCES, Sources};
use super::sticky::Sticky;
use super::tls::ClientTls;
use crate::schema::document::join_key;
use crate::schema::field::choice_field;
use crate::schema::key::{DAY, HOUR, describe_keys, keys, millis, secs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::{KeyDoc, TableDoc};
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Group of members, with its strategy, checks and load sources.
    #[derive(Clone, Debug, PartialEq)]
    pub struct GroupConfig {
        /// Unique name.
        name: String = String::new(),
        /// Settings of decisions.
        settings: GroupSettings = GroupSettings::default(),
        /// Settings found in the file, so that no default is chosen for them.
        said: Said = Said::default(),
        /// Path of clients to the members; defaults depend on it.
        reach: Reach = Reach::Carried,
        /// Members found as services in DNS or in Kubernetes, each with the settings of all its addresses.
        services: Vec<MemberConfig> = Vec::new(),
        /// Load sources of the group.
        sources: Sources = Sources::default(),
        /// Answers of the balancer's own, and changes to responses. In a rule's own group, the keys belong to
        /// the rule.
        responses: Responses = Responses::default(),
    }
    // Not for `[defaults]`.
    keys OWN {
        /// Members: addresses, or tables with the keys of a member. A host name with several addresses becomes
        /// one member per address, and is resolved again regularly; `{ srv = "_http._tcp.web.example.org" }`
        /// stands for the members named in SRV records, and `{ kubernetes = "default/web:http" }` for the
        /// endpoints of a service of [Kubernetes](kubernetes.md), or `{ kubernetes = "default/app=web:80" }` for
        /// pods with labels. **Required**, at least one, unless agents may join.
        members: Vec<MemberConfig> = Vec::new(); r#"["10.0.0.1:80", { address = "10.0.0.2:80", weight = 2 }]"#,
        /// Files with further members, in the JSON format of Prometheus (`file_sd`). The last part of a path
        /// may contain `*`; a relative path starts at the configuration's folder. Use files if another program
        /// knows your members: the balancer reads a file again when it changes. See
        /// [members.md](members.md#files).
        members_files: Vec<String> [Text(MEMBERS_FILES)] = Vec::new(); r#"["members/*.json"]"#,
        /// Lets agents add servers which are not in the file, until the agent signs off or is silent for too
        /// long. Set `true` only if you trust every holder of a key of the [`[broker]`](#broker): each holder
        /// can then add members, within `allowed_networks`.
        agents_may_join: bool = false; "true",
    }
    // Whoever its members are.
    keys STRATEGY {
        /// Strategy which chooses the next member: a name, or a table of a name and parameters. For help with
        /// your choice run `evenkeel strategies`, or see [strategies.md](strategies.md). The default here is
        /// for clients without a binding; [which default holds](strategies.md#which-default-holds) lists the
        /// others.
        strategy: Values = Values::defaults(default_kind()); r#"{ name = "least_request", choices = 3 }"#,
    }
    // Of a group whose members are addresses.
    keys ADDRESSED {
        /// Maximum number of waiting requests when all members are at their connection limit. Further requests
        /// are refused.
        max_queue: usize [Number(0.0, 1_000_000.0, "requests")] = 1024; "100",
        /// Waiting time above which the group's queue counts as [overloaded](overload.md). The queue is
        /// overloaded when every served request has waited for longer, during a time of the same length (at
        /// least 100 ms). Then the newest requests are served first, and requests which have waited for longer
        /// are refused, the lowest `priority` first. Set a target above the waiting time of your usual bursts,
        /// or `"0s"` to turn the detection off.
        queue_target: Duration [Time(secs(0), secs(600))] = secs(1); r#""100ms""#,
        /// Time between two resolutions of a member's host name. By default the TTL of the answer, within the
        /// bounds of [`[dns]`](#dns). An address missing from an answer gets no new traffic. If the address
        /// returns within five minutes, or while it still has requests, it keeps its state: requests, latency
        /// and health. Within five minutes there is no slow start either, so your DNS server may answer with
        /// only a part of the addresses each time. A group keeps the state of the last 1,024 addresses which
        /// left.
        dns_interval: Option<Duration> [Time(secs(1), DAY)] = None; r#""1m""#,
        /// Allowed networks for members registered by agents, found by resolving host names, or read from
        /// Kubernetes. By default
        /// every address is allowed except loopback, link-local, unspecified, multicast and broadcast addresses
        /// and addresses of cloud metadata; `localhost` may be loopback. Addresses on which the balancer itself
        /// listens are never allowed. An IPv4 address in IPv6 notation counts as IPv4. Members with an IP
        /// address in the file are not restricted. Set this list to your servers' networks if you do not
        /// control the names or the agents.
        allowed_networks: Option<Networks> = None; r#"["10.0.0.0/8", "fd00::/8"]"#,
        /// TLS to the members, for HTTP and TCP rules and for health checks: `true`, `false`, or a table (see
        /// below). With `true`, certificates are verified with the authorities trusted by your system. Set a
        /// table if your members' certificates come from an authority of your own.
        member_tls: Option<ClientTls> = None; r#"{ ca_file = "/etc/evenkeel/members.pem" }"#,
        /// Protocol of the members, for HTTP rules and for health checks of type `http`: `http1`, `h2` or `auto`, as
        /// [`member_protocol`](#rulenamehttp) of rules. By default the protocol that each rule sets. Set the protocol
        /// here if the groups of a rule have members with different protocols.
        member_protocol: Option<MemberProtocol> = None; r#""h2""#,
        /// PROXY header with the client's address, sent first in every connection of rules and health checks,
        /// and the version of the header. Set a version if your members accept the PROXY protocol and need the
        /// client's address; see [to members](proxy-protocol.md#to-members).
        send_proxy: Option<SendProxy> = None; r#""v2""#,
        /// Source address of the connections of rules to members: the `balancer`'s or the `client`'s. For
        /// `client` you need `CAP_NET_RAW` or `CAP_NET_ADMIN`, and routes: see [the client's
        /// address](proxy-protocol.md#the-clients-address-itself). A rule with `forward = "kernel"` then needs
        /// `return_path = "route"`.
        source: Source = Source::Balancer; r#""client""#,
        /// Rules with `protocol = "http"`: binding of clients to a member by a
        /// [cookie](routing.md#sticky-clients) of the balancer's. The binding outlasts connections, restarts
        /// and balancers. Set `true` for all defaults, or a table (see below). Unless you set `granularity`,
        /// `sticky` makes it `per_session`.
        sticky: Option<Sticky> = None; r#"{ key_file = "/etc/evenkeel/sticky.key" }"#,
        /// Program of yours which chooses members ([custom strategies](strategies.md#custom-strategies)), asked
        /// over HTTP: a table (see below), or `false` for none. The `strategy` decides when the program does
        /// not.
        chooser: Option<Chooser> = None; r#"{ url = "http://127.0.0.1:9000/choose", timeout = "5ms" }"#,
        /// Active health check: a table (see below), `true` for all defaults, `false` for none. Set a check if
        /// a failed member must be found before your clients' requests fail.
        health_check: Option<HealthCheck> = None; r#"{ path = "/healthz" }"#,
        /// Reading of the loads of the group's locations from the kernels of their machines: a table (see
        /// below), or `false` for none.
        monitor: Option<Monitor> = None; r#"{ key_file = "/etc/evenkeel/monitor.key" }"#,
    }
}

keys! {
    SETTINGS: GroupSettings {
        /// Moment of the choice of a member: once per client connection (`per_session`), for every request
        /// (`per_request`), or once, and again only when the member's location is under a load alert
        /// (`on_demand`). A TCP connection is one request. For groups used by clusters and by no rule, the
        /// default is `on_demand`.
        granularity; r#""per_session""#,
        /// Use of reported loads and alerts in decisions. Set `false` if you do not want loads to influence the
        /// choice of a member.
        adaptive; "false",
        /// HTTP: lets requests wait in the group's queue for the member which will finish the request first,
        /// although another, slower member has room now. See [late binding](strategies.md#late-binding). By
        /// default on with strategy `adaptive` only.
        late_binding; "false",
        /// With granularity `on_demand` and `adaptive = false`: time for which a client stays bound to its
        /// member.
        rebind_interval [Time(millis(1), DAY)]; r#""5m""#,
        /// Reported load for the strategy, by name or by number. Set the load which is the bottleneck of your
        /// members. With a `monitor` the default is `composite`, with strategy `least_utilization` the default
        /// is `utilization`. If a location does not report its `utilization`, its `cpu` is used.
        load_id "load"; r#""utilization""#,
        /// With strategy `hash`: part of a request which decides about the member. `uri` is path and query; if
        /// there are several fields or cookies of the name, the first counts. You can use more than the
        /// client's address only in a rule with `protocol = "http"`. In other rules, and for requests without
        /// the field or cookie, members are drawn by weight.
        hash_key; r#""header:X-User""#,
        /// Age above which a load report counts as unknown. Set a time well above the time between two of your
        /// reports.
        load_max_age [Time(millis(1), HOUR)]; r#""3s""#,
        /// HTTP: moment of a response which ends its latency, for strategies, metrics and `ctl`: arrival of the
        /// `head`, of the `first_byte` of the body, or of the `last_byte`. `auto` is the first byte for
        /// [streams](strategies.md#streams), and the head for other responses. After the head, time in which
        /// the member waits for the client does not count.
        latency; r#""first_byte""#,
        /// Decay time of observed latencies and failures: after this time a third of their weight is left.
        /// Shorten the time if your members change fast.
        latency_decay [Time(millis(1), HOUR)]; r#""3s""#,
        /// Minimum latency of a failure in the statistics, so that a member which fails fast does not appear
        /// fast.
        failure_penalty [Time(secs(0), secs(300))]; r#""2s""#,
        /// Time until a new or returning member gets its full share of traffic; `"0s"` is at once. Set a longer
        /// time if your members need to warm up. With strategy `round_robin`, whose members take equal turns,
        /// the default is `"0s"`.
        slow_start [Time(secs(0), HOUR)]; r#""30s""#,
        /// Share of the members which may be down or ejected. Above this share the balancer ignores health and
        /// uses all members. Members which refuse connections, or answer their health check wrongly, do not
        /// count, and are not used.
        panic_threshold [Number(0.0, 1.0, "")]; "0.3",
        /// Load alerts, which make locations shed clients: a table, see below.
        alert; "{ threshold = 0.9 }",
        /// Ejection of members which fail: a table, see below.
        ejection; "{ min_requests = 100 }",
        /// Settings of the strategy `inference`: a table, see below.
        inference; "{ max_prompt = \"256KiB\" }",
        /// Preference of requests for the balancer's own [zone](zones.md): a table (see below), or `false` to
        /// treat all zones alike. You set the balancer's zone in [`[node]`](#node), and the zones of members at
        /// the members.
        zones; r#"{ order = ["south"], spill_above = 0.7 }"#,
    }
}

choice_field!(LatencyEnd,
    "auto" => LatencyEnd::Auto,
    "head" => LatencyEnd::Head,
    "first_byte" => LatencyEnd::FirstByte,
    "last_byte" => LatencyEnd::LastByte);

choice_field!(Granularity,
    "per_session" => Granularity::PerSession,
    "per_request" => Granularity::PerRequest,
    "on_demand" => Granularity::OnDemand);

/// Settings with context-dependent defaults that the file has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The strategy.
    pub strategy: bool,
    /// The load that it looks at.
    pub load: bool,
    /// Moment of the choice.
    pub granularity: bool,
    /// The share of the clients that leave in each step of an alert.
    pub move_share: bool,
    /// Time in which a member gets its full share.
    pub slow_start: bool,
}

/// Names of all keys of a group.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    let own = [OWN, STRATEGY, ADDRESSED].into_iter().flatten();
    own.map(|key| key.name)
        .chain(SETTINGS.iter().map(|key| key.name))
        .chain(LIMIT.iter().map(|key| key.name))
        .chain(SOURCES.iter().map(|key| key.name))
}

impl GroupConfig {
    /// Gives the members of the file a location each, as [`GroupConfig::separate_members`] does.
    pub(super) fn separate(&mut self, hosts: &Hosts) {
        let mut members = std::mem::take(&mut self.members);
        self.separate_members(hosts, &mut members);
        self.members = members;
    }

    /// Gives members of the group that report their own loads a location each, if their host has other members and nothing
    /// in the group reports loads of hosts: a location has one load, so each report would replace those of the others.
    pub fn separate_members<'m>(
        &self,
        hosts: &Hosts,
        members: impl IntoIterator<Item = &'m mut MemberConfig>,
    ) {
        if self.has_loads_of_members() {
            for member in members {
                member.is_apart |= hosts.are_shared_by(member);
            }
        }
    }

    /// True if members report their own loads, and nothing in the group reports loads of hosts.
    fn has_loads_of_members(&self) -> bool {
        self.sources.are_of_members() && self.monitor.is_none()
    }

    /// True if [`GroupConfig::separate`] changes the group.
    pub(super) fn is_separated_by(&self, hosts: &Hosts) -> bool {
        let is_new = |member: &MemberConfig| !member.is_apart && hosts.are_shared_by(member);
        self.has_loads_of_members() && self.members.iter().any(is_new)
    }

    /// True if the group names files, by paths that may start at the folder of the configuration.
    pub(super) fn has_paths(&self) -> bool {
        let Sources {
            orca, prometheus, ..
        } = &self.sources;
        let has_tls = self.member_tls.is_some() || orca.is_some() || prometheus.is_some();
        has_tls || self.sticky.is_some() || !self.members_files.is_empty()
    }

    /// A group with all defaults.
    pub fn new(name: &str, members: Vec<MemberConfig>) -> Self {
        let name = name.into();
        GroupConfig {
            name,
            members,
            ..GroupConfig::default()
        }
    }

    /// The group that `table` describes, with its name.
    pub(crate) fn of_table(
        table: &mut Table<'_>,
        defaults: &GroupConfig,
        report: &mut Report<'_>,
    ) -> Self {
        let name = table.name();
        let mut group = GroupConfig {
            name,
            ..defaults.clone()
        };
        table.read(OWN, &mut group, report);
        let (services, members) = { std::mem::take(&mut group.members) }
            .into_iter()
            .partition(|member| member.srv.is_some() || member.kubernetes.is_some());
        (group.services, group.members) = (services, members);
        group.services.shrink_to_fit();
        group.members.shrink_to_fit();
        group.read_shared(table, report);
        if group.sticky.is_some() {
            let is_said = group.said.granularity;
            Sticky::set_binding(&mut group.settings, is_said, table, report);
        }
        group.warn_of_alerts(table, report);
        inference::warn_of_strategy(group.reads_bodies(), table, report);
        group.sources.warn_of_twins(table, report);
        group.check_unix(table, report);
        group
    }

    /// Reads a group with a table of its own, which needs members.
    pub(crate) fn read_whole(
        table: &mut Table<'_>,
        defaults: &GroupConfig,
        report: &mut Report<'_>,
    ) -> Self {
        let mut group = GroupConfig::of_table(table, defaults, report);
        group.responses.read(table, report);
        if !group.agents_may_join && group.members_files.is_empty() {
            table.require("members", report);
        }
        group
    }

    /// Takes what `[defaults]` can have, too.
    pub(crate) fn read_shared(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ADDRESSED, self, report);
        table.read(SOURCES, &mut self.sources, report);
        self.fill(table, report);
    }

    /// Path in the configuration, for messages.
    pub(crate) fn path(&self) -> String {
        join_key("group", &self.name)
    }

    /// True if the group's strategy reads the bodies of requests.
    pub fn reads_bodies(&self) -> bool {
        self.strategy.kind().request_needs == RequestNeeds::Body
    }

    /// First member of the group that is a Unix socket.
    pub(crate) fn unix(&self) -> Option<&MemberConfig> {
        self.members.iter().find(|member| member.unix().is_some())
    }

    /// Looks at what a Unix socket does not have: an address and a port.
    fn check_unix(&self, table: &Table<'_>, report: &mut Report<'_>) {
        let Some(member) = self.unix() else {
            return;
        };
        let sources = &self.sources;
        let has_port = self.health_check.as_ref().map(|check| check.port.is_some());
        let nameless = self
            .member_tls
            .as_ref()
            .map(|tls| tls.server_name.is_none());
        let orca = sources.orca.as_ref();
        let orca = orca.and_then(|orca| Some(orca.out_of_band.as_ref()?.port.is_some()));
        let page = sources
            .prometheus
            .as_ref()
            .map(|page| page.url.needs_address());
        let monitor = self.monitor.as_ref();
        let monitor = monitor.map(|monitor| monitor.path.is_none() && monitor.address.is_none());
        let of_addresses = [
            (
                "source",
                self.source == Source::Client,
                "connections to a socket come from no address: remove `source`",
            ),
            (
                "health_check",
                has_port.unwrap_or(false),
                "a socket has no other `port`: remove `port`",
            ),
            (
                "member_tls",
                nameless.unwrap_or(false),
                "no certificate is for a socket: set `server_name` to the name in the certificate",
            ),
            (
                "agent_check",
                sources.agent_check.is_some(),
                "no agent can be asked at another port",
            ),
            (
                "orca",
                orca.unwrap_or(false),
                "a socket has no other `port`: remove `port`",
            ),
            (
                "prometheus",
                page.unwrap_or(false),
                "a socket has no `{host}` and `{port}`: write an address",
            ),
            (
                "monitor",
                monitor.unwrap_or(false),
                "its kernel cannot be asked without an `address`",
            ),
        ];
        for (key, _, why) in of_addresses
            .into_iter()
            .filter(|(_, is_wrong, _)| *is_wrong)
        {
            let message = format!("member {} is a Unix socket: {why}", member.name());
            table.report_problem(key, message, report);
        }
    }

    /// Warns of alerts without effect: no client is bound to a member for longer than a request.
    pub(crate) fn warn_of_alerts(&self, table: &Table<'_>, report: &mut Report<'_>) {
        let alert = &self.settings.alert;
        let wants = alert.close_idle.is_some() || alert.move_sessions;
        let is_bound = self.settings.granularity != Granularity::PerRequest;
        if table.has_key("alert") && wants && !is_bound {
            let message = "`close_idle` and `move_sessions` have no effect with granularity \
                           `per_request`: write granularity = \"per_session\" or \"on_demand\"";
            report.add_warning(&table.span_of("alert"), &table.path_of("alert"), message);
        }
    }

    /// Warns of a key that none of the clients of a TCP rule has.
    pub(crate) fn warn_of_key(&self, table: &Table<'_>, report: &mut Report<'_>) {
        let wants = self.strategy.kind().request_needs == RequestNeeds::Key
            && self.settings.hash_key != Key::Client;
        if table.has_key("strategy") && wants {
            let message = "a rule with `protocol = \"tcp\"` sees no requests, so that all are \
                           distributed by weight: write hash_key = \"client\"";
            report.add_warning(
                &table.span_of("strategy"),
                &table.path_of("strategy"),
                message,
            );
        }
    }
}

/// Settings that do not depend on the members.
impl AsTable for GroupConfig {
    const ALLOWED: &'static str = "a table of keys of a group";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(STRATEGY, self, report);
        table.read(SETTINGS, &mut self.settings, report);
        table.read(LIMIT, &mut self.settings.ejection, report);
        self.said.strategy |= table.has_key("strategy");
        self.said.load |= table.has_key("load");
        self.said.granularity |= table.has_key("granularity");
        self.said.move_share |= table.given_in("alert", "move_share");
        self.said.slow_start |= table.has_key("slow_start");
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let own = |keys| -> Vec<KeyDoc> { describe_keys(keys, GroupConfig::default()) };
    let doc = "A group of members. You may set all these keys in `[rule.NAME]`, too, for the rule's \
               own group; there, keys which rules have themselves, as `error_pages`, are the rule's.";
    let GroupSettings { ejection, .. } = GroupSettings::default();
    let settings = describe_keys(SETTINGS, GroupSettings::default());
    let keys = [
        own(OWN),
        own(STRATEGY),
        settings,
        describe_keys(LIMIT, ejection),
        own(ADDRESSED),
        describe_keys(SOURCES, Sources::default()),
        describe_keys(RESPONSES, Responses::default()),
    ];
    TableDoc::new("[group.NAME]", doc, keys)
}
