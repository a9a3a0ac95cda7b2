//! Connections of HTTP/2 to members, kept by each worker for itself: many requests at once in one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_core::address::Address;
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_http2::{Config, Connection, Role};
use evenkeel_limits::Shortage;
use tokio::sync::Notify;

use super::engine::{Engine, Step};
use super::wire::Wire;
use crate::memory::{Charge, Memory};
use crate::metrics::RuleMetrics;
use crate::pool::MemberConnection;
use crate::watch::{ServiceId, Stop};
use crate::worker::Worker;

/// Number of bytes that a member may send in a stream before some of them are passed on.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Number of bytes that a member may send likewise in all streams of a connection whose clients
/// take what comes.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Bytes of content after which it is looked at what clients have not taken, and in steps of which the
/// connection gets more room for the others.
const WINDOW_STEP: u32 = 128 * 1024;

/// Streams in a connection at most, whatever the member says.
const MOST_STREAMS: usize = 256;

/// Bytes of fields in a head of a member at most, as HTTP/2 counts.
const MAX_HEAD_BYTES: usize = 256 * 1024;

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
    /// Frames, streams and windows of the connection.
    pub(super) engine: Rc<Engine>,
    /// The number of what has done the handshake of TLS; 0 is nobody.
    tls: u64,
    /// Flag that is true if the member has refused the connection after the handshake.
    refusal: Option<Rc<Cell<bool>>>,
    /// Requests that are under way, and whether there was any before.
    streams: Cell<usize>,
    used: Cell<bool>,
    /// Time since which there are no requests.
    idle_since: Cell<Instant>,
    /// True if the connection takes no more requests.
    closed: Cell<bool>,
    /// Tasks that wait for the member's settings, or for room.
    waiting: RefCell<Vec<Waker>>,
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
    fn adjust_window(
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
                charge.shrink_to(bytes);
                charge.grow_to(bytes).is_ok()
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
                Shortage::Memory.report_failure(
                    "buffer what a member sends over HTTP/2 faster than its clients read",
                );
            }
            return None;
        }
        self.extra = extra;
        Some(CONNECTION_WINDOW + extra)
    }
}

/// Limits at which a connection ends by itself.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Time without requests after which the connection ends.
    pub(crate) idle: Duration,
    /// Time with requests under way after which the member is asked for a sign of life.
    pub(crate) ping_after: Duration,
    /// Time that the member has for the sign of life.
    pub(crate) pong_within: Duration,
    /// Metrics that count silent members, and the address of the member.
    pub(crate) metrics: Arc<RuleMetrics>,
    pub(crate) address: Address,
}

/// The right to a stream of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) link: Rc<Link>,
    pub(super) worker: Rc<Worker>,
    /// The connection was used before, and idle: the member may have closed it just then.
    was_idle: bool,
}

/// Way in which a task gets a connection.
pub(crate) enum Way {
    /// There is a connection with room.
    Existing(Rc<Link>),
    /// Another task opens a connection.
    Wait(Rc<Notify>),
    /// The caller opens a connection; others wait until this value is dropped.
    Open(Opening),
}

