//! Check of one member: the question, and the judgement of the answer.

use std::io;
use std::sync::Arc;

use evenkeel_core::address::Address;
use evenkeel_limits::Shortage;
use evenkeel_net::grpc::{Call, CallError};
use evenkeel_net::http2::{self, Answer};
use evenkeel_net::stream;
use evenkeel_tls::client::Client;
use evenkeel_tls::connect::Failure;
use evenkeel_wire::ftp;
use evenkeel_wire::protobuf::{Fields, NoMessage, Value};
use evenkeel_wire::proxy_protocol::{self, Addresses};
use evenkeel_wire::response::{BodyProgress, NotHttp, Reader};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Duration;

use crate::config::{HealthCheck, HealthCheckKind, MemberProtocol, SendProxy};
use crate::probe_datagram::{DatagramError, check_by_datagram};

/// The part of a response that is read: head and body together, in bytes.
pub(crate) const MAX_RESPONSE: usize = 64 * 1024;

const USER_AGENT: &str = "evenkeel-health-check";

/// Bytes that are read at once.
const READ_BYTES: usize = 4096;

/// Member that is checked, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) address: Address,
    /// `Host` field, if the check names none.
    pub(crate) host: String,
    /// The host that its certificate is for.
    pub(crate) name: String,
    pub(crate) check: HealthCheck,
    /// TLS client, if the check speaks TLS.
    pub(crate) tls: Option<Arc<Client>>,
    /// Version of the PROXY header that comes first, if one does.
    pub(crate) send_proxy: Option<SendProxy>,
}

impl Target {
    /// The URI of a path.
    fn uri(&self, path: &str) -> String {
        let scheme = match self.tls {
            Some(_) => "https",
            None => "http",
        };
        let authority = self.check.host.as_ref().unwrap_or(&self.host);
        format!("{scheme}://{authority}{path}")
    }
}

/// Reason why a check has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the check was not done within {0:?}")]
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
    #[error(transparent)]
    Http2(#[from] http2::Error),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the answer is not a HealthCheckResponse")]
    Garbled,
    #[error("the answer is not an FTP reply")]
    NoReply,
    #[error("the server says {0}")]
    NotServing(&'static str),
    #[error(transparent)]
    Datagram(#[from] DatagramError),
    #[error("the text was not found in the first {MAX_RESPONSE} bytes of the response")]
    Text,
}

impl CheckError {
    /// Returns the resource that has run out here, if that is why there was no check.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        match self {
            CheckError::Connect(error)
            | CheckError::Io(error)
            | CheckError::Datagram(DatagramError::Io(error)) => Shortage::of_error(error),
            _ => None,
        }
    }

    /// True if the member certainly does not work: nobody listens, or the answer says so. A Unix socket may
    /// not even be there. An answer that did not come in time, or was cut, says nothing for certain.
    pub(crate) fn is_certain(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        match self {
            CheckError::Connect(error) => matches!(error.kind(), ConnectionRefused | NotFound),
            CheckError::Code(_) | CheckError::Text | CheckError::NotServing(_) => true,
            CheckError::Datagram(error) => error.is_certain(),
            CheckError::Call(error) => {
                matches!(error, CallError::NotGrpc(_) | CallError::Status(..))
            }
            _ => false,
        }
    }
}

