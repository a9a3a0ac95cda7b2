//! Folders of their own.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder, gone when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one. Everybody may read it: servers that are started by root drop their rights.
    #[allow(clippy::new_without_default)] // There is no default folder.
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let path = loop {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("evenkeel-e2e-{}-{number}", process::id());
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Ok(()) => break path,
                // A process that was killed has left it, and had the number of this one.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        };
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its rights");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of something in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a folder in it that everybody may write to.
    pub fn make(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).expect("a folder");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("its rights");
        path
    }

    /// Writes a file at once and as a whole; answers where it is.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        let fresh = self.join(&format!("{name}.fresh"));
        fs::write(&fresh, content).expect("the file is written");
        fs::rename(fresh, &path).expect("the file is moved");
        path
    }

    /// Writes a file that only its owner may read, as one of keys is.
    pub fn write_private(&self, name: &str, content: &str) -> PathBuf {
        let path = self.write(name, content);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its rights");
        path
    }

    /// Reads a file.
    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.join(name)).expect("the file can be read")
    }

    /// Reads a file of text; an empty one if it is not there yet.
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.join(name)).unwrap_or_default()
    }
}

/// A path in the file system of BPF at which nothing is, where programs and maps can be pinned.
pub fn unused_pin() -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("/sys/fs/bpf/evenkeel-e2e-{}-{number}", process::id());
        let path = PathBuf::from(name);
        // A process that was killed may have left one, and had the number of this one.
        if !path.exists() {
            return path;
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}
