//! Requests that got no response, and the answers that their clients get instead.
//!
//! `Client::give_instead` sends every answer of the balancer to a request with a route: also those of
//! routes, limits and logins.

use evenkeel_core::group::Outcome;
use evenkeel_limits::Shortage;

use super::alias_refusal::AliasRefusal;
use super::client::{After, Client};
use super::engine_error::EngineError;
use super::request::Request;
use super::route::TOO_LARGE;
use super::summary::Summary;
use crate::access::{End, Limit};
use crate::bound_request::Refusal;
use crate::http1::Version;
use crate::http1::chunked::ChunkError;
use crate::http1::respond::{Answer, AnswerExtras};
use crate::io::TransferError;
use crate::service::State;
use crate::tcp::failure::ConnectFailure;

/// Reason why there is no response, though a member was found.
pub(super) enum Failure {
    /// The connection could not be opened.
    Connect(ConnectFailure),
    /// The connection ended before the first byte of a response.
    Silent,
    /// The connection, which had been idle, ended before the first byte of a response to a request
    /// that may not be sent twice: the member may have closed it just before.
    Stale,
    /// The member says that it has not processed the request.
    Refused,
    /// The member's response has a status after which another member is asked.
    Status(Outcome),
    /// The member's response has such a status, and no other member of the group may be asked.
    GroupRefused(Outcome),
    /// The process, or the machine, has run out of something while the exchange was under way.
    Exhausted(Shortage),
    /// The member sent no response, or not the whole head of one.
    Garbage,
    /// The response did not come in time.
    TimedOut,
    /// The time of the whole request is over, which its route or its client has set.
    DeadlineExceeded,
    /// The request's body is not valid.
    BadRequest(String),
    /// The name of the model, which may be an alias, cannot be read or replaced.
    Alias(AliasRefusal),
    /// The request's body is larger than allowed.
    TooLarge,
    /// The client did not send the rest of the request in time.
    ClientTimedOut,
    /// The client has sent the request more slowly than it may.
    ClientTooSlow,
    /// The client did not take an interim response in time.
    ClientStuck,
    /// The client went away in the middle of the request.
    ClientGone,
    /// The connection is to be cut.
    Cut,
}

/// Reason why a response did not get through.
pub(super) enum Fault {
    OfClient,
    OfMember(MemberError),
    Exhausted(Shortage),
}

impl From<TransferError> for Fault {
    /// Converts the reason why the response did not get through.
    fn from(broken: TransferError) -> Self {
        match broken {
            TransferError::From => Fault::OfMember(MemberError::Cut),
            TransferError::Chunks(error) => Fault::OfMember(MemberError::Chunks(error)),
            TransferError::To => Fault::OfClient,
            TransferError::Exhausted(shortage) => Fault::Exhausted(shortage),
        }
    }
}

impl Failure {
    /// Returns the outcome that the failure means for the member.
    pub(super) fn member_outcome(&self) -> Outcome {
        match self {
            Failure::Connect(failure) => failure.member_outcome(),
            Failure::Status(outcome) | Failure::GroupRefused(outcome) => *outcome,
            Failure::BadRequest(_)
            | Failure::Alias(_)
            | Failure::TooLarge
            | Failure::Stale
            | Failure::Refused
            | Failure::Exhausted(_)
            | Failure::ClientTimedOut
            | Failure::ClientTooSlow
            | Failure::ClientStuck
            | Failure::ClientGone
            | Failure::Cut => Outcome::Cancelled,
            // Members that are slow have more of these than others.
            Failure::DeadlineExceeded => Outcome::Error,
            Failure::Silent | Failure::Garbage | Failure::TimedOut => Outcome::Failure,
        }
    }
}

impl Failure {
    /// Returns the failure once the time of the whole request is over. A call of gRPC may send for as long as it lasts;
    /// another client that still sends its request is late itself.
    pub(super) fn past_deadline(self, grpc: bool) -> Self {
        match self {
            Failure::TimedOut | Failure::Connect(ConnectFailure::TimedOut) => {
                Failure::DeadlineExceeded
            }
            Failure::ClientTimedOut if grpc => Failure::DeadlineExceeded,
            failure => failure,
        }
    }

