//! Errors of the kernel for single entries, which leave everything else alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_e2e::balancer::evenkeel_binary;
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
