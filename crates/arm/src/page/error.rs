//! Reasons why a page could not be read or written.

use std::io;
use std::path::{Path, PathBuf};

use super::lease::LEASE_MAX;

/// Reason why a page could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Error of the file system.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// Action that was tried.
        action: &'static str,
        /// File or directory of the action.
        path: PathBuf,
        /// Error of the action.
        source: io::Error,
    },
    /// The file is there and is no page.
    #[error("{path}: not a page of libarm: {why}", path = path.display())]
    NotAPage {
        /// The file.
        path: PathBuf,
        /// Sign that the file is no page.
        why: &'static str,
    },
    /// The page has another layout.
    #[error(
        "{path}: version {found}, this agent reads version {expected}; \
         use the libarm that came with the agent and restart the server",
        path = path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Version of the page.
        found: u64,
        /// Version that is understood.
        expected: u64,
    },
    /// A longer alert than [`LEASE_MAX`] was asked for.
    #[error("an alert ends at most {LEASE_MAX:?} from now; renew the alert instead")]
    LeaseTooLong,
}

pub(super) fn not_a_page(path: &Path, why: &'static str) -> Error {
    Error::NotAPage {
        path: path.to_owned(),
        why,
    }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io {
        action,
        path,
        source,
    }
}
