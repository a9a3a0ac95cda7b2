//! Next request of a client: waited for, told from HTTP/2, and parsed.

use std::rc::Rc;

use evenkeel_http2::PREFACE;
use evenkeel_tls::challenge;
use evenkeel_wire::response::HeadScan;

use super::client::{After, Client};
use super::flow::Flow;
use super::malformed::{NoRequest, asks_for_head, malformed_request};
use super::request::{Request, RequestFacts};
use super::route::{RequestRoute, TOO_LARGE};
use crate::access::End;
use crate::buffer::Buffer;
use crate::http1::chunked::ChunkError;
use crate::http1::forward::{Changes, write_changed, write_for_stream};
use crate::http1::respond::Answer;
use crate::http1::{Fields, Hop, Limits, ParseOutcome, RequestHead};
use crate::io::TransferError;
use crate::memory::{BUFFER_BYTES, OutOfMemory};
use crate::service::LocalRule;
use crate::watch::Stop;

/// Protocol that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Http1,
    Http2,
}

/// Returns the protocol that a client speaks: the one that TLS has agreed on (`alpn`), or else that
/// of the first bytes that it sends. `None` if more must be read to know. The rule says whether
/// HTTP/2 is allowed without ALPN.
#[inline]
fn detect_protocol(alpn: Option<&[u8]>, read: &[u8], http2: bool) -> Option<Speaks> {
    match alpn {
        Some(b"h2") => Some(Speaks::Http2),
        None if http2 && read.starts_with(PREFACE) => Some(Speaks::Http2),
        None if http2 && PREFACE.starts_with(read) => None,
        _ => Some(Speaks::Http1),
    }
}

impl Client {
    /// Waits for a request and reads its head. Without one, the answer says how the
    /// connection ends; what had to be answered was.
    pub(super) async fn next_request(&mut self) -> Result<Request, After> {
        let mut waiting_for_head = self.input.is_some();
        let mut scan = HeadScan::default();
        let rule = self.session.service.rule();
        self.session.watch.arm_deadline(if waiting_for_head {
            rule.rule.timeouts.header
        } else {
            let left = self
                .age
                .time_left(&rule.rule.limits, self.session.watch.coarse_now());
            let keep_alive = rule.rule.timeouts.keep_alive;
            left.map_or(keep_alive, |left| left.min(keep_alive))
        });
        drop(rule);
        loop {
            if self.input.is_some() {
                // As it is now: it may have changed while the client was idle.
                let rule = self.session.service.rule();
                let limit = rule.rule.http.max_header_bytes;
                let read = self.input.as_ref().map_or(&[][..], Buffer::bytes);
                let speaks = if self.age.has_had_requests() {
                    Some(Speaks::Http1)
                } else {
                    let agreed = self.stream.agreed_parameters();
                    let alpn = agreed.and_then(|agreed| agreed.protocol.as_deref());
                    detect_protocol(alpn, read, rule.rule.http.http2)
                };
                let parsed = match speaks {
                    Some(Speaks::Http2) => return Err(After::Http2),
                    Some(Speaks::Http1) if scan.is_due(read, limit) => self.parse(&rule),
                    _ => Err(NoRequest::Partial),
                };
                match parsed {
                    Ok(request) => return Ok(request),
                    Err(NoRequest::Partial) => {}
                    Err(NoRequest::Malformed(status, text, to_head)) => {
                        return Err(self.refuse_malformed(status, &text, to_head).await);
                    }
                    Err(NoRequest::OutOfMemory(to_head)) => {
                        return Err(self.refuse_for_memory(to_head).await);
                    }
                    Err(NoRequest::Challenge(answer, to_head)) => {
                        self.session.service.metrics.requests.add(1);
                        self.send_answer(&Answer::new_closing(200, &answer), to_head)
                            .await;
                        return Err(After::Linger);
                    }
                }
                if !waiting_for_head {
                    waiting_for_head = true;
                    self.session.watch.arm_deadline(rule.rule.timeouts.header);
                }
                // An empty line may be before it.
                let limit = limit.saturating_add(2).max(BUFFER_BYTES);
                let memory = &self.session.worker.memory;
                let room = match &mut self.input {
                    Some(input) => input.make_room(limit, memory),
                    None => Ok(true),
                };
                match room {
                    Ok(true) => {}
                    // The parser refuses heads of this size, so this cannot be.
                    Ok(false) => return Err(After::Cut),
                    Err(OutOfMemory) => return Err(self.refuse_for_memory(false).await),
                }
            }
            match self.fill_input().await {
                Ok(true) => {}
                Ok(false) if waiting_for_head => {
                    self.session.count_end(End::Client);
                    return Err(After::Close);
                }
                Ok(false) => return Err(After::Close),
                Err(Stop::Expired) if waiting_for_head => {
                    let text = "The request head did not arrive in time.";
                    let read = self.input.as_ref().map_or(&[][..], Buffer::bytes);
                    let to_head = asks_for_head(read);
                    return Err(self.refuse_malformed(408, text, to_head).await);
                }
                Err(Stop::Expired) => return Err(After::Close),
                Err(Stop::Cut) => {
                    self.session.count_end(End::Terminated);
                    return Err(After::Cut);
                }
            }
        }
    }

