//! Connections of HTTP/2 to members, kept by each worker for itself: many requests at once in one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use tokio::sync::Notify;

use super::engine::Engine;

/// Streams in a connection at most, whatever the member says.
pub(super) const MOST_STREAMS: usize = 256;

/// Most members of which it is kept that they have chosen HTTP/1.1.
const MOST_DECLINED: usize = 4096;

/// The connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(super) members: RefCell<BTreeMap<MemberId, Vec<Rc<Link>>>>,
    /// Members that are being connected to, and who wants to know when that is over.
    pub(super) opening: RefCell<BTreeMap<MemberId, Rc<Notify>>>,
    /// Members that had the choice, and have chosen HTTP/1.1.
    declined: RefCell<BTreeSet<MemberId>>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Frames, streams and windows of the connection.
    pub(super) engine: Rc<Engine>,
    /// The number of what has done the handshake of TLS; 0 is nobody.
    pub(super) tls: u64,
    /// Flag that is true if the member has refused the connection after the handshake.
    pub(super) refusal: Option<Rc<Cell<bool>>>,
    /// Requests that are under way, and whether there was any before.
    pub(super) streams: Cell<usize>,
    pub(super) used: Cell<bool>,
    /// Time since which there are no requests.
    pub(super) idle_since: Cell<Instant>,
    /// True if the connection takes no more requests.
    pub(super) closed: Cell<bool>,
    /// Tasks that wait for the member's settings, or for room.
    pub(super) waiting: RefCell<Vec<Waker>>,
    /// True if there is no memory for what clients do not take, so that they may stop others.
    pub(super) is_short: Cell<bool>,
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
    pub(super) fn uri_scheme(&self) -> &'static str {
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
    pub(super) fn wake_waiting(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Takes no more requests.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.engine.wake_task();
    }
}
