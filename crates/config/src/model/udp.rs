//! `[rule.NAME.udp]`: options of UDP rules.

use std::time::Duration;

use super::group::GroupConfig;
use crate::schema::document::Span;
use crate::schema::field::choice_field;
use crate::schema::key::{describe_keys, millis, secs, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::{AsTable, Table};

section! {
    /// Options of UDP rules.
    #[derive(Clone, Debug, PartialEq)]
    pub struct UdpOptions {}
    keys UDP {
        /// Datagrams which belong to one session, and so go to one member. `client`: all datagrams from one
        /// address and port, until `idle_timeout`. `datagram`: each datagram by itself, with one answer, for
        /// protocols of question and answer (DNS) and of messages (syslog); with `forward = "kernel"`, see
        /// [single datagrams](kernel-forwarding.md#single-datagrams). `quic`: as `client`, and a client
        /// of QUIC whose address changes stays with its member, by the connection id.
        session: UdpSession = UdpSession::Client; r#""datagram""#,
        /// Members answer the first datagram of a session. With `true`, a member without an answer within
        /// `answer_timeout` has failed for the session. Set `false` for servers which never answer (syslog,
        /// StatsD). With `return_path = "direct"` the kernel sees no answers, and the key counts for sessions of the
        /// proxy only.
        expect_answer: bool = true; "false",
        /// Time limit for the first answer, if `expect_answer` is `true`.
        answer_timeout: Duration [Time(millis(10), secs(600))] = secs(3); r#""1s""#,
        /// Datagrams of a session may share a buffer, which the kernel puts together and divides (GRO, GSO).
        /// Long streams of datagrams, as of QUIC, take less CPU time so. Set `false` if the driver of a
        /// network card has defects with it.
        segmentation_offload: bool = true; "false",
    }
}

impl UdpOptions {
    /// True if sockets of the rule may exchange several datagrams in one buffer with the kernel. Sessions by
    /// datagram have nothing to put together.
    pub fn uses_offload(&self) -> bool {
        self.segmentation_offload && self.session != UdpSession::Datagram
    }
}

impl AsTable for UdpOptions {
    const ALLOWED: &'static str = "a table of UDP options";

    fn fill(&mut self, table: &mut Table<'_>, report: &mut Report<'_>) {
        table.read(UDP, self, report);
    }
}

/// Datagrams that belong to one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UdpSession {
    /// Datagrams from one address and port.
    #[default]
    Client,
    /// A datagram, and the answer.
    Datagram,
    /// Datagrams from one address and port. The connection id leads a client's new address to its member.
    Quic,
}

choice_field!(
    UdpSession,
    "client" => UdpSession::Client,
    "datagram" => UdpSession::Datagram,
    "quic" => UdpSession::Quic
);

/// Time without a datagram after which a session ends, if the file sets none.
pub(super) const IDLE: Duration = secs(30);

/// Keys that a UDP rule cannot have, with the reason.
const REFUSED: [(&str, &str); 10] = [
    ("tls", "the balancer ends no TLS (DTLS, QUIC) of UDP rules"),
    ("accept_proxy", "no PROXY header comes with datagrams"),
    (
        "accept_proxy_timeout",
        "no PROXY header comes with datagrams",
    ),
    ("half_close", "a UDP session has no end in one direction"),
    (
        "connection_timeout",
        "UDP has no connections; set `answer_timeout` in `udp`",
    ),
    ("queue_timeout", "datagrams do not wait for members"),
    ("sni_timeout", "UDP rules read no server names"),
    ("priority", "datagrams do not wait for members"),
    ("client_priorities", "datagrams do not wait for members"),
    ("listen_mode", "UDP rules do not listen on Unix sockets"),
];

/// Limits that a UDP rule cannot have.
const REFUSED_LIMITS: [&str; 3] = ["bandwidth", "connection_bandwidth", "max_lifetime"];

/// Reports UDP options of a rule with another protocol.
pub(super) fn check_other_rule(table: &mut Table<'_>, report: &mut Report<'_>) {
    if table.has_key("udp") {
        let message = "only a rule with `protocol = \"udp\"` has this key";
        table.report_problem("udp", message, report);
    }
}

/// Reports keys that a UDP rule cannot have. `has_socket_file` says that the rule listens on a Unix socket.
pub(super) fn check_rule(has_socket_file: bool, table: &mut Table<'_>, report: &mut Report<'_>) {
    for (key, why) in REFUSED.into_iter().filter(|(key, _)| table.has_key(key)) {
        let message = format!("a rule with `protocol = \"udp\"` has no such key: {why}");
        table.report_problem(key, message, report);
    }
    if has_socket_file {
        let message = "a rule with `protocol = \"udp\"` cannot listen on a Unix socket";
        table.report_problem("listen", message, report);
    }
    if let Some(limits) = table.read_table("limits", report) {
        for key in REFUSED_LIMITS.into_iter().filter(|key| limits.has_key(key)) {
            let message = "a rule with `protocol = \"udp\"` has no such limit";
            limits.report_problem(key, message, report);
        }
    }
}

/// Reports settings of a group that the members of a UDP rule cannot have.
pub(super) fn check_group(group: &GroupConfig, rule: &str, span: &Span, report: &mut Report<'_>) {
    if let Some(member) = group.unix() {
        let message = format!(
            "member {} is a Unix socket, but the UDP rule {rule:?} sends datagrams to addresses: write \
             its address and port",
            member.name()
        );
        report.add_problem(span, &group.path(), message, None);
    }
    let refused = [
        ("member_tls", group.member_tls.is_some()),
        ("send_proxy", group.send_proxy.is_some()),
        ("chooser", group.chooser.is_some()),
    ];
    for (key, _) in refused.into_iter().filter(|(_, is_set)| *is_set) {
        let message = format!(
            "has `{key}`, which the UDP rule {rule:?} cannot use: leave the key out, or give the rule \
             another group"
        );
        report.add_problem(span, &group.path(), message, None);
    }
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let keys = [describe_keys(UDP, UdpOptions::default())];
    TableDoc::new(
        "[rule.NAME.udp]",
        "Options of UDP rules: [UDP](udp.md).",
        keys,
    )
}
