//! Requests that are tried again at other members, as far as the retry budget of the product
//! ([`evenkeel_control::budget`]) allows.

use evenkeel_core::group::Outcome;

use super::simulation::Simulation;
use crate::server::JobId;

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
