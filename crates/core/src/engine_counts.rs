//! Counts of a group's engines for metrics, by model and operation.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use evenkeel_inference::labels::Operation;
use evenkeel_inference::labels::RequestLabels;
use evenkeel_inference::usage::Usage;

use crate::histogram::{Histogram, Latencies};

/// Most models with counts of their own. Clients can invent names, and some engines take any name.
const MOST_MODELS: usize = 64;

/// Name in metrics of all models without counts of their own.
const OTHER_MODELS: &str = "other";

/// Part of a request's prompt that was read before a member was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptPart {
    /// All of the prompt.
    Whole,
    /// The beginning of the prompt: the request is too long, or its body comes too late.
    Beginning,
    /// Nothing: the client sends the body only after a member has answered with a 100 (Continue), or too late.
    Unread,
    /// Nothing: the body is compressed.
    Compressed,
    /// Nothing: the body is not JSON, or has no prompt.
    NoPrompt,
    /// Nothing: engines may see another prompt, as a key occurs twice or is written with escapes.
    Ambiguous,
    /// Nothing: the body is not understood in or behind the prompt, and engines may see another one.
    Broken,
}

impl PromptPart {
    /// All parts.
    pub const ALL: [PromptPart; 7] = [
        PromptPart::Whole,
        PromptPart::Beginning,
        PromptPart::Unread,
        PromptPart::Compressed,
        PromptPart::NoPrompt,
        PromptPart::Ambiguous,
        PromptPart::Broken,
    ];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            PromptPart::Whole => "whole",
            PromptPart::Beginning => "beginning",
            PromptPart::Unread => "unread",
            PromptPart::Compressed => "compressed",
            PromptPart::NoPrompt => "no_prompt",
            PromptPart::Ambiguous => "ambiguous",
            PromptPart::Broken => "broken",
        }
    }
}

/// Kind of tokens that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Tokens of prompts, as engines have counted them.
    Prompt,
    /// Tokens of prompts which engines have not needed to read, as the engines have counted them.
    Cached,
    /// Tokens of prompts which the strategy has expected to be cached, of requests whose engines say how many were.
    ExpectedCached,
    /// Tokens of answers, as engines have counted them.
    Output,
}

impl TokenKind {
    /// All kinds.
    pub const ALL: [TokenKind; 4] = [
        TokenKind::Prompt,
        TokenKind::Cached,
        TokenKind::ExpectedCached,
        TokenKind::Output,
    ];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            TokenKind::Prompt => "prompt",
            TokenKind::Cached => "cached",
            TokenKind::ExpectedCached => "expected_cached",
            TokenKind::Output => "output",
        }
    }
}

/// Counts of prompts and tokens since the pool was created. All workers share them.
#[derive(Debug)]
pub struct EngineCounts {
    prompts: [AtomicU64; PromptPart::ALL.len()],
    /// Models that engines have served, in the order of their first answers: free places are last.
    models: [OnceLock<Box<ModelCounts>>; MOST_MODELS],
    /// All other models together, and requests without the name of a model.
    other_models: ModelCounts,
}

/// Counts of a model.
#[derive(Debug, Default)]
pub struct ModelCounts {
    /// `None` for models without counts of their own.
    name: Option<Box<str>>,
    tokens: [AtomicU64; TokenKind::ALL.len()],
    /// Times by operation, once there is one.
    times: [OnceLock<Box<OperationTimes>>; Operation::ALL.len()],
}

/// Times of requests for a model and an operation.
#[derive(Debug, Default)]
pub struct OperationTimes {
    requests: Histogram,
    first_tokens: Histogram,
    later_tokens: Histogram,
}

/// Times of a complete answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerTimes {
    /// Time from the arrival of the request to the end of its answer.
    pub(crate) request: Duration,
    /// Time to the first token, if the answer is a stream.
    pub(crate) first_token: Option<Duration>,
    /// Mean time for each token after the first one, if there are several.
    pub(crate) later_token: Option<Duration>,
}

