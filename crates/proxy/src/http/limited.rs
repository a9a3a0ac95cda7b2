//! Requests that no member gets: of clients that have sent too many, and those of rules in maintenance.

use std::num::NonZeroU32;
use std::time::Duration;

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
        self.end_with(request, summary, answer).await
    }

    /// Answers a request while the rule is in maintenance.
    pub(super) async fn in_maintenance(&mut self, request: &mut Request) -> After {
        self.session.service.metrics.refused_maintenance.add(1);
        let routed = request.routed.clone();
        let maintenance = &routed.rule.maintenance;
        let seconds = |time: Duration| {
            let part = u64::from(time.subsec_nanos() > 0);
            u32::try_from(time.as_secs() + part).unwrap_or(u32::MAX)
        };
        let page = routed.page();
        let answer = Answer {
            retry_after: maintenance.retry_after.map(seconds),
            page: page.map(|page| (&*maintenance.content_type, page)),
            ..Answer::closing(
                maintenance.status,
                "The service is in maintenance. Try again later.",
            )
        };
        let summary = Summary::new(End::Maintenance);
        self.end_with(request, summary, answer).await
    }

    async fn end_with(
        &mut self,
        request: &mut Request,
        mut summary: Summary,
        answer: Answer<'_>,
    ) -> After {
        let after = self.give_instead(request, &mut summary, answer).await;
        if let Some(rest) = request.up.finish(&self.session.worker) {
            self.input = Some(rest);
        }
        self.conclude(Some(request), summary);
        after
    }
}
