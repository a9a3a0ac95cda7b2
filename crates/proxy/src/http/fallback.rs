//! Other groups for a model: a request goes to the next one when its group has refused it, or when all tries there have
//! failed, as long as the client has got nothing and the body is still here.

use std::net::IpAddr;

use super::client::Client;
use super::failure::Failure;
use super::request::Request;
use super::response::Head;
use super::route::RequestRoute;

impl RequestRoute {
    /// True if the group has a member that works, and is in no maintenance for the client.
    pub(super) fn is_open(&self, client: Option<IpAddr>) -> bool {
        self.target().group.current.load().has_working_member()
            && !self.response_policy().is_in_maintenance(client)
    }
}

impl Client {
    /// True if another group of its model can get the request.
    fn has_fallback(&self, request: &Request) -> bool {
        let client = self.session.peer.ip();
        let is_open = |place: &u32| request.routed.with_target(*place).is_open(client);
        let others = request.fallbacks.as_deref();
        others.is_some_and(|others| others.places().any(is_open)) && request.up.may_rewind()
    }

    /// True if another group may give a better response than this one, by its status.
    pub(super) fn may_ask_group(
        &self,
        request: &Request,
        routed: &RequestRoute,
        head: &Head,
    ) -> bool {
        request.is_refusal(routed, head.status) && self.has_fallback(request)
    }

    /// Gives the request to the next group of its model that is open, if there is one and the body is still here. The
    /// request then has another group, and nothing of it was sent.
    #[cold]
    pub(super) fn fall_back(&self, request: &mut Request) -> bool {
        // Nobody waits for an answer after the request's time.
        let is_over = self.session.watch.is_over();
        if is_over || !self.has_fallback(request) || !request.up.rewind() {
            return false;
        }
        let client = self.session.peer.ip();
        let before = request.routed.clone();
        let take_next = |request: &mut Request| request.fallbacks.as_mut()?.take_next();
        while let Some(place) = take_next(request) {
            if before.with_target(place).is_open(client) {
                request.note_fallback(&before);
                request.move_to_target(place);
                self.session.service.metrics.models_fallback.add(1);
                return true;
            }
        }
        false
    }
}

impl Failure {
    /// True if another group may serve a request that has failed so. No answer to the request has begun.
    pub(super) fn may_leave_group(&self, request: &Request) -> bool {
        match self {
            Failure::Connect(failure) => failure.is_of_one_member(),
            Failure::Refused | Failure::Status(_) | Failure::GroupRefused(_) => true,
            Failure::Silent | Failure::Garbage | Failure::TimedOut => {
                request.is_repeatable() || request.up.is_untouched()
            }
            _ => false,
        }
    }
}
