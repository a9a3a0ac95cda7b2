//! State of the load manager: object groups with their members, properties, monitors and alerts.
//! All of it is kept in the [state file](super::store).

use std::sync::Arc;

use evenkeel_giop::any::Any;
use evenkeel_giop::ior::Ior;
use imbl::OrdMap;

use crate::directory::Reference;
use crate::exceptions::UserException;
use crate::properties::{self, EffectiveSettings, Membership, PropertySet};

/// Everything that outlives the process. Cheap to clone: versions share what is the same in
/// them, and what is not is found without looking at the rest ([`OrdMap::diff`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The id of the next group. None is ever used again.
    pub next_group: u64,
    /// The next creation id.
    pub next_creation: u32,
    /// By id.
    pub groups: OrdMap<u64, Arc<ObjectGroup>>,
    /// Load monitors by location.
    pub monitors: OrdMap<String, Arc<Ior>>,
    /// Load alerts by location.
    pub alerts: OrdMap<String, Arc<Ior>>,
    /// Load alerts that are forced on, or suppressed, by location.
    pub forced: OrdMap<String, bool>,
    /// The default properties.
    pub defaults: Arc<PropertySet>,
    /// Properties of groups by the repository id of their interface.
    pub types: OrdMap<String, Arc<PropertySet>>,
}

/// An object group.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectGroup {
    /// Repository id of its interface.
    pub type_id: String,
    /// By which its creator deletes it.
    pub creation: u32,
    /// Properties of the group itself.
    pub properties: PropertySet,
    /// Members of the group, in the order of joining.
    pub members: Vec<GroupMember>,
}

/// A member of an object group.
#[derive(Clone, Debug)]
pub struct GroupMember {
    /// Location of the member, which is also its name: see [`Name`](crate::name::Name).
    pub location: String,
    /// Reference of the member for clients, exactly as it was given.
    pub reference: Arc<Reference>,
    /// The factory that made it.
    pub origin: Option<Made>,
}

/// Origin of a member, for the factory that is to delete it.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// The factory.
    pub factory: Ior,
    /// Creation id that the factory has given the member.
    pub creation: Any,
}

impl PartialEq for GroupMember {
    fn eq(&self, other: &Self) -> bool {
        self.location == other.location
            && self.reference.ior() == other.reference.ior()
            && self.origin == other.origin
    }
}

/// Valid property values equal themselves, so two versions of a group that are the same object need
/// not be compared any further.
impl Eq for ObjectGroup {}

impl ObjectGroup {
    /// Returns the size of the group, counted as in [`State::size`].
    pub fn size(&self) -> usize {
        let member = |member: &GroupMember| {
            let made = member.origin.as_ref();
            let made = made.map_or(0, |made| {
                made.factory.encoded_size() + made.creation.encoded_size()
            });
            member.location.len() + member.reference.ior().encoded_size() + made
        };
        let members: usize = self.members.iter().map(member).sum();
        self.type_id.len() + self.properties.size() + members
    }

    /// The member at a location.
    pub fn member(&self, location: &str) -> Option<&GroupMember> {
        self.members.iter().find(|m| m.location == location)
    }
}

impl State {
    /// About how many bytes it keeps: what was given, without what it takes to hold it.
    pub fn size(&self) -> usize {
        let registered = self.monitors.iter().chain(&self.alerts);
        let registered = registered.map(|(at, ior)| at.len() + ior.encoded_size());
        let groups = self.groups.values().map(|group| group.size());
        registered.chain(groups).sum::<usize>() + self.size_of_few()
    }

    /// Returns the size of the small parts: default properties, those of types, and alerts that are
    /// forced.
    pub fn size_of_few(&self) -> usize {
        let types = self.types.iter().map(|(id, set)| id.len() + set.size());
        let forced = self.forced.keys().map(|at| at.len() + 1);
        types.chain(forced).sum::<usize>() + self.defaults.size()
    }

    /// The group with this id.
    pub fn group(&self, id: u64) -> Result<&Arc<ObjectGroup>, UserException> {
        let group = self.groups.get(&id);
        group.ok_or(UserException::ObjectGroupNotFound)
    }

    /// The properties of the groups with that interface.
    pub fn of_type(&self, type_id: &str) -> &PropertySet {
        static NONE: PropertySet = PropertySet::EMPTY;
        self.types.get(type_id).map_or(&NONE, |set| set)
    }

    /// Returns the settings in effect for a group.
    pub fn effective_settings(&self, group: &ObjectGroup) -> EffectiveSettings {
        let of_type = self.of_type(&group.type_id);
        properties::effective_settings(&group.properties, of_type, &self.defaults)
    }

    /// Returns the membership style in effect for a group: [`EffectiveSettings::membership`].
    pub fn membership(&self, group: &ObjectGroup) -> Membership {
        let of_type = self.of_type(&group.type_id);
        let levels = [&group.properties, of_type, &self.defaults];
        let said = levels.into_iter().find_map(PropertySet::membership);
        said.unwrap_or(Membership::Infrastructure)
    }

    /// The group with this id, to be changed.
    pub fn group_mut(&mut self, id: u64) -> Result<&mut ObjectGroup, UserException> {
        let group = self.groups.get_mut(&id);
        group
            .map(Arc::make_mut)
            .ok_or(UserException::ObjectGroupNotFound)
    }
}
