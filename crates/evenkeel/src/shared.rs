//! Configuration that a balancer shares with others, if the configuration comes from a store.

use std::path::Path;

use evenkeel_manager::config::{self, Config, Errors};

use crate::failure::Failure;

#[cfg(feature = "fleet")]
pub(crate) use with::Shared;
#[cfg(not(feature = "fleet"))]
pub(crate) use without::Shared;

/// A configuration with its text, and the store that the text is from, if it is not from the file.
pub(crate) struct Start {
    pub(crate) config: Config,
    pub(crate) text: String,
    pub(crate) shared: Option<Shared>,
}

/// Returns the start of a balancer whose file `file` has this text. All helpers of this function
/// have ended when it does: no thread is left.
pub(crate) fn begin(
    file: &Path,
    text: String,
    refused: fn(Errors) -> Failure,
) -> Result<Start, Failure> {
    let name = file.display().to_string();
    if let Some(own) = config::parse_config_source(&name, &text).map_err(refused)? {
        let (config, text, shared) = Shared::begin(file, &own, &text, refused)?;
        return Ok(Start {
            config,
            text,
            shared: Some(shared),
        });
    }
    Ok(Start {
        config: config::parse(&name, &text).map_err(refused)?,
        text,
        shared: None,
    })
}

/// Returns the configuration of a file for a command that only checks the file, and a note about
/// it. The shared part of the configuration comes from its last good copy: the store is not asked.
pub(crate) fn load(
    file: &Path,
    refused: fn(Errors) -> Failure,
) -> Result<(Config, String), Failure> {
    let name = file.display().to_string();
    let text = config::text_of(file).map_err(refused)?;
    let Some(own) = config::parse_config_source(&name, &text).map_err(refused)? else {
        return Ok((config::parse(&name, &text).map_err(refused)?, String::new()));
    };
    match Shared::known(&own.store) {
        Ok((number, shared)) => {
            let place = format!("revision {number} of the store");
            let config = config::parse_shared(&name, &text, (&place, &shared)).map_err(refused)?;
            Ok((
                config,
                format!(", together with {place}, the last one that this balancer had"),
            ))
        }
        Err(why) => {
            let note =
                format!("without the configuration of the store, which is not known here: {why}");
            match config::parse(&name, &text) {
                Ok(config) => Ok((config, format!(", {note}"))),
                Err(errors) => {
                    let failure = refused(errors);
                    let message = format!("{}\nnote: this was checked {note}", failure.message);
                    Err(Failure { message, ..failure })
                }
            }
        }
    }
}

#[cfg(feature = "fleet")]
mod with {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use evenkeel_manager::config::{self, Config, Errors, SharedConfigSource, Store, one_line};
    use evenkeel_manager::service::Service;
    use evenkeel_manager::{Manager, SHARED};
    use evenkeel_store::subsystem::find_start;
    use evenkeel_store::{Fleet, copy};
    use tracing::warn;

    use crate::failure::Failure;

    /// The store.
    pub(crate) struct Shared {
        fleet: Fleet,
        /// Notes for the log.
        notes: Vec<String>,
    }

    impl Shared {
        /// Returns the configuration to start with, its text, and the store that it is from.
        pub(super) fn begin(
            file: &Path,
            own: &SharedConfigSource,
            text: &str,
            refused: fn(Errors) -> Failure,
        ) -> Result<(Config, String, Shared), Failure> {
            let settings = &own.store;
            let name = own.node.find_name();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime =
                runtime.map_err(|error| Failure::new(format!("cannot start: {error}")))?;
            // There is no log yet.
            let tell = |what: &str| eprintln!("evenkeel: {what}");
            let begun = runtime.block_on(find_start(settings, &name, tell));
            // Its threads, for names, would keep rights that are given up next.
            runtime.shutdown_timeout(Duration::from_secs(5));
            let mut begun = begun.map_err(Failure::new)?;
            let path = file.display().to_string();
            let config = loop {
                let shared = (SHARED, begun.revision.text.as_str());
                let errors: Errors = match config::parse_shared(&path, text, shared) {
                    Ok(config) => break config,
                    Err(errors) => errors,
                };
                if !begun.fall_back(one_line(&errors.problems)) {
                    return Err(refused(errors));
                }
            };
            let (text, notes) = (begun.revision.text.clone(), begun.notes.clone());
            let fleet = Fleet::new(settings, &name, file, begun);
            Ok((config, text, Shared { fleet, notes }))
        }

        /// Returns the last good copy: the number of its revision, and the text.
        pub(super) fn known(settings: &Store) -> Result<(u64, String), String> {
            let path = settings.copy_file.display();
            match copy::load_copy(&settings.copy_file, &settings.prefix) {
                Ok(Some(copy)) => Ok((copy.revision.number, copy.revision.text)),
                Ok(None) => Err(format!("there is no last good copy in {path} yet")),
                Err(why) => Err(format!(
                    "the last good copy in {path} cannot be used: {why}"
                )),
            }
        }

        /// Says in the log what it has begun with.
        pub(crate) fn tell(&self) {
            for note in &self.notes {
                warn!("{note}");
            }
        }

        pub(crate) fn service(&self) -> Arc<dyn Service> {
            Arc::new(self.fleet.clone())
        }

        /// Has the configuration of `manager` come from it.
        pub(crate) fn keep(&self, manager: &Manager) {
            manager.keep_in(Arc::new(self.fleet.clone()));
        }

        /// Returns the text to start with in place of one that cannot be started, for the reason
        /// `why`.
        pub(crate) fn fall_back(&self, why: String) -> Option<String> {
            self.fleet.fall_back(why)
        }

        /// Tries the store again, as something has changed beside it.
        pub(crate) fn retry(&self) {
            self.fleet.retry();
        }
    }
}

#[cfg(not(feature = "fleet"))]
mod without {
    use std::path::Path;
    use std::sync::Arc;

    use evenkeel_manager::Manager;
    use evenkeel_manager::config::{Config, Errors, SharedConfigSource, Store};
    use evenkeel_manager::service::Service;

    use crate::failure::Failure;

    /// There is none.
    pub(crate) enum Shared {}

    impl Shared {
        pub(super) fn known(_: &Store) -> Result<(u64, String), String> {
            Err("this program was built without [store] (feature `fleet`)".into())
        }

        pub(super) fn begin(
            file: &Path,
            _: &SharedConfigSource,
            _: &str,
            _: fn(Errors) -> Failure,
        ) -> Result<(Config, String, Shared), Failure> {
            Err(Failure::new(format!(
                "{}: [store] is set, but this program was built without it: use a build with the feature `fleet`",
                file.display()
            )))
        }

        pub(crate) fn tell(&self) {
            match *self {}
        }

        pub(crate) fn service(&self) -> Arc<dyn Service> {
            match *self {}
        }

        pub(crate) fn keep(&self, _: &Manager) {
            match *self {}
        }

        pub(crate) fn fall_back(&self, _: String) -> Option<String> {
            match *self {}
        }

        pub(crate) fn retry(&self) {
            match *self {}
        }
    }
}
