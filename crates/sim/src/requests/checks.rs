//! Active health checks, whose results take the same way as the product's ([`evenkeel_control::health`]), at the same
//! intervals.

use std::time::Duration;

use evenkeel_control::health::{Check, first_check, next_check};

use super::simulation::{Checking, RequestEvent, Simulation};
use crate::engine::duration_nanos;

/// Cost of answering a check for a member, in nanoseconds at normal speed. A check does not wait for requests.
const WORK: f64 = 100e3;

impl Simulation<'_> {
    /// Time between checks, and after which one has failed; `None` is without checks.
    fn times(&self, balancer: usize, source: usize) -> Option<(Duration, Duration)> {
        let groups = &self.balancers.get(balancer)?.groups;
        let check = groups.health_check(&self.sources[source].group)?;
        Some((check.interval, check.timeout))
    }

    pub(super) fn begin_checks(&mut self) {
        for balancer in 0..self.balancers.len() {
            for source in 0..self.sources.len() {
                let Some((interval, _)) = self.times(balancer, source) else {
                    continue;
                };
                for member in 0..self.members.len() {
                    let index = self.checkings.len();
                    self.checkings.push(Checking {
                        balancer,
                        source,
                        member,
                        started: 0,
                        found: Check::Passed,
                    });
                    let first = first_check(interval, self.checks.f32());
                    self.engine
                        .schedule_after(duration_nanos(first), RequestEvent::Check(index));
                }
            }
        }
    }

    pub(super) fn start_check(&mut self, index: usize) {
        let checking = &self.checkings[index];
        let Some((_, timeout)) = self.times(checking.balancer, checking.source) else {
            return;
        };
        let member = &self.members[checking.member];
        let luck = self.checks.f64();
        let took = 2.0 * duration_nanos(self.scenario.network) + WORK * member.server.slowness();
        let found = if member.dead {
            Check::Certain
        } else if luck < member.server.failing || took > duration_nanos(timeout) {
            Check::Failed
        } else {
            Check::Passed
        };
        let checking = &mut self.checkings[index];
        (checking.started, checking.found) = (self.engine.elapsed_nanos(), found);
        let took = took.min(duration_nanos(timeout));
        self.engine
            .schedule_after(took, RequestEvent::Checked(index));
    }

    pub(super) fn finish_check(&mut self, index: usize) {
        let Checking {
            balancer,
            source,
            member,
            started,
            found,
        } = self.checkings[index];
        let Some((interval, _)) = self.times(balancer, source) else {
            return;
        };
        let (now, at) = (self.engine.current_time(), self.engine.elapsed_nanos());
        let of = &mut self.balancers[balancer];
        let id = of.by_source[source].members()[member].id;
        let checked = of
            .groups
            .apply_check(&self.sources[source].group, id, found, now);
        if let Some(change) = checked.and_then(|checked| checked.change) {
            let happened = (Duration::from_nanos(at), balancer, member, change);
            self.outcomes.health.push(happened);
        }
        if checked.is_some_and(|checked| checked.makes_room) {
            self.look_again(balancer, source);
        }
        let soon = checked.is_some_and(|checked| checked.dead);
        let pause = duration_nanos(next_check(interval, soon, self.checks.f32()));
        let left = (pause - (at - started) as f64).max(0.0);
        self.engine.schedule_after(left, RequestEvent::Check(index));
    }
}
