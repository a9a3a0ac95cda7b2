//! Engines with continuous batching: in a step, an engine writes a token of each stream, and reads parts of prompts.

use std::collections::VecDeque;

use super::cache::BlockCache;
use super::prompts::{Prompts, TOKENS_PER_BLOCK};

/// Settings of engines at normal speed; times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineModel {
    /// Tokens that the cache holds.
    pub cache_tokens: usize,
    /// Most tokens that a step reads and writes.
    pub step_tokens: usize,
    /// Most requests that the engine works on at once; others wait.
    pub max_requests: usize,
    /// Time of a step in itself.
    pub step_nanos: f64,
    /// Further time for each token that is read.
    pub read_nanos: f64,
    /// Further time for each stream that gets a token.
    pub stream_nanos: f64,
}

impl Default for EngineModel {
    fn default() -> Self {
        EngineModel {
            cache_tokens: 512_000,
            step_tokens: 2048,
            max_requests: 256,
            step_nanos: 6e6,
            read_nanos: 125e3,
            stream_nanos: 350e3,
        }
    }
}

/// Request that waits in an engine.
#[derive(Clone, Copy, Debug)]
struct WaitingRequest {
    job: usize,
    request: usize,
    written: u32,
    /// Tokens of the prompt that were in the cache at the first token, if the request has given up its room since.
    cached: Option<u32>,
}

/// Request that an engine works on.
#[derive(Clone, Copy, Debug)]
struct RunningRequest {
    job: usize,
    request: usize,
    /// Tokens of the prompt that were in the cache when the engine began to read it for the first token, as vLLM tells.
    cached: u32,
    /// Tokens that are still to be read.
    unread: u32,
    /// Tokens that are read in this step.
    reading: u32,
    /// True if a token is written in this step.
    is_writing: bool,
    written: u32,
    /// Blocks of the prompt, from its beginning, that others can use, too.
    held: usize,
    private: usize,
}

/// Token that an engine has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrittenToken {
    pub(super) job: usize,
    /// Tokens of the prompt that the engine did not need to read.
    pub(super) cached: u32,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

/// Engine of a language model.
#[derive(Debug)]
pub(super) struct BatchingEngine {
    model: EngineModel,
    slowness: f64,
    cache: BlockCache,
    waiting: VecDeque<WaitingRequest>,
    running: Vec<RunningRequest>,
    pub(super) is_stepping: bool,
    /// Nanoseconds in which the engine was at work.
    pub(super) busy_nanos: f64,
    /// Requests that lost their room in the cache to others.
    pub(super) preemptions: usize,
}

impl BatchingEngine {
    pub(super) fn new(model: EngineModel, slowness: f64) -> Self {
        BatchingEngine {
            model,
            slowness,
            cache: BlockCache::new((model.cache_tokens / TOKENS_PER_BLOCK).max(1)),
            waiting: VecDeque::new(),
            running: Vec::new(),
            is_stepping: false,
            busy_nanos: 0.0,
            preemptions: 0,
        }
    }

    /// Sets the time of steps, as a multiple of the normal one. Returns the factor by which steps take longer than
    /// before.
    pub(super) fn set_slowness(&mut self, slowness: f64) -> f64 {
        let slowness = slowness.max(1e-9);
        slowness / std::mem::replace(&mut self.slowness, slowness)
    }

    /// Takes a request.
    pub(super) fn push(&mut self, job: usize, request: usize) {
        self.waiting.push_back(WaitingRequest {
            job,
            request,
            written: 0,
            cached: None,
        });
    }

    /// Number of requests that wait.
    pub(super) fn waiting_requests(&self) -> usize {
        self.waiting.len()
    }

    /// Number of requests that are read or answered.
    pub(super) fn running_requests(&self) -> usize {
        self.running.len()
    }

    /// Cache, as an engine's metrics and events tell.
    pub(super) fn block_cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Begins a step; returns its length in nanoseconds. `None` if there is nothing to do.
    pub(super) fn begin_step(&mut self, prompts: &Prompts) -> Option<f64> {
        self.make_room(prompts);
        self.admit_waiting(prompts);
        self.is_stepping = !self.running.is_empty();
        if !self.is_stepping {
            return None;
        }
        let mut streams = 0;
        for request in &mut self.running {
            request.is_writing = request.unread == 0;
            request.reading = 0;
            streams += usize::from(request.is_writing);
        }
        let budget = self.model.step_tokens.saturating_sub(streams).max(1);
        let mut left = u32::try_from(budget).unwrap_or(u32::MAX);
        let mut read = 0;
        for request in self.running.iter_mut().filter(|of| of.unread > 0) {
            request.reading = request.unread.min(left);
            left -= request.reading;
            read += request.reading;
        }
        let EngineModel {
            step_nanos,
            read_nanos,
            stream_nanos,
            ..
        } = self.model;
        let nanos = step_nanos + read_nanos * f64::from(read) + stream_nanos * streams as f64;
        let nanos = (nanos * self.slowness).max(1.0);
        self.busy_nanos += nanos;
        Some(nanos)
    }

