//! HTTP rules: one task per client connection carries its requests, one after the
//! other, each over a connection to the member that was chosen for it.

mod ask;
mod call;
mod copy;
mod encoder;
mod exchange;
mod failure;
pub(crate) mod flow;
mod hedge;
mod limited;
mod login;
mod mirror;
mod progress;
mod response;
mod route;
mod sticky;
mod stream;
mod tasks;

use std::borrow::Cow;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, SystemTime};

use evenkeel_control::queue::Class;
use evenkeel_core::cost::Cost;
use evenkeel_core::group::Ticket;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_http2::PREFACE;
use evenkeel_limits::Shortage;
use evenkeel_manager::config::{Coding, HttpOptions};
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_tls::challenge;
use evenkeel_wire::response::HeadScan;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::access::{self, Details, End, Hedged, Limit, MAX_TARGET_BYTES, MemberAttempts, Record};
use crate::age::Age;
use crate::bindings::Bindings;
use crate::bound_request::BoundRequest;
use crate::buffer::Buffer;
use crate::chooser::HttpFacts;
use crate::cors::{CorsFields, CrossOrigin};
use crate::date::DateText;
use crate::http1::chunked::ChunkError;
use crate::http1::forward::{Changes, RequestMarks, parent_place, write_changed};
use crate::http1::respond::Answer;
use crate::http1::{
    Fields, FramingFacts, HeadError, Hop, Limits, ParseOutcome, RequestHead, Version,
};
use crate::http2::server::serve_http2;
use crate::io::{Io, TransferError};
use crate::memory::{BUFFER_BYTES, OutOfMemory};
use crate::message;
use crate::quota::Over;
use crate::request_id;
use crate::service::LocalRule;
use crate::session::Session;
use crate::trace::{self, Attempt, Trace};
use crate::upstream::Upstream;
use crate::watch::Stop;
use flow::Flow;
use login::Login;
use route::{BalancerAnswer, RequestRoute};
use sticky::StickyCookie;

pub(crate) use tasks::Tasks;

/// Time for which a client may still send on a connection that the proxy has closed, so that the
/// response is not lost with a reset.
const LINGER: Duration = Duration::from_secs(2);

/// Serves one client. `tasks` serve the streams of a client that speaks HTTP/2.
pub(crate) async fn serve_http(session: Session, stream: Io, tasks: Rc<Tasks>) {
    let mut client = Client::new(session, stream, Rc::default());
    let after = loop {
        let mut request = match client.next_request().await {
            Ok(request) => request,
            Err(after) => break after,
        };
        match client.carry_request(&mut request).await {
            After::NextRequest => client.age.add_request(),
            after => break after,
        }
    };
    match after {
        After::NextRequest | After::Close => {}
        After::Linger => client.linger_until_closed().await,
        After::Cut => client.stream.reset_on_drop(),
        After::Http2 => {
            let Client {
                session,
                stream,
                input,
                ..
            } = client;
            // Streams are served elsewhere, and do not come here.
            if let Io::Connection(connection) = stream {
                let serve = move |work| tasks.serve_stream(work);
                tokio::task::spawn_local(serve_http2(session, connection, input, serve));
            }
            return;
        }
    }
    if let Some(input) = client.input.take() {
        client.session.worker.buffers.give_back(input);
    }
}

/// Protocol that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http1,
    Http2,
}

/// Returns the protocol that a client speaks: the one that TLS has agreed on (`alpn`), or else that
/// of the first bytes that it sends. `None` if more must be read to know. The rule says whether
/// HTTP/2 is allowed without ALPN.
#[inline]
pub(crate) fn detect_protocol(alpn: Option<&[u8]>, read: &[u8], http2: bool) -> Option<Speaks> {
    match alpn {
        Some(b"h2") => Some(Speaks::Http2),
        None if http2 && read.starts_with(PREFACE) => Some(Speaks::Http2),
        None if http2 && PREFACE.starts_with(read) => None,
        _ => Some(Speaks::Http1),
    }
}

/// Time that an idle client has for one more request while the process shuts down. A request that
/// is already on its way when its connection is closed would be lost.
const LAST_CALL: Duration = Duration::from_secs(1);

/// A client connection.
struct Client {
    session: Session,
    stream: Io,
    /// Bytes that were read and belong to the next request.
    input: Option<Buffer>,
    /// Hop of the client, with the rule that it was made for.
    hop: Option<(Rc<LocalRule>, Hop)>,
    /// The members that the client is bound to. The streams of a connection of HTTP/2 share them.
    bindings: Rc<RefCell<Bindings>>,
    /// Age of the connection: number of requests that were answered, and time since it was
    /// accepted.
    age: Age,
    /// True if the client has had its [`LAST_CALL`].
    last_call: bool,
    /// A connection to a member that knows the client by it.
    private: Option<Box<PrivateConnection>>,
}

