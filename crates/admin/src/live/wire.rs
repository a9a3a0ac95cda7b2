//! The JSON of what goes on now: the process, samples and news, the last hour, checks.

use std::sync::Arc;

use evenkeel_manager::AdminState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::wire::SetStrategy;

/// A check of a member that was asked for.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CheckDone {
    /// True if the check passed.
    pub ok: bool,
    /// Reason why the check failed.
    pub error: Option<String>,
    /// Duration of the check.
    pub took_ms: f64,
    /// Description of what was checked, and of whether the check counts.
    pub what: String,
}

/// A family of counters or gauges.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Family {
    /// Name, as in `/metrics`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub r#type: String,
    /// Description of what the family counts.
    pub help: String,
    /// Samples, one for each set of labels.
    pub samples: Vec<Counted>,
}

/// Sample of a metric.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Counted {
    /// Of histograms: `_bucket`, `_sum` or `_count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix: Option<String>,
    /// Labels of the sample.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Null where it is no finite number.
    pub value: Option<f64>,
}

/// The process of the balancer.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Time since the process's admin API was there, in seconds.
    pub uptime_seconds: f64,
    /// CPU time of all threads since it began.
    pub cpu_seconds: f64,
    /// CPU time per second of late, in cores: 0.02 is 2 % of a core.
    pub cpu_share: Option<f64>,
    /// Memory that it uses.
    pub resident_bytes: Option<u64>,
    /// Files and sockets.
    pub open_files: Option<usize>,
    /// Number of threads.
    pub threads: Option<u64>,
    /// Version of the program.
    pub version: String,
    /// Threads that forward requests.
    pub workers: usize,
}

/// Once a second: what goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleEvent {
    /// Time of the sample, in seconds since 1970.
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

/// Resources that the process uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU use, in cores.
    pub cpu_share: Option<f64>,
    /// Memory use, in bytes.
    pub resident_bytes: Option<u64>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleRow {
    /// Name of the rule.
    pub name: String,
    /// True if the rule accepts clients.
    pub enabled: bool,
    /// True if the rule is in maintenance.
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
    /// Name of the group.
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
    /// True if these are all members, and not only the members that have changed since the last sample.
    pub full: bool,
    /// The members.
    pub members: Vec<MemberRow>,
    /// Names of members that have left the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<Arc<str>>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberRow {
    /// Name of the member.
    pub name: Arc<str>,
    /// `up`, `standby`, `warming`, or the first reason why it gets no new traffic.
    pub state: std::borrow::Cow<'static, str>,
    /// State that the administrator has set.
    pub admin: AdminState,
    /// Weight, as configured or changed live.
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
    /// True if the member's location should shed load.
    pub alert: bool,
}

/// Change of what is in effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeEvent {
    /// The configuration that runs, from 1.
    pub generation: u64,
    /// Revision of the configuration's text, if it came from a file.
    pub revision: Option<String>,
    /// Time of the change, in seconds since 1970.
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
    /// Time of the event, in seconds since 1970.
    pub t: f64,
    /// The location.
    pub location: Arc<str>,
    /// The group that has raised it.
    pub group: Arc<str>,
    /// True if the alert has begun.
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
    /// Name of the member.
    pub name: String,
    /// The load that the group looks at.
    pub load: Vec<Option<f64>>,
    /// Share of all picks of the group.
    pub share: Vec<Option<f64>>,
    /// Requests or connections at it.
    pub in_flight: Vec<Option<f64>>,
    /// The effective weight.
    pub weight: Vec<Option<f64>>,
    /// True for each moment at which the member's location was under a load alert.
    pub alert: Vec<bool>,
}

/// Simulation that is asked for.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simulate {
    /// Strategies, one to four.
    pub strategies: Vec<SetStrategy>,
    /// Number of requests that come: 100 to 200,000; by default 20,000.
    #[serde(default)]
    pub requests: Option<u32>,
    /// Seed of the random numbers; by default 1. The same seed gives the same answer.
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

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Simulated {
    /// Assumptions of the simulation.
    pub assumed: Assumed,
    /// Results, one for each strategy, in the order of the strategies.
    pub results: Vec<SimulatedStrategy>,
}

/// Assumptions of a simulation.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Assumed {
    /// Requests per second.
    pub rate: f64,
    /// The members.
    pub members: Vec<AssumedMember>,
    /// Sentences about what was not measured.
    pub notes: Vec<String>,
}

/// A member in a simulation.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssumedMember {
    /// Name of the member.
    pub name: String,
    /// Mean time that a request takes there, without waiting.
    pub mean_ms: f64,
    /// Requests that it works on at once.
    pub concurrency: u32,
}

/// Result for a strategy.
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
    /// Mean response time.
    pub mean_ms: f64,
    /// Share of the requests that failed.
    pub failed: f64,
    /// Requests in the balancer's queue at 99 % of all moments, or fewer.
    pub queue_p99: usize,
    /// The members, in their order.
    pub shares: Vec<SimulatedMember>,
}

/// Result for a member.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SimulatedMember {
    /// Name of the member.
    pub member: String,
    /// Share of the requests that the member got.
    pub share: f64,
    /// Share of the time in which it was busy.
    pub utilisation: f64,
}
