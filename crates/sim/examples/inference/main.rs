//! Comparison of routers for engines of language models in virtual time: `make bench-inference`.
//!
//! ```text
//! cargo run --profile dist -p evenkeel-sim --example inference -- [--seeds N] [--first-seed N] [--only TEXT]
//!     [--routers LIST] [--balancers N [--silent]] [--traces FOLDER] [--add FILE] [--write FOLDER]
//! ```
//!
//! With `--balancers` each request comes to one of several, at random. Those of Evenkeel are a fleet, which tells each other
//! work and prompts; with `--silent` they are not.
//!
//! `--traces` is a folder with `conversation_trace.jsonl` and `synthetic_trace.jsonl` of Mooncake (FAST'25), which are
//! published with its source under Apache-2.0. Without it, made traces in the same format take their place. `--write`
//! writes `results.json` and the page `README.md`. `--add` takes the results of routers that are not played from an
//! earlier `results.json`: a run is the same each time, so a change of the strategy needs no new runs of the other rules. With `--routers none` the
//! program only writes the page anew.

mod page;
mod worlds;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use evenkeel_sim::TokenOutcomes;
use evenkeel_sim::inference::{Router, play_engines};
use worlds::{World, list_worlds, scenario};

const USAGE: &str = "usage: inference [--seeds N] [--first-seed N] [--only TEXT|TEXT...] [--routers NAME,NAME...] \
                     [--balancers N] [--silent] [--threads N] [--traces FOLDER] [--add FILE] [--write FOLDER]";

/// Arguments of the program.
struct Options {
    seeds: u64,
    first_seed: u64,
    only: String,
    routers: Vec<Router>,
    balancers: usize,
    is_silent: bool,
    threads: usize,
    traces: Option<PathBuf>,
    add: Option<PathBuf>,
    write: Option<PathBuf>,
}

/// Figures of a router in a world with one seed.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    first_token_mean: f64,
    first_token_p90: f64,
    token_gap_p90: f64,
    end_mean: f64,
    end_p90: f64,
    hit_share: f64,
}

/// Figures of all seeds.
struct Row {
    world: String,
    router: Router,
    runs: Vec<Figures>,
}

impl Row {
    fn mean(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        self.runs.iter().map(figure).sum::<f64>() / self.runs.len().max(1) as f64
    }
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("{text}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let mut worlds = match list_worlds(options.traces.as_deref()) {
        Ok(worlds) => worlds,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::FAILURE;
        }
    };
    let texts: Vec<&str> = options.only.split('|').collect();
    worlds.retain(|world| texts.iter().any(|text| world.name.contains(text)));
    let earlier = match options
        .add
        .as_deref()
        .map(|file| read_earlier(file, &options))
    {
        Some(Err(text)) => {
            eprintln!("{text}");
            return ExitCode::FAILURE;
        }
        Some(Ok(rows)) => rows,
        None => Vec::new(),
    };
    let mut rows = play_all(&worlds, &options);
    let is_wanted = |row: &Row| {
        let is_world = worlds.iter().any(|world| world.name == row.world);
        is_world && !options.routers.contains(&row.router)
    };
    rows.extend(earlier.into_iter().filter(is_wanted));
    rows.sort_by_key(|row| {
        let world = worlds.iter().position(|world| world.name == row.world);
        let router = Router::ALL.iter().position(|(_, of)| *of == row.router);
        (world, router)
    });
    let page = page::format_page(&rows, &options);
    println!("{page}");
    if let Some(folder) = &options.write {
        let json = page::format_json(&rows, &options);
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(folder.join("results.json"), json))
            .and_then(|()| std::fs::write(folder.join("README.md"), page));
        if let Err(error) = written {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn read_earlier(file: &Path, options: &Options) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
    let rows = text.and_then(|text| page::read_rows(&text, options));
    rows.map_err(|error| format!("{}: {error}", file.display()))
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        seeds: 20,
        first_seed: 1,
        only: String::new(),
        routers: Router::ALL.iter().map(|(_, router)| *router).collect(),
        balancers: 1,
        is_silent: false,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        traces: None,
        add: None,
        write: None,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.ok_or_else(|| format!("{argument} needs a value"))
        };
        let number = |text: String| {
            let number = text.parse::<u64>();
            number.map_err(|_| format!("{text} is no number"))
        };
        match argument.as_str() {
            "--seeds" => options.seeds = number(value()?)?.max(1),
            "--first-seed" => options.first_seed = number(value()?)?,
            "--threads" => options.threads = number(value()?)?.clamp(1, 1024) as usize,
            "--balancers" => {
                options.balancers = number(value()?)?.clamp(1, 1000) as usize;
            }
            "--silent" => options.is_silent = true,
            "--only" => options.only = value()?,
            "--traces" => options.traces = Some(value()?.into()),
            "--add" => options.add = Some(value()?.into()),
            "--write" => options.write = Some(value()?.into()),
            "--routers" => {
                let names = value()?;
                let find = |name: &str| {
                    let mut all = Router::ALL.iter();
                    let found = all.find(|(of, _)| *of == name).map(|(_, router)| *router);
                    found.ok_or_else(|| format!("{name} is no router"))
                };
                options.routers = match names.as_str() {
                    "none" => Vec::new(),
                    _ => names.split(',').map(find).collect::<Result<_, _>>()?,
                };
            }
            _ => return Err(format!("{argument} is unknown")),
        }
    }
    Ok(options)
}

