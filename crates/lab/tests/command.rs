//! The binary `evenkeel-lab` as its users meet it: files, standard output, exit codes.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-lab"));
    command.args(arguments);
    command
}

fn outcome(arguments: &[&str]) -> (i32, String, String) {
    outcome_of(&mut lab(arguments))
}

fn outcome_of(command: &mut Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// A directory of its own, gone at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-lab-command-{}-{unique}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    assert_eq!(outcome(&["bogus"]).0, 2);
    assert_eq!(outcome(&["run"]).0, 2);
    let (code, stdout, _) = outcome(&["--version"]);
    assert_eq!(code, 0);
    let version = format!("evenkeel-lab {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout, version);
    let (code, _, stderr) = outcome(&["load", "gopher://127.0.0.1:1/"]);
    assert_eq!(code, 1);
    assert!(stderr.starts_with("evenkeel-lab: "), "{stderr}");
}

/// A copy of the program in a folder without the balancer's.
#[test]
fn the_demo_says_where_it_looked_for_the_balancer() {
    let directory = Directory::new();
    let copy = directory.path("evenkeel-lab");
    std::fs::copy(env!("CARGO_BIN_EXE_evenkeel-lab"), &copy).unwrap();
    let mut demo = Command::new(&copy);
    demo.args(["demo", "--seconds", "1"])
        .env("PATH", &directory.0);
    let (code, _, stderr) = outcome_of(demo.current_dir(&directory.0));
    assert_eq!(code, 1);
    let beside = directory.path("evenkeel");
    let wanted = format!("cannot find the program evenkeel as {beside} or in PATH: install");
    assert!(stderr.contains(&wanted), "{stderr}");

    // A program that ends at once is found, and reported as such.
    std::fs::copy("/bin/false", &beside).unwrap();
    let (code, _, stderr) = outcome_of(&mut demo);
    assert_eq!(code, 1);
    assert!(stderr.contains("the balancer does not run"), "{stderr}");
}

#[test]
fn each_command_has_completions_and_a_page() {
    let directory = Directory::new();
    let folder = directory.path("man");
    let (code, _, stderr) = outcome(&["man", &folder]);
    assert_eq!(code, 0, "{stderr}");
    let (_, completions, _) = outcome(&["completions", "bash"]);
    for name in [
        "list",
        "run",
        "judge",
        "load",
        "load-compare",
        "load-site",
        "demo",
    ] {
        let page = Path::new(&folder).join(format!("evenkeel-lab-{name}.1"));
        assert!(page.exists(), "{}", page.display());
        let first = name.split('-').next().unwrap();
        assert!(
            completions.contains(&format!("evenkeel__lab,{first})")),
            "{first}"
        );
    }
}

#[test]
fn the_lab_lists_runs_and_keeps_full_results() {
    let (code, list, _) = outcome(&["list"]);
    assert_eq!(code, 0);
    let mut lines = list.lines().filter(|line| line.contains("(virtual time"));
    let name = lines.next().unwrap().split_whitespace().next().unwrap();
    let paper = list.split(':').next().unwrap();

    let (code, _, stderr) = outcome(&["run", "no-such-thing"]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("no-such-thing: `evenkeel-lab list` names them"),
        "{stderr}"
    );

    let directory = Directory::new();
    let folder = directory.path("results");
    let quick = ["run", name, "--quick", "--quiet", "--out", &folder];
    let (code, stdout, stderr) = outcome(&quick);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.starts_with(name) && stdout.contains("published: "),
        "{stdout}"
    );
    let read = |name: &str| std::fs::read_to_string(Path::new(&folder).join(name)).unwrap();
    let page = read(&format!("{paper}.md"));
    assert!(page.contains("A quick run, which says little."), "{page}");
    assert!(read("README.md").contains("figures and tables are run"));

    // Results of a full run are kept.
    let record = format!("{paper}/{name}.json");
    let full = read(&record).replace("\"is_quick\": true", "\"is_quick\": false");
    std::fs::write(Path::new(&folder).join(&record), &full).unwrap();
    let (code, _, stderr) = outcome(&quick);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("a full run, which a quick one does not replace"),
        "{stderr}"
    );
    assert_eq!(read(&record), full);

    // Verdicts are those of the values and rules, and of nothing else.
    let wrong = full.replace("\"verdict\": \"holds\"", "\"verdict\": \"does_not\"");
    assert_ne!(wrong, full);
    std::fs::write(Path::new(&folder).join(&record), wrong).unwrap();
    let (code, stdout, stderr) = outcome(&["judge", "--out", &folder]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("runs judged: 1; "), "{stdout}");
    assert_eq!(read(&record), full);
    assert!(!read(&format!("{paper}.md")).contains("says little"));
    let (code, _, stderr) = outcome(&["judge", "--out", &directory.path("none")]);
    assert_eq!(code, 1);
    assert!(stderr.contains("none: there are no results"), "{stderr}");
}

/// Whatever a machine lacks is said before anything starts.
#[test]
fn the_lab_says_what_a_machine_lacks_for_a_real_run() {
    let directory = Directory::new();
    let (_, list, _) = outcome(&["list"]);
    let real = list.lines().filter(|line| line.contains("--real)"));
    for line in real {
        let name = line.split_whitespace().next().unwrap();
        let folder = directory.path("results");
        // No programs but its own: that is never enough.
        let output = lab(&["run", name, "--real", "--quick", "--out", &folder])
            .env("PATH", &directory.0)
            .current_dir(&directory.0)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(stderr.contains("nothing was started"), "{name}: {stderr}");
        assert!(
            stderr.contains(&format!("{name}: the experiment needs ")),
            "{stderr}"
        );
    }
}
