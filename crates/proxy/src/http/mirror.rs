//! Mirroring: copies of requests for other groups, whose responses nobody waits for.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use evenkeel_core::group;

use super::client::Client;
use super::copied::CopyReceiver;
use super::copy::{Copy, CopyRefusal};
use super::delivered::Delivered;
use super::flow::Flow;
use super::progress::Progress;
use super::prompt::Prompt;
use super::request::Request;
use super::response::Head;
use super::route::RequestRoute;
use crate::access::End;
use crate::bound_request::BoundRequest;
use crate::io::{Io, Nobody};
use crate::service::Service;
use crate::upstream::Upstream;

/// Most bytes of a response that are read. Whoever sends more is cut off.
const MAX_RESPONSE_BYTES: u64 = 1 << 20;

/// A place among the copies for a group that a worker has under way.
struct Place {
    service: Rc<Service>,
    group: Arc<str>,
}

impl Place {
    /// Takes a place for a copy, unless `most` copies for the group are under way.
    fn take(service: &Rc<Service>, group: &Arc<str>, most: u32) -> Option<Self> {
        let mut mirrored = service.mirrored.borrow_mut();
        let taken = mirrored.entry(Arc::clone(group)).or_default();
        if *taken >= most {
            return None;
        }
        *taken += 1;
        Some(Place {
            service: Rc::clone(service),
            group: Arc::clone(group),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut mirrored = self.service.mirrored.borrow_mut();
        if let Some(taken) = mirrored.get_mut(&self.group) {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                mirrored.remove(&self.group);
            }
        }
    }
}

impl Client {
    /// Sends the copies of the request, if there are to be some and the request is whole. `is_over` says that no
    /// more of it comes. Engines get copies by their `prompt`, if it was read.
    #[inline]
    pub(super) fn send_mirror(
        &self,
        request: &mut Request,
        is_over: bool,
        prompt: Option<&mut Prompt>,
    ) {
        if request.up.is_copied() {
            self.mirror_copy(request, is_over, prompt);
        }
    }

    #[cold]
    fn mirror_copy(&self, request: &mut Request, is_over: bool, prompt: Option<&mut Prompt>) {
        let metrics = &self.session.service.metrics;
        let taken = request.up.take_copy(is_over);
        if taken.is_none() && !is_over {
            return;
        }
        let receivers = request.receivers.take().unwrap_or_default();
        let count = receivers.len() as u64;
        match taken {
            None => metrics.mirror_incomplete.add(count),
            Some(Ok(copy)) => self.send_copies(request, &receivers, copy, prompt),
            Some(Err(CopyRefusal::TooLarge)) => metrics.mirror_too_large.add(count),
            Some(Err(CopyRefusal::Exhausted)) => metrics.mirror_exhausted.add(count),
        }
    }

    /// Sends the copy to each receiver. Several have the bytes in common.
    fn send_copies(
        &self,
        request: &Request,
        receivers: &[CopyReceiver],
        copy: Copy,
        mut prompt: Option<&mut Prompt>,
    ) {
        let size = copy.body_len();
        if let [only] = receivers {
            return self.send_copy(request, only, (size, prompt), || Flow::of_copy(copy));
        }
        let shared = Rc::new(copy);
        for receiver in receivers {
            let facts = (size, prompt.as_deref_mut());
            self.send_copy(request, receiver, facts, || Flow::of_shared_copy(&shared));
        }
    }

    /// Sends a copy, whose body has `size` bytes, to a receiver.
    fn send_copy(
        &self,
        request: &Request,
        receiver: &CopyReceiver,
        (size, prompt): (usize, Option<&mut Prompt>),
        make_flow: impl FnOnce() -> Flow,
    ) {
        let (service, worker) = (&self.session.service, &self.session.worker);
        let metrics = &service.metrics;
        let Some((mirror, routed)) = request.routed.mirror_of(receiver) else {
            return;
        };
        if size > mirror.max_body {
            return metrics.mirror_too_large.add(1);
        }
        let group = routed.target().group.current.load();
        let Some(place) = Place::take(service, group.name(), mirror.max_concurrent) else {
            return metrics.mirror_busy.add(1);
        };
        if worker.files.are_short() {
            // Clients wait for connections.
            return metrics.mirror_exhausted.add(1);
        }
        let session = self.session.for_own_request();
        let handle = &routed.target().group;
        let plan = prompt.and_then(|prompt| prompt.plan_request(handle));
        let asks = group::Request {
            client: session.peer.ip(),
            key: receiver.key,
            cost: request.cost,
            plan: plan.as_deref(),
            ..group::Request::at_time(worker.now())
        };
        // Nobody's ties: they would say where later requests go, if these are for the group, too.
        let bindings = RefCell::default();
        let bound = session.try_bind(handle, &bindings, &asks, None);
        let Ok(bound) = bound else {
            return metrics.mirror_no_member.add(1);
        };
        metrics.mirror_sent.add(1);
        let copied = request.once_more(routed, receiver.key, make_flow(), asks.now);
        let client = Client::new(session, Io::Nobody(Nobody), Rc::default());
        tokio::task::spawn_local(client.carry_copy(copied, bound, place));
    }

    /// Sends a copy, and takes the response.
    async fn carry_copy(mut self, mut request: Request, mut bound: BoundRequest, place: Place) {
        let routed = request.routed.clone();
        let timeouts = &routed.route().timeouts;
        let all = timeouts.connect.saturating_add(timeouts.response);
        self.session.watch.set_total_limit(all);
        let answered = self
            .attempt_request(&mut request, &routed, &mut bound)
            .await;
        let is_whole = match answered {
            Ok((mut head, mut upstream)) => {
                let discarded =
                    self.discard_response(&request, &routed, &mut bound, &mut head, &mut upstream);
                let delivered = discarded.await;
                self.settle_connections(&mut request, &routed, bound, head, upstream, &delivered);
                delivered.end.is_orderly()
            }
            Err(failure) => {
                routed.target().group.finish(
                    bound.ticket,
                    failure.member_outcome(),
                    self.session.worker.now(),
                );
                false
            }
        };
        if !is_whole {
            self.session.service.metrics.mirror_failed.add(1);
        }
        if let Some(rest) = request.up.end_flow(&self.session.worker) {
            self.session.worker.buffers.give_back(rest);
        }
        drop(place);
    }

    /// Reads a response that is for nobody.
    pub(super) async fn discard_response(
        &mut self,
        request: &Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        head: &mut Head,
        upstream: &mut Upstream,
    ) -> Delivered {
        let Client {
            session, stream, ..
        } = self;
        let mut progress = Progress::new(request);
        let down = &mut head.down;
        session.watch.arm_deadline(routed.route().timeouts.response);
        let read = session.watch.poll_until_stop(|cx| {
            let step = progress.poll_down(cx, down, upstream, stream, session);
            let (ticket, group) = (&mut bound.ticket, &routed.target().group);
            if let Some(engine) = ticket.engine_mut() {
                progress.update_engine(&step, (&request.up, down), group, engine, &session.worker);
            }
            if ticket.is_followed() {
                progress.update_ticket(&step, &request.up, down, group, ticket, &session.worker);
            }
            match step {
                Poll::Pending if down.sent_bytes() > MAX_RESPONSE_BYTES => {
                    Poll::Ready(End::Limited)
                }
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(())) => Poll::Ready(End::Complete),
                Poll::Ready(Err(_)) => Poll::Ready(End::Member),
            }
        });
        let end = read.await.unwrap_or(End::MemberTimeout);
        Delivered::of_discarded(end, down.sent_bytes())
    }
}
