//! Exchanges: a request is bound to a member, sent and answered.

use std::task::Poll;

use evenkeel_core::group;
use evenkeel_core::member::MemberId;

use super::client::{After, Client};
use super::delivered::Delivered;
use super::failure::{Failure, Fault, MemberError};
use super::progress::{Progress, Side};
use super::request::Request;
use super::response::Head;
use super::route::RequestRoute;
use super::sticky::StickyCookie;
use super::summary::Summary;
use super::trial::TriedRequest;
use crate::access::{End, Hedged, MemberAttempts};
use crate::bound_request::{BoundRequest, Refusal};
use crate::io::{Io, TransferError};
use crate::member_choice::insert;
use crate::tcp;
use crate::tcp::tunnel::{Traffic, Tunnel};
use crate::trace;
use crate::upstream::Upstream;
use crate::watch::Stop;

impl Client {
    /// Carries one request.
    pub(super) async fn carry_request(&mut self, request: &mut Request) -> After {
        if self.is_in_maintenance(request) {
            return Box::pin(self.in_maintenance(request)).await;
        }
        if let Some(over) = request.over {
            // In a box: it is rare, and a connection is to stay small.
            return Box::pin(self.answer_limited(request, over)).await;
        }
        self.others_first().await;
        let mut routed = request.routed.clone();
        let mut summary = Summary::new(End::Complete);
        if let Some(login) = request.login.take() {
            // In a box: it is no part of the way of most requests.
            let after = Box::pin(self.log_in(request, login, &mut summary)).await;
            if let Some(after) = after {
                return self.end_request(request, summary, after);
            }
        }
        if let Some(given) = request.given.take() {
            // In a box: it is no part of the way of most requests.
            let after = Box::pin(self.give_answer(request, &mut summary, &given)).await;
            return self.end_request(request, summary, after);
        }
        self.session
            .service
            .budget
            .borrow_mut()
            .request(routed.route().retry_budget);
        if let Some(asked) = request.asked_models.take() {
            let after = Box::pin(self.answer_models(request, &mut summary, *asked)).await;
            return self.end_request(request, summary, after);
        }
        let mut prompt = request.prompt.take();
        if prompt.is_none() {
            self.send_mirror(request, false, None);
        }
        let mut tried: Vec<MemberId> = Vec::new();
        let mut now = request.at;
        let mut last = None;
        if let Some(prompt) = &mut prompt {
            // In a box: it is no part of the way of most requests.
            let read = Box::pin(self.read_prompt(request, &routed, prompt)).await;
            if let Err(failure) = read {
                let after = self.answer_failed(request, &mut summary, failure).await;
                return self.end_request(request, summary, after);
            }
            // The copy has the body in which the name of the model was replaced.
            self.send_mirror(request, false, Some(prompt));
            now = self.session.worker.now();
            routed = request.routed.clone();
            if self.is_in_maintenance(request) {
                return Box::pin(self.in_maintenance(request)).await;
            }
        }
        let mut plan = prompt
            .as_deref_mut()
            .and_then(|prompt| prompt.plan_request(&routed.target().group));
        if let Some(plan) = plan.as_deref()
            && let Some(over) = self.hold_tokens(request, plan, now)
        {
            return Box::pin(self.answer_limited(request, over)).await;
        }
        let mut trial = match self.take_trial(request, &routed, now) {
            None => None,
            Some(bound) => {
                // In a box: few requests try members.
                let tried = &mut tried;
                let attempt =
                    Box::pin(self.attempt_trial(request, &routed, bound, tried, &mut summary));
                match attempt.await {
                    Ok(trial) => {
                        now = self.session.worker.now();
                        Some(trial)
                    }
                    Err(failure) => {
                        let answer = Box::pin(self.answer_failed(request, &mut summary, failure));
                        let after = answer.await;
                        return self.end_request(request, summary, after);
                    }
                }
            }
        };
        let mut holds_tokens = plan.is_some();
        let after = loop {
            if !routed.is_to_target(request.routed.target_place()) {
                // Another group of the model, whose engines have read other prompts.
                routed = request.routed.clone();
                plan = prompt
                    .as_deref_mut()
                    .and_then(|prompt| prompt.plan_request(&routed.target().group));
                now = self.session.worker.now();
                request.begin_group(summary.retries);
                tried.clear();
                let unheld = plan.as_deref().filter(|_| !holds_tokens);
                holds_tokens |= unheld.is_some();
                if let Some(plan) = unheld
                    && let Some(over) = self.hold_tokens(request, plan, now)
                {
                    return Box::pin(self.answer_limited(request, over)).await;
                }
            }
            // Each has one place, whoever is asked: connections are to stay small.
            let mut bound;
            let mut answered;
            if let Some((tried, head, upstream)) =
                trial.as_deref_mut().and_then(TriedRequest::take_answer)
            {
                bound = tried;
                answered = Ok((head, upstream));
            } else {
                let stuck = request.stuck.as_deref();
                let bindings = stuck.map_or(&*self.bindings, |stuck| &stuck.bindings);
                let asks = group::Request {
                    client: self.session.peer.ip(),
                    key: request.key,
                    cost: request.cost,
                    excluded_members: &tried,
                    unbound: stuck.and_then(StickyCookie::unbound_reason),
                    pinned: self.pinned_member(&routed),
                    ahead: Some(0),
                    plan: plan.as_deref(),
                    ..group::Request::at_time(now)
                };
                let binding = self.session.bind_request(
                    routed.target(),
                    bindings,
                    (&asks, request.facts.as_deref()),
                    &routed.route().timeouts,
                    request.class,
                    &mut self.stream,
                );
                bound = match binding.await {
                    Ok(bound) => bound,
                    Err(Refusal::NoMember) if routed.may_try_again(&mut tried) => continue,
                    Err(refusal) if refusal.is_of_group() && self.fall_back(request) => continue,
                    Err(refusal) if routed.is_first_token_late(refusal) => {
                        let plan = plan.as_deref();
                        break Box::pin(self.answer_late(request, &mut summary, plan)).await;
                    }
                    Err(refusal) => {
                        let refused = self.answer_refused(request, &mut summary, refusal, last);
                        break refused.await;
                    }
                };
                self.limit_attempt(&routed);
                let may_hedge = self.private.is_none();
                answered = if may_hedge && request.is_hedged(&routed, summary.retries) {
                    // In a box: the connections of others are to stay small.
                    let (bound, tried) = (&mut bound, &mut tried);
                    let both = Box::pin(self.attempt_both(request, &routed, bound, tried));
                    let (answered, hedged) = both.await;
                    summary.hedged = hedged;
                    answered
                } else {
                    self.attempt_request(request, &routed, &mut bound).await
                };
            }
            if request.is_for_engines {
                // In a box: connections are to stay small.
                let begun = self.begin_stream(request, &routed, &mut bound, answered);
                answered = Box::pin(begun).await;
            }
            let status = answered.as_ref().map(|(head, _)| head.status);
            let status = status.map_err(Failure::name);
            let is_hedge = summary.hedged == Some(Hedged::Won);
            request.note_attempt(&routed, &bound, status, is_hedge);
            MemberAttempts::append_to(&mut summary.tries, bound.tries.take());
            let failure = match answered {
                Ok((head, upstream))
                    if self.may_ask_another(
                        request,
                        &routed,
                        &tried,
                        &bound,
                        &head,
                        request.group_retries(summary.retries),
                    ) =>
                {
                    upstream.reset_on_drop();
                    Failure::Status(head.outcome)
                }
                Ok((head, upstream)) if self.may_ask_group(request, &routed, &head) => {
                    upstream.reset_on_drop();
                    Failure::GroupRefused(head.outcome)
                }
                Ok((mut head, mut upstream)) => {
                    if let Some(stuck) = &request.stuck {
                        stuck.count(bound.member, &self.session.service.metrics);
                    }
                    if let Some(trial) = &mut trial {
                        trial.compare(head.outcome);
                    }
                    summary.status = Some(head.status);
                    summary.response_time = Some(head.at.since(bound.ticket.started()));
                    summary.answered = Some(head.at);
                    let delivered = self.deliver_response(
                        request,
                        &routed,
                        &mut bound,
                        &mut head,
                        &mut upstream,
                    );
                    let delivered = delivered.await;
                    if let Some(trial) = &mut trial {
                        trial.note_end(self.end_outcome(&head, delivered.end));
                    }
                    summary.end = delivered.end;
                    summary.limit = delivered.limit;
                    summary.sent = delivered.sent;
                    summary.received = delivered.received;
                    summary.note_first_byte(&bound.ticket);
                    let tries = summary.tries.as_deref_mut();
                    match (&delivered.member_error, tries) {
                        (Some(MemberError::Chunks(error)), tries) => {
                            self.note_bad_response(&bound.address, tries, error);
                        }
                        (Some(error @ MemberError::Cut), Some(tries)) => {
                            tries.member_error = Some(error.to_string().into());
                        }
                        _ => {}
                    }
                    break self
                        .settle_connections(request, &routed, bound, head, upstream, &delivered);
                }
                Err(failure) => self.check_deadline(request, failure),
            };
            if request.tokens.is_some() {
                request.note_given_up(&failure);
            }
            now = self.session.worker.now();
            routed
                .target()
                .group
                .finish(bound.ticket, failure.member_outcome(), now);
            request.end_attempt(failure.name(), now);
            let retries = request.group_retries(summary.retries);
            if self.may_retry(request, &routed, &failure, retries)
                || failure.may_leave_group(request) && self.fall_back(request)
            {
                summary.retries += 1;
                self.session.service.metrics.retries.add(1);
                insert(&mut tried, bound.member);
                request.next_span(|| trace::new_span(&mut self.session.worker.rng.borrow_mut()));
                // In a box, as the pause: a connection is to stay small.
                last = Some(Box::new(failure));
                let paused = Box::pin(self.pause_before_retry(request, &routed)).await;
                match paused {
                    Ok(later) => now = later,
                    Err(failure) => {
                        break Box::pin(self.answer_failed(request, &mut summary, failure)).await;
                    }
                }
                continue;
            }
            break self.answer_failed(request, &mut summary, failure).await;
        };
        drop(plan);
        if let Some(prompt) = prompt {
            self.session.worker.prompts.give_back(prompt);
        }
        self.send_mirror(request, true, None);
        self.end_request(request, summary, after)
    }

