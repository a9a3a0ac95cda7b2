//! Loads, load monitors and load alerts of locations.

use std::sync::Arc;

use evenkeel_core::time::Instant;
use evenkeel_giop::exception::Kind;
use evenkeel_giop::ior::Ior;
use evenkeel_manager::{AlertSetting, ManageError};
use imbl::OrdMap;
use tracing::{info, warn};

use super::groups::{location_text, not_nil, warn_of_wildcard};
use super::load_manager::{LoadManager, Owned};
use super::raise::Raise;
use super::state::State;
use crate::exceptions::UserException;
use crate::monitors::{LoadReportError, check_loads};
use crate::name::Name;
use crate::types::Load;

/// Most monitors, and most alerts.
const MOST_REGISTERED: usize = 100_000;

impl LoadManager {
    /// Takes in what a location says of its load.
    pub(super) fn push_loads(&self, at: &Name, loads: &[Load]) -> Result<(), Raise> {
        let at = location_text(at)?;
        let refused = |error: LoadReportError| {
            warn!(location = at, "pushed loads are refused: {error}");
            Raise::from(match error {
                LoadReportError::TooMany(_) => Kind::ImpLimit,
                LoadReportError::Empty | LoadReportError::Value { .. } => Kind::BadParam,
            })
        };
        let loads = check_loads(loads).map_err(refused)?;
        let now = self.manager().clock().now();
        let place = match self.manager().find_location(&at) {
            Some(place) => {
                self.lock().pushed.renew(&at, now);
                place
            }
            None => {
                let owned = &mut *self.lock();
                self.hold_pushed(owned, &at, now)?;
                let place = self.manager().find_location(&at);
                place.ok_or(Raise::from(Kind::Internal))?
            }
        };
        place
            .report_all(&loads, now)
            .map_err(|error| refused(error.into()))?;
        if let Some((first, _)) = loads.first() {
            place.lead_with(*first);
        }
        Ok(())
    }

    fn hold_pushed(&self, owned: &mut Owned, at: &str, now: Instant) -> Result<(), Raise> {
        let Some(forgotten) = owned.pushed.note(at, now)? else {
            return Ok(());
        };
        self.manager().hold_location(at, true);
        for name in forgotten {
            let (monitors, alerts) = (&owned.state.monitors, &owned.state.alerts);
            let needed = monitors.contains_key(&name) || alerts.contains_key(&name);
            self.manager().hold_location(&name, needed);
        }
        Ok(())
    }

