//! Connections of HTTP/2 to members, kept by each worker for itself: many requests at once in one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_core::address::Address;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_limits::Shortage;
use h2::client::{Builder, SendRequest};
use h2::{FlowControl, Ping, PingPong, StreamId};
use http::uri::Scheme;
use tokio::sync::Notify;

use super::held::{Held, Part};
use super::meter::Meter;
use super::wire::{Metered, Wire};
use crate::io::Io;
use crate::memory::{Charge, Memory};
use crate::metrics::RuleMetrics;
use crate::pool::Upstream;
use crate::watch::{ServiceId, Stop};
use crate::worker::Worker;

/// What a member may send in a stream before some of it is passed on, in bytes.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all streams of a connection whose clients take what comes.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Bytes of content after which it is looked at what clients have not taken, and in steps of which the
/// connection gets more room for the others.
const WINDOW_STEP: u32 = 128 * 1024;

/// What waits in a stream for a member to take it, in bytes.
const SEND_BUFFER: usize = 32 * 1024;

/// Streams in a connection before the member has said how many it takes, and at most.
const FIRST_STREAMS: usize = 100;
const MOST_STREAMS: usize = 256;

/// Most members of which it is kept that they have chosen HTTP/1.1.
const MOST_DECLINED: usize = 4096;

/// The connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct Links {
    members: RefCell<BTreeMap<MemberId, Vec<Rc<Link>>>>,
    /// Members that are being connected to, and who wants to know when that is over.
    opening: RefCell<BTreeMap<MemberId, Rc<Notify>>>,
    /// Members that had the choice, and have chosen HTTP/1.1.
    declined: RefCell<BTreeSet<MemberId>>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) send: RefCell<SendRequest<Part>>,
    /// What is on its way to the member.
    held: Rc<Held>,
    /// The number of what has done the handshake of TLS; 0 is nobody.
    tls: u64,
    /// Whether the member has refused the connection after that.
    refusal: Option<Rc<Cell<bool>>>,
    /// Requests that are under way, and whether there was any before.
    streams: Cell<usize>,
    used: Cell<bool>,
    /// Since when there are none.
    idle_since: Cell<Instant>,
    /// It takes no more requests.
    closed: Cell<bool>,
    /// The connection's task, which is told when the last request ends.
    task: RefCell<Option<Waker>>,
    /// Whether the member has said what it can, and who waits for that.
    settled: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    /// Streams with responses that are being read.
    receiving: RefCell<Vec<FlowControl>>,
    /// True if there is no memory for what clients do not take, so that they may stop others.
    is_short: Cell<bool>,
}

/// Room in a connection for what arrives: what some clients do not take leaves as much as before for others.
#[derive(Debug, Default)]
struct Window {
    /// Bytes of content that had been sent by the member at the last look.
    seen: u64,
    /// Bytes of room beyond [`CONNECTION_WINDOW`], and memory for them.
    extra: u32,
    charge: Option<Charge>,
    /// True if there was no memory for as much as is needed.
    is_short: bool,
}

impl Window {
    /// Looks at what is `unread`, if the member has sent enough since the last time. Answers the window that the
    /// connection is to have, if that is another one.
    fn adjust(
        &mut self,
        sent: u64,
        unread: impl FnOnce() -> usize,
        memory: &Arc<Memory>,
    ) -> Option<u32> {
        if !self.is_short && sent.saturating_sub(self.seen) < u64::from(WINDOW_STEP) {
            return None;
        }
        self.seen = sent;
        let most = MOST_STREAMS as u32 * STREAM_WINDOW;
        let unread = u32::try_from(unread()).unwrap_or(most).min(most);
        let extra = unread - unread % WINDOW_STEP;
        let was_short = std::mem::replace(&mut self.is_short, false);
        if extra == self.extra {
            return None;
        }
        let bytes = extra as usize;
        let charged = match &mut self.charge {
            Some(charge) if bytes > 0 => {
                charge.shrink(bytes);
                charge.grow(bytes).is_ok()
            }
            None if bytes > 0 => {
                self.charge = memory.take(bytes).ok();
                self.charge.is_some()
            }
            _ => {
                self.charge = None;
                true
            }
        };
        if !charged {
            self.is_short = true;
            if !was_short {
                Shortage::Memory.met("hold what clients do not take from a member over HTTP/2");
            }
            return None;
        }
        self.extra = extra;
        Some(CONNECTION_WINDOW + extra)
    }
}

