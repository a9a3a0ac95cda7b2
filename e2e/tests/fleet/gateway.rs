//! The controller of the Gateway API, with `kube-apiserver` and the CRDs of the Gateway API.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::kubernetes::{GatewayRelease, RealServer, gateway_crds, own_address};
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{run_curl, try_curl};
use evenkeel_e2e::server::address;
use evenkeel_e2e::tls::{Key, make_certificate};
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::ingress::events;

/// Returns a configuration with gateways that listen on an address.
pub(crate) fn config(ip: IpAddr) -> String {
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[kubernetes]\nkubeconfig = \"kubeconfig\"\n\
         [kubernetes.gateway]\ncontroller = \"example.org/edge\"\nlisten = \"{ip}\"\npublish = \"192.0.2.10\"\n"
    )
}

pub(crate) const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways";
pub(crate) const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes";
pub(crate) const POLICIES: &str =
    "/apis/gateway.networking.k8s.io/v1/namespaces/shop/backendtlspolicies";
pub(crate) const EVENKEEL_POLICIES: &str =
    "/apis/evenkeel.org/v1alpha1/namespaces/shop/evenkeelpolicies";
pub(crate) const UDP_ROUTES: &str =
    "/apis/gateway.networking.k8s.io/v1alpha2/namespaces/shop/udproutes";
pub(crate) const TCP_ROUTES: &str =
    "/apis/gateway.networking.k8s.io/v1alpha2/namespaces/shop/tcproutes";

/// A cluster with the Gateway API, the rights of the balancer, and the service `shop/web`.
pub(crate) struct Cluster {
    pub(crate) server: RealServer,
    pub(crate) ip: IpAddr,
}

impl Cluster {
    /// Starts a cluster; `None` if this machine cannot have one.
    pub(crate) fn start() -> Option<Self> {
        Self::start_release(GatewayRelease::Oldest)
    }