    /// The loads that a location has reported, however old: by CORBA, an agent or in any
    /// other way.
    pub(super) fn get_loads(&self, at: &Name) -> Result<Vec<Load>, Raise> {
        let place = self.manager().find_location(&location_text(at)?);
        let place = place.ok_or(UserException::LocationNotFound)?;
        let loads = place
            .list_loads(self.manager().clock().now())
            .map(|load| Load {
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
    pub(super) async fn set_alert(&self, at: &Name, on: bool) -> Result<(), Raise> {
        let at = location_text(at)?;
        if !self.state().alerts.contains_key(&at) {
            return Err(UserException::LoadAlertNotFound.into());
        }
        let setting = match on {
            true => AlertSetting::On,
            false => AlertSetting::Auto,
        };
        let set = self.manager().set_alert(&at, setting);
        set.map_err(|error| match error {
            ManageError::NoLocation(_) => Raise::from(UserException::LoadAlertNotFound),
            _ => Kind::Internal.into(),
        })?;
        self.keep_forced_alerts().await
    }

    /// Has Evenkeel's manager force and suppress the load alerts that were so before.
    pub(super) fn force_alerts(&self, state: &State) {
        for (at, &on) in &state.forced {
            let setting = match on {
                true => AlertSetting::On,
                false => AlertSetting::Off,
            };
            if let Err(error) = self.manager().set_alert(at, setting) {
                warn!(
                    location = at,
                    "the forced load alert of the location cannot be restored after the restart: {error}"
                );
            }
        }
    }

    /// Keeps which load alerts of registered objects are forced or suppressed: by
    /// `enable_alert`, or by an administrator.
    pub(super) async fn keep_forced_alerts(&self) -> Result<(), Raise> {
        if self.forced_alerts(&self.state()).is_none() {
            return Ok(());
        }
        self.change(|state| {
            if let Some(forced) = self.forced_alerts(state) {
                state.forced = forced;
            }
            Ok(())
        })
        .await
    }

    /// The load alerts that are forced or suppressed, if they are others than `state` says.
    fn forced_alerts(&self, state: &State) -> Option<OrdMap<String, bool>> {
        let forced = self.manager().forced_alerts().into_iter();
        let forced = forced.filter(|(at, _)| state.alerts.contains_key(at));
        let forced: OrdMap<String, bool> = forced.collect();
        (forced != state.forced).then_some(forced)
    }

    /// Returns what was registered at a location, if another one may take its place, as nobody is there
    /// any more. A process that died does not remove what it has registered.
    async fn find_replaceable(&self, before: Option<Arc<Ior>>) -> Option<Arc<Ior>> {
        let before = before?;
        self.is_nowhere(&before).await.then_some(before)
    }

    pub(crate) async fn register_load_alert(&self, at: &Name, alert: Ior) -> Result<(), Raise> {
        let at = location_text(at)?;
        not_nil(&alert)?;
        let place = at.clone();
        let before = self.state().alerts.get(&at).cloned();
        if before.as_deref() == Some(&alert) {
            // The libraries ask for it again and again, and a process that has started again does not know of it.
            return Ok(());
        }
        let gone = self.find_replaceable(before).await;
        warn_of_wildcard(&at, "load alert", &alert);
        self.change(|state| {
            let before = state.alerts.get(&at);
            if before.is_some_and(|before| !is_it(&gone, before)) {
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
        let alert = state.alerts.get(&location_text(at)?);
        let alert = alert.ok_or(UserException::LoadAlertNotFound)?;
        Ok((**alert).clone())
    }

    pub(crate) async fn remove_load_alert(&self, at: &Name) -> Result<(), Raise> {
        self.remove_alert_at(&location_text(at)?).await
    }

    pub(super) async fn remove_alert_at(&self, at: &str) -> Result<(), Raise> {
        self.change(|state| {
            let removed = state.alerts.remove(at);
            state.forced.remove(at);
            removed
                .map(|_| ())
                .ok_or(UserException::LoadAlertNotFound.into())
        })
        .await?;
        info!(location = at, "load alert removed");
        Ok(())
    }

    pub(crate) async fn register_load_monitor(&self, at: &Name, monitor: Ior) -> Result<(), Raise> {
        let at = location_text(at)?;
        not_nil(&monitor)?;
        let place = at.clone();
        let before = self.state().monitors.get(&at).cloned();
        if before.as_deref() == Some(&monitor) {
            // The libraries ask for it again and again, and a process that has started again does not know of it.
            return Ok(());
        }
        let gone = self.find_replaceable(before).await;
        warn_of_wildcard(&at, "load monitor", &monitor);
        self.change(|state| {
            let before = state.monitors.get(&at);
            if before.is_some_and(|before| !is_it(&gone, before)) {
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
        let monitor = state.monitors.get(&location_text(at)?);
        let monitor = monitor.ok_or(UserException::LocationNotFound)?;
        Ok((**monitor).clone())
    }

    pub(crate) async fn remove_load_monitor(&self, at: &Name) -> Result<(), Raise> {
        self.remove_monitor_at(&location_text(at)?).await
    }

    pub(super) async fn remove_monitor_at(&self, at: &str) -> Result<(), Raise> {
        self.change(|state| {
            let removed = state.monitors.remove(at);
            removed
                .map(|_| ())
                .ok_or(UserException::LocationNotFound.into())
        })
        .await?;
        info!(location = at, "load monitor removed");
        Ok(())
    }
}

/// Returns true if `of` is what was found to be replaceable.
fn is_it(gone: &Option<Arc<Ior>>, of: &Arc<Ior>) -> bool {
    gone.as_ref().is_some_and(|gone| Arc::ptr_eq(gone, of))
}