/// When a connection ends by itself.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Without requests after this time.
    pub(crate) idle: Duration,
    /// After so long with requests under way the member is asked for a sign of life,
    pub(crate) ping_after: Duration,
    /// and has so long for it.
    pub(crate) pong_within: Duration,
    /// Where that is counted, and who it is.
    pub(crate) metrics: Arc<RuleMetrics>,
    pub(crate) address: Address,
}

/// The right to a stream of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) link: Rc<Link>,
    pub(super) worker: Rc<Worker>,
    /// The stream, while its response is being read.
    receiving: Option<StreamId>,
    /// The connection was used before, and idle: the member may have closed it just then.
    was_idle: bool,
}

/// How somebody gets a connection.
pub(crate) enum Way {
    /// There is one with room.
    Here(Rc<Link>),
    /// Somebody else opens one.
    Wait(Rc<Notify>),
    /// The caller opens one; others wait until this is dropped.
    Open(Opening),
}

/// Says to those who wait that a connection is there, or is not to be had.
pub(crate) struct Opening {
    worker: Rc<Worker>,
    member: MemberId,
}

impl Drop for Opening {
    fn drop(&mut self) {
        let waiting = self.worker.links.opening.borrow_mut().remove(&self.member);
        if let Some(waiting) = waiting {
            waiting.notify_waiters();
        }
    }
}

impl Links {
    /// Whether a member has chosen HTTP/1.1 the last time.
    pub(crate) fn has_declined(&self, member: MemberId) -> bool {
        self.declined.borrow().contains(&member)
    }

    /// Keeps what a member has chosen.
    pub(crate) fn note(&self, member: MemberId, declined: bool) {
        let mut known = self.declined.borrow_mut();
        if !declined {
            known.remove(&member);
            return;
        }
        if known.len() >= MOST_DECLINED {
            known.clear();
        }
        known.insert(member);
    }

    /// A connection to `member` with room for another request.
    pub(crate) fn here(&self, member: MemberId, tls: u64) -> Option<Rc<Link>> {
        let mut members = self.members.borrow_mut();
        let known = members.get_mut(&member)?;
        known.retain(|link| !link.closed.get());
        let mut same = known.iter().filter(|link| link.tls == tls);
        same.find(|link| link.has_room()).cloned()
    }

    /// How to get a connection to `member` whose handshake was done by `tls`.
    pub(crate) fn way(worker: &Rc<Worker>, member: MemberId, tls: u64) -> Way {
        let links = &worker.links;
        if let Some(link) = links.here(member, tls) {
            return Way::Here(link);
        }
        let mut opening = links.opening.borrow_mut();
        if let Some(waiting) = opening.get(&member) {
            return Way::Wait(Rc::clone(waiting));
        }
        opening.insert(member, Rc::default());
        Way::Open(Opening {
            worker: Rc::clone(worker),
            member,
        })
    }

