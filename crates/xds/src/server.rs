//! The server: connections, calls, and what is done for each.
//!
//! All of it runs in one thread. A stream waits for requests of its client and for changes; what it has to
//! say is decided in [`stream`](crate::stream).

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_config::Xds as Section;
use evenkeel_core::time::Instant;
use evenkeel_limits::memory::Shares;
use evenkeel_limits::{Shortage, warn_throttled};
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_net::Clock;
use evenkeel_net::grpc::{self, CallError, Messages, Sender};
use evenkeel_tls::listener::Listener;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use prost::Message;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info};

use crate::groups::Groups;
use crate::holdings::{Holding, Holdings};
use crate::kind::Kind;
use crate::ledger::Ledger;
use crate::proto::{LoadStatsRequest, LoadStatsResponse};
use crate::registry::Registry;
use crate::stream::{Identity, Limits, RequestMeaning, Stream, StreamRefusal, Variant};
use crate::world::ResourceSet;

/// The calls that there are.
const STATE_OF_THE_WORLD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const INCREMENTAL: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const LOAD_REPORTS: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";

/// Time limit from a connection to the end of the handshake of HTTP/2, that of TLS included.
const HANDSHAKE: Duration = Duration::from_secs(15);

/// A connection without a stream is closed after this time.
const IDLE: Duration = Duration::from_secs(300);

/// Longest time that a connection may take to end when it is told to end.
const GRACE: Duration = Duration::from_secs(1);

/// After so long without a word the system asks whether the client is still there, and then every quarter of that.
const SILENCE: Duration = Duration::from_secs(60);

/// Time between two tries to accept when the system has nothing left for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Streams of a connection at a time: a client has one for resources and one for reports, and may begin
/// another one before it has seen the end of the last.
const STREAMS: u32 = 4;

/// Most bytes of the fields of a call.
const FIELDS: u32 = 16 * 1024;

/// Bytes of requests that may be on their way, of a stream and of a connection.
const WINDOW: u32 = 256 * 1024;

/// Statuses of gRPC.
mod code {
    pub(super) const INVALID_ARGUMENT: u16 = 3;
    pub(super) const RESOURCE_EXHAUSTED: u16 = 8;
    pub(super) const UNIMPLEMENTED: u16 = 12;
    pub(super) const UNAVAILABLE: u16 = 14;
}

/// State that all streams share.
pub(crate) struct Server {
    clock: Clock,
    epoch: Arc<str>,
    tls: Arc<Listener>,
    registry: Arc<Registry>,
    section: RefCell<Section>,
    world: RefCell<ResourceSet>,
    groups: RefCell<Groups>,
    ledger: RefCell<Ledger>,
    /// Told of changes of the world.
    changes: watch::Sender<u64>,
    /// Told of another configuration.
    sections: watch::Sender<()>,
    /// Told when all connections are to end; how often that was.
    end: watch::Sender<u64>,
    /// Streams of resources that are open.
    streams: Cell<usize>,
    /// Memory for what they want.
    holdings: Rc<Holdings>,
}

impl Server {
    pub(crate) fn new(
        clock: Clock,
        epoch: &str,
        tls: Arc<Listener>,
        registry: Arc<Registry>,
    ) -> Self {
        Server {
            clock,
            epoch: epoch.into(),
            tls,
            registry,
            section: RefCell::default(),
            world: RefCell::default(),
            groups: RefCell::default(),
            ledger: RefCell::default(),
            changes: watch::Sender::new(0),
            sections: watch::Sender::new(()),
            end: watch::Sender::new(0),
            streams: Cell::new(0),
            holdings: Holdings::new(memory_for_names()),
        }
    }

    /// Takes the section that the configuration has from now on.
    pub(crate) fn set_section(&self, section: &Section) {
        self.groups
            .borrow_mut()
            .set_section(section, &mut self.world.borrow_mut());
        self.section.replace(section.clone());
        self.sections.send_replace(());
        self.tell_streams();
    }

    /// Takes the groups that there are from now on.
    pub(crate) fn set_groups(&self, handles: Vec<Arc<GroupHandle>>) {
        self.groups
            .borrow_mut()
            .set_handles(handles, &mut self.world.borrow_mut());
        self.tell_streams();
    }

    /// Ends all streams and connections. Clients go on with what they have.
    pub(crate) fn end_streams(&self) {
        self.end.send_modify(|ends| *ends += 1);
    }

