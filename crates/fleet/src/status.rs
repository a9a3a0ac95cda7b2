//! Status of a fleet, for the admin API.

use std::net::SocketAddr;

use evenkeel_core::time::Instant;
use evenkeel_gossip::Fleet;
use evenkeel_manager::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of a fleet, as one balancer sees it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct FleetStatus {
    /// Name of this balancer.
    pub name: String,
    /// Address at which others reach this balancer.
    pub address: SocketAddr,
    /// True if this balancer knows what all others say: before that it decides nothing.
    pub ready: bool,
    /// The others.
    pub balancers: Vec<BalancerStatus>,
    /// Groups, with who decides upon their alerts.
    pub groups: Vec<GroupAlerts>,
    /// Datagrams that came, by what became of them.
    pub datagrams: Vec<DatagramCount>,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Number of these datagrams that the system did not take.
    pub unsent: u64,
    /// Bytes that were sent, with the headers of IP and UDP.
    pub sent_bytes: u64,
    /// Bytes that were received, with these headers.
    pub received_bytes: u64,
    /// Number of times that this balancer began to decide upon the alerts of a group.
    pub takeovers: u64,
    /// Number of prompts at engines for language models that this balancer has told the others.
    #[serde(default)]
    pub prompts_told: u64,
    /// Number of such prompts, or parts of them, that the others have told.
    #[serde(default)]
    pub prompts_heard: u64,
    /// Number of locations whose loads this balancer reads for all.
    #[serde(default)]
    pub locations_read: usize,
    /// Number of times that this balancer has found that another balancer is gone.
    pub missed: u64,
}

/// Status of another balancer.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct BalancerStatus {
    /// Name of the balancer.
    pub name: String,
    /// Address at which the balancer is reached.
    pub address: SocketAddr,
    /// `up`, or `gone`.
    pub state: String,
    /// Time since something was heard of the balancer, in seconds.
    pub heard_seconds: f64,
    /// The balancer that passes on what this one has to say, if it is not reached directly.
    pub via: Option<SocketAddr>,
    /// True if the balancer knows all that this balancer has to say.
    pub told: bool,
    /// True if the balancer has the same groups.
    pub same_groups: bool,
    /// Number of members that the balancer has ejected.
    #[serde(default)]
    pub ejections: usize,
    /// Number of locations whose loads the balancer reads for all.
    #[serde(default)]
    pub locations_read: usize,
}

/// A group, and who decides upon its alerts.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct GroupAlerts {
    /// Name of the group.
    pub group: String,
    /// The balancer that decides; `null` is nobody, or one that is gone.
    pub decides: Option<String>,
    /// Number of times that another balancer became the one that decides.
    pub epoch: u64,
    /// Number of the group's locations that are under alert.
    pub alerts: usize,
    /// Number of further locations that count as under alert, as some balancer may not know yet that they are
    /// not.
    pub alerts_elsewhere: usize,
}

/// Datagrams of one kind.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct DatagramCount {
    /// Result for the datagrams.
    pub result: String,
    /// Number of datagrams.
    pub count: u64,
}

impl FleetStatus {
    pub(crate) fn new(fleet: &Fleet, unsent: u64, now: Instant) -> Self {
        let counters = fleet.counters();
        let balancers = fleet.peers(now).map(|peer| BalancerStatus {
            name: peer.id.name.to_string(),
            address: peer.id.address,
            state: if peer.active { "up" } else { "gone" }.into(),
            heard_seconds: peer.silence.as_secs_f64(),
            via: peer.via,
            told: peer.is_told,
            same_groups: peer.same_groups,
            ejections: peer.ejections,
            locations_read: fleet.locations_read_by(peer.id.address, now),
        });
        let groups = fleet.groups().map(|group| GroupAlerts {
            group: group.name.into(),
            decides: group.holder.map(|id| id.name.to_string()),
            epoch: group.epoch,
            alerts: group.raised,
            alerts_elsewhere: group.elsewhere,
        });
        let mut groups: Vec<GroupAlerts> = groups.collect();
        groups.sort_by(|a, b| a.group.cmp(&b.group));
        let datagrams = counters
            .received_datagrams()
            .map(|(outcome, count)| DatagramCount {
                result: outcome.name().into(),
                count,
            });
        FleetStatus {
            name: fleet.id().name.to_string(),
            address: fleet.id().address,
            ready: fleet.is_ready_now(),
            balancers: balancers.collect(),
            groups,
            datagrams: datagrams.collect(),
            sent: counters.sent,
            unsent,
            sent_bytes: counters.sent_bytes,
            received_bytes: counters.received_bytes,
            takeovers: counters.claims,
            prompts_told: counters.prompts_told,
            prompts_heard: counters.prompts_heard,
            locations_read: fleet.locations_read(),
            missed: counters.missed,
        }
    }
}

/// Returns the balancers as a table for people; `None` if there is no fleet.
pub fn format_table(fleet: &Option<FleetStatus>) -> String {
    match fleet {
        Some(fleet) => table(fleet),
        None => "this balancer is in no fleet: the configuration has no [fleet]\n".into(),
    }
}

fn table(fleet: &FleetStatus) -> String {
    let own = vec![
        format!("{} (this one)", fleet.name),
        fleet.address.to_string(),
        if fleet.ready { "up" } else { "joining" }.into(),
        String::new(),
        decides(fleet, &fleet.name),
    ];
    let row = |balancer: &BalancerStatus| {
        let unless = |is: bool, word| if is { "" } else { word };
        let told = unless(balancer.told, " (state not sent yet)");
        let groups = unless(balancer.same_groups, " (has other groups)");
        let via = balancer
            .via
            .map_or(String::new(), |via| format!(" (reached through {via})"));
        vec![
            balancer.name.clone(),
            balancer.address.to_string(),
            format!("{}{via}{told}{groups}", balancer.state),
            format!("{:.1}s", balancer.heard_seconds),
            decides(fleet, &balancer.name),
        ]
    };
    let names = ["BALANCER", "ADDRESS", "STATE", ">HEARD", ">GROUPS"];
    let rows = std::iter::once(own).chain(fleet.balancers.iter().map(row));
    text::format_table(&names, rows)
}

/// Returns the number of groups that a balancer decides upon.
fn decides(fleet: &FleetStatus, name: &str) -> String {
    let groups = fleet.groups.iter();
    let of_it = groups.filter(|group| group.decides.as_deref() == Some(name));
    of_it.count().to_string()
}
