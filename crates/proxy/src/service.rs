//! A rule as a worker serves it: what it is configured to do now, and how a client's
//! request is bound to a member.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use evenkeel_control::budget::RetryBudget;
use evenkeel_control::queue::Class;
use evenkeel_core::address::Address;
use evenkeel_core::binding::{Binding, BindingEnd, Verdict, find_pinned};
use evenkeel_core::group::{Granularity, PickError, Request, Ticket};
use evenkeel_core::member::{Member, MemberId};
use evenkeel_core::time::Instant;
use evenkeel_manager::config::{ClientPriority, Protocol, Rule, Timeouts};
use evenkeel_manager::snapshot::{GroupHandle, RuleSnapshot, Target, WaitFailure};
use evenkeel_tls::server::Server;
use tokio::sync::Notify;

use crate::access::MemberAttempts;
use crate::bandwidth::Paces;
use crate::chooser::{Advised, HttpFacts};
use crate::io::Io;
use crate::listen::Session;
use crate::metrics::RuleMetrics;
use crate::quota::Quotas;
use crate::watch::{ServiceId, Stop};

/// State of a rule that the workers share.
#[derive(Debug, Default)]
pub(crate) struct RuleShared {
    /// Open client connections.
    open: AtomicU32,
    /// Paces of the rule, which count the bytes that have passed of its bandwidth.
    pub(crate) paces: Paces,
    /// Notice that there is room for another connection.
    pub(crate) room: Notify,
}

impl RuleShared {
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
    /// Number of copies of requests that this worker has under way.
    pub(crate) mirrored: Cell<u32>,
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
            mirrored: Cell::new(0),
        }
    }

    /// The rule as it is configured now.
    #[inline]
    pub(crate) fn rule(&self) -> Rc<LocalRule> {
        Rc::clone(&self.current.borrow())
    }

    /// Bytes per second that may pass each way, if that is limited: of all clients, and in each connection.
    #[inline]
    pub(crate) fn bandwidths(&self) -> [Option<u64>; 2] {
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
        let most = self.current.borrow().rule.max_connections;
        self.shared.open.load(Ordering::Relaxed) < most
    }

    /// A client connection has ended.
    pub(crate) fn remove_client(&self) {
        let most = self.current.borrow().rule.max_connections;
        if self.shared.open.fetch_sub(1, Ordering::AcqRel) >= most {
            self.shared.room.notify_waiters();
        }
    }
}

/// A request or connection bound to a member.
#[derive(Debug)]
pub(crate) struct BoundRequest {
    pub(crate) ticket: Ticket,
    pub(crate) member: MemberId,
    pub(crate) address: Address,
    /// Tries, which are kept for the access log and traces only.
    pub(crate) tries: Option<Box<MemberAttempts>>,
}

/// Most groups for which it is kept to which member a client is bound. A rule may have more groups,
/// but few clients use so many: then the binding that is the oldest is forgotten.
const MAX_BINDINGS: usize = 64;

/// The members that a client is bound to, in groups that bind for longer than a request.
#[derive(Debug, Default)]
pub(crate) struct Bindings(Vec<(Arc<GroupHandle>, Binding)>);

impl Bindings {
    /// The client's tie to a member of `group`.
    pub(crate) fn find_binding(&mut self, group: &Arc<GroupHandle>) -> Option<&mut Binding> {
        let mut all = self.0.iter_mut();
        let found = all.find(|(of, _)| Arc::ptr_eq(of, group));
        found.map(|(_, binding)| binding)
    }

    /// True if the client is bound in `group`.
    pub(crate) fn has_binding(&self, group: &Arc<GroupHandle>) -> bool {
        self.0.iter().any(|(of, _)| Arc::ptr_eq(of, group))
    }

    pub(crate) fn set(&mut self, group: &Arc<GroupHandle>, binding: Option<Binding>) {
        self.0.retain(|(of, _)| !Arc::ptr_eq(of, group));
        if self.0.len() >= MAX_BINDINGS {
            self.0.remove(0);
        }
        self.0
            .extend(binding.map(|binding| (Arc::clone(group), binding)));
    }
}

