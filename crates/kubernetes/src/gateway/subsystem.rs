//! Life of the controller of the Gateway API: started and stopped by the configuration, with status and metrics.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evenkeel_config::{IngressController, Kubernetes, Node};
use evenkeel_manager::Manager;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::{Exposition, Type};
use evenkeel_manager::service::{Service, StartError, Work};
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, PrepareErrors, Subsystem};
use evenkeel_net::Tasks;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::warn;

use super::control::{Counts, Plan, apply_once, control};
use super::from_copy::serve_copy;
use super::leader::is_leading;
use super::object_status::list_objects;
use super::objects::ObjectName;
use super::settings::{IngressSettings, Settings};
use super::world::World;
use crate::last_copy::{LastCopy, WAIT};
use crate::status::{ControllerStatus, KindStatus, ObjectStatus};
use crate::subsystem::find_api;

/// Controller of the Gateway API. Clones are the same.
#[derive(Clone, Debug)]
pub struct Gateways {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct State {
    /// Plan of the configuration in effect; `None` without a controller.
    plan: Option<Plan>,
    /// World of the controller that runs.
    world: Option<Arc<World>>,
}

/// Reads the namespace and the name of an object.
fn read_name(text: &str) -> Option<ObjectName> {
    let (namespace, name) = text.split_once('/')?;
    Some(ObjectName::new(namespace, name))
}

/// Reads the settings of Ingresses.
fn read_ingress(ingress: &IngressController) -> IngressSettings {
    IngressSettings {
        controller: ingress.controller.clone(),
        class: ingress.class.clone(),
        without_class: ingress.without_class,
        certificate: ingress.certificate.as_deref().and_then(read_name),
        copy_fields: ingress.copy_fields.clone(),
        gateway: IngressSettings::make_gateway(ingress.http_port, ingress.https_port),
    }
}

impl Gateways {
    /// Makes a controller that begins with the last good copy while the API server is away.
    pub(crate) fn new(copy: LastCopy) -> Self {
        let counts = Counts {
            copy,
            ..Counts::default()
        };
        Gateways {
            inner: Arc::new(Inner {
                state: Mutex::default(),
                changed: Notify::new(),
                counts: Arc::new(counts),
            }),
        }
    }

    /// Returns the status of each kind that the controller follows; none without a controller.
    pub fn kinds(&self) -> Vec<KindStatus> {
        let world = self.inner.state.lock().world.clone();
        let mut kinds = world.map(|world| world.kinds()).unwrap_or_default();
        let copy = &self.inner.counts.copy;
        let (copy_of, explanation) = (copy.time_of_gateways(), copy.explain_gateways());
        for kind in &mut kinds {
            kind.copy_of = copy_of;
            if let (Some(error), Some(explanation)) = (&mut kind.error, &explanation) {
                error.push_str("; ");
                error.push_str(explanation);
            }
        }
        kinds
    }

    /// Returns the status of the controller; `None` without a controller.
    pub fn controller(&self) -> Option<ControllerStatus> {
        let state = self.inner.state.lock();
        let plan = { state.world.as_ref() }.and(state.plan.as_ref())?;
        let counts = &self.inner.counts;
        let (leads, holder) = match &*counts.term.lock() {
            None => (true, None),
            Some(term) => {
                let leader = term.borrow();
                (is_leading(&leader), leader.holder.clone())
            }
        };
        let last = counts.last.lock();
        Some(ControllerStatus {
            controller: plan.settings.controller.clone(),
            lease: plan.lease.as_ref().map(ToString::to_string),
            leads,
            holder,
            last_success: last.last_success,
            error: last.error.clone(),
            configurations: counts.applied.load(Ordering::Relaxed),
            refusals: counts.refused.load(Ordering::Relaxed),
            status_writes: counts.written.load(Ordering::Relaxed),
        })
    }

    /// Returns the objects that the controller serves; none without a controller.
    pub fn objects(&self) -> Vec<ObjectStatus> {
        if self.inner.state.lock().world.is_none() {
            return Vec::new();
        }
        let facts = Arc::clone(&self.inner.counts.last.lock().facts);
        list_objects(&facts)
    }

