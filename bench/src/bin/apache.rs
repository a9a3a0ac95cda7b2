//! Cost of mod_evenkeel and libarm for Apache httpd: plain httpd beside one that has them.
//!
//! Both run all the time, pinned to one processor, and the load on another drives them in
//! short turns: one arm, the other twice, the one again, and in the next round the other
//! way round. What else the machine does hits both arms of a round alike, so the figures
//! to trust are the medians of the rounds' ratios, and of these the CPU time per request.
//!
//! `apache [--mpm event] [--rounds N] [--seconds S] [--connections N] [--close]`

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use evenkeel_bench::httpd::{Built, Folder, Httpd};
use evenkeel_bench::load::{Outcome, Plan, Traffic, run};
use evenkeel_bench::report::median;
use evenkeel_bench::server::{Server, free_address, pin_to, processors, raise_file_limit};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
struct Options {
    /// httpd's multi-processing module: event, worker or prefork.
    #[arg(long, default_value = "event")]
    mpm: String,
    /// Rounds, each of two turns of each arm.
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Seconds of a turn that are counted; a tenth more comes before.
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Connections at once.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// A connection for every request.
    #[arg(long)]
    close: bool,
    /// Measure what lies in target/dist, without building.
    #[arg(long)]
    as_built: bool,
}

/// An httpd under measurement.
struct Arm {
    name: &'static str,
    address: SocketAddr,
    server: Server,
    requests_per_s: Vec<f64>,
    cpu_us: Vec<f64>,
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apache: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let built = Built::new(options.as_built)?;
    let processors = processors()?;
    let (Some(&serving), Some(&loading)) = (processors.first(), processors.last()) else {
        return Err("no processor to run on".into());
    };
    raise_file_limit()?;
    let mut rng = fastrand::Rng::new();
    let folder = Folder::new("apache")?;
    let pages = Folder::in_memory("apache")?;
    // The shed valve is on, and not under alert, as in operation.
    let load = format!(
        "{}\nEvenkeelBalancer http://balancer.example/",
        built.load_lines()
    );
    let mut arms = Vec::new();
    for (name, lines) in [("plain", ""), ("module", load.as_str())] {
        let address = free_address(&mut rng)?;
        let httpd = Httpd {
            name,
            address,
            mpm: &options.mpm,
            lines,
            pages: pages.path(),
        };
        let mut server = httpd.start(&folder, serving)?;
        server.wait_for(&[address])?;
        arms.push(Arm {
            name,
            address,
            server,
            requests_per_s: Vec::new(),
            cpu_us: Vec::new(),
        });
    }
    pin_to(loading)?;
    for round in 0..options.rounds {
        let first = round % 2;
        let mut totals = [Total::default(); 2];
        for index in [first, 1 - first, 1 - first, first] {
            totals[index].add(&arms[index].turn(options)?);
        }
        for (arm, total) in arms.iter_mut().zip(totals) {
            arm.requests_per_s.push(total.requests / total.elapsed);
            arm.cpu_us.push(total.cpu * 1e6 / total.requests);
        }
    }
    println!("arm     requests/s  CPU us per request");
    for arm in &arms {
        let middle = |values: &Vec<f64>| median(values.clone()).unwrap_or(f64::NAN);
        println!(
            "{:6}  {:10.0}  {:18.2}",
            arm.name,
            middle(&arm.requests_per_s),
            middle(&arm.cpu_us)
        );
    }
    let [plain, module] = arms.as_slice() else {
        return Ok(());
    };
    print_ratio("requests/s", &plain.requests_per_s, &module.requests_per_s);
    print_ratio("CPU per request", &plain.cpu_us, &module.cpu_us);
    Ok(())
}

/// Sum of an arm's turns in one round; times in seconds.
#[derive(Clone, Copy, Default)]
struct Total {
    requests: f64,
    elapsed: f64,
    cpu: f64,
}

impl Total {
    fn add(&mut self, outcome: &Outcome) {
        self.requests += outcome.requests as f64;
        self.elapsed += outcome.elapsed.as_secs_f64();
        self.cpu += outcome.cpu.as_secs_f64();
    }
}

impl Arm {
    fn turn(&self, options: &Options) -> Result<Outcome> {
        let measure = Duration::try_from_secs_f64(options.seconds)?;
        let path = "/small";
        let plan = Plan {
            target: self.address,
            traffic: if options.close {
                Traffic::HttpClose { path }
            } else {
                Traffic::Http { path }
            },
            connections: options.connections,
            rate: None,
            warm_up: measure / 10,
            measure,
        };
        let outcome = run(&plan, &mut || self.server.cpu_time())?;
        if outcome.failures > 0 {
            return Err(format!("{} failed {} requests", self.name, outcome.failures).into());
        }
        Ok(outcome)
    }
}

/// The median of the rounds' ratios, and where half of them lie.
fn print_ratio(what: &str, plain: &[f64], module: &[f64]) {
    let mut ratios: Vec<_> = module
        .iter()
        .zip(plain)
        .map(|(module, plain)| module / plain)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[(share * (ratios.len() - 1) as f64).round() as usize];
    println!(
        "{what}: module / plain = {:.4} (half of the rounds: {:.4} to {:.4})",
        at(0.5),
        at(0.25),
        at(0.75)
    );
}
