//! The API as its users meet it: over a socket, with a real manager and data plane
//! behind it.

mod config_api;
mod images;
mod metrics_text;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_acme::Acme;
use evenkeel_broker::negotiator::Negotiator;
use evenkeel_broker::reporting::Reporting;
use evenkeel_corba::subsystem::Corba;
use evenkeel_core::load::LOADS_PER_LOCATION;
use evenkeel_core::strategy::REGISTRY;
use evenkeel_fleet::Gossip;
use evenkeel_forward::Forwarding;
use evenkeel_manager::config::{self, Admin, ClientTls};
use evenkeel_manager::revisions::{Author, How};
use evenkeel_manager::service::Service;
use evenkeel_manager::status::{GroupStatus, LocationStatus, MemberStatus, Status};
use evenkeel_manager::{AdminState, Manager};
use evenkeel_monitor::Monitor;
use evenkeel_net::Clock;
use evenkeel_proxy::Proxy;
use evenkeel_steer::Steering;
use evenkeel_xds::Xds;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use metrics_text::strict;

use crate::actor::Role;
use crate::address::Address;
use crate::client::{Client, ClientError};
use crate::users::UsersFile;
use crate::wire::{Done, Explain, Reloaded};
use crate::{Sources, access_log, otlp, serve_api};

/// A balancer with its API. The members of its only group are the addresses given.
struct Balancer {
    address: SocketAddr,
    sources: Arc<Sources>,
    proxy: Proxy,
    close: Option<oneshot::Sender<()>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn configuration(members: &[SocketAddr]) -> String {
    let members: Vec<_> = members
        .iter()
        .map(|member| format!("{:?}", member.to_string()))
        .collect();
    format!(
        "[rule.web]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tcp\"\nmembers = [{}]\n\
         strategy = \"random\"\nslow_start = \"0s\"\nhealth_check = false\n",
        members.join(", ")
    )
}

impl Balancer {
    fn start(members: &[SocketAddr], token: Option<&str>) -> Balancer {
        Self::start_as(members, "", |admin| admin.token = token.map(str::to_owned))
    }

