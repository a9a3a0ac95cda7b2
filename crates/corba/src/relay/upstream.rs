//! A connection to a member, with the requests that are under way on it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use evenkeel_core::group::Outcome;
use evenkeel_core::time::Instant;
use evenkeel_giop::cdr::Endian;
use evenkeel_giop::context::{CODE_SETS, Contexts, ServiceContext};
use evenkeel_giop::exception::{Completion, Kind, SystemException};
use evenkeel_giop::fragment;
use evenkeel_giop::message::{Content, GiopError, Message, Request};
use evenkeel_giop::wire::{Stop, Wire};
use evenkeel_limits::Shortage;
use tokio::net::TcpStream;

use super::counters::count;
use super::endpoint::{Endpoint, outgoing_version};
use super::job::Job;
use super::state::{ConnectionState, MemberRequest, Pool, Relay, Route, Slot, Upstream};

/// Most requests under way on one connection.
const MOST: usize = 1024;
/// Output above which a connection takes no more requests.
const MOST_OUTPUT: usize = 4 << 20;
/// Most replies that are handled before others get their turn.
const REPLIES_PER_TURN: usize = 64;
/// The service context of BiDirIIOP (CORBA 3.3, part 2, 9.7.1.1).
const BI_DIR_IIOP: u32 = 5;
/// Ids of requests that have no reply have this bit, so that they are nobody else's.
const ONEWAY: u32 = 1 << 31;

fn id_of(slot: usize, used: u16) -> u32 {
    (u32::from(used & 0x7fff) << 16) | slot as u32
}

/// Reason why a connection ends.
pub(super) enum End {
    /// The connection could not be made.
    NotConnected(io::Error),
    /// The server closes it in good order: it has not begun what it has not answered.
    Closed,
    /// The connection broke.
    Broken(String),
    /// The connection broke because this process ran out of something.
    Exhausted(Shortage),
    /// Nobody used it.
    Idle,
}

impl End {
    /// Of a connection that broke, with `error` if that is known.
    fn of(error: Option<&io::Error>) -> Self {
        match error.and_then(Shortage::of_error) {
            Some(shortage) => End::Exhausted(shortage),
            None => End::Broken(error.map_or("the member closed it".into(), io::Error::to_string)),
        }
    }

    /// Returns the shortage in this process that ended the connection, if there was one: the member
    /// is not to blame.
    fn shortage(&self) -> Option<Shortage> {
        match self {
            End::NotConnected(error) => Shortage::of_error(error),
            End::Exhausted(shortage) => Some(*shortage),
            End::Closed | End::Broken(_) | End::Idle => None,
        }
    }

    /// Returns the outcome for the members whose requests were under way.
    fn outcome(&self) -> Outcome {
        match self.shortage() {
            Some(_) => Outcome::Cancelled,
            None => Outcome::Failure,
        }
    }
}

impl Upstream {
    /// Opens a connection; what is sent waits until it is there.
    pub(super) fn open(relay: &Relay, pool: &Rc<Pool>, endpoint: &Rc<Endpoint>) -> Rc<Self> {
        let upstream = Rc::new(Upstream {
            relay: Weak::clone(&relay.myself),
            pool: Rc::downgrade(pool),
            endpoint: Rc::clone(endpoint),
            state: RefCell::new(ConnectionState {
                used: relay.clock.now(),
                ..ConnectionState::default()
            }),
            under_way: Cell::new(0),
            waker: RefCell::default(),
        });
        count(&relay.counters.connects);
        relay.counters.open.fetch_add(1, Ordering::Relaxed);
        let timeout = relay.settings.connect_timeout;
        let task = Rc::clone(&upstream);
        tokio::task::spawn_local(async move {
            let end = match tokio::time::timeout(timeout, connect(&task.endpoint)).await {
                Ok(Ok(stream)) => {
                    let Some(mut wire) = task.wire(stream) else {
                        return;
                    };
                    poll_fn(|cx| task.turn(&mut wire, cx)).await
                }
                Ok(Err(error)) => End::NotConnected(error),
                Err(_) => End::NotConnected(io::ErrorKind::TimedOut.into()),
            };
            task.end(end);
        });
        upstream
    }

