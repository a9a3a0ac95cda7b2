//! Socket connections, which the runtime does not watch before that is needed.
//!
//! A client that connects for one request has mostly sent it when its connection is accepted, and
//! takes the whole response at once. Watching its socket would be two more system calls of about
//! nine, and a turn of the event loop before the request is read.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{SocketFlags, accept_with, acceptfrom_with};
use socket2::SockRef;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::access::Peer;
use crate::transport::Transport;

/// A listener that accepts connections without having them watched.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: AsyncFd<StdListener>,
    /// True if the listener is a Unix socket: its clients have no addresses.
    is_unix: bool,
}

impl Listener {
    /// The listener of a socket that does not block.
    pub(crate) fn new(socket: StdListener, is_unix: bool) -> io::Result<Self> {
        // SAFETY: the listener owns its descriptor, and always is the same one.
        let watched = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(Listener {
            socket: watched,
            is_unix,
        })
    }

    /// The next connection, with the client's address.
    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, Peer)>> {
        loop {
            let mut readiness = ready!(self.socket.poll_read_ready(cx))?;
            if let Ok(accepted) = readiness.try_io(|_| self.accept_ready()) {
                return Poll::Ready(accepted);
            }
        }
    }

    /// The socket under a handle of its own.
    pub(crate) fn clone_handle(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.get_ref().try_clone()?.into())
    }

    /// Accepts a connection that is there now, whether or not the runtime knows of it yet.
    pub(crate) fn accept_ready(&self) -> io::Result<(Socket, Peer)> {
        accept_socket(self.socket.get_ref(), self.is_unix)
    }
}

fn accept_socket(socket: &StdListener, is_unix: bool) -> io::Result<(Socket, Peer)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    if is_unix {
        let client = accept_with(socket, flags)?;
        return Ok((Socket::Fresh(StdStream::from(client)), Peer(None)));
    }
    let (client, peer) = acceptfrom_with(socket, flags)?;
    // Linux says none for a connection that was reset before it was accepted.
    let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
    let peer = SocketAddr::try_from(peer).map_err(|_| io::ErrorKind::ConnectionAborted)?;
    Ok((Socket::Fresh(StdStream::from(client)), Peer(Some(peer))))
}

/// A plain connection.
#[derive(Debug)]
pub(crate) enum Socket {
    /// Nothing was read from it yet.
    Fresh(StdStream),
    /// Something was read; it is written to directly until it takes no more.
    Read(StdStream),
    /// Socket that the runtime watches.
    Watched(TcpStream),
    /// Socket that could not be watched.
    Closed,
}

