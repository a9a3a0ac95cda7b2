//! Sums of this balancer's requests, which continue when its configuration changes.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use evenkeel_core::member::MemberId;
use evenkeel_core::observe::Latencies;
use evenkeel_manager::Manager;

use crate::judge::{Counts, LIMITS, interval_limit};

/// Interval at which counts are kept, and number of kept counts: five minutes.
const KEEP_EVERY: Duration = Duration::from_secs(10);
const KEPT: usize = 30;

/// Sums over all rules and members, including those that were removed.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Requests or sessions of each rule at the last update, and failures among them.
    rules: HashMap<std::sync::Arc<str>, [u64; 2]>,
    members: HashMap<MemberId, Latencies>,
    requests: u64,
    failed: u64,
    latencies: Latencies,
}

impl Totals {
    /// Adds the requests since the last call.
    pub(crate) fn take_counts(&mut self, manager: &Manager) {
        let mut rules = HashMap::new();
        for rule in manager.subsystems().traffic() {
            let ([_, requests, failed], [_, sessions, broken]) = (rule.requests, rule.connections);
            // A TCP rule has no requests.
            let now = match requests {
                0 => [sessions, broken],
                _ => [requests, failed],
            };
            let [before, failed_before] = self.rules.get(&rule.rule).copied().unwrap_or_default();
            let [requests, failed] = now;
            self.requests = self
                .requests
                .saturating_add(requests.saturating_sub(before));
            self.failed = self
                .failed
                .saturating_add(failed.saturating_sub(failed_before));
            rules.insert(rule.rule, now);
        }
        self.rules = rules;
        let mut members = HashMap::new();
        for group in manager.list_groups() {
            for member in group.members() {
                let record = member.slot.record();
                let earlier = self.members.remove(&member.id).unwrap_or_default();
                let now = record.latencies();
                self.latencies.merge(&now.since(&earlier));
                members.insert(member.id, now);
            }
        }
        self.members = members;
    }

    /// Sums so far.
    pub(crate) fn counts(&self) -> Counts {
        let mut below = 0;
        let intervals = (0..LIMITS).filter_map(|interval| {
            // The last interval includes all longer latencies.
            let now = match interval + 1 == LIMITS {
                true => self.latencies.count(),
                false => self.latencies.at_most(interval_limit(interval)),
            };
            let more = now.saturating_sub(below);
            below = now;
            let interval = u16::try_from(interval).ok()?;
            (more > 0).then_some((interval, more))
        });
        let latencies = intervals.collect();
        Counts {
            requests: self.requests,
            failed: self.failed.min(self.requests),
            latencies,
        }
    }
}

/// Counts of the last minutes.
#[derive(Debug, Default)]
pub(crate) struct KeptCounts {
    /// Counts with the time of each, the oldest first.
    kept: VecDeque<(Instant, Counts)>,
}

impl KeptCounts {
    /// Returns true if it is time to keep counts.
    pub(crate) fn is_due(&self) -> bool {
        let last = self.kept.back();
        last.is_none_or(|(last, _)| last.elapsed() >= KEEP_EVERY)
    }

    /// Keeps `counts`, and forgets the oldest ones.
    pub(crate) fn keep_counts(&mut self, counts: Counts) {
        self.kept.push_back((Instant::now(), counts));
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
    }

    /// Returns the difference of `now` and the oldest counts that are kept.
    pub(crate) fn counts_since_oldest(&self, now: &Counts) -> Counts {
        let oldest = self.kept.front();
        oldest.map_or_else(Counts::default, |(_, then)| now.since(then))
    }
}
