//! Says which compiler it is: instruction counts depend on it.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = version.unwrap_or_default();
    // rustc 1.90.0 (1159e78c4 2025-09-14)
    let number = version.split_whitespace().nth(1).unwrap_or("unknown");
    println!("cargo::rustc-env=COUNTS_RUSTC={number}");
}