/// Notice to the tasks that wait, when this is dropped: a connection is there, or is not to be had.
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
    /// True if a member has chosen HTTP/1.1 the last time.
    pub(crate) fn has_declined(&self, member: MemberId) -> bool {
        self.declined.borrow().contains(&member)
    }

    /// Keeps what a member has chosen.
    pub(crate) fn note_declined(&self, member: MemberId, declined: bool) {
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
    pub(crate) fn find_link(&self, member: MemberId, tls: u64) -> Option<Rc<Link>> {
        let mut members = self.members.borrow_mut();
        let known = members.get_mut(&member)?;
        known.retain(|link| !link.closed.get());
        let mut same = known.iter().filter(|link| link.tls == tls);
        same.find(|link| link.has_room()).cloned()
    }

    /// Returns the way to get a connection to `member` whose handshake was done by `tls`.
    pub(crate) fn find_way(worker: &Rc<Worker>, member: MemberId, tls: u64) -> Way {
        let links = &worker.links;
        if let Some(link) = links.find_link(member, tls) {
            return Way::Existing(link);
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
    pub(crate) fn open_link(
        worker: &Rc<Worker>,
        member: MemberId,
        opened: MemberConnection,
        limits: Limits,
    ) -> Rc<Link> {
        let now = worker.watchers.coarse_now();
        let tls = opened.tls_id();
        let (connection, file) = opened.into_parts();
        let refusal = connection.refused_flag();
        let wire = Wire {
            connection,
            read: None,
            worker: Rc::clone(worker),
            _file: Some(file),
        };
        let link = Rc::new(Link {
            engine: Engine::new(Config {
                role: Role::Client,
                max_streams: 0,
                max_head_bytes: MAX_HEAD_BYTES,
                stream_window: STREAM_WINDOW,
                connection_window: CONNECTION_WINDOW,
            }),
            tls,
            refusal,
            streams: Cell::new(0),
            used: Cell::new(false),
            idle_since: Cell::new(now),
            closed: Cell::new(false),
            waiting: RefCell::default(),
            is_short: Cell::new(false),
        });
        let mut members = worker.links.members.borrow_mut();
        members.entry(member).or_default().push(Rc::clone(&link));
        let (kept, worker) = (Rc::clone(&link), Rc::clone(worker));
        tokio::task::spawn_local(async move {
            kept.run(&worker, wire, &limits).await;
            kept.closed.set(true);
            kept.engine.disconnect_streams();
            kept.wake_waiting();
        });
        link
    }

    /// Closes a connection without requests; answers whether there was one.
    pub(crate) fn evict_idle(&self) -> bool {
        let members = self.members.borrow();
        let mut all = members.values().flatten();
        let idle = all.find(|link| link.streams.get() == 0 && !link.closed.get());
        idle.is_some_and(|link| {
            link.close();
            true
        })
    }

    /// Forgets connections that are closed.
    pub(crate) fn forget_closed(&self) {
        self.members.borrow_mut().retain(|_, links| {
            links.retain(|link| !link.closed.get());
            !links.is_empty()
        });
    }
}

impl Link {
    /// The scheme of URIs of requests in it.
    pub(super) fn scheme(&self) -> &'static str {
        match self.tls {
            0 => "http",
            _ => "https",
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refused| refused.get())
    }

    fn has_room(&self) -> bool {
        let (most, is_closing) = self.engine.read_connection(|connection| {
            (connection.peer_streams() as usize, connection.is_closing())
        });
        let has_places = self.streams.get() < most.min(MOST_STREAMS);
        !self.closed.get() && !is_closing && has_places && !self.is_short.get()
    }

    /// Has the caller's task told when there are settings, or room.
    pub(super) fn register_waker(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Waits for the member's settings: whether it takes other protocols in streams (RFC 8441).
    pub(super) fn poll_connects(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let (is_settled, connects) = self
            .engine
            .read_connection(|connection| (connection.has_settings(), connection.peer_connects()));
        Poll::Ready(match self.closed.get() {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false if !is_settled => {
                self.register_waker(cx);
                return Poll::Pending;
            }
            false if connects => Ok(()),
            false => Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// Tells the tasks that wait to look again.
    fn wake_waiting(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Takes no more requests.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.engine.wake_task();
    }

    /// Drives the connection until it ends, is idle for too long, or gives no sign of life.
    async fn run(&self, worker: &Worker, mut wire: Wire, limits: &Limits) {
        let watch = worker.watchers.watch_task(ServiceId::WORKER);
        let mut pinged = false;
        let mut window = Window::default();
        watch.arm_deadline(limits.idle.min(limits.ping_after));
        loop {
            let step = watch.poll_until_stop(|cx| {
                let step = self
                    .engine
                    .poll_step(cx, &mut wire, worker.watchers.coarse_now());
                let received = self.engine.read_connection(Connection::received_bytes);
                let unread = || self.engine.read_connection(Connection::unread_bytes);
                if let Some(size) = window.adjust_window(received, unread, &worker.memory) {
                    self.engine
                        .with_connection(|connection| connection.set_window(size));
                }
                self.is_short.set(window.is_short);
                if step.is_pending() && self.closed.get() && self.streams.get() == 0 {
                    return Poll::Ready(Step::Over);
                }
                step
            });
            match step.await {
                Ok(Step::Settled) => {
                    // A member that says goodbye takes no more: whoever was too late is told so, and the last stream
                    // ends the connection.
                    if self.engine.read_connection(Connection::is_closing) {
                        self.closed.set(true);
                    }
                    self.wake_waiting();
                    continue;
                }
                Ok(Step::Pong) => {
                    pinged = false;
                    watch.arm_deadline(limits.ping_after);
                    continue;
                }
                // No member of ours sends requests.
                Ok(Step::Request(_)) => continue,
                Ok(Step::Failed(_)) => {
                    // What is said last is said if there is room for it.
                    self.closed.set(true);
                    watch.arm_deadline(limits.pong_within);
                    continue;
                }
                Ok(Step::Over | Step::Gone) | Err(Stop::Cut) => return,
                Err(Stop::Expired) => {}
            }
            if self.streams.get() == 0 {
                let idle = worker.watchers.coarse_now().since(self.idle_since.get());
                if idle >= limits.idle {
                    return;
                }
                watch.arm_deadline(limits.idle.saturating_sub(idle));
            } else if pinged {
                limits.metrics.http2_silent_members.add(1);
                evenkeel_limits::warn_throttled!(address = %limits.address,
                    "a member sent nothing after a PING over HTTP/2: its connection is closed");
                return;
            } else {
                self.engine.with_connection(Connection::send_ping);
                pinged = true;
                watch.arm_deadline(limits.pong_within);
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
            was_idle,
        }
    }

    /// True if a connection that was idle has ended.
    pub(super) fn is_stale(&self) -> bool {
        self.was_idle && self.link.closed.get()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let link = &self.link;
        link.streams.set(link.streams.get().saturating_sub(1));
        if link.streams.get() == 0 {
            link.idle_since.set(self.worker.watchers.coarse_now());
            if link.closed.get() {
                link.engine.wake_task();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::new_memory;

    #[test]
    fn what_clients_do_not_take_leaves_room_for_others_and_is_counted() {
        let step = WINDOW_STEP as usize;
        let memory = new_memory(4 * step);
        let mut window = Window::default();
        let mut sent = 0;
        let mut look = |window: &mut Window, unread: usize| {
            sent += u64::from(WINDOW_STEP);
            window.adjust_window(sent, || unread, &memory)
        };
        assert_eq!(look(&mut window, 0), None);
        assert_eq!(look(&mut window, step - 1), None, "little is free");
        assert_eq!(window.adjust_window(0, || unreachable!(), &memory), None);
        let with = |steps: u32| Some(CONNECTION_WINDOW + steps * WINDOW_STEP);
        assert_eq!(look(&mut window, 3 * step + 5), with(3));
        assert_eq!(look(&mut window, 3 * step + 9), None);
        assert!(memory.take(step + 1).is_err() && memory.take(step).is_ok());
        // There is no memory for more: what there was stays, and it is tried again each time.
        assert_eq!(look(&mut window, 5 * step), None);
        assert!(window.is_short);
        assert_eq!(window.adjust_window(0, || 4 * step, &memory), with(4));
        assert!(!window.is_short);
        assert_eq!(look(&mut window, step), with(1));
        assert!(memory.take(3 * step).is_ok());
        assert_eq!(look(&mut window, 0), with(0));
        assert!(memory.take(4 * step).is_ok(), "all of it is given back");
        // However much it is said to be.
        let memory = crate::memory::tests::new_memory(1 << 30);
        let most = CONNECTION_WINDOW + MOST_STREAMS as u32 * STREAM_WINDOW;
        let mut window = Window::default();
        assert_eq!(
            window.adjust_window(1 << 20, || usize::MAX, &memory),
            Some(most)
        );
    }
}
