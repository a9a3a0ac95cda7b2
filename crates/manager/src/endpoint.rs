//! Paths of the admin API that subsystems answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

/// Form of a JSON value, for the description of the API.
#[derive(Clone, Copy)]
pub struct Described(fn(&mut SchemaGenerator) -> Schema);

impl Described {
    /// Values of the type `T`.
    pub fn of_type<T: JsonSchema>() -> Self {
        Described(|generator| generator.subschema_for::<T>())
    }

    /// Returns the schema of the value; schemas that it refers to are left with `generator`.
    pub fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        (self.0)(generator)
    }
}

impl fmt::Debug for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Described")
    }
}

/// A path of the admin API, and what it does.
pub struct Endpoint {
    /// The path; parts in braces stand for anything.
    pub path: &'static str,
    /// Summary of what the endpoint does, in one sentence without its full stop.
    pub summary: &'static str,
    /// Action of the endpoint.
    pub action: Action,
}

/// Action at a path.
pub enum Action {
    /// `GET`: shows something as JSON of that form.
    Show(
        Arc<dyn Fn() -> serde_json::Result<String> + Send + Sync>,
        Described,
    ),
    /// `POST`: does something to what the parts of the path in braces name, in order.
    Do(Arc<dyn Fn(Vec<String>) -> Doing + Send + Sync>),
}

/// Something that is done for the admin API.
pub type Doing = Pin<Box<dyn Future<Output = Result<(), CommandError>> + Send>>;

/// Error of a command. The kind is a word for programs, the detail is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The thing that the path names is not there.
    #[error("{detail}")]
    Unknown {
        /// The kind of error.
        kind: &'static str,
        /// Description of what is not there.
        detail: String,
        /// Names that are there.
        allowed: Vec<String>,
    },
    /// The command has failed.
    #[error("{detail}")]
    Failed {
        /// The kind of error.
        kind: &'static str,
        /// Reason of the failure.
        detail: String,
    },
}

impl Endpoint {
    /// A path that shows what `read` answers.
    pub fn with_value<T: Serialize + JsonSchema>(
        path: &'static str,
        summary: &'static str,
        read: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        let show = move || serde_json::to_string(&read());
        Endpoint {
            path,
            summary,
            action: Action::Show(Arc::new(show), Described::of_type::<T>()),
        }
    }

    /// A path at which `act` is done.
    pub fn with_action<F>(
        path: &'static str,
        summary: &'static str,
        act: impl Fn(Vec<String>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), CommandError>> + Send + 'static,
    {
        let act = move |names| Box::pin(act(names)) as Doing;
        Endpoint {
            path,
            summary,
            action: Action::Do(Arc::new(act)),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.path).finish()
    }
}
