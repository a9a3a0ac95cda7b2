//! Requests that cannot be understood, and their answers.

use std::sync::Arc;

use evenkeel_limits::Shortage;

use super::client::{After, Client};
use super::summary::Summary;
use crate::access::End;
use crate::http1::HeadError;
use crate::http1::respond::Answer;

/// Reason why there is no request (yet).
pub(super) enum NoRequest {
    Partial,
    /// Status and text of the answer, and whether it is one to a `HEAD`.
    Malformed(u16, String, bool),
    /// There is no memory. True if the answer is one to a `HEAD`.
    OutOfMemory(bool),
    /// Request of an authority that looks whether a name is ours: the answer, and whether it is one
    /// to a `HEAD`.
    Challenge(Arc<str>, bool),
}

impl Client {
    /// Answers a request whose head needs more memory than there is.
    pub(super) async fn refuse_for_memory(&mut self, to_head: bool) -> After {
        Shortage::Memory.report_failure("read the head of a request");
        let text = "The balancer is out of memory. Try again later.";
        self.refuse_malformed(503, text, to_head).await
    }

    /// Answers a request that cannot be understood, after which nothing can be.
    pub(super) async fn refuse_malformed(
        &mut self,
        status: u16,
        text: &str,
        to_head: bool,
    ) -> After {
        let metrics = &self.session.service.metrics;
        let end = match status {
            408 => {
                metrics.client_timeouts.add(1);
                End::ClientTimeout
            }
            503 => {
                metrics.refused_exhausted.add(1);
                End::Exhausted
            }
            _ => {
                metrics.refused_malformed.add(1);
                End::Client
            }
        };
        let rule = self.session.service.rule();
        // Of the rule, as nothing is known of a route.
        let policy = &rule.default_target.policy;
        let answer = Answer {
            retry_after: (status == 503).then_some(1),
            ..Answer::new_closing(status, text)
        };
        let sent = self.send_answer(&answer.with_policy(policy), to_head).await;
        let mut summary = Summary::new(end);
        summary.status = sent.then_some(status);
        self.conclude_request(None, summary);
        After::Linger
    }
}

pub(super) fn malformed_request(error: HeadError, read: &[u8]) -> NoRequest {
    let to_head = asks_for_head(read);
    NoRequest::Malformed(error.request_status(), error.to_string(), to_head)
}

/// True if a head that is not understood, or not all there, is that of a `HEAD`: no answer to a
/// `HEAD` has content (RFC 9110, section 9.3.2), so a client would take content for the answer to
/// its next request.
pub(super) fn asks_for_head(read: &[u8]) -> bool {
    let line = read.strip_prefix(b"\r\n").unwrap_or(read);
    line.starts_with(b"HEAD ")
}
