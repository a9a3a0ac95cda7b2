//! Members from Kubernetes: a task for each scope of services, status, metrics.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use evenkeel_config::{Config, Kubernetes, Node};
use evenkeel_manager::Manager;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::handover::Handover;
use evenkeel_manager::lists::found::{FoundLists, FoundMember};
use evenkeel_manager::service::{Service, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Tasks;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::access::Access;
use crate::api::Api;
use crate::environment::Environment;
use crate::last_copy::{CopyTarget, LastCopy, WAIT};
use crate::plan::{Plan, Plans};
use crate::scope::{Scope, ScopeKey};
use crate::scope_task::{FollowedScope, SameScope, ScopeListener};
use crate::slices::ServiceName;
use crate::status::{PortStatus, ServiceStatus};

/// Scopes that are listed at a time when a configuration has many new ones.
const AT_ONCE: usize = 16;

/// Part of the state that is handed over to the next process, and its version.
const PART: (&str, u32) = ("kubernetes", 1);

/// Members from EndpointSlices. Clones are the same.
#[derive(Clone, Debug)]
pub struct Endpoints {
    inner: Arc<Inner>,
    copy: LastCopy,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Plans of the configuration in effect, or of the one that is about to be.
    plans: Option<Plans>,
    /// API server of a configuration whose first members are listed.
    next_api: Option<Arc<Api>>,
    /// Number of the API server that refuses to list the slices of all namespaces.
    refused_by: Option<u64>,
    /// Scopes in use, and those of a configuration whose first members are listed.
    scopes: HashMap<ScopeKey, Arc<Scope>>,
    /// Sections of which the plans were made.
    planned: Option<(Kubernetes, Option<Node>)>,
    /// Ports of each service, with their members.
    ports: BTreeMap<ServiceName, Vec<PortStatus>>,
    /// The last members of each list, also those of the process before.
    found: HashMap<String, Vec<FoundMember>>,
}

impl State {
    /// Follows other plans.
    fn follow(
        &mut self,
        plans: Option<Plans>,
        planned: Option<(Kubernetes, Option<Node>)>,
        copy: &LastCopy,
    ) {
        let target = { planned.as_ref().zip(plans.as_ref()) }
            .and_then(|((settings, _), plans)| CopyTarget::of_section(settings, &plans.api.access));
        copy.follow(target);
        self.planned = planned;
        let before = self.plans.take();
        let mut ports = std::mem::take(&mut self.ports);
        let services = plans.iter().flat_map(|plans| &plans.services);
        for (name, plan) in services.clone() {
            let known = ports.remove(name).unwrap_or_default();
            self.ports.insert(name.clone(), plan.list_ports(&known));
        }
        let names = services.flat_map(|(_, plan)| &plan.ports);
        let names: HashSet<String> = names.map(ToString::to_string).collect();
        self.found.retain(|name, _| names.contains(name));
        copy.retain_lists(&names);
        let scopes = plans.as_ref().map(|plans| self.want_services(plans));
        let scopes = scopes.unwrap_or_default();
        let keys: HashSet<&ScopeKey> = scopes.iter().map(|(scope, _)| &scope.key).collect();
        self.scopes.retain(|key, _| keys.contains(key));
        for (scope, names) in &scopes {
            let wanted: HashSet<&ServiceName> = names.iter().collect();
            let mut slices = scope.slices.lock();
            slices.retain_services(|name| wanted.contains(name));
            for name in names {
                let plan = |of: &Option<Plans>| of.as_ref()?.services.get(name).cloned();
                if plan(&before) != plan(&plans) {
                    slices.note_changed(name);
                }
            }
            drop(slices);
            scope.wanted.notify_one();
        }
        self.plans = plans;
    }

    /// Makes a configuration's plans for services.
    fn make_plans(&self, api: &Arc<Api>, settings: &Kubernetes, node: Option<&Node>) -> Plans {
        let mut plans = Plans::of_section(api, settings, node);
        plans.is_of_cluster &= self.refused_by != Some(api.id);
        plans
    }

    /// Wants the services of plans. Returns their scopes, with the services of each.
    fn want_services(&mut self, plans: &Plans) -> Vec<(Arc<Scope>, Vec<ServiceName>)> {
        let mut scopes = Vec::new();
        for (key, names) in plans.group_by_scope() {
            let scope = self.scopes.entry(key);
            let scope =
                scope.or_insert_with_key(|key| Arc::new(Scope::new(key.clone(), &plans.api)));
            let mut slices = scope.slices.lock();
            for name in &names {
                let plan = plans.services.get(name);
                slices.want_service(name, plan.is_some_and(Plan::has_numbers));
            }
            drop(slices);
            scopes.push((Arc::clone(scope), names));
        }
        scopes
    }

    /// Returns the scope of a service in effect, and the plan.
    fn find_plan(&self, name: &ServiceName) -> Option<(&Arc<Scope>, &Plan)> {
        let plans = self.plans.as_ref()?;
        let plan = plans.services.get(name)?;
        Some((self.scopes.get(&plans.scope_of(name, plan))?, plan))
    }

    /// Notes the members of a service, of which the API server has told.
    fn note_found(&mut self, name: &ServiceName, found: &FoundLists, copy: &LastCopy) {
        for (list, members) in found {
            if let Ok(members) = members {
                self.found.insert(list.clone(), members.clone());
                copy.note_list(list);
            }
        }
        for port in self.ports.get_mut(name).into_iter().flatten() {
            if let Some(members) = found.get(&name_list(name, port)) {
                port.error = members.as_ref().err().cloned();
            }
        }
    }

    /// Returns the ports of a service, with the numbers of their members.
    fn count_members(
        &self,
        name: &ServiceName,
        ports: &[PortStatus],
        copy: &LastCopy,
    ) -> Vec<PortStatus> {
        let ports = ports.iter().map(|port| {
            let list = name_list(name, port);
            let known = self.found.get(&list);
            let members = known.map_or(&[][..], Vec::as_slice);
            let error = port.error.clone();
            PortStatus {
                error: error.or_else(|| copy.explain_list(&list, known.is_some())),
                members: members.len(),
                draining: members.iter().filter(|member| member.drain).count(),
                copy_of: copy.time_of_list(&list),
                ..port.clone()
            }
        });
        ports.collect()
    }

    /// Returns the members of the services of plans, as the API server has told of them; errors of others.
    fn choose_members(&self, plans: &Plans) -> FoundLists {
        let mut found = FoundLists::new();
        for (name, plan) in &plans.services {
            let scope = self.scopes.get(&plans.scope_of(name, plan));
            let members = scope.and_then(|of| plan.choose_members(name, &of.slices.lock()));
            found.extend(members.unwrap_or_else(|| {
                let error = scope.and_then(|scope| scope.error_of(name));
                let late = || format!("no answer of the API server within {WAIT:?}");
                plan.list_errors(&error.unwrap_or_else(late))
            }));
        }
        found
    }

    /// Fills in members that are known from before where the API server has told of none.
    fn fill_in_known(&self, found: &mut FoundLists) {
        for (name, members) in found {
            if let Some(known) = self.found.get(name).filter(|_| members.is_err()) {
                *members = Ok(known.clone());
            }
        }
    }
}

/// Returns the name of the list of a port.
fn name_list((namespace, service): &ServiceName, port: &PortStatus) -> String {
    format!("{namespace}/{service}:{}", port.port)
}

/// Returns the API server for a section: one of those before, if nothing has changed.
pub(crate) fn find_api<'a>(
    settings: &Kubernetes,
    before: impl IntoIterator<Item = &'a Arc<Api>>,
) -> Result<Arc<Api>, PrepareErrors> {
    let access = Environment::of_process().find_access(settings);
    let access = access.map_err(|problem| PrepareError::files(vec![*problem]))?;
    let known = { before.into_iter() }.find(|api| api.access == access);
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
    /// Makes a subsystem that keeps the last good copy.
    pub(crate) fn new(copy: LastCopy) -> Self {
        Endpoints {
            inner: Arc::default(),
            copy,
        }
    }

    /// Returns the status of all services.
    pub fn statuses(&self) -> Vec<ServiceStatus> {
        let state = self.inner.state.lock();
        let services = state.ports.iter().map(|(name, ports)| {
            let mut status = ServiceStatus {
                service: format!("{}/{}", name.0, name.1),
                ports: state.count_members(name, ports, &self.copy),
                ..ServiceStatus::default()
            };
            if let Some((scope, _)) = state.find_plan(name) {
                scope.fill_status(name, &mut status);
            }
            status
        });
        services.collect()
    }

    /// Returns the API server for a section: the one in use, if nothing has changed.
    fn find_known_api(&self, settings: &Kubernetes) -> Result<Arc<Api>, PrepareErrors> {
        let state = self.inner.state.lock();
        let in_use = state.plans.as_ref().map(|plans| &plans.api);
        find_api(settings, in_use.into_iter().chain(&state.next_api))
    }

    /// Follows other plans.
    fn follow(&self, plans: Option<Plans>, planned: Option<(Kubernetes, Option<Node>)>) {
        let mut state = self.inner.state.lock();
        state.follow(plans, planned, &self.copy);
        state.next_api = None;
        self.inner.changed.notify_one();
    }

    async fn follow_plans(self, manager: Arc<Manager>) {
        let mut tasks = Tasks::default();
        loop {
            let wanted: HashMap<ScopeKey, SameScope> = {
                let state = self.inner.state.lock();
                let keys = state.plans.as_ref().map(Plans::group_by_scope);
                let keys = keys.unwrap_or_default().into_keys();
                let scopes = keys.filter_map(|key| {
                    let scope = Arc::clone(state.scopes.get(&key)?);
                    Some((key, SameScope(scope)))
                });
                scopes.collect()
            };
            tasks.reconcile(wanted, |_, SameScope(scope)| {
                FollowedScope::new(self.clone(), Arc::clone(&manager), scope).run()
            });
            self.inner.changed.notified().await;
        }
    }

    /// Fills in members from the last good copy where the API server has told of none.
    async fn fill_in_copy(&self, found: &mut FoundLists, target: Option<CopyTarget>) {
        let has_all = found.values().all(Result::is_ok);
        let Some(target) = target.filter(|_| !has_all) else {
            return;
        };
        let Some(copy) = self.copy.load(&target).await else {
            return;
        };
        let (mut count, mut oldest) = (0, copy.at);
        for (name, members) in found {
            let known = copy.members.get(name.as_str());
            if let Some(known) = known.filter(|_| members.is_err()) {
                *members = Ok(known.to_vec());
                let at = copy.time_of_list(name);
                self.copy.note_copied_list(name, at);
                (count, oldest) = (count + 1, oldest.min(at));
            }
        }
        if count > 0 {
            let what = format!("the members of {count} ports of services are those");
            self.copy.log_use(&what, oldest);
        }
    }

    /// Lists the services of plans that are not known.
    async fn list_members(&self, plans: &mut Plans) {
        loop {
            let scopes = self.inner.state.lock().want_services(plans);
            let (mut tasks, room) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
            for (scope, names) in scopes {
                let room = Arc::clone(&room);
                tasks.spawn(async move {
                    let _permit = room.acquire().await;
                    scope.list_wanted(&names).await;
                    scope.is_refused_cluster()
                });
            }
            let mut is_refused = false;
            while let Some(refused) = tasks.join_next().await {
                is_refused |= refused.unwrap_or_default();
            }
            if !is_refused || !plans.is_of_cluster {
                return;
            }
            plans.is_of_cluster = false;
            self.refuse_cluster(plans.api.id);
        }
    }
}

