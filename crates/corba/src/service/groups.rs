//! `PortableGroup::ObjectGroupManager`: object groups and their members.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_giop::client::{Call, CallError, Client};
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;
use tokio::time::Instant;
use tracing::{info, warn};

use super::load_manager::LoadManager;
use super::raise::Raise;
use super::state::{GroupMember, ObjectGroup, State};
use crate::directory::Reference;
use crate::exceptions::UserException;
use crate::keys::Key;
use crate::name::Name;
use crate::properties::GROUP_NAME;
use crate::types::{Properties, value_of};

/// Most object groups.
pub(super) const MOST_GROUPS: usize = 100_000;

/// Most members of a group.
pub(super) const MOST_MEMBERS: usize = 10_000;

/// Longest location, in bytes of its text.
const LONGEST_LOCATION: usize = 1024;

/// Longest repository id, in bytes.
const LONGEST_TYPE_ID: usize = 1024;

/// The text of a location: what it is called everywhere else. One without any component
/// names nothing, and control characters would end up in logs and terminals: BAD_PARAM.
pub(super) fn location_text(name: &Name) -> Result<String, Raise> {
    let text = name.to_string();
    let bad = name.0.is_empty() || text.len() > LONGEST_LOCATION;
    match bad || text.contains(char::is_control) {
        true => Err(Kind::BadParam.into()),
        false => Ok(text),
    }
}

/// Checks the repository id of a type that is told for the first time: people read it, and
/// it is kept.
pub(super) fn check_type_id(type_id: &str) -> Result<(), Raise> {
    let bad = type_id.is_empty() || type_id.len() > LONGEST_TYPE_ID;
    match bad || type_id.contains(char::is_control) {
        true => Err(Kind::BadParam.into()),
        false => Ok(()),
    }
}

/// The name of a location.
fn name_of(location: &str) -> Result<Name, Raise> {
    // It was made of one.
    location.parse().map_err(|_| Kind::Internal.into())
}

/// A reference that must refer to something.
pub(super) fn not_nil(ior: &Ior) -> Result<(), Raise> {
    match ior.is_nil() {
        true => Err(Kind::BadParam.into()),
        false => Ok(()),
    }
}

/// Warns of an object at a location whose reference names no machine, but any: what listens on
/// all addresses and takes that for its own. Only clients on its own machine reach it.
pub(super) fn warn_of_wildcard(at: &str, what: &str, object: &Ior) {
    if let Some(host) = find_wildcard(object) {
        warn!(
            location = at,
            host,
            "the reference of a {what} names no machine, so other machines cannot reach the object: \
             have its ORB write an address that they can connect to"
        );
    }
}

/// Returns the host in a reference that stands for all addresses of a machine.
fn find_wildcard(object: &Ior) -> Option<String> {
    let mut addresses = object
        .iiop_profiles()
        .flat_map(|profile| profile.list_addresses().collect::<Vec<_>>());
    let is_wildcard = |host: &str| {
        let ip: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
        ip.is_ok_and(|ip| ip.to_canonical().is_unspecified())
    };
    addresses.find_map(|(host, _)| is_wildcard(&host).then_some(host))
}

impl LoadManager {
    /// The id of the group that a reference means: by its key, wherever it says that we
    /// are, since that may have changed after it was made. It may be the group's
    /// reference, the same after a stay in a file, or one with the group's name.
    pub(super) fn group_id(&self, state: &State, group: &Ior) -> Result<u64, Raise> {
        not_nil(group)?;
        let directory = self.directory().load_snapshot();
        let found = group.iiop_profiles().find_map(|profile| {
            let id = match Key::parse(&profile.object_key)? {
                Key::Group(id) => id,
                key @ Key::GroupName(_) => directory.find(key)?.id,
                Key::Manager | Key::Strategy(_) => return None,
            };
            state.groups.contains_key(&id).then_some(id)
        });
        found.ok_or(UserException::ObjectGroupNotFound.into())
    }

    /// The group that a reference means, and its id.
    pub(super) fn group_of(&self, group: &Ior) -> Result<(u64, Arc<ObjectGroup>), Raise> {
        let state = self.state();
        let id = self.group_id(&state, group)?;
        Ok((id, Arc::clone(state.group(id)?)))
    }

