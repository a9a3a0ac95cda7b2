//! Cost and latency of balancing below HTTP: rules with `forward = "kernel"` beside our proxy, nftables and IPVS, and
//! UDP rules beside nginx and Envoy.
//!
//! - `cost`: CPU time of a short connection, an exchange and a MiB, above that of a plain router.
//! - `udp`: the same of a query with an answer.
//! - `latency`: what clients wait while one member of four is slow, fails or has other work.
//! - `cuts`: connections that are cut by changes of members, reloads, a kill and an upgrade.
//! - `memory`: memory of open connections.
//! - `decision`: time of the program for a SYN among one member and among 64.
//! - `packets`: time of a packet of 64 bytes in the middle of a connection, by tc, by native XDP and through a router.
//!
//! Clients, balancer and members are network namespaces, joined by veth. `l4 [PART...] [--quick]`, as root. README.md
//! says how each part measures.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use evenkeel_bench::arms::Places;
use evenkeel_bench::server::{processors, raise_file_limit};

mod cost;
mod cuts;
mod ground;
mod latency;
mod memory;
mod packets;
mod results;
mod traffic;

use results::Results;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Parser)]
#[command(
    about = "Balancing below HTTP: rules that the kernel forwards, UDP rules, and their peers"
)]
struct Options {
    /// Parts to measure; all if none is named.
    parts: Vec<Part>,
    /// Program to measure, built with the feature `kernel`.
    #[arg(long, default_value = "target/dist/evenkeel")]
    evenkeel: PathBuf,
    /// Rounds of each part.
    #[arg(long)]
    rounds: Option<usize>,
    /// Less of everything; also if BENCH_QUICK is 1.
    #[arg(long)]
    quick: bool,
    /// Answer connections at this port, and measure nothing: members of the part `cuts`.
    #[arg(long, hide = true)]
    answer: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Cost,
    Udp,
    Latency,
    Cuts,
    Memory,
    Decision,
    Packets,
}

impl Part {
    const ALL: [Self; 7] = [
        Self::Cost,
        Self::Udp,
        Self::Latency,
        Self::Cuts,
        Self::Memory,
        Self::Decision,
        Self::Packets,
    ];

    fn measure(self, run: &Run, results: &mut Results) -> Result<()> {
        match self {
            Self::Cost => cost::measure_tcp(run, results),
            Self::Udp => cost::measure_udp(run, results),
            Self::Latency => latency::measure(run, results),
            Self::Cuts => cuts::measure(run, results),
            Self::Memory => memory::measure_memory(run, results),
            Self::Decision => memory::measure_decision(run, results),
            Self::Packets => packets::measure(run, results),
        }
    }
}

/// Settings that all parts share.
struct Run {
    evenkeel: PathBuf,
    places: Places,
    /// Processor of everything whose CPU time is measured.
    cpu: usize,
    rounds: Option<usize>,
    quick: bool,
}

impl Run {
    /// The larger figure, or the smaller one in a quick run.
    fn scale<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    fn rounds(&self, full: usize, quick: usize) -> usize {
        self.rounds.unwrap_or_else(|| self.scale(full, quick))
    }
}

fn main() -> ExitCode {
    match measure(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("l4: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: Options) -> Result<()> {
    if let Some(port) = options.answer {
        raise_file_limit()?;
        return cuts::answer_connections(port);
    }
    let evenkeel = fs::canonicalize(&options.evenkeel)
        .map_err(|error| format!("{}: {error}", options.evenkeel.display()))?;
    let bench = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let places = Places {
        cache: bench.join(".cache"),
        programs: evenkeel.parent().ok_or("no folder of programs")?.into(),
        bench,
        before: None,
    };
    fs::create_dir_all(&places.cache)?;
    raise_file_limit()?;
    let run = Run {
        evenkeel,
        places,
        cpu: *processors()?.last().ok_or("no processor")?,
        rounds: options.rounds,
        quick: options.quick || std::env::var("BENCH_QUICK").is_ok_and(|value| value == "1"),
    };
    // SAFETY: takes nothing, and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("All parts are skipped: they need root, for network namespaces and BPF programs.");
        return Ok(());
    }
    let mut results = Results::default();
    let is_whole = options.parts.is_empty() && options.rounds.is_none();
    for part in Part::ALL {
        if !options.parts.is_empty() && !options.parts.contains(&part) {
            continue;
        }
        println!("Measuring {part:?}.");
        // A thread of its own: some parts stay on one processor.
        let measured = thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                let measured = part.measure(&run, &mut results);
                measured.map_err(|error| error.to_string())
            });
            measuring
                .join()
                .unwrap_or_else(|_| Err("it panicked".into()))
        });
        if let Err(error) = measured {
            println!("{part:?} is skipped: {error}");
        }
    }
    println!("\n{}\nMust reach:", results.table());
    print!("{}", results.verdict_lines());
    if !is_whole {
        println!("Only a part was measured: l4.json stays as it is.");
        return Ok(());
    }
    let file = run.places.bench.join("results/l4.json");
    fs::write(&file, results.json()?)?;
    println!("Written to {}.", file.display());
    Ok(())
}
