//! One check of a member: what is asked, and what is to be thought of the answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_limits::Shortage;
use evenkeel_net::grpc::{self, Call, CallError};
use evenkeel_tls::client::Client;
use evenkeel_tls::connect::Failure;
use evenkeel_wire::protobuf::{Fields, NoMessage, Value};
use evenkeel_wire::response::{NotHttp, Reader, Seen};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Duration;

use crate::config::{HealthCheck, HealthCheckKind};

/// The part of a response that is read: head and body together, in bytes.
pub(crate) const MAX_RESPONSE: usize = 64 * 1024;

/// Bytes that are read at once.
const READ_BYTES: usize = 4096;

/// Who is checked, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// `Host` field, if the check names none.
    pub(crate) host: String,
    /// The host that its certificate is for.
    pub(crate) name: String,
    pub(crate) check: HealthCheck,
    /// What TLS needs, if it is spoken.
    pub(crate) tls: Option<Arc<Client>>,
}

/// Why a check has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("not done within {0:?}")]
    Timeout(Duration),
    #[error("the connection was closed before the response was complete")]
    Closed,
    #[error("the response is not HTTP/1.x")]
    Garbage,
    #[error("the response head is longer than {MAX_RESPONSE} bytes")]
    LongHead,
    #[error("response code {0}")]
    Code(u16),
    #[error("{0}")]
    Tls(Failure),
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("the answer is no HealthCheckResponse")]
    Garbled,
    #[error("the server says {0}")]
    NotServing(&'static str),
    #[error("the text was not found in the first {MAX_RESPONSE} bytes of the response")]
    Text,
}

impl CheckError {
    /// What has run out here, if that is why there was no check.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        match self {
            CheckError::Connect(error) | CheckError::Io(error) => Shortage::of(error),
            _ => None,
        }
    }

    /// Whether nobody listens.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, CheckError::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// Checks a member once.
pub(crate) async fn check_once(target: &Target) -> Result<(), CheckError> {
    let stream = TcpStream::connect(target.address).await;
    let stream = stream.map_err(CheckError::Connect)?;
    let Some(client) = &target.tls else {
        return ask(stream, target).await;
    };
    let protocols: &[&str] = match target.check.kind {
        HealthCheckKind::Tcp => &[],
        HealthCheckKind::Http => &["http/1.1"],
        HealthCheckKind::Grpc => &["h2"],
    };
    let connected = client.connect(stream, &target.name, protocols).await;
    let (stream, agreed) = connected.map_err(CheckError::Tls)?;
    if target.check.kind == HealthCheckKind::Grpc && agreed.protocol.as_deref() != Some(b"h2") {
        return Err(CheckError::Tls(Failure::no_http2()));
    }
    let asked = ask(*stream, target).await;
    // With TLS 1.3 it is said after the handshake that a certificate is wanted.
    asked.map_err(|error| match error {
        CheckError::Io(error) => match Failure::after(&error, client) {
            Some(failure) => CheckError::Tls(failure),
            None => CheckError::Io(error),
        },
        error => error,
    })
}

/// Asks over a connection what there is to be asked.
async fn ask<T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    target: &Target,
) -> Result<(), CheckError> {
    match target.check.kind {
        HealthCheckKind::Tcp => Ok(()),
        HealthCheckKind::Http => ask_http(stream, target).await,
        HealthCheckKind::Grpc => ask_grpc(stream, target).await,
    }
}

/// Path of the method.
const METHOD: &str = "/grpc.health.v1.Health/Check";

/// `grpc.health.v1`: what is asked is a `HealthCheckRequest` with a `service`, what is answered a
/// `HealthCheckResponse` with a `status`.
async fn ask_grpc<T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    target: &Target,
) -> Result<(), CheckError> {
    let check = &target.check;
    let authority = check.host.as_ref().unwrap_or(&target.host);
    let scheme = if target.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let uri = format!("{scheme}://{authority}{METHOD}");
    let service = check.service.as_deref().unwrap_or_default();
    let mut request = Vec::new();
    if let Ok(length @ 1..=127) = u8::try_from(service.len()) {
        request.extend([1 << 3 | 2, length]);
        request.extend(service.as_bytes());
    }
    let (client, connection) = grpc::connect(stream).await?;
    let answer = async {
        let mut call = Call::begin(client, &uri, &request).await?;
        call.next().await
    };
    let answer = tokio::select! {
        answer = answer => answer?,
        ended = connection => return Err(match ended {
            Ok(()) => CheckError::Closed,
            Err(error) => CallError::from(error).into(),
        }),
    };
    serving(&answer)
}

