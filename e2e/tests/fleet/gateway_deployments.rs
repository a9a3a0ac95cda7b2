//! A Deployment behind a gateway, with `kube-apiserver` and the controllers of `kube-controller-manager`: ReplicaSets, pods and
//! EndpointSlices are what they write. The test is the kubelet. Needs the right to make network namespaces.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::load::Clients;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::netns::{BACK4, FRONT, Pair, run_ip};
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

use crate::gateway::{Cluster, ask_gateway, config, start, wait_for_answer};

const PODS: &str = "/api/v1/namespaces/shop/pods";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/shop/deployments/web";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
const GROUP: &str = "/v1/groups/kubernetes.shop.web.80";

/// Address of the balancer.
const FRONT4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));

/// Port of the gateway.
const PORT: u16 = 7000;

/// Pod that runs: it answers each request with its target, at an address of each family.
struct Pod {
    address: Ipv4Addr,
    port: u16,
    /// Number of requests that were answered.
    served: Arc<AtomicU64>,
    /// True once the pod's program has ended.
    has_ended: Arc<AtomicBool>,
    /// Number of requests that came afterwards.
    late: Arc<AtomicU64>,
}

impl Pod {
    /// Starts a pod with a number of its own.
    fn start(number: u8, port: u16) -> Self {
        let address = Ipv4Addr::new(10, 77, 1, number);
        let address6 = Ipv6Addr::new(0xfd77, 0, 0, 1, 0, 0, 0, number.into());
        run_ip(&format!("addr add {address}/32 dev {FRONT}"));
        run_ip(&format!("addr add {address6}/128 dev {FRONT} nodad"));
        let pod = Pod {
            address,
            port,
            served: Arc::default(),
            has_ended: Arc::default(),
            late: Arc::default(),
        };
        for ip in [IpAddr::V4(address), IpAddr::V6(address6)] {
            let listener = TcpListener::bind((ip, port)).unwrap();
            let (served, late) = (Arc::clone(&pod.served), Arc::clone(&pod.late));
            let has_ended = Arc::clone(&pod.has_ended);
            Member::start_at(listener, move |_, mut wire| {
                while let Ok(request) = wire.read_request() {
                    if has_ended.load(Ordering::SeqCst) {
                        late.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    served.fetch_add(1, Ordering::SeqCst);
                    if !wire.try_send(ok_response(request.second_word())) {
                        return;
                    }
                }
            });
        }
        pod
    }

    /// Returns the status of the pod.
    fn show_status(&self, is_ready: bool) -> Value {
        let number = self.address.octets()[3];
        let address6 = Ipv6Addr::new(0xfd77, 0, 0, 1, 0, 0, 0, number.into());
        let status = if is_ready { "True" } else { "False" };
        json!({
            "phase": "Running",
            "hostIP": FRONT4,
            "podIP": self.address,
            "podIPs": [{ "ip": self.address }, { "ip": address6 }],
            "conditions": [{ "type": "Ready", "status": status }, { "type": "ContainersReady", "status": status }],
        })
    }
}

/// Kubelet of the only node.
struct Kubelet<'a> {
    cluster: &'a Cluster,
    balancer: &'a Balancer,
    /// Number of pods that were started.
    count: u8,
    /// Pods that run, by name.
    pods: BTreeMap<String, Pod>,
    /// Pods that have ended.
    ended: Vec<Pod>,
}

