//! Requests that wait for a member, in the queue of the product
//! ([`evenkeel_control::queue`]).

use std::sync::Arc;
use std::task::Waker;

use evenkeel_control::queue::{QueueInstruction, QueuePosition};
use evenkeel_core::group::PickError;
use evenkeel_core::time::Instant;
use evenkeel_manager::config::PRIORITY;
use evenkeel_manager::snapshot::GroupHandle;

use super::simulation::{RequestEvent, Simulation, Waiting};
use crate::engine::duration_nanos;
use crate::queue_line::Line;
use crate::server::JobId;

impl Simulation<'_> {
    fn handle(&self, balancer: usize, source: usize) -> Option<Arc<GroupHandle>> {
        let of = self.balancers.get(balancer)?;
        of.handles.get(source).map(Arc::clone)
    }

    /// True if requests of a source wait, so that new ones must queue behind them.
    pub(super) fn is_queued(&self, balancer: usize, source: usize) -> bool {
        let of = self.balancers.get(balancer);
        let handle = of.and_then(|of| of.handles.get(source));
        handle.is_some_and(|handle| handle.queue.waiting() > 0)
    }

    /// Has a request wait, if it may, and look for room after all that wait already.
    pub(super) fn enqueue(&mut self, id: JobId) -> bool {
        let (balancer, source) = (self.jobs[id].balancer, self.jobs[id].source);
        let Some(handle) = self.handle(balancer, source) else {
            return false;
        };
        let line = Line(Arc::clone(&handle));
        let Ok(place) = QueuePosition::enter(line, PRIORITY as u8, self.engine.current_time())
        else {
            return false;
        };
        self.balancers[balancer].waiting[source].push_back(Waiting {
            job: id,
            place,
            will_look: false,
        });
        self.outcomes.queued += 1;
        self.jobs[id].turn = self.outcomes.queued;
        if let Some(timeout) = self.policies[source].queue_timeout {
            let turn = self.outcomes.queued;
            let expiry = RequestEvent::Expiry { job: id, turn };
            self.engine.schedule_after(duration_nanos(timeout), expiry);
        }
        self.take_turns(balancer, &handle);
        true
    }

    /// A request has waited for as long as it may.
    pub(super) fn expire_waiting(&mut self, id: JobId, turn: usize) {
        let job = &self.jobs[id];
        let (balancer, source) = (job.balancer, job.source);
        let waiting = &mut self.balancers[balancer].waiting[source];
        let place = waiting.iter().position(|waiting| waiting.job == id);
        if let Some(place) = place.filter(|_| job.turn == turn) {
            waiting.remove(place);
            // The request may have waited for a better member than one that has room.
            if self.bind(id, None).is_err() {
                self.outcomes.timed_out += 1;
                self.give_up(id);
            }
            if let Some(handle) = self.handle(balancer, source) {
                self.take_turns(balancer, &handle);
            }
        }
    }

    /// A request has left its member: one that waits may have its place.
    pub(super) fn serve_waiting(&mut self, balancer: usize, source: usize) {
        if self.is_queued(balancer, source)
            && let Some(handle) = self.handle(balancer, source)
        {
            handle.queue.vacate(|| ());
            self.take_turns(balancer, &handle);
        }
    }

    /// All who wait look for room: a member may be back.
    pub(super) fn look_again(&mut self, balancer: usize, source: usize) {
        if self.is_queued(balancer, source)
            && let Some(handle) = self.handle(balancer, source)
        {
            handle.queue.call_all();
            self.take_turns(balancer, &handle);
        }
    }

    /// Schedules another look at a request held back, even if nothing happens meanwhile.
    fn look_later(&mut self, waiting: &mut Waiting, now: Instant) {
        if std::mem::replace(&mut waiting.will_look, true) {
            return;
        }
        let look = RequestEvent::Look {
            job: waiting.job,
            turn: self.jobs[waiting.job].turn,
        };
        self.engine
            .schedule_after(duration_nanos(waiting.place.patience(now)), look);
    }

    /// Looks again for a member for a request held back.
    pub(super) fn look_after_a_while(&mut self, id: JobId, turn: usize) {
        let job = &self.jobs[id];
        let (balancer, source) = (job.balancer, job.source);
        let mut waiting = self.balancers[balancer].waiting[source].iter_mut();
        let found = waiting.find(|waiting| waiting.job == id);
        if let Some(waiting) = found.filter(|_| job.turn == turn) {
            waiting.will_look = false;
            waiting.place.look_again();
            if let Some(handle) = self.handle(balancer, source) {
                self.take_turns(balancer, &handle);
            }
        }
    }

    /// All who are called look for room, as in [`GroupHandle::wait_for`].
    fn take_turns(&mut self, balancer: usize, handle: &Arc<GroupHandle>) {
        while let Some(number) = handle.queue.first_called() {
            let Some((source, mut waiting)) = self.take(balancer, handle, number) else {
                break;
            };
            let now = self.engine.current_time();
            let job = waiting.job;
            let found = match waiting.place.next_turn(now, Waker::noop()) {
                Some(QueueInstruction::Look { ahead }) => {
                    waiting.place.look_for_room(|| self.bind(job, Some(ahead)))
                }
                Some(QueueInstruction::Refused) | None => None,
            };
            match found {
                Some(Ok(())) => {
                    waiting.place.leave_served(now);
                }
                Some(Err(PickError::NoneEligible)) => self.give_up(job),
                stays => {
                    if let Some(Err(error)) = stays
                        && waiting.place.wait_on(error)
                    {
                        self.look_later(&mut waiting, now);
                    }
                    let line = &mut self.balancers[balancer].waiting[source];
                    let number = |of: &Waiting| of.place.number();
                    let at = line.partition_point(|of| number(of) < number(&waiting));
                    line.insert(at, waiting);
                }
            }
        }
        for number in handle.queue.list_refused() {
            if let Some((_, waiting)) = self.take(balancer, handle, number) {
                self.outcomes.shed += 1;
                self.give_up(waiting.job);
            }
        }
    }

    /// Takes the one of that number out of the lines of the sources that use a group.
    fn take(
        &mut self,
        balancer: usize,
        handle: &Arc<GroupHandle>,
        number: u64,
    ) -> Option<(usize, Waiting)> {
        let lines = self.balancers[balancer].waiting.iter_mut().enumerate();
        for (source, line) in lines {
            // The requests are in the order of their arrival.
            if let Ok(at) = line.binary_search_by_key(&number, |of| of.place.number())
                && Arc::ptr_eq(&line[at].place.queue().0, handle)
            {
                return Some((source, line.remove(at)?));
            }
        }
        None
    }
}