/// Reason why no member can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No member is eligible.
    NoMember,
    /// All members are at their limits, and so is the queue for them.
    QueueFull,
    /// All members were at their limits for too long.
    QueueTimeout,
    /// The group is overloaded, and others come first.
    Overload,
    /// The connection is to be cut.
    Cut,
    /// The client went away while it waited.
    ClientGone,
}

impl Session {
    /// Binds `request` to a member of the group of `target` that it was not tried at, waiting for one in the group's
    /// queue if all are full. If the group has a chooser, that is asked first, and told `facts`. `bindings` are the ties
    /// of this client's earlier requests, as the groups' granularities have them. A client that resets its connection meanwhile waits no longer,
    /// nor does one of HTTP that closes its side: `close()` sends no more than that. A client of TCP may have sent
    /// all that it has to say, and still want an answer.
    pub(crate) async fn bind_request(
        &self,
        target: &Target,
        bindings: &RefCell<Bindings>,
        (request, facts): (&Request<'_>, Option<&HttpFacts>),
        timeouts: &Timeouts,
        class: Class,
        client: &mut Io,
    ) -> Result<BoundRequest, Refusal> {
        let group = &target.group;
        let advised: Option<Advised<'_>> = match &target.chooser {
            None => None,
            Some(chooser) => {
                // In a box: most groups have none, and connections are to stay small.
                let asks = (request, facts);
                let asked = Box::pin(self.ask_chooser(chooser, group, bindings, asks, client));
                asked.await?.map(|advice| (&**chooser, advice))
            }
        };
        let later;
        let request = match advised {
            None => request,
            // That took time.
            Some(_) => {
                later = Request {
                    now: self.worker.now(),
                    ..*request
                };
                &later
            }
        };
        // Who comes while others wait looks for room after them, from the queue.
        if group.queue.waiting() == 0 {
            match self.try_bind(group, bindings, request, advised) {
                Ok(bound) => return Ok(bound),
                Err(PickError::NoneEligible) => return Err(Refusal::NoMember),
                Err(PickError::AllFull | PickError::Held) => {}
            }
        }
        let began = self.worker.now();
        let again = |ahead: Option<u32>| {
            let now = self.worker.now();
            let request = Request {
                now,
                ahead,
                ..*request
            };
            self.try_bind(group, bindings, &request, advised)
        };
        let waiting = group.wait_for(
            class,
            || self.worker.now(),
            |at| self.worker.timers.nap_until(at),
            |ahead| again(request.ahead.map(|_| ahead)),
        );
        tokio::pin!(waiting);
        let ends_with_fin = self.service.rule().rule.protocol == Protocol::Http;
        self.watch.arm_and_look(timeouts.queue);
        let waited = self.watch.poll_until_stop(|cx| {
            let is_due = self.watch.take_look();
            let is_gone = match client {
                Io::Stream(stream) => stream.is_reset(cx),
                _ if !is_due => false,
                _ if ends_with_fin => client.has_ended(),
                _ => client.has_failed(),
            };
            if is_gone || client.is_reset(cx) {
                Poll::Ready(Err(Refusal::ClientGone))
            } else {
                waiting.as_mut().poll(cx).map(|bound| {
                    // Nobody is to work for a client that has left since the last look.
                    if bound.is_ok() && ends_with_fin && client.has_ended() {
                        return Err(Refusal::ClientGone);
                    }
                    bound.map_err(|unserved| match unserved {
                        WaitFailure::NoMember => Refusal::NoMember,
                        WaitFailure::QueueFull => Refusal::QueueFull,
                        WaitFailure::Overload => Refusal::Overload,
                    })
                })
            }
        });
        let bound = match waited.await {
            Ok(result) => result,
            Err(Stop::Expired) => Err(Refusal::QueueTimeout),
            Err(Stop::Cut) => Err(Refusal::Cut),
        };
        self.watch.disarm_deadline();
        let mut bound = match bound {
            // Those in it may wait for other members than this one can use, or better ones.
            Err(refusal @ (Refusal::QueueFull | Refusal::QueueTimeout)) => {
                again(None).map_err(|_| refusal)
            }
            bound => bound,
        }?;
        if let Some(tries) = &mut bound.tries {
            tries.queued = bound.ticket.started().since(began);
        }
        Ok(bound)
    }

