//! `CosLoadBalancing::Strategy`: the strategies of ours as objects that can be called.
//!
//! There is one for each level at which properties are set: what counts for a group, for
//! groups of a type, and by default. An object is named by its level and not by its
//! strategy, so that a reference always means what counts there now.

use std::sync::Arc;

use evenkeel_core::group::{PickError, Request};
use evenkeel_core::strategy::Values;
use evenkeel_giop::any::Idl;
use evenkeel_giop::exception::{Kind, SystemException};
use evenkeel_giop::ior::Ior;

use super::groups::not_nil;
use super::load_manager::LoadManager;
use super::raise::Raise;
use crate::call::{Call, Outcome, finished, full};
use crate::exceptions::UserException;
use crate::interfaces::Interface;
use crate::keys::{Key, Level};
use crate::locator;
use crate::name::Name;
use crate::properties::{PropertySet, effective_settings};
use crate::strategies;
use crate::types::Load;

impl LoadManager {
    /// The reference of the strategy of a level.
    pub fn strategy_reference(&self, level: Level<'_>) -> Ior {
        let type_id = Interface::Strategy.id(&self.settings().repository_prefix);
        self.reference_of(&type_id, &Key::Strategy(level).to_bytes())
    }

    /// Carries out a call of the strategy of a level, as [`LoadManager::invoke`] does.
    pub fn invoke_strategy(
        self: &Arc<Self>,
        level: Level<'_>,
        call: Call,
    ) -> impl Future<Output = Outcome> + Send + use<> {
        let (this, key) = (Arc::clone(self), Key::Strategy(level).to_bytes());
        let room = self.room_for(&call);
        finished(self.runtime.spawn(async move {
            let Some(_room) = room else {
                return full();
            };
            let results = match Key::parse(&key) {
                Some(Key::Strategy(level)) => this.call_strategy(level, &call),
                _ => Err(Kind::Internal.into()),
            };
            this.outcome(&call, results)
        }))
    }

    fn call_strategy(&self, level: Level<'_>, call: &Call) -> Result<Vec<u8>, Raise> {
        let values = self.values_at(level)?;
        let from = &mut call.arguments();
        let mut results = call.results_writer();
        match &*call.operation {
            "_get_name" => results.write_string(&strategies::name(values.kind())),
            "get_properties" => strategies::properties_of(&values).write(&mut results),
            "push_loads" => {
                let (at, loads) = (Name::read(from)?, Vec::<Load>::read(from)?);
                if !values.kind().looks_at_loads {
                    return Err(UserException::StrategyNotAdaptive.into());
                }
                self.push_loads(&at, &loads)?;
            }
            "get_loads" => {
                self.check_own(&Ior::read(from)?)?;
                self.get_loads(&Name::read(from)?)?.write(&mut results);
            }
            "next_member" => {
                let group = Ior::read(from)?;
                self.check_own(&Ior::read(from)?)?;
                self.next_member(&values, &group)?.write(&mut results);
            }
            // The control loop looks at the loads ten times a second, whoever asks.
            "analyze_loads" => {
                let group = Ior::read(from)?;
                self.check_own(&Ior::read(from)?)?;
                self.group_id(&self.state(), &group)?;
            }
            "_is_a" => results.write_bool(Interface::Strategy.is_a(&String::read(from)?)),
            // The second name is that of GIOP 1.0.
            "_non_existent" | "_not_existent" => results.write_bool(false),
            "_repository_id" => {
                let prefix = &self.settings().repository_prefix;
                results.write_string(&Interface::Strategy.id(prefix));
            }
            // There is no interface repository, and it is no component.
            "_interface" => return Err(Kind::IntfRepos.into()),
            "_component" => Ior::default().write(&mut results),
            _ => return Err(Kind::BadOperation.into()),
        }
        Ok(results.into_bytes())
    }

    /// The strategy that counts at a level. That of a group that does not exist does not
    /// either.
    fn values_at(&self, level: Level<'_>) -> Result<Values, Raise> {
        let (state, none) = (self.state(), PropertySet::default());
        let counts = match level {
            Level::Group(id) => {
                let group = state.group(id);
                let group = group.map_err(|_| SystemException::new(Kind::ObjectNotExist))?;
                state.effective_settings(group)
            }
            Level::Type(type_id) => {
                effective_settings(&none, state.of_type(type_id), &state.defaults)
            }
            Level::Default => effective_settings(&none, &none, &state.defaults),
        };
        let configured = || self.settings().groups.strategy.clone();
        Ok(counts.strategy.unwrap_or_else(configured))
    }

    /// Refuses to work for another load manager: its groups and loads are not known here.
    fn check_own(&self, manager: &Ior) -> Result<(), Raise> {
        not_nil(manager)?;
        let mut keys = manager.iiop_profiles().map(|profile| profile.object_key);
        match keys.any(|key| Key::parse(&key) == Some(Key::Manager)) {
            true => Ok(()),
            false => Err(Kind::BadParam.into()),
        }
    }

    /// The member of a group that the next client is to use, chosen by this strategy, and
    /// counted there as the locator counts it.
    fn next_member(&self, values: &Values, group: &Ior) -> Result<Ior, Raise> {
        let state = self.state();
        let id = self.group_id(&state, group)?;
        let directory = self.directory().load_snapshot();
        let entry = directory.group(id);
        let entry = entry.ok_or(UserException::ObjectGroupNotFound)?;
        let mut group = entry.handle.current.load_full();
        let own = self.values_at(Level::Group(id))? == *values;
        if !own {
            group = self.variants.under(id, &group, values);
        }
        let now = self.manager().clock().now();
        let request = Request::at_time(now);
        let index = match group.choose_member(&request, &mut fastrand::Rng::new()) {
            Ok(index) => index,
            Err(PickError::NoneEligible) if group.members().is_empty() => {
                return Err(UserException::MemberNotFound.into());
            }
            Err(_) => return Err(locator::no_member_exception(entry).into()),
        };
        let member = entry.member(&group, index);
        let member = member.ok_or_else(|| Raise::from(locator::no_member_exception(entry)))?;
        group.assign_client(index, locator::expected_stay(group.settings()), now);
        Ok(member.ior().clone())
    }
}
