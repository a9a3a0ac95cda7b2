//! A whole configuration: at the start, and at each reload.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use tracing::{error, info, warn};

use super::{Applied, Manager, Owned, Reload, ReloadError};
use crate::config::{self, Admin, Config};
use crate::inputs::hosts;
use crate::member_tls;
use crate::routes;
use crate::sticky;
use crate::subsystem::{ApplyError, PrepareError};

impl Manager {
    /// Reads the file at `path` and applies it: at the start, and at each reload. A file
    /// with errors changes nothing.
    pub async fn reload(&self, path: &Path) -> Result<Applied, ReloadError> {
        let result = match config::load(path) {
            Ok(config) => self.replace(config).await.map_err(ReloadError::from),
            Err(errors) => Err(ReloadError::Config(errors)),
        };
        self.note(&result);
        result
    }

    /// Makes `config` the configuration: at the start, and at each reload.
    ///
    /// Names of members that are new are resolved first, for a few seconds at most.
    /// One that does not resolve is no error: its member waits until it does.
    pub async fn apply(&self, config: Config) -> Result<Applied, ApplyError> {
        let result = self.replace(config).await;
        self.note(&result);
        result
    }

    async fn replace(&self, config: Config) -> Result<Applied, ApplyError> {
        let _one_at_a_time = self.reloading.lock().await;
        let (known, lists) = {
            let inputs = &self.lock().state.inputs;
            (inputs.addresses.clone(), inputs.lists.clone())
        };
        let lists = self.read_lists(&config, lists).await;
        let hosts = hosts(&config, &lists).into_keys();
        let new: HashSet<String> = hosts.filter(|host| !known.contains_key(host)).collect();
        let found = self.resolver.lookup_all(&config.dns, new).await;
        let (clients, cookies, files) = {
            let inputs = &self.lock().state.inputs;
            let (clients, cookies) = (inputs.clients.clone(), inputs.cookies.clone());
            (clients, cookies, inputs.files.clone())
        };
        let clients = member_tls::load(&config.groups, &clients);
        let clients = clients.map_err(PrepareError::files)?;
        let cookies = sticky::load(&config.groups, &cookies).map_err(PrepareError::files)?;
        let files = routes::load(&config.rules, &files).map_err(PrepareError::files)?;

        let mut owned = self.lock();
        let old = &owned.state.inputs;
        let mut inputs = old.with_config(config, lists);
        inputs.addresses.extend(found);
        inputs.clients = clients;
        inputs.files = files;
        inputs.cookies = cookies;
        let generation = owned.state.snapshot.generation + 1;
        let warnings = inputs.config.warnings.iter();
        let mut notes: Vec<String> = warnings.map(ToString::to_string).collect();
        self.install(&mut owned.state, inputs, generation)?;
        notes.extend(self.needs_restart(&owned));
        if owned.started.is_none() {
            owned.started = Some(owned.state.inputs.config.clone());
        }
        Ok(Applied { generation, notes })
    }

    /// What of the configuration has no effect on the running process.
    pub(crate) fn needs_restart(&self, owned: &Owned) -> Vec<String> {
        let started = owned.started.iter();
        let fixed = started.flat_map(|old| fixed_at_start(old, &owned.state.inputs.config));
        let of_subsystems = self.subsystems.needs_restart(&owned.state.snapshot);
        let all = fixed.chain(of_subsystems);
        all.map(|what| format!("{what} changed in the file: restart to have it take effect"))
            .collect()
    }

    fn note<E: fmt::Display>(&self, result: &Result<Applied, E>) {
        match result {
            Ok(applied) => {
                info!(generation = applied.generation, "configuration applied");
                for note in &applied.notes {
                    warn!("{note}");
                }
            }
            // Whoever starts says why that fails.
            Err(_) if self.lock().started.is_none() => {}
            Err(error) => error!("the configuration stays as it was: {error}"),
        }
        self.lock().last_reload = Some(Reload {
            at: SystemTime::now(),
            error: result.as_ref().err().map(ToString::to_string),
        });
    }
}

/// What of `new` has no effect on the process, which was started with `old`.
fn fixed_at_start(old: &Config, new: &Config) -> impl Iterator<Item = &'static str> {
    let parts = [
        ("the number of workers", old.workers != new.workers),
        (
            "the admin API's settings",
            fixed(&old.admin) != fixed(&new.admin),
        ),
    ];
    let changed = parts.into_iter().filter(|(_, changed)| *changed);
    changed.map(|(what, _)| what)
}

/// The settings of the admin API that need a restart: the token and the certificates may change, but not whether
/// there are any.
fn fixed(admin: &Option<Admin>) -> impl PartialEq {
    let fixed = |admin: &Admin| {
        let secured = (admin.token.is_some(), admin.tls.is_some());
        (
            admin.listen,
            admin.behind_proxy,
            admin.local_access,
            admin.console,
            admin.audit_log.clone(),
            admin.users_file.is_some(),
            secured,
            admin.knows_clients(),
        )
    };
    admin.as_ref().map(fixed)
}