    /// Speaks HTTP/2 over a connection that was just opened.
    pub(crate) async fn begin(
        worker: &Rc<Worker>,
        member: MemberId,
        upstream: Upstream,
        limits: Limits,
    ) -> Option<Rc<Link>> {
        let now = worker.watchers.coarse_now();
        let metered = Rc::new(RefCell::new(Metered {
            meter: Meter::new(0, now),
            flood: None,
            sent: 0,
            refused: 0,
        }));
        let tls = upstream.tls();
        let (io, file) = upstream.into_parts();
        let refusal = match &io {
            Io::Tls(tls) => Some(tls.refusal()),
            _ => None,
        };
        let wire = Wire {
            io,
            read: None,
            metered: Rc::clone(&metered),
            worker: Rc::clone(worker),
            refusals: None,
            _file: file,
        };
        let mut builder = Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .initial_max_send_streams(FIRST_STREAMS)
            // Each is one request that has failed, and no reason to end the others.
            .max_local_error_reset_streams(None)
            .enable_push(false);
        // That writes to a buffer only.
        let (send, mut connection) = builder.handshake::<_, Part>(wire).await.ok()?;
        let link = Rc::new(Link {
            send: RefCell::new(send),
            held: Held::new(&worker.memory),
            tls,
            refusal,
            streams: Cell::new(0),
            used: Cell::new(false),
            idle_since: Cell::new(now),
            closed: Cell::new(false),
            task: RefCell::default(),
            settled: Cell::new(false),
            waiting: RefCell::default(),
            receiving: RefCell::default(),
            is_short: Cell::new(false),
        });
        let mut members = worker.links.members.borrow_mut();
        members.entry(member).or_default().push(Rc::clone(&link));
        let (kept, worker) = (Rc::clone(&link), Rc::clone(worker));
        tokio::task::spawn_local(async move {
            let pings = connection.ping_pong();
            let mut window = Window::default();
            let end = kept.run(&worker, pings, &limits, |cx| {
                let ended = Pin::new(&mut connection).poll(cx).map(drop);
                let sent = metered.borrow().meter.data();
                if let Some(size) = window.adjust(sent, || kept.unread(), &worker.memory) {
                    connection.set_target_window_size(size);
                }
                kept.is_short.set(window.is_short);
                if !kept.settled.get() && metered.borrow().meter.has_settings() {
                    kept.settle();
                }
                match metered.borrow().flood {
                    Some(_) => Poll::Ready(()),
                    None => ended,
                }
            });
            end.await;
            kept.closed.set(true);
            kept.settle();
        });
        Some(link)
    }

    /// Closes a connection without requests; answers whether there was one.
    pub(crate) fn evict(&self) -> bool {
        let members = self.members.borrow();
        let mut all = members.values().flatten();
        let idle = all.find(|link| link.streams.get() == 0 && !link.closed.get());
        idle.is_some_and(|link| {
            link.close();
            true
        })
    }

    /// Forgets connections that are closed.
    pub(crate) fn sweep(&self) {
        self.members.borrow_mut().retain(|_, links| {
            links.retain(|link| !link.closed.get());
            !links.is_empty()
        });
    }
}

impl Link {
    /// The scheme of URIs of requests in it.
    pub(super) fn scheme(&self) -> Scheme {
        match self.tls {
            0 => Scheme::HTTP,
            _ => Scheme::HTTPS,
        }
    }

