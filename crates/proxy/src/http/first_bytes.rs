//! Wait for the first bytes of an engine's stream, before its client gets anything.
//!
//! An engine sends the head of a stream as soon as it has read the request, and the first token up to minutes later. If it
//! fails in between, another engine can still be asked, as the client has got nothing yet.

use std::task::Poll;
use std::time::Duration;

use super::client::Client;
use super::failure::Failure;
use super::progress::Progress;
use super::request::Request;
use super::response::Head;
use super::route::RequestRoute;
use crate::bound_request::BoundRequest;
use crate::io::TransferError;
use crate::upstream::Upstream;

/// Longest time for which a head waits for the first bytes of its body. Proxies and clients in front mostly wait a minute
/// for a head.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl Client {
    /// Waits until an answer has begun if it is a stream of events of which nothing has come yet.
    pub(super) async fn begin_stream(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        answered: Result<(Head, Upstream), Failure>,
    ) -> Result<(Head, Upstream), Failure> {
        let (mut head, mut upstream) = answered?;
        if head.is_unbegun_stream() {
            self.wait_for_first_bytes(request, routed, bound, &mut head, &mut upstream)
                .await?;
        }
        Ok((head, upstream))
    }

    /// Waits until a stream of events has begun. An error means that the client has got nothing of this answer.
    async fn wait_for_first_bytes(
        &mut self,
        request: &mut Request,
        routed: &RequestRoute,
        bound: &mut BoundRequest,
        head: &mut Head,
        upstream: &mut Upstream,
    ) -> Result<(), Failure> {
        let (timeouts, limits) = (&routed.route().timeouts, &routed.rule.limits);
        let Client {
            session, stream, ..
        } = self;
        let worker = &session.worker;
        let ends_with_fin = request.ends_with_fin(routed);
        let mut progress = Progress::new(request);
        let until = session.watch.coarse_now().after(LONGEST_WAIT);
        let (up, down) = (&mut request.up, &mut head.down);
        let began = session
            .watch
            .poll_until_stop(|cx| {
                if session.is_gone(cx, stream, ends_with_fin) {
                    return Poll::Ready(Err(Failure::ClientGone));
                }
                if let Err(broken) = progress.poll_up(cx, up, stream, upstream, session) {
                    return Poll::Ready(Err(broken.into()));
                }
                let step = down.poll_first_bytes(cx, upstream, worker);
                if step.is_pending() {
                    if session.watch.coarse_now() >= until {
                        return Poll::Ready(Ok(Ok(())));
                    }
                    progress.arm_deadline(&session.watch, up, None, timeouts, limits);
                    up.shrink_rest(worker);
                }
                step.map(Ok)
            })
            .await;
        let failure = match began {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(TransferError::Exhausted(shortage)))) => Failure::Exhausted(shortage),
            Ok(Ok(Err(TransferError::Chunks(error)))) => {
                self.note_bad_response(&bound.address, bound.tries.as_deref_mut(), error);
                Failure::Garbage
            }
            Ok(Ok(Err(TransferError::From | TransferError::To))) => Failure::Silent,
            Ok(Err(failure)) => failure,
            Err(stop) => progress.stop_failure(stop, up),
        };
        upstream.reset_on_drop();
        Err(failure.of_call(upstream))
    }
}
