//! Forward authentication: a group is asked whether a request may pass. A response with a status of
//! success lets it pass, and any other one is what its client gets.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_core::group;
use evenkeel_limits::{Shortage, warn_throttled};
use evenkeel_manager::auth::{self, Auth};
use evenkeel_wire::response::HeadScan;

use super::client::{After, Client};
use super::failure::Failure;
use super::flow::{Bounds, Flow};
use super::hedge::Held;
use super::progress::Progress;
use super::question::Question;
use super::request::Request;
use super::response::{Head, MAX_INTERIM, read_head};
use super::route::RequestRoute;
use super::summary::Summary;
use crate::access::{End, MemberAttempts};
use crate::bound_request::{BoundRequest, Refusal};
use crate::buffer::Buffer;
use crate::http1::respond::{self, AnswerExtras};
use crate::http1::{Body, Fields, FramingFacts, Limits, ParseOutcome};
use crate::io::{Io, Nobody};
use crate::member_choice::insert;
use crate::memory::{BUFFER_BYTES, OutOfMemory};
use crate::tcp::failure::ConnectFailure;
use crate::upstream::Upstream;
use crate::watch::Stop;

/// Most bytes of the lines that a member gets of an answer.
const MAX_COPIED: usize = 16 * 1024;

/// Longest name of a user that is logged, in bytes.
const MAX_NAME: usize = 256;

/// Time after the deadline of an answer at which the waiting client gives the answer up, if the
/// asking client has not done that.
const LATER: Duration = Duration::from_secs(1);

/// Result of a question.
enum Answer {
    /// The request may pass.
    Passes(AuthGrant),
    /// The request may not pass.
    Refused(Box<AuthRefusal>),
    /// The request may pass after a login, to which its client is redirected.
    NeedsLogin,
    /// Nobody can say whether the request may pass.
    Failed(Failure, Option<Box<MemberAttempts>>),
    /// There is nobody to ask.
    NoMember(Refusal),
}

/// Answer about a request that may pass.
#[derive(Debug, Default, PartialEq, Eq)]
struct AuthGrant {
    /// Lines for the member, each with its end.
    lines: Vec<u8>,
    /// The user, if one is named.
    user: Option<Arc<str>>,
}

/// A response that is for the client.
struct AuthRefusal {
    asking: Request,
    bound: BoundRequest,
    upstream: Upstream,
    /// Head of the response, and the part of its body that has come.
    input: Buffer,
}

/// Meaning of the first bytes of a response.
#[derive(Debug, PartialEq, Eq)]
enum ResponseStart {
    /// Not the whole head has come.
    Partial,
    /// Another response follows after this number of bytes.
    Interim(usize),
    Passes(AuthGrant),
    /// The request may not pass, by a response with this status.
    Refuses(u16),
}

/// Looks at what has come of the response to a question.
fn parse_answer(
    upstream: &Io,
    read: &[u8],
    limits: Limits,
    auth: &Auth,
    copied: &[Box<str>],
) -> Result<ResponseStart, Failure> {
    let asked = FramingFacts {
        head: false,
        upgrade: false,
    };
    let mut fields = Fields::new();
    let head = match read_head(upstream, read, limits, asked, &mut fields) {
        Ok(ParseOutcome::Head(head)) => head,
        Ok(ParseOutcome::Partial) => return Ok(ResponseStart::Partial),
        Err(error) => {
            tracing::debug!(%error, "the answer of the group of `auth` cannot be read");
            return Err(Failure::Garbage);
        }
    };
    if head.is_interim() {
        return Ok(ResponseStart::Interim(head.len));
    }
    if !(200..300).contains(&head.status) {
        return Ok(ResponseStart::Refuses(head.status));
    }
    let mut passed = AuthGrant::default();
    for name in copied {
        let is_user = auth.user_field.as_ref() == Some(name);
        let mut users = 0;
        // Those that end at the balancer are not for others.
        for field in head
            .kept_fields()
            .filter(|field| field.name.eq_ignore_ascii_case(name))
        {
            let fits = |&byte: &u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
            let more = name
                .len()
                .saturating_add(field.value.len())
                .saturating_add(4);
            if !field.value.iter().all(fits) || passed.lines.len().saturating_add(more) > MAX_COPIED
            {
                tracing::debug!(field = %name, "a field in the answer of the group of `auth` cannot be copied");
                return Err(Failure::Garbage);
            }
            for part in [name.as_bytes(), b": ", field.value, b"\r\n"] {
                passed.lines.extend_from_slice(part);
            }
            if is_user {
                users += 1;
                let user = std::str::from_utf8(field.value).ok();
                let user = user.filter(|user| (1..=MAX_NAME).contains(&user.len()));
                passed.user = user.filter(|_| users == 1).map(Arc::from);
            }
        }
    }
    Ok(ResponseStart::Passes(passed))
}