    /// Starts a cluster with the CRDs of a release.
    pub(crate) fn start_release(release: GatewayRelease) -> Option<Self> {
        // The programs take ten minutes to build, so a run without them is no failure, but is said.
        let skip = |why: &str| {
            let _ = writeln!(std::io::stderr(), "SKIPPED: gateway: {why}");
            None
        };
        let Some(ip) = own_address() else {
            return skip("this machine has loopback alone, where Kubernetes allows no endpoints");
        };
        let Some(crds) = gateway_crds(release) else {
            return skip(
                "no CRDs of the Gateway API in the cache: `make test-kubernetes` fetches them",
            );
        };
        let Some(server) = RealServer::start() else {
            return skip("no kube-apiserver in the cache: `make test-kubernetes` builds it");
        };
        for crd in crds {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            server.create_from_yaml(path, &crd);
        }
        let own = include_str!("../../../packaging/kubernetes/policy-crd.yaml");
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        server.create_from_yaml(path, own);
        let rights = include_str!("../../../packaging/kubernetes/gateway-rights.yaml");
        for document in rights.split("\n---\n") {
            let kind = document
                .lines()
                .find_map(|line| line.strip_prefix("kind: "));
            server.create_from_yaml(
                match kind.unwrap_or_default() {
                    "Namespace" => "/api/v1/namespaces",
                    "ServiceAccount" => "/api/v1/namespaces/evenkeel/serviceaccounts",
                    "ClusterRole" => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
                    "ClusterRoleBinding" => {
                        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
                    }
                    "Role" => "/apis/rbac.authorization.k8s.io/v1/namespaces/evenkeel/roles",
                    "RoleBinding" => {
                        "/apis/rbac.authorization.k8s.io/v1/namespaces/evenkeel/rolebindings"
                    }
                    other => panic!("{other}"),
                },
                document,
            );
        }
        wait_until("the API server has the kinds", || {
            [
                GATEWAYS,
                ROUTES,
                TCP_ROUTES,
                UDP_ROUTES,
                POLICIES,
                EVENKEEL_POLICIES,
            ]
            .iter()
            .all(|path| server.get_object(path).is_some())
        });
        let cluster = Cluster { server, ip };
        let shop =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } });
        cluster.create("/api/v1/namespaces", shop);
        let class = json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": { "name": "edge" },
            "spec": { "controllerName": "example.org/edge" },
        });
        cluster.create("/apis/gateway.networking.k8s.io/v1/gatewayclasses", class);
        Some(cluster)
    }

    pub(crate) fn create(&self, path: &str, object: Value) {
        self.server.send_object("POST", path, &object);
    }

    pub(crate) fn delete(&self, path: &str, name: &str) {
        self.server
            .send_object("DELETE", &format!("{path}/{name}"), &json!({}));
    }

    /// Creates a service of `shop` whose only endpoint is a member.
    pub(crate) fn serve(&self, name: &str, member: &Member) {
        self.serve_at(name, member.address().port(), "TCP");
    }

    /// Creates a service of `shop` whose only endpoint is a port of this machine.
    pub(crate) fn serve_at(&self, name: &str, port: u16, protocol: &str) {
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name },
            "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "protocol": protocol }] },
        });
        self.create("/api/v1/namespaces/shop/services", service);
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": format!("{name}-1"), "labels": { "kubernetes.io/service-name": name } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": [self.ip], "conditions": { "ready": true } }],
            "ports": [{ "name": "http", "protocol": protocol, "port": port }],
        });
        self.create(
            "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
            slice,
        );
    }

    /// A member that answers with its name, at an address that Kubernetes allows.
    pub(crate) fn member(&self, name: &'static str) -> Member {
        let Ok(listener) = TcpListener::bind((self.ip, 0)) else {
            panic!("no port is free at {}", self.ip);
        };
        Member::start_at(listener, move |script, mut wire| {
            while script.read_request(&mut wire).is_some() && wire.try_send(ok_response(name)) {}
        })
    }

    pub(crate) fn gateway(&self, name: &str, listeners: Value) {
        self.create(
            GATEWAYS,
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "Gateway",
                "metadata": { "name": name },
                "spec": { "gatewayClassName": "edge", "listeners": listeners },
            }),
        );
    }

    /// Creates a route of gateway `front` for a host.
    pub(crate) fn route(&self, name: &str, host: &str, rule: Value) {
        self.create(
            ROUTES,
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "HTTPRoute",
                "metadata": { "name": name },
                "spec": { "parentRefs": [{ "name": "front" }], "hostnames": [host], "rules": [rule] },
            }),
        );
    }

    /// Waits until an object has a condition: its type, status and reason, in the part of the status at `pointer`.
    pub(crate) fn wait_for_condition(&self, path: &str, pointer: &str, wanted: (&str, &str, &str)) {
        let (kind, status, reason) = wanted;
        wait_until(&format!("{path} has {wanted:?}"), || {
            let object = self.server.get_object(path).unwrap_or_default();
            let conditions = object.pointer(&format!("/status{pointer}/conditions"));
            let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
            conditions
                .any(|of| of["type"] == kind && of["status"] == status && of["reason"] == reason)
        });
    }
}

pub(crate) fn start(cluster: &Cluster, config: &str) -> Balancer {
    Balancer::start_with(config, |folder| {
        folder.write(
            "kubeconfig",
            cluster.server.kubeconfig_of("evenkeel", "evenkeel"),
        );
    })
}

/// Asks for a host at an address: the status, and the body.
pub(crate) fn ask_gateway(at: SocketAddr, host: &str) -> (String, String) {
    let answer = try_curl(&[
        "-w",
        "\n%{http_code}",
        "-H",
        &format!("Host: {host}"),
        &format!("http://{at}/"),
    ]);
    let text = String::from_utf8_lossy(&answer.stdout);
    let (body, code) = text.rsplit_once('\n').unwrap_or(("", ""));
    (code.to_owned(), body.to_owned())
}

