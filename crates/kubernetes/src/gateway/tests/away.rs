//! Questions of all tasks while the API server is away, silent or refuses, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_manager::Manager;
use evenkeel_net::Clock;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::super::control::{Counts, Plan, control};
use super::super::leader::is_leading;
use super::super::objects::{Kind, ObjectName};
use super::super::world::World;
use super::settings;
use crate::api::Api;
use crate::fake_server::{Behaviour, FakeServer};
use crate::scope::{Scope, ScopeKey, ScopeObjects};
use crate::scope_task::{FollowedScope, ScopeListener};
use crate::slices::ServiceName;

/// Time for which the API server fails.
const AWAY: Duration = Duration::from_secs(600);

/// Most questions about a kind in this time, and about an object whose status is refused.
const MOST: usize = 60;

/// Most questions about the lease in this time.
const MOST_OF_LEASE: usize = 160;

/// Failures of an API server.
const FAILURES: [Behaviour; 5] = [
    Behaviour::Away,
    Behaviour::Silent,
    Behaviour::Refusing(500, None),
    Behaviour::Refusing(403, None),
    Behaviour::Refusing(429, Some(60)),
];

/// Tasks of a balancer, and its API server.
struct Tasks {
    server: Arc<FakeServer>,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Nobody;

impl ScopeListener for Nobody {
    fn refuse_cluster(&self, _: u64) {}

    fn tell_members(&self, _: &Manager, scope: &Scope) -> Vec<ServiceName> {
        scope.slices.lock().take_changed();
        Vec::new()
    }

    fn tell_error(&self, _: &Manager, _: &[ServiceName], _: &str) {}
}

fn path_of(kind: Kind, name: &str) -> String {
    let name = match kind {
        Kind::GatewayClass | Kind::Namespace => ObjectName::new("", name),
        _ => ObjectName::new("shop", name),
    };
    let path = kind.status_path("v1", &name);
    path.trim_end_matches("/status").to_owned()
}

fn put(server: &FakeServer, kind: Kind, name: &str, spec: &serde_json::Value) {
    let namespace = match kind {
        Kind::GatewayClass | Kind::Namespace => "",
        _ => "shop",
    };
    let metadata = json!({
        "name": name,
        "namespace": namespace,
        "generation": 1,
        "uid": format!("{}-{name}", kind.name()),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    });
    server.put(
        &path_of(kind, name),
        json!({ "metadata": metadata, "spec": spec }),
    );
}

fn put_route(server: &FakeServer, name: &str, service: &str) {
    let spec = json!({
        "parentRefs": [{ "name": "g" }],
        "hostnames": [format!("{name}.example")],
        "rules": [{ "backendRefs": [{ "name": service, "port": 80 }] }],
    });
    put(server, Kind::HttpRoute, name, &spec);
}

impl Tasks {
    /// Starts all tasks, towards a cluster with a gateway and routes, of which one has no service.
    async fn start(lease: Option<ObjectName>, writes: Behaviour) -> Self {
        let server = Arc::new(FakeServer::new());
        server.set_writes(writes);
        let class = json!({ "controllerName": "evenkeel.org/gateway" });
        put(&server, Kind::GatewayClass, "evenkeel", &class);
        put(&server, Kind::Namespace, "shop", &json!({}));
        put(
            &server,
            Kind::Service,
            "web",
            &json!({ "ports": [{ "port": 80 }] }),
        );
        let listeners = json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]);
        let gateway = json!({ "gatewayClassName": "evenkeel", "listeners": listeners });
        put(&server, Kind::Gateway, "g", &gateway);
        for number in 0..12 {
            put_route(&server, &format!("r{number}"), "web");
        }
        put_route(&server, "lost", "nothing");

        let (api, silence) = (Arc::new(Api::with_fake(Arc::clone(&server))), AWAY / 5);
        let manager = Manager::new(Clock::start(), Arc::new(()));
        let text = "[kubernetes.gateway]\n";
        let config = evenkeel_config::parse("x", text).unwrap();
        manager.start(config, text.to_owned()).await.unwrap();
        let plan = Plan {
            api: Arc::clone(&api),
            settings: settings(),
            silence,
            lease,
            node: "n".into(),
        };
        let (counts, mut tasks) = (Arc::<Counts>::default(), JoinSet::new());
        let world = Arc::new(World::new(&plan.settings));
        let (of_gateways, of_counts) = (Arc::clone(&manager), Arc::clone(&counts));
        tasks.spawn(control(plan, world, of_gateways, of_counts));
        let key = ScopeKey {
            api: api.id,
            silence,
            objects: ScopeObjects::Namespace("shop".into()),
        };
        let scope = Arc::new(Scope::new(key, &api));
        let service = ("shop".to_owned(), "web".to_owned());
        scope.slices.lock().want_service(&service, true);
        tasks.spawn(FollowedScope::new(Nobody, manager, scope).run());
        Tasks {
            server,
            counts,
            _tasks: tasks,
        }
    }

    fn has_status(&self, kind: Kind, name: &str) -> bool {
        let object = self.server.object(&path_of(kind, name)).unwrap();
        object.get("status").is_some()
    }

    /// Waits until all objects have statuses, and there is an event about the route without a service.
    async fn wait_for_writes(&self) {
        wait_for("statuses and an event", || {
            let mut routes = (0..12).map(|number| format!("r{number}"));
            routes.all(|route| self.has_status(Kind::HttpRoute, &route))
                && self.has_status(Kind::HttpRoute, "lost")
                && self.has_status(Kind::Gateway, "g")
                && self.has_status(Kind::GatewayClass, "evenkeel")
                && self.server.count_objects("/events/") > 0
        })
        .await;
    }

    fn is_leading(&self) -> bool {
        let term = self.counts.term.lock();
        term.as_ref().is_some_and(|term| is_leading(&term.borrow()))
    }

    /// Returns the times of all questions since the last call, by method and path.
    fn take_questions(&self) -> BTreeMap<String, Vec<Instant>> {
        let mut all: BTreeMap<String, Vec<Instant>> = BTreeMap::new();
        for question in self.server.take_questions() {
            all.entry(question.what).or_default().push(question.at);
        }
        all
    }
}

