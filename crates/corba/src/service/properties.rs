//! `PortableGroup::PropertyManager`: what groups can be told, at three levels.

use std::sync::Arc;

use evenkeel_giop::any::Any;
use evenkeel_giop::client::Call;
use evenkeel_giop::exception::Kind;
use evenkeel_giop::ior::Ior;
use evenkeel_giop::typecode::TypeCode;
use tokio::time::Instant;
use tracing::{info, warn};

use super::groups::{check_type_id, may_be_alive};
use super::load_manager::LoadManager;
use super::raise::Raise;
use super::state::State;
use crate::exceptions::UserException;
use crate::interfaces::Interface;
use crate::keys::Level;
use crate::name::Name;
use crate::properties::{PropertySet, STRATEGY, Scope, merge_properties};
use crate::types::{Properties, Property};

/// Most types that have properties of their own.
const MOST_TYPES: usize = 10_000;

impl LoadManager {
    pub(super) async fn set_default_properties(&self, given: &Properties) -> Result<(), Raise> {
        let set = self.check_properties(given, Scope::Default).await?;
        self.change(|state| {
            Arc::make_mut(&mut state.defaults).set(set);
            Ok(())
        })
        .await?;
        info!("default properties of object groups changed");
        Ok(())
    }

    pub(super) fn get_default_properties(&self) -> Properties {
        let state = self.state();
        self.with(state.defaults.properties(), Level::Default)
    }

    pub(super) async fn remove_default_properties(&self, names: &Properties) -> Result<(), Raise> {
        self.change(|state| {
            Arc::make_mut(&mut state.defaults).remove(names);
            Ok(())
        })
        .await
    }

    pub(super) async fn set_type_properties(
        &self,
        type_id: String,
        given: &Properties,
    ) -> Result<(), Raise> {
        check_type_id(&type_id)?;
        let set = self.check_properties(given, Scope::Type).await?;
        let of = type_id.clone();
        self.change(|state| {
            if state.types.len() >= MOST_TYPES && !state.types.contains_key(&of) {
                return Err(Kind::NoResources.into());
            }
            Arc::make_mut(state.types.entry(of).or_default()).set(set);
            Ok(())
        })
        .await?;
        info!(type_id, "properties of object groups of a type changed");
        Ok(())
    }

    pub(super) fn get_type_properties(&self, type_id: &str) -> Properties {
        let state = self.state();
        self.with(state.of_type(type_id).properties(), Level::Type(type_id))
    }

    pub(super) async fn remove_type_properties(
        &self,
        type_id: &str,
        names: &Properties,
    ) -> Result<(), Raise> {
        self.change(|state| {
            let Some(set) = state.types.get_mut(type_id) else {
                return Ok(());
            };
            Arc::make_mut(set).remove(names);
            if set.is_empty() {
                state.types.remove(type_id);
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn set_properties_dynamically(
        &self,
        group: &Ior,
        given: &Properties,
    ) -> Result<(), Raise> {
        let id = self.group_id(&self.state(), group)?;
        let set = self.check_properties(given, Scope::Group).await?;
        self.change(|state| {
            state.group_mut(id)?.properties.set(set);
            Ok(())
        })
        .await?;
        info!(id, "properties of an object group changed");
        Ok(())
    }

    /// Returns the properties in effect for a group, at whatever level they were set.
    pub(super) fn get_properties(&self, group: &Ior) -> Result<Properties, Raise> {
        let state = self.state();
        let id = self.group_id(&state, group)?;
        let group = state.group(id)?;
        let of_type = state.of_type(&group.type_id);
        let all = merge_properties(&group.properties, of_type, &state.defaults);
        let level = self.strategy_level(&state, id)?;
        Ok(self.with(all, level))
    }

    /// The strongest level that says which built-in strategy a group has. Where none does it
    /// is the configuration, whose strategy is the one by default.
    fn strategy_level<'a>(&self, state: &'a State, id: u64) -> Result<Level<'a>, Raise> {
        let group = state.group(id)?;
        let levels = [
            (&group.properties, Level::Group(id)),
            (state.of_type(&group.type_id), Level::Type(&group.type_id)),
            (&*state.defaults, Level::Default),
        ];
        let mut levels = levels.into_iter();
        let said = levels.find(|(set, _)| set.strategy().is_some());
        Ok(said.map_or(Level::Default, |(_, level)| level))
    }

    /// With the strategy that counts at a level, as a reference that can be extracted as what
    /// it is.
    fn with(&self, mut all: Properties, level: Level<'_>) -> Properties {
        let strategy = self.strategy_reference(level);
        let type_code = TypeCode::interface(&strategy.type_id, "Strategy");
        all.push(Property {
            nam: Name::from_id(STRATEGY),
            val: Any::of_type(type_code, &strategy),
        });
        all
    }

    /// Reads properties that are to be set at `place`; a custom strategy must be one.
    pub(super) async fn check_properties(
        &self,
        given: &Properties,
        place: Scope,
    ) -> Result<PropertySet, Raise> {
        let set = PropertySet::read(given, place)?;
        if let Some(custom) = set.custom_strategy() {
            let named = |p: &&Property| p.val.as_reference().as_ref() == Some(custom);
            let invalid = || given.iter().find(named).cloned();
            if let (false, Some(property)) = (self.is_strategy(custom).await, invalid()) {
                return Err(UserException::InvalidProperty(property).into());
            }
        }
        Ok(set)
    }

    /// Returns true if an object is a strategy: by its type, by its own answer, or because it may
    /// be alive and does not say.
    async fn is_strategy(&self, object: &Ior) -> bool {
        if Interface::Strategy.is_a(&object.type_id) && !object.type_id.contains("CORBA/Object") {
            return true;
        }
        // Which prefix the application's IDL has nobody knows.
        for prefix in ["tao.lb", "omg.org"] {
            let id = Interface::Strategy.id(prefix);
            let deadline = Instant::now() + self.settings().call_timeout;
            let call = Call::new(object, "_is_a", deadline).with_arguments(|w| w.write_string(&id));
            match self.client().call(&call).await {
                Ok(body) if matches!(body.reader().read_bool(), Ok(true)) => return true,
                Ok(_) => {}
                Err(error) if may_be_alive(&error) => return true,
                Err(error) => {
                    warn!("the type of a custom strategy could not be checked: {error}");
                    return false;
                }
            }
        }
        false
    }
}
