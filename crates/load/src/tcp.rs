//! Bytes over TCP: some are sent, and so many awaited.

use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Instant;

use crate::context::Context;
use crate::socket::Stream;
use crate::stats::Kind;

/// Sends and awaits, on a connection that is kept if the plan says so.
pub(crate) async fn exchange(
    context: &Rc<Context>,
    kept: &mut Option<Stream>,
    client: usize,
    sent: &mut Instant,
) -> Result<(u16, u64), Kind> {
    let plan = &context.plan.tcp;
    let stream = match kept.take() {
        Some(stream) if !stream.has_ended() => stream,
        _ => {
            let stream = context.connect(&context.first, client).await?;
            *sent = Instant::now();
            stream
        }
    };
    let stream = kept.insert(stream);
    stream.send(&plan.send).await.map_err(|_| Kind::Closed)?;
    let mut received = 0u64;
    std::future::poll_fn(|_| {
        context.runtime.with_scratch(|buffer| {
            while received < plan.receive {
                match ready!(stream.poll_receive(buffer)) {
                    Ok(0) | Err(_) if received == 0 => return Poll::Ready(Err(Kind::Closed)),
                    Ok(0) | Err(_) => return Poll::Ready(Err(Kind::HalfBody)),
                    Ok(count) => received = received.saturating_add(count as u64),
                }
            }
            // What nobody has asked for would be taken for the next answer.
            match received == plan.receive {
                true => Poll::Ready(Ok(())),
                false => Poll::Ready(Err(Kind::Malformed)),
            }
        })
    })
    .await?;
    if plan.connects {
        *kept = None;
    }
    Ok((0, received))
}
