//! One request: bound to a member, sent, answered.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_core::group::{self, Outcome};
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_limits::Shortage;
use evenkeel_manager::config::Timeouts;
use evenkeel_manager::counts::{Fate, Origin};
use evenkeel_manager::snapshot::RuleSnapshot;
use evenkeel_wire::orca;
use evenkeel_wire::response::HeadScan;

use super::flow::{Flow, Waits};
use super::{After, Client, Request, Summary};
use crate::access::End;
use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::http1::forward::{self, Delivery, write_response};
use crate::http1::respond::Answer;
use crate::http1::{Body, Fields, Limits, Parsed, ResponseHead, Version};
use crate::io::{Broken, Io};
use crate::memory::OutOfMemory;
use crate::pool::Upstream;
use crate::service::{Bound, Refusal, State, insert};
use crate::tcp::{self, ConnectFailure, Traffic, Tunnel, connect};
use crate::watch::Stop;

/// Interim responses that a member may send before the final one. Together their heads may
/// be as long as one head.
const MAX_INTERIM: u32 = 32;

/// Why there is no response, though a member was found.
enum Failure {
    /// The connection could not be opened.
    Connect(ConnectFailure),
    /// The connection ended before the first byte of a response.
    Silent,
    /// The same on a connection that had been idle, for a request that may not be sent twice:
    /// the member may have closed it just before.
    Stale,
    /// Something has run out here while the exchange was under way.
    Exhausted(Shortage),
    /// What came was no response, or not the whole head of one.
    Garbage,
    /// No response in time.
    TimedOut,
    /// The request's body is not valid.
    BadRequest(String),
    /// The client did not send the rest of the request in time.
    ClientTimedOut,
    /// The client did not take an interim response in time.
    ClientStuck,
    /// The client went away in the middle of the request.
    ClientGone,
    /// The connection is to be cut.
    Cut,
}

/// The head of a response, ready to be sent on.
struct Head {
    /// What the client gets first, and how much of the body has arrived.
    down: Flow,
    status: u16,
    /// When it had arrived.
    at: Instant,
    outcome: Outcome,
    /// Whether the member's connection goes on.
    keep_alive: bool,
    until_close: bool,
    delivery: Delivery,
}

/// How a response got through.
struct Delivered {
    end: End,
    /// Bytes to the client, and from it beyond the request.
    sent: u64,
    received: u64,
    has_waited: bool,
}

impl Client {
    /// Carries one request.
    pub(super) async fn exchange(&mut self, request: &mut Request) -> After {
        let rule = Rc::clone(&request.rule);
        let options = &rule.rule.http;
        let mut summary = Summary::new(End::Complete);
        self.session
            .service
            .budget
            .borrow_mut()
            .request(options.retry_budget);
        let mut tried: Vec<MemberId> = Vec::new();
        let mut now = request.at;
        let mut not_reached = None;
        let after = loop {
            let binding = &mut self.binding;
            let asks = group::Request {
                client: Some(self.session.peer.ip()),
                key: request.key,
                tried: &tried,
                ..group::Request::at(now)
            };
            let bound = self.session.bind(&rule, binding, &asks, &self.stream);
            let bound = bound.await;
            let mut bound = match bound {
                Ok(bound) => bound,
                Err(refusal) => {
                    let refused = self.refused(request, &mut summary, refusal, not_reached);
                    break refused.await;
                }
            };
            summary.member = bound.name.take();
            let failure = match self.attempt(request, &rule, &mut bound).await {
                Ok((mut head, mut upstream)) => {
                    summary.status = Some(head.status);
                    summary.response_time = Some(head.at.since(bound.ticket.started()));
                    let delivered =
                        self.deliver(request, &rule, bound.member, &mut head, &mut upstream);
                    let delivered = delivered.await;
                    summary.end = delivered.end;
                    summary.sent = delivered.sent;
                    summary.received = delivered.received;
                    break self.settle(request, &rule, bound, head, upstream, &delivered);
                }
                Err(failure) => failure,
            };
            now = self.session.worker.now();
            let outcome = match failure {
                Failure::Connect(failure) => failure.outcome(),
                Failure::BadRequest(_)
                | Failure::Stale
                | Failure::Exhausted(_)
                | Failure::ClientTimedOut
                | Failure::ClientStuck
                | Failure::ClientGone
                | Failure::Cut => Outcome::Cancelled,
                _ => Outcome::Failure,
            };
            bound.ticket.finish(outcome, now);
            rule.group.vacated();
            if self.may_retry(request, &rule, &failure, summary.retries) {
                summary.retries += 1;
                self.session.service.metrics.retries.add(1);
                insert(&mut tried, bound.member);
                not_reached = match failure {
                    Failure::Connect(failure) => Some(failure),
                    _ => None,
                };
                continue;
            }
            break self.failed(request, &mut summary, failure).await;
        };
        let received = request.up.body_sent();
        summary.received += received;
        self.session
            .service
            .metrics
            .bytes_from_clients
            .add(received);
        if let Some(rest) = request.up.finish(&self.session.worker) {
            self.input = Some(rest);
        }
        self.conclude(Some(request), summary);
        after
    }

