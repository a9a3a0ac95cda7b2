//! Manifests and chart in `packaging/kubernetes`, with `kube-apiserver`, kubectl and helm.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::io::Write;
use std::process::Output;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::kubernetes::{GatewayRelease, RealServer, gateway_crds};
use evenkeel_e2e::process::{are_installed, program};
use evenkeel_e2e::server::address;
use evenkeel_e2e::wait_until;
use serde_json::{Value, json};

const POLICY_CRD: &str = include_str!("../../../packaging/kubernetes/policy-crd.yaml");
const RIGHTS: &str = include_str!("../../../packaging/kubernetes/gateway-rights.yaml");
const DEPLOYMENT: &str = include_str!("../../../packaging/kubernetes/deployment.yaml");
const DAEMON_SET: &str = include_str!("../../../packaging/kubernetes/daemonset.yaml");
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/chart");

/// Says that a test does not run. The programs take ten minutes to build, so a run without them is no failure.
fn skip(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Returns the standard output of a program that went well.
fn text_of(output: Output) -> String {
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts a cluster with the Gateway API and the rights of the balancer; `None` if this machine cannot have one.
fn start_cluster() -> Option<RealServer> {
    if !are_installed(&["kubectl"]) {
        skip("deployment: no kubectl");
        return None;
    }
    let Some(crds) = gateway_crds(GatewayRelease::Oldest) else {
        skip("deployment: no CRDs of the Gateway API: `make test-kubernetes` fetches them");
        return None;
    };
    let Some(server) = RealServer::start() else {
        skip("deployment: no kube-apiserver: `make test-kubernetes` builds it");
        return None;
    };
    text_of(server.run_kubectl(
        &["apply", "--server-side", "-f", "-"],
        &crds.join("\n---\n"),
    ));
    text_of(server.run_kubectl(&["apply", "-f", "-"], RIGHTS));
    wait_until("the API server has the kinds", || {
        let path = "/apis/gateway.networking.k8s.io/v1/gatewayclasses";
        server.get_object(path).is_some()
    });
    Some(server)
}

/// Removes the keys of a mapping that `is_kept` does not want.
fn retain_keys(value: &mut Value, is_kept: impl Fn(&str) -> bool) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| is_kept(key));
    }
}

/// Returns the objects of a text as the API server would have them, without what differs from call to call.
fn apply_dry(server: &RealServer, text: &str) -> Vec<Value> {
    let arguments = "apply --dry-run=server --validate=strict -o json -f -";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let shown = text_of(server.run_kubectl(&arguments, text));
    let shown: Value = serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}"));
    let mut objects = match &shown["items"] {
        Value::Array(items) => items.clone(),
        _ => vec![shown],
    };
    // Addresses and ports of nodes are chosen anew.
    let chosen = ["clusterIP", "clusterIPs", "healthCheckNodePort"];
    for object in &mut objects {
        let kept = ["name", "namespace", "labels", "annotations"];
        retain_keys(&mut object["metadata"], |key| kept.contains(&key));
        // The text that kubectl has sent.
        let sent = "kubectl.kubernetes.io/last-applied-configuration";
        if let Some(annotations) = object.pointer_mut("/metadata/annotations") {
            retain_keys(annotations, |key| key != sent);
        }
        retain_keys(object, |key| key != "status");
        if let Some(spec) = object.get_mut("spec") {
            retain_keys(spec, |key| !chosen.contains(&key));
            let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                retain_keys(port, |key| key != "nodePort");
            }
        }
    }
    objects.sort_by_key(|object| object["kind"].to_string());
    objects
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {objects:?}"))
}

/// Removes comments of a configuration.
fn without_comments(objects: &[Value]) -> Vec<Value> {
    let mut objects = objects.to_vec();
    for object in &mut objects {
        if let Some(text) = object.pointer_mut("/data/evenkeel.toml") {
            let lines = text.as_str().unwrap_or_default().lines();
            let lines: Vec<&str> = lines.filter(|line| !line.starts_with('#')).collect();
            *text = json!(lines.join("\n"));
        }
    }
    objects
}

