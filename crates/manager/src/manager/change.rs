//! Changes of the configuration that come from people through the API, and are written back to
//! its file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_net::replacement::Replacement;
use tokio::sync::watch;

use super::{ChangeError, Manager, SavedConfig, WantedConfig};
use crate::config::edit;
use crate::config::{self, Config};
use crate::revisions::{Author, Entry, How, Revision};
use crate::snapshot::Snapshot;
use crate::store::{Change, Store};
use crate::subsystem::ApplyError;
use crate::writing;

impl Manager {
    /// The text in force; `None` if there is no configuration yet, or if it came from no file.
    pub fn in_force(&self) -> Option<Arc<Entry>> {
        self.in_force.borrow().clone()
    }

    /// The text in force, and each new one once it is in its file.
    pub fn in_force_changes(&self) -> watch::Receiver<Option<Arc<Entry>>> {
        self.in_force.subscribe()
    }

    /// The texts that are and were in force, the last one first.
    pub fn revisions(&self) -> Vec<Revision> {
        self.revisions.lock().list_revisions()
    }

    /// The text of a revision, if it is kept.
    pub fn revision(&self, revision: &str) -> Option<Arc<Entry>> {
        self.revisions.lock().find(revision)
    }

    /// Notes that a text is in force. `undoes` is what it goes back to.
    pub(super) fn record_text(
        &self,
        text: Arc<str>,
        generation: u64,
        how: How,
        author: Author,
        undoes: Option<&Entry>,
    ) {
        let mut revisions = self.revisions.lock();
        let entry = revisions.push(text, generation, how, author, undoes);
        self.in_force.send_if_modified(|in_force| {
            let news = in_force.as_ref() != Some(&entry);
            *in_force = Some(entry);
            news
        });
    }

    /// Returns the parts of `config` that would have no effect on the running process.
    pub fn would_need_restart(&self, config: &Config) -> Vec<String> {
        let snapshot = Snapshot {
            sections: config.sections(),
            ..Snapshot::default()
        };
        self.restart_for(&self.lock(), config, &snapshot)
    }

    /// Returns the entry in force, if its revision is `base`.
    fn is_in_force(&self, base: &str) -> Result<Arc<Entry>, ChangeError> {
        let in_force = self.in_force().ok_or(ChangeError::NoFile)?;
        if in_force.revision.revision != base {
            let now = in_force.revision.clone();
            return Err(ChangeError::ChangedMeanwhile(Box::new(now)));
        }
        Ok(in_force)
    }

    /// The text that is wanted in place of that in force, how it comes there, and what it goes back to.
    async fn wanted(
        &self,
        file: &Path,
        in_force: &Entry,
        wanted: WantedConfig,
    ) -> Result<(Arc<str>, How, Option<Arc<Entry>>), ChangeError> {
        Ok(match wanted {
            WantedConfig::Text(text) | WantedConfig::AnyText(text) => (text.into(), How::Put, None),
            WantedConfig::Edits(edits) => {
                let old = Arc::clone(&in_force.text);
                // What is shared includes nothing.
                let file = self.store().is_none().then(|| file.to_owned());
                let edit = move || match file {
                    Some(file) => edit::apply_in(&file, &old, &edits),
                    None => edit::apply_edits(&old, &edits),
                };
                (blocking(edit).await?.into(), How::Patch, None)
            }
            WantedConfig::Undo => {
                let target = self.revisions.lock().undo_entry();
                let target = target.ok_or(ChangeError::NothingToUndo)?;
                (Arc::clone(&target.text), How::Undo, Some(target))
            }
            WantedConfig::Restore(revision) => {
                let target = self.revision(&revision);
                let target = target.ok_or(ChangeError::NoRevision(revision))?;
                (Arc::clone(&target.text), How::Restore, None)
            }
        })
    }

    fn no_change(&self, in_force: &Entry) -> SavedConfig {
        SavedConfig {
            revision: in_force.revision.revision.clone(),
            generation: self.lock().state.snapshot.generation,
            notes: vec![
                "the configuration is the same as the one in force: nothing has changed".into(),
            ],
            in_effect: true,
        }
    }

    /// Writes a change to the store, from where it comes into effect here as everywhere.
    async fn change_stored(
        &self,
        store: &Arc<dyn Store>,
        file: &Path,
        base: &str,
        wanted: WantedConfig,
        author: Author,
    ) -> Result<SavedConfig, ChangeError> {
        let in_force = self.is_in_force(base)?;
        let is_guarded = matches!(wanted, WantedConfig::Text(_));
        let (text, how, _) = self.wanted(file, &in_force, wanted).await?;
        if text == in_force.text {
            return Ok(self.no_change(&in_force));
        }
        if edit::has_masked_secret(&text) {
            return Err(ChangeError::Masked);
        }
        let config = self.parse(file, &text)?;
        if is_guarded && self.loses_all_rules(&config) {
            return Err(ChangeError::NoRules);
        }
        let who = author.user_name.clone();
        let change = Change {
            before: base.to_owned(),
            text: Arc::clone(&text),
            author,
        };
        let put = store.put(change).await?;
        tracing::info!(
            who,
            ?how,
            "the admin API changed the configuration in the store"
        );
        Ok(SavedConfig {
            revision: edit::text_revision(&text),
            generation: self.lock().state.snapshot.generation,
            notes: put.notes,
            in_effect: self
                .in_force()
                .is_some_and(|in_force| in_force.text == text),
        })
    }

