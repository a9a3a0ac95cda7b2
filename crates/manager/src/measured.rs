//! A group as it was measured: what a simulation of it needs.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::{self, Values};

use crate::config::{Config, GroupConfig, MemberConfig, Routes, Rule};
use crate::inputs::AdminState;
use crate::manager::{ManageError, Manager, find_entry};
use crate::query::load_of;
use crate::sample::MemberSample;
use crate::state::{Endpoint, GroupEntry};

/// A group as it was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// A configuration with nothing but the group, with what was changed live, and a rule that says how
    /// long requests wait and how often they are tried again.
    pub config: Config,
    /// Members of the group, in the order of the configuration.
    pub members: Vec<MeasuredMember>,
    /// Requests per second.
    pub rate: f64,
    /// The load that members report, if any does.
    pub reports: Option<LoadId>,
}

/// A member as it was measured.
#[derive(Clone, Debug)]
pub struct MeasuredMember {
    /// Name that people see.
    pub name: String,
    /// Address in the configuration.
    pub member: String,
    /// Mean time that the member takes for a request, without waiting; unknown before its first answer.
    pub mean: Option<Duration>,
    /// Number of requests that the member works on at once, if that was learnt or is a limit.
    pub concurrency: Option<u32>,
    /// Requests that it has at once.
    pub in_flight: f64,
    /// True if the member gets traffic, or would as a backup.
    pub is_used: bool,
}

impl Manager {
    /// Returns a group as it was measured.
    ///
    /// # Errors
    ///
    /// There is no such group.
    pub fn measured_group(&self, group: &str) -> Result<Measured, ManageError> {
        let no_group = || ManageError::NoGroup(group.into());
        let sample = self.sample_group(group).ok_or_else(no_group)?;
        let now = self.clock().now();
        let owned = self.lock();
        let entry = find_entry(&owned.state, group)?;
        let settings = &entry.config.settings;
        let rows: HashMap<&str, &MemberSample> =
            sample.rows.iter().map(|row| (&*row.member, row)).collect();
        let member = |endpoint: &Endpoint| {
            let slot = &endpoint.member.slot;
            let row = rows.get(&*endpoint.member.name).copied();
            // Little: requests at once are rate times time.
            let at_once = row.and_then(|row| Some(row.rate * row.p50_ms? / 1e3));
            let mean = slot.service_time(now).filter(|seconds| *seconds > 0.0);
            MeasuredMember {
                name: endpoint.member.shown_name().to_string(),
                member: endpoint.member.name.to_string(),
                mean: mean.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok()),
                concurrency: slot.learnt_cap().or(endpoint.member.max_connections),
                in_flight: at_once.unwrap_or_else(|| f64::from(slot.in_flight())),
                is_used: row.is_some_and(|row| matches!(row.state, "up" | "warming" | "standby"))
                    && endpoint.weight.get() > 0.0,
            }
        };
        let members: Vec<_> = entry.endpoints.iter().map(member).collect();
        let mut loads = entry.endpoints.iter();
        let reports = loads.any(|endpoint| load_of(&endpoint.member, settings, now).is_some());
        let rules = owned.state.inputs.config.rules.iter();
        let rule = rules.clone().find(|rule| rule.is_served_by(group));
        Ok(Measured {
            config: Config {
                node: owned.state.inputs.config.node.clone(),
                groups: vec![alone(entry, &members).into()],
                rules: rule
                    .map(|rule| alone_with(rule, group))
                    .into_iter()
                    .collect(),
                ..Config::default()
            },
            rate: sample.rate,
            reports: reports.then_some(settings.load_id),
            members,
        })
    }
}

/// The group with its members as they are now, which nothing needs to be asked for.
fn alone(entry: &GroupEntry, measured: &[MeasuredMember]) -> GroupConfig {
    let pairs = entry.endpoints.iter().zip(measured).enumerate();
    let members = pairs.map(|(index, (endpoint, measured))| MemberConfig {
        weight: endpoint.weight,
        max_connections: endpoint.member.max_connections,
        drain: !measured.is_used || endpoint.admin != AdminState::Ready,
        backup: endpoint.backup,
        zone: endpoint.member.zone.as_deref().map(str::to_owned),
        ..simulated_member(index)
    });
    let mut group = GroupConfig::new(&entry.config.name, members.collect());
    group.settings = entry.config.settings.clone();
    group.strategy = entry.config.strategy.clone();
    group.max_queue = entry.config.max_queue;
    group
}

/// A member of that index that is nowhere.
pub fn simulated_member(index: usize) -> MemberConfig {
    let host = std::net::Ipv4Addr::from_bits(0x0a00_0001_u32.saturating_add(index as u32));
    MemberConfig::new(&host.to_string(), 80)
}

/// `rule` with nothing but the group: its requests wait, and are tried again, as they are now.
fn alone_with(rule: &Rule, group: &str) -> Rule {
    Rule {
        listen: Vec::new(),
        group: group.into(),
        tls: None,
        sni: BTreeMap::new(),
        routes: Routes::default(),
        ..rule.clone()
    }
}

/// Returns a strategy with parameters; parameters that are not named have their defaults.
///
/// # Errors
///
/// There is no such strategy, or the strategy does not take a parameter.
pub fn strategy_of(name: &str, params: &[(String, f64)]) -> Result<Values, ManageError> {
    let kind = strategy::find(name).ok_or_else(|| ManageError::NoStrategy { name: name.into() })?;
    let mut values = Values::defaults(kind);
    for (name, value) in params {
        values.set(name, *value)?;
    }
    Ok(values)
}
