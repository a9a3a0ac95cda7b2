//! Figure 4: how well the load is known.

use std::time::Duration;

use crate::worlds::monitored::{Accuracy, Errors, accuracy};
use evenkeel_sim::svg::{Line, Scale};

use super::real;
use super::world::plot;
use crate::claim::{Claim, Rule};
use crate::findings::{Cell, Chart, Findings, Table};
use crate::paper::{Experiment, Real};
use crate::run::Run;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rdma-accuracy",
    title: "How near is the load that is read to the load that is there (figure 4)?",
    set_up: "A process for each of two CPUs loads it and sleeps in turn, for 200 to 800 ms each (the paper: \"for sometime\"), all in step. \
A process at the back-end writes the CPU load since its last turn into a page, every interval, and the front-end reads the page every interval: ULM. At the \
same moments the front-end reads the kernel: its CPU time since the reading before, and the number of tasks that run or wait at that moment. Errors are absolute, of the values at \
the moments of reading (as the paper's time stamps have it), against the true load of the 10 ms before. The interval is 50 ms in the paper.

*Tasks of the moment* is `running` of the product's record, by the number of CPUs, at most 1.",
    claims: &[
        Claim {
            id: "klm-third",
            says: "At one interval of 50 ms, KLM's error is at most a third of ULM's",
            published: "\"almost the same value with actual load values\" (section 5.1)",
            measured: "error of the CPU load since the last reading, to ULM's",
            unit: "times",
            rule: Rule::AtMost(1.0 / 3.0),
        },
        Claim {
            id: "klm-moment-third",
            says: "At one interval of 50 ms, the error of what the kernel has of the moment is at most a third of ULM's",
            published: "\"KLM can get accurate current load information\" (section 4)",
            measured: "error of the tasks of the moment, to ULM's",
            unit: "times",
            rule: Rule::AtMost(1.0 / 3.0),
        },
        Claim {
            id: "klm-third-10ms",
            says: "At one interval of 10 ms, KLM's error is at most a third of ULM's",
            published: "\"regardless of the t value\" (section 4)",
            measured: "error of the CPU load since the last reading, to ULM's",
            unit: "times",
            rule: Rule::AtMost(1.0 / 3.0),
        },
        Claim {
            id: "ulm-lags",
            says: "ULM lags behind the load: its error is above KLM's",
            published: "\"takes a while to get the updated load information\" (section 5.1)",
            measured: "ULM's error to KLM's at 50 ms",
            unit: "times",
            rule: Rule::AtLeast(1.1),
        },
    ],
    simulate: Some(simulate),
    real: Some(Real {
        set_up: "`kernel accuracy` of `bench`: processes run and sleep in turn, for 20 to 200 ms; the true load comes from their CPU clocks, read every 10 ms by a \
thread with a real-time priority. The error is taken every 10 ms, of the value that the front-end has then, so the age at the front-end counts, too. KLM is answered by XDP over a veth pair, ULM read in shared \
memory. A value for each kind of load: a process for each CPU; sixteen in step; sixteen that never rest beside a control group whose load is reported.",
        needs: real::NEEDS,
        run: real::accuracy,
    }),
};

const MILLIS: [u64; 5] = [10, 20, 50, 100, 200];

fn simulate(run: &Run<'_>) -> Findings {
    let of = |&millis: &u64, seed| {
        let of = Accuracy {
            cpus: 2,
            processes: 2,
            phase: (Duration::from_millis(200), Duration::from_millis(800)),
            interval: Duration::from_millis(millis),
            wait: Duration::from_micros(500),
            length: Duration::from_secs(run.scale(120, 20)),
        };
        accuracy(&of, seed)
    };
    let all = run.grid(&MILLIS, &run.seeds(20), of);
    let mut findings = Findings::default();
    type Error = fn(&Errors) -> f64;
    let (user, cpu, tasks): (Error, Error, Error) = (|of| of.user, |of| of.cpu, |of| of.tasks);
    let ratios = |at: usize, one: Error, other: Error| -> Vec<f64> {
        let runs = all.get(at).map_or(&[][..], Vec::as_slice);
        runs.iter().map(|of| one(of) / other(of)).collect()
    };
    findings.measured("klm-third", ratios(2, cpu, user));
    findings.measured("klm-moment-third", ratios(2, tasks, user));
    findings.measured("klm-third-10ms", ratios(0, cpu, user));
    findings.measured("ulm-lags", ratios(2, user, cpu));
    let arms: [(&str, Error); 3] = [
        ("ULM", user),
        ("KLM, CPU load since the last reading", cpu),
        ("KLM, tasks of the moment", tasks),
    ];
    let heads = MILLIS.iter().map(|millis| format!("every {millis} ms"));
    let row = |&(name, error): &(&str, Error)| {
        let cells = all.iter().map(|runs| {
            let values: Vec<f64> = runs.iter().map(error).collect();
            Cell::from(&values[..])
        });
        std::iter::once(Cell::from(name)).chain(cells).collect()
    };
    findings.tables.push(Table {
        name: "errors",
        title: "Mean absolute error of the CPU load, 0 to 1, at the moments of reading".into(),
        head: std::iter::once("read by".to_owned()).chain(heads).collect(),
        rows: arms.iter().map(row).collect(),
    });
    let shown = all.get(2).and_then(|runs| runs.first());
    let line = |(at, name): (usize, &str)| Line {
        name: name.into(),
        points: (shown.into_iter().flat_map(|of| &of.shown))
            .filter_map(|point| Some((*point.first()?, *point.get(at)?)))
            .collect(),
        ..Line::default()
    };
    let names = [
        "actual",
        "ULM",
        "KLM, CPU load since the last reading",
        "KLM, tasks of the moment",
    ];
    let lines = (1..).zip(names).map(line).collect();
    findings.charts.push(Chart {
        name: "time",
        title: "CPU load as it is read every 50 ms (figure 4)".into(),
        plot: plot("seconds", "CPU load", Scale::FromZero, lines),
    });
    findings.notes.push(
        "A change of the load is in one reading of KLM's CPU load wrongly, by as much of the window as was before it; ULM's page has the same window, and its age \
         in addition, 25 ms on average. So ULM's error is about twice KLM's at one interval, whatever the interval, and the third is \
         reached by what the kernel has of the moment. At 10 ms KLM's window is that of the true load."
            .into(),
    );
    findings
}
