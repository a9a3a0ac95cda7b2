//! Check whether a file could be written, without making it.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Reason why a file that a key of the configuration names could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Unwritable {
    /// The file is there, but nothing can be added.
    #[error("{key}: cannot write {}: {error}", path.display())]
    File {
        /// The key that names it.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is not there, and could not be made.
    #[error("{key}: cannot make {}: {}: {error}", path.display(), folder.display())]
    Folder {
        /// The key that names it.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The folder that it would be in.
        folder: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Looks whether the file at `path`, which `key` names, could be written; makes nothing.
///
/// # Errors
///
/// The file could not be written.
pub fn check_path(path: &Path, key: &'static str) -> Result<(), Unwritable> {
    if path.exists() {
        let opened = if path.is_file() {
            OpenOptions::new().append(true).open(path).map(|_| ())
        } else if path.is_dir() {
            Err(io::Error::other("it is a folder"))
        } else {
            // A device or a pipe may have a reader that waits for it.
            Ok(())
        };
        let path = path.to_owned();
        return opened.map_err(|error| Unwritable::File { key, path, error });
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let reached = if folder.is_dir() {
        access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from)
    } else {
        Err(io::Error::other("there is no such folder"))
    };
    reached.map_err(|error| Unwritable::Folder {
        key,
        path: path.to_owned(),
        folder: folder.to_owned(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_to_find_out() {
        let folder = std::env::temp_dir().join(format!("evenkeel-writable-{}", std::process::id()));
        let file = folder.join("file");
        let why = |path: &Path| check_path(path, "key").err().map(|error| error.to_string());
        let missing = why(&file).unwrap();
        assert!(missing.starts_with("key: cannot make "), "{missing}");
        assert!(missing.ends_with("there is no such folder"), "{missing}");
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(why(&file), None);
        assert!(!file.exists());
        std::fs::write(&file, "").unwrap();
        assert_eq!(why(&file), None);
        assert!(why(&folder).unwrap().ends_with("it is a folder"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
