//! The measurement on whole machines runs through and writes what the lab reads; quick, so its figures mean
//! nothing.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::vm::Image;
use evenkeel_e2e::{balancer, process};

#[test]
#[ignore = "takes minutes, and a machine with nothing else to do: make test-vm"]
fn machines_are_measured_and_all_that_is_judged_is_written() {
    if let Err(lacking) = Image::build(&[]) {
        return process::report_skipped(&lacking);
    }
    let evenkeel = balancer::evenkeel_binary();
    let mut status = Command::new(evenkeel);
    let status = status.args(["kernel", "status", "lo"]).output().unwrap();
    if String::from_utf8_lossy(&status.stderr).contains("built without") {
        return process::report_skipped(
            "this evenkeel was built without BPF: scripts/setup kernel",
        );
    }
    let folder = Folder::new();
    let output = Command::new(env!("CARGO_BIN_EXE_kernel"))
        .args(["machines", "--quick", "--evenkeel"])
        .arg(evenkeel)
        .arg("--out")
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");

    let text = fs::read_to_string(folder.join("machines.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("scene,arm,round,figure,value"));
    let mut all: BTreeMap<[String; 3], f64> = BTreeMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let [scene, arm, _, figure, value] = cells[..] else {
            panic!("{line}");
        };
        all.insert(
            [scene, arm, figure].map(str::to_owned),
            value.parse().unwrap(),
        );
    }
    let of = |scene: &str, arm: &str, figure: &str| {
        let found = all.get(&[scene, arm, figure].map(str::to_owned));
        *found.unwrap_or_else(|| panic!("{scene}, {arm}: no {figure}\n{text}"))
    };
    for scene in ["steady", "changing"] {
        let arms = ["ULM", "pKLM", "KLM", "composite"];
        let arms = ["RDMA", "query"].map(|way| arms.map(|arm| format!("{arm} by {way}")));
        for arm in arms.iter().flatten() {
            assert!(of(scene, arm, "requests_per_s") > 0.0, "{text}");
            assert!(of(scene, arm, "readings") > 0.0, "{text}");
            assert!(of(scene, arm, "read_p99_ms") > 0.0, "{text}");
            assert!(of(scene, arm, "age_ms") >= 0.0, "{text}");
            assert!((0.0..=1.0).contains(&of(scene, arm, "pending_share")));
            assert_eq!(of(scene, arm, "failures"), 0.0);
        }
        assert!(of(scene, "round robin", "requests_per_s") > 0.0, "{text}");
        assert!(of(scene, "round robin", "p99_ms") > 0.0, "{text}");
    }
    for arm in ["ULM", "KLM", "tasks of the moment"] {
        for way in ["RDMA", "query"] {
            let error = of("accuracy", &format!("{arm} by {way}"), "error");
            assert!((0.0..=1.0).contains(&error), "{text}");
        }
    }
}
