//! Sessions of several requests, with the thinking between them, and the connections that keep them
//! at one member; and balancers that may use only some of the members.

use evenkeel_core::group::Outcome;
use evenkeel_core::member::Weight;
use evenkeel_manager::config::Config;

use super::simulation::{RequestEvent, Simulation};
use crate::engine::draw_exponential;
use crate::server::JobId;

impl Simulation<'_> {
    /// Draws the think time of a source's client, in nanoseconds.
    pub(super) fn draw_think_time(&mut self, source: usize) -> f64 {
        match self.sources[source].visit.think {
            0.0 => 0.0,
            mean => draw_exponential(mean, &mut self.world),
        }
    }

    /// Returns true if the request's session continues after the request. A broken connection ends the session.
    pub(super) fn goes_on(&mut self, id: JobId) -> bool {
        let job = &mut self.jobs[id];
        let (source, balancer, now) = (job.source, job.balancer, self.engine.current_time());
        let connection = self.sources[source].visit.connection;
        if job.left == 0 || connection && job.outcome != Outcome::Success {
            return false;
        }
        job.left -= 1;
        if !connection {
            if let Some(ticket) = job.ticket.take() {
                ticket.finish(job.outcome, now);
            }
            self.serve_waiting(balancer, source);
        }
        let pause = self.draw_think_time(source);
        self.engine.schedule_after(pause, RequestEvent::Again(id));
        true
    }

    /// The next request of a session.
    pub(super) fn start_next_request(&mut self, id: JobId) {
        let source = self.jobs[id].source;
        let ask = self.sources[source].work.draw(&mut self.world);
        let luck = self.world.f64();
        self.outcomes.requests += 1;
        let (measured, now) = (self.is_measuring(), self.engine.elapsed_nanos());
        let job = &mut self.jobs[id];
        (job.ask, job.measured, job.arrived) = (ask, measured, now);
        (job.outcome, job.refused) = (Outcome::Success, false);
        if job.ticket.is_some() {
            // Whether the member takes it was decided with the connection.
            job.fails_below = 1.0;
            if measured && self.scenario.samples.is_none() {
                self.outcomes.sent.push((now, job.server as u32));
            }
            return self.deliver(id);
        }
        job.fails_below = luck;
        job.tried.clear();
        self.enter(id);
    }

    /// Leaves the balancer of that index the members that it may use: the others get nothing.
    pub(super) fn limit_view(&self, config: &mut Config, balancer: usize) {
        let Some(view) = self.scenario.view else {
            return;
        };
        let nothing = Weight::new(0.0).unwrap_or(Weight::ONE);
        for group in &mut config.groups {
            let count = group.members.len();
            for (index, member) in group.members.iter_mut().enumerate() {
                let place = (index + count - balancer * view % count) % count;
                if place >= view {
                    member.weight = nothing;
                }
            }
        }
    }
}
