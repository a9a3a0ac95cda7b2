//! Figures 4 and 6 where each back-end is a whole machine: with pending interrupts, and over RDMA.

use std::collections::{BTreeMap, BTreeSet};

use super::real;
use crate::claim::{Claim, Rule};
use crate::csv::Csv;
use crate::findings::{Cell, Findings, Table};
use crate::machine::Need;
use crate::paper::{Experiment, Real};
use crate::run::Run;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rdma-machines",
    title: "ULM, pKLM and KLM where back-ends are whole machines, over RDMA and by query (figures 4 and 6)",
    set_up: "Three machines, emulated by QEMU in software (no KVM) with Debian's kernel and one processor each: a front-end and two back-ends, with a cable from the front-end to each. \
On each back-end: a web server with the documents of the other experiments (1 ms, or 8 ms on average, of CPU time by the clock of that machine, so that the speed of the emulation \
does not count); the paper's other work (sixteen processes in pairs that send each other 4 KB and back over TCP); the responder of the kernel (XDP) and the kernel's load page over RDMA; and ULM's process, `evenkeel kernel \
serve`, which writes its page over RDMA every 50 ms and answers queries from `/proc`. It is stopped for all arms but ULM's. The kernel's page is there in all arms, so what it costs is, too.

On the front-end: four clients in a closed loop, Zipf exponent 0.9, which go to the back-ends themselves by the product's group (`k_least_loaded`, of two members the less loaded), and a thread that reads all loads every 50 ms.

Arms differ in what is read and how. *By RDMA*: one-sided reads of a page (Soft-RoCE): ULM's, or the kernel's. *By query*: a UDP query, which ULM's process answers, or the kernel. **ULM** and **pKLM** are the CPU load; **KLM** is \
the CPU load and pending interrupts (packets that wait, 64 for a task, and threads for soft interrupts that have work), as in the paper, so it differs from pKLM in these alone; *composite* is the product's load, with the tasks of the moment. *Steady*: one of the two \
back-ends has the other work all the time, in each round another one. *Changing*: on both it comes and goes, for half a second each on average, at the same times for all arms of a round.

*Accuracy*: a process runs and sleeps in turn, for 200 to 800 ms; all four readings are made every 50 ms, and the error is the difference to the CPU time that the processes had in the 10 ms before, sampled on the back-end by a thread \
with a real-time priority.

Arms take turns, in each second round in reverse. All ratios are of one round. Clocks of the machines are compared by queries before and after each turn. *At least as good* is to within 1 %.",
    claims: &[
        Claim {
            id: "klm-over-pklm-rdma",
            says: "Over RDMA, KLM is at least as good as pKLM",
            published: "\"KLM can achieve higher throughput\" (section 5.3)",
            measured: "throughput of KLM to that of pKLM, one back-end loaded",
            unit: "times",
            rule: Rule::AtLeast(0.99),
        },
        Claim {
            id: "klm-over-pklm-query",
            says: "By query, KLM is at least as good as pKLM",
            published: "\"KLM can achieve higher throughput\" (section 5.3)",
            measured: "throughput of KLM to that of pKLM, one back-end loaded",
            unit: "times",
            rule: Rule::AtLeast(0.99),
        },
        Claim {
            id: "pklm-over-ulm-rdma",
            says: "Over RDMA, pKLM is at least as good as ULM",
            published: "\"consistently better\" (section 5.2)",
            measured: "throughput of pKLM to that of ULM, one back-end loaded",
            unit: "times",
            rule: Rule::AtLeast(0.99),
        },
        Claim {
            id: "pklm-over-ulm-query",
            says: "By query, pKLM is at least as good as ULM",
            published: "\"consistently better\" (section 5.2)",
            measured: "throughput of pKLM to that of ULM, one back-end loaded",
            unit: "times",
            rule: Rule::AtLeast(0.99),
        },
        Claim {
            id: "klm-over-static",
            says: "KLM over RDMA has a significantly better throughput than round robin",
            published: "\"significantly better\" (section 5.3)",
            measured: "throughput of KLM to that of round robin, one back-end loaded",
            unit: "times",
            rule: Rule::AtLeast(1.1),
        },
        Claim {
            id: "klm-over-ulm-changing",
            says: "Where other work comes and goes, KLM over RDMA is at least as good as ULM",
            published: "\"KLM can obtain more detailed and timely accurate information\" (section 5.3)",
            measured: "throughput of KLM to that of ULM, both back-ends loaded now and then",
            unit: "times",
            rule: Rule::AtLeast(0.99),
        },
        Claim {
            id: "pending-seen",
            says: "Beside other work that communicates, interrupts are pending when the load is read",
            published: "\"pending software interrupts … helps in predicting the load\" (section 3)",
            measured: "share of KLM's readings over RDMA in which some were, one of two back-ends loaded",
            unit: "",
            rule: Rule::AtLeast(0.01),
        },
        Claim {
            id: "klm-fresher",
            says: "The kernel's page is fresher than a process's",
            published: "\"regardless of the t value, KLM can get accurate current load\" (section 4)",
            measured: "mean age of ULM's page when it is there to that of the kernel's page, one back-end loaded",
            unit: "times",
            rule: Rule::AtLeast(3.0),
        },
        Claim {
            id: "one-sided",
            says: "One-sided reads do not wait for the back-end as two-sided communication does",
            published: "\"resilient and well-conditioned to the load on the servers\" (section 4)",
            measured: "99th percentile of the time that a question to ULM's process takes to that of a read of its page, one back-end loaded",
            unit: "times",
            rule: Rule::AtLeast(1.5),
        },
        Claim {
            id: "klm-third",
            says: "At one interval of 50 ms, KLM's error is at most a third of ULM's, both over RDMA",
            published: "\"almost the same value with actual load values\" (section 5.1)",
            measured: "error of the CPU load since the last reading, to ULM's",
            unit: "times",
            rule: Rule::AtMost(1.0 / 3.0),
        },
        Claim {
            id: "klm-moment-third",
            says: "At one interval of 50 ms, the error of what the kernel has of the moment is at most a third of ULM's, both over RDMA",
            published: "\"KLM can get accurate current load information\" (section 4)",
            measured: "error of the tasks of the moment, to ULM's",
            unit: "times",
            rule: Rule::AtMost(1.0 / 3.0),
        },
        Claim {
            id: "ulm-lags",
            says: "ULM lags behind the load: its error is above KLM's, both over RDMA",
            published: "\"takes a while to get the updated load information\" (section 5.1)",
            measured: "ULM's error to KLM's at 50 ms",
            unit: "times",
            rule: Rule::AtLeast(1.1),
        },
    ],
    simulate: None,
    real: Some(Real {
        set_up: "`kernel machines` of `bench`. A value for each round.",
        needs: NEEDS,
        run,
    }),
};

