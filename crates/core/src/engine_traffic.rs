//! Traffic of one engine: tokens, and the times in which tokens come. Copies of it tell what has happened between two
//! moments.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_inference::usage::Usage;

use crate::histogram::{Histogram, Latencies};

/// Traffic of an engine since it got its number. All workers share it.
#[derive(Debug, Default)]
pub struct EngineTraffic {
    /// Tokens of prompts, as the engine has counted them.
    prompt_tokens: AtomicU64,
    /// Tokens of those prompts of which the engine has told how many tokens were cached, and these cached tokens.
    compared_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    /// Tokens of answers that came as a whole.
    whole_tokens: AtomicU64,
    /// Events of streams with parts of an answer.
    events: AtomicU64,
    first_tokens: Histogram,
    later_tokens: Histogram,
}

/// Copy of an engine's traffic, or the traffic between two copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineTotals {
    prompt_tokens: u64,
    compared_tokens: u64,
    cached_tokens: u64,
    whole_tokens: u64,
    events: u64,
    first_tokens: Latencies,
    later_tokens: Latencies,
}

impl EngineTraffic {
    /// Counts events of a stream.
    #[inline]
    pub(crate) fn count_events(&self, events: u64) {
        self.events.fetch_add(events, Ordering::Relaxed);
    }

    /// Counts the tokens of an answer. Those of a stream are counted by its events already.
    pub(crate) fn count_usage(&self, usage: &Usage, is_stream: bool) {
        let add = |count: &AtomicU64, tokens: u32| {
            count.fetch_add(tokens.into(), Ordering::Relaxed);
        };
        add(&self.prompt_tokens, usage.prompt_tokens);
        if let Some(cached) = usage.cached_tokens {
            add(&self.compared_tokens, usage.prompt_tokens);
            add(&self.cached_tokens, cached);
        }
        if !is_stream {
            add(&self.whole_tokens, usage.output_tokens);
        }
    }

    /// Adds the times of a complete stream: to its first token, and for each further token, if there are any.
    pub(crate) fn add_times(&self, first: Duration, later: Option<Duration>) {
        self.first_tokens.add_latency(first);
        if let Some(later) = later {
            self.later_tokens.add_latency(later);
        }
    }

    /// Returns a copy of the traffic so far.
    pub fn copy_totals(&self) -> EngineTotals {
        EngineTotals {
            prompt_tokens: self.prompt_tokens.load(Ordering::Relaxed),
            compared_tokens: self.compared_tokens.load(Ordering::Relaxed),
            cached_tokens: self.cached_tokens.load(Ordering::Relaxed),
            whole_tokens: self.whole_tokens.load(Ordering::Relaxed),
            events: self.events.load(Ordering::Relaxed),
            first_tokens: self.first_tokens.copy_latencies(),
            later_tokens: self.later_tokens.copy_latencies(),
        }
    }
}

impl EngineTotals {
    /// Returns the traffic since `earlier`, an earlier copy of the same engine's traffic.
    pub fn since(&self, earlier: &EngineTotals) -> EngineTotals {
        EngineTotals {
            prompt_tokens: self.prompt_tokens.saturating_sub(earlier.prompt_tokens),
            compared_tokens: self.compared_tokens.saturating_sub(earlier.compared_tokens),
            cached_tokens: self.cached_tokens.saturating_sub(earlier.cached_tokens),
            whole_tokens: self.whole_tokens.saturating_sub(earlier.whole_tokens),
            events: self.events.saturating_sub(earlier.events),
            first_tokens: self.first_tokens.since(&earlier.first_tokens),
            later_tokens: self.later_tokens.since(&earlier.later_tokens),
        }
    }

    /// Adds the traffic of another engine in the same time.
    pub fn merge(&mut self, other: &EngineTotals) {
        self.prompt_tokens += other.prompt_tokens;
        self.compared_tokens += other.compared_tokens;
        self.cached_tokens += other.cached_tokens;
        self.whole_tokens += other.whole_tokens;
        self.events += other.events;
        self.first_tokens.merge(&other.first_tokens);
        self.later_tokens.merge(&other.later_tokens);
    }

    /// Tokens of prompts, as engines have counted them.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// Tokens of answers, if an event of a stream has this many tokens.
    pub fn output_tokens(&self, tokens_per_event: f32) -> f64 {
        self.whole_tokens as f64 + self.events as f64 * f64::from(tokens_per_event)
    }

    /// Share of the tokens of prompts that engines had cached, 0 to 1. `None` if no engine has told it.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.compared_tokens;
        (all > 0).then(|| (self.cached_tokens as f64 / all as f64).min(1.0))
    }

    /// Times to the first tokens of complete streams.
    pub fn first_token_times(&self) -> &Latencies {
        &self.first_tokens
    }

    /// Mean times for each token after the first one, of complete streams with several tokens.
    pub fn later_token_times(&self) -> &Latencies {
        &self.later_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt_tokens: u32, cached_tokens: Option<u32>, output_tokens: u32) -> Usage {
        Usage {
            prompt_tokens,
            cached_tokens,
            output_tokens,
        }
    }

    #[test]
    fn two_copies_tell_what_has_happened_between_them() {
        let traffic = EngineTraffic::default();
        traffic.count_usage(&usage(500, Some(500), 70), false);
        traffic.add_times(Duration::from_secs(9), None);
        let earlier = traffic.copy_totals();
        traffic.count_usage(&usage(100, Some(75), 20), true);
        traffic.count_events(10);
        traffic.count_usage(&usage(200, None, 30), false);
        traffic.add_times(Duration::from_millis(100), Some(Duration::from_millis(20)));
        let totals = traffic.copy_totals().since(&earlier);
        assert_eq!(totals.prompt_tokens(), 300);
        assert_eq!(totals.output_tokens(2.0), 50.0);
        // An engine that does not tell the tokens that it had cached is no engine without them.
        assert_eq!(totals.hit_rate(), Some(0.75));
        assert_eq!(totals.first_token_times().count(), 1);
        assert_eq!(totals.later_token_times().count(), 1);
        let nothing = traffic.copy_totals().since(&traffic.copy_totals());
        assert_eq!(nothing, EngineTotals::default());
        assert_eq!(nothing.hit_rate(), None);
        let mut both = totals.clone();
        both.merge(&totals);
        assert_eq!((both.prompt_tokens(), both.hit_rate()), (600, Some(0.75)));
        assert_eq!(both.first_token_times().count(), 2);
    }
}
