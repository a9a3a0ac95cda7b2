//! The task of a client's connection of HTTP/2: its streams, its end, and what is too much.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use evenkeel_http2::{Config, Failure, Flood, Head, Key, Reason, Role};
use evenkeel_limits::Shortage;

use super::connection::Connection;
use super::engine::{Engine, Step};
use super::stream::Stream;
use super::wire::Wire;
use crate::access::End;
use crate::age::Age;
use crate::buffer::Buffer;
use crate::connection::PeerConnection;
use crate::memory::Charge;
use crate::service::{LocalRule, State};
use crate::session::Session;
use crate::watch::Stop;

/// A stream to be served.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) connection: Rc<Connection>,
    pub(crate) stream: Box<Stream>,
    pub(crate) head: Head,
    /// True if the request asks for WebSocket.
    pub(crate) connects: bool,
}

/// Number of bytes that a client may send in a stream before some of them are passed on.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Number of bytes that a client may send likewise in all streams of a connection of which several
/// have bodies, if there is memory for them: every connection may send [`STREAM_WINDOW`].
const CONNECTION_WINDOW: u32 = 512 * 1024;

/// Time that the last frames have to get through.
const FAREWELL: Duration = Duration::from_secs(2);

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The client has not said hello.
    New,
    Open,
    /// The connection takes no new streams; those that there are may end.
    Ending,
    /// The connection is over when the last frames are sent.
    Over,
}

/// Serves a client whose connection begins with `read`.
///
/// `serve` has each of its streams served.
pub(crate) async fn serve_http2(
    session: Session,
    client: PeerConnection,
    read: Option<Buffer>,
    serve: impl Fn(Work),
) {
    session.service.metrics.http2_connections.add(1);
    let worker = Rc::clone(&session.worker);
    let local = session.local.name(|| client.local_addr());
    let rule = session.service.rule();
    let connection = Rc::new(Connection {
        scheme: client.uri_scheme(),
        agreed: client.agreed_parameters().cloned(),
        hop: RefCell::default(),
        local,
        bindings: Rc::default(),
        engine: Engine::new(engine_config(&rule)),
        streams: Cell::new(0),
        age: Cell::new(Age::new(&worker)),
        errors: Cell::new(0),
        session,
    });
    let wire = Wire {
        connection: client,
        read,
        worker,
        _file: None,
    };
    connection
        .session
        .watch
        .arm_deadline(rule.rule.timeouts.header);
    drop(rule);
    connection.run(wire, serve).await;
}

fn engine_config(rule: &LocalRule) -> Config {
    let http = &rule.rule.http;
    Config {
        role: Role::Server,
        max_streams: http.http2_streams,
        // As HTTP/2 counts a head, each field has 32 bytes more. What is above is answered with 431.
        max_head_bytes: http.max_header_bytes + 32 * http.max_header_count,
        stream_window: STREAM_WINDOW,
        connection_window: STREAM_WINDOW,
    }
}

