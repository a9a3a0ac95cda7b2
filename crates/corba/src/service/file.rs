//! Files of the state: names, permissions and locks, and how a file is replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// Version of the file that this program writes.
pub(super) const VERSION: u32 = 2;

/// Larger ones are not read.
pub(super) const MAX_SIZE: u64 = 1 << 30;

/// Flag that refuses to open a link to elsewhere.
pub(super) const NO_LINK: i32 = OFlags::NOFOLLOW.bits() as i32;

/// Permissions of files that only this user reads.
pub(super) const PRIVATE: u32 = 0o600;

/// Permissions of files that others may read, if the process's umask lets them.
pub const PUBLIC: u32 = 0o666;

/// Reason why there is no state to go on with. The file is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is not what this program writes.
    #[error(
        "{} is damaged: {reason}; put a good copy there, or move it away to start without \
         object groups",
        path.display()
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Error in the file, and its place.
        reason: String,
    },
    /// A later program wrote it.
    #[error(
        "{} has version {version}, and this program knows versions up to {VERSION}: start the \
         version that wrote it, or move the file away to start without object groups",
        path.display()
    )]
    Later {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        version: u32,
    },
    /// Another process has it.
    #[error(
        "{} is in use by another process: stop that process first, or set another state_file in [corba]",
        path.display()
    )]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// Nobody can tell whether another process has it.
    #[error("cannot lock {}: {error}; this user must be able to write the file", path.display())]
    Lock {
        /// The lock's own file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Lock that keeps other processes from a state file, as long as it is there. It is on a file
/// beside the state file, which stays: the state file itself is another one after each change.
#[derive(Debug)]
pub struct Lock {
    // Closed by the system at the latest when the process ends, however it ends.
    _file: File,
}

impl Lock {
    /// Locks the state file at `path` against other processes.
    ///
    /// # Errors
    ///
    /// Another process has it, or the file of the lock cannot be opened.
    pub fn take(path: &Path) -> Result<Self, StoreError> {
        let beside = sibling_path(path, ".lock");
        let lock = |error| StoreError::Lock {
            path: beside.clone(),
            error,
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE)
            .custom_flags(NO_LINK)
            .open(&beside)
            .map_err(lock)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(Errno::WOULDBLOCK) => Err(StoreError::InUse { path: path.into() }),
            Err(error) => Err(lock(error.into())),
        }
    }
}

/// Returns true if another process has the state file at `path`.
pub fn is_taken(path: &Path) -> bool {
    matches!(Lock::take(path), Err(StoreError::InUse { .. }))
}

/// Replaces the file at `path` as a whole: after a crash there is the old one or this, which
/// has the permissions `mode`, less the process's umask.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = sibling_path(path, ".new");
    // What an earlier process has left, or somebody else's link to elsewhere: it goes, and
    // what is opened is a new file in any case.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_new(&new, bytes, mode).and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        // On a full disk, half a file is in the way of everybody.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // The name is only safe when its folder is.
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .custom_flags(NO_LINK)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The path of another file in the same folder.
pub(super) fn sibling_path(path: &Path, ending: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(ending);
    PathBuf::from(beside)
}
