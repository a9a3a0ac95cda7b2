//! A GIOP server for single-threaded runtimes.
//!
//! Each worker has a runtime of its own (`current_thread`, within a `LocalSet`) and calls
//! [`Server::serve_clients`] for each of its listening sockets. What has arrived on a connection is
//! handled in one go: each complete message is given to the [`Service`], which appends its
//! answers to the connection's output, and one write sends them all. A service that cannot
//! answer at once takes a [`DeferredReply`].
//!
//! Nothing here trusts the other side: see [`Settings`] for the limits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_limits::{Shortage, warn_throttled};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::cdr::Endian;
use crate::message::{GiopError, Header, Kind, Message, Version};
use crate::wire::{Buffers, Stop, Wire};

/// Service that answers the messages.
pub trait Service: 'static {
    /// State that the service keeps of a connection. The state is dropped when the connection is
    /// gone.
    type Connection;

    /// A client has connected.
    fn connected(&self, peer: SocketAddr) -> Self::Connection;

    /// A whole message (fragments are joined) has arrived: a Request, a LocateRequest or a
    /// CancelRequest. A message that is not valid gets a MessageError, and the connection ends.
    fn message(
        &self,
        connection: &mut Self::Connection,
        message: Message<'_>,
        out: &ReplyOutput<'_>,
    ) -> Result<(), GiopError>;
}

/// Limits of a server. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Longest message, with all its fragments.
    pub max_message: usize,
    /// Most connections; further ones wait in the queue of the listening socket.
    pub max_connections: usize,
    /// Most answers that one connection may wait for; then it is not read.
    pub max_pending: usize,
    /// Output that a connection may have unsent; above it, it is not read.
    pub max_output: usize,
    /// Bytes of messages that have not come in full, with all fragments, over all
    /// connections of a worker: the connection that would need more ends.
    pub max_held: usize,
    /// A connection on which nothing happens for so long gets CloseConnection; zero: never.
    pub idle_timeout: Duration,
    /// A message that has begun must be there within this time.
    pub message_timeout: Duration,
    /// Time after which a client that takes none of its output is cut off.
    pub write_timeout: Duration,
    /// Time limit for the outstanding answers at an orderly shutdown.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_message: 16 << 20,
            max_connections: 10_000,
            max_pending: 1024,
            max_output: 1 << 20,
            max_held: 256 << 20,
            idle_timeout: Duration::from_secs(600),
            message_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Counters over all workers.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were accepted.
    pub accepted: AtomicU64,
    /// Connections that are open.
    pub open: AtomicUsize,
    /// Requests that have arrived.
    pub requests: AtomicU64,
    /// LocateRequests that have arrived.
    pub locates: AtomicU64,
    /// CancelRequests that have arrived.
    pub cancels: AtomicU64,
    /// Connections that ended with a MessageError, of theirs or ours.
    pub message_errors: AtomicU64,
    /// Connections that were closed because nothing happened on them.
    pub idle_closed: AtomicU64,
    /// Connections that were cut off because a message did not get complete, or output was
    /// not taken, in time.
    pub too_slow: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Most messages of one connection that are handled before the others get their turn.
const MESSAGES_PER_TURN: usize = 32;
/// Interval between checks of time limits.
const TICK: Duration = Duration::from_millis(250);
/// Time limit for a client to close its side after we have closed ours.
const LINGER: Duration = Duration::from_secs(2);

/// State that all workers of a server share.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    counters: Counters,
    room: Arc<Semaphore>,
}

impl Server {
    /// A server that listens nowhere yet.
    pub fn new(settings: Settings) -> Arc<Self> {
        let room = settings.max_connections.min(Semaphore::MAX_PERMITS);
        Arc::new(Server {
            settings,
            counters: Counters::default(),
            room: Arc::new(Semaphore::new(room)),
        })
    }

