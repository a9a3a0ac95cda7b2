//! gRPC: calls as a client, for load reports, health checks and the store of configurations; and what a
//! server needs for streams of messages.
//!
//! gRPC is little enough on HTTP/2 that it needs no framework: a message is a byte that says whether the
//! message is compressed, four bytes of length, and the message itself.

use std::future::poll_fn;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};

use crate::http2;

/// Longest message of an answer in bytes, unless a call says otherwise.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Bytes before each message.
const PREFIX: usize = 5;

/// Reason why a call has ended.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no answer.
    #[error(transparent)]
    Http2(#[from] http2::Error),
    /// The answer is one of HTTP with this status.
    #[error("the answer is not gRPC: HTTP status {0}")]
    NotGrpc(u16),
    /// A status other than 0, and what is said of it.
    #[error("gRPC status {0}{1}")]
    Status(String, String),
    /// All is well, and there are no more messages.
    #[error("the stream was ended by the server")]
    Closed,
    /// A message that cannot be read.
    #[error("a gRPC message is compressed, but compression was not negotiated")]
    Compressed,
    /// The message has so many bytes, more than the limit, which follows.
    #[error("a gRPC message has {0} bytes; the limit is {1}")]
    TooLong(usize, usize),
}

impl From<h2::Error> for CallError {
    fn from(error: h2::Error) -> Self {
        http2::Error::from(error).into()
    }
}

impl CallError {
    /// The status of gRPC, if the call has ended with one.
    pub fn status(&self) -> Option<&str> {
        match self {
            CallError::Status(status, _) => Some(status),
            _ => None,
        }
    }
}

/// Options by which a call differs from others.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Names and values of further fields.
    pub fields: &'a [(&'a str, &'a str)],
    /// Longest message of the answer, in bytes.
    pub limit: usize,
    /// True if the server is to believe that more messages may come, for as long as the call is kept.
    pub open: bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            fields: &[],
            limit: MAX_MESSAGE,
            open: false,
        }
    }
}

/// A call under way, from which messages are read.
#[derive(Debug)]
pub struct Call {
    messages: Messages,
    /// Open, as long as it is there.
    _sender: Option<SendStream<Bytes>>,
}

impl Call {
    /// Calls the method at `uri` with one message, which is not longer than [`MAX_MESSAGE`].
    ///
    /// # Errors
    ///
    /// Reason why there is no answer.
    pub async fn begin_default(
        client: SendRequest<Bytes>,
        uri: &str,
        message: &[u8],
    ) -> Result<Self, CallError> {
        Self::begin_with(client, uri, message, Options::default()).await
    }

    /// Calls the method at `uri` with one message of any length, and with options.
    ///
    /// # Errors
    ///
    /// Reason why there is no answer.
    pub async fn begin_with(
        client: SendRequest<Bytes>,
        uri: &str,
        message: &[u8],
        options: Options<'_>,
    ) -> Result<Self, CallError> {
        let request = Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "evenkeel");
        let fields = options.fields.iter();
        let request = fields.fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let request = request.body(()).map_err(http2::Error::from)?;
        let bytes = frame_message(message)?;
        let mut client = client.ready().await?;
        let (answer, mut sender) = client.send_request(request, false)?;
        sender.send_data(bytes, !options.open)?;
        let answer = answer.await?;
        if answer.status() != 200 || !is_grpc(answer.headers()) {
            return Err(CallError::NotGrpc(answer.status().as_u16()));
        }
        status(answer.headers())?;
        Ok(Call {
            messages: Messages::new(answer.into_body(), options.limit),
            _sender: options.open.then_some(sender),
        })
    }

    /// Returns the next message.
    ///
    /// # Errors
    ///
    /// Reason why there is none: [`CallError::Closed`], if all went well.
    pub async fn next(&mut self) -> Result<Vec<u8>, CallError> {
        if let Some(message) = self.messages.next().await? {
            return Ok(message);
        }
        let trailers = self.messages.body.trailers().await?;
        status(&trailers.unwrap_or_default())?;
        Err(CallError::Closed)
    }
}

/// The messages of a stream, as they come.
#[derive(Debug)]
pub struct Messages {
    body: RecvStream,
    buffer: Vec<u8>,
    longest: usize,
}

impl Messages {
    /// Returns the messages in `body`, each of at most `longest` bytes.
    pub fn new(body: RecvStream, longest: usize) -> Self {
        Messages {
            body,
            buffer: Vec::new(),
            longest,
        }
    }

    /// The next one; `None` if the other side says nothing more. Nothing is lost if the future is dropped
    /// before it is ready.
    ///
    /// # Errors
    ///
    /// The stream is broken, or what comes is no message.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        loop {
            if let Some(length) = message_length(&self.buffer, self.longest)? {
                let message = self.buffer.drain(..PREFIX + length).skip(PREFIX);
                return Ok(Some(message.collect()));
            }
            let Some(data) = self.body.data().await else {
                return Ok(None);
            };
            let data = data?;
            self.buffer.extend_from_slice(&data);
            self.body.flow_control().release_capacity(data.len())?;
        }
    }
}

