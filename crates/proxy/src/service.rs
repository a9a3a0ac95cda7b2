//! A rule as a worker serves it: what it is configured to do now.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_control::budget::RetryBudget;
use evenkeel_control::queue::Class;
use evenkeel_core::time::Instant;
use evenkeel_manager::config::{ClientPriority, Protocol, Rule};
use evenkeel_manager::snapshot::RuleSnapshot;
use evenkeel_tls::server::Server;
use tokio::sync::Notify;

use crate::access::Limit;
use crate::bandwidth::Paces;
use crate::metrics::RuleMetrics;
use crate::quota::Quotas;
use crate::shared_limits::{KernelPlace, ListenPlace, SharedLimits};
use crate::udp::client_sessions::{ClientSessions, simplify};
use crate::udp::connection_ids::ConnectionIds;
use crate::udp::errors::ErrorSender;
use crate::watch::ServiceId;

/// State of a rule that the workers share.
#[derive(Debug, Default)]
pub(crate) struct RuleShared {
    /// Open client connections.
    open: AtomicU32,
    /// Paces of the rule, which count the bytes that have passed of its bandwidth.
    pub(crate) paces: Paces,
    /// Notice that there is room for another connection.
    pub(crate) room: Notify,
    /// Members by connection ids of QUIC, if the rule reads them.
    pub(crate) connection_ids: ConnectionIds,
    /// Clients with sessions of UDP, of all rules.
    pub(crate) client_sessions: ClientSessions,
    /// Sender of errors to clients of UDP, of all rules.
    pub(crate) udp_errors: Arc<ErrorSender>,
}

impl RuleShared {
    /// Returns the state of a rule that has no clients.
    pub(crate) fn new(client_sessions: ClientSessions, udp_errors: Arc<ErrorSender>) -> Self {
        RuleShared {
            client_sessions,
            udp_errors,
            ..RuleShared::default()
        }
    }

    pub(crate) fn add_client(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }
}

/// State of a service: what it does with its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The service serves its connections.
    Running,
    /// The rule is disabled or gone: what is open goes on, an HTTP connection to the
    /// end of its next response.
    Draining,
}

/// A rule as it is configured, counted by a worker for itself: all workers would fight
/// for the counter of an `Arc`, with every request.
#[derive(Debug)]
pub(crate) struct LocalRule {
    pub(crate) snapshot: Arc<RuleSnapshot>,
    /// Limits of each client, if there are any.
    pub(crate) quotas: Option<Arc<Quotas>>,
}

impl Deref for LocalRule {
    type Target = RuleSnapshot;

    fn deref(&self) -> &RuleSnapshot {
        &self.snapshot
    }
}

/// Returns the urgency of what a client sends when it waits for a member, as far as the rule says
/// it.
pub(crate) fn class_of_client(rule: &Rule, client: Option<IpAddr>) -> Class {
    let own = ClientPriority::find(&rule.client_priorities, client);
    // The configuration has none above 7.
    own.unwrap_or(rule.priority) as Class
}

/// Returns the address by which the kernel finds the limits of a rule, if connections of the kernel count there. All addresses
/// of a rule have the same limits.
fn find_kernel_place(rule: &Rule) -> Option<ListenPlace> {
    if !rule.counts_with_kernel() {
        return None;
    }
    let address = rule.listen.iter().find_map(|at| at.socket())?;
    Some(ListenPlace {
        address: simplify(address),
        is_udp: rule.protocol == Protocol::Udp,
    })
}

/// A rule, in one worker.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) id: ServiceId,
    pub(crate) name: Arc<str>,
    current: RefCell<Rc<LocalRule>>,
    /// TLS server for clients that connect from now on.
    tls: RefCell<Option<Arc<Server>>>,
    pub(crate) shared: Arc<RuleShared>,
    pub(crate) metrics: Arc<RuleMetrics>,
    pub(crate) state: Cell<State>,
    /// Budget of this worker for retries: together the workers keep the share, too.
    pub(crate) budget: RefCell<RetryBudget>,
    /// Budget of this worker for requests to a second member: together the workers keep the share,
    /// too.
    pub(crate) hedges: RefCell<RetryBudget>,
    /// Number of copies of requests that this worker has under way, by the name of the group that gets them.
    pub(crate) mirrored: RefCell<HashMap<Arc<str>, u32>>,
}

