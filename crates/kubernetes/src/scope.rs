//! Scope of a watch that services share: the slices of a cluster or of a namespace, or the pods that labels choose.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_tls::certificate::unix_now;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{Api, Collection};
use crate::follow::{Follower, PAGE};
use crate::list::{self, Fault};
use crate::slice::{self, RawService};
use crate::slices::{Ports, ServiceName, SharedSlices, Slices};
use crate::status::ServiceStatus;
use crate::watcher::{Question, Watcher};

/// Most services whose slices a selector chooses, so that the target of the question stays short.
const MOST_SELECTED: usize = 50;

/// Services that are asked for at a time. More services are listed together, if the balancer may do so.
const AT_ONCE: usize = 16;

/// Objects of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScopeObjects {
    /// Slices of all namespaces.
    Cluster,
    /// Slices of a namespace.
    Namespace(String),
    /// Pods of a namespace that labels choose.
    Pods(ServiceName),
}

/// Key of a scope: scopes with the same key share a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScopeKey {
    /// Number of the API server.
    pub(crate) api: u64,
    /// Time without a byte after which a watch has failed.
    pub(crate) silence: Duration,
    /// Objects of the scope.
    pub(crate) objects: ScopeObjects,
}

/// Scope of a watch.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) key: ScopeKey,
    api: Arc<Api>,
    pub(crate) slices: SharedSlices,
    /// Follower of the objects. The task of the scope has it; before the task, whoever lists the first members.
    pub(crate) follower: tokio::sync::Mutex<Follower<SharedSlices>>,
    /// Notified if services are wanted that were not before, or are to be told again.
    pub(crate) wanted: Notify,
    /// Sent after each list, whether it succeeded or not.
    listed: watch::Sender<()>,
    state: Mutex<ScopeState>,
}

/// State of a scope's watch. Counts begin with the scope.
#[derive(Debug, Default)]
struct ScopeState {
    /// True while a watch is open.
    is_watching: bool,
    /// Time of the last answer or event, in seconds since 1970.
    last_success: Option<i64>,
    /// Reason why the last list of all, or the last watch, failed.
    error: Option<String>,
    /// True if the API server refused the last list of all.
    is_refused: bool,
    failures: u64,
    watches: u64,
}

impl Scope {
    /// A scope of which nothing is known, with no services.
    pub(crate) fn new(key: ScopeKey, api: &Arc<Api>) -> Self {
        let slices = match &key.objects {
            ScopeObjects::Pods(name) => SharedSlices::of_pods(name.clone()),
            _ => SharedSlices::of_services([]),
        };
        let watcher = Watcher::with_store(slices.clone());
        let collection = key.objects.collection();
        let follower = Follower::new(Arc::clone(api), collection, key.silence, watcher);
        Scope {
            api: Arc::clone(api),
            slices,
            follower: tokio::sync::Mutex::new(follower),
            wanted: Notify::new(),
            listed: watch::Sender::new(()),
            state: Mutex::default(),
            key,
        }
    }

    /// Lists the objects of all services, page by page, or goes on with a list.
    pub(crate) async fn list(&self, follower: &mut Follower<SharedSlices>) -> Result<(), Fault> {
        if follower.watcher.next_question() == Question::List(None) {
            follower.collection = self.begin_list();
        }
        let listed = follower.list().await;
        match &listed {
            Ok(()) => {
                follower.collection = self.key.objects.collection();
                self.note_success();
                self.ask_ports().await;
            }
            Err(fault) => self.note_fault(fault),
        }
        self.listed.send_replace(());
        listed
    }

    /// Begins a list of all services. Returns the objects to list: of few services, no others.
    fn begin_list(&self) -> Collection {
        let all = self.key.objects.collection();
        let mut slices = self.slices.lock();
        slices.begin_list();
        let names: BTreeSet<&str> = slices.names().map(|(_, service)| &**service).collect();
        match &self.key.objects {
            ScopeObjects::Pods(_) => all,
            _ if names.len() > MOST_SELECTED => all,
            _ => all.with_services(names.into_iter()),
        }
    }

