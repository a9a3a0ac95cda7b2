//! The machine: what it is, whether it can hold a real run, and whether it is quiet enough.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::product;
use crate::search_path::is_on_path;

/// Requirement of a real run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// The rights of root.
    Root,
    /// The balancer's own program, beside this one or on the path.
    Product,
    /// A program on the path, and the package that has it.
    Program(&'static str, &'static str),
    /// Debian's kernel for x86-64, which emulated machines boot: its package, or a copy of it from an earlier
    /// run.
    DebianKernel,
    /// The source of Evenkeel around the working directory, and Cargo.
    Source,
    /// A quiet machine: there is so little other work that the same piece of work takes the same time again and again.
    /// The number is the largest coefficient of variation of a calibration.
    Quiet(f64),
}

/// Returns what a machine lacks for a run: a line for each thing, with what would do. A calibration
/// takes about a second.
pub fn missing_needs(needs: &[Need]) -> Vec<String> {
    needs.iter().filter_map(|need| lack(*need)).collect()
}

fn lack(need: Need) -> Option<String> {
    match need {
        Need::Root => no_root(rustix::process::geteuid().is_root()),
        Need::Product => product::find().err(),
        Need::Program(name, package) => (!is_on_path(name))
            .then(|| format!("the experiment needs {name}: install the package {package}")),
        Need::DebianKernel => no_kernel(
            std::env::consts::ARCH,
            Path::new(KERNEL).exists(),
            is_on_path("apt-cache") && knows(PACKAGE),
        ),
        Need::Source => {
            let has_source = Path::new("crates/lab/Cargo.toml").exists();
            (!has_source || !is_on_path("cargo")).then(|| {
                "the experiment builds programs of Evenkeel's source: run evenkeel-lab in a clone of the repository, with Rust installed"
                    .into()
            })
        }
        Need::Quiet(most) => too_busy(measure_time_variation(), most),
    }
}

fn no_root(is_root: bool) -> Option<String> {
    (!is_root).then(|| {
        "the experiment needs root, for network namespaces and control groups: run evenkeel-lab with sudo".into()
    })
}

/// The package that stands for Debian's newest kernel, and where its files are unpacked.
const PACKAGE: &str = "linux-image-amd64";
const KERNEL: &str = "target/vm/kernel";

fn no_kernel(processor: &str, is_there: bool, can_be_had: bool) -> Option<String> {
    if processor != "x86_64" {
        return Some(format!(
            "the experiment emulates x86-64 machines with this machine's own programs, and this machine is {processor}: use a machine with an x86-64 processor"
        ));
    }
    (!is_there && !can_be_had).then(|| {
        format!(
            "the experiment needs Debian's kernel, and apt knows no package {PACKAGE}, nor is there a copy in {KERNEL}: run evenkeel-lab on Debian (after apt-get update), or unpack the package there"
        )
    })
}

/// Returns true if apt knows a package.
fn knows(package: &str) -> bool {
    let output = Command::new("apt-cache").args(["show", package]).output();
    output.is_ok_and(|output| output.status.success())
}

fn too_busy(variation: f64, most: f64) -> Option<String> {
    (variation > most).then(|| {
        format!(
            "the machine is too busy: the same work takes times that vary by {:.0} % (coefficient of variation; \
             at most {:.0} %): stop other programs, or use a machine with more processors",
            variation * 100.0,
            most * 100.0
        )
    })
}

/// Pieces of work of a calibration, and how long one takes at least.
const PIECES: usize = 50;
const PIECE: Duration = Duration::from_millis(20);

/// Coefficient of variation of the times that the same work takes, one piece after the other on
/// all processors at once.
pub fn measure_time_variation() -> f64 {
    let work = |turns: u64| {
        let begun = Instant::now();
        let mut state = 1u64;
        for _ in 0..turns {
            state =
                std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).rotate_left(7));
        }
        begun.elapsed()
    };
    // Enough turns that one piece takes its time.
    let mut turns = 1 << 16;
    while work(turns) < PIECE {
        turns *= 2;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let all = std::thread::scope(|scope| {
        let measure = || {
            variation(
                &(0..PIECES)
                    .map(|_| work(turns).as_secs_f64())
                    .collect::<Vec<_>>(),
            )
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        let joined = running.into_iter().filter_map(|thread| thread.join().ok());
        joined.collect::<Vec<f64>>()
    });
    all.into_iter().fold(0.0, f64::max)
}

/// Standard deviation to mean.
fn variation(values: &[f64]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean) * (value - mean));
    (squares.sum::<f64>() / count).sqrt() / mean.max(f64::MIN_POSITIVE)
}

/// Origin of results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The version of Evenkeel.
    pub version: String,
    /// The commit of the source around the working directory, with `+` if there were changes that are not
    /// in it; nothing elsewhere.
    pub commit: Option<String>,
    /// Processor, number of processors, memory, system.
    pub machine: String,
}

impl Origin {
    /// Returns the origin of results from this machine.
    pub fn of_this_machine(version: &str) -> Self {
        Origin {
            version: version.into(),
            commit: commit(),
            machine: machine(),
        }
    }
}

fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // Another repository around it would name another program's commit.
    if !Path::new("crates/lab/Cargo.toml").exists() {
        return None;
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // Files that the lab writes itself change nothing of the program.
    let changes = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        ":!lab/results",
    ])?;
    let mark = if changes.is_empty() { "" } else { "+" };
    Some(format!("{commit}{mark}"))
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        let (_, value) = line.split_once(':')?;
        Some(value.trim().to_owned())
    };
    let mut text =
        field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "processor unknown".into());
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let _ = write!(text, ", {count} processors");
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kib = memory.and_then(|memory| memory.split(' ').next()?.parse::<u64>().ok());
    if let Some(kib) = kib {
        let _ = write!(text, ", {} GiB", kib.div_ceil(1 << 20));
    }
    let system = rustix::system::uname();
    let _ = write!(
        text,
        ", {} {}",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_told_with_what_would_do() {
        assert_eq!(too_busy(0.04, 0.05), None);
        let told = too_busy(0.31, 0.05).unwrap();
        assert!(
            told.contains("31 %") && told.contains("stop other programs"),
            "{told}"
        );
        assert!((variation(&[1.0, 3.0]) - 0.5).abs() < 1e-12);
        assert!(measure_time_variation().is_finite());
    }

    #[test]
    fn a_user_who_is_not_root_is_told_how_to_be() {
        assert_eq!(no_root(true), None);
        let told = no_root(false).unwrap();
        assert!(told.contains("sudo"), "{told}");
    }

    #[test]
    fn a_machine_that_cannot_be_emulated_is_told_what_would_do() {
        assert_eq!(no_kernel("x86_64", true, false), None);
        assert_eq!(no_kernel("x86_64", false, true), None);
        let told = no_kernel("x86_64", false, false).unwrap();
        assert!(told.contains("linux-image-amd64"), "{told}");
        let told = no_kernel("aarch64", true, true).unwrap();
        assert!(told.contains("aarch64"), "{told}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_package() {
        let needs = [
            Need::Program("evenkeel-none", "evenkeel-nothing"),
            Need::Program("sh", "dash"),
        ];
        assert_eq!(
            missing_needs(&needs),
            ["the experiment needs evenkeel-none: install the package evenkeel-nothing"]
        );
    }
}
