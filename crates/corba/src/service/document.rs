//! The state as JSON.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_giop::any::Any;
use evenkeel_giop::ior::Ior;
use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::file::{PRIVATE, VERSION, replace};
use super::state::{GroupMember, Made, ObjectGroup, State};
use crate::directory::Reference;
use crate::name::Name;
use crate::properties::PropertySet;

/// The file as it is.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    version: u32,
    /// Id in the first line of the journal that belongs to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) journal: Option<String>,
    next_group: u64,
    next_creation: u32,
    groups: Vec<GroupEntry>,
    monitors: BTreeMap<String, String>,
    alerts: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    forced_alerts: BTreeMap<String, bool>,
    default_properties: PropertySet,
    type_properties: BTreeMap<String, PropertySet>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupEntry {
    pub(super) id: u64,
    type_id: String,
    creation: u32,
    properties: PropertySet,
    members: Vec<MemberEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberEntry {
    location: String,
    reference: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    factory: Option<FactoryEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FactoryEntry {
    reference: String,
    creation: String,
}

/// The state of a load manager that knows nothing. References of an earlier one, whose
/// file is lost, must not mean the groups of this one, so ids start with the time, in
/// seconds: nobody makes a group per second for as long as the file was there.
pub fn fresh_state() -> State {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    State {
        next_group: now.map_or(1, |now| now.as_secs()),
        next_creation: 1,
        ..State::default()
    }
}

/// The state as its file has it.
pub fn state_document(state: &State) -> impl Serialize + use<> {
    Document::of(state)
}

/// The state that [`state_document`] has made this of.
///
/// # Errors
///
/// Text that says what is wrong with the document.
pub fn of_document(document: serde_json::Value) -> Result<State, String> {
    let document: Document = serde_json::from_value(document).map_err(|error| error.to_string())?;
    document.into_state()
}

impl Document {
    pub(super) fn of(state: &State) -> Self {
        let references = |map: &OrdMap<String, Arc<Ior>>| {
            let text = |(at, ior): (&String, &Arc<Ior>)| (at.clone(), ior.to_string());
            map.iter().map(text).collect()
        };
        let group = |(id, group): (&u64, &Arc<ObjectGroup>)| GroupEntry::from_group(*id, group);
        let types = state.types.iter();
        Document {
            version: VERSION,
            journal: None,
            next_group: state.next_group,
            next_creation: state.next_creation,
            groups: state.groups.iter().map(group).collect(),
            monitors: references(&state.monitors),
            alerts: references(&state.alerts),
            forced_alerts: state
                .forced
                .iter()
                .map(|(at, on)| (at.clone(), *on))
                .collect(),
            default_properties: (*state.defaults).clone(),
            type_properties: types.map(|(id, of)| (id.clone(), (**of).clone())).collect(),
        }
    }

    pub(super) fn into_state(self) -> Result<State, String> {
        let mut groups = OrdMap::new();
        for entry in self.groups {
            let id = entry.id;
            let group = entry
                .into_group()
                .map_err(|error| format!("group {id}: {error}"))?;
            if id >= self.next_group || groups.insert(id, Arc::new(group)).is_some() {
                return Err(format!(
                    "group {id} is there twice, or is not below `next_group`"
                ));
            }
        }
        let references = |map: BTreeMap<String, String>| {
            let one = |(at, ior): (String, String)| {
                Ok((parse_location(at)?, Arc::new(parse_reference(&ior)?)))
            };
            map.into_iter()
                .map(one)
                .collect::<Result<OrdMap<_, _>, String>>()
        };
        let types = self.type_properties.into_iter();
        Ok(State {
            next_group: self.next_group,
            next_creation: self.next_creation,
            groups,
            monitors: references(self.monitors)?,
            alerts: references(self.alerts)?,
            forced: {
                let forced = self.forced_alerts.into_iter();
                let forced = forced.map(|(at, on)| Ok((parse_location(at)?, on)));
                forced.collect::<Result<_, String>>()?
            },
            defaults: Arc::new(self.default_properties),
            types: types.map(|(id, of)| (id, Arc::new(of))).collect(),
        })
    }
}

impl GroupEntry {
    pub(super) fn from_group(id: u64, group: &ObjectGroup) -> Self {
        GroupEntry {
            id,
            type_id: group.type_id.clone(),
            creation: group.creation,
            properties: group.properties.clone(),
            members: group.members.iter().map(MemberEntry::of).collect(),
        }
    }

    pub(super) fn into_group(self) -> Result<ObjectGroup, String> {
        let mut members: Vec<GroupMember> = Vec::with_capacity(self.members.len());
        for entry in self.members {
            let made = match entry.factory {
                None => None,
                Some(factory) => Some(Made {
                    factory: parse_reference(&factory.reference)?,
                    creation: any(&factory.creation)?,
                }),
            };
            let location = parse_location(entry.location)?;
            if members.iter().any(|member| member.location == location) {
                return Err(format!("two members are at {location:?}"));
            }
            members.push(GroupMember {
                location,
                reference: Arc::new(Reference::new(parse_reference(&entry.reference)?)),
                origin: made,
            });
        }
        Ok(ObjectGroup {
            type_id: self.type_id,
            creation: self.creation,
            properties: self.properties,
            members,
        })
    }
}

impl MemberEntry {
    fn of(member: &GroupMember) -> Self {
        MemberEntry {
            location: member.location.clone(),
            reference: member.reference.ior().to_string(),
            factory: member.origin.as_ref().map(|made| FactoryEntry {
                reference: made.factory.to_string(),
                creation: made.creation.to_string(),
            }),
        }
    }
}

pub(super) fn parse_location(text: String) -> Result<String, String> {
    match text.parse::<Name>() {
        Ok(_) => Ok(text),
        Err(error) => Err(error.to_string()),
    }
}

fn any(text: &str) -> Result<Any, String> {
    text.parse::<Any>().map_err(|error| error.to_string())
}

pub(super) fn parse_reference(text: &str) -> Result<Ior, String> {
    text.parse::<Ior>().map_err(|error| error.to_string())
}

/// Replaces the file at `path`; answers how long it is. `journal` is what its journal is to be
/// called.
pub(super) fn save_state(path: &Path, state: &State, journal: Option<&str>) -> io::Result<u64> {
    let mut document = Document::of(state);
    document.journal = journal.map(str::to_owned);
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    replace(path, &text, PRIVATE)?;
    Ok(text.len() as u64)
}