    /// Returns the kind of the failure, for traces.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Failure::Connect(ConnectFailure::Refused) => "connection_refused",
            Failure::Connect(ConnectFailure::TimedOut) => "connection_timeout",
            Failure::Connect(ConnectFailure::NoTls) => "tls",
            Failure::Connect(ConnectFailure::NoWebSocket) => "no_websocket",
            Failure::Connect(ConnectFailure::Exhausted(_)) | Failure::Exhausted(_) => "exhausted",
            Failure::Connect(ConnectFailure::Cut) | Failure::Cut => "terminated",
            Failure::Silent => "closed",
            Failure::Stale => "stale",
            Failure::Refused => "refused",
            Failure::Status(_) | Failure::GroupRefused(_) => "status",
            Failure::Garbage => "bad_response",
            Failure::TimedOut => "timeout",
            Failure::DeadlineExceeded => "deadline_exceeded",
            Failure::BadRequest(_) | Failure::Alias(_) => "bad_request",
            Failure::TooLarge => "too_large",
            Failure::ClientTimedOut | Failure::ClientStuck => "client_timeout",
            Failure::ClientTooSlow => "limited",
            Failure::ClientGone => "client",
        }
    }
}

impl From<TransferError> for Failure {
    /// Converts the reason why the request did not get through.
    fn from(broken: TransferError) -> Self {
        match broken {
            TransferError::Chunks(ChunkError::TooLarge) => Failure::TooLarge,
            TransferError::Chunks(error) => Failure::BadRequest(error.to_string()),
            TransferError::Exhausted(shortage) => Failure::Exhausted(shortage),
            TransferError::From | TransferError::To => Failure::ClientGone,
        }
    }
}

impl Client {
    /// Answers a request for which no member could be used.
    pub(super) async fn answer_refused(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        refusal: Refusal,
        last: Option<Box<Failure>>,
    ) -> After {
        let failure = match refusal {
            // The members that were tried count for more than that none is left.
            Refusal::NoMember if summary.retries > 0 => {
                let refused = Failure::Connect(ConnectFailure::Refused);
                Some(last.map_or(refused, |last| *last))
            }
            Refusal::QueueTimeout if self.session.watch.is_over() => {
                Some(Failure::DeadlineExceeded)
            }
            _ => None,
        };
        if let Some(failure) = failure {
            return self.answer_failed(request, summary, failure).await;
        }
        summary.end = self.session.count_refusal(refusal);
        let text = match refusal {
            Refusal::NoMember => "No server is available. Try again later.",
            Refusal::QueueFull => "All servers are busy, and so is the queue. Try again later.",
            Refusal::QueueTimeout => "All servers were busy for too long. Try again later.",
            Refusal::Overload => "The service is overloaded. Try again later.",
            Refusal::Cut | Refusal::ClientGone => return After::Cut,
        };
        self.answer_instead(request, summary, 503, text).await
    }

    /// Answers a request that failed.
    pub(super) async fn answer_failed(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        failure: Failure,
    ) -> After {
        let (end, status, text) = match failure {
            Failure::Connect(ConnectFailure::Cut) | Failure::Cut => {
                summary.end = End::Terminated;
                return After::Cut;
            }
            Failure::ClientGone => {
                summary.end = End::Client;
                return After::Cut;
            }
            Failure::ClientStuck => {
                summary.end = End::ClientTimeout;
                return After::Cut;
            }
            Failure::Connect(ConnectFailure::Refused) => {
                (End::Member, 502, "The server could not be reached.".into())
            }
            Failure::Connect(ConnectFailure::NoTls) => {
                let text = "There was no secure connection to the server.".into();
                (End::Member, 502, text)
            }
            Failure::Exhausted(shortage) => {
                shortage.report_failure("forward a request");
                let text = "The balancer is out of memory. Try again later.".into();
                // This end counts as one for want of something.
                (End::Exhausted, 503, text)
            }
            Failure::Connect(failure @ ConnectFailure::Exhausted(_)) => {
                self.session.count_exhausted(failure);
                let text = "The balancer is out of connections. Try again later.".into();
                (End::Refused, 503, text)
            }
            Failure::Connect(ConnectFailure::TimedOut) => {
                let text = "The server could not be reached in time.".into();
                (End::MemberTimeout, 504, text)
            }
            Failure::Silent => {
                let text = "The server ended the connection without an answer.".into();
                (End::Member, 502, text)
            }
            Failure::Connect(ConnectFailure::NoWebSocket) => {
                let service = &self.session.service;
                service.metrics.refused_no_websocket.add(1);
                let tries = summary.tries.as_ref();
                let member = tries.map_or("", |tries| &tries.member);
                let member_name = tries.and_then(|tries| tries.member_name.as_deref());
                evenkeel_limits::warn_throttled!(rule = %service.name, member, member_name,
                    "a client asks for WebSocket, but the member's SETTINGS of HTTP/2 do not allow it \
                     (ENABLE_CONNECT_PROTOCOL, RFC 8441)");
                let text = "The server takes no WebSocket over HTTP/2.".into();
                (End::Refused, 501, text)
            }
            Failure::Refused | Failure::Status(_) | Failure::GroupRefused(_) => {
                (End::Member, 502, "The server refused the request.".into())
            }
            Failure::Stale => {
                let text = "The server ended the connection without an answer.".into();
                (End::Stale, 502, text)
            }
            Failure::Garbage => {
                let text = "The server's answer could not be read.".into();
                (End::Member, 502, text)
            }
            Failure::TimedOut => {
                let text = "The server did not answer in time.".into();
                (End::MemberTimeout, 504, text)
            }
            Failure::DeadlineExceeded => {
                let text = "The time limit of the request is over.".into();
                (End::MemberTimeout, 504, text)
            }
            Failure::Alias(refusal) => {
                summary.end = End::Client;
                // In a box: few requests are refused.
                return Box::pin(self.answer_alias(request, summary, refusal)).await;
            }
            Failure::BadRequest(text) => {
                self.session.service.metrics.refused_malformed.add(1);
                (End::Client, 400, text)
            }
            Failure::ClientTooSlow => {
                summary.limit = Some(Limit::MinBodyRate);
                self.session.service.metrics.count_limit(Limit::MinBodyRate);
                let text = "The request's body arrives too slowly.".into();
                (End::Limited, 408, text)
            }
            Failure::TooLarge => {
                self.session.service.metrics.refused_too_large.add(1);
                (End::Client, 413, TOO_LARGE.into())
            }
            Failure::ClientTimedOut => {
                let text = "The request's body did not arrive in time.".into();
                (End::ClientTimeout, 408, text)
            }
        };
        summary.end = end;
        self.answer_instead(request, summary, status, &text).await
    }

