//! Answers of handlers.

use axum::Json;

use crate::error::ApiError;
use crate::wire::Done;

/// Answer of a handler: JSON, or an error.
pub(crate) type Answer<T> = Result<Json<T>, ApiError>;

/// Answer to a request that was done, of which there is nothing more to say.
pub(crate) const DONE: Json<Done> = Json(Done { ok: true });