    /// Whether the request may be sent to another member after this failure.
    fn may_retry(
        &self,
        request: &mut Request,
        rule: &RuleSnapshot,
        failure: &Failure,
        retries: u32,
    ) -> bool {
        // RFC 9110, section 9.2.2: a request that is not idempotent only if none of it
        // was sent.
        let allowed = match failure {
            Failure::Connect(failure) => failure.is_of_one_member(),
            Failure::Silent | Failure::Garbage => request.idempotent || request.up.is_untouched(),
            // Whoever was silent for so long will be so again: only somebody else is asked.
            Failure::TimedOut => {
                let members = rule.group.current.load().members().len();
                request.idempotent && members > retries as usize + 1
            }
            _ => false,
        };
        if !allowed || retries >= rule.rule.http.retries || !request.up.rewind() {
            return false;
        }
        if matches!(failure, Failure::Connect(_)) {
            // A member that was not reached did no work that the budget would protect.
            return true;
        }
        let now = self.session.worker.now();
        let paid = self.session.service.budget.borrow_mut().try_retry(now);
        if !paid {
            self.session.service.metrics.retries_over_budget.add(1);
        }
        paid
    }

    /// Sends the request to a member, and reads the head of its response.
    async fn attempt(
        &mut self,
        request: &mut Request,
        rule: &RuleSnapshot,
        bound: &mut Bound,
    ) -> Result<(Head, Upstream), Failure> {
        let pool = &self.session.worker.upstreams;
        if let Some(mut upstream) = pool.take(bound.member) {
            self.session
                .service
                .metrics
                .member_connections_reused
                .add(1);
            match self
                .response_head(request, rule, bound, &mut upstream)
                .await
            {
                Ok(head) => return Ok((head, upstream)),
                // The member closed the idle connection just when it was to be used:
                // that says nothing about the member, or the next connection to it.
                Err(Failure::Silent)
                    if (request.idempotent || request.up.is_untouched()) && request.up.rewind() => {
                }
                Err(Failure::Silent) => return Err(Failure::Stale),
                Err(failure) => {
                    upstream.reset();
                    return Err(failure);
                }
            }
        }
        let limit = rule.rule.timeouts.connect;
        let upstream = connect(&self.session, bound.address, limit).await;
        let mut upstream = upstream.map_err(Failure::Connect)?;
        match self
            .response_head(request, rule, bound, &mut upstream)
            .await
        {
            Ok(head) => Ok((head, upstream)),
            Err(failure) => {
                // The member must not take half a request for a whole one.
                upstream.reset();
                Err(failure)
            }
        }
    }

