//! Status of the clients, for the admin API.

use std::net::SocketAddr;

use evenkeel_manager::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of xDS.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct XdsStatus {
    /// Addresses that clients connect to.
    pub listen: Vec<SocketAddr>,
    /// Connections of clients that are open.
    pub connections: usize,
    /// Connections that were closed at once, as there were too many.
    pub refused: u64,
    /// Groups that clients may have.
    pub groups: usize,
    /// Number of changes of resources.
    pub changes: u64,
    /// Load reports that clients have sent.
    pub load_reports: u64,
    /// Entries of load reports about what is no member.
    pub unknown_load_reports: u64,
    /// Streams of clients, by their names; several if a client has several.
    pub clients: Vec<ClientStatus>,
}

/// A stream of a client.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The name of the client (`node.id`), as it says; empty before it has said anything.
    pub node: String,
    /// Service that the client is part of (`node.cluster`), as the client says.
    pub service: String,
    /// Program of the client and its version, as the client says.
    pub program: String,
    /// `envoy`, or `grpc` for clients that get a locality for each member.
    pub dialect: String,
    /// The zone that it is in, as it says.
    pub zone: Option<String>,
    /// Address that the client connects from.
    pub address: SocketAddr,
    /// `state_of_the_world` or `incremental`; `load_reports` is a stream on which it reports.
    pub stream: String,
    /// For how long the stream has been there.
    pub connected_seconds: f64,
    /// Status of each type of resource that the client wants.
    pub subscriptions: Vec<SubscriptionStatus>,
}

/// Status of a type of resource that a client wants.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SubscriptionStatus {
    /// `cluster`, `endpoints`, `listener` or `route`.
    #[serde(rename = "type")]
    pub kind: String,
    /// True if the client wants all resources of the type.
    pub all: bool,
    /// Number of resources that the client wants by name.
    pub names: usize,
    /// Version of the last answer that it has accepted.
    pub accepted: Option<String>,
    /// Version of the answer of which it has said nothing yet.
    pub pending: Option<String>,
    /// Answers that it was sent.
    pub pushes: u64,
    /// Answers that it has refused.
    pub nacks: u64,
    /// The last answer that it has refused.
    pub last_nack: Option<NackStatus>,
}

/// An answer that a client has refused.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct NackStatus {
    /// Version of the answer that was refused.
    pub version: String,
    /// Reason of the refusal, as the client says.
    pub reason: String,
    /// Time since the refusal, in seconds.
    pub age_seconds: f64,
}

/// Returns the status as tables for people.
pub fn format_tables(status: &XdsStatus) -> String {
    let listen: Vec<String> = status.listen.iter().map(ToString::to_string).collect();
    let mut out = format!(
        "listens on {}; {} groups, {} changes; {} connections ({} refused); {} load reports\n\n",
        listen.join(", "),
        status.groups,
        status.changes,
        status.connections,
        status.refused,
        status.load_reports
    );
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    let mut rows = Vec::new();
    for client in &status.clients {
        let first = |kind: &str| {
            vec![
                client.node.clone(),
                client.dialect.clone(),
                client.address.to_string(),
                kind.to_owned(),
            ]
        };
        for of in &client.subscriptions {
            let mut row = first(&of.kind);
            row.push(match of.all {
                true => "all".into(),
                false => of.names.to_string(),
            });
            row.push(dash(&of.accepted));
            row.push(of.pushes.to_string());
            row.push(of.nacks.to_string());
            let nack = of.last_nack.as_ref();
            row.push(nack.map_or_else(String::new, |nack| {
                let age = nack.age_seconds;
                format!("{} {age:.0}s ago: {}", nack.version, nack.reason)
            }));
            rows.push(row);
        }
        if client.subscriptions.is_empty() {
            let mut row = first(&client.stream);
            row.extend(["-", "-", "-", "-", ""].map(str::to_owned));
            rows.push(row);
        }
    }
    let names = [
        "CLIENT",
        "DIALECT",
        "ADDRESS",
        "TYPE",
        ">WANTS",
        "ACCEPTED",
        ">PUSHES",
        ">NACKS",
        "LAST NACK",
    ];
    out.push_str(&text::format_table(&names, rows));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nack_is_shown_by_name_with_its_reason_and_the_last_accepted_version() {
        let status = XdsStatus {
            listen: vec![([127, 0, 0, 1], 18000).into()],
            connections: 1,
            refused: 0,
            groups: 2,
            changes: 9,
            load_reports: 3,
            unknown_load_reports: 0,
            clients: vec![ClientStatus {
                node: "edge-1".into(),
                service: "edge".into(),
                program: "envoy 1.40".into(),
                dialect: "envoy".into(),
                zone: None,
                address: ([192, 0, 2, 7], 4711).into(),
                stream: "state_of_the_world".into(),
                connected_seconds: 5.0,
                subscriptions: vec![SubscriptionStatus {
                    kind: "cluster".into(),
                    all: true,
                    names: 0,
                    accepted: Some("e1-7".into()),
                    pending: None,
                    pushes: 4,
                    nacks: 1,
                    last_nack: Some(NackStatus {
                        version: "e1-9".into(),
                        reason: "no such policy".into(),
                        age_seconds: 3.2,
                    }),
                }],
            }],
        };
        let text = format_tables(&status);
        let line = text.lines().last().unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let expected =
            "edge-1 envoy 192.0.2.7:4711 cluster all e1-7 4 1 e1-9 3s ago: no such policy";
        assert_eq!(words.join(" "), expected);
    }
}
