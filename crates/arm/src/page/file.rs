//! The file of a page, and what its header says.

use std::fs::{self, File, OpenOptions};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::error::{Error, io_error, not_a_page};
use crate::layout::{self, HEADER_LEN, Header, MAGIC, NAME_MAX, SIZE, VERSION};

/// A file that was a page when it was opened.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) file: File,
    pub(super) application: String,
    pub(super) owner: (u32, u32),
}

impl Open {
    pub(super) fn new(path: &Path) -> Result<Self, Error> {
        let open = |write| {
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
            let mut options = OpenOptions::new();
            options.read(true).write(write).custom_flags(flags);
            options.open(path)
        };
        // Without the right to write it can be read, and no alert be given.
        let file = open(true)
            .or_else(|_| open(false))
            .map_err(io_error("open the page", path))?;
        let about = file
            .metadata()
            .map_err(io_error("look at the page", path))?;
        // Nobody but its owner links to a page, and then to make an agent write elsewhere.
        if !about.is_file() || about.nlink() > 1 || about.len() != SIZE as u64 {
            return Err(not_a_page(
                path,
                "not a regular file of the right size with one link",
            ));
        }
        // Then its owner says nothing of who wrote it.
        if about.mode() & 0o002 != 0 {
            return Err(not_a_page(path, "everybody may write to the file"));
        }
        let mut open = Self {
            file,
            application: String::new(),
            owner: (about.uid(), about.gid()),
        };
        let mut bytes = [0; HEADER_LEN];
        open.read(path, &mut bytes, 0)?;
        let header = open.check(path, &bytes)?;
        if header.word_at(offset_of!(Header, boot)) != boot_digest() {
            return Err(not_a_page(
                path,
                "the page was written before the last boot of the machine",
            ));
        }
        open.application = header
            .application()
            .ok_or_else(|| not_a_page(path, "the application's name is not valid"))?;
        Ok(open)
    }

    /// Returns true if no path leads to the file any more.
    pub(super) fn is_removed(&self) -> bool {
        self.file
            .metadata()
            .map_or(true, |about| about.nlink() == 0)
    }

    pub(super) fn read(&self, path: &Path, bytes: &mut [u8], at: u64) -> Result<(), Error> {
        self.file
            .read_exact_at(bytes, at)
            .map_err(io_error("read the page", path))
    }

    /// The header, if it is one of this version.
    pub(super) fn check<'a>(&self, path: &Path, bytes: &'a [u8]) -> Result<Words<'a>, Error> {
        let header = Words(bytes);
        if header.word_at(offset_of!(Header, magic)) != MAGIC {
            return Err(not_a_page(path, "the magic number is missing"));
        }
        let version = header.word_at(offset_of!(Header, version));
        if version != VERSION {
            return Err(Error::Version {
                path: path.to_owned(),
                found: version,
                expected: VERSION,
            });
        }
        Ok(header)
    }
}

/// Bytes of a page.
#[derive(Clone, Copy)]
pub(super) struct Words<'a>(pub(super) &'a [u8]);

impl Words<'_> {
    /// The word at an offset; 0 behind the end, where none is asked for.
    pub(super) fn word_at(&self, at: usize) -> u64 {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    /// The name in a header.
    fn application(&self) -> Option<String> {
        let len = usize::try_from(self.word_at(offset_of!(Header, name_len))).ok()?;
        let at = offset_of!(Header, name);
        if len == 0 || len > NAME_MAX {
            return None;
        }
        let name = std::str::from_utf8(self.0.get(at..at + len)?).ok()?;
        // It ends up in logs and on terminals.
        let plain = !name.chars().any(char::is_control);
        plain.then(|| name.to_owned())
    }
}

/// A digest of the machine's boot id, the same until it boots again. Never 0.
pub(crate) fn boot_digest() -> u64 {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    layout::digest(&id) | 1
}