    /// Starts a balancer with these lines before all tables, and these settings of the API.
    fn start_as(members: &[SocketAddr], first: &str, change: impl FnOnce(&mut Admin)) -> Balancer {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let config_file: PathBuf = std::env::temp_dir().join(format!(
            "evenkeel-admin-{}-{unique}.toml",
            std::process::id()
        ));
        let text = format!("{first}{}", configuration(members));
        std::fs::write(&config_file, text).unwrap();

        let clock = Clock::start();
        let proxy = Proxy::start(clock, 1).unwrap();
        let own = Arc::new(Address::default());
        let mut subsystems: Vec<Arc<dyn Service>> = vec![
            Arc::new(proxy.clone()),
            Arc::clone(&own) as _,
            Arc::new(Negotiator::new(clock)),
            Arc::new(Reporting::new(clock).unwrap()),
            Arc::new(Corba::new(clock)),
            Arc::new(Gossip::new(clock).unwrap()),
            Arc::new(Xds::new(clock).unwrap()),
            Arc::new(Monitor::new(clock).unwrap()),
            Arc::new(Acme::default()),
            Arc::new(Steering::new(clock)),
            Arc::new(Forwarding::new(clock, Default::default())),
        ];
        subsystems.extend(evenkeel_report::sources(clock).unwrap());
        let manager = Manager::new(clock, Arc::new(subsystems));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let first = manager.reload(&config_file, How::Start, Author::default());
        runtime.block_on(first).unwrap();

        let sources = Arc::new(Sources {
            live: crate::live::Live::new(&manager, 1),
            manager,
            config_file,
            access_log: access_log::Counts::default(),
            traces: otlp::Counts::default(),
            address: own,
            draining: AtomicBool::new(false),
            upgrades: tokio::sync::mpsc::channel(1).0,
        });
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let mut settings = Admin {
            listen: address,
            ..Admin::default()
        };
        change(&mut settings);
        let (close, closed) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let of_thread = Arc::clone(&sources);
        let thread = std::thread::spawn(move || {
            let stopped = async {
                let _ = stopped.await;
            };
            runtime
                .block_on(serve_api(listener, &settings, of_thread, closed, stopped))
                .unwrap();
        });
        Balancer {
            address,
            sources,
            proxy,
            close: Some(close),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn client(&self) -> Client {
        Client::new(&self.address.to_string(), None, &ClientTls::default()).unwrap()
    }

    /// Sends a request as it is; answers all that comes back.
    fn whole(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends a request as it is; answers status and body.
    fn raw(&self, request: &str) -> (u16, String) {
        let answer = self.whole(request);
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.raw(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ))
    }

    fn metrics(&self) -> strict::Samples {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200);
        strict::parse(&text)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
        self.proxy.drain(Duration::ZERO);
        self.proxy.join_workers();
        let _ = std::fs::remove_file(&self.sources.config_file);
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Returns two addresses where nothing listens; these tests send nothing there.
fn two_members() -> [SocketAddr; 2] {
    [address(1), address(2)]
}

/// Returns the kind of error with which the API refused, and its status.
fn refusal<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (u16, String) {
    match result {
        Err(ClientError::Refused { status, body }) => (status, body.error),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn status_says_what_is_configured() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let status: Status = client.get(&["v1", "status"], &[]).unwrap();
    assert_eq!(status.generation, 1);
    assert_eq!(status.rules[0].protocol, "tcp");
    assert_ne!(
        status.rules[0].listen[0]
            .parse::<SocketAddr>()
            .unwrap()
            .port(),
        0,
        "the real port, not the configured one"
    );
    let groups: Vec<GroupStatus> = client.get(&["v1", "groups"], &[]).unwrap();
    let group: GroupStatus = client.get(&["v1", "groups", "web"], &[]).unwrap();
    assert_eq!(groups, [group]);
    let path = ["v1", "groups", "web", "members", "127.0.0.1:2"];
    let member: MemberStatus = client.get(&path, &[]).unwrap();
    assert_eq!(
        (member.name.as_str(), member.state.as_ref()),
        ("127.0.0.1:2", "up")
    );

    let unknown = client.get::<GroupStatus>(&["v1", "groups", "wbe"], &[]);
    let Err(ClientError::Refused { status: 404, body }) = unknown else {
        panic!("{unknown:?}");
    };
    assert_eq!(
        (body.error.as_str(), &body.allowed[..]),
        ("unknown_group", &["web".to_owned()][..])
    );
    let unknown = client.get::<MemberStatus>(&["v1", "groups", "web", "members", "x"], &[]);
    assert_eq!(refusal(unknown), (404, "unknown_member".into()));
}

#[test]
fn the_schema_has_every_key_and_strategy_of_the_manual() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let schema: Value = client.get(&["v1", "config", "schema"], &[]).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let mut chapters = String::new();
    for table in list(&schema["tables"]) {
        let header = table["header"].as_str().unwrap();
        match header {
            "" => chapters.push_str("### Top\n"),
            header => chapters.push_str(&format!("### `{header}`\n")),
        }
        for key in list(&table["keys"]) {
            chapters.push_str(&format!("#### `{}`\n", key["name"].as_str().unwrap()));
        }
    }
    let manual = config::reference::keys();
    let titles = manual.lines().filter(|line| line.starts_with("###"));
    let titles: String = titles.map(|line| format!("{line}\n")).collect();
    assert_eq!(chapters, titles);

    let tables = list(&schema["tables"]);
    let admin = tables.iter().find(|table| table["header"] == "[admin]");
    let keys = list(&admin.unwrap()["keys"]);
    let enabled = keys.iter().find(|key| key["name"] == "enabled").unwrap();
    let expected = json!({
        "name": "enabled",
        "alias": null,
        "allowed": "true or false",
        "default": "true",
        "example": "false",
        "meaning": "Turns the admin API on. Set `false` if you administer the balancer by its file alone.",
        "secret": false,
        "restart": true,
    });
    assert_eq!(*enabled, expected);

    let strategies = list(&schema["strategies"]);
    let names = strategies.iter().map(|one| one["name"].as_str().unwrap());
    let known = REGISTRY.iter().map(|kind| kind.name);
    assert!(names.eq(known));
    for (index, (told, kind)) in strategies.iter().zip(REGISTRY).enumerate() {
        assert_eq!(told["default"], index == 0, "{}", kind.name);
        let params = list(&told["params"]);
        assert_eq!(params.len(), kind.params.len(), "{}", kind.name);
        for (told, param) in params.iter().zip(kind.params) {
            let range = [&told["min"], &told["default"], &told["max"]];
            let range = range.map(|number| number.as_f64().unwrap());
            assert_eq!(
                range,
                [param.min, param.default, param.max],
                "{}",
                param.name
            );
        }
    }
}

#[test]
fn members_are_drained_and_brought_back() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let path = ["v1", "groups", "web", "members", "127.0.0.1:1"];
    let set = |state: AdminState| -> MemberStatus {
        let mut path = path.to_vec();
        path.push("state");
        let _: Done = client
            .put_resource(&path, &json!({ "state": state }))
            .unwrap();
        client.get(&path[..5], &[]).unwrap()
    };
    let drained = set(AdminState::Drain);
    assert_eq!(
        (drained.state.as_ref(), drained.effective_weight),
        ("draining", 0.0)
    );
    let labels = "group=\"web\",member=\"127.0.0.1:1\"";
    let up = format!("evenkeel_member_up{{{labels}}}");
    let out = format!("evenkeel_member_out{{{labels},reason=\"draining\"}}");
    let told = |metrics: strict::Samples| (metrics[&up], metrics.get(&out).copied());
    assert_eq!(told(balancer.metrics()), (0.0, Some(1.0)));
    assert_eq!(set(AdminState::Maintenance).state, "maintenance");
    let ready = set(AdminState::Ready);
    assert!(ready.reasons.is_empty() && ready.effective_weight > 0.0);
    assert_eq!(told(balancer.metrics()), (1.0, None));

    let bad = json!({ "state": "off" });
    let refused = client.put_resource::<Done>(
        &["v1", "groups", "web", "members", "127.0.0.1:1", "state"],
        &bad,
    );
    assert_eq!(refusal(refused), (422, "bad_body".into()));
}

#[test]
fn an_ejection_is_ended_by_its_path() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let end = |member: &str| {
        let path = ["v1", "groups", "web", "members", member, "uneject"];
        client.post_resource::<Done>(&path, &json!({}))
    };
    // Without an ejection there is nothing to end.
    assert!(end("127.0.0.1:1").unwrap().ok);
    assert_eq!(refusal(end("127.0.0.1:9")), (404, "unknown_member".into()));
}

#[test]
fn weights_are_numbers_in_their_range() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let path = ["v1", "groups", "web", "members", "127.0.0.1:1", "weight"];
    let _: Done = client
        .put_resource(&path, &json!({ "weight": 2.5 }))
        .unwrap();
    for (body, kind) in [
        (json!({ "weight": -1 }), "bad_weight"),
        (json!({ "weight": 1e9 }), "bad_weight"),
        (json!({ "weight": "2" }), "bad_body"),
        (json!({ "weight": null }), "bad_body"),
        (json!({ "weight": 1, "wieght": 2 }), "bad_body"),
        (json!([]), "bad_body"),
    ] {
        assert_eq!(
            refusal(client.put_resource::<Done>(&path, &body)),
            (422, kind.into()),
            "{body}"
        );
    }
    let member: MemberStatus = client.get(&path[..5], &[]).unwrap();
    assert_eq!(member.weight, 2.5);
}

#[test]
fn strategies_change_live() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let path = ["v1", "groups", "web", "strategy"];
    for kind in evenkeel_core::strategy::REGISTRY {
        let params: serde_json::Map<String, Value> = kind
            .params
            .iter()
            .map(|param| (param.name.into(), param.max.into()))
            .collect();
        let _: Done = client
            .put_resource(&path, &json!({ "name": kind.name, "params": params }))
            .unwrap();
        let group: GroupStatus = client.get(&path[..3], &[]).unwrap();
        assert_eq!(group.strategy, kind.name);
        for param in group.params {
            assert_eq!(Value::from(param.value), params[param.name.as_ref()]);
        }
    }
    let unknown = client.put_resource::<Done>(&path, &json!({ "name": "best" }));
    assert_eq!(refusal(unknown), (422, "unknown_strategy".into()));
    let unknown =
        client.put_resource::<Done>(&path, &json!({ "name": "random", "params": { "x": 1 } }));
    assert_eq!(refusal(unknown), (422, "bad_parameter".into()));
}

