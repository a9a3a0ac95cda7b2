//! Requests over HTTP/1.1, one at a time on a connection.

use std::io;
use std::task::{Poll, ready};

use crate::response::{Progress, Response, ResponseError};
use crate::runtime::Runtime;
use crate::socket::Stream;
use crate::stats::Kind;

/// A connection.
pub(crate) struct Http1 {
    stream: Stream,
    /// Response to the last request.
    pub response: Response,
    is_fresh: bool,
}

impl Http1 {
    /// On a stream.
    pub(crate) fn new(stream: Stream) -> Self {
        Http1 {
            stream,
            response: Response::new(),
            is_fresh: true,
        }
    }

    /// Returns true if another request can be sent on the connection.
    pub(crate) fn is_usable(&self) -> bool {
        let ready = self.is_fresh || self.response.keeps_alive();
        ready && !self.stream.has_ended()
    }

    /// Sends a request and reads its response.
    pub(crate) async fn exchange(
        &mut self,
        runtime: &Runtime,
        request: &[u8],
        is_head: bool,
    ) -> Result<(), Kind> {
        self.is_fresh = false;
        self.response.start_next(is_head);
        self.stream.send(request).await.map_err(|_| Kind::Closed)?;
        let Http1 {
            stream, response, ..
        } = self;
        std::future::poll_fn(|_| runtime.with_scratch(|buffer| receive(stream, response, buffer)))
            .await
    }
}

fn receive(
    stream: &mut Stream,
    response: &mut Response,
    buffer: &mut [u8],
) -> Poll<Result<(), Kind>> {
    loop {
        let count = match ready!(stream.poll_receive(buffer)) {
            Ok(count) => count,
            Err(error) => return Poll::Ready(Err(cut(&error, response))),
        };
        if count == 0 {
            return Poll::Ready(
                response
                    .handle_close()
                    .map_err(|_| match response.has_begun() {
                        true => Kind::HalfBody,
                        false => Kind::Closed,
                    }),
            );
        }
        match response.push(buffer.get(..count).unwrap_or_default()) {
            Ok(Progress::Part) => {}
            Ok(Progress::Whole(0)) => return Poll::Ready(Ok(())),
            // Nobody has asked for more.
            Ok(Progress::Whole(_)) | Err(ResponseError::Malformed) => {
                return Poll::Ready(Err(Kind::Malformed));
            }
            Err(ResponseError::HeadTooLong) => return Poll::Ready(Err(Kind::HeadTooLong)),
        }
    }
}

fn cut(error: &io::Error, response: &Response) -> Kind {
    match (error.kind(), response.has_begun()) {
        (io::ErrorKind::InvalidData, _) => Kind::Tls,
        (_, true) => Kind::HalfBody,
        (_, false) => Kind::Closed,
    }
}

/// The bytes of a request.
pub(crate) fn encode_request(
    method: &str,
    path: &str,
    host: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
    let has = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    let mut field = |name: &str, value: &str| {
        for part in [name, ": ", value, "\r\n"] {
            bytes.extend_from_slice(part.as_bytes());
        }
    };
    if !has("host") {
        field("Host", host);
    }
    if !has("user-agent") {
        field("User-Agent", "evenkeel-load");
    }
    let has_body = !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH");
    if has_body && !has("content-length") {
        field("Content-Length", &body.len().to_string());
    }
    for (name, value) in headers {
        field(name, value);
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}
