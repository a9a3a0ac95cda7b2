//! Reason why a command failed.

use evenkeel_admin::client::ClientError;
use evenkeel_config::Errors;

use crate::plural::format_count;

/// Reason why a command failed: a message for its user, and an exit code for their script.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Failure {
            code: 1,
            message: message.into(),
        }
    }

    pub(crate) fn of(error: impl std::fmt::Display) -> Self {
        Failure::new(error.to_string())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused { .. } => 1,
            ClientError::Address(_)
            | ClientError::Files(_)
            | ClientError::NoTls(_)
            | ClientError::Token => 2,
            ClientError::Unreachable { .. } | ClientError::NotTheApi { .. } => 3,
        };
        Failure {
            code,
            message: error.to_string(),
        }
    }
}

/// Returns the failure of a command whose configuration has errors.
pub(crate) fn refuse_config(errors: Errors) -> Failure {
    let count = errors.problems.len() + errors.omitted;
    Failure::new(format!(
        "{} in the configuration\n{errors}",
        format_count(count, "error")
    ))
}
