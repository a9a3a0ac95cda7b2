//! The table of the API's operations: the router and its description come from the same lines.
//!
//! An operation that is not in the table is not answered, and one without a role cannot be written down.

use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Extension, Router};
use evenkeel_manager::endpoint::Described;
use schemars::JsonSchema;

use crate::actor::{Actor, Role};
use crate::audit::audit_request;
use crate::error::ApiError;
use crate::sources::Sources;

/// Form of the answer.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// JSON of this form.
    Json(Described),
    /// Text or data of this media type.
    Text(&'static str),
}

/// A method at a path.
pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// Role that may ask for the operation; `None` is everybody, even without a session.
    pub(crate) role: Option<Role>,
    /// True if the operation changes anything, so that it stands in the audit log.
    pub(crate) changes: bool,
    /// Description of the operation, in one sentence without its full stop.
    pub(crate) summary: &'static str,
    /// Form of the query, if there may be one.
    pub(crate) query: Option<Described>,
    /// Form of the body, if there must be one.
    pub(crate) body: Option<Described>,
    pub(crate) answer: Answer,
}

/// All operations, and the router that they make.
pub(crate) struct Operations {
    pub(crate) all: Vec<Operation>,
    router: Router<Arc<Sources>>,
}

impl Operations {
    pub(crate) fn new() -> Self {
        let (all, router) = (Vec::new(), Router::new());
        Operations { all, router }
    }

    /// Adds an operation, and the handler that answers it.
    pub(crate) fn add_operation<H, A>(mut self, operation: Operation, handler: H) -> Self
    where
        H: Handler<A, Arc<Sources>>,
        A: 'static,
    {
        let Ok(filter) = MethodFilter::try_from(operation.method.clone()) else {
            return self;
        };
        let mut method: MethodRouter<Arc<Sources>> = on(filter, handler);
        if let Some(role) = operation.role {
            let only = move |actor, request, next| require_role(role, actor, request, next);
            method = method.route_layer(middleware::from_fn(only));
        }
        if operation.changes {
            // Outside of the former: that somebody has tried is written down, too.
            method = method.route_layer(middleware::from_fn(audit_request));
        }
        self.router = self.router.route(operation.path, method);
        self.all.push(operation);
        self
    }

    pub(crate) fn into_router(self) -> Router<Arc<Sources>> {
        self.router
    }
}

impl Operation {
    /// Shows something to whoever may see: `GET`.
    pub(crate) fn get(path: &'static str, summary: &'static str, answer: Answer) -> Self {
        Operation {
            method: Method::GET,
            path,
            role: Some(Role::View),
            changes: false,
            summary,
            query: None,
            body: None,
            answer,
        }
    }

    /// Describes a `GET` whose answer is JSON of the form `T`.
    pub(crate) fn show_json<T: JsonSchema>(path: &'static str, summary: &'static str) -> Self {
        Operation::get(path, summary, Answer::Json(Described::of_type::<T>()))
    }

    /// Shows something to everybody, even without a session: it must tell nothing that matters.
    pub(crate) fn show_to_all<T: JsonSchema>(path: &'static str, summary: &'static str) -> Self {
        Operation {
            role: None,
            ..Operation::show_json::<T>(path, summary)
        }
    }

    /// Shows something that is not JSON.
    pub(crate) fn show_text(
        path: &'static str,
        media_type: &'static str,
        summary: &'static str,
    ) -> Self {
        Operation::get(path, summary, Answer::Text(media_type))
    }

    /// Answers a question with a body of the form `B`, which changes nothing: `POST`, and `T` comes back.
    pub(crate) fn post_question<B: JsonSchema, T: JsonSchema>(
        path: &'static str,
        role: Role,
        summary: &'static str,
    ) -> Self {
        Operation {
            method: Method::POST,
            role: Some(role),
            body: Some(Described::of_type::<B>()),
            ..Operation::show_json::<T>(path, summary)
        }
    }

    /// Does something with a body of the form `B`, and answers `T`.
    pub(crate) fn act_on_body<B: JsonSchema, T: JsonSchema>(
        method: Method,
        path: &'static str,
        role: impl Into<Option<Role>>,
        summary: &'static str,
    ) -> Self {
        Operation {
            method,
            body: Some(Described::of_type::<B>()),
            ..Operation::act_alone::<T>(path, role, summary)
        }
    }

    /// Does something that needs nothing but its path, and answers `T`: `POST`.
    pub(crate) fn act_alone<T: JsonSchema>(
        path: &'static str,
        role: impl Into<Option<Role>>,
        summary: &'static str,
    ) -> Self {
        Operation {
            method: Method::POST,
            role: role.into(),
            changes: true,
            ..Operation::show_json::<T>(path, summary)
        }
    }

    /// Adds a query of the form `Q`.
    pub(crate) fn with_query<Q: JsonSchema>(mut self) -> Self {
        self.query = Some(Described::of_type::<Q>());
        self
    }
}

/// Lets through whoever has at least that role.
async fn require_role(
    role: Role,
    actor: Option<Extension<Actor>>,
    request: Request,
    next: Next,
) -> Response {
    match actor {
        Some(Extension(actor)) if actor.role >= role => next.run(request).await,
        Some(Extension(actor)) => ApiError::forbidden_to(&actor, role).into_response(),
        // The guard lets nobody through without one.
        None => ApiError::unauthorized().into_response(),
    }
}
