//! Limits of tokens: an estimate is held while a request is under way.

use evenkeel_core::time::Instant;
use evenkeel_inference::group::{AnswerEnd, RequestPlan};

use super::client::Client;
use super::request::Request;
use crate::access::End;
use crate::quota::Over;
use crate::quota::tokens::TokenEstimate;

impl Client {
    /// Takes the estimated tokens of a request from the limits of its client; returns the limit that has too few left.
    #[cold]
    pub(super) fn hold_tokens(
        &self,
        request: &mut Request,
        plan: &RequestPlan<'_>,
        now: Instant,
    ) -> Option<Over> {
        let work = plan.request_work();
        let estimate = TokenEstimate {
            // Floats become the nearest numbers that there are.
            prompt: work.prompt_tokens as u32,
            output: work.output_tokens as u32,
            guessed_bytes: plan.guessed_bytes(),
        };
        let over = request.tokens.as_ref()?.take(estimate, now);
        if over.is_some() {
            request.tokens = None;
            request.over = over;
        }
        over
    }

    /// Counts the tokens that a request has used in place of those that it held.
    #[cold]
    pub(super) fn settle_tokens(
        &self,
        request: &mut Request,
        status: u16,
        end: &AnswerEnd,
        now: Instant,
    ) {
        if let Some(hold) = request.tokens.take() {
            let used = hold.count_used(status, end, request.up.content_sent());
            hold.settle(used, now);
        }
    }

    /// Settles the tokens of a request that no engine has answered. All are given back, unless the client has left an
    /// engine that had the whole request, and that may have read the prompt and written most of an answer.
    #[cold]
    pub(super) fn settle_unanswered(&self, request: &mut Request, end: End) {
        if let Some(hold) = request.tokens.take() {
            let used = match end == End::Client && request.up.is_done() {
                true => hold.count_expected(request.up.content_sent()),
                false => 0,
            };
            hold.settle(used, self.session.worker.now());
        }
    }
}
