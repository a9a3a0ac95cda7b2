//! Limits of tokens: an estimate is held while a request is under way.

use evenkeel_core::time::Instant;
use evenkeel_inference::group::{AnswerEnd, RequestPlan};

use super::client::Client;
use super::request::Request;
use crate::quota::Over;

impl Client {
    /// Takes the estimated tokens of a request from the limits of its client; returns the limit that has too few left.
    #[cold]
    pub(super) fn hold_tokens(
        &self,
        request: &mut Request,
        plan: &RequestPlan<'_>,
        now: Instant,
    ) -> Option<Over> {
        let hold = request.tokens.as_mut()?;
        let quotas = request.routed.client_quotas()?;
        let work = plan.request_work();
        // Floats become the nearest numbers that there are.
        let tokens = (work.prompt_tokens as u32, work.output_tokens as u32);
        let over = quotas.hold_tokens(request.routed.route_index(), hold, tokens, now);
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
        if let Some(hold) = request.tokens.take()
            && let Some(quotas) = request.routed.client_quotas()
        {
            let used = hold.count_used(status, end);
            quotas.settle_tokens(request.routed.route_index(), &hold, used, now);
        }
    }

    /// Gives back the tokens of a request that no engine has answered.
    #[cold]
    pub(super) fn give_tokens_back(&self, request: &mut Request) {
        let now = self.session.worker.now();
        self.settle_tokens(request, 0, &AnswerEnd::default(), now);
    }
}