    /// True if the client has reset its connection, looked at now and then
    /// ([`crate::watch::Watch::arm_and_look`]). Bytes that the client has sent before may hide the
    /// reset from a task that only reads. A FIN is no sign, as the client may still want its
    /// answer.
    #[inline]
    pub(crate) fn is_gone(&self, cx: &mut Context<'_>, client: &mut Io) -> bool {
        match client {
            // That of a stream is told.
            Io::Stream(stream) => stream.is_reset(cx),
            _ => self.watch.take_look() && client.has_failed(),
        }
    }

    /// Binds `request` as `bind` does, but without waiting. `advised` is the advice of a chooser,
    /// if one was asked.
    pub(crate) fn try_bind(
        &self,
        handle: &Arc<GroupHandle>,
        bindings: &RefCell<Bindings>,
        request: &Request<'_>,
        advised: Option<Advised<'_>>,
    ) -> Result<BoundRequest, PickError> {
        let mut bindings = bindings.borrow_mut();
        let mut binding = bindings.find_binding(handle);
        let (now, tried, cost) = (request.now, request.excluded_members, request.cost);
        let group = handle.current.load();
        let rng = &mut *self.worker.rng.borrow_mut();
        let mut ended = None;
        let pinned = request.pinned.filter(|member| !tried.contains(member));
        let pinned = pinned.and_then(|member| find_pinned(&group, member));
        let pinned = pinned.and_then(|index| group.bind_for(index, cost, now));
        let kept = match &mut binding {
            _ if pinned.is_some() => pinned,
            Some(binding) if !tried.contains(&binding.member()) => {
                match binding.check_request(&group, now) {
                    Verdict::Keep(index) => {
                        Some(group.bind_for(index, cost, now).ok_or(PickError::AllFull)?)
                    }
                    Verdict::Move(index) => {
                        let to = group.members().get(index).map(|member| member.id);
                        let may = to.is_some_and(|to| !tried.contains(&to));
                        match may.then(|| group.bind_for(index, cost, now)).flatten() {
                            Some(ticket) => {
                                binding.move_to(&group, index, now);
                                self.service.metrics.count_move(BindingEnd::Alert);
                                Some(ticket)
                            }
                            None => {
                                ended = Some((binding.member(), BindingEnd::Alert));
                                None
                            }
                        }
                    }
                    Verdict::Rebind(why) => {
                        ended = Some((binding.member(), why));
                        None
                    }
                }
            }
            _ => None,
        };
        let ticket = match kept {
            Some(ticket) => match self.peer.ip() {
                Some(client) => ticket.of_client(client),
                None => ticket,
            },
            None => {
                let unbound = ended.map(|(_, why)| why.name()).or(request.unbound);
                let request = &Request {
                    unbound,
                    ..*request
                };
                let ticket = match advised {
                    None => group.pick(request, rng)?,
                    Some((chooser, advice)) => {
                        let ticket = group.pick_advised(request, advice, rng)?;
                        chooser.count(advice, group.members()[ticket.member_index()].id);
                        ticket
                    }
                };
                if group.settings().granularity != Granularity::PerRequest {
                    bindings.set(
                        handle,
                        Binding::new(&group, ticket.member_index(), now, rng),
                    );
                }
                if let Some((from, why)) = ended
                    && group.members()[ticket.member_index()].id != from
                {
                    self.service.metrics.count_move(why);
                }
                ticket
            }
        };
        let member: &Member = &group.members()[ticket.member_index()];
        let logs = self.worker.records.get();
        Ok(BoundRequest {
            member: member.id,
            address: member.address.clone(),
            tries: logs
                .then(|| MemberAttempts::new(Arc::clone(&member.name), member.given_name.clone())),
            ticket,
        })
    }
}

/// Adds a member to the members that were tried, which are in order.
pub(crate) fn insert(tried: &mut Vec<MemberId>, member: MemberId) {
    tried.insert(tried.partition_point(|known| *known < member), member);
}