/// What a `HealthCheckResponse` says.
fn serving(message: &[u8]) -> Result<(), CheckError> {
    let mut status = 0;
    for field in Fields(message) {
        match field.map_err(|NoMessage| CheckError::Garbled)? {
            (1, Value::Varint(said)) => status = said,
            (1, _) => return Err(CheckError::Garbled),
            _ => {}
        }
    }
    match status {
        1 => Ok(()),
        2 => Err(CheckError::NotServing("NOT_SERVING")),
        3 => Err(CheckError::NotServing("SERVICE_UNKNOWN")),
        _ => Err(CheckError::NotServing("UNKNOWN")),
    }
}

async fn ask_http<T: AsyncRead + AsyncWrite + Unpin>(
    mut stream: T,
    target: &Target,
) -> Result<(), CheckError> {
    let check = &target.check;
    let (path, host) = (&check.path, check.host.as_ref().unwrap_or(&target.host));
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: evenkeel-health-check\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;

    let mut judge = Judge {
        codes: &check.codes,
        text: check.text.as_deref().unwrap_or_default().as_bytes(),
        response: Reader::new(),
        searched: 0,
    };
    let mut bytes = Vec::with_capacity(READ_BYTES);
    loop {
        let left = MAX_RESPONSE - judge.response.len();
        bytes.clear();
        let read = (&mut stream)
            .take(left.min(READ_BYTES) as u64)
            .read_buf(&mut bytes)
            .await?;
        let more = match read {
            0 if left == 0 => More::TooLong,
            0 => More::Closed,
            _ => More::Open,
        };
        if let Some(result) = judge.next(&bytes, more) {
            return result;
        }
    }
}

/// What may follow the bytes that were read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// More bytes, perhaps.
    Open,
    /// Nothing: the peer has closed.
    Closed,
    /// Nothing that is read.
    TooLong,
}

/// What is to be thought of a response, found out as it comes.
pub(crate) struct Judge<'a> {
    pub(crate) codes: &'a [u16],
    /// Empty is in every body.
    pub(crate) text: &'a [u8],
    pub(crate) response: Reader,
    /// Bytes of the body in which the text is not.
    pub(crate) searched: usize,
}

impl Judge<'_> {
    /// The verdict after the next `bytes`; `None` if it depends on the rest.
    pub(crate) fn next(&mut self, bytes: &[u8], more: More) -> Option<Result<(), CheckError>> {
        if let Err(NotHttp) = self.response.push(bytes) {
            return Some(Err(CheckError::Garbage));
        }
        let Some(code) = self.response.code() else {
            return match more {
                More::Open => None,
                More::Closed => Some(Err(CheckError::Closed)),
                More::TooLong => Some(Err(CheckError::LongHead)),
            };
        };
        if !self.codes.contains(&code) {
            return Some(Err(CheckError::Code(code)));
        }
        if self.finds_text() {
            Some(Ok(()))
        } else if self.response.seen() != Seen::Part || more != More::Open {
            Some(Err(CheckError::Text))
        } else {
            None
        }
    }

    /// Looks for the text where it was not looked for yet.
    fn finds_text(&mut self) -> bool {
        let body = self.response.body();
        let fresh = body.get(self.searched..).unwrap_or_default();
        let found =
            self.text.is_empty() || fresh.windows(self.text.len()).any(|part| part == self.text);
        // It may begin with the last bytes.
        self.searched = body
            .len()
            .saturating_sub(self.text.len().saturating_sub(1))
            .max(self.searched);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serving_is_healthy() {
        assert!(serving(b"\x08\x01").is_ok());
        // Unknown fields may come; the last status counts.
        assert!(serving(b"\x12\x01x\x08\x02\x08\x01").is_ok());
        for (message, says) in [
            (&b""[..], "the server says UNKNOWN"),
            (b"\x08\x02", "the server says NOT_SERVING"),
            (b"\x08\x03", "the server says SERVICE_UNKNOWN"),
            (b"\x08\x07", "the server says UNKNOWN"),
            (b"\x08", "the answer is no HealthCheckResponse"),
            (b"\x0a\x01x", "the answer is no HealthCheckResponse"),
        ] {
            assert_eq!(serving(message).unwrap_err().to_string(), says);
        }
    }
}
