//! Status of the CORBA service, for the admin API.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use evenkeel_manager::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::directory::Entry;
use crate::properties::{Membership, PropertySet};
use crate::service::LoadManager;
use crate::service::state::{ObjectGroup, State};
use crate::subsystem::{Corba, StandbyStatus};

/// A word from a fixed set; owned only in clients, which read it from JSON.
pub type Word = Cow<'static, str>;

/// The CORBA service.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CorbaStatus {
    /// Addresses that the service listens on; empty while it is switched off.
    pub listen: Vec<SocketAddr>,
    /// The load manager's reference, as in the IOR file; empty while another balancer serves.
    pub reference: String,
    /// Reason why the last change is not in the state file, or not in the store that balancers
    /// share; `null` if it is there.
    pub state_problem: Option<String>,
    /// Standby status of this balancer; `null` if no other balancer shares its state.
    #[serde(default)]
    pub standby: Option<StandbyStatus>,
    /// Connections of clients and servers that are open.
    pub connections: usize,
    /// Requests, by whom they were for.
    pub requests: BTreeMap<Word, u64>,
    /// Relayed requests, by result.
    pub relayed: BTreeMap<Word, u64>,
    /// Object groups, by id.
    pub groups: Vec<ObjectGroupStatus>,
    /// Load monitors, by location.
    pub monitors: Vec<RegisteredStatus>,
    /// Load alerts, by location.
    pub alerts: Vec<AlertObjectStatus>,
}

/// An object group.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ObjectGroupStatus {
    /// Id of the group. It never changes.
    pub id: u64,
    /// Name of the group elsewhere in the admin API.
    pub name: String,
    /// Repository id of its interface.
    pub type_id: String,
    /// Reference of the group, for clients.
    pub reference: String,
    /// Membership style: `application` or `infrastructure`.
    pub membership: Word,
    /// Properties that are set, each with its level, even if a stronger level overrides it.
    pub properties: Vec<PropertyStatus>,
    /// The group's custom strategy.
    pub custom_strategy: Option<CustomStatus>,
    /// Requests that were not relayed, by how they were answered.
    pub requests: BTreeMap<Word, u64>,
    /// Members of the group, in the order of joining.
    pub members: Vec<MemberStatus>,
}

/// A property of a group.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct PropertyStatus {
    /// Name of the property.
    pub name: String,
    /// Meaning of the property's value.
    pub value: String,
    /// Level at which the property is set: `group`, `type` or `default`.
    pub level: Word,
}

/// A strategy in another process.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CustomStatus {
    /// Reference of the strategy.
    pub reference: String,
    /// True if the strategy answered the last time. While it does not, its fallback decides.
    pub answers: bool,
    /// Number of times that the strategy did not answer in time.
    pub silences: u64,
    /// Number of answers that could not be used.
    pub unusable: u64,
}

/// A member of an object group. More about it is in the group of the same name.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Location of the member, which is also its name.
    pub location: String,
    /// Reference of the member, for clients.
    pub reference: String,
    /// True if a factory has made the member.
    pub made: bool,
}

/// An object that is registered for a location.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RegisteredStatus {
    /// The location.
    pub location: String,
    /// The object.
    pub reference: String,
}

/// A load alert.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct AlertObjectStatus {
    /// The location.
    pub location: String,
    /// The object.
    pub reference: String,
    /// True if the alert is to be on.
    pub wanted: bool,
    /// State that the object has acknowledged; `null` if it has acknowledged none.
    pub acknowledged: Option<bool>,
    /// Reason why the object has not acknowledged the last call.
    pub problem: Option<String>,
}

