//! A request that came over HTTP/2, served like one on a connection of its own.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use evenkeel_http2::Head;

use super::client::{After, Client};
use super::flow::Flow;
use super::malformed::NoRequest;
use super::request::{Request, RequestFacts};
use super::route::{RequestRoute, TOO_LARGE};
use crate::buffer::Buffer;
use crate::http1::chunked::ChunkError;
use crate::http1::forward::{Changes, write_changed, write_for_stream};
use crate::http1::{Limits, RequestHead};
use crate::http2::connection::Connection;
use crate::http2::request::with_head;
use crate::http2::stream::Stream;
use crate::http2::{grpc, websocket};
use crate::io::{Io, TransferError};
use crate::message::Body;

/// Serves one stream. `connects` says that it asks for WebSocket.
pub(super) async fn serve_stream(
    connection: &Connection,
    stream: Box<Stream>,
    head: Head,
    connects: bool,
) {
    let session = connection.session.of_stream();
    let bindings = Rc::clone(&connection.bindings);
    let mut client = Client::new(session, Io::Stream(stream), bindings);
    let after = match client.parse_stream(connection, &head, connects) {
        Ok(mut request) => {
            if grpc::is_call(&head.fields)
                && let Io::Stream(stream) = &mut client.stream
            {
                request.grpc = true;
                // Messages of a call may wait for answers: nobody waits for the end of the body. Members that speak
                // HTTP/1.1 take no calls.
                if request.routed.speaks_http2()
                    && let Some(prompt) = &mut request.prompt
                {
                    prompt.is_measured = false;
                }
                stream.set_grpc();
                if let Some(limit) = grpc::parse_timeout(&head.fields) {
                    client.session.watch.set_total_limit(limit);
                }
            }
            if let Io::Stream(stream) = &client.stream {
                stream.give_head(head);
            }
            client.limit_request(&request);
            client.carry_request(&mut request).await
        }
        Err(NoRequest::Malformed(status, text, to_head)) => {
            client.refuse_malformed(status, &text, to_head).await
        }
        Err(NoRequest::OutOfMemory(to_head)) => client.refuse_for_memory(to_head).await,
        Err(NoRequest::Partial | NoRequest::Challenge(..)) => After::Cut,
    };
    match after {
        After::Cut => client.stream.reset_on_drop(),
        // There are clients that take the end of a stream in the middle of their body for a failure,
        // though its response is whole.
        After::Linger => client.drain_input().await,
        _ => {}
    }
    if let Some(input) = client.input.take() {
        client.session.worker.buffers.give_back(input);
    }
}

impl Client {
    /// Makes a request of the head of a stream.
    fn parse_stream(
        &mut self,
        connection: &Connection,
        head: &Head,
        connects: bool,
    ) -> Result<Request, NoRequest> {
        let rule = self.session.service.rule();
        let worker = Rc::clone(&self.session.worker);
        let Io::Stream(stream) = &mut self.stream else {
            return Err(NoRequest::Partial);
        };
        let limits = Limits {
            max_bytes: rule.rule.http.max_header_bytes,
            max_fields: rule.rule.http.max_header_count,
        };
        let key = connects.then(|| websocket::new_key(&mut worker.rng.borrow_mut()));
        let hop = connection.hop_for_rule(&rule);
        let scheme = stream.uri_scheme();
        let mut out = worker.buffers.take_head();
        let mut places = None;
        let take = |head: &RequestHead<'_>| {
            let bindings = self.bindings.borrow();
            let agreed = connection.agreed_parameters();
            let request = &head.request;
            let (routed, given) =
                RequestRoute::find_route(&self.session, &rule, &bindings, request, &hop, agreed);
            let bounds = routed.body_bounds(head.request.body);
            let routed_directly = given.is_none() && routed.passes_frames();
            let login = routed.new_login(given.as_deref(), &head.request, &hop, &self.session);
            let mut noted = RequestFacts::of_request(&self.session, &rule, scheme, &head.request);
            if given.is_none() {
                let changes = Changes {
                    marks: noted.head_marks(&rule.rule.http),
                    ..routed.head_changes(&head.request, login.as_deref())
                };
                if routed.speaks_http2() {
                    places = write_for_stream(&head.request, &hop, changes, &mut out);
                } else {
                    write_changed(&head.request, &hop, changes, &mut out);
                }
                noted.note_written(&out);
            }
            let request = Request::from_head(&self.session, routed, given, login, noted, head);
            // Frames on both sides say where a body of unknown length ends, but copies go elsewhere.
            let is_direct = routed_directly && head.request.body == Body::Chunked;
            let body = match is_direct {
                true => Body::Stream,
                false => head.request.body,
            };
            (body, bounds, request)
        };
        let taken = with_head(head, stream.has_ended(), key.as_deref(), limits, take);
        let to_head = head.method() == "HEAD";
        let (body, bounds, request) = taken.map_err(|error| {
            NoRequest::Malformed(error.request_status(), error.to_string(), to_head)
        })?;
        stream.set_framing(body);
        let metrics = &self.session.service.metrics;
        metrics.bytes_from_clients.add(out.len() as u64);
        // What came with the head goes with it.
        let input = match body {
            Body::None | Body::Length(0) => None,
            _ => {
                let mut buffer: Buffer = worker.buffers.take();
                let cx = &mut Context::from_waker(Waker::noop());
                match buffer.poll_fill(cx, &mut self.stream) {
                    Poll::Ready(Ok(1..)) => Some(buffer),
                    _ => {
                        worker.buffers.give_back(buffer);
                        None
                    }
                }
            }
        };
        let up = match (body, &self.stream) {
            (Body::Stream, Io::Stream(stream)) => {
                Flow::new_stream(out, stream.has_ended(), input, bounds, &worker.memory)
            }
            _ => Flow::new(out, body, false, input, bounds, &worker.memory),
        };
        match up {
            Ok(mut up) => {
                up.set_places(places);
                metrics.requests.add(1);
                Ok(request(up))
            }
            Err(TransferError::Exhausted(_)) => Err(NoRequest::OutOfMemory(to_head)),
            Err(TransferError::Chunks(ChunkError::TooLarge)) => {
                Err(NoRequest::Malformed(413, TOO_LARGE.into(), to_head))
            }
            Err(_) => Err(NoRequest::Malformed(
                400,
                "trailers that are not allowed in the request".into(),
                to_head,
            )),
        }
    }
}
