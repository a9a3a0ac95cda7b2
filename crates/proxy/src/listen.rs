//! Listeners: every worker has its own socket on every address, and the kernel spreads
//! the connections over them.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::TcpListener as StdListener;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_core::address::Address;
use evenkeel_limits::{Shortage, warn_throttled};
use evenkeel_manager::config::Protocol;
use evenkeel_tls::challenge;
use evenkeel_tls::server::Server;

use crate::access::Peer;
use crate::connection::PeerConnection;
use crate::files::ClientFile;
use crate::http::Tasks;
use crate::io::Io;
use crate::service::Service;
use crate::session::{Local, Session};
use crate::socket::{Listener, Socket};
use crate::tls::handshake;
use crate::watch::{ServiceId, Stop};
use crate::worker::{Vital, Worker};
use crate::{ftp, proxied, tcp};

/// Time for which no connection is accepted after accepting failed for want of files or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Key that makes two listeners the same over a change of configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListenKey {
    pub(crate) address: Address,
    /// Port 0 is another port for each rule; every other address has one listener.
    pub(crate) rule: Option<Box<str>>,
    /// True if the listener receives datagrams.
    pub(crate) is_udp: bool,
}

impl ListenKey {
    pub(crate) fn new(address: Address, rule: &str, protocol: Protocol) -> Self {
        let is_chosen = address.socket().is_some_and(|at| at.port() == 0);
        ListenKey {
            address,
            rule: is_chosen.then(|| rule.into()),
            is_udp: protocol == Protocol::Udp,
        }
    }
}

/// A listener of this worker.
#[derive(Debug)]
pub(crate) struct Listening {
    socket: Listener,
    /// Tasks that serve clients of HTTP rules.
    tasks: Rc<Tasks>,
    local: Rc<Local>,
    service: RefCell<Rc<Service>>,
    stopped: Cell<bool>,
    /// Clients are left to another process that has the socket.
    rests: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

enum Next {
    Client(Socket, Peer),
    Failed(io::Error),
    Stopped,
}

impl Listening {
    /// Begins to accept clients for `service`.
    pub(crate) fn start(
        worker: &Rc<Worker>,
        tasks: &Rc<Tasks>,
        key: &ListenKey,
        socket: StdListener,
        service: &Rc<Service>,
    ) -> io::Result<Rc<Self>> {
        let (local, is_unix) = match &key.address {
            Address::Ip(_) => (socket.local_addr()?.into(), false),
            unix => (unix.clone(), true),
        };
        let socket = Listener::new(socket, is_unix)?;
        let listening = Rc::new(Listening {
            socket,
            tasks: Rc::clone(tasks),
            local: Rc::new(Local::new(local, Box::default())),
            service: RefCell::new(Rc::clone(service)),
            stopped: Cell::new(false),
            rests: Cell::new(worker.rests.get()),
            waker: RefCell::new(None),
        });
        let (this, worker) = (Rc::clone(&listening), Rc::clone(worker));
        tokio::task::spawn_local(async move { this.accept_clients(worker).await });
        Ok(listening)
    }

    /// Clients accepted from now on belong to `service`.
    pub(crate) fn set_service(&self, service: Rc<Service>) {
        self.service.replace(service);
        // It may wait for room under the old rule's limit.
        self.wake();
    }

    /// Accepts what has connected already, then closes.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.wake();
    }

    /// Leaves clients to another process that has the socket, or accepts them again.
    pub(crate) fn set_handed_over(&self, rests: bool) {
        self.rests.set(rests);
        self.wake();
    }

