//! Handshakes with clients: rustls driven over a socket, with bounds, and why one has failed.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::UnixTime;
use rustls::server::UnbufferedServerConnection;
use rustls::server::danger::ClientCertVerifier;
use rustls::{AlertDescription, Error, HandshakeKind, ProtocolVersion};
use socket2::Socket;
use tokio::net::TcpStream;

use crate::identity;
use crate::messages::{Messages, Next, drain_received};
use crate::server::{Server, take_asked};
use crate::stream::{Kernel, Stream};
use crate::ticket::{self, Span};

/// Most bytes of a first message: no browser needs a quarter of it.
const MAX_HELLO: usize = 16 * 1024;

/// Reason why there is no connection.
#[derive(Debug)]
pub struct Failure {
    /// The kind of reason.
    pub cause: Cause,
    /// Exact reason.
    pub error: Detail,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Exact reason why a handshake has failed.
#[derive(Debug, thiserror::Error)]
pub enum Detail {
    /// Failure of the protocol.
    #[error("{0}")]
    Tls(#[from] Error),
    /// Failure of the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another failure.
    #[error("{0}")]
    Other(&'static str),
}

/// Kinds of reasons for a handshake to fail, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The client and the rule have no version, suite, group or protocol in common.
    Incompatible,
    /// There is no certificate for the name that the client asks for.
    UnknownName,
    /// The client sent HTTP without TLS.
    PlainHttp,
    /// The client sent bytes that are not TLS, or that break its rules.
    Garbage,
    /// The client's first message is too long.
    Oversized,
    /// The client has no certificate, or not a good one.
    ClientCertificate,
    /// The client refused, mostly because of the certificate that it got.
    RefusedByClient,
    /// The client went away.
    Closed,
    /// The failure is on this side.
    Internal,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 9] = [
        Cause::Incompatible,
        Cause::UnknownName,
        Cause::PlainHttp,
        Cause::Garbage,
        Cause::Oversized,
        Cause::ClientCertificate,
        Cause::RefusedByClient,
        Cause::Closed,
        Cause::Internal,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Incompatible => "incompatible",
            Cause::UnknownName => "unknown_name",
            Cause::PlainHttp => "plain_http",
            Cause::Garbage => "garbage",
            Cause::Oversized => "oversized",
            Cause::ClientCertificate => "client_certificate",
            Cause::RefusedByClient => "refused_by_client",
            Cause::Closed => "closed",
            Cause::Internal => "internal",
        }
    }

    fn of_error(error: &Error, input: &[u8]) -> Self {
        match error {
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Cause::Incompatible,
            // The resolver has found none.
            Error::General(_) => Cause::UnknownName,
            Error::NoCertificatesPresented
            | Error::InvalidCertificate(_)
            | Error::InvalidCertRevocationList(_) => Cause::ClientCertificate,
            Error::AlertReceived(_) => Cause::RefusedByClient,
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::PeerSentOversizedRecord
            | Error::PeerMisbehaved(_)
            | Error::DecryptError => {
                if is_http(input) {
                    Cause::PlainHttp
                } else {
                    Cause::Garbage
                }
            }
            _ => Cause::Internal,
        }
    }
}

/// True if bytes look like the beginning of a request without TLS.
fn is_http(input: &[u8]) -> bool {
    let methods: [&[u8]; 9] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"CONNECT ",
        b"PRI ",
    ];
    methods.iter().any(|method| input.starts_with(method))
}

/// Answer to a client that sent a request without TLS.
const PLAIN_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Content-Length: 53\r\nConnection: close\r\n\r\nThis port expects TLS: the URL begins with \
    https://.\n";

/// Parameters that both sides have agreed on.
#[derive(Clone, Debug)]
pub struct HandshakeParameters {
    /// The name that the client asked for; `None` where the balancer is the client.
    pub name: Option<Box<str>>,
    /// The version.
    pub version: &'static str,
    /// True if a session was resumed.
    pub resumed: bool,
    /// The protocol that was chosen by ALPN.
    pub protocol: Option<Box<[u8]>>,
    /// Lines of a head that tell members about the client's certificate.
    pub identity: Option<Box<str>>,
}

