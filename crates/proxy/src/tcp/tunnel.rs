//! Tunnels: two connections that carry each other's bytes, unread.

use std::task::Poll;
use std::time::Duration;

use evenkeel_core::member::MemberId;

use super::flow::{Flow, TURN_BYTES};
use crate::access::End;
use crate::io::{Io, TransferError};
use crate::session::Session;
use crate::watch::Stop;

/// Two connections that carry each other's bytes.
pub(crate) struct Tunnel<'a> {
    pub(crate) session: &'a Session,
    /// Time for which the tunnel may be silent.
    pub(crate) idle: Duration,
    /// Member that the tunnel leads to, if load alerts may close the tunnel.
    pub(crate) member: Option<MemberId>,
    /// True if one side may end while the other goes on.
    pub(crate) half_close: bool,
}

/// Both directions of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Flow from the client to the member.
    pub(crate) up: Flow,
    /// Flow from the member to the client.
    pub(crate) down: Flow,
}

impl Traffic {
    /// True if nothing is on its way, and neither side has ended.
    fn is_calm(&self) -> bool {
        self.up.is_calm() && self.down.is_calm()
    }
}

impl Tunnel<'_> {
    /// Carries bytes until both sides have ended, or something is wrong. `answered` is
    /// called with the member's first byte.
    pub(crate) async fn run(
        &self,
        client: &mut Io,
        member: &mut Io,
        traffic: &mut Traffic,
        mut answered: impl FnMut(),
    ) -> End {
        let watch = &self.session.watch;
        let worker = &*self.session.worker;
        let metrics = &self.session.service.metrics;
        let idle = self.idle;
        if let Some(member) = self.member {
            watch.tie_to_member(member, worker.rng.borrow_mut().f32());
        }
        watch.arm_deadline(idle);
        let (mut deaf, mut pauses) = (false, false);
        let end = std::future::poll_fn(|cx| {
            let (up, down) = (traffic.up.moved, traffic.down.moved);
            let gates = self.session.bandwidth_gates();
            let [may_up, may_down] = match &gates {
                Some(gates) => gates
                    .each_ref()
                    .map(|gate| gate.bytes_allowed().min(TURN_BYTES)),
                None => [TURN_BYTES; 2],
            };
            let step_up = traffic.up.poll(cx, client, member, worker, may_up);
            let step_down = traffic.down.poll(cx, member, client, worker, may_down);
            let (up, down) = (traffic.up.moved - up, traffic.down.moved - down);
            if let Some([gate_up, gate_down]) = &gates {
                gate_up.count_passed(up);
                gate_down.count_passed(down);
            }
            metrics.bytes_from_clients.add(up);
            metrics.bytes_to_clients.add(down);
            if down > 0 && traffic.down.moved == down {
                answered();
            }
            let (up_ended, down_ended) = match (step_up, step_down) {
                (Poll::Ready(Err(TransferError::Exhausted(shortage))), _)
                | (_, Poll::Ready(Err(TransferError::Exhausted(shortage)))) => {
                    shortage.report_failure("forward the bytes of a connection");
                    return Poll::Ready(End::Exhausted);
                }
                (Poll::Ready(Err(TransferError::From | TransferError::Chunks(_))), _)
                | (_, Poll::Ready(Err(TransferError::To))) => {
                    return Poll::Ready(End::Client);
                }
                (_, Poll::Ready(Err(TransferError::From | TransferError::Chunks(_)))) => {
                    return Poll::Ready(End::Member);
                }
                // The member takes no more, but what it has sent before is still good.
                (Poll::Ready(Err(TransferError::To)), down) => {
                    deaf = true;
                    (true, down.is_ready())
                }
                (up, down) => (up.is_ready(), down.is_ready()),
            };
            let one_suffices = !self.half_close && !deaf;
            if up_ended && down_ended || (up_ended || down_ended) && one_suffices {
                return Poll::Ready(End::Complete);
            }
            if may_up == 0 || may_down == 0 {
                // It is not idle.
                pauses = true;
            } else if std::mem::take(&mut pauses) && up + down == 0 {
                watch.arm_deadline(idle);
            } else if up + down > 0 {
                // The last word is the member's only if the client said nothing with it.
                watch.arm_after_traffic(idle, up == 0);
            } else if watch.take_call() && traffic.is_calm() {
                return Poll::Ready(End::Alert);
            }
            watch.poll_stop(cx).map(|stop| match stop {
                Stop::Cut => End::Terminated,
                Stop::Expired if watch.is_over() => End::Limited,
                // Whoever should have taken or sent the next byte cannot be told from
                // outside, unless bytes wait for one of them.
                Stop::Expired if traffic.up.is_blocked() => End::MemberTimeout,
                Stop::Expired => End::ClientTimeout,
            })
        })
        .await;
        traffic.up.release_buffers(worker);
        traffic.down.release_buffers(worker);
        if !end.is_orderly() {
            client.reset_on_drop();
            member.reset_on_drop();
        }
        end
    }
}
