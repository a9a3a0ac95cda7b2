//! A client's connection of HTTP/2: its streams, its end, and what is too much.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use evenkeel_limits::Shortage;
use evenkeel_tls::handshake::Agreed;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};

use super::held::{Held, Part};
use super::meter::{Flood, Meter, PREFACE, Refusals};
use super::stream::Stream;
use super::tasks::{Tasks, Work};
use super::wire::{Metered, Wire};
use crate::age::Age;
use crate::buffer::Buffer;
use crate::http1::Hop;
use crate::io::Io;
use crate::listen::Session;
use crate::memory::Charge;
use crate::service::{Bindings, LocalRule, State};
use crate::watch::Stop;

/// What a client may send in a stream before some of it is passed on, in bytes.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all streams of a connection of which several have bodies, if there is memory for it:
/// what every connection may send is [`STREAM_WINDOW`].
const CONNECTION_WINDOW: u32 = 512 * 1024;

/// What waits in a stream for a client to take it, in bytes.
const SEND_BUFFER: usize = 32 * 1024;

/// Streams that a client may reset before they were looked at.
const UNSEEN_RESETS: usize = 20;

/// Streams with errors of the client that a connection may have, if they are not fewer than those without.
const ERRORS: u32 = 100;

/// Streams that a client may give up before they are answered, if they are not fewer than those
/// that it does not.
const CANCELLED: u32 = 100;

/// How long the last frames have to get through.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the streams of a connection share.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) session: Session,
    pub(super) scheme: &'static str,
    /// What was agreed on with a client that speaks TLS.
    pub(super) agreed: Option<Arc<Agreed>>,
    /// What is said of the client, made for a rule.
    hop: RefCell<Option<(Rc<LocalRule>, Rc<Hop>)>>,
    local: Box<str>,
    /// The member that the client is bound to, if the group binds for longer than a request.
    pub(crate) bindings: Rc<RefCell<Bindings>>,
    metered: Rc<RefCell<Metered>>,
    streams: Cell<u32>,
    age: Cell<Age>,
    /// Streams that have ended: in order, and not.
    finished: Cell<u32>,
    cancelled: Cell<u32>,
    /// What is on its way to the client.
    held: Rc<Held>,
    /// The connection's task, which is told when the last stream ends.
    task: RefCell<Option<Waker>>,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// No new streams; those that there are may end.
    Ending,
    /// It is over when the last frames are sent.
    Over,
}

/// Serves a client whose connection begins with `read`.
pub(crate) async fn serve(session: Session, io: Io, read: Option<Buffer>) {
    session.service.metrics.http2_connections.add(1);
    let worker = Rc::clone(&session.worker);
    let metered = Rc::new(RefCell::new(Metered {
        meter: Meter::new(PREFACE.len(), worker.watchers.coarse_now()),
        flood: None,
        sent: 0,
        refused: 0,
    }));
    let local = session.local.name(&io);
    let connection = Rc::new(Connection {
        scheme: io.scheme(),
        agreed: io.agreed().cloned(),
        hop: RefCell::default(),
        local: local.into(),
        bindings: Rc::default(),
        metered: Rc::clone(&metered),
        streams: Cell::new(0),
        age: Cell::new(Age::new(&worker)),
        finished: Cell::new(0),
        cancelled: Cell::new(0),
        held: Held::new(&worker.memory),
        task: RefCell::default(),
        session,
    });
    let rule = connection.session.service.rule();
    let wire = Wire {
        io,
        read,
        metered,
        worker,
        refusals: Some((Refusals::default(), Rc::clone(&connection.session.service))),
        _file: None,
    };
    let watch = &connection.session.watch;
    watch.arm(rule.rule.timeouts.header);
    let handshake = builder(&rule).handshake(wire);
    tokio::pin!(handshake);
    drop(rule);
    let Ok(Ok(h2)) = watch.until(|cx| handshake.as_mut().poll(cx)).await else {
        return connection.session.count_end(crate::access::End::Client);
    };
    connection.run(h2).await;
}

