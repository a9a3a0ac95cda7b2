//! Hedging: a request of which no byte of a response has come in time is sent to a second member, and
//! the first one that responds is whose response counts (Dean and Barroso, The Tail at Scale, 2013).

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_core::group::{self, Granularity, Outcome};
use evenkeel_core::member::MemberId;
use evenkeel_core::time::Instant;
use evenkeel_manager::snapshot::GroupHandle;

use super::client::Client;
use super::copy::CopyPlan;
use super::failure::Failure;
use super::flow::{Flow, JOINED_BYTES};
use super::progress::Progress;
use super::request::Request;
use super::response::Head;
use super::route::RequestRoute;
use crate::access::Hedged;
use crate::bound_request::BoundRequest;
use crate::buffer::Buffer;
use crate::io::{Io, Nobody};
use crate::member_choice::insert;
use crate::trace::{self, Attempt};
use crate::upstream::Upstream;

/// A second request, which waits until it is time for it, or is under way.
pub(super) struct Hedge {
    task: Pin<Box<dyn Future<Output = Option<Box<HedgeAnswer>>>>>,
    /// Member that has the second request, and the time since which it has it, if the request was
    /// sent.
    sent: Rc<Cell<Option<(MemberId, Instant)>>>,
    is_over: bool,
    /// Span of the second request, if the request is traced.
    span: [u8; 8],
}

/// A second request that is answered.
pub(super) struct HedgeAnswer {
    bound: BoundRequest,
    upstream: Upstream,
    /// The first bytes of the response.
    input: Buffer,
}

/// Member that was first, with its result.
// The large one is usual, and for a moment.
#[allow(clippy::large_enum_variant)]
enum First {
    /// The first member has responded, or failed.
    Usual(Answered),
    /// The second one responds.
    Hedge(Box<HedgeAnswer>),
}

/// Result of a request.
type Answered = Result<(Head, Upstream), Failure>;

/// A request that is bound. If it is given up, nothing is said of its member, and its place is free.
pub(super) struct Held {
    pub(super) bound: Option<BoundRequest>,
    pub(super) group: Arc<GroupHandle>,
}

impl Held {
    /// Finishes what is bound, with this outcome for its member.
    pub(super) fn finish_bound(mut self, outcome: Outcome, now: Instant) {
        if let Some(bound) = self.bound.take() {
            self.group.finish(bound.ticket, outcome, now);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(bound) = self.bound.take() {
            self.group.queue.vacate(|| drop(bound));
        }
    }
}

impl Hedge {
    /// The second response, if it comes.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Box<HedgeAnswer>>> {
        if self.is_over {
            return Poll::Pending;
        }
        let polled = self.task.as_mut().poll(cx);
        self.is_over = polled.is_ready();
        polled
    }
}

impl Request {
    /// Returns the place of the request's span in the member's head, if the request is traced.
    fn place_of_span(&self) -> Option<usize> {
        let details = self.line.as_ref()?.details.as_ref()?;
        details.trace.as_ref().map(|trace| trace.place)
    }

    /// True if a second member may be asked.
    #[inline]
    pub(super) fn is_hedged(&self, routed: &RequestRoute, retries: u32) -> bool {
        // One that is tried again has taken its time already, and two engines would read the same prompt.
        let may_hedge = self.may_hedge && !self.is_for_engines && retries == 0;
        routed.route().hedge.is_some() && may_hedge
    }
}

impl Client {
    /// Returns the second request for the case that `bound` takes long; `None` if the request may
    /// have none.
    fn plan_hedge(
        &self,
        request: &Request,
        routed: &RequestRoute,
        bound: &BoundRequest,
    ) -> Option<Hedge> {
        let hedge = routed.route().hedge.as_ref()?;
        let (service, worker) = (&self.session.service, &self.session.worker);
        let group = routed.target().group.current.load();
        // A client that is bound to a member has something there.
        if group.members().len() < 2
            || group.settings().granularity != Granularity::PerRequest
            || request.stuck.is_some()
        {
            return None;
        }
        service.hedges.borrow_mut().request(hedge.share);
        let copies = CopyPlan {
            most: JOINED_BYTES,
            memory: Arc::clone(&worker.memory),
        };
        let copy = request.up.copy_message(copies)?;
        let (key, started) = (request.key, bound.ticket.started());
        let mut up = Flow::of_copy(copy);
        let mut span = [0; 8];
        if let Some(place) = request.place_of_span() {
            span = trace::new_span(&mut worker.rng.borrow_mut());
            up.overwrite_head(place, &trace::span_text(span));
        }
        let second = request.once_more(routed.clone(), key, up, started);
        let client = Client::new(
            self.session.for_own_request(),
            Io::Nobody(Nobody),
            Rc::default(),
        );
        let sent = Rc::default();
        let at = bound.ticket.started().after(hedge.after);
        let task = client.ask_second(second, at, bound.member, Rc::clone(&sent));
        Some(Hedge {
            task: Box::pin(task),
            sent,
            is_over: false,
            span,
        })
    }

