//! Status of forwarding in the kernel, for administrators.

use std::collections::BTreeMap;

use evenkeel_manager::status::{EntryErrorStatus, InterfaceStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::copy_status::CopyStatus;

/// Forwarding in the kernel, as the admin API shows it.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ForwardStatus {
    /// Rules with `forward = "kernel"` that are enabled.
    pub rules: Vec<String>,
    /// True if the kernel forwards connections of these rules.
    pub active: bool,
    /// Reason why the proxy serves all connections; `null` if the kernel forwards.
    pub reason: Option<String>,
    /// Rules that the proxy serves while the kernel forwards for others, with the reasons.
    pub proxied: BTreeMap<String, String>,
    /// Errors of the kernel for single entries, which have left everything else alone.
    #[serde(default)]
    pub entry_errors: EntryErrorStatus,
    /// Number of interfaces with the program.
    pub interfaces: usize,
    /// Interfaces where the program is not at tcx, with the reasons: `tc` has a filter of tc, and `proxy` no program.
    #[serde(default)]
    pub tc_interfaces: Vec<InterfaceStatus>,
    /// Interfaces of `kernel_forwarding.xdp_interfaces`.
    pub xdp_interfaces: Vec<InterfaceStatus>,
    /// Connections in the kernel's table, with those that have ended lately.
    pub connections: usize,
    /// Number of connections that the kernel's table has room for.
    pub table_size: u32,
    /// Sessions of UDP rules in the kernel's table, with those that have ended lately.
    pub sessions: usize,
    /// Number of sessions that the kernel's table has room for.
    pub session_table_size: u32,
    /// Connection ids of QUIC in the kernel's table, which has room for `session_table_size` of them.
    pub connection_ids: usize,
    /// Copies of connections in the fleet; `null` without `copy_to_fleet`.
    pub copies: Option<CopyStatus>,
    /// Number of connections without a record in the access log, as the log's writer was too slow, or the kernel had no
    /// room for an event.
    pub lost_records: u64,
    /// Numbers of packets by what became of them.
    pub packets: BTreeMap<String, u64>,
    /// Counts of the rules that the kernel forwards for.
    pub rule_counts: Vec<ForwardedRule>,
    /// Members to which the kernel forwards.
    pub members: Vec<ForwardedMember>,
}

/// Rule whose connections the kernel forwards, without those that the proxy serves.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ForwardedRule {
    /// Name of the rule.
    pub rule: String,
    /// Connections now.
    pub open: u64,
    /// Connections that have begun in the kernel.
    pub begun: u64,
    /// Bytes from clients of connections that have ended.
    pub bytes_in: u64,
    /// Bytes to clients of connections that have ended.
    pub bytes_out: u64,
    /// Datagrams from clients in sessions of a UDP rule that have ended.
    pub datagrams_in: u64,
    /// Datagrams to clients, likewise.
    pub datagrams_out: u64,
}

/// Member to which the kernel forwards.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ForwardedMember {
    /// Name of the group.
    pub group: String,
    /// Address of the member.
    pub member: String,
    /// True if new connections may go there.
    pub eligible: bool,
    /// Connections now.
    pub in_flight: i64,
    /// Connections that the member was chosen for.
    pub picks: u64,
    /// Connections that the member has accepted.
    #[serde(default)]
    pub connects: u64,
    /// Sum of the times from SYN to SYN-ACK.
    #[serde(default)]
    pub connect_seconds: f64,
    /// Mean of these times; `null` without a connection.
    pub connect_ms: Option<f64>,
    /// Connections with a first byte of the member.
    #[serde(default)]
    pub first_bytes: u64,
    /// Sum of the times from SYN to the member's first byte.
    #[serde(default)]
    pub first_byte_seconds: f64,
    /// Mean of these times; `null` without one.
    pub first_byte_ms: Option<f64>,
    /// Connections that the member has not accepted.
    pub refused: u64,
    /// Connections that the member has reset.
    pub resets: u64,
    /// Bytes from clients of connections that have ended.
    pub bytes_in: u64,
    /// Bytes to clients of connections that have ended.
    pub bytes_out: u64,
    /// Requests within connections that wait for the member's answer.
    pub requests_under_way: u32,
    /// Requests within connections that the member has answered.
    pub requests: u64,
    /// Sum of the times from the beginning of a request to the beginning of the answer.
    pub request_seconds: f64,
    /// Mean of these times; `null` without a request.
    pub request_ms: Option<f64>,
    /// Latencies by which the group's members are compared.
    pub learns_from: LearnsFrom,
}

/// Latencies by which members are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnsFrom {
    /// First answers of connections: most connections have one request or two.
    #[default]
    FirstAnswers,
    /// Requests within connections.
    Requests,
}
