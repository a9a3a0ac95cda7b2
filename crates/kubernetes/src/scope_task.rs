//! Task of a scope: follows the objects of services that share a watch, and tells the manager of members.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_manager::Manager;
use tokio::time::{sleep, sleep_until};
use tracing::{debug, warn};

use crate::follow::{Follower, WatchEnd};
use crate::list::Fault;
use crate::scope::Scope;
use crate::slices::{ServiceName, SharedSlices};
use crate::watcher::Question;

/// Scope that is equal to itself alone.
#[derive(Clone, Debug)]
pub(crate) struct SameScope(pub(crate) Arc<Scope>);

impl PartialEq for SameScope {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Listener to the tasks of all scopes, which knows the plans of services.
pub(crate) trait ScopeListener {
    /// Follows each namespace on its own, because the API server refuses to list the slices of all.
    fn refuse_cluster(&self, api: u64);

    /// Tells the manager of the members of services that have changed. Returns the services of which a port is not known,
    /// though its number may have another meaning since the service has changed.
    fn tell_members(&self, manager: &Manager, scope: &Scope) -> Vec<ServiceName>;

    /// Tells the manager that services cannot be listed.
    fn tell_error(&self, manager: &Manager, names: &[ServiceName], error: &str);
}

/// Scope that a task follows.
pub(crate) struct FollowedScope<L> {
    listener: L,
    manager: Arc<Manager>,
    scope: Arc<Scope>,
}

impl<L: ScopeListener> FollowedScope<L> {
    pub(crate) fn new(listener: L, manager: Arc<Manager>, scope: Arc<Scope>) -> Self {
        FollowedScope {
            listener,
            manager,
            scope,
        }
    }

    /// Follows the scope for ever.
    pub(crate) async fn run(self) {
        let mut follower = self.scope.follower.lock().await;
        tokio::join!(self.follow_all(&mut follower), self.list_awaited());
    }

    /// Lists and watches the objects of all services.
    async fn follow_all(&self, follower: &mut Follower<SharedSlices>) {
        // Error of which the manager has been told.
        let mut told = None;
        loop {
            let pause = match follower.watcher.next_question() {
                Question::List(_) => self.list(follower, &mut told).await,
                Question::Watch(version) => self.watch(follower, &version, &mut told).await,
            };
            sleep(pause).await;
        }
    }

    /// Lists the objects of all services. Returns the pause before the next question.
    async fn list(
        &self,
        follower: &mut Follower<SharedSlices>,
        told: &mut Option<String>,
    ) -> Duration {
        match Box::pin(self.scope.list(follower)).await {
            Ok(()) => {
                *told = None;
                self.listener.tell_members(&self.manager, &self.scope);
                self.scope.wanted.notify_one();
                Duration::ZERO
            }
            Err(fault) => {
                let pause = follower.pause_after(&fault);
                if self.scope.is_refused_cluster() {
                    warn!(
                        "kubernetes: each namespace is watched on its own, as the slices of all namespaces cannot be listed: {}",
                        fault.message
                    );
                    self.listener.refuse_cluster(self.scope.key.api);
                } else {
                    self.tell_fault(&fault, told);
                }
                pause
            }
        }
    }

    /// Watches the objects until the watch ends. Returns the pause before the next question.
    async fn watch(
        &self,
        follower: &mut Follower<SharedSlices>,
        version: &str,
        told: &mut Option<String>,
    ) -> Duration {
        self.scope.note_watch(true);
        let watched = follower.watch(version, |_, _| {
            self.scope.note_success();
            *told = None;
            let unknown = self.listener.tell_members(&self.manager, &self.scope);
            let mut slices = self.scope.slices.lock();
            for name in &unknown {
                slices.await_list(name);
            }
            if slices.has_awaited() {
                self.scope.wanted.notify_one();
            }
            true
        });
        let (end, pause) = watched.await;
        self.scope.note_watch(false);
        match end {
            WatchEnd::Regular => {}
            WatchEnd::Failed(fault) => {
                self.scope.note_fault(&fault);
                self.tell_fault(&fault, told);
            }
            WatchEnd::Broken(fault) => {
                debug!(scope = ?self.scope.key.objects, "a watch broke: {}", fault.message);
                self.scope.note_broken();
            }
        }
        pause
    }

    /// Tells the manager that the services of the scope are not followed.
    fn tell_fault(&self, fault: &Fault, told: &mut Option<String>) {
        if told.as_ref() == Some(&fault.message) {
            return;
        }
        let names: Vec<ServiceName> = self.scope.slices.lock().names().cloned().collect();
        self.listener
            .tell_error(&self.manager, &names, &fault.message);
        *told = Some(fault.message.clone());
    }

    /// Lists services on their own that are wanted since the last list of all.
    async fn list_awaited(&self) {
        loop {
            for (name, fault) in Box::pin(self.scope.list_awaited()).await {
                self.listener
                    .tell_error(&self.manager, &[name], &fault.message);
            }
            self.listener.tell_members(&self.manager, &self.scope);
            let retry_at = self.scope.slices.lock().next_retry();
            let retry = async {
                match retry_at {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.scope.wanted.notified() => {}
                () = retry => {}
            }
        }
    }
}