    /// Sends a request at `at` to a member that is not `first`, and waits for its response.
    async fn ask_second(
        mut self,
        mut request: Request,
        at: Instant,
        first: MemberId,
        sent: Rc<Cell<Option<(MemberId, Instant)>>>,
    ) -> Option<Box<HedgeAnswer>> {
        let worker = Rc::clone(&self.session.worker);
        worker.timers.nap_until(at).await;
        let routed = request.routed.clone();
        let mut held = self.bind_second(&request, &routed, first)?;
        let bound = held.bound.as_mut()?;
        sent.set(Some((bound.member, worker.now())));
        self.session.service.metrics.hedges_sent.add(1);
        let answered = self.first_bytes(&mut request, &routed, bound, true);
        match answered.await {
            Ok((upstream, input)) => Some(Box::new(HedgeAnswer {
                bound: held.bound.take()?,
                upstream,
                input,
            })),
            Err(failure) => {
                held.finish_bound(failure.member_outcome(), worker.now());
                None
            }
        }
    }

    /// Binds a second request to another member than `first`, if there is one that is up and below
    /// its limits, and the budget has it.
    fn bind_second(
        &self,
        request: &Request,
        routed: &RequestRoute,
        first: MemberId,
    ) -> Option<Held> {
        let (service, now) = (&self.session.service, self.session.worker.now());
        let handle = &routed.target().group;
        let asks = group::Request {
            client: self.session.peer.ip(),
            key: request.key,
            cost: request.cost,
            excluded_members: &[first],
            ..group::Request::at_time(now)
        };
        let group = handle.current.load();
        let view = group.view_for(&asks);
        let mut members = group.members().iter().enumerate();
        // Those that are down may be asked when too many are, but not for this.
        if !members.any(|(index, member)| member.slot.reason_bits() == 0 && view.is_eligible(index))
        {
            return None;
        }
        if !service.hedges.borrow_mut().try_retry(now) {
            service.metrics.hedges_over_budget.add(1);
            return None;
        }
        let bound = self
            .session
            .try_bind(handle, &RefCell::default(), &asks, None);
        let bound = bound.ok()?;
        let held = Held {
            group: Arc::clone(handle),
            bound: Some(bound),
        };
        let chosen = held.bound.as_ref()?.ticket.member_index();
        let is_up = group.members().get(chosen);
        is_up
            .is_some_and(|member| member.slot.reason_bits() == 0)
            .then_some(held)
    }

    /// Sends the request, and waits for the first bytes of a response. `may_reuse` is whether a
    /// connection will do that is idle.
    pub(super) async fn first_bytes(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        may_reuse: bool,
    ) -> Result<(Upstream, Buffer), Failure> {
        let idle = match may_reuse {
            true => self.take_idle(routed, bound),
            false => None,
        };
        let was_idle = idle.is_some();
        let mut upstream = match idle {
            Some(upstream) => upstream,
            None => {
                let opened = self.open_to(request, routed, bound).await;
                opened.map_err(Failure::Connect)?
            }
        };
        let mut progress = Progress::new(request);
        let mut input = None;
        let filled = self.fill_response(request, routed, &mut upstream, &mut progress, &mut input);
        match (filled.await, input) {
            (Ok(()), Some(input)) => Ok((upstream, input)),
            // The member may have closed it just before.
            (Err(Failure::Silent), _) if was_idle => Err(Failure::Stale),
            (Err(failure), _) => {
                let is_stale = matches!(&*upstream, Io::Call(call) if call.is_stale());
                let failure = failure.of_call(&upstream);
                upstream.reset_on_drop();
                Err(match failure {
                    Failure::Silent | Failure::Refused if is_stale => Failure::Stale,
                    failure => failure,
                })
            }
            (Ok(()), None) => Err(Failure::Silent),
        }
    }