    fn wire(&self, stream: TcpStream) -> Option<Wire> {
        let relay = self.relay.upgrade()?;
        Some(Wire::new(
            stream,
            &relay.buffers,
            relay.settings.max_message,
        ))
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.get()
    }

    pub(super) fn is_full(&self) -> bool {
        self.under_way() >= MOST || self.state.borrow().out.len() >= MOST_OUTPUT
    }

    /// Sends a request; the answer goes to its client when it comes.
    pub(super) fn send(
        &self,
        relay: &Relay,
        job: Job,
        route: &Route,
        message: &Message<'_>,
        request: &Request<'_>,
    ) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let begins = state.appended;
        let slot = job.later.is_some().then(|| state.free_place());
        let id = match slot {
            Some(slot) => state.slots.get(slot).map_or(0, |p| id_of(slot, p.used)),
            None => {
                state.oneways = state.oneways.wrapping_add(1);
                state.oneways | ONEWAY
            }
        };
        if let Err(error) = encode(relay, state, id, &job, route, message, request) {
            tracing::debug!("CORBA: a request cannot be relayed: {error}");
            if let Some(slot) = slot {
                state.free.push(slot as u16);
            }
            let exception = SystemException::new(Kind::Marshal);
            return relay.refuse(job, exception.with_completion(Completion::No));
        }
        state.settled = true;
        match slot.and_then(|slot| state.slots.get_mut(slot)) {
            Some(slot) => {
                slot.request = Some(MemberRequest {
                    job,
                    member: Rc::clone(&route.member),
                    endpoint: Rc::clone(&route.endpoint),
                    begins,
                });
                self.under_way.set(self.under_way.get() + 1);
            }
            None => relay.done(job),
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// The request with that id, which ends with this.
    pub(super) fn take_request(&self, id: u32) -> Option<MemberRequest> {
        let mut state = self.state.borrow_mut();
        let index = (id & 0xffff) as usize;
        let slot = state.slots.get_mut(index)?;
        if id_of(index, slot.used) != id {
            return None;
        }
        let request = slot.request.take()?;
        slot.used = slot.used.wrapping_add(1);
        state.free.push(index as u16);
        self.under_way.set(self.under_way.get().saturating_sub(1));
        Some(request)
    }

    /// Takes all requests that `which` wants, with their ids.
    fn take_all(&self, which: impl Fn(&Job) -> bool) -> Vec<(u32, MemberRequest)> {
        let ids: Vec<u32> = {
            let state = self.state.borrow();
            let slots = state.slots.iter().enumerate();
            let wanted = slots.filter(|(_, slot)| {
                let request = slot.request.as_ref();
                request.is_some_and(|request| which(&request.job))
            });
            wanted
                .map(|(index, slot)| id_of(index, slot.used))
                .collect()
        };
        let taken = ids.into_iter().map(|id| Some((id, self.take_request(id)?)));
        taken.flatten().collect()
    }

    /// Tells the member that nobody waits for that answer.
    fn send_cancel(&self, id: u32, request: &MemberRequest) {
        let mut state = self.state.borrow_mut();
        let before = state.out.len();
        let version = outgoing_version(request.job.reply_to.version, &request.endpoint);
        let cancel = Content::CancelRequest { request_id: id };
        // Nothing in it depends on the version, so it cannot fail.
        let _ = cancel.encode(version, Endian::NATIVE, &mut state.out);
        state.appended += (state.out.len() - before) as u64;
        drop(state);
        self.wake();
    }

    pub(super) fn cancel(&self, relay: &Relay, client: u64, request_id: Option<u32>) {
        if self.under_way() == 0 {
            return;
        }
        let of_client = |job: &Job| {
            job.client == client && request_id.is_none_or(|id| id == job.reply_to.request_id)
        };
        for (id, request) in self.take_all(of_client) {
            self.send_cancel(id, &request);
            relay.done(request.job);
        }
    }

    /// Looks at time limits.
    pub(super) fn check_time_limits(&self, relay: &Relay, now: Instant) {
        let mut state = self.state.borrow_mut();
        if self.under_way() > 0 || state.appended != state.appended_then {
            (state.used, state.appended_then) = (now, state.appended);
        } else if now.since(state.used) >= relay.settings.idle_timeout && state.out.is_empty() {
            state.closing = true;
            drop(state);
            // From here on nobody sends over it.
            self.leave_pool();
            self.wake();
            return;
        }
        drop(state);
        for (id, mut request) in self.take_all(|job| job.deadline <= now) {
            self.send_cancel(id, &request);
            count(&relay.counters.timeouts);
            request.job.finish(Outcome::Failure, now);
            let exception = SystemException::new(Kind::Timeout);
            relay.refuse(request.job, exception.with_completion(Completion::Maybe));
        }
    }

    /// Runs one turn: sends, reads and handles what is there, up to a bound.
    fn turn(&self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<End> {
        let Some(relay) = self.relay.upgrade() else {
            return Poll::Ready(End::Idle);
        };
        match &mut *self.waker.borrow_mut() {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        let mut budget = REPLIES_PER_TURN;
        loop {
            let mut state = self.state.borrow_mut();
            match wire.send_buffer(cx, &mut state.out) {
                Ok(sent) => state.sent += sent as u64,
                Err(error) => return Poll::Ready(End::of(Some(&error))),
            }
            if state.closing {
                return Poll::Ready(End::Idle);
            }
            drop(state);
            if budget == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let now = relay.clock.now();
            let handle = |message: Message<'_>| relay.handle_message(self, message, now);
            match wire.receive_messages(cx, &mut budget, handle) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(Stop::Handler(end))) => return Poll::Ready(end),
                Poll::Ready(Err(Stop::NotValid(error))) => {
                    return Poll::Ready(End::Broken(error.to_string()));
                }
                Poll::Ready(Err(Stop::Gone(error))) => {
                    return Poll::Ready(End::of(error.as_ref()));
                }
            }
        }
    }

    fn leave_pool(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.remove(self);
        }
    }