pub(crate) fn wait_for_answer(at: SocketAddr, host: &str, wanted: (&str, &str)) {
    wait_until(&format!("{host} at {at} answers {wanted:?}"), || {
        let (code, body) = ask_gateway(at, host);
        code == wanted.0 && (wanted.1.is_empty() || body == wanted.1)
    });
}

fn to_service(name: &str) -> Value {
    json!({ "backendRefs": [{ "name": name, "port": 80 }] })
}

#[test]
fn a_gateway_serves_its_routes() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let (a, b) = (cluster.member("a"), cluster.member("b"));
    cluster.serve("a", &a);
    let at = address();
    let (ip, port) = (at.ip(), at.port());
    let config = config(ip);
    let balancer = start(&cluster, &config);
    let class = "/apis/gateway.networking.k8s.io/v1/gatewayclasses/edge";
    cluster.wait_for_condition(class, "", ("Accepted", "True", "Accepted"));
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": port, "protocol": "HTTP" }]),
    );
    let front = format!("{GATEWAYS}/front");
    cluster.wait_for_condition(&front, "", ("Programmed", "True", "Programmed"));
    let status = cluster.server.get_object(&front).unwrap()["status"].clone();
    assert_eq!(
        status["addresses"],
        json!([{ "type": "IPAddress", "value": "192.0.2.10" }])
    );
    cluster.route("a", "a.example", to_service("a"));
    wait_for_answer(at, "a.example", ("200", "a"));
    let accepted = ("Accepted", "True", "Accepted");
    cluster.wait_for_condition(&format!("{ROUTES}/a"), "/parents/0", accepted);
    assert_eq!(ask_gateway(at, "b.example").0, "404");
    wait_until("the route is counted", || {
        let status = cluster.server.get_object(&front).unwrap()["status"].clone();
        status["listeners"][0]["attachedRoutes"] == 1
    });

    // A route that is wrong is told, and harms nobody.
    cluster.route("lost", "lost.example", to_service("nothing"));
    let lost = format!("{ROUTES}/lost");
    cluster.wait_for_condition(
        &lost,
        "/parents/0",
        ("ResolvedRefs", "False", "BackendNotFound"),
    );
    wait_for_answer(at, "lost.example", ("500", ""));
    let unsupported = json!({ "matches": [{ "path": { "type": "RegularExpression", "value": "/(?=x)" } }],
                              "backendRefs": [{ "name": "a", "port": 80 }] });
    cluster.route("odd", "odd.example", unsupported);
    let odd = format!("{ROUTES}/odd");
    cluster.wait_for_condition(
        &odd,
        "/parents/0",
        ("Accepted", "False", "UnsupportedValue"),
    );
    for (name, reason) in [("lost", "RefsNotResolved"), ("odd", "NotAccepted")] {
        wait_until(&format!("an event about {name} says {reason}"), || {
            let found = events(&cluster, name);
            found
                .iter()
                .any(|(of, message)| of == reason && !message.is_empty())
        });
    }
    assert_eq!(events(&cluster, "a"), []);
    assert_eq!(ask_gateway(at, "a.example"), ("200".into(), "a".into()));
    // The configuration refuses the name of a cookie: only this route is left out.
    let bound = json!({ "sessionPersistence": { "sessionName": "a b" }, "backendRefs": [{ "name": "a", "port": 80 }] });
    cluster.route("bound", "bound.example", bound);
    let bound = format!("{ROUTES}/bound");
    cluster.wait_for_condition(
        &bound,
        "/parents/0",
        ("Accepted", "False", "UnsupportedValue"),
    );
    // A wildcard covers any number of labels.
    cluster.route("wild", "*.wild.example", to_service("a"));
    wait_for_answer(at, "x.y.wild.example", ("200", "a"));
    assert_eq!(ask_gateway(at, "a.example"), ("200".into(), "a".into()));
    assert_eq!(ask_gateway(at, "wild.example").0, "404");
    // The service comes later.
    cluster.serve("nothing", &b);
    wait_for_answer(at, "lost.example", ("200", "b"));
    cluster.wait_for_condition(
        &lost,
        "/parents/0",
        ("ResolvedRefs", "True", "ResolvedRefs"),
    );

    // A port that somebody else has harms only its gateway.
    let taken = TcpListener::bind((ip, 0)).unwrap();
    let other = taken.local_addr().unwrap().port();
    cluster.gateway(
        "taken",
        json!([{ "name": "http", "port": other, "protocol": "HTTP" }]),
    );
    let path = format!("{GATEWAYS}/taken");
    cluster.wait_for_condition(
        &path,
        "/listeners/0",
        ("Accepted", "False", "PortUnavailable"),
    );
    assert_eq!(ask_gateway(at, "a.example"), ("200".into(), "a".into()));
    cluster.delete(GATEWAYS, "taken");

    // A restart serves from the start; an upgrade and a lost API server change nothing.
    let mut balancer = balancer.replace(&config);
    let rule = balancer.address(&format!("kubernetes.{port}"));
    assert_eq!(rule, at);
    assert_eq!(ask_gateway(at, "a.example"), ("200".into(), "a".into()));
    cluster.server.kill();
    wait_until("the balancer notes that the server is away", || {
        let series = "evenkeel_gateway_up{kind=\"HTTPRoute\"}";
        balancer.read_metric(series) == Some(0.0)
    });
    assert_eq!(ask_gateway(at, "a.example"), ("200".into(), "a".into()));
    balancer.upgrade().unwrap();
    assert_eq!(ask_gateway(at, "a.example"), ("200".into(), "a".into()));
    balancer.reconfigure(&format!("# other\n{config}"));
    assert_eq!(ask_gateway(at, "a.example"), ("200".into(), "a".into()));
    cluster.server.run();
    cluster.delete(ROUTES, "a");
    wait_for_answer(at, "a.example", ("404", ""));
    assert_eq!(ask_gateway(at, "lost.example"), ("200".into(), "b".into()));
    let kinds = balancer.admin_json("/v1/kubernetes/kinds");
    assert_eq!(kinds.as_array().unwrap().len(), 16, "{kinds}");
    // The admin API says who writes statuses, and which objects are not served as they are written.
    let mut controller = balancer.admin_json("/v1/kubernetes/controller");
    assert!(controller["last_success"].take().is_number());
    for (key, wanted) in [
        ("controller", json!("example.org/edge")),
        ("lease", Value::Null),
        ("leads", json!(true)),
        ("holder", Value::Null),
        ("error", Value::Null),
    ] {
        assert_eq!(controller[key], wanted, "{key} of {controller}");
    }
    let problems = |name: &str| {
        let objects = balancer.admin_json("/v1/kubernetes/objects");
        let object = objects.as_array()?.iter().find(|of| of["name"] == name);
        let problems = object?["problems"].as_array()?.iter();
        let reasons = problems.map(|of| of["reason"].as_str().unwrap().to_owned());
        Some(reasons.collect::<Vec<_>>())
    };
    wait_until("route a is gone from the list", || problems("a").is_none());
    assert_eq!(problems("odd"), Some(vec!["NotAccepted".into()]));
    assert_eq!(problems("lost"), Some(Vec::new()));
    let objects = balancer.admin_json("/v1/kubernetes/objects");
    let gateway = objects
        .as_array()
        .unwrap()
        .iter()
        .find(|of| of["kind"] == "Gateway");
    assert_eq!(
        *gateway.unwrap(),
        json!({ "kind": "Gateway", "namespace": "shop", "name": "front", "addresses": ["192.0.2.10"],
                "routes": 2, "problems": [] })
    );
    // Documented metrics are there.
    let page = balancer.admin_get("/metrics");
    let manual = include_str!("../../../docs/admin-api.md").lines();
    let documented = manual.filter_map(|line| line.strip_prefix("| `evenkeel_gateway_"));
    let documented: Vec<&str> = documented.filter_map(|row| row.split('`').next()).collect();
    assert!(documented.len() >= 6, "{documented:?}");
    for name in documented {
        let family = format!("# TYPE evenkeel_gateway_{name} ");
        assert!(page.text().contains(&family), "{name}");
    }
    // Without the controller nobody serves there.
    let without = config.split("[kubernetes.gateway]").next().unwrap();
    balancer.reconfigure(without);
    wait_until("the port is closed", || {
        ask_gateway(at, "a.example").0 == "000"
    });
    wait_until("there is no controller", || {
        balancer.admin_json("/v1/kubernetes/controller").is_null()
    });
    assert_eq!(balancer.admin_json("/v1/kubernetes/objects"), json!([]));
}