impl Client {
    /// Asks whether a request may pass: the user, if it may and that is known. The request has then
    /// what members are told. Otherwise it was answered: how the connection goes on.
    pub(super) async fn ask_permission(
        &mut self,
        request: &mut Request,
        auth: &Auth,
        asked: &auth::Asked,
        mut question: Question,
        summary: &mut Summary,
    ) -> Result<Option<Arc<str>>, After> {
        let login_page = question.login_page.take();
        let answer = match self.new_asking(request, asked, question) {
            Ok((client, asking)) => {
                let task = client.find_out(asking, auth, asked, login_page.is_some());
                tokio::pin!(task);
                let Client {
                    session, stream, ..
                } = self;
                session
                    .watch
                    .arm_and_look(asked.timeout.saturating_add(LATER));
                let answer = session.watch.poll_until_stop(|cx| {
                    if session.is_gone(cx, stream, false) {
                        return Poll::Ready(Answer::Failed(Failure::ClientGone, None));
                    }
                    task.as_mut().poll(cx)
                });
                let answer = answer.await;
                session.watch.disarm_deadline();
                answer.unwrap_or_else(|stop| match stop {
                    Stop::Expired => Answer::Failed(Failure::TimedOut, None),
                    Stop::Cut => Answer::Failed(Failure::Cut, None),
                })
            }
            Err(failure) => Answer::Failed(failure, None),
        };
        let metrics = &self.session.service.metrics;
        let memory = &self.session.worker.memory;
        match answer {
            Answer::Passes(passed) => match request.up.add_lines(&passed.lines, memory) {
                Ok(()) => {
                    metrics.auth_passed.add(1);
                    Ok(passed.user)
                }
                Err(OutOfMemory) => {
                    let failure = Failure::Exhausted(Shortage::Memory);
                    Err(self.cannot_say(request, failure, summary).await)
                }
            },
            Answer::Refused(refused) => {
                metrics.auth_refused.add(1);
                Err(self.refuse_as_said(request, *refused, summary).await)
            }
            Answer::NeedsLogin => {
                metrics.auth_refused.add(1);
                self.was_to_say(request, asked);
                summary.end = End::Unauthorized;
                let more = AnswerExtras {
                    location: login_page.as_deref(),
                    ..AnswerExtras::default()
                };
                let answer = respond::Answer {
                    more,
                    ..respond::Answer::new_closing(302, "See the field Location.")
                };
                Err(self.give_instead(request, summary, answer).await)
            }
            Answer::Failed(failure, tries) => {
                self.was_to_say(request, asked);
                summary.tries = tries;
                Err(self.cannot_say(request, failure, summary).await)
            }
            Answer::NoMember(refusal) => {
                self.was_to_say(request, asked);
                summary.end = self.session.count_refusal(refusal);
                if matches!(refusal, Refusal::Cut | Refusal::ClientGone) {
                    return Err(After::Cut);
                }
                Err(self
                    .say_so(request, "no member of the group can be asked", summary)
                    .await)
            }
        }
    }

    /// Has the access log name the group that was asked.
    fn was_to_say(&self, request: &mut Request, asked: &auth::Asked) {
        if let Some(routed) = request.routed.to_ask(asked.target) {
            request.routed = routed;
        }
    }

