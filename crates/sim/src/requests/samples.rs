//! Samples of members and requests, taken at an interval.

use std::time::Duration;

use super::outcomes::{MemberSample, Sample};
use super::simulation::{RequestEvent, Simulation};
use crate::engine::duration_nanos;

impl Simulation<'_> {
    /// A request was answered.
    pub(super) fn note_response(&mut self, took: u64) {
        if self.scenario.samples.is_some() {
            self.outcomes.window.push(took);
        }
    }

    pub(super) fn take_sample(&mut self) {
        let Some(every) = self.scenario.samples else {
            return;
        };
        self.engine
            .schedule_after(duration_nanos(every), RequestEvent::Sample);
        let now = self.engine.elapsed_nanos();
        let mut members = Vec::with_capacity(self.members.len());
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            members.push(MemberSample {
                in_flight: member.server.in_flight() as u32,
                busy: member.busy_since_sample(now, every),
                answered: self.outcomes.per_member[index] as u32,
            });
            self.schedule_completion(index);
        }
        let mut took = std::mem::take(&mut self.outcomes.window);
        let mut quantile = |share: f64| {
            let last = took.len().checked_sub(1)?;
            let index = (share * last as f64).round() as usize;
            Some(Duration::from_nanos(*took.select_nth_unstable(index).1))
        };
        let (p50, p99) = (quantile(0.5), quantile(0.99));
        let waiting = self.balancers.iter().flat_map(|of| &of.waiting);
        let sample = Sample {
            at: Duration::from_nanos(now),
            members,
            waiting: waiting.map(|line| line.len()).sum(),
            answered: took.len(),
            p50: p50.unwrap_or_default(),
            p99: p99.unwrap_or_default(),
            failed: self.outcomes.failed,
        };
        self.outcomes.samples.push(sample);
        took.clear();
        self.outcomes.window = took;
    }
}
