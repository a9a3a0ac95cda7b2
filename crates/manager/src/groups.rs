//! Groups of a configuration by themselves, without a clock, sockets or threads: for simulations. The groups
//! are built, and go through rounds, as those of a [`Manager`] are.
//!
//! [`Manager`]: crate::Manager

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_control::event::Event;
use evenkeel_control::health::{Check, Checked};
use evenkeel_control::round::{Due, Round};
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;

use crate::check::take_in;
use crate::config::{Config, HealthCheck};
use crate::inputs::Inputs;
use crate::snapshot::GroupHandle;
use crate::state::State;

/// The groups of a configuration.
#[derive(Debug)]
pub struct Groups {
    state: State,
    due: Due,
}

impl Groups {
    /// Returns the groups of `config`, given the addresses that its names have.
    pub fn new(config: Config, addresses: HashMap<String, Vec<IpAddr>>, now: Instant) -> Self {
        let inputs = Inputs {
            config: Arc::new(config),
            addresses,
            ..Inputs::new()
        };
        let mut state = State::empty().next(inputs, 1, now);
        state.commit(now);
        Groups {
            state,
            due: Due::default(),
        }
    }

    /// The group called `name`.
    pub fn find_handle(&self, name: &str) -> Option<&Arc<GroupHandle>> {
        Some(&self.state.find_group(name)?.handle)
    }

    /// Returns the health check of members of the group `name`, if it has one.
    pub fn health_check(&self, name: &str) -> Option<&HealthCheck> {
        self.state.find_group(name)?.config.health_check.as_ref()
    }

    /// A check of a member of the group `name` is over; answers what that has done.
    pub fn apply_check(
        &mut self,
        name: &str,
        member: MemberId,
        found: Check,
        now: Instant,
    ) -> Option<Checked> {
        let check = self.health_check(name)?.clone();
        let (_, endpoint) = self.state.endpoint_mut(member)?;
        Some(take_in(endpoint, &check, found, now))
    }

    /// A round of control; answers what has happened to which group.
    pub fn run_round(&mut self, now: Instant) -> Vec<(Arc<str>, Event)> {
        let mut round = Round::new(&mut self.due, now);
        let mut events = Vec::new();
        loop {
            let (groups, around) = self.state.control_parts(None);
            let step = round.run_step(groups, around, usize::MAX, |entry, event| {
                events.push((Arc::clone(entry.group.name()), event.clone()));
            });
            if !step.more {
                return events;
            }
        }
    }
}
