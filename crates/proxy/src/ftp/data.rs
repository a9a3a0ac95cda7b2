//! A data connection: waited for, connected through, carried.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use evenkeel_core::time::Instant;
use evenkeel_limits::Shortage;
use evenkeel_tls::server::Server;
use evenkeel_wire::ftp::Mode;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::ports::Lease;
use crate::access::{End, MAX_METHOD_BYTES, MAX_TARGET_BYTES, MemberAttempts, Record};
use crate::files::ConnectionFile;
use crate::io::Io;
use crate::service::LocalRule;
use crate::session::Session;
use crate::tcp::tunnel::{Traffic, Tunnel};
use crate::tls::handshake;
use crate::watch::Stop;

/// State that the task of a data connection and the task of its session share.
#[derive(Debug)]
pub(super) struct Data {
    mode: Mode,
    stage: Cell<Stage>,
    /// The session wants it to end.
    stopped: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Waker of the session, which is told of a change.
    session: Rc<RefCell<Option<Waker>>>,
    /// Line of the access log, which is kept for that log only.
    entry: RefCell<Option<Entry>>,
}

/// Stage of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nobody has connected.
    Waiting,
    /// Bytes may move.
    Open,
    /// The data connection is over.
    Done,
}

/// Names of a member: its address, and the name that the configuration gives it.
pub(super) type MemberNames = (Arc<str>, Option<Arc<str>>);

/// A line of the access log in the making.
#[derive(Debug)]
struct Entry {
    at: SystemTime,
    command: String,
    argument: String,
    member: Option<MemberNames>,
    /// Status that the server has sent about the transfer.
    status: Option<u16>,
    /// Nothing more will be said.
    is_last: bool,
    carried: Option<Carried>,
}

/// Result of a data connection.
#[derive(Debug)]
struct Carried {
    up: u64,
    down: u64,
    lasted: Duration,
    tls: Option<Arc<evenkeel_tls::handshake::HandshakeParameters>>,
    end: End,
}

impl Data {
    pub(super) fn new(mode: Mode, session: &Rc<RefCell<Option<Waker>>>) -> Rc<Self> {
        Rc::new(Data {
            mode,
            stage: Cell::new(Stage::Waiting),
            stopped: Cell::new(false),
            waker: RefCell::default(),
            session: Rc::clone(session),
            entry: RefCell::default(),
        })
    }

    pub(super) fn current_stage(&self) -> Stage {
        self.stage.get()
    }