#[test]
fn loads_are_taken_whole_or_not_at_all() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let path = ["v1", "locations", "127.0.0.1", "loads"];
    let report = |body: Value| client.post_resource::<Done>(&path, &body);
    report(json!({ "loads": { "cpu": 0.5, "77": 3 } })).unwrap();
    let many = (100..100 + LOADS_PER_LOCATION - 1).map(|id| (id.to_string(), json!(1)));
    for (loads, kind) in [
        (json!({ "cpu": 0.9, "disk": -0.1 }), "bad_load"),
        (json!({ "cpu": 0.9, "disk": 1e13 }), "bad_load"),
        (json!({ "cpu": 0.9, "disk": "NaN" }), "bad_body"),
        (json!({ "cpu": 0.9, "0": 0.8 }), "bad_load_id"),
        (json!({ "cpu": 0.9, "cpus": 0.8 }), "bad_load_id"),
        (Value::Object(many.collect()), "too_many_loads"),
    ] {
        let refused = report(json!({ "loads": loads }));
        assert_eq!(refusal(refused), (422, kind.into()), "{loads}");
    }
    // What JSON does not know at all, too.
    for number in ["NaN", "Infinity", "1e999"] {
        let body = format!("{{\"loads\":{{\"cpu\":{number}}}}}");
        let (status, text) = balancer.raw(&format!(
            "POST /v1/locations/127.0.0.1/loads HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(status, 422, "{number}: {text}");
    }
    let elsewhere =
        client.post_resource::<Done>(&["v1", "locations", "x", "loads"], &json!({ "loads": {} }));
    assert_eq!(refusal(elsewhere), (404, "unknown_location".into()));

    let locations: Vec<LocationStatus> = client.get(&["v1", "locations"], &[]).unwrap();
    let loads = locations[0].loads.iter();
    let loads: Vec<_> = loads.map(|load| (load.id.as_str(), load.value)).collect();
    assert_eq!(loads, [("cpu", 0.5), ("77", 3.0)]);
}

#[test]
fn decisions_are_explained() {
    let backend = Backend::start();
    let balancer = Balancer::start(&[backend.address], None);
    let client = balancer.client();
    let explain = || -> Explain {
        client
            .get(
                &["v1", "groups", "web", "explain"],
                &[("client", "192.0.2.1")],
            )
            .unwrap()
    };
    assert_eq!(explain().last, None);
    let member = backend.address.to_string();
    assert_eq!(explain().next.chosen.as_ref(), Some(&member));

    // In the product the manager's control loop wants a trace every second.
    balancer.sources.manager.list_groups()[0]
        .state()
        .want_trace();
    visit(&balancer);
    let last = explain().last.unwrap();
    assert_eq!(last.chosen.as_ref(), Some(&member));
    assert_eq!(last.candidates[0].member, member);

    // A decision belongs to the strategy that took it.
    let path = ["v1", "groups", "web", "strategy"];
    let _: Done = client
        .put_resource(&path, &json!({ "name": "round_robin" }))
        .unwrap();
    let explained = explain();
    assert_eq!(explained.last.unwrap().strategy, "random");
    assert_eq!(explained.next.strategy, "round_robin");

    let path = ["v1", "groups", "web", "members", &member, "state"];
    let _: Done = client
        .put_resource(&path, &json!({ "state": "drain" }))
        .unwrap();
    let next = explain().next;
    assert_eq!(next.chosen, None);
    assert!(next.error.is_some());
    assert!(
        next.candidates[0].verdict.contains("not eligible"),
        "{next:?}"
    );

    let bad = client.get::<Explain>(&["v1", "groups", "web", "explain"], &[("client", "me")]);
    assert_eq!(refusal(bad), (422, "bad_query".into()));
}

#[test]
fn a_broken_file_changes_nothing_and_says_so() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    let reload = || client.post_resource::<Reloaded>(&["v1", "reload"], &json!({}));
    std::fs::write(
        &balancer.sources.config_file,
        "[rule.web]\nlisten = 1\nbogus = 2\n",
    )
    .unwrap();
    let refused = reload();
    let Err(ClientError::Refused { status: 422, body }) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        body.detail.contains(":2:") && body.detail.contains("bogus"),
        "{}",
        body.detail
    );
    let metrics = balancer.metrics();
    assert_eq!(metrics["evenkeel_config_last_reload_success"], 0.0);
    assert_eq!(metrics["evenkeel_config_generation"], 1.0);
    let status: Status = client.get(&["v1", "status"], &[]).unwrap();
    assert!(status.last_reload.unwrap().error.is_some());
    assert_eq!(status.groups[0].members.len(), 2);

    let good = configuration(&[address(1), address(2), address(3)]);
    std::fs::write(&balancer.sources.config_file, good).unwrap();
    assert_eq!(reload().unwrap().generation, 2);
    let group: GroupStatus = client.get(&["v1", "groups", "web"], &[]).unwrap();
    assert_eq!(group.members.len(), 3);
    assert_eq!(
        balancer.metrics()["evenkeel_config_last_reload_success"],
        1.0
    );
}

#[test]
fn metrics_count_what_happened() {
    let backend = Backend::start();
    let balancer = Balancer::start(&[backend.address], None);
    for _ in 0..3 {
        visit(&balancer);
    }
    let member = backend.address;
    let metrics = balancer.metrics();
    let of_member = |name: &str, rest: &str| {
        let key = format!("{name}{{group=\"web\",member=\"{member}\"{rest}}}");
        *metrics
            .get(&key)
            .unwrap_or_else(|| panic!("no {key} in {metrics:#?}"))
    };
    assert_eq!(
        of_member("evenkeel_member_requests_total", ",outcome=\"success\""),
        3.0
    );
    assert_eq!(
        of_member("evenkeel_member_requests_total", ",outcome=\"failure\""),
        0.0
    );
    assert_eq!(of_member("evenkeel_member_in_flight", ""), 0.0);
    assert_eq!(of_member("evenkeel_member_up", ""), 1.0);
    let per_member = metrics.keys().filter(|key| key.contains("member="));
    assert_eq!(per_member.count(), 20, "{metrics:#?}");
    assert_eq!(
        of_member("evenkeel_member_latency_seconds_bucket", ",le=\"+Inf\""),
        3.0
    );
    assert_eq!(of_member("evenkeel_member_latency_seconds_count", ""), 3.0);
    assert_eq!(
        metrics["evenkeel_rule_connections_total{rule=\"web\"}"],
        3.0
    );
    assert_eq!(
        metrics["evenkeel_rule_bytes_total{rule=\"web\",direction=\"out\"}"],
        15.0
    );
    assert_eq!(metrics["evenkeel_group_queue{group=\"web\"}"], 0.0);
}

