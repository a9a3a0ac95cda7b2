//! Sessions of UDP rules: a client's datagrams go to one member, and its answers come back.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use evenkeel_core::group::{GroupState, Outcome};
use evenkeel_core::member::{MemberId, Reason, Slot};
use evenkeel_core::time::Instant;
use evenkeel_manager::config::{UdpOptions, UdpSession};
use evenkeel_manager::snapshot::{RuleSnapshot, Target};
use evenkeel_wire::quic::{ConnectionId, Header, MIN_ID};

use super::client_sessions::{IdKey, ListedId, ListedSession, SessionKey};
use super::connection_ids::MAX_IDS;
use super::reach::{Attempts, Unreached, find_by_id, reach_member, watch_socket};
use super::segments::{BATCH, Destination, Segments, Way, send_all};
use super::socket::{Batch, ClientSocket, DatagramSocket};
use crate::access::{End, Record};
use crate::bound_request::BoundRequest;
use crate::member_choice::insert;
use crate::service::State;
use crate::session::Session;
use crate::watch::Stop;

/// Number of calls for answers that a session makes before others have their turn.
const TURN: usize = 4;

/// Most bytes of datagrams that the sessions of a listener keep for a second member.
const MAX_KEPT: usize = 16 << 20;

/// Client with the address that the client has addressed, which identify a session.
pub(crate) type FlowKey = (SocketAddr, Option<Destination>);

/// State that a listener shares with its sessions.
#[derive(Debug)]
pub(crate) struct ListenerState {
    pub(crate) socket: ClientSocket,
    /// Address of the listener.
    address: SocketAddr,
    /// Sessions of clients, for rules that keep a client at one member.
    flows: RefCell<HashMap<FlowKey, Rc<Flow>>>,
    /// Room for answers.
    answers: RefCell<Batch>,
    /// Bytes of datagrams that are kept for a second member.
    kept: Cell<usize>,
    stopped: Cell<bool>,
}

impl ListenerState {
    pub(crate) fn new(socket: ClientSocket, address: SocketAddr) -> Rc<Self> {
        Rc::new(ListenerState {
            socket,
            address,
            flows: RefCell::default(),
            answers: RefCell::new(Batch::new(false)),
            kept: Cell::new(0),
            stopped: Cell::new(false),
        })
    }

    /// Returns the session of a client.
    pub(crate) fn find_flow(&self, key: &FlowKey) -> Option<Rc<Flow>> {
        self.flows.borrow().get(key).cloned()
    }

    /// Ends the sessions: those that wait for an answer may get it.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        for flow in self.flows.borrow().values() {
            flow.leave();
        }
    }

    /// Forgets a session, if the client has not begun another one.
    pub(crate) fn forget_flow(&self, flow: &Rc<Flow>) {
        let mut flows = self.flows.borrow_mut();
        if flows
            .get(&flow.key)
            .is_some_and(|known| Rc::ptr_eq(known, flow))
        {
            flows.remove(&flow.key);
        }
    }

    /// Keeps a copy of a datagram for a second member, unless too many are kept.
    fn keep_datagram(&self, bytes: &[u8]) -> Option<Box<[u8]>> {
        let kept = self.kept.get() + bytes.len();
        if kept > MAX_KEPT {
            return None;
        }
        self.kept.set(kept);
        Some(bytes.into())
    }

    /// Frees the room of a copy.
    fn release_datagram(&self, kept: Option<Box<[u8]>>) {
        let len = kept.map_or(0, |bytes| bytes.len());
        self.kept.set(self.kept.get().saturating_sub(len));
    }
}

/// A session, as the listener sees it.
#[derive(Debug)]
pub(crate) struct Flow {
    session: Session,
    key: FlowKey,
    options: UdpOptions,
    idle: Duration,
    /// Socket towards the member.
    socket: RefCell<Rc<DatagramSocket>>,
    /// State of the member and its group, which say when the session leaves.
    member: RefCell<Option<(Arc<Slot>, Arc<GroupState>)>>,
    member_id: Cell<Option<MemberId>>,
    member_address: Cell<Option<SocketAddr>>,
    /// Connection ids of QUIC that the session has in the table, with their entries in the list of the process's sessions.
    ids: RefCell<Vec<(ConnectionId, ListedId)>>,
    /// First bytes of the last connection id that the table was asked about.
    checked: Cell<Option<[u8; MIN_ID]>>,
    bytes_received: Cell<u64>,
    bytes_sent: Cell<u64>,
    /// Copy of the first datagram, for a second member, while that is of use.
    kept: RefCell<Option<Box<[u8]>>>,
    /// Refusal of the member that a call has told of: the socket does not tell it a second time.
    refusal: RefCell<Option<io::Error>>,
    /// True if the member has answered.
    answered: Cell<bool>,
    /// True if the client's last datagram has no answer.
    waits: Cell<bool>,
    /// True if the session ends when its last answer is there, or is late.
    leaves: Cell<bool>,
    /// Entry in the list of the process's sessions, as long as the session is there.
    _listed: Option<ListedSession>,
}

