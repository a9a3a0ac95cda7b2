//! Messages of a handshake, of a client's and of a server's, over a socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::Error;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes that are read at once: what follows a handshake is for the connection.
const READ_BYTES: usize = 4096;

/// Most bytes that are taken from somebody who gets no connection.
const MAX_DRAINED: usize = 256 * 1024;

/// Next step of a side of the handshake.
pub(crate) enum Next {
    /// Process the messages again.
    Again,
    /// Send the bytes that were encoded.
    Send,
    /// Read more bytes.
    Read,
    /// Bytes of the connection may flow.
    Done,
    /// The peer has ended the connection.
    Closed,
}

/// Bytes of messages that have arrived, and bytes to be sent.
#[derive(Debug)]
pub(crate) struct Messages {
    /// Socket; `None` when the handshake is over.
    pub(crate) socket: Option<TcpStream>,
    /// Bytes that arrived and were not understood yet.
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    written: usize,
    /// Bytes of the connection that came with the handshake.
    pub(crate) early: Vec<u8>,
}

impl Messages {
    pub(crate) fn over_socket(socket: TcpStream) -> Self {
        Messages {
            socket: Some(socket),
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            early: Vec::new(),
        }
    }

    /// Has rustls understand what has arrived, if it `reads`, and does what that asks for.
    pub(crate) fn process_input<'c, D: 'c>(
        &mut self,
        reads: bool,
        process: impl for<'i> FnOnce(&'i mut [u8]) -> UnbufferedStatus<'c, 'i, D>,
    ) -> Result<Next, Error> {
        let input = if reads { &mut self.input[..] } else { &mut [] };
        let (discard, next) = apply_status(process(input), &mut self.output, &mut self.early);
        self.input.drain(..discard.min(self.input.len()));
        next
    }

    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(socket) = &mut self.socket else {
            return Poll::Ready(Ok(()));
        };
        while let Some(rest @ [_, ..]) = self.output.get(self.written..) {
            match ready!(Pin::new(&mut *socket).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.written += n,
            }
        }
        self.output.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(socket) = &mut self.socket else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let mut bytes = [0; READ_BYTES];
        let mut space = ReadBuf::new(&mut bytes);
        ready!(Pin::new(socket).poll_read(cx, &mut space))?;
        match space.filled() {
            [] => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            read => {
                self.input.extend_from_slice(read);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Takes what has arrived meanwhile.
    pub(crate) fn drain_socket(&self) {
        if let Some(socket) = &self.socket {
            drain_received(&SockRef::from(socket));
        }
    }
}

/// Takes what has arrived meanwhile: it would make closing the connection a reset, with which what
/// was sent last could be lost.
pub(crate) fn drain_received(mut socket: &Socket) {
    let mut bytes = [0; READ_BYTES];
    for _ in 0..MAX_DRAINED / READ_BYTES {
        if !matches!(io::Read::read(&mut socket, &mut bytes), Ok(1..)) {
            break;
        }
    }
}

/// Does what `status` asks for. Returns the number of bytes of the input that are done with.
fn apply_status<D>(
    status: UnbufferedStatus<'_, '_, D>,
    output: &mut Vec<u8>,
    early: &mut Vec<u8>,
) -> (usize, Result<Next, Error>) {
    let mut discard = status.discard;
    let next = match status.state {
        Err(error) => Err(error),
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let start = output.len();
            let needed = match data.encode(&mut []) {
                Err(EncodeError::InsufficientSize(size)) => size.required_size,
                _ => 0,
            };
            output.resize(start + needed, 0);
            let place = output.get_mut(start..).unwrap_or_default();
            let encoded = data.encode(place).unwrap_or_default();
            output.truncate(start + encoded);
            Ok(Next::Again)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Next::Send)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Next::Read),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Next::Done),
        Ok(ConnectionState::ReadTraffic(mut data)) => {
            while let Some(Ok(record)) = data.next_record() {
                early.extend_from_slice(record.payload);
                discard += record.discard;
            }
            Ok(Next::Again)
        }
        Ok(_) => Ok(Next::Closed),
    };
    (discard, next)
}