    /// A name that another group has already, whoever's it is, is InvalidProperty.
    pub(super) fn check_name(&self, criteria: &Properties) -> Result<(), Raise> {
        let named = criteria
            .iter()
            .find(|p| p.nam.as_simple() == Some(GROUP_NAME));
        let Some((property, name)) = named.and_then(|p| Some((p, value_of::<String>(&p.val)?)))
        else {
            return Ok(());
        };
        match self.manager().has_group(&name) {
            true => Err(UserException::InvalidProperty(property.clone()).into()),
            false => Ok(()),
        }
    }

    pub(super) async fn add_member(
        &self,
        group: &Ior,
        at: &Name,
        member: Ior,
    ) -> Result<Ior, Raise> {
        let (id, before) = self.group_of(group)?;
        let at = location_text(at)?;
        not_nil(&member)?;
        // Whose process died is still a member, until another one comes to its place.
        let gone = match before.member(&at).map(|there| Arc::clone(&there.reference)) {
            Some(there) if self.is_nowhere(there.ior()).await => Some(there),
            Some(_) => return Err(UserException::MemberAlreadyPresent.into()),
            None => None,
        };
        self.check_member(&member, &before.type_id).await?;
        warn_of_wildcard(&at, "member", &member);
        let reference = Arc::new(Reference::new(member));
        let (group, replaced) = self
            .change(|state| {
                let group = state.group_mut(id)?;
                let there = group.members.iter().position(|m| m.location == at);
                let replaced = match there {
                    Some(there) => {
                        let known = group.members.get(there).map(|m| &m.reference);
                        let same = |(gone, known)| Arc::ptr_eq(gone, known);
                        if !gone.as_ref().zip(known).is_some_and(same) {
                            return Err(UserException::MemberAlreadyPresent.into());
                        }
                        Some(group.members.remove(there))
                    }
                    None => None,
                };
                if group.members.len() >= MOST_MEMBERS {
                    return Err(Kind::NoResources.into());
                }
                group.members.push(GroupMember {
                    location: at.clone(),
                    reference,
                    origin: None,
                });
                Ok((group.clone(), replaced))
            })
            .await?;
        info!(
            id,
            location = at,
            replaces = replaced.is_some(),
            "member added"
        );
        self.forget_predecessor(id, &at);
        replaced
            .into_iter()
            .for_each(|gone| self.delete_member(gone));
        Ok(self.group_reference(id, &group))
    }

    /// Checks an object that is to be a member of a group with this type: that it has the
    /// type, as far as it says, and does not lead back here.
    pub(super) async fn check_member(&self, member: &Ior, type_id: &str) -> Result<(), Raise> {
        if self.is_group_of_ours(member) {
            warn!(type_id, "a group of this load manager cannot be a member");
            return Err(UserException::ObjectNotAdded.into());
        }
        match member.type_id == type_id {
            true => Ok(()),
            false => check_type(self.client(), member, type_id, self.settings().call_timeout).await,
        }
    }

    /// Returns true if a reference leads to a group here: as a member it would forward clients in
    /// circles.
    pub(super) fn is_group_of_ours(&self, member: &Ior) -> bool {
        let state = self.state();
        let address = self.address();
        let ports: Vec<u16> = std::iter::once(address.port)
            .chain(address.alternates.iter().map(|(_, port)| *port))
            .collect();
        let mut here = member
            .iiop_profiles()
            .filter(|profile| ports.contains(&profile.port));
        here.any(|profile| {
            let key = Key::parse(&profile.object_key);
            key.is_some_and(|key| match key {
                // One that is created later, too.
                _ if address.includes(&profile.host, profile.port) => true,
                Key::Group(id) => state.groups.contains_key(&id),
                Key::GroupName(_) => self.directory().load_snapshot().find(key).is_some(),
                Key::Manager | Key::Strategy(_) => true,
            })
        })
    }

    pub(super) async fn remove_member(&self, group: &Ior, at: &Name) -> Result<Ior, Raise> {
        let (id, _) = self.group_of(group)?;
        let group = self.remove_member_at(id, &location_text(at)?).await?;
        Ok(self.group_reference(id, &group))
    }