/// An idle connection to a member that has authenticated it (NTLM, Negotiate): it is for one client, and ends with the
/// client's.
struct PrivateConnection {
    group: Arc<GroupHandle>,
    member: MemberId,
    upstream: Upstream,
}

/// Next state of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The connection goes on.
    NextRequest,
    /// The connection ends in order.
    Close,
    /// The connection ends in order, though the client may still be sending.
    Linger,
    /// The client has not got all of the response, and must see that.
    Cut,
    /// The connection goes on as HTTP/2.
    Http2,
}

/// Facts about a request that are needed when its head is gone.
struct Request {
    routed: RequestRoute,
    /// Answer of the balancer's own, in place of a member's response.
    given: Option<Box<BalancerAnswer>>,
    /// Login of the request, where only some users may send requests.
    login: Option<Box<Login>>,
    /// Binding that the request's cookie names, if cookies bind the clients of its group.
    stuck: Option<Box<StickyCookie>>,
    /// Facts about the request for a chooser, if its group has one.
    facts: Option<Box<HttpFacts>>,
    /// Permissions for the page that sends the request, if the page is one of another origin.
    cross_origin: Option<Box<CrossOrigin>>,
    /// Time at which the head was complete.
    at: Instant,
    /// Hash of the part of the request that the group's strategy looks at.
    key: Option<u64>,
    /// Content coding that the response to the request may get here.
    coding: Option<Coding>,
    /// True if the request asks for content that is newer than content with weak tags.
    has_weak_tags: bool,
    /// Cost of the request for strategies.
    cost: Cost,
    /// Urgency of the request when it waits for a member.
    class: Class,
    version: Version,
    /// True if the client wants its connection to go on.
    keep_alive: bool,
    asked: FramingFacts,
    /// True if the request's credentials are those of a connection.
    authenticates_connection: bool,
    /// True if the request may be sent twice (RFC 9110, section 9.2.2).
    idempotent: bool,
    /// True if the request may be sent twice at once, as it changes nothing (section 9.2.1).
    may_hedge: bool,
    /// The client waits for a 100 (Continue) before it sends the body.
    awaits_continue: bool,
    /// True if the request is a call of gRPC.
    grpc: bool,
    /// Limit that the request is above, as its client has sent too many.
    over: Option<Over>,
    /// The request on its way to a member.
    up: Flow,
    /// Details for the access log and for traces, with the name of the request.
    line: Option<Box<Line>>,
}

struct Line {
    at: SystemTime,
    method: Cow<'static, str>,
    target: Box<str>,
    details: Option<Box<Details>>,
}

/// Facts about a request that somebody wants to know, from before its head is written for a member.
#[derive(Default)]
struct RequestFacts {
    details: Option<Box<Details>>,
    /// Fields of traces in its head, if something is done with them.
    trace: Option<trace::Fields>,
}

impl RequestFacts {
    /// Returns the facts about `request` that somebody wants to know.
    #[inline]
    fn of_request(
        session: &Session,
        rule: &LocalRule,
        scheme: &'static str,
        request: &message::Request<'_>,
    ) -> Self {
        match rule.rule.http.request_id.is_some() || session.worker.records.get() {
            true => RequestFacts::new_details(session, &rule.rule.http, scheme, request),
            false => RequestFacts::default(),
        }
    }

    fn new_details(
        session: &Session,
        http: &HttpOptions,
        scheme: &'static str,
        request: &message::Request<'_>,
    ) -> Self {
        let worker = &session.worker;
        let mut noted = RequestFacts::default();
        if let Some(log) = &*worker.log.borrow()
            && !log.wanted_fields().request.is_empty()
        {
            noted.details_mut().fields =
                access::keep_values(&log.wanted_fields().request, request.fields);
        }
        if let Some(options) = &http.request_id {
            let given = request.only_value(&options.field);
            let given = given.filter(|_| http.trust_forwarded);
            noted.details_mut().id = Some(match given.and_then(request_id::parse_id) {
                Some(given) => given.into(),
                None => request_id::new(SystemTime::now(), &mut worker.rng.borrow_mut()),
            });
        }
        if let Some(tracer) = &*worker.tracer.borrow() {
            let rng = &mut worker.rng.borrow_mut();
            let (trace, fields) = tracer.begin_trace(request, http.trust_forwarded, rng);
            noted.trace = Some(fields).filter(|fields| *fields != trace::Fields::default());
            if let Some(mut trace) = trace {
                let kept = |text: &str| access::kept_value(text.as_bytes());
                let agent = request.values("user-agent").next();
                trace.authority = request.authority.map(kept);
                trace.scheme = scheme;
                trace.user_agent = agent.map(access::kept_value);
                noted.details_mut().trace = Some(trace);
            }
        }
        noted
    }

