//! `[group.NAME]`: members that serve together, and how one of them is chosen.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_core::alert::Threshold;
use evenkeel_core::group::{Granularity, GroupSettings};
use evenkeel_core::key::Key;
use evenkeel_core::latency::LatencyEnd;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{Sees, Values, default_kind, least_loaded, round_robin};

use super::chooser::Chooser;
use super::ejection::LIMIT;
use super::health::HealthCheck;
use super::member::MemberConfig;
use super::monitor::Monitor;
use super::protocol::{SendProxy, Source};
use super::reach::{Reach, carries_in_pulses, default_for, default_load};
use super::responses::{RESPONSES, Responses};
use super::sources::{Hosts, SOURCES, Sources};
use super::sticky::Sticky;
use super::tls::ClientTls;
use crate::schema::document::{Span, join};
use crate::schema::field::{Texts, choice_field};
use crate::schema::key::{DAY, HOUR, docs, keys, millis, secs, section};
use crate::schema::networks::Networks;
use crate::schema::reference::{KeyDoc, TableDoc};
use crate::schema::report::Report;
use crate::schema::similar::{similar, unknown};
use crate::schema::table::{AsTable, Table};

section! {
    /// An object group and what keeps it healthy.
    #[derive(Clone, Debug, PartialEq)]
    pub struct GroupConfig {
        /// Unique name.
        name: String = String::new(),
        /// Decisions.
        settings: GroupSettings = GroupSettings::default(),
        /// Which settings the file has, so that no default is chosen for them.
        said: Said = Said::default(),
        /// How its clients reach its members: what is chosen depends on it.
        reach: Reach = Reach::Carried,
        /// Members that are looked up as services, each with the settings that all of its addresses have.
        services: Vec<MemberConfig> = Vec::new(),
        /// Its load sources.
        sources: Sources = Sources::default(),
        /// Answers of the balancer's own, and changes to responses. Those of a rule's own group are the rule's.
        responses: Responses = Responses::default(),
    }
    // Not for `[defaults]`.
    keys OWN {
        /// The members: addresses, or tables with the keys of a member. **Required**, at least one,
        /// unless agents may join. A host name with several addresses becomes one member per
        /// address, and is resolved again regularly; `{ srv = "_http._tcp.web.example.org" }` is the
        /// members that SRV records name.
        members: Vec<MemberConfig> = Vec::new(); r#"["10.0.0.1:80", { address = "10.0.0.2:80", weight = 2 }]"#,
        /// Files with further members, in JSON as Prometheus has it (`file_sd`): the last part of a path
        /// may contain `*`, and a relative one starts at the configuration's folder. They are read
        /// again when they change: see [members.md](members.md#files).
        members_files: Vec<String> [Text(MEMBERS_FILES)] = Vec::new(); r#"["members/*.json"]"#,
        /// Whether agents may add servers to this group that are not in the file, until the agent
        /// signs off or is silent for too long. Any holder of a key of the [`[broker]`](#broker)
        /// can then add members, within `allowed_networks`.
        agents_may_join: bool = false; "true",
    }
    // Whoever its members are.
    keys STRATEGY {
        /// How the next member is chosen: a name, or a table of a name and parameters.
        /// `evenkeel strategies` and [strategies.md](strategies.md) describe each. The default here
        /// is for clients that are not bound; [which default
        /// holds](strategies.md#which-default-holds) lists the others.
        strategy: Values = Values::defaults(default_kind()); r#"{ name = "least_request", choices = 3 }"#,
    }
    // Of a group whose members are addresses.
    keys ADDRESSED {
        /// Maximum number of requests that wait when all members are at their connection limit.
        /// Further ones are refused.
        max_queue: usize [Number(0.0, 1_000_000.0, "requests")] = 1024; "100",
        /// How long requests may wait in that queue before the group counts as
        /// [overloaded](overload.md): when all that are served have waited for longer, over this time
        /// again and 100 ms at least. Then the newest are served first, and those that have waited
        /// for longer are refused, the lowest `priority` first. `"0s"` never does that.
        queue_target: Duration [Time(secs(0), secs(600))] = secs(1); r#""100ms""#,
        /// How often host names of members are resolved again. Without it, when the TTL of the
        /// answer is over, within the bounds of [`[dns]`](#dns). An address that is missing from an
        /// answer gets no new traffic. If it returns within five minutes, or while it still has
        /// requests, it keeps its state: requests, latency and health. Within five minutes there is
        /// no slow start either, so a DNS answer may contain only a part of the addresses each
        /// time. A group keeps the state of the last 1,024 addresses that left.
        dns_interval: Option<Duration> [Time(secs(1), DAY)] = None; r#""1m""#,
        /// Allowed networks of members that agents register, or that host names resolve to. By
        /// default every address is allowed except loopback, link-local, unspecified, multicast and
        /// broadcast addresses and those of cloud metadata; `localhost` may be loopback. Addresses
        /// that the balancer itself listens on are never allowed. An IPv4 address in IPv6 notation
        /// counts as IPv4. Members with an IP address in the file are not restricted.
        allowed_networks: Option<Networks> = None; r#"["10.0.0.0/8", "fd00::/8"]"#,
        /// TLS to the members, of HTTP and TCP rules and of health checks: `true`, which verifies their
        /// certificates with the authorities that the system trusts; a table (see below); or `false`.
        member_tls: Option<ClientTls> = None; r#"{ ca_file = "/etc/evenkeel/members.pem" }"#,
        /// Whether members get a PROXY header with the client's address first, in every connection of
        /// rules and in health checks, and its version: see [to members](proxy-protocol.md#to-members).
        send_proxy: Option<SendProxy> = None; r#""v2""#,
        /// Whose address the connections of rules to members come from: the `balancer`'s or the
        /// `client`'s. The latter needs `CAP_NET_RAW` or `CAP_NET_ADMIN`, and routes: see
        /// [the client's address](proxy-protocol.md#the-clients-address-itself).
        source: Source = Source::Balancer; r#""client""#,
        /// Rules with `protocol = "http"`: whether clients are bound to a member by a
        /// [cookie](routing.md#sticky-clients) of the balancer's, over connections, restarts and
        /// balancers: a table (see below), `true` for one with all defaults. Unless `granularity` says
        /// otherwise, it is `per_session` then.
        sticky: Option<Sticky> = None; r#"{ key_file = "/etc/evenkeel/sticky.key" }"#,
        /// A program of yours that chooses members ([custom strategies](strategies.md#custom-strategies)), asked
        /// over HTTP: a table (see below), `false` for none. The `strategy` decides where the program does not.
        chooser: Option<Chooser> = None; r#"{ url = "http://127.0.0.1:9000/choose", timeout = "5ms" }"#,
        /// Active health check: a table (see below), `true` for one with all defaults, `false` for
        /// none.
        health_check: Option<HealthCheck> = None; r#"{ path = "/healthz" }"#,
        /// Whether the loads of the group's locations are read from their kernels: a table (see
        /// below), `false` for no.
        monitor: Option<Monitor> = None; r#"{ key_file = "/etc/evenkeel/monitor.key" }"#,
    }
}

