//! Load sources of their own kind: gauges by StatsD from a client's library as people use it,
//! and cgroups of this machine with a process that uses them up.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::UdpSocket;
use std::time::Duration;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::cgroup::{Busy, CpuQuota};
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::process::{are_installed, program};
use evenkeel_e2e::wait_until;
use serde_json::Value;

/// Debian's own, which knows Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// The fresh value of a load of a location.
fn load(balancer: &Balancer, location: &str, id: &str) -> Option<f64> {
    let status = balancer.status();
    let mut locations = status["locations"].as_array().unwrap().iter();
    let location = locations.find(|known| known["name"] == location)?;
    let mut loads = location["loads"].as_array().unwrap().iter();
    let fresh = |load: &&Value| load["id"] == id && load["expired"] == false;
    loads.find(fresh)?["value"].as_f64()
}

/// The value of a sample; 0 if it is not there.
fn metric(balancer: &Balancer, sample: &str) -> f64 {
    balancer.read_metric(sample).unwrap_or_default()
}

/// Sends requests, each over a connection of its own; answers how many `name` has answered.
fn answered_by(balancer: &Balancer, name: &str, requests: usize) -> usize {
    let ask = |_: &usize| {
        let mut wire = balancer.connect();
        wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        wire.read_response().body == name.as_bytes()
    };
    (0..requests).filter(ask).count()
}

/// Program of an application with the library. For each interval it sends gauges in one datagram, a
/// counter, and a gauge that is only changed.
const CLIENT: &str = r#"
import statsd, sys
client = statsd.StatsClient("127.0.0.1", int(sys.argv[1]), prefix="app")
with client.pipeline() as batch:
    batch.gauge("busy", 0.75)
    batch.incr("requests")
    batch.gauge("queue", 12)
client.gauge("queue", 5, delta=True)
"#;

#[test]
fn gauges_of_a_real_client_are_loads() {
    if !are_installed(&[PYTHON]) {
        return;
    }
    let members: Vec<Member> = ["a", "b"]
        .map(|name| Member::answering_with(move |_| ok_response(name)))
        .into();
    let addresses: Vec<_> = members
        .iter()
        .map(|member| member.address().to_string())
        .collect();
    let balancer = Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nload = \"utilization\"\nslow_start = \"0s\"\n\
         members = [\"{}\", {{ address = \"{}\", location = \"b\" }}]\n\
         [rule.web.statsd]\nlisten = \"127.0.0.1:0\"\n\
         loads = {{ \"app.busy\" = \"utilization\", \"app.queue\" = 100 }}\n\
         [group.tagged]\nmembers = [{{ address = \"127.0.0.1:1\", location = \"web-1\" }}]\n\
         [group.tagged.statsd]\nlisten = \"127.0.0.1:0\"\nlocation_tag = \"host\"\n\
         loads = {{ \"app.busy\" = \"cpu\" }}\n",
        addresses[0], addresses[1]
    ));
    let port = balancer.statsd_address().port().to_string();
    // Both members have the address: whose gauges they are is not known.
    let status = program(PYTHON)
        .args(["-c", CLIENT, &port])
        .status()
        .unwrap();
    assert!(status.success(), "python3-statsd is there");
    let lines = |result| {
        let sample = format!("evenkeel_statsd_lines_total{{result=\"{result}\"}}");
        metric(&balancer, &sample)
    };
    wait_until("the last line arrives", || lines("delta") >= 1.0);
    assert_eq!((lines("other"), lines("used")), (1.0, 2.0));
    let missing = "evenkeel_reports_total{group=\"web\",source=\"statsd\",result=\"missing\"}";
    assert_eq!(metric(&balancer, missing), 2.0);
    // A tag says it.
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let line = b"app.busy:0.5|g|#host:web-1,env:test";
    client.send_to(line, balancer.statsd_address()).unwrap();
    wait_until("a tagged gauge arrives", || {
        load(&balancer, "web-1", "cpu") == Some(0.5)
    });
}

#[test]
fn a_group_decides_by_the_gauges_of_a_real_client() {
    if !are_installed(&[PYTHON]) {
        return;
    }
    let member = Member::answering_with(|_| ok_response("a"));
    let balancer = Balancer::start_http(
        &[member.address()],
        "load = \"utilization\"\n[rule.web.statsd]\nlisten = \"127.0.0.1:0\"\n\
         senders = [\"127.0.0.0/8\"]\n\
         loads = { \"app.busy\" = \"utilization\", \"app.queue\" = 100 }",
    );
    let port = balancer.statsd_address().port().to_string();
    let status = program(PYTHON)
        .args(["-c", CLIENT, &port])
        .status()
        .unwrap();
    assert!(status.success(), "python3-statsd is there");
    wait_until("gauges arrive", || {
        load(&balancer, "127.0.0.1", "100") == Some(12.0)
    });
    assert_eq!(load(&balancer, "127.0.0.1", "utilization"), Some(0.75));
    // The group decides by it.
    let group = balancer.member_status("web", member.address());
    assert_eq!(group["load"].as_f64(), Some(0.75));
    assert_eq!(answered_by(&balancer, "a", 3), 3);
}

#[test]
fn traffic_follows_the_load_of_cgroups() {
    let millisecond = Duration::from_millis(1);
    // Many periods in each interval, so that each reading finds it busy.
    let quota = || CpuQuota::new(millisecond, 10 * millisecond);
    let (Some(full), Some(idle)) = (quota(), quota()) else {
        eprintln!("skipped: no cgroup with a CPU controller may be made here");
        return;
    };
    let busy = Busy::start_within(&full);
    let members = ["full", "idle"].map(|name| Member::answering_with(move |_| ok_response(name)));
    let [a, b] = members.each_ref().map(Member::address);
    let path = |quota: &CpuQuota| quota.path().display().to_string();
    let balancer = Balancer::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"127.0.0.1:0\"\nload = \"cpu\"\nslow_start = \"0s\"\nstrategy = \"least_loaded\"\n\
         members = [{{ address = \"{a}\", location = \"full\" }}, \
         {{ address = \"{b}\", location = \"idle\" }}]\n\
         [rule.web.cgroup]\ninterval = \"100ms\"\n\
         paths = {{ full = {:?}, idle = {:?} }}\n",
        path(&full),
        path(&idle)
    ));
    let cpu = |location| load(&balancer, location, "cpu");
    wait_until("loads are read", || {
        cpu("full").is_some_and(|load| load > 0.5) && cpu("idle") == Some(0.0)
    });
    // Few between two readings: until the next one, each is taken to add to the load.
    let source = "group=\"web\",source=\"cgroup\"";
    let taken = format!("evenkeel_reports_total{{{source},result=\"taken\"}}");
    let mut idle_has = 0;
    for _ in 0..20 {
        let before = metric(&balancer, &taken);
        wait_until("both are read again", || {
            metric(&balancer, &taken) >= before + 4.0
        });
        idle_has += answered_by(&balancer, "idle", 5);
    }
    assert!(idle_has > 75, "the idle one has {idle_has} of 100");
    // Without its process it is as idle as the other one, and without it unknown.
    drop(busy);
    wait_until("the load falls", || cpu("full") == Some(0.0));
    drop(full);
    wait_until("the load is unknown", || cpu("full").is_none());
    let gone = format!("evenkeel_reports_total{{{source},result=\"unreachable\"}}");
    assert!(metric(&balancer, &gone) > 0.0);
}
