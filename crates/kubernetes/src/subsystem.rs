//! A task for each service: lists its slices, watches them, and tells the manager of members.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_config::{Config, IpFamily, Kubernetes, Node, PortName, ServicePort};
use evenkeel_manager::Manager;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::handover::Handover;
use evenkeel_manager::lists::found::{FoundLists, FoundMember};
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Tasks;
use evenkeel_tls::certificate::unix_now;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::access::Access;
use crate::api::{Api, Collection};
use crate::endpoints::Choice;
use crate::environment::Environment;
use crate::follow::{Follower, WatchEnd};
use crate::list::Fault;
use crate::slice;
use crate::slices::Slices;
use crate::status::{PortStatus, ServiceStatus};
use crate::watcher::{Question, Watcher};

/// Time for which a start or reload waits for the members of new services.
const START: Duration = Duration::from_secs(5);

/// Services that are listed at a time when a configuration has many new ones.
const AT_ONCE: usize = 16;

/// Part of the state that is handed over to the next process, and its version.
const PART: (&str, u32) = ("kubernetes", 1);

/// Members from EndpointSlices. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// API server of the configuration in effect, or of the one that is about to be.
    api: Option<Arc<Api>>,
    plans: HashMap<ServiceName, Plan>,
    /// Sections of which the plans were made.
    planned: Option<(Kubernetes, Option<Node>)>,
    services: BTreeMap<ServiceName, ServiceStatus>,
    /// The last members of each list, also those of the process before.
    found: HashMap<String, Vec<FoundMember>>,
}

/// Namespace and name of a service, or labels of pods.
type ServiceName = (String, String);

/// Task for a service.
#[derive(Clone, Debug)]
struct Plan {
    api: Arc<Api>,
    ports: Vec<ServicePort>,
    prefer: IpFamily,
    zone: Option<String>,
    silence: Duration,
}

impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.api, &other.api)
            && self.ports == other.ports
            && self.prefer == other.prefer
            && self.zone == other.zone
            && self.silence == other.silence
    }
}

/// Ports of a service, if they have been asked for.
type Ports = Vec<(Box<str>, u16)>;

impl Plan {
    /// Makes the plans of all services of a section.
    fn of_section(
        api: &Arc<Api>,
        settings: &Kubernetes,
        node: Option<&Node>,
    ) -> HashMap<ServiceName, Plan> {
        let mut plans: HashMap<ServiceName, Plan> = HashMap::new();
        for port in settings.services.iter() {
            let name = (port.namespace.clone(), port.service.clone());
            let plan = plans.entry(name).or_insert_with(|| Plan {
                api: Arc::clone(api),
                ports: Vec::new(),
                prefer: settings.prefer,
                zone: node.and_then(|node| node.zone.clone()),
                silence: settings.silence,
            });
            plan.ports.push(port.clone());
        }
        plans
    }

    /// True if a port is given by its number, which only the service itself explains.
    fn has_numbers(&self) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|port| matches!(port.port, PortName::Number(_)) && !port.is_of_pods())
    }

    /// True if the members are pods that labels choose.
    fn is_of_pods(&self) -> bool {
        self.ports.first().is_some_and(ServicePort::is_of_pods)
    }

    /// Returns the members of each port.
    fn choose_members(&self, watcher: &Watcher, ports: &Ports) -> FoundLists {
        let mut found = FoundLists::new();
        for port in &self.ports {
            let choice = Choice {
                port: &port.port,
                service_ports: ports,
                prefer: self.prefer,
                own_zone: self.zone.as_deref(),
            };
            let slices = watcher.slices().into_iter().flatten();
            found.insert(port.to_string(), choice.choose_members(slices));
        }
        found
    }

    /// Returns a follower of the slices of a service, or of pods.
    fn follow_slices(&self, (namespace, service): &ServiceName) -> Follower<Slices> {
        let (slices, watcher) = match self.is_of_pods() {
            true => (Collection::of_pods(namespace, service), Watcher::of_pods()),
            false => (Collection::of_slices(namespace, service), Watcher::new()),
        };
        Follower::new(Arc::clone(&self.api), slices, self.silence, watcher)
    }

    /// Lists all slices of the service. Returns the ports of the service, if a group needs them.
    async fn list_slices(
        &self,
        (namespace, service): &ServiceName,
        follower: &mut Follower<Slices>,
    ) -> Result<Ports, Fault> {
        follower.list().await?;
        if !self.has_numbers() {
            return Ok(Ports::new());
        }
        // Without the right to read services, numbers are those of the endpoints.
        let target = format!("/api/v1/namespaces/{namespace}/services/{service}");
        let answer = self.api.get(&target).await;
        let ports = answer.ok().filter(|answer| answer.code == 200);
        let ports = ports.and_then(|answer| slice::parse_service(&answer.body).ok());
        Ok(ports.unwrap_or_default())
    }
}

