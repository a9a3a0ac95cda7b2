//! What a rule does with requests of HTTP.

use crate::config::{Rule, Timeouts};

/// The routes of a rule.
#[derive(Debug)]
pub struct Routes {
    /// Of the requests that no other one is for.
    rest: Route,
}

impl Routes {
    /// Those of `rule`.
    pub fn new(rule: &Rule) -> Self {
        Routes {
            rest: Route {
                target: 0,
                timeouts: rule.timeouts.clone(),
                retries: rule.http.retries,
            },
        }
    }

    /// The route at a place: that of the rest if there is no other one.
    #[inline]
    pub fn at(&self, _place: usize) -> &Route {
        &self.rest
    }
}

/// What is done with some of the requests of a rule.
#[derive(Debug)]
pub struct Route {
    /// The place of its group in the rule.
    pub target: u32,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Maximum number of retries.
    pub retries: u32,
}