    /// The socket under a handle of its own.
    pub(crate) fn clone_socket(&self) -> io::Result<OwnedFd> {
        self.socket.clone_handle()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn accept_clients(&self, worker: Rc<Worker>) {
        let _vital = Vital(Rc::clone(&worker));
        loop {
            match std::future::poll_fn(|cx| self.poll_next(cx)).await {
                Next::Client(client, peer) => {
                    let file = self.wait_for_room(&worker).await;
                    self.spawn_client(&worker, client, peer, file);
                }
                Next::Failed(error) => {
                    match Shortage::of_error(&error) {
                        Some(shortage) => {
                            shortage.report_failure("accept a client");
                            worker.close_idle();
                        }
                        None => {
                            warn_throttled!(%error, "cannot accept a client; next try in {PAUSE:?}")
                        }
                    }
                    let watch = worker.watchers.watch_task(ServiceId::WORKER);
                    let _: Stop = watch.sleep_or_stop(PAUSE).await;
                }
                Next::Stopped => break,
            }
        }
        // Closing a listener resets what is in its queue, though the client believes to
        // be connected. The queue is read directly: the runtime may not know yet of
        // those who came a moment ago.
        loop {
            let (client, peer) = match self.socket.accept_ready() {
                Ok(next) => next,
                Err(error) if is_the_clients(&error) => continue,
                Err(_) => break,
            };
            let file = worker.client_file().ok();
            self.spawn_client(&worker, client, peer, file);
        }
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Next> {
        loop {
            if self.stopped.get() {
                return Poll::Ready(Next::Stopped);
            }
            if self.rests.get() {
                self.remember_waker(cx);
                return Poll::Pending;
            }
            match self.socket.poll_accept(cx) {
                Poll::Ready(Ok((client, peer))) => {
                    return Poll::Ready(Next::Client(client, peer));
                }
                Poll::Ready(Err(error)) if is_the_clients(&error) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Next::Failed(error)),
                Poll::Pending => {
                    self.remember_waker(cx);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Waits until the rule and the process may have another client. None if that does not
    /// matter any more, since the listener has stopped, and there is no room.
    async fn wait_for_room(&self, worker: &Rc<Worker>) -> Option<ClientFile> {
        let mut taken = None;
        // Counts in the kernel, so that the next place is not another client's.
        let mut waiting = None;
        loop {
            let service = Rc::clone(&self.service.borrow());
            let notified = service.shared.room.notified();
            let of_kernel = service.shared_limits().wait_for_ends();
            tokio::pin!(notified, of_kernel);
            notified.as_mut().enable();
            of_kernel.as_mut().enable();
            let mut closed = None;
            let has_room = service.has_room();
            if !has_room && waiting.is_none() {
                waiting = service.take_kernel_place(None).ok().flatten();
            }
            if has_room || self.stopped.get() {
                // Asked for again after it was said what is waited for.
                closed = taken.map(|taken| Box::pin(worker.files.wait_for_close(taken)));
                match worker.client_file() {
                    Ok(file) => return Some(file),
                    Err(_) if self.stopped.get() => return None,
                    Err(now) if taken != Some(now) => {
                        taken = Some(now);
                        tell_of_room(worker);
                        continue;
                    }
                    Err(_) => {}
                }
            }
            std::future::poll_fn(|cx| {
                self.remember_waker(cx);
                let other_service = !Rc::ptr_eq(&service, &self.service.borrow());
                if self.stopped.get() || other_service {
                    return Poll::Ready(());
                }
                match &mut closed {
                    Some(closed) => closed.as_mut().poll(cx),
                    None if notified.as_mut().poll(cx).is_ready() => Poll::Ready(()),
                    None => of_kernel.as_mut().poll(cx),
                }
            })
            .await;
        }
    }

    fn remember_waker(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            *waker = Some(cx.waker().clone());
        }
    }

    fn spawn_client(
        &self,
        worker: &Rc<Worker>,
        client: Socket,
        peer: Peer,
        file: Option<ClientFile>,
    ) {
        let service = self.service.borrow();
        let client = Io::Connection(PeerConnection::Plain(client));
        let Some(file) = file else {
            service.metrics.refused_exhausted.add(1);
            return client.reset_on_drop();
        };
        if service.is_terminated() && !worker.closing.get() {
            service.metrics.terminated.add(1);
            return client.reset_on_drop();
        }
        let mut session = Session::open_session(worker, &service, peer, &self.local, file);
        let rule = service.rule();
        if rule.targets().any(|target| target.send_proxy.is_some())
            && self.local.is_unspecified()
            && let Some(address) = client.local_addr()
        {
            session.local = Rc::new(Local::new(address.into(), Box::default()));
        }
        if rule.rule.accept_proxy.is_some() {
            let tasks = Rc::clone(&self.tasks);
            tokio::task::spawn_local(serve_proxied(session, client, tasks));
        } else {
            serve_client(session, client, &self.tasks);
        }
    }
}

/// Serves a client that comes by way of another proxy, once that has said who the client is.
async fn serve_proxied(session: Session, client: Io, tasks: Rc<Tasks>) {
    if let Some((session, client)) = proxied::read_header(session, client).await {
        serve_client(session, client, &tasks);
    }
}

/// Serves a client whose next byte is its own.
fn serve_client(mut session: Session, client: Io, tasks: &Rc<Tasks>) {
    let protocol = session.service.rule().rule.protocol;
    if !session.admit_client() {
        return match protocol {
            Protocol::Ftp => ftp::refuse_client(client),
            Protocol::Tcp | Protocol::Http | Protocol::Udp => client.reset_on_drop(),
        };
    }
    // With FTP it begins when the client asks for it, and where TLS of some clients passes through, the name that the
    // client asks for decides first.
    if protocol != Protocol::Ftp
        && session.service.rule().first_passed.is_none()
        && let Some(server) = session.service.tls_server()
    {
        let tasks = Rc::clone(tasks);
        tokio::task::spawn_local(serve_tls(session, client, server, tasks));
        return;
    }
    match protocol {
        Protocol::Ftp => {
            tokio::task::spawn_local(ftp::serve_ftp(session, client));
        }
        // No connection comes to a UDP rule.
        Protocol::Tcp | Protocol::Udp => {
            tokio::task::spawn_local(tcp::serve_tcp(session, client));
        }
        Protocol::Http => tasks.serve_client(session, client),
    }
}

/// Serves a client of a rule with TLS.
async fn serve_tls(session: Session, client: Io, server: Arc<Server>, tasks: Rc<Tasks>) {
    let limit = server.handshake_timeout;
    let Ok(client) = handshake::accept_tls(&session, client, &[], &server, limit).await else {
        return;
    };
    // An authority has seen what it was to see.
    let agreed = client.agreed_parameters();
    if agreed.and_then(|agreed| agreed.protocol.as_deref()) == Some(challenge::ALPN) {
        return;
    }
    let client = Io::from(client);
    // In tasks of their own, so that what the handshake took is gone.
    match session.service.rule().rule.protocol {
        Protocol::Tcp | Protocol::Ftp | Protocol::Udp => {
            tokio::task::spawn_local(tcp::serve_tcp(session, client));
        }
        Protocol::Http => tasks.serve_client(session, client),
    }
}

fn tell_of_room(worker: &Worker) {
    let (most, open) = worker.files.client_counts();
    warn_throttled!(
        most,
        open,
        "the open files or the memory of this process allow no more clients at the moment: further \
         ones wait; raise the limit that was logged at the start (LimitNOFILE= or MemoryMax= \
         of the service)"
    );
}

/// Errors that accept(2) passes on from a connection that failed before it was
/// accepted: the next one may be fine.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::TimedOut
    )
}
