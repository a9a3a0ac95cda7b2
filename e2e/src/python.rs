//! Programs in Python with packages that are installed for the tests alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{are_installed, program, report_skipped};

/// Folder in which `scripts/setup test` puts the packages.
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/python");

/// A file of a package; `None`, which is said, if it is not there.
pub fn package_file(package: &str, file: &str) -> Option<PathBuf> {
    let path = Path::new(PACKAGES).join(package).join(file);
    if !path.exists() {
        report_skipped(&format!(
            "the Python package {package} is not installed: scripts/setup test"
        ));
        return None;
    }
    Some(path)
}

/// A program of this folder that needs a package; `None`, which is said, if it cannot run.
pub fn python(file: &str, package: &str) -> Option<Command> {
    if !are_installed(&["python3"]) {
        return None;
    }
    if !Path::new(PACKAGES).join(package).exists() {
        report_skipped(&format!(
            "the Python package {package} is not installed: scripts/setup test"
        ));
        return None;
    }
    let mut command = program("python3");
    let file = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
    command.arg(file).env("PYTHONPATH", PACKAGES);
    Some(command)
}
