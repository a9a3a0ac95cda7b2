//! Programs and libraries that tests need: of this workspace, and in other languages.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::{FlockOperation, flock};

/// Builds something in a folder of that name beside the test programs, and returns that folder.
/// Tests that run side by side wait for each other. nextest gives each test a process of its own:
/// in a run of nextest the first of them builds for all.
pub fn build_once(name: &str, build: impl FnOnce(&Path)) -> PathBuf {
    let folder = profile().join(name);
    fs::create_dir_all(&folder).expect("a folder");
    let lock = File::create(folder.join("lock")).expect("a file");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    let stamp = folder.join("run");
    let run = std::env::var("NEXTEST_RUN_ID").unwrap_or_default();
    if run.is_empty() || fs::read_to_string(&stamp).ok().as_ref() != Some(&run) {
        build(&folder);
        fs::write(&stamp, run).expect("a file");
    }
    folder
}

/// Folder of what Cargo builds in the profile of this test: `target/debug`.
fn profile() -> PathBuf {
    // This test is target/PROFILE/deps/NAME.
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.ancestors().nth(2).expect("a target folder");
    profile.to_owned()
}

/// Builds the balancer, the workbench and the ARM library, with everything that this machine can build, and returns
/// the folder in which they are.
pub fn build_workspace() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| cargo("e2e-workspace", &["command", "library"]))
}

/// Builds the ARM library, and returns its folder. Where the balancer is given, nothing else is built.
pub fn build_library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if std::env::var_os("EVENKEEL_BIN").is_none() {
        return build_workspace();
    }
    FOLDER.get_or_init(|| cargo("e2e-library", &["library"]))
}

/// Builds small test programs, beside which Cargo builds the binaries and libraries of their packages. All get the
/// features of `cargo test --workspace`, so nothing is built a second time.
fn cargo(name: &str, tests: &[&str]) -> PathBuf {
    build_once(name, |_| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["test", "--quiet", "--workspace", "--no-run"]);
        for test in tests {
            build.args(["--test", test]);
        }
        // What cannot be built is said there.
        let features = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/features");
        let features = Command::new(features).output().expect("features");
        build.args(String::from_utf8_lossy(&features.stdout).split_whitespace());
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let output = build.output().expect("cargo runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cannot be built: {complaint}");
        // Cargo puts only binaries where users look for them.
        let fresh = profile().join("libarm.so.fresh");
        fs::copy(profile().join("deps/libarm.so"), &fresh).expect("the library is copied");
        fs::rename(fresh, profile().join("libarm.so")).expect("the library is moved");
    });
    profile()
}