    fn details_mut(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// Returns the marks that the member's head gets.
    #[inline]
    fn head_marks<'a>(&'a self, http: &'a HttpOptions) -> Option<RequestMarks<'a>> {
        if self.details.is_none() && self.trace.is_none() {
            return None;
        }
        let details = self.details.as_ref();
        let id = details.and_then(|details| details.id.as_deref());
        let id = http.request_id.as_ref().zip(id);
        Some(RequestMarks {
            id: id.map(|(options, id)| (&*options.field, id)),
            trace: self.trace.unwrap_or_default(),
        })
    }

    /// The member's head is written.
    #[inline]
    fn note_written(&mut self, head: &[u8]) {
        if let Some(details) = &mut self.details
            && let Some(trace) = &mut details.trace
        {
            trace.place = parent_place(head);
        }
    }
}

impl Request {
    /// The request of a head, once it is known how it gets to a member.
    #[inline]
    fn from_head(
        session: &Session,
        routed: RequestRoute,
        given: Option<Box<BalancerAnswer>>,
        login: Option<Box<Login>>,
        noted: RequestFacts,
        head: &RequestHead<'_>,
    ) -> impl FnOnce(Flow) -> Request + use<> {
        let worker = &session.worker;
        let details = noted.details;
        let line = (details.is_some() || worker.log.borrow().is_some()).then(|| {
            Box::new(Line {
                at: SystemTime::now(),
                method: access::kept_method(head.request.method),
                target: access::cut_text(head.target, MAX_TARGET_BYTES).into(),
                details,
            })
        });
        let group = routed.target().group.current.load();
        let key = group
            .wants_key()
            .and_then(|key| head.request.hash_part(key));
        let facts = match (&routed.target().chooser, &given) {
            (Some(_), None) => {
                let facts = HttpFacts::of_request(&head.request, &group.settings().hash_key);
                Some(Box::new(facts))
            }
            _ => None,
        };
        let cors = routed.response_policy().cors();
        let cross_origin = cors.and_then(|policy| CrossOrigin::of_request(policy, &head.request));
        let told = routed.rule.http.cost_header.as_deref();
        let told = told.and_then(|field| head.request.parse_cost(field));
        let cost = told.unwrap_or(routed.rule.cost);
        let class = routed.queue_class(&head.request, session.peer.ip());
        let compression = routed.rule.compression.as_ref();
        let coding =
            compression.and_then(|options| options.choose(head.request.values("accept-encoding")));
        let has_weak_tags = coding.is_some() && has_weak_tags(&head.request);
        drop(group);
        let idempotent = matches!(
            head.request.method,
            "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE"
        );
        let may_hedge = matches!(head.request.method, "GET" | "HEAD" | "OPTIONS")
            && !head.framing_facts.upgrade
            && !head.expect_continue
            && !head.request.authenticates_connection;
        let authenticates_connection = head.request.authenticates_connection;
        let (version, keep_alive, asked) = (head.version, head.keep_alive, head.framing_facts);
        let awaits_continue = head.expect_continue;
        let at = worker.now();
        let client = session.peer.ip();
        let over = match routed.response_policy().is_in_maintenance(client) {
            // Who is told to try again later has not used the limit up by then.
            true => None,
            false => routed.quotas().and_then(|quotas| {
                quotas.take_request(client, &head.request, routed.route_index(), at)
            }),
        };
        let cookie = routed.target().cookie.as_deref();
        let cookie = cookie.filter(|_| given.is_none());
        let stuck = cookie.map(|cookie| {
            let group = &routed.target().group;
            let stuck = StickyCookie::new(cookie, group, &head.request, at);
            Box::new(stuck)
        });
        let copies = match given {
            Some(_) => None,
            None => routed.to_copy(session, head),
        };
        move |up| Request {
            up: match copies {
                Some(copies) => Flow::copy_while_read(up, copies),
                None => up,
            },
            routed,
            given,
            login,
            stuck,
            facts,
            cross_origin,
            at,
            key,
            coding,
            has_weak_tags,
            cost,
            class,
            version,
            keep_alive,
            asked,
            authenticates_connection,
            idempotent,
            may_hedge,
            awaits_continue,
            grpc: false,
            over,
            line,
        }
    }
}

impl Request {
    /// The trace that it is in.
    fn trace_mut(&mut self) -> Option<&mut Trace> {
        self.line.as_mut()?.details.as_mut()?.trace.as_mut()
    }

    /// The field with its name in the response, if there is to be one.
    fn answered_id<'a>(&'a self, routed: &'a RequestRoute) -> Option<(&'a str, &'a str)> {
        let options = routed.rule.http.request_id.as_ref()?;
        let id = self.line.as_ref()?.details.as_ref()?.id.as_deref()?;
        options.answer.then_some((&*options.field, id))
    }