    /// Changes the configuration, whose revision in force must be `base`, and writes it to `file`, or to the
    /// store. Either both happen, or nothing does.
    ///
    /// The future must not be dropped before it is ready: run it in a task of its own.
    ///
    /// # Errors
    ///
    /// Reason why nothing has changed.
    pub async fn change_file(
        &self,
        file: &Path,
        base: &str,
        wanted: WantedConfig,
        author: Author,
    ) -> Result<SavedConfig, ChangeError> {
        if let Some(store) = self.store() {
            return self.change_stored(store, file, base, wanted, author).await;
        }
        let _one_at_a_time = self.reloading.lock().await;
        let in_force = self.is_in_force(base)?;
        unchanged(file, &in_force.text)?;
        let is_guarded = matches!(wanted, WantedConfig::Text(_));
        let (text, how, undoes) = self.wanted(file, &in_force, wanted).await?;
        if text == in_force.text {
            return Ok(self.no_change(&in_force));
        }
        if edit::has_masked_secret(&text) {
            return Err(ChangeError::Masked);
        }
        let config = config::parse(&file.display().to_string(), &text)?;
        if is_guarded && self.loses_all_rules(&config) {
            return Err(ChangeError::NoRules);
        }
        if config.process != self.lock().state.inputs.config.process {
            return Err(ChangeError::Process);
        }
        let (path, new) = (file.to_owned(), Arc::clone(&text));
        let prepared = blocking(move || Replacement::write(&path, &new)).await;
        let prepared = prepared.map_err(|error| write_error(file, &error))?;

        let before = self.lock().state.inputs.clone();
        let applied = self.replace(config).await;
        let applied = applied.inspect_err(|error| {
            tracing::warn!(
                "the admin API's change was refused, and the configuration stays as it was: {error}"
            );
        })?;
        let (path, old) = (file.to_owned(), Arc::clone(&in_force.text));
        let written = blocking(move || put_in_place(path, &old, prepared)).await;
        if let Err(error) = written {
            let mut owned = self.lock();
            let generation = owned.state.snapshot.generation + 1;
            if let Err(back) = self.install(&mut owned.state, before, generation) {
                drop(owned);
                let stuck = ChangeError::Stuck {
                    file: file.display().to_string(),
                    why: error.to_string(),
                    back,
                };
                tracing::error!("{stuck}");
                self.record_text(text, applied.generation, how, author, undoes.as_deref());
                return Err(stuck);
            }
            tracing::error!("{error}");
            return Err(error);
        }
        let who = author.user_name.clone();
        tracing::info!(who, ?how, "the admin API changed the configuration");
        self.record_text(text, applied.generation, how, author, undoes.as_deref());
        let applied = Ok::<_, ApplyError>(applied);
        self.note_reload(&applied);
        let in_force = self.in_force().ok_or(ChangeError::NoFile)?;
        applied
            .map_err(ChangeError::from)
            .map(|applied| SavedConfig {
                revision: in_force.revision.revision.clone(),
                generation: applied.generation,
                notes: applied.notes,
                in_effect: true,
            })
    }
}

/// Checks that the file still has the text in force.
fn unchanged(file: &Path, in_force: &str) -> Result<(), ChangeError> {
    let name = file.display();
    match config::text_of(file) {
        Ok(text) if text == in_force => Ok(()),
        Ok(text) => Err(ChangeError::FileChanged {
            diff: edit::unified(("in force", in_force), ("on disk", &text)),
            why: format!("{name} differs from the configuration in force"),
        }),
        Err(errors) => Err(ChangeError::FileChanged {
            diff: String::new(),
            why: errors.to_string(),
        }),
    }
}

/// Puts the new file in its place, unless somebody has changed the old one meanwhile.
fn put_in_place(file: PathBuf, old: &str, prepared: Replacement) -> Result<(), ChangeError> {
    unchanged(&file, old)?;
    let committed = prepared.commit();
    committed.map_err(|error| write_error(&file, &error))
}

fn write_error(file: &Path, error: &io::Error) -> ChangeError {
    ChangeError::Write {
        file: file.display().to_string(),
        why: error.to_string(),
        remedy: writing::remedy(file, error),
    }
}

/// Does something that takes a while, or waits for a disk, where it keeps nobody waiting.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that ends cancels work.
            Err(_) => std::future::pending().await,
        },
    }
}