    /// Returns the client that asks the group, and the request that asks.
    fn new_asking(
        &self,
        request: &Request,
        asked: &auth::Asked,
        question: Question,
    ) -> Result<(Client, Request), Failure> {
        let worker = &self.session.worker;
        let routed = request.routed.to_ask(asked.target);
        let routed = routed.ok_or(Failure::Connect(ConnectFailure::Refused))?;
        let Question { head, key, .. } = question;
        let up = Flow::new(head, Body::None, false, None, Bounds::NONE, &worker.memory);
        let mut asking = request.once_more(routed, key, up?, worker.now());
        asking.asked = FramingFacts {
            head: false,
            upgrade: false,
        };
        asking.idempotent = true;
        asking.cost = Default::default();
        // What a client is bound to for longer than a request it is bound to for questions, too.
        let bindings = Rc::clone(&self.bindings);
        let client = Client::new(self.session.for_own_request(), Io::Nobody(Nobody), bindings);
        Ok((client, asking))
    }

    /// Asks one member after the other until one answers. `has_login_page` is true if a response with status 401 is not for
    /// the client.
    async fn find_out(
        mut self,
        mut asking: Request,
        auth: &Auth,
        asked: &auth::Asked,
        has_login_page: bool,
    ) -> Answer {
        self.session.watch.set_total_limit(asked.timeout);
        let worker = Rc::clone(&self.session.worker);
        let routed = asking.routed.clone();
        let bindings = Rc::clone(&self.bindings);
        let (mut tried, mut retries) = (Vec::new(), 0);
        let (mut failed, mut tries) = (None, None);
        loop {
            let asks = group::Request {
                client: self.session.peer.ip(),
                key: asking.key,
                excluded_members: &tried,
                ..group::Request::at_time(worker.now())
            };
            let handle = &routed.target().group;
            let timeouts = &routed.route().timeouts;
            let bound = self.session.bind_request(
                routed.target(),
                &bindings,
                (&asks, None),
                timeouts,
                asking.class,
                &mut self.stream,
            );
            let bound = match (bound.await, failed) {
                (Ok(bound), _) => bound,
                (Err(Refusal::NoMember), Some(failure)) => {
                    return Answer::Failed(failure, tries);
                }
                (Err(refusal), _) => return Answer::NoMember(refusal),
            };
            let mut held = Held {
                group: Arc::clone(handle),
                bound: Some(bound),
            };
            let Some(bound) = &mut held.bound else {
                return Answer::NoMember(Refusal::NoMember);
            };
            let member = bound.member;
            let heard = self
                .ask_member(&mut asking, &routed, bound, auth, asked)
                .await;
            MemberAttempts::append_to(&mut tries, bound.tries.take());
            let failure = match heard {
                Ok((upstream, input, said)) => {
                    let Some(mut bound) = held.bound.take() else {
                        return Answer::NoMember(Refusal::NoMember);
                    };
                    let grant = match said {
                        Err(status) if status != 401 || !has_login_page => {
                            bound.tries = tries;
                            return Answer::Refused(Box::new(AuthRefusal {
                                asking,
                                bound,
                                upstream,
                                input,
                            }));
                        }
                        said => said.ok(),
                    };
                    let taken = self.take_whole(asking, routed, bound, upstream, input);
                    return match taken.await {
                        Ok(()) => grant.map_or(Answer::NeedsLogin, Answer::Passes),
                        Err(failure) => Answer::Failed(failure, tries),
                    };
                }
                Err(failure) => {
                    if matches!(failure, Failure::Garbage) {
                        let why = "the answer to the question of `auth` cannot be read";
                        self.note_bad_response(&bound.address, tries.as_deref_mut(), why);
                    }
                    failure
                }
            };
            let again = !self.session.watch.is_over()
                && self.may_retry(&mut asking, &routed, &failure, retries);
            held.finish_bound(failure.member_outcome(), worker.now());
            if !again {
                return Answer::Failed(failure, tries);
            }
            retries += 1;
            self.session.service.metrics.retries.add(1);
            insert(&mut tried, member);
            failed = Some(failure);
        }
    }

    /// Asks a member: what it says of a request that may pass, or the status of its response if it may not. The head of
    /// the response is in the buffer still.
    async fn ask_member(
        &mut self,
        asking: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        auth: &Auth,
        asked: &auth::Asked,
    ) -> Result<(Upstream, Buffer, Result<AuthGrant, u16>), Failure> {
        let first = match self.first_bytes(asking, routed, bound, true).await {
            // The member may have closed an idle connection just when it was to be used.
            Err(Failure::Stale) if asking.up.rewind() => {
                self.first_bytes(asking, routed, bound, false).await
            }
            first => first,
        };
        let (mut upstream, input) = first?;
        let read = self.read_answer(asking, routed, &mut upstream, input, auth, asked);
        match read.await {
            Ok((input, said)) => Ok((upstream, input, said)),
            Err(failure) => {
                let failure = failure.of_call(&upstream);
                upstream.reset_on_drop();
                Err(failure)
            }
        }
    }

