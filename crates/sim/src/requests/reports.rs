//! Load reports of members: read, written down, reported, with noise and delay.

use std::time::Duration;

use evenkeel_core::load::{LoadId, LoadValue, of_queue};

use super::{RequestEvent, Simulation};
use crate::engine::{draw_exponential, duration_nanos};
use crate::scenario::{MemberModel, Reading};
use crate::server::Server;

/// A member, and the values read there.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) server: Server,
    /// True if the member has died.
    pub(super) dead: bool,
    /// Load that the member reports in place of its real load.
    pub(super) reported: Option<f64>,
    /// By reader.
    reads: Vec<Read>,
    /// Busy time and the time itself, at the last update, variance, and sample.
    updated: (f64, u64),
    counted: (f64, u64),
    sampled: (f64, u64),
    /// Value that was written down last.
    written: Option<f64>,
    /// Requests and errors.
    done: (u64, u64),
}

/// Values of a reader's last report: busy time, requests and errors, and the time of the report.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    busy: (f64, u64),
    done: (u64, u64),
    at: u64,
}

/// A report on its way, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Said {
    load: u64,
    requests_per_second: u64,
    errors_per_second: u64,
}

impl Member {
    pub(super) fn new(model: &MemberModel, averages: bool, readers: usize) -> Self {
        let MemberModel {
            discipline,
            slots,
            slowness,
            failing,
            ..
        } = *model;
        Member {
            server: Server::new(discipline, slots, slowness, failing, averages),
            dead: false,
            reported: None,
            reads: vec![Read::default(); readers],
            updated: (0.0, 0),
            counted: (0.0, 0),
            sampled: (0.0, 0),
            written: None,
            done: (0, 0),
        }
    }

    /// The member has answered a request, or failed to.
    pub(super) fn count_answer(&mut self, failed: bool) {
        self.done.0 += 1;
        self.done.1 += u64::from(failed);
    }

    /// Builds the member's report of its requests and of a load.
    fn say(&mut self, reader: usize, load: f64, now: u64) -> Said {
        let read = &mut self.reads[reader];
        let (before, since) = (read.done, read.at);
        (read.done, read.at) = (self.done, now);
        let (requests, errors) = (self.done.0 - before.0, self.done.1 - before.1);
        let elapsed = (now - since).max(1) as f64 / 1e9;
        let per_second = |count: u64| (count as f64 / elapsed * 1e3) as u64;
        Said {
            load: (load * 1e3) as u64,
            requests_per_second: per_second(requests),
            errors_per_second: per_second(errors),
        }
    }

    /// Share of its slots that was busy since the last sample.
    pub(super) fn busy_since_sample(&mut self, now: u64, every: Duration) -> f64 {
        utilization(&mut self.server, &mut self.sampled, every, now).unwrap_or(0.0)
    }
}

/// Share of a member's slots that was busy since `last`, or over `interval` if that is longer.
fn utilization(
    server: &mut Server,
    last: &mut (f64, u64),
    interval: Duration,
    now: u64,
) -> Option<f64> {
    let busy = server.busy(now);
    let (then, at) = std::mem::replace(last, (busy, now));
    let elapsed = ((now - at) as f64).max(duration_nanos(interval)) * server.slots() as f64;
    (elapsed > 0.0).then(|| ((busy - then) / elapsed).clamp(0.0, 1.0))
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