    /// The request is over.
    fn end_request(&mut self, request: &mut Request, mut summary: Summary, after: After) -> After {
        if request.tokens.is_some() {
            self.settle_unanswered(request);
        }
        let received = request.up.body_sent();
        summary.received += received;
        self.session
            .service
            .metrics
            .bytes_from_clients
            .add(received);
        if let Some(rest) = request.up.end_flow(&self.session.worker) {
            self.input = Some(rest);
        }
        self.conclude_request(Some(request), summary);
        after
    }

    /// Sends the request to a member, and reads the head of its response.
    pub(super) async fn attempt_request(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
    ) -> Result<(Head, Upstream), Failure> {
        if let Some(mut upstream) = self.take_idle(routed, bound) {
            match self
                .response_head(request, routed, bound, &mut upstream, None)
                .await
            {
                Ok(head) => return Ok((head, upstream)),
                // The member closed the idle connection just when it was to be used:
                // that says nothing about the member, or the next connection to it.
                Err(Failure::Silent)
                    if (request.is_repeatable() || request.up.is_untouched())
                        && request.up.rewind() => {}
                Err(Failure::Silent) => return Err(Failure::Stale),
                Err(failure) => {
                    upstream.reset_on_drop();
                    return Err(failure);
                }
            }
        }
        let mut again = false;
        loop {
            let upstream = self.open_to(request, routed, bound).await;
            let mut upstream = upstream.map_err(Failure::Connect)?;
            let failure = match self
                .response_head(request, routed, bound, &mut upstream, None)
                .await
            {
                Ok(head) => return Ok((head, upstream)),
                Err(failure) => failure.of_call(&upstream),
            };
            // The member must not take half a request for a whole one.
            upstream.reset_on_drop();
            // As above, for a connection of HTTP/2 that was idle.
            let is_stale = matches!(&*upstream, Io::Call(call) if call.is_stale());
            let may_be_sent = request.is_repeatable() || request.up.is_untouched();
            match failure {
                Failure::Refused if is_stale && !again && request.up.rewind() => again = true,
                Failure::Silent if is_stale && !again && may_be_sent && request.up.rewind() => {
                    again = true;
                }
                Failure::Silent if is_stale && !may_be_sent => return Err(Failure::Stale),
                failure => return Err(failure),
            }
        }
    }

