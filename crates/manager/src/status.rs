//! Status that administrators see: rules, groups, members and loads as plain data.
//!
//! Field names are those of the admin API's JSON. Seconds and milliseconds are in the names; values that are
//! not known are `null`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use evenkeel_control::opinion::CountedReport;
use evenkeel_core::member::Weight;
use evenkeel_core::time::Instant;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config;
pub use crate::engine_status::EngineStatus;
use crate::inputs::{AdminState, AlertSetting};

/// A word from a fixed set; owned only in clients, which read it from JSON.
pub type Word = Cow<'static, str>;

/// Status of everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Status {
    /// Number of this process's configuration that is running, from 1; 0 is none yet.
    pub generation: u64,
    /// Result of the last start or reload.
    pub last_reload: Option<Reload>,
    /// Parts of the configuration that have no effect until the process is restarted.
    #[serde(default)]
    pub needs_restart: Vec<String>,
    /// Rules in the order of the file.
    pub rules: Vec<RuleStatus>,
    /// Groups in the order of the file.
    pub groups: Vec<GroupStatus>,
    /// Locations by name.
    pub locations: Vec<LocationStatus>,
    /// Addresses where clients negotiate.
    #[serde(default)]
    pub negotiator: Vec<SocketAddr>,
    /// Clusters that clients negotiate for, in the order of the file.
    #[serde(default)]
    pub clusters: Vec<ClusterStatus>,
    /// Network interfaces that the configuration names for native XDP, with what forwards there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xdp_interfaces: Vec<InterfaceStatus>,
    /// Network interfaces at which a filter of tc forwards, or the kernel does not, and no program at tcx, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tc_interfaces: Vec<InterfaceStatus>,
    /// Errors of the kernel for single entries of forwarding; missing if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_errors: Option<EntryErrorStatus>,
    /// Shares of open files and memory; `null` if nobody listens for rules.
    #[serde(default)]
    pub limits: Option<LimitsStatus>,
}

/// Network interface at which the kernel forwards, or is to forward by native XDP.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// Name of the interface.
    pub name: String,
    /// `xdp`, `tc` if native XDP, or tcx, cannot be had there, or `proxy` if the kernel refuses the program there.
    pub program: String,
    /// Reason why another program, or the proxy, serves there.
    pub reason: Option<String>,
}

/// Errors of the kernel for single entries of forwarding.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct EntryErrorStatus {
    /// Numbers of errors by kind of entry.
    pub counts: BTreeMap<String, u64>,
    /// Last error; `null` without one.
    pub last: Option<String>,
}

/// Resources that the process may use, and those that are kept back.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct LimitsStatus {
    /// Files that the process may open.
    pub files: usize,
    /// Files kept back for health checks, load reports, the admin API and reloads.
    pub files_reserved: usize,
    /// Most clients of rules at a time: what the rest of the files and of the memory allows.
    pub clients: usize,
    /// Number of clients of rules now.
    pub clients_open: usize,
    /// Memory that the process may have, in bytes.
    #[serde(default)]
    pub memory: u64,
    /// Memory kept back for health checks, load reports, the admin API and reloads.
    #[serde(default)]
    pub memory_reserved: u64,
}

/// A cluster that clients negotiate for.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Name of the cluster.
    pub name: String,
    /// Name of the group that serves it.
    pub group: String,
    /// The site's names.
    pub hosts: Vec<String>,
    /// Classes: that of clients that name none, and then the classes in the order of the file.
    pub classes: Vec<ClassStatus>,
}

/// A client class of a cluster.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ClassStatus {
    /// Name; empty for those who name none.
    pub name: String,
    /// Shortest and longest quantum.
    pub quantum_seconds: (u64, u64),
    /// Mean response time that its servers must have, if none is asked for.
    pub response_time_ms: Option<f64>,
    /// Largest utilisation at which a server takes it.
    pub max_utilization: Option<f32>,
    /// Negotiations of this process, by how they ended.
    pub negotiations: BTreeMap<Word, u64>,
}

/// A start or reload.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Reload {
    /// Time of the start or reload, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// Error of the configuration; `null` if it was applied.
    pub error: Option<String>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Service name.
    pub name: String,
    /// True if the rule accepts clients now.
    pub enabled: bool,
    /// True if the rule is in maintenance now.
    #[serde(default)]
    pub maintenance: bool,
    /// `tcp` or `http`.
    pub protocol: Word,
    /// Addresses where the rule listens.
    pub listen: Vec<String>,
    /// Name of its group; empty if it has groups by name only.
    pub group: String,
    /// Groups by the names that clients ask for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sni: BTreeMap<String, String>,
    /// Limits of the rule for each client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<RuleLimitStatus>,
    /// The groups of its routes, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routed: Vec<String>,
    /// The groups that get copies of its requests, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// The groups that are asked whether its requests may pass, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<String>,
    /// With `forward = "kernel"`: `kernel` if the kernel forwards connections now, else `proxy` and the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<String>,
}