impl Socket {
    /// The connection, watched.
    pub(crate) fn into_watched(mut self) -> io::Result<TcpStream> {
        self.watch_stream()?;
        match self {
            Socket::Watched(socket) => Ok(socket),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Has the runtime watch it from now on, if it does not yet.
    pub(crate) fn watch_stream(&mut self) -> io::Result<&mut TcpStream> {
        if let Socket::Fresh(_) | Socket::Read(_) = self
            && let Socket::Fresh(socket) | Socket::Read(socket) =
                std::mem::replace(self, Socket::Closed)
        {
            *self = Socket::Watched(TcpStream::from_std(socket)?);
        }
        match self {
            Socket::Watched(socket) => Ok(socket),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The connection, if it is watched already.
    #[inline]
    pub(crate) fn watched_stream(&self) -> Option<&TcpStream> {
        match self {
            Socket::Watched(socket) => Some(socket),
            _ => None,
        }
    }

    /// Writes without the runtime, as long as the socket takes something. `None` if it is the
    /// runtime's turn.
    fn write(&self, write: impl Fn(SockRef<'_>) -> io::Result<usize>) -> Option<io::Result<usize>> {
        let (Socket::Fresh(socket) | Socket::Read(socket)) = self else {
            return None;
        };
        match write(SockRef::from(socket)) {
            Err(error) if is_for_later(&error) => None,
            result => Some(result),
        }
    }
}

/// True if the runtime is to try the call again.
fn is_for_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

impl From<TcpStream> for Socket {
    fn from(socket: TcpStream) -> Self {
        Socket::Watched(socket)
    }
}

impl Transport for Socket {
    fn uri_scheme(&self) -> &'static str {
        "http"
    }

    fn socket(&self) -> Option<SockRef<'_>> {
        match self {
            Socket::Fresh(socket) | Socket::Read(socket) => Some(SockRef::from(socket)),
            Socket::Watched(socket) => Some(SockRef::from(socket)),
            Socket::Closed => None,
        }
    }

    fn watched(&mut self) -> Option<&TcpStream> {
        self.watch_stream().ok().map(|socket| &*socket)
    }
}

impl AsyncRead for Socket {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Once only: the runtime sees to it that nobody reads for ever.
        if let Socket::Fresh(socket) = this {
            let read = io::Read::read(socket, space.initialize_unfilled());
            match read {
                Err(error) if is_for_later(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(n) => {
                    space.advance(n);
                    if let Socket::Fresh(socket) = std::mem::replace(this, Socket::Closed) {
                        *this = Socket::Read(socket);
                    }
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Pin::new(this.watch_stream()?).poll_read(cx, space)
    }
}

impl AsyncWrite for Socket {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Not `write(2)`, with which a client that is gone would be a signal.
        match this.write(|socket| socket.send(bytes)) {
            Some(written) => Poll::Ready(written),
            None => Pin::new(this.watch_stream()?).poll_write(cx, bytes),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match this.write(|socket| socket.send_vectored(parts)) {
            Some(written) => Poll::Ready(written),
            None => Pin::new(this.watch_stream()?).poll_write_vectored(cx, parts),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.socket().ok_or(io::ErrorKind::NotConnected)?;
        Poll::Ready(socket.shutdown(std::net::Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::worker::tests::on_worker;

    /// A listener, and a client that has connected to it.
    fn pair() -> (Listener, StdStream) {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let client = StdStream::connect(listener.local_addr().unwrap()).unwrap();
        (Listener::new(listener, false).unwrap(), client)
    }

    #[test]
    fn one_request_and_its_response_need_no_watching() {
        on_worker(async |_| {
            let (listener, mut client) = pair();
            client.write_all(b"ping").unwrap();
            let (mut accepted, peer) = listener.accept_ready().unwrap();
            assert_eq!(peer, Peer(client.local_addr().ok()));
            let mut read = [0; 8];
            assert_eq!(accepted.read(&mut read).await.unwrap(), 4);
            accepted.write_all(b"pong").await.unwrap();
            accepted.shutdown().await.unwrap();
            assert!(accepted.watched_stream().is_none());
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            assert_eq!(got, b"pong");
        });
    }

    #[test]
    fn it_is_watched_when_it_is_waited_for() {
        on_worker(async |_| {
            let (listener, mut client) = pair();
            let poll = std::future::poll_fn(|cx| listener.poll_accept(cx));
            let (mut accepted, _) = poll.await.unwrap();
            let sending = std::thread::spawn(move || {
                client.write_all(b"one").unwrap();
                let mut answer = [0; 3];
                client.read_exact(&mut answer).unwrap();
                client.write_all(b"two").unwrap();
                client
            });
            let mut read = [0; 3];
            accepted.read_exact(&mut read).await.unwrap();
            accepted.write_all(b"one").await.unwrap();
            accepted.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"two");
            assert!(accepted.watched_stream().is_some());
            let mut client = sending.join().unwrap();
            // More than its buffers hold: the rest is written when there is room.
            let receiving = std::thread::spawn(move || {
                let mut got = Vec::new();
                client.read_to_end(&mut got).unwrap();
                got.len()
            });
            accepted.write_all(&vec![7; 20 << 20]).await.unwrap();
            drop(accepted);
            assert_eq!(receiving.join().unwrap(), 20 << 20);
        });
    }

    #[test]
    fn what_does_not_fit_is_written_when_there_is_room() {
        on_worker(async |_| {
            let (listener, mut client) = pair();
            client.write_all(b"x").unwrap();
            let (mut accepted, _) = listener.accept_ready().unwrap();
            accepted.read_exact(&mut [0]).await.unwrap();
            let receiving = std::thread::spawn(move || {
                let mut got = Vec::new();
                client.read_to_end(&mut got).unwrap();
                got.len()
            });
            accepted.write_all(&vec![7; 20 << 20]).await.unwrap();
            assert!(accepted.watched_stream().is_some());
            drop(accepted);
            assert_eq!(receiving.join().unwrap(), 20 << 20);
        });
    }
}