impl Flow {
    /// True if the session is to go on at another member.
    pub(crate) fn must_move(&self) -> bool {
        let member = self.member.borrow();
        let Some((slot, group)) = &*member else {
            return false;
        };
        let overridden = match group.is_panicking() {
            true => Reason::OVERRIDDEN_BY_PANIC,
            false => 0,
        };
        slot.reason_bits() & Reason::ENDS_SESSIONS & !overridden != 0
    }

    /// Passes datagrams of the client on. Returns false if the member has answered before and refuses
    /// datagrams now: the session ends, and the datagrams are for another session.
    pub(crate) fn forward_datagrams<'a>(
        &self,
        listener: &ListenerState,
        datagrams: impl Iterator<Item = Segments<'a>> + Clone,
    ) -> bool {
        let (socket, metrics) = (self.socket.borrow(), &self.session.service.metrics);
        let answered = self.answered.get();
        let sent = send_all(
            socket.as_raw_fd(),
            datagrams.clone(),
            Way::default(),
            !answered,
        );
        if let Some(error) = sent.error {
            tracing::debug!(rule = %self.session.service.name, %error, "a datagram was not sent");
            if error.kind() == io::ErrorKind::ConnectionRefused {
                self.refusal.replace(Some(error));
                self.session.watch.wake_task();
                if answered && sent.datagrams == 0 {
                    return false;
                }
            }
        }
        metrics.udp_dropped_unsent.add(sent.unsent);
        for segments in datagrams {
            metrics.udp_datagrams_in.add(segments.count() as u64);
            self.count_received(segments.total_len());
        }
        if !self.options.expect_answer {
            // The first datagram may have arrived long ago.
            listener.release_datagram(self.kept.take());
        }
        self.waits.set(true);
        if !self.leaves.get() && (answered || !self.options.expect_answer) {
            self.session.watch.arm_after_traffic(self.idle, false);
        }
        true
    }

    /// True if the connection of a QUIC packet is at another member: a client has got an address that another
    /// client had.
    pub(crate) fn is_foreign(&self, datagram: &[u8]) -> bool {
        let Some(header) = Header::read(datagram) else {
            return false;
        };
        let prefix = header.destination_prefix();
        if prefix.is_none() || self.checked.replace(prefix) == prefix {
            return false;
        }
        match self
            .session
            .service
            .shared
            .connection_ids
            .find_member(&header)
        {
            Some((_, member)) => self.member_id.get().is_some_and(|own| own != member),
            None => false,
        }
    }

    /// Enters connection ids that the member has chosen into the table.
    fn learn_ids(&self, listener: &ListenerState, answers: &Batch) {
        for datagram in answers.segments().flat_map(Segments::iter) {
            // A packet of Version Negotiation repeats an id of the client.
            if let Some(Header::Long {
                version: 1..,
                source,
                ..
            }) = Header::read(datagram)
                && let Some(id) = ConnectionId::new(source)
            {
                self.add_id(listener, id);
            }
        }
    }

    fn add_id(&self, listener: &ListenerState, id: ConnectionId) {
        let mut ids = self.ids.borrow_mut();
        let has_room = ids.len() < MAX_IDS && ids.iter().all(|(known, _)| *known != id);
        let member = self.member_id.get().zip(self.member_address.get());
        let Some((member, address)) = member.filter(|_| has_room) else {
            return;
        };
        let shared = &self.session.service.shared;
        let listener = listener.address;
        let key = IdKey::new(id, listener);
        let is_free = !shared.client_sessions.has_other_owner(&key, address);
        if is_free && shared.connection_ids.add_session(id, member) {
            ids.push((id, shared.client_sessions.add_id(key, address)));
        }
    }

    fn forget_ids(&self) {
        let table = &self.session.service.shared.connection_ids;
        self.ids
            .take()
            .into_iter()
            .for_each(|(id, _)| table.remove_session(id));
    }

    /// Ends the session when its last answer is there, or is late.
    pub(crate) fn leave(&self) {
        if !self.leaves.replace(true) {
            self.session.watch.arm_deadline(self.options.answer_timeout);
        }
    }

    fn count_received(&self, len: usize) {
        let len = len as u64;
        self.bytes_received.set(self.bytes_received.get() + len);
        self.session.service.metrics.bytes_from_clients.add(len);
    }

    /// Passes answers of the member on.
    fn send_answers(&self, listener: &ListenerState, answers: &Batch) {
        let metrics = &self.session.service.metrics;
        let (client, destination) = self.key;
        let sent = listener
            .socket
            .send_answers(answers.segments(), client, destination);
        self.bytes_sent.set(self.bytes_sent.get() + sent.bytes);
        metrics.bytes_to_clients.add(sent.bytes);
        metrics.udp_datagrams_out.add(sent.datagrams);
        metrics.udp_dropped_unsent.add(sent.unsent);
        if let Some(error) = sent.error {
            tracing::debug!(rule = %self.session.service.name, %error, "an answer was not sent");
        }
        self.waits.set(false);
    }

    fn is_draining(&self, listener: &ListenerState) -> bool {
        listener.stopped.get()
            || self.session.worker.closing.get()
            || self.session.service.state.get() == State::Draining
    }

    /// Passes answers on until something else happens.
    fn poll_event(&self, cx: &mut Context<'_>, listener: &ListenerState) -> Poll<Event> {
        if let Some(error) = self.refusal.take() {
            return Poll::Ready(Event::Failed(error));
        }
        let socket = Rc::clone(&self.socket.borrow());
        // The session of a datagram has one answer.
        let limit = match self.options.session {
            UdpSession::Datagram => 1,
            UdpSession::Client | UdpSession::Quic => BATCH,
        };
        let mut calls = 0;
        loop {
            if calls == TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut answers = listener.answers.borrow_mut();
            match socket.poll_receive(cx, &mut answers, limit) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Event::Failed(error)),
                Poll::Ready(Ok(())) => {}
            }
            if self.options.session == UdpSession::Quic {
                self.learn_ids(listener, &answers);
            }
            self.send_answers(listener, &answers);
            if !self.answered.replace(true) {
                return Poll::Ready(Event::Answered);
            }
            calls += 1;
        }
        if let Some(error) = socket.poll_error(cx) {
            return Poll::Ready(Event::Failed(error));
        }
        let watch = &self.session.watch;
        if calls > 0 && !self.leaves.get() {
            watch.arm_after_traffic(self.idle, true);
        }
        if let Poll::Ready(stop) = watch.poll_stop(cx) {
            return Poll::Ready(match stop {
                Stop::Expired => Event::Silent,
                Stop::Cut => Event::End(End::Terminated),
            });
        }
        if self.is_draining(listener) {
            if !self.waits.get() {
                return Poll::Ready(Event::End(End::Complete));
            }
            self.leave();
        } else if watch.take_call() && !self.waits.get() {
            return Poll::Ready(Event::End(End::Alert));
        }
        Poll::Pending
    }
}