impl Corba {
    /// Returns the status of the service; `None` if it has never been switched on.
    pub fn status(&self) -> Option<CorbaStatus> {
        let standby = self.standby_status();
        let Some(service) = self.load_manager() else {
            return standby.map(CorbaStatus::standing_by);
        };
        let state = service.state();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (requests, relayed) = (self.counters(), self.relay_counters());
        let snapshot = service.directory().load_snapshot();
        let groups = state.groups.iter().filter_map(|(id, group)| {
            let entry = snapshot.group(*id)?;
            Some(group_status(&service, &state, group, entry))
        });
        let views = self.alerts().list_states();
        let views: HashMap<&str, _> = views.iter().map(|view| (&*view.location, view)).collect();
        let monitors = state.monitors.iter();
        Some(CorbaStatus {
            listen: self.local_addresses(),
            reference: service.reference().to_string(),
            standby,
            state_problem: service.store_problem().map(|problem| problem.to_string()),
            connections: self
                .server()
                .map_or(0, |server| server.counters().open.load(Ordering::Relaxed)),
            requests: BTreeMap::from([
                ("load_manager".into(), count(&requests.manager)),
                ("strategy".into(), count(&requests.strategies)),
                ("unknown".into(), count(&requests.unknown)),
            ]),
            relayed: BTreeMap::from([
                ("passed_on".into(), count(&relayed.requests)),
                ("again".into(), count(&relayed.again)),
                ("failed".into(), count(&relayed.failed)),
                ("timeout".into(), count(&relayed.timeouts)),
            ]),
            groups: groups.collect(),
            monitors: monitors
                .map(|(location, monitor)| RegisteredStatus {
                    location: location.clone(),
                    reference: monitor.to_string(),
                })
                .collect(),
            alerts: state
                .alerts
                .iter()
                .map(|(location, alert)| {
                    let view = views.get(&**location);
                    AlertObjectStatus {
                        location: location.clone(),
                        reference: alert.to_string(),
                        wanted: view.is_some_and(|view| view.desired),
                        acknowledged: view.and_then(|view| view.acknowledged),
                        problem: view.and_then(|view| view.problem.clone()),
                    }
                })
                .collect(),
        })
    }
}

impl CorbaStatus {
    /// The status of a balancer that does not serve.
    fn standing_by(standby: StandbyStatus) -> Self {
        CorbaStatus {
            listen: Vec::new(),
            reference: String::new(),
            state_problem: None,
            standby: Some(standby),
            connections: 0,
            requests: BTreeMap::new(),
            relayed: BTreeMap::new(),
            groups: Vec::new(),
            monitors: Vec::new(),
            alerts: Vec::new(),
        }
    }
}

fn group_status(
    service: &LoadManager,
    state: &State,
    group: &ObjectGroup,
    entry: &Entry,
) -> ObjectGroupStatus {
    let levels: [(&'static str, &PropertySet); 3] = [
        ("group", &group.properties),
        ("type", state.of_type(&group.type_id)),
        ("default", &state.defaults),
    ];
    let properties = levels.into_iter().flat_map(|(level, set)| {
        set.describe().map(move |(name, value)| PropertyStatus {
            name,
            value,
            level: level.into(),
        })
    });
    ObjectGroupStatus {
        id: entry.id,
        name: entry.name().to_string(),
        type_id: group.type_id.clone(),
        reference: service.group_reference(entry.id, group).to_string(),
        membership: match state.effective_settings(group).membership {
            Membership::Application => "application".into(),
            Membership::Infrastructure => "infrastructure".into(),
        },
        properties: properties.collect(),
        custom_strategy: entry.custom.as_ref().map(|custom| {
            let (silences, unusable) = custom.failures();
            CustomStatus {
                reference: custom.ior().to_string(),
                answers: custom.is_answering(),
                silences,
                unusable,
            }
        }),
        requests: entry
            .counters
            .answer_totals()
            .into_iter()
            .map(|(answer, count)| (answer.name().into(), count))
            .collect(),
        members: group
            .members
            .iter()
            .map(|member| MemberStatus {
                location: member.location.clone(),
                reference: member.reference.ior().to_string(),
                made: member.origin.is_some(),
            })
            .collect(),
    }
}

/// The CORBA service, table by table, for people.
pub fn format_tables(corba: &CorbaStatus) -> String {
    let mut all = Vec::new();
    let mut add = |names: &[&'static str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            all.push(text::format_table(names, rows));
        }
    };
    if let Some(standby) = &corba.standby {
        let names = ["ROLE", "OWNER", "FOR", "TAKEOVERS", "PROBLEM"];
        add(&names, vec![standby_row(standby)]);
        if !standby.is_owner {
            return all.join("\n");
        }
    }
    let names = ["LISTEN", "CONNECTIONS", "REQUESTS", "RELAYED", "PROBLEM"];
    add(&names, vec![service_row(corba)]);
    let names = [
        "GROUP",
        "ID",
        "TYPE",
        "MEMBERSHIP",
        "REQUESTS",
        "LOCATION",
        "MADE BY",
    ];
    add(&names, corba.groups.iter().flat_map(member_rows).collect());
    let names = ["GROUP", "PROPERTY", "VALUE", "LEVEL"];
    let rows = corba.groups.iter().flat_map(property_rows);
    add(&names, rows.collect());
    let names = ["GROUP", "CUSTOM STRATEGY", "SILENT", "UNUSABLE"];
    let rows = corba.groups.iter().filter_map(custom_row);
    add(&names, rows.collect());
    add(&["LOCATION", "MONITOR", "ALERT"], location_rows(corba));

    let groups = corba.groups.iter();
    let groups = groups.map(|group| vec![group.name.clone(), group.reference.clone()]);
    let manager = vec!["load manager".into(), corba.reference.clone()];
    let rows = std::iter::once(manager).chain(groups);
    add(&["OBJECT", "REFERENCE"], rows.collect());
    all.join("\n")
}

