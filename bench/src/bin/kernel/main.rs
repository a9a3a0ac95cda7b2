//! Accuracy, latency and cost of knowing a back-end's load from outside, and its value: the measurements of
//! Vaidyanathan, Jin, Narravula and Panda, *Accurate Load Monitoring for Cluster-based Web Data-Centers over
//! RDMA-enabled Networks* (2005).
//!
//! - `accuracy`: CPU load as each way of monitoring tells it, against the CPU clocks of the
//!   processes that make the load, read every 10 ms by a thread with a real-time priority
//!   (their figure 4).
//! - `latency`: time from query to answer on an idle machine and beside 16 busy processes.
//! - `cost`: CPU time per query on the back-end.
//! - `balance`: throughput and response times of eight web servers behind `evenkeel run`
//!   against the number of back-ends with other work, the popularity of documents and the
//!   polling interval, for one web site and for two (their figures 5 to 9).
//! - `machines`: the same with loaded back-ends that are whole emulated machines, where interrupts
//!   are pending, and over RDMA (Soft-RoCE). Only if it is named.
//!
//! The same in virtual time, where nothing else shares the machine: `evenkeel-lab run rdma`.
//!
//! Each part takes its arms in turns, one way and then the other way round, and keeps
//! medians. Results are written as CSV, plots and a table; what must be reached is judged at
//! the end.
//!
//! `kernel [accuracy] [latency] [cost] [balance] [machines] [--quick] [--evenkeel FILE]
//! [--against FILE] [--out FOLDER]`

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

mod accuracy;
mod ask;
mod balance;
mod bpf;
mod clock;
mod cost;
mod ground;
mod helper;
mod latency;
mod machines;
mod table;
mod traffic;

use table::Verdict;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Parser)]
struct Options {
    /// Parts to measure; all but `machines` if none is named.
    parts: Vec<Part>,
    /// Program to measure, built with the feature `kernel`.
    #[arg(long, default_value = "target/dist/evenkeel")]
    evenkeel: PathBuf,
    /// Another build of the program, whose responder takes turns with it in `cost`: for example the build before a
    /// change.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Folder of the results.
    #[arg(long, default_value = "bench/results/kernel")]
    out: PathBuf,
    /// A fifth of everything; also if BENCH_QUICK is set.
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Accuracy,
    Latency,
    Cost,
    Balance,
    Machines,
}

/// Settings that all parts share.
struct Run {
    evenkeel: PathBuf,
    against: Option<PathBuf>,
    out: PathBuf,
    quick: bool,
}

impl Run {
    /// The larger figure, or the smaller one in a quick run.
    fn scale<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.file(name);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()).into())
    }
}

fn main() -> ExitCode {
    // Programs of the measurement are this one with other arguments.
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(helper::WORD) {
        return helper::main(arguments);
    }
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kernel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let wanted = |part| match options.parts.as_slice() {
        [] => part != Part::Machines,
        parts => parts.contains(&part),
    };
    let evenkeel = options.evenkeel.canonicalize().map_err(|error| {
        let file = options.evenkeel.display();
        format!("{file}: {error}; build it with make build")
    })?;
    let against = options.against.as_ref().map(|file| {
        let found = file.canonicalize();
        found.map_err(|error| format!("{}: {error}", file.display()))
    });
    fs::create_dir_all(&options.out)?;
    let run = Run {
        evenkeel,
        against: against.transpose()?,
        out: options.out.clone(),
        quick: options.quick || std::env::var_os("BENCH_QUICK").is_some_and(|is| is != "0"),
    };
    if options.parts != [Part::Machines] {
        ground::check_machine()?;
    }
    type Measure = fn(&Run) -> Result<Vec<Verdict>>;
    let parts: [(Part, &str, Measure); 5] = [
        (Part::Accuracy, "accuracy", accuracy::measure),
        (Part::Latency, "latency", latency::measure),
        (Part::Cost, "cost", cost::measure),
        (Part::Balance, "balance", balance::measure),
        (Part::Machines, "machines", machines::measure),
    ];
    let mut verdicts = Vec::new();
    let mut failed = Vec::new();
    for (part, name, measure) in parts {
        if !wanted(part) {
            continue;
        }
        println!("== {name}");
        let start = std::time::Instant::now();
        // A part that fails does not keep the others from running. Each part has a thread of its own: a part that pins
        // itself to a processor does not pin the next one.
        let alone = || measure(&run).map_err(|error| error.to_string());
        let done = std::thread::scope(|scope| scope.spawn(alone).join());
        match done.unwrap_or_else(|_| Err("it has panicked".into())) {
            Ok(found) => verdicts.extend(found),
            Err(error) => {
                println!("{name} failed: {error}");
                failed.push(name);
            }
        }
        println!("({name}: {:.0} s)\n", start.elapsed().as_secs_f64());
    }
    let table = Verdict::format_table(&verdicts);
    println!("{table}");
    keep(&run.file("verdicts.md"), &verdicts)?;
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("{} not measured", failed.join(", ")).into())
    }
}

/// Writes verdicts; the verdicts of parts that have not run now stay.
fn keep(file: &Path, verdicts: &[Verdict]) -> Result<()> {
    let before = fs::read_to_string(file).unwrap_or_default();
    fs::write(file, Verdict::merge(&before, verdicts))?;
    Ok(())
}
