//! Settings of rules for requests that wait or fail.

use std::time::Duration;

use evenkeel_manager::config::{Config, Protocol};

/// Settings of a rule for requests that wait or fail.
#[derive(Debug, Default)]
pub(super) struct Policy {
    /// Longest wait of a request; `None` means without a limit.
    pub(super) queue_timeout: Option<Duration>,
    /// Most retries of a request.
    pub(super) retries: usize,
    /// True if a request that its member has received may be tried again: requests may be repeated, but not
    /// connections.
    pub(super) repeats: bool,
    /// Retries relative to requests.
    pub(super) retry_budget: f32,
}

impl Policy {
    /// Policy of the first rule for `group`.
    pub(super) fn of_first_rule(config: &Config, group: &str) -> Self {
        let mut rules = config.rules.iter();
        let Some(rule) = rules.find(|rule| rule.is_served_by(group)) else {
            return Policy::default();
        };
        let repeats = rule.protocol == Protocol::Http;
        let retries = if repeats {
            rule.http.retries
        } else {
            rule.connect_retries
        };
        Policy {
            queue_timeout: Some(rule.timeouts.queue),
            retries: retries as usize,
            repeats,
            retry_budget: rule.http.retry_budget,
        }
    }
}
