//! Programs on the search path (`PATH`).

use std::path::PathBuf;

/// Folder in which `scripts/setup` unpacks packages that exclude each other.
const UNPACKED: &str = "e2e/.cache/ftp/usr/sbin";

/// Finds a program on the path, or among those that `scripts/setup` has unpacked.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let unpacked = std::env::current_dir().ok().map(|here| here.join(UNPACKED));
    let mut files = (std::env::split_paths(&path).chain(unpacked)).map(|folder| folder.join(name));
    files.find(|file| file.is_file())
}

/// Returns true if there is a program of that name.
pub(crate) fn is_on_path(name: &str) -> bool {
    find_program(name).is_some()
}