    /// Ends a step, and adds the tokens that it has written to `tokens`. The last token that is read gives the first
    /// one that is written.
    pub(super) fn end_step(&mut self, prompts: &Prompts, tokens: &mut Vec<WrittenToken>) {
        let mut index = 0;
        while index < self.running.len() {
            let request = &mut self.running[index];
            let has_read = request.reading > 0;
            request.unread -= request.reading;
            if !(request.is_writing || has_read && request.unread == 0) {
                index += 1;
                continue;
            }
            let of = &prompts.requests()[request.request];
            if has_read {
                let full = prompts.blocks_of(of);
                for block in &full[request.held..] {
                    self.cache.publish(*block);
                }
                request.private -= full.len() - request.held;
                request.held = full.len();
            }
            request.written += 1;
            let is_last = request.written >= of.output_tokens;
            tokens.push(WrittenToken {
                job: request.job,
                cached: request.cached,
                is_first: request.written == 1,
                is_last,
            });
            if is_last {
                let (held, private) = (request.held, request.private);
                self.cache.release(&prompts.blocks_of(of)[..held], private);
                self.running.remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Takes blocks for the answers that need a further one. If there is none, the request that came last gives up its
    /// room, and is read again later.
    fn make_room(&mut self, prompts: &Prompts) {
        let mut index = 0;
        while index < self.running.len() {
            let is_alone = self.running.len() == 1;
            let request = &mut self.running[index];
            let of = &prompts.requests()[request.request];
            let tokens = (of.input_tokens + request.written) as usize;
            if request.unread > 0 || tokens < (request.held + request.private) * TOKENS_PER_BLOCK {
                index += 1;
            } else if self.cache.grow(is_alone) {
                request.private += 1;
                index += 1;
            } else if let Some(last) = self.running.pop() {
                self.preemptions += 1;
                let of = &prompts.requests()[last.request];
                let held = &prompts.blocks_of(of)[..last.held];
                self.cache.release(held, last.private);
                self.waiting.push_front(WaitingRequest {
                    job: last.job,
                    request: last.request,
                    written: last.written,
                    cached: (last.written > 0).then_some(last.cached),
                });
            }
        }
    }

    fn admit_waiting(&mut self, prompts: &Prompts) {
        while self.running.len() < self.model.max_requests
            && let Some(WaitingRequest {
                job,
                request,
                written,
                cached: told,
            }) = self.waiting.front().copied()
        {
            let of = &prompts.requests()[request];
            let full = prompts.blocks_of(of);
            let tokens = of.input_tokens + written;
            // At least one token has to be read.
            let most = (tokens as usize - 1) / TOKENS_PER_BLOCK;
            let held = self.cache.count_prefix(full).min(most);
            let private = (tokens as usize).div_ceil(TOKENS_PER_BLOCK) - held;
            let is_forced = self.running.is_empty();
            if !self.cache.admit(&full[..held], private, is_forced) {
                return;
            }
            self.waiting.pop_front();
            let cached = (held * TOKENS_PER_BLOCK) as u32;
            self.running.push(RunningRequest {
                job,
                request,
                cached: told.unwrap_or(cached),
                unread: tokens - cached,
                reading: 0,
                is_writing: false,
                written,
                held,
                private,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::prompts::{Trace, Workload};

    /// Of two requests for which the cache has no room, the second one gives up its room and is read again, when its
    /// first block is still in the cache: the answer tells what was there at first, which is nothing.
    #[test]
    fn a_request_that_is_read_again_tells_what_was_in_the_cache_at_first() {
        let line = |ids: &str| {
            format!(
                "{{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 400, \"hash_ids\": [{ids}]}}\n"
            )
        };
        let trace = Trace::parse(&(line("1, 2") + &line("7, 8"))).unwrap();
        let prompts = Workload::Trace(trace.into(), 1.0).draw(1);
        let model = EngineModel {
            cache_tokens: 4 * TOKENS_PER_BLOCK,
            ..EngineModel::default()
        };
        let mut engine = BatchingEngine::new(model, 1.0);
        engine.push(0, 0);
        engine.push(1, 1);
        let (mut tokens, mut read) = (Vec::new(), 0);
        while engine.begin_step(&prompts).is_some() {
            let reading = engine.running.iter().map(|request| request.reading);
            read += reading.sum::<u32>();
            engine.end_step(&prompts, &mut tokens);
        }
        assert_eq!(engine.preemptions, 1);
        // 24 tokens of the answer were written by then, of which all but the first block is read again.
        assert_eq!(read, 2 * 1000 + 1000 + 24 - 512);
        let last = tokens.iter().filter(|token| token.is_last);
        let told: Vec<_> = last.map(|token| (token.job, token.cached)).collect();
        assert_eq!(told, [(0, 0), (1, 0)]);
        assert_eq!(tokens.len(), 800);
    }
}