    /// Looks at the groups, as long as somebody wants to know, and tells streams of changes.
    pub(crate) async fn look_forever(&self) {
        let mut sections = self.sections.subscribe();
        loop {
            let between = self.section.borrow().between_pushes();
            tokio::select! {
                () = sleep(between) => {}
                _ = sections.changed() => {}
            }
            if self.streams.get() > 0 {
                self.look_at_groups();
            }
        }
    }

    fn look_at_groups(&self) {
        let now = self.clock.now();
        self.groups
            .borrow_mut()
            .look_for_changes(now, &mut self.world.borrow_mut());
        self.tell_streams();
    }

    /// Tells streams of changes, and others how many there were.
    fn tell_streams(&self) {
        let version = self.world.borrow().version();
        let groups = self.groups.borrow().len();
        self.registry.groups.store(groups, Ordering::Relaxed);
        self.registry.changes.store(version, Ordering::Relaxed);
        self.changes.send_if_modified(|known| {
            let is_news = *known != version;
            *known = version;
            is_news
        });
    }

    /// Accepts connections until `end` is there.
    pub(crate) async fn accept_connections(
        self: Rc<Self>,
        listener: TcpListener,
        mut end: watch::Receiver<bool>,
    ) {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = end.wait_for(|end| *end) => return,
                accepted = listener.accept() => accepted,
            };
            let (socket, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    match Shortage::of_error(&error) {
                        Some(shortage) => shortage.report_failure("accept a connection (xds)"),
                        None => {
                            warn_throttled!(%error, "xds: cannot accept a connection; next try in {PAUSE:?}")
                        }
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let most = self.most_clients();
            if self.registry.connections.load(Ordering::Relaxed) >= most {
                self.registry.refused.fetch_add(1, Ordering::Relaxed);
                warn_throttled!(
                    %client,
                    "xds: {most} clients are connected, and one more is refused: raise max_clients in [xds], or the limit of open files"
                );
                continue;
            }
            self.registry.connections.fetch_add(1, Ordering::Relaxed);
            let server = Rc::clone(&self);
            let end = self.end.subscribe();
            tokio::task::spawn_local(async move {
                if let Err(error) = server.serve_connection(socket, client, end).await {
                    debug!(%client, error, "xds: the connection of a client ended with an error");
                }
                server.registry.connections.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// Returns the largest number of clients: the configured number, if there are files for so many clients.
    fn most_clients(&self) -> usize {
        let files = evenkeel_limits::files::Shares::of_process().xds;
        self.section.borrow().max_clients.min(files).max(1)
    }

    /// Serves a connection to its end.
    async fn serve_connection(
        self: &Rc<Self>,
        socket: TcpStream,
        client: SocketAddr,
        mut end: watch::Receiver<u64>,
    ) -> Result<(), String> {
        // Whoever is gone without a word must not be kept.
        let keepalive = TcpKeepalive::new()
            .with_time(SILENCE)
            .with_interval(SILENCE / 4);
        let options = SockRef::from(&socket);
        let _ = options.set_tcp_keepalive(&keepalive);
        let _ = options.set_tcp_nodelay(true);
        let mut builder = h2::server::Builder::new();
        builder
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(FIELDS)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let stream = self.tls.accept_socket(socket);
        let handshake = timeout(HANDSHAKE, builder.handshake::<_, Bytes>(stream));
        let connection = handshake
            .await
            .map_err(|_| "the client did not complete the handshake (TLS, HTTP/2) in time")?;
        let mut connection = connection.map_err(|error| error.to_string())?;
        let open = Rc::new(Cell::new(0usize));
        let mut is_ending = false;
        loop {
            let call = tokio::select! {
                call = connection.accept() => call,
                _ = end.changed(), if !is_ending => {
                    connection.graceful_shutdown();
                    is_ending = true;
                    continue;
                }
                () = sleep(IDLE), if !is_ending => {
                    if open.get() == 0 {
                        connection.graceful_shutdown();
                        is_ending = true;
                    }
                    continue;
                }
                () = sleep(GRACE), if is_ending => return Ok(()),
            };
            let Some(call) = call else {
                return Ok(());
            };
            let (request, respond) = call.map_err(|error| error.to_string())?;
            let (server, open) = (Rc::clone(self), Rc::clone(&open));
            open.set(open.get() + 1);
            tokio::task::spawn_local(async move {
                server.answer_call(request, respond, client).await;
                open.set(open.get() - 1);
            });
        }
    }

    /// Answers a call.
    async fn answer_call(
        self: &Rc<Self>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        client: SocketAddr,
    ) {
        let (head, body) = request.into_parts();
        if head.method != http::Method::POST || !grpc::is_grpc(&head.headers) {
            let mut answer = http::Response::new(());
            *answer.status_mut() = http::StatusCode::UNSUPPORTED_MEDIA_TYPE;
            // Nobody may be there to hear it.
            let _ = respond.send_response(answer, true);
            return;
        }
        let longest = self.section.borrow().max_message;
        let messages = Messages::new(body, longest);
        let result = match head.uri.path() {
            STATE_OF_THE_WORLD => {
                self.serve_resources(Variant::StateOfTheWorld, messages, &mut respond, client)
                    .await
            }
            INCREMENTAL => {
                self.serve_resources(Variant::Incremental, messages, &mut respond, client)
                    .await
            }
            LOAD_REPORTS => self.serve_reports(messages, &mut respond, client).await,
            other => {
                let message =
                    format!("this server does not have {other}: use aggregated discovery (ADS)");
                return grpc::send_status(&mut respond, code::UNIMPLEMENTED, &message);
            }
        };
        if let Err(error) = result {
            debug!(%client, %error, "xds: the stream of a client ended with an error");
        }
    }

    /// Serves a stream of resources.
    async fn serve_resources(
        &self,
        variant: Variant,
        messages: Messages,
        respond: &mut SendResponse<Bytes>,
        client: SocketAddr,
    ) -> Result<(), CallError> {
        let mut sender = Sender::begin_answer(respond)?;
        // The first one sees the world as it is now, and not as it was when somebody last looked.
        if self.streams.get() == 0 {
            self.look_at_groups();
        }
        self.streams.set(self.streams.get() + 1);
        let id = self
            .registry
            .add_stream(client, variant.name(), self.clock.now());
        let holding = self.holdings.add_stream(client.ip());
        let ended = self
            .follow_stream(id, variant, messages, &mut sender, holding)
            .await;
        self.registry.remove_stream(id);
        self.streams.set(self.streams.get() - 1);
        match ended {
            Ok((code, message)) => {
                sender.send_trailers(code, &message);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Follows a stream; answers with which status it is to end.
    async fn follow_stream(
        &self,
        id: u64,
        variant: Variant,
        mut messages: Messages,
        sender: &mut Sender,
        mut holding: Holding,
    ) -> Result<(u16, String), CallError> {
        let (limits, patience) = {
            let section = self.section.borrow();
            let limits = Limits {
                subscriptions: section.max_subscriptions,
                ..Limits::default()
            };
            (limits, section.send_timeout)
        };
        let mut stream = Stream::new(variant, Arc::clone(&self.epoch), limits);
        let mut changes = self.changes.subscribe();
        let mut end = self.end.subscribe();
        loop {
            loop {
                let response = stream.next(&self.world.borrow());
                let Some(response) = response else {
                    break;
                };
                self.registry.count_push(&stream, response.kind);
                self.registry.update_stream(id, &stream);
                let sent = timeout(patience, sender.send_message(&response.bytes));
                let late =
                    |_| CallError::Status("4".into(), ": the client takes no messages".into());
                sent.await.map_err(late)??;
            }
            tokio::select! {
                message = messages.next() => {
                    let message = match message {
                        Ok(Some(message)) => message,
                        Ok(None) => return Ok((0, String::new())),
                        Err(error) => return refusal_status(error),
                    };
                    let is_known = stream.identity().is_some();
                    let told = stream.take_request(&message);
                    let told = match holding.set(stream.held_bytes()) {
                        true => told,
                        false => Err(StreamRefusal::TooMuch),
                    };
                    let told = match told {
                        Ok(told) => told,
                        Err(error) => {
                            warn_throttled!(client = id, %error, "xds: the stream of a client is refused");
                            let code = match error {
                                StreamRefusal::Malformed | StreamRefusal::LongName => code::INVALID_ARGUMENT,
                                StreamRefusal::TooMany(_) | StreamRefusal::TooMuch => code::RESOURCE_EXHAUSTED,
                            };
                            return Ok((code, error.to_string()));
                        }
                    };
                    if let (false, Some(identity)) = (is_known, stream.identity()) {
                        info!(node = identity.node, program = identity.program, "an xDS client has connected");
                        self.registry.set_identity(id, identity);
                    }
                    if let RequestMeaning::Refused(kind) = told {
                        self.registry.record_nack(id, &stream, kind, self.clock.now());
                        tell_of_nack(&stream, kind);
                    }
                    self.registry.update_stream(id, &stream);
                    // Others have their turn, however much this one sends.
                    tokio::task::yield_now().await;
                }
                _ = changes.changed() => {}
                _ = end.changed() => return Ok(ending_status()),
            }
        }
    }

    /// Serves a stream of load reports.
    async fn serve_reports(
        &self,
        mut messages: Messages,
        respond: &mut SendResponse<Bytes>,
        client: SocketAddr,
    ) -> Result<(), CallError> {
        let Some(interval) = self.section.borrow().load_report_interval else {
            let message = "load reports are off: set load_report_interval in [xds]";
            grpc::send_status(respond, code::UNIMPLEMENTED, message);
            return Ok(());
        };
        let mut sender = Sender::begin_answer(respond)?;
        let id = self
            .registry
            .add_stream(client, "load_reports", self.clock.now());
        let ended = self
            .take_reports(id, interval, &mut messages, &mut sender)
            .await;
        self.registry.remove_stream(id);
        self.ledger.borrow_mut().forget_client(id, self.clock.now());
        let (code, message) = ended?;
        sender.send_trailers(code, &message);
        Ok(())
    }

    async fn take_reports(
        &self,
        id: u64,
        interval: Duration,
        messages: &mut Messages,
        sender: &mut Sender,
    ) -> Result<(u16, String), CallError> {
        let mut is_asked = false;
        let mut end = self.end.subscribe();
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                _ = end.changed() => return Ok(ending_status()),
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return Ok((0, String::new())),
                Err(error) => return refusal_status(error),
            };
            let Ok(report) = LoadStatsRequest::decode(&*message) else {
                let message = StreamRefusal::Malformed.to_string();
                return Ok((code::INVALID_ARGUMENT, message));
            };
            let is_first = !is_asked;
            if is_first {
                is_asked = true;
                let node = report.node.clone().unwrap_or_default();
                self.registry.set_identity(id, &Identity::of_node(&node));
                let request = LoadStatsResponse {
                    clusters: self.cluster_names(),
                    load_reporting_interval: Some(interval.into()),
                    report_endpoint_granularity: true,
                    send_all_clusters: true,
                };
                let patience = self.section.borrow().send_timeout;
                let request = request.encode_to_vec();
                let sent = timeout(patience, sender.send_message(&request));
                let late =
                    |_| CallError::Status("4".into(), ": the client takes no messages".into());
                sent.await.map_err(late)??;
            }
            // The first one may only say who it is. Later ones with nothing in them say that nothing has happened.
            if !is_first || !report.cluster_stats.is_empty() {
                self.take(id, interval, &report, self.clock.now());
            }
            // Others have their turn, however much this one sends.
            tokio::task::yield_now().await;
        }
    }

    /// Names of all clusters, for clients that cannot report of all without being told their names.
    fn cluster_names(&self) -> Vec<String> {
        let world = self.world.borrow();
        let names = world.resource_names(Kind::Cluster);
        names.map(ToString::to_string).collect()
    }

    fn take(&self, id: u64, interval: Duration, report: &LoadStatsRequest, now: Instant) {
        let groups = self.groups.borrow();
        let group = |name: &str| groups.find_group(name);
        let taken = self
            .ledger
            .borrow_mut()
            .take(id, report, interval, group, now);
        self.registry.load_reports.fetch_add(1, Ordering::Relaxed);
        self.registry
            .unknown_load_reports
            .fetch_add(taken.unknown as u64, Ordering::Relaxed);
    }
}

/// Returns the most bytes for what clients want by name: a part of what is kept back for such things.
fn memory_for_names() -> usize {
    usize::try_from(Shares::of_process().reserve / 4).unwrap_or(usize::MAX)
}

/// Returns the status with which streams end when the process ends.
fn ending_status() -> (u16, String) {
    (code::UNAVAILABLE, "the server stops: connect again".into())
}

/// Returns the status with which a stream ends whose messages cannot be read.
fn refusal_status(error: CallError) -> Result<(u16, String), CallError> {
    match error {
        CallError::TooLong(..) => Ok((
            code::RESOURCE_EXHAUSTED,
            format!("{error}: raise max_message in [xds]"),
        )),
        CallError::Compressed => Ok((code::UNIMPLEMENTED, error.to_string())),
        broken => Err(broken),
    }
}

fn tell_of_nack(stream: &Stream, kind: Kind) {
    let of = stream.subscription(kind);
    let Some(nack) = of.and_then(|of| of.last_nack()) else {
        return;
    };
    let accepted = of.and_then(|of| of.accepted_version()).unwrap_or("none");
    let node = stream.identity().map_or("", |identity| &*identity.node);
    warn_throttled!(
        client = node,
        kind = kind.name(),
        version = nack.version,
        accepted,
        "an xDS client has refused a response: {}",
        nack.reason
    );
}