/// A handshake with a client.
pub struct ServerHandshake {
    messages: Messages,
    connection: Option<Box<UnbufferedServerConnection>>,
    header: Option<Box<str>>,
    /// Verifier of the client's certificate, if clients with a bad one are served, too.
    optional_verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// The name that the client asks for.
    name: Option<Box<str>>,
    /// Beginning and end of the session, once they are known.
    span: Option<Span>,
    /// Most bytes of `input`.
    most: usize,
    most_later: usize,
    failed: Option<Failure>,
}

impl fmt::Debug for ServerHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepting").finish_non_exhaustive()
    }
}

impl ServerHandshake {
    /// A handshake over `socket`.
    pub fn new(socket: TcpStream, server: &Server) -> Self {
        let (connection, failed) = match UnbufferedServerConnection::new(Arc::clone(&server.config))
        {
            Ok(connection) => (Some(Box::new(connection)), None),
            Err(error) => (None, Some(internal(error))),
        };
        ServerHandshake {
            messages: Messages::over_socket(socket),
            connection,
            header: server.header.clone(),
            optional_verifier: server.optional_verifier.clone(),
            name: None,
            span: None,
            most: MAX_HELLO,
            most_later: server.most_input + MAX_HELLO,
            failed,
        }
    }

    /// Begins the handshake with bytes that were read from the socket already.
    #[must_use]
    pub fn with_input(mut self, read: &[u8]) -> Self {
        self.messages.input.extend_from_slice(read);
        self
    }

    /// The socket, until the handshake is over.
    pub fn socket(&self) -> Option<&TcpStream> {
        self.messages.socket.as_ref()
    }

    /// Understands what is there, and says what is to be done next.
    fn advance(&mut self) -> Next {
        let Some(connection) = &mut self.connection else {
            return Next::Closed;
        };
        loop {
            // What follows the handshake is not for rustls.
            let is_over = !connection.is_handshaking();
            if self.failed.is_some() && !connection.wants_write() {
                return Next::Send;
            }
            let reads = !is_over && self.failed.is_none();
            let of = &mut **connection;
            let messages = &mut self.messages;
            let next = ticket::with_span(&mut self.span, || {
                messages.process_input(reads, move |input| of.process_tls_records(input))
            });
            if let Some(name) = take_asked() {
                self.name = Some(name);
            }
            match next {
                Ok(Next::Again) => {}
                Ok(Next::Done) if connection.is_handshaking() => return Next::Read,
                Ok(next) => return next,
                // The second time there is no alert left to be sent.
                Err(_) if self.failed.is_some() => return Next::Send,
                Err(error) => {
                    let cause = Cause::of_error(&error, &self.messages.input);
                    let error = Detail::Tls(error);
                    self.failed = Some(Failure { cause, error });
                    if cause == Cause::PlainHttp {
                        self.messages.output = PLAIN_ANSWER.to_vec();
                        return Next::Send;
                    }
                }
            }
        }
    }

    /// Makes a connection of what was agreed on.
    fn finish_handshake(&mut self) -> Result<(Box<Stream>, HandshakeParameters), Failure> {
        let (Some(connection), Some(socket)) =
            (self.connection.take(), self.messages.socket.take())
        else {
            return Err(closed(io::ErrorKind::NotConnected.into()));
        };
        let is_tls13 = connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let chain = connection.peer_certificates().unwrap_or_default();
        let certificate = chain.split_first().filter(|(first, others)| {
            // A resumed session may have a bad certificate, too.
            let verifier = self.optional_verifier.as_ref();
            let verify = |of: &Arc<dyn ClientCertVerifier>| {
                of.verify_client_cert(first, others, UnixTime::now())
            };
            verifier.map(verify).is_none_or(|verified| verified.is_ok())
        });
        let certificate = certificate.map(|(first, _)| first);
        let header = self.header.as_deref();
        let identity = header.map(|header| identity::format_lines(header, certificate).into());
        let agreed = HandshakeParameters {
            name: self.name.take(),
            version: if is_tls13 { "TLSv1.3" } else { "TLSv1.2" },
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            protocol: connection.alpn_protocol().map(Into::into),
            identity,
        };
        let (secrets, kernel) = connection
            .dangerous_into_kernel_connection()
            .map_err(internal)?;
        let kernel = Kernel::Server(kernel);
        let kernel = is_tls13.then(|| Box::new(kernel));
        let input = std::mem::take(&mut self.messages.input);
        let early = std::mem::take(&mut self.messages.early);
        let stream = Stream::new(socket, secrets, kernel, input, early);
        let stream = stream.map_err(|_| internal(Error::HandshakeNotComplete))?;
        Ok((Box::new(stream), agreed))
    }
}