#[test]
fn every_metric_is_documented() {
    let manual = include_str!("../../../docs/admin-api.md");
    let balancer = Balancer::start(&two_members(), None);
    let (_, text) = balancer.get("/metrics");
    let families: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    assert!(families.len() > 20, "{families:?}");
    for family in families {
        let (name, kind) = family.split_once(' ').unwrap();
        let row = format!("| `{name}` | {kind} |");
        assert!(manual.contains(&row), "docs/admin-api.md has no {row}");
    }
    let documented =
        |line: &str| line.starts_with("| `evenkeel_") || line.starts_with("| `process_");
    let rows = manual.lines().filter(|line| documented(line));
    for row in rows {
        let name = row.split('`').nth(1).unwrap();
        // Those of a store are there where there is one, as e2e/tests/fleet/store.rs has it; those of a standby as
        // e2e/tests/corba/standby.rs, those of Kubernetes as e2e/tests/fleet/kubernetes.rs, and those of its gateways as
        // e2e/tests/fleet/gateway.rs.
        let of_standby = ["evenkeel_corba_owner", "evenkeel_corba_takeovers_total"];
        let has_own_test = [
            "evenkeel_store_",
            "evenkeel_kubernetes_",
            "evenkeel_gateway_",
        ];
        let has_own_test = has_own_test.iter().any(|start| name.starts_with(start));
        if has_own_test || of_standby.contains(&name) {
            continue;
        }
        assert!(
            text.contains(&format!("# TYPE {name} ")),
            "{name} does not exist"
        );
    }
}

#[test]
fn s10_silent_connections_do_not_lock_the_api_out() {
    let balancer = Balancer::start(&two_members(), None);
    // All that may live at once, and some more: without a byte, with half a head, and with
    // a body that never comes.
    let starts = [
        "",
        "GET /v1/status HTTP/1.1\r\nHost: local",
        "POST /v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: 2\r\n\r\n{",
    ];
    let silent: Vec<TcpStream> = (0..300)
        .map(|number: usize| {
            let mut stream = TcpStream::connect(balancer.address).unwrap();
            // It may have made way already.
            let _ = stream.write_all(starts[number % starts.len()].as_bytes());
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(balancer.get("/v1/status").0, 200);
        assert_eq!(balancer.get("/readyz").0, 200);
    }
    drop(silent);
}

#[test]
fn readiness_needs_a_member_and_ends_with_the_process() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client();
    assert_eq!(balancer.get("/readyz").0, 200);
    assert_eq!(balancer.get("/readyz?rule=web").0, 200);
    assert_eq!(balancer.get("/readyz?rule=other").0, 404);
    assert_eq!(balancer.get("/readyz?rules=web").0, 422);
    for member in ["127.0.0.1:1", "127.0.0.1:2"] {
        let path = ["v1", "groups", "web", "members", member, "state"];
        let _: Done = client
            .put_resource(&path, &json!({ "state": "drain" }))
            .unwrap();
    }
    assert_eq!(balancer.get("/readyz").0, 503);
    assert_eq!(balancer.get("/readyz?rule=web").0, 503);
    // A rule that accepts nobody needs no member.
    let _: Done = client
        .put_resource(
            &["v1", "rules", "web", "enabled"],
            &json!({ "enabled": false }),
        )
        .unwrap();
    assert_eq!(
        balancer.metrics()["evenkeel_rule_enabled{rule=\"web\"}"],
        0.0
    );
    assert_eq!(balancer.get("/readyz").0, 200);
    balancer.sources.draining.store(true, Ordering::Relaxed);
    assert_eq!(balancer.get("/readyz").0, 503);
    assert_eq!(balancer.get("/healthz").0, 200);
    assert_eq!(balancer.get("/v1/status").0, 200);
    let late = client.put_resource::<Done>(
        &["v1", "rules", "web", "enabled"],
        &json!({ "enabled": true }),
    );
    assert_eq!(refusal(late), (503, "not_ready".into()));
    balancer.sources.draining.store(false, Ordering::Relaxed);
    let unknown = client.put_resource::<Done>(
        &["v1", "rules", "x", "enabled"],
        &json!({ "enabled": true }),
    );
    assert_eq!(refusal(unknown), (404, "unknown_rule".into()));
}

/// A client that has connected when the process begins to end is told so, and not reset.
#[test]
fn who_has_connected_before_the_end_is_answered() {
    let mut balancer = Balancer::start(&two_members(), None);
    let address = balancer.address;
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let status = |client: &mut TcpStream| {
        client.write_all(request).unwrap();
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        while !answer.ends_with(b"}") {
            let len = client.read(&mut part).unwrap();
            assert!(len > 0, "cut after {answer:?}");
            answer.extend_from_slice(&part[..len]);
        }
        String::from_utf8_lossy(&answer[9..12]).into_owned()
    };
    let connect = |_| TcpStream::connect(address).unwrap();
    // Some are known to the API, some may still be in the queue.
    let mut clients: Vec<TcpStream> = (0..10).map(connect).collect();
    for client in &mut clients {
        assert_eq!(status(client), "200");
    }
    clients.extend((0..50).map(connect));
    balancer.sources.draining.store(true, Ordering::Relaxed);
    balancer.close.take().unwrap().send(()).unwrap();
    for client in &mut clients {
        assert_eq!(status(client), "503");
    }
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    // They do not keep the process.
    drop(balancer);
    for client in &mut clients {
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn a_token_is_asked_for() {
    let balancer = Balancer::start(&two_members(), Some("s3cret"));
    let with =
        |token| Client::new(&balancer.address.to_string(), token, &ClientTls::default()).unwrap();
    let ask = |token| with(token).get::<Status>(&["v1", "status"], &[]);
    assert!(ask(Some("s3cret")).is_ok());
    assert_eq!(refusal(ask(None)), (401, "unauthorized".into()));
    assert_eq!(refusal(ask(Some("guess"))), (401, "unauthorized".into()));
    assert_eq!(balancer.get("/healthz").0, 200);
    assert_eq!(balancer.get("/metrics").0, 401);
}

#[test]
fn what_is_not_the_api_is_refused_as_json() {
    let balancer = Balancer::start(&two_members(), None);
    let kind = |answer: (u16, String)| {
        let body: Value = serde_json::from_str(&answer.1).expect(&answer.1);
        (answer.0, body["error"].as_str().unwrap().to_owned())
    };
    let long = "x".repeat(100_000);
    for (head, body, status, error) in [
        (
            "GET /v2/status HTTP/1.1\r\nHost: localhost",
            "",
            404,
            "no_such_path",
        ),
        // The name of one address of a host name has a slash.
        (
            "GET /v1/groups/web/members/a%2Fb HTTP/1.1\r\nHost: localhost",
            "",
            404,
            "unknown_member",
        ),
        (
            "GET /v1/groups/%ff HTTP/1.1\r\nHost: localhost",
            "",
            400,
            "bad_request",
        ),
        (
            "GET /v1/status HTTP/1.1\r\nHost: evil.example",
            "",
            403,
            "wrong_host",
        ),
        (
            "PUT /v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json",
            "",
            405,
            "wrong_method",
        ),
        (
            "POST /v1/reload HTTP/1.1\r\nHost: localhost",
            "",
            415,
            "wrong_content_type",
        ),
        (
            "PUT /v1/rules/web/enabled HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json",
            &long,
            413,
            "too_large",
        ),
    ] {
        let length = body.len();
        let answer = balancer.raw(&format!(
            "{head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        ));
        assert_eq!(kind(answer), (status, error.to_owned()), "{head}");
    }
}

/// A server that says hello to everybody and closes.
struct Backend {
    address: SocketAddr,
}

impl Backend {
    fn start() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = stream.and_then(|mut stream| stream.write_all(b"hello"));
            }
        });
        Backend { address }
    }
}

