//! Modules of Apache httpd, built with `apxs`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::folder::Folder;
use crate::process::program;

/// Builds the module of that source file in a folder; answers where it is.
///
/// `arguments` are further ones for `apxs -c`.
pub fn build(source: &Path, arguments: &[&str], folder: &Folder) -> PathBuf {
    // Libtool leaves its traces beside the source.
    let name = source.file_name().expect("a file").to_str().expect("text");
    fs::copy(source, folder.join(name)).expect("the source is copied");
    let mut apxs = program("apxs");
    apxs.args(["-c", "-Wc,-Wall", "-Wc,-Werror"]);
    let built = apxs.args(arguments).arg(name).current_dir(folder.path());
    let built = built.output().expect("apxs runs");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{name} cannot be built: {said}");
    let stem = name.strip_suffix(".c").expect("a source in C");
    folder.join(&format!(".libs/{stem}.so"))
}
