//! Compiles the BPF programs in `bpf/` if the feature `bpf` is on. The objects are part of the
//! binary: one for all kernels, since the loader relocates it to the kernel that it finds.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    let mut sources: Vec<PathBuf> = Path::new("bpf")
        .read_dir()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    sources.sort();
    sources.iter().try_for_each(|source| compile(source, &out))
}

fn compile(source: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    // As the kernel's own build calls architectures.
    let define = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        "riscv64" => "riscv",
        "powerpc64" => "powerpc",
        "s390x" => "s390",
        other => other,
    };
    let name = source.file_name().ok_or("a source without a name")?;
    let object = out.join(name).with_extension("o");
    let mut command = Command::new(&clang);
    command
        .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf"])
        // The oldest instructions that have atomic operations: Linux 5.12.
        .arg("-mcpu=v3")
        .arg(format!("-D__TARGET_ARCH_{define}"))
        .arg("-Ibpf");
    // The headers of the libbpf that is linked.
    if let Some(include) = env::var_os("DEP_BPF_INCLUDE") {
        command.arg("-I").arg(include);
    }
    // Where Debian has <asm/types.h>, which a compiler for BPF does not look for.
    command.arg(format!("-I/usr/include/{arch}-linux-gnu"));
    command.arg("-c").arg(source).arg("-o").arg(&object);
    let output = command.output().map_err(|error| {
        format!(
            "feature bpf: cannot run {clang}: {error}; install clang, libelf-dev, zlib1g-dev and \
             pkg-config, or build without the feature"
        )
    })?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "feature bpf: {clang} cannot compile {} (clang 14 or newer, linux-libc-dev):\n{}",
            source.display(),
            String::from_utf8_lossy(&output.stderr)
        )
        .into())
    }
}
