//! Members as the relay sees them: endpoints to them, and connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_giop::context::CodeSets;
use evenkeel_giop::ior::Ior;
use evenkeel_giop::message::Version;

use super::endpoint::{Addressing, Endpoint, outgoing_version, read_endpoints};
use super::state::{Member, Pool, PoolKey, Relay, Route, Upstream};
use crate::directory::Reference;

impl Member {
    fn new(reference: &Arc<Reference>) -> Self {
        Member {
            reference: Arc::clone(reference),
            endpoints: read_endpoints(reference.ior()),
            current: Cell::new(0),
            forwarded: RefCell::default(),
            addressing: Cell::default(),
            pools: RefCell::default(),
        }
    }

    /// Returns true if the directory still knows the member.
    pub(super) fn is_known(&self) -> bool {
        Arc::strong_count(&self.reference) > 1
    }

    pub(super) fn addressing(&self) -> Addressing {
        self.addressing.get()
    }

    /// Notes the addressing that the member wants. Returns true if it is new.
    pub(super) fn readdress(&self, addressing: Addressing) -> bool {
        self.addressing.replace(addressing) != addressing
    }

    /// Notes where the member forwards requests. Returns true if the reference has an endpoint.
    pub(super) fn accept_forward(&self, ior: &Ior) -> bool {
        let mut forwarded = self.forwarded.borrow_mut();
        // Many requests may be under way when it says so.
        if forwarded.as_ref().is_some_and(|known| known.ior == *ior) {
            return true;
        }
        match read_endpoints(ior).into_iter().next() {
            Some(endpoint) => {
                *forwarded = Some(endpoint);
                true
            }
            None => false,
        }
    }

    /// `endpoint` does not lead there: another one may.
    pub(super) fn endpoint_failed(&self, endpoint: &Rc<Endpoint>) {
        let forwarded = self.forwarded.borrow().clone();
        if forwarded.is_some_and(|forwarded| Rc::ptr_eq(&forwarded, endpoint)) {
            self.forwarded.take();
        } else if let Some(current) = self.endpoints.get(self.current.get())
            && Rc::ptr_eq(current, endpoint)
        {
            self.current
                .set((self.current.get() + 1) % self.endpoints.len());
        }
    }

    /// Returns the route of requests of clients with this version and these code sets; none if
    /// the reference has no address.
    pub(super) fn route(
        self: &Rc<Self>,
        relay: &Relay,
        client: Version,
        code_sets: Option<CodeSets>,
    ) -> Option<Route> {
        let forwarded = self.forwarded.borrow();
        let endpoint = match &*forwarded {
            Some(endpoint) => endpoint,
            None => self.endpoints.get(self.current.get())?,
        };
        let version = outgoing_version(client, endpoint);
        let mut pools = self.pools.borrow_mut();
        let known = pools.iter().find(|(known, pool)| {
            Rc::ptr_eq(known, endpoint) && pool.version == version && pool.code_sets == code_sets
        });
        let pool = match known {
            Some((_, pool)) => Rc::clone(pool),
            None => {
                // Ways that it forwards to come and go.
                pools.retain(|(known, _)| {
                    self.endpoints
                        .iter()
                        .any(|endpoint| Rc::ptr_eq(known, endpoint))
                });
                let pool = relay.pool(endpoint, version, code_sets);
                pools.push((Rc::clone(endpoint), Rc::clone(&pool)));
                pool
            }
        };
        Some(Route {
            member: Rc::clone(self),
            endpoint: Rc::clone(endpoint),
            pool,
        })
    }
}

/// A further connection is opened when each has so many requests under way.
const BUSY: usize = 16;

impl Pool {
    fn is_empty(&self) -> bool {
        self.connections.borrow().is_empty()
    }

    /// Returns true if the pool has connections, or if a member may want one.
    pub(super) fn is_used(self: &Rc<Self>) -> bool {
        !self.is_empty() || Rc::strong_count(self) > 1
    }

    /// The connection with the fewest requests under way, a new one if all have many; none
    /// if all are full.
    pub(super) fn connection(
        self: &Rc<Self>,
        relay: &Relay,
        endpoint: &Rc<Endpoint>,
    ) -> Option<Rc<Upstream>> {
        let mut connections = self.connections.borrow_mut();
        let least = connections.iter().min_by_key(|one| one.under_way());
        match least {
            Some(least)
                if least.under_way() < BUSY || connections.len() >= relay.settings.connections =>
            {
                (!least.is_full()).then(|| Rc::clone(least))
            }
            _ => {
                let new = Upstream::open(relay, self, endpoint);
                connections.push(Rc::clone(&new));
                Some(new)
            }
        }
    }

    /// A connection is no more to be used.
    pub(super) fn remove(&self, gone: &Upstream) {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|one| !std::ptr::eq(&**one, gone));
    }

    pub(super) fn check_time_limits(&self, relay: &Relay, now: Instant) {
        let connections = self.connections.borrow().clone();
        for connection in connections {
            connection.check_time_limits(relay, now);
        }
    }

    pub(super) fn cancel(&self, relay: &Relay, client: u64, request_id: Option<u32>) {
        for connection in &*self.connections.borrow() {
            connection.cancel(relay, client, request_id);
        }
    }
}

impl Relay {
    /// The member with this id, which has this reference.
    pub(super) fn member_for(&self, id: MemberId, reference: &Arc<Reference>) -> Rc<Member> {
        let mut members = self.members.borrow_mut();
        if let Some(member) = members.get(&id)
            && Arc::ptr_eq(&member.reference, reference)
        {
            return Rc::clone(member);
        }
        let member = Rc::new(Member::new(reference));
        members.insert(id, Rc::clone(&member));
        member
    }

    fn pool(&self, endpoint: &Endpoint, version: Version, code_sets: Option<CodeSets>) -> Rc<Pool> {
        let key = PoolKey {
            address: endpoint.addresses.first().cloned().unwrap_or_default(),
            version,
            code_sets: code_sets.map(|sets| (sets.chars, sets.wchars)),
        };
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(key).or_insert_with(|| {
            Rc::new(Pool {
                version,
                code_sets,
                connections: RefCell::default(),
            })
        });
        Rc::clone(pool)
    }
}