#[test]
fn manifests_and_chart_are_accepted_and_the_same() {
    let Some(server) = start_cluster() else {
        return;
    };
    let crd = apply_dry(&server, POLICY_CRD);
    assert_eq!(crd.len(), 1);
    find(&crd, "CustomResourceDefinition");
    for (kind, text, arguments) in [
        ("Deployment", DEPLOYMENT, &["--set", "kind=Deployment"][..]),
        (
            "DaemonSet",
            DAEMON_SET,
            &["--set", "kind=DaemonSet", "--set", "publish={192.0.2.10}"],
        ),
    ] {
        let plain = apply_dry(&server, &format!("{RIGHTS}\n---\n{text}"));
        check_config(&server, &plain);
        let pods = &find(&plain, kind)["spec"]["template"]["spec"];
        // The end comes after the sleep and the time for open connections.
        let sleep = &pods["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"];
        let config = find(&plain, "ConfigMap")["data"]["evenkeel.toml"]
            .as_str()
            .unwrap();
        assert!(config.contains("shutdown_grace = \"30s\""), "{config}");
        assert!(
            pods["terminationGracePeriodSeconds"].as_u64() > sleep.as_u64().map(|sleep| sleep + 30)
        );
        check_security(&server, pods, kind == "DaemonSet");

        let Some(rendered) = server.render_chart(CHART, arguments) else {
            skip("deployment: no helm: `make test-kubernetes` builds it");
            continue;
        };
        let mut chart = apply_dry(&server, &text_of(rendered));
        // The chart makes the secret, and helm the namespace.
        chart.retain(|object| object["kind"] != "Secret");
        let plain: Vec<_> = plain
            .into_iter()
            .filter(|object| object["kind"] != "Namespace")
            .collect();
        assert_eq!(without_comments(&chart), without_comments(&plain));
    }
    let refused = server.render_chart(CHART, &["--set", "kind=Pod"]);
    assert!(refused.is_none_or(|output| !output.status.success()));
    let refused = server.render_chart(CHART, &["--set", "kernel=true"]);
    assert!(refused.is_none_or(|output| !output.status.success()));
}

/// Values of the chart, with their effects: kind of an object, place in the object, and content there.
type Effects = (
    &'static [&'static str],
    &'static [(&'static str, &'static str, &'static str)],
);