/// Returns the API server for a section: the one of before, if nothing has changed.
pub(crate) fn find_api(
    settings: &Kubernetes,
    before: Option<&Arc<Api>>,
) -> Result<Arc<Api>, PrepareErrors> {
    let access = Environment::of_process().find_access(settings);
    let access = access.map_err(|problem| PrepareError::files(vec![*problem]))?;
    let known = before.filter(|api| api.access == access);
    Ok(known.map_or_else(|| Arc::new(Api::new(access)), Arc::clone))
}

/// True if a section is in use: a section without services and without a file needs no API server.
pub(crate) fn is_used(settings: &Kubernetes) -> bool {
    !settings.services.is_empty() || settings.kubeconfig.is_some() || settings.gateway.is_some()
}

/// Returns the files with credentials that a configuration leads to, for the limits of the process.
pub fn credential_files(config: &Config) -> Vec<std::path::PathBuf> {
    let settings = config
        .kubernetes
        .as_ref()
        .filter(|settings| is_used(settings));
    let access = settings.and_then(|settings| Environment::of_process().find_access(settings).ok());
    let files = access.iter().flat_map(Access::files);
    files.map(std::path::Path::to_owned).collect()
}

impl Endpoints {
    fn update(&self, name: &ServiceName, change: impl FnOnce(&mut ServiceStatus)) {
        if let Some(status) = self.inner.state.lock().services.get_mut(name) {
            change(status);
        }
    }

    /// Returns the status of all services.
    pub fn statuses(&self) -> Vec<ServiceStatus> {
        self.inner.state.lock().services.values().cloned().collect()
    }

    /// Follows other plans.
    fn follow(
        &self,
        api: Option<Arc<Api>>,
        plans: HashMap<ServiceName, Plan>,
        planned: Option<(Kubernetes, Option<Node>)>,
    ) {
        let mut state = self.inner.state.lock();
        state.planned = planned;
        let mut before = std::mem::take(&mut state.services);
        for (name, plan) in &plans {
            let mut status = before.remove(name).unwrap_or_default();
            status.service = format!("{}/{}", name.0, name.1);
            status.server = plan.api.access.server.authority();
            let known = std::mem::take(&mut status.ports);
            status.ports = { plan.ports.iter() }
                .map(|port| {
                    let text = port.to_string();
                    let text = text.rsplit(':').next().unwrap_or_default().to_owned();
                    let known = known.iter().find(|of| of.port == text).cloned();
                    known.unwrap_or(PortStatus {
                        port: text,
                        ..PortStatus::default()
                    })
                })
                .collect();
            state.services.insert(name.clone(), status);
        }
        let names = plans.values().flat_map(|plan| &plan.ports);
        let names: HashSet<String> = names.map(ToString::to_string).collect();
        state.found.retain(|name, _| names.contains(name));
        (state.api, state.plans) = (api, plans);
        self.inner.changed.notify_one();
    }

    async fn follow_plans(self, manager: Arc<Manager>) {
        let mut tasks = Tasks::default();
        loop {
            let plans = self.inner.state.lock().plans.clone();
            tasks.reconcile(plans, |name, plan| {
                let follower = plan.follow_slices(&name);
                let service = FollowedService {
                    endpoints: self.clone(),
                    manager: Arc::clone(&manager),
                    name,
                    plan,
                    ports: Ports::new(),
                    noted: None,
                };
                service.run(follower)
            });
            self.inner.changed.notified().await;
        }
    }

    /// Notes the members of a service, and returns them.
    fn note_found(&self, name: &ServiceName, found: &FoundLists) {
        let mut state = self.inner.state.lock();
        for (list, members) in found {
            if let Ok(members) = members {
                state.found.insert(list.clone(), members.clone());
            }
        }
        let Some(status) = state.services.get_mut(name) else {
            return;
        };
        for port in &mut status.ports {
            let list = format!("{}:{}", status.service, port.port);
            match found.get(&list) {
                Some(Ok(members)) => {
                    port.members = members.len();
                    port.draining = members.iter().filter(|member| member.drain).count();
                    port.error = None;
                }
                Some(Err(error)) => port.error = Some(error.clone()),
                None => {}
            }
        }
    }
}

/// Service whose slices a task follows.
struct FollowedService {
    endpoints: Endpoints,
    manager: Arc<Manager>,
    name: ServiceName,
    plan: Plan,
    ports: Ports,
    /// Error that was noted last.
    noted: Option<String>,
}

impl FollowedService {
    async fn run(mut self, mut follower: Follower<Slices>) {
        loop {
            let pause = match follower.watcher.next_question() {
                // Each service has such a task, which seldom lists anything.
                Question::List(_) => Box::pin(self.list(&mut follower)).await,
                Question::Watch(version) => self.watch(&mut follower, &version).await,
            };
            sleep(pause).await;
        }
    }

