//! Trials: requests that ask an ejected member whether it is well again. If the member fails, another member answers,
//! and the client does not notice.

use std::future::Future;
use std::task::Poll;

use evenkeel_core::group::{BoundTrial, Outcome, Trial};
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;

use super::client::Client;
use super::failure::Failure;
use super::request::Request;
use super::response::Head;
use super::route::RequestRoute;
use super::summary::Summary;
use crate::access::MemberAttempts;
use crate::bound_request::BoundRequest;
use crate::member_choice::insert;
use crate::tcp::failure::ConnectFailure;
use crate::trace;
use crate::upstream::Upstream;

/// A request that has taken a trial.
pub(super) struct TriedRequest {
    trial: Trial,
    /// The member's answer, if the member has answered well.
    answer: Option<TrialAnswer>,
    /// True if the member has answered well.
    is_answered: bool,
}

/// Answer of a member that was tried.
pub(super) type TrialAnswer = (BoundRequest, Head, Upstream);

impl TriedRequest {
    /// Takes the member's answer, if the member has answered well.
    pub(super) fn take_answer(&mut self) -> Option<TrialAnswer> {
        self.answer.take()
    }

    /// Another member has answered after the tried one has failed, with this `outcome`. If the other member has failed,
    /// too, the failure may be one of the request.
    pub(super) fn compare(&mut self, outcome: Outcome) {
        if !self.is_answered && outcome == Outcome::Success {
            self.trial.fail();
        }
    }

    /// The delivery of an answer has ended, with this outcome for the member.
    pub(super) fn note_end(&mut self, outcome: Outcome) {
        if self.is_answered && outcome == Outcome::Failure {
            self.trial.fail();
        }
    }
}

impl Client {
    /// Takes a trial for the request, if a member has one and the request can be sent to another member
    /// afterwards.
    #[inline]
    pub(super) fn take_trial(
        &self,
        request: &Request,
        routed: &RequestRoute,
        now: Instant,
    ) -> Option<Box<BoundTrial>> {
        match routed.target().group.state.has_trials() {
            true => self.find_trial(request, routed, now),
            false => None,
        }
    }

    #[cold]
    fn find_trial(
        &self,
        request: &Request,
        routed: &RequestRoute,
        now: Instant,
    ) -> Option<Box<BoundTrial>> {
        let target = routed.target();
        let is_free = request.stuck.is_none() && self.private.is_none() && target.chooser.is_none();
        // Prompts go where their plan says.
        let is_free = is_free && !request.is_for_engines;
        if !is_free || !request.may_hedge || !request.up.is_whole() {
            return None;
        }
        let group = target.group.current.load();
        let BoundTrial {
            ticket,
            trial,
            time,
        } = group.take_trial(request.cost, now)?;
        let ticket = match self.session.peer.ip() {
            Some(client) => ticket.of_client(client),
            None => ticket,
        };
        Some(Box::new(BoundTrial {
            ticket,
            trial,
            time,
        }))
    }

    /// Sends the request to a member that is tried. An error is one of the client, or of the balancer.
    pub(super) async fn attempt_trial(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: Box<BoundTrial>,
        tried: &mut Vec<MemberId>,
        summary: &mut Summary,
    ) -> Result<Box<TriedRequest>, Failure> {
        let BoundTrial {
            ticket,
            mut trial,
            time,
        } = *bound;
        let group = &routed.target().group;
        let mut bound = self.session.bind_ticket(&group.current.load(), ticket);
        let until = bound.ticket.started().after(time);
        self.limit_attempt(routed);
        let answered = self.attempt_until(request, routed, &mut bound, until).await;
        // The end of the request's own time is no failure of the member.
        let answered = answered.map_err(|failure| self.check_deadline(request, failure));
        let status = answered.as_ref().map(|(head, _)| head.status);
        request.note_attempt(routed, &bound, status.map_err(Failure::name), false);
        MemberAttempts::append_to(&mut summary.tries, bound.tries.take());
        let failure = match answered {
            Ok((head, upstream))
                if head.outcome == Outcome::Success || !request.up.may_rewind() =>
            {
                if head.outcome == Outcome::Success {
                    trial.succeed();
                }
                return Ok(Box::new(TriedRequest {
                    trial,
                    is_answered: true,
                    answer: Some((bound, head, upstream)),
                }));
            }
            Ok((head, upstream)) => {
                upstream.reset_on_drop();
                Failure::Status(head.outcome)
            }
            Err(failure) => failure,
        };
        self.session.watch.limit_part(None);
        let now = self.session.worker.now();
        let outcome = failure.member_outcome();
        group.finish(bound.ticket, outcome, now);
        request.end_attempt(failure.name(), now);
        let is_of_member = match &failure {
            Failure::Connect(failure) => failure.is_of_one_member(),
            Failure::Silent
            | Failure::TimedOut
            | Failure::Stale
            | Failure::Refused
            | Failure::Status(_)
            | Failure::Garbage => true,
            _ => false,
        };
        if !is_of_member || !request.up.rewind() {
            return Err(failure);
        }
        if outcome == Outcome::Failure {
            trial.fail();
        }
        insert(tried, bound.member);
        request.next_span(|| trace::new_span(&mut self.session.worker.rng.borrow_mut()));
        Ok(Box::new(TriedRequest {
            trial,
            is_answered: false,
            answer: None,
        }))
    }

    /// Sends the request to a member, and reads the head of its response, which must come by `until`.
    async fn attempt_until(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        until: Instant,
    ) -> Result<(Head, Upstream), Failure> {
        let mut later = Box::pin(self.session.worker.timers.nap_until(until));
        let answered = {
            let attempt = self.attempt_request(request, routed, bound);
            tokio::pin!(attempt);
            std::future::poll_fn(|cx| match attempt.as_mut().poll(cx) {
                Poll::Ready(answered) => Poll::Ready(Some(answered)),
                Poll::Pending => later.as_mut().poll(cx).map(|()| None),
            })
            .await
        };
        match answered {
            Some(Err(Failure::Connect(ConnectFailure::TimedOut))) => Err(Failure::TimedOut),
            Some(answered) => answered,
            None => {
                self.session.watch.disarm_deadline();
                Err(Failure::TimedOut)
            }
        }
    }
}
