//! `evenkeel ctl corba`: what the CORBA service knows, and what is to be removed from it.

use std::collections::BTreeMap;

use clap::Subcommand;
use evenkeel_admin::text::{self, Head};
use evenkeel_corba::status::{AlertObjectStatus, CorbaStatus, MemberStatus, Word};

use super::Asker;
use crate::Failure;

/// `evenkeel ctl corba`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show everything (the default)
    List,
    /// Remove a registration of a dead process
    #[command(subcommand)]
    Remove(Registration),
}

/// What `evenkeel ctl corba remove` takes away.
#[derive(Debug, Subcommand)]
pub enum Registration {
    /// The load monitor of a location
    Monitor {
        /// Name of the location
        location: String,
    },
    /// The load alert of a location
    Alert {
        /// Name of the location
        location: String,
    },
    /// An object group with all its members
    Group {
        /// Name of the group
        group: String,
    },
    /// The member of an object group at a location
    Member {
        /// Name of the group
        group: String,
        /// Name of the location
        location: String,
    },
}

/// Runs a command; answers what to print.
pub(super) fn run(api: &Asker, command: Option<&Command>) -> Result<String, Failure> {
    let Some(Command::Remove(registration)) = command else {
        return api.show(&["v1", "corba"], |corba: &Option<CorbaStatus>| {
            corba.as_ref().map_or_else(
                || "there is no [corba] in the configuration\n".into(),
                tables,
            )
        });
    };
    let (path, what) = match registration {
        Registration::Monitor { location } => (
            vec!["monitors", location],
            format!("the load monitor at {location}"),
        ),
        Registration::Alert { location } => (
            vec!["alerts", location],
            format!("the load alert at {location}"),
        ),
        Registration::Group { group } => (vec!["groups", group], group.clone()),
        Registration::Member { group, location } => (
            vec!["groups", group, "members", location],
            format!("the member of {group} at {location}"),
        ),
    };
    let path = [&["v1", "corba"], &path[..], &["remove"]].concat();
    let done = api.client.post(&path, &serde_json::json!({}))?;
    api.done(&done, || format!("{what} is removed"))
}

/// The CORBA service, table by table.
fn tables(corba: &CorbaStatus) -> String {
    let reference = |label: &str, ior: &str| vec![label.to_owned(), ior.to_owned()];
    let mut parts = Vec::new();
    let requests = |requests: &BTreeMap<Word, u64>| {
        let counted = requests.iter().filter(|(_, count)| **count > 0);
        let words: Vec<_> = counted.map(|(what, n)| format!("{what}={n}")).collect();
        words.join(" ")
    };
    let listen: Vec<_> = corba.listen.iter().map(ToString::to_string).collect();
    let heads = ["LISTEN", "CONNECTIONS", "REQUESTS", "RELAYED", "PROBLEM"].map(Head::words);
    let row = vec![
        listen.join(" "),
        corba.connections.to_string(),
        requests(&corba.requests),
        requests(&corba.relayed),
        corba.state_problem.clone().unwrap_or_default(),
    ];
    parts.push(text::table(&heads, &[row]));
    let heads = [
        "GROUP",
        "ID",
        "TYPE",
        "MEMBERSHIP",
        "REQUESTS",
        "LOCATION",
        "MADE BY",
    ]
    .map(Head::words);
    let mut rows = Vec::new();
    for group in &corba.groups {
        let first = [
            group.name.clone(),
            group.id.to_string(),
            group.type_id.clone(),
            group.membership.to_string(),
            requests(&group.requests),
        ];
        let member = |member: &MemberStatus| {
            let by = if member.made {
                "factory"
            } else {
                "application"
            };
            [member.location.clone(), by.into()]
        };
        let mut members: Vec<_> = group.members.iter().map(member).collect();
        if members.is_empty() {
            members.push(["(no member)".into(), String::new()]);
        }
        for (index, member) in members.into_iter().enumerate() {
            let start = match index {
                0 => first.clone(),
                _ => Default::default(),
            };
            rows.push(start.into_iter().chain(member).collect());
        }
    }
    if !rows.is_empty() {
        parts.push(text::table(&heads, &rows));
    }
    let heads = ["GROUP", "PROPERTY", "VALUE", "LEVEL"].map(Head::words);
    let rows: Vec<_> = corba
        .groups
        .iter()
        .flat_map(|group| {
            group.properties.iter().map(|property| {
                vec![
                    group.name.clone(),
                    property.name.clone(),
                    property.value.clone(),
                    property.level.to_string(),
                ]
            })
        })
        .collect();
    if !rows.is_empty() {
        parts.push(text::table(&heads, &rows));
    }
    let heads = ["GROUP", "CUSTOM STRATEGY", "SILENT", "UNUSABLE"].map(Head::words);
    let customs = corba.groups.iter().filter_map(|group| {
        let custom = group.custom_strategy.as_ref()?;
        let answers = if custom.answers {
            "answers"
        } else {
            "does not answer"
        };
        Some(vec![
            group.name.clone(),
            answers.into(),
            custom.silences.to_string(),
            custom.unusable.to_string(),
        ])
    });
    let rows: Vec<_> = customs.collect();
    if !rows.is_empty() {
        parts.push(text::table(&heads, &rows));
    }
    let heads = ["LOCATION", "MONITOR", "ALERT"].map(Head::words);
    let mut places: BTreeMap<&str, (&str, String)> = BTreeMap::new();
    for monitor in &corba.monitors {
        places.entry(&monitor.location).or_default().0 = "registered";
    }
    for alert in &corba.alerts {
        places.entry(&alert.location).or_default().1 = alert_words(alert);
    }
    let rows: Vec<_> = places
        .into_iter()
        .map(|(at, (monitor, alert))| vec![at.to_owned(), monitor.to_owned(), alert])
        .collect();
    if !rows.is_empty() {
        parts.push(text::table(&heads, &rows));
    }
    let mut rows = vec![reference("load manager", &corba.reference)];
    for group in &corba.groups {
        rows.push(reference(&group.name, &group.reference));
    }
    let heads = ["OBJECT", "REFERENCE"].map(Head::words);
    parts.push(text::table(&heads, &rows));
    parts.join("\n")
}

/// Whether a load alert is on, and whether its object knows.
fn alert_words(alert: &AlertObjectStatus) -> String {
    let wanted = if alert.wanted { "on" } else { "off" };
    let known = match (alert.acknowledged, &alert.problem) {
        (Some(known), _) if known == alert.wanted => String::new(),
        (_, Some(problem)) => format!(" (not acknowledged: {problem})"),
        (_, None) => " (not acknowledged yet)".into(),
    };
    format!("{wanted}{known}")
}
