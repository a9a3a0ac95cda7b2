//! `PortableGroup::GenericFactory`: object groups, and members that the application's
//! factories make. What is done about members later is in [`super::reconciler`].

use std::sync::Arc;
use std::time::Duration;

use evenkeel_giop::any::{Any, Idl};
use evenkeel_giop::client::{Call, CallError, Client};
use evenkeel_giop::exception::Kind;
use evenkeel_giop::ior::Ior;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::groups::{
    MOST_GROUPS, MOST_MEMBERS, check_type, check_type_id, location_text, warn_of_wildcard,
};
use super::load_manager::LoadManager;
use super::raise::Raise;
use super::state::{GroupMember, Made, ObjectGroup};
use crate::directory::Reference;
use crate::exceptions::UserException;
use crate::name::Name;
use crate::properties::{
    EffectiveSettings, FACTORIES, INITIAL_MEMBERS, MAXIMUM_MEMBERS, Membership, PropertySet, Scope,
    effective_settings,
};
use crate::types::{FactoryInfo, Properties, Property};

/// First pause after a factory has failed to delete a member. Each further try doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Number of times that a factory which does not answer is asked to delete a member.
const DELETE_TRIES: u32 = 4;

impl LoadManager {
    /// Creates a group; with infrastructure-controlled membership with its first members,
    /// or not at all.
    pub(super) async fn create_object(
        &self,
        type_id: String,
        criteria: Properties,
    ) -> Result<(Ior, Any), Raise> {
        check_type_id(&type_id)?;
        let properties = self.check_properties(&criteria, Scope::Creation).await?;
        self.check_name(&criteria)?;
        let members = self.first_members(&type_id, &properties).await?;
        members.iter().for_each(warn_of_member);
        let made = members.clone();
        let created = self.change(|state| {
            if state.groups.len() >= MOST_GROUPS {
                return Err(Kind::NoResources.into());
            }
            let (id, creation) = (state.next_group, state.next_creation);
            state.next_group = id.checked_add(1).ok_or(Kind::NoResources)?;
            state.next_creation = creation.checked_add(1).ok_or(Kind::NoResources)?;
            let group = Arc::new(ObjectGroup {
                type_id,
                creation,
                properties,
                members,
            });
            state.groups.insert(id, Arc::clone(&group));
            Ok((id, group))
        });
        match created.await {
            Ok((id, group)) => {
                info!(id, type_id = group.type_id, "object group created");
                Ok((self.group_reference(id, &group), Any::new(&group.creation)))
            }
            Err(raise) => {
                self.unmake_unless_changed(&raise, made);
                Err(raise)
            }
        }
    }

    /// The members that a new group has at once.
    async fn first_members(
        &self,
        type_id: &str,
        properties: &PropertySet,
    ) -> Result<Vec<GroupMember>, Raise> {
        let counts = {
            let state = self.state();
            effective_settings(properties, state.of_type(type_id), &state.defaults)
        };
        if counts.membership == Membership::Application {
            return Ok(Vec::new());
        }
        let wanted = usize::from(counts.initial_members);
        let most = counts.maximum_members.map_or(usize::MAX, usize::from);
        if counts.factories.len() < wanted || wanted > most.min(MOST_MEMBERS) {
            return Err(UserException::CannotMeetCriteria(unmet(&counts)).into());
        }
        let members = self.make(type_id, &counts.factories, wanted).await;
        if members.len() < wanted {
            members
                .into_iter()
                .for_each(|member| self.delete_member(member));
            return Err(UserException::ObjectNotCreated.into());
        }
        Ok(members)
    }

    /// Has as many members made as `wanted`, if there are enough factories that work. All
    /// that are needed are called at once, and others for those that fail. The members are in
    /// the order of their factories, whoever was first.
    async fn make(
        &self,
        type_id: &str,
        factories: &[FactoryInfo],
        wanted: usize,
    ) -> Vec<GroupMember> {
        let mut left = factories.iter().enumerate();
        let mut members: Vec<(usize, GroupMember)> = Vec::with_capacity(wanted);
        while members.len() < wanted {
            let next: Vec<_> = left.by_ref().take(wanted - members.len()).collect();
            if next.is_empty() {
                break;
            }
            let mut calls = JoinSet::new();
            for (index, info) in next {
                let (client, type_id) = (self.client().clone(), type_id.to_owned());
                let info = info.clone();
                let timeout = self.settings().call_timeout;
                calls.spawn(async move {
                    let made = call_factory(&client, &info, &type_id, &type_id, timeout).await;
                    (index, info.the_location, made)
                });
            }
            while let Some(called) = calls.join_next().await {
                match called {
                    Ok((index, at, made)) => match self.not_ours(made) {
                        Ok(member) => members.push((index, member)),
                        Err(raise) => {
                            warn!(location = %at, type_id, "a factory has created no member: {raise}");
                        }
                    },
                    Err(error) => warn!("a factory could not be called: {error}"),
                }
            }
        }
        members.sort_by_key(|&(index, _)| index);
        members.into_iter().map(|(_, member)| member).collect()
    }

