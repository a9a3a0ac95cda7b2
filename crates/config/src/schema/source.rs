//! Reads the text of a configuration file.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) use super::bounded::read_bytes;
use super::errors::Errors;
use crate::kept;

/// The largest configuration file that is read, in bytes.
pub const MAX_FILE_SIZE: u64 = 16 * 1024 * 1024;

/// Reads the file at `path`, and what `parse` makes of its name and text.
pub(crate) fn load_file<T>(
    path: &Path,
    parse: impl FnOnce(&str, &str) -> Result<T, Errors>,
) -> Result<T, Errors> {
    let name = path.display().to_string();
    match read_bounded(path, MAX_FILE_SIZE) {
        Ok(text) => parse(&name, &text),
        Err(reason) => Err(Errors::of_file(name, reason)),
    }
}

/// The text of the configuration file at `path`.
///
/// # Errors
///
/// Why there is none: it is missing, unreadable, too large or not UTF-8.
pub fn text_of(path: &Path) -> Result<String, Errors> {
    load_file(path, |_, text| Ok(text.to_owned()))
}

/// The text of a regular file of at most `limit` bytes.
///
/// # Errors
///
/// Why there is none.
pub fn read_bounded(path: &Path, limit: u64) -> Result<String, String> {
    String::from_utf8(read_bytes(path, limit)?).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        format!("is not UTF-8 text: the byte at offset {valid} is invalid")
    })
}

/// Reads a file that holds secrets, and what `parse` makes of its text. Not everybody may access it. If it is
/// broken, its last good content is used ([`kept`]).
///
/// # Errors
///
/// Why there is nothing.
pub(crate) fn load_secret<T>(
    path: &Path,
    limit: u64,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, String> {
    let make = |source: &kept::Source| {
        let text = source.read(path, |path| {
            read_secret(path, limit).map(String::into_bytes)
        })?;
        parse(&String::from_utf8_lossy(&text))
    };
    kept::load_or_keep(make, |error| format!("{} {error}", path.display()))
}

/// Reads a file that holds secrets: not everybody may access it.
///
/// # Errors
///
/// The reason why there is no content.
pub fn read_secret(path: &Path, limit: u64) -> Result<String, String> {
    let mode = std::fs::metadata(path).map(|file| file.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o007 != 0) {
        return Err(
            "may be read or written by everybody on this machine: chmod 640, or 600".into(),
        );
    }
    read_bounded(path, limit)
}
