//! Comparison of the strategies in virtual time, against a queue that knows all.
//!
//! ```text
//! cargo run --release -p evenkeel-sim --example balance -- [--json] [--seeds N] [--only TEXT] [STRATEGY...]
//! ```
//!
//! Each figure is a ratio to the best of two ideal queues (with and without knowledge
//! of each request's cost), in the same world with the same requests: 1.00 cannot be
//! beaten by much. `failed` is the share of all requests that failed.

mod catalogue;

use std::process::ExitCode;
use std::sync::Mutex;

use catalogue::catalogue;
use evenkeel_core::strategy::{self, Values};
use evenkeel_sim::{Dispatch, Outcomes, Scenario, run};

const USAGE: &str = "usage: balance [--json] [--seeds N] [--only TEXT] [STRATEGY...]";
const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

struct Options {
    json: bool,
    seeds: u64,
    only: String,
    strategies: Vec<Values>,
}

/// Ratios of one strategy in one scenario.
struct Row {
    scenario: String,
    strategy: &'static str,
    /// In the order of [`QUANTILES`].
    ratios: [f64; 3],
    failed: f64,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("{text}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let mut scenarios = catalogue();
    let texts: Vec<&str> = options.only.split('|').collect();
    scenarios.retain(|scenario| texts.iter().any(|text| scenario.name.contains(text)));
    let next = Mutex::new(0..scenarios.len());
    let rows: Vec<Mutex<Vec<Row>>> = scenarios.iter().map(|_| Mutex::default()).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(index) = next.lock().ok().and_then(|mut next| next.next()) else {
                        return;
                    };
                    let found = compare(&scenarios[index], &options);
                    if let Ok(mut rows) = rows[index].lock() {
                        *rows = found;
                    }
                }
            });
        }
    });
    let rows = rows.into_iter().filter_map(|rows| rows.into_inner().ok());
    let rows: Vec<Vec<Row>> = rows.collect();
    if options.json {
        print_json(&rows);
    } else {
        print_table(&rows);
    }
    ExitCode::SUCCESS
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        json: false,
        seeds: 3,
        only: String::new(),
        strategies: Vec::new(),
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--json" => options.json = true,
            "--seeds" => {
                let text = value()?;
                let number = text.parse().ok().filter(|&seeds| seeds > 0);
                options.seeds = number.ok_or(format!("--seeds {text}: not a number from 1"))?;
            }
            "--only" => options.only = value()?,
            name => {
                let kind = strategy::find(name).ok_or(format!("no strategy {name:?}"))?;
                options.strategies.push(Values::defaults(kind));
            }
        }
    }
    if options.strategies.is_empty() {
        let kinds = strategy::REGISTRY.iter();
        options.strategies = kinds.map(Values::defaults).collect();
    }
    Ok(options)
}

fn compare(scenario: &Scenario, options: &Options) -> Vec<Row> {
    let play = |dispatch: &Dispatch| -> Vec<Outcomes> {
        let seeds = 1..=options.seeds;
        seeds.map(|seed| run(scenario, dispatch, seed)).collect()
    };
    let ideals = [false, true].map(|knows_costs| play(&Dispatch::Central { knows_costs }));
    let row = |values: &Values| {
        let outcomes = play(&Dispatch::Strategy(values.clone()));
        let ratio = |quantile| {
            let ideals = ideals.each_ref().map(|ideal| mean(ideal, quantile));
            mean(&outcomes, quantile) / ideals[0].min(ideals[1])
        };
        let failed: f64 = outcomes.iter().map(Outcomes::failed_share).sum();
        Row {
            scenario: scenario.name.clone(),
            strategy: values.kind().name,
            ratios: QUANTILES.map(ratio),
            failed: failed / outcomes.len() as f64,
        }
    };
    options.strategies.iter().map(row).collect()
}

fn mean(outcomes: &[Outcomes], quantile: f64) -> f64 {
    let all = outcomes.iter().map(|run| run.quantile(quantile));
    all.map(|value| value.as_secs_f64()).sum::<f64>() / outcomes.len() as f64
}

fn print_table(rows: &[Vec<Row>]) {
    let Some(first) = rows.first() else { return };
    print!("{:24}", "p99, ratio to the ideal");
    for row in first {
        print!(" {:>12.12}", row.strategy);
    }
    println!();
    for rows in rows.iter().filter(|rows| !rows.is_empty()) {
        print!("{:24}", rows[0].scenario);
        for row in rows {
            print!(" {:12.2}", row.ratios[1]);
        }
        println!();
    }
    println!();
    println!(
        "{:24} {:20} {:>6} {:>6} {:>6} {:>8}",
        "", "", "p50", "p99", "p99.9", "failed"
    );
    for row in rows.iter().flatten() {
        let [p50, p99, p999] = row.ratios;
        println!(
            "{:24} {:20} {p50:6.2} {p99:6.2} {p999:6.2} {:7.2}%",
            row.scenario,
            row.strategy,
            100.0 * row.failed
        );
    }
}

/// Names hold neither quotes nor backslashes, so nothing needs escaping.
fn print_json(rows: &[Vec<Row>]) {
    let objects = rows.iter().flatten().map(|row| {
        let [p50, p99, p999] = row.ratios;
        format!(
            r#"  {{"scenario": "{}", "strategy": "{}", "p50": {p50:.4}, "p99": {p99:.4}, "p999": {p999:.4}, "failed": {:.6}}}"#,
            row.scenario, row.strategy, row.failed
        )
    });
    println!("[\n{}\n]", objects.collect::<Vec<_>>().join(",\n"));
}