impl Connection {
    /// Takes streams in until the connection ends.
    async fn run(self: Rc<Self>, mut wire: Wire, serve: impl Fn(Work)) {
        let (watch, engine) = (&self.session.watch, &self.engine);
        let mut stage = Stage::New;
        let mut is_idle = false;
        let mut sent = 0;
        let mut window = None;
        loop {
            let next = watch.poll_until_stop(|cx| {
                if stage == Stage::New
                    && engine.read_connection(evenkeel_http2::Connection::has_begun)
                {
                    stage = Stage::Open;
                }
                let idle = self.streams.get() == 0;
                if matches!(stage, Stage::Open | Stage::Ending)
                    && idle != std::mem::replace(&mut is_idle, idle)
                {
                    self.arm_deadline(idle, stage);
                    engine.release_memory();
                }
                if stage == Stage::Open && (self.is_draining() || self.is_too_old()) {
                    stage = Stage::Ending;
                    engine.with_connection(evenkeel_http2::Connection::shut_down);
                }
                let step = engine.poll_step(cx, &mut wire, watch.coarse_now());
                self.count_errors();
                step
            });
            match next.await {
                Ok(Step::Request(key)) => {
                    let head = engine.with_connection(|connection| connection.take_head(key));
                    let Some(head) = head else {
                        continue;
                    };
                    let has_body = !head.has_ended();
                    serve(self.start_stream(key, head));
                    if has_body && self.streams.get() > 1 && window.is_none() {
                        window = self.take_window();
                        if window.is_some() {
                            engine.with_connection(|connection| {
                                connection.set_window(CONNECTION_WINDOW)
                            });
                        }
                    }
                }
                Ok(Step::Settled | Step::Pong) => {}
                Ok(Step::Failed(failure)) => {
                    self.note_failure(failure);
                    stage = Stage::Over;
                    watch.arm_deadline(FAREWELL);
                }
                Ok(Step::Over) => return,
                Ok(Step::Gone) => {
                    engine.disconnect_streams();
                    let is_idle = self.streams.get() == 0;
                    if stage != Stage::Over && (!is_idle || stage == Stage::New) {
                        self.session.count_end(End::Client);
                    }
                    return;
                }
                Err(Stop::Cut) => {
                    engine.disconnect_streams();
                    self.session.count_end(End::Terminated);
                    return;
                }
                Err(Stop::Expired) if stage == Stage::New => {
                    return self.session.count_end(End::Client);
                }
                Err(Stop::Expired) if stage == Stage::Over => return engine.disconnect_streams(),
                Err(Stop::Expired) if stage == Stage::Open && self.is_too_old() => {
                    stage = Stage::Ending;
                    engine.with_connection(evenkeel_http2::Connection::shut_down);
                    self.arm_deadline(is_idle, stage);
                }
                Err(Stop::Expired) => {
                    // Whoever takes what was sent is not idle.
                    let now = engine.sent_bytes();
                    if std::mem::replace(&mut sent, now) == now {
                        stage = Stage::Over;
                        engine.with_connection(|connection| connection.abort(Reason::NO_ERROR));
                        watch.arm_deadline(FAREWELL);
                    } else {
                        self.arm_deadline(true, stage);
                    }
                }
            }
        }
    }

    /// Counts errors of the client.
    fn count_errors(&self) {
        let errors = self
            .engine
            .read_connection(evenkeel_http2::Connection::error_count);
        let before = self.errors.replace(errors);
        let refused = &self.session.service.metrics.refused_malformed;
        refused.add(u64::from(errors.saturating_sub(before)));
    }

    /// Sets the time limit: for a client that is idle, and for the age of the connection.
    fn arm_deadline(&self, idle: bool, stage: Stage) {
        let (watch, rule) = (&self.session.watch, self.session.service.rule());
        let keep_alive = idle.then_some(rule.rule.timeouts.keep_alive);
        let left = self
            .age
            .get()
            .time_left(&rule.rule.limits, watch.coarse_now());
        let left = left.filter(|_| stage == Stage::Open);
        match keep_alive.into_iter().chain(left).min() {
            Some(limit) => watch.arm_deadline(limit),
            None => watch.disarm_deadline(),
        }
    }

    /// True if the connection has had as many requests as it may, or has lasted for as long.
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
            Shortage::Memory.report_failure("enlarge the window of an HTTP/2 client");
        }
        charge
    }

    /// True if no new streams are to be taken.
    fn is_draining(&self) -> bool {
        self.session.worker.closing.get() || self.session.service.state.get() == State::Draining
    }

    /// The end of a connection by an error of the protocol.
    fn note_failure(&self, failure: Failure) {
        tracing::debug!(rule = %self.session.service.name, client = %self.session.peer,
            reason = %failure.reason, "an HTTP/2 connection has failed");
        if let Some(flood) = failure.flood {
            return self.count(flood);
        }
        if failure.reason == Reason::PROTOCOL_ERROR {
            self.session.service.metrics.refused_malformed.add(1);
        }
        self.session.count_end(End::Client);
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
            "an HTTP/2 connection is closed: its client floods the balancer");
    }

    /// Returns a new stream, to be served.
    fn start_stream(self: &Rc<Self>, key: Key, head: Head) -> Work {
        self.streams.set(self.streams.get() + 1);
        let mut age = self.age.get();
        age.add_request();
        self.age.set(age);
        let connects = head.protocol() == Some("websocket");
        let stream = Stream::new(Rc::clone(self), key, connects);
        Work {
            connection: Rc::clone(self),
            stream: Box::new(stream),
            head,
            connects,
        }
    }
}
