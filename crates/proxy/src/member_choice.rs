//! Choice of a member for a request or connection: the member of an earlier one, the one that a
//! chooser advises, the strategy's, or the first one that is free in the queue.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Poll;

use evenkeel_control::queue::Class;
use evenkeel_control::shares_by_key::Share;
use evenkeel_core::binding::{Binding, BindingEnd, Verdict, find_pinned};
use evenkeel_core::group::{Granularity, Group, PickError, Request, Ticket};
use evenkeel_core::member::{Member, MemberId};
use evenkeel_manager::config::{Protocol, Timeouts};
use evenkeel_manager::snapshot::{GroupHandle, Target, WaitFailure};

use crate::access::MemberAttempts;
use crate::bindings::Bindings;
use crate::bound_request::{BoundRequest, Refusal};
use crate::chooser::{Advised, HttpFacts};
use crate::io::Io;
use crate::session::Session;
use crate::watch::Stop;

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
                Err(PickError::AllFull | PickError::Held | PickError::Late) => {}
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
        let share = find_share(&group.current.load(), request);
        let waiting = group.wait_for(
            (class, share),
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
                waiting.as_mut().poll(cx).map(|found| {
                    // Nobody is to work for a client that has left since the last look.
                    if found.is_ok() && ends_with_fin && client.has_ended() {
                        return Err(Refusal::ClientGone);
                    }
                    let found = found.map(|(mut bound, charge)| {
                        if let Some(engine) = bound.ticket.engine_mut() {
                            engine.set_charge(charge);
                        }
                        bound
                    });
                    found.map_err(|unserved| match unserved {
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
            Err(refusal @ (Refusal::QueueFull | Refusal::QueueTimeout)) if share.is_none() => {
                again(None).map_err(|_| refusal)
            }
            bound => bound,
        }?;
        if let Some(tries) = &mut bound.tries {
            tries.queued = bound.ticket.started().since(began);
        }
        Ok(bound)
    }

    /// Binds `request` as `bind_request` does, but without waiting. `advised` is the advice of a chooser,
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
            Some(mut ticket) => {
                group.begin_at_engine(&mut ticket, request);
                match self.peer.ip() {
                    Some(client) => ticket.of_client(client),
                    None => ticket,
                }
            }
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
        Ok(self.bind_ticket(&group, ticket))
    }

    /// Returns the request with this ticket of a member of `group`.
    pub(crate) fn bind_ticket(&self, group: &Group, ticket: Ticket) -> BoundRequest {
        let member: &Member = &group.members()[ticket.member_index()];
        let logs = self.worker.records.get();
        BoundRequest {
            member: member.id,
            address: member.address.clone(),
            tries: logs
                .then(|| MemberAttempts::new(Arc::clone(&member.name), member.given_name.clone())),
            ticket,
        }
    }
}

/// Finds the share that a request takes of a group in which keys have fair shares: a group of engines.
fn find_share(group: &Group, request: &Request<'_>) -> Option<Share> {
    group.engines().map(|_| {
        let of_plan = request.plan.map(|plan| (plan.owner(), plan.share_tokens()));
        let (key, tokens) = of_plan.unwrap_or_default();
        Share { key, tokens }
    })
}

/// Adds a member to the members that were tried, which are in order.
pub(crate) fn insert(tried: &mut Vec<MemberId>, member: MemberId) {
    tried.insert(tried.partition_point(|known| *known < member), member);
}