fn internal(error: Error) -> Failure {
    Failure {
        cause: Cause::Internal,
        error: Detail::Tls(error),
    }
}

fn closed(error: io::Error) -> Failure {
    Failure {
        cause: Cause::Closed,
        error: Detail::Io(error),
    }
}

impl Future for ServerHandshake {
    type Output = Result<(Box<Stream>, HandshakeParameters), Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let next = this.advance();
            let sent = this.messages.poll_send(cx);
            if let Some(failure) = this.failed.take() {
                // The alert is worth one attempt.
                this.messages.drain_socket();
                return Poll::Ready(Err(failure));
            }
            ready!(sent).map_err(closed)?;
            match next {
                Next::Again => {}
                Next::Send => this.most = this.most_later,
                Next::Done => return Poll::Ready(this.finish_handshake()),
                Next::Closed => {
                    return Poll::Ready(Err(closed(io::ErrorKind::UnexpectedEof.into())));
                }
                Next::Read if this.messages.input.len() >= this.most => {
                    return Poll::Ready(Err(Failure {
                        cause: Cause::Oversized,
                        error: Detail::Other("a message of the handshake is too long"),
                    }));
                }
                Next::Read => ready!(this.messages.poll_read(cx)).map_err(closed)?,
            }
        }
    }
}

