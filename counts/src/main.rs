//! Holds hot paths against committed counts of the instructions that they take.
//!
//! Time cannot be asserted on a machine that others use, too; instructions can: the same program with the same input
//! takes the same number of them, to well below a per cent. This program runs itself under valgrind's callgrind, which
//! counts the instructions in [`evenkeel_counted`], and compares the counts with `figures.txt`. A count of more than
//! [`TOLERANCE`] above its figure fails.
//!
//! `cargo run --profile counts -p evenkeel-counts` compares; with `--accept "REASON"` changed and new figures are
//! written to the file. `make counts` and `make counts COUNTS_ACCEPT="REASON"` do the same.

#![allow(clippy::unwrap_used, clippy::expect_used)] // It fails by panicking, as a test does.

mod cases;
mod growth;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use evenkeel_counts::{Missing, count};

/// Share by which a count may be above its figure: the code next to the counted function moves a few instructions.
const TOLERANCE: f64 = 0.03;

/// The figures.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/figures.txt");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--count"] => {
            cases::all(&mut Counter);
            ExitCode::SUCCESS
        }
        ["--count", what] => match growth::CASES.iter().find(|(name, _)| *name == what) {
            Some((_, case)) => {
                case(&mut Counter);
                ExitCode::SUCCESS
            }
            None => ExitCode::from(2),
        },
        [] => compare(None),
        ["--accept", reason] if !reason.trim().is_empty() && !reason.contains(['\n', '\t']) => {
            compare(Some(reason.trim()))
        }
        _ => {
            eprintln!("usage: counts [--accept \"WHY THE COUNTS HAVE CHANGED\"]");
            ExitCode::from(2)
        }
    }
}

/// Counts one case after the other; says on standard output which, and how many calls.
pub struct Counter;

impl Counter {
    fn count(&mut self, name: &str, times: u32, mut call: impl FnMut()) {
        // Whatever is done only once has been done then.
        call();
        println!("{times}\t{name}");
        evenkeel_counted(&mut || {
            for _ in 0..times {
                call();
            }
        });
    }
}

/// Calls the code whose instructions are counted: valgrind finds the function by its name.
#[unsafe(no_mangle)]
#[inline(never)]
fn evenkeel_counted(calls: &mut dyn FnMut()) {
    calls();
}

/// Hash maps take their seeds from here: the system's own would be others each time.
///
/// # Safety
///
/// `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: the caller's promise.
    unsafe { buffer.write_bytes(0x5a, length) };
    length.cast_signed()
}

/// A count, and why it is what it is.
struct Figure {
    instructions: u64,
    reason: String,
}

/// Describes the conditions that counts depend on beside the program.
fn made_with() -> String {
    // SAFETY: it gives a text that ends with a zero and is always there.
    let libc = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    let libc = libc.to_string_lossy();
    // Libraries choose their code by the machine's features.
    #[cfg(target_arch = "x86_64")]
    let machine = if std::arch::is_x86_feature_detected!("avx2") {
        "x86_64 with AVX2"
    } else {
        "x86_64 without AVX2"
    };
    #[cfg(not(target_arch = "x86_64"))]
    let machine = std::env::consts::ARCH;
    format!("rustc {}, {machine}, glibc {libc}", env!("COUNTS_RUSTC"))
}

fn compare(accept: Option<&str>) -> ExitCode {
    let (known_with, mut known) = read(Path::new(FILE));
    let now = made_with();
    if known_with != now && accept.is_none() {
        println!("counts: SKIPPED: the figures are of {known_with}, and this is {now}");
        return ExitCode::SUCCESS;
    }
    let program = std::env::current_exe().unwrap();
    let counted = match count(&program, &["--count"]) {
        Ok(counted) => counted,
        Err(Missing) => {
            println!("counts: SKIPPED: there is no valgrind here");
            return if std::env::var("CI").is_ok_and(|ci| ci == "true") {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    if known_with != now {
        known.clear();
    }
    let (mut worse, mut better) = (Vec::new(), Vec::new());
    let mut next = BTreeMap::new();
    for (name, instructions) in &counted {
        let before = known.remove(name);
        let change = before
            .as_ref()
            .map(|before| *instructions as f64 / (before.instructions as f64).max(1.0) - 1.0);
        let line = match (&before, change) {
            (Some(before), Some(change)) => format!(
                "  {name}: {instructions}, which is {:+.1} % beside {} ({})",
                change * 100.0,
                before.instructions,
                before.reason
            ),
            _ => format!("  {name}: {instructions}, and there is no figure of it"),
        };
        match change {
            Some(change) if change.abs() <= TOLERANCE => {}
            Some(change) if change < 0.0 => better.push(line),
            _ => worse.push(line),
        }
        let is_same = change.is_some_and(|change| change.abs() <= TOLERANCE);
        let figure = match before.filter(|_| is_same) {
            Some(before) => before,
            None => Figure {
                instructions: *instructions,
                reason: accept.unwrap_or_default().to_owned(),
            },
        };
        next.insert(name.clone(), figure);
    }
    worse.extend(
        known
            .keys()
            .map(|name| format!("  {name}: it is not counted any more")),
    );
    let all = counted.len();
    if accept.is_some() {
        write(Path::new(FILE), &now, &counted, &next);
        println!(
            "counts: {all} counts, {} of them new or worse, {} better: written to {FILE}",
            worse.len(),
            better.len()
        );
        return ExitCode::SUCCESS;
    }
    if !better.is_empty() {
        println!(
            "counts: fewer instructions than the figures say; `make counts COUNTS_ACCEPT=\"WHY\"` \
             holds it:\n{}",
            better.join("\n")
        );
    }
    if worse.is_empty() {
        println!(
            "counts: {all} counts, all within {} % of their figures",
            TOLERANCE * 100.0
        );
        return ExitCode::SUCCESS;
    }
    println!(
        "counts: instructions per call are more than {} % above their figures, or have none:\n{}\n\
         Mend it; or if it is worth that, say why, which is committed with the new figures:\n  \
         make counts COUNTS_ACCEPT=\"WHY\"",
        TOLERANCE * 100.0,
        worse.join("\n")
    );
    ExitCode::FAILURE
}

fn read(path: &Path) -> (String, BTreeMap<String, Figure>) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut with = "no compiler".to_owned();
    let mut figures = BTreeMap::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        if let Some(made) = line.strip_prefix("made with ") {
            made.clone_into(&mut with);
            continue;
        }
        let fields: Vec<&str> = line.split('\t').collect();
        let [instructions, name, reason] = fields[..] else {
            panic!("{FILE}: `{line}`: a figure, a name and a reason are needed");
        };
        let figure = Figure {
            instructions: instructions.trim().parse().unwrap(),
            reason: reason.to_owned(),
        };
        figures.insert(name.to_owned(), figure);
    }
    (with, figures)
}

fn write(path: &Path, with: &str, order: &[(String, u64)], figures: &BTreeMap<String, Figure>) {
    let mut text = format!(
        "# Instructions per call of hot paths, counted under valgrind: figure, what, and why it is \
         so.\n# `make counts` compares; `make counts COUNTS_ACCEPT=\"WHY\"` writes this file.\n\n\
         made with {with}\n\n"
    );
    for (name, _) in order {
        let Figure {
            instructions,
            reason,
        } = &figures[name];
        let _ = writeln!(text, "{instructions:>10}\t{name}\t{reason}");
    }
    std::fs::write(path, text).unwrap();
}