    /// Lists the slices. Returns the pause before the next question.
    async fn list(&mut self, follower: &mut Follower<Slices>) -> Duration {
        match self.plan.list_slices(&self.name, follower).await {
            Ok(ports) => {
                self.ports = ports;
                self.endpoints
                    .update(&self.name, |status| status.lists += 1);
                self.publish(&follower.watcher);
                self.note(None);
                Duration::ZERO
            }
            Err(fault) => {
                let pause = follower.pause_after(&fault);
                self.note_fault(fault);
                pause
            }
        }
    }

    /// Watches the slices until the watch ends. Returns the pause before the next question.
    async fn watch(&mut self, follower: &mut Follower<Slices>, version: &str) -> Duration {
        let name = self.name.clone();
        self.endpoints.update(&name, |status| {
            status.watches += 1;
            status.watching = true;
        });
        let watched = follower.watch(version, |watcher, changed| {
            // A number may have another meaning since the service has changed.
            let wants_list = changed && !self.publish(watcher) && self.plan.has_numbers();
            self.note_success(watcher);
            self.note_recovery(watcher);
            !wants_list
        });
        let (end, pause) = watched.await;
        self.endpoints
            .update(&name, |status| status.watching = false);
        match end {
            WatchEnd::Regular => {}
            WatchEnd::Failed(fault) => self.note_fault(fault),
            WatchEnd::Broken(fault) => {
                debug!(service = ?self.name, "a watch broke: {}", fault.message);
                self.endpoints.update(&name, |status| status.failures += 1);
            }
        }
        pause
    }

    /// Tells the manager of the members. Returns false if a port has no members because of an error.
    fn publish(&mut self, watcher: &Watcher) -> bool {
        let found = self.plan.choose_members(watcher, &self.ports);
        self.endpoints.note_found(&self.name, &found);
        let is_good = found.values().all(Result::is_ok);
        for (list, members) in found {
            self.manager
                .note_list(&list, members.as_ref().err().cloned());
            if let Ok(members) = members {
                self.manager.set_found_members(&list, members);
            }
        }
        self.note_success(watcher);
        is_good
    }

    fn note_success(&self, watcher: &Watcher) {
        let version = watcher.version().map(str::to_owned);
        let slices = watcher.slices().map_or(0, Iterator::count);
        let events = watcher.event_count();
        self.endpoints.update(&self.name, |status| {
            status.last_success = Some(unix_now());
            status.version = version;
            status.slices = slices;
            status.events = events;
        });
    }

    /// Takes an error back after a watch that works: no list comes before the watch ends.
    fn note_recovery(&mut self, watcher: &Watcher) {
        if self.noted.is_some() {
            self.note(None);
            self.publish(watcher);
        }
    }

    fn note_fault(&mut self, fault: Fault) {
        self.endpoints
            .update(&self.name, |status| status.failures += 1);
        self.note(Some(fault.message));
    }

    /// Notes the error of the service, or that there is none any more.
    fn note(&mut self, error: Option<String>) {
        if error.is_some() {
            for port in &self.plan.ports {
                self.manager.note_list(&port.to_string(), error.clone());
            }
        }
        self.endpoints
            .update(&self.name, |status| status.error.clone_from(&error));
        self.noted = error;
    }
}

impl Service for Endpoints {
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().follow_plans(manager))
    }
}

