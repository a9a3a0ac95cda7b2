//! Zone of the balancer that a subsystem has found.

use std::sync::Arc;

use super::{AppliedConfig, Manager};
use crate::config::Config;
use crate::handover::Handover;
use crate::subsystem::ApplyError;

/// Part of a [`Handover`], and its version: the found zone.
const PART: (&str, u32) = ("found_zone", 1);

impl Manager {
    /// Sets the zone in which the balancer is, as a subsystem has found. A zone in `[node]` goes before the found zone.
    ///
    /// # Errors
    ///
    /// Reason why the zone has no effect yet: it has from the next change of the configuration on.
    pub async fn set_found_zone(&self, zone: String) -> Result<AppliedConfig, ApplyError> {
        let _one_at_a_time = self.reloading.lock().await;
        let (own, generated) = {
            let mut owned = self.lock();
            owned.found_zone = Some(zone);
            let generated = owned.generated.as_ref();
            let generated = generated.map(|(_, config)| Arc::clone(config));
            (Arc::clone(&owned.state.inputs.own), generated)
        };
        self.replace_with(own, generated, false).await
    }

    /// Returns the zone that a subsystem has found.
    pub fn found_zone(&self) -> Option<String> {
        self.lock().found_zone.clone()
    }

    /// Fills in the found zone if the file sets none.
    pub(super) fn add_found_zone(&self, config: &mut Config) {
        if config.node.zone.is_none() {
            config.node.zone.clone_from(&self.lock().found_zone);
        }
    }

    /// Tells a process that takes the place of this one of the found zone.
    pub(super) fn hand_over_zone(&self, to: &mut Handover) {
        if let Some(zone) = &self.lock().found_zone {
            to.give(PART.0, PART.1, zone);
        }
    }

    /// Takes over the zone that the process before has found.
    pub(super) fn take_over_zone(&self, from: &Handover) {
        if let Some(zone) = from.take(PART.0, PART.1) {
            self.lock().found_zone = Some(zone);
        }
    }
}
