//! Reads the text of a configuration file.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::errors::Errors;
use crate::edit;
use crate::kept;

/// The largest configuration file that is read, in bytes.
pub const MAX_FILE_SIZE: u64 = 16 * 1024 * 1024;

/// Reads the file at `path`, and what `parse` makes of its name and text.
pub(crate) fn load<T>(
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
    load(path, |_, text| Ok(text.to_owned()))
}

/// Complaints about the rights of a configuration file, and of those that it includes: what everybody may write, and
/// what everybody may read although it holds a login.
pub fn rights(file: &Path, included: &[PathBuf]) -> Vec<String> {
    let files = std::iter::once(file).chain(included.iter().map(PathBuf::as_path));
    files.filter_map(complaint).collect()
}

fn complaint(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let shown = path.display();
    if mode & 0o002 != 0 {
        return Some(format!(
            "{shown}: everybody on this machine may write it, and so decide what the balancer does: chmod o-w"
        ));
    }
    let holds_login = || edit::holds_login(&read_bounded(path, MAX_FILE_SIZE).unwrap_or_default());
    (mode & 0o004 != 0 && holds_login()).then(|| {
        format!(
            "{shown}: holds a token or a login, and everybody on this machine may read it: chmod o="
        )
    })
}

/// The same for a file with users of rules, whose hashes of passwords can be guessed at.
///
/// # Errors
///
/// Everybody may write it, and so log in.
pub fn rights_of_users(path: &Path) -> Result<Option<String>, String> {
    let mode = std::fs::metadata(path).map_or(0, |file| file.permissions().mode());
    match mode & 0o006 {
        0 => Ok(None),
        0o004 => Ok(Some(format!(
            "{}: holds hashes of passwords, and everybody on this machine may read it: chmod o=",
            path.display()
        ))),
        _ => Err("may be written by everybody on this machine: chmod o=".into()),
    }
}

/// The bytes of a regular file of at most `limit`, or why there are none.
pub(crate) fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let unreadable = |error| format!("cannot be read: {error}");
    // A FIFO or a device would block for ever or never end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("cannot be read: it is not a regular file".into());
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let read = file.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(format!("is too large: more than {limit} bytes"));
    }
    Ok(bytes)
}

/// The text of a regular file of at most `limit` bytes.
///
/// # Errors
///
/// Why there is none.
pub fn read_bounded(path: &Path, limit: u64) -> Result<String, String> {
    String::from_utf8(read_bytes(path, limit)?).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        format!("is not UTF-8 text: the byte at offset {valid} does not belong there")
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
    kept::load(make, |error| format!("{} {error}", path.display()))
}

/// The same of a file that holds secrets: not everybody may access it.
///
/// # Errors
///
/// Why there is none.
pub fn read_secret(path: &Path, limit: u64) -> Result<String, String> {
    let mode = std::fs::metadata(path).map(|file| file.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o007 != 0) {
        return Err(
            "may be read or written by everybody on this machine: chmod 640, or 600".into(),
        );
    }
    read_bounded(path, limit)
}