impl Default for EngineCounts {
    fn default() -> Self {
        EngineCounts {
            prompts: Default::default(),
            models: std::array::from_fn(|_| OnceLock::new()),
            other_models: ModelCounts::default(),
        }
    }
}

impl EngineCounts {
    /// Counts a request, by the part of its prompt that was read.
    pub fn count_prompt(&self, part: PromptPart) {
        add_count(self.prompts.get(part as usize), 1);
    }

    /// Number of requests of whose prompts this part was read.
    pub fn prompt_count(&self, part: PromptPart) -> u64 {
        read_count(self.prompts.get(part as usize))
    }

    /// Models with counts of their own, and then all others together.
    pub fn list_models(&self) -> impl Iterator<Item = &ModelCounts> {
        let known = self.models.iter().map_while(OnceLock::get);
        known.map(|model| &**model).chain([&self.other_models])
    }

    /// Counts the tokens of an answer, for which the strategy expected this many tokens to be cached.
    pub(crate) fn count_usage(&self, labels: &RequestLabels, usage: &Usage, expected: f32) {
        let counts = &self.claim_model(labels).tokens;
        let add = |kind: TokenKind, tokens| add_count(counts.get(kind as usize), tokens);
        add(TokenKind::Prompt, u64::from(usage.prompt_tokens));
        add(TokenKind::Output, u64::from(usage.output_tokens));
        if let Some(cached) = usage.cached_tokens {
            add(TokenKind::Cached, u64::from(cached));
            add(TokenKind::ExpectedCached, expected as u64);
        }
    }

    /// Counts the times of a complete answer.
    pub(crate) fn count_times(&self, labels: &RequestLabels, times: &AnswerTimes) {
        let of_operation = self
            .claim_model(labels)
            .times
            .get(labels.operation as usize);
        let Some(of_operation) = of_operation else {
            return;
        };
        let counts = of_operation.get_or_init(Box::default);
        counts.requests.add_latency(times.request);
        if let Some(time) = times.first_token {
            counts.first_tokens.add_latency(time);
        }
        if let Some(time) = times.later_token {
            counts.later_tokens.add_latency(time);
        }
    }

    /// Counts of the model of a request that an engine has answered. The model takes a place, if it has none and one is
    /// free.
    fn claim_model(&self, labels: &RequestLabels) -> &ModelCounts {
        let Some(model) = &labels.model else {
            return &self.other_models;
        };
        let name = String::from_utf8_lossy(model.as_bytes());
        if name == OTHER_MODELS {
            return &self.other_models;
        }
        let found = self.models.iter().find_map(|place| {
            let counts = place.get_or_init(|| Box::new(ModelCounts::new(&name)));
            (counts.name.as_deref() == Some(&*name)).then_some(counts)
        });
        found.map_or(&self.other_models, |counts| counts)
    }
}

impl ModelCounts {
    fn new(name: &str) -> Self {
        ModelCounts {
            name: Some(name.into()),
            ..ModelCounts::default()
        }
    }

    /// Name of the model in metrics.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(OTHER_MODELS)
    }

    /// Number of tokens of a kind.
    pub fn token_count(&self, kind: TokenKind) -> u64 {
        read_count(self.tokens.get(kind as usize))
    }

    /// Times by operation, of operations with a complete answer.
    pub fn list_times(&self) -> impl Iterator<Item = (Operation, &OperationTimes)> {
        let all = Operation::ALL.into_iter().zip(&self.times);
        all.filter_map(|(operation, times)| Some((operation, &**times.get()?)))
    }
}

impl OperationTimes {
    /// Times from the arrival of a request to the end of its answer, of complete answers.
    pub fn request_times(&self) -> Latencies {
        self.requests.copy_latencies()
    }