    /// Lists the services that await a list, some at a time, once all others are listed. Returns the failures.
    pub(crate) async fn list_awaited(&self) -> Vec<(ServiceName, Fault)> {
        let mut all_faults = Vec::new();
        if !self.slices.lock().is_listed() {
            return all_faults;
        }
        loop {
            let (names, since) = {
                let slices = self.slices.lock();
                let due = slices.due_names(Instant::now(), MOST_SELECTED);
                (due, slices.last_version())
            };
            if names.is_empty() {
                break;
            }
            let listed = self.list_services(&names).await;
            let mut slices = self.slices.lock();
            let taken = listed.and_then(|listed| slices.take_listed(&listed, since));
            let faults = taken.unwrap_or_else(|fault| {
                let each = names.into_iter();
                each.map(|name| (name, fault.clone())).collect()
            });
            for (name, fault) in &faults {
                slices.note_failure(name, fault, Instant::now());
            }
            all_faults.extend(faults);
        }
        self.ask_ports().await;
        self.listed.send_replace(());
        all_faults
    }

    /// Lists services into a store of their own.
    async fn list_services(&self, names: &[ServiceName]) -> Result<SharedSlices, Fault> {
        let (objects, slices) = match &self.key.objects {
            ScopeObjects::Pods(name) => (
                self.key.objects.collection(),
                SharedSlices::of_pods(name.clone()),
            ),
            objects => {
                let services = names.iter().map(|(_, service)| &**service);
                let objects = objects.collection().with_services(services);
                let names = names.iter().cloned();
                (objects, SharedSlices::of_services(names))
            }
        };
        slices.lock().begin_list();
        let watcher = Watcher::with_store(slices.clone());
        let api = Arc::clone(&self.api);
        let mut follower = Follower::new(api, objects, self.key.silence, watcher);
        follower.list().await?;
        self.state.lock().last_success = Some(unix_now());
        Ok(slices)
    }

    /// Asks for the ports of services of which groups name ports by their numbers. Without the right to read services, the
    /// numbers are those of the endpoints.
    async fn ask_ports(&self) {
        let names = self.slices.lock().names_without_ports();
        if names.len() > AT_ONCE && self.list_ports(&names).await {
            return;
        }
        for names in names.chunks(AT_ONCE) {
            let mut tasks = JoinSet::new();
            for name in names {
                let (api, name) = (Arc::clone(&self.api), name.clone());
                tasks.spawn(async move { (ask_service(&api, &name).await, name) });
            }
            while let Some(asked) = tasks.join_next().await {
                if let Ok((ports, name)) = asked {
                    self.slices.lock().set_ports(&name, ports);
                }
            }
        }
    }

    /// Sets the ports of services from a list of all services. Returns false if there is no list.
    async fn list_ports(&self, names: &[ServiceName]) -> bool {
        let services = Collection::of_services(self.key.objects.namespace());
        let (mut found, mut next) = (Vec::new(), String::new());
        loop {
            let token = (!next.is_empty()).then_some(&*next);
            let answer = self.api.list(&services, PAGE, token).await;
            let Some(answer) = answer.ok().filter(|answer| answer.code == 200) else {
                return false;
            };
            let page = list::parse_page::<RawService>(&answer.body);
            let page = page.map(|page| {
                page.keep_objects(|key, ports| {
                    let (namespace, service) = key.split_once('/').unwrap_or_default();
                    let name = (namespace.to_owned(), service.to_owned());
                    let is_wanted = self.slices.lock().service(&name).is_some();
                    is_wanted.then_some((name, ports))
                })
            });
            let Ok(page) = page else {
                return false;
            };
            found.extend(page.objects.into_iter().map(|(_, found)| found));
            next = page.next;
            if next.is_empty() {
                break;
            }
        }
        let mut slices = self.slices.lock();
        for name in names {
            // A service that is not there has no ports.
            slices.set_ports(name, Ports::new());
        }
        for (name, ports) in found {
            slices.set_ports(&name, ports);
        }
        true
    }

