//! Connections: few, and none for ever.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// What is taken of a peer that still sends when the connection has ended on this side.
const LINGER_BYTES: usize = 512 * 1024;
const LINGER_TIME: Duration = Duration::from_secs(1);

/// A listener that keeps its connections few and their waits short.
#[derive(Debug)]
pub struct Bounded {
    listener: TcpListener,
    /// Whose it is, for the log.
    name: &'static str,
    room: Arc<Semaphore>,
    patience: Duration,
}

impl Bounded {
    /// A listener of whoever `name` is. At most `connections` live at once; further ones
    /// wait in the listen queue. A connection ends when `patience` has passed since its
    /// start, or since the last byte of an answer, without another answer.
    pub fn new(
        listener: TcpListener,
        name: &'static str,
        connections: usize,
        patience: Duration,
    ) -> Self {
        Bounded {
            listener,
            name,
            room: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            patience,
        }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection, when there is room for it.
    pub async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed, so an error cannot happen; waiting for the
            // next turn would be right all the same.
            let Ok(permit) = Arc::clone(&self.room).acquire_owned().await else {
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // Answers are written in one piece; the option only spares the last
                    // segment a wait, and without it all works, too.
                    let _ = stream.set_nodelay(true);
                    return (Connection::new(stream, permit, self.patience), peer);
                }
                Err(error) => {
                    // Most likely out of file descriptors: trying again at once would
                    // only burn a core.
                    let name = self.name;
                    tracing::warn!(%error, "{name}: accept failed, trying again in a second");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

/// A connection that breaks when its peer takes too long to ask or to read.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
    /// Bytes that are still taken after the end of the sending side.
    linger: Option<usize>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit, patience: Duration) -> Self {
        Connection {
            stream,
            patience,
            deadline: Box::pin(tokio::time::sleep(patience)),
            linger: None,
            _permit: permit,
        }
    }

    /// What to answer instead of `Pending`.
    fn out_of_patience<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Only an answer wins time: a peer that sends a byte now and then does not.
    fn wrote(&mut self, result: io::Result<usize>) -> Poll<io::Result<usize>> {
        if result.as_ref().is_ok_and(|&bytes| bytes > 0) {
            let deadline = Instant::now() + self.patience;
            self.deadline.as_mut().reset(deadline);
        }
        Poll::Ready(result)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => self.out_of_patience(context),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(result) => self.wrote(result),
            Poll::Pending => self.out_of_patience(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, slices) {
            Poll::Ready(result) => self.wrote(result),
            Poll::Pending => self.out_of_patience(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Ends the sending side, and takes what the peer still sends. Bytes that nobody takes
    /// would make the system reset the connection, and the peer could lose the answer
    /// (RFC 9112, section 9.6).
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            match Pin::new(&mut self.stream).poll_shutdown(context) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
            self.linger = Some(LINGER_BYTES);
            self.deadline.as_mut().reset(Instant::now() + LINGER_TIME);
        }
        let mut part = [0; 4096];
        while let Some(left) = self.linger.filter(|&left| left > 0) {
            let mut buffer = ReadBuf::new(&mut part);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => break,
                Poll::Ready(Ok(())) => {
                    self.linger = Some(left.saturating_sub(buffer.filled().len()));
                }
                Poll::Ready(Err(_)) => break,
                Poll::Pending => return self.deadline.as_mut().poll(context).map(Ok),
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// The clock is paused: it jumps to the next timer whenever nothing else is to do,
    /// even between a packet's departure and its arrival. Hence `readable` and
    /// `writable`, which have no deadline, before anything that has one.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_trickles_is_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = Bounded::new(listener, "test", 10, Duration::from_secs(90));
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut server, _) = bounded.accept().await;

        client.write_all(b"G").await.unwrap();
        server.stream.readable().await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'G');
        let error = server.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        // An answer wins time, so that a kept connection lives from answer to answer.
        server.stream.writable().await.unwrap();
        server.write_all(b"ok").await.unwrap();
        client.write_all(b"G").await.unwrap();
        server.stream.readable().await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'G');
    }

    #[tokio::test]
    async fn the_next_connection_waits_for_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = Bounded::new(listener, "test", 1, Duration::from_secs(90));
        let _first_client = TcpStream::connect(address).await.unwrap();
        let _second_client = TcpStream::connect(address).await.unwrap();
        let (first, _) = bounded.accept().await;
        assert_eq!(bounded.room.available_permits(), 0);
        drop(first);
        bounded.accept().await;
    }
}