    /// Permissions for pages of other origins that the response has, if the balancer gives them.
    fn cors_fields<'a>(&'a self, routed: &'a RequestRoute) -> Option<CorsFields<'a>> {
        let policy = routed.response_policy().cors()?;
        Some(CorsFields::new(policy, self.cross_origin.as_deref()))
    }

    /// True if a browser that asks with it is granted what it asks for.
    fn is_granted(&self) -> bool {
        let policy = self.routed.response_policy().cors();
        let request = self.cross_origin.as_ref();
        policy.is_some_and(|policy| request.is_some_and(|request| request.grants_all(policy)))
    }

    /// Notes in the trace what has come of a try at a member.
    fn note_attempt(
        &mut self,
        routed: &RequestRoute,
        bound: &BoundRequest,
        answered: Result<u16, &'static str>,
        hedge: bool,
    ) {
        let at = self.at;
        let Some(trace) = self.trace_mut() else {
            return;
        };
        let Some(tries) = &bound.tries else {
            return;
        };
        let group = routed.target().group.current.load();
        trace.attempts.push(Attempt {
            span: trace.current,
            member: Arc::clone(&tries.member),
            member_name: tries.member_name.clone(),
            group: Arc::clone(group.name()),
            strategy: group.strategy().name,
            began: bound.ticket.started().since(at),
            end_time: None,
            queued: tries.queued,
            connect_time: tries.connect_time,
            status: answered.ok(),
            failure: answered.err(),
            hedge,
        });
    }

    /// The last try is over, and has failed.
    fn end_attempt(&mut self, failure: &'static str, now: Instant) {
        let at = self.at;
        if let Some(attempt) = self.trace_mut().and_then(|trace| trace.attempts.last_mut()) {
            attempt.failure = Some(failure);
            attempt.end_time = Some(now.since(at));
        }
    }

    /// Gives what is tried next a span of its own, of which the member is told.
    fn next_span(&mut self, span: impl FnOnce() -> [u8; 8]) {
        let Some(trace) = self.trace_mut() else {
            return;
        };
        trace.current = span();
        let (place, text) = (trace.place, trace::span_text(trace.current));
        self.up.overwrite_head(place, &text);
    }

    /// Returns another request for which this request is the cause, in the name of nobody: `up`, of
    /// which the group's strategy sees `key`.
    fn once_more(&self, routed: RequestRoute, key: Option<u64>, up: Flow, at: Instant) -> Self {
        Request {
            routed,
            given: None,
            login: None,
            stuck: None,
            facts: None,
            cross_origin: None,
            at,
            key,
            coding: None,
            has_weak_tags: false,
            cost: self.cost,
            class: self.class,
            // One that gets no interim responses.
            version: Version::Http10,
            keep_alive: false,
            asked: self.asked,
            authenticates_connection: self.authenticates_connection,
            idempotent: self.idempotent,
            may_hedge: false,
            awaits_continue: false,
            grpc: false,
            over: None,
            up,
            line: None,
        }
    }
}

/// True if the tags of `If-None-Match` are weak ones.
fn has_weak_tags(request: &message::Request<'_>) -> bool {
    let mut tags = request.values("if-none-match").peekable();
    tags.peek().is_some() && tags.all(|tags| tags.trim_ascii_start().starts_with(b"W/"))
}

/// Reason why there is no request (yet).
enum NoRequest {
    Partial,
    /// Status and text of the answer, and whether it is one to a `HEAD`.
    Malformed(u16, String, bool),
    /// There is no memory. True if the answer is one to a `HEAD`.
    OutOfMemory(bool),
    /// Request of an authority that looks whether a name is ours: the answer, and whether it is one
    /// to a `HEAD`.
    Challenge(Arc<str>, bool),
}

impl Client {
    fn new(session: Session, stream: Io, bindings: Rc<RefCell<Bindings>>) -> Self {
        let age = Age::new(&session.worker);
        Client {
            session,
            stream,
            input: None,
            hop: None,
            bindings,
            age,
            last_call: false,
            private: None,
        }
    }

    /// True if the connection ends with the request that is served now, as the connection is too
    /// old for another request.
    fn is_last(&self) -> bool {
        let now = self.session.watch.coarse_now();
        let rule = self.session.service.rule();
        self.age.is_over(1, &rule.rule.limits, now)
    }

    /// Lets other tasks run first, as [`Worker::others_first`](crate::worker::Worker::others_first)
    /// does, but not for streams: streams that came together are all read before one has its turn,
    /// and what they send leaves together.
    async fn others_first(&self) {
        if !matches!(self.stream, Io::Stream(_)) {
            self.session.worker.others_first().await;
        }
    }

