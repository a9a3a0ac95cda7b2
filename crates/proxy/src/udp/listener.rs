//! Listeners of UDP rules: every worker has its own socket on every address, and the kernel spreads
//! clients over them, so that the datagrams of a client come to one worker.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::UdpSocket as StdSocket;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_core::binding::BindingEnd;
use evenkeel_limits::{Shortage, warn_throttled};
use evenkeel_manager::config::UdpSession;

use super::flow::{FlowKey, ListenerState, begin_session};
use super::segments::Segments;
use super::socket::{Batch, ClientSocket};
use crate::access::Peer;
use crate::service::{Service, State};
use crate::session::{Local, Session};
use crate::watch::{ServiceId, Stop};
use crate::worker::{Vital, Worker};

/// Time for which no datagram is received after receiving failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener for datagrams of this worker.
#[derive(Debug)]
pub(crate) struct DatagramListener {
    state: Rc<ListenerState>,
    local: Rc<Local>,
    service: RefCell<Rc<Service>>,
    stopped: Cell<bool>,
    /// Datagrams are left to another process that has the socket.
    handed_over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Result of waiting for datagrams.
enum Next {
    Received,
    Failed(io::Error),
    Stopped,
}

impl DatagramListener {
    /// Begins to receive datagrams for `service`.
    pub(crate) fn start(
        worker: &Rc<Worker>,
        socket: StdSocket,
        service: &Rc<Service>,
    ) -> io::Result<Rc<Self>> {
        let local = socket.local_addr()?;
        let listener = Rc::new(DatagramListener {
            state: ListenerState::new(ClientSocket::new(socket)?, local),
            local: Rc::new(Local::new(local.into(), Box::default())),
            service: RefCell::new(Rc::clone(service)),
            stopped: Cell::new(false),
            handed_over: Cell::new(worker.rests.get()),
            waker: RefCell::new(None),
        });
        listener.apply_options();
        let (this, worker) = (Rc::clone(&listener), Rc::clone(worker));
        tokio::task::spawn_local(async move { this.receive_datagrams(worker).await });
        Ok(listener)
    }

    /// Sessions that begin from now on belong to `service`.
    pub(crate) fn set_service(&self, service: Rc<Service>) {
        self.service.replace(service);
        self.apply_options();
    }

    fn apply_options(&self) {
        let service = self.service.borrow();
        let offload = service.rule().rule.udp.uses_offload();
        self.state.socket.set_offload(offload);
    }

    /// Receives nothing more. Sessions that wait for an answer may still get it.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.state.stop();
        self.wake();
    }

    /// Leaves datagrams to another process that has the socket, or receives them again.
    pub(crate) fn set_handed_over(&self, handed_over: bool) {
        self.handed_over.set(handed_over);
        self.wake();
    }

    /// The socket under a handle of its own.
    pub(crate) fn clone_socket(&self) -> io::Result<OwnedFd> {
        self.state.socket.clone_handle()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn receive_datagrams(&self, worker: Rc<Worker>) {
        let _vital = Vital(Rc::clone(&worker));
        let mut batch = Batch::new(true);
        loop {
            match std::future::poll_fn(|cx| self.poll_next(cx, &mut batch)).await {
                Next::Received => self.take_batch(&worker, &batch),
                Next::Failed(error) => {
                    match Shortage::of_error(&error) {
                        Some(shortage) => shortage.report_failure("receive a datagram"),
                        None => {
                            warn_throttled!(%error, "cannot receive datagrams; next try in {PAUSE:?}")
                        }
                    }
                    let watch = worker.watchers.watch_task(ServiceId::WORKER);
                    let _: Stop = watch.sleep_or_stop(PAUSE).await;
                }
                Next::Stopped => return,
            }
        }
    }

    fn poll_next(&self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<Next> {
        if self.stopped.get() {
            return Poll::Ready(Next::Stopped);
        }
        let received = match self.handed_over.get() {
            true => Poll::Pending,
            false => self.state.socket.poll_receive(cx, batch),
        };
        match received {
            Poll::Ready(Ok(())) => Poll::Ready(Next::Received),
            Poll::Ready(Err(error)) => Poll::Ready(Next::Failed(error)),
            Poll::Pending => {
                self.waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// Gives datagrams to the sessions of their clients, those of a client together.
    fn take_batch(&self, worker: &Rc<Worker>, batch: &Batch) {
        let mut rest = batch.datagrams();
        while let Some(first) = rest.clone().next() {
            let key = (first.client, first.destination);
            let run = rest
                .clone()
                .take_while(|next| (next.client, next.destination) == key);
            let count = run.clone().count();
            self.take_run(worker, key, run.map(|next| next.segments));
            rest.nth(count.saturating_sub(1));
        }
    }

    /// Gives datagrams of a client to the session, or begins sessions.
    fn take_run<'a>(
        &self,
        worker: &Rc<Worker>,
        key: FlowKey,
        mut run: impl Iterator<Item = Segments<'a>> + Clone,
    ) {
        while run.clone().next().is_some() {
            if self.continue_session(key, run.clone()) {
                return;
            }
            // The first datagram begins a session, for others in its buffer, too.
            let buffer = run.next().into_iter().flat_map(Segments::iter);
            for bytes in buffer {
                if !self.continue_session(key, [Segments::single(bytes)].into_iter()) {
                    self.take_first(worker, key, bytes);
                }
            }
        }
    }

    /// Gives datagrams to the session of their client. False if the client has none.
    fn continue_session<'a>(
        &self,
        key: FlowKey,
        datagrams: impl Iterator<Item = Segments<'a>> + Clone,
    ) -> bool {
        let service = self.service.borrow();
        let session = service.rule().rule.udp.session;
        let keeps_clients = session != UdpSession::Datagram;
        let Some(flow) = self.state.find_flow(&key).filter(|_| keeps_clients) else {
            return false;
        };
        let is_foreign = session == UdpSession::Quic
            && datagrams
                .clone()
                .flat_map(Segments::iter)
                .any(|datagram| flow.is_foreign(datagram));
        if is_foreign {
            self.state.forget_flow(&flow);
            flow.leave();
            return false;
        }
        if !flow.must_move() && flow.forward_datagrams(&self.state, datagrams) {
            return true;
        }
        self.state.forget_flow(&flow);
        flow.leave();
        service.metrics.count_move(BindingEnd::Unusable);
        false
    }

    /// Begins a session with a datagram.
    fn take_first(&self, worker: &Rc<Worker>, key: FlowKey, bytes: &[u8]) {
        let service = Rc::clone(&self.service.borrow());
        let metrics = &service.metrics;
        metrics.udp_datagrams_in.add(1);
        if service.state.get() == State::Draining {
            return metrics.udp_dropped_refused.add(1);
        }
        let file = match service.has_room() {
            true => worker.client_file().ok(),
            false => None,
        };
        let Some(file) = file else {
            warn_throttled!(
                rule = %service.name,
                "no further UDP session has room, so datagrams are dropped: raise max_connections of the \
                 rule, the limit on open files, or shorten idle_timeout"
            );
            return metrics.udp_dropped_full.add(1);
        };
        let peer = Peer(Some(key.0));
        let mut session = Session::open_session(worker, &service, peer, &self.local, file);
        if !session.admit_client() {
            return metrics.udp_dropped_refused.add(1);
        }
        begin_session(&self.state, session, (key, bytes));
    }
}
