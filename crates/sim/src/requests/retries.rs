//! Requests that are tried again at other members, as far as the retry budget of the product
//! ([`evenkeel_control::budget`]) allows.

use std::time::Duration;

use evenkeel_core::group::Outcome;
use evenkeel_manager::config::{Config, Protocol};

use super::Simulation;
use crate::server::JobId;

/// Settings of a rule for requests that wait or fail.
#[derive(Debug, Default)]
pub(super) struct Policy {
    /// Longest wait of a request; `None` means without a limit.
    pub(super) queue_timeout: Option<Duration>,
    /// Most retries of a request.
    retries: usize,
    /// True if a request that its member has received may be tried again: requests may be repeated, but not
    /// connections.
    repeats: bool,
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

impl Simulation<'_> {
    /// Tries a request again that has failed, if it may.
    pub(super) fn retry(&mut self, id: JobId) -> bool {
        let (job, now) = (&mut self.jobs[id], self.engine.current_time());
        let Some(balancer) = self.balancers.get_mut(job.balancer) else {
            return false;
        };
        let (index, source, policy) = (job.balancer, job.source, &self.policies[job.source]);
        if job.tried.len() >= policy.retries || !(job.refused || policy.repeats) {
            return false;
        }
        // A member that was sent nothing did no work that the budget would protect.
        if !job.refused && !balancer.budgets[source].try_retry(now) {
            self.outcomes.over_budget += 1;
            return false;
        }
        self.outcomes.retries += 1;
        let member = balancer.by_source[source].members()[job.server].id;
        let place = job.tried.partition_point(|tried| *tried < member);
        job.tried.insert(place, member);
        if let Some(ticket) = job.ticket.take() {
            ticket.finish(job.outcome, now);
        }
        job.outcome = Outcome::Success;
        job.fails_below = self.decisions.f64();
        self.serve_waiting(index, source);
        self.send(id);
        true
    }
}