const VALUES: &[Effects] = &[
    (
        &[
            "replicas=5,drainSeconds=7,graceSeconds=9,podDisruptionBudget.maxUnavailable=2",
            "controller=a.example/b,gatewayClass.name=edge,service.externalTrafficPolicy=Cluster",
            "image.repository=r.example/e,image.tag=v9,image.pullPolicy=Always,imagePullSecrets[0].name=x",
            "podLabels.a=b,podAnnotations.c=d,resources.limits.memory=1Gi",
            "ingress.enabled=true,ingress.config=without_class = true",
        ],
        &[
            ("Deployment", "/spec/replicas", "5"),
            (
                "Deployment",
                "/spec/template/spec/terminationGracePeriodSeconds",
                "26",
            ),
            (
                "Deployment",
                "/spec/template/spec/containers/0/lifecycle/preStop/sleep/seconds",
                "7",
            ),
            (
                "Deployment",
                "/spec/template/spec/containers/0/image",
                "r.example/e:v9",
            ),
            (
                "Deployment",
                "/spec/template/spec/containers/0/imagePullPolicy",
                "Always",
            ),
            (
                "Deployment",
                "/spec/template/spec/containers/0/resources/limits/memory",
                "1Gi",
            ),
            (
                "Deployment",
                "/spec/template/spec/imagePullSecrets/0/name",
                "x",
            ),
            ("Deployment", "/spec/template/metadata/labels/a", "b"),
            ("Deployment", "/spec/template/metadata/annotations/c", "d"),
            ("PodDisruptionBudget", "/spec/maxUnavailable", "2"),
            ("Service", "/spec/externalTrafficPolicy", "Cluster"),
            ("GatewayClass", "/metadata/name", "edge"),
            ("GatewayClass", "/spec/controllerName", "a.example/b"),
            ("IngressClass", "/metadata/name", "evenkeel"),
            ("IngressClass", "/spec/controller", "evenkeel.org/ingress"),
            ("ConfigMap", "", "shutdown_grace = \"9s\""),
            ("ConfigMap", "", "controller = \"a.example/b\""),
            (
                "ConfigMap",
                "",
                "class = \"evenkeel\"\nwithout_class = true",
            ),
            ("Secret", "/metadata/name", "evenkeel-admin"),
        ],
    ),
    (
        &[
            "gatewayClass.create=false,admin.secret=x,admin.port=9901,admin.address=[::]",
            "service.type=NodePort,service.annotations.a=b,priorityClassName=system-cluster-critical",
            "nodeSelector.a=b,tolerations[0].operator=Exists,affinity.nodeAffinity.x=null",
            "ports[0].name=dns,ports[0].port=53,ports[0].protocol=UDP,ports[1].name=dns-tcp,ports[1].port=53",
            "config=[access_log]",
        ],
        &[
            (
                "Deployment",
                "/spec/template/spec/volumes/1/secret/secretName",
                "x",
            ),
            ("Deployment", "/spec/template/spec/nodeSelector/a", "b"),
            (
                "Deployment",
                "/spec/template/spec/tolerations/0/operator",
                "Exists",
            ),
            (
                "Deployment",
                "/spec/template/spec/priorityClassName",
                "system-cluster-critical",
            ),
            (
                "Deployment",
                "/spec/template/spec/containers/0/ports/0/containerPort",
                "53",
            ),
            (
                "Deployment",
                "/spec/template/spec/containers/0/ports/0/protocol",
                "UDP",
            ),
            (
                "Deployment",
                "/spec/template/spec/containers/0/ports/1/protocol",
                "TCP",
            ),
            (
                "Deployment",
                "/spec/template/spec/containers/0/ports/2/containerPort",
                "9901",
            ),
            ("Service", "/spec/type", "NodePort"),
            ("Service", "/metadata/annotations/a", "b"),
            ("Service", "/spec/ports/0/protocol", "UDP"),
            ("Service", "/spec/ports/1/protocol", "TCP"),
            ("Service", "/spec/ports/1/targetPort", "53"),
            ("ConfigMap", "", "listen = \"[::]:9901\""),
            ("ConfigMap", "", "[access_log]"),
        ],
    ),
    (
        &[
            "kind=DaemonSet,kernel=true,service.enabled=true,ports[0].name=dns,ports[0].port=53,ports[0].protocol=UDP",
            "ingress.enabled=true,ingress.class=edge,ingress.default=true,ingress.controller=a.example/i",
        ],
        &[
            ("DaemonSet", "/spec/template/spec/hostNetwork", "true"),
            (
                "DaemonSet",
                "/spec/template/spec/dnsPolicy",
                "ClusterFirstWithHostNet",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/securityContext/runAsUser",
                "0",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/containers/0/args/0",
                "--allow-root",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/containers/0/env/1/valueFrom/fieldRef/fieldPath",
                "status.hostIP",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/containers/0/securityContext/capabilities/drop/0",
                "ALL",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/containers/0/securityContext/capabilities/add/0",
                "BPF",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/containers/0/securityContext/capabilities/add/1",
                "NET_ADMIN",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/containers/0/securityContext/capabilities/add/3",
                "PERFMON",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/containers/0/ports/0/hostPort",
                "53",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/containers/0/ports/0/protocol",
                "UDP",
            ),
            (
                "DaemonSet",
                "/spec/template/spec/volumes/4/hostPath/path",
                "/sys/fs/bpf",
            ),
            ("Service", "/spec/ports/0/port", "53"),
            ("IngressClass", "/metadata/name", "edge"),
            ("IngressClass", "/spec/controller", "a.example/i"),
            (
                "IngressClass",
                "/metadata/annotations/ingressclass.kubernetes.io~1is-default-class",
                "true",
            ),
            ("ConfigMap", "", "listen = \"${HOST_IP}\""),
            ("ConfigMap", "", "class = \"edge\""),
        ],
    ),
    (
        &["service.enabled=false,publish={192.0.2.10,gw.example}"],
        &[("ConfigMap", "", "publish = [\"192.0.2.10\",\"gw.example\"]")],
    ),
];

