//! State of a relay: its members, and the connections to them with the requests under way.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;

use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_giop::context::CodeSets;
use evenkeel_giop::message::Version;
use evenkeel_giop::wire::Buffers;
use evenkeel_net::Clock;

use super::counters::Counters;
use super::endpoint::{Addressing, Endpoint};
use super::job::Job;
use super::settings::Settings;
use crate::directory::Reference;

/// The relay of one worker. It lives in one thread, within a
/// [`LocalSet`](tokio::task::LocalSet).
pub struct Relay {
    pub(super) settings: Settings,
    pub(super) counters: Arc<Counters>,
    pub(super) clock: Clock,
    pub(super) rng: RefCell<fastrand::Rng>,
    pub(super) buffers: Rc<Buffers>,
    /// Bytes of requests that are under way.
    pub(super) kept: Rc<Cell<usize>>,
    pub(super) members: RefCell<HashMap<MemberId, Rc<Member>>>,
    pub(super) pools: RefCell<HashMap<PoolKey, Rc<Pool>>>,
    pub(super) next_client: Cell<u64>,
    /// For the tasks of connections.
    pub(super) myself: Weak<Relay>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Relay").field(&self.settings).finish()
    }
}

/// A member of a group.
pub(super) struct Member {
    pub(super) reference: Arc<Reference>,
    pub(super) endpoints: Vec<Rc<Endpoint>>,
    /// Index of the endpoint that is used.
    pub(super) current: Cell<usize>,
    /// Endpoint that the member forwards to. It is used until it fails.
    pub(super) forwarded: RefCell<Option<Rc<Endpoint>>>,
    pub(super) addressing: Cell<Addressing>,
    /// The connections on its endpoints, per version and code sets.
    pub(super) pools: RefCell<Vec<(Rc<Endpoint>, Rc<Pool>)>>,
}

/// Route of a request.
pub(super) struct Route {
    pub(super) member: Rc<Member>,
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) pool: Rc<Pool>,
}

/// Properties that connections for the same requests have in common. A server keeps what a
/// connection has settled for the version in which that came: for omniORB a connection that was
/// begun in GIOP 1.1 has no wide characters, so each version has connections of its own.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    pub(super) address: (String, u16),
    pub(super) version: Version,
    pub(super) code_sets: Option<(u32, u32)>,
}

/// The connections of a worker to a server, for clients with the same code sets whose requests
/// go there in the same version.
pub(super) struct Pool {
    pub(super) version: Version,
    pub(super) code_sets: Option<CodeSets>,
    pub(super) connections: RefCell<Vec<Rc<Upstream>>>,
}

/// A connection.
pub(super) struct Upstream {
    pub(super) relay: Weak<Relay>,
    pub(super) pool: Weak<Pool>,
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) state: RefCell<ConnectionState>,
    pub(super) under_way: Cell<usize>,
    pub(super) waker: RefCell<Option<Waker>>,
}

#[derive(Default)]
pub(super) struct ConnectionState {
    pub(super) out: Vec<u8>,
    /// Bytes ever appended to `out`, and bytes sent from it.
    pub(super) appended: u64,
    pub(super) sent: u64,
    pub(super) slots: Vec<Slot>,
    /// Places that are free.
    pub(super) free: Vec<u16>,
    pub(super) oneways: u32,
    /// True if the server knows the code sets.
    pub(super) settled: bool,
    /// Time of the last use, as far as a tick has seen, and the bytes appended by then.
    pub(super) used: Instant,
    pub(super) appended_then: u64,
    /// True if the connection is to be closed because nobody uses it.
    pub(super) closing: bool,
}

/// A slot for a request. Its number, and how often it was used, are the request's id.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) used: u16,
    pub(super) request: Option<MemberRequest>,
}

/// A request that a member has.
pub(super) struct MemberRequest {
    pub(super) job: Job,
    pub(super) member: Rc<Member>,
    pub(super) endpoint: Rc<Endpoint>,
    /// Position at which the message begins, in all bytes ever appended.
    pub(super) begins: u64,
}
