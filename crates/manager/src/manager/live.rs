//! Live changes: what administrators, agents and subsystems change without a file.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use evenkeel_core::member::{Member, Weight};
use tracing::info;

use super::{ManageError, Manager, find_entry};
use crate::config::{GroupConfig, MemberConfig};
use crate::inputs::{AdminState, AlertSetting, endpoint_of};
use crate::measured::strategy_of;
use crate::snapshot::GroupHandle;
use crate::state::State;
use crate::subsystem::ApplyError;

impl Manager {
    /// Enables or disables a rule.
    pub fn set_rule_enabled(&self, rule: &str, enabled: bool) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let config = &owned.state.inputs.config;
        if !config.rules.iter().any(|known| known.name == rule) {
            return Err(ManageError::NoRule(rule.into()));
        }
        let mut inputs = owned.state.inputs.clone();
        inputs.live.enabled.insert(rule.into(), enabled);
        self.apply_change(&mut owned.state, inputs)?;
        info!(rule, enabled, "rule was enabled or disabled");
        Ok(())
    }

    /// Puts a rule into maintenance, or ends that.
    pub fn set_maintenance(&self, rule: &str, on: bool) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let config = &owned.state.inputs.config;
        if !config.rules.iter().any(|known| known.name == rule) {
            return Err(ManageError::NoRule(rule.into()));
        }
        let mut inputs = owned.state.inputs.clone();
        inputs.live.maintenance.insert(rule.into(), on);
        self.apply_change(&mut owned.state, inputs)?;
        info!(rule, on, "maintenance of a rule changed");
        Ok(())
    }

    /// Puts a group into maintenance, or ends that.
    pub fn set_group_maintenance(&self, group: &str, on: bool) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let _ = find_entry(&owned.state, group)?;
        let mut inputs = owned.state.inputs.clone();
        inputs.live.group_maintenance.insert(group.into(), on);
        self.apply_change(&mut owned.state, inputs)?;
        info!(group, on, "maintenance of a group changed");
        Ok(())
    }

    /// Gives a group another strategy, or other parameters. Parameters that are not
    /// given have their defaults.
    pub fn set_strategy(
        &self,
        group: &str,
        strategy: &str,
        params: &[(String, f64)],
    ) -> Result<(), ManageError> {
        let values = strategy_of(strategy, params)?;
        let mut owned = self.lock();
        let _ = find_entry(&owned.state, group)?;
        let mut inputs = owned.state.inputs.clone();
        inputs.live.strategies.insert(group.into(), values);
        self.apply_change(&mut owned.state, inputs)?;
        info!(group, strategy, "strategy changed");
        Ok(())
    }

    /// Drains a member, takes it out, or brings it back. `member` is its address in the file or the name that the
    /// file gives it, which stand for all its IP addresses, or the name of one of these.
    pub fn set_admin_state(
        &self,
        group: &str,
        member: &str,
        to: AdminState,
    ) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let (member, member_name) = &find_member(&owned.state, group, member)?;
        let mut inputs = owned.state.inputs.clone();
        set_live(&mut inputs.live.admin, group, member, to);
        self.apply_change(&mut owned.state, inputs)?;
        info!(group, member, member_name, state = ?to, "admin state changed");
        Ok(())
    }

    /// Ends the ejection of a member, whoever has ejected it, and forgets the failures of the member, so that they do
    /// not eject it once more; `member` is as in [`Manager::set_admin_state`]. Another balancer's ejection of the
    /// member lasts there.
    pub fn end_ejection(&self, group: &str, member: &str) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let (member, member_name) = &find_member(&owned.state, group, member)?;
        let now = self.clock.now();
        let mut entries = owned.state.groups.iter_mut();
        let entry = entries.find(|entry| entry.config.name == group);
        let was_ejected = entry.is_some_and(|entry| entry.end_ejection(member, now));
        let what = match was_ejected {
            true => "member is no longer ejected: an administrator has ended the ejection",
            false => "an administrator has had the failures of a member forgotten",
        };
        info!(group, member, member_name, "{what}");
        Ok(())
    }

    /// Changes the weight of a member; `member` is as in [`Manager::set_admin_state`].
    pub fn set_weight(&self, group: &str, member: &str, weight: f64) -> Result<(), ManageError> {
        let weight = Weight::new(weight)?;
        let mut owned = self.lock();
        let (member, member_name) = &find_member(&owned.state, group, member)?;
        let mut inputs = owned.state.inputs.clone();
        set_live(&mut inputs.live.weights, group, member, weight);
        self.apply_change(&mut owned.state, inputs)?;
        info!(
            group,
            member,
            member_name,
            weight = weight.get(),
            "weight changed"
        );
        Ok(())
    }

    /// Makes a member a backup, or not one any more; `member` is as in
    /// [`Manager::set_admin_state`].
    pub fn set_backup(&self, group: &str, member: &str, backup: bool) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let (member, member_name) = &find_member(&owned.state, group, member)?;
        let mut inputs = owned.state.inputs.clone();
        set_live(&mut inputs.live.backups, group, member, backup);
        self.apply_change(&mut owned.state, inputs)?;
        info!(
            group,
            member, member_name, backup, "backup setting of a member changed"
        );
        Ok(())
    }

    /// Sets the members that agents have registered now, by group, in place of those before. The members
    /// count in groups where agents may join, after those of the file, which knows better where both have the
    /// same.
    pub fn set_joined(&self, joined: HashMap<String, Vec<MemberConfig>>) -> Result<(), ApplyError> {
        let mut owned = self.lock();
        if owned.state.inputs.live.joined == joined {
            return Ok(());
        }
        let mut inputs = owned.state.inputs.clone();
        inputs.set_joined(joined, self.clock.now());
        self.apply_change(&mut owned.state, inputs)
    }

    /// The groups that `owner` has and that do not stand in the file, in place of those
    /// that it had before. Everything else about them is as in groups of the file: what is
    /// changed live stays until the group says something new about it, and members keep
    /// their slots.
    ///
    /// # Errors
    ///
    /// A name is taken, by a group of the file or of another owner, or comes twice. Nothing
    /// has changed then.
    pub fn set_groups(
        &self,
        owner: &'static str,
        groups: Vec<GroupConfig>,
    ) -> Result<(), ApplyError> {
        let mut owned = self.lock();
        owned.state.check_names(owner, &groups)?;
        let present = owned.state.inputs.live.groups.values();
        let present: Vec<_> = present.filter(|(of, _)| *of == owner).collect();
        let known = |group: &GroupConfig| {
            let present = owned.state.inputs.live.groups.get(&group.name);
            present.is_some_and(|(of, present)| *of == owner && **present == *group)
        };
        if present.len() == groups.len() && groups.iter().all(known) {
            return Ok(());
        }
        let now = self.clock.now();
        let inputs = owned.state.inputs.with_groups(owner, groups, now);
        self.apply_change(&mut owned.state, inputs)
    }

    /// Changes some of the groups that `owner` has and that do not stand in the file: takes away those called
    /// `gone`, and then puts `groups` in the place of those with their names. The other groups stay as they
    /// are, and are not looked at: the cost does not depend on how many there are. Answers the handles of
    /// `groups`.
    ///
    /// Those who follow [`Manager::subscribe_changes`] hear of the change with one of the next rounds of the control
    /// loop.
    ///
    /// # Errors
    ///
    /// As with [`Manager::set_groups`].
    pub fn change_groups(
        &self,
        owner: &'static str,
        gone: &[String],
        groups: Vec<GroupConfig>,
    ) -> Result<Vec<Arc<GroupHandle>>, ApplyError> {
        let mut owned = self.lock();
        owned.state.check_names(owner, &groups)?;
        let now = self.clock.now();
        for name in gone {
            owned.state.remove_owned(owner, name, now);
        }
        let mut handles = Vec::with_capacity(groups.len());
        for group in groups {
            handles.push(owned.state.set_owned(owner, group, now));
        }
        owned.untold = true;
        Ok(handles)
    }

    /// Keeps the location called `name`, whether a member is there or not, since somebody
    /// reports its load or listens to its alerts; or keeps it for its members only.
    pub fn hold_location(&self, name: &str, held: bool) {
        let mut owned = self.lock();
        owned.state.hold_location(name, held);
        owned.untold = true;
    }

    /// Forces the load alert of a location, suppresses it, or leaves it to the groups again. The setting
    /// counts with the next round of the control loop, a tenth of a second later.
    ///
    /// A forced alert drains the location gently, as an alert does that the load has caused; more than
    /// [`max_share`] of the locations may have a forced alert. It changes nothing for groups whose
    /// granularity is per request, or that are not adaptive.
    ///
    /// [`max_share`]: evenkeel_core::alert::AlertSettings::max_share
    pub fn set_alert(&self, location: &str, to: AlertSetting) -> Result<(), ManageError> {
        let mut owned = self.lock();
        let state = &mut owned.state;
        if !state.locations.contains_key(location) {
            return Err(ManageError::NoLocation(location.into()));
        }
        let alerts = &mut state.inputs.live.alerts;
        match to {
            AlertSetting::Auto => alerts.remove(location),
            AlertSetting::On => alerts.insert(location.into(), true),
            AlertSetting::Off => alerts.insert(location.into(), false),
        };
        info!(location, alert = ?to, "load alert set by an administrator");
        self.tell_changes();
        Ok(())
    }

    /// The load alerts that are forced (`true`) or suppressed (`false`), by location.
    pub fn forced_alerts(&self) -> BTreeMap<String, bool> {
        let owned = self.lock();
        let alerts = owned.state.inputs.live.alerts.iter();
        alerts.map(|(at, on)| (at.clone(), *on)).collect()
    }
}

