//! Figures 4 and 6 where each back-end is a whole machine: with pending interrupts, and over RDMA.

use std::collections::{BTreeMap, BTreeSet};

use super::real;
use crate::csv::Csv;
use crate::findings::{Cell, Findings, Table};
use crate::machine::Need;
use crate::paper::{Play, Real};
use crate::run::Run;

/// The experiment.
pub(super) const EXPERIMENT: Play = Play {
    experiment: "rdma-machines",
    simulate: None,
    real: Some(Real { needs: NEEDS, run }),
};

/// Requirements of the run. It needs neither root nor quiet: machines are emulated by plain
/// processes, the cost of a request is CPU time by their own clocks, and everything is compared
/// within a round. It should not run beside work that takes the processors away for long.
const NEEDS: &[Need] = &[
    Need::Source,
    Need::DebianKernel,
    Need::Program("qemu-system-x86_64", "qemu-system-x86"),
    Need::Program("busybox", "busybox-static"),
    Need::Program("cpio", "cpio"),
    Need::Program("rdma", "iproute2"),
    Need::Program("clang", "clang"),
    Need::Quiet(0.5),
];

fn run(run: &Run<'_>) -> Result<Findings, String> {
    judge(&real::measure(run, "machines")?)
}

/// Values by scene, arm and figure, and there by round.
type Figures = BTreeMap<(String, String, String), BTreeMap<String, f64>>;

fn figures(csv: &Csv) -> Result<Figures, String> {
    let keys = ["scene", "arm", "figure", "round"];
    let mut all = Figures::new();
    for (key, value) in csv.sum_by_key("value", &keys, |_| true)? {
        if let Ok([scene, arm, figure, round]) = <[String; 4]>::try_from(key) {
            let rounds = all.entry((scene, arm, figure)).or_default();
            rounds.insert(round, value);
        }
    }
    Ok(all)
}

