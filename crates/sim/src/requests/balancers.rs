//! Balancers of a simulation, made from the configuration.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use evenkeel_control::budget::RetryBudget;
use evenkeel_core::group::GroupSettings;
use evenkeel_core::load::LoadId;
use evenkeel_core::strategy::Values;
use evenkeel_manager::config::Config;

use super::simulation::{Balancer, Dispatch, Simulation};
use crate::config::{group_config, make_groups};
use crate::work::Source;

impl Simulation<'_> {
    /// The configuration of the balancers; `None` is without any.
    pub(super) fn config(&self) -> Option<Config> {
        let values = match self.dispatch {
            Dispatch::Central { .. } => return None,
            Dispatch::Configured => None,
            Dispatch::Strategy(values) => Some(values),
        };
        let mut config = self.scenario.config.clone().unwrap_or_else(|| {
            let settings = GroupSettings {
                load_id: self
                    .scenario
                    .reports
                    .map_or(LoadId::CPU, |reports| reports.id),
                ..GroupSettings::default()
            };
            let group = |source: &Source| {
                let weights = self.scenario.members.iter().map(|member| member.weight);
                let strategy = evenkeel_core::strategy::default_kind();
                let strategy = Values::defaults(strategy);
                group_config(&source.group, weights, settings.clone(), strategy)
            };
            Config {
                groups: self.sources.iter().map(group).map(Into::into).collect(),
                ..Config::default()
            }
        });
        if let Some(values) = values {
            for group in &mut config.groups {
                group.strategy = values.clone();
            }
        }
        Some(config)
    }

    pub(super) fn balancer(&self, config: &Config, index: usize) -> Balancer {
        let mut config = config.clone();
        self.limit_view(&mut config, index);
        let groups = make_groups(config, self.engine.current_time());
        let of = |source: &Source| groups.find_handle(&source.group).map(Arc::clone);
        let handles: Vec<_> = self.sources.iter().filter_map(of).collect();
        for member in (handles.iter()).flat_map(|handle| handle.current.load().members().to_vec()) {
            member.slot.distort_cap(self.scenario.wrong_caps);
        }
        Balancer {
            by_source: (handles.iter())
                .map(|handle| handle.current.load_full())
                .collect(),
            handles,
            waiting: self.sources.iter().map(|_| VecDeque::new()).collect(),
            budgets: (self.sources.iter())
                .map(|_| RetryBudget::new(self.engine.current_time()))
                .collect(),
            groups,
            bindings: HashMap::new(),
            told: Vec::new(),
        }
    }
}