keys! {
    SETTINGS: GroupSettings {
        /// When the strategy chooses a member: once per client connection, for every request, or
        /// once, and again only when the member's location is under a load alert. A TCP connection
        /// is one request. The default of groups that clusters use, and no rule, is `on_demand`.
        granularity; r#""per_session""#,
        /// Whether decisions use reported loads and alerts.
        adaptive; "false",
        /// HTTP: whether requests wait in the group's queue until the member has room at which they will
        /// be done first, rather than to go to one that has room now and takes longer: see
        /// [late binding](strategies.md#late-binding). Without it, with strategy `adaptive`.
        late_binding; "false",
        /// With granularity `on_demand` and `adaptive = false`: how long a client stays bound to
        /// its member.
        rebind_interval [Time(millis(1), DAY)]; r#""5m""#,
        /// The reported load that the strategy uses, by name or by number. With a `monitor` the
        /// default is `composite`, with strategy `least_utilization` it is `utilization`. If a
        /// location does not report its `utilization`, its `cpu` is used.
        load_id "load"; r#""utilization""#,
        /// With strategy `hash`: what of a request decides about its member. `uri` is path and
        /// query; of several fields or cookies of that name the first one counts. Only a rule with
        /// `protocol = "http"` knows more than the client's address; elsewhere, and for requests
        /// without the field or cookie, members are drawn by weight.
        hash_key; r#""header:X-User""#,
        /// A load report older than this counts as unknown.
        load_max_age [Time(millis(1), HOUR)]; r#""3s""#,
        /// HTTP: moment of a response that ends its latency, for strategies, metrics and `ctl`: arrival of the
        /// `head`, of the `first_byte` of the body, or of the `last_byte`. `auto` is the first byte for
        /// [streams](strategies.md#streams), and the head for other responses. After the head, time in
        /// which the member waits for the client does not count.
        latency; r#""first_byte""#,
        /// Decay time of observed latencies and failures: after this time a third of their weight
        /// is left.
        latency_decay [Time(millis(1), HOUR)]; r#""3s""#,
        /// Minimum latency that a failure counts as, so that a member that fails fast does not
        /// appear fast.
        failure_penalty [Time(secs(0), secs(300))]; r#""2s""#,
        /// Time until a new or returning member gets its full share of traffic; `"0s"` is at once. With
        /// strategy `round_robin`, whose members take equal turns, the default is `"0s"`.
        slow_start [Time(secs(0), HOUR)]; r#""30s""#,
        /// Share of the members that may be down or ejected. Above it health is ignored, and all
        /// members are used. Members that refuse connections, or answer
        /// their health check wrongly, do not count, and are not used.
        panic_threshold [Number(0.0, 1.0, "")]; "0.3",
        /// Load alerts, which make locations shed clients: a table, see below.
        alert; "{ threshold = 0.9 }",
        /// When members that fail are ejected: a table, see below.
        ejection; "{ min_requests = 100 }",
        /// How requests prefer the balancer's own [zone](zones.md), where [`[node]`](#node) says which that is, and
        /// members say theirs: a table (see below), or `false`, with which all zones are alike.
        zones; r#"{ order = ["south"], spill_above = 0.7 }"#,
    }
}

