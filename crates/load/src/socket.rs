//! Connections of the loop: TCP, and TLS over it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::runtime::Runtime;

/// A TCP connection.
pub(crate) struct Socket {
    runtime: Runtime,
    stream: Option<TcpStream>,
    source: usize,
}

impl Socket {
    /// Connects, from an address of this machine if one is given.
    pub(crate) async fn connect(
        runtime: &Runtime,
        to: SocketAddr,
        from: Option<IpAddr>,
    ) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(to),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => {}
            Err(error) => return Err(error),
        }
        let stream = TcpStream::from(socket);
        let source = runtime.watch_socket(&stream)?;
        let socket = Socket {
            runtime: Rc::clone(runtime),
            stream: Some(stream),
            source,
        };
        runtime.wait_until_writable(source).await;
        match socket.tcp()?.take_error()? {
            Some(error) => Err(error),
            None => Ok(socket),
        }
    }

    fn tcp(&self) -> io::Result<&TcpStream> {
        self.stream
            .as_ref()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Returns true if the other side has closed the socket.
    fn has_ended(&self) -> bool {
        self.runtime.has_ended(self.source)
    }

    fn poll_read(&self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut tcp = self.tcp()?;
        let room = buffer.len();
        self.runtime
            .poll_read(self.source, room, || tcp.read(buffer))
    }

    fn poll_write(&self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut tcp = self.tcp()?;
        self.runtime.poll_write(self.source, || tcp.write(bytes))
    }
}

/// `EINPROGRESS` of Linux.
const IN_PROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();

impl Drop for Socket {
    fn drop(&mut self) {
        // Closed first, so that nothing comes for its number any more.
        self.stream = None;
        self.runtime.forget_socket(self.source);
    }
}

/// Reads and writes of rustls: never waits, the loop tells when there is more.
struct Now<'a>(&'a Socket);

fn now(poll: Poll<io::Result<usize>>) -> io::Result<usize> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for Now<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        now(self.0.poll_read(buffer))
    }
}

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        now(self.0.poll_write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection, in plain or with TLS.
pub(crate) enum Stream {
    /// A stream in plain.
    Plain(Socket),
    /// A stream with TLS.
    Tls(Box<(Socket, ClientConnection)>),
}

impl Stream {
    /// Does a handshake of TLS, and asks for a protocol (ALPN).
    pub(crate) async fn secure(
        socket: Socket,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
        protocol: &[u8],
    ) -> io::Result<Self> {
        let protocols = vec![protocol.to_vec()];
        let connection = ClientConnection::new_with_alpn(Arc::clone(config), name, protocols);
        let connection = connection.map_err(io::Error::other)?;
        let mut both = Box::new((socket, connection));
        std::future::poll_fn(|_| {
            let (socket, connection) = &mut *both;
            while connection.is_handshaking() {
                ready!(flush(socket, connection))?;
                if connection.is_handshaking() && ready!(more(socket, connection))? == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            flush(socket, connection)
        })
        .await?;
        Ok(Stream::Tls(both))
    }

    /// The protocol that was agreed on by ALPN.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(both) => both.1.alpn_protocol(),
        }
    }

    /// Returns true if the other side has closed the stream.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Stream::Plain(socket) => socket.has_ended(),
            Stream::Tls(both) => both.0.has_ended(),
        }
    }

    /// Reads; 0 bytes are the end.
    pub(crate) fn poll_receive(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(socket) => socket.poll_read(buffer),
            Stream::Tls(both) => {
                let (socket, connection) = &mut **both;
                loop {
                    match connection.reader().read(buffer) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        // An end without a word of farewell is one all the same.
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                            return Poll::Ready(Ok(0));
                        }
                        result => return Poll::Ready(result),
                    }
                    ready!(more(socket, connection))?;
                    // What TLS has to say for itself, such as an answer to an update of keys.
                    let _ = flush(socket, connection)?;
                }
            }
        }
    }

    /// Writes some bytes.
    pub(crate) fn poll_send(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(socket) => socket.poll_write(bytes),
            Stream::Tls(both) => {
                let (socket, connection) = &mut **both;
                ready!(flush(socket, connection))?;
                let count = connection.writer().write(bytes)?;
                // What cannot be sent now is sent before the next bytes, or with a flush.
                let _ = flush(socket, connection)?;
                Poll::Ready(Ok(count))
            }
        }
    }

    fn poll_flushed(&mut self) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(both) => {
                let (socket, connection) = &mut **both;
                flush(socket, connection)
            }
        }
    }

    /// Sends all of it.
    pub(crate) async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        std::future::poll_fn(|_| {
            while !bytes.is_empty() {
                let count = ready!(self.poll_send(bytes))?;
                bytes = bytes.get(count..).unwrap_or_default();
            }
            self.poll_flushed()
        })
        .await
    }
}

fn flush(socket: &Socket, connection: &mut ClientConnection) -> Poll<io::Result<()>> {
    while connection.wants_write() {
        match connection.write_tls(&mut Now(socket)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
    Poll::Ready(Ok(()))
}

/// Takes what has come; 0 bytes are the end.
fn more(socket: &Socket, connection: &mut ClientConnection) -> Poll<io::Result<usize>> {
    match connection.read_tls(&mut Now(socket)) {
        Ok(count) => {
            if let Err(error) = connection.process_new_packets() {
                // The other side is told what is wrong, if it still listens.
                let _ = flush(socket, connection);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
            Poll::Ready(Ok(count))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        Err(error) => Poll::Ready(Err(error)),
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = ready!(self.get_mut().poll_receive(buffer.initialize_unfilled()))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flushed()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Closing it is enough.
        Poll::Ready(Ok(()))
    }
}