impl Subsystem for Endpoints {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        if !next.reload {
            return Ok(Box::new(|| ()));
        }
        let settings = next
            .section::<Kubernetes>()
            .filter(|settings| is_used(settings));
        let before = self.inner.state.lock().api.clone();
        let api = settings.map(|settings| find_api(settings, before.as_ref()));
        let api = api.transpose()?;
        let planned = settings.map(|settings| (settings, next.section::<Node>()));
        let is_same = |state: &State| {
            let known = state.planned.as_ref();
            known.map(|(settings, node)| (settings, node.as_ref())) == planned
                && state.api.as_ref().map(Arc::as_ptr) == api.as_ref().map(Arc::as_ptr)
        };
        // With thousands of services this is most of a change of a route.
        if is_same(&self.inner.state.lock()) {
            return Ok(Box::new(|| ()));
        }
        let plans = { planned.zip(api.as_ref()) }
            .map(|((settings, node), api)| Plan::of_section(api, settings, node));
        let planned = planned.map(|(settings, node)| (settings.clone(), node.cloned()));
        let this = self.clone();
        Ok(Box::new(move || {
            this.follow(api, plans.unwrap_or_default(), planned)
        }))
    }

    fn check(&self, config: &Config) -> PrepareErrors {
        let settings = config
            .kubernetes
            .as_ref()
            .filter(|settings| is_used(settings));
        let Some(settings) = settings else {
            return Vec::new();
        };
        match find_api(settings, None) {
            Err(errors) => errors,
            Ok(api) => match api.access.read_credentials(None) {
                Ok(_) => Vec::new(),
                Err(error) => {
                    let place = settings.kubeconfig.as_ref().map(|file| &file.place);
                    let message = format!("kubernetes: {error}");
                    let problem = place.cloned().unwrap_or_default().problem(message);
                    PrepareError::files(vec![problem])
                }
            },
        }
    }

    fn find_members(&self, config: &Config, names: HashSet<String>) -> Work<FoundLists> {
        if names.is_empty() {
            return Box::pin(std::future::ready(FoundLists::new()));
        }
        let settings = config.kubernetes.as_ref();
        let before = self.inner.state.lock().api.clone();
        let Some(Ok(api)) = settings.map(|settings| find_api(settings, before.as_ref())) else {
            // `prepare` tells what is wrong.
            return Box::pin(std::future::ready(FoundLists::new()));
        };
        let plans = settings.map(|settings| Plan::of_section(&api, settings, Some(&config.node)));
        let mut plans = plans.unwrap_or_default();
        plans.retain(|_, plan| {
            plan.ports.retain(|port| names.contains(&port.to_string()));
            !plan.ports.is_empty()
        });
        let this = self.clone();
        Box::pin(async move {
            let (mut tasks, room) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
            let mut missing: HashSet<String> = HashSet::new();
            for (name, plan) in plans {
                missing.extend(plan.ports.iter().map(ToString::to_string));
                let room = Arc::clone(&room);
                tasks.spawn(async move {
                    let _permit = room.acquire().await;
                    let mut follower = plan.follow_slices(&name);
                    let listed = plan.list_slices(&name, &mut follower).await;
                    match listed {
                        Ok(ports) => plan.choose_members(&follower.watcher, &ports),
                        Err(fault) => { plan.ports.iter() }
                            .map(|port| (port.to_string(), Err(fault.message.clone())))
                            .collect(),
                    }
                });
            }
            let mut found = FoundLists::new();
            let all = async {
                while let Some(lists) = tasks.join_next().await {
                    found.extend(lists.unwrap_or_default());
                }
            };
            let _ = timeout(START, all).await;
            missing.retain(|name| !found.contains_key(name));
            let late = || Err(format!("no answer of the API server within {START:?}"));
            found.extend(missing.into_iter().map(|name| (name, late())));
            let mut state = this.inner.state.lock();
            for (name, members) in &mut found {
                match members {
                    Ok(members) => drop(state.found.insert(name.clone(), members.clone())),
                    // The process before knew them.
                    Err(_) => {
                        if let Some(known) = state.found.get(name) {
                            *members = Ok(known.clone());
                        }
                    }
                }
            }
            found
        })
    }

    fn hand_over(&self, to: &mut Handover) {
        to.give(PART.0, PART.1, &self.inner.state.lock().found);
    }

    fn take_over(&self, from: &Handover) {
        if let Some(found) = from.take(PART.0, PART.1) {
            self.inner.state.lock().found = found;
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        let all = self.statuses();
        let mut family = |name, kind, help, read: fn(&ServiceStatus) -> f64| {
            out.begin_family(name, kind, help);
            for status in &all {
                out.add_sample(&[("service", &status.service)], read(status));
            }
        };
        family(
            "evenkeel_kubernetes_up",
            Type::Gauge,
            "1 if the last question about the service was answered, 0 if not.",
            |status| {
                f64::from(u8::from(
                    status.error.is_none() && status.last_success.is_some(),
                ))
            },
        );
        family(
            "evenkeel_kubernetes_last_success_timestamp_seconds",
            Type::Gauge,
            "Time of the last answer or event of the service, in seconds since 1970; 0 before the first.",
            |status| status.last_success.unwrap_or_default() as f64,
        );
        family(
            "evenkeel_kubernetes_lists_total",
            Type::Counter,
            "Complete lists of the service's slices.",
            |status| status.lists as f64,
        );
        family(
            "evenkeel_kubernetes_watches_total",
            Type::Counter,
            "Watches of the service's slices that were opened.",
            |status| status.watches as f64,
        );
        family(
            "evenkeel_kubernetes_events_total",
            Type::Counter,
            "Events of the service's slices, with bookmarks.",
            |status| status.events as f64,
        );
        family(
            "evenkeel_kubernetes_failures_total",
            Type::Counter,
            "Questions about the service that failed.",
            |status| status.failures as f64,
        );
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let this = self.clone();
        vec![Endpoint::with_value(
            "/v1/kubernetes",
            "Services of Kubernetes whose endpoints are members",
            move || this.statuses(),
        )]
    }
}