#[test]
fn certificates_come_from_secrets_and_connections_go_by_port() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let a = cluster.member("a");
    cluster.serve("a", &a);
    let folder = Folder::new();
    for name in ["one", "two"] {
        make_certificate(&folder, name, Key::Ecdsa, "DNS:a.example", None);
    }
    let secret = |name: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": { "name": "certificate" },
            "stringData": { "tls.crt": folder.text(&format!("{name}.crt")), "tls.key": folder.text(&format!("{name}.key.tmp")) },
        })
    };
    let at = address();
    let (ip, tls) = (at.ip(), at.port());
    let config = config(ip);
    let tcp = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
    let reference = json!([{ "name": "certificate" }]);
    cluster.gateway(
        "front",
        json!([
            { "name": "https", "port": tls, "protocol": "HTTPS", "tls": { "certificateRefs": reference } },
            { "name": "tcp", "port": tcp.port(), "protocol": "TCP" },
        ]),
    );
    cluster.route("a", "a.example", to_service("a"));
    let mut balancer = start(&cluster, &config);
    let front = format!("{GATEWAYS}/front");
    // Listeners without a certificate do not serve.
    let missing = ("ResolvedRefs", "False", "InvalidCertificateRef");
    cluster.wait_for_condition(&front, "/listeners/0", missing);
    let secrets = "/api/v1/namespaces/shop/secrets";
    cluster.create(secrets, secret("one"));
    let serves = |name: &str| {
        let at = format!("a.example:{tls}:{ip}");
        let trusted = folder.join(&format!("{name}.crt")).display().to_string();
        let url = format!("https://a.example:{tls}/");
        let answer = try_curl(&["--resolve", &at, "--cacert", &trusted, &url]);
        answer.stdout == b"a"
    };
    wait_until("the first certificate is shown", || serves("one"));
    let good = ("Programmed", "True", "Programmed");
    cluster.wait_for_condition(&front, "/listeners/0", good);
    // A broken renewal closes the listener, and says so; a good one opens it.
    let path = format!("{secrets}/certificate");
    let mut broken = secret("two");
    broken["stringData"]["tls.key"] = json!("no key");
    cluster.server.send_object("PUT", &path, &broken);
    cluster.wait_for_condition(&front, "/listeners/0", missing);
    cluster.server.send_object("PUT", &path, &secret("two"));
    wait_until("the second certificate is shown", || serves("two"));
    assert!(!serves("one"));

    cluster.create(
        TCP_ROUTES,
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1alpha2",
            "kind": "TCPRoute",
            "metadata": { "name": "plain" },
            "spec": { "parentRefs": [{ "name": "front", "sectionName": "tcp" }], "rules": [to_service("a")] },
        }),
    );
    wait_for_answer(tcp, "any.example", ("200", "a"));
    let plain = format!("{TCP_ROUTES}/plain");
    cluster.wait_for_condition(&plain, "/parents/0", ("Accepted", "True", "Accepted"));

    // The next process has the certificates from this one.
    balancer = balancer.replace(&config);
    balancer.upgrade().unwrap();
    assert!(serves("two"));
    assert_eq!(ask_gateway(tcp, "any.example"), ("200".into(), "a".into()));
    let shown = run_curl(&[&format!(
        "http://{}/v1/certificates",
        balancer.admin_address()
    )]);
    assert!(shown.contains("shop/certificate"), "{shown}");
    for text in [balancer.log(), shown] {
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }
}
