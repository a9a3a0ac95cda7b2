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
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use crate::access::Access;
use crate::api::{Api, status_of};
use crate::endpoints::Choice;
use crate::environment::Environment;
use crate::slice;
use crate::status::{PortStatus, ServiceStatus};
use crate::watcher::{Fault, Pace, Question, Watcher};

/// Time for which a start or reload waits for the members of new services.
const START: Duration = Duration::from_secs(5);

/// Services that are listed at a time when a configuration has many new ones.
const AT_ONCE: usize = 16;

/// Shortest time after which a watch is to end, in seconds; up to as much again is added by chance.
const WATCH_SECONDS: u64 = 300;

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
    services: BTreeMap<ServiceName, ServiceStatus>,
    /// The last members of each list, also those of the process before.
    found: HashMap<String, Vec<FoundMember>>,
}

/// Namespace and name of a service.
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
        for port in &settings.services {
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
        ports.any(|port| matches!(port.port, PortName::Number(_)))
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

    /// Lists all slices of the service, page by page. Returns the ports of the service, if a group needs them.
    async fn list_slices(
        &self,
        (namespace, service): &ServiceName,
        watcher: &mut Watcher,
    ) -> Result<Ports, Fault> {
        while let Question::List(next) = watcher.next_question() {
            let answer = self.api.list_slices(namespace, service, next.as_deref());
            let answer = match answer.await {
                Ok(answer) if answer.code == 200 => answer,
                Ok(answer) => return Err(watcher.note_refusal(status_of(&answer))),
                Err(fault) => {
                    watcher.list_again();
                    return Err(fault);
                }
            };
            watcher.take_page(&answer.body)?;
        }
        if !self.has_numbers() {
            return Ok(Ports::new());
        }
        // Without the right to read services, numbers are those of the endpoints.
        let answer = self.api.get_service(namespace, service).await;
        let ports = answer.ok().filter(|answer| answer.code == 200);
        let ports = ports.and_then(|answer| slice::parse_service(&answer.body).ok());
        Ok(ports.unwrap_or_default())
    }
}

/// Returns the API server for a section: the one of before, if nothing has changed.
fn find_api(settings: &Kubernetes, before: Option<&Arc<Api>>) -> Result<Arc<Api>, PrepareErrors> {
    let access = Environment::of_process().find_access(settings);
    let access = access.map_err(|problem| PrepareError::files(vec![*problem]))?;
    let known = before.filter(|api| api.access == access);
    Ok(known.map_or_else(|| Arc::new(Api::new(access)), Arc::clone))
}