/// Event in a session.
enum Event {
    /// First answer, which was passed on.
    Answered,
    /// Nothing has come for as long as the session may wait.
    Silent,
    /// Error of the socket: an ICMP message says that the member is not there.
    Failed(io::Error),
    /// The session ends for another reason.
    End(End),
}

/// Serves a client that has a new session, with its first datagram.
pub(crate) fn begin_session(
    listener: &Rc<ListenerState>,
    session: Session,
    (key, bytes): (FlowKey, &[u8]),
) {
    let rule = session.service.rule();
    let options = rule.rule.udp.clone();
    let target = &rule.default_target;
    let metrics = Rc::clone(&session.service);
    let metrics = &metrics.metrics;
    let (at, started) = (SystemTime::now(), session.worker.now());
    if target.policy.is_in_maintenance(session.peer.ip()) {
        metrics.refused_maintenance.add(1);
        return metrics.udp_dropped_refused.add(1);
    }
    let known = match options.session {
        UdpSession::Quic => Header::read(bytes)
            .and_then(|header| find_by_id(&session, listener.address, target, &header)),
        UdpSession::Client | UdpSession::Datagram => None,
    };
    let mut attempts = Attempts {
        pinned: known.map(|(_, member)| member),
        ..Attempts::default()
    };
    let begin = Begin {
        at,
        started,
        first_answer: None,
    };
    let reached = reach_member(&session, &rule, target, &mut attempts, bytes)
        .and_then(|link| watch_socket(&session, target, link));
    match reached {
        Ok((bound, socket)) => {
            let is_by_itself = options.session == UdpSession::Datagram;
            let is_message = is_by_itself && !options.expect_answer;
            let kept = match rule.rule.connect_retries > 0 && !is_message {
                true => listener.keep_datagram(bytes),
                false => None,
            };
            let flow = Rc::new(Flow {
                key,
                idle: rule.rule.timeouts.idle,
                socket: RefCell::new(Rc::new(socket)),
                member: RefCell::default(),
                member_id: Cell::new(Some(bound.member)),
                member_address: Cell::new(bound.address.socket()),
                ids: RefCell::default(),
                checked: Cell::new(
                    Header::read(bytes).and_then(|header| header.destination_prefix()),
                ),
                bytes_received: Cell::new(0),
                bytes_sent: Cell::new(0),
                kept: RefCell::new(kept),
                refusal: RefCell::default(),
                answered: Cell::new(false),
                waits: Cell::new(true),
                leaves: Cell::new(false),
                _listed: list_session(&session, listener, &key, &options),
                options,
                session,
            });
            flow.count_received(bytes.len());
            if let Some((id, member)) = known
                && member == bound.member
            {
                flow.add_id(listener, id);
            }
            if is_message {
                let now = flow.session.worker.now();
                target.group.finish(bound.ticket, Outcome::Cancelled, now);
                return log_session(&flow, &rule, &begin, attempts, End::Complete);
            }
            if !is_by_itself {
                let mut flows = listener.flows.borrow_mut();
                flows.insert(flow.key, Rc::clone(&flow));
            }
            let listener = Rc::clone(listener);
            tokio::task::spawn_local(async move {
                serve_flow(&listener, &flow, begin, bound, attempts).await;
            });
        }
        Err(Unreached { end, is_unserved }) => {
            if is_unserved {
                refuse_datagram(&session, listener, &key, bytes);
            }
            session.count_end(end);
            metrics.udp_dropped_refused.add(1);
        }
    }
}