    /// Returns the counters of the server.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Serves the clients of `listener` until `stop` resolves. Then nothing more is
    /// accepted, each connection gets CloseConnection once its outstanding answers are
    /// sent, and this returns.
    ///
    /// Must be called within a [`LocalSet`](tokio::task::LocalSet).
    pub async fn serve_clients<S: Service>(
        self: &Arc<Self>,
        listener: TcpListener,
        service: Rc<S>,
        stop: impl Future<Output = ()>,
    ) {
        let worker = Rc::new(Worker {
            server: Arc::clone(self),
            buffers: Buffers::new(self.settings.max_held),
            outboxes: RefCell::default(),
            now: Cell::new(Instant::now()),
            stopping: Cell::new(false),
        });
        let mut tasks = JoinSet::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = std::pin::pin!(stop);
        let mut next = 0u64;
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                _ = ticks.tick() => worker.tick(),
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => report(ended),
                accepted = self.accept(&listener) => match accepted {
                    Ok((stream, peer, permit)) => {
                        next += 1;
                        let state = service.connected(peer);
                        let connection = Connection::new(next, stream, peer, state, &worker);
                        tasks.spawn_local(connection.run(Rc::clone(&service), permit));
                    }
                    Err(error) => {
                        match Shortage::of_error(&error) {
                            Some(shortage) => shortage.report_failure("accept a connection (CORBA)"),
                            None => warn_throttled!(%error, "CORBA: cannot accept a connection"),
                        }
                        // Out of descriptors, most likely: some are freed when others close.
                        tokio::time::sleep(TICK).await;
                    }
                },
            }
        }
        drop(listener);
        worker.stopping.set(true);
        worker.wake_all();
        let deadline = Instant::now() + self.settings.drain_timeout;
        let all_gone = async {
            loop {
                tokio::select! {
                    ended = tasks.join_next() => match ended {
                        Some(ended) => report(ended),
                        None => break,
                    },
                    _ = ticks.tick() => worker.tick(),
                }
            }
        };
        // What is not done by then is cut off by dropping its task.
        let _ = tokio::time::timeout_at(deadline, all_gone).await;
    }

    /// Output above this cuts a client off: what was outstanding when it stopped reading fits.
    fn most_output(&self) -> usize {
        let Settings {
            max_output,
            max_message,
            ..
        } = self.settings;
        max_output.saturating_add(max_message.saturating_mul(4))
    }

    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let permit = Arc::clone(&self.room).acquire_owned().await;
        let permit = permit.map_err(io::Error::other)?;
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        count(&self.counters.accepted);
        Ok((stream, peer, permit))
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("GIOP: a bug of Evenkeel ended a connection; please report it: {error}");
    }
}

/// State that the connections of one [`Server::serve_clients`] share.
struct Worker {
    server: Arc<Server>,
    buffers: Rc<Buffers>,
    outboxes: RefCell<BTreeMap<u64, Rc<Outbox>>>,
    /// The time at the last tick: time limits need no clock of their own.
    now: Cell<Instant>,
    stopping: Cell<bool>,
}

impl Worker {
    fn tick(&self) {
        let now = Instant::now();
        self.now.set(now);
        for outbox in self.outboxes.borrow().values() {
            if outbox
                .deadline
                .get()
                .is_some_and(|deadline| deadline <= now)
            {
                outbox.wake();
            }
        }
    }

    fn wake_all(&self) {
        self.outboxes
            .borrow()
            .values()
            .for_each(|outbox| outbox.wake());
    }
}

/// The output of a connection, shared with those that answer later.
struct Outbox {
    worker: Rc<Worker>,
    bytes: RefCell<Vec<u8>>,
    /// Number of outstanding [`DeferredReply`] values.
    pending: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    deadline: Cell<Option<Instant>>,
    gone: Cell<bool>,
}

impl Outbox {
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn write<R>(&self, append: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let mut bytes = self.bytes.borrow_mut();
        if bytes.capacity() == 0 {
            *bytes = self.worker.buffers.take();
        }
        append(&mut bytes)
    }

    /// Returns true if so much is outstanding that nothing more should be read.
    fn is_full(&self) -> bool {
        let settings = &self.worker.server.settings;
        self.bytes.borrow().len() >= settings.max_output
            || self.pending.get() >= settings.max_pending
    }
}

/// Output to which a service appends the answers to a message.
pub struct ReplyOutput<'a> {
    outbox: &'a Rc<Outbox>,
}

impl ReplyOutput<'_> {
    /// Appends whole messages. `append` must leave what is in the buffer already, and must
    /// not call the server.
    #[inline]
    pub fn write<R>(&self, append: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.outbox.write(append)
    }

    /// Makes a place for an answer that has to wait.
    pub fn defer_answer(&self) -> DeferredReply {
        self.outbox.pending.set(self.outbox.pending.get() + 1);
        DeferredReply {
            outbox: Rc::clone(self.outbox),
        }
    }
}

/// A place for an answer that has to wait: for a task of the same thread. A connection has at
/// most [`Settings::max_pending`] of them at a time, and counts one until it is dropped.
pub struct DeferredReply {
    outbox: Rc<Outbox>,
}

impl DeferredReply {
    /// Returns true if the connection is gone, so that nobody waits for the answer.
    pub fn is_gone(&self) -> bool {
        self.outbox.gone.get()
    }

    /// Appends whole messages, as [`ReplyOutput::write`] does; they are sent as soon as the current
    /// task yields. `None` if the connection is gone.
    pub fn write<R>(&self, append: impl FnOnce(&mut Vec<u8>) -> R) -> Option<R> {
        if self.is_gone() {
            return None;
        }
        let result = self.outbox.write(append);
        self.outbox.wake();
        Some(result)
    }
}