/// True if a section is in use: a section without services and without a file needs no API server.
fn is_used(settings: &Kubernetes) -> bool {
    !settings.services.is_empty() || settings.kubeconfig.is_some()
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
    fn follow(&self, api: Option<Arc<Api>>, plans: HashMap<ServiceName, Plan>) {
        let mut state = self.inner.state.lock();
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
                let follower = Follower {
                    endpoints: self.clone(),
                    manager: Arc::clone(&manager),
                    name,
                    plan,
                    ports: Ports::new(),
                    watcher: Watcher::new(),
                    pace: Pace::default(),
                    noted: None,
                };
                follower.run()
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

/// Task that follows one service.
struct Follower {
    endpoints: Endpoints,
    manager: Arc<Manager>,
    name: ServiceName,
    plan: Plan,
    ports: Ports,
    watcher: Watcher,
    pace: Pace,
    /// Error that was noted last.
    noted: Option<String>,
}

impl Follower {
    async fn run(mut self) {
        loop {
            let pause = match self.watcher.next_question() {
                Question::List(_) => self.list().await,
                Question::Watch(version) => self.watch(&version).await,
            };
            sleep(pause).await;
        }
    }

    /// Lists the slices. Returns the pause before the next question.
    async fn list(&mut self) -> Duration {
        let listed = self.plan.list_slices(&self.name, &mut self.watcher).await;
        match listed {
            Ok(ports) => {
                self.ports = ports;
                self.endpoints
                    .update(&self.name, |status| status.lists += 1);
                self.publish();
                self.note(None);
                Duration::ZERO
            }
            Err(fault) => self.note_fault(fault),
        }
    }

    /// Watches the slices until the watch ends. Returns the pause before the next question.
    async fn watch(&mut self, version: &str) -> Duration {
        let begun = Instant::now();
        let seconds = WATCH_SECONDS + fastrand::u64(..WATCH_SECONDS);
        let (name, plan) = (self.name.clone(), self.plan.clone());
        self.endpoints.update(&name, |status| {
            status.watches += 1;
            status.watching = true;
        });
        let mut fault = None;
        let mut wants_list = false;
        let watched = plan.api.watch_slices(
            (&name.0, &name.1),
            version,
            seconds,
            plan.silence,
            |bytes| {
                let changed = self.watcher.take_bytes(bytes, &mut fault);
                // A number may have another meaning since the service has changed.
                wants_list = changed && !self.publish() && plan.has_numbers();
                self.note_success();
                self.note_recovery();
                fault.is_none() && !wants_list
            },
        );
        let watched = watched.await;
        let lasted = begun.elapsed();
        self.endpoints
            .update(&name, |status| status.watching = false);
        match (watched, fault) {
            (_, Some(fault)) => {
                self.pace.note_stable(lasted);
                self.note_fault(fault)
            }
            (Ok(Some(answer)), None) => {
                let fault = self.watcher.note_refusal(status_of(&answer));
                self.note_fault(fault)
            }
            // A server that ends a watch before its time stops. The next one may have been restored from a backup, and
            // would accept a version that it does not have, without a word.
            (Ok(None), None) if wants_list || lasted.as_secs() + 1 < seconds => {
                self.watcher.list_again();
                self.pace.pause_after_watch(lasted, fastrand::f32())
            }
            (Ok(None), None) => {
                self.watcher.end_watch();
                self.pace.pause_after_watch(lasted, fastrand::f32())
            }
            (Err(fault), None) => {
                // The next server may know less. A list that fails is told.
                debug!(service = ?self.name, "a watch broke: {}", fault.message);
                self.watcher.list_again();
                self.pace.note_stable(lasted);
                self.endpoints.update(&name, |status| status.failures += 1);
                self.pace
                    .pause_after_failure(fault.retry_after, fastrand::f32())
            }
        }
    }

    /// Tells the manager of the members. Returns false if a port has no members because of an error.
    fn publish(&mut self) -> bool {
        let found = self.plan.choose_members(&self.watcher, &self.ports);
        self.endpoints.note_found(&self.name, &found);
        let is_good = found.values().all(Result::is_ok);
        for (list, members) in found {
            self.manager
                .note_list(&list, members.as_ref().err().cloned());
            if let Ok(members) = members {
                self.manager.set_found_members(&list, members);
            }
        }
        self.note_success();
        is_good
    }

    fn note_success(&self) {
        let version = self.watcher.version().map(str::to_owned);
        let slices = self.watcher.slices().map_or(0, Iterator::count);
        let events = self.watcher.event_count();
        self.endpoints.update(&self.name, |status| {
            status.last_success = Some(unix_now());
            status.version = version;
            status.slices = slices;
            status.events = events;
        });
    }

    /// Takes an error back after a watch that works: no list comes before the watch ends.
    fn note_recovery(&mut self) {
        if self.noted.is_some() {
            self.note(None);
            self.publish();
        }
    }

    fn note_fault(&mut self, fault: Fault) -> Duration {
        self.endpoints
            .update(&self.name, |status| status.failures += 1);
        self.note(Some(fault.message));
        self.pace
            .pause_after_failure(fault.retry_after, fastrand::f32())
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
        let plans = settings
            .zip(api.as_ref())
            .map(|(settings, api)| Plan::of_section(api, settings, next.section::<Node>()));
        let this = self.clone();
        Ok(Box::new(move || {
            this.follow(api, plans.unwrap_or_default())
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
                    let mut watcher = Watcher::new();
                    let listed = plan.list_slices(&name, &mut watcher).await;
                    match listed {
                        Ok(ports) => plan.choose_members(&watcher, &ports),
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