#[test]
fn values_of_the_chart_have_their_effects() {
    let Some(server) = start_cluster() else {
        return;
    };
    for (values, effects) in VALUES {
        let arguments = values.iter().flat_map(|value| ["--set", value]);
        let arguments: Vec<&str> = arguments.collect();
        let Some(rendered) = server.render_chart(CHART, &arguments) else {
            skip("deployment: no helm: `make test-kubernetes` builds it");
            return;
        };
        let objects = apply_dry(&server, &text_of(rendered));
        let config = check_config(&server, &objects);
        for (kind, pointer, wanted) in *effects {
            if pointer.is_empty() {
                assert!(config.contains(wanted), "{wanted}\n{config}");
                continue;
            }
            let object = find(&objects, kind);
            let found = object.pointer(pointer).map(|found| match found {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            assert_eq!(found.as_deref(), Some(*wanted), "{kind} {pointer} {object}");
        }
        // What values leave out is not there.
        let has = |kind: &str| objects.iter().any(|object| object["kind"] == kind);
        let is_set = |value: &str| values.iter().any(|of| of.contains(value));
        assert_eq!(has("GatewayClass"), !is_set("gatewayClass.create=false"));
        assert_eq!(has("Secret"), !is_set("admin.secret=x"));
        assert_eq!(has("Service"), !is_set("service.enabled=false"));
        assert_eq!(has("IngressClass"), is_set("ingress.enabled=true"));
        assert_eq!(has("PodDisruptionBudget"), !is_set("kind=DaemonSet"));
        assert_eq!(config.contains("publish_service"), has("Service"));
    }
}

/// Returns a configuration of a pod with files of this machine.
fn with_local_files(config: &str) -> String {
    config
        .replace("/etc/evenkeel-admin/token", "token")
        .replace(
            "[kubernetes.gateway]",
            "[kubernetes]\nkubeconfig = \"kubeconfig\"\n[kubernetes.gateway]",
        )
}

/// Has the balancer check the configuration among objects. Returns the configuration.
fn check_config(server: &RealServer, objects: &[Value]) -> String {
    let config = find(objects, "ConfigMap")["data"]["evenkeel.toml"].as_str();
    let config = config.unwrap();
    let folder = Folder::new();
    folder.write_private("token", "a-token-of-the-test");
    folder.write("kubeconfig", server.kubeconfig());
    let file = folder.write("evenkeel.toml", with_local_files(config));
    let mut check = program(&evenkeel_binary().display().to_string());
    check.env("HOST_IP", "192.0.2.7").arg("check").arg(file);
    text_of(check.output().unwrap());
    config.to_owned()
}

/// Creates a pod of a template in a namespace that allows only restricted pods, as a dry run.
fn check_security(server: &RealServer, pods: &Value, has_host_ports: bool) {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: strict\n  labels: {pod-security.kubernetes.io/enforce: restricted}\n\
                     ---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: evenkeel, namespace: strict}\n";
    text_of(server.run_kubectl(&["apply", "-f", "-"], namespace));
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "one", "namespace": "strict" }, "spec": pods });
    let created = server.run_kubectl(&["create", "--dry-run=server", "-f", "-"], &pod.to_string());
    if !has_host_ports {
        text_of(created);
        return;
    }
    let refusal = String::from_utf8_lossy(&created.stderr).into_owned();
    let reasons = refusal.split_once("\"restricted:latest\": ");
    let reasons = reasons.map_or("", |(_, reasons)| reasons);
    assert!(
        reasons.starts_with("hostPort (") && !reasons.contains("), "),
        "{refusal}"
    );
}

#[test]
fn the_configuration_of_the_manifests_serves_with_the_rights_of_the_manifests() {
    let Some(server) = start_cluster() else {
        return;
    };
    text_of(server.run_kubectl(&["apply", "-f", "-"], DEPLOYMENT));
    let config = server
        .get_object("/api/v1/namespaces/evenkeel/configmaps/evenkeel")
        .unwrap();
    let config = config["data"]["evenkeel.toml"].as_str().unwrap();
    // The pod's folder, addresses and service account.
    let config = with_local_files(config).replace("0.0.0.0:9900", "127.0.0.1:0");
    let balancer = Balancer::start_with(&config, |folder| {
        folder.write_private("token", "a-token-of-the-test");
        folder.write("kubeconfig", server.kubeconfig_of("evenkeel", "evenkeel"));
    });
    let gateway = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": "front", "namespace": "evenkeel" },
        "spec": { "gatewayClassName": "evenkeel", "listeners": [{ "name": "http", "port": address().port(), "protocol": "HTTP" }] } });
    text_of(server.run_kubectl(&["apply", "-f", "-"], &gateway.to_string()));
    let path = "/apis/gateway.networking.k8s.io/v1/namespaces/evenkeel/gateways/front";
    let status = |pointer: &str| {
        let object = server.get_object(path)?;
        object.pointer(&format!("/status{pointer}")).cloned()
    };
    wait_until("the gateway has a status", || {
        status("/conditions/0/observedGeneration") == Some(json!(1))
    });
    assert_eq!(
        status("/addresses")
            .and_then(|all| Some(all.as_array()?.len()))
            .unwrap_or(0),
        0
    );
    // The cloud gives the load balancer an address.
    let patch = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "198.51.100.7" }] } } });
    let patch = patch.to_string();
    text_of(server.run_kubectl(
        &[
            "-n",
            "evenkeel",
            "patch",
            "service",
            "evenkeel",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ],
        "",
    ));
    wait_until("the gateway has the address", || {
        status("/addresses") == Some(json!([{ "type": "IPAddress", "value": "198.51.100.7" }]))
    });
    let alive = balancer.admin_get("/healthz");
    assert_eq!(alive.second_word(), "200");
}