    /// Takes the member at a location away; answers the group without it.
    pub(super) async fn remove_member_at(&self, id: u64, at: &str) -> Result<ObjectGroup, Raise> {
        let (group, removed) = self
            .change(|state| {
                let group = state.group_mut(id)?;
                let place = group.members.iter().position(|m| m.location == at);
                let place = place.ok_or(UserException::MemberNotFound)?;
                let removed = group.members.remove(place);
                Ok((group.clone(), removed))
            })
            .await?;
        info!(id, location = at, "member removed");
        self.delete_member(removed);
        Ok(group)
    }

    pub(super) fn locations_of_members(&self, group: &Ior) -> Result<Vec<Name>, Raise> {
        let (_, group) = self.group_of(group)?;
        group.members.iter().map(|m| name_of(&m.location)).collect()
    }

    pub(super) fn groups_at_location(&self, at: &Name) -> Result<Vec<Ior>, Raise> {
        let (state, at) = (self.state(), location_text(at)?);
        let there = state
            .groups
            .iter()
            .filter(|(_, group)| group.member(&at).is_some());
        Ok(there
            .map(|(id, group)| self.group_reference(*id, group))
            .collect())
    }

    pub(super) fn object_group_id(&self, group: &Ior) -> Result<u64, Raise> {
        Ok(self.group_of(group)?.0)
    }

    pub(super) fn object_group_ref(&self, group: &Ior) -> Result<Ior, Raise> {
        let (id, group) = self.group_of(group)?;
        Ok(self.group_reference(id, &group))
    }

    pub(super) fn object_group_ref_from_id(&self, id: u64) -> Result<Ior, Raise> {
        let state = self.state();
        Ok(self.group_reference(id, state.group(id)?))
    }

    pub(super) fn member_ref(&self, group: &Ior, at: &Name) -> Result<Ior, Raise> {
        let (_, group) = self.group_of(group)?;
        let member = group.member(&location_text(at)?);
        let member = member.ok_or(UserException::MemberNotFound)?;
        Ok(member.reference.ior().clone())
    }
}

/// Asks an object whether it has a type, for at most `timeout`. One that does not say is
/// believed if it may be alive: a server may add its objects before it serves them, and one
/// that sheds its load answers TRANSIENT.
pub(super) async fn check_type(
    client: &Client,
    member: &Ior,
    type_id: &str,
    timeout: Duration,
) -> Result<(), Raise> {
    let not_added = |why: &dyn std::fmt::Display| {
        warn!(type_id, "an object cannot be a member: {why}");
        Err(UserException::ObjectNotAdded.into())
    };
    let deadline = Instant::now() + timeout;
    let call = Call::new(member, "_is_a", deadline).with_arguments(|w| w.write_string(type_id));
    match client.call(&call).await {
        Ok(body) => match body.reader().read_bool() {
            Ok(true) => Ok(()),
            Ok(false) => not_added(&"the object says that it does not have the type of the group"),
            Err(error) => not_added(&error),
        },
        Err(error) if may_be_alive(&error) => {
            warn!(
                type_id,
                "a member does not say whether it has the type of its group: {error}"
            );
            Ok(())
        }
        Err(error @ CallError::Exhausted { .. }) => {
            warn!(
                type_id,
                "an object could not be asked for its type: {error}"
            );
            Err(Kind::NoResources.into())
        }
        Err(error) => not_added(&error),
    }
}

/// Returns true if an object that gave no results to a call may be alive: it sheds its load, by
/// TRANSIENT or by forwarding its clients, or is slow.
pub(super) fn may_be_alive(error: &CallError) -> bool {
    match error {
        CallError::System(SystemException { kind, .. }) => *kind == Kind::Transient,
        CallError::Forward(_) | CallError::TooManyForwards(_) | CallError::Timeout => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fronts_c_a_reference_that_names_no_machine_is_found() {
        for (host, found) in [
            ("0.0.0.0", true),
            ("::", true),
            ("[::]", true),
            ("::ffff:0.0.0.0", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("host.example.org", false),
        ] {
            let object = Ior::new_iiop("IDL:Test:1.0", host, 2809, b"key");
            assert_eq!(find_wildcard(&object).is_some(), found, "{host}");
        }
        assert_eq!(find_wildcard(&Ior::default()), None);
    }
}