    /// Answers a request whose model may be an alias and cannot be read or replaced.
    async fn answer_alias(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        refusal: AliasRefusal,
    ) -> After {
        self.session.service.metrics.aliases_refused.add(1);
        let (status, code, message) = refusal.describe();
        let error = EngineError {
            kind: "invalid_request_error",
            code,
            param: Some("model"),
            message,
        };
        let body = error.to_body();
        let routed = request.routed.clone();
        // A page of the administrator's own comes first.
        let has_page = routed.response_policy().page(status).is_some();
        let answer = Answer {
            page: (!has_page).then_some(("application/json", &body)),
            ..Answer::new_closing(status, message)
        };
        self.give_instead(request, summary, answer).await
    }

    pub(super) async fn answer_instead(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        status: u16,
        text: &str,
    ) -> After {
        let retry_after = (status == 503).then_some(1);
        let answer = Answer {
            retry_after,
            ..Answer::new_closing(status, text)
        };
        self.give_instead(request, summary, answer).await
    }

    /// Answers the client in place of a member, with an answer that may have more than a status and
    /// a text. Pages and changes of fields of the route, group or rule are applied here. Clients of engines read JSON: an
    /// answer without a page is an error in the format that they know.
    pub(super) async fn give_instead(
        &mut self,
        request: &mut Request,
        summary: &mut Summary,
        answer: Answer<'_>,
    ) -> After {
        let status = answer.status;
        // The client has its own time for the answer.
        self.session.watch.lift_limits();
        // The rest of a request that was not sent on is still in the way.
        let body_is_read = request.up.skip_what_was_read();
        let keep_alive = request.keep_alive
            && body_is_read
            && request.version == Version::Http11
            && self.session.service.state.get() == State::Running
            && !self.is_last();
        let id = request.answered_id(&request.routed);
        let answer = answer.with_policy(request.routed.response_policy());
        let needs_body = request.is_for_engines && answer.page.is_none();
        // In a box: a connection is to stay small.
        let error =
            needs_body.then(|| Box::new(EngineError::of_status(status, answer.text).to_body()));
        let error = error.as_deref().map(|body| ("application/json", body));
        let cors = request.cors_fields(&request.routed);
        let answer = Answer {
            keep_alive,
            page: answer.page.or(error),
            more: AnswerExtras {
                id,
                cors,
                ..answer.more
            },
            ..answer
        };
        let sent = self.send_answer(&answer, request.asked.head).await;
        summary.status = sent.then_some(status);
        match (sent, keep_alive) {
            (false, _) => After::Cut,
            (true, true) => After::NextRequest,
            (true, false) => After::Linger,
        }
    }
}

/// Fault in the rest of a response whose head the client has got.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum MemberError {
    /// The connection has ended.
    #[error("the response ends within its body")]
    Cut,
    /// The chunks are not valid.
    #[error(transparent)]
    Chunks(ChunkError),
}