    /// Deletes a group, and those of its members that factories have made.
    pub(super) async fn delete_object(&self, creation: &Any) -> Result<(), Raise> {
        let creation = creation.get::<u32>();
        let creation = creation.ok_or(UserException::ObjectNotFound)?;
        let id = self.lock().creations.get(&creation).copied();
        let id = id.ok_or(UserException::ObjectNotFound)?;
        let (id, group) = self
            .change(|state| {
                let group = state.groups.remove(&id);
                Ok((id, group.ok_or(UserException::ObjectNotFound)?))
            })
            .await?;
        info!(id, "object group deleted");
        group
            .members
            .iter()
            .for_each(|member| self.delete_member(member.clone()));
        Ok(())
    }

    /// Has the factory at a location make a member there.
    pub(super) async fn create_member(
        &self,
        group: &Ior,
        at: &Name,
        type_id: String,
        criteria: Properties,
    ) -> Result<Ior, Raise> {
        let (id, group) = self.group_of(group)?;
        let place = location_text(at)?;
        if group.member(&place).is_some() {
            return Err(UserException::MemberAlreadyPresent.into());
        }
        let factories = self.state().effective_settings(&group).factories;
        let info = factories.into_iter().find(|info| info.the_location == *at);
        let Some(mut info) = info else {
            let the_location = at.clone();
            return Err(UserException::NoFactory {
                the_location,
                type_id,
            }
            .into());
        };
        for criterion in criteria {
            info.the_criteria.retain(|known| known.nam != criterion.nam);
            info.the_criteria.push(criterion);
        }
        let type_id = match type_id.is_empty() {
            true => group.type_id.clone(),
            false => type_id,
        };
        let timeout = self.settings().call_timeout;
        let made = call_factory(self.client(), &info, &type_id, &group.type_id, timeout).await;
        let member = self.not_ours(made).map_err(|raise| {
            warn!(
                id,
                location = place,
                "a factory has created no member: {raise}"
            );
            match raise {
                Raise::User(UserException::InvalidProperty(_) | UserException::ObjectNotAdded)
                | Raise::System(_) => UserException::ObjectNotCreated.into(),
                raise => raise,
            }
        })?;
        let group = self.join_members(id, vec![member]).await?;
        Ok(self.group_reference(id, &group))
    }

    /// Takes members that were made into a group, as far as their places are free; the
    /// others are deleted.
    pub(super) async fn join_members(
        &self,
        id: u64,
        members: Vec<GroupMember>,
    ) -> Result<ObjectGroup, Raise> {
        let made = members.clone();
        made.iter().for_each(warn_of_member);
        let joined = self.change(|state| {
            let group = state.group_mut(id)?;
            let mut surplus = Vec::new();
            for member in members {
                let free = group.member(&member.location).is_none();
                match free && group.members.len() < MOST_MEMBERS {
                    true => group.members.push(member),
                    false => surplus.push(member),
                }
            }
            match surplus.len() == made.len() {
                true => Err(UserException::MemberAlreadyPresent.into()),
                false => Ok((group.clone(), surplus)),
            }
        });
        match joined.await {
            Ok((group, surplus)) => {
                let locations = made.iter().map(|member| &member.location);
                locations.for_each(|at| self.forget_predecessor(id, at));
                surplus
                    .into_iter()
                    .for_each(|member| self.delete_member(member));
                Ok(group)
            }
            Err(raise) => {
                self.unmake_unless_changed(&raise, made);
                Err(raise)
            }
        }
    }

    /// Has members deleted that could not join. Where the change counts, and only the state
    /// file could not be written, they are in their group, and clients are sent to them.
    fn unmake_unless_changed(&self, raise: &Raise, made: Vec<GroupMember>) {
        if !raise.has_changed() {
            made.into_iter()
                .for_each(|member| self.delete_member(member));
        }
    }

