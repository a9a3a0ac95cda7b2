//! Errors of the API: what, where, and what to do.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use evenkeel_net::http::ErrorBody;
use serde_json::Value;

use crate::actor::{Actor, Role};

/// An error on its way to the client.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: ErrorBody,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, error: &str, detail: impl Into<String>) -> Self {
        ApiError {
            status,
            body: ErrorBody {
                error: error.into(),
                detail: detail.into(),
                allowed: Vec::new(),
                more: Box::default(),
            },
        }
    }

    /// Says more, in the fields of an object.
    pub(crate) fn with_fields(mut self, more: Value) -> Self {
        if let Value::Object(more) = more {
            self.body.more = Box::new(more);
        }
        self
    }

    /// Returns a 404: the path names something that does not exist.
    pub(crate) fn not_found(error: &str, detail: impl Into<String>) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, error, detail)
    }

    /// Returns a 422: the request is well formed, but what it asks for is not possible.
    pub(crate) fn invalid(error: &str, detail: impl Into<String>) -> Self {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error, detail)
    }

    /// Returns a 401: nobody knows who asks.
    pub(crate) fn unauthorized() -> Self {
        let detail = "log in, or send Authorization: Bearer TOKEN";
        ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// Returns a 403: the user may not do that.
    pub(crate) fn forbidden_to(actor: &Actor, needed: Role) -> Self {
        let (user, has, needed) = (&actor.user, actor.role.name(), needed.name());
        ApiError::new(
            StatusCode::FORBIDDEN,
            "not_allowed",
            format!("{user} has the role {has}; this request needs the role {needed}"),
        )
    }

    /// Says what would have been accepted.
    pub(crate) fn with_allowed<S: Into<String>>(
        mut self,
        allowed: impl IntoIterator<Item = S>,
    ) -> Self {
        self.body.allowed = allowed.into_iter().map(Into::into).collect();
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}