    /// Sends the request to a member, and to a second one if it takes long: the first response. Says what
    /// became of the second request, if there was one. `bound` is whose response it is, and `tried`
    /// has the other one then.
    pub(super) async fn attempt_both(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        tried: &mut Vec<MemberId>,
    ) -> (Answered, Option<Hedged>) {
        let mut hedge = self.plan_hedge(request, routed, bound);
        let first = {
            let attempt = self.attempt_request(request, routed, bound);
            tokio::pin!(attempt);
            let first = std::future::poll_fn(|cx| {
                if let Poll::Ready(answered) = attempt.as_mut().poll(cx) {
                    return Poll::Ready(First::Usual(answered));
                }
                match hedge.as_mut().map(|hedge| hedge.poll(cx)) {
                    Some(Poll::Ready(Some(won))) => Poll::Ready(First::Hedge(won)),
                    _ => Poll::Pending,
                }
            });
            first.await
        };
        let sent = hedge.as_ref().and_then(|hedge| hedge.sent.get());
        let span = hedge.as_ref().map(|hedge| hedge.span);
        let (won, outcome, why) = match first {
            // The other one has been slow, which nobody has measured to its end.
            First::Hedge(won) => {
                if let Some((_, began)) = sent {
                    self.limit_attempt_since(routed, began);
                }
                (won, Outcome::Cancelled, "slower")
            }
            First::Usual(Ok(answered)) => {
                // Whoever has not answered is not asked again, if this response is not wanted.
                self.note_lost(request, routed, sent, span);
                sent.into_iter()
                    .for_each(|(second, _)| insert(tried, second));
                return (Ok(answered), sent.map(|_| Hedged::Lost));
            }
            First::Usual(Err(failure)) => {
                match self.wait_for_hedge(routed, &mut hedge, &failure).await {
                    Some(won) => (won, failure.member_outcome(), failure.name()),
                    None => {
                        self.note_lost(request, routed, sent, span);
                        sent.into_iter()
                            .for_each(|(second, _)| insert(tried, second));
                        return (Err(failure), sent.map(|_| Hedged::Lost));
                    }
                }
            }
        };
        drop(hedge);
        let HedgeAnswer {
            bound: second,
            mut upstream,
            input,
        } = *won;
        self.session.service.metrics.hedges_won.add(1);
        insert(tried, bound.member);
        request.note_attempt(routed, bound, Err(why), false);
        request.end_attempt(why, self.session.worker.now());
        if let (Some(trace), Some(span)) = (request.trace_mut(), span) {
            trace.current = span;
        }
        let usual = std::mem::replace(bound, second);
        if let (Some(tries), Some(usual)) = (&mut bound.tries, &usual.tries) {
            tries.queued = usual.queued;
        }
        let now = self.session.worker.now();
        routed.target().group.finish(usual.ticket, outcome, now);
        self.session.watch.disarm_deadline();
        request.up.set_sent();
        let head = self.response_head(request, routed, bound, &mut upstream, Some(input));
        let answered = match head.await {
            Ok(head) => Ok((head, upstream)),
            Err(failure) => {
                let failure = failure.of_call(&upstream);
                upstream.reset_on_drop();
                Err(failure)
            }
        };
        (answered, Some(Hedged::Won))
    }

    /// Notes in the trace a second request that was not answered first.
    fn note_lost(
        &self,
        request: &mut Request,
        routed: &RequestRoute,
        sent: Option<(MemberId, Instant)>,
        span: Option<[u8; 8]>,
    ) {
        let (at, now) = (request.at, self.session.worker.now());
        let (Some(trace), Some((member, since)), Some(span)) = (request.trace_mut(), sent, span)
        else {
            return;
        };
        let group = routed.target().group.current.load();
        let member = group.members().iter().find(|known| known.id == member);
        let Some(member) = member else {
            return;
        };
        trace.attempts.push(Attempt {
            span,
            member: Arc::clone(&member.name),
            member_name: member.given_name.clone(),
            group: Arc::clone(group.name()),
            strategy: group.strategy().name,
            began: since.since(at),
            end_time: Some(now.since(at)),
            queued: Duration::ZERO,
            connect_time: None,
            status: None,
            failure: Some("slower"),
            hedge: true,
        });
    }

    /// Waits for the response to the second request after the first one has failed.
    async fn wait_for_hedge(
        &mut self,
        routed: &RequestRoute,
        hedge: &mut Option<Hedge>,
        failure: &Failure,
    ) -> Option<Box<HedgeAnswer>> {
        let is_of_one_member = match failure {
            Failure::Connect(failure) => failure.is_of_one_member(),
            Failure::Silent | Failure::Garbage | Failure::Refused | Failure::TimedOut => true,
            _ => false,
        };
        // One that was not sent is none: there are retries for that.
        let hedge = hedge.as_mut()?;
        let (_, began) = hedge.sent.get()?;
        if !is_of_one_member || hedge.is_over {
            return None;
        }
        self.limit_attempt_since(routed, began);
        let Client {
            session, stream, ..
        } = self;
        let timeouts = &routed.route().timeouts;
        let longest = timeouts.connect.saturating_add(timeouts.response);
        session.watch.arm_and_look(longest);
        let won = session.watch.poll_until_stop(|cx| {
            match session.is_gone(cx, stream, routed.route().abort_on_close) {
                true => Poll::Ready(None),
                false => hedge.poll(cx),
            }
        });
        let won = won.await;
        session.watch.disarm_deadline();
        won.ok().flatten()
    }
}
