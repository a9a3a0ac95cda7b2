//! Handshakes as a client: with members, and with whoever else is asked; and why one has failed.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_core::address::Address;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{InvalidDnsNameError, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, Error, HandshakeKind, InvalidMessage, ProtocolVersion,
};
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::client::Client;
use crate::handshake::HandshakeParameters;
use crate::messages::{Messages, Next};
use crate::record::Violation;
use crate::stream::{Kernel, Stream};

/// Most bytes that are held of messages which are not whole: a chain of certificates, and the rest.
const MAX_INPUT: usize = 80 * 1024;

const TOO_LONG: &str = "a message of the server's handshake is too long";

/// Kinds of reasons for a handshake to fail, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The other side's certificate comes from no authority that is trusted.
    Untrusted,
    /// The other side's certificate has expired, or is not valid yet.
    Expired,
    /// The other side's certificate has another name.
    WrongName,
    /// The other side's certificate was revoked, or nobody says whether it was.
    Revoked,
    /// Something else is wrong with the other side's certificate.
    Certificate,
    /// The other side wants a certificate, or another one.
    ClientCertificate,
    /// There is no version, suite, group or protocol in common.
    Incompatible,
    /// The other side refuses for another reason.
    Refused,
    /// The other side sends bytes that are not TLS, or that break its rules.
    NotTls,
    /// The other side sends a message that is too long.
    Oversized,
    /// The connection ended.
    Closed,
    /// The handshake took too long.
    Timeout,
    /// The failure is on this side.
    Internal,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 13] = [
        Cause::Untrusted,
        Cause::Expired,
        Cause::WrongName,
        Cause::Revoked,
        Cause::Certificate,
        Cause::ClientCertificate,
        Cause::Incompatible,
        Cause::Refused,
        Cause::NotTls,
        Cause::Oversized,
        Cause::Closed,
        Cause::Timeout,
        Cause::Internal,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Untrusted => "untrusted",
            Cause::Expired => "expired",
            Cause::WrongName => "wrong_name",
            Cause::Revoked => "revoked",
            Cause::Certificate => "certificate",
            Cause::ClientCertificate => "client_certificate",
            Cause::Incompatible => "incompatible",
            Cause::Refused => "refused",
            Cause::NotTls => "not_tls",
            Cause::Oversized => "oversized",
            Cause::Closed => "closed",
            Cause::Timeout => "timeout",
            Cause::Internal => "internal",
        }
    }
}

/// Reason why there is no connection.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of reason.
    pub cause: Cause,
    /// Exact reason, as the text that follows "no TLS: ".
    pub text: String,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no TLS: {}", self.text)
    }
}

impl Failure {
    fn new(cause: Cause, text: impl Into<String>) -> Self {
        let text = text.into();
        Failure { cause, text }
    }

    /// Returns the failure of a handshake that took longer than `limit`.
    pub fn timed_out(limit: Duration) -> Self {
        let text = format!("the handshake did not end within {limit:?}");
        Failure::new(Cause::Timeout, text)
    }

    /// Returns the failure of a handshake in which HTTP/2 was offered, and the other side has said
    /// nothing of it.
    pub fn no_http2() -> Self {
        let text = "the server does not accept HTTP/2 (ALPN)";
        Failure::new(Cause::Incompatible, text)
    }

    /// Returns the meaning of the first `error` of a connection, if the other side has refused the
    /// connection after the handshake: with TLS 1.3 the other side looks at the client's
    /// certificate when the client is done.
    pub fn after_handshake(error: &io::Error, client: &Client) -> Option<Self> {
        let violation = error.get_ref()?.downcast_ref::<Violation>()?;
        let Violation::Alert(alert) = violation else {
            return None;
        };
        let (cause, text) = of_alert(*alert, client);
        Some(Failure { cause, text })
    }

    fn internal(error: &Error) -> Self {
        Failure::new(Cause::Internal, error.to_string())
    }

