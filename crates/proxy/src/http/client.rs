//! A client's connection, or a stream of one, between requests.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use evenkeel_core::member::MemberId;
use evenkeel_manager::snapshot::GroupHandle;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::age::Age;
use crate::bindings::Bindings;
use crate::buffer::Buffer;
use crate::date::DateText;
use crate::http1::Hop;
use crate::http1::respond::Answer;
use crate::io::Io;
use crate::service::LocalRule;
use crate::session::Session;
use crate::upstream::Upstream;
use crate::watch::Stop;

/// Time for which a client may still send on a connection that the proxy has closed, so that the
/// response is not lost with a reset.
const LINGER: Duration = Duration::from_secs(2);

/// Time that an idle client has for one more request while the process shuts down. A request that
/// is already on its way when its connection is closed would be lost.
const LAST_CALL: Duration = Duration::from_secs(1);

/// A client connection.
pub(super) struct Client {
    pub(super) session: Session,
    pub(super) stream: Io,
    /// Bytes that were read and belong to the next request.
    pub(super) input: Option<Buffer>,
    /// Hop of the client, with the rule that it was made for.
    pub(super) hop: Option<(Rc<LocalRule>, Hop)>,
    /// The members that the client is bound to. The streams of a connection of HTTP/2 share them.
    pub(super) bindings: Rc<RefCell<Bindings>>,
    /// Age of the connection: number of requests that were answered, and time since it was
    /// accepted.
    pub(super) age: Age,
    /// True if the client has had its [`LAST_CALL`].
    pub(super) last_call: bool,
    /// A connection to a member that knows the client by it.
    pub(super) private: Option<Box<PrivateConnection>>,
}

/// An idle connection to a member that has authenticated it (NTLM, Negotiate): it is for one client, and ends with the
/// client's.
pub(super) struct PrivateConnection {
    pub(super) group: Arc<GroupHandle>,
    pub(super) member: MemberId,
    pub(super) upstream: Upstream,
}

/// Next state of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The connection goes on.
    NextRequest,
    /// The connection ends in order.
    Close,
    /// The connection ends in order, though the client may still be sending.
    Linger,
    /// The client has not got all of the response, and must see that.
    Cut,
    /// The connection goes on as HTTP/2.
    Http2,
}

impl Client {
    pub(super) fn new(session: Session, stream: Io, bindings: Rc<RefCell<Bindings>>) -> Self {
        let age = Age::new(&session.worker);
        Client {
            session,
            stream,
            input: None,
            hop: None,
            bindings,
            age,
            last_call: false,
            private: None,
        }
    }

    /// True if the connection ends with the request that is served now, as the connection is too
    /// old for another request.
    pub(super) fn is_last(&self) -> bool {
        let now = self.session.watch.coarse_now();
        let rule = self.session.service.rule();
        self.age.is_over(1, &rule.rule.limits, now)
    }

    /// Lets other tasks run first, as [`Worker::others_first`](crate::worker::Worker::others_first)
    /// does, but not for streams: streams that came together are all read before one has its turn,
    /// and what they send leaves together.
    pub(super) async fn others_first(&self) {
        if !matches!(self.stream, Io::Stream(_)) {
            self.session.worker.others_first().await;
        }
    }

    /// Reads more; false at the end. No buffer is held while nothing comes, and a small one
    /// while nothing more comes.
    pub(super) async fn fill_input(&mut self) -> Result<bool, Stop> {
        let Client {
            session,
            stream,
            input,
            age,
            last_call,
            ..
        } = self;
        let worker = &session.worker;
        session
            .watch
            .poll_until_stop(|cx| {
                let mut buffer = input.take().unwrap_or_else(|| worker.buffers.take());
                let filled = buffer.poll_fill(cx, stream);
                if buffer.is_empty() {
                    worker.buffers.give_back(buffer);
                } else if filled.is_pending() {
                    *input = Some(worker.buffers.shrink_buffer(buffer));
                } else {
                    *input = Some(buffer);
                }
                if worker.closing.get()
                    && age.has_had_requests()
                    && !*last_call
                    && input.is_none()
                    && filled.is_pending()
                {
                    *last_call = true;
                    // Otherwise as long as it may be idle anyway, or until all are cut.
                    if !worker.rests.get() {
                        session.watch.arm_deadline(LAST_CALL);
                    }
                }
                filled.map(|result| result.is_ok_and(|n| n > 0))
            })
            .await
    }

    /// Sends an answer of the proxy's own; false if the client does not take it.
    pub(super) async fn send_answer(&mut self, answer: &Answer<'_>, to_head: bool) -> bool {
        let status = answer.status;
        let out = {
            let date = self.session.worker.date.current_text();
            let answer = Answer {
                date: date.as_ref().and_then(DateText::text),
                ..*answer
            };
            if let Io::Stream(stream) = &mut self.stream {
                let sent = stream.send_answer(&answer, to_head);
                let metrics = &self.session.service.metrics;
                metrics.bytes_to_clients.add(*sent.as_ref().unwrap_or(&0));
                if sent.is_ok() {
                    metrics.count_status(status);
                }
                return sent.is_ok();
            }
            let mut out = self.session.worker.buffers.take_head();
            answer.write(to_head, &mut out);
            out
        };
        let limit = self.session.service.rule().rule.timeouts.body;
        let sent = self.send_head(out, limit).await == Ok(true);
        if sent {
            self.session.service.metrics.count_status(status);
        }
        sent
    }

    /// Sends a head of its own; false if the client does not take it.
    pub(super) async fn send_head(&mut self, head: Vec<u8>, limit: Duration) -> Result<bool, Stop> {
        let Client {
            session, stream, ..
        } = self;
        session.watch.arm_deadline(limit);
        let mut written = 0;
        let sent = session.watch.poll_until_stop(|cx| {
            while let Some(rest @ [_, ..]) = head.get(written..) {
                match ready!(Pin::new(&mut *stream).poll_write(cx, rest)) {
                    Ok(n) if n > 0 => written += n,
                    _ => return Poll::Ready(false),
                }
            }
            Pin::new(&mut *stream)
                .poll_flush(cx)
                .map(|flushed| flushed.is_ok())
        });
        let sent = sent.await;
        let metrics = &session.service.metrics;
        metrics.bytes_to_clients.add(written as u64);
        session.worker.buffers.give_head(head);
        sent
    }

    /// Ends the connection while the client may still be sending: closing it at once
    /// would reset it, and the client could lose the response (RFC 9112, section 9.6).
    pub(super) async fn linger_until_closed(&mut self) {
        if self.stream.shutdown().await.is_ok() {
            self.drain_input().await;
        }
    }

    /// Takes what the client still sends, for a while.
    pub(super) async fn drain_input(&mut self) {
        if let Some(input) = self.input.take() {
            self.session.worker.buffers.give_back(input);
        }
        self.session.watch.arm_deadline(LINGER);
        while let Ok(true) = self.fill_input().await {
            if let Some(input) = self.input.take() {
                self.session.worker.buffers.give_back(input);
            }
        }
    }
}
