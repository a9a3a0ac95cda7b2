//! Status of engines for language models: tokens that a member, or all members of a group, have read and written lately.

use evenkeel_core::engine_traffic::EngineTotals;
use evenkeel_core::group::Group;
use evenkeel_core::observe::Latencies;
use evenkeel_core::time::Instant;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::history::TrafficSince;

/// Tokens of an engine, or of all engines of a group, in the time of `recent`, and the requests of this balancer there
/// now.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Tokens of prompts in a second, cached ones included, of requests that have ended and whose engine tells the tokens.
    pub prompt_tokens_per_second: f64,
    /// Tokens of answers in a second. Tokens of a stream count as they come.
    pub output_tokens_per_second: f64,
    /// Share of the tokens of prompts that was cached, 0 to 1; `null` if no engine has told it.
    pub cache_hit_rate: Option<f64>,
    /// Median of the times to the first token of complete streams.
    pub first_token_p50_ms: Option<f64>,
    /// 90th percentile of the times to the first token.
    pub first_token_p90_ms: Option<f64>,
    /// Median of the mean times between two tokens of complete streams.
    pub between_tokens_p50_ms: Option<f64>,
    /// 90th percentile of the mean times between two tokens.
    pub between_tokens_p90_ms: Option<f64>,
    /// Tokens of prompts that have been sent and must be read before the first token.
    pub queued_tokens: f64,
    /// Requests without a first token.
    pub queued_requests: u32,
    /// Streams past the first token.
    pub streams: u32,
    /// Tokens of prompts that other balancers of the fleet have sent and that must be read.
    #[serde(default)]
    pub queued_tokens_elsewhere: f64,
    /// Requests of other balancers of the fleet.
    #[serde(default)]
    pub requests_elsewhere: u32,
}

/// Returns the status of the engine of the member at `index`; `None` if the group's strategy is not `inference`.
pub(crate) fn of_member(
    group: &Group,
    index: usize,
    past: &TrafficSince,
    now: Instant,
) -> Option<EngineStatus> {
    let mut status = describe_past(group, past)?;
    status.add_queue(group, index, now);
    Some(status)
}

/// Returns the status of all engines of a group; `None` if its strategy is not `inference`.
pub(crate) fn of_group(group: &Group, past: &TrafficSince, now: Instant) -> Option<EngineStatus> {
    let mut status = describe_past(group, past)?;
    for index in 0..group.members().len() {
        status.add_queue(group, index, now);
    }
    Some(status)
}

fn describe_past(group: &Group, past: &TrafficSince) -> Option<EngineStatus> {
    let tokens_per_event = group.engines()?.group().token_figures().tokens_per_event();
    let nothing = EngineTotals::default();
    let totals = past.engine.as_deref().unwrap_or(&nothing);
    let seconds = past.span.as_secs_f64();
    let rate = |tokens: f64| if seconds > 0.0 { tokens / seconds } else { 0.0 };
    let millis = |times: &Latencies, q| Some(times.quantile(q)?.as_secs_f64() * 1e3);
    let (first, later) = (totals.first_token_times(), totals.later_token_times());
    Some(EngineStatus {
        prompt_tokens_per_second: rate(totals.prompt_tokens() as f64),
        output_tokens_per_second: rate(totals.output_tokens(tokens_per_event)),
        cache_hit_rate: totals.hit_rate(),
        first_token_p50_ms: millis(first, 0.5),
        first_token_p90_ms: millis(first, 0.9),
        between_tokens_p50_ms: millis(later, 0.5),
        between_tokens_p90_ms: millis(later, 0.9),
        ..EngineStatus::default()
    })
}

impl EngineStatus {
    /// Adds the requests that are at the engine of the member at `index` now.
    fn add_queue(&mut self, group: &Group, index: usize, now: Instant) {
        if let Some(queue) = group.engine_queue(index, now) {
            self.queued_tokens += f64::from(queue.queued_tokens);
            self.queued_requests += queue.waiting as u32;
            self.streams += queue.streams as u32;
        }
        let elsewhere = group.work_elsewhere(index, now);
        self.queued_tokens_elsewhere += f64::from(elsewhere.queued_tokens);
        let requests = elsewhere.waiting.saturating_add(elsewhere.streams);
        self.requests_elsewhere = self.requests_elsewhere.saturating_add(requests);
    }
}