/// A limit for each client of a rule.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RuleLimitStatus {
    /// Key of the limit in the configuration; for one of `request_limits` its name.
    pub limit: Word,
    /// Limits of requests: so many in a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Limits of requests: key by which clients are counted together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Clients that are remembered.
    pub clients: usize,
    /// Requests or connections refused.
    pub refused: u64,
    /// Number of times that a client was forgotten, or not remembered, since the table had no place.
    pub lifted: u64,
}

impl RuleStatus {
    /// The names of its groups, each once: first the one of clients that ask for no name.
    pub fn group_names(&self) -> Vec<&str> {
        let named = self.sni.values().chain(&self.routed);
        let named = named.chain(&self.mirrors).chain(&self.asks);
        config::collect_groups(&self.group, named)
    }
}

/// A group.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Name of the group.
    pub name: String,
    /// Owner that has made the group, if the group does not stand in the file.
    #[serde(default)]
    pub owner: Option<Word>,
    /// Strategy of now.
    pub strategy: Word,
    /// Parameters of the strategy.
    pub params: Vec<ParamStatus>,
    /// `per_session`, `per_request` or `on_demand`.
    pub granularity: Word,
    /// True if load reports take part in decisions.
    pub adaptive: bool,
    /// Reported load that the strategy looks at.
    pub load: String,
    /// True if too many members are down or ejected, so that all are routed to.
    pub panic: bool,
    /// True while clients of rules get its maintenance page.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maintenance: bool,
    /// Locations that the group has under a load alert.
    pub alerts: usize,
    /// Number of alerts that the group has raised since it was there.
    pub alerts_raised: u64,
    /// Latencies and rate over all members.
    pub recent: Recent,
    /// Tokens of all members, if the strategy is `inference`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<EngineStatus>,
    /// Members in the order of the file.
    pub members: Vec<MemberStatus>,
    /// The zones of its members, if some of them come first: in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneStatus>,
    /// Addresses that agents registered, or that names resolved to, and that are no members.
    #[serde(default)]
    pub refused: Vec<RefusedStatus>,
    /// Lists of members: services in DNS, and files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<ListStatus>,
    /// The program outside of the balancer that chooses members, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chooser: Option<ChooserStatus>,
}

/// A chooser of a group. Counts begin with the group.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ChooserStatus {
    /// URL where the chooser is asked.
    pub url: String,
    /// False while it fails, and is asked once a second.
    pub answers: bool,
    /// Bindings about which it has decided.
    pub decisions: u64,
    /// Bindings for which it was to be asked, and about which the strategy has decided.
    pub fallbacks: u64,
    /// Failures by their reasons; those that did not happen are left out.
    pub failures: Vec<ChooserFailures>,
    /// The last failure of a question that was sent.
    pub last_failure: Option<ChooserFailure>,
}

/// Failures of a chooser for one reason.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ChooserFailures {
    /// The reason, as in metrics.
    pub reason: Word,
    /// Number of failures for this reason.
    pub count: u64,
}

/// A failure of a chooser.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ChooserFailure {
    /// Time since then, in seconds.
    pub age_seconds: f64,
    /// Description of the failure.
    pub error: String,
}

/// A zone of a group. Zones of the same rank are as one: what is said of shares and loads is that
/// of all of them.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ZoneStatus {
    /// Name; `null` is that of members of which no zone is said.
    pub name: Option<String>,
    /// Requests go to those of rank 0 first, then to those of rank 1, and so on.
    pub rank: usize,
    /// True if this is the zone of the balancer.
    pub own: bool,
    /// Share of the group's requests that its rank gets, 0 to 1.
    pub share: f64,
    /// Mean load of the members of its rank that can serve; `null` is not known.
    pub load: Option<f32>,
    /// Share of the members of its rank, by weight, that can serve, 0 to 1.
    pub usable: f32,
    /// Members in it.
    pub members: usize,
    /// Requests and clients that they were given since they were there.
    pub requests: u64,
}

/// An address that was to be a member, and is none.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct RefusedStatus {
    /// The member of the file whose name resolved to it, or what an agent registered.
    pub member: String,
    /// The address.
    pub address: SocketAddr,
    /// Reason why the address is no member.
    pub why: String,
}

/// A list of members.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ListStatus {
    /// The service, or the path of the files.
    pub name: String,
    /// Number of members in the list.
    pub members: usize,
    /// Error in the list, so that its members stay as they were; `null` if there is none.
    pub error: Option<String>,
    /// Number of times that something became wrong with the list.
    pub failures: u64,
}