    /// Parses the head in the input, and writes the one for the member.
    fn parse(&mut self, rule: &Rc<LocalRule>) -> Result<Request, NoRequest> {
        let http = &rule.rule.http;
        let known = matches!(&self.hop, Some((known, _)) if Rc::ptr_eq(known, rule));
        if !known {
            let local = self.session.local.name(|| self.stream.local_addr());
            let hop = Hop::new(
                http,
                self.session.peer.ip(),
                self.stream.uri_scheme(),
                local,
            );
            let agreed = self.stream.agreed_parameters();
            let hop = hop.with_identity(agreed.and_then(|agreed| agreed.identity.as_deref()));
            self.hop = Some((Rc::clone(rule), hop));
        }
        let (Some((_, hop)), Some(input)) = (&self.hop, &mut self.input) else {
            return Err(NoRequest::Partial);
        };
        let limits = Limits {
            max_bytes: http.max_header_bytes,
            max_fields: http.max_header_count,
        };
        let worker = &self.session.worker;
        let mut fields = Fields::new();
        let head = match RequestHead::parse(input.bytes(), limits, &mut fields) {
            Ok(ParseOutcome::Head(head)) => head,
            Ok(ParseOutcome::Partial) => return Err(NoRequest::Partial),
            Err(error) => return Err(malformed_request(error, input.bytes())),
        };
        if let Some(answer) = challenge::find_answer(head.target) {
            return Err(NoRequest::Challenge(answer, head.framing_facts.head));
        }
        let bindings = self.bindings.borrow();
        let agreed = self.stream.agreed_parameters().map(|of| &**of);
        let (routed, given) =
            RequestRoute::find_route(&self.session, rule, &bindings, &head.request, hop, agreed);
        drop(bindings);
        let mut out = worker.buffers.take_head();
        let bounds = routed.body_bounds(head.request.body);
        let login = routed.new_login(given.as_deref(), &head.request, hop, &self.session);
        let mut noted =
            RequestFacts::of_request(&self.session, rule, self.stream.uri_scheme(), &head.request);
        let mut places = None;
        if given.is_none() {
            let changes = Changes {
                marks: noted.head_marks(http),
                ..routed.head_changes(&head.request, login.as_deref())
            };
            if routed.speaks_http2() {
                places = write_for_stream(&head.request, hop, changes, &mut out);
            } else {
                write_changed(&head.request, hop, changes, &mut out);
            }
            noted.note_written(&out);
        }
        let (len, body, asked) = (head.len, head.request.body, head.framing_facts);
        let request = Request::from_head(&self.session, routed, given, login, noted, &head);
        input.consume(len);
        let metrics = &self.session.service.metrics;
        metrics.bytes_from_clients.add(len as u64);
        let mut input = self.input.take();
        if input.as_ref().is_some_and(Buffer::is_empty)
            && let Some(empty) = input.take()
        {
            worker.buffers.give_back(empty);
        }
        let mut up = match Flow::new(out, body, false, input, bounds, &worker.memory) {
            Ok(up) => up,
            Err(TransferError::Exhausted(_)) => return Err(NoRequest::OutOfMemory(asked.head)),
            Err(TransferError::Chunks(ChunkError::TooLarge)) => {
                return Err(NoRequest::Malformed(413, TOO_LARGE.into(), asked.head));
            }
            Err(_) => {
                return Err(NoRequest::Malformed(
                    400,
                    "invalid chunk in the request body".into(),
                    asked.head,
                ));
            }
        };
        up.set_places(places);
        metrics.requests.add(1);
        if up.awaits_small_sender() {
            self.stream.acknowledge_now();
        }
        Ok(request(up))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_speaks_what_it_agreed_on_or_begins_with() {
        use Speaks::{Http1, Http2};
        let get = b"GET / HTTP/1.1\r\n";
        let post = b"POST / HTTP/1.1\r\n";
        for (alpn, read, http2, speaks) in [
            (None, &get[..], true, Some(Http1)),
            (None, post, true, Some(Http1)),
            (None, b"PRI /", true, Some(Http1)),
            (None, b"P", true, None),
            (None, PREFACE.get(..23).unwrap(), true, None),
            (None, PREFACE, true, Some(Http2)),
            (None, PREFACE, false, Some(Http1)),
            (None, b"P", false, Some(Http1)),
            (Some(&b"h2"[..]), b"", true, Some(Http2)),
            (Some(b"http/1.1"), PREFACE, true, Some(Http1)),
        ] {
            assert_eq!(
                detect_protocol(alpn, read, http2),
                speaks,
                "{alpn:?} {read:?}"
            );
        }
    }
}
