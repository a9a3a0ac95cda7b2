//! Members that are endpoints of a service of Kubernetes: the API server is a scripted one, and in one test `kube-apiserver`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{Ipv6Addr, TcpListener};

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::kubernetes::{ApiServer, Condition, Mood, RealServer, own_address};
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::json;

use Condition::{Ready, Terminating, Unready};

const HOST: &str = "127.0.0.1";

const CONFIG: &str = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
    [kubernetes]\nkubeconfig = \"kubeconfig\"\n\
    [rule.web]\nlisten = \"127.0.0.1:0\"\nstrategy = \"round_robin\"\nqueue_timeout = \"30s\"\n\
    members = [{ kubernetes = \"shop/web:http\" }]\n\
    allowed_networks = [\"127.0.0.1/32\"]\n";

/// A member that answers with its name.
fn named(name: &'static str) -> Member {
    Member::answering_with(move |_| ok_response(name))
}

fn port(member: &Member) -> u16 {
    member.address().port()
}

fn start(server: &ApiServer) -> Balancer {
    start_with(server, CONFIG)
}

fn start_with(server: &ApiServer, config: &str) -> Balancer {
    Balancer::start_with(config, |folder| {
        folder.write("kubeconfig", server.kubeconfig());
        folder.write_private("token", "first");
    })
}