/// Tells a client that nobody takes its datagram.
fn refuse_datagram(
    session: &Session,
    listener: &ListenerState,
    (client, destination): &FlowKey,
    bytes: &[u8],
) {
    let mut to = listener.address;
    if let Some(destination) = destination {
        to.set_ip(destination.ip);
    }
    let errors = &session.service.shared.udp_errors;
    errors.send_unreachable(*client, to, bytes.len(), session.worker.now());
}

/// Lists a session of a client at a single address, which the kernel is to leave to the process.
fn list_session(
    session: &Session,
    listener: &ListenerState,
    (client, destination): &FlowKey,
    options: &UdpOptions,
) -> Option<ListedSession> {
    let is_known_to_kernel = destination.is_none() && options.session != UdpSession::Datagram;
    let key = SessionKey::new(*client, listener.address);
    let list = &session.service.shared.client_sessions;
    is_known_to_kernel.then(|| list.add_session(key))
}

/// Begin of a session, and its first answer.
struct Begin {
    at: SystemTime,
    started: Instant,
    first_answer: Option<Duration>,
}

/// Serves a session until its end.
async fn serve_flow(
    listener: &ListenerState,
    flow: &Rc<Flow>,
    mut begin: Begin,
    mut bound: BoundRequest,
    mut attempts: Attempts,
) {
    let session = &flow.session;
    let mut rule = session.service.rule();
    let mut group = Arc::clone(&rule.default_target.group);
    let (end, outcome) = loop {
        watch_member(flow, &rule.default_target, &bound);
        let event = loop {
            match std::future::poll_fn(|cx| flow.poll_event(cx, listener)).await {
                Event::Answered => {
                    listener.release_datagram(flow.kept.take());
                    let now = session.worker.now();
                    begin.first_answer = Some(now.since(bound.ticket.started()));
                    bound.ticket.record_response(Outcome::Success, now);
                    if flow.options.session == UdpSession::Datagram {
                        break Event::End(End::Complete);
                    }
                    if !flow.leaves.get() {
                        session.watch.arm_after_traffic(flow.idle, true);
                    }
                }
                other => break other,
            }
        };
        let answered = flow.answered.get();
        let expects = flow.options.expect_answer;
        match event {
            Event::Failed(error) if !answered => {
                tracing::debug!(rule = %session.service.name, address = %bound.address, %error,
                    "a member refuses datagrams");
                session.service.metrics.member_connect_failures.add(1);
                let may_retry = attempts.retries < rule.rule.connect_retries;
                let kept = flow.kept.borrow();
                let Some(bytes) = kept.as_ref().filter(|_| may_retry) else {
                    let bytes = kept.as_deref().unwrap_or_default();
                    refuse_datagram(session, listener, &flow.key, bytes);
                    break (End::Member, Outcome::Failure);
                };
                let now = session.worker.now();
                insert(&mut attempts.tried, bound.member);
                attempts.retries += 1;
                session.service.metrics.retries.add(1);
                group.finish(bound.ticket, Outcome::Failure, now);
                rule = session.service.rule();
                group = Arc::clone(&rule.default_target.group);
                let target = &rule.default_target;
                let link = reach_member(session, &rule, target, &mut attempts, bytes);
                match link.and_then(|link| watch_socket(session, target, link)) {
                    Ok((next, socket)) => {
                        bound = next;
                        flow.socket.replace(Rc::new(socket));
                    }
                    // The failure counts for more than that nobody is left.
                    Err(unreached) => {
                        if unreached.is_unserved {
                            refuse_datagram(session, listener, &flow.key, bytes);
                        }
                        drop(kept);
                        return end_flow(listener, flow, (&rule, &begin, attempts), End::Member);
                    }
                }
            }
            Event::Failed(_) => break (End::Member, Outcome::Failure),
            Event::Silent if !answered && expects && !flow.is_draining(listener) => {
                break (End::MemberTimeout, Outcome::Error);
            }
            Event::Silent if answered => break (End::Complete, Outcome::Success),
            Event::Silent | Event::Answered => break (End::Complete, Outcome::Cancelled),
            Event::End(end) => {
                let outcome = match answered {
                    true => Outcome::Success,
                    false => Outcome::Cancelled,
                };
                break (end, outcome);
            }
        }
    };
    group.finish(bound.ticket, outcome, session.worker.now());
    end_flow(listener, flow, (&rule, &begin, attempts), end);
}

