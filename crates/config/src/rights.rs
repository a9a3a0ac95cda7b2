//! Complaints about the rights of files that decide who may log in.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::edit;
use crate::schema::source::{MAX_FILE_SIZE, read_bounded};

/// Complaints about the rights of a configuration file, and of those that it includes: what everybody may write, and
/// what everybody may read although it holds a login.
pub fn check_rights(file: &Path, included: &[PathBuf]) -> Vec<String> {
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

/// Checks the rights of a file with users of rules, whose hashes of passwords can be guessed at.
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
