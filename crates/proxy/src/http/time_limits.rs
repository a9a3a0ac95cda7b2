//! Time limits of a whole request, and of each attempt at a member. The pause before a retry is part of the request.

use std::task::Poll;

use evenkeel_core::time::Instant;

use super::client::Client;
use super::failure::Failure;
use super::request::Request;
use super::route::RequestRoute;
use crate::watch::Stop;

impl Client {
    /// Limits the time of a request, if its route does.
    #[inline]
    pub(super) fn limit_request(&self, request: &Request) {
        if let Some(limit) = request.routed.route().timeouts.request {
            self.session.watch.set_total_limit(limit);
        }
    }

    /// Lifts the limits of a request that is over: its connection goes on.
    #[inline]
    pub(super) fn lift_limits(&self, request: &Request) {
        let timeouts = &request.routed.route().timeouts;
        if timeouts.request.is_some() || timeouts.attempt.is_some() {
            self.session.watch.lift_limits();
        }
    }

    /// Limits the time of an attempt that begins now, if the route does.
    #[inline]
    pub(super) fn limit_attempt(&self, routed: &RequestRoute) {
        if let Some(limit) = routed.route().timeouts.attempt {
            self.session.watch.limit_part(Some(limit));
        }
    }

    /// Limits the time of an attempt that has begun at `began`, if the route does.
    pub(super) fn limit_attempt_since(&self, routed: &RequestRoute, began: Instant) {
        if let Some(limit) = routed.route().timeouts.attempt {
            let spent = self.session.worker.now().since(began);
            let left = limit.saturating_sub(spent);
            self.session.watch.limit_part(Some(left));
        }
    }

    /// Returns the failure of an attempt, or that of the request if its time is over.
    pub(super) fn check_deadline(&self, request: &Request, failure: Failure) -> Failure {
        match self.session.watch.is_over() {
            true => failure.past_deadline(request.grpc),
            false => failure,
        }
    }

    /// Waits before a retry, as long as the route says and up to half of that longer, so that requests that have failed
    /// together come back one after the other. Returns the time afterwards. An error means that the client has left, or
    /// that the request's time is over.
    pub(super) async fn pause_before_retry(
        &mut self,
        request: &Request,
        routed: &RequestRoute,
    ) -> Result<Instant, Failure> {
        let ends_with_fin = request.ends_with_fin(routed);
        let Client {
            session, stream, ..
        } = self;
        let worker = &session.worker;
        session.watch.limit_part(None);
        let backoff = routed.route().retry_backoff;
        let now = worker.now();
        if backoff.is_zero() {
            return match session.watch.is_over() {
                true => Err(Failure::DeadlineExceeded),
                false => Ok(now),
            };
        }
        let pause = backoff.mul_f32(1.0 + worker.rng.borrow_mut().f32() / 2.0);
        let mut timer = Box::pin(worker.timers.nap_until(now.after(pause)));
        // Without a timer of the system the sweep ends the pause.
        session.watch.arm_and_look(pause);
        let paused =
            session
                .watch
                .poll_until_stop(|cx| match session.is_gone(cx, stream, ends_with_fin) {
                    true => Poll::Ready(Err(Failure::ClientGone)),
                    false => timer.as_mut().poll(cx).map(Ok),
                });
        let paused = paused.await;
        let is_over = session.watch.is_over();
        session.watch.disarm_deadline();
        match paused {
            Ok(Err(failure)) => Err(failure),
            Err(Stop::Cut) => Err(Failure::Cut),
            _ if is_over => Err(Failure::DeadlineExceeded),
            Ok(Ok(())) | Err(Stop::Expired) => Ok(worker.now()),
        }
    }
}
