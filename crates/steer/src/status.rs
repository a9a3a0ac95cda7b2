//! Status of the balancers that get weights, for administrators.

use evenkeel_manager::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A `[steer.NAME]`, as the admin API shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct SteerStatus {
    /// Name of the section: `NAME`.
    pub name: String,
    /// The group whose weights are told.
    pub group: String,
    /// Balancer that is told: kind, socket and backend, or kind and file.
    pub target: String,
    /// True if nothing is changed there.
    pub dry_run: bool,
    /// Program that answers there; `null` if none has, or if the target is a file.
    pub peer: Option<String>,
    /// Reason why the last try has failed; `null` if it has not.
    pub error: Option<String>,
    /// Number of times that weights or states were changed there.
    pub changes: u64,
    /// Number of tries that have failed.
    pub failures: u64,
    /// Number of times that the other balancer was found to be another process than before.
    pub restarts: u64,
    /// Number of weights that were found changed by somebody else.
    pub overridden: u64,
    /// The members, in their order; one with several servers comes once for each.
    pub members: Vec<SteeredMember>,
    /// Servers of the other balancer that are no members: they are left alone.
    pub others: Vec<String>,
    /// Orders that would be sent, with a dry run.
    pub pending: Vec<String>,
}

/// A member of a group whose weights are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct SteeredMember {
    /// Name that the configuration gives it, or else `member`.
    pub name: String,
    /// Address in the configuration, by which metrics and logs know it.
    pub member: String,
    /// Address where the member listens.
    pub address: String,
    /// Standing of the member: `serving`, `draining`, `maintenance`, `down`, `shedding` or `standby`.
    pub state: String,
    /// The weight that it should have, 0 to 256.
    pub weight: u32,
    /// Name that the other balancer has for the member; `null` if there is none.
    pub server: Option<String>,
    /// The weight that it has there; `null` if it is not there.
    pub has: Option<u32>,
    /// Remark about the member.
    pub note: Option<String>,
}

/// Returns tables of all sections, for people.
pub fn format_tables(all: &[SteerStatus]) -> String {
    if all.is_empty() {
        return "no other balancer is steered: the configuration has no [steer.NAME]\n".into();
    }
    let tables: Vec<String> = all.iter().map(format_target).collect();
    tables.join("\n")
}

fn format_target(status: &SteerStatus) -> String {
    let SteerStatus {
        name,
        group,
        target,
        changes,
        failures,
        ..
    } = status;
    let mut shown = format!("{name}: group {group}, {target}\n");
    if let Some(peer) = &status.peer {
        shown += &format!("{peer}\n");
    }
    if status.dry_run {
        shown += "dry run: nothing is changed\n";
    }
    if let Some(error) = &status.error {
        shown += &format!("failed: {error}\n");
    }
    shown += &format!(
        "{changes} changes, {failures} failures, {} restarts, {} weights changed by others\n",
        status.restarts, status.overridden
    );
    let sum: u32 = status
        .members
        .iter()
        .fold(0u32, |sum, member| sum.saturating_add(member.weight));
    let row = |member: &SteeredMember| {
        let share = match sum {
            0 => 0.0,
            sum => f64::from(member.weight) * 100.0 / f64::from(sum),
        };
        vec![
            member.name.clone(),
            member.state.clone(),
            format!("{share:.1}"),
            member.weight.to_string(),
            member.has.map_or("-".into(), |weight| weight.to_string()),
            member.server.clone().unwrap_or_else(|| "-".into()),
            member.note.clone().unwrap_or_default(),
        ]
    };
    let names = [
        "MEMBER", "STATE", ">SHARE%", ">WEIGHT", ">HAS", "SERVER", "NOTE",
    ];
    shown += &text::format_table(&names, status.members.iter().map(row));
    if !status.others.is_empty() {
        shown += &format!(
            "servers that are no members, left alone: {}\n",
            status.others.join(" ")
        );
    }
    for order in &status.pending {
        shown += &format!("would send: {order}\n");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_shares_and_what_is_wrong() {
        let member = |name: &str, weight, has: Option<u32>, note: Option<&str>| SteeredMember {
            name: name.into(),
            member: name.into(),
            address: name.into(),
            state: if weight > 0 { "serving" } else { "draining" }.into(),
            weight,
            server: has.map(|_| "s1".into()),
            has,
            note: note.map(Into::into),
        };
        let status = SteerStatus {
            name: "edge".into(),
            group: "web".into(),
            target: "HAProxy unix:/h backend web".into(),
            error: Some("cannot connect".into()),
            changes: 7,
            members: vec![
                member("10.0.0.1:80", 30, Some(30), None),
                member("10.0.0.2:80", 10, None, Some("HAProxy has no server")),
                member("10.0.0.3:80", 0, Some(0), None),
            ],
            others: vec!["x".into(), "y".into()],
            pending: vec!["set server web/s1 weight 30".into()],
            ..SteerStatus::default()
        };
        let shown = format_tables(&[status]);
        for wanted in [
            "edge: group web, HAProxy unix:/h backend web\n",
            "failed: cannot connect\n",
            "7 changes, 0 failures",
            "10.0.0.1:80  serving     75.0      30   30  s1",
            "HAProxy has no server\n",
            "no members, left alone: x y\n",
            "would send: set server web/s1 weight 30\n",
        ] {
            assert!(shown.contains(wanted), "{shown}");
        }
        assert!(format_tables(&[]).contains("no [steer.NAME]"));
    }
}
