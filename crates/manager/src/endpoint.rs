//! Paths of the admin API that subsystems answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

/// A path of the admin API, and what it does.
pub struct Endpoint {
    /// The path; parts in braces stand for anything.
    pub path: &'static str,
    /// What happens there.
    pub action: Action,
}

/// What happens at a path.
pub enum Action {
    /// `GET`: shows something as JSON.
    Show(Arc<dyn Fn() -> serde_json::Result<String> + Send + Sync>),
    /// `POST`: does something to what the parts of the path in braces name, in order.
    Do(Arc<dyn Fn(Vec<String>) -> Doing + Send + Sync>),
}

/// Something that is done for the admin API.
pub type Doing = Pin<Box<dyn Future<Output = Result<(), CommandError>> + Send>>;

/// Why something could not be done. The kind is a word for programs, the detail is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// What the path names is not there.
    #[error("{detail}")]
    Unknown {
        /// The kind of error.
        kind: &'static str,
        /// What is not there.
        detail: String,
        /// What is.
        allowed: Vec<String>,
    },
    /// It has failed.
    #[error("{detail}")]
    Failed {
        /// The kind of error.
        kind: &'static str,
        /// Why.
        detail: String,
    },
}

impl Endpoint {
    /// A path that shows what `read` answers.
    pub fn show<T: Serialize>(
        path: &'static str,
        read: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        let show = move || serde_json::to_string(&read());
        Endpoint {
            path,
            action: Action::Show(Arc::new(show)),
        }
    }

    /// A path at which `act` is done.
    pub fn act<F>(
        path: &'static str,
        act: impl Fn(Vec<String>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), CommandError>> + Send + 'static,
    {
        let act = move |names| Box::pin(act(names)) as Doing;
        Endpoint {
            path,
            action: Action::Do(Arc::new(act)),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.path).finish()
    }
}