    fn closed(error: &io::Error) -> Self {
        let text = match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                "the server closed the connection in the handshake".into()
            }
            _ => format!("the connection broke in the handshake: {error}"),
        };
        Failure::new(Cause::Closed, text)
    }

    /// Returns the meaning of `error` of a handshake by `client`; `input` holds the bytes that were
    /// not understood.
    fn of_error(error: &Error, client: &Client, input: &[u8]) -> Self {
        let (cause, text) = match error {
            Error::InvalidCertificate(error) => of_certificate(error, client),
            Error::InvalidCertRevocationList(why) => {
                let text = format!(
                    "a list in `crl_file` cannot be used for the server's certificate: {why:?}"
                );
                (Cause::Revoked, text)
            }
            Error::AlertReceived(alert) => of_alert(*alert, client),
            Error::PeerIncompatible(what) => {
                let text = format!(
                    "the server has no version, suite or group in common with the balancer: {what:?}"
                );
                (Cause::Incompatible, text)
            }
            Error::NoApplicationProtocol => {
                let text = "the server knows none of the protocols that the balancer offers (ALPN)";
                (Cause::Incompatible, text.into())
            }
            Error::InvalidMessage(
                InvalidMessage::HandshakePayloadTooLarge | InvalidMessage::MessageTooLarge,
            )
            | Error::PeerSentOversizedRecord => (Cause::Oversized, TOO_LONG.into()),
            Error::InvalidMessage(_) if !matches!(input.first(), Some(20..=23)) => {
                let text = "the server's answer is not TLS: does it speak TLS at this port?";
                (Cause::NotTls, text.into())
            }
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::PeerMisbehaved(_)
            | Error::NoCertificatesPresented
            | Error::DecryptError => (
                Cause::NotTls,
                format!("the server breaks the rules of TLS: {error}"),
            ),
            error => (Cause::Internal, error.to_string()),
        };
        Failure { cause, text }
    }
}

fn of_certificate(error: &CertificateError, client: &Client) -> (Cause, String) {
    let trusts = &client.trusts;
    match error {
        CertificateError::UnknownIssuer => {
            let text = format!("the server's certificate does not come from {trusts}");
            (Cause::Untrusted, text)
        }
        CertificateError::BadSignature => {
            let text = format!("the server's certificate names {trusts} that has not signed it");
            (Cause::Untrusted, text)
        }
        CertificateError::Expired => (
            Cause::Expired,
            "the server's certificate has expired".into(),
        ),
        CertificateError::ExpiredContext { not_after, .. } => {
            let text = format!(
                "the server's certificate has expired, on {}",
                format_date(*not_after)
            );
            (Cause::Expired, text)
        }
        CertificateError::NotValidYet => (
            Cause::Expired,
            "the server's certificate is not valid yet".into(),
        ),
        CertificateError::NotValidYetContext { not_before, .. } => {
            let text = format!(
                "the server's certificate is not valid before {}",
                format_date(*not_before)
            );
            (Cause::Expired, text)
        }
        CertificateError::NotValidForName => (
            Cause::WrongName,
            "the server's certificate is for another name".into(),
        ),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let has: Vec<_> = presented
                .iter()
                .take(8)
                .map(|name| bare_name(name))
                .collect();
            let has = match has.is_empty() {
                true => "no name".into(),
                false => has.join(", "),
            };
            let expected = expected.to_str();
            let text = format!(
                "the server's certificate is for {has}, and not for {expected}; `server_name` says which \
                 name it has to have"
            );
            (Cause::WrongName, text)
        }
        CertificateError::Revoked => {
            let text =
                "the server's certificate, or that of an authority above it, has been revoked";
            (Cause::Revoked, text.into())
        }
        CertificateError::UnknownRevocationStatus => {
            let text =
                "`crl_file` has no list of an authority that the server's certificate comes from";
            (Cause::Revoked, text.into())
        }
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            let text = "the server's certificate is one of an authority (CA:TRUE), and not one of a server \
                        (basicConstraints=CA:FALSE)";
            (Cause::Certificate, text.into())
        }
        other => {
            let text = format!("the server's certificate cannot be used: {other}");
            (Cause::Certificate, text)
        }
    }
}

