//! A whole configuration: at the start, and at each reload.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tracing::{error, info, warn};

use super::{AppliedConfig, LockedState, Manager, Reload, ReloadError};
use crate::config::{self, Admin, Config, Errors, kept};
use crate::files;
use crate::inputs::host_names;
use crate::lists::Lists;
use crate::member_tls::{self, Clients};
use crate::revisions::{Author, How};
use crate::snapshot::Snapshot;
use crate::sticky::{self, Cookies};
use crate::subsystem::{ApplyError, PrepareError};

impl Manager {
    /// Reads the file at `path` and applies it: at the start, and at each reload. A file
    /// with errors changes nothing. `author` is who wanted it.
    pub async fn reload(
        &self,
        path: &Path,
        how: How,
        author: Author,
    ) -> Result<AppliedConfig, ReloadError> {
        let _one_at_a_time = self.reloading.lock().await;
        let text = self.text_of(path);
        self.reload_text(path, text, how, author, false).await
    }

    /// Reloads the file at `path` on demand. `force` applies a file that takes all rules away, too.
    pub async fn reload_asked(
        &self,
        path: &Path,
        author: Author,
        force: bool,
    ) -> Result<AppliedConfig, ReloadError> {
        let _one_at_a_time = self.reloading.lock().await;
        let text = self.text_of(path);
        let result = self.reload_text(path, text, How::File, author, force).await;
        if result.is_err() {
            self.failed_reloads.send_replace(());
        }
        result
    }

    /// Applies the text of a store, beside that of the file at `path`.
    ///
    /// # Errors
    ///
    /// Reason why all is as it was.
    pub async fn apply_stored(
        &self,
        path: &Path,
        text: String,
        author: Author,
    ) -> Result<AppliedConfig, ReloadError> {
        let _one_at_a_time = self.reloading.lock().await;
        // Whoever wrote it there was asked.
        self.reload_text(path, Ok(text), How::Store, author, true)
            .await
    }

    /// The text as it is kept: in the file at `path`, or that of the store which is in force.
    fn text_of(&self, path: &Path) -> Result<String, Errors> {
        match self.in_force().filter(|_| self.store().is_some()) {
            Some(entry) => Ok(entry.text.to_string()),
            None => config::text_of(path),
        }
    }

    /// Reloads the file at `path` after it has changed. A text that is in force already is not applied once
    /// more, such as after [`Manager::change_file`] wrote it. In that case there is no answer.
    pub async fn reload_changed(&self, path: &Path) -> Option<Result<AppliedConfig, ReloadError>> {
        let _one_at_a_time = self.reloading.lock().await;
        let text = self.text_of(path);
        let in_force = self.in_force();
        let known = in_force.as_ref().map(|entry| &*entry.text);
        let last = self.lock().last_reload.clone();
        // With a store the file is not that text.
        let went_well = self.store().is_none() && last.is_some_and(|last| last.error.is_none());
        if went_well && known.is_some() && known == text.as_deref().ok() {
            return None;
        }
        let author = Author::default();
        Some(self.reload_text(path, text, How::File, author, false).await)
    }

    async fn reload_text(
        &self,
        path: &Path,
        text: Result<String, Errors>,
        how: How,
        author: Author,
        force: bool,
    ) -> Result<AppliedConfig, ReloadError> {
        let parsed = text.and_then(|text| {
            let config = self.parse(path, &text)?;
            for complaint in config::check_rights(path, &config.included) {
                warn!("{complaint}");
            }
            Ok((config, text))
        });
        let result = match parsed {
            Ok((config, _)) if !force && self.loses_all_rules(&config) => {
                Err(ReloadError::NoRules(path.display().to_string()))
            }
            Ok((config, text)) => {
                let applied = self.replace(config).await;
                applied.map_err(ReloadError::from).inspect(|applied| {
                    self.record_text(text.into(), applied.generation, how, author, None);
                })
            }
            Err(errors) => Err(ReloadError::Config(errors)),
        };
        self.note_reload(&result);
        result
    }

