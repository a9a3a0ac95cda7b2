//! Opening of connections to members, and the tasks that drive them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_core::address::Address;
use evenkeel_core::member::MemberId;
use evenkeel_http2::{Config, Connection, Role};
use evenkeel_limits::Shortage;
use tokio::sync::Notify;

use super::engine::{Engine, Step};
use super::links::{Link, Links, MOST_STREAMS};
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

/// Bytes of fields in a head of a member at most, as HTTP/2 counts.
const MAX_HEAD_BYTES: usize = 256 * 1024;

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
}

impl Link {
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
