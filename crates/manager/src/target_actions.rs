//! Actions of a route for requests that go to a group.

use std::sync::Arc;

use evenkeel_config::GroupShare;
use evenkeel_config::fields::RequestTrailers;

use crate::config::{FieldChanges, Route};

/// Changes to requests on their way to the members of a group.
#[derive(Debug)]
pub struct TargetActions {
    /// Number of segments of the path that are replaced, and the text that replaces them.
    pub rewrite: Option<(usize, Box<str>)>,
    /// Changes to the fields of requests.
    pub request_fields: Option<Box<FieldChanges>>,
    /// Trailers of requests that members get.
    pub request_trailers: Arc<RequestTrailers>,
}

/// Returns the changes, if there are any.
fn some_changes(changes: FieldChanges) -> Option<Box<FieldChanges>> {
    (!changes.is_empty()).then(|| Box::new(changes))
}

impl TargetActions {
    /// Returns actions that change nothing. `trailers` are those of requests without changes.
    pub(crate) fn without_changes(trailers: &Arc<RequestTrailers>) -> Self {
        TargetActions {
            rewrite: None,
            request_fields: None,
            request_trailers: Arc::clone(trailers),
        }
    }

    /// Returns the actions of a route. `trailers` are those of requests without changes, and `trailers_of` makes those of
    /// requests with changes.
    pub(crate) fn of_route(
        route: &Route,
        trailers: &Arc<RequestTrailers>,
        trailers_of: impl Fn(&FieldChanges) -> Arc<RequestTrailers>,
    ) -> Self {
        let rewrite = { route.rewrite_prefix.as_ref() }.or(route.rewrite_path.as_ref());
        TargetActions {
            rewrite: rewrite.map(|to| (route.depth, to.as_str().into())),
            request_trailers: match route.request_fields.is_empty() {
                true => Arc::clone(trailers),
                false => trailers_of(&route.request_fields),
            },
            request_fields: some_changes(route.request_fields.clone()),
        }
    }

    /// Returns these actions, which are those of a route with the changes `base`, with what a group of the route has in
    /// their place.
    pub(crate) fn with_share(
        &self,
        base: &FieldChanges,
        share: &GroupShare,
        trailers_of: impl Fn(&FieldChanges) -> Arc<RequestTrailers>,
    ) -> Self {
        let own = share.rewrite().map(|to| (share.depth, to.into()));
        let changes = share.request_fields.layer_over(base);
        TargetActions {
            rewrite: own.or_else(|| self.rewrite.clone()),
            request_trailers: match share.request_fields.is_empty() {
                true => Arc::clone(&self.request_trailers),
                false => trailers_of(&changes),
            },
            request_fields: some_changes(changes),
        }
    }
}