impl Kubelet<'_> {
    /// Starts pods that are new, and ends pods that are deleted. A pod ends once the balancer drains the pod, as a pod that
    /// sleeps for some seconds before its end does.
    fn work(&mut self) {
        let list = self.cluster.server.get_object(PODS).unwrap_or_default();
        for object in list["items"].as_array().into_iter().flatten() {
            let name = object["metadata"]["name"].as_str().unwrap();
            let is_deleted = object["metadata"]["deletionTimestamp"].is_string();
            let address = self.pods.get(name).map(|pod| pod.address);
            match (address, is_deleted) {
                (None, false) => self.start(name, object),
                (Some(address), true) if self.is_draining(address) => self.end(name),
                _ => {}
            }
        }
    }

    fn start(&mut self, name: &str, object: &Value) {
        self.count += 1;
        let port = object["spec"]["containers"][0]["ports"][0]["containerPort"].as_u64();
        let pod = Pod::start(self.count, port.unwrap().try_into().unwrap());
        self.pods.insert(name.to_owned(), pod);
        self.set_ready(name, true);
    }

    /// Writes the status of a pod.
    fn set_ready(&self, name: &str, is_ready: bool) {
        let status = self.pods[name].show_status(is_ready);
        let path = format!("{PODS}/{name}/status");
        self.cluster
            .server
            .patch_object(&path, &json!({ "status": status }));
    }

    /// Ends the program of a pod, and deletes the pod for good.
    fn end(&mut self, name: &str) {
        let pod = self.pods.remove(name).unwrap();
        pod.has_ended.store(true, Ordering::SeqCst);
        self.ended.push(pod);
        let options =
            json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0 });
        let path = format!("{PODS}/{name}");
        self.cluster.server.send_object("DELETE", &path, &options);
    }

    /// Returns the addresses and states of the balancer's members.
    fn list_members(&self) -> BTreeMap<SocketAddr, String> {
        let group = self.balancer.admin_json(GROUP);
        let members = group["members"].as_array().into_iter().flatten();
        let members = members.map(|member| {
            let text = |key: &str| member[key].as_str().unwrap_or_default().to_owned();
            (text("address").parse().unwrap(), text("state"))
        });
        members.collect()
    }

    /// Returns the state of the member at an address.
    fn find_state(&self, address: Ipv4Addr) -> Option<String> {
        let members = self.list_members();
        let mut members = members.into_iter();
        let (_, state) = members.find(|(of, _)| of.ip() == IpAddr::V4(address))?;
        Some(state)
    }

    fn is_draining(&self, address: Ipv4Addr) -> bool {
        self.find_state(address).as_deref() == Some("draining")
    }

    /// True if the members are all pods that run, and all of them take requests.
    fn has_members(&self, count: usize) -> bool {
        let members = self.list_members();
        let ips: BTreeSet<IpAddr> = members.keys().map(SocketAddr::ip).collect();
        let pods: BTreeSet<IpAddr> = { self.pods.values() }.map(|of| of.address.into()).collect();
        pods.len() == count && ips == pods && members.values().all(|state| state == "up")
    }

    /// Works until something has happened.
    fn work_until(&mut self, what: &str, mut happened: impl FnMut(&Self) -> bool) {
        wait_until(what, || {
            self.work();
            happened(self)
        });
    }
}

/// Returns the pods' part of a Deployment. Each version has another port.
fn template(version: u16) -> Value {
    json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": {
            "nodeName": "node",
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 600,
            "containers": [{ "name": "web", "image": format!("web:{version}"),
                             "ports": [{ "name": "http", "containerPort": 8000 + version }] }],
        },
    })
}

/// Returns the families of the slices with endpoints, and the ports of these slices.
fn read_slices(cluster: &Cluster) -> (BTreeSet<String>, BTreeSet<u64>) {
    let list = cluster.server.get_object(SLICES).unwrap_or_default();
    let slices = list["items"].as_array().cloned().unwrap_or_default();
    let mut slices = slices;
    slices.retain(|of| of["endpoints"].as_array().is_some_and(|of| !of.is_empty()));
    let family = |of: &Value| of["addressType"].as_str().unwrap_or_default().to_owned();
    let port = |of: &Value| of["ports"][0]["port"].as_u64();
    (
        slices.iter().map(family).collect(),
        slices.iter().filter_map(port).collect(),
    )
}

/// Creates the node, a Deployment of two pods, and the service of both families with a route.
fn create_objects(cluster: &Cluster) {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" } });
    cluster.create("/api/v1/nodes", node);
    cluster.create(
        "/apis/apps/v1/namespaces/shop/deployments",
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": "web" },
            "spec": {
                "replicas": 2,
                "selector": { "matchLabels": { "app": "web" } },
                "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
                "template": template(1),
            },
        }),
    );
    cluster.create(
        "/api/v1/namespaces/shop/services",
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "web" },
            "spec": {
                "selector": { "app": "web" },
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [{ "name": "http", "port": 80, "targetPort": "http" }],
            },
        }),
    );
    cluster.gateway(
        "front",
        json!([{ "name": "http", "port": PORT, "protocol": "HTTP" }]),
    );
    let rule = json!({ "backendRefs": [{ "name": "web", "port": 80 }] });
    cluster.route("web", "a", rule);
}

#[test]
fn a_deployment_is_scaled_and_rolled_without_a_lost_request() {
    let Some(pair) = Pair::new() else {
        return;
    };
    // All programs are in the namespace, as children of this thread.
    pair.front.run_inside(|| {
        run_ip(&format!("route add default via {BACK4}"));
        serve_deployment();
    });
}

