//! Requests that wait while all members are at their limits, in the queue of the product
//! ([`evenkeel_control::queue`]).

use std::ops::Deref;
use std::sync::Arc;

use evenkeel_control::queue::{Place, Queue};
use evenkeel_core::group::PickError;
use evenkeel_manager::snapshot::GroupHandle;

use super::{Happening, Simulation};
use crate::engine::nanos;
use crate::server::JobId;

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    job: JobId,
    place: Place<Line>,
}

/// Leads to the queue of a group.
#[derive(Debug)]
struct Line(Arc<GroupHandle>);

impl Deref for Line {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0.queue
    }
}

impl Simulation<'_> {
    /// Has a request wait, if it may.
    pub(super) fn enqueue(&mut self, id: JobId) -> bool {
        let job = &mut self.jobs[id];
        let balancer = &mut self.balancers[job.balancer];
        let handle = balancer.groups.handle(&self.sources[job.source].group);
        let place = handle.and_then(|handle| Place::enter(Line(Arc::clone(handle))));
        let Some(place) = place else {
            return false;
        };
        balancer.waiting[job.source].push_back(Waiting { job: id, place });
        self.outcomes.queued += 1;
        job.turn = self.outcomes.queued;
        if let Some(timeout) = self.policies[job.source].queue_timeout {
            let turn = job.turn;
            let expiry = Happening::Expiry { job: id, turn };
            self.engine.after(nanos(timeout), expiry);
        }
        true
    }

    /// A request has waited for as long as it may.
    pub(super) fn expire(&mut self, id: JobId, turn: usize) {
        let job = &self.jobs[id];
        let waiting = &mut self.balancers[job.balancer].waiting[job.source];
        let place = waiting.iter().position(|waiting| waiting.job == id);
        if let Some(place) = place.filter(|_| job.turn == turn) {
            waiting.remove(place);
            self.outcomes.timed_out += 1;
            self.give_up(id);
        }
    }

    /// A request has left its member: one that waits may have its place. As in
    /// [`GroupHandle::wait_for`], whoever cannot use it tells the next one.
    pub(super) fn vacated(&mut self, balancer: usize, source: usize) {
        let name = &self.sources[source].group;
        let handle = |of: &super::Balancer| of.groups.handle(name).map(Arc::clone);
        let Some(handle) = self.balancers.get(balancer).and_then(handle) else {
            return;
        };
        if !handle.queue.vacated() {
            return;
        }
        for _ in 0..self.balancers[balancer].waiting[source].len() {
            if self.look(balancer, source) != Some(true) {
                return;
            }
        }
    }

    /// All who wait look for room: a member may be back.
    pub(super) fn look_again(&mut self, balancer: usize, source: usize) {
        for _ in 0..self.balancers[balancer].waiting[source].len() {
            self.look(balancer, source);
        }
    }

    /// The first one who waits looks for room. Without any it goes to the end, and the answer is
    /// whether there was a vacancy that somebody else may use.
    fn look(&mut self, balancer: usize, source: usize) -> Option<bool> {
        let mut first = self.balancers[balancer].waiting[source].pop_front()?;
        let news = first.place.look();
        match self.bind(first.job) {
            Ok(()) => None,
            Err(PickError::AllFull) => {
                self.balancers[balancer].waiting[source].push_back(first);
                Some(news)
            }
            Err(PickError::NoneEligible) => {
                self.give_up(first.job);
                Some(news)
            }
        }
    }
}