    /// Reads a response of which `input` has come until its head is there.
    async fn read_answer(
        &mut self,
        asking: &mut Request,
        routed: &RequestRoute,
        upstream: &mut Io,
        input: Buffer,
        auth: &Auth,
        asked: &auth::Asked,
    ) -> Result<(Buffer, Result<AuthGrant, u16>), Failure> {
        let http = &routed.rule.http;
        let limits = Limits {
            max_bytes: http.max_header_bytes,
            max_fields: http.max_header_count,
        };
        let mut input = Some(input);
        let mut scan = HeadScan::default();
        let mut interims = 0;
        let mut progress = Progress::new(asking);
        loop {
            if let Some(mut here) = input.take() {
                let looked = match scan.is_due(here.bytes(), limits.max_bytes) {
                    true => parse_answer(upstream, here.bytes(), limits, auth, &asked.copied)?,
                    false => ResponseStart::Partial,
                };
                match looked {
                    ResponseStart::Passes(passed) => return Ok((here, Ok(passed))),
                    ResponseStart::Refuses(status) => return Ok((here, Err(status))),
                    ResponseStart::Interim(len) => {
                        interims += 1;
                        if interims > MAX_INTERIM {
                            return Err(Failure::Garbage);
                        }
                        // Nobody gets it: it is about the question.
                        here.consume(len);
                        if let Io::Call(call) = upstream {
                            call.pass_interim();
                        }
                        scan = HeadScan::default();
                        if !here.is_empty() {
                            input = Some(here);
                            continue;
                        }
                        self.session.worker.buffers.give_back(here);
                    }
                    ResponseStart::Partial => {
                        let limit = limits.max_bytes.max(BUFFER_BYTES);
                        match here.make_room(limit, &self.session.worker.memory) {
                            Ok(true) => input = Some(here),
                            Ok(false) => return Err(Failure::Garbage),
                            Err(OutOfMemory) => return Err(Failure::Exhausted(Shortage::Memory)),
                        }
                    }
                }
            }
            let filled = self.fill_response(asking, routed, upstream, &mut progress, &mut input);
            filled.await?;
        }
    }

    /// Takes a response that lets a request pass to its end, so that its connection can be used
    /// again. The request does not wait for that.
    async fn take_whole(
        mut self,
        mut asking: Request,
        routed: RequestRoute,
        mut bound: BoundRequest,
        mut upstream: Upstream,
        input: Buffer,
    ) -> Result<(), Failure> {
        let head = self.response_head(&mut asking, &routed, &mut bound, &mut upstream, Some(input));
        let head = match head.await {
            Ok(head) => head,
            Err(failure) => {
                upstream.reset_on_drop();
                routed.target().group.finish(
                    bound.ticket,
                    failure.member_outcome(),
                    self.session.worker.now(),
                );
                return Err(failure);
            }
        };
        let is_here = head.down.is_read();
        let rest = self.discard_rest(asking, routed, bound, head, upstream);
        match is_here {
            true => rest.await,
            false => {
                tokio::task::spawn_local(rest);
            }
        }
        Ok(())
    }

    async fn discard_rest(
        mut self,
        mut asking: Request,
        routed: RequestRoute,
        mut bound: BoundRequest,
        mut head: Head,
        mut upstream: Upstream,
    ) {
        let discarded =
            self.discard_response(&asking, &routed, &mut bound, &mut head, &mut upstream);
        let delivered = discarded.await;
        self.settle_connections(&mut asking, &routed, bound, head, upstream, &delivered);
        if let Some(rest) = asking.up.end_flow(&self.session.worker) {
            self.session.worker.buffers.give_back(rest);
        }
    }