    /// The connection is over: what is under way is sent again or given up.
    fn end(&self, end: End) {
        self.leave_pool();
        self.waker.take();
        let Some(relay) = self.relay.upgrade() else {
            return;
        };
        relay.counters.open.fetch_sub(1, Ordering::Relaxed);
        let (name, port) = self.endpoint.addresses.first().cloned().unwrap_or_default();
        match &end {
            End::NotConnected(error) => {
                tracing::debug!("CORBA: cannot connect to {name}:{port}: {error}");
            }
            End::Broken(error) => {
                tracing::debug!("CORBA: lost the connection to {name}:{port}: {error}");
            }
            End::Exhausted(_) | End::Closed | End::Idle => {}
        }
        let shortage = end.shortage();
        if let Some(shortage) = shortage {
            shortage.report_failure("relay a request (CORBA)");
        }
        let outcome = end.outcome();
        let now = relay.clock.now();
        let sent = self.state.borrow().sent;
        for (_, request) in self.take_all(|_| true) {
            let MemberRequest {
                mut job,
                member,
                endpoint,
                begins,
            } = request;
            match &end {
                End::NotConnected(_) => {
                    if shortage.is_none() {
                        member.endpoint_failed(&endpoint);
                    }
                    job.finish(outcome, now);
                    relay.send_again(job, now);
                }
                // It has done nothing wrong, and may have the next one.
                End::Closed | End::Idle => {
                    job.bound = None;
                    relay.send_again(job, now);
                }
                End::Broken(_) | End::Exhausted(_) if begins >= sent => {
                    job.finish(outcome, now);
                    relay.send_again(job, now);
                }
                End::Broken(_) | End::Exhausted(_) => {
                    if shortage.is_none() {
                        member.endpoint_failed(&endpoint);
                    }
                    job.finish(outcome, now);
                    let exception = SystemException::new(Kind::CommFailure);
                    relay.refuse(job, exception.with_completion(Completion::Maybe));
                }
            }
        }
    }
}