    /// Times from the arrival of a request to the first token of its answer, of complete streams.
    pub fn first_token_times(&self) -> Latencies {
        self.first_tokens.copy_latencies()
    }

    /// Mean times for each token after the first one, of complete streams with several tokens.
    pub fn later_token_times(&self) -> Latencies {
        self.later_tokens.copy_latencies()
    }
}

fn add_count(count: Option<&AtomicU64>, more: u64) {
    if let Some(count) = count {
        count.fetch_add(more, Ordering::Relaxed);
    }
}

fn read_count(count: Option<&AtomicU64>) -> u64 {
    count.map_or(0, |count| count.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_inference::model_name::ModelName;

    fn labels(model: &str, operation: Operation) -> RequestLabels {
        RequestLabels {
            model: ModelName::decode(model.as_bytes()),
            operation,
        }
    }

    fn count(counts: &EngineCounts, labels: &RequestLabels) {
        let usage = Usage {
            prompt_tokens: 10,
            cached_tokens: Some(4),
            output_tokens: 3,
        };
        counts.count_usage(labels, &usage, 5.0);
        let times = AnswerTimes {
            request: Duration::from_secs(2),
            first_token: Some(Duration::from_secs(1)),
            later_token: None,
        };
        counts.count_times(labels, &times);
    }

    fn tokens(counts: &EngineCounts) -> Vec<(String, u64)> {
        let models = counts.list_models();
        models
            .map(|model| {
                (
                    model.label().to_owned(),
                    model.token_count(TokenKind::Prompt),
                )
            })
            .collect()
    }

    #[test]
    fn each_model_and_operation_has_its_own_counts() {
        let counts = EngineCounts::default();
        assert_eq!(tokens(&counts), [("other".to_owned(), 0)]);
        count(&counts, &labels("b", Operation::Chat));
        count(&counts, &labels("a", Operation::Chat));
        count(&counts, &labels("b", Operation::Embeddings));
        count(&counts, &RequestLabels::default());
        // A model of this name would be a second series of the same name.
        count(&counts, &labels("other", Operation::Chat));
        let named = |name: &str, tokens| (name.to_owned(), tokens);
        assert_eq!(
            tokens(&counts),
            [named("b", 20), named("a", 10), named("other", 20)]
        );
        let first = counts.list_models().next().unwrap();
        let kinds = TokenKind::ALL.map(|kind| first.token_count(kind));
        assert_eq!(kinds, [20, 8, 10, 6]);
        let times: Vec<_> = first
            .list_times()
            .map(|(operation, times)| {
                let counts = [
                    times.request_times(),
                    times.first_token_times(),
                    times.later_token_times(),
                ];
                (operation, counts.map(|times| times.count()))
            })
            .collect();
        let each = [1, 1, 0];
        assert_eq!(
            times,
            [(Operation::Chat, each), (Operation::Embeddings, each)]
        );
    }

    #[test]
    fn names_that_flood_are_one() {
        let counts = EngineCounts::default();
        for number in 0..1000 {
            count(&counts, &labels(&format!("m{number}"), Operation::Chat));
        }
        count(&counts, &labels("m63", Operation::Chat));
        let models = tokens(&counts);
        assert_eq!(models.len(), MOST_MODELS + 1);
        assert_eq!(models[63], ("m63".to_owned(), 20));
        assert_eq!(models[64], ("other".to_owned(), 10 * (1000 - 64)));
    }

    #[test]
    fn workers_that_meet_give_a_model_one_place() {
        let counts = EngineCounts::default();
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let counts = &counts;
                scope.spawn(move || {
                    for number in 0..40 {
                        let model = format!("m{}", (number + worker * 10) % 40);
                        count(counts, &labels(&model, Operation::Chat));
                    }
                });
            }
        });
        let models = tokens(&counts);
        assert_eq!(models.len(), 41);
        assert!(
            models[..40].iter().all(|(_, tokens)| *tokens == 40),
            "{models:?}"
        );
    }
}