/// Waits in virtual time.
async fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..AWAY.as_secs() {
        if is_so() {
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("{what} after {AWAY:?}");
}

/// Checks that questions are few, and that the pause is kept which the server asks for.
fn check_questions(questions: &BTreeMap<String, Vec<Instant>>, failure: Behaviour) {
    for (what, times) in questions {
        let most = match what.contains("/leases") {
            true => MOST_OF_LEASE,
            false => MOST,
        };
        let count = times.len();
        assert!(
            count <= most,
            "{failure:?}: {count} times {what} in {AWAY:?}"
        );
        let Behaviour::Refusing(_, Some(seconds)) = failure else {
            continue;
        };
        for pair in times.windows(2) {
            let pause = pair[1] - pair[0];
            assert!(
                pause >= Duration::from_secs(seconds.into()),
                "{what} after {pause:?}"
            );
        }
    }
}

fn lease() -> Option<ObjectName> {
    Some(ObjectName::new("shop", "lease"))
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_of_any_failure_are_few_questions_of_all_tasks() {
    for failure in FAILURES {
        let tasks = Tasks::start(lease(), Behaviour::Well).await;
        tasks.wait_for_writes().await;
        assert!(tasks.is_leading());
        tasks.take_questions();
        tasks.server.set_reads(failure);
        tasks.server.set_writes(failure);
        sleep(AWAY).await;
        let questions = tasks.take_questions();
        // All kinds, slices and the lease are asked for.
        assert!(questions.len() >= 18, "{failure:?}: {:?}", questions.keys());
        check_questions(&questions, failure);
        assert!(!tasks.is_leading());
        tasks.server.set_reads(Behaviour::Well);
        tasks.server.set_writes(Behaviour::Well);
        put_route(&tasks.server, "late", "web");
        wait_for("the balancer leads, and writes the next status", || {
            tasks.is_leading() && tasks.has_status(Kind::HttpRoute, "late")
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_of_refused_changes_are_few_questions() {
    for failure in FAILURES {
        let tasks = Tasks::start(None, failure).await;
        sleep(AWAY).await;
        let questions = tasks.take_questions();
        let writes = questions
            .iter()
            .filter(|(what, _)| !what.starts_with("GET"));
        let writes: BTreeMap<_, _> = writes
            .map(|(what, times)| (what.clone(), times.clone()))
            .collect();
        assert!(writes.keys().any(|what| what.ends_with("/status")));
        assert!(writes.keys().any(|what| what.ends_with("/events")));
        check_questions(&writes, failure);
        let statuses = writes.iter().filter(|(what, _)| what.starts_with("PATCH"));
        let statuses: usize = statuses.map(|(_, times)| times.len()).sum();
        assert!(statuses <= 8 * MOST, "{failure:?}: {statuses} statuses");
        tasks.server.set_writes(Behaviour::Well);
        tasks.wait_for_writes().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_status_is_tried_seldom_while_other_objects_change() {
    let tasks = Tasks::start(None, Behaviour::Well).await;
    tasks.server.refuse_path(Some("httproutes/r3/"));
    sleep(Duration::from_secs(60)).await;
    tasks.take_questions();
    for second in 0..AWAY.as_secs() {
        // Somebody else writes into the status of another route.
        let path = path_of(Kind::HttpRoute, "r5");
        let mut other = tasks.server.object(&path).unwrap();
        other["metadata"]["annotations"] = json!({ "second": second.to_string() });
        tasks.server.put(&path, other);
        if second == 300 {
            put_route(&tasks.server, "late", "web");
        }
        // Statuses of other objects do not wait.
        assert!(second < 303 || tasks.has_status(Kind::HttpRoute, "late"));
        sleep(Duration::from_secs(1)).await;
    }
    let questions = tasks.take_questions();
    let refused = format!("PATCH {}/status", path_of(Kind::HttpRoute, "r3"));
    let count = questions[&refused].len();
    assert!((2..=MOST).contains(&count), "{count}");
    tasks.server.refuse_path(None);
    tasks.wait_for_writes().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_failure_does_not_end_a_term() {
    let tasks = Tasks::start(lease(), Behaviour::Well).await;
    wait_for("the balancer leads", || tasks.is_leading()).await;
    for _ in 0..20 {
        tasks.server.set_reads(Behaviour::Refusing(500, None));
        sleep(Duration::from_secs(2)).await;
        tasks.server.set_reads(Behaviour::Well);
        for _ in 0..10 {
            assert!(tasks.is_leading());
            sleep(Duration::from_secs(1)).await;
        }
    }
}
