//! Reasons why the demo cannot go on.

use std::io;
use std::path::PathBuf;

use evenkeel_admin::client::ClientError;

/// Reason why the demo cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The back-ends cannot be started.
    #[error("cannot start the demo's back-ends on loopback: {0}")]
    Backends(io::Error),
    /// A file cannot be written.
    #[error("cannot write {path}: {source}; TMPDIR names another folder")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file cannot be written.
        source: io::Error,
    },
    /// The balancer does not run.
    #[error("the balancer does not run: {reason}\n(log: {log})")]
    Balancer {
        /// Log of the balancer.
        log: PathBuf,
        /// Reason why the balancer does not run.
        reason: String,
    },
    /// The balancer's admin API does not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No answer came back through an arm.
    #[error("no request of the arm {0} was answered")]
    NoAnswer(&'static str),
    /// The terminal does not work.
    #[error("the terminal cannot be used: {0}; with output to a pipe the demo needs none")]
    Terminal(io::Error),
}