    /// Waits for a request and reads its head. Without one, the answer says how the
    /// connection ends; what had to be answered was.
    async fn next_request(&mut self) -> Result<Request, After> {
        let mut waiting_for_head = self.input.is_some();
        let mut scan = HeadScan::default();
        let rule = self.session.service.rule();
        self.session.watch.arm_deadline(if waiting_for_head {
            rule.rule.timeouts.header
        } else {
            let left = self
                .age
                .time_left(&rule.rule.limits, self.session.watch.coarse_now());
            let keep_alive = rule.rule.timeouts.keep_alive;
            left.map_or(keep_alive, |left| left.min(keep_alive))
        });
        drop(rule);
        loop {
            if self.input.is_some() {
                // As it is now: it may have changed while the client was idle.
                let rule = self.session.service.rule();
                let limit = rule.rule.http.max_header_bytes;
                let read = self.input.as_ref().map_or(&[][..], Buffer::bytes);
                let speaks = if self.age.has_had_requests() {
                    Some(Speaks::Http1)
                } else {
                    let agreed = self.stream.agreed_parameters();
                    let alpn = agreed.and_then(|agreed| agreed.protocol.as_deref());
                    detect_protocol(alpn, read, rule.rule.http.http2)
                };
                let parsed = match speaks {
                    Some(Speaks::Http2) => return Err(After::Http2),
                    Some(Speaks::Http1) if scan.is_due(read, limit) => self.parse(&rule),
                    _ => Err(NoRequest::Partial),
                };
                match parsed {
                    Ok(request) => return Ok(request),
                    Err(NoRequest::Partial) => {}
                    Err(NoRequest::Malformed(status, text, to_head)) => {
                        return Err(self.refuse_malformed(status, &text, to_head).await);
                    }
                    Err(NoRequest::OutOfMemory(to_head)) => {
                        return Err(self.refuse_for_memory(to_head).await);
                    }
                    Err(NoRequest::Challenge(answer, to_head)) => {
                        self.session.service.metrics.requests.add(1);
                        self.send_answer(&Answer::new_closing(200, &answer), to_head)
                            .await;
                        return Err(After::Linger);
                    }
                }
                if !waiting_for_head {
                    waiting_for_head = true;
                    self.session.watch.arm_deadline(rule.rule.timeouts.header);
                }
                // An empty line may be before it.
                let limit = limit.saturating_add(2).max(BUFFER_BYTES);
                let memory = &self.session.worker.memory;
                let room = match &mut self.input {
                    Some(input) => input.make_room(limit, memory),
                    None => Ok(true),
                };
                match room {
                    Ok(true) => {}
                    // The parser refuses heads of this size, so this cannot be.
                    Ok(false) => return Err(After::Cut),
                    Err(OutOfMemory) => return Err(self.refuse_for_memory(false).await),
                }
            }
            match self.fill_input().await {
                Ok(true) => {}
                Ok(false) if waiting_for_head => {
                    self.session.count_end(End::Client);
                    return Err(After::Close);
                }
                Ok(false) => return Err(After::Close),
                Err(Stop::Expired) if waiting_for_head => {
                    let text = "The request head did not arrive in time.";
                    let read = self.input.as_ref().map_or(&[][..], Buffer::bytes);
                    let to_head = asks_for_head(read);
                    return Err(self.refuse_malformed(408, text, to_head).await);
                }
                Err(Stop::Expired) => return Err(After::Close),
                Err(Stop::Cut) => {
                    self.session.count_end(End::Terminated);
                    return Err(After::Cut);
                }
            }
        }
    }

    /// Reads more; false at the end. No buffer is held while nothing comes, and a small one
    /// while nothing more comes.
    async fn fill_input(&mut self) -> Result<bool, Stop> {
        let Client {
            session,
            stream,
            input,
            age,
            last_call,
            ..
        } = self;
        let worker = &session.worker;
        session
            .watch
            .poll_until_stop(|cx| {
                let mut buffer = input.take().unwrap_or_else(|| worker.buffers.take());
                let filled = buffer.poll_fill(cx, stream);
                if buffer.is_empty() {
                    worker.buffers.give_back(buffer);
                } else if filled.is_pending() {
                    *input = Some(worker.buffers.shrink_buffer(buffer));
                } else {
                    *input = Some(buffer);
                }
                if worker.closing.get()
                    && age.has_had_requests()
                    && !*last_call
                    && input.is_none()
                    && filled.is_pending()
                {
                    *last_call = true;
                    // Otherwise as long as it may be idle anyway, or until all are cut.
                    if !worker.rests.get() {
                        session.watch.arm_deadline(LAST_CALL);
                    }
                }
                filled.map(|result| result.is_ok_and(|n| n > 0))
            })
            .await
    }