/// `DnsName("a.example")` as `a.example`.
fn bare_name(name: &str) -> &str {
    let inner = name.split_once('(').map(|(_, rest)| rest);
    let inner = inner.and_then(|rest| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

fn format_date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let time = x509_parser::time::ASN1Time::from_timestamp(seconds);
    time.map_or_else(|_| "?".into(), |time| time.to_string())
}

fn of_alert(alert: AlertDescription, client: &Client) -> (Cause, String) {
    let said = format!("{alert:?}");
    match alert {
        AlertDescription::CertificateRequired
        | AlertDescription::NoCertificate
        | AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::AccessDenied => {
            let text = match &client.client_certificate {
                Some(own) => format!("the server refuses the certificate in {}: {said}", own.file),
                None => format!("the server wants a `certificate`, and none is configured: {said}"),
            };
            (Cause::ClientCertificate, text)
        }
        AlertDescription::HandshakeFailure
        | AlertDescription::ProtocolVersion
        | AlertDescription::InsufficientSecurity
        | AlertDescription::NoApplicationProtocol => {
            let text = format!(
                "the server refuses the versions, suites and protocols that the balancer offers: {said}"
            );
            (Cause::Incompatible, text)
        }
        AlertDescription::UnrecognisedName => {
            let text = "the server does not know the name that it is asked for (`server_name`)";
            (Cause::WrongName, text.into())
        }
        _ => (
            Cause::Refused,
            format!("the server ends the handshake: {said}"),
        ),
    }
}

/// Returns the address that a connection leads to.
fn peer_address(socket: &TcpStream) -> io::Result<Address> {
    let peer = SockRef::from(socket).peer_addr()?;
    let named = |name: &[u8]| format!("@{}", name.escape_ascii());
    let path = || Some(peer.as_pathname()?.to_string_lossy().into_owned());
    let unix = || path().or_else(|| Some(named(peer.as_abstract_namespace()?)));
    let address = match peer.as_socket() {
        Some(address) => Some(Address::Ip(address)),
        None => unix().map(|path| Address::Unix(path.into())),
    };
    address.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

impl Client {
    /// A handshake with whoever is at the other end of `socket`, called `host` (a name, or an IP
    /// address) unless the configuration names it. `protocols` are offered (ALPN); if there are
    /// none, those of the configuration.
    pub fn connect<'a>(
        self: &'a Arc<Self>,
        socket: TcpStream,
        host: &str,
        protocols: &[&str],
    ) -> Connecting<'a> {
        let offered = if protocols.is_empty() {
            self.alpn.clone()
        } else {
            protocols
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect()
        };
        let name = match &self.name {
            Some(name) => Ok(name.clone()),
            None => ServerName::try_from(host.to_owned()),
        };
        Connecting::new(self, socket, name, offered)
    }
}

/// A handshake with a server.
pub struct Connecting<'a> {
    messages: Messages,
    connection: Option<Box<UnbufferedClientConnection>>,
    client: &'a Client,
    failed: Option<Failure>,
}

impl fmt::Debug for Connecting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}

impl<'a> Connecting<'a> {
    fn new(
        client: &'a Arc<Client>,
        socket: TcpStream,
        name: Result<ServerName<'static>, InvalidDnsNameError>,
        protocols: Vec<Vec<u8>>,
    ) -> Self {
        let connection = peer_address(&socket)
            .map_err(|error| Failure::closed(&error))
            .and_then(|address| {
                let name = name.map_err(|error| {
                    let text =
                        format!("the server's host cannot be the name of a certificate: {error}");
                    Failure::new(Cause::WrongName, text)
                })?;
                let config = client.config_for_peer(address);
                UnbufferedClientConnection::new_with_alpn(config, name, protocols)
                    .map_err(|error| Failure::internal(&error))
            });
        let (connection, failed) = match connection {
            Ok(connection) => (Some(Box::new(connection)), None),
            Err(failure) => (None, Some(failure)),
        };
        Connecting {
            messages: Messages::over_socket(socket),
            connection,
            client,
            failed,
        }
    }

