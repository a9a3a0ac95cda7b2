//! Stores of the configuration's text, if several balancers share it: the text is kept in a store elsewhere,
//! and not in the file of this machine.

use std::sync::Arc;

use crate::revisions::Author;
use crate::work::Work;

/// Store of configurations, as the manager uses it. Whoever follows the store puts its text into effect, with
/// [`Manager::apply_stored`](crate::Manager::apply_stored).
pub trait Store: Send + Sync {
    /// Returns the place of the store, for people.
    fn name(&self) -> String;

    /// Returns the text that all balancers are to have, as far as this one has heard; `None` if it has heard
    /// nothing.
    fn stored(&self) -> Option<Arc<str>>;

    /// Writes a change there, if `change.before` is what all balancers have. Ends when this balancer has put
    /// it into effect, too, unless it has to wait for others.
    fn put(&self, change: Change) -> Work<Result<Put, StoreError>>;
}

/// A change that is to be written to the store.
#[derive(Clone, Debug)]
pub struct Change {
    /// Revision of the text that the change is made to.
    pub before: String,
    /// New text. The text is valid.
    pub text: Arc<str>,
    /// Author of the change.
    pub author: Author,
}

/// A change that is in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A change that is not in the store. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The change is one of something else than what all balancers have.
    #[error("{0}")]
    ChangedMeanwhile(String),
    /// The store does not take it.
    #[error("{0}")]
    Refused(String),
    /// The store does not answer. Whoever tries again finds out whether the store has the change.
    #[error("{0}")]
    Unreachable(String),
}