/// Notes the member of a session, and the time that it has for its first answer.
fn watch_member(flow: &Flow, target: &Target, bound: &BoundRequest) {
    let session = &flow.session;
    let group = target.group.current.load();
    let index = group.find(bound.member, bound.ticket.member_index());
    let slot = index.and_then(|index| group.members().get(index));
    let slot = slot.map(|member| (Arc::clone(&member.slot), Arc::clone(group.state())));
    flow.member.replace(slot);
    flow.member_id.set(Some(bound.member));
    flow.member_address.set(bound.address.socket());
    let jitter = session.worker.rng.borrow_mut().f32();
    session.watch.tie_to_member(bound.member, jitter);
    match flow.options.expect_answer || flow.leaves.get() {
        true => session.watch.arm_deadline(flow.options.answer_timeout),
        false => session.watch.arm_after_traffic(flow.idle, false),
    }
}

/// Forgets a session, and counts and logs its end.
fn end_flow(
    listener: &ListenerState,
    flow: &Rc<Flow>,
    (rule, begin, attempts): (&RuleSnapshot, &Begin, Attempts),
    end: End,
) {
    listener.release_datagram(flow.kept.take());
    listener.forget_flow(flow);
    flow.forget_ids();
    log_session(flow, rule, begin, attempts, end);
}

/// Counts the end of a session, and writes its record.
fn log_session(flow: &Flow, rule: &RuleSnapshot, begin: &Begin, attempts: Attempts, end: End) {
    let session = &flow.session;
    session.count_end(end);
    if !session.wants_record(false) {
        return;
    }
    let group = rule.default_target.group.current.load();
    let record = Record {
        at: begin.at,
        client: session.peer,
        rule: Cow::Borrowed(&session.service.name),
        user: None,
        route: None,
        group: Some(Cow::Borrowed(&**group.name())),
        attempts: attempts.tries,
        tls: None,
        server_name: None,
        request: None,
        protocol: None,
        details: None,
        head_bytes_sent: 0,
        status: None,
        grpc_status: None,
        bytes_received: flow.bytes_received.get(),
        bytes_sent: flow.bytes_sent.get(),
        response_time: begin.first_answer,
        total_time: session.worker.now().since(begin.started),
        cost: rule.rule.cost,
        retries: attempts.retries,
        end,
        limit: None,
        request_limit: None,
        hedged: None,
    };
    session.log_record(false, record);
}