/// What it takes. Neither root nor quiet: machines are emulated by plain processes, what a request costs is CPU time by their
/// own clocks, and everything is compared within a round; but not beside work that takes the processors away for long.
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
    for (key, value) in csv.figures("value", &keys, |_| true)? {
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
    findings.measured(
        "klm-over-pklm-rdma",
        steady(rate, "KLM by RDMA", "pKLM by RDMA"),
    );
    findings.measured(
        "klm-over-pklm-query",
        steady(rate, "KLM by query", "pKLM by query"),
    );
    findings.measured(
        "pklm-over-ulm-rdma",
        steady(rate, "pKLM by RDMA", "ULM by RDMA"),
    );
    findings.measured(
        "pklm-over-ulm-query",
        steady(rate, "pKLM by query", "ULM by query"),
    );
    findings.measured(
        "klm-over-static",
        steady(rate, "KLM by RDMA", "round robin"),
    );
    let changing = ratios("changing", rate, "KLM by RDMA", "ULM by RDMA");
    findings.measured("klm-over-ulm-changing", changing);
    findings.measured(
        "pending-seen",
        values("steady", "KLM by RDMA", "pending_share"),
    );
    findings.measured(
        "klm-fresher",
        steady("age_ms", "ULM by RDMA", "KLM by RDMA"),
    );
    findings.measured(
        "one-sided",
        steady("read_p99_ms", "ULM by query", "ULM by RDMA"),
    );
    let error = |one, other| ratios("accuracy", "error", one, other);
    findings.measured("klm-third", error("KLM by RDMA", "ULM by RDMA"));
    let moment = error("tasks of the moment by RDMA", "ULM by RDMA");
    findings.measured("klm-moment-third", moment);
    findings.measured("ulm-lags", error("ULM by RDMA", "KLM by RDMA"));

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
    use crate::claim::Verdict;
    use crate::record;

    /// What `kernel machines` writes where KLM is `better` times as good as pKLM, and so on, in three rounds.
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
                    put(scene, &arm, "age_ms", 10.0 / times.powi(20));
                    put(scene, &arm, "pending_share", 0.02 * (times - 1.0).max(0.0));
                }
            }
            put(scene, "ULM by RDMA", "read_p99_ms", 1.0);
            put(scene, "ULM by query", "read_p99_ms", better.powi(10));
        }
        let error = 0.1 / better.powi(20);
        put("accuracy", "ULM by RDMA", "error", 0.1);
        put("accuracy", "KLM by RDMA", "error", error);
        put("accuracy", "tasks of the moment by RDMA", "error", error);
        Csv::parse(&text)
    }

    /// The verdict of each claim.
    fn verdicts(better: f64) -> BTreeMap<String, Verdict> {
        let found = judge(&written(better)).unwrap_or_default();
        assert!(found.tables.iter().any(|table| table.name == "accuracy"));
        let judged = record::judge(&EXPERIMENT, &found).into_iter();
        judged.map(|(id, judged)| (id, judged.verdict)).collect()
    }

    #[test]
    fn what_the_machines_write_can_hold_and_can_fail() {
        let good = verdicts(1.5);
        assert_eq!(good.len(), EXPERIMENT.claims.len());
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
        let judged = record::judge(&EXPERIMENT, &found);
        assert!(
            judged
                .values()
                .all(|judged| judged.verdict == Verdict::CannotBeTold)
        );
        assert!(judge(&Csv::parse("a,b\n1,2\n")).is_err());
    }
}
