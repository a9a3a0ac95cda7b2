//! Load reports of members: read, written down, reported, with noise and delay.

use std::time::Duration;

use evenkeel_core::load::{LoadId, LoadValue, of_queue};

use super::member::{Said, utilization};
use super::simulation::{RequestEvent, Simulation};
use crate::engine::{draw_exponential, duration_nanos};
use crate::scenario::{RECENT_UP_TO, Reading};

/// Returns true if readings of a kernel that are so far apart have the CPU load of the last 10 to 20 ms: with shorter
/// intervals the load since the reading before is younger.
fn is_recent(interval: Duration) -> bool {
    interval > Duration::from_millis(15) && interval <= RECENT_UP_TO
}

impl Simulation<'_> {
    pub(super) fn send_report(&mut self, index: usize) {
        let Some(reports) = self.scenario.reports else {
            return;
        };
        let after = duration_nanos(reports.interval);
        self.engine
            .schedule_after(after, RequestEvent::Report(index));
        let (reader, server) = (index / self.members.len(), index % self.members.len());
        let (member, now) = (&mut self.members[server], self.engine.elapsed_nanos());
        let (at, server) = (server, &mut member.server);
        let value = if let Some(load) = member.reported {
            Some(load)
        } else if reports.id == LoadId::IN_FLIGHT {
            Some(server.in_flight() as f64)
        } else {
            let busy = utilization(
                server,
                &mut member.reads[reader].busy,
                reports.interval,
                now,
            );
            let is_kernel = matches!(
                self.scenario.reading,
                Reading::Recent | Reading::Moment | Reading::Pending
            );
            let busy = match is_kernel && is_recent(reports.interval) {
                true => server.recent_utilization(now),
                false => busy,
            };
            match (self.scenario.reading, reports.id) {
                (Reading::Written { .. }, _) => member.written,
                (Reading::Moment, _) => {
                    let tasks = server.tasks() / server.slots() as f64;
                    let pending = server.pending_interrupts(&mut self.world);
                    Some(of_queue(tasks).max(busy.unwrap_or(0.0)) + pending)
                }
                (Reading::Pending, _) => {
                    Some(busy.unwrap_or(0.0) + server.pending_interrupts(&mut self.world))
                }
                (_, LoadId::COMPOSITE) => {
                    let tasks = server.mean_queue(now).max(busy.unwrap_or(0.0));
                    Some(tasks + server.pending_interrupts(&mut self.world))
                }
                _ => busy,
            }
        };
        // Taking it may void the completion that is scheduled.
        self.schedule_completion(at);
        let Some(value) = value else {
            return;
        };
        let value = match reports.noise {
            0.0 => value,
            noise => value * (1.0 + noise * (2.0 * self.world.f64() - 1.0)),
        };
        let said = self.members[at].say(reader, value, now);
        let arrival = RequestEvent::ReportArrival { index, said };
        let way = self.scenario.way;
        let later = match way.jitter.is_zero() {
            true => 0.0,
            false => self.world.f64() * duration_nanos(way.jitter),
        };
        self.engine
            .schedule_after(duration_nanos(reports.delay) + later, arrival);
    }

    pub(super) fn report_arrival(&mut self, index: usize, said: Said) {
        let Some(reports) = self.scenario.reports else {
            return;
        };
        let loads = [
            (LoadId::REQUESTS_PER_SECOND, said.requests_per_second),
            (LoadId::ERRORS_PER_SECOND, said.errors_per_second),
        ];
        // A group may go by one of these.
        let others = loads.into_iter().filter(|(id, _)| *id != reports.id);
        let loads = others.chain([(reports.id, said.load)]);
        let loss = self.scenario.way.loss;
        let (reader, server) = (index / self.members.len(), index % self.members.len());
        let readers = match self.scenario.each_reads {
            true => reader..reader + 1,
            false => 0..self.balancers.len(),
        };
        for balancer in self.balancers.get(readers).unwrap_or_default() {
            if loss > 0.0 && self.world.f64() < loss {
                continue;
            }
            if let Some(group) = balancer.by_source.first() {
                let location = &group.members()[server].location;
                for (id, per_mille) in loads.clone() {
                    if let Ok(value) = LoadValue::new(per_mille as f64 / 1e3) {
                        // No more than one of them is without a name, so there is room.
                        let _ = location.report_load(id, value, self.engine.current_time());
                    }
                }
            }
        }
    }

    /// The process at a member that writes its load down waits for a CPU as others do.
    pub(super) fn schedule_load_write(&mut self, index: usize) {
        let Reading::Written { update, wait } = self.scenario.reading else {
            return;
        };
        let server = &self.members[index].server;
        let slots = server.slots() as f64;
        let mean = duration_nanos(wait) * (server.tasks() - slots).max(0.0) / slots;
        let delay = draw_exponential(mean, &mut self.world);
        self.engine
            .schedule_after(delay, RequestEvent::Written(index));
        let next = delay.max(1.0) + duration_nanos(update);
        self.engine
            .schedule_after(next, RequestEvent::Update(index));
    }

    pub(super) fn variance(&mut self) {
        let Some(every) = self.scenario.variance else {
            return;
        };
        self.engine
            .schedule_after(duration_nanos(every), RequestEvent::Variance);
        let now = self.engine.elapsed_nanos();
        let mut shares = Vec::with_capacity(self.members.len());
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            let busy = utilization(&mut member.server, &mut member.counted, every, now);
            shares.push(busy.unwrap_or(0.0));
            self.schedule_completion(index);
        }
        if self.is_measuring() {
            let count = shares.len() as f64;
            let mean = shares.iter().sum::<f64>() / count;
            let squares = shares.iter().map(|share| (share - mean) * (share - mean));
            self.outcomes.variances.push(squares.sum::<f64>() / count);
        }
    }

    pub(super) fn write_load(&mut self, server: usize) {
        let (member, now) = (&mut self.members[server], self.engine.elapsed_nanos());
        member.written = utilization(&mut member.server, &mut member.updated, Duration::ZERO, now);
        self.schedule_completion(server);
    }
}
