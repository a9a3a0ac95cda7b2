//! Advice from a log of a real run, and what happens when it is followed.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use evenkeel_e2e::balancer::{Balancer, run_evenkeel};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::member::{Member, ok_response};
use evenkeel_e2e::wait_until;
use evenkeel_e2e::wire::Wire;
use serde_json::Value;

const CLIENTS: usize = 2;
const REQUESTS: usize = 200;

/// A member that works on one request at a time, and takes at least this long for each.
fn member(time: Duration) -> Member {
    let worker = Mutex::new(());
    Member::answering_with(move |_| {
        let _one = worker.lock().unwrap();
        thread::sleep(time);
        ok_response("done")
    })
}

/// Asks and answers the share of the member of that address, as the log has it.
fn ask(config: &str, log: &Path, member: &str) -> f64 {
    let balancer = Balancer::start(config);
    let address = balancer.address("web");
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(move || {
                let mut wire = Wire::connect(address);
                for _ in 0..REQUESTS {
                    wire.send("GET /shop/7 HTTP/1.1\r\nHost: a\r\n\r\n");
                    assert_eq!(wire.read_response().second_word(), "200");
                }
            });
        }
    });
    let lines = || std::fs::read_to_string(log).unwrap_or_default();
    wait_until("all is logged", || {
        lines().lines().count() == CLIENTS * REQUESTS
    });
    let text = lines();
    let of = text.lines().filter(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["member"] == member
    });
    of.count() as f64 / (CLIENTS * REQUESTS) as f64
}

#[test]
fn what_a_log_advises_comes_true_when_it_is_followed() {
    let members = [2, 2, 50].map(|millis| member(Duration::from_millis(millis)));
    let addresses = members
        .each_ref()
        .map(|member| member.address().to_string());
    let folder = Folder::new();
    let config = |strategy: &str, log: &Path| {
        format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\noutput = \"{}\"\n\
             [group.app]\nmembers = {addresses:?}\nstrategy = \"{strategy}\"\nhealth_check = false\n\
             [rule.web]\nlisten = \"127.0.0.1:0\"\ngroup = \"app\"\n",
            log.display()
        )
    };
    let log = folder.path().join("before.log");
    let before = config("round_robin", &log);
    let share = ask(&before, &log, &addresses[2]);
    assert!((share - 1.0 / 3.0).abs() < 0.02, "{share}");
    // What is no line of a log is told, and does no harm.
    let mut text = std::fs::read_to_string(&log).unwrap();
    text += "what is this?\n";
    std::fs::write(&log, text).unwrap();

    let file = folder.write("evenkeel.toml", &before).display().to_string();
    let json = folder.path().join("advice.json").display().to_string();
    let log = log.display().to_string();
    let told = run_evenkeel(&["sim", &file, "--from-log", &log, "--json", &json]).unwrap();
    assert!(
        told.contains("line 401: no JSON: \"what is this?\""),
        "{told}"
    );
    let all: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let best = all["advice"]["best"].as_str().unwrap();
    let strategy = best.strip_prefix("strategy = ");
    let strategy = strategy.unwrap_or_else(|| panic!("{best:?} in {told}"));
    let points = all["points"].as_array().unwrap();
    let of = |change: &str| {
        let found = points
            .iter()
            .find(|point| point["values"]["change"] == change);
        let point = found.unwrap();
        let p90 = point["figures"]["p90_ms"]["mean"].as_f64().unwrap();
        (p90, point["first_run"]["shares"][2].as_f64().unwrap())
    };
    let ((old, old_share), (new, new_share)) = (of("as it is"), of(best));
    assert!(old > 40.0 && new < old / 2.0, "{told}");
    assert!(
        (old_share - share).abs() < 0.05 && new_share < old_share / 2.0,
        "{told}"
    );

    let log = folder.path().join("after.log");
    let share = ask(&config(strategy, &log), &log, &addresses[2]);
    assert!(
        share < old_share / 2.0,
        "{share} instead of {new_share} in {told}"
    );
}

#[test]
fn m5_a_log_of_several_groups_asks_for_the_option_and_names_them() {
    let folder = Folder::new();
    let two = "[rule.echo]\nlisten = \"127.0.0.1:1\"\nmembers = [\"127.0.0.1:2\"]\n\
               [rule.ws]\nlisten = \"127.0.0.1:3\"\nmembers = [\"127.0.0.1:4\"]\n";
    let file = folder.write("evenkeel.toml", two).display().to_string();
    let log = folder.write("access.log", "").display().to_string();
    let complaint = run_evenkeel(&["sim", &file, "--from-log", &log]).unwrap_err();
    assert!(
        complaint.contains("with --group NAME, one of echo, ws"),
        "{complaint}"
    );
    assert!(
        !complaint.contains("toml:1"),
        "nothing is wrong in the file: {complaint}"
    );
}