/// Names of the members that answer; a request that fails ends the test.
fn names(balancer: &Balancer) -> BTreeSet<String> {
    let ask = |_| {
        let mut wire = balancer.connect();
        wire.send("GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
        let answer = wire.read_response();
        assert_eq!(answer.second_word(), "200", "{}", answer.head);
        answer.text().to_owned()
    };
    (0..4).map(ask).collect()
}

fn wait_for_names(balancer: &Balancer, wanted: &[&str]) {
    let wanted: BTreeSet<String> = wanted.iter().map(|&name| name.to_owned()).collect();
    wait_until(&format!("{wanted:?} answer"), || names(balancer) == wanted);
}

fn count(balancer: &Balancer, metric: &str) -> f64 {
    let series = format!("evenkeel_kubernetes_{metric}{{service=\"shop/web\"}}");
    balancer.read_metric(&series).unwrap_or_default()
}

#[test]
fn members_are_the_endpoints_of_all_slices() {
    let server = ApiServer::start();
    let (a, b) = (named("a"), named("b"));
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    let balancer = start(&server);
    wait_for_names(&balancer, &["a"]);
    server.set_slice("web-2", port(&b), &[(HOST, Ready)]);
    wait_for_names(&balancer, &["a", "b"]);

    // An endpoint that ends is drained: what it has begun goes on.
    let mut wires: Vec<Wire> = (0..2).map(|_| balancer.connect()).collect();
    for wire in &mut wires {
        wire.send("GET / HTTP/1.1\r\nHost: web\r\n\r\n");
        wire.read_response();
    }
    server.set_slice("web-2", port(&b), &[(HOST, Terminating)]);
    wait_for_names(&balancer, &["a"]);
    let services = balancer.admin_json("/v1/kubernetes");
    let of_port = &services[0]["ports"][0];
    assert_eq!(
        (&of_port["members"], &of_port["draining"]),
        (&2.into(), &1.into()),
        "{services}"
    );
    // All end: those that still serve are better than none.
    server.set_slice("web-1", port(&a), &[(HOST, Unready)]);
    wait_for_names(&balancer, &["b"]);
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    wait_for_names(&balancer, &["a"]);
    server.delete_slice("web-2");
    wait_until("the slice is gone", || {
        balancer.admin_json("/v1/kubernetes")[0]["ports"][0]["members"] == 1
    });
    let said = balancer.run_ctl("kubernetes").unwrap();
    assert!(said.contains("shop/web"), "{said}");

    // Whoever writes slices cannot have the balancer connect to any address.
    server.set_slice("web-3", port(&b), &[("127.0.0.2", Ready)]);
    wait_until("the address is refused", || {
        let refused = balancer.status()["groups"][0]["refused"].to_string();
        refused.contains("127.0.0.2") && refused.contains("allowed_networks")
    });
    assert_eq!(names(&balancer), BTreeSet::from(["a".to_owned()]));

    // Documented metrics are there.
    let page = balancer.admin_get("/metrics");
    let manual = include_str!("../../../docs/admin-api.md").lines();
    let documented = manual.filter_map(|line| line.strip_prefix("| `evenkeel_kubernetes_"));
    let documented: Vec<&str> = documented.filter_map(|row| row.split('`').next()).collect();
    assert!(documented.len() >= 6, "{documented:?}");
    for name in documented {
        let family = format!("# TYPE evenkeel_kubernetes_{name} ");
        assert!(page.text().contains(&family), "{name}");
    }
}

#[test]
fn endpoints_of_both_families_are_used_by_zones_and_hints() {
    let server = ApiServer::start();
    let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let near = Member::start_at(v6, |script, mut wire| {
        while script.read_request(&mut wire).is_some() {
            wire.send(ok_response("near"));
        }
    });
    let far = named("far");
    server.set_slice("web-ipv6", port(&near), &[("::1", Ready)]);
    server.set_zone("web-ipv6", "north", None);
    server.set_slice("web-ipv4", port(&far), &[(HOST, Ready)]);
    server.set_zone("web-ipv4", "south", None);
    let config = CONFIG
        .replace("[admin]", "[node]\nzone = \"north\"\n[admin]")
        .replace("[\"127.0.0.1/32\"]", "[\"127.0.0.1/32\", \"::1/128\"]");
    let balancer = start_with(&server, &config);
    wait_for_names(&balancer, &["near"]);
    // Hints take the place of zones.
    server.set_zone("web-ipv4", "south", Some("north"));
    server.set_zone("web-ipv6", "north", Some("south"));
    wait_for_names(&balancer, &["far"]);
    server.set_zone("web-ipv6", "north", Some("north"));
    wait_for_names(&balancer, &["near", "far"]);
    server.set_slice("web-ipv4", port(&far), &[]);
    wait_for_names(&balancer, &["near"]);
    // The only endpoint is in another zone: it is better than none.
    server.set_zone("web-ipv6", "south", None);
    let zone = || balancer.status()["groups"][0]["members"][0]["zone"].clone();
    wait_until("the zone has changed", || zone() == "south");
    assert_eq!(names(&balancer), BTreeSet::from(["near".to_owned()]));
}

#[test]
fn watches_go_on_where_the_last_one_ended_and_lists_begin_anew_after_410() {
    let server = ApiServer::start();
    let (a, b) = (named("a"), named("b"));
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    server.set_slice("web-2", port(&b), &[(HOST, Unready)]);
    let balancer = start(&server);
    wait_for_names(&balancer, &["a"]);
    wait_until("there is a watch", || server.watch_count() == 1);
    // A bookmark is the version from now on.
    let version = server.send_bookmark().to_string();
    wait_until("the bookmark has come", || {
        balancer.admin_json("/v1/kubernetes")[0]["version"] == *version
    });
    server.compact();
    wait_until("the watch is a new one", || {
        count(&balancer, "watches_total") >= 2.0 && server.watch_count() == 1
    });
    // Pages of one slice each.
    let questions = server.questions();
    let pages = questions.iter().filter(|of| of.contains("continue=1"));
    assert!(pages.count() >= 2, "{questions:#?}");
    server.set_slice("web-2", port(&b), &[(HOST, Ready)]);
    wait_for_names(&balancer, &["a", "b"]);
}

#[test]
fn an_error_ends_with_a_watch_that_works() {
    let server = ApiServer::start();
    let a = named("a");
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    let balancer = start(&server);
    wait_for_names(&balancer, &["a"]);
    server.set_mood(Mood::RefusingWatches);
    wait_until("the refusal is noted", || {
        let error = balancer.admin_json("/v1/kubernetes")[0]["error"].to_string();
        error.contains("429")
    });
    assert_eq!(count(&balancer, "up"), 0.0);
    let lists = count(&balancer, "lists_total");
    server.set_mood(Mood::Well);
    wait_until("there is a watch", || server.watch_count() == 1);
    server.send_bookmark();
    wait_until("the error is over", || count(&balancer, "up") == 1.0);
    assert_eq!(count(&balancer, "lists_total"), lists);
}

#[test]
fn members_stay_while_the_api_server_is_away_over_reloads_and_upgrades() {
    let server = ApiServer::start();
    let (a, b) = (named("a"), named("b"));
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    let mut balancer = start(&server);
    wait_for_names(&balancer, &["a"]);
    let pause = "Retry-After: 3600\r\n";
    for mood in [
        Mood::Away,
        Mood::Refusing(500, String::new()),
        Mood::Refusing(403, String::new()),
    ] {
        server.set_mood(mood);
        let failures = count(&balancer, "failures_total");
        wait_until("the balancer notes the failure", || {
            count(&balancer, "failures_total") > failures
        });
        assert_eq!(names(&balancer), BTreeSet::from(["a".to_owned()]));
    }
    balancer.reconfigure(&format!("# other\n{CONFIG}"));
    assert_eq!(names(&balancer), BTreeSet::from(["a".to_owned()]));
    balancer.upgrade().unwrap();
    assert_eq!(names(&balancer), BTreeSet::from(["a".to_owned()]));
    server.set_mood(Mood::Well);
    server.set_slice("web-2", port(&b), &[(HOST, Ready)]);
    wait_for_names(&balancer, &["a", "b"]);

    // A pause that the server asks for harms no client.
    let failures = count(&balancer, "failures_total");
    server.set_mood(Mood::Refusing(429, pause.into()));
    wait_until("the refusal is noted", || {
        let status = balancer.admin_json("/v1/kubernetes");
        let error = status[0]["error"].as_str().unwrap_or_default().to_owned();
        error.contains("429") && count(&balancer, "failures_total") > failures
    });
    assert_eq!(names(&balancer), ["a", "b"].map(str::to_owned).into());
}

#[test]
fn members_stay_while_the_api_server_is_silent() {
    let server = ApiServer::start();
    let (a, b) = (named("a"), named("b"));
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    let patience = "kubeconfig = \"kubeconfig\"\nsilence = \"1s\"";
    let config = CONFIG.replace("kubeconfig = \"kubeconfig\"", patience);
    let balancer = start_with(&server, &config);
    wait_for_names(&balancer, &["a"]);
    // A watch without a byte for that time has failed, and the slices are listed again.
    let lists = count(&balancer, "lists_total");
    wait_until("the balancer gives a silent watch up", || {
        count(&balancer, "failures_total") > 0.0 && count(&balancer, "lists_total") > lists
    });
    // A list without an answer fails, too.
    server.set_mood(Mood::Silent);
    wait_until("the balancer gives a silent list up", || {
        let status = balancer.admin_json("/v1/kubernetes");
        let error = status[0]["error"].as_str().unwrap_or_default().to_owned();
        error.contains("no answer")
    });
    assert_eq!(names(&balancer), BTreeSet::from(["a".to_owned()]));
    server.set_mood(Mood::Well);
    server.set_slice("web-2", port(&b), &[(HOST, Ready)]);
    wait_for_names(&balancer, &["a", "b"]);
    wait_until("the error is over", || count(&balancer, "up") == 1.0);
}

#[test]
fn a_balancer_starts_while_the_api_server_is_away() {
    let server = ApiServer::start();
    let a = named("a");
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    server.set_mood(Mood::Away);
    let balancer = start(&server);
    let mut wire = balancer.connect();
    wire.send("GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
    wait_until("the failure is noted", || {
        count(&balancer, "failures_total") > 0.0
    });
    server.set_mood(Mood::Well);
    wait_until("there is a watch", || server.watch_count() == 1);
    wait_for_names(&balancer, &["a"]);
}

#[test]
fn a_server_that_was_restored_from_a_backup_is_believed() {
    let server = ApiServer::start();
    let (a, b) = (named("a"), named("b"));
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    let balancer = start(&server);
    wait_for_names(&balancer, &["a"]);
    wait_until("there is a watch", || server.watch_count() == 1);
    server.restore(|server| server.set_slice("web-9", port(&b), &[(HOST, Ready)]));
    wait_for_names(&balancer, &["b"]);
}

#[test]
fn a_token_that_rotates_is_read_again() {
    let server = ApiServer::start();
    let (a, b) = (named("a"), named("b"));
    server.ask_for_token("first");
    server.set_slice("web-1", port(&a), &[(HOST, Ready)]);
    let balancer = start(&server);
    wait_for_names(&balancer, &["a"]);
    balancer.folder().write_private("token", "second");
    server.ask_for_token("second");
    server.set_slice("web-1", port(&b), &[(HOST, Ready)]);
    wait_for_names(&balancer, &["b"]);
}

#[test]
fn a_configuration_is_checked_without_an_api_server() {
    let folder = Folder::new();
    let path = folder.write("evenkeel.toml", CONFIG);
    let path = path.display().to_string();
    let said = run_evenkeel(&["check", &path]).unwrap_err();
    assert!(
        said.contains("evenkeel.toml:5") && said.contains("kubeconfig"),
        "{said}"
    );
    folder.write("kubeconfig", "clusters: [");
    let said = run_evenkeel(&["check", &path]).unwrap_err();
    assert!(said.contains("kubeconfig:2"), "{said}");
    // Nobody listens there.
    let server = ApiServer::start();
    server.set_mood(Mood::Away);
    folder.write("kubeconfig", server.kubeconfig());
    folder.write_private("token", "first");
    run_evenkeel(&["check", &path]).unwrap();
    fs::remove_file(folder.join("token")).unwrap();
    let said = run_evenkeel(&["check", &path]).unwrap_err();
    assert!(said.contains("token"), "{said}");
}

#[test]
fn kube_apiserver_is_followed_killed_and_started_again() {
    // The programs take ten minutes to build, so a run without them is no failure, but is said.
    let skip = |why: &str| {
        let _ = writeln!(std::io::stderr(), "SKIPPED: kube_apiserver: {why}");
    };
    let Some(ip) = own_address() else {
        return skip("this machine has loopback alone, where Kubernetes allows no endpoints");
    };
    let Some(mut server) = RealServer::start() else {
        return skip("no kube-apiserver in the cache: `make test-kubernetes` builds it");
    };
    let [a, b] = ["a", "b"].map(|name| {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        Member::start_at(listener, move |script, mut wire| {
            while script.read_request(&mut wire).is_some() && wire.try_send(ok_response(name)) {}
        })
    });
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } });
    server.send_object("POST", "/api/v1/namespaces", &namespace);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    });
    server.send_object("POST", "/api/v1/namespaces/shop/services", &service);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
    let slice = |member: &Member, name: &str, is_ready: bool| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": [ip], "conditions": { "ready": is_ready, "serving": true, "terminating": !is_ready } }],
            "ports": [{ "name": "http", "protocol": "TCP", "port": port(member) }],
        })
    };
    server.send_object("POST", slices, &slice(&a, "web-1", true));
    // A port is named by its number in the service.
    let config = CONFIG.replace("web:http", "web:80");
    let config = config.replace("allowed_networks = [\"127.0.0.1/32\"]\n", "");
    let mut balancer = Balancer::start_with(&config, |folder| {
        folder.write("kubeconfig", server.kubeconfig());
    });
    wait_for_names(&balancer, &["a"]);
    server.send_object("POST", slices, &slice(&b, "web-2", true));
    wait_for_names(&balancer, &["a", "b"]);
    server.send_object(
        "PUT",
        &format!("{slices}/web-1"),
        &slice(&a, "web-1", false),
    );
    wait_for_names(&balancer, &["b"]);

    server.kill();
    wait_until("the balancer notes that the server is away", || {
        count(&balancer, "failures_total") > 0.0
    });
    assert_eq!(names(&balancer), BTreeSet::from(["b".to_owned()]));
    balancer.upgrade().unwrap();
    assert_eq!(names(&balancer), BTreeSet::from(["b".to_owned()]));
    server.run();
    server.send_object("PUT", &format!("{slices}/web-1"), &slice(&a, "web-1", true));
    wait_for_names(&balancer, &["a", "b"]);
    server.send_object("DELETE", &format!("{slices}/web-2"), &json!({}));
    wait_for_names(&balancer, &["a"]);
}
