//! The load generator's side of TLS.
//!
//! All proxies get the same: TLS 1.3, AES-128 in GCM, X25519. Their certificates are not checked,
//! since only what a proxy spends is measured, and a quick client is there for the next one sooner.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, SignatureScheme,
    StreamOwned,
};

/// The name that clients ask for, and that certificates are made for.
pub const NAME: &str = "localhost";

/// A client. With `resumes` it keeps one session to come back with.
///
/// # Errors
///
/// Returns an error if the library lacks a cipher or key exchange that all proxies have.
pub fn client(resumes: bool) -> io::Result<Arc<ClientConfig>> {
    let provider = CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unchecked))
        .with_no_client_auth();
    config.resumption = if resumes {
        Resumption::in_memory_sessions(1)
    } else {
        Resumption::disabled()
    };
    Ok(Arc::new(config))
}

fn begin(client: &Arc<ClientConfig>) -> io::Result<ClientConnection> {
    let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
    ClientConnection::new(Arc::clone(client), name).map_err(io::Error::other)
}

/// A connection of a client, with TLS or without.
pub enum Stream {
    /// Plain TCP.
    Plain(TcpStream),
    /// With TLS, after the handshake.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Makes the handshake on a connection that blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the handshake fails.
    pub fn secure(client: &Arc<ClientConfig>, mut socket: TcpStream) -> io::Result<Self> {
        let mut tls = begin(client)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Self::Tls(Box::new(StreamOwned::new(tls, socket))))
    }

    /// The connection below.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// A handshake, and then the end of the connection, on a socket that does not block.
pub struct Handshake {
    tls: ClientConnection,
    socket: TcpStream,
    farewell: bool,
}

impl Handshake {
    /// Says hello.
    ///
    /// # Errors
    ///
    /// Returns an error if the hello cannot be sent.
    pub fn new(client: &Arc<ClientConfig>, socket: TcpStream) -> io::Result<Self> {
        let mut handshake = Self {
            tls: begin(client)?,
            socket,
            farewell: false,
        };
        handshake.send()?;
        Ok(handshake)
    }

    /// Advances the handshake by the bytes that have come. At the end, when the server has closed, too, returns true if
    /// an earlier session was resumed.
    ///
    /// # Errors
    ///
    /// Returns an error if the handshake fails.
    pub fn advance(&mut self) -> io::Result<Option<bool>> {
        loop {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) if self.farewell => {
                    let kind = self.tls.handshake_kind();
                    return Ok(Some(kind == Some(HandshakeKind::Resumed)));
                }
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => self.tls.process_new_packets().map_err(io::Error::other)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
        }
        if self.tls.is_handshaking() || self.farewell {
            return self.send().map(|()| None);
        }
        self.farewell = true;
        self.tls.send_close_notify();
        self.send()?;
        self.socket.shutdown(Shutdown::Write)?;
        Ok(None)
    }

    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

/// Takes every certificate.
#[derive(Debug)]
struct Unchecked;

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3".into()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