fn judge(csv: &Csv) -> Result<Findings, String> {
    let all = figures(csv)?;
    let of = |scene: &str, arm: &str, figure: &str| {
        all.get(&(scene.to_owned(), arm.to_owned(), figure.to_owned()))
    };
    let values = |scene: &str, arm: &str, figure: &str| -> Vec<f64> {
        of(scene, arm, figure).map_or_else(Vec::new, |rounds| rounds.values().copied().collect())
    };
    // In rounds that have both.
    let ratios = |scene: &str, figure: &str, one: &str, other: &str| -> Vec<f64> {
        let (Some(ones), Some(others)) = (of(scene, one, figure), of(scene, other, figure)) else {
            return Vec::new();
        };
        let pairs = ones
            .iter()
            .filter_map(|(round, one)| Some((one, others.get(round)?)));
        pairs.map(|(one, other)| one / other).collect()
    };
    let mut findings = Findings::default();
    let steady = |figure, one, other| ratios("steady", figure, one, other);
    let rate = "requests_per_s";
    for (claim, one, other) in [
        ("klm-over-pklm-rdma", "KLM by RDMA", "pKLM by RDMA"),
        ("klm-over-pklm-query", "KLM by query", "pKLM by query"),
        ("pklm-over-ulm-rdma", "pKLM by RDMA", "ULM by RDMA"),
        ("pklm-over-ulm-query", "pKLM by query", "ULM by query"),
        ("klm-over-ulm-rdma", "KLM by RDMA", "ULM by RDMA"),
        ("klm-over-ulm-query", "KLM by query", "ULM by query"),
        ("klm-over-static", "KLM by RDMA", "round robin"),
    ] {
        findings.add_measured(claim, steady(rate, one, other));
    }
    let changing = ratios("changing", rate, "KLM by RDMA", "ULM by RDMA");
    findings.add_measured("klm-over-ulm-changing", changing);
    findings.add_measured(
        "pending-seen",
        values("steady", "KLM by RDMA", "pending_share"),
    );
    findings.add_measured(
        "klm-fresher",
        steady("age_ms", "ULM by RDMA", "KLM by RDMA"),
    );
    findings.add_measured(
        "one-sided",
        steady("read_p99_ms", "ULM by query", "ULM by RDMA"),
    );
    let error = |one, other| ratios("accuracy", "error", one, other);
    findings.add_measured("klm-third", error("KLM by RDMA", "ULM by RDMA"));
    let moment = error("tasks of the moment by RDMA", "ULM by RDMA");
    findings.add_measured("klm-moment-third", moment);
    findings.add_measured("ulm-lags", error("ULM by RDMA", "KLM by RDMA"));

    type Column = (&'static str, &'static str);
    let balance: &[Column] = &[
        (rate, "requests per second"),
        ("p50_ms", "p50, ms"),
        ("p99_ms", "p99, ms"),
        ("to_loaded", "share to the loaded back-end"),
        ("failures", "failures"),
    ];
    let readings: &[Column] = &[
        ("read_ms", "time of a reading, ms"),
        ("read_p99_ms", "p99, ms"),
        ("age_ms", "age when it is there, ms"),
        ("age_p99_ms", "p99, ms"),
        ("pending_share", "share with pending interrupts"),
        ("pending", "pending, tasks per CPU"),
        ("readings", "readings"),
        ("missing", "missing"),
    ];
    let accuracy: &[Column] = &[("error", "mean absolute error"), ("readings", "readings")];
    let tables: [(&str, &str, &str, &[Column]); 5] = [
        (
            "steady",
            "steady",
            "One of two back-ends has other work all the time (figure 6)",
            balance,
        ),
        (
            "changing",
            "changing",
            "Other work comes and goes on both",
            balance,
        ),
        (
            "steady-readings",
            "steady",
            "Readings, one back-end with other work",
            readings,
        ),
        (
            "changing-readings",
            "changing",
            "Readings, other work that comes and goes",
            readings,
        ),
        (
            "accuracy",
            "accuracy",
            "Error of the CPU load, 0 to 1, read every 50 ms (figure 4)",
            accuracy,
        ),
    ];
    for (name, scene, title, columns) in tables {
        // Those that this scene has, by arm.
        let has = |arm: Option<&str>, figure: &str| {
            let mut keys = all.keys();
            keys.any(|(of, one, what)| {
                of == scene && what == figure && arm.is_none_or(|arm| arm == one)
            })
        };
        let columns: Vec<&Column> = columns
            .iter()
            .filter(|(figure, _)| has(None, figure))
            .collect();
        let Some((first, _)) = columns.first() else {
            continue;
        };
        let arms: BTreeSet<&str> = (all.keys())
            .map(|(_, arm, _)| arm.as_str())
            .filter(|arm| has(Some(arm), first))
            .collect();
        let row = |arm: &str| {
            let cells = columns.iter().map(|(figure, _)| {
                let values = values(scene, arm, figure);
                match values.is_empty() {
                    true => Cell::from("-"),
                    false => Cell::from(&values[..]),
                }
            });
            std::iter::once(Cell::from(arm)).chain(cells).collect()
        };
        let heads = columns.iter().map(|(_, head)| (*head).to_owned());
        findings.tables.push(Table {
            name,
            title: title.into(),
            head: std::iter::once("by".to_owned()).chain(heads).collect(),
            rows: arms.into_iter().map(row).collect(),
        });
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claim, Verdict};
    use crate::papers::find;
    use crate::record;

    /// Returns the table that `kernel machines` writes where KLM is `better` times as good as pKLM,
    /// and so on, in three rounds.
    fn written(better: f64) -> Csv {
        let mut text = String::from("scene,arm,round,figure,value\n");
        let mut put = |scene: &str, arm: &str, figure: &str, value: f64| {
            for round in 0..3 {
                let value = value * (1.0 + 0.001 * f64::from(round));
                text += &format!("{scene},{arm},{round},{figure},{value}\n");
            }
        };
        for scene in ["steady", "changing"] {
            put(scene, "round robin", "requests_per_s", 100.0);
            for way in ["RDMA", "query"] {
                let arms = [("ULM", 1.0), ("pKLM", better), ("KLM", better * better)];
                for (arm, times) in arms {
                    let arm = format!("{arm} by {way}");
                    put(scene, &arm, "requests_per_s", 120.0 * times);
                    put(scene, &arm, "age_ms", 10.0 / libm::pow(times, 20.0));
                    put(scene, &arm, "pending_share", 0.02 * (times - 1.0).max(0.0));
                }
            }
            put(scene, "ULM by RDMA", "read_p99_ms", 1.0);
            put(
                scene,
                "ULM by query",
                "read_p99_ms",
                libm::pow(better, 10.0),
            );
        }
        let error = 0.1 / libm::pow(better, 20.0);
        put("accuracy", "ULM by RDMA", "error", 0.1);
        put("accuracy", "KLM by RDMA", "error", error);
        put("accuracy", "tasks of the moment by RDMA", "error", error);
        Csv::parse(&text)
    }

    fn claims() -> &'static [Claim] {
        &find(EXPERIMENT.experiment)[0].1.claims
    }

    /// The verdict of each claim.
    fn verdicts(better: f64) -> BTreeMap<String, Verdict> {
        let found = judge(&written(better)).unwrap_or_default();
        assert!(found.tables.iter().any(|table| table.name == "accuracy"));
        let judged = record::judge_claims(claims(), &found).into_iter();
        judged.map(|(id, judged)| (id, judged.verdict)).collect()
    }

    #[test]
    fn what_the_machines_write_can_hold_and_can_fail() {
        let good = verdicts(1.5);
        assert_eq!(good.len(), claims().len());
        assert!(
            good.values().all(|verdict| *verdict == Verdict::Holds),
            "{good:?}"
        );
        let bad = verdicts(0.9);
        assert!(
            bad.values().all(|verdict| *verdict == Verdict::DoesNot),
            "{bad:?}"
        );
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let csv =
            Csv::parse("scene,arm,round,figure,value\nsteady,round robin,0,requests_per_s,1\n");
        let found = judge(&csv).unwrap_or_default();
        let judged = record::judge_claims(claims(), &found);
        assert!(
            judged
                .values()
                .all(|judged| judged.verdict == Verdict::CannotBeTold)
        );
        assert!(judge(&Csv::parse("a,b\n1,2\n")).is_err());
    }
}
