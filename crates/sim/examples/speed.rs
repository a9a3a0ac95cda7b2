//! Speed of `evenkeel sim` in requests per second of CPU time, and the memory that it needs.
//!
//! ```text
//! cargo run --profile dist -p evenkeel-sim --example speed -- [REPEATS]
//! ```
//!
//! Each case is a scenario as a user would write it, played by one thread in a process of its own. The measurement
//! covers a whole run and its figures, without tables and files.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use evenkeel_sim::experiment::{FIGURES, plan, run};
use rustix::time::{ClockId, clock_gettime};

/// Name, strategy, members, and seconds of virtual time.
const CASES: [(&str, &str, u32, u32); 4] = [
    ("round_robin, 100 members", "round_robin", 100, 600),
    ("adaptive, 100 members", "adaptive", 100, 200),
    ("round_robin, 100,000 members", "round_robin", 100_000, 1),
    ("adaptive, 100,000 members", "adaptive", 100_000, 1),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if let (Some("--case"), Some(index)) = (first.as_deref(), args.next()) {
        return play(index.parse()?);
    }
    let repeats: usize = first.map_or(Ok(5), |text| text.parse())?;
    for (index, (name, ..)) in CASES.iter().enumerate() {
        let (mut speeds, mut peak) = (Vec::new(), 0);
        for _ in 0..repeats {
            let mut this = Command::new(std::env::current_exe()?);
            let output = this.args(["--case", &index.to_string()]).output()?;
            let text = String::from_utf8(output.stdout)?;
            let (speed, kib) = text.trim().split_once(' ').ok_or("a case has failed")?;
            speeds.push(speed.parse::<f64>()? / 1e6);
            peak = peak.max(kib.parse::<u64>()?);
        }
        speeds.sort_by(f64::total_cmp);
        let (least, most) = (speeds[0], speeds[speeds.len() - 1]);
        println!(
            "{name:<30} {:5.2} million requests per second of CPU time ({least:.2} to {most:.2}), {} MiB",
            speeds[speeds.len() / 2],
            peak / 1024
        );
    }
    Ok(())
}

/// Plays a case once: requests per second of CPU time, and the peak of memory in KiB.
fn play(index: usize) -> Result<(), Box<dyn Error>> {
    let (_, strategy, members, seconds) = CASES[index];
    let folder = std::env::temp_dir().join(format!("evenkeel-speed-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let plan = prepare(&folder, strategy, members, seconds);
    std::fs::remove_dir_all(&folder)?;
    let plan = plan?;
    let before = cpu_seconds();
    let results = run(&plan, &|_| ());
    let took = cpu_seconds() - before;
    let requests = FIGURES.iter().position(|figure| figure.name == "requests");
    let requests = results[0].runs[0].figures[requests.ok_or("there is no such figure")?];
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|line| line.split_whitespace().next());
    println!("{} {}", requests / took, peak.ok_or("no VmHWM")?);
    Ok(())
}

fn prepare(
    folder: &Path,
    strategy: &str,
    members: u32,
    seconds: u32,
) -> Result<plan::Plan, Box<dyn Error>> {
    let config = format!(
        "[rule.web]\nlisten = \"127.0.0.1:8080\"\nmembers = [\"10.0.0.1:80\"]\nstrategy = \"{strategy}\"\n"
    );
    let scenario = format!(
        "config = \"evenkeel.toml\"\nduration = \"{seconds}s\"\n[members]\ncount = {members}\n"
    );
    std::fs::write(folder.join("evenkeel.toml"), config)?;
    let path = folder.join("speed.toml");
    std::fs::write(&path, scenario)?;
    plan::load_plan(&path, None, None).map_err(|errors| errors.to_string().into())
}

/// CPU time of this process so far.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