/// Makes a connection through the balancer, and waits until its end is counted.
fn visit(balancer: &Balancer) {
    let closed = || {
        let totals = balancer.proxy.metrics().rule_totals();
        totals
            .get("web")
            .map_or(0, |totals| totals.connections_closed)
    };
    let before = closed();
    let status = balancer.sources.manager.status();
    let mut stream = TcpStream::connect(&status.rules[0].listen[0]).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(100);
    while closed() == before {
        assert!(
            Instant::now() < deadline,
            "the connection's end was never counted"
        );
        std::thread::yield_now();
    }
}

#[test]
fn the_api_is_as_it_is_described() {
    let balancer = Balancer::start(&["127.0.0.1:1".parse().unwrap()], None);
    let (status, text) = balancer.get("/v1/openapi.json");
    assert_eq!(status, 200);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let named = |path: &str| {
        path.replace("{group}", "web")
            .replace("{member}", "127.0.0.1:1")
            .replace("{revision}", "none")
            .replace("{rule}", "web")
    };
    let mut seen = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let answer = &operation["responses"]["200"]["content"];
            assert!(answer.is_object(), "{method} {path}");
            assert!(operation["summary"].is_string(), "{method} {path}");
            let of_json = &answer["application/json"]["schema"];
            if method != "get" || of_json.is_null() || path.contains("{revision}") {
                continue;
            }
            let (status, text) = balancer.get(&named(path));
            assert!(matches!(status, 200 | 503), "{path}: {status} {text}");
            let wanted = match status {
                200 => of_json.clone(),
                _ => json!({ "$ref": "#/components/schemas/Error" }),
            };
            let given: Value = serde_json::from_str(&text).unwrap();
            let schema = json!({ "components": document["components"], "allOf": [wanted] });
            let validator = jsonschema::validator_for(&schema).unwrap();
            let wrong: Vec<String> = validator
                .iter_errors(&given)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert!(wrong.is_empty(), "{path}: {wrong:#?}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}

/// Answers that are described without a form would be accepted whatever they are.
#[test]
fn descriptions_refuse_what_is_not_so() {
    let balancer = Balancer::start(&["127.0.0.1:1".parse().unwrap()], None);
    let document: Value = serde_json::from_str(&balancer.get("/v1/openapi.json").1).unwrap();
    let wanted = &document["paths"]["/v1/groups/{group}"]["get"]["responses"]["200"];
    let wanted = &wanted["content"]["application/json"]["schema"];
    let schema = json!({ "components": document["components"], "allOf": [wanted] });
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut group: Value = serde_json::from_str(&balancer.get("/v1/groups/web").1).unwrap();
    assert!(validator.is_valid(&group));
    group["members"][0]["weight"] = json!("heavy");
    assert!(!validator.is_valid(&group));
    group["members"] = Value::Null;
    assert!(!validator.is_valid(&group));
}

/// Returns a balancer with the users anna (administer, `secret`), olga (operate, a token) and vera (view, a
/// token), and the folder of its files.
fn with_users(change: impl FnOnce(&mut Admin)) -> (Balancer, PathBuf, [String; 2]) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let unique = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder =
        std::env::temp_dir().join(format!("evenkeel-login-{}-{unique}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("users");
    let line = "anna:administer:$2y$04$eOnKaXwwoXrWN2nnApD3l.ljv56/.n/6aNhVUC3NuZgmfJiewvCIy\n";
    std::fs::write(&path, line).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = UsersFile(&path);
    let tokens = [("olga", Role::Operate), ("vera", Role::View)]
        .map(|(name, role)| file.set_token(name, role).unwrap());
    let first = format!("[admin]\nusers_file = {path:?}\n");
    let balancer = Balancer::start_as(&["127.0.0.1:1".parse().unwrap()], &first, |admin| {
        admin.users_file = Some(path.clone().into());
        change(admin);
    });
    (balancer, folder, tokens)
}

impl Balancer {
    /// Sends a request with these fields; answers status, head and body.
    fn ask(&self, line: &str, fields: &[&str], body: &str) -> (u16, String, String) {
        let mut request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        for field in fields {
            request += &format!("{field}\r\n");
        }
        request += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    /// Logs anna in: the fields of her requests, first the cookie, then what changes need.
    fn log_in(&self) -> [String; 2] {
        let (status, head, body) = self.ask(
            "POST /v1/login",
            &[JSON],
            r#"{"user": "anna", "password": "secret"}"#,
        );
        assert_eq!(status, 200, "{body}");
        let cookie = head
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "))
            .unwrap();
        for part in [
            "; HttpOnly",
            "; SameSite=Strict",
            "; Path=/",
            "; Max-Age=43200",
        ] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&answer["user"], &answer["role"]),
            (&json!("anna"), &json!("administer"))
        );
        let cookie = cookie.split(';').next().unwrap();
        let csrf = answer["csrf"].as_str().unwrap();
        [
            format!("Cookie: a=b; {cookie}"),
            format!("X-Csrf-Token: {csrf}"),
        ]
    }
}

const JSON: &str = "Content-Type: application/json";

#[test]
fn users_log_in_and_out() {
    let (balancer, _folder, _) = with_users(|_| ());
    let session = |fields: &[&str]| -> Value {
        let (status, _, body) = balancer.ask("GET /v1/session", fields, "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    let nobody = json!({ "user": null, "role": null, "csrf": null, "login": true, "free": false });
    assert_eq!(session(&[]), nobody);
    assert_eq!(balancer.ask("GET /v1/status", &[], "").0, 401);
    assert_eq!(balancer.ask("GET /nothing", &[], "").0, 401);
    assert_eq!(balancer.ask("GET /healthz", &[], "").0, 200);

    let wrong = r#"{"user": "anna", "password": "Secret"}"#;
    let (status, _, body) = balancer.ask("POST /v1/login", &[JSON], wrong);
    assert_eq!(status, 401);
    assert!(body.contains("wrong_login"), "{body}");
    // A form of another site cannot log anybody in.
    assert_eq!(balancer.ask("POST /v1/login", &[], wrong).0, 415);
    let origin = "Origin: http://evil.example";
    assert_eq!(
        balancer.ask("POST /v1/login", &[JSON, origin], wrong).0,
        403
    );

    let [cookie, csrf] = balancer.log_in();
    assert_eq!(session(&[&cookie])["user"], "anna");
    assert_eq!(balancer.ask("GET /v1/status", &[&cookie], "").0, 200);
    let drain = r#"{"state": "drain"}"#;
    let path = "PUT /v1/groups/web/members/127.0.0.1:1/state";
    let (status, _, body) = balancer.ask(path, &[&cookie, JSON], drain);
    assert_eq!(
        status, 403,
        "without its second secret a session changes nothing"
    );
    assert!(body.contains("wrong_csrf_token"), "{body}");
    assert_eq!(
        balancer
            .ask(path, &[&cookie, JSON, "X-Csrf-Token: x"], drain)
            .0,
        403
    );
    assert_eq!(balancer.ask(path, &[&cookie, JSON, &csrf], drain).0, 200);

    assert_eq!(
        balancer
            .ask("POST /v1/logout", &[&cookie, JSON, &csrf], "")
            .0,
        200
    );
    assert_eq!(session(&[&cookie]), nobody);
    assert_eq!(balancer.ask("GET /v1/status", &[&cookie], "").0, 401);
}

#[test]
fn m10_a_client_logs_in_with_a_password_and_out_again() {
    let (balancer, folder, [_, vera]) = with_users(|_| ());
    let as_anna = |password| balancer.client().with_login("anna", password);
    let weight = |client: &Client| {
        let path = ["v1", "groups", "web", "members", "127.0.0.1:1", "weight"];
        client.put_resource::<Done>(&path, &json!({ "weight": 2 }))
    };
    let client = as_anna("secret");
    assert!(weight(&client).is_ok(), "changes carry the second secret");
    // Her session ends with her line; the next request opens another one.
    let path = folder.join("users");
    let users = std::fs::read_to_string(&path).unwrap();
    let other = users.replace("anna:administer:", "anna:operate:");
    std::fs::write(&path, other).unwrap();
    let reloaded = client.post_resource::<Reloaded>(&["v1", "reload"], &json!({}));
    assert!(reloaded.is_ok(), "{reloaded:?}");
    assert!(weight(&client).is_ok());
    let reload = client.post_resource::<Reloaded>(&["v1", "reload"], &json!({}));
    assert_eq!(refusal(reload).0, 403, "with her new role");
    drop(client);

    let (_, _, body) = balancer.ask(
        "GET /v1/audit",
        &[&format!("Authorization: Bearer {vera}")],
        "",
    );
    let audit: Vec<Value> = serde_json::from_str(&body).unwrap();
    let paths: Vec<_> = audit
        .iter()
        .rev()
        .map(|entry| entry["path"].as_str().unwrap().rsplit('/').next().unwrap())
        .collect();
    let wanted = [
        "login", "weight", "reload", "login", "weight", "reload", "logout",
    ];
    assert_eq!(paths, wanted);

    // A wrong password is sent once, whatever is asked afterwards: it locks nobody out.
    let wrong = as_anna("Secret");
    for _ in 0..20 {
        assert_eq!(refusal(weight(&wrong)), (401, "wrong_login".into()));
    }
    assert!(weight(&as_anna("secret")).is_ok());
    assert!(!format!("{wrong:?}").contains("Secret"));
}

#[test]
fn m10_who_logs_in_where_there_are_no_users_is_told() {
    let balancer = Balancer::start(&two_members(), None);
    let client = balancer.client().with_login("anna", "secret");
    let status = client.get::<Status>(&["v1", "status"], &[]);
    assert_eq!(refusal(status), (404, "no_users".into()));
}

#[test]
fn roles_are_kept() {
    let (balancer, _folder, [olga, vera]) = with_users(|_| ());
    let (olga, vera) = (
        format!("Authorization: Bearer {olga}"),
        format!("Authorization: Bearer {vera}"),
    );
    let change = |fields: &[&str]| {
        let mut fields = fields.to_vec();
        fields.push(JSON);
        let path = "PUT /v1/groups/web/members/127.0.0.1:1/weight";
        balancer.ask(path, &fields, r#"{"weight": 2}"#).0
    };
    let reload = |fields: &[&str]| {
        let mut fields = fields.to_vec();
        fields.push(JSON);
        balancer.ask("POST /v1/reload", &fields, "").0
    };
    assert_eq!(balancer.ask("GET /v1/status", &[&vera], "").0, 200);
    assert_eq!((change(&[&vera]), reload(&[&vera])), (403, 403));
    assert_eq!((change(&[&olga]), reload(&[&olga])), (200, 403));
    assert_eq!(change(&["Authorization: Bearer nobodys"]), 401);
    let [cookie, csrf] = balancer.log_in();
    assert_eq!(
        (change(&[&cookie, &csrf]), reload(&[&cookie, &csrf])),
        (200, 200)
    );

    let (_, _, body) = balancer.ask("GET /v1/audit", &[&vera], "");
    let audit: Vec<Value> = serde_json::from_str(&body).unwrap();
    let seen: Vec<_> = audit
        .iter()
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            (
                text("user"),
                text("path"),
                entry["status"].as_u64().unwrap(),
            )
        })
        .rev()
        .collect();
    let weight = "/v1/groups/web/members/127.0.0.1:1/weight";
    let wanted = [
        ("vera", weight, 403),
        ("vera", "/v1/reload", 403),
        ("olga", weight, 200),
        ("olga", "/v1/reload", 403),
        ("anna", "/v1/login", 200),
        ("anna", weight, 200),
        ("anna", "/v1/reload", 200),
    ];
    assert_eq!(
        seen,
        wanted.map(|(user, path, status)| (user.to_owned(), path.to_owned(), status))
    );
    assert_eq!(audit.last().unwrap()["what"], r#"{"weight": 2}"#);
    assert_eq!(audit[2]["what"], r#"login of "anna""#, "and no password");
}

#[test]
fn changes_are_written_down_before_they_are_answered() {
    let mut file = PathBuf::new();
    let (balancer, folder, [olga, _]) = with_users(|admin| {
        file = admin
            .users_file
            .as_ref()
            .unwrap()
            .path
            .with_file_name("audit.log");
        admin.audit_log = Some(file.clone());
    });
    let olga = format!("Authorization: Bearer {olga}");
    let path = "PUT /v1/groups/web/members/127.0.0.1:1/weight";
    for (number, weight) in ["2", "3", "x"].into_iter().enumerate() {
        balancer.ask(path, &[&olga, JSON], &format!("{{\"weight\": {weight}}}"));
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), number + 1);
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["user"], "olga");
        assert_eq!(last["from"], "127.0.0.1");
        assert_eq!(last["status"], if weight == "x" { 422 } else { 200 });
    }
    // It is moved away, as programs that rotate logs do.
    std::fs::rename(&file, folder.join("old")).unwrap();
    balancer.ask(path, &[&olga, JSON], "{}");
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1);
}

#[test]
fn n8_who_is_not_logged_in_writes_little() {
    let mut file = PathBuf::new();
    let (balancer, _folder, _) = with_users(|admin| {
        file = admin
            .users_file
            .as_ref()
            .unwrap()
            .path
            .with_file_name("audit.log");
        admin.audit_log = Some(file.clone());
    });
    let [cookie, csrf] = balancer.log_in();
    let body = format!("{{\"x\": \"{}\"}}", "x".repeat(3000));
    for _ in 0..20 {
        assert_eq!(balancer.ask("POST /v1/logout", &[JSON], &body).0, 200);
        let login = format!(r#"{{"user": "{}", "password": "x"}}"#, "secret".repeat(20));
        let status = balancer.ask("POST /v1/login", &[JSON], &login).0;
        assert!(status == 401 || status == 429, "{status}");
    }
    let fields = [&*cookie, &*csrf, JSON];
    assert_eq!(balancer.ask("POST /v1/logout", &fields, &body).0, 200);
    let text = std::fs::read_to_string(&file).unwrap();
    let entries = text.lines().map(|line| {
        let entry: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        (text("user"), text("path"), text("what"))
    });
    let wanted = [
        ("anna", "/v1/login", r#"login of "anna""#),
        ("", "/v1/login", "login of an unknown user"),
        ("anna", "/v1/logout", ""),
    ];
    let wanted = wanted.map(|(user, path, what)| (user.into(), path.into(), what.into()));
    assert_eq!(entries.collect::<Vec<_>>(), wanted);
}

#[test]
fn too_many_wrong_passwords_lock_an_address_out() {
    let (balancer, _folder, _) = with_users(|_| ());
    let login = |password: &str| {
        let body = format!(r#"{{"user": "anna", "password": "{password}"}}"#);
        balancer.ask("POST /v1/login", &[JSON], &body)
    };
    for _ in 0..5 {
        assert_eq!(login("wrong").0, 401);
    }
    let (status, head, body) = login("secret");
    assert_eq!(status, 429, "{body}");
    assert!(head.contains("retry-after: 10"), "{head}");
    assert!(body.contains("locked_out"), "{body}");
}

#[test]
fn local_access_is_free_where_it_is_set() {
    let (balancer, _folder, _) = with_users(|admin| admin.local_access = true);
    assert_eq!(balancer.ask("GET /v1/status", &[], "").0, 200);
    let (_, _, session) = balancer.ask("GET /v1/session", &[], "");
    assert!(
        session.contains(r#""user":"local""#) && session.contains(r#""free":true"#),
        "{session}"
    );
    let request = "GET /v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(
        balancer.raw(request).0,
        401,
        "a name that was bound to loopback"
    );
    let forwarded = "X-Forwarded-For: 192.0.2.1";
    assert_eq!(balancer.ask("GET /v1/status", &[forwarded], "").0, 403);
}

#[test]
fn users_change_with_a_reload() {
    let (balancer, folder, [_, vera]) = with_users(|_| ());
    let [cookie, csrf] = balancer.log_in();
    let vera = format!("Authorization: Bearer {vera}");
    let reload = || balancer.ask("POST /v1/reload", &[&cookie, &csrf, JSON], "");
    let path = folder.join("users");
    UsersFile(&path).remove("vera").unwrap();
    assert_eq!(
        balancer.ask("GET /v1/status", &[&vera], "").0,
        200,
        "not before the reload"
    );
    assert_eq!(reload().0, 200);
    assert_eq!(balancer.ask("GET /v1/status", &[&vera], "").0, 401);

    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{good}bert:boss:x\n")).unwrap();
    let (status, _, body) = reload();
    // The users of before stay, and everybody is told.
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("users:3: the role is none of"), "{body}");
    std::fs::write(&path, good).unwrap();
    UsersFile(&path)
        .set_password("anna", Role::View, "another one")
        .unwrap();
    assert_eq!(reload().0, 200);
    assert_eq!(
        balancer.ask("GET /v1/status", &[&cookie], "").0,
        401,
        "her session is over"
    );
}

#[test]
fn nothing_but_the_login_page_is_shown_without_a_session() {
    let (balancer, _folder, _) = with_users(|_| ());
    let (status, head, _) = balancer.ask("GET /", &[], "");
    assert_eq!(status, 303);
    assert!(head.contains("location: /console/"), "{head}");
    for path in ["/console/", "/console/groups/web"] {
        let (status, head, _) = balancer.ask(&format!("GET {path}"), &[], "");
        assert_eq!(status, 303, "{path}");
        assert!(head.contains("location: /login/"), "{head}");
    }
    assert_eq!(balancer.ask("GET /console/assets/x.js", &[], "").0, 401);
    let (status, head, body) = balancer.ask("GET /login/", &[], "");
    assert!(
        head.contains("content-security-policy: default-src 'none'; script-src 'self'"),
        "{head}"
    );
    assert!(!head.contains("unsafe"), "{head}");
    let [cookie, _] = balancer.log_in();
    let (page, _, console) = balancer.ask("GET /console/", &[&cookie], "");
    match evenkeel_console::is_there() {
        true => {
            assert_eq!((status, page), (200, 200));
            for text in [body, console] {
                assert!(
                    !text.contains("<style")
                        && !text.contains(" style=")
                        && !text.contains("<script>"),
                    "{text}"
                );
            }
            assert_eq!(
                balancer
                    .ask("GET /console/assets/nothing.js", &[&cookie], "")
                    .0,
                404
            );
            assert_eq!(
                balancer.ask("GET /login/../console/index.html", &[], "").0,
                404
            );
        }
        false => {
            assert_eq!((status, page), (404, 404));
            assert!(console.contains("make console"), "{console}");
        }
    }
    let (other, _folder, _) = with_users(|admin| admin.console = false);
    let [cookie, _] = other.log_in();
    assert_eq!(other.ask("GET /console/", &[&cookie], "").0, 404);
}

/// Makes a balancer whose group `shop` has a member `s1` and one without a name.
fn with_names() -> Balancer {
    let shop = "[rule.shop]\nlisten = \"127.0.0.1:0\"\nprotocol = \"tcp\"\nstrategy = \"random\"\n\
                slow_start = \"0s\"\nhealth_check = false\n\
                members = [{ address = \"127.0.0.1:1\", name = \"s1\" }, \"127.0.0.1:2\"]\n";
    Balancer::start_as(&two_members(), shop, |_| {})
}

#[test]
fn g6_paths_take_the_name_of_a_member_or_its_address() {
    let balancer = with_names();
    let client = balancer.client();
    for (place, name) in ["127.0.0.1:1", "s1"].into_iter().enumerate() {
        let path = ["v1", "groups", "shop", "members", name];
        let put = |what: &str, body: Value| {
            let mut path = path.to_vec();
            path.push(what);
            let _: Done = client.put_resource(&path, &body).unwrap();
        };
        let weight = place as f64 + 2.0;
        put("weight", json!({ "weight": weight }));
        put("backup", json!({ "backup": place == 0 }));
        put("state", json!({ "state": "drain" }));
        let member: Value = client.get(&path, &[]).unwrap();
        let told = ["name", "member", "address", "admin"].map(|key| member[key].as_str());
        let address = Some("127.0.0.1:1");
        assert_eq!(told, [Some("s1"), address, address, Some("drain")]);
        assert_eq!(
            (&member["weight"], &member["backup"]),
            (&json!(weight), &json!(place == 0))
        );
        put("state", json!({ "state": "ready" }));
        // Nobody listens there, which is an answer.
        let checked: Value = client
            .post_resource(
                &["v1", "groups", "shop", "members", name, "check"],
                &json!({}),
            )
            .unwrap();
        assert_eq!(checked["ok"], false);
        let query = [("group", "shop"), ("member", name)];
        let _: Value = client.get(&["v1", "history"], &query).unwrap();
    }
    let plain: Value = client
        .get(&["v1", "groups", "shop", "members", "127.0.0.1:2"], &[])
        .unwrap();
    assert_eq!(
        (&plain["name"], &plain["member"]),
        (&json!("127.0.0.1:2"), &json!("127.0.0.1:2"))
    );
    let unknown = client.get::<Value>(&["v1", "groups", "shop", "members", "s2"], &[]);
    let Err(ClientError::Refused { status: 404, body }) = unknown else {
        panic!("{unknown:?}");
    };
    assert_eq!(body.allowed, ["s1", "127.0.0.1:2"]);
    let body = json!({
        "strategies": [{ "name": "random" }], "rate": 10, "requests": 1000,
        "members": [
            { "name": "s1", "mean_ms": 1, "concurrency": 4 },
            { "name": "127.0.0.1:2", "mean_ms": 1, "concurrency": 4 },
        ],
    });
    let simulated: Value = client
        .post_resource(&["v1", "groups", "shop", "simulate"], &body)
        .unwrap();
    assert_eq!(simulated["results"][0]["shares"][0]["member"], "s1");

    // A member that is out is named in each decision.
    let path = ["v1", "groups", "shop", "members", "s1", "state"];
    let _: Done = client
        .put_resource(&path, &json!({ "state": "drain" }))
        .unwrap();
    let explained: Explain = client
        .get(&["v1", "groups", "shop", "explain"], &[])
        .unwrap();
    let candidates = explained.next.candidates.iter().map(|of| &*of.member);
    assert!(candidates.clone().any(|of| of == "s1"), "{explained:?}");
    assert!(
        candidates.clone().all(|of| of != "127.0.0.1:1"),
        "{explained:?}"
    );
}

#[test]
fn g6_commands_take_and_show_the_name_of_a_member() {
    let balancer = with_names();
    let ctl = crate::ctl::Ctl {
        client: balancer.client(),
        json: false,
    };
    let drain = |name: &str| {
        let member = crate::command::Member::new("shop", name);
        ctl.send_command(&crate::command::Command::State(member, AdminState::Drain))
    };
    assert_eq!(drain("s1").unwrap(), "s1 in shop drains\n");
    assert_eq!(
        drain("127.0.0.1:1").unwrap(),
        "127.0.0.1:1 in shop drains\n"
    );
    let message = drain("s2").unwrap_err().to_string();
    assert!(message.contains("allowed: s1, 127.0.0.1:2"), "{message}");
    let table = ctl.list_members(Some("shop")).unwrap();
    let line = table.lines().find(|line| line.starts_with("s1 ")).unwrap();
    assert!(
        line.contains("draining") && line.contains("127.0.0.1:1"),
        "{table}"
    );
    let explained = ctl.explain_decision("shop", None).unwrap();
    assert!(explained.contains(" s1 "), "{explained}");
    let checked = ctl.check_member("shop", "s1").unwrap();
    assert!(checked.starts_with("s1 in shop is not well"), "{checked}");
}