fn builder(rule: &LocalRule) -> Builder {
    let http = &rule.rule.http;
    // As HTTP/2 counts a head, each field has 32 bytes more. What is above is answered with 431.
    let head = http.max_header_bytes + 32 * http.max_header_count;
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_streams(http.http2_streams)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(UNSEEN_RESETS)
        // They are counted here, as others may share the connection with who sends such.
        .max_local_error_reset_streams(None)
        .enable_connect_protocol();
    builder
}

type H2 = h2::server::Connection<Wire, Part>;

impl Connection {
    /// Takes streams in until the connection ends.
    async fn run(self: Rc<Self>, mut h2: H2) {
        let watch = &self.session.watch;
        let mut stage = Stage::Open;
        let mut is_idle = false;
        let mut sent = 0;
        let mut window = None;
        loop {
            let next = watch.until(|cx| {
                self.remember(cx);
                let idle = self.streams.get() == 0;
                if stage != Stage::Over && idle != std::mem::replace(&mut is_idle, idle) {
                    self.arm(idle, stage);
                }
                if stage == Stage::Open && (self.is_draining() || self.is_too_old()) {
                    stage = Stage::Ending;
                    h2.graceful_shutdown();
                }
                let next = h2.poll_accept(cx);
                self.count_errors();
                let flood = self.metered.borrow().flood;
                match flood {
                    Some(flood) if stage != Stage::Over => {
                        stage = Stage::Over;
                        self.count(flood);
                        watch.arm(FAREWELL);
                        h2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                        h2.poll_accept(cx)
                    }
                    _ => next,
                }
            });
            match next.await {
                Ok(Some(Ok((request, respond)))) => {
                    let has_body = !request.body().is_end_stream();
                    self.open(request, respond);
                    if has_body && self.streams.get() > 1 && window.is_none() {
                        window = self.take_window();
                        if window.is_some() {
                            h2.set_target_window_size(CONNECTION_WINDOW);
                        }
                    }
                }
                Ok(Some(Err(error))) => return self.failed(&error, stage),
                Ok(None) => return,
                Err(Stop::Cut) => {
                    self.session.count_end(crate::access::End::Terminated);
                    return;
                }
                Err(Stop::Expired) if stage == Stage::Over => return,
                Err(Stop::Expired) if stage == Stage::Open && self.is_too_old() => {
                    stage = Stage::Ending;
                    h2.graceful_shutdown();
                    self.arm(is_idle, stage);
                }
                Err(Stop::Expired) => {
                    // Whoever takes what was sent is not idle.
                    let now = self.metered.borrow().sent;
                    if std::mem::replace(&mut sent, now) == now {
                        stage = Stage::Over;
                        h2.abrupt_shutdown(Reason::NO_ERROR);
                        watch.arm(FAREWELL);
                    } else {
                        self.arm(true, stage);
                    }
                }
            }
        }
    }

    /// Notes that there are too many malformed requests.
    fn count_errors(&self) {
        let mut metered = self.metered.borrow_mut();
        let most = ERRORS.max(self.finished.get());
        if metered.refused > u64::from(most) {
            metered.flood.get_or_insert(Flood::Headers);
        }
    }

    /// Sets the time limit: for a client that is idle, and for the age of the connection.
    fn arm(&self, idle: bool, stage: Stage) {
        let (watch, rule) = (&self.session.watch, self.session.service.rule());
        let keep_alive = idle.then_some(rule.rule.timeouts.keep_alive);
        let left = self.age.get().left(&rule.rule.limits, watch.coarse_now());
        let left = left.filter(|_| stage == Stage::Open);
        match keep_alive.into_iter().chain(left).min() {
            Some(limit) => watch.arm(limit),
            None => watch.disarm(),
        }
    }

    /// Whether it has had as many requests, or for as long, as it may.
    fn is_too_old(&self) -> bool {
        let rule = self.session.service.rule();
        let now = self.session.watch.coarse_now();
        self.age.get().is_over(0, &rule.rule.limits, now)
    }

