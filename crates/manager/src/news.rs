//! News of events, for those who follow them.

use std::sync::Arc;

/// A load alert that has begun or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertNews {
    /// The location.
    pub location: Arc<str>,
    /// The group that has raised it.
    pub group: Arc<str>,
    /// True if the alert has begun.
    pub on: bool,
}