impl Service {
    pub(crate) fn new(
        id: ServiceId,
        name: Arc<str>,
        rule: LocalRule,
        shared: Arc<RuleShared>,
        metrics: Arc<RuleMetrics>,
        tls: Option<Arc<Server>>,
        now: Instant,
    ) -> Self {
        Service {
            id,
            name,
            current: RefCell::new(Rc::new(rule)),
            tls: RefCell::new(tls),
            shared,
            metrics,
            state: Cell::new(State::Running),
            budget: RefCell::new(RetryBudget::new(now)),
            hedges: RefCell::new(RetryBudget::new(now)),
            mirrored: RefCell::default(),
        }
    }

    /// The rule as it is configured now.
    #[inline]
    pub(crate) fn rule(&self) -> Rc<LocalRule> {
        Rc::clone(&self.current.borrow())
    }

    /// Bytes per second that may pass each way, if that is limited: of all clients, and in each connection.
    #[inline]
    pub(crate) fn bandwidth_limits(&self) -> [Option<u64>; 2] {
        let limits = &self.current.borrow().snapshot.rule.limits;
        [limits.bandwidth, limits.connection_bandwidth].map(|limit| limit.map(|rate| rate.0))
    }

    /// Returns the TLS server for handshakes with the service's clients; `None` if they are not to
    /// speak TLS.
    pub(crate) fn tls_server(&self) -> Option<Arc<Server>> {
        self.tls.borrow().clone()
    }

    pub(crate) fn set_rule(&self, rule: LocalRule, tls: Option<Arc<Server>>) {
        self.tls.replace(tls);
        self.current.replace(Rc::new(rule));
        // The new limit may be higher.
        self.shared.room.notify_waiters();
    }

    /// True if connections are cut and not served, also those that had only just been accepted when
    /// the others were cut.
    pub(crate) fn is_terminated(&self) -> bool {
        self.state.get() == State::Draining && self.rule().rule.terminate_on_disable
    }

    /// True if another client connection is allowed.
    pub(crate) fn has_room(&self) -> bool {
        let current = self.current.borrow();
        let (rule, most) = (&current.rule, current.rule.max_connections);
        let open = self.shared.open.load(Ordering::Relaxed);
        let in_kernel = || match find_kernel_place(rule).filter(|_| rule.limits_kernel()) {
            Some(place) => self.shared_limits().count_confirmed(place),
            None => 0,
        };
        open < most && open.saturating_add(in_kernel()) < most
    }

    /// Returns the way to the counts of limits in the kernel.
    pub(crate) fn shared_limits(&self) -> &SharedLimits {
        self.shared.client_sessions.shared_limits()
    }

    /// Counts a client connection in the kernel, too, if limits of the rule count connections of the kernel. Without a client
    /// it counts for `max_connections` only.
    ///
    /// # Errors
    ///
    /// The limit that the client has reached.
    pub(crate) fn take_kernel_place(
        &self,
        client: Option<IpAddr>,
    ) -> Result<Option<KernelPlace>, Limit> {
        match find_kernel_place(&self.current.borrow().rule) {
            Some(place) => self.shared_limits().take_place(place, client),
            None => Ok(None),
        }
    }

    /// A client connection has ended.
    pub(crate) fn remove_client(&self) {
        let current = self.current.borrow();
        let open = self.shared.open.fetch_sub(1, Ordering::AcqRel);
        // With connections of the kernel the limit is reached by fewer.
        if open >= current.rule.max_connections || current.rule.limits_kernel() {
            self.shared.room.notify_waiters();
        }
    }
}
