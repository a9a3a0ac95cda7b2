//! Carriers of the bytes of a connection: a plain socket, or a transport over it such as TLS.

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Transport that carries bytes over a socket.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// The scheme of URIs of HTTP over it.
    fn uri_scheme(&self) -> &'static str;

    /// The socket below, for its addresses and options; `None` if it is not this connection's
    /// alone.
    fn socket(&self) -> Option<SockRef<'_>>;

    /// Returns the socket below, watched by the runtime from now on, for tasks that wait for it;
    /// `None` if the socket is not this connection's alone.
    fn watched(&mut self) -> Option<&TcpStream>;
}