/// Checks a member once.
pub(crate) async fn check_once(target: &Target) -> Result<(), CheckError> {
    if matches!(
        target.check.kind,
        HealthCheckKind::Udp | HealthCheckKind::Dns
    ) {
        return Ok(check_by_datagram(&target.address, &target.check).await?);
    }
    let stream = stream::connect_address(&target.address).await;
    let mut stream = stream.map_err(CheckError::Connect)?;
    if let Some(version) = target.send_proxy {
        let mut header = Vec::new();
        match version {
            // A connection of the balancer's own: not every server takes that in a line.
            SendProxy::V1 => {
                let own = match target.address.socket() {
                    Some(destination) => Some(Addresses {
                        source: stream.local_addr()?,
                        destination,
                    }),
                    None => None,
                };
                proxy_protocol::write_line(own, &mut header);
            }
            SendProxy::V2 => proxy_protocol::write_binary(None, &[], &mut header),
        }
        stream.write_all(&header).await?;
    }
    let check = &target.check;
    let Some(client) = &target.tls else {
        let speaks_http2 = check.protocol == Some(MemberProtocol::Http2);
        return ask(stream, target, speaks_http2).await;
    };
    let protocols: &[&str] = match (check.kind, check.protocol) {
        (HealthCheckKind::Tcp | HealthCheckKind::Ftp, _) => &[],
        (HealthCheckKind::Grpc, _) | (_, Some(MemberProtocol::Http2)) => &["h2"],
        (_, Some(MemberProtocol::Auto)) => &["h2", "http/1.1"],
        _ => &["http/1.1"],
    };
    let connected = client.connect(stream, &target.name, protocols).await;
    let (stream, agreed) = connected.map_err(CheckError::Tls)?;
    let speaks_http2 = agreed.protocol.as_deref() == Some(b"h2");
    if protocols == ["h2"] && !speaks_http2 {
        return Err(CheckError::Tls(Failure::no_http2()));
    }
    let asked = ask(*stream, target, speaks_http2).await;
    // With TLS 1.3 it is said after the handshake that a certificate is wanted.
    asked.map_err(|error| match error {
        CheckError::Io(error) => match Failure::after_handshake(&error, client) {
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
    speaks_http2: bool,
) -> Result<(), CheckError> {
    match target.check.kind {
        // Checks by datagrams need no connection: they do not come here.
        HealthCheckKind::Tcp | HealthCheckKind::Udp | HealthCheckKind::Dns => Ok(()),
        HealthCheckKind::Http if speaks_http2 => ask_http2(stream, target).await,
        HealthCheckKind::Http => ask_http(stream, target).await,
        HealthCheckKind::Grpc => ask_grpc(stream, target).await,
        HealthCheckKind::Ftp => ask_ftp(stream, &target.check).await,
    }
}

/// The password of anonymous users: who they are.
const ANONYMOUS: &str = "evenkeel@";

/// Time after which a reply has ended that only [nearly](ftp::Replies::has_loose_end) has.
const LOOSE_END: Duration = Duration::from_millis(500);

/// Waits for the greeting, and logs in if somebody is named.
async fn ask_ftp<T: AsyncRead + AsyncWrite + Unpin>(
    mut stream: T,
    check: &HealthCheck,
) -> Result<(), CheckError> {
    let mut replies = FtpReplies::default();
    // What it is asked first says nothing: it greets.
    match replies.next(&mut stream).await? {
        220 => {}
        code => return Err(CheckError::Code(code)),
    }
    if let Some(user) = &check.user {
        stream
            .write_all(format!("USER {user}\r\n").as_bytes())
            .await?;
        let mut code = replies.next(&mut stream).await?;
        if code == 331 {
            let password = check.password.as_ref();
            let password = password.map_or(ANONYMOUS, |password| &password.0);
            stream
                .write_all(format!("PASS {password}\r\n").as_bytes())
                .await?;
            code = replies.next(&mut stream).await?;
        }
        if !matches!(code, 202 | 230) {
            return Err(CheckError::Code(code));
        }
    }
    // It has answered: how it takes leave does not matter.
    let _ = stream.write_all(b"QUIT\r\n").await;
    Ok(())
}

/// Replies of a server of FTP.
struct FtpReplies {
    lines: ftp::Lines,
    replies: ftp::Replies,
    /// Bytes behind the last reply.
    unread: Vec<u8>,
    read: usize,
}

impl Default for FtpReplies {
    fn default() -> Self {
        FtpReplies {
            lines: ftp::Lines::of_server(),
            replies: ftp::Replies::default(),
            unread: Vec::new(),
            read: 0,
        }
    }
}

impl FtpReplies {
    /// The code of the next reply that is not preliminary.
    async fn next(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<u16, CheckError> {
        loop {
            while !self.unread.is_empty() {
                let taken = self.lines.take(&self.unread);
                let taken = taken.map_err(|_| CheckError::NoReply)?;
                self.unread.drain(..taken.used);
                if taken.line_ended {
                    // Clients pass over lines that belong to no reply, too.
                    if let Some(part) = self.replies.take(self.lines.current_line())
                        && part.last
                        && part.code >= 200
                    {
                        return Ok(part.code);
                    }
                }
            }
            let mut bytes = [0; 512];
            let reading = stream.read(&mut bytes);
            let n = if self.replies.has_loose_end() {
                match tokio::time::timeout(LOOSE_END, reading).await {
                    Ok(read) => read?,
                    Err(_) => match self.replies.end_loosely() {
                        Some((_, code)) if code >= 200 => return Ok(code),
                        _ => continue,
                    },
                }
            } else {
                reading.await?
            };
            self.read += n;
            if n == 0 {
                return Err(CheckError::Closed);
            }
            if self.read > MAX_RESPONSE {
                return Err(CheckError::NoReply);
            }
            self.unread
                .extend_from_slice(bytes.get(..n).unwrap_or_default());
        }
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
    let uri = target.uri(METHOD);
    let service = target.check.service.as_deref().unwrap_or_default();
    let mut request = Vec::new();
    if let Ok(length @ 1..=127) = u8::try_from(service.len()) {
        request.extend([1 << 3 | 2, length]);
        request.extend(service.as_bytes());
    }
    let (client, connection) = http2::start_client(stream).await?;
    let answer = async {
        let mut call = Call::begin_default(client, &uri, &request).await?;
        Ok(call.next().await?)
    };
    serving(&over(connection, answer).await?)
}

/// Returns the answer of `work` over a connection. An answer that was complete before the connection broke
/// counts.
async fn over<T, E>(
    connection: impl Future<Output = Result<(), E>>,
    work: impl Future<Output = Result<T, CheckError>>,
) -> Result<T, CheckError> {
    tokio::pin!(work);
    let ended = {
        tokio::select! {
            done = &mut work => return done,
            ended = connection => ended,
        }
    };
    work.await.map_err(|error| match (error, ended) {
        (CheckError::Http2(_) | CheckError::Call(CallError::Http2(_)), Ok(())) => {
            CheckError::Closed
        }
        (error, _) => error,
    })
}

/// Judges the status in a `HealthCheckResponse`.
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

/// Asks a member that speaks HTTP/2, as over HTTP/1.1.
async fn ask_http2<T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    target: &Target,
) -> Result<(), CheckError> {
    let uri = target.uri(&target.check.path);
    let fields = [("user-agent", USER_AGENT), ("accept", "*/*")];
    let (client, connection) = http2::start_client(stream).await?;
    let asked = async {
        let mut answer = Answer::get(client, &uri, &fields).await?;
        let mut judge = Judge::new(&target.check);
        // For the check it is as a response over HTTP/1.1 that ends with its connection.
        let head = format!("HTTP/1.1 {} \r\n\r\n", answer.status);
        let mut result = judge.next(head.as_bytes(), FurtherInput::Open);
        while result.is_none() {
            let left = MAX_RESPONSE.saturating_sub(judge.response.len());
            result = match answer.next().await? {
                None => judge.next(b"", FurtherInput::Closed),
                Some(bytes) => match bytes.get(..left) {
                    Some(bytes) => judge.next(bytes, FurtherInput::TooLong),
                    None => judge.next(&bytes, FurtherInput::Open),
                },
            };
        }
        result.unwrap_or(Ok(()))
    };
    over(connection, asked).await
}

async fn ask_http<T: AsyncRead + AsyncWrite + Unpin>(
    mut stream: T,
    target: &Target,
) -> Result<(), CheckError> {
    let check = &target.check;
    let (path, host) = (&check.path, check.host.as_ref().unwrap_or(&target.host));
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;

    let mut judge = Judge::new(check);
    let mut bytes = Vec::with_capacity(READ_BYTES);
    loop {
        let left = MAX_RESPONSE - judge.response.len();
        bytes.clear();
        let read = (&mut stream)
            .take(left.min(READ_BYTES) as u64)
            .read_buf(&mut bytes)
            .await?;
        let more = match read {
            0 if left == 0 => FurtherInput::TooLong,
            0 => FurtherInput::Closed,
            _ => FurtherInput::Open,
        };
        if let Some(result) = judge.next(&bytes, more) {
            return result;
        }
    }
}

/// Input that may follow the bytes that were read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FurtherInput {
    /// More bytes, perhaps.
    Open,
    /// Nothing: the peer has closed.
    Closed,
    /// Nothing that is read.
    TooLong,
}

/// Judge of a response, which reads the response as it comes.
pub(crate) struct Judge<'a> {
    pub(crate) codes: &'a [u16],
    /// Empty is in every body.
    pub(crate) text: &'a [u8],
    pub(crate) response: Reader,
    /// Bytes of the body in which the text is not.
    pub(crate) searched: usize,
}

impl<'a> Judge<'a> {
    fn new(check: &'a HealthCheck) -> Self {
        Judge {
            codes: &check.codes,
            text: check.text.as_deref().unwrap_or_default().as_bytes(),
            response: Reader::new(),
            searched: 0,
        }
    }

    /// The verdict after the next `bytes`; `None` if it depends on the rest.
    pub(crate) fn next(
        &mut self,
        bytes: &[u8],
        more: FurtherInput,
    ) -> Option<Result<(), CheckError>> {
        if let Err(NotHttp) = self.response.push(bytes) {
            return Some(Err(CheckError::Garbage));
        }
        let Some(code) = self.response.status_code() else {
            return match more {
                FurtherInput::Open => None,
                FurtherInput::Closed => Some(Err(CheckError::Closed)),
                FurtherInput::TooLong => Some(Err(CheckError::LongHead)),
            };
        };
        if !self.codes.contains(&code) {
            return Some(Err(CheckError::Code(code)));
        }
        if self.finds_text() {
            Some(Ok(()))
        } else if self.response.body_progress() != BodyProgress::Part || more != FurtherInput::Open
        {
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
            (b"\x08", "the answer is not a HealthCheckResponse"),
            (b"\x0a\x01x", "the answer is not a HealthCheckResponse"),
        ] {
            assert_eq!(serving(message).unwrap_err().to_string(), says);
        }
    }
}
