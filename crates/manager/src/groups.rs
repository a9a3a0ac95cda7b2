//! The groups of a configuration by themselves, without a clock, sockets or threads: for
//! simulations. They are built, and go through rounds, as those of a [`Manager`] are.
//!
//! [`Manager`]: crate::Manager

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_control::event::Event;
use evenkeel_control::round::{Due, Round};
use evenkeel_core::time::Instant;

use crate::config::Config;
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
    /// Those of `config`, given the addresses that its names have.
    pub fn new(config: Config, addresses: HashMap<String, Vec<IpAddr>>, now: Instant) -> Self {
        let inputs = Inputs {
            config,
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
    pub fn handle(&self, name: &str) -> Option<&Arc<GroupHandle>> {
        Some(&self.state.group(name)?.handle)
    }

    /// A round of control; answers what has happened to which group.
    pub fn round(&mut self, now: Instant) -> Vec<(Arc<str>, Event)> {
        let mut round = Round::new(&mut self.due, now);
        let mut events = Vec::new();
        loop {
            let (groups, around) = self.state.controlled();
            let step = round.step(groups, around, usize::MAX, |entry, event| {
                events.push((Arc::clone(entry.group.name()), event.clone()));
            });
            if !step.more {
                return events;
            }
        }
    }
}
