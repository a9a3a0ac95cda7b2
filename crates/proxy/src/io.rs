//! Connections as the flows see them: plain TCP, whose bytes may be spliced, or a transport that
//! changes bytes on their way, as TLS does, whose bytes are copied.
//!
//! A transport is a type in a file of its own that reads and writes like a socket and knows the
//! one below ([`Transport`]), with a variant of [`Io`] and an arm of `on_transport!`. What it
//! holds back it sends when it is flushed: the flows do that before they wait.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_limits::Shortage;
use evenkeel_tls::handshake::HandshakeParameters;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::http1::chunked::ChunkError;
use crate::http2::{Call, Stream};
use crate::socket::Socket;
use crate::tls::Tls;
use crate::transport::Transport;

/// Transport in place of a client whom no response is for.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Nobody {
    fn scheme(&self) -> &'static str {
        "http"
    }
}

impl AsyncRead for Nobody {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Nobody {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A connection to a client or a member.
#[derive(Debug)]
pub(crate) enum Io {
    /// Bytes as they are in the socket.
    Plain(Socket),
    /// A stream of HTTP/2, which carries the body of a message as HTTP/1 frames it.
    Stream(Box<Stream>),
    /// A stream of HTTP/2 to a member, which carries the body of a message as HTTP/1 frames it, and
    /// the heads as HTTP/1 writes them.
    Call(Box<Call>),
    /// Bytes that are encrypted on their way.
    Tls(Box<Tls>),
    /// Nobody: nothing comes from there, and what goes there is gone.
    Nobody(Nobody),
    /// Stands for a transport in tests. In a box, as any is that holds more than a socket.
    #[cfg(test)]
    Wrapped(Box<tests::Wrapped>),
}

/// Does the same with whichever transport it is: no table of functions, nothing boxed.
macro_rules! on_transport {
    ($io:expr, $transport:ident => $call:expr) => {
        match $io {
            Io::Plain($transport) => $call,
            Io::Stream($transport) => $call,
            Io::Call($transport) => $call,
            Io::Tls($transport) => $call,
            Io::Nobody($transport) => $call,
            #[cfg(test)]
            Io::Wrapped($transport) => $call,
        }
    };
}

impl Io {
    /// The socket below, for its addresses and options; `None` if it is not this connection's
    /// alone.
    #[inline]
    pub(crate) fn socket(&self) -> Option<SockRef<'_>> {
        match self {
            Io::Plain(transport) => transport.socket(),
            Io::Stream(_) | Io::Call(_) | Io::Nobody(_) => None,
            Io::Tls(transport) => transport.socket(),
            #[cfg(test)]
            Io::Wrapped(transport) => transport.socket(),
        }
    }

    /// Returns the socket below, watched by the runtime from now on, for tasks that wait for it;
    /// `None` if the socket is not this connection's alone.
    pub(crate) fn watch_socket(&mut self) -> Option<&TcpStream> {
        match self {
            Io::Plain(transport) => transport.watched(),
            Io::Stream(_) | Io::Call(_) | Io::Nobody(_) => None,
            Io::Tls(transport) => transport.watched(),
            #[cfg(test)]
            Io::Wrapped(transport) => transport.watched(),
        }
    }

    /// The socket alone; `None` if there is more to the connection, or it cannot be watched.
    pub(crate) fn into_socket(self) -> Option<TcpStream> {
        match self {
            Io::Plain(socket) => socket.into_watched().ok(),
            _ => None,
        }
    }

    /// The address of this end.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.socket()?.local_addr().ok()?.as_socket()
    }

