//! Puts the console's bundle, if it was built, into the program.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name| env::var_os(name).ok_or("this is run by cargo");
    let dist = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../../console/dist");
    let out = PathBuf::from(variable("OUT_DIR")?);
    println!("cargo:rerun-if-changed=build.rs");
    wait_for_bundle(&dist.with_file_name(".lock"));
    // A folder that is not there would have this run each time: `make console` touches this file.
    if dist.is_dir() {
        println!("cargo:rerun-if-changed={}", dist.display());
    }
    let mut table = String::from("&[\n");
    for (number, path) in files(&dist).iter().enumerate() {
        let name = path
            .strip_prefix(&dist)?
            .to_str()
            .ok_or("a name that is no UTF-8")?;
        let packed = out.join(format!("{number}.gz"));
        fs::write(&packed, gzip(&fs::read(path)?)?)?;
        let plain = path.canonicalize()?;
        writeln!(
            table,
            "File {{ path: {name:?}, plain: include_bytes!({plain:?}), gzip: include_bytes!({packed:?}) }},"
        )?;
    }
    table.push(']');
    fs::write(out.join("files.rs"), table)?;
    Ok(())
}

/// Waits while `scripts/console` builds the bundle, which holds the lock meanwhile. Without that file or the
/// program `flock` there is nothing to wait for.
fn wait_for_bundle(lock: &Path) {
    if lock.exists() {
        let _ = Command::new("flock")
            .arg("--shared")
            .arg(lock)
            .arg("true")
            .status();
    }
}

fn gzip(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain)?;
    encoder.finish()
}

/// Returns all files below a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false if !entry.file_name().to_string_lossy().starts_with('.') => all.push(path),
            false => {}
        }
    }
    all.sort();
    all
}
