//! Programs of other languages, built from sources of ours.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Builds something in a folder of that name beside the test programs; answers where it is.
/// Tests that run side by side wait for each other.
pub fn built(name: &str, build: impl FnOnce(&Path)) -> PathBuf {
    // This test is target/PROFILE/deps/NAME.
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.ancestors().nth(2).expect("a target folder").join(name);
    fs::create_dir_all(&folder).expect("a folder");
    let lock = File::create(folder.join("lock")).expect("a file");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    build(&folder);
    folder
}