    /// Gives the client the response that does not let its request pass.
    async fn refuse_as_said(
        &mut self,
        request: &mut Request,
        refused: AuthRefusal,
        summary: &mut Summary,
    ) -> After {
        let AuthRefusal {
            mut asking,
            mut bound,
            mut upstream,
            input,
        } = refused;
        let routed = asking.routed.clone();
        // The rest of a request that is not sent on is still in the way.
        let body_is_read = request.up.skip_what_was_read();
        request.keep_alive &= body_is_read;
        request.awaits_continue = false;
        // Nothing binds the client to a member of this group.
        request.stuck = None;
        request.routed = routed.clone();
        summary.tries = bound.tries.take();
        // What is sent on is the question, which mostly has been.
        std::mem::swap(&mut request.up, &mut asking.up);
        let head = self.response_head(request, &routed, &mut bound, &mut upstream, Some(input));
        let after = match head.await {
            Ok(mut head) => {
                if request.asked.head {
                    // The question was a GET: what comes after the head is not for this client, nor
                    // for the next question.
                    head.keep_alive = false;
                }
                summary.status = Some(head.status);
                summary.response_time = Some(head.at.since(bound.ticket.started()));
                summary.answered = Some(head.at);
                let delivered =
                    self.deliver_response(request, &routed, &mut bound, &mut head, &mut upstream);
                let delivered = delivered.await;
                summary.end = match delivered.end {
                    End::Complete => End::Unauthorized,
                    end => end,
                };
                summary.limit = delivered.limit;
                summary.sent = delivered.sent;
                summary.note_first_byte(&bound.ticket);
                self.settle_connections(request, &routed, bound, head, upstream, &delivered)
            }
            Err(failure) => {
                upstream.reset_on_drop();
                let now = self.session.worker.now();
                routed
                    .target()
                    .group
                    .finish(bound.ticket, failure.member_outcome(), now);
                self.answer_failed(request, summary, failure).await
            }
        };
        std::mem::swap(&mut request.up, &mut asking.up);
        if let Some(rest) = asking.up.end_flow(&self.session.worker) {
            self.session.worker.buffers.give_back(rest);
        }
        match after {
            // The client may still be sending.
            After::Close | After::NextRequest if !body_is_read => After::Linger,
            after => after,
        }
    }

    /// Answers a request of which nobody has said whether it may pass: it does not.
    async fn cannot_say(
        &mut self,
        request: &mut Request,
        failure: Failure,
        summary: &mut Summary,
    ) -> After {
        let (end, why) = match self.check_deadline(request, failure) {
            Failure::Cut | Failure::Connect(ConnectFailure::Cut) => {
                summary.end = End::Terminated;
                return After::Cut;
            }
            Failure::ClientGone => {
                summary.end = End::Client;
                return After::Cut;
            }
            // Not the time of the question is over, but that of the whole request.
            failure @ Failure::DeadlineExceeded => {
                return self.answer_failed(request, summary, failure).await;
            }
            Failure::Connect(ConnectFailure::TimedOut) | Failure::TimedOut => {
                (End::MemberTimeout, "the member did not answer in time")
            }
            Failure::Exhausted(shortage) => {
                shortage.report_failure("ask the group of `auth` about a request");
                (End::Exhausted, "the balancer is out of memory")
            }
            Failure::Connect(failure @ ConnectFailure::Exhausted(_)) => {
                self.session.count_exhausted(failure);
                (End::Refused, "the balancer may open no more connections")
            }
            Failure::Connect(_) => (End::Member, "the member could not be reached"),
            Failure::Garbage => (End::Member, "the member's answer could not be read"),
            _ => (
                End::Member,
                "the member ended the connection without an answer",
            ),
        };
        summary.end = end;
        self.say_so(request, why, summary).await
    }