fn serve_deployment() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    if !cluster.server.start_controllers() {
        // The program takes minutes to build, so a run without it is no failure, but is said.
        let why = "no kube-controller-manager in the cache: `make test-kubernetes` builds it";
        let _ = writeln!(std::io::stderr(), "SKIPPED: gateway_deployments: {why}");
        return;
    }
    create_objects(&cluster);
    let config = config(FRONT4);
    let balancer = start(&cluster, &config);
    let mut kubelet = Kubelet {
        cluster: &cluster,
        balancer: &balancer,
        count: 0,
        pods: BTreeMap::new(),
        ended: Vec::new(),
    };
    // A pod has an endpoint in a slice of each family, and is one member.
    kubelet.work_until("two pods are members", |of| of.has_members(2));
    let both = BTreeSet::from(["IPv4".to_owned(), "IPv6".to_owned()]);
    wait_until("there are slices of both families", || {
        read_slices(&cluster).0 == both
    });
    let at = SocketAddr::new(FRONT4, PORT);
    wait_for_answer(at, "a", ("200", "/"));
    let clients = Clients::start(at, 8);
    clients.wait_for(200);

    let scale = |count: usize| {
        let patch = json!({ "spec": { "replicas": count } });
        cluster.server.patch_object(DEPLOYMENT, &patch);
    };
    scale(5);
    kubelet.work_until("five pods are members", |of| of.has_members(5));
    kubelet.work_until("each pod serves", |of| {
        let mut pods = of.pods.values();
        pods.all(|pod| pod.served.load(Ordering::SeqCst) > 0)
    });

    // A pod that is not ready is no member, and comes back.
    let name = kubelet.pods.keys().next().unwrap().clone();
    let address = kubelet.pods[&name].address;
    kubelet.set_ready(&name, false);
    kubelet.work_until("the pod is no member", |of| {
        of.find_state(address).is_none()
    });
    clients.wait_for(200);
    kubelet.set_ready(&name, true);
    kubelet.work_until("the pod is back", |of| of.has_members(5));

    // The pods of the next version have another port, and so other slices: for a while the service has both.
    cluster
        .server
        .patch_object(DEPLOYMENT, &json!({ "spec": { "template": template(2) } }));
    let mut had_both = false;
    kubelet.work_until("all pods are of the next version", |of| {
        had_both |= read_slices(&cluster).1.len() == 2;
        let is_next = of.pods.values().all(|pod| pod.port == 8002);
        is_next && of.has_members(5)
    });
    assert!(had_both, "slices of both versions");
    let deployment = cluster.server.get_object(DEPLOYMENT).unwrap();
    assert_eq!(deployment["status"]["updatedReplicas"], 5, "{deployment}");
    clients.wait_for(200);

    // The other addresses of the same pods.
    let section = "[kubernetes]\n";
    let other = config.replace(section, &format!("{section}prefer = \"ipv6\"\n"));
    balancer.reconfigure(&other);
    wait_until("members have addresses of IPv6", || {
        let members = kubelet.list_members();
        members.len() == 5 && members.keys().all(SocketAddr::is_ipv6)
    });
    clients.wait_for(200);
    balancer.reconfigure(&config);
    kubelet.work_until("members have addresses of IPv4", |of| of.has_members(5));

    scale(1);
    kubelet.work_until("one pod is left", |of| of.has_members(1));
    clients.wait_for(200);
    assert_eq!(kubelet.ended.len(), 9);
    clients.stop_and_count();
    let late = kubelet.ended.iter();
    let late: u64 = late.map(|pod| pod.late.load(Ordering::SeqCst)).sum();
    assert_eq!(late, 0, "requests to pods that had ended");

    // If all pods are to end, they serve to the last.
    scale(0);
    let name = kubelet.pods.keys().next().unwrap().clone();
    let path = format!("{PODS}/{name}");
    wait_until("the endpoint is terminating", || {
        let pod = cluster.server.get_object(&path).unwrap();
        let list = cluster.server.get_object(SLICES).unwrap_or_default();
        let slices = list["items"].as_array().into_iter().flatten();
        let endpoints = slices.filter_map(|of| of["endpoints"].as_array()).flatten();
        let terminating = endpoints.filter(|of| of["conditions"]["terminating"] == true);
        pod["metadata"]["deletionTimestamp"].is_string() && terminating.count() == 2
    });
    for _ in 0..5 {
        assert_eq!(ask_gateway(at, "a"), ("200".into(), "/".into()));
    }
    kubelet.end(&name);
    wait_until("nobody serves", || ask_gateway(at, "a").0 == "503");
}