    /// Makes `config` the configuration, whose text is that of no file.
    ///
    /// Names of members that are new are resolved first, for a few seconds at most. A name that does not
    /// resolve is no error: its member waits until it does.
    pub async fn apply_config(&self, config: Config) -> Result<AppliedConfig, ApplyError> {
        let _one_at_a_time = self.reloading.lock().await;
        let result = self.replace(config).await;
        self.note_reload(&result);
        result
    }

    /// Makes `config` the first configuration, which was read from `text`.
    pub async fn start(&self, config: Config, text: String) -> Result<AppliedConfig, ApplyError> {
        let _one_at_a_time = self.reloading.lock().await;
        self.go_on();
        let mut result = self.replace(config.clone()).await;
        if let Err(error) = &result {
            let error = error.to_string();
            if self.forget_generated() {
                warn!(
                    "the gateways of the process before are not served until the API server has answered: {error}"
                );
                result = self.replace(config).await;
            }
        }
        if let Ok(applied) = &result {
            let author = Author::default();
            self.record_text(text.into(), applied.generation, How::Start, author, None);
        }
        self.note_reload(&result);
        result
    }

    /// Makes `config` the configuration. One change runs at a time.
    pub(super) async fn replace(&self, config: Config) -> Result<AppliedConfig, ApplyError> {
        let generated = self.lock().generated.clone();
        let generated = generated.map(|(_, config)| config);
        self.replace_with(Arc::new(config), generated, true).await
    }

    /// Makes `own`, with the rules and groups that are generated, the configuration. `reads_files` is false if neither the
    /// file of `own` nor a file that it names has changed: then nothing is read for groups that stay as they are.
    pub(super) async fn replace_with(
        &self,
        own: Arc<Config>,
        generated: Option<Arc<Config>>,
        reads_files: bool,
    ) -> Result<AppliedConfig, ApplyError> {
        let mut config = Config::clone(&own);
        if let Some(generated) = generated {
            config.add_generated(&generated);
        }
        self.add_found_zone(&mut config);
        let keeps_groups = !reads_files && self.lock().state.inputs.config.has_same_groups(&config);
        let parts = match keeps_groups {
            true => None,
            false => Some(self.load_group_parts(&config).await?),
        };
        let files = self.lock().state.inputs.files.clone();
        let files = files::load(&config, &files).map_err(PrepareError::files)?;

        let mut owned = self.lock();
        let known = &owned.state.inputs;
        let parts = parts.unwrap_or_else(|| GroupParts {
            lists: known.lists.clone(),
            addresses: HashMap::new(),
            clients: known.clients.clone(),
            cookies: known.cookies.clone(),
        });
        let mut lists = parts.lists;
        lists.take_newer(&known.lists);
        let before: HashSet<PathBuf> = match keeps_groups {
            true => HashSet::new(),
            false => known.config.files().map(Path::to_owned).collect(),
        };
        if owned.started.is_none() {
            // What the process before has told was about the same ones.
            owned.state.inputs.lists = lists.clone();
        }
        let old = &owned.state.inputs;
        let mut inputs = old.with_config(config, lists, self.clock.now());
        inputs.own = own;
        inputs.addresses.extend(parts.addresses);
        inputs.clients = parts.clients;
        inputs.files = files;
        inputs.cookies = parts.cookies;
        let generation = owned.state.snapshot.generation + 1;
        let warnings = inputs.config.warnings.iter();
        let mut notes: Vec<String> = warnings.map(ToString::to_string).collect();
        self.install(&mut owned.state, inputs, generation)?;
        notes.extend(self.needs_restart(&owned));
        let config = &owned.state.inputs.config;
        // Generated rules have no files but those in memory.
        if !keeps_groups {
            kept::forget(before.iter().map(PathBuf::as_path), config.files());
            notes.extend(kept::complaints(config.files()));
        }
        if owned.started.is_none() {
            owned.started = Some(owned.state.inputs.config.clone());
        }
        Ok(AppliedConfig { generation, notes })
    }

