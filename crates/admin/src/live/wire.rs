//! The JSON of what goes on now: the process, samples and news, the last hour, checks.

use std::sync::Arc;

use evenkeel_manager::AdminState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::wire::SetStrategy;

/// A check of a member that was asked for.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CheckDone {
    /// Whether it passed.
    pub ok: bool,
    /// Why not.
    pub error: Option<String>,
    /// How long it took.
    pub took_ms: f64,
    /// What was checked, and whether it counts.
    pub what: String,
}

/// A family of counters or gauges.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Family {
    /// Name, as in `/metrics`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub r#type: String,
    /// What it counts.
    pub help: String,
    /// One for each set of labels.
    pub samples: Vec<Counted>,
}

/// What was counted.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Counted {
    /// Of histograms: `_bucket`, `_sum` or `_count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix: Option<String>,
    /// Whose it is.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Null where it is no finite number.
    pub value: Option<f64>,
}

/// The process of the balancer.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Since its admin API was there.
    pub uptime_seconds: f64,
    /// CPU time of all threads since it began.
    pub cpu_seconds: f64,
    /// The same per second of late, in cores: 0.02 is 2 % of one.
    pub cpu_share: Option<f64>,
    /// Memory that it uses.
    pub resident_bytes: Option<u64>,
    /// Files and sockets.
    pub open_files: Option<usize>,
    /// Threads.
    pub threads: Option<u64>,
    /// Version of the program.
    pub version: String,
    /// Threads that forward requests.
    pub workers: usize,
}

/// Once a second: what goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleEvent {
    /// When, in seconds since 1970.
    pub t: f64,
    /// The process.
    pub process: Usage,
    /// In the order of the file.
    pub rules: Vec<RuleRow>,
    /// In the order of the file, and then those that do not stand there.
    pub groups: Vec<GroupRow>,
    /// Groups that are left out, as there are so many.
    #[serde(default)]
    pub groups_left_out: usize,
    /// The members of the group that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupMembers>,
}

/// What the process uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Cores.
    pub cpu_share: Option<f64>,
    /// Memory.
    pub resident_bytes: Option<u64>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleRow {
    /// Name.
    pub name: String,
    /// Whether it accepts clients.
    pub enabled: bool,
    /// Whether it is in maintenance.
    pub maintenance: bool,
    /// Requests (HTTP) or connections (TCP, FTP) per second; null until two samples are there.
    pub rate: Option<f64>,
    /// Share of those that ended which failed.
    pub failures: Option<f64>,
    /// Name of its group.
    pub group: String,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupRow {
    /// Name.
    pub name: Arc<str>,
    /// Requests, connections or negotiations per second.
    pub rate: f64,
    /// Share of those that ended which failed.
    pub failures: Option<f64>,
    /// Median latency.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency.
    pub p99_ms: Option<f64>,
    /// Requests or connections at its members.
    pub in_flight: u64,
    /// Requests that wait for a member.
    pub queue: usize,
    /// Members that work.
    pub up: usize,
    /// All members.
    pub members: usize,
    /// Too many members are down or ejected, so all are routed to.
    pub panic: bool,
    /// Locations under a load alert.
    pub alerts: usize,
    /// Standard deviation of the members' loads.
    pub spread: Option<f64>,
}

/// Members of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupMembers {
    /// The group.
    pub name: Arc<str>,
    /// Whether these are all members, and not only those that have changed since the last sample.
    pub full: bool,
    /// The members.
    pub members: Vec<MemberRow>,
    /// Those that are no members any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<Arc<str>>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberRow {
    /// Name.
    pub name: Arc<str>,
    /// `up`, `standby`, `warming`, or the first reason why it gets no new traffic.
    pub state: std::borrow::Cow<'static, str>,
    /// What the administrator says.
    pub admin: AdminState,
    /// As configured or changed live.
    pub weight: f64,
    /// With what is reported and slow start applied.
    pub effective_weight: f64,
    /// Share of all picks of the group.
    pub share: f64,
    /// Picks per second.
    pub rate: f64,
    /// Share of those that ended which failed.
    pub failures: Option<f64>,
    /// Requests or connections at it.
    pub in_flight: u32,
    /// Median latency.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency.
    pub p99_ms: Option<f64>,
    /// The load that the group looks at.
    pub load: Option<f64>,
    /// Its location should shed load.
    pub alert: bool,
}

