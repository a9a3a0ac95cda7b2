//! A call of gRPC as a client: for load reports, health checks and the store of configurations.
//!
//! It is little enough on HTTP/2 that it needs no framework: a message is a byte that says whether
//! it is compressed, four bytes of length, and itself.

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};

use crate::http2;

/// Longest message in bytes, unless a call says otherwise.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Bytes before each message.
const PREFIX: usize = 5;

/// Why a call has ended.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no answer.
    #[error(transparent)]
    Http2(#[from] http2::Error),
    /// The answer is one of HTTP with this status.
    #[error("the answer is not gRPC: status {0}")]
    NotGrpc(u16),
    /// A status other than 0, and what is said of it.
    #[error("gRPC status {0}{1}")]
    Status(String, String),
    /// All is well, and there are no more messages.
    #[error("the stream was ended by the server")]
    Closed,
    /// A message that cannot be read.
    #[error("a message is compressed, which was not negotiated")]
    Compressed,
    /// One of so many bytes.
    #[error("a message of {0} bytes; the limit is {1}")]
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

/// How a call differs from others.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Names and values of further fields.
    pub fields: &'a [(&'a str, &'a str)],
    /// Longest message of the answer, in bytes.
    pub limit: usize,
    /// Whether the server is to believe that more messages may come, for as long as the call is kept.
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
    body: RecvStream,
    buffer: Vec<u8>,
    limit: usize,
    /// Open, as long as it is there.
    _sender: Option<SendStream<Bytes>>,
}

impl Call {
    /// Calls the method at `uri` with one message, which is not longer than [`MAX_MESSAGE`].
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    pub async fn begin(
        client: SendRequest<Bytes>,
        uri: &str,
        message: &[u8],
    ) -> Result<Self, CallError> {
        Self::begin_with(client, uri, message, Options::default()).await
    }

    /// The same with options, and with a message of any length.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
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
        let too_long = |_| CallError::TooLong(message.len(), u32::MAX as usize);
        let length = u32::try_from(message.len()).map_err(too_long)?;
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.extend(message);
        let mut client = client.ready().await?;
        let (answer, mut sender) = client.send_request(request, false)?;
        sender.send_data(bytes.into(), !options.open)?;
        let answer = answer.await?;
        let is_grpc = answer
            .headers()
            .get("content-type")
            .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
        if answer.status() != 200 || !is_grpc {
            return Err(CallError::NotGrpc(answer.status().as_u16()));
        }
        status(answer.headers())?;
        Ok(Call {
            body: answer.into_body(),
            buffer: Vec::new(),
            limit: options.limit,
            _sender: options.open.then_some(sender),
        })
    }

    /// The next message.
    ///
    /// # Errors
    ///
    /// Why there is none: [`CallError::Closed`], if all went well.
    pub async fn next(&mut self) -> Result<Vec<u8>, CallError> {
        loop {
            if let Some(length) = message_length(&self.buffer, self.limit)? {
                let message = self.buffer.drain(..PREFIX + length).skip(PREFIX);
                return Ok(message.collect());
            }
            let Some(data) = self.body.data().await else {
                let trailers = self.body.trailers().await?;
                status(&trailers.unwrap_or_default())?;
                return Err(CallError::Closed);
            };
            let data = data?;
            self.buffer.extend_from_slice(&data);
            self.body.flow_control().release_capacity(data.len())?;
        }
    }
}

/// The length of the message at the start of `buffer`, if all of it is there. It has at most `limit` bytes.
fn message_length(buffer: &[u8], limit: usize) -> Result<Option<usize>, CallError> {
    let Some((&[compressed, a, b, c, d], rest)) = buffer.split_first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if compressed != 0 {
        return Err(CallError::Compressed);
    }
    if length > limit {
        return Err(CallError::TooLong(length, limit));
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
    fn messages_come_whole() {
        let length = |bytes: &[u8]| message_length(bytes, MAX_MESSAGE);
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
            Err(CallError::TooLong(65_537, MAX_MESSAGE))
        ));
    }
}