    /// Sends the request, and reads until there is the head of the final response.
    async fn response_head(
        &mut self,
        request: &mut Request,
        rule: &RuleSnapshot,
        bound: &mut Bound,
        upstream: &mut Io,
    ) -> Result<Head, Failure> {
        let timeouts = &rule.rule.timeouts;
        let limit = rule.rule.http.max_header_bytes;
        let mut input: Option<Buffer> = None;
        let mut scan = HeadScan::default();
        let (mut interims, mut interim_bytes) = (0, 0);
        let mut progress = Progress::new(request);
        loop {
            let Client {
                session, stream, ..
            } = self;
            let worker = &session.worker;
            let up = &mut request.up;
            let filled = session
                .watch
                .until(|cx| {
                    if session.is_gone(stream) {
                        return Poll::Ready(Err(Broken::From));
                    }
                    progress.poll_up(cx, up, stream, upstream, worker)?;
                    let mut buffer = input.take().unwrap_or_else(|| worker.buffers.take());
                    let filled = buffer.poll_fill(cx, upstream);
                    if buffer.is_empty() {
                        worker.buffers.give(buffer);
                    } else if filled.is_pending() {
                        input = Some(worker.buffers.shrink(buffer));
                    } else {
                        input = Some(buffer);
                    }
                    if filled.is_pending() {
                        progress.arm(&session.watch, up, None, timeouts);
                        up.shrink_rest(worker);
                    }
                    filled.map(Ok)
                })
                .await;
            match filled {
                Ok(Ok(Ok(n))) if n > 0 => {}
                Ok(Ok(read)) => {
                    if let Some(shortage) = read.err().as_ref().and_then(Shortage::of) {
                        return Err(Failure::Exhausted(shortage));
                    }
                    return Err(match input.take() {
                        None => Failure::Silent,
                        Some(input) => {
                            worker.buffers.give(input);
                            Failure::Garbage
                        }
                    });
                }
                Ok(Err(broken)) => return Err(client_failure(broken)),
                Err(Stop::Cut) => return Err(Failure::Cut),
                Err(Stop::Expired) => {
                    return Err(match progress.whose_turn(up, None) {
                        Side::Client => Failure::ClientTimedOut,
                        Side::Member => Failure::TimedOut,
                    });
                }
            }
            loop {
                let read = input.as_ref().map_or(&[][..], Buffer::bytes);
                let parsed = match scan.is_due(read, limit) {
                    true => self.parse_response(request, rule, bound, &mut input),
                    false => Ok(None),
                };
                match parsed {
                    Ok(Some(Response::Final(head))) => return Ok(head),
                    Ok(Some(Response::Interim(head, status))) => {
                        interims += 1;
                        interim_bytes += head.len();
                        if interims > MAX_INTERIM || interim_bytes > limit {
                            tracing::debug!(rule = %self.session.service.name,
                                address = %bound.address, interims, interim_bytes,
                                "a member sends too many interim responses");
                            return Err(Failure::Garbage);
                        }
                        if status == 100 {
                            // From here on it is the client's turn.
                            request.awaits_continue = false;
                            progress.awaits_continue = false;
                        }
                        if request.version == Version::Http11 {
                            // They do not give the member more time for its answer.
                            let paused = self.session.watch.pause();
                            match self.send(head, timeouts.body).await {
                                Ok(true) => {}
                                Ok(false) => return Err(Failure::ClientGone),
                                // An answer would end up in the middle of this head, or behind
                                // one that the client does not read.
                                Err(Stop::Expired) => return Err(Failure::ClientStuck),
                                Err(Stop::Cut) => return Err(Failure::Cut),
                            }
                            self.session.watch.resume(paused);
                        } else {
                            self.session.worker.buffers.give_head(head);
                        }
                        scan = HeadScan::default();
                        if input.is_none() {
                            break;
                        }
                    }
                    Ok(None) => {
                        let limit = limit.max(BUFFER_BYTES);
                        let memory = &self.session.worker.memory;
                        let room = input.as_mut().map(|input| input.make_room(limit, memory));
                        match room {
                            None | Some(Ok(true)) => break,
                            Some(Ok(false)) => return Err(Failure::Garbage),
                            Some(Err(OutOfMemory)) => {
                                return Err(Failure::Exhausted(Shortage::Memory));
                            }
                        }
                    }
                    Err(failure) => {
                        if let Some(input) = input.take() {
                            self.session.worker.buffers.give(input);
                        }
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Parses the head in `input`, and writes the one for the client.
    fn parse_response(
        &mut self,
        request: &Request,
        rule: &RuleSnapshot,
        bound: &mut Bound,
        input: &mut Option<Buffer>,
    ) -> Result<Option<Response>, Failure> {
        let worker = &self.session.worker;
        let Some(buffer) = input else {
            return Ok(None);
        };
        let limits = Limits {
            max_bytes: rule.rule.http.max_header_bytes,
            max_fields: rule.rule.http.max_header_count,
        };
        let mut fields = Fields::new();
        let mut head = match ResponseHead::parse(buffer.bytes(), limits, request.asked, &mut fields)
        {
            Ok(Parsed::Head(head)) => head,
            Ok(Parsed::Partial) => return Ok(None),
            Err(error) => {
                tracing::debug!(rule = %self.session.service.name, address = %bound.address, %error,
                    "a member's response cannot be read");
                return Err(Failure::Garbage);
            }
        };
        let client = forward::Client {
            version: request.version,
            // A client that is still sending when the response begins may have to be
            // cut off at the response's end.
            keep_alive: request.keep_alive
                && request.up.is_done()
                && self.session.service.state.get() == State::Running,
        };
        if let Some(orca) = &*rule.group.orca.load() {
            if !head.is_interim() {
                let (text, binary) = (head.values(orca::FIELD), head.values(orca::BINARY_FIELD));
                let (location, now) = (bound.ticket.location(), worker.now());
                let wanted = |table: &str, field: &str| orca.loads.load(table, field);
                if let Some(taken) = orca::take_in(text, binary, &wanted, location, now) {
                    let fate = taken.map_or_else(Fate::from, |()| Fate::Taken);
                    rule.group.reports.count(Origin::ORCA_HEADER, fate);
                }
            }
            if orca.strip {
                head.leave_out(orca::FIELD);
                head.leave_out(orca::BINARY_FIELD);
            }
        }
        let mut out = worker.buffers.take_head();
        let delivery = write_response(&head, client, &mut out);
        let interim = head.is_interim();
        let (len, status, body) = (head.len, head.status, head.body);
        let keep_alive = head.keep_alive;
        let outcome = match status {
            _ if interim => Outcome::Success,
            429 | 503 => Outcome::Overloaded {
                retry_after: head.values("retry-after").next().and_then(seconds),
            },
            500.. => Outcome::Error,
            _ => Outcome::Success,
        };
        buffer.consume(len);
        if interim {
            if buffer.is_empty()
                && let Some(empty) = input.take()
            {
                worker.buffers.give(empty);
            }
            return Ok(Some(Response::Interim(out, status)));
        }
        let at = worker.now();
        bound.ticket.responded(outcome, at);
        // An upgraded connection's first bytes are no body.
        let rest = input.take();
        let down = Flow::new(out, body, delivery.strip_chunks, rest, &worker.memory);
        let down = down.map_err(|broken| match broken {
            Broken::Exhausted(shortage) => Failure::Exhausted(shortage),
            _ => Failure::Garbage,
        })?;
        Ok(Some(Response::Final(Head {
            down,
            status,
            at,
            outcome,
            keep_alive,
            until_close: body == Body::UntilClose,
            delivery,
        })))
    }

    /// Sends the response to the client, and the rest of the request to the member; the
    /// bytes of another protocol, too, if that is what the response switches to.
    async fn deliver(
        &mut self,
        request: &mut Request,
        rule: &RuleSnapshot,
        member: MemberId,
        head: &mut Head,
        upstream: &mut Io,
    ) -> Delivered {
        let timeouts = &rule.rule.timeouts;
        let mut progress = Progress::new(request);
        let Client {
            session, stream, ..
        } = self;
        let worker = &session.worker;
        let up = &mut request.up;
        let down = &mut head.down;
        let result = session
            .watch
            .until(|cx| {
                if session.is_gone(stream) {
                    return Poll::Ready(Err(Fault::Of(Side::Client)));
                }
                if let Err(broken) = progress.poll_up(cx, up, stream, upstream, worker) {
                    return Poll::Ready(Err(match broken {
                        Broken::Exhausted(shortage) => Fault::Exhausted(shortage),
                        // It broke off, or its chunks are not valid: too late for a 400.
                        _ => Fault::Of(Side::Client),
                    }));
                }
                let step = down.poll(cx, upstream, stream, worker);
                if step.is_pending() {
                    progress.arm(&session.watch, up, Some(down), timeouts);
                    up.shrink_rest(worker);
                }
                step.map_err(|broken| match broken {
                    Broken::From | Broken::Chunks(_) => Fault::Of(Side::Member),
                    Broken::To => Fault::Of(Side::Client),
                    Broken::Exhausted(shortage) => Fault::Exhausted(shortage),
                })
            })
            .await;
        let end = match result {
            Ok(Ok(())) => End::Complete,
            Ok(Err(Fault::Of(Side::Client))) => End::Client,
            Ok(Err(Fault::Of(Side::Member))) => End::Member,
            Ok(Err(Fault::Exhausted(shortage))) => {
                shortage.met("pass a response on");
                End::Exhausted
            }
            Err(Stop::Cut) => End::Terminated,
            Err(Stop::Expired) => match progress.whose_turn(up, Some(down)) {
                Side::Client => End::ClientTimeout,
                Side::Member => End::MemberTimeout,
            },
        };
        let metrics = &session.service.metrics;
        metrics.count_status(head.status);
        metrics.bytes_to_clients.add(down.sent());
        let mut delivered = Delivered {
            end,
            sent: down.sent(),
            received: 0,
            has_waited: progress.has_waited(),
        };
        if end == End::Complete && head.status == 101 {
            let mut traffic = Traffic {
                up: tcp::Flow::with(up.take_rest()),
                down: tcp::Flow::with(down.take_rest()),
            };
            let tunnel = Tunnel {
                session,
                rule,
                member,
                half_close: true,
            };
            delivered.end = tunnel.run(stream, upstream, &mut traffic, || {}).await;
            delivered.sent += traffic.down.moved;
            delivered.received += traffic.up.moved;
            delivered.has_waited = true;
        }
        delivered
    }

    /// What becomes of the two connections.
    fn settle(
        &mut self,
        request: &Request,
        rule: &RuleSnapshot,
        bound: Bound,
        mut head: Head,
        upstream: Upstream,
        delivered: &Delivered,
    ) -> After {
        let worker = &self.session.worker;
        let outcome = match delivered.end {
            End::Complete | End::Alert => head.outcome,
            // As with TCP: what a client sends in a tunnel can make a member reset it.
            End::Member if head.status == 101 => head.outcome,
            End::Member | End::MemberTimeout => Outcome::Failure,
            _ => Outcome::Cancelled,
        };
        // Mostly the head brings the body along.
        let ended = match delivered.has_waited {
            true => worker.now(),
            false => head.at,
        };
        bound.ticket.finish(outcome, ended);
        rule.group.vacated();
        let clean = !head.down.has_excess();
        if let Some(rest) = head.down.finish(worker) {
            worker.buffers.give(rest);
        }
        if !delivered.end.is_orderly() {
            // Neither side may take what it has for the whole.
            upstream.reset();
            return After::Cut;
        }
        if head.status == 101 {
            return After::Close;
        }
        let sent_all = request.up.is_done();
        if head.keep_alive && sent_all && clean && !head.until_close {
            let http = &rule.rule.http;
            let expires = worker.watchers.coarse_now().after(http.pool_idle_timeout);
            worker
                .upstreams
                .give(bound.member, upstream, http.pool_idle_connections, expires);
        } else if !sent_all {
            upstream.reset();
        }
        if head.delivery.keep_alive {
            return After::NextRequest;
        }
        // A client that asked for the end sends nothing more.
        match !request.keep_alive && sent_all && !request.up.has_excess() {
            true => After::Close,
            false => After::Linger,
        }
    }

    /// Answers a request for which no member could be used.
    async fn refused(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        refusal: Refusal,
        not_reached: Option<ConnectFailure>,
    ) -> After {
        if refusal == Refusal::NoMember && summary.retries > 0 {
            // The members that were tried count for more than that none is left.
            let failure = not_reached.unwrap_or(ConnectFailure::Refused);
            return self
                .failed(request, summary, Failure::Connect(failure))
                .await;
        }
        summary.end = self.session.count_refusal(refusal);
        let text = match refusal {
            Refusal::NoMember => "No server is available. Try again later.",
            Refusal::QueueFull => "All servers are busy, and so is the queue. Try again later.",
            Refusal::QueueTimeout => "All servers were busy for too long. Try again later.",
            Refusal::Cut | Refusal::ClientGone => return After::Cut,
        };
        self.answer_instead(request, summary, 503, text).await
    }

    /// Answers a request that failed.
    async fn failed(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        failure: Failure,
    ) -> After {
        let (end, status, text) = match failure {
            Failure::Connect(ConnectFailure::Cut) | Failure::Cut => {
                summary.end = End::Terminated;
                return After::Cut;
            }
            Failure::ClientGone => {
                summary.end = End::Client;
                return After::Cut;
            }
            Failure::ClientStuck => {
                summary.end = End::ClientTimeout;
                return After::Cut;
            }
            Failure::Connect(ConnectFailure::Refused) => {
                (End::Member, 502, "The server could not be reached.".into())
            }
            Failure::Exhausted(shortage) => {
                shortage.met("carry a request");
                let text = "The balancer is out of memory. Try again later.".into();
                // This end counts as one for want of something.
                (End::Exhausted, 503, text)
            }
            Failure::Connect(failure @ ConnectFailure::Exhausted(_)) => {
                self.session.count_exhausted(failure);
                let text = "The balancer is out of connections. Try again later.".into();
                (End::Refused, 503, text)
            }
            Failure::Connect(ConnectFailure::TimedOut) => {
                let text = "The server could not be reached in time.".into();
                (End::MemberTimeout, 504, text)
            }
            Failure::Silent => {
                let text = "The server ended the connection without an answer.".into();
                (End::Member, 502, text)
            }
            Failure::Stale => {
                let text = "The server ended the connection without an answer.".into();
                (End::Stale, 502, text)
            }
            Failure::Garbage => {
                let text = "The server's answer could not be read.".into();
                (End::Member, 502, text)
            }
            Failure::TimedOut => {
                let text = "The server did not answer in time.".into();
                (End::MemberTimeout, 504, text)
            }
            Failure::BadRequest(text) => {
                self.session.service.metrics.refused_malformed.add(1);
                (End::Client, 400, text)
            }
            Failure::ClientTimedOut => {
                let text = "The request's body did not arrive in time.".into();
                (End::ClientTimeout, 408, text)
            }
        };
        summary.end = end;
        self.answer_instead(request, summary, status, &text).await
    }

    async fn answer_instead(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        status: u16,
        text: &str,
    ) -> After {
        // The rest of a request that was not sent on is still in the way.
        let body_is_read = request.up.skip_what_was_read();
        let keep_alive = request.keep_alive
            && body_is_read
            && request.version == Version::Http11
            && self.session.service.state.get() == State::Running;
        let answer = Answer {
            keep_alive,
            retry_after: (status == 503).then_some(1),
            ..Answer::closing(status, text)
        };
        let sent = self.answer(&answer, request.asked.head).await;
        summary.status = sent.then_some(status);
        match (sent, keep_alive) {
            (false, _) => After::Cut,
            (true, true) => After::NextRequest,
            (true, false) => After::Linger,
        }
    }
}

/// What a member has sent.
// Almost always the large one, and for a moment: a box would be allocated per request.
#[allow(clippy::large_enum_variant)]
enum Response {
    /// The head for the client, and its status.
    Interim(Vec<u8>, u16),
    Final(Head),
}

/// Why a response did not get through.
enum Fault {
    Of(Side),
    Exhausted(Shortage),
}

/// Whom a time limit concerns, or who broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Member,
}

/// How far an exchange is: what its deadline depends on.
struct Progress {
    /// The member takes no more of the request. It may still answer.
    deaf: bool,
    /// The client sends no body before the member has sent a 100 (Continue).
    awaits_continue: bool,
    /// What was sent, and whose turn it was, when something was last waited for.
    waited: Option<(u64, u64, Side)>,
}

impl Progress {
    fn new(request: &Request) -> Self {
        Progress {
            deaf: false,
            awaits_continue: request.awaits_continue,
            waited: None,
        }
    }

    /// Sends more of the request. An error is the client's.
    fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        up: &mut Flow,
        client: &mut Io,
        upstream: &mut Io,
        worker: &crate::worker::Worker,
    ) -> Result<(), Broken> {
        if self.deaf || up.is_done() {
            return Ok(());
        }
        match up.poll(cx, client, upstream, worker) {
            Poll::Ready(Err(Broken::To)) => {
                self.deaf = true;
                Ok(())
            }
            Poll::Ready(Err(broken)) => Err(broken),
            _ => Ok(()),
        }
    }

    /// Whether anything was ever waited for.
    fn has_waited(&self) -> bool {
        self.waited.is_some()
    }

    /// Who has to do something next.
    fn whose_turn(&self, up: &Flow, down: Option<&Flow>) -> Side {
        if down.is_some_and(|down| down.waits() == Waits::ForReceiver) {
            return Side::Client;
        }
        if !self.deaf && !up.is_done() && up.waits() == Waits::ForSender {
            // RFC 9110, section 10.1.1: a server answers an expectation at once.
            let member_first = self.awaits_continue && up.body_sent() == 0;
            return if member_first {
                Side::Member
            } else {
                Side::Client
            };
        }
        Side::Member
    }

    /// Sets the deadline anew if anything has moved, or it is somebody else's turn.
    fn arm(
        &mut self,
        watch: &crate::watch::Watch,
        up: &Flow,
        down: Option<&Flow>,
        timeouts: &Timeouts,
    ) {
        let turn = self.whose_turn(up, down);
        let now = Some((up.sent(), down.map_or(0, Flow::sent), turn));
        if self.waited != now {
            self.waited = now;
            match turn {
                Side::Client => watch.arm(timeouts.body),
                Side::Member => watch.arm_and_look(timeouts.response),
            }
        }
    }
}

fn client_failure(broken: Broken) -> Failure {
    match broken {
        Broken::Chunks(error) => Failure::BadRequest(error.to_string()),
        Broken::Exhausted(shortage) => Failure::Exhausted(shortage),
        Broken::From | Broken::To => Failure::ClientGone,
    }
}

/// `Retry-After` in seconds. Its other form, a date, would need a clock that agrees
/// with the member's.
fn seconds(value: &[u8]) -> Option<Duration> {
    let value = std::str::from_utf8(value).ok()?;
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.then(|| value.parse().ok())??;
    Some(Duration::from_secs(seconds))
}