    /// Refuses a member that leads back here: clients would be sent in circles.
    pub(super) fn not_ours(&self, made: Result<GroupMember, Raise>) -> Result<GroupMember, Raise> {
        let member = made?;
        if !self.is_group_of_ours(member.reference.ior()) {
            return Ok(member);
        }
        warn!(
            location = member.location,
            "a factory returned a group of this load manager, which cannot be a member"
        );
        self.delete_member(member);
        Err(UserException::ObjectNotCreated.into())
    }

    /// Has the factory that has made a member delete it, in its own time.
    pub(super) fn delete_member(&self, member: GroupMember) {
        let (client, timeout) = (self.client().clone(), self.settings().call_timeout);
        self.runtime.spawn(unmake(client, member, timeout));
    }
}

fn warn_of_member(member: &GroupMember) {
    warn_of_wildcard(&member.location, "member", member.reference.ior());
}

/// Returns the criteria that cannot be met when a group is to have more members at first than
/// factories could make, or than it may have. They are the values in effect, even those that were
/// not given with the group.
fn unmet(counts: &EffectiveSettings) -> Properties {
    let mut unmet = vec![
        Property::new(INITIAL_MEMBERS, &counts.initial_members),
        Property::new(FACTORIES, &counts.factories),
    ];
    if let Some(most) = counts.maximum_members {
        unmet.push(Property::new(MAXIMUM_MEMBERS, &most));
    }
    unmet
}

/// Has the factory that has made a member delete it; tries it several times.
async fn unmake(client: Client, member: GroupMember, timeout: Duration) {
    let Some(made) = member.origin else { return };
    let mut wait = FIRST_WAIT;
    let mut tried = 0;
    loop {
        let call = Call::new(&made.factory, "delete_object", Instant::now() + timeout);
        let call = call.with_arguments(|w| made.creation.write(w));
        let error = match client.call(&call).await {
            // ObjectNotFound, for one: it is gone.
            Ok(_) | Err(CallError::User { .. }) => return,
            // It has not heard of it.
            Err(CallError::Exhausted { sent: false, .. }) => {
                sleep(FIRST_WAIT).await;
                continue;
            }
            Err(error) => error,
        };
        tried += 1;
        if tried == DELETE_TRIES {
            let location = member.location;
            warn!(
                location,
                "a factory does not delete a member that was removed: {error}"
            );
            return;
        }
        sleep(wait).await;
        wait *= 2;
    }
}

/// Calls a factory for a new object of type `type_id` at its place, and checks that it has
/// the type `of_type` of its group; each takes at most `timeout`. NO_RESOURCES means that
/// something has run out here, and is no failure of the factory.
pub(super) async fn call_factory(
    client: &Client,
    info: &FactoryInfo,
    type_id: &str,
    of_type: &str,
    timeout: Duration,
) -> Result<GroupMember, Raise> {
    let at = location_text(&info.the_location)?;
    let deadline = Instant::now() + timeout;
    let call = Call::new(&info.the_factory, "create_object", deadline).with_arguments(|w| {
        w.write_string(type_id);
        info.the_criteria.write(w);
    });
    let body = match client.call(&call).await {
        Ok(body) => body,
        Err(CallError::User { body, id }) => {
            let raised = UserException::read(&mut body.reader())?;
            warn!(
                location = at,
                exception = id,
                "a factory raised an exception"
            );
            return Err(raised.unwrap_or(UserException::ObjectNotCreated).into());
        }
        Err(error @ CallError::Exhausted { .. }) => {
            warn!(location = at, "a factory could not be called: {error}");
            return Err(Kind::NoResources.into());
        }
        Err(error) => {
            warn!(location = at, "a factory did not answer: {error}");
            return Err(UserException::ObjectNotCreated.into());
        }
    };
    let mut reader = body.reader();
    let (object, creation) = (Ior::read(&mut reader)?, Any::read(&mut reader)?);
    if object.is_nil() {
        return Err(UserException::ObjectNotCreated.into());
    }
    let member = GroupMember {
        location: at,
        reference: Arc::new(Reference::new(object)),
        origin: Some(Made {
            factory: info.the_factory.clone(),
            creation,
        }),
    };
    let object = member.reference.ior();
    if object.type_id != of_type
        && let Err(raise) = check_type(client, object, of_type, timeout).await
    {
        tokio::spawn(unmake(client.clone(), member, timeout));
        return Err(raise);
    }
    Ok(member)
}
