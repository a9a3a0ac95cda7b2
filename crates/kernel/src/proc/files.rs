//! Reading the kernel's files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A result, or the reason why there is none.
pub type FileResult<T> = Result<T, String>;

/// More than any file of figures has, on machines with thousands of CPUs and disks.
const MAX_FILE: u64 = 4 << 20;

/// The file system below a root: `/`, or that of a test.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
}

impl Files {
    /// Files below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Files { root: root.into() }
    }

    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file.
    pub fn read_file(&self, path: impl AsRef<Path>) -> FileResult<String> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        File::open(self.path(path))
            .and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        // Names of cgroups and interfaces can be any bytes.
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Returns what `parse` finds in a file.
    pub fn parse<T>(
        &self,
        path: impl AsRef<Path>,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> FileResult<T> {
        let text = self.read_file(&path)?;
        parse(&text).ok_or_else(|| {
            let path = path.as_ref().display();
            format!("{path} has an unknown format")
        })
    }

    /// Returns true if there is such a folder.
    pub fn is_dir(&self, path: &Path) -> bool {
        self.path(path).is_dir()
    }

    /// Returns true if there is such a file or folder.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path.as_ref()).exists()
    }
}
