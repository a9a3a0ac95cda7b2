//! Decision whether a request is sent again after a failure: to another member, or to the same one if the route says so.

use evenkeel_core::group;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;

use super::client::Client;
use super::failure::Failure;
use super::request::Request;
use super::response::Head;
use super::route::RequestRoute;
use crate::bound_request::BoundRequest;

impl Request {
    /// True if a response with this status says that an engine is full. The engine has not begun.
    fn is_full_engine(&self, status: u16) -> bool {
        self.is_for_engines && matches!(status, 429 | 503)
    }

    /// True if the request may be sent elsewhere after a response with this status.
    pub(super) fn is_refusal(&self, routed: &RequestRoute, status: u16) -> bool {
        let is_named =
            self.is_full_engine(status) || routed.route().retry_statuses.contains(&status);
        is_named && self.is_repeatable()
    }
}

impl RequestRoute {
    /// True if members that were tried may be tried again, as no other one is left: they are forgotten then.
    pub(super) fn may_try_again(&self, tried: &mut Vec<MemberId>) -> bool {
        let may = self.route().retry_same_member && !tried.is_empty();
        if may {
            tried.clear();
        }
        may
    }
}

impl Client {
    /// True if the request may be sent to another member after this failure.
    pub(super) fn may_retry(
        &self,
        request: &mut Request,
        routed: &RequestRoute,
        failure: &Failure,
        retries: u32,
    ) -> bool {
        let members = routed.target().group.current.load().members().len();
        let may_be_another = members > retries as usize + 1;
        let same_member = routed.route().retry_same_member;
        // RFC 9110, section 9.2.2: a request that is not idempotent only if none of it
        // was sent.
        let allowed = match failure {
            Failure::Connect(failure) => failure.is_of_one_member(),
            Failure::Refused | Failure::Status(_) => true,
            Failure::Silent => request.is_repeatable() || request.up.is_untouched(),
            Failure::Garbage => request.idempotent || request.up.is_untouched(),
            // Whoever was silent for so long will be so again: only somebody else is asked, unless the route says so.
            Failure::TimedOut => request.idempotent && (may_be_another || same_member),
            _ => false,
        };
        if !allowed || retries >= routed.route().retries {
            return false;
        }
        if !request.up.rewind() {
            self.session.service.metrics.retries_without_body.add(1);
            return false;
        }
        match failure {
            // A member that was sent nothing did no work that the budget would protect, unless the same one is asked again
            // and again.
            Failure::Connect(_) if may_be_another || !same_member => true,
            // It has been paid for, or is free.
            Failure::Status(_) => true,
            _ => self.pay_for_retry(self.session.worker.now()),
        }
    }

    /// True if the budget has a retry. The retry is taken from the budget.
    fn pay_for_retry(&self, now: Instant) -> bool {
        let paid = self.session.service.budget.borrow_mut().try_retry(now);
        if !paid {
            self.session.service.metrics.retries_over_budget.add(1);
        }
        paid
    }

    /// True if another member, or the same one, may give a better response than this one, by its status.
    pub(super) fn may_ask_another(
        &self,
        request: &Request,
        routed: &RequestRoute,
        tried: &[MemberId],
        bound: &BoundRequest,
        head: &Head,
        retries: u32,
    ) -> bool {
        if !request.is_refusal(routed, head.status) || retries >= routed.route().retries {
            return false;
        }
        if !request.up.may_rewind() {
            self.session.service.metrics.retries_without_body.add(1);
            return false;
        }
        // The response is given up only where there may be another one.
        let route = routed.route();
        let is_listed = route.retry_statuses.contains(&head.status);
        let may_try_again = is_listed && route.retry_same_member;
        let asks = group::Request {
            excluded_members: if may_try_again { &[] } else { tried },
            ..group::Request::at_time(head.at)
        };
        let group = routed.target().group.current.load();
        let view = group.view_for(&asks);
        let there_is = (0..group.members().len()).any(|index| {
            let member = group.members().get(index);
            let may = |id| may_try_again || id != bound.member;
            member.is_some_and(|member| may(member.id)) && view.is_eligible(index)
        });
        // Refusing takes an engine no work that the budget would protect.
        there_is && (request.is_full_engine(head.status) || self.pay_for_retry(head.at))
    }
}