    /// Sends the response to the client, and the rest of the request to the member; the
    /// bytes of another protocol, too, if that is what the response switches to.
    pub(super) async fn deliver_response(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        head: &mut Head,
        upstream: &mut Io,
    ) -> Delivered {
        self.send_mirror(request, false, None);
        self.others_first().await;
        let (timeouts, limits) = (&routed.route().timeouts, &routed.rule.limits);
        let group = &routed.target().group;
        let mut progress = Progress::new(request);
        let Client {
            session, stream, ..
        } = self;
        let worker = &session.worker;
        let ends_with_fin = request.ends_with_fin(routed);
        let up = &mut request.up;
        up.stop_keeping();
        let down = &mut head.down;
        let mut head_bytes = 0;
        if let Io::Stream(stream) = stream {
            // A stream that is gone shows that at once.
            head_bytes = stream.send_kept_head().unwrap_or_default();
        }
        let result = session
            .watch
            .poll_until_stop(|cx| {
                if session.is_gone(cx, stream, ends_with_fin) {
                    return Poll::Ready(Err(Fault::OfClient));
                }
                if let Err(broken) = progress.poll_up(cx, up, stream, upstream, session) {
                    return Poll::Ready(Err(match broken {
                        TransferError::Exhausted(shortage) => Fault::Exhausted(shortage),
                        // It broke off, or its chunks are not valid: too late for a 400.
                        _ => Fault::OfClient,
                    }));
                }
                let step = progress.poll_down(cx, down, upstream, stream, session);
                let ticket = &mut bound.ticket;
                if let Some(engine) = ticket.engine_mut() {
                    progress.update_engine(&step, (up, down), group, engine, worker);
                }
                if ticket.is_followed() {
                    progress.update_ticket(&step, up, down, group, ticket, worker);
                }
                if step.is_pending() {
                    progress.arm_deadline(&session.watch, up, Some(down), timeouts, limits);
                    up.shrink_rest(worker);
                }
                step.map_err(Fault::from)
            })
            .await;
        let mut member_error = None;
        let end = match result {
            Ok(Ok(())) => match stream {
                Io::Stream(stream) if head.until_close => match stream.end_response() {
                    Ok(()) => End::Complete,
                    Err(_) => End::Client,
                },
                _ => End::Complete,
            },
            Ok(Err(Fault::OfClient)) => End::Client,
            Ok(Err(Fault::OfMember(error))) => {
                member_error = Some(error);
                End::Member
            }
            Ok(Err(Fault::Exhausted(shortage))) => {
                shortage.report_failure("forward a response");
                End::Exhausted
            }
            Err(Stop::Cut) => End::Terminated,
            Err(Stop::Expired) => match progress.whose_turn(up, Some(down)) {
                Side::Client if progress.reached_limit().is_some() => End::Limited,
                Side::Client => End::ClientTimeout,
                Side::Member => End::MemberTimeout,
            },
        };
        let metrics = &session.service.metrics;
        metrics.count_status(head.status);
        let sent = down.sent_bytes() + head_bytes;
        metrics.bytes_to_clients.add(sent);
        let mut delivered = Delivered {
            end,
            sent,
            received: 0,
            has_waited: progress.has_waited(),
            limit: None,
            member_error,
        };
        if end == End::Limited
            && let Some(limit) = progress.reached_limit()
        {
            metrics.count_limit(limit);
            delivered.limit = Some(limit);
        }
        if end == End::Complete && head.status == 101 {
            session.watch.lift_limits();
            let mut traffic = Traffic {
                up: tcp::flow::Flow::with_read(up.take_rest()),
                down: tcp::flow::Flow::with_read(down.take_rest()),
            };
            let tunnel = Tunnel {
                session,
                idle: timeouts.idle,
                member: Some(bound.member),
                half_close: true,
            };
            delivered.end = tunnel.run(stream, upstream, &mut traffic, || {}).await;
            delivered.sent += traffic.down.moved;
            delivered.received += traffic.up.moved;
            delivered.has_waited = true;
        }
        delivered
    }
}
