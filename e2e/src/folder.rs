//! Folders of their own.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Names of configurations and logs end so.
const EXPLAINING: [&str; 7] = ["toml", "cfg", "conf", "yaml", "json", "log", "lua"];

/// Number of files that a failed test prints of a folder, and of bytes of each, from its end.
const PRINTED_FILES: usize = 20;
const PRINTED_BYTES: u64 = 20_000;

/// A temporary folder, gone when dropped. A test that fails prints the configurations and logs in it: servers and
/// balancers have theirs in folders, so this is the one place that shows what a failure needs to be understood.
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

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of something in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a folder in it that everybody may write to.
    pub fn make_folder(&self, name: &str) -> PathBuf {
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

    /// Text of the configurations and logs in it, with the ends of long ones.
    fn explain(&self) -> String {
        let mut text = String::new();
        let Ok(entries) = fs::read_dir(&self.0) else {
            return text;
        };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| {
            let extension = path.extension().and_then(|name| name.to_str());
            let is_text = extension.is_some_and(|name| EXPLAINING.contains(&name));
            // Nothing that would have to be waited for.
            is_text && path.symlink_metadata().is_ok_and(|file| file.is_file())
        });
        paths.sort();
        let left_out = paths.len().saturating_sub(PRINTED_FILES);
        for path in paths.iter().take(PRINTED_FILES) {
            let (skipped, end) = read_end(path).unwrap_or_default();
            let _ = writeln!(text, "--- {}", path.display());
            if skipped > 0 {
                let _ = writeln!(text, "(after {skipped} more bytes)");
            }
            let _ = writeln!(text, "{}", String::from_utf8_lossy(&end).trim_end());
        }
        if left_out > 0 {
            let _ = writeln!(text, "--- and {left_out} more files");
        }
        text
    }
}

/// Reads the end of a file; the number of bytes before it comes first.
fn read_end(path: &Path) -> std::io::Result<(u64, Vec<u8>)> {
    let mut file = File::open(path)?;
    let skipped = file.metadata()?.len().saturating_sub(PRINTED_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut end = Vec::new();
    file.take(PRINTED_BYTES).read_to_end(&mut end)?;
    Ok((skipped, end))
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
        if thread::panicking() {
            eprint!("{}", self.explain());
        }
        // Nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Folder, PRINTED_BYTES};

    #[test]
    fn a_failure_is_explained_by_configurations_and_logs() {
        let folder = Folder::new();
        folder.write("evenkeel.toml", "workers = 1\n");
        folder.write("ca.key", "a secret");
        let line = "a line of a log\n";
        let lines = 2 * PRINTED_BYTES as usize / line.len();
        folder.write("error.log", line.repeat(lines) + "the last one\n");
        folder.make_folder("docs");
        let text = folder.explain();
        assert!(text.contains("evenkeel.toml\nworkers = 1\n"), "{text}");
        assert!(!text.contains("a secret"), "{text}");
        assert!(text.contains("a line of a log\nthe last one\n"), "{text}");
        assert!(text.contains("more bytes)\n"), "{text}");
        assert!(text.len() < PRINTED_BYTES as usize + 500);
    }

    #[test]
    fn a_folder_with_many_configurations_names_how_many_it_leaves_out() {
        let folder = Folder::new();
        for number in 0..23 {
            folder.write(&format!("{number}.conf"), "a key");
        }
        assert!(folder.explain().ends_with("--- and 3 more files\n"));
    }
}
