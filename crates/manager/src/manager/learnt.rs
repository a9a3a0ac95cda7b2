//! State that the manager tells the process that takes the place of this one, and state that it takes over.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use evenkeel_core::learnt;
use evenkeel_core::member::Weight;
use evenkeel_core::strategy::Values;
use tracing::warn;

use super::Manager;
use crate::changes::Changes;
use crate::config::{Config, kept};
use crate::handover::Handover;
use crate::inputs::Inputs;
use crate::measured::strategy_of;
use crate::snapshot::Snapshot;
use crate::state::All;

/// Parts of a [`Handover`].
const LEARNT: &str = "learnt";
const CHANGES: &str = "changes";
const FILES: &str = "files";

/// The form of the files: pairs of a path and its content in base64.
const FILES_VERSION: u32 = 1;

/// The form of [`Changes`].
const CHANGES_VERSION: u32 = 1;

impl Manager {
    /// Tells what it knows to a process that takes the place of this one.
    pub fn hand_over(&self, to: &mut Handover) {
        let text = self.in_force().map(|entry| entry.text.to_string());
        self.hand_over_generated(to);
        self.hand_over_zone(to);
        let owned = self.lock();
        let files = kept::list_differing(owned.state.inputs.config.files());
        let files = files
            .iter()
            .map(|(path, content)| (path, BASE64.encode(content)));
        to.give(FILES, FILES_VERSION, &files.collect::<Vec<_>>());
        to.give(
            LEARNT,
            learnt::VERSION,
            &All::collect_from(&owned.state.groups, &owned.state.locations),
        );
        if let Some(text) = text {
            let generation = owned.state.snapshot.generation;
            let changes = changes_of(&owned.state.inputs, text, generation);
            to.give(CHANGES, CHANGES_VERSION, &changes);
        }
    }

    /// Uses what files said that were good in the process before, and are broken now. A configuration that names
    /// secrets cannot be read without them.
    pub fn take_over_files(from: &Handover) {
        let files: Option<Vec<(PathBuf, String)>> = from.take(FILES, FILES_VERSION);
        let files = files.into_iter().flatten();
        kept::take_over(
            files.filter_map(|(path, content)| Some((path, BASE64.decode(content).ok()?))),
        );
    }

    /// Goes on with what the process before knew, once the first configuration comes; both have it
    /// from `file`.
    pub fn take_over(&self, from: &Handover, file: &Path) {
        Self::take_over_files(from);
        self.take_over_generated(from);
        self.take_over_zone(from);
        let mut owned = self.lock();
        owned.state.learnt = from.take(LEARNT, learnt::VERSION);
        owned.changes = from.take(CHANGES, CHANGES_VERSION);
        if let Some(changes) = &mut owned.changes {
            changes.file = file.to_owned();
        }
    }

    /// Has the first configuration come after that of the process before, with what was changed
    /// live there.
    pub(super) fn go_on(&self) {
        let mut owned = self.lock();
        let Some(changes) = owned.changes.take() else {
            return;
        };
        match self.parse(&changes.file, &changes.text) {
            Ok(mut config) => {
                if let Some((_, generated)) = &owned.generated {
                    config.add_generated(generated);
                }
                owned.state.snapshot = Arc::new(Snapshot {
                    generation: changes.generation,
                    ..Snapshot::default()
                });
                put(changes, config, &mut owned.state.inputs);
            }
            Err(error) => warn!(
                "upgrade: the old process's configuration cannot be read here, so its live changes are lost: {error}"
            ),
        }
    }
}

/// Makes `inputs` those of the process before, whose configuration was `config`.
fn put(changes: Changes, config: Config, inputs: &mut Inputs) {
    inputs.config = Arc::new(config);
    inputs.addresses = changes.addresses;
    let live = &mut inputs.live;
    live.enabled = changes.enabled;
    live.maintenance = changes.maintenance;
    live.group_maintenance = changes.group_maintenance;
    live.alerts = changes.alerts;
    let admin = changes.admin.into_iter();
    live.admin = admin.map(|(g, m, state)| ((g, m), state)).collect();
    let backups = changes.backups.into_iter();
    live.backups = backups.map(|(g, m, is)| ((g, m), is)).collect();
    let weights = changes.weights.into_iter();
    let weights = weights.filter_map(|(g, m, of)| Some(((g, m), Weight::new(of).ok()?)));
    live.weights = weights.collect();
    let strategies = changes.strategies.into_iter();
    let strategies = strategies
        .filter_map(|(group, (name, params))| Some((group, strategy_of(&name, &params).ok()?)));
    live.strategies = strategies.collect();
}

fn changes_of(inputs: &Inputs, text: String, generation: u64) -> Changes {
    let live = &inputs.live;
    let admin = live.admin.iter();
    let weights = live.weights.iter();
    let backups = live.backups.iter();
    let strategies = live.strategies.iter();
    let of_values = |values: &Values| {
        let params = values.kind().params.iter();
        let params = params.map(|param| (param.name.to_owned(), values.get(param.name)));
        (values.kind().name.to_owned(), params.collect())
    };
    Changes {
        text,
        file: PathBuf::new(),
        generation,
        enabled: live.enabled.clone(),
        maintenance: live.maintenance.clone(),
        group_maintenance: live.group_maintenance.clone(),
        strategies: strategies
            .map(|(group, values)| (group.clone(), of_values(values)))
            .collect(),
        admin: admin
            .map(|((group, member), state)| (group.clone(), member.clone(), *state))
            .collect(),
        weights: weights
            .map(|((group, member), weight)| {
                (group.clone(), member.clone(), f64::from(weight.get()))
            })
            .collect(),
        backups: backups
            .map(|((group, member), is)| (group.clone(), member.clone(), *is))
            .collect(),
        alerts: live.alerts.clone(),
        addresses: inputs.addresses.clone(),
    }
}
