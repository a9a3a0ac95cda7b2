//! Rules whose connections the kernel is to forward.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::{Forward, Limits, Protocol, ReturnPath, Rule, UdpSession};
use evenkeel_core::address::Address;
use evenkeel_core::cost::Cost;
use evenkeel_manager::snapshot::{GroupHandle, Snapshot};

/// Rule whose connections the kernel is to forward.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "bpf"),
    expect(
        dead_code,
        reason = "only the program in the kernel needs more than the name"
    )
)]
pub(crate) struct PlannedRule {
    pub(crate) name: Arc<str>,
    pub(crate) listeners: Vec<SocketAddr>,
    pub(crate) group: Arc<GroupHandle>,
    pub(crate) cost: Cost,
    /// Way of the members' answers.
    pub(crate) return_path: ReturnPath,
    /// True if other balancers have the rule's addresses, too.
    pub(crate) anycast: bool,
    /// Number of other members that a connection may go to if one does not accept.
    pub(crate) retries: u32,
    /// Time without a packet after which a connection is removed.
    pub(crate) idle: Duration,
    /// Time without a packet after which a connection is removed that the member has not accepted.
    pub(crate) connect: Duration,
    /// Terms of sessions, for a UDP rule.
    pub(crate) udp: Option<UdpTerms>,
    /// Most open connections of all clients, if the rule limits these.
    pub(crate) max_connections: Option<u32>,
    /// Limits of each client.
    pub(crate) limits: Limits,
    /// True if limits count connections of the kernel and of the proxy together.
    pub(crate) is_limited: bool,
}

/// Terms of the sessions of a UDP rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UdpTerms {
    /// Time for the first answer, and for answers under way when the session leaves its member.
    pub(crate) answer_timeout: Duration,
    /// True if a session without an answer has failed. Never with direct answers, which the balancer does not see.
    pub(crate) expects_answer: bool,
    /// True if a client of QUIC whose address changes stays at the member of its connection id.
    pub(crate) is_quic: bool,
    /// True if each datagram is a session of its own.
    pub(crate) is_single: bool,
}

impl UdpTerms {
    fn of_rule(rule: &Rule) -> Option<Self> {
        (rule.protocol == Protocol::Udp).then_some(UdpTerms {
            answer_timeout: rule.udp.answer_timeout,
            expects_answer: rule.udp.expect_answer && !rule.return_path.is_direct(),
            is_quic: rule.udp.session == UdpSession::Quic,
            is_single: rule.udp.session == UdpSession::Datagram,
        })
    }
}

impl fmt::Debug for PlannedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedRule")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Returns the rules of `snapshot` that are enabled and have `forward = "kernel"`.
pub(crate) fn plan_rules(snapshot: &Snapshot) -> Vec<PlannedRule> {
    let wanted = snapshot
        .rules
        .iter()
        .filter(|rule| rule.rule.enabled && rule.rule.forward == Forward::Kernel);
    wanted
        .map(|rule| {
            let read_ip = |listen: &Address| match listen {
                // As the packets have an address of IPv4 that is written as one of IPv6.
                Address::Ip(at) => Some(SocketAddr::new(at.ip().to_canonical(), at.port())),
                _ => None,
            };
            PlannedRule {
                name: rule.rule.name.as_str().into(),
                listeners: rule.rule.listen.iter().filter_map(read_ip).collect(),
                group: Arc::clone(&rule.default_target.group),
                cost: rule.rule.cost,
                return_path: rule.rule.return_path,
                anycast: rule.rule.anycast,
                retries: rule.rule.connect_retries,
                idle: rule.rule.timeouts.idle,
                connect: rule.rule.timeouts.connect,
                udp: UdpTerms::of_rule(&rule.rule),
                max_connections: rule
                    .rule
                    .limits_kernel()
                    .then_some(rule.rule.max_connections),
                limits: rule.rule.limits.clone(),
                is_limited: rule.rule.counts_with_kernel(),
            }
        })
        .collect()
}
