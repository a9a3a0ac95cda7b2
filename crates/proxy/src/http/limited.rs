//! Requests of clients that have sent too many.

use std::num::NonZeroU32;

use super::{After, Client, Request, Summary};
use crate::access::{End, Limit};
use crate::http1::respond::Answer;

impl Client {
    /// Answers a request above the limit of its client, which may send one again after `retry_after`
    /// seconds.
    pub(super) async fn limited(
        &mut self,
        request: &mut Request,
        retry_after: NonZeroU32,
    ) -> After {
        let mut summary = Summary::new(End::Limited);
        summary.limit = Some(Limit::Requests);
        self.session.service.metrics.count_limit(Limit::Requests);
        let answer = Answer {
            retry_after: Some(retry_after.get()),
            ..Answer::closing(
                request.routed.rule.limits.status,
                "Too many requests. Try again later.",
            )
        };
        let after = self.give_instead(request, &mut summary, answer).await;
        if let Some(rest) = request.up.finish(&self.session.worker) {
            self.input = Some(rest);
        }
        self.conclude(Some(request), summary);
        after
    }
}