    async fn follow_plan(self, manager: Arc<Manager>) {
        let mut tasks = Tasks::default();
        loop {
            let plan = self.inner.state.lock().plan.clone();
            if plan.is_none() {
                self.inner.state.lock().world = None;
            }
            let plans: HashMap<(), Plan> = plan.into_iter().map(|plan| ((), plan)).collect();
            tasks.reconcile(plans, |(), plan| {
                let world = Arc::new(World::new(&plan.settings));
                self.inner.state.lock().world = Some(Arc::clone(&world));
                control(
                    plan,
                    world,
                    Arc::clone(&manager),
                    Arc::clone(&self.inner.counts),
                )
            });
            self.inner.changed.notified().await;
        }
    }
}

impl Service for Gateways {
    fn start(&self, manager: &Arc<Manager>) -> Work<Result<(), StartError>> {
        let plan = self.inner.state.lock().plan.clone();
        let (manager, counts) = (Arc::clone(manager), Arc::clone(&self.inner.counts));
        Box::pin(async move {
            // The process before has told of its gateways.
            let Some(plan) = plan.filter(|_| manager.generated().is_none()) else {
                return Ok(());
            };
            let applied = apply_once(plan, Arc::clone(&manager), Arc::clone(&counts));
            let is_answered = counts.copy.wait_for_answer(applied).await == Some(true);
            if !is_answered && !serve_copy(&counts.copy, &manager).await {
                warn!(
                    "gateways: no answer of the API server within {WAIT:?}: gateways are served once the server answers"
                );
            }
            Ok(())
        })
    }

    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        Box::pin(self.clone().follow_plan(manager))
    }
}

impl Subsystem for Gateways {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        if !next.reload {
            return Ok(Box::new(|| ()));
        }
        let section = next.section::<Kubernetes>();
        let wanted = section.and_then(|section| Some((section, section.gateway.as_ref()?)));
        let before = self.inner.state.lock().plan.clone();
        let plan = wanted.and_then(|(section, gateway)| {
            // An error is one of members, too, and is told there.
            let api = find_api(section, before.as_ref().map(|plan| &plan.api)).ok()?;
            let settings = Settings {
                controller: gateway.controller.clone(),
                class: gateway.class.clone(),
                listen: gateway.listen.clone(),
                publish: gateway.publish.clone(),
                publish_service: gateway.publish_service.as_deref().and_then(read_name),
                pool: gateway.pool.clone(),
                ingress: gateway.ingress.as_ref().map(read_ingress),
            };
            let silence = section.silence;
            Some(Plan {
                api,
                settings,
                silence,
                lease: gateway.lease.as_deref().and_then(read_name),
                node: next
                    .section::<Node>()
                    .cloned()
                    .unwrap_or_default()
                    .find_name(),
            })
        });
        let this = self.clone();
        Ok(Box::new(move || {
            this.inner.state.lock().plan = plan;
            this.inner.changed.notify_one();
        }))
    }

    fn metrics(&self, out: &mut Exposition) {
        let kinds = self.kinds();
        let mut family = |name, kind, help, read: fn(&KindStatus) -> f64| {
            out.begin_family(name, kind, help);
            for status in &kinds {
                out.add_sample(&[("kind", &status.kind)], read(status));
            }
        };
        family(
            "evenkeel_gateway_up",
            Type::Gauge,
            "1 if the last question about objects of the kind was answered, 0 if not.",
            |status| {
                f64::from(u8::from(
                    status.error.is_none() && status.last_success.is_some(),
                ))
            },
        );
        family(
            "evenkeel_gateway_objects",
            Type::Gauge,
            "Known objects of the kind.",
            |status| status.objects as f64,
        );
        family(
            "evenkeel_gateway_failures_total",
            Type::Counter,
            "Questions about objects of the kind that failed.",
            |status| status.failures as f64,
        );
        let counts = &self.inner.counts;
        for (name, help, count) in [
            (
                "evenkeel_gateway_configurations_total",
                "Configurations that the controller of the Gateway API has put into effect.",
                &counts.applied,
            ),
            (
                "evenkeel_gateway_refusals_total",
                "Configurations of the controller of the Gateway API that could not be put into effect.",
                &counts.refused,
            ),
            (
                "evenkeel_gateway_status_writes_total",
                "Statuses of objects that the controller of the Gateway API has written.",
                &*counts.written,
            ),
        ] {
            out.begin_family(name, Type::Counter, help);
            if !kinds.is_empty() {
                out.add_sample(&[], count.load(Ordering::Relaxed) as f64);
            }
        }
        out.begin_family(
            "evenkeel_gateway_leader",
            Type::Gauge,
            "1 if this balancer writes the statuses of objects, 0 if another one holds the lease.",
        );
        if !kinds.is_empty() {
            let term = counts.term.lock();
            let leads = { term.as_ref() }.is_none_or(|term| is_leading(&term.borrow()));
            out.add_sample(&[], f64::from(u8::from(leads)));
        }
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let (kinds, controller, objects) = (self.clone(), self.clone(), self.clone());
        vec![
            Endpoint::with_value(
                "/v1/kubernetes/kinds",
                "Kinds of objects that the controller of the Gateway API follows",
                move || kinds.kinds(),
            ),
            Endpoint::with_value(
                "/v1/kubernetes/controller",
                "Controller of the Gateway API; null without one",
                move || controller.controller(),
            ),
            Endpoint::with_value(
                "/v1/kubernetes/objects",
                "Objects that the controller of the Gateway API serves, and the problems of each",
                move || objects.objects(),
            ),
        ]
    }
}
