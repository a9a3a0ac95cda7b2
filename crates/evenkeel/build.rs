//! Has what unwinds the stack linked into the binary with `static`, so that it needs nothing but the C
//! library: Rust asks for libgcc_s.so, which is a package of its own, and there is an archive of the same.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    let wanted = env::var_os("CARGO_FEATURE_STATIC").is_some();
    let is_gnu = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    let Some(folder) = env::var_os("OUT_DIR").filter(|_| wanted && is_gnu) else {
        return;
    };
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let archive = Command::new(compiler)
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    // The name alone says that there is none.
    let is_there = archive.is_ok_and(|output| {
        let path = String::from_utf8_lossy(&output.stdout).into_owned();
        Path::new(path.trim()).is_absolute()
    });
    // A library that is a text stands for what it names.
    let library = Path::new(&folder).join("libgcc_s.so");
    if is_there && fs::write(library, "INPUT(-lgcc_eh -lgcc)\n").is_ok() {
        println!(
            "cargo::rustc-link-search=native={}",
            Path::new(&folder).display()
        );
    }
}
