//! Figure 4: how well the load is known.

use std::time::Duration;

use crate::worlds::monitored::{Accuracy, Errors, play_accuracy};
use evenkeel_sim::svg::{Line, Scale};

use super::real;
use super::world::plot;
use crate::findings::{Cell, Chart, Findings, Table};
use crate::paper::{Play, Real};
use crate::run::Run;

/// The experiment.
pub(super) const EXPERIMENT: Play = Play {
    experiment: "rdma-accuracy",
    simulate: Some(simulate),
    real: Some(Real {
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
            length: Duration::from_secs(run.by_scale(120, 20)),
        };
        play_accuracy(&of, seed)
    };
    let all = run.run_grid(&MILLIS, &run.seeds(20), of);
    let mut findings = Findings::default();
    type Error = fn(&Errors) -> f64;
    let (user, cpu, tasks): (Error, Error, Error) = (|of| of.user, |of| of.cpu, |of| of.tasks);
    let ratios = |at: usize, one: Error, other: Error| -> Vec<f64> {
        let runs = all.get(at).map_or(&[][..], Vec::as_slice);
        runs.iter().map(|of| one(of) / other(of)).collect()
    };
    findings.add_measured("klm-third", ratios(2, cpu, user));
    findings.add_measured("klm-moment-third", ratios(2, tasks, user));
    findings.add_measured("klm-third-10ms", ratios(0, cpu, user));
    findings.add_measured("ulm-lags", ratios(2, user, cpu));
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