    pub(super) fn held(&self) -> Rc<Held> {
        Rc::clone(&self.held)
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refused| refused.get())
    }

    fn has_room(&self) -> bool {
        let most = self.send.borrow().current_max_send_streams();
        let has_places = self.streams.get() < most.min(MOST_STREAMS);
        !self.closed.get() && has_places && !self.is_short.get()
    }

    /// Bytes that have arrived in streams and were not read.
    fn unread(&self) -> usize {
        let receiving = self.receiving.borrow();
        receiving.iter().map(FlowControl::used_capacity).sum()
    }

    /// Waits for the member's settings: whether it takes other protocols in streams (RFC 8441).
    pub(super) fn poll_connects(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if !self.settled.get() {
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(match self.closed.get() {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false if self.send.borrow().is_extended_connect_protocol_enabled() => Ok(()),
            false => Err(io::ErrorKind::Unsupported.into()),
        })
    }

    fn settle(&self) {
        self.settled.set(true);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Takes no more requests.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Drives the connection until it ends, is idle for too long, or gives no sign of life.
    async fn run(
        &self,
        worker: &Worker,
        mut pings: Option<PingPong>,
        limits: &Limits,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) {
        let watch = worker.watchers.watch(ServiceId::WORKER);
        let mut pinged = false;
        watch.arm(limits.idle.min(limits.ping_after));
        loop {
            let ended = watch.until(|cx| {
                *self.task.borrow_mut() = Some(cx.waker().clone());
                if pinged
                    && let Some(pings) = &mut pings
                    && pings.poll_pong(cx).is_ready()
                {
                    pinged = false;
                    watch.arm(limits.ping_after);
                }
                if self.closed.get() && self.streams.get() == 0 {
                    return Poll::Ready(());
                }
                poll(cx)
            });
            match ended.await {
                Ok(()) | Err(Stop::Cut) => return,
                Err(Stop::Expired) => {}
            }
            if self.streams.get() == 0 {
                let idle = worker.watchers.coarse_now().since(self.idle_since.get());
                if idle >= limits.idle {
                    return;
                }
                watch.arm(limits.idle.saturating_sub(idle));
            } else if pinged {
                limits.metrics.http2_silent_members.add(1);
                evenkeel_limits::warn_throttled!(address = %limits.address,
                    "a member gives no sign of life over HTTP/2: its connection is closed");
                return;
            } else {
                let sent = pings
                    .as_mut()
                    .map(|pings| pings.send_ping(Ping::opaque()).is_ok());
                pinged = sent == Some(true);
                watch.arm(limits.pong_within);
            }
        }
    }
}

impl Place {
    pub(super) fn take(link: Rc<Link>, worker: Rc<Worker>) -> Self {
        let was_idle = link.used.replace(true) && link.streams.get() == 0;
        link.streams.set(link.streams.get() + 1);
        Place {
            link,
            worker,
            receiving: None,
            was_idle,
        }
    }

    /// The response in the stream of `flow` is being read from now on.
    pub(super) fn receive(&mut self, flow: FlowControl) {
        self.receiving = Some(flow.stream_id());
        self.link.receiving.borrow_mut().push(flow);
    }

    /// The response is not read any more: the stream may be given up.
    pub(super) fn stop_receiving(&mut self) {
        let Some(stream) = self.receiving.take() else {
            return;
        };
        let mut receiving = self.link.receiving.borrow_mut();
        let at = receiving.iter().position(|flow| flow.stream_id() == stream);
        let flow = at.map(|at| receiving.swap_remove(at));
        drop(receiving);
        drop(flow);
    }

    /// Whether a connection that was idle has ended.
    pub(super) fn is_stale(&self) -> bool {
        self.was_idle && self.link.closed.get()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop_receiving();
        let link = &self.link;
        link.streams.set(link.streams.get().saturating_sub(1));
        if link.streams.get() == 0 {
            link.idle_since.set(self.worker.watchers.coarse_now());
            if link.closed.get() {
                link.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::memory;

    #[test]
    fn what_clients_do_not_take_leaves_room_for_others_and_is_counted() {
        let step = WINDOW_STEP as usize;
        let memory = memory(4 * step);
        let mut window = Window::default();
        let mut sent = 0;
        let mut look = |window: &mut Window, unread: usize| {
            sent += u64::from(WINDOW_STEP);
            window.adjust(sent, || unread, &memory)
        };
        assert_eq!(look(&mut window, 0), None);
        assert_eq!(look(&mut window, step - 1), None, "little is free");
        assert_eq!(window.adjust(0, || unreachable!(), &memory), None);
        let with = |steps: u32| Some(CONNECTION_WINDOW + steps * WINDOW_STEP);
        assert_eq!(look(&mut window, 3 * step + 5), with(3));
        assert_eq!(look(&mut window, 3 * step + 9), None);
        assert!(memory.take(step + 1).is_err() && memory.take(step).is_ok());
        // There is no memory for more: what there was stays, and it is tried again each time.
        assert_eq!(look(&mut window, 5 * step), None);
        assert!(window.is_short);
        assert_eq!(window.adjust(0, || 4 * step, &memory), with(4));
        assert!(!window.is_short);
        assert_eq!(look(&mut window, step), with(1));
        assert!(memory.take(3 * step).is_ok());
        assert_eq!(look(&mut window, 0), with(0));
        assert!(memory.take(4 * step).is_ok(), "all of it is given back");
        // However much it is said to be.
        let memory = crate::memory::tests::memory(1 << 30);
        let most = CONNECTION_WINDOW + MOST_STREAMS as u32 * STREAM_WINDOW;
        let mut window = Window::default();
        assert_eq!(window.adjust(1 << 20, || usize::MAX, &memory), Some(most));
    }
}