/// A parameter of a strategy.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ParamStatus {
    /// Name of the parameter.
    pub name: Word,
    /// Value of the parameter.
    pub value: f64,
    /// Unit, if it has one.
    pub unit: Word,
}

/// A member.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Name that the configuration gives it, or else `member`; unique in the group.
    pub name: String,
    /// Address in the configuration, by which metrics, logs and other balancers know it; unique in the group.
    #[serde(default)]
    pub member: String,
    /// Address where the member listens; `null` until its name resolves, and where the balancer needs no
    /// address.
    pub address: Option<String>,
    /// An agent has registered it; it does not stand in the configuration.
    pub joined: bool,
    /// Name of its location.
    pub location: String,
    /// Zone of the member, if it is known.
    #[serde(default)]
    pub zone: Option<String>,
    /// `up`, `standby` (a backup that is not needed), `warming` (slow start), or the first of
    /// `reasons`.
    pub state: Word,
    /// Reasons, all of them, why the member gets no new traffic.
    pub reasons: Vec<Word>,
    /// Ejection of the member, if it is `ejected`.
    #[serde(default)]
    pub ejection: Option<EjectionStatus>,
    /// Setting of the administrator.
    pub admin: AdminState,
    /// Weight as configured or changed live.
    pub weight: f32,
    /// True for a backup, which gets traffic only while no other member may serve.
    #[serde(default)]
    pub backup: bool,
    /// Weight with reports and slow start applied; 0 if the member gets no new traffic.
    pub effective_weight: f32,
    /// Most requests or connections at once, configured or reported; `null` is no limit.
    pub max_connections: Option<u32>,
    /// Requests (HTTP) or connections (TCP) at the member now.
    pub in_flight: u32,
    /// Cost of these requests together, which strategies count.
    #[serde(default)]
    pub cost_in_flight: f32,
    /// Number of requests that the member works on at once, as late binding has learnt; `null` is not known,
    /// or many.
    #[serde(default)]
    pub cap: Option<u32>,
    /// Smoothed latency that latency-aware strategies see.
    pub latency_ms: Option<f64>,
    /// The last 10 seconds.
    pub recent: Recent,
    /// Tokens of the member, if the strategy is `inference`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineStatus>,
    /// Share of all picks of the group in the last 10 seconds, 0 to 1.
    pub share: f64,
    /// Totals since the member was added.
    pub totals: TotalsStatus,
    /// The last active health check.
    pub check: Option<CheckStatus>,
    /// Reason why there was no TLS with the member the last time, and how long ago that was.
    #[serde(default)]
    pub tls: Option<CheckStatus>,
    /// Reports of sources about the member.
    pub opinions: Vec<OpinionStatus>,
    /// The location's load that the group looks at, while it is not too old.
    pub load: Option<f32>,
    /// The location should shed load.
    pub alert: bool,
}

/// Ejection of a member, with its reason and the time left.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct EjectionStatus {
    /// Time left until the ejection ends, in seconds.
    pub seconds_left: f64,
    /// Cause of the ejection: `failures_in_a_row`, `failure_share` (more of its requests fail than of those of the
    /// other members), `fleet` (another balancer has ejected the member), or `unknown`.
    #[serde(default)]
    pub cause: Word,
    /// The cause with its figures, as in the log.
    #[serde(default)]
    pub why: String,
    /// Name of the other balancer that has ejected the member and said so; `null` is this balancer.
    pub by: Option<String>,
    /// Number of requests of that balancer by which the member was judged.
    pub requests: u32,
    /// Number of these requests that failed.
    pub failures: u32,
    /// Trials of the member since the ejection began, or was prolonged; `null` if no requests try the member.
    #[serde(default)]
    pub trials: Option<TrialStatus>,
}

/// Requests that try an ejected member, and are answered by another member if the ejected one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct TrialStatus {
    /// Number of trials that are over.
    pub ended: u64,
    /// Number of these trials that failed.
    pub failed: u64,
    /// Number of trials that have succeeded since the last failure.
    pub in_a_row: u64,
    /// Number of trials in a row that must succeed to end the ejection.
    pub enough: u64,
}

impl std::fmt::Display for TrialStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TrialStatus {
            ended,
            failed,
            in_a_row,
            enough,
        } = self;
        write!(
            f,
            "{failed} of {ended} trials failed, {in_a_row} of {enough} have succeeded in a row"
        )
    }
}

/// An active health check that is over.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CheckStatus {
    /// Age of the check, in seconds.
    pub age_seconds: f64,
    /// Reason why the check failed; `null` if it passed.
    pub error: Option<String>,
}