/// Something else is in effect than before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeEvent {
    /// The configuration that runs, from 1.
    pub generation: u64,
    /// What its text is known by, if it came from a file.
    pub revision: Option<String>,
    /// When, in seconds since 1970.
    pub at: f64,
    /// The user, if somebody has asked for it here.
    pub who: Option<String>,
    /// `live` if the configuration is the same (a weight, a state, an address), else as in its history: `file`,
    /// `signal`, `put`, `patch`, `undo`, `restore`.
    pub how: std::borrow::Cow<'static, str>,
}

/// A load alert has begun or ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertEvent {
    /// When, in seconds since 1970.
    pub t: f64,
    /// The location.
    pub location: Arc<str>,
    /// The group that has raised it.
    pub group: Arc<str>,
    /// Whether it has begun.
    pub on: bool,
}

/// The last hour: columns with a value for each moment, null where nothing is known.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct LastHour {
    /// Time between two moments, as it is now.
    pub step_seconds: u64,
    /// The moments, in seconds since 1970.
    pub t: Vec<u64>,
    /// Requests, connections or negotiations per second.
    pub rate: Vec<Option<f64>>,
    /// Share of those that ended which failed.
    pub failures: Vec<Option<f64>>,
    /// Median latency.
    pub p50_ms: Vec<Option<f64>>,
    /// 99th percentile of the latency.
    pub p99_ms: Vec<Option<f64>>,
    /// Requests or connections at members.
    pub in_flight: Vec<Option<f64>>,
    /// Requests that waited for a member.
    pub queue: Vec<Option<f64>>,
    /// Standard deviation of the members' loads.
    pub spread: Vec<Option<f64>>,
    /// The group's thresholds of load, as they are now.
    pub thresholds: Thresholds,
    /// The members of the group.
    pub members: Vec<MemberHour>,
    /// Members of the group that are left out, as there are so many.
    pub members_left_out: usize,
}

/// Thresholds of the effective load.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Thresholds {
    /// From here on a member gets nothing new while others do; null is never.
    pub reject: Option<f64>,
    /// Above this a location gets a load alert; null is never, or a threshold that is no fixed number.
    pub critical: Option<f64>,
}

/// A member in the last hour.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct MemberHour {
    /// Name.
    pub name: String,
    /// The load that the group looks at.
    pub load: Vec<Option<f64>>,
    /// Share of all picks of the group.
    pub share: Vec<Option<f64>>,
    /// Requests or connections at it.
    pub in_flight: Vec<Option<f64>>,
    /// The effective weight.
    pub weight: Vec<Option<f64>>,
    /// Whether its location was under a load alert.
    pub alert: Vec<bool>,
}

/// What is to be simulated.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simulate {
    /// One to four strategies.
    pub strategies: Vec<SetStrategy>,
    /// How many requests come: 100 to 200,000; by default 20,000.
    #[serde(default)]
    pub requests: Option<u32>,
    /// What chance begins with; by default 1. The same seed gives the same answer.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Requests per second; by default as measured.
    #[serde(default)]
    pub rate: Option<f64>,
    /// The members; by default those of the group as measured. Names that the group does not have are further
    /// members.
    #[serde(default)]
    pub members: Option<Vec<AssumedMember>>,
    /// Further members, as fast as the others are on average: 0 to 100.
    #[serde(default)]
    pub more_members: u32,
}

/// What came of a simulation.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Simulated {
    /// What was simulated.
    pub assumed: Assumed,
    /// One for each strategy, in their order.
    pub results: Vec<SimulatedStrategy>,
}

/// What was simulated.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Assumed {
    /// Requests per second.
    pub rate: f64,
    /// The members.
    pub members: Vec<AssumedMember>,
    /// What was not measured, in sentences.
    pub notes: Vec<String>,
}

/// A member in a simulation.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssumedMember {
    /// Name.
    pub name: String,
    /// Mean time that a request takes there, without waiting.
    pub mean_ms: f64,
    /// Requests that it works on at once.
    pub concurrency: u32,
}

/// What came of a strategy.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SimulatedStrategy {
    /// The strategy.
    pub strategy: String,
    /// Median response time.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Mean.
    pub mean_ms: f64,
    /// Share of the requests that failed.
    pub failed: f64,
    /// Requests in the balancer's queue at 99 % of all moments, or fewer.
    pub queue_p99: usize,
    /// The members, in their order.
    pub shares: Vec<SimulatedMember>,
}

/// What came of a member.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SimulatedMember {
    /// Its name.
    pub member: String,
    /// Its share of the requests.
    pub share: f64,
    /// Share of the time in which it was busy.
    pub utilisation: f64,
}