/// Tells a client that has sent `input`, and whose handshake would be another server's, why it gets
/// no connection; not if it would have to wait for that. Answers the cause: there is another one for
/// HTTP.
pub fn turn_away(socket: &Socket, input: &[u8], cause: Cause) -> Cause {
    let (cause, alert) = match cause {
        Cause::Garbage if is_http(input) => (Cause::PlainHttp, None),
        Cause::UnknownName => (cause, Some(AlertDescription::UnrecognisedName)),
        Cause::Garbage | Cause::Oversized => (cause, Some(AlertDescription::DecodeError)),
        _ => return cause,
    };
    // One write of a few bytes to a socket that nothing was written to.
    let _ = match alert {
        Some(alert) => socket.send(&[21, 3, 3, 0, 2, 2, alert.into()]),
        None => socket.send(PLAIN_ANSWER),
    };
    drain_received(socket);
    cause
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream as StdStream};
    use std::sync::Arc;
    use std::thread::JoinHandle;

    use evenkeel_config::{ClientCertificates, Tls, TlsVersion};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedCipherSuite,
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::testing::{Folder, Made, new_authority, new_params, self_signed, sign_certificate};
    use crate::ticket::Keys;

    /// A rule with a certificate for `a.example`.
    struct Rule {
        folder: Folder,
        made: Made,
        tls: Tls,
        keys: Arc<Keys>,
    }

    impl Rule {
        fn new() -> Self {
            let (folder, made) = (Folder::new(), self_signed(&["a.example"]));
            let tls = Tls {
                certificates: vec![folder.write_certificate("a.pem", &made)],
                ..Tls::default()
            };
            let keys = Arc::new(Keys::new_rotating());
            Rule {
                folder,
                made,
                tls,
                keys,
            }
        }

        fn server(&self) -> Server {
            Server::from_config(&self.tls, "web", &["http/1.1"], &self.keys).unwrap()
        }

        fn roots(&self) -> RootCertStore {
            let mut roots = RootCertStore::empty();
            let der = CertificateDer::from_pem_slice(self.made.pem.as_bytes()).unwrap();
            roots.add(der).unwrap();
            roots
        }

        fn client(&self) -> ClientConfig {
            let config = ClientConfig::builder_with_provider(Arc::clone(crate::crypto_provider()));
            let config = config.with_safe_default_protocol_versions().unwrap();
            config
                .with_root_certificates(self.roots())
                .with_no_client_auth()
        }

        /// Returns a client whose only suite is `suite`.
        fn client_with(&self, suite: SupportedCipherSuite) -> ClientConfig {
            let provider = rustls::crypto::CryptoProvider {
                cipher_suites: vec![suite],
                ..rustls::crypto::aws_lc_rs::default_provider()
            };
            let config = ClientConfig::builder_with_provider(Arc::new(provider));
            let config = config.with_protocol_versions(&[suite.version()]).unwrap();
            config
                .with_root_certificates(self.roots())
                .with_no_client_auth()
        }
    }

    type Client = StreamOwned<ClientConnection, StdStream>;

    /// Has `client` talk to the other end of a connection, in a thread.
    fn connect<T: Send + 'static>(
        client: impl FnOnce(StdStream) -> T + Send + 'static,
    ) -> (TcpStream, JoinHandle<T>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || client(StdStream::connect(address).unwrap()));
        let socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        (TcpStream::from_std(socket).unwrap(), thread)
    }

    fn speak(config: &Arc<ClientConfig>, name: &'static str, socket: StdStream) -> Client {
        let name = ServerName::try_from(name).unwrap();
        let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
        StreamOwned::new(connection, socket)
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_io().build().unwrap();
        runtime.block_on(future)
    }

    const LONG: usize = 1 << 20;

    fn content() -> Vec<u8> {
        (0..LONG).map(|at| (at % 251) as u8).collect()
    }

    /// Sends back what comes, to its end.
    async fn echo(stream: &mut Stream) -> io::Result<()> {
        let mut bytes = vec![0; 80 * 1024];
        loop {
            let n = stream.read(&mut bytes).await?;
            if n == 0 {
                return stream.shutdown().await;
            }
            stream.write_all(&bytes[..n]).await?;
            stream.flush().await?;
        }
    }

    /// Sends `content` in pieces, and reads it back meanwhile.
    fn exchange(mut client: Client, update: bool) {
        let content = content();
        let mut back = vec![0; 30_000];
        for (index, piece) in content.chunks(30_000).enumerate() {
            if update && index % 10 == 5 {
                client.conn.refresh_traffic_keys().unwrap();
            }
            client.write_all(piece).unwrap();
            client.read_exact(&mut back[..piece.len()]).unwrap();
            assert!(back[..piece.len()] == *piece);
        }
        client.conn.send_close_notify();
        client.flush().unwrap();
        assert_eq!(client.read(&mut back).unwrap(), 0, "an orderly end");
    }

    #[test]
    fn bytes_pass_with_each_suite() {
        let rule = Rule::new();
        for suite in rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES {
            // The certificate is one of ECDSA.
            if format!("{suite:?}").contains("RSA") {
                continue;
            }
            run(async {
                let config = Arc::new(rule.client_with(*suite));
                let is_tls13 = suite.tls13().is_some();
                let (socket, client) =
                    connect(move |socket| exchange(speak(&config, "a.example", socket), is_tls13));
                let (mut stream, agreed) =
                    ServerHandshake::new(socket, &rule.server()).await.unwrap();
                let version = if is_tls13 { "TLSv1.3" } else { "TLSv1.2" };
                assert_eq!(agreed.version, version);
                assert_eq!(agreed.name.as_deref(), Some("a.example"));
                assert!(!agreed.resumed && agreed.identity.is_none());
                echo(&mut stream).await.unwrap();
                assert_eq!(stream.held_bytes(), 0, "who is idle holds nothing");
                client.join().unwrap();
            });
        }
    }

    #[test]
    fn sessions_are_resumed_and_only_where_they_may_be() {
        let mut rule = Rule::new();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let config = ClientConfig::builder_with_provider(Arc::clone(crate::crypto_provider()));
            let config = config.with_protocol_versions(&[version]).unwrap();
            let config = config.with_root_certificates(rule.roots());
            let config = Arc::new(config.with_no_client_auth());
            let mut resumed = Vec::new();
            // A reload in between changes nothing.
            for server in [rule.server(), rule.server()] {
                resumed.push(served(&config, &server));
            }
            // Another rule is somebody else.
            let other = Server::from_config(&rule.tls, "other", &[], &rule.keys).unwrap();
            resumed.push(served(&config, &other));
            rule.tls.tickets = false;
            resumed.push(served(&config, &rule.server()));
            rule.tls.tickets = true;
            assert_eq!(resumed, [false, true, false, false], "{version:?}");
        }
    }

    /// True if a client's session was resumed.
    fn served(config: &Arc<ClientConfig>, server: &Server) -> bool {
        session(config, server).0
    }

    /// Returns true if a client's session was resumed, and the session's span.
    fn session(config: &Arc<ClientConfig>, server: &Server) -> (bool, Option<Span>) {
        run(async {
            let config = Arc::clone(config);
            let (socket, client) = connect(move |socket| {
                let mut client = speak(&config, "a.example", socket);
                client.write_all(b"ping").unwrap();
                client.read_exact(&mut [0; 4]).unwrap();
                client.conn.send_close_notify();
                client.flush().unwrap();
            });
            let mut accepting = ServerHandshake::new(socket, server);
            let (mut stream, agreed) = (&mut accepting).await.unwrap();
            echo(&mut stream).await.unwrap();
            client.join().unwrap();
            (agreed.resumed, accepting.span)
        })
    }

    /// Returns the result of the handshake with a client that does what `client` does.
    fn result(
        server: &Server,
        client: impl FnOnce(StdStream) + Send + 'static,
    ) -> Result<HandshakeParameters, Failure> {
        run(async {
            let (socket, thread) = connect(client);
            let result = ServerHandshake::new(socket, server).await;
            let result = result.map(|(_, agreed)| agreed);
            thread.join().unwrap();
            result
        })
    }

    /// Speaks until there is an answer, or none is coming.
    fn try_to_speak(
        config: ClientConfig,
        name: &'static str,
    ) -> impl FnOnce(StdStream) + Send + 'static {
        move |socket| {
            let mut client = speak(&Arc::new(config), name, socket);
            let _ = client
                .write_all(b"ping")
                .and_then(|()| client.read(&mut [0; 9]));
        }
    }

    fn cause(server: &Server, client: impl FnOnce(StdStream) + Send + 'static) -> Cause {
        result(server, client).unwrap_err().cause
    }

    #[test]
    fn failures_have_a_cause() {
        let mut rule = Rule::new();
        let server = rule.server();
        let says = |bytes: &[u8]| {
            let bytes = bytes.to_vec();
            move |mut socket: StdStream| {
                let _ = socket.write_all(&bytes);
                let _ = socket.read(&mut [0; 9]);
            }
        };
        assert_eq!(cause(&server, says(&[0; 20])), Cause::Garbage);
        assert_eq!(cause(&server, says(b"SSH-2.0-x\r\n")), Cause::Garbage);
        assert_eq!(cause(&server, |_| {}), Cause::Closed);
        let part = |mut socket: StdStream| socket.write_all(&[22, 3, 1, 1]).unwrap();
        assert_eq!(cause(&server, part), Cause::Closed);
        // A message of the handshake that never ends, in fragments.
        let mut long = Vec::new();
        for index in 0..40 {
            long.extend_from_slice(&[22, 3, 1, 4, 0]);
            let mut fragment = [0; 1024];
            if index == 0 {
                fragment[..4].copy_from_slice(&[1, 0, 0xff, 0]);
            }
            long.extend_from_slice(&fragment);
        }
        assert_eq!(cause(&server, says(&long)), Cause::Oversized);

        let mut strange = rule.client();
        strange.alpn_protocols = vec![b"h9".to_vec()];
        let strange = try_to_speak(strange, "a.example");
        assert_eq!(cause(&server, strange), Cause::Incompatible);
        let mut stranger = rule.client();
        stranger.resumption = rustls::client::Resumption::disabled();
        let stranger = try_to_speak(stranger, "b.example");
        assert_eq!(cause(&server, stranger), Cause::RefusedByClient);

        rule.tls.strict_sni = true;
        let unknown = try_to_speak(rule.client(), "b.example");
        assert_eq!(cause(&rule.server(), unknown), Cause::UnknownName);

        rule.tls.min_version = TlsVersion::Tls13;
        let suite =
            rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
        let old = try_to_speak(rule.client_with(suite), "a.example");
        assert_eq!(cause(&rule.server(), old), Cause::Incompatible);
    }

    #[test]
    fn who_speaks_http_is_told_that_this_is_tls() {
        let rule = Rule::new();
        let client = |mut socket: StdStream| {
            socket
                .write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
                .unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
            assert!(
                head.contains(&format!("Content-Length: {}\r\n", body.len())),
                "{answer}"
            );
        };
        assert_eq!(cause(&rule.server(), client), Cause::PlainHttp);
    }

    #[test]
    fn clients_show_who_they_are() {
        let mut rule = Rule::new();
        let (root, other) = (new_authority(), new_authority());
        let ca_file = rule.folder.write("ca.pem", root.pem());
        let client = |by: &rcgen::CertifiedIssuer<'_, rcgen::KeyPair>| {
            let mut params = new_params(&["client.example"]);
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            let made = sign_certificate(params, by);
            let chain = vec![CertificateDer::from_pem_slice(made.pem.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(made.key.as_bytes()).unwrap();
            let config = ClientConfig::builder_with_provider(Arc::clone(crate::crypto_provider()));
            let config = config.with_safe_default_protocol_versions().unwrap();
            let config = config.with_root_certificates(rule.roots());
            let config = config.with_client_auth_cert(chain, key).unwrap();
            try_to_speak(config, "a.example")
        };
        let (good, bad, again) = (client(&root), client(&other), client(&root));
        let also = [client(&other), client(&root)];
        rule.tls.client_certificates = Some(ClientCertificates {
            ca_file,
            ..ClientCertificates::default()
        });
        let server = rule.server();
        let lines = result(&server, good).unwrap().identity.unwrap();
        assert!(
            lines.starts_with("X-Client-Cert-Verified: yes\r\n"),
            "{lines}"
        );
        assert!(
            lines.contains("X-Client-Cert-SAN: DNS:client.example\r\n"),
            "{lines}"
        );
        assert_eq!(cause(&server, bad), Cause::ClientCertificate);
        let nobody = try_to_speak(rule.client(), "a.example");
        assert_eq!(cause(&server, nobody), Cause::ClientCertificate);

        rule.tls.client_certificates.as_mut().unwrap().required = false;
        let nobody = try_to_speak(rule.client(), "a.example");
        let agreed = result(&rule.server(), nobody).unwrap();
        assert_eq!(
            agreed.identity.as_deref(),
            Some("X-Client-Cert-Verified: no\r\n")
        );

        // Clients with a bad certificate are served, too, and nobody takes the certificate for a good one.
        rule.tls
            .client_certificates
            .as_mut()
            .unwrap()
            .accept_invalid = true;
        let server = rule.server();
        let lines = also.map(|client| result(&server, client).unwrap().identity.unwrap());
        assert_eq!(&*lines[0], "X-Client-Cert-Verified: no\r\n");
        assert!(
            lines[1].starts_with("X-Client-Cert-Verified: yes\r\n"),
            "{}",
            lines[1]
        );
        rule.tls
            .client_certificates
            .as_mut()
            .unwrap()
            .accept_invalid = false;

        // A list that says nothing of the authority makes nobody good.
        let list = rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2024, 1, 1),
            next_update: rcgen::date_time_ymd(2124, 1, 1),
            crl_number: rcgen::SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&other).unwrap().pem().unwrap();
        let crl_file = rule.folder.write("ca.crl", list);
        rule.tls.client_certificates.as_mut().unwrap().crl_file = Some(crl_file);
        assert_eq!(cause(&rule.server(), again), Cause::ClientCertificate);
    }

    #[test]
    fn n2_however_often_a_session_is_resumed_it_ends_with_the_certificate() {
        let mut rule = Rule::new();
        let root = new_authority();
        rule.tls.client_certificates = Some(ClientCertificates {
            ca_file: rule.folder.write("ca.pem", root.pem()),
            ..ClientCertificates::default()
        });
        let server = rule.server();
        let end = rcgen::date_time_ymd(2121, 1, 1);
        let mut params = new_params(&["client.example"]);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = end;
        let made = sign_certificate(params, &root);
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let chain = vec![CertificateDer::from_pem_slice(made.pem.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(made.key.as_bytes()).unwrap();
            let config = ClientConfig::builder_with_provider(Arc::clone(crate::crypto_provider()));
            let config = config.with_protocol_versions(&[version]).unwrap();
            let config = config.with_root_certificates(rule.roots());
            let config = Arc::new(config.with_client_auth_cert(chain, key).unwrap());
            let (resumed, first) = session(&config, &server);
            assert_eq!(
                (resumed, first.map(Span::until)),
                (false, Some(end.unix_timestamp())),
                "{version:?}"
            );
            for _ in 0..3 {
                assert_eq!(session(&config, &server), (true, first), "{version:?}");
            }
        }
    }

    #[test]
    fn n11_a_client_that_asks_for_keys_and_reads_nothing_is_answered_once() {
        const UPDATES: usize = 4000;
        let rule = Rule::new();
        run(async {
            let config = Arc::new(rule.client());
            let (go, may_go) = std::sync::mpsc::channel();
            let (socket, client) = connect(move |socket| {
                let mut client = speak(&config, "a.example", socket);
                client.write_all(b"x").unwrap();
                let _ = may_go.recv().unwrap();
                for _ in 0..UPDATES {
                    client.conn.refresh_traffic_keys().unwrap();
                    client.write_all(b"x").unwrap();
                }
                // Whoever reads at last gets everything. Not read as TLS: what the kernel took before it was full may
                // have more answers in a row than a client of rustls puts up with.
                let written = may_go.recv().unwrap();
                let read = std::io::copy(&mut client.sock, &mut std::io::sink()).unwrap();
                assert!(read > written as u64, "{read} of {written}");
            });
            let (mut stream, _) = ServerHandshake::new(socket, &rule.server()).await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
            let piece = [0; 10_000];
            let mut written = 0;
            std::future::poll_fn(|cx| {
                while let Poll::Ready(n) =
                    tokio::io::AsyncWrite::poll_write(Pin::new(&mut *stream), cx, &piece)
                {
                    written += n.unwrap();
                }
                Poll::Ready(())
            })
            .await;
            let full = stream.held_bytes();
            assert!(full > 0);
            go.send(0).unwrap();
            for read in 0..UPDATES {
                stream.read_exact(&mut [0]).await.unwrap();
                let held = stream.held_bytes();
                // What has arrived and was not read is held, too.
                assert!(held < full + 48 * 1024, "{held} after {read} key updates");
            }
            go.send(written).unwrap();
            stream.flush().await.unwrap();
            drop(stream);
            client.join().unwrap();
        });
    }

    #[test]
    fn what_was_cut_does_not_look_complete() {
        let rule = Rule::new();
        for cut in [false, true] {
            run(async {
                let config = Arc::new(rule.client());
                let (socket, client) = connect(move |socket| {
                    let mut client = speak(&config, "a.example", socket);
                    client.write_all(b"ping").unwrap();
                    client.read_to_end(&mut Vec::new())
                });
                let (mut stream, _) = ServerHandshake::new(socket, &rule.server()).await.unwrap();
                stream.read_exact(&mut [0; 4]).await.unwrap();
                if cut {
                    stream.suppress_close();
                }
                drop(stream);
                let read = client.join().unwrap();
                assert_eq!(read.is_err(), cut, "{read:?}");
            });
        }
        // The same from the other side.
        run(async {
            let config = Arc::new(rule.client());
            let (socket, client) = connect(move |socket| {
                let mut client = speak(&config, "a.example", socket);
                client.write_all(b"ping").unwrap();
            });
            let (mut stream, _) = ServerHandshake::new(socket, &rule.server()).await.unwrap();
            let read = stream.read_to_end(&mut Vec::new()).await;
            // A reset, if it closes with tickets unread.
            let kind = read.unwrap_err().kind();
            let ends = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
            assert!(ends.contains(&kind), "{kind}");
            client.join().unwrap();
        });
    }

    #[test]
    fn who_reads_slowly_gets_everything_and_who_has_little_room_too() {
        let rule = Rule::new();
        run(async {
            let config = Arc::new(rule.client());
            let (socket, client) = connect(move |socket| {
                let mut client = speak(&config, "a.example", socket);
                client.write_all(&content()[..50_000]).unwrap();
                let mut all = vec![0; LONG];
                client.read_exact(&mut all).unwrap();
                assert!(all == content());
            });
            let (mut stream, _) = ServerHandshake::new(socket, &rule.server()).await.unwrap();
            let mut all = Vec::new();
            let mut room = 1;
            while all.len() < 50_000 {
                let mut piece = vec![0; room.min(50_000 - all.len())];
                let n = stream.read(&mut piece).await.unwrap();
                all.extend_from_slice(&piece[..n]);
                room = room % 5000 + 777;
            }
            assert!(all == content()[..50_000]);
            stream.write_all(&content()).await.unwrap();
            stream.flush().await.unwrap();
            client.join().unwrap();
        });
    }
}