    /// Ends the data connection now, as one that was cut.
    pub(super) fn stop(&self) {
        self.stopped.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// A command uses it: for the log.
    pub(super) fn begin_command(&self, line: &[u8], member: Option<MemberNames>) {
        let mut parts = line.splitn(2, |byte| *byte == b' ');
        let mut next = |most: usize| {
            let part = parts.next().unwrap_or_default();
            let part = part.get(..most).unwrap_or(part);
            String::from_utf8_lossy(part).into_owned()
        };
        self.entry.replace(Some(Entry {
            at: SystemTime::now(),
            command: next(MAX_METHOD_BYTES),
            argument: next(MAX_TARGET_BYTES),
            member,
            status: None,
            is_last: false,
            carried: None,
        }));
    }

    /// The server has said how the command ended; `None` if nothing will be said any more.
    pub(super) fn finish_command(&self, status: Option<u16>, session: &Session) {
        if let Some(entry) = &mut *self.entry.borrow_mut() {
            entry.status = entry.status.or(status);
            entry.is_last = true;
        }
        self.log_line(session);
    }

    /// Writes the line of the log as soon as all is known.
    fn log_line(&self, session: &Session) {
        let is_whole = |entry: &mut Entry| entry.is_last && entry.carried.is_some();
        let Some(entry) = self.entry.borrow_mut().take_if(is_whole) else {
            return;
        };
        let Some(carried) = entry.carried else {
            return;
        };
        if !session.wants_record(false) {
            return;
        }
        let rule = session.service.rule();
        let group = rule.default_target.group.current.load();
        let record = Record {
            at: entry.at,
            client: session.peer,
            rule: Cow::Borrowed(&session.service.name),
            user: None,
            route: None,
            group: Some(Cow::Borrowed(group.name())),
            attempts: entry
                .member
                .map(|(member, name)| MemberAttempts::new(member, name)),
            tls: carried.tls,
            server_name: None,
            limit: None,
            request_limit: None,
            hedged: None,
            request: Some((entry.command.into(), entry.argument.into())),
            protocol: None,
            details: None,
            head_bytes_sent: 0,
            status: entry.status,
            grpc_status: None,
            bytes_received: carried.up,
            bytes_sent: carried.down,
            response_time: None,
            total_time: carried.lasted,
            cost: rule.rule.cost,
            retries: 0,
            end: carried.end,
        };
        session.log_record(false, record);
    }

    fn set(&self, stage: Stage) {
        self.stage.set(stage);
        if let Some(waker) = self.session.take() {
            waker.wake();
        }
    }

    /// Returns the output of `future`; `None` if the session ends before.
    async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(future);
        std::future::poll_fn(|cx: &mut Context<'_>| {
            if self.stopped.get() {
                return Poll::Ready(None);
            }
            let mut waker = self.waker.borrow_mut();
            if !waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
            {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

/// A data connection that is waited for.
pub(super) struct Waiting {
    pub(super) data: Rc<Data>,
    pub(super) rule: Rc<LocalRule>,
    pub(super) listener: TcpListener,
    pub(super) lease: Lease,
    /// Files for the two connections.
    pub(super) files: [ConnectionFile; 2],
    /// Address of the peer that may connect.
    pub(super) peer: IpAddr,
    /// Address that the balancer connects to then, and the address that it connects from.
    pub(super) target: SocketAddr,
    pub(super) source: Option<IpAddr>,
    /// Settings for a handshake with the client, if data is protected.
    pub(super) tls: Option<Arc<Server>>,
}

/// Waits for a data connection and carries it.
pub(super) async fn serve_data(session: Session, waiting: Waiting) {
    let data = Rc::clone(&waiting.data);
    let started = session.worker.now();
    let mut traffic = Traffic::default();
    let mut sides = None;
    let carried = data
        .unless_stopped(waiting.carry_data(&session, &mut sides, &mut traffic))
        .await;
    let end = carried.unwrap_or(End::Terminated);
    traffic.up.release_buffers(&session.worker);
    traffic.down.release_buffers(&session.worker);
    let mut agreed = None;
    if let Some((client, member)) = sides {
        agreed = client.agreed_parameters().cloned();
        if !end.is_orderly() {
            client.reset_on_drop();
            member.reset_on_drop();
        }
    }
    data.record_end(&session, &traffic, end, agreed, started);
}

impl Data {
    /// Counts and logs what was carried.
    fn record_end(
        &self,
        session: &Session,
        traffic: &Traffic,
        end: End,
        tls: Option<Arc<evenkeel_tls::handshake::HandshakeParameters>>,
        started: Instant,
    ) {
        let (up, down) = (traffic.up.moved, traffic.down.moved);
        let metrics = &session.service.metrics;
        if self.stage.get() == Stage::Open {
            match (self.mode, up > 0) {
                (Mode::Passive, true) => metrics.ftp_passive_in.add(1),
                (Mode::Passive, false) => metrics.ftp_passive_out.add(1),
                (Mode::Active, true) => metrics.ftp_active_in.add(1),
                (Mode::Active, false) => metrics.ftp_active_out.add(1),
            }
            metrics.ftp_data_bytes_in.add(up);
            metrics.ftp_data_bytes_out.add(down);
            // A file that was not there ends a connection that has carried nothing.
            if up + down > 0 && end != End::Terminated {
                session.count_end(end);
            }
        }
        if let Some(entry) = &mut *self.entry.borrow_mut() {
            entry.carried = Some(Carried {
                up,
                down,
                lasted: session.worker.now().since(started),
                tls,
                end,
            });
        }
        self.log_line(session);
        self.set(Stage::Done);
    }
}

impl Waiting {
    /// Accepts, connects, and carries bytes. The connections are in `sides` as soon as there are two.
    async fn carry_data(
        self,
        session: &Session,
        sides: &mut Option<(Io, Io)>,
        traffic: &mut Traffic,
    ) -> End {
        let (data, rule) = (&self.data, &self.rule);
        let _files = self.files;
        let metrics = &session.service.metrics;
        let mode = data.mode;
        session.watch.arm_deadline(rule.rule.ftp.data_timeout);
        let accepted = accept_from_peer(session, &self.listener, self.peer).await;
        session.watch.disarm_deadline();
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(Stop::Expired) => {
                // Whoever sees it counted finds nobody there.
                drop(self.listener);
                metrics.ftp_unconnected.add(1);
                return match mode {
                    Mode::Passive => End::ClientTimeout,
                    Mode::Active => End::MemberTimeout,
                };
            }
            Err(Stop::Cut) => return End::Terminated,
        };
        drop((self.listener, self.lease));
        let dialled = match connect_to_peer(session, rule, self.target, self.source).await {
            Ok(dialled) => dialled,
            Err(end) => {
                Io::from(accepted).reset_on_drop();
                return match (end, mode) {
                    (End::Member, Mode::Active) => End::Client,
                    (End::MemberTimeout, Mode::Active) => End::ClientTimeout,
                    (end, _) => end,
                };
            }
        };
        let (client, member) = match mode {
            Mode::Passive => (accepted, dialled),
            Mode::Active => (dialled, accepted),
        };
        data.set(Stage::Open);
        // The member first: the client begins its handshake when it is told that the transfer has
        // begun, and the server waits for this connection before it says so.
        let client = match &self.tls {
            None => Io::from(client),
            Some(server) => {
                let limit = rule.rule.ftp.data_timeout;
                let secured = handshake::accept_tls(session, Io::from(client), &[], server, limit);
                match Box::pin(secured).await {
                    Ok(client) => Io::from(client),
                    // It was counted.
                    Err(_) => {
                        Io::from(member).reset_on_drop();
                        return End::Client;
                    }
                }
            }
        };
        let (client, member) = sides.insert((client, Io::from(member)));
        let tunnel = Tunnel {
            session,
            idle: rule.rule.timeouts.idle,
            member: None,
            half_close: rule.rule.half_close,
        };
        tunnel.run(client, member, traffic, || {}).await
    }
}

/// Waits for a connection from `peer`. Anybody else's is refused, and does not end the wait: else
/// strangers could keep clients from their data.
async fn accept_from_peer(
    session: &Session,
    listener: &TcpListener,
    peer: IpAddr,
) -> Result<TcpStream, Stop> {
    session
        .watch
        .poll_until_stop(|cx| {
            loop {
                let (stream, from) = match listener.poll_accept(cx) {
                    Poll::Ready(Ok(accepted)) => accepted,
                    // That connection is gone, or there is no file for it: the limit ends the wait.
                    Poll::Ready(Err(error)) if Shortage::of_error(&error).is_some() => return Poll::Pending,
                    Poll::Ready(Err(_)) => continue,
                    Poll::Pending => return Poll::Pending,
                };
                if from.ip().to_canonical() == peer {
                    let _ = stream.set_nodelay(true);
                    return Poll::Ready(stream);
                }
                session.service.metrics.ftp_foreign.add(1);
                let rule = &session.service.name;
                tracing::debug!(%rule, %from, expected = %peer, "FTP: a data connection from another address than the expected one is closed");
                Io::from(stream).reset_on_drop();
            }
        })
        .await
}

/// Connects to who waits for the data, from `source`, which is what it knows of us.
async fn connect_to_peer(
    session: &Session,
    rule: &LocalRule,
    target: SocketAddr,
    source: Option<IpAddr>,
) -> Result<TcpStream, End> {
    let socket = match target {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let exhausted = |error: &std::io::Error| match Shortage::of_error(error) {
        Some(shortage) => {
            shortage.report_failure("open an FTP data connection");
            End::Exhausted
        }
        None => End::Member,
    };
    let socket = socket.map_err(|error| exhausted(&error))?;
    let _ = socket.set_nodelay(true);
    if let Some(source) = source {
        bind_source(&socket, source).map_err(|error| exhausted(&error))?;
    }
    let connecting = socket.connect(target);
    tokio::pin!(connecting);
    session.watch.arm_deadline(rule.rule.timeouts.connect);
    let connected = session
        .watch
        .poll_until_stop(|cx| connecting.as_mut().poll(cx))
        .await;
    session.watch.disarm_deadline();
    match connected {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => {
            let rule = &session.service.name;
            tracing::debug!(%rule, %target, %error, "FTP: cannot open a data connection");
            Err(exhausted(&error))
        }
        Err(Stop::Expired) => Err(End::MemberTimeout),
        Err(Stop::Cut) => Err(End::Terminated),
    }
}

/// Binds to an address, and leaves the port to `connect`: so it need be free for the target only.
fn bind_source(socket: &TcpSocket, source: IpAddr) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let on: libc::c_int = 1;
    // SAFETY: the option is an int, which outlives the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        );
    }
    socket.bind(SocketAddr::new(source, 0))
}
