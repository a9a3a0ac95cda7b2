//! Requests that no member gets: requests of clients that have sent too many, and requests to
//! services in maintenance.

use evenkeel_inference::group::RequestPlan;

use super::client::{After, Client};
use super::request::Request;
use super::route::RequestRoute;
use super::summary::Summary;
use crate::access::{End, Limit};
use crate::bound_request::Refusal;
use crate::http1::respond::Answer;
use crate::quota::Over;

/// Longest time after which a client is told to try again, in seconds.
const MOST_RETRY_SECONDS: f32 = 60.0;

impl RequestRoute {
    /// True if a refusal means that the first token would come too late: the request has waited in vain in a group with
    /// a `ttft_target`.
    pub(super) fn is_first_token_late(&self, refusal: Refusal) -> bool {
        let has_waited = matches!(
            refusal,
            Refusal::QueueFull | Refusal::QueueTimeout | Refusal::Overload
        );
        has_waited && self.target().has_first_token_target
    }
}

impl Client {
    /// Answers a request whose first token would come too late.
    pub(super) async fn answer_late(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        plan: Option<&RequestPlan<'_>>,
    ) -> After {
        summary.end = End::LateFirstToken;
        self.session.service.metrics.refused_late_first_token.add(1);
        let routed = request.routed.clone();
        let group = routed.target().group.current.load();
        let target = group.settings().inference.ttft_target.unwrap_or_default();
        let seconds = plan.map_or(0.0, RequestPlan::queued_seconds) - target.as_secs_f32();
        // Floats become the nearest numbers that there are.
        let retry_after = seconds.ceil().clamp(1.0, MOST_RETRY_SECONDS) as u32;
        let answer = Answer {
            retry_after: Some(retry_after),
            ..Answer::new_closing(429, "All engines are busy. Try again later.")
        };
        self.give_instead(request, summary, answer).await
    }

    /// Answers a request above a limit of its client.
    pub(super) async fn answer_limited(&mut self, request: &mut Request, over: Over) -> After {
        let mut summary = Summary::new(End::Limited);
        summary.limit = Some(Limit::Requests);
        let routed = request.routed.clone();
        let metrics = &self.session.service.metrics;
        let quotas = routed.client_quotas();
        let status = quotas.map_or(429, |quotas| {
            quotas.count_refusal(routed.route_index(), over, metrics)
        });
        let text = match request.is_for_engines {
            true => "Too many requests or tokens. Try again later.",
            false => "Too many requests. Try again later.",
        };
        let answer = Answer {
            retry_after: Some(over.retry_seconds()),
            ..Answer::new_closing(status, text)
        };
        self.end_with(request, summary, answer).await
    }

    /// True if the rule, the group or the route of a request is in maintenance for the client. False while the body, which
    /// decides on the group, is to be read.
    pub(super) fn is_in_maintenance(&self, request: &Request) -> bool {
        let routed = &request.routed;
        if let Some(asked) = request.asked_models.as_deref() {
            return self.lists_no_models(routed, asked);
        }
        let is_open = request.prompt.is_some() && routed.chooses_by_model();
        !is_open
            && routed
                .response_policy()
                .is_in_maintenance(self.session.peer.ip())
    }

    /// Answers a request while the rule, its group or its route is in maintenance.
    pub(super) async fn in_maintenance(&mut self, request: &mut Request) -> After {
        self.session.service.metrics.refused_maintenance.add(1);
        let routed = request.routed.clone();
        let maintenance = routed.response_policy().maintenance();
        let answer = Answer {
            retry_after: maintenance.retry_after,
            page: maintenance.page.map(|page| (&*page.media_type, &page.body)),
            ..Answer::new_closing(
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
        if let Some(rest) = request.up.end_flow(&self.session.worker) {
            self.input = Some(rest);
        }
        self.conclude_request(Some(request), summary);
        after
    }
}