    /// Understands what is there, and says what is to be done next.
    fn advance(&mut self) -> Next {
        let Some(connection) = &mut self.connection else {
            return Next::Closed;
        };
        loop {
            if self.failed.is_some() && !connection.wants_write() {
                return Next::Send;
            }
            // What follows the handshake is not for rustls.
            let reads = connection.is_handshaking() && self.failed.is_none();
            let of = &mut **connection;
            let next = self
                .messages
                .process_input(reads, move |input| of.process_tls_records(input));
            match next {
                Ok(Next::Again) => {}
                Ok(Next::Done) if connection.is_handshaking() => return Next::Read,
                Ok(next) => return next,
                // The second time there is no alert left to be sent.
                Err(_) if self.failed.is_some() => return Next::Send,
                Err(error) => {
                    let failure = Failure::of_error(&error, self.client, &self.messages.input);
                    self.failed = Some(failure);
                }
            }
        }
    }

    /// Makes a connection of what was agreed on.
    fn finish_handshake(&mut self) -> Result<(Box<Stream>, HandshakeParameters), Failure> {
        let (Some(connection), Some(socket)) =
            (self.connection.take(), self.messages.socket.take())
        else {
            return Err(Failure::closed(&io::ErrorKind::NotConnected.into()));
        };
        let is_tls13 = connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let agreed = HandshakeParameters {
            name: None,
            version: if is_tls13 { "TLSv1.3" } else { "TLSv1.2" },
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            protocol: connection.alpn_protocol().map(Into::into),
            identity: None,
        };
        let (secrets, kernel) = connection
            .dangerous_into_kernel_connection()
            .map_err(|error| Failure::internal(&error))?;
        let kernel = is_tls13.then(|| Box::new(Kernel::Client(kernel)));
        let input = std::mem::take(&mut self.messages.input);
        let early = std::mem::take(&mut self.messages.early);
        let stream = Stream::new(socket, secrets, kernel, input, early);
        let stream = stream.map_err(|_| Failure::internal(&Error::HandshakeNotComplete))?;
        Ok((Box::new(stream), agreed))
    }
}

impl Future for Connecting<'_> {
    type Output = Result<(Box<Stream>, HandshakeParameters), Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let closed = |error: io::Error| Failure::closed(&error);
        loop {
            let next = this.advance();
            let sent = this.messages.poll_send(cx);
            if let Some(failure) = this.failed.take() {
                // The alert is worth one attempt.
                this.messages.drain_socket();
                return Poll::Ready(Err(failure));
            }
            if let Poll::Ready(Err(error)) = &sent {
                // Perhaps it has said why before it closed.
                let has_room = this.messages.input.len() < MAX_INPUT;
                if has_room && matches!(this.messages.poll_read(cx), Poll::Ready(Ok(()))) {
                    continue;
                }
                return Poll::Ready(Err(Failure::closed(error)));
            }
            match next {
                _ if sent.is_pending() => return Poll::Pending,
                Next::Again | Next::Send => {}
                Next::Done => return Poll::Ready(this.finish_handshake()),
                Next::Closed => {
                    return Poll::Ready(Err(closed(io::ErrorKind::UnexpectedEof.into())));
                }
                Next::Read if this.messages.input.len() >= MAX_INPUT => {
                    return Poll::Ready(Err(Failure::new(Cause::Oversized, TOO_LONG)));
                }
                Next::Read => ready!(this.messages.poll_read(cx)).map_err(closed)?,
            }
        }
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
