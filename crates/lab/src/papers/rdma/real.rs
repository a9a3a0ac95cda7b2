//! Experiments of the paper with real programs: parts of `kernel` of `bench`, whose tables are
//! read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use crate::csv::Csv;
use crate::findings::Findings;
use crate::machine::Need;
use crate::programs::{self, Folder};
use crate::run::{Run, Scale};

/// Requirements of the real runs.
pub(super) const NEEDS: &[Need] = &[
    Need::Root,
    Need::Source,
    Need::Program("clang", "clang"),
    Need::Program("bpftool", "bpftool"),
    Need::Program("make", "make"),
    Need::Quiet(0.15),
];

/// Names a folder with the programs `kernel` and `evenkeel`, so that none are built.
const PROGRAMS: &str = "EVENKEEL_LAB_PROGRAMS";

/// Returns the folder of the programs: the one in [`PROGRAMS`], or else the programs are built now.
fn programs() -> Result<PathBuf, String> {
    if let Some(folder) = std::env::var_os(PROGRAMS) {
        return Ok(folder.into());
    }
    let build = "scripts/setup kernel && cargo build --release -p evenkeel -p evenkeel-bench --bin evenkeel --bin kernel \
                 $(scripts/features)";
    programs::run(
        "building the measurement",
        Command::new("sh").args(["-c", build]),
    )?;
    Ok("target/release".into())
}

/// Runs a part, and reads the table that it writes.
pub(super) fn measure(run: &Run<'_>, part: &str) -> Result<Csv, String> {
    let programs = programs()?;
    (run.progress)(0.1);
    let folder = Folder::new(part)?;
    let mut kernel = Command::new(programs.join("kernel"));
    kernel
        .arg(part)
        .arg("--evenkeel")
        .arg(programs.join("evenkeel"));
    kernel.arg("--out").arg(folder.path());
    if run.scale == Scale::Quick {
        kernel.arg("--quick");
    }
    programs::run(&format!("kernel {part}"), &mut kernel)?;
    let file = folder.path().join(format!("{part}.csv"));
    let csv = Csv::read(&file)?;
    (run.progress)(1.0);
    Ok(csv)
}

/// Figure 4: a value for each kind of load.
pub(super) fn accuracy(run: &Run<'_>) -> Result<Findings, String> {
    judge_accuracy(&measure(run, "accuracy")?)
}

fn judge_accuracy(csv: &Csv) -> Result<Findings, String> {
    let errors = csv.sum_by_key("error_when_read", &["arm", "scene"], |_| true)?;
    let ratios = |one: &str, other: &str| -> Vec<f64> {
        let error = |arm: &str, scene: &str| errors.get(&vec![arm.to_owned(), scene.to_owned()]);
        let scenes = ["alone", "bursts", "beside"];
        let pairs = scenes
            .iter()
            .filter_map(|scene| Some((error(one, scene)?, error(other, scene)?)));
        pairs.map(|(one, other)| one / other).collect()
    };
    let mut findings = Findings::default();
    let (klm, ulm) = (
        "KLM, asked every 50 ms",
        "ULM every 50 ms, read every 50 ms",
    );
    findings.add_measured("klm-third", ratios(klm, ulm));
    findings.add_measured("ulm-lags", ratios(ulm, klm));
    findings.add_measured("klm-third-10ms", ratios("KLM", "ULM every 10 ms"));
    findings
        .tables
        .push(csv.table("errors", "Mean absolute error of the CPU load, 0 to 1: every 10 ms of the value that was known then, and at the moments of reading"));
    Ok(findings)
}

/// Figure 6: a value for each turn.
pub(super) fn loaded(run: &Run<'_>) -> Result<Findings, String> {
    judge_loaded(&measure(run, "balance")?)
}

fn judge_loaded(csv: &Csv) -> Result<Findings, String> {
    let is_loaded = |row: &BTreeMap<&str, &str>| {
        let x = row.get("x").and_then(|x| x.parse::<f64>().ok());
        row.get("sweep") == Some(&"loaded") && x.is_some_and(|x| x > 0.0 && x < 8.0)
    };
    let figures = csv.sum_by_key("site_requests_per_s", &["arm", "turn", "x"], is_loaded)?;
    let ratios = |one: &str, other: &str| -> Vec<f64> {
        let mut by_turn: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (key, figure) in &figures {
            if let [arm, turn, x] = &key[..]
                && arm == one
                && let Some(than) = figures.get(&vec![other.to_owned(), turn.clone(), x.clone()])
            {
                by_turn.entry(turn).or_default().push(figure / than);
            }
        }
        let mean = |ratios: Vec<f64>| ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
        by_turn.into_values().map(mean).collect()
    };
    let mut findings = Findings::default();
    findings.add_measured("klm-over-pklm-1", ratios("KLM", "pKLM"));
    findings.add_measured("pklm-over-ulm-1", ratios("pKLM", "ULM"));
    findings.add_measured("klm-over-static-1", ratios("KLM", "round robin"));
    findings.add_measured("klm-over-ulm-1", ratios("KLM", "ULM"));
    findings.add_measured("ulm-over-static-1", ratios("ULM", "round robin"));
    findings
        .tables
        .push(csv.table("all", "All turns of all series of `kernel balance`"));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_come_out_of_the_tables_that_the_programs_write() {
        let csv = Csv::parse(
            "sweep,x,arm,turn,site_requests_per_s,p99_ms\nloaded,2.00,\"KLM\",0,90.0 30.0,1\n\
             loaded,2.00,\"pKLM\",0,100.0,1\nloaded,4.00,\"KLM\",0,80,1\nloaded,4.00,\"pKLM\",0,100,1\n\
             loaded,0.00,\"KLM\",0,1,1\nloaded,0.00,\"pKLM\",0,100,1\nloaded,2.00,\"ULM, old\",0,50,1\n",
        );
        let found = judge_loaded(&csv).unwrap_or_default();
        assert_eq!(found.values.get("klm-over-pklm-1"), Some(&vec![1.0]));
        assert_eq!(found.values.get("pklm-over-ulm-1"), Some(&vec![]));
        let csv = Csv::parse(
            "scene,arm,error_when_read\nalone,\"KLM\",0.1\nalone,\"ULM every 10 ms\",0.4\n\
             beside,\"KLM\",0.1\nbeside,\"ULM every 10 ms\",0.2\n",
        );
        let found = judge_accuracy(&csv).unwrap_or_default();
        assert_eq!(found.values.get("klm-third-10ms"), Some(&vec![0.25, 0.5]));
    }

    #[test]
    fn tables_of_another_form_are_refused() {
        assert!(judge_loaded(&Csv::parse("a,b\n1,2\n")).is_err());
        let text = "sweep,x,arm,turn,site_requests_per_s\nloaded,2,KLM,0,many\n";
        assert!(judge_loaded(&Csv::parse(text)).is_err());
    }
}
