//! Members from many services of Kubernetes: services of a namespace, or of the cluster, share a watch. The API server is a
//! scripted one.

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::kubernetes::{ApiServer, Condition, Mood};
use evenkeel_e2e::wait_until;
use serde_json::Value;

use Condition::Ready;

/// Port of all endpoints.
const PORT: u16 = 8080;

/// A configuration with a group for each service; a port is its name or its number.
fn config(services: &[String], port: &str) -> String {
    let mut text = "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
        [kubernetes]\nkubeconfig = \"kubeconfig\"\n\
        [rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"g0\"\n"
        .to_owned();
    for (number, service) in services.iter().enumerate() {
        let members = format!("members = [{{ kubernetes = \"{service}:{port}\" }}]");
        text += &format!("[group.g{number}]\n{members}\n");
    }
    text
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn start(server: &ApiServer, config: &str) -> Balancer {
    Balancer::start_with(config, |folder| {
        folder.write("kubeconfig", server.kubeconfig());
        folder.write_private("token", "first");
    })
}

/// Status of a service; null if the balancer does not follow the service.
fn service(balancer: &Balancer, name: &str) -> Value {
    let services = balancer.admin_json("/v1/kubernetes");
    let mut services = services.as_array().into_iter().flatten();
    let found = services.find(|of| of["service"] == *name);
    found.cloned().unwrap_or_default()
}

/// Number of members of a service.
fn member_count(balancer: &Balancer, name: &str) -> Value {
    service(balancer, name)["ports"][0]["members"].clone()
}

fn wait_for_members(balancer: &Balancer, name: &str, count: usize) {
    wait_until(&format!("{name} has {count} members"), || {
        member_count(balancer, name) == count
    });
}

/// Sets the slice with the name of a service in the same namespace; the slice has as many endpoints.
fn set_endpoints(server: &ApiServer, service: &str, count: usize) {
    let name = service.rsplit('/').next().unwrap_or_default();
    let addresses: Vec<String> = (1..=count).map(|of| format!("10.7.0.{of}")).collect();
    let endpoints: Vec<_> = addresses.iter().map(|of| (&**of, Ready)).collect();
    server.set_slice_of(service, name, PORT, &endpoints);
}

/// Questions to the API server for a path, with a part of a query.
fn questions(server: &ApiServer, path: &str, part: &str) -> Vec<String> {
    let all = server.questions().into_iter();
    all.filter(|of| of.starts_with(path) && of.contains(part))
        .collect()
}

const SHOP_SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?";

#[test]
fn services_of_a_namespace_share_a_list_and_a_watch() {
    let server = ApiServer::start();
    server.set_page(100);
    let wanted: Vec<String> = (0..120).map(|number| format!("shop/s{number}")).collect();
    for service in &wanted {
        set_endpoints(&server, service, 1);
    }
    for number in 0..30 {
        set_endpoints(&server, &format!("shop/unwanted{number}"), 1);
    }
    let balancer = start(&server, &config(&wanted, &PORT.to_string()));
    wait_until("there is a watch", || server.watch_count() == 1);
    let services = balancer.admin_json("/v1/kubernetes");
    let services = services.as_array().unwrap();
    assert_eq!(services.len(), 120);
    for service in services {
        assert_eq!(service["ports"][0]["members"], 1, "{service}");
        assert_eq!(service["lists"], 1, "{service}");
    }
    let lists = questions(&server, SHOP_SLICES, "limit=");
    assert_eq!(lists.len(), 2, "{lists:#?}");
    assert_eq!(questions(&server, SHOP_SLICES, "watch=true").len(), 1);
    // The services that explain the numbers are listed, too, and not asked for one by one.
    let services = questions(&server, "/api/v1/namespaces/shop/services", "");
    assert_eq!(services.len(), 1, "{services:#?}");

    // An event is one of its service.
    set_endpoints(&server, "shop/unwanted3", 2);
    set_endpoints(&server, "shop/s7", 3);
    wait_for_members(&balancer, "shop/s7", 3);
    assert_eq!(service(&balancer, "shop/s7")["events"], 1);
    assert_eq!(service(&balancer, "shop/s8")["events"], 0);
    // All are listed again after a failure, with one list.
    server.set_mood(Mood::Away);
    set_endpoints(&server, "shop/s8", 2);
    server.set_mood(Mood::Well);
    wait_for_members(&balancer, "shop/s8", 2);
    let lists = questions(&server, SHOP_SLICES, "limit=");
    assert!(lists.len() >= 4, "{lists:#?}");
    assert!(lists.iter().all(|of| !of.contains("labelSelector")));
}

#[test]
fn a_service_that_is_wanted_later_is_listed_alone() {
    let server = ApiServer::start();
    for service in ["shop/a", "shop/b", "shop/c", "shop/d"] {
        set_endpoints(&server, service, 1);
    }
    let balancer = start(&server, &config(&names(&["shop/a", "shop/b"]), "http"));
    wait_until("there is a watch", || server.watch_count() == 1);
    // Few services are chosen by the server.
    let first = questions(&server, SHOP_SLICES, "limit=");
    let is_chosen = |of: &String| of.contains("in%20%28a%2Cb%29");
    assert!(first.iter().all(is_chosen), "{first:#?}");

    balancer.reconfigure(&config(&names(&["shop/a", "shop/b", "shop/c"]), "http"));
    assert_eq!(member_count(&balancer, "shop/c"), 1);
    let lists = questions(&server, SHOP_SLICES, "limit=");
    let [later] = &lists[first.len()..] else {
        panic!("{lists:#?}");
    };
    assert!(later.contains("in%20%28c%29"), "{later}");
    set_endpoints(&server, "shop/c", 2);
    wait_for_members(&balancer, "shop/c", 2);
    set_endpoints(&server, "shop/a", 3);
    wait_for_members(&balancer, "shop/a", 3);

    // A service that nobody wants any more is gone, and known anew when it is wanted again.
    balancer.reconfigure(&config(&names(&["shop/b", "shop/c"]), "http"));
    assert_eq!(service(&balancer, "shop/a"), Value::Null);
    set_endpoints(&server, "shop/a", 2);
    set_endpoints(&server, "shop/b", 4);
    wait_for_members(&balancer, "shop/b", 4);
    balancer.reconfigure(&config(&names(&["shop/b", "shop/c", "shop/a"]), "http"));
    assert_eq!(member_count(&balancer, "shop/a"), 2);
    server.delete_slice("a");
    wait_for_members(&balancer, "shop/a", 0);
    // All of this was in the first watch.
    assert_eq!(questions(&server, SHOP_SLICES, "watch=true").len(), 1);
    assert_eq!(server.watched_namespaces(), ["shop"]);

    // The API server is away when a service comes: the service is listed as soon as the server answers.
    server.set_mood(Mood::Away);
    balancer.reconfigure(&config(&names(&["shop/b", "shop/d"]), "http"));
    let status = service(&balancer, "shop/d");
    assert!(status["error"].is_string(), "{status}");
    assert_eq!(member_count(&balancer, "shop/b"), 4);
    server.set_mood(Mood::Well);
    wait_for_members(&balancer, "shop/d", 1);
    wait_until("the error is over", || {
        service(&balancer, "shop/d")["error"].is_null()
    });
}

#[test]
fn a_namespace_that_is_refused_harms_its_own_services() {
    let server = ApiServer::start();
    let services = names(&["shop/web", "bank/web"]);
    for service in &services {
        set_endpoints(&server, service, 1);
    }
    server.forbid("bank");
    let balancer = start(&server, &config(&services, "http"));
    wait_for_members(&balancer, "shop/web", 1);
    let is_refused = || {
        let error = service(&balancer, "bank/web")["error"].to_string();
        error.contains("403") && error.contains("forbidden")
    };
    wait_until("the refusal is told", is_refused);
    assert_eq!(service(&balancer, "shop/web")["error"], Value::Null);
    assert_eq!(server.watched_namespaces(), ["shop"]);

    server.allow_all();
    wait_for_members(&balancer, "bank/web", 1);
    // A right that is taken away leaves the last members.
    server.forbid("bank");
    wait_until("the refusal is told", is_refused);
    set_endpoints(&server, "bank/web", 2);
    set_endpoints(&server, "shop/web", 2);
    wait_for_members(&balancer, "shop/web", 2);
    assert_eq!(member_count(&balancer, "bank/web"), 1);
    assert_eq!(service(&balancer, "shop/web")["error"], Value::Null);
}

#[test]
fn with_gateways_the_cluster_has_one_watch_if_the_rights_allow() {
    let server = ApiServer::start();
    let services = names(&["shop/web", "bank/web"]);
    for service in &services {
        set_endpoints(&server, service, 1);
    }
    set_endpoints(&server, "other/web", 1);
    let config = config(&services, "http").replace("[rule.web]", "gateway = true\n[rule.web]");
    let balancer = start(&server, &config);
    for service in &services {
        wait_for_members(&balancer, service, 1);
    }
    wait_until("there is a watch", || server.watched_namespaces() == [""]);
    set_endpoints(&server, "bank/web", 2);
    wait_for_members(&balancer, "bank/web", 2);

    server.forbid("");
    wait_until("each namespace has a watch", || {
        let mut watched = server.watched_namespaces();
        watched.sort();
        watched == ["bank", "shop"]
    });
    set_endpoints(&server, "bank/web", 3);
    wait_for_members(&balancer, "bank/web", 3);
    let status = service(&balancer, "shop/web");
    assert_eq!(
        (&status["error"], &status["ports"][0]["members"]),
        (&Value::Null, &1.into())
    );

    // The same from the start on.
    let other = start(&server, &config);
    for (service, count) in [("shop/web", 1), ("bank/web", 3)] {
        wait_for_members(&other, service, count);
    }
    wait_until("each balancer has a watch of each namespace", || {
        server.watch_count() == 4
    });
}
