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
    let since_last: Error = |of| of.since_last;
    let ratios = |at: usize, one: Error, other: Error| -> Vec<f64> {
        let runs = all.get(at).map_or(&[][..], Vec::as_slice);
        runs.iter().map(|of| one(of) / other(of)).collect()
    };
    findings.add_measured("klm-third", ratios(2, cpu, user));
    findings.add_measured("klm-tenth", ratios(2, cpu, user));
    findings.add_measured("klm-moment-third", ratios(2, tasks, user));
    findings.add_measured("klm-third-10ms", ratios(0, cpu, user));
    findings.add_measured("ulm-lags", ratios(2, user, cpu));
    let arms: [(&str, Error); 4] = [
        ("ULM", user),
        ("KLM", cpu),
        ("kernel, CPU load since the last reading", since_last),
        ("kernel, tasks of the moment", tasks),
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
    let names = ["actual", "ULM", "KLM", "kernel, tasks of the moment"];
    let lines = (1..).zip(names).map(line).collect();
    findings.charts.push(Chart {
        name: "time",
        title: "CPU load as it is read every 50 ms (figure 4)".into(),
        plot: plot("seconds", "CPU load", Scale::FromZero, lines),
    });
    findings.notes.push(
        "The figures follow from arithmetic. The truth is the load of the last 10 ms. A reading with a longer window counts a change of the load \
         wrongly by as much of the window as was before the change: summed up over time, by half of the difference of the windows, (50 - 10) / 2 = \
         20 ms for a window of 50 ms. ULM's page has this window, and its age in addition, 25 ms on average: 45 ms. So the CPU load since the last \
         reading cannot be better than 20 / 45 = 0.44 of ULM at one interval, however fresh it is. KLM's window of 10 to 20 ms makes \
         (15 - 10) / 2 = 2.5 ms, 0.06 of ULM's. The load changes every 500 ms, so the errors are these times divided by 500 ms. \
         The tasks of the moment have no window, and are wrong by the half of the truth's: 5 ms."
            .into(),
    );
    findings
}
