//! Answers of the balancer that are found with the route of a request.

use std::sync::Arc;

use bytes::Bytes;
use evenkeel_manager::routes::RouteResponse;

use super::client::{After, Client};
use super::request::Request;
use super::route::{BalancerAnswer, MISDIRECTED, PREFLIGHT};
use super::summary::Summary;
use crate::http1::respond::{Answer, AnswerExtras};

impl Client {
    /// Sends `given`, or the `answer` of the route if the status of `given` is 0.
    pub(super) async fn give_answer(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        given: &BalancerAnswer,
    ) -> After {
        summary.end = given.end;
        let metrics = &self.session.service.metrics;
        match given.status {
            400 => metrics.refused_malformed.add(1),
            404 => metrics.refused_no_route.add(1),
            413 => metrics.refused_too_large.add(1),
            MISDIRECTED => metrics.refused_misdirected.add(1),
            PREFLIGHT => match request.is_granted() {
                true => metrics.preflights_granted.add(1),
                false => metrics.preflights_refused.add(1),
            },
            _ => {}
        }
        let routed = request.routed.clone();
        let route = routed.route();
        let (status, page) = match route.fixed_response.as_deref() {
            Some(RouteResponse::Answer {
                status,
                content_type,
                body,
            }) if given.status == 0 => {
                let body = Bytes::from_owner(Arc::clone(body));
                (*status, Some((&**content_type, body)))
            }
            _ => (given.status, None),
        };
        let page = page.as_ref();
        let answer = Answer {
            page: page.map(|(media_type, body)| (*media_type, body)),
            more: AnswerExtras {
                location: given.location.as_deref(),
                ..AnswerExtras::default()
            },
            ..Answer::new_closing(status, given.text)
        };
        self.give_instead(request, summary, answer).await
    }
}
