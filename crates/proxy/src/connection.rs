//! Connections of their own to a client or a member: plain TCP, whose bytes may be spliced, or a
//! transport that changes bytes on their way, as TLS does, whose bytes are copied.
//!
//! A transport is a type in a file of its own that reads and writes like a socket and knows the
//! one below ([`Transport`]), with a variant of [`PeerConnection`] and an arm of `on_transport!`.
//! What it holds back it sends when it is flushed: the flows do that before they wait.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_tls::handshake::HandshakeParameters;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::socket::Socket;
use crate::tls::connection::Tls;
use crate::transport::Transport;

/// A connection to a client or a member.
#[derive(Debug)]
pub(crate) enum PeerConnection {
    /// Bytes as they are in the socket.
    Plain(Socket),
    /// Bytes that are encrypted on their way.
    Tls(Box<Tls>),
    /// Stands for a transport in tests. In a box, as any is that holds more than a socket.
    #[cfg(test)]
    Wrapped(Box<tests::Wrapped>),
}

/// Does the same with whichever transport it is: no table of functions, nothing boxed.
macro_rules! on_transport {
    ($connection:expr, $transport:ident => $call:expr) => {
        match $connection {
            PeerConnection::Plain($transport) => $call,
            PeerConnection::Tls($transport) => $call,
            #[cfg(test)]
            PeerConnection::Wrapped($transport) => $call,
        }
    };
}

impl PeerConnection {
    /// The socket below, for its addresses and options.
    #[inline]
    pub(crate) fn socket(&self) -> Option<SockRef<'_>> {
        on_transport!(self, transport => transport.socket())
    }

    /// Returns the socket below, watched by the runtime from now on, for tasks that wait for it.
    pub(crate) fn watch_socket(&mut self) -> Option<&TcpStream> {
        on_transport!(self, transport => transport.watched())
    }

    /// The socket alone; `None` if there is more to the connection, or it cannot be watched.
    pub(crate) fn into_socket(self) -> Option<TcpStream> {
        match self {
            PeerConnection::Plain(socket) => socket.into_watched().ok(),
            _ => None,
        }
    }

    /// The address of this end.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.socket()?.local_addr().ok()?.as_socket()
    }

    /// The scheme of URIs of HTTP over it.
    pub(crate) fn uri_scheme(&self) -> &'static str {
        on_transport!(self, transport => transport.uri_scheme())
    }

    /// The socket, if its bytes are the connection's, so that they may be spliced.
    #[inline]
    pub(crate) fn spliceable_socket(&self) -> Option<&TcpStream> {
        match self {
            PeerConnection::Plain(socket) => socket.watched_stream(),
            PeerConnection::Tls(_) => None,
            #[cfg(test)]
            PeerConnection::Wrapped(_) => None,
        }
    }

    /// True if there is a socket that may be spliced; a socket that nobody watches yet is watched
    /// from now on.
    pub(crate) fn prepare_splice(&mut self) -> bool {
        match self {
            PeerConnection::Plain(socket) => socket.watch_stream().is_ok(),
            _ => false,
        }
    }

    /// Returns the parameters agreed on with the other side, if it speaks TLS.
    #[inline]
    pub(crate) fn agreed_parameters(&self) -> Option<&Arc<HandshakeParameters>> {
        match self {
            PeerConnection::Tls(tls) => Some(tls.agreed_parameters()),
            PeerConnection::Plain(_) => None,
            #[cfg(test)]
            PeerConnection::Wrapped(_) => None,
        }
    }

    /// Returns the flag that is true if the member has refused the connection after the handshake
    /// of TLS, and so has processed nothing.
    pub(crate) fn refused_flag(&self) -> Option<Rc<Cell<bool>>> {
        match self {
            PeerConnection::Tls(tls) => Some(tls.refused_flag()),
            _ => None,
        }
    }

    /// Makes the peer see a reset instead of an orderly end when the connection is dropped: what
    /// was cut must never look complete.
    pub(crate) fn reset_on_drop(&self) {
        if let PeerConnection::Tls(tls) = self {
            tls.mark_cut();
        }
        let socket = self.socket();
        let _ = socket.map(|socket| socket.set_linger(Some(Duration::ZERO)));
    }

    /// True if neither a byte nor the end has arrived, as far as the kernel knows: anything is
    /// wrong on a connection that is idle. This question is one of the seven system calls of a
    /// small request (two each of `epoll_wait`, `recvfrom` and `sendto`, and this one), and cheaper
    /// than to peek.
    ///
    /// There is no answer without a call. What the runtime knows ([`PeerConnection::is_quiet`]) is as old as
    /// its last `epoll_wait`; since then up to 128 tasks have run, and a client that pipelines has
    /// had its next request there already. A response that came meanwhile would be given to that
    /// request.
    pub(crate) fn is_silent(&mut self) -> bool {
        // What is not for us is read first, such as a ticket: it may come at any time.
        if self.spliceable_socket().is_none() && !self.is_quiet() {
            return false;
        }
        let Some(socket) = self.socket() else {
            return false;
        };
        let mut socket = libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN | libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: the call changes only the one entry that it is given.
        unsafe { libc::poll(&raw mut socket, 1, 0) == 0 }
    }

    /// True if neither a byte nor the end has arrived, as far as the runtime knows. Without an
    /// event since the last read this question is no system call. Nobody may wait for the
    /// connection.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        if let Some(socket) = self.spliceable_socket() {
            let nothing = socket.try_read(&mut byte);
            return matches!(nothing, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        }
        if let PeerConnection::Tls(tls) = self {
            return tls.is_idle();
        }
        let mut byte = ReadBuf::new(&mut byte);
        let cx = &mut Context::from_waker(Waker::noop());
        Pin::new(self).poll_read(cx, &mut byte).is_pending()
    }
}

impl From<TcpStream> for PeerConnection {
    fn from(socket: TcpStream) -> Self {
        PeerConnection::Plain(socket.into())
    }
}

impl AsyncRead for PeerConnection {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_transport!(self.get_mut(), transport => Pin::new(transport).poll_read(cx, space))
    }
}

impl AsyncWrite for PeerConnection {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_transport!(self.get_mut(), transport => Pin::new(transport).poll_write(cx, bytes))
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_transport!(self.get_mut(), transport => Pin::new(transport).poll_write_vectored(cx, parts))
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_transport!(self.get_mut(), transport => Pin::new(transport).poll_flush(cx))
    }

    fn is_write_vectored(&self) -> bool {
        on_transport!(self, transport => transport.is_write_vectored())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_transport!(self.get_mut(), transport => Pin::new(transport).poll_shutdown(cx))
    }
}

#[cfg(test)]
pub(crate) mod tests;