    /// Reads, and looks up, what the groups of a configuration need.
    async fn load_group_parts(&self, config: &Config) -> Result<GroupParts, ApplyError> {
        let (known, lists) = {
            let inputs = &self.lock().state.inputs;
            (inputs.addresses.clone(), inputs.lists.clone())
        };
        let lists = self.read_lists(config, lists).await;
        let hosts = host_names(config, &lists).into_keys();
        let new: HashSet<String> = hosts.filter(|host| !known.contains_key(host)).collect();
        let addresses = self.resolver.lookup_all(&config.dns, new).await;
        let (clients, cookies) = {
            let inputs = &self.lock().state.inputs;
            (inputs.clients.clone(), inputs.cookies.clone())
        };
        let clients = member_tls::load(&config.groups, &clients);
        Ok(GroupParts {
            lists,
            addresses,
            clients: clients.map_err(PrepareError::files)?,
            cookies: sticky::load(&config.groups, &cookies).map_err(PrepareError::files)?,
        })
    }

    /// True if there are rules now, and none in `config`: as with a file that was emptied by mistake.
    pub(super) fn loses_all_rules(&self, config: &Config) -> bool {
        config.rules.is_empty() && !self.lock().state.inputs.own.rules.is_empty()
    }

    /// Returns the parts of the configuration that have no effect on the running process.
    pub(crate) fn needs_restart(&self, owned: &LockedState) -> Vec<String> {
        self.restart_for(owned, &owned.state.inputs.config, &owned.state.snapshot)
    }

    /// Returns the parts of `config`, of which `snapshot` has the sections, that have no effect on the
    /// running process.
    pub(super) fn restart_for(
        &self,
        owned: &LockedState,
        config: &Config,
        snapshot: &Snapshot,
    ) -> Vec<String> {
        let started = owned.started.iter();
        let fixed = started.flat_map(|old| fixed_at_start(old, config));
        let of_subsystems = self.subsystems.needs_restart(snapshot);
        let all = fixed.chain(of_subsystems);
        all.map(|what| {
            format!(
                "{what} changed in the file: restart the balancer to put the change into effect"
            )
        })
        .collect()
    }

    pub(super) fn note_reload<E: fmt::Display>(&self, result: &Result<AppliedConfig, E>) {
        match result {
            Ok(applied) => {
                info!(generation = applied.generation, "configuration applied");
                for note in &applied.notes {
                    warn!("{note}");
                }
            }
            // Whoever starts says why that fails.
            Err(_) if self.lock().started.is_none() => {}
            // A line for each error, so that each has its time and level.
            Err(error) => {
                for line in error.to_string().lines() {
                    error!("the configuration stays as it was: {line}");
                }
            }
        }
        self.lock().last_reload = Some(Reload {
            at: SystemTime::now(),
            error: result.as_ref().err().map(ToString::to_string),
        });
    }
}

/// Parts of the inputs that groups need, and that come from files and names.
struct GroupParts {
    lists: Lists,
    /// Addresses of names that are new.
    addresses: HashMap<String, Vec<IpAddr>>,
    clients: Clients,
    cookies: Cookies,
}

/// Returns the parts of `new` that have no effect on the process, which was started with `old`.
fn fixed_at_start(old: &Config, new: &Config) -> impl Iterator<Item = &'static str> {
    let parts = [
        ("the number of workers", old.workers != new.workers),
        ("[process]", old.process != new.process),
        // Only what goes by the store knows the balancer by the name that it had at the start.
        (
            "the name in [node]",
            old.store.is_some() && old.node.name != new.node.name,
        ),
        ("[store]", old.store != new.store),
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
