//! Common parts of load sources: whom they ask, and the tasks that do it.
//!
//! A source is a subsystem, as everything else that runs beside the manager. Most sources ask, or read, one
//! thing at a time for ever: they say what they want of each group ([`Source`]), and [`RunningSource`] keeps a task
//! for each thing.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use evenkeel_manager::Manager;
use evenkeel_manager::config::sources::Sources;
use evenkeel_manager::config::{ClientTls, Config};
use evenkeel_manager::counts::Origin;
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::{GroupHandle, Snapshot};
use evenkeel_manager::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Tasks;
use evenkeel_tls::client::Client;
use tokio::sync::Semaphore;

use crate::poll::{PolledGroup, ReportLog, permits};

/// A way in which members, or locations, are asked for their load again and again.
pub(crate) trait Source: 'static {
    /// Name of the source in metrics and logs.
    const ORIGIN: Origin;
    /// Key of the thing that is asked: there is one task for each key.
    type Key: Clone + Eq + Hash + Send + 'static;
    /// Settings that say how to ask. A task whose target has changed begins anew.
    type Target: Clone + PartialEq + Send + 'static;

    /// Returns the settings of TLS that say whom the source trusts where it asks with TLS.
    fn tls(sources: &Sources) -> Option<ClientTls> {
        let _ = sources;
        None
    }

    /// Adds whom a group's configuration wants to be asked.
    fn want(group: &PolledGroup, wanted: &mut SourceTargets<Self::Key, Self::Target>);

    /// Asks for ever.
    fn ask(
        context: Context,
        key: Self::Key,
        target: Self::Target,
        journal: ReportLog,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// Context that tasks work with.
#[derive(Clone)]
pub(crate) struct Context {
    pub manager: Arc<Manager>,
    /// Few ask at the same time.
    pub permits: Arc<Semaphore>,
}

/// Targets that a source is to ask.
pub(crate) struct SourceTargets<K, T> {
    targets: HashMap<K, T>,
    /// Group that counts each target, and the target's name in logs.
    told: HashMap<K, (Arc<GroupHandle>, String)>,
}

impl<K: Clone + Eq + Hash, T> SourceTargets<K, T> {
    /// Adds one that the group wants; `whom` is what it is called in logs.
    pub(crate) fn add_target(&mut self, group: &PolledGroup, key: K, target: T, whom: String) {
        self.told
            .insert(key.clone(), (Arc::clone(&group.handle), whom));
        self.targets.insert(key, target);
    }

    /// Returns a target that has been added.
    pub(crate) fn get(&self, key: &K) -> Option<&T> {
        self.targets.get(key)
    }
}

/// A source with its tasks.
pub(crate) struct RunningSource<S>(PhantomData<fn() -> S>);

impl<S> Default for RunningSource<S> {
    fn default() -> Self {
        RunningSource(PhantomData)
    }
}

/// Returns the problems of the files that groups name.
fn check<'a, S: Source>(all: impl IntoIterator<Item = &'a Sources>) -> PrepareErrors {
    let of_groups = all.into_iter().filter_map(S::tls);
    let problems = of_groups.filter_map(|tls| Client::from_config(&tls).err());
    PrepareError::files(problems.flatten().collect())
}

impl<S: Source> Subsystem for RunningSource<S> {
    /// Tasks read the files, and follow them. A new configuration must be right to begin with.
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let all = next.section::<Vec<Sources>>().filter(|_| next.reload);
        let errors = check::<S>(all.into_iter().flatten());
        match errors.is_empty() {
            true => Ok(Box::new(|| ())),
            false => Err(errors),
        }
    }

    fn check(&self, config: &Config) -> PrepareErrors {
        check::<S>(config.groups.iter().map(|group| &group.sources))
    }
}

impl<S: Source> Service for RunningSource<S> {
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(follow::<S>(manager))
    }
}

/// Asks all that the manager's groups want to be asked, as long as it is polled.
async fn follow<S: Source>(manager: Arc<Manager>) {
    let context = Context {
        manager: Arc::clone(&manager),
        permits: permits(),
    };
    let mut tasks = Tasks::default();
    let mut changes = manager.subscribe_changes();
    loop {
        let mut wanted = SourceTargets {
            targets: HashMap::new(),
            told: HashMap::new(),
        };
        for group in PolledGroup::all_groups(&manager) {
            S::want(&group, &mut wanted);
        }
        let mut told = wanted.told;
        tasks.reconcile(wanted.targets, |key, target| {
            let (context, told) = (context.clone(), told.remove(&key));
            async move {
                if let Some((handle, whom)) = told {
                    let journal = ReportLog::new(handle, S::ORIGIN, whom);
                    S::ask(context, key, target, journal).await;
                }
            }
        });
        if changes.changed().await.is_err() {
            return;
        }
    }
}
