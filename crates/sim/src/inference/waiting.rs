//! Requests that wait for an engine, in the queue of the product ([`evenkeel_control::queue`]): while all engines are at
//! their limits, or while the first token would come too late.

use std::sync::Arc;
use std::task::Waker;

use evenkeel_control::queue::{QueueInstruction, QueuePosition};
use evenkeel_control::shares_by_key::Share;
use evenkeel_manager::config::PRIORITY;
use evenkeel_manager::snapshot::GroupHandle;

use super::queue_place::WaitingRequest;
use super::world::{EngineEvent, EngineWorld, read_facts};
use crate::engine::duration_nanos;
use crate::queue_line::Line;

impl EngineWorld<'_> {
    /// Sends a request to an engine, or lets it wait for one. A request for which the queue has no room has failed.
    pub(super) fn send(&mut self, id: usize) {
        let balancer = self.jobs[id].balancer;
        let Some(handle) = self.balancers[balancer].handle.clone() else {
            // Another router, which finds an engine for each request.
            let _ = self.bind(id, None);
            return;
        };
        if handle.queue.waiting() == 0 && self.bind(id, Some(0)).is_ok() {
            return;
        }
        let of = &self.prompts.requests()[self.jobs[id].request];
        let engines = handle.current.load().engines().cloned();
        let share = engines.map(|engines| {
            let facts = read_facts(self.prompts, of, self.scenario.says_max_tokens, 0);
            Share {
                key: of.key,
                tokens: engines.group().plan_request(facts).share_tokens(),
            }
        });
        let (line, now) = (Line(Arc::clone(&handle)), self.queue.current_time());
        match QueuePosition::enter_with_share(line, PRIORITY as u8, share, now) {
            Err(_) => self.refuse(),
            Ok(place) => {
                self.outcomes.queued += 1;
                self.balancers[balancer].waiting.push(WaitingRequest {
                    job: id,
                    place,
                    will_look: false,
                });
                if let Some(timeout) = self.queue_timeout {
                    let timeout = duration_nanos(timeout);
                    self.queue.schedule_after(timeout, EngineEvent::Expiry(id));
                }
            }
        }
        self.take_turns(balancer, &handle);
    }

    /// A request has left its engine, or has its first token: one that waits may go.
    pub(super) fn send_waiting(&mut self, balancer: usize) {
        if let Some(handle) = self.balancers[balancer].handle.clone()
            && handle.queue.waiting() > 0
        {
            handle.queue.vacate(|| ());
            self.take_turns(balancer, &handle);
        }
    }

    /// A request has waited for as long as it may.
    pub(super) fn expire(&mut self, id: usize) {
        if let Some((balancer, waiting)) = self.take_waiting(id) {
            drop(waiting);
            self.outcomes.timed_out += 1;
            self.refuse();
            if let Some(handle) = self.balancers[balancer].handle.clone() {
                self.take_turns(balancer, &handle);
            }
        }
    }

    /// A request that waits looks again, though nothing has happened.
    pub(super) fn look_again(&mut self, id: usize) {
        let balancer = self.jobs[id].balancer;
        let mut waiting = self.balancers[balancer].waiting.iter_mut();
        if let Some(waiting) = waiting.find(|waiting| waiting.job == id) {
            waiting.will_look = false;
            waiting.place.look_again();
            if let Some(handle) = self.balancers[balancer].handle.clone() {
                self.take_turns(balancer, &handle);
            }
        }
    }

    fn take_waiting(&mut self, id: usize) -> Option<(usize, WaitingRequest)> {
        let balancer = self.jobs[id].balancer;
        let waiting = &mut self.balancers[balancer].waiting;
        let at = waiting.iter().position(|waiting| waiting.job == id)?;
        Some((balancer, waiting.remove(at)))
    }

    fn refuse(&mut self) {
        self.open -= 1;
    }

    fn take_numbered(&mut self, balancer: usize, number: u64) -> Option<WaitingRequest> {
        let waiting = &mut self.balancers[balancer].waiting;
        let mut each = waiting.iter();
        let at = each.position(|waiting| waiting.place.number() == number)?;
        Some(waiting.remove(at))
    }

    /// All who are called look for an engine, as in [`GroupHandle::wait_for`].
    fn take_turns(&mut self, balancer: usize, handle: &Arc<GroupHandle>) {
        while let Some(number) = handle.queue.first_called() {
            let Some(mut waiting) = self.take_numbered(balancer, number) else {
                break;
            };
            let now = self.queue.current_time();
            let job = waiting.job;
            let found = match waiting.place.next_turn(now, Waker::noop()) {
                Some(QueueInstruction::Look { ahead }) => {
                    waiting.place.look_for_room(|| self.bind(job, Some(ahead)))
                }
                Some(QueueInstruction::Refused) | None => None,
            };
            match found {
                Some(Ok(())) => {
                    let charge = waiting.place.leave_served(now);
                    self.set_charge(job, charge);
                    continue;
                }
                // If no engine may be used, one may be back later.
                Some(Err(error)) => {
                    let looks_again = waiting.place.wait_on(error);
                    if looks_again && !std::mem::replace(&mut waiting.will_look, true) {
                        let after = duration_nanos(waiting.place.patience(now));
                        self.queue.schedule_after(after, EngineEvent::Look(job));
                    }
                }
                None => {}
            }
            self.balancers[balancer].waiting.push(waiting);
        }
        for number in handle.queue.list_refused() {
            if self.take_numbered(balancer, number).is_some() {
                self.outcomes.shed += 1;
                self.refuse();
            }
        }
    }
}