/// Plays each world with each seed and each router. The prompts of a world and seed are the same for all routers.
fn play_all(worlds: &[World], options: &Options) -> Vec<Row> {
    let seeds = options.first_seed..options.first_seed + options.seeds;
    let jobs: Vec<(usize, u64)> = (0..worlds.len())
        .flat_map(|world| seeds.clone().map(move |seed| (world, seed)))
        .collect();
    let next = Mutex::new(jobs.iter());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                while let Some((world, seed)) = next.lock().ok().and_then(|mut next| next.next()) {
                    let of = &worlds[*world];
                    let prompts = of.workload.draw(*seed);
                    for router in &options.routers {
                        let is_fleet = options.balancers > 1 && !options.is_silent;
                        let scenario = scenario(of, *router, options.balancers, is_fleet);
                        let outcomes = play_engines(&scenario, &prompts, *seed, &mut |_| true);
                        let figures = measure(&outcomes);
                        eprintln!("{} {seed} {}: {figures:?}", of.name, router.name());
                        if let Ok(mut results) = results.lock() {
                            results.push((*world, *router, *seed, figures));
                        }
                    }
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_default();
    let mut rows = Vec::new();
    for (index, world) in worlds.iter().enumerate() {
        for router in &options.routers {
            let of = results.iter();
            let mut of: Vec<_> = of.filter(|of| (of.0, of.1) == (index, *router)).collect();
            of.sort_by_key(|(_, _, seed, _)| *seed);
            rows.push(Row {
                world: world.name.clone(),
                router: *router,
                runs: of.iter().map(|(_, _, _, figures)| *figures).collect(),
            });
        }
    }
    rows
}

fn measure(outcomes: &evenkeel_sim::Outcomes) -> Figures {
    let Some(tokens) = &outcomes.tokens else {
        return Figures::default();
    };
    let seconds = |of: Duration| of.as_secs_f64();
    Figures {
        first_token_mean: TokenOutcomes::mean_seconds(&tokens.first_tokens),
        first_token_p90: TokenOutcomes::quantile_seconds(&tokens.first_tokens, 0.9),
        token_gap_p90: TokenOutcomes::quantile_seconds(&tokens.token_gaps, 0.9),
        end_mean: seconds(outcomes.mean()),
        end_p90: seconds(outcomes.quantile(0.9)),
        hit_share: tokens.hit_share(),
    }
}