/// Report of a source about a member.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct OpinionStatus {
    /// Name of the source.
    pub source: Word,
    /// Age of the report, in seconds.
    pub age_seconds: f64,
    /// True if the member does not work.
    pub down: bool,
    /// The member certainly does not work: it refuses connections, answers its health check
    /// wrongly, or is not there.
    pub dead: bool,
    /// True if the member wants no new clients.
    pub drain: bool,
    /// True if the member is being worked on.
    pub maintenance: bool,
    /// The part of its weight that it wants; `null` is all of it.
    pub weight: Option<f32>,
    /// The most requests or connections that it wants at once; `null` is no limit.
    pub max_connections: Option<u32>,
    /// Report in words, with what the source adds for people.
    pub says: String,
}

impl OpinionStatus {
    pub(crate) fn of_held(held: &CountedReport, now: Instant) -> Self {
        let opinion = &held.report;
        OpinionStatus {
            source: held.source.name().into(),
            age_seconds: now.since(held.at).as_secs_f64(),
            down: opinion.down,
            dead: opinion.dead,
            drain: opinion.drain,
            maintenance: opinion.maintenance,
            weight: opinion.weight.map(Weight::get),
            max_connections: opinion.max_connections.map(NonZeroU32::get),
            says: opinion.to_string(),
        }
    }
}

/// Requests that are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct TotalsStatus {
    /// Number of all requests that are over.
    pub requests: u64,
    /// Failures of the member.
    pub failures: u64,
    /// Refused by the member because it had too much to do.
    pub overloads: u64,
    /// Ended without a verdict about the member.
    pub cancelled: u64,
    /// Clients that were sent there by the negotiator; not among `requests`.
    #[serde(default)]
    pub assigned: u64,
    /// Requests that have tried the member while it was ejected; among `requests`.
    #[serde(default)]
    pub trials: u64,
    /// Number of trials that the member has answered well.
    #[serde(default)]
    pub trials_succeeded: u64,
    /// Number of trials that the member has failed.
    #[serde(default)]
    pub trials_failed: u64,
}

/// The last 10 seconds or a little less.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Recent {
    /// Length of the time that is looked at.
    pub seconds: f64,
    /// Requests (HTTP), connections (TCP) and negotiations that were bound.
    pub picks: u64,
    /// Number of these that ended in a failure of the member, overload included.
    pub failures: u64,
    /// Median latency.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency.
    pub p99_ms: Option<f64>,
    /// HTTP: mean time to the first byte of the body, of responses whose head came without one.
    #[serde(default)]
    pub first_byte_ms: Option<f64>,
    /// HTTP: their mean pace after the first byte. Time in which clients did not read does not count.
    #[serde(default)]
    pub stream_bytes_per_second: Option<f64>,
}

/// A location and its loads.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct LocationStatus {
    /// Name of the location.
    pub name: String,
    /// True if the location is under a load alert: the administrator's setting, else whether a group has
    /// raised one.
    pub alert: bool,
    /// Setting of the administrator for the load alert.
    pub alert_setting: AlertSetting,
    /// Groups that have raised an alert, even if it is suppressed.
    pub alerts: Vec<AlertStatus>,
    /// Loads that the location reported.
    pub loads: Vec<LoadStatus>,
}

/// A load alert.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct AlertStatus {
    /// The group that has raised it.
    pub group: String,
    /// Age of the alert, in seconds.
    pub age_seconds: f64,
    /// The effective load at that time.
    pub load: f32,
    /// The level that the load had exceeded.
    pub threshold: f32,
}

/// A reported load.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct LoadStatus {
    /// Name or number.
    pub id: String,
    /// Value of the load.
    pub value: f32,
    /// Age of the report, in seconds.
    pub age_seconds: f64,
    /// The value counts as unknown: it is older than the `load_max_age` of each group with members there, or the monitor that
    /// read it has no news.
    #[serde(default)]
    pub expired: bool,
    /// True for the load that groups go by whose load is `first`.
    #[serde(default)]
    pub first: bool,
}

/// A decision with its reasons.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Explained {
    /// The group.
    pub group: String,
    /// True if the program in the kernel took it (`forward = "kernel"`).
    #[serde(default)]
    pub in_kernel: bool,
    /// The strategy that took it; perhaps there is another one by now.
    pub strategy: Word,
    /// Age of the decision, in seconds.
    pub age_seconds: f64,
    /// Name of the chosen member.
    pub chosen: Option<String>,
    /// Reason why no member was chosen.
    pub error: Option<String>,
    /// Sentences about the decision as a whole.
    pub notes: Vec<String>,
    /// Candidates that were looked at, in that order.
    pub candidates: Vec<CandidateStatus>,
}

/// A candidate of a decision.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CandidateStatus {
    /// Name of the member.
    pub member: String,
    /// Score of the candidate; the lowest wins.
    pub score: Option<f64>,
    /// Verdict on the candidate, with its reason.
    pub verdict: String,
}