/// What names files with members.
const MEMBERS_FILES: Texts = ("the path of a file; its last part may contain *", |text| {
    let (folder, name) = text.rsplit_once('/').unwrap_or(("", text));
    !name.is_empty() && !text.contains('\0') && !folder.contains('*')
});

choice_field!(LatencyEnd,
    "auto" => LatencyEnd::Auto,
    "head" => LatencyEnd::Head,
    "first_byte" => LatencyEnd::FirstByte,
    "last_byte" => LatencyEnd::LastByte);

choice_field!(Granularity,
    "per_session" => Granularity::PerSession,
    "per_request" => Granularity::PerRequest,
    "on_demand" => Granularity::OnDemand);

/// Which of the settings the file has whose defaults depend on other settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The strategy.
    pub strategy: bool,
    /// The load that it looks at.
    pub load: bool,
    /// When it is asked.
    pub granularity: bool,
    /// The share of the clients that leave in each step of an alert.
    pub move_share: bool,
    /// Time in which a member gets its full share.
    pub slow_start: bool,
}

/// Most clients that leave a location of a forwarded group in a pulse, by default: while the load
/// alert of a server is on, it sends all its clients away.
const PULSE_SHARE: f32 = 0.5;

/// Names of all keys of a group.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    let own = [OWN, STRATEGY, ADDRESSED].into_iter().flatten();
    own.map(|key| key.name)
        .chain(SETTINGS.iter().map(|key| key.name))
        .chain(LIMIT.iter().map(|key| key.name))
        .chain(SOURCES.iter().map(|key| key.name))
}

