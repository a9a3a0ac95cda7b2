//! What a balancer shares with others: its configuration, if that comes from a store.

use std::path::Path;

use evenkeel_manager::config::Config;

use crate::Failure;

#[cfg(feature = "fleet")]
pub(crate) use with::Shared;
#[cfg(not(feature = "fleet"))]
pub(crate) use without::Shared;

/// A configuration with its text, and the store that the text is from, if it is not that of the file.
pub(crate) struct Start {
    pub(crate) config: Config,
    pub(crate) text: String,
    pub(crate) shared: Option<Shared>,
}

/// What a balancer starts with whose file `file` says that. Whatever it takes has ended when this does: no thread
/// is left.
pub(crate) fn begin(file: &Path, own: Config, text: String) -> Result<Start, Failure> {
    if own.store.is_some() {
        return Shared::begin(file, &own, &text);
    }
    Ok(Start {
        config: own,
        text,
        shared: None,
    })
}

#[cfg(feature = "fleet")]
mod with {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use evenkeel_manager::config::{self, Config, Errors, one_line};
    use evenkeel_manager::service::Service;
    use evenkeel_manager::{Manager, SHARED};
    use evenkeel_store::Fleet;
    use evenkeel_store::fleet::{begin, name_of};
    use tracing::warn;

    use super::Start;
    use crate::Failure;
    use crate::check::refused;

    /// The store.
    pub(crate) struct Shared {
        fleet: Fleet,
        /// What the log should say.
        notes: Vec<String>,
    }

    impl Shared {
        pub(super) fn begin(file: &Path, own: &Config, text: &str) -> Result<Start, Failure> {
            let Some(settings) = &own.store else {
                return Err(Failure::new("there is no [store]"));
            };
            let name = name_of(&own.node);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime =
                runtime.map_err(|error| Failure::new(format!("cannot start: {error}")))?;
            // There is no log yet.
            let tell = |what: &str| eprintln!("evenkeel: {what}");
            let begun = runtime.block_on(begin(settings, &name, tell));
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
            Ok(Start {
                config,
                text,
                shared: Some(Shared { fleet, notes }),
            })
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

        /// What is started with instead of what cannot be.
        pub(crate) fn fall_back(&self, why: String) -> Option<String> {
            self.fleet.fall_back(why)
        }

        /// Something has changed beside it.
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
    use evenkeel_manager::config::Config;
    use evenkeel_manager::service::Service;

    use super::Start;
    use crate::Failure;

    /// There is none.
    pub(crate) enum Shared {}

    impl Shared {
        pub(super) fn begin(file: &Path, _: &Config, _: &str) -> Result<Start, Failure> {
            Err(Failure::new(format!(
                "{}: there is a [store], which this program was built without (feature fleet)",
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