    /// The scheme of URIs of HTTP over it.
    pub(crate) fn scheme(&self) -> &'static str {
        on_transport!(self, transport => transport.scheme())
    }

    /// The socket, if its bytes are the connection's, so that they may be spliced.
    #[inline]
    pub(crate) fn spliceable_socket(&self) -> Option<&TcpStream> {
        match self {
            Io::Plain(socket) => socket.watched_stream(),
            Io::Stream(_) | Io::Call(_) | Io::Tls(_) | Io::Nobody(_) => None,
            #[cfg(test)]
            Io::Wrapped(_) => None,
        }
    }

    /// True if there is a socket that may be spliced; a socket that nobody watches yet is watched
    /// from now on.
    pub(crate) fn prepare_splice(&mut self) -> bool {
        match self {
            Io::Plain(socket) => socket.watch_stream().is_ok(),
            _ => false,
        }
    }

    /// Returns the parameters agreed on with the other side, if it speaks TLS.
    #[inline]
    pub(crate) fn agreed_parameters(&self) -> Option<&Arc<HandshakeParameters>> {
        match self {
            Io::Tls(tls) => Some(tls.agreed_parameters()),
            Io::Stream(stream) => stream.agreed_parameters(),
            Io::Plain(_) | Io::Call(_) | Io::Nobody(_) => None,
            #[cfg(test)]
            Io::Wrapped(_) => None,
        }
    }

    /// True if the member has refused the connection after the handshake of TLS, and so has
    /// processed nothing.
    pub(crate) fn is_refused(&self) -> bool {
        match self {
            Io::Tls(tls) => tls.refused_flag().get(),
            Io::Call(call) => call.is_of_refused(),
            Io::Plain(_) | Io::Stream(_) | Io::Nobody(_) => false,
            #[cfg(test)]
            Io::Wrapped(_) => false,
        }
    }

    /// Makes the peer see a reset instead of an orderly end when the connection is dropped: what
    /// was cut must never look complete.
    pub(crate) fn reset_on_drop(&self) {
        match self {
            Io::Stream(stream) => return stream.mark_cut(),
            Io::Call(call) => return call.mark_cut(),
            Io::Tls(tls) => tls.mark_cut(),
            _ => {}
        }
        let socket = self.socket();
        let _ = socket.map(|socket| socket.set_linger(Some(Duration::ZERO)));
    }

    /// Acknowledges to the peer at once all that has arrived, and all that is read until this end sends again.
    ///
    /// A peer with Nagle's algorithm that has written the head of a message sends the body only when
    /// the head is acknowledged. On a connection that is used again and again the kernel delays that by
    /// 40 ms, to send it along with data that does not come.
    #[inline]
    pub(crate) fn acknowledge_now(&self) {
        if let Some(socket) = self.socket() {
            // Without it, and on Unix sockets, which have no acknowledgements, the message comes later.
            let _ = socket.set_tcp_quickack(true);
        }
    }

    /// True if the connection is broken, as far as that shows before the bytes that it sent are
    /// read.
    pub(crate) fn is_reset(&mut self, cx: &mut Context<'_>) -> bool {
        if let Io::Stream(stream) = self {
            return stream.is_reset(cx);
        }
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let peeked = self
            .watch_socket()
            .map(|socket| socket.poll_peek(cx, &mut byte));
        matches!(peeked, Some(Poll::Ready(Err(_))))
    }

    /// True if the kernel has noted that the connection is broken.
    pub(crate) fn has_failed(&self) -> bool {
        let error = self.socket().map(|socket| socket.take_error());
        !matches!(error, None | Some(Ok(None)))
    }

    /// True if the other side has closed its end (FIN), or the connection is broken, whatever was sent before that.
    /// One system call.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(socket) = self.socket() else {
            return false;
        };
        let mut socket = libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: the call changes only the one entry that it is given.
        unsafe { libc::poll(&raw mut socket, 1, 0) > 0 }
    }

    /// True if neither a byte nor the end has arrived, as far as the kernel knows: anything is
    /// wrong on a connection that is idle. This question is one of the seven system calls of a
    /// small request (two each of `epoll_wait`, `recvfrom` and `sendto`, and this one), and cheaper
    /// than to peek.
    ///
    /// There is no answer without a call. What the runtime knows ([`Io::is_quiet`]) is as old as
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
        if let Io::Tls(tls) = self {
            return tls.is_idle();
        }
        let mut byte = ReadBuf::new(&mut byte);
        let cx = &mut Context::from_waker(Waker::noop());
        Pin::new(self).poll_read(cx, &mut byte).is_pending()
    }
}

impl From<TcpStream> for Io {
    fn from(socket: TcpStream) -> Self {
        Io::Plain(socket.into())
    }
}

impl AsyncRead for Io {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_transport!(self.get_mut(), transport => Pin::new(transport).poll_read(cx, space))
    }
}

impl AsyncWrite for Io {
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

/// Reason why bytes did not get from one connection to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferError {
    /// The sender failed, or ended before it should have.
    From,
    /// The receiver takes no more.
    To,
    /// The sender's chunks are not valid.
    Chunks(ChunkError),
    /// Something has run out here: neither the sender's fault nor the receiver's.
    Exhausted(Shortage),
}

impl TransferError {
    /// `side`, unless `error` says that something has run out here.
    pub(crate) fn of_error(error: &io::Error, side: TransferError) -> Self {
        Shortage::of_error(error).map_or(side, TransferError::Exhausted)
    }
}

#[cfg(test)]
pub(crate) mod tests;
