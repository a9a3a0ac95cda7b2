//! Outcomes of a run, and figures derived from them.

use std::time::Duration;

use evenkeel_control::event::Event;
use evenkeel_control::health::Change;

/// Sample of a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time of the sample.
    pub at: Duration,
    /// Sample of each member.
    pub members: Vec<MemberSample>,
    /// Requests that wait in the balancers' queues.
    pub waiting: usize,
    /// Requests that were answered since the last sample.
    pub answered: usize,
    /// Median response time of these requests.
    pub p50: Duration,
    /// The 99th percentile of these response times.
    pub p99: Duration,
    /// Requests that have failed so far.
    pub failed: usize,
}

/// Sample of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemberSample {
    /// Requests in flight at the member.
    pub in_flight: u32,
    /// Share of the member's slots that was busy since the last sample.
    pub busy: f64,
    /// Requests that it has answered so far.
    pub answered: u32,
}

/// Outcomes of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Response times of the requests that succeeded after the warm-up, in nanoseconds, ascending.
    pub latencies: Vec<u64>,
    /// Requests that arrived, warm-up included.
    pub requests: usize,
    /// Requests that failed or found no member, warm-up included.
    pub failed: usize,
    /// Requests that each member got, warm-up included.
    pub per_member: Vec<usize>,
    /// Time at which each request after the warm-up was sent, in nanoseconds, and its member; empty with
    /// [`Scenario::samples`](crate::scenario::Scenario::samples).
    pub(super) sent: Vec<(u64, u32)>,
    /// Requests of each source that succeeded after the warm-up.
    pub served: Vec<usize>,
    /// Sessions of several requests that have ended, warm-up included: of which source, and how long
    /// each took, in nanoseconds.
    pub visits: Vec<(usize, u64)>,
    /// Variance between members of the share of their slots that was busy: one for each
    /// [`Scenario::variance`](crate::scenario::Scenario::variance) after the warm-up.
    pub variances: Vec<f64>,
    /// Nanoseconds of work that other programs' tasks got, warm-up included.
    pub others: f64,
    /// Requests that waited because all members were at their limits.
    pub queued: usize,
    /// Requests that waited for so long that they failed.
    pub timed_out: usize,
    /// Requests that were refused while they waited, because of an overload.
    pub shed: usize,
    /// Further tries at other members.
    pub retries: usize,
    /// Retries that the retry budget has prevented.
    pub over_budget: usize,
    /// Members that active checks found down, or up again: time, balancer, and member.
    pub health: Vec<(Duration, usize, usize, Change)>,
    /// Samples in the order of time, one for each interval [`Scenario::samples`].
    ///
    /// [`Scenario::samples`]: crate::Scenario::samples
    pub samples: Vec<Sample>,
    /// Response times for the next sample, in nanoseconds.
    pub(super) window: Vec<u64>,
    /// Events of the control: time, balancer, and event.
    pub events: Vec<(Duration, usize, Event)>,
    /// Figures of tokens, if the members are engines of language models.
    pub tokens: Option<TokenOutcomes>,
}

/// Figures of tokens. Requests of the warm-up are not part of them.
#[derive(Clone, Debug, Default)]
pub struct TokenOutcomes {
    /// Times to the first token, in nanoseconds, ascending.
    pub first_tokens: Vec<u64>,
    /// Times to the first token of requests whose key does not flood, in nanoseconds, ascending.
    pub others_first_tokens: Vec<u64>,
    /// Mean time between two tokens of each answer with several, in nanoseconds, ascending.
    pub token_gaps: Vec<u64>,
    /// Tokens of prompts that engines remembered.
    pub cached_tokens: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Requests that lost their room in an engine's cache, warm-up included.
    pub preemptions: usize,
}

impl TokenOutcomes {
    /// Share of the tokens of prompts that engines remembered.
    pub fn hit_share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Mean of times in nanoseconds, in seconds.
    pub fn mean_seconds(times: &[u64]) -> f64 {
        let sum: f64 = times.iter().map(|nanos| *nanos as f64).sum();
        sum / 1e9 / times.len().max(1) as f64
    }

    /// The time in seconds below which a share `q` (0 to 1) of sorted times stayed.
    pub fn quantile_seconds(times: &[u64], q: f64) -> f64 {
        let last = times.len().saturating_sub(1);
        let index = (q * last as f64).round() as usize;
        times.get(index).map_or(0.0, |nanos| *nanos as f64 / 1e9)
    }
}

impl Outcomes {
    /// The response time below which a share `q` (0 to 1) of the requests stayed.
    pub fn quantile(&self, q: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        let index = (q * last as f64).round() as usize;
        Duration::from_nanos(self.latencies.get(index).copied().unwrap_or(0))
    }

    /// Mean of the response times of what succeeded.
    pub fn mean(&self) -> Duration {
        let sum: f64 = self.latencies.iter().map(|&nanos| nanos as f64).sum();
        Duration::from_nanos((sum / self.latencies.len().max(1) as f64) as u64)
    }

    /// The largest share of the requests of a time `window` that went to a single member,
    /// as a mean over all windows.
    pub fn busiest(&self, window: Duration) -> f64 {
        let window = window.as_nanos().max(1) as u64;
        let mut counts = vec![0u32; self.per_member.len()];
        let (mut sum, mut windows) = (0.0, 0);
        for sent in self.sent.chunk_by(|a, b| a.0 / window == b.0 / window) {
            counts.fill(0);
            for &(_, member) in sent {
                counts[member as usize] += 1;
            }
            let most = counts.iter().copied().max().unwrap_or(0);
            sum += f64::from(most) / sent.len() as f64;
            windows += 1;
        }
        sum / f64::from(windows.max(1))
    }

    /// The largest share of a member in any `requests` consecutive requests; 0 if there were fewer.
    pub fn largest_share(&self, requests: usize) -> f64 {
        let mut counts = vec![0u32; self.per_member.len()];
        let mut most = 0;
        for (place, &(_, member)) in self.sent.iter().enumerate() {
            counts[member as usize] += 1;
            if place >= requests {
                counts[self.sent[place - requests].1 as usize] -= 1;
            }
            if place + 1 >= requests {
                most = counts.iter().copied().fold(most, u32::max);
            }
        }
        f64::from(most) / requests.max(1) as f64
    }

    /// Share of the requests between two moments that `member` got.
    pub fn share(&self, member: usize, from: Duration, to: Duration) -> f64 {
        let range = from.as_nanos() as u64..to.as_nanos() as u64;
        let within = self.sent.iter().filter(|(at, _)| range.contains(at));
        let all = within.clone().count().max(1);
        let here = within.filter(|(_, sent)| *sent as usize == member);
        here.count() as f64 / all as f64
    }

    /// Share of all requests that failed.
    pub fn failed_share(&self) -> f64 {
        self.failed as f64 / self.requests.max(1) as f64
    }
}