/// The messages of an answer, one after the other.
#[derive(Debug)]
pub struct Sender(SendStream<Bytes>);

impl Sender {
    /// Begins an answer that has messages.
    ///
    /// # Errors
    ///
    /// The stream is broken.
    pub fn begin_answer(respond: &mut SendResponse<Bytes>) -> Result<Self, CallError> {
        let answer = Response::builder().header("content-type", "application/grpc");
        let answer = answer.body(()).map_err(http2::Error::from)?;
        Ok(Sender(respond.send_response(answer, false)?))
    }

    /// Sends a message, as fast as the other side takes it.
    ///
    /// # Errors
    ///
    /// The stream is broken, or the message too long for gRPC.
    pub async fn send_message(&mut self, message: &[u8]) -> Result<(), CallError> {
        let mut bytes = frame_message(message)?;
        while !bytes.is_empty() {
            self.0.reserve_capacity(bytes.len());
            let mut room = self.0.capacity();
            while room == 0 {
                room = match poll_fn(|cx| self.0.poll_capacity(cx)).await {
                    Some(room) => room?,
                    None => return Err(CallError::Closed),
                };
            }
            let part = bytes.split_to(room.min(bytes.len()));
            self.0.send_data(part, false)?;
        }
        Ok(())
    }

    /// Ends the answer with a status: a number of gRPC, and what is to be said of it.
    pub fn send_trailers(mut self, code: u16, message: &str) {
        // Nobody may be there to hear it.
        let _ = self.0.send_trailers(trailers(code, message));
    }
}

/// An answer that has a status and no message.
pub fn send_status(respond: &mut SendResponse<Bytes>, code: u16, message: &str) {
    let mut answer = Response::new(());
    *answer.headers_mut() = trailers(code, message);
    let kind = HeaderValue::from_static("application/grpc");
    answer.headers_mut().insert("content-type", kind);
    // Nobody may be there to hear it.
    let _ = respond.send_response(answer, true);
}

/// True if fields are those of a call, or of an answer.
pub fn is_grpc(fields: &HeaderMap) -> bool {
    let kind = fields.get("content-type");
    kind.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Returns a status in fields. `message` is encoded, so that it may be any text.
fn trailers(code: u16, message: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert("grpc-status", HeaderValue::from(code));
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'%';
    let mut text = String::new();
    for byte in message.bytes() {
        match is_plain(byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    if let Ok(text) = HeaderValue::from_str(&text) {
        fields.insert("grpc-message", text);
    }
    fields
}

/// A message with what stands before it.
fn frame_message(message: &[u8]) -> Result<Bytes, CallError> {
    let too_long = |_| CallError::TooLong(message.len(), u32::MAX as usize);
    let length = u32::try_from(message.len()).map_err(too_long)?;
    let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
    bytes.put_u8(0);
    bytes.put_u32(length);
    bytes.put_slice(message);
    Ok(bytes.freeze())
}

/// The length of the message at the start of `buffer`, if all of it is there.
fn message_length(buffer: &[u8], longest: usize) -> Result<Option<usize>, CallError> {
    let Some((&[compressed, a, b, c, d], rest)) = buffer.split_first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if compressed != 0 {
        return Err(CallError::Compressed);
    }
    if length > longest {
        return Err(CallError::TooLong(length, longest));
    }
    Ok((rest.len() >= length).then_some(length))
}

/// An error, if the fields tell of one.
fn status(fields: &HeaderMap) -> Result<(), CallError> {
    let text = |name: &str| {
        let value = fields.get(name)?;
        let text = String::from_utf8_lossy(value.as_bytes());
        Some(text.chars().take(200).collect::<String>())
    };
    match text("grpc-status") {
        Some(status) if status != "0" => {
            let message = text("grpc-message").map(|message| format!(": {message}"));
            Err(CallError::Status(status, message.unwrap_or_default()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_may_be_said_of_a_status() {
        let fields = trailers(3, "50 % of \u{e9}\n");
        assert_eq!(fields["grpc-status"], "3");
        assert_eq!(fields["grpc-message"], "50 %25 of %C3%A9%0A");
    }

    #[test]
    fn messages_come_whole() {
        let length = |bytes: &[u8]| message_length(bytes, 65_536);
        assert!(matches!(length(b"\0\0\0\0"), Ok(None)));
        assert!(matches!(length(b"\0\0\0\0\x02x"), Ok(None)));
        assert!(matches!(length(b"\0\0\0\0\x02xyz"), Ok(Some(2))));
        assert!(matches!(length(b"\0\0\0\0\0"), Ok(Some(0))));
        assert!(matches!(
            length(b"\x01\0\0\0\0"),
            Err(CallError::Compressed)
        ));
        assert!(matches!(
            length(b"\0\0\x01\0\x01"),
            Err(CallError::TooLong(65_537, 65_536))
        ));
    }
}
