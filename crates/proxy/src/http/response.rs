//! The head of a member's response: waited for, read, and written for the client.

use std::fmt::Display;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_core::address::Address;
use evenkeel_core::group::Outcome;
use evenkeel_core::latency::Remainder;
use evenkeel_core::time::Instant;
use evenkeel_limits::{Shortage, warn_throttled};
use evenkeel_manager::config::FieldChanges;
use evenkeel_manager::counts::{Origin, ReportOutcome};
use evenkeel_manager::snapshot::Target;
use evenkeel_wire::orca;
use evenkeel_wire::response::HeadScan;

use super::client::Client;
use super::encoder::Encoder;
use super::engine_answer::{EngineAnswer, FULL_TIME, is_event_stream};
use super::failure::Failure;
use super::flow::{Bounds, Flow};
use super::progress::Progress;
use super::request::Request;
use super::route::RequestRoute;
use crate::access::{self, MemberAttempts};
use crate::bound_request::BoundRequest;
use crate::buffer::Buffer;
use crate::cors;
use crate::http1::chunked::Trailers;
use crate::http1::forward::{
    self, Delivery, ResponseAdditions, write_changed_response, write_response,
};
use crate::http1::{
    Body, Fields, FramingFacts, HeadError, Limits, ParseOutcome, ResponseHead, Version,
};
use crate::http2::grpc;
use crate::io::{Io, TransferError};
use crate::memory::{BUFFER_BYTES, OutOfMemory};
use crate::message::has_coding;
use crate::service::State;
use crate::watch::Stop;
use crate::worker::Worker;

/// Most interim responses before the final one. Their heads may together be as long as one head.
pub(super) const MAX_INTERIM: u32 = 32;

/// Head of a response, ready to be sent on.
pub(super) struct Head {
    /// Bytes that the client gets first, and the part of the body that has arrived.
    pub(super) down: Flow,
    pub(super) status: u16,
    /// Time at which the head had arrived.
    pub(super) at: Instant,
    pub(super) outcome: Outcome,
    /// True if the member's connection goes on.
    pub(super) keep_alive: bool,
    pub(super) until_close: bool,
    /// True if the member authenticates connections.
    pub(super) authenticates_connection: bool,
    pub(super) delivery: Delivery,
}

impl Head {
    /// True if the response is an engine's stream of events of which nothing has come yet.
    pub(super) fn is_unbegun_stream(&self) -> bool {
        self.status == 200 && !self.down.has_begun() && self.down.is_event_stream()
    }
}

/// Head of a response that a member has sent.
// Almost always the large one, and for a moment: a box would be allocated per request.
#[allow(clippy::large_enum_variant)]
enum Response {
    /// The head for the client, and its status.
    Interim(Vec<u8>, u16),
    Final(Head),
}

impl Client {
    /// Sends the request, and waits for bytes of a response, or for a head of HTTP/2, which stays in
    /// `upstream`.
    pub(super) async fn fill_response(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        upstream: &mut Io,
        progress: &mut Progress,
        input: &mut Option<Buffer>,
    ) -> Result<(), Failure> {
        let (timeouts, limits) = (&routed.route().timeouts, &routed.rule.limits);
        let Client {
            session, stream, ..
        } = self;
        let worker = &session.worker;
        let ends_with_fin = request.ends_with_fin(routed);
        let up = &mut request.up;
        let filled = session
            .watch
            .poll_until_stop(|cx| {
                if session.is_gone(cx, stream, ends_with_fin) {
                    return Poll::Ready(Err(TransferError::From));
                }
                progress.poll_up(cx, up, stream, upstream, session)?;
                let mut buffer = input.take().unwrap_or_else(|| worker.buffers.take());
                let filled = match upstream {
                    // The head of a stream is not among its bytes, and is read from there.
                    Io::Call(call) => call.poll_response(cx).map_ok(|()| 1),
                    _ => buffer.poll_fill(cx, upstream),
                };
                if buffer.is_empty()
                    && !matches!((&*upstream, &filled), (Io::Call(_), Poll::Ready(Ok(_))))
                {
                    worker.buffers.give_back(buffer);
                } else if filled.is_pending() {
                    *input = Some(worker.buffers.shrink_buffer(buffer));
                } else {
                    *input = Some(buffer);
                }
                if filled.is_pending() {
                    if input.is_some() {
                        // The member may wait until this part of the head is acknowledged.
                        upstream.acknowledge_now();
                    }
                    progress.arm_deadline(&session.watch, up, None, timeouts, limits);
                    up.shrink_rest(worker);
                }
                filled.map(Ok)
            })
            .await;
        match filled {
            Ok(Ok(Ok(n))) if n > 0 => Ok(()),
            Ok(Ok(read)) => {
                if let Some(shortage) = read.as_ref().err().and_then(Shortage::of_error) {
                    return Err(Failure::Exhausted(shortage));
                }
                let is_malformed =
                    |error: &std::io::Error| error.kind() == std::io::ErrorKind::InvalidData;
                Err(match input.take() {
                    None if read.as_ref().is_err_and(is_malformed) => Failure::Garbage,
                    None => Failure::Silent,
                    Some(input) => {
                        worker.buffers.give_back(input);
                        Failure::Garbage
                    }
                })
            }
            Ok(Err(broken)) => Err(broken.into()),
            Err(stop) => Err(progress.stop_failure(stop, up)),
        }
    }

