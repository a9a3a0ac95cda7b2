//! Errors of the kernel for single entries, which leave everything else alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_e2e::balancer::{Balancer, evenkeel_binary};
use evenkeel_e2e::netns::FRONT;
use evenkeel_e2e::process::are_installed;
use evenkeel_e2e::wait_until;

use super::udp::ask;
use super::{BOTH, Family, Machines, echo};

/// Folder of another version's maps that the balancer cannot remove; gone when dropped.
struct StuckLayout(PathBuf);

impl StuckLayout {
    fn new(machines: &Machines) -> Self {
        let namespace = fs::metadata(machines.pair.front.path()).unwrap().ino();
        let folder = format!("/sys/fs/bpf/evenkeel/forward-99-{namespace}");
        let stuck = StuckLayout(folder.into());
        // The balancer removes pins of maps, and no folders.
        fs::create_dir_all(stuck.inner()).unwrap();
        stuck
    }

    fn inner(&self) -> PathBuf {
        self.0.join("evk_folder")
    }
}

impl Drop for StuckLayout {
    fn drop(&mut self) {
        // The balancer has removed it, if the test has succeeded.
        let _ = fs::remove_dir(self.inner());
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn s41_an_error_for_one_entry_is_told_and_forwarding_goes_on() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    let Some(balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    assert_eq!(machines.state(&balancer), "kernel");
    let client = machines.family.client();
    let (mut old, seen) = machines.connect().unwrap();
    assert_eq!(seen, client);
    let status = || {
        let front = &machines.pair.front;
        front.run_inside(|| balancer.run_ctl("status").unwrap())
    };
    assert!(!status().contains("errors of the kernel"));

    let stuck = StuckLayout::new(&machines);
    let count = || {
        let now = machines.forwarded(&balancer);
        // A process that has ended and begun forwarding counts from 0 on, and so does not get there.
        assert_eq!(now["active"], true, "{now}");
        now["entry_errors"]["counts"]["layout"].as_u64().unwrap()
    };
    wait_until("the error is counted in several looks", || count() >= 3);
    assert_eq!(machines.state(&balancer), "kernel");
    let now = machines.forwarded(&balancer);
    assert_eq!(now["entry_errors"]["counts"]["member"], 0, "{now}");
    let last = now["entry_errors"]["last"].as_str().unwrap();
    assert!(last.contains("evk_folder"), "{last}");
    let series = "evenkeel_forward_entry_errors_total{entry=\"layout\"}";
    let front = &machines.pair.front;
    let metric = front.run_inside(|| balancer.read_metric(series));
    assert!(metric >= Some(3.0), "{metric:?}");
    let text = status();
    assert!(
        text.contains("single entries of forwarding: layout "),
        "{text}"
    );
    assert!(text.contains("evk_folder"), "{text}");

    // The kernel takes new connections, and has the old one.
    for _ in 0..5 {
        let (mut stream, seen) = machines.connect().unwrap();
        assert_eq!(seen, client);
        echo(&mut stream, 5000);
    }
    echo(&mut old, 5000);
    fs::remove_dir(stuck.inner()).unwrap();
    wait_until("the other version is removed", || !stuck.0.exists());
    echo(&mut old, 5000);
    assert_eq!(machines.state(&balancer), "kernel");
}

impl Machines {
    fn run_tc(&self, words: &str, more: &[&str]) {
        let mut command = self.pair.front.command("tc");
        let status = command.args(words.split(' ')).args(more).status();
        assert!(status.unwrap().success(), "tc {words}");
    }

    /// Lets an interface of the balancer take no program: a filter is to see packets first, and filters of another protocol
    /// are in the places of all versions of the program.
    fn block_interface(&self, name: &str) {
        self.run_tc(&format!("qdisc add dev {name} clsact"), &[]);
        for priority in [7].into_iter().chain(3780..3818) {
            let words = format!("filter add dev {name} ingress pref {priority} protocol ip");
            self.run_tc(&words, &["bpf", "bytecode", "1,6 0 0 0"]);
        }
    }

    fn free_interface(&self, name: &str) {
        self.run_tc(&format!("qdisc del dev {name} clsact"), &[]);
    }

    /// Waits for errors of several looks at an interface, while forwarding goes on.
    fn wait_for_interface_errors(&self, balancer: &Balancer) {
        wait_until("the interface is refused in several looks", || {
            let now = self.forwarded(balancer);
            assert_eq!(now["active"], true, "{now}");
            now["entry_errors"]["counts"]["interface"].as_u64() >= Some(3)
        });
    }
}

#[test]
fn s41_the_proxy_serves_clients_behind_an_interface_that_takes_no_program() {
    let Some(machines) = Machines::new(Family::V4) else {
        return;
    };
    machines.start_member(2, Duration::ZERO);
    machines.block_interface("client1");
    let Some(balancer) = machines.start_balancer(&[2], "") else {
        return;
    };
    machines.wait_for_interface_errors(&balancer);
    assert_eq!(machines.state(&balancer), "kernel");
    let (mut old, seen) = machines.connect().unwrap();
    assert_eq!(seen, machines.family.balancer());
    let now = machines.forwarded(&balancer);
    let refused = &now["tc_interfaces"][0];
    assert_eq!(
        (&refused["name"], &refused["program"]),
        (&"client1".into(), &"proxy".into())
    );
    let front = &machines.pair.front;
    let status = front.run_inside(|| balancer.run_ctl("status").unwrap());
    assert!(status.contains("interface: "), "{status}");

    machines.free_interface("client1");
    wait_until("the kernel takes connections", || {
        machines.connect().unwrap().1 == machines.family.client()
    });
    echo(&mut old, 5000);
}

#[test]
fn s41_the_proxy_serves_rules_whose_members_are_behind_an_interface_that_takes_no_program() {
    for path in ["route", "nat"] {
        let Some(machines) = Machines::new(Family::V6) else {
            return;
        };
        machines.start_member(2, Duration::ZERO);
        machines.block_interface(FRONT);
        let more = format!("return_path = \"{path}\"");
        let Some(balancer) = machines.start_balancer(&[2], &more) else {
            return;
        };
        machines.wait_for_interface_errors(&balancer);
        let state = machines.state(&balancer);
        assert!(state.contains(FRONT), "{state}");
        let (mut old, seen) = machines.connect().unwrap();
        assert_eq!(seen, machines.family.balancer());
        machines.free_interface(FRONT);
        wait_until("the kernel forwards", || {
            machines.state(&balancer) == "kernel"
        });
        let packets = machines.count_packets(&balancer, "to_member");
        let (mut new, _) = machines.connect().unwrap();
        echo(&mut new, 5000);
        wait_until("packets are counted", || {
            machines.count_packets(&balancer, "to_member") > packets
        });
        echo(&mut old, 5000);
    }
}

#[test]
fn s41_without_the_right_to_load_programs_the_proxy_serves() {
    if !are_installed(&["setpriv"]) {
        return;
    }
    for family in BOTH {
        let Some(machines) = Machines::new(family) else {
            return;
        };
        machines.start_member(2, Duration::ZERO);
        machines.start_udp_member(2);
        let start = |config: &str| {
            let mut command = machines.pair.front.command("setpriv");
            command.args(["--bounding-set=-all", "--"]);
            command.arg(evenkeel_binary());
            machines.start_balancer_by(command, config)
        };
        let check_state = |balancer: &_| {
            let state = machines.state(balancer);
            assert!(
                state.starts_with("proxy (") && state.contains("CAP_BPF"),
                "{state}"
            );
            assert_eq!(machines.forwarded(balancer)["active"], false);
        };
        let config = machines.write_config("kernel", &[2], "");
        let Some(balancer) = start(&config) else {
            return;
        };
        check_state(&balancer);
        for _ in 0..3 {
            let (mut stream, seen) = machines.connect().unwrap();
            assert_eq!(seen, family.balancer());
            echo(&mut stream, 50_000);
        }
        drop(balancer);
        let balancer = start(&machines.write_udp_config("kernel", &[2], "")).unwrap();
        check_state(&balancer);
        let answer = ask(&machines.open_client(), 1000).unwrap();
        assert_eq!(answer.seen.ip(), family.balancer());
    }
}