/// Counters that are not 0, each with its name.
fn counted(requests: &BTreeMap<Word, u64>) -> String {
    let counted = requests.iter().filter(|(_, count)| **count > 0);
    let words: Vec<_> = counted.map(|(what, n)| format!("{what}={n}")).collect();
    words.join(" ")
}

fn standby_row(standby: &StandbyStatus) -> Vec<String> {
    let role = if standby.is_owner {
        "serves"
    } else {
        "stands by"
    };
    vec![
        role.into(),
        standby.owner.clone().unwrap_or_else(|| "(nobody)".into()),
        format!("{:.0}s", standby.for_seconds),
        standby.takeovers.to_string(),
        standby.problem.clone().unwrap_or_default(),
    ]
}

fn service_row(corba: &CorbaStatus) -> Vec<String> {
    let listen: Vec<_> = corba.listen.iter().map(ToString::to_string).collect();
    vec![
        listen.join(" "),
        corba.connections.to_string(),
        counted(&corba.requests),
        counted(&corba.relayed),
        corba.state_problem.clone().unwrap_or_default(),
    ]
}

/// A row for each member; the first one has what is about the group.
fn member_rows(group: &ObjectGroupStatus) -> Vec<Vec<String>> {
    let mut first = vec![
        group.name.clone(),
        group.id.to_string(),
        group.type_id.clone(),
        group.membership.to_string(),
        counted(&group.requests),
    ];
    let mut rows = Vec::new();
    for member in &group.members {
        let by = if member.made {
            "factory"
        } else {
            "application"
        };
        first.extend([member.location.clone(), by.into()]);
        rows.push(std::mem::replace(&mut first, vec![String::new(); 5]));
    }
    if group.members.is_empty() {
        first.extend(["(no member)".into(), String::new()]);
        rows.push(first);
    }
    rows
}

fn property_rows(group: &ObjectGroupStatus) -> impl Iterator<Item = Vec<String>> {
    group.properties.iter().map(|property| {
        vec![
            group.name.clone(),
            property.name.clone(),
            property.value.clone(),
            property.level.to_string(),
        ]
    })
}

fn custom_row(group: &ObjectGroupStatus) -> Option<Vec<String>> {
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
}

/// A row for each location with a load monitor or a load alert.
fn location_rows(corba: &CorbaStatus) -> Vec<Vec<String>> {
    let mut places: BTreeMap<&str, (&str, String)> = BTreeMap::new();
    for monitor in &corba.monitors {
        places.entry(&monitor.location).or_default().0 = "registered";
    }
    for alert in &corba.alerts {
        places.entry(&alert.location).or_default().1 = alert_words(alert);
    }
    let rows = places.into_iter();
    rows.map(|(at, (monitor, alert))| vec![at.into(), monitor.into(), alert])
        .collect()
}

/// Returns text that says if a load alert is on, and if its object knows.
fn alert_words(alert: &AlertObjectStatus) -> String {
    let wanted = if alert.wanted { "on" } else { "off" };
    let known = match (alert.acknowledged, &alert.problem) {
        (Some(known), _) if known == alert.wanted => String::new(),
        (_, Some(problem)) => format!(" (not acknowledged: {problem})"),
        (_, None) => " (not acknowledged yet)".into(),
    };
    format!("{wanted}{known}")
}
