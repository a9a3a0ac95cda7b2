//! The conformance suite of the Gateway API, with `kube-apiserver` and a kubelet whose pods are the suite's servers.

#![allow(clippy::expect_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::kubernetes::{GatewayRelease, conformance_program};
use evenkeel_e2e::process::{program, report_skipped, succeeds};

use crate::gateway::{Cluster, start};

/// Profiles of the report; see `docs/kubernetes.md`.
const PROFILES: &str = "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP,GATEWAY-UDP";

/// Features that the report claims.
const FEATURES: &str = include_str!("../../conformance_go/features");

/// Settings of the suite that no argument has: an address of the pool, and one that nobody has.
const OPTIONS: &str = "usableNetworkAddresses:\n- type: IPAddress\n  value: 10.77.255.250\n\
                       unusableNetworkAddresses:\n- type: IPAddress\n  value: 10.78.0.1\n";

/// Configuration of a balancer whose gateways have addresses of their own.
fn config() -> String {
    let pool: Vec<String> = (1..=250)
        .map(|last| format!("\"10.77.255.{last}\""))
        .collect();
    format!(
        "workers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[kubernetes]\nkubeconfig = \"kubeconfig\"\n\
         [kubernetes.gateway]\ncontroller = \"example.org/edge\"\npool = [{}]\n",
        pool.join(", ")
    )
}

fn run_ip(arguments: &str) {
    let done = succeeds(program("ip").args(arguments.split(' ')));
    assert!(done, "ip {arguments}");
}

/// A program that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the kubelet, and waits until its node is registered.
fn start_kubelet(path: &Path, kubeconfig: &Path, echo: &Path, folder: &Folder) -> Killed {
    let mut kubelet = program(&path.display().to_string());
    kubelet.arg(kubeconfig).arg(echo).arg(folder.join(""));
    let kubelet = kubelet.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let Ok(mut kubelet) = kubelet.map(Killed) else {
        panic!("the kubelet does not start");
    };
    let Some(output) = kubelet.0.stdout.take() else {
        panic!("the kubelet has no output");
    };
    let mut line = String::new();
    let _ = BufReader::new(output).read_line(&mut line);
    assert_eq!(line, "ready\n");
    kubelet
}

/// Returns the suite, the kubelet, and the server of pods.
fn find_programs() -> Option<[PathBuf; 3]> {
    Some([
        conformance_program("suite")?,
        conformance_program("kubelet")?,
        conformance_program("echo-basic")?,
    ])
}

#[test]
#[ignore = "takes minutes: make test-kubernetes runs it"]
fn claimed_features_pass() {
    if find_programs().is_none() {
        return report_skipped(
            "conformance: no suite in the cache: `make test-kubernetes` builds it",
        );
    }
    let this = std::env::current_exe().expect("a path");
    // In a network where nobody else is.
    let mut inside = Command::new("unshare");
    inside
        .args(["--net", "--user", "--map-root-user"])
        .arg(this);
    inside.args(["--ignored", "--exact", "--nocapture"]);
    inside.arg("conformance::suite_in_a_network_of_its_own");
    inside.env("EVENKEEL_CONFORMANCE", "inside");
    let status = inside.status().expect("unshare runs");
    assert!(status.success(), "see above");
}

#[test]
#[ignore = "is run by claimed_features_pass"]
fn suite_in_a_network_of_its_own() {
    if std::env::var_os("EVENKEEL_CONFORMANCE").is_none() {
        return;
    }
    for arguments in [
        "link set lo up",
        "link add pods type bridge",
        "addr add 10.77.0.1/16 dev pods",
        "link set pods up",
        "route add default via 10.77.0.2",
        // Every address of this network is one of this machine: gateways listen there.
        "route add local 10.77.255.0/24 dev lo",
    ] {
        run_ip(arguments);
    }
    let [suite, kubelet, echo] = find_programs().expect("the programs");
    let cluster = Cluster::start_release(GatewayRelease::Newest).expect("a cluster");
    let balancer = start(&cluster, &config());
    let folder = Folder::new();
    let kubeconfig = folder.write("kubeconfig", cluster.server.kubeconfig());
    let _kubelet = start_kubelet(&kubelet, &kubeconfig, &echo, &folder);
    let options = folder.write("options.yaml", OPTIONS);
    let report = folder.join("report.yaml");
    let mut run = program(&suite.display().to_string());
    run.args(["-test.timeout=60m", "-test.v"])
        .arg("--gateway-class=edge")
        .arg("--cleanup-base-resources=false")
        .arg(format!("--conformance-profiles={}", PROFILES))
        .arg(format!("--supported-features={}", list_features()))
        .arg("--organization=evenkeel")
        .arg("--project=evenkeel")
        .arg("--url=https://evenkeel.org")
        .arg(format!("--version={}", env!("CARGO_PKG_VERSION")))
        .arg("--contact=maintainers (SECURITY.md)")
        .arg(format!("--conformance-options-file={}", options.display()))
        .arg(format!("--report-output={}", report.display()))
        .env("KUBECONFIG", &kubeconfig);
    if let Ok(test) = std::env::var("EVENKEEL_CONFORMANCE_TEST") {
        run.arg(format!("--run-test={test}"));
    }
    let log = std::env::var_os("EVENKEEL_CONFORMANCE_LOG").map(PathBuf::from);
    let log = log.unwrap_or_else(|| folder.join("suite.log"));
    let file = fs::File::create(&log).expect("a log");
    run.stdout(file.try_clone().expect("a log")).stderr(file);
    let status = run.status().expect("the suite runs");
    let text = fs::read_to_string(&log).expect("a log");
    let results = text
        .lines()
        .filter(|line| line.trim_start().starts_with("--- "));
    let results: Vec<&str> = results.collect();
    let written = fs::read_to_string(&report).unwrap_or_default();
    if let Some(path) = std::env::var_os("EVENKEEL_CONFORMANCE_REPORT") {
        fs::write(path, &written).expect("the report is written");
    }
    assert!(
        status.success() && !written.contains("result: failure"),
        "{}\n{written}\n{}",
        results.join("\n"),
        balancer.log()
    );
}

/// Returns the claimed features, separated by commas.
fn list_features() -> String {
    let lines = FEATURES.lines().map(str::trim);
    let names = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    names.collect::<Vec<_>>().join(",")
}