/// Returns the member of a group, or the endpoint of one, that is called `name`: its address in the configuration, and
/// the name that it was given, if one was. `name` is one of the two.
pub(super) fn find_member(
    state: &State,
    group: &str,
    name: &str,
) -> Result<(String, Option<String>), ManageError> {
    let entry = find_entry(state, group)?;
    let listed = state.inputs.lists.list_members(&entry.config);
    let others = listed.iter().chain(&entry.joined);
    let mut in_file = entry.config.members.iter().chain(others);
    let in_file = in_file.find(|m| m.is_called(name));
    let in_file = in_file.map(|m| (m.name(), m.given_name.clone()));
    let endpoint = || {
        let Member {
            name, given_name, ..
        } = &entry.find_endpoint(name)?.member;
        Some((name.to_string(), given_name.as_deref().map(str::to_owned)))
    };
    in_file
        .or_else(endpoint)
        .ok_or_else(|| ManageError::NoMember {
            group: group.into(),
            member: name.into(),
        })
}

/// Sets a live change of a member, which overrides those of its endpoints.
fn set_live<T>(live: &mut HashMap<(String, String), T>, group: &str, member: &str, value: T) {
    let endpoints = format!("{member}/");
    let is_one = |name: &str| name.starts_with(&endpoints) && endpoint_of(name) == Some(member);
    live.retain(|(of, name), _| of != group || !is_one(name));
    live.insert((group.into(), member.into()), value);
}