impl ScopeListener for Endpoints {
    fn refuse_cluster(&self, api: u64) {
        let mut state = self.inner.state.lock();
        state.refused_by = Some(api);
        let (mut plans, planned) = (state.plans.clone(), state.planned.clone());
        if let Some(plans) = plans.as_mut().filter(|plans| plans.api.id == api) {
            plans.is_of_cluster = false;
        }
        state.follow(plans, planned, &self.copy);
        self.inner.changed.notify_one();
    }

    fn tell_members(&self, manager: &Manager, scope: &Scope) -> Vec<ServiceName> {
        let changed = scope.slices.lock().take_changed();
        let mut unknown = Vec::new();
        for name in changed {
            let found = {
                let mut state = self.inner.state.lock();
                let plan = state.find_plan(&name).map(|(_, plan)| plan.clone());
                let Some(plan) = plan else {
                    continue;
                };
                let found = plan.choose_members(&name, &scope.slices.lock());
                let found = found.unwrap_or_default();
                state.note_found(&name, &found, &self.copy);
                if plan.has_numbers() && found.values().any(Result::is_err) {
                    unknown.push(name);
                }
                found
            };
            for (list, members) in found {
                manager.note_list(&list, members.as_ref().err().cloned());
                if let Ok(members) = members {
                    manager.set_found_members(&list, members);
                }
            }
        }
        unknown
    }

