//! TLS of the negotiator, of the admin API and of xDS, whose connections are few.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use evenkeel_config::{Problem, Tls};
use evenkeel_core::tally::Tally;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::certificate::Details;
use crate::handshake::{Cause, ServerHandshake};
use crate::server::Server;
use crate::stream::Stream;
use crate::ticket::Keys;

/// Listener's side of TLS: the certificates of the moment, or no TLS.
#[derive(Debug)]
pub struct Listener {
    server: ArcSwapOption<Server>,
    /// Protocols that clients are offered (ALPN).
    protocols: &'static [&'static str],
    ticket_keys: Arc<Keys>,
    /// Handshakes that have failed, by cause.
    failures: Tally<{ Cause::ALL.len() }>,
}

impl Default for Listener {
    /// Returns a listener without TLS, and with HTTP/1.1 once it has TLS.
    fn default() -> Self {
        Listener::without_tls(&["http/1.1"])
    }
}

impl Listener {
    /// Returns a listener without TLS. Once it has TLS, clients are offered these protocols, if the
    /// configuration names no others.
    pub fn without_tls(protocols: &'static [&'static str]) -> Self {
        Listener {
            server: ArcSwapOption::empty(),
            protocols,
            ticket_keys: Arc::new(Keys::new_rotating()),
            failures: Default::default(),
        }
    }

    /// Reads what `tls` names, for the listener called `name`, without putting it into effect.
    ///
    /// # Errors
    ///
    /// All that is wrong, with the places in the configuration.
    pub fn load_server(
        &self,
        tls: Option<&Tls>,
        name: &str,
    ) -> Result<Option<Arc<Server>>, Vec<Problem>> {
        let load = |tls| Server::from_config(tls, name, self.protocols, &self.ticket_keys);
        Ok(tls.map(load).transpose()?.map(Arc::new))
    }

    /// The keys of tickets that no file has.
    pub fn ticket_keys(&self) -> &Keys {
        &self.ticket_keys
    }

    /// Puts `server` into effect for connections from now on.
    pub fn set(&self, server: Option<Arc<Server>>) {
        self.server.store(server);
    }

    /// Returns the errors in the files that `tls` names.
    pub fn check_files(tls: Option<&Tls>) -> Vec<Problem> {
        let loaded = Listener::default().load_server(tls, "");
        loaded.err().unwrap_or_default()
    }

    /// The certificates in use.
    pub fn certificates(&self) -> Vec<Details> {
        let server = self.server.load();
        let certificates = server.iter().flat_map(|server| &server.certificates);
        certificates.cloned().collect()
    }

    /// Returns the numbers of handshakes that have failed, by cause.
    pub fn failure_counts(&self) -> impl Iterator<Item = (Cause, u64)> {
        self.failures.totals_by_kind(&Cause::ALL)
    }

    /// A connection with a client that has just connected.
    pub fn accept_socket(self: &Arc<Self>, socket: TcpStream) -> Connection {
        match &*self.server.load() {
            None => Connection::Plain(socket),
            Some(server) => Connection::Greeting {
                handshake: Box::new(ServerHandshake::new(socket, server)),
                limit: server.handshake_timeout,
                listener: Arc::clone(self),
            },
        }
    }
}

/// A connection, with TLS or without. The handshake takes place with the first read or write.
#[derive(Debug)]
pub enum Connection {
    /// Connection without TLS.
    Plain(TcpStream),
    /// Connection whose handshake is not over.
    Greeting {
        /// State of the handshake.
        handshake: Box<ServerHandshake>,
        /// Time limit of the handshake.
        limit: Duration,
        /// Listener that counts a failure of the handshake.
        listener: Arc<Listener>,
    },
    /// Connection with TLS.
    Tls(Box<Stream>),
    /// Connection whose handshake has failed.
    Over,
}

/// Transport that reads and writes.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl Connection {
    /// Time limit of the handshake, while it is not over.
    pub fn handshake_limit(&self) -> Option<Duration> {
        match self {
            Connection::Greeting { limit, .. } => Some(*limit),
            _ => None,
        }
    }

    fn poll_greeted(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Duplex>>> {
        if let Connection::Greeting {
            handshake,
            listener,
            ..
        } = self
        {
            match ready!(Pin::new(handshake).poll(cx)) {
                Ok((stream, _)) => *self = Connection::Tls(stream),
                Err(failure) => {
                    listener.failures.count_at(failure.cause as usize);
                    let error = io::Error::new(io::ErrorKind::InvalidData, failure.to_string());
                    *self = Connection::Over;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(match self {
            Connection::Plain(socket) => Ok(Pin::new(socket)),
            Connection::Tls(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_greeted(cx))?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.get_mut().poll_greeted(cx))?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.get_mut().poll_greeted(cx))?.poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_greeted(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_greeted(cx))?.poll_shutdown(cx)
    }
}