impl GroupConfig {
    /// Gives members that report their own loads a location each, if their host has other members and nothing in the
    /// group reports loads of hosts: a location has one load, so each report would replace those of the others.
    pub fn separate(&mut self, hosts: &Hosts) {
        if !self.sources.are_of_members() || self.monitor.is_some() {
            return;
        }
        for member in &mut self.members {
            member.is_apart |= hosts.are_shared_by(member);
        }
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
            .partition(|member| member.srv.is_some());
        (group.services, group.members) = (services, members);
        group.read_shared(table, report);
        if group.sticky.is_some() {
            let is_said = group.said.granularity;
            Sticky::bind(&mut group.settings, is_said, table, report);
        }
        group.warn_of_alerts(table, report);
        group.sources.warn_of_twins(table, report);
        group.check_unix(table, report);
        group
    }

    /// Takes what `[defaults]` can have, too.
    pub(crate) fn read_shared(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(ADDRESSED, self, report);
        table.read(SOURCES, &mut self.sources, report);
        self.fill(table, report);
    }

    /// Where it is, for messages.
    pub(crate) fn path(&self) -> String {
        join("group", &self.name)
    }

    /// Chooses the defaults that depend on how clients reach members, for settings that the file
    /// does not have.
    pub fn choose(&mut self, reach: Reach) {
        self.reach = reach;
        if reach == Reach::Redirected && !self.said.granularity {
            // They stay until their quantum is over, or an alert sends them back.
            self.settings.granularity = Granularity::OnDemand;
        }
        // Nobody can count clients that only their cookies know: as those that go to members
        // themselves, they leave bit by bit.
        let by_cookie = self.sticky.is_some() && reach == Reach::Carried;
        if !self.said.strategy {
            let one_by_one = by_cookie && self.settings.granularity == Granularity::OnDemand;
            let reach = if one_by_one { Reach::Redirected } else { reach };
            self.strategy = default_for(&self.settings, reach);
        }
        // Object groups have none, whatever their strategy.
        if reach != Reach::Forwarded && !self.said.slow_start {
            self.settings.slow_start = match *self.strategy.kind() == round_robin::KIND {
                // Who counts turns expects the same number of each member.
                true => Duration::ZERO,
                false => GroupSettings::default().slow_start,
            };
        }
        if reach == Reach::Forwarded && !self.said.move_share {
            // Whoever names a load wants clients to leave until it is lower. A pulse moves the load
            // that clients bring, and this one may have another cause.
            let is_absolute = self.has_absolute_threshold();
            self.settings.alert.move_share = if is_absolute { 1.0 } else { PULSE_SHARE };
        }
        self.settings.alert.pulses = match reach {
            Reach::Carried if by_cookie => false,
            Reach::Carried => carries_in_pulses(&self.settings, self.strategy.kind()),
            // A load alert is all or nothing there: a share of the clients leaves in a pulse,
            // and clients are rebound at a fixed interval in one.
            Reach::Forwarded => self.settings.alert.move_share < 1.0 || !self.settings.adaptive,
            Reach::Redirected => false,
        };
        if !self.said.load {
            self.settings.load_id = match self.monitor {
                // All that kernels know.
                Some(_) => LoadId::COMPOSITE,
                // What the application's monitors say first.
                None if reach == Reach::Forwarded => LoadId::FIRST,
                None => default_load(self.strategy.kind()),
            };
        }
    }

    /// True if alerts go by a load, and not by how far it is above those of other locations.
    fn has_absolute_threshold(&self) -> bool {
        match self.settings.alert.threshold {
            Some(threshold) => matches!(threshold, Threshold::Critical(_)),
            None => {
                let level = self.strategy.try_get(least_loaded::CRITICAL_THRESHOLD.name);
                level.is_some_and(|level| level > 0.0)
            }
        }
    }

    /// Gives it another strategy.
    pub fn set_strategy(&mut self, strategy: Values) {
        self.strategy = strategy;
        self.said.strategy = true;
        self.choose(self.reach);
    }