impl Clone for DeferredReply {
    fn clone(&self) -> Self {
        ReplyOutput {
            outbox: &self.outbox,
        }
        .defer_answer()
    }
}

impl Drop for DeferredReply {
    fn drop(&mut self) {
        let pending = self.outbox.pending.get();
        self.outbox.pending.set(pending.saturating_sub(1));
        // It may be that nothing was read for this, or that a shutdown waits for it.
        let settings = &self.outbox.worker.server.settings;
        if pending >= settings.max_pending || self.outbox.worker.stopping.get() {
            self.outbox.wake();
        }
    }
}

/// Reason why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client is gone, or is not worth another word.
    Gone,
    /// The client is told that the connection ends: the message is in the output already.
    Told,
}

/// Event that a connection waits for; each has a time limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The next message.
    Idle,
    /// The rest of a message.
    Rest,
    /// Room: the client has to take output.
    Output,
    /// Answers of the service.
    Answers,
    /// End: the client has to close, after our last words.
    Close,
}

struct Connection<C> {
    id: u64,
    wire: Wire,
    peer: SocketAddr,
    state: C,
    outbox: Rc<Outbox>,
    waits: Waits,
    since: Instant,
}

impl<C> Connection<C> {
    fn new(id: u64, stream: TcpStream, peer: SocketAddr, state: C, worker: &Rc<Worker>) -> Self {
        let outbox = Rc::new(Outbox {
            worker: Rc::clone(worker),
            bytes: RefCell::default(),
            pending: Cell::new(0),
            waker: RefCell::default(),
            deadline: Cell::new(None),
            gone: Cell::new(false),
        });
        worker.outboxes.borrow_mut().insert(id, Rc::clone(&outbox));
        let counters = &worker.server.counters;
        counters.open.fetch_add(1, Ordering::Relaxed);
        Connection {
            id,
            wire: Wire::new(stream, &worker.buffers, worker.server.settings.max_message),
            peer,
            state,
            outbox,
            waits: Waits::Idle,
            since: worker.now.get(),
        }
    }

    async fn run<S: Service<Connection = C>>(
        mut self,
        service: Rc<S>,
        _permit: OwnedSemaphorePermit,
    ) {
        let end = poll_fn(|cx| self.turn(&*service, cx)).await;
        if end == End::Told {
            poll_fn(|cx| self.close(cx)).await;
        }
    }

    /// Takes a turn: sends, reads and handles what is there, up to a bound.
    fn turn<S: Service<Connection = C>>(&mut self, service: &S, cx: &mut Context<'_>) -> Poll<End> {
        self.listen(cx);
        let mut budget = MESSAGES_PER_TURN;
        let end = loop {
            if let Err(_gone) = self.send(cx) {
                return Poll::Ready(End::Gone);
            }
            let worker = &self.outbox.worker;
            if self.outbox.bytes.borrow().len() > worker.server.most_output() {
                count(&worker.server.counters.too_slow);
                tracing::debug!(peer = %self.peer, "GIOP: the client does not read its replies: the \
                    connection is closed");
                return Poll::Ready(End::Gone);
            }
            if worker.stopping.get() && self.outbox.pending.get() == 0 && !self.wire.is_holding() {
                self.say(Kind::CloseConnection);
                break Some(End::Told);
            }
            if self.outbox.is_full() {
                break None;
            }
            if budget == 0 {
                cx.waker().wake_by_ref();
                break None;
            }
            match self.receive(service, &mut budget, cx) {
                Poll::Pending => break None,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => break Some(end),
            }
        };
        match end {
            Some(end) => Poll::Ready(end),
            None => self.check_time(),
        }
    }

    /// Has whoever puts something into the outbox wake this task.
    fn listen(&self, cx: &Context<'_>) {
        let mut waker = self.outbox.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }

    /// Sends output as far as the client takes it.
    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let worker = &self.outbox.worker;
        let mut out = self.outbox.bytes.borrow_mut();
        if self.wire.send_buffer(cx, &mut out)? > 0 {
            self.since = worker.now.get();
        }
        Ok(())
    }

    /// Handles messages that are here or else reads, once.
    fn receive<S: Service<Connection = C>>(
        &mut self,
        service: &S,
        budget: &mut usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), End>> {
        let worker = Rc::clone(&self.outbox.worker);
        let before = *budget;
        let (outbox, state) = (&self.outbox, &mut self.state);
        let handle = |message: Message<'_>| handle(message, service, state, outbox);
        let received = self.wire.receive_messages(cx, budget, handle);
        if *budget < before {
            self.since = worker.now.get();
        }
        received.map_err(|stop| match stop {
            Stop::Gone(_) | Stop::Handler(Refusal::Leaves) => End::Gone,
            Stop::NotValid(error) | Stop::Handler(Refusal::NotValid(error)) => self.refuse(&error),
        })
    }

    /// Says that what came is not valid.
    fn refuse(&mut self, error: &GiopError) -> End {
        count(&self.outbox.worker.server.counters.message_errors);
        tracing::debug!(peer = %self.peer, "GIOP: a message is refused with MessageError: {error}");
        self.say(Kind::MessageError);
        End::Told
    }

    /// Appends a last word: a message that has no body and looks alike in all versions, so
    /// that 1.0 is understood by everybody.
    fn say(&self, word: Kind) {
        let header = Header {
            version: Version::V1_0,
            endian: Endian::NATIVE,
            more: false,
            kind: word,
            size: 0,
        };
        self.outbox
            .write(|out| out.extend_from_slice(&header.encode()));
    }

    /// Sees to it that the connection does not wait for too long.
    fn check_time(&mut self) -> Poll<End> {
        let worker = Rc::clone(&self.outbox.worker);
        let server = &worker.server;
        let waits = if !self.outbox.bytes.borrow().is_empty() {
            Waits::Output
        } else if self.wire.is_holding() {
            Waits::Rest
        } else if self.outbox.pending.get() > 0 {
            Waits::Answers
        } else {
            Waits::Idle
        };
        let now = worker.now.get();
        if waits != self.waits {
            self.waits = waits;
            self.since = now;
        }
        let limit = match waits {
            Waits::Output => Some(server.settings.write_timeout),
            Waits::Rest => Some(server.settings.message_timeout),
            Waits::Answers => None,
            Waits::Close => Some(LINGER),
            Waits::Idle => Some(server.settings.idle_timeout).filter(|limit| !limit.is_zero()),
        };
        let deadline = limit.map(|limit| self.since + limit);
        self.outbox.deadline.set(deadline);
        if deadline.is_none_or(|deadline| now < deadline) {
            return Poll::Pending;
        }
        match waits {
            Waits::Idle => {
                count(&server.counters.idle_closed);
                self.say(Kind::CloseConnection);
                Poll::Ready(End::Told)
            }
            _ => {
                count(&server.counters.too_slow);
                tracing::debug!(peer = %self.peer, "GIOP: the client is too slow: the connection is closed");
                Poll::Ready(End::Gone)
            }
        }
    }

    /// Sends the last words and closes. What the client still sends is not answered, but
    /// taken: closing with unread input could cost it our last words.
    fn close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.listen(cx);
        let worker = Rc::clone(&self.outbox.worker);
        if self.outbox.deadline.get().is_none() || self.waits != Waits::Close {
            self.waits = Waits::Close;
            self.outbox.deadline.set(Some(Instant::now() + LINGER));
        }
        let late = self
            .outbox
            .deadline
            .get()
            .is_some_and(|at| at <= worker.now.get());
        if late || self.send(cx).is_err() {
            return Poll::Ready(());
        }
        if !self.outbox.bytes.borrow().is_empty() {
            return Poll::Pending;
        }
        self.wire.close(cx)
    }
}

/// Reason why a message ends the connection.
enum Refusal {
    /// The message cannot be read, or is not for a server.
    NotValid(GiopError),
    /// The client says that it goes.
    Leaves,
}

/// Handles one message.
fn handle<S: Service>(
    message: Message<'_>,
    service: &S,
    state: &mut S::Connection,
    outbox: &Rc<Outbox>,
) -> Result<(), Refusal> {
    let kind = message.header.kind;
    let counters = &outbox.worker.server.counters;
    match kind {
        Kind::Request => count(&counters.requests),
        Kind::LocateRequest => count(&counters.locates),
        Kind::CancelRequest => count(&counters.cancels),
        Kind::CloseConnection => return Err(Refusal::Leaves),
        Kind::MessageError => {
            count(&counters.message_errors);
            return Err(Refusal::Leaves);
        }
        Kind::Reply | Kind::LocateReply | Kind::Fragment => {
            return Err(Refusal::NotValid(GiopError::Type(kind as u8)));
        }
    }
    let handled = service.message(state, message, &ReplyOutput { outbox });
    handled.map_err(Refusal::NotValid)
}

impl<C> Drop for Connection<C> {
    fn drop(&mut self) {
        let worker = &self.outbox.worker;
        self.outbox.gone.set(true);
        self.outbox.waker.take();
        worker.buffers.give_back(self.outbox.bytes.take());
        worker.outboxes.borrow_mut().remove(&self.id);
        worker.server.counters.open.fetch_sub(1, Ordering::Relaxed);
    }
}