/// Appends a request as the member is to get it.
fn encode(
    relay: &Relay,
    state: &mut ConnectionState,
    id: u32,
    job: &Job,
    route: &Route,
    message: &Message<'_>,
    request: &Request<'_>,
) -> Result<(), GiopError> {
    let settle = job.code_sets.filter(|_| !state.settled);
    let sets = settle.map(|sets| sets.encode(job.reply_to.endian));
    let passes = |context: &ServiceContext<'_>| !matches!(context.id, CODE_SETS | BI_DIR_IIOP);
    let changed = sets.is_some() || !request.contexts.iter().all(|context| passes(&context));
    let mut list = Vec::new();
    if changed {
        list.extend(sets.iter().map(|data| ServiceContext {
            id: CODE_SETS,
            data,
        }));
        list.extend(request.contexts.iter().filter(passes));
    }
    let onward = Request {
        request_id: id,
        request_id_at: 0,
        response_flags: request.response_flags,
        target: route.endpoint.target(route.member.addressing()),
        operation: request.operation,
        contexts: match changed {
            true => Contexts::from_list(&list),
            false => request.contexts.clone(),
        },
        principal: request.principal,
        body: request.body,
        body_at: request.body_at,
    };
    let version = outgoing_version(job.reply_to.version, &route.endpoint);
    if state.out.capacity() == 0 {
        state.out = relay.buffers.take();
    }
    let before = state.out.len();
    onward.encode(version, job.reply_to.endian, &mut state.out)?;
    if let Err(error) = fragment::cut_like(message, &mut state.out, before) {
        state.out.truncate(before);
        return Err(error);
    }
    state.appended += (state.out.len() - before) as u64;
    Ok(())
}

impl ConnectionState {
    /// A slot that is free; there are never more than [`MOST`] in use.
    fn free_place(&mut self) -> usize {
        if let Some(slot) = self.free.pop() {
            return usize::from(slot);
        }
        self.slots.push(Slot::default());
        self.slots.len() - 1
    }
}

/// Connects to the first address that can be connected to.
///
/// # Errors
///
/// The last address's, or that of one which could not be tried for want of something here.
async fn connect(endpoint: &Endpoint) -> io::Result<TcpStream> {
    let mut failed = io::ErrorKind::AddrNotAvailable.into();
    for (host, port) in &endpoint.addresses {
        match TcpStream::connect((host.as_str(), *port)).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if Shortage::of_error(&failed).is_none() => failed = error,
            Err(_) => {}
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shortage in this process is no failure of the member, whether it is met when the
    /// connection is made or later.
    #[test]
    fn s5_what_runs_out_here_is_held_against_no_member() {
        let error = io::Error::from_raw_os_error;
        // EMFILE, ENFILE, EADDRNOTAVAIL, ENOBUFS and ENOMEM on Linux.
        for ours in [24, 23, 99, 105, 12] {
            assert_eq!(End::NotConnected(error(ours)).outcome(), Outcome::Cancelled);
            assert_eq!(End::of(Some(&error(ours))).outcome(), Outcome::Cancelled);
        }
        // ECONNREFUSED and ECONNRESET.
        assert_eq!(End::NotConnected(error(111)).outcome(), Outcome::Failure);
        assert_eq!(End::of(Some(&error(104))).outcome(), Outcome::Failure);
        assert_eq!(End::of(None).outcome(), Outcome::Failure);
    }
}