    /// Parses the head in the input, and writes the one for the member.
    fn parse(&mut self, rule: &Rc<LocalRule>) -> Result<Request, NoRequest> {
        let http = &rule.rule.http;
        let known = matches!(&self.hop, Some((known, _)) if Rc::ptr_eq(known, rule));
        if !known {
            let local = self.session.local.name(self.stream.local_addr());
            let hop = Hop::new(http, self.session.peer.ip(), self.stream.scheme(), local);
            let agreed = self.stream.agreed_parameters();
            let hop = hop.with_identity(agreed.and_then(|agreed| agreed.identity.as_deref()));
            self.hop = Some((Rc::clone(rule), hop));
        }
        let (Some((_, hop)), Some(input)) = (&self.hop, &mut self.input) else {
            return Err(NoRequest::Partial);
        };
        let limits = Limits {
            max_bytes: http.max_header_bytes,
            max_fields: http.max_header_count,
        };
        let worker = &self.session.worker;
        let mut fields = Fields::new();
        let head = match RequestHead::parse(input.bytes(), limits, &mut fields) {
            Ok(ParseOutcome::Head(head)) => head,
            Ok(ParseOutcome::Partial) => return Err(NoRequest::Partial),
            Err(error) => return Err(malformed_request(error, input.bytes())),
        };
        if let Some(answer) = challenge::find_answer(head.target) {
            return Err(NoRequest::Challenge(answer, head.framing_facts.head));
        }
        let bindings = self.bindings.borrow();
        let (routed, given) =
            RequestRoute::find_route(&self.session, rule, &bindings, &head.request, hop);
        drop(bindings);
        let mut out = worker.buffers.take_head();
        let bounds = routed.body_bounds(head.request.body);
        let login = routed.new_login(given.as_deref(), &head.request, hop, &self.session);
        let mut noted =
            RequestFacts::of_request(&self.session, rule, self.stream.scheme(), &head.request);
        if given.is_none() {
            let changes = Changes {
                marks: noted.head_marks(http),
                ..routed.head_changes(&head.request, login.as_deref())
            };
            write_changed(&head.request, hop, changes, &mut out);
            noted.note_written(&out);
        }
        let (len, body, asked) = (head.len, head.request.body, head.framing_facts);
        let request = Request::from_head(&self.session, routed, given, login, noted, &head);
        input.consume(len);
        let metrics = &self.session.service.metrics;
        metrics.bytes_from_clients.add(len as u64);
        let mut input = self.input.take();
        if input.as_ref().is_some_and(Buffer::is_empty)
            && let Some(empty) = input.take()
        {
            worker.buffers.give_back(empty);
        }
        let up = match Flow::new(out, body, false, input, bounds, &worker.memory) {
            Ok(up) => up,
            Err(TransferError::Exhausted(_)) => return Err(NoRequest::OutOfMemory(asked.head)),
            Err(TransferError::Chunks(ChunkError::TooLarge)) => {
                return Err(NoRequest::Malformed(
                    413,
                    route::TOO_LARGE.into(),
                    asked.head,
                ));
            }
            Err(_) => {
                return Err(NoRequest::Malformed(
                    400,
                    "invalid chunk in the request body".into(),
                    asked.head,
                ));
            }
        };
        metrics.requests.add(1);
        if up.awaits_small_sender() {
            self.stream.acknowledge_now();
        }
        Ok(request(up))
    }

    /// Answers a request whose head needs more memory than there is.
    async fn refuse_for_memory(&mut self, to_head: bool) -> After {
        Shortage::Memory.report_failure("read the head of a request");
        let text = "The balancer is out of memory. Try again later.";
        self.refuse_malformed(503, text, to_head).await
    }

    /// Answers a request that cannot be understood, after which nothing can be.
    async fn refuse_malformed(&mut self, status: u16, text: &str, to_head: bool) -> After {
        let metrics = &self.session.service.metrics;
        let end = match status {
            408 => {
                metrics.client_timeouts.add(1);
                End::ClientTimeout
            }
            503 => {
                metrics.refused_exhausted.add(1);
                End::Exhausted
            }
            _ => {
                metrics.refused_malformed.add(1);
                End::Client
            }
        };
        let rule = self.session.service.rule();
        // Of the rule, as nothing is known of a route.
        let policy = &rule.default_target.policy;
        let answer = Answer {
            retry_after: (status == 503).then_some(1),
            ..Answer::new_closing(status, text)
        };
        let sent = self.send_answer(&answer.with_policy(policy), to_head).await;
        let mut summary = Summary::new(end);
        summary.status = sent.then_some(status);
        self.conclude_request(None, summary);
        After::Linger
    }

