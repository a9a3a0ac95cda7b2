//! Connections as the flows see them: a connection of its own, or a stream of a connection of
//! HTTP/2, which carries messages as HTTP/1 frames them.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_http2::{Fields, Head};
use evenkeel_limits::Shortage;
use evenkeel_tls::handshake::HandshakeParameters;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::connection::PeerConnection;
use crate::http1::chunked::ChunkError;
use crate::http2::call::Call;
use crate::http2::stream::Stream;

/// Transport in place of a client whom no response is for.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Nobody {
    fn uri_scheme(&self) -> &'static str {
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
    /// A connection of its own.
    Connection(PeerConnection),
    /// A stream of HTTP/2, which carries the body of a message as HTTP/1 frames it.
    Stream(Box<Stream>),
    /// A stream of HTTP/2 to a member, which carries the body of a message as HTTP/1 frames it, and
    /// the heads as HTTP/1 writes them.
    Call(Box<Call>),
    /// Nobody: nothing comes from there, and what goes there is gone.
    Nobody(Nobody),
}

/// Does the same with whichever transport it is: no table of functions, nothing boxed.
macro_rules! on_transport {
    ($io:expr, $transport:ident => $call:expr) => {
        match $io {
            Io::Connection($transport) => $call,
            Io::Stream($transport) => $call,
            Io::Call($transport) => $call,
            Io::Nobody($transport) => $call,
        }
    };
}

impl Io {
    /// The socket below, for its addresses and options; `None` if it is not this connection's
    /// alone.
    #[inline]
    pub(crate) fn socket(&self) -> Option<SockRef<'_>> {
        match self {
            Io::Connection(connection) => connection.socket(),
            Io::Stream(_) | Io::Call(_) | Io::Nobody(_) => None,
        }
    }

    /// Returns the socket below, watched by the runtime from now on, for tasks that wait for it;
    /// `None` if the socket is not this connection's alone.
    pub(crate) fn watch_socket(&mut self) -> Option<&TcpStream> {
        match self {
            Io::Connection(connection) => connection.watch_socket(),
            Io::Stream(_) | Io::Call(_) | Io::Nobody(_) => None,
        }
    }

    /// The socket alone; `None` if there is more to the connection, or it cannot be watched.
    pub(crate) fn into_socket(self) -> Option<TcpStream> {
        match self {
            Io::Connection(connection) => connection.into_socket(),
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
            Io::Connection(connection) => connection.spliceable_socket(),
            Io::Stream(_) | Io::Call(_) | Io::Nobody(_) => None,
        }
    }

    /// True if there is a socket that may be spliced; a socket that nobody watches yet is watched
    /// from now on.
    pub(crate) fn prepare_splice(&mut self) -> bool {
        match self {
            Io::Connection(connection) => connection.prepare_splice(),
            _ => false,
        }
    }

    /// Returns the parameters agreed on with the other side, if it speaks TLS.
    #[inline]
    pub(crate) fn agreed_parameters(&self) -> Option<&Arc<HandshakeParameters>> {
        match self {
            Io::Connection(connection) => connection.agreed_parameters(),
            Io::Stream(stream) => stream.agreed_parameters(),
            Io::Call(_) | Io::Nobody(_) => None,
        }
    }

    /// True if the member has refused the connection after the handshake of TLS, and so has
    /// processed nothing.
    pub(crate) fn is_refused(&self) -> bool {
        match self {
            Io::Connection(connection) => connection
                .refused_flag()
                .is_some_and(|refused| refused.get()),
            Io::Call(call) => call.is_of_refused(),
            Io::Stream(_) | Io::Nobody(_) => false,
        }
    }

    /// Makes the peer see a reset instead of an orderly end when the connection is dropped: what
    /// was cut must never look complete.
    pub(crate) fn reset_on_drop(&self) {
        match self {
            Io::Connection(connection) => connection.reset_on_drop(),
            Io::Stream(stream) => stream.mark_cut(),
            Io::Call(call) => call.mark_cut(),
            Io::Nobody(_) => {}
        }
    }

    /// Takes the trailers of a body of HTTP/2 that has ended.
    pub(crate) fn take_trailers(&self) -> Option<Head> {
        match self {
            Io::Stream(stream) => stream.take_trailers(),
            Io::Call(call) => call.take_trailers(),
            Io::Connection(_) | Io::Nobody(_) => None,
        }
    }

    /// Gives trailers back to where they were taken.
    pub(crate) fn give_trailers(&self, trailers: Head) {
        match self {
            Io::Stream(stream) => stream.give_trailers(trailers),
            Io::Call(call) => call.give_trailers(trailers),
            Io::Connection(_) | Io::Nobody(_) => {}
        }
    }

    /// Ends a message with a body of [`Body::Stream`](crate::message::Body::Stream).
    pub(crate) fn finish_body(&mut self, trailers: &Fields) -> io::Result<()> {
        match self {
            Io::Stream(stream) => stream.finish_body(trailers),
            Io::Call(call) => call.finish_body(trailers),
            Io::Connection(_) | Io::Nobody(_) => Ok(()),
        }
    }

    /// True if neither a byte nor the end has arrived on a connection of its own, as far as the
    /// kernel knows ([`PeerConnection::is_silent`]).
    pub(crate) fn is_silent(&mut self) -> bool {
        match self {
            Io::Connection(connection) => connection.is_silent(),
            Io::Stream(_) | Io::Call(_) | Io::Nobody(_) => false,
        }
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
}

impl From<PeerConnection> for Io {
    fn from(connection: PeerConnection) -> Self {
        Io::Connection(connection)
    }
}

impl From<TcpStream> for Io {
    fn from(socket: TcpStream) -> Self {
        Io::Connection(socket.into())
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
mod tests;