    /// Its first member that is a Unix socket.
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
                "connections to it come from no address: leave it out",
            ),
            (
                "health_check",
                has_port.unwrap_or(false),
                "it has no other `port`: leave that out",
            ),
            (
                "member_tls",
                nameless.unwrap_or(false),
                "no certificate is for it: name the `server_name` that it has",
            ),
            (
                "agent_check",
                sources.agent_check.is_some(),
                "no agent can be asked at another port",
            ),
            (
                "orca",
                orca.unwrap_or(false),
                "it has no other `port`: leave that out",
            ),
            (
                "prometheus",
                page.unwrap_or(false),
                "it has no `{host}` and `{port}`: write an address",
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
            table.problem(key, message, report);
        }
    }

    /// Warns of alerts without effect: no client is bound to a member for longer than a request.
    pub(crate) fn warn_of_alerts(&self, table: &Table<'_>, report: &mut Report<'_>) {
        let alert = &self.settings.alert;
        let wants = alert.close_idle.is_some() || alert.move_sessions;
        let is_bound = self.settings.granularity != Granularity::PerRequest;
        if table.given("alert") && wants && !is_bound {
            let message = "`close_idle` and `move_sessions` have no effect with granularity \
                           `per_request`: write granularity = \"per_session\" or \"on_demand\"";
            report.warning(&table.span_of("alert"), &table.path_of("alert"), message);
        }
    }

    /// Warns of a key that none of the clients of a TCP rule has.
    pub(crate) fn warn_of_key(&self, table: &Table<'_>, report: &mut Report<'_>) {
        let wants = self.strategy.kind().sees == Sees::Key && self.settings.hash_key != Key::Client;
        if table.given("strategy") && wants {
            let message = "a rule with `protocol = \"tcp\"` sees no requests, so that all are \
                           distributed by weight: write hash_key = \"client\"";
            report.warning(
                &table.span_of("strategy"),
                &table.path_of("strategy"),
                message,
            );
        }
    }
}

/// What does not depend on who its members are.
impl AsTable for GroupConfig {
    const ALLOWED: &'static str = "a table of keys of a group";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(STRATEGY, self, report);
        table.read(SETTINGS, &mut self.settings, report);
        table.read(LIMIT, &mut self.settings.ejection, report);
        self.said.strategy |= table.given("strategy");
        self.said.load |= table.given("load");
        self.said.granularity |= table.given("granularity");
        self.said.move_share |= table.given_in("alert", "move_share");
        self.said.slow_start |= table.given("slow_start");
    }
}

/// What the reference says of the table.
pub(crate) fn tables() -> TableDoc {
    let own = |keys| -> Vec<KeyDoc> { docs(keys, GroupConfig::default()) };
    let doc = "A group of members. All these keys may also be set in `[rule.NAME]`, for the rule's \
               own group; there `maintenance`, `error_pages`, `response_fields` and `cors` are the rule's.";
    let GroupSettings { ejection, .. } = GroupSettings::default();
    let settings = docs(SETTINGS, GroupSettings::default());
    let keys = [
        own(OWN),
        own(STRATEGY),
        settings,
        docs(LIMIT, ejection),
        own(ADDRESSED),
        docs(SOURCES, Sources::default()),
        docs(RESPONSES, Responses::default()),
    ];
    TableDoc::new("[group.NAME]", doc, keys)
}

/// `name`, at `key`, is none of the groups `shared`.
pub(super) fn unknown_group(
    table: &Table<'_>,
    key: &str,
    name: &str,
    shared: &HashMap<String, Span>,
    report: &mut Report<'_>,
) {
    // A thousand rules that name a missing group need no thousand suggestions.
    if report.is_full() {
        return report.omit();
    }
    let mut names: Vec<&str> = shared.keys().map(String::as_str).collect();
    names.sort_unstable();
    let message = unknown("group", similar(name, names.iter().copied()));
    let some: Vec<_> = names
        .iter()
        .take(20)
        .map(|name| format!("{name:?}"))
        .collect();
    let allowed = if some.is_empty() {
        format!("none, as no group is defined: write [group.{name}] with `members`")
    } else {
        some.join(", ")
    };
    let (span, path) = (table.span_of(key), table.path_of(key));
    report.misplaced(&span, &path, message, Some(allowed));
}
