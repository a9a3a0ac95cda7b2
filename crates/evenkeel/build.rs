//! With the feature `static` the binary is made to be distributed: the code that unwinds the stack is linked into it,
//! so that it needs nothing but the C library (Rust asks for libgcc_s.so, which is a package of its own, and there is
//! an archive of the same code), and functions with the same code are merged.

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
    fold_functions();
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

/// Has the linker fold functions with the same instructions, if it is the compiler's own linker and can do so.
fn fold_functions() {
    let target = "x86_64-unknown-linux-gnu";
    let is = |name: &str| env::var(name).is_ok_and(|value| value == target);
    // Somebody's flags and settings may choose another linker.
    let as_usual = env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.is_empty())
        && env::var_os("RUSTC_LINKER").is_none();
    if !(is("HOST") && is("TARGET") && as_usual) {
        return;
    }
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let root = Command::new(compiler).args(["--print", "sysroot"]).output();
    let is_there = root.is_ok_and(|output| {
        let root = String::from_utf8_lossy(&output.stdout).into_owned();
        let linker = format!("lib/rustlib/{target}/bin/gcc-ld/ld.lld");
        Path::new(root.trim()).join(linker).exists()
    });
    if is_there {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
