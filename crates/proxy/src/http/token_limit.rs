//! Limits of tokens: an estimate is held while a request is under way.

use evenkeel_core::time::Instant;
use evenkeel_inference::group::{AnswerEnd, RequestPlan};

use super::client::Client;
use super::failure::Failure;
use super::request::Request;
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

    /// Settles the tokens of a request that no engine has answered. All are given back, but those of engines that were
    /// given up.
    #[cold]
    pub(super) fn settle_unanswered(&self, request: &mut Request) {
        if let Some(hold) = request.tokens.take() {
            hold.settle(hold.given_up_tokens(), self.session.worker.now());
        }
    }
}

impl Request {
    /// Notes for limits of tokens that an attempt has failed. A request that an engine has as a whole takes its tokens if the
    /// client has left, or a time limit is over: a client can cause both. What an engine has refused, or an engine that has
    /// failed, costs the client nothing.
    #[cold]
    pub(super) fn note_given_up(&self, failure: &Failure) {
        let is_engine_working = matches!(
            failure,
            Failure::ClientGone
                | Failure::ClientStuck
                | Failure::TimedOut
                | Failure::DeadlineExceeded
        );
        if let Some(hold) = &self.tokens
            && is_engine_working
            && self.up.is_done()
        {
            hold.note_given_up(self.up.content_sent());
        }
    }
}