    /// Lists everything that is wanted and not known. If a task follows the scope, waits until the task has done so.
    pub(crate) async fn list_wanted(&self, names: &[ServiceName]) {
        let Ok(mut follower) = self.follower.try_lock() else {
            let mut listed = self.listed.subscribe();
            self.wanted.notify_one();
            while !names.iter().all(|name| self.has_outcome(name)) {
                // The sender is a part of the scope.
                let _ = listed.changed().await;
            }
            return;
        };
        if let Question::List(_) = follower.watcher.next_question()
            && self.list(&mut follower).await.is_err()
        {
            return;
        }
        self.list_awaited().await;
    }

    /// True if a service is known, or cannot be listed.
    fn has_outcome(&self, name: &ServiceName) -> bool {
        let slices = self.slices.lock();
        slices.ports_of(name).is_some() || self.find_error(&slices, name).is_some()
    }

    /// Returns the reason why a service is not known.
    pub(crate) fn error_of(&self, name: &ServiceName) -> Option<String> {
        self.find_error(&self.slices.lock(), name)
    }

    fn find_error(&self, slices: &Slices, name: &ServiceName) -> Option<String> {
        match slices.service(name) {
            None => Some("the configuration has changed meanwhile".into()),
            Some(of) if of.error.is_some() => of.error.clone(),
            Some(_) if slices.is_listed() => None,
            Some(_) => self.state.lock().error.clone(),
        }
    }

    /// Notes an answer, or events. After a failure all members are told again.
    pub(crate) fn note_success(&self) {
        let error = {
            let mut state = self.state.lock();
            state.last_success = Some(unix_now());
            state.is_refused = false;
            state.error.take()
        };
        if error.is_some() {
            self.slices.lock().note_all_changed();
        }
    }

    /// Notes that a list of all services, or a watch, has failed.
    pub(crate) fn note_fault(&self, fault: &Fault) {
        let mut state = self.state.lock();
        state.failures += 1;
        state.error = Some(fault.message.clone());
        state.is_refused = fault.code == 403;
    }

    /// True if the API server does not let the balancer list the slices of all namespaces.
    pub(crate) fn is_refused_cluster(&self) -> bool {
        self.key.objects == ScopeObjects::Cluster && self.state.lock().is_refused
    }

    /// Notes that a watch broke, of which nobody is told.
    pub(crate) fn note_broken(&self) {
        self.state.lock().failures += 1;
    }

    /// Notes that a watch begins or ends.
    pub(crate) fn note_watch(&self, is_watching: bool) {
        let mut state = self.state.lock();
        state.is_watching = is_watching;
        state.watches += u64::from(is_watching);
    }

    /// Fills in the status of a service. Watches and failures of the scope are those of each service.
    pub(crate) fn fill_status(&self, name: &ServiceName, status: &mut ServiceStatus) {
        let slices = self.slices.lock();
        let state = self.state.lock();
        status.server = self.api.access.server.authority();
        status.version = slices.version_of(name).map(str::to_owned);
        status.watching = state.is_watching && status.version.is_some();
        status.last_success = state.last_success;
        status.error.clone_from(&state.error);
        (status.failures, status.watches) = (state.failures, state.watches);
        if let Some(service) = slices.service(name) {
            status.slices = service.slice_count();
            status.error = service.error.clone().or(status.error.take());
            status.failures += service.failures;
            status.lists = service.lists;
            status.events = service.events;
        }
    }
}

impl ScopeObjects {
    /// Returns the namespace of the objects; `None` for a cluster.
    fn namespace(&self) -> Option<&str> {
        match self {
            ScopeObjects::Cluster => None,
            ScopeObjects::Namespace(namespace) | ScopeObjects::Pods((namespace, _)) => {
                Some(namespace)
            }
        }
    }

    /// Returns the objects at the API server.
    fn collection(&self) -> Collection {
        match self {
            ScopeObjects::Pods((namespace, labels)) => Collection::of_pods(namespace, labels),
            _ => Collection::of_slices(self.namespace()),
        }
    }
}

/// Asks for the ports of a service; none if there is no answer.
async fn ask_service(api: &Api, (namespace, service): &ServiceName) -> Ports {
    let target = format!("/api/v1/namespaces/{namespace}/services/{service}");
    let answer = api.get(&target).await;
    let ports = answer.ok().filter(|answer| answer.code == 200);
    let ports = ports.and_then(|answer| slice::parse_service(&answer.body).ok());
    ports.unwrap_or_default()
}
