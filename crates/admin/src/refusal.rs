//! Refusals of the manager, as the API answers them.

use axum::http::StatusCode;
use evenkeel_core::strategy;
use evenkeel_manager::ManageError;

use crate::answer::{Answer, DONE};
use crate::error::ApiError;
use crate::sources::Sources;
use crate::wire::Done;

/// At most so many names are offered instead of one that does not exist.
const MAX_ALLOWED: usize = 32;

impl Sources {
    /// Returns the manager's refusal, with what it would have accepted.
    pub(crate) fn explain_refusal(&self, error: ManageError) -> ApiError {
        let detail = error.to_string();
        let allowed = self.alternatives(&error);
        let error = match error {
            ManageError::NoRule(_) => ApiError::not_found("unknown_rule", detail),
            ManageError::NoGroup(_) => ApiError::not_found("unknown_group", detail),
            ManageError::NoMember { .. } => ApiError::not_found("unknown_member", detail),
            ManageError::NoLocation(_) => ApiError::not_found("unknown_location", detail),
            ManageError::NoStrategy { .. } => ApiError::invalid("unknown_strategy", detail),
            ManageError::Param(_) => ApiError::invalid("bad_parameter", detail),
            ManageError::Weight(_) => ApiError::invalid("bad_weight", detail),
            ManageError::Load(_) => ApiError::invalid("bad_load", detail),
            ManageError::TooManyLoads(_) => ApiError::invalid("too_many_loads", detail),
            ManageError::Apply(_) => ApiError::new(StatusCode::CONFLICT, "not_applied", detail),
        };
        error.with_allowed(allowed)
    }

    /// Answers that something was done, or why not.
    pub(crate) fn answer_done(&self, result: Result<(), ManageError>) -> Answer<Done> {
        result
            .map(|()| DONE)
            .map_err(|error| self.explain_refusal(error))
    }

    fn alternatives(&self, error: &ManageError) -> Vec<String> {
        let names: Vec<String> = match error {
            ManageError::NoStrategy { .. } => {
                return strategy::REGISTRY
                    .iter()
                    .map(|kind| kind.name.into())
                    .collect();
            }
            ManageError::NoRule(_) => {
                let rules = self.manager.status().rules.into_iter();
                rules.map(|rule| rule.name).collect()
            }
            ManageError::NoGroup(_) => {
                let groups = self.manager.list_groups();
                groups
                    .iter()
                    .map(|group| group.name().to_string())
                    .collect()
            }
            ManageError::NoMember { group, .. } => {
                let groups = self.manager.list_groups();
                let group = groups.iter().find(|known| **known.name() == **group);
                let members = group.iter().flat_map(|group| group.members());
                members
                    .map(|member| member.shown_name().to_string())
                    .collect()
            }
            ManageError::NoLocation(_) => {
                let locations = self.manager.status().locations.into_iter();
                locations.map(|location| location.name).collect()
            }
            _ => Vec::new(),
        };
        // A long list helps nobody.
        if names.len() > MAX_ALLOWED {
            Vec::new()
        } else {
            names
        }
    }
}
