//! Loads, load monitors and load alerts of locations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::time::Instant;
use evenkeel_giop::exception::Kind;
use evenkeel_giop::ior::Ior;
use evenkeel_manager::{AlertSetting, ManageError};
use tracing::{info, warn};

use super::groups::{location, not_nil};
use super::raise::Raise;
use super::{LoadManager, Owned};
use crate::exceptions::UserException;
use crate::monitors::{Refused, checked};
use crate::name::Name;
use crate::types::Load;

/// Most monitors, and most alerts.
const MOST_REGISTERED: usize = 100_000;

/// Locations that only a push of loads has named: the most of them, and for how long
/// after the last push.
const MOST_PUSHED: usize = 10_000;
const PUSHED_FOR: Duration = Duration::from_secs(600);

/// Locations that only a push of loads has named, with the time of the last one. A server
/// may push before it has a member.
#[derive(Debug, Default)]
pub(super) struct Pushed(BTreeMap<String, Instant>);

impl Pushed {
    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.0.keys().cloned()
    }

    /// Notes a push; answers whether the location is new.
    fn note(&mut self, at: &str, now: Instant) -> Result<bool, Raise> {
        if let Some(last) = self.0.get_mut(at) {
            *last = now;
            return Ok(false);
        }
        self.0.retain(|_, last| now.since(*last) < PUSHED_FOR);
        if self.0.len() >= MOST_PUSHED {
            return Err(Kind::NoResources.into());
        }
        self.0.insert(at.into(), now);
        Ok(true)
    }
}

impl LoadManager {
    /// Takes in what a location says of its load.
    pub(super) fn push_loads(&self, at: &Name, loads: &[Load]) -> Result<(), Raise> {
        let at = location(at)?;
        let refused = |error: Refused| {
            warn!(location = at, "loads were pushed that are refused: {error}");
            Raise::from(match error {
                Refused::TooMany(_) => Kind::ImpLimit,
                Refused::Empty | Refused::Value { .. } => Kind::BadParam,
            })
        };
        let loads = checked(loads).map_err(refused)?;
        let now = self.manager().clock().now();
        let place = match self.manager().location(&at) {
            Some(place) => place,
            None => {
                let owned = &mut *self.lock();
                self.hold_pushed(owned, &at, now)?;
                let place = self.manager().location(&at);
                place.ok_or(Raise::from(Kind::Internal))?
            }
        };
        place
            .report_all(&loads, now)
            .map_err(|error| refused(error.into()))
    }

    fn hold_pushed(&self, owned: &mut Owned, at: &str, now: Instant) -> Result<(), Raise> {
        if owned.pushed.note(at, now)? {
            let state = Arc::clone(&owned.state);
            let held = self.hold(&owned.pushed, &state);
            held.map_err(|_| Raise::from(Kind::Internal))?;
        }
        Ok(())
    }

    /// The loads that a location has reported, however old: by CORBA, an agent or in any
    /// other way.
    pub(super) fn get_loads(&self, at: &Name) -> Result<Vec<Load>, Raise> {
        let place = self.manager().location(&location(at)?);
        let place = place.ok_or(UserException::LocationNotFound)?;
        let loads = place.loads(self.manager().clock().now()).map(|load| Load {
            id: load.id.0,
            value: load.value.get(),
        });
        let loads: Vec<Load> = loads.collect();
        match loads.is_empty() {
            true => Err(UserException::LocationNotFound.into()),
            false => Ok(loads),
        }
    }

    /// Switches the load alert of a location on, or leaves it to the load again.
    pub(super) fn set_alert(&self, at: &Name, on: bool) -> Result<(), Raise> {
        let at = location(at)?;
        if !self.state().alerts.contains_key(&at) {
            return Err(UserException::LoadAlertNotFound.into());
        }
        let setting = match on {
            true => AlertSetting::On,
            false => AlertSetting::Auto,
        };
        let set = self.manager().set_alert(&at, setting);
        set.map_err(|error| match error {
            ManageError::NoLocation(_) => UserException::LoadAlertNotFound.into(),
            _ => Kind::Internal.into(),
        })
    }

    pub(crate) async fn register_load_alert(&self, at: &Name, alert: Ior) -> Result<(), Raise> {
        let at = location(at)?;
        not_nil(&alert)?;
        let place = at.clone();
        self.change(|state| {
            if state.alerts.contains_key(&at) {
                return Err(UserException::LoadAlertAlreadyPresent.into());
            }
            if state.alerts.len() >= MOST_REGISTERED {
                return Err(UserException::LoadAlertNotAdded.into());
            }
            state.alerts.insert(at, Arc::new(alert));
            Ok(())
        })
        .await?;
        info!(location = place, "load alert registered");
        Ok(())
    }

    pub(super) fn get_load_alert(&self, at: &Name) -> Result<Ior, Raise> {
        let state = self.state();
        let alert = state.alerts.get(&location(at)?);
        let alert = alert.ok_or(UserException::LoadAlertNotFound)?;
        Ok((**alert).clone())
    }

    pub(crate) async fn remove_load_alert(&self, at: &Name) -> Result<(), Raise> {
        let at = location(at)?;
        self.change(|state| {
            let removed = state.alerts.remove(&at);
            removed
                .map(|_| ())
                .ok_or(UserException::LoadAlertNotFound.into())
        })
        .await?;
        info!(location = at, "load alert removed");
        Ok(())
    }

    pub(crate) async fn register_load_monitor(&self, at: &Name, monitor: Ior) -> Result<(), Raise> {
        let at = location(at)?;
        not_nil(&monitor)?;
        let place = at.clone();
        self.change(|state| {
            if state.monitors.contains_key(&at) {
                return Err(UserException::MonitorAlreadyPresent.into());
            }
            if state.monitors.len() >= MOST_REGISTERED {
                return Err(Kind::NoResources.into());
            }
            state.monitors.insert(at, Arc::new(monitor));
            Ok(())
        })
        .await?;
        info!(location = place, "load monitor registered");
        Ok(())
    }

    pub(super) fn get_load_monitor(&self, at: &Name) -> Result<Ior, Raise> {
        let state = self.state();
        let monitor = state.monitors.get(&location(at)?);
        let monitor = monitor.ok_or(UserException::LocationNotFound)?;
        Ok((**monitor).clone())
    }

    pub(crate) async fn remove_load_monitor(&self, at: &Name) -> Result<(), Raise> {
        let at = location(at)?;
        self.change(|state| {
            let removed = state.monitors.remove(&at);
            removed
                .map(|_| ())
                .ok_or(UserException::LocationNotFound.into())
        })
        .await?;
        info!(location = at, "load monitor removed");
        Ok(())
    }
}