    fn tell_error(&self, manager: &Manager, names: &[ServiceName], error: &str) {
        for name in names {
            let plan = {
                let state = self.inner.state.lock();
                state.find_plan(name).map(|(_, plan)| plan.clone())
            };
            for port in plan.iter().flat_map(|plan| &plan.ports) {
                manager.note_list(&port.to_string(), Some(error.to_owned()));
            }
        }
    }
}

impl Service for Endpoints {
    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        let keeper = self.copy.clone().keep(Arc::clone(&manager));
        let follower = self.clone().follow_plans(manager);
        Box::pin(async move {
            tokio::join!(keeper, follower);
        })
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
        let api = settings.map(|settings| self.find_known_api(settings));
        let api = api.transpose()?;
        let planned = settings.map(|settings| (settings, next.section::<Node>()));
        let is_same = |state: &State| {
            let known = state.planned.as_ref();
            known.map(|(settings, node)| (settings, node.as_ref())) == planned
                && state.plans.as_ref().map(|of| of.api.id) == api.as_ref().map(|of| of.id)
        };
        // With thousands of services this is most of a change of a route.
        if is_same(&self.inner.state.lock()) {
            return Ok(Box::new(|| ()));
        }
        let plans = planned
            .zip(api.as_ref())
            .map(|((settings, node), api)| self.inner.state.lock().make_plans(api, settings, node));
        let planned = planned.map(|(settings, node)| (settings.clone(), node.cloned()));
        let this = self.clone();
        Ok(Box::new(move || this.follow(plans, planned)))
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
        let settings = { config.kubernetes.as_ref() }.filter(|_| !names.is_empty());
        let api = settings.map(|settings| self.find_known_api(settings));
        let Some((settings, Ok(api))) = settings.zip(api) else {
            // `prepare` tells what is wrong.
            return Box::pin(std::future::ready(FoundLists::new()));
        };
        let mut plans = {
            let mut state = self.inner.state.lock();
            state.next_api = Some(Arc::clone(&api));
            state.make_plans(&api, settings, Some(&config.node))
        };
        plans.services.retain(|_, plan| {
            plan.ports.retain(|port| names.contains(&port.to_string()));
            !plan.ports.is_empty()
        });
        let target = CopyTarget::of_section(settings, &api.access);
        let this = self.clone();
        Box::pin(async move {
            this.copy
                .wait_for_answer(this.list_members(&mut plans))
                .await;
            let mut found = {
                let state = this.inner.state.lock();
                let mut found = state.choose_members(&plans);
                // The process before knew them.
                state.fill_in_known(&mut found);
                found
            };
            this.fill_in_copy(&mut found, target).await;
            let mut state = this.inner.state.lock();
            for (name, members) in &found {
                if let Ok(members) = members {
                    state.found.insert(name.clone(), members.clone());
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
            "Complete lists with the service's slices.",
            |status| status.lists as f64,
        );
        family(
            "evenkeel_kubernetes_watches_total",
            Type::Counter,
            "Watches with the service's slices that were opened.",
            |status| status.watches as f64,
        );
        family(
            "evenkeel_kubernetes_events_total",
            Type::Counter,
            "Events of the service's slices.",
            |status| status.events as f64,
        );
        family(
            "evenkeel_kubernetes_failures_total",
            Type::Counter,
            "Questions about the service that failed.",
            |status| status.failures as f64,
        );
        self.copy.metrics(out);
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