    /// Sends an answer of the proxy's own; false if the client does not take it.
    async fn send_answer(&mut self, answer: &Answer<'_>, to_head: bool) -> bool {
        let status = answer.status;
        let out = {
            let date = self.session.worker.date.current_text();
            let answer = Answer {
                date: date.as_ref().and_then(DateText::text),
                ..*answer
            };
            if let Io::Stream(stream) = &mut self.stream {
                let sent = stream.send_answer(&answer, to_head);
                let metrics = &self.session.service.metrics;
                metrics.bytes_to_clients.add(*sent.as_ref().unwrap_or(&0));
                if sent.is_ok() {
                    metrics.count_status(status);
                }
                return sent.is_ok();
            }
            let mut out = self.session.worker.buffers.take_head();
            answer.write(to_head, &mut out);
            out
        };
        let limit = self.session.service.rule().rule.timeouts.body;
        let sent = self.send_head(out, limit).await == Ok(true);
        if sent {
            self.session.service.metrics.count_status(status);
        }
        sent
    }

    /// Sends a head of its own; false if the client does not take it.
    async fn send_head(&mut self, head: Vec<u8>, limit: Duration) -> Result<bool, Stop> {
        let Client {
            session, stream, ..
        } = self;
        session.watch.arm_deadline(limit);
        let mut written = 0;
        let sent = session.watch.poll_until_stop(|cx| {
            while let Some(rest @ [_, ..]) = head.get(written..) {
                match ready!(Pin::new(&mut *stream).poll_write(cx, rest)) {
                    Ok(n) if n > 0 => written += n,
                    _ => return Poll::Ready(false),
                }
            }
            Pin::new(&mut *stream)
                .poll_flush(cx)
                .map(|flushed| flushed.is_ok())
        });
        let sent = sent.await;
        let metrics = &session.service.metrics;
        metrics.bytes_to_clients.add(written as u64);
        session.worker.buffers.give_head(head);
        sent
    }

    /// Ends the connection while the client may still be sending: closing it at once
    /// would reset it, and the client could lose the response (RFC 9112, section 9.6).
    async fn linger_until_closed(&mut self) {
        if self.stream.shutdown().await.is_ok() {
            self.drain_input().await;
        }
    }

    /// Takes what the client still sends, for a while.
    async fn drain_input(&mut self) {
        if let Some(input) = self.input.take() {
            self.session.worker.buffers.give_back(input);
        }
        self.session.watch.arm_deadline(LINGER);
        while let Ok(true) = self.fill_input().await {
            if let Some(input) = self.input.take() {
                self.session.worker.buffers.give_back(input);
            }
        }
    }

    /// Counts how a request ended, and logs it. `None` stands for one that was not
    /// understood, which is counted where that is found.
    fn conclude_request(&self, mut request: Option<&mut Request>, summary: Summary) {
        if let Some(request) = &request {
            self.session.count_end(summary.end);
            if let Io::Stream(stream) = &self.stream
                && let Some(status) = stream.call_status()
            {
                self.session.service.metrics.calls.count(status);
            }
            // An answer of the proxy's own has been sent just now.
            if summary.status.is_some() {
                let answered = summary
                    .answered
                    .unwrap_or_else(|| self.session.worker.now());
                let waits = &self.session.service.metrics.waits;
                waits.add_wait(answered.since(request.at));
            }
        }
        let line = request.as_ref().and_then(|request| request.line.as_ref());
        let details = line.and_then(|line| line.details.as_ref());
        let traced = details.is_some_and(|details| details.trace.is_some());
        if !self.session.wants_record(traced) {
            return;
        }
        let line = request.as_mut().and_then(|request| request.line.take());
        let request = request.as_deref();
        let routed = request.map(|request| &request.routed);
        let group = routed.map(|routed| routed.target().group.current.load());
        let (route, group) = match (routed, &group) {
            (Some(routed), Some(group)) => routed.log_names(group),
            _ => (None, None),
        };
        let over = routed.zip(request.and_then(|request| request.over));
        let over = over
            .and_then(|(routed, over)| routed.quotas()?.limit_label(routed.route_index(), over));
        let login = request.and_then(|request| request.login.as_ref());
        let user = login.and_then(|login| login.passed_user());
        let version = request.map(|request| request.version);
        let (protocol, head_bytes_sent) = match (&self.stream, version) {
            (Io::Stream(stream), _) => (Some("HTTP/2.0"), stream.head_bytes()),
            (_, version) => {
                let protocol = version.map(|version| match version {
                    Version::Http10 => "HTTP/1.0",
                    Version::Http11 => "HTTP/1.1",
                    Version::Http2 => "HTTP/2.0",
                });
                let tries = summary.tries.as_ref();
                (protocol, tries.map_or(0, |tries| tries.head_bytes))
            }
        };
        let grpc_status = match &self.stream {
            Io::Stream(stream) => stream.call_status().flatten(),
            _ => None,
        };
        let (at, asked, details) = match line.map(|line| *line) {
            Some(line) => {
                let target = Cow::Owned(line.target.into());
                (line.at, Some((line.method, target)), line.details)
            }
            None => (SystemTime::now(), None, None),
        };
        let now = self.session.worker.now();
        let record = Record {
            at,
            client: self.session.peer,
            rule: Cow::Borrowed(&self.session.service.name),
            user: user.map(|user| Cow::Borrowed(&**user)),
            route: route.map(Cow::Borrowed),
            group: group.map(Cow::Borrowed),
            attempts: summary.tries,
            tls: self.stream.agreed_parameters().cloned(),
            server_name: None,
            request: asked,
            protocol,
            details,
            status: summary.status,
            grpc_status,
            bytes_received: summary.received,
            bytes_sent: summary.sent,
            head_bytes_sent,
            response_time: summary.response_time,
            total_time: request.map_or(Duration::ZERO, |request| now.since(request.at)),
            cost: request.map(|request| request.cost).unwrap_or_default(),
            retries: summary.retries,
            end: summary.end,
            limit: summary.limit,
            request_limit: over.map(|label| Cow::Borrowed(&**label)),
            hedged: summary.hedged,
        };
        self.session.log_record(traced, record);
    }
}