    /// Tells the client, and whoever reads the log, that nobody has said whether its request may pass.
    async fn say_so(&mut self, request: &mut Request, why: &str, summary: &mut Summary) -> After {
        let service = &self.session.service;
        service.metrics.auth_failed.add(1);
        warn_throttled!(rule = %service.name, why,
            "requests are refused with 503, because the group of `auth` does not say whether the requests may pass");
        let text = "The service could not check whether the request is allowed. Try again later.";
        self.answer_instead(request, summary, 503, text).await
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::auth::By;

    use super::*;

    const LIMITS: Limits = Limits {
        max_bytes: 64 * 1024,
        max_fields: 64,
    };

    /// Returns the meaning of a response, where `X-User` and `X-Group` are copied.
    fn looked(read: &[u8]) -> Option<ResponseStart> {
        let copied: Box<[Box<str>]> = ["X-User", "X-Group"].map(Box::from).into();
        let auth = Auth {
            by: By::Users {
                users: Arc::default(),
                challenge: Box::default(),
            },
            user_field: Some("X-User".into()),
            remove_authorization: false,
        };
        parse_answer(&Io::Nobody(Nobody), read, LIMITS, &auth, &copied).ok()
    }

    fn response(start: &str, fields: &str) -> Vec<u8> {
        format!("HTTP/1.1 {start}\r\nContent-Length: 0\r\n{fields}\r\n").into_bytes()
    }

    fn passes(lines: &str, user: Option<&str>) -> Option<ResponseStart> {
        Some(ResponseStart::Passes(AuthGrant {
            lines: lines.into(),
            user: user.map(Arc::from),
        }))
    }

    #[test]
    fn only_a_status_of_success_lets_a_request_pass() {
        for status in ["200 OK", "204 No Content", "299 x"] {
            let read = format!("HTTP/1.1 {status}\r\n\r\n");
            assert_eq!(looked(read.as_bytes()), passes("", None), "{status}");
        }
        for status in [
            "300 x",
            "302 Found",
            "401 Unauthorized",
            "404 x",
            "500 x",
            "999 x",
        ] {
            let read = response(status, "X-User: anna\r\n");
            let number = status[..3].parse().unwrap();
            let wanted = Some(ResponseStart::Refuses(number));
            assert_eq!(looked(&read), wanted, "{status}");
        }
        let interim = b"HTTP/1.1 103 Early Hints\r\nX-User: anna\r\n\r\n";
        let len = interim.len();
        assert_eq!(looked(interim), Some(ResponseStart::Interim(len)));
        let whole = response("200 OK", "");
        for len in 0..whole.len() {
            assert_eq!(looked(&whole[..len]), Some(ResponseStart::Partial), "{len}");
        }
        let switches = "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        for bad in [switches, "hello\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n"] {
            assert_eq!(looked(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn the_fields_that_are_wanted_are_copied_and_no_others() {
        let copied = |fields: &str| looked(&response("200 OK", fields));
        assert_eq!(
            copied("x-user:  anna \r\nX-Other: 1\r\nX-GROUP: a\r\nx-group: b, c\r\n"),
            passes(
                "X-User: anna\r\nX-Group: a\r\nX-Group: b, c\r\n",
                Some("anna")
            )
        );
        // Who is named twice is nobody; members see what was said.
        assert_eq!(
            copied("X-User: anna\r\nX-User: bert\r\n"),
            passes("X-User: anna\r\nX-User: bert\r\n", None)
        );
        assert_eq!(copied("X-User:\r\n"), passes("X-User: \r\n", None));
        let long = "u".repeat(MAX_NAME + 1);
        let line = format!("X-User: {long}\r\n");
        assert_eq!(copied(&line), passes(&line, None));
        // What is for this connection only goes no further.
        let hop = "Connection: X-User\r\nX-User: anna\r\n";
        assert_eq!(copied(hop), passes("", None));
        let other = [&b"HTTP/1.1 200 OK\r\nX-User: \xe4\r\n\r\n"[..]].concat();
        let lines = b"X-User: \xe4\r\n".to_vec();
        let passed = AuthGrant { lines, user: None };
        assert_eq!(looked(&other), Some(ResponseStart::Passes(passed)));
    }

    #[test]
    fn s5_values_that_end_a_line_or_are_too_long_let_nothing_pass() {
        let copied = |fields: &str| looked(&response("200 OK", fields));
        for value in [
            "a\u{1}",
            "a\u{7f}",
            "\0",
            "a\rX-Admin: 1",
            "a\nX-Admin: 1",
            "\u{1b}[2J",
        ] {
            assert_eq!(copied(&format!("X-User: {value}\r\n")), None, "{value:?}");
        }
        let fits = "g".repeat(MAX_COPIED - "X-Group: \r\n".len());
        let line = format!("X-Group: {fits}\r\n");
        assert_eq!(copied(&line), passes(&line, None));
        assert_eq!(copied(&format!("X-Group: {fits}g\r\n")), None);
        assert_eq!(copied(&format!("X-User: a\r\n{line}")), None);
        let many = "X-Group: a\r\n".repeat(60);
        assert_eq!(copied(&many), passes(&many, None));
    }
}
