//! Problems of configurations, and errors of changes, as the API answers them.

use axum::http::StatusCode;
use evenkeel_manager::ChangeError;
use evenkeel_manager::config::Errors;
use evenkeel_manager::store::StoreError;
use serde_json::json;

use crate::error::ApiError;
use crate::wire::Told;

/// Returns the API's error for a change that was refused.
pub(crate) fn change_error(error: ChangeError) -> ApiError {
    let detail = error.to_string();
    let new = |status, word| ApiError::new(status, word, detail.clone());
    match &error {
        ChangeError::NoFile => new(StatusCode::CONFLICT, "no_file"),
        ChangeError::ChangedMeanwhile(now) => {
            let refused = new(StatusCode::PRECONDITION_FAILED, "changed_meanwhile");
            let now = serde_json::to_value(now).unwrap_or_default();
            refused.with_fields(now)
        }
        ChangeError::FileChanged { diff, .. } => {
            new(StatusCode::CONFLICT, "file_changed").with_fields(json!({ "diff": diff }))
        }
        ChangeError::Edit(_) | ChangeError::Masked | ChangeError::Config(_) => {
            let refused = ApiError::invalid("bad_configuration", detail);
            refused.with_fields(json!({ "problems": problems_of(&error) }))
        }
        ChangeError::Apply(_) => new(StatusCode::CONFLICT, "not_applied"),
        ChangeError::Write { .. } | ChangeError::Stuck { .. } => {
            new(StatusCode::INTERNAL_SERVER_ERROR, "not_written")
        }
        ChangeError::Store(StoreError::ChangedMeanwhile(_)) => {
            new(StatusCode::PRECONDITION_FAILED, "changed_meanwhile")
        }
        ChangeError::Store(StoreError::Refused(_)) => new(StatusCode::CONFLICT, "store_refuses"),
        ChangeError::Store(StoreError::Unreachable(_)) => {
            new(StatusCode::SERVICE_UNAVAILABLE, "store_unreachable")
        }
        ChangeError::NoRevision(_) => ApiError::not_found("unknown_revision", detail),
        ChangeError::Process => new(StatusCode::FORBIDDEN, "own_file_only"),
        ChangeError::NoRules => new(StatusCode::CONFLICT, "no_rules"),
        ChangeError::NothingToUndo => new(StatusCode::CONFLICT, "nothing_to_undo"),
    }
}

/// Returns all problems, each with its place.
pub(crate) fn problems_of(error: &ChangeError) -> Vec<Told> {
    match error {
        ChangeError::Config(errors) => list_problems(errors),
        ChangeError::Edit(error) => vec![Told {
            key: error.path.clone(),
            message: match error.edit {
                Some(index) => format!("edit {index}: {}", error.why),
                None => error.why.clone(),
            },
            ..Told::default()
        }],
        other => vec![Told {
            message: other.to_string(),
            ..Told::default()
        }],
    }
}

/// Returns the problems of a file.
pub(crate) fn list_problems(errors: &Errors) -> Vec<Told> {
    let mut all: Vec<Told> = errors.problems.iter().cloned().map(Told::from).collect();
    if errors.omitted > 0 {
        all.push(Told {
            message: format!("and {} more problems", errors.omitted),
            ..Told::default()
        });
    }
    all
}

impl Told {
    /// Returns a problem of a file as a whole.
    pub(crate) fn of_file(file: &str, message: impl ToString) -> Self {
        Told {
            file: file.into(),
            message: message.to_string(),
            ..Told::default()
        }
    }
}

/// Returns the API's error for what can only be a bug.
pub(crate) fn internal_error(why: &str) -> ApiError {
    let detail = format!("this is a bug, please report it: {why}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}