/// Course of a request: how it ended, and what it took.
struct Summary {
    end: End,
    /// The status that the client got.
    status: Option<u16>,
    tries: Option<Box<MemberAttempts>>,
    received: u64,
    sent: u64,
    response_time: Option<Duration>,
    /// Time at which the head of the member's response had arrived.
    answered: Option<Instant>,
    retries: u32,
    limit: Option<Limit>,
    hedged: Option<Hedged>,
}

impl Summary {
    fn new(end: End) -> Self {
        Summary {
            end,
            status: None,
            tries: None,
            received: 0,
            sent: 0,
            response_time: None,
            answered: None,
            retries: 0,
            limit: None,
            hedged: None,
        }
    }

    /// Has the log say when the first byte of the body came, if that was after the head.
    fn note_first_byte(&mut self, ticket: &Ticket) {
        if let Some(tries) = &mut self.tries {
            tries.first_byte = ticket.first_byte();
        }
    }
}

fn malformed_request(error: HeadError, read: &[u8]) -> NoRequest {
    let to_head = asks_for_head(read);
    NoRequest::Malformed(error.request_status(), error.to_string(), to_head)
}

/// True if a head that is not understood, or not all there, is that of a `HEAD`: no answer to a
/// `HEAD` has content (RFC 9110, section 9.3.2), so a client would take content for the answer to
/// its next request.
fn asks_for_head(read: &[u8]) -> bool {
    let line = read.strip_prefix(b"\r\n").unwrap_or(read);
    line.starts_with(b"HEAD ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_http<F: Future>(_: fn(Session, Io, Rc<Tasks>) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_tcp<F: Future>(_: fn(Session, Io) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_client_speaks_what_it_agreed_on_or_begins_with() {
        use Speaks::{Http1, Http2};
        let get = b"GET / HTTP/1.1\r\n";
        let post = b"POST / HTTP/1.1\r\n";
        for (alpn, read, http2, speaks) in [
            (None, &get[..], true, Some(Http1)),
            (None, post, true, Some(Http1)),
            (None, b"PRI /", true, Some(Http1)),
            (None, b"P", true, None),
            (None, PREFACE.get(..23).unwrap(), true, None),
            (None, PREFACE, true, Some(Http2)),
            (None, PREFACE, false, Some(Http1)),
            (None, b"P", false, Some(Http1)),
            (Some(&b"h2"[..]), b"", true, Some(Http2)),
            (Some(b"http/1.1"), PREFACE, true, Some(Http1)),
        ] {
            assert_eq!(
                detect_protocol(alpn, read, http2),
                speaks,
                "{alpn:?} {read:?}"
            );
        }
    }

    /// Ten thousand idle clients are ten thousand of these.
    #[test]
    fn a_connection_is_small() {
        let http = size_of_http(serve_http);
        // With the right to its file and to the memory of its buffers, what bounds interim
        // responses of a member, a second try where an idle connection was closed, the route and
        // limits of the client (twice 8 bytes each), its age and the limits of its slowness, what a cookie says, and where copies of
        // messages and the user are (three times 8 bytes), whether a second member was asked,
        // encoders (twice 8 bytes, and which coding), and how a request is held for a better member (three
        // times 8 bytes), the client's own connection to a member (8 bytes), and for each of three messages which of its
        // trailers pass and load reports among them (24 bytes), and how far a stream is (8 bytes in each ticket, and who follows
        // it). A transport more, as there is in tests, costs a word
        // for each connection.
        assert!(http <= 2760 + 32 + 64, "{http}");
        let tcp = size_of_tcp(crate::tcp::serve_tcp);
        assert!(tcp <= 1408 + 16, "{tcp}");
    }
}
