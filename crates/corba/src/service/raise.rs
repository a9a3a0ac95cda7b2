//! Reasons why an operation has no results.

use evenkeel_giop::cdr::CdrError;
use evenkeel_giop::exception::{Completion, Kind, SystemException};

use crate::call::{Call, Outcome};
use crate::exceptions::UserException;

/// Exception that an operation raises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Raise {
    /// Any operation may raise it.
    #[error(transparent)]
    System(#[from] SystemException),
    /// Exception of the operation's interface.
    #[error(transparent)]
    User(#[from] UserException),
}

impl From<Kind> for Raise {
    /// Before anything was done, with minor code 0.
    fn from(kind: Kind) -> Self {
        SystemException::new(kind).into()
    }
}

/// Arguments that cannot be read, or that take too much work.
impl From<CdrError> for Raise {
    fn from(error: CdrError) -> Self {
        match error {
            CdrError::TooCostly { .. } => too_costly().into(),
            _ => Kind::Marshal.into(),
        }
    }
}

/// Returns the exception for arguments that take more work than their bytes may. The minor code
/// tells it from other limits.
pub fn too_costly() -> SystemException {
    SystemException::new(Kind::ImpLimit).with_minor(1)
}

impl Raise {
    /// Returns true if the change was made in spite of the exception.
    pub fn has_changed(&self) -> bool {
        matches!(self, Raise::System(exception) if exception.completed == Completion::Yes)
    }

    /// Returns the answer to `call`, where the ids of `CosLoadBalancing` have this prefix.
    pub fn to_outcome(&self, call: &Call, prefix: &str) -> Outcome {
        match self {
            Raise::System(exception) => Outcome::System(*exception),
            Raise::User(exception) => {
                let mut body = call.results_writer();
                exception.write(prefix, &mut body);
                Outcome::User(body.into_bytes())
            }
        }
    }
}