    /// Memory for what the client may send beyond what every client may.
    fn take_window(&self) -> Option<Charge> {
        let bytes = (CONNECTION_WINDOW - STREAM_WINDOW) as usize;
        let charge = self.session.worker.memory.take(bytes).ok();
        if charge.is_none() {
            Shortage::Memory.met("open the window of a client of HTTP/2");
        }
        charge
    }

    pub(super) fn held(&self) -> Rc<Held> {
        Rc::clone(&self.held)
    }

    /// Whether no new streams are to be taken.
    fn is_draining(&self) -> bool {
        self.session.worker.closing.get() || self.session.service.state.get() == State::Draining
    }

    fn remember(&self, cx: &Context<'_>) {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
    }

    /// The end of a connection by an error of the protocol.
    fn failed(&self, error: &h2::Error, stage: Stage) {
        tracing::debug!(rule = %self.session.service.name, client = %self.session.peer, %error,
            "an HTTP/2 connection has failed");
        if stage == Stage::Over || error.is_io() && self.streams.get() == 0 {
            return;
        }
        if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) && error.is_library() {
            let flood = self.metered.borrow().meter.suspect();
            return self.count(flood);
        }
        self.session.count_end(crate::access::End::Client);
    }

    fn count(&self, flood: Flood) {
        let metrics = &self.session.service.metrics;
        let counter = match flood {
            Flood::Resets => &metrics.http2_flood_resets,
            Flood::Control => &metrics.http2_flood_control,
            Flood::Headers => &metrics.http2_flood_headers,
            Flood::Data => &metrics.http2_flood_data,
        };
        counter.add(1);
        tracing::debug!(rule = %self.session.service.name, client = %self.session.peer, ?flood,
            "closes an HTTP/2 connection that is flooded");
    }

    /// Serves a stream.
    fn open(self: &Rc<Self>, request: ::http::Request<RecvStream>, respond: SendResponse<Part>) {
        self.streams.set(self.streams.get() + 1);
        let mut age = self.age.get();
        age.add_request();
        self.age.set(age);
        let (parts, body) = request.into_parts();
        let protocol = parts.extensions.get::<h2::ext::Protocol>();
        let connects = protocol.is_some_and(|protocol| protocol.as_str() == "websocket");
        let stream = Stream::new(Rc::clone(self), respond, body, connects);
        let work = Work {
            connection: Rc::clone(self),
            stream: Box::new(stream),
            parts,
            connects,
        };
        Tasks::serve(&self.session.worker, work);
    }

    /// What is said of the client to members of the rule.
    pub(crate) fn hop(&self, rule: &Rc<LocalRule>) -> Rc<Hop> {
        let mut known = self.hop.borrow_mut();
        match &*known {
            Some((of, hop)) if Rc::ptr_eq(of, rule) => Rc::clone(hop),
            _ => {
                let local = self.local.to_string();
                let client = self.session.peer.ip();
                let hop = Hop::new(&rule.rule.http, client, self.scheme, local);
                let agreed = self.agreed.as_ref();
                let hop = hop.with_identity(agreed.and_then(|agreed| agreed.identity.as_deref()));
                let hop = Rc::new(hop.over("2.0", &rule.rule.http));
                *known = Some((Rc::clone(rule), Rc::clone(&hop)));
                hop
            }
        }
    }

    /// A stream has ended; `cancelled` by the client, before there was an answer.
    pub(super) fn stream_ended(&self, cancelled: bool) {
        let counter = if cancelled {
            &self.cancelled
        } else {
            &self.finished
        };
        counter.set(counter.get().saturating_add(1));
        if self.cancelled.get() > CANCELLED.max(self.finished.get()) {
            let flood = &mut self.metered.borrow_mut().flood;
            flood.get_or_insert(Flood::Resets);
        }
        self.streams.set(self.streams.get().saturating_sub(1));
        if (self.streams.get() == 0 || self.cancelled.get() > CANCELLED)
            && let Some(task) = self.task.take()
        {
            task.wake();
        }
    }
}