    /// Sends the request, and reads until there is the head of the final response, of which `input`
    /// has come already.
    pub(super) async fn response_head(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        upstream: &mut Io,
        mut input: Option<Buffer>,
    ) -> Result<Head, Failure> {
        let limit = routed.rule.http.max_header_bytes;
        let body_timeout = routed.route().timeouts.body;
        let mut is_here = input.is_some();
        let mut scan = HeadScan::default();
        let (mut interims, mut interim_bytes) = (0, 0);
        let mut progress = Progress::new(request);
        loop {
            if !std::mem::take(&mut is_here) {
                let filled =
                    self.fill_response(request, routed, upstream, &mut progress, &mut input);
                filled.await.inspect_err(|failure| {
                    if matches!(failure, Failure::Garbage) {
                        let why = "the response ends within its head, or is malformed";
                        self.note_bad_response(&bound.address, bound.tries.as_deref_mut(), why);
                    }
                })?;
            }
            loop {
                let read = input.as_ref().map_or(&[][..], Buffer::bytes);
                let parsed = if scan.is_due(read, limit) {
                    self.parse_response(request, routed, bound, upstream, &mut input)
                } else {
                    Ok(None)
                };
                match parsed {
                    Ok(Some(Response::Final(head))) => {
                        if head.down.awaits_small_sender() {
                            upstream.acknowledge_now();
                        }
                        return Ok(head);
                    }
                    Ok(Some(Response::Interim(head, status))) => {
                        interims += 1;
                        interim_bytes += head.len();
                        if interims > MAX_INTERIM || interim_bytes > limit {
                            let why = "too many interim responses (1xx) before the final response";
                            self.note_bad_response(&bound.address, bound.tries.as_deref_mut(), why);
                            return Err(Failure::Garbage);
                        }
                        if status == 100 {
                            // From here on it is the client's turn.
                            request.awaits_continue = false;
                            progress.awaits_continue = false;
                        }
                        if request.version == Version::Http11 {
                            // They do not give the member more time for its answer.
                            let paused = self.session.watch.pause_deadline();
                            match self.send_head(head, body_timeout).await {
                                Ok(true) => {}
                                Ok(false) => return Err(Failure::ClientGone),
                                // An answer would end up in the middle of this head, or behind
                                // one that the client does not read.
                                Err(Stop::Expired) => return Err(Failure::ClientStuck),
                                Err(Stop::Cut) => return Err(Failure::Cut),
                            }
                            self.session.watch.resume_deadline(paused);
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
                            Some(Ok(false)) => {
                                let tries = bound.tries.as_deref_mut();
                                let why = HeadError::TooLarge;
                                self.note_bad_response(&bound.address, tries, why);
                                return Err(Failure::Garbage);
                            }
                            Some(Err(OutOfMemory)) => {
                                return Err(Failure::Exhausted(Shortage::Memory));
                            }
                        }
                    }
                    Err(failure) => {
                        if let Some(input) = input.take() {
                            self.session.worker.buffers.give_back(input);
                        }
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Says which member has sent what cannot be passed on, counts it, and has the access log say why.
    #[cold]
    pub(super) fn note_bad_response(
        &self,
        address: &Address,
        tries: Option<&mut MemberAttempts>,
        why: impl Display,
    ) {
        let service = &self.session.service;
        service.metrics.bad_responses.add(1);
        warn_throttled!(rule = %service.name, %address, %why,
            "a member's response cannot be read: the client gets 502 or a part of the response, or another \
             member is asked");
        if let Some(tries) = tries {
            tries.member_error = Some(why.to_string().into());
        }
    }

    /// Reads the head that has come in `upstream` or `input`, and writes the one for the client.
    fn parse_response(
        &mut self,
        request: &Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        upstream: &mut Io,
        input: &mut Option<Buffer>,
    ) -> Result<Option<Response>, Failure> {
        let worker = &self.session.worker;
        let Some(buffer) = input else {
            return Ok(None);
        };
        let limits = Limits {
            max_bytes: routed.rule.http.max_header_bytes,
            max_fields: routed.rule.http.max_header_count,
        };
        let mut fields = Fields::new();
        let read = buffer.bytes();
        let mut head = match read_head(upstream, read, limits, request.asked, &mut fields) {
            Ok(ParseOutcome::Head(head)) => head,
            Ok(ParseOutcome::Partial) => return Ok(None),
            Err(error) => {
                self.note_bad_response(&bound.address, bound.tries.as_deref_mut(), error);
                return Err(Failure::Garbage);
            }
        };
        let client = forward::Client {
            version: request.version,
            // A client that is still sending when the response begins may have to be
            // cut off at the response's end.
            keep_alive: request.keep_alive
                && request.up.is_done()
                && self.session.service.state.get() == State::Running
                && !self.is_last(),
        };
        if !head.is_interim() {
            let (text, binary) = (head.values(orca::FIELD), head.values(orca::BINARY_FIELD));
            take_reports(routed.target(), bound, worker, text, binary);
        }
        let strips = strips_reports(routed.target());
        if strips {
            head.leave_out(orca::FIELD);
            head.leave_out(orca::BINARY_FIELD);
        }
        let interim = head.is_interim();
        let changes = routed.response_policy().response_fields();
        let changes = changes.filter(|_| !interim);
        for name in changes.into_iter().flat_map(FieldChanges::taken_out) {
            head.leave_out(name);
        }
        let cors = request
            .cors_fields(routed)
            .filter(|_| !interim && head.status != 101);
        for name in cors.into_iter().flat_map(|_| cors::TAKEN_OUT) {
            head.leave_out(name);
        }
        let mut original = head.body;
        let encoder = match interim {
            true => None,
            false => self.choose_encoder(request, routed, &mut head),
        };
        if original == Body::Chunked
            && encoder.is_none()
            && matches!((&*upstream, &self.stream), (Io::Call(_), Io::Stream(_)))
        {
            // Frames on both sides say where the body ends.
            original = Body::Stream;
            head.body = original;
        }
        let stuck = request.stuck.as_ref().filter(|_| !interim);
        let secure = self.stream.uri_scheme() == "https";
        let session =
            stuck.and_then(|of| of.bind_client(routed.target(), bound.member, secure, worker));
        let session = session.as_ref().map(|(name, value)| (*name, &**value));
        let id = request.answered_id(routed).filter(|_| !interim);
        let field = stuck.and(routed.target().binding_field());
        for name in id.map(|(name, _)| name).into_iter().chain(field) {
            head.leave_out(name);
        }
        let added = ResponseAdditions {
            changes,
            session,
            cors,
            id,
        };
        let mut out = worker.buffers.take_head();
        let delivery = match &mut self.stream {
            // All that it gets is content; its framing says where that ends.
            Io::Stream(stream) if !interim => {
                if !stream.may_get(head.status) {
                    let why = "the response is a success (2xx) without the protocol that the client asked \
                               for (RFC 8441)";
                    self.note_bad_response(&bound.address, bound.tries.as_deref_mut(), why);
                    return Err(Failure::Garbage);
                }
                stream.set_head(&head, added);
                Delivery {
                    strip_chunks: false,
                    keep_alive: false,
                }
            }
            // What an interim one would be in HTTP/1 is counted, too.
            Io::Stream(stream) => {
                stream.send_interim(&head);
                write_response(&head, client, &mut out)
            }
            _ => write_changed_response(&head, client, added, &mut out),
        };
        let (len, status, body) = (head.len, head.status, original);
        let until_close = head.body == Body::UntilClose;
        let keep_alive = head.keep_alive;
        let authenticates_connection = head.authenticates_connection();
        let outcome = match status {
            _ if interim => Outcome::Success,
            429 | 503 => Outcome::Overloaded {
                retry_after: head.values("retry-after").next().and_then(parse_seconds),
            },
            500.. => Outcome::Error,
            200 if request.grpc => {
                let status = head.values(grpc::STATUS).next();
                status
                    .and_then(grpc::outcome_of_status)
                    .unwrap_or(Outcome::Success)
            }
            _ => Outcome::Success,
        };
        let has_body_bytes = match &*upstream {
            Io::Call(call) => call.has_more(),
            _ => buffer.len() > head.len,
        };
        let is_event_stream = bound.ticket.engine_mut().is_some() && is_event_stream(&head);
        let remainder = missing_part(&head, original, has_body_bytes, request);
        if let Some(tries) = bound.tries.as_mut().filter(|_| !interim) {
            tries.head_bytes = out.len() as u64;
            if let Some(log) = &*worker.log.borrow() {
                tries.fields =
                    access::keep_values(&log.wanted_fields().response, head.all_fields());
            }
        }
        buffer.consume(len);
        if let Io::Call(call) = upstream {
            match interim {
                true => call.pass_interim(),
                false => call.pass_head(original),
            }
            if !interim && has_body_bytes && original != Body::None {
                let cx = &mut Context::from_waker(Waker::noop());
                // What goes wrong shows when the rest is read.
                let _ = buffer.poll_fill(cx, call);
            }
        }
        if interim {
            if buffer.is_empty()
                && let Some(empty) = input.take()
            {
                worker.buffers.give_back(empty);
            }
            return Ok(Some(Response::Interim(out, status)));
        }
        let at = worker.now();
        let group = &routed.target().group;
        group.head_arrived(&mut bound.ticket, outcome, remainder, at);
        let bounds = Bounds {
            trailers: report_trailers(routed.target()),
            ..Bounds::NONE
        };
        // An upgraded connection's first bytes are no body.
        let rest = input.take();
        let memory = &worker.memory;
        let answer = bound.ticket.engine_mut().map(|engine| {
            if matches!(status, 429 | 503) {
                engine.mark_full(at.after(FULL_TIME));
            }
            if is_event_stream {
                engine.begin_stream(at);
            }
            let is_framed = body == Body::Chunked && encoder.is_none() && !delivery.strip_chunks;
            let answer = EngineAnswer::new(is_event_stream, is_framed);
            Box::new(answer.of_hold(request.tokens.clone()))
        });
        let down = match encoder {
            Some(encoder) => Flow::new_encoded(out, body, encoder, rest, bounds, answer, memory),
            None => {
                let down = Flow::new(out, body, delivery.strip_chunks, rest, bounds, memory);
                down.map(|down| down.with_answer(answer))
            }
        };
        let down = down.map_err(|broken| match broken {
            TransferError::Exhausted(shortage) => Failure::Exhausted(shortage),
            broken => {
                if let TransferError::Chunks(error) = broken {
                    self.note_bad_response(&bound.address, bound.tries.as_deref_mut(), error);
                }
                Failure::Garbage
            }
        })?;
        Ok(Some(Response::Final(Head {
            down,
            status,
            at,
            outcome,
            keep_alive,
            until_close,
            authenticates_connection,
            delivery,
        })))
    }
}

impl Client {
    /// Returns the encoder that compresses the response, if the rule compresses such responses and
    /// the client takes the coding. Then the head says so.
    fn choose_encoder(
        &self,
        request: &Request,
        routed: &RequestRoute,
        head: &mut ResponseHead<'_>,
    ) -> Option<Box<Encoder>> {
        let options = routed.rule.compression.as_ref()?;
        if matches!(head.status, 0..=199 | 204 | 206) || request.grpc {
            return None;
        }
        let is_encoded = has_coding(head.values("content-encoding"));
        let is_for = |value: Option<&[u8]>| value.is_some_and(|value| options.is_for(value));
        if head.status == 304 {
            // The fields that a response with content would have (RFC 9110, section 15.4.5): the client has what was
            // compressed if it asks with weak tags.
            if request.has_weak_tags && !is_encoded {
                head.weaken_etag();
                head.vary_by_encoding();
            }
            return None;
        }
        let length = head.content_length();
        if is_encoded
            || !is_for(head.values("content-type").next())
            || length.is_some_and(|length| length < options.min_size as u64)
            || head.field_lists("cache-control", b"no-transform")
            // What a trailer says is lost, as a body that is encoded has none.
            || head.values("trailer").next().is_some()
        {
            return None;
        }
        head.vary_by_encoding();
        if request.version == Version::Http10 || matches!(head.body, Body::None | Body::Length(0)) {
            return None;
        }
        let service = &self.session.service;
        let memory = &self.session.worker.memory;
        let coding = request.coding?;
        let encoder = Encoder::new(coding, options.level, length, memory, &service.metrics)?;
        head.set_coding(coding.name());
        Some(encoder)
    }
}

/// Returns the part of a response that is missing. `has_body_bytes` says that some of the body has come with the head.
#[inline]
fn missing_part(
    head: &ResponseHead<'_>,
    body: Body,
    has_body_bytes: bool,
    request: &Request,
) -> Remainder {
    match body {
        Body::None | Body::Length(0) => Remainder::Nothing,
        _ if has_body_bytes => Remainder::Rest,
        Body::Length(_) => Remainder::Sized,
        Body::Chunked | Body::UntilClose | Body::Stream => {
            match request.idempotent && is_event_stream(head) {
                true => Remainder::Subscription,
                false => Remainder::Stream,
            }
        }
    }
}

/// Reads the head of a response: that of a stream of HTTP/2, or the one at the start of `read`.
#[inline]
pub(super) fn read_head<'a>(
    upstream: &'a Io,
    read: &'a [u8],
    limits: Limits,
    asked: FramingFacts,
    fields: &'a mut Fields<'a>,
) -> Result<ParseOutcome<ResponseHead<'a>>, HeadError> {
    match upstream {
        Io::Call(call) => call.read_response(limits, asked, fields),
        _ => ResponseHead::parse(read, limits, asked, fields),
    }
}

/// Takes in the load reports of a response, if they are wanted.
pub(super) fn take_reports<'h>(
    target: &Target,
    bound: &BoundRequest,
    worker: &Worker,
    text: impl Iterator<Item = &'h [u8]>,
    binary: impl Iterator<Item = &'h [u8]>,
) {
    if let Some(orca) = target.sources.orca.as_ref().filter(|orca| orca.headers) {
        let (location, now) = (bound.ticket.location(), worker.now());
        let wanted = |table: &str, field: &str| orca.loads.find_load(table, field);
        if let Some(taken) = orca::take_in(text, binary, &wanted, location, now) {
            let fate = taken.map_or_else(ReportOutcome::from, |()| ReportOutcome::Taken);
            target.group.reports.count(Origin::ORCA_HEADER, fate);
        }
    }
}

/// True if load reports in responses are not for clients.
fn strips_reports(target: &Target) -> bool {
    let orca = target.sources.orca.as_ref();
    orca.is_some_and(|orca| orca.headers && orca.strip)
}

/// Trailers of responses that are for the balancer.
fn report_trailers(target: &Target) -> Trailers {
    let orca = target.sources.orca.as_ref();
    match orca.filter(|orca| orca.headers) {
        Some(orca) => Trailers::Reports { strip: orca.strip },
        None => Trailers::All,
    }
}

/// `Retry-After` in seconds. Its other form, a date, would need a clock that agrees
/// with the member's.
fn parse_seconds(value: &[u8]) -> Option<Duration> {
    let value = std::str::from_utf8(value).ok()?;
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.then(|| value.parse().ok())??;
    Some(Duration::from_secs(seconds))
}
