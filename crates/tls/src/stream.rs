//! A connection after its handshake: records over a socket.
//!
//! An idle one holds two keys and no buffer. What is read is decrypted from a buffer of the thread
//! straight into that of the caller; what is written goes encrypted through another one of the
//! thread, and only what the socket does not take at once is kept.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::record::{
    self, BadSecrets, Kind, MAX_PLAIN, MAX_RECORD, Opener, Parts, Sealer, Violation,
};

/// Records that are read or written at once.
const RECORDS: usize = 5;

/// Slices of bytes that are written at once.
const MAX_SLICES: usize = 4;

/// Records in a row that carry nothing, or ask for new keys. A message in several records is one.
const MAX_IDLE_RECORDS: u32 = 32;

/// Longest message after a handshake, in bytes: a ticket may have the client's certificates in it.
const MAX_MESSAGE: usize = 64 * 1024;

/// Bytes before the content of a message: its kind and its length.
const MESSAGE_HEAD: usize = 4;

thread_local! {
    /// Buffer for bytes that are read. Nobody holds it over a wait.
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Buffer for bytes that are written.
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Connection of rustls, which makes new keys when a side asks for them.
pub(crate) enum Kernel {
    /// We are the server.
    Server(KernelConnection<ServerConnectionData>),
    /// We are the client.
    Client(KernelConnection<ClientConnectionData>),
}

impl Kernel {
    fn next_tx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match self {
            Kernel::Server(kernel) => kernel.update_tx_secret(),
            Kernel::Client(kernel) => kernel.update_tx_secret(),
        }
    }

    fn next_rx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match self {
            Kernel::Server(kernel) => kernel.update_rx_secret(),
            Kernel::Client(kernel) => kernel.update_rx_secret(),
        }
    }
}

/// A connection whose bytes are encrypted.
pub struct Stream {
    socket: TcpStream,
    sealer: Sealer,
    opener: Opener,
    /// Connection of rustls for new keys, with TLS 1.3 only.
    kernel: Option<Box<Kernel>>,
    /// Bytes that have arrived and are not decrypted.
    input: Vec<u8>,
    /// Bytes that are decrypted and did not fit into the caller's buffer.
    plain: Vec<u8>,
    plain_from: usize,
    /// The beginning of a message whose other parts are in the next records.
    message: Vec<u8>,
    /// Bytes that are encrypted and were not taken by the socket.
    output: Vec<u8>,
    output_from: usize,
    /// True if an answer to a message is in `output`. One answer is enough, however often the other
    /// side asks.
    answer_waits: bool,
    /// Records without content since the last one with some.
    idle_records: u32,
    /// True if the other side has said that nothing more comes.
    ended: bool,
    /// True if this side has said that nothing more comes.
    closed: bool,
    /// Nothing more is said: the connection is broken, or must look so.
    cut: Cell<bool>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// Messages after a handshake.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
const NO_RENEGOTIATION: u8 = 100;

impl Stream {
    pub(crate) fn new(
        socket: TcpStream,
        secrets: ExtractedSecrets,
        kernel: Option<Box<Kernel>>,
        input: Vec<u8>,
        plain: Vec<u8>,
    ) -> Result<Self, BadSecrets> {
        let is_tls13 = kernel.is_some();
        Ok(Stream {
            socket,
            sealer: Sealer::new(secrets.tx, is_tls13)?,
            opener: Opener::new(secrets.rx, is_tls13)?,
            kernel,
            input,
            plain,
            plain_from: 0,
            message: Vec::new(),
            output: Vec::new(),
            output_from: 0,
            answer_waits: false,
            idle_records: 0,
            ended: false,
            closed: false,
            cut: Cell::new(false),
        })
    }

    /// The socket below.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Bytes that it holds because somebody does not take them.
    pub fn held_bytes(&self) -> usize {
        let buffers = [&self.input, &self.plain, &self.message, &self.output];
        buffers.iter().map(|buffer| buffer.capacity()).sum()
    }

    /// From now on the other side is told nothing, not even that this is the end: what is cut must
    /// not look complete.
    pub fn suppress_close(&self) {
        self.cut.set(true);
    }

    /// Gives the caller what is decrypted.
    fn take_plain(&mut self, space: &mut ReadBuf<'_>) -> bool {
        let rest = self.plain.get(self.plain_from..).unwrap_or_default();
        if rest.is_empty() {
            return false;
        }
        let n = rest.len().min(space.remaining());
        space.put_slice(rest.get(..n).unwrap_or_default());
        self.plain_from += n;
        if self.plain_from >= self.plain.len() {
            self.plain = Vec::new();
            self.plain_from = 0;
        }
        true
    }

    fn read(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
        bytes: &mut Vec<u8>,
    ) -> Poll<io::Result<()>> {
        if space.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if self.take_plain(space) || self.ended {
                return Poll::Ready(Ok(()));
            }
            if self.cut.get() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let whole = record::record_length(&self.input)
                .map_err(|violation| self.break_stream(violation))?;
            let held = self.input.len();
            let mut filled = held;
            if whole.is_none_or(|length| length > held) {
                // No more than the caller has room for, so that little is left over.
                let content = space.remaining().min(RECORDS * MAX_PLAIN);
                let around = (content / MAX_PLAIN + 1) * (MAX_RECORD - MAX_PLAIN);
                let size = held + content.max(MAX_PLAIN) + around;
                if bytes.len() < size {
                    bytes.resize(size, 0);
                }
                let room = bytes.get_mut(held..size).unwrap_or_default();
                let mut room = ReadBuf::new(room);
                ready!(Pin::new(&mut self.socket).poll_read(cx, &mut room))?;
                match room.filled().len() {
                    // Without a farewell it may be anybody's end.
                    0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    n => filled += n,
                }
            } else if bytes.len() < held {
                bytes.resize(held, 0);
            }
            let (front, back) = bytes.split_at_mut_checked(held).unwrap_or_default();
            if front.len() == held {
                front.copy_from_slice(&self.input);
            }
            let _ = back;
            let arrived = bytes.get(..filled).unwrap_or_default();
            let opened = self.open_all(arrived, space);
            let done = opened.map_err(|violation| self.break_stream(violation))?;
            let rest = arrived.get(done..).unwrap_or_default();
            if rest.is_empty() {
                self.input = Vec::new();
            } else {
                self.input.clear();
                self.input.extend_from_slice(rest);
            }
            if !self.output.is_empty() {
                // An answer to what arrived, such as new keys. Whoever writes next waits for it.
                let _ = self.poll_output(cx)?;
            }
            if !space.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Opens whole records as far as there is room for them. Returns the number of bytes that are
    /// done with.
    fn open_all(&mut self, arrived: &[u8], space: &mut ReadBuf<'_>) -> Result<usize, Violation> {
        let mut done = 0;
        while !self.ended {
            let rest = arrived.get(done..).unwrap_or_default();
            let Some(length) = record::record_length(rest)?.filter(|length| *length <= rest.len())
            else {
                break;
            };
            let one = rest.get(..length).unwrap_or_default();
            let room = self.opener.plain_room(one);
            if room <= space.remaining() {
                let place = space.initialize_unfilled_to(room);
                let (kind, n) = self.opener.open_record(one, place)?;
                match kind {
                    Kind::Data => {
                        self.take_data(n)?;
                        space.advance(n);
                    }
                    other => {
                        let message = place.get(..n).unwrap_or_default();
                        // Short, and seldom.
                        let message = message.to_vec();
                        self.handle_record(other, &message)?;
                    }
                }
            } else if space.filled().is_empty() {
                let mut place = vec![0; room];
                let (kind, n) = self.opener.open_record(one, &mut place)?;
                place.truncate(n);
                if kind == Kind::Data {
                    self.take_data(n)?;
                    (self.plain, self.plain_from) = (place, 0);
                    return Ok(done + length);
                }
                self.handle_record(kind, &place)?;
            } else {
                break;
            }
            done += length;
        }
        Ok(done)
    }

    /// Counts a record with `n` bytes of content.
    fn count(&mut self, n: usize) -> Result<(), Violation> {
        self.idle_records = if n == 0 { self.idle_records + 1 } else { 0 };
        match self.idle_records > MAX_IDLE_RECORDS {
            true => Err(Violation::Flood),
            false => Ok(()),
        }
    }

    /// Counts a record with `n` bytes for the caller. None comes between the parts of a message.
    fn take_data(&mut self, n: usize) -> Result<(), Violation> {
        if !self.message.is_empty() {
            return Err(Violation::Unexpected);
        }
        self.count(n)
    }

    /// Takes in a record that is not for the caller.
    fn handle_record(&mut self, kind: Kind, message: &[u8]) -> Result<(), Violation> {
        if !self.message.is_empty() {
            return match kind {
                Kind::Handshake => self.handle_part(message),
                _ => Err(Violation::Unexpected),
            };
        }
        self.count(0)?;
        match (kind, message) {
            (Kind::Alert, [_, CLOSE_NOTIFY]) => {
                self.ended = true;
                Ok(())
            }
            (Kind::Alert, [_, USER_CANCELED]) => Ok(()),
            (Kind::Alert, [1, _]) if self.kernel.is_none() => Ok(()),
            (Kind::Alert, [_, alert]) => Err(Violation::Alert((*alert).into())),
            (Kind::Handshake, []) => Err(Violation::Unexpected),
            (Kind::Handshake, messages) if self.kernel.is_some() => self.handle_all(messages),
            // TLS 1.2: it may be told once that there will be no other handshake.
            (Kind::Handshake, _) if self.idle_records == 1 => match self.answer_waits {
                true => Ok(()),
                false => self.queue_answer(Kind::Alert, &[1, NO_RENEGOTIATION]),
            },
            _ => Err(Violation::Unexpected),
        }
    }

    /// Takes in another part of a message (RFC 8446, section 5.1).
    fn handle_part(&mut self, part: &[u8]) -> Result<(), Violation> {
        if part.is_empty() {
            return Err(Violation::Unexpected);
        }
        self.message.extend_from_slice(part);
        let is_whole = match self.message_length(&self.message)? {
            Some(length) => self.message.len() >= MESSAGE_HEAD + length,
            None => false,
        };
        if !is_whole {
            return Ok(());
        }
        self.count(0)?;
        let messages = mem::take(&mut self.message);
        self.handle_all(&messages)
    }

    /// Length of the content of the message that `bytes` begin with, once its head is there. What this side never
    /// gets ends the connection before it is kept.
    fn message_length(&self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        let Some(([kind, high, middle, low], _)) = bytes.split_first_chunk::<MESSAGE_HEAD>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        let most = match (*kind, self.kernel.as_deref()) {
            (NEW_SESSION_TICKET, Some(Kernel::Client(_))) => MAX_MESSAGE,
            (KEY_UPDATE, Some(_)) => 1,
            _ => return Err(Violation::Unexpected),
        };
        match length <= most {
            true => Ok(Some(length)),
            false => Err(Violation::Unexpected),
        }
    }

    fn handle_all(&mut self, mut messages: &[u8]) -> Result<(), Violation> {
        while let [kind, content @ ..] = messages {
            let length = self.message_length(messages)?;
            let content = content.get(MESSAGE_HEAD - 1..).zip(length);
            let whole = content.and_then(|(content, length)| content.split_at_checked(length));
            let Some((message, rest)) = whole else {
                self.message = messages.to_vec();
                return Ok(());
            };
            messages = rest;
            match (*kind, message, self.kernel.as_deref_mut()) {
                (NEW_SESSION_TICKET, ticket, Some(Kernel::Client(kernel))) => {
                    let handled = kernel.handle_new_session_ticket(ticket);
                    handled.map_err(|_| Violation::Unexpected)?;
                }
                // What follows has other keys, so it must be the last of its record.
                (KEY_UPDATE, [asks @ (0 | 1)], Some(kernel)) if rest.is_empty() => {
                    let secrets = kernel.next_rx().map_err(|_| Violation::Unexpected)?;
                    self.opener = Opener::new(secrets, true).map_err(|_| Violation::Unexpected)?;
                    // One that is not on its way yet is the answer to all that have asked (RFC 8446,
                    // section 4.6.3).
                    if *asks == 1 && !self.answer_waits {
                        self.renew_key()?;
                        self.answer_waits = true;
                    }
                }
                _ => return Err(Violation::Unexpected),
            }
        }
        Ok(())
    }

    /// Encrypts with another key from now on.
    fn renew_key(&mut self) -> Result<(), Violation> {
        if self.kernel.is_none() {
            return Err(Violation::Exhausted);
        }
        self.queue_message(Kind::Handshake, &[KEY_UPDATE, 0, 0, 1, 0])?;
        let secrets = self.kernel.as_deref_mut().map(Kernel::next_tx);
        let secrets = secrets.and_then(Result::ok).ok_or(Violation::Exhausted)?;
        self.sealer = Sealer::new(secrets, true).map_err(|_| Violation::Exhausted)?;
        Ok(())
    }

    /// Has an answer to a message sent.
    fn queue_answer(&mut self, kind: Kind, message: &[u8]) -> Result<(), Violation> {
        self.answer_waits = true;
        self.queue_message(kind, message)
    }

    /// Has a message sent with what is written next.
    fn queue_message(&mut self, kind: Kind, message: &[u8]) -> Result<(), Violation> {
        let parts = [message];
        self.sealer
            .seal_record(kind, &mut Parts::new(&parts), &mut self.output)?;
        Ok(())
    }

    /// Nothing can follow. The other side is told so, if it still listens.
    fn break_stream(&mut self, violation: Violation) -> io::Error {
        let alert = match violation {
            Violation::Decrypt => Some(20),
            Violation::Header => Some(22),
            Violation::Unexpected | Violation::Flood => Some(10),
            Violation::Exhausted => Some(80),
            Violation::Alert(_) => None,
        };
        if let Some(alert) = alert
            && self.output.is_empty()
            && self.queue_message(Kind::Alert, &[2, alert]).is_ok()
        {
            let _ = self.socket.try_write(&self.output);
        }
        self.cut.set(true);
        io::Error::new(io::ErrorKind::InvalidData, violation)
    }

    /// Sends what the socket has not taken before.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest @ [_, ..]) = self.output.get(self.output_from..) {
            match ready!(Pin::new(&mut self.socket).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.output_from += n,
            }
        }
        self.output_from = 0;
        self.output = Vec::new();
        self.answer_waits = false;
        Poll::Ready(Ok(()))
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[&[u8]],
        bytes: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        if self.cut.get() || self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.sealer.is_worn() {
            self.renew_key()
                .map_err(|violation| self.break_stream(violation))?;
        }
        ready!(self.poll_output(cx))?;
        bytes.clear();
        let mut parts = Parts::new(parts);
        let mut taken = 0;
        for _ in 0..RECORDS {
            if parts.is_empty() {
                break;
            }
            let sealed = self.sealer.seal_record(Kind::Data, &mut parts, bytes);
            taken += sealed.map_err(|violation| self.break_stream(violation))?;
        }
        let mut from = 0;
        while let Some(rest @ [_, ..]) = bytes.get(from..) {
            match Pin::new(&mut self.socket).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => from += n,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.output = rest.to_vec();
                    break;
                }
            }
        }
        Poll::Ready(Ok(taken))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        INPUT.with_borrow_mut(|bytes| {
            // What the caller has read before is not ours.
            let mut fresh = ReadBuf::new(space.initialize_unfilled());
            let read = this.read(cx, &mut fresh, bytes);
            let n = fresh.filled().len();
            space.advance(n);
            read
        })
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        OUTPUT.with_borrow_mut(|output| this.write(cx, &[bytes], output))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut parts: [&[u8]; MAX_SLICES] = [&[]; MAX_SLICES];
        for (part, slice) in parts.iter_mut().zip(slices) {
            *part = slice;
        }
        let this = self.get_mut();
        OUTPUT.with_borrow_mut(|output| this.write(cx, &parts, output))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_output(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.closed && !this.cut.get() {
            this.closed = true;
            let _ = this.queue_message(Kind::Alert, &[1, CLOSE_NOTIFY]);
        }
        ready!(this.poll_output(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}

/// Says farewell, unless the other side is to see that something is missing.
impl Drop for Stream {
    fn drop(&mut self) {
        let is_orderly = !self.closed && !self.cut.get() && self.output.is_empty();
        if is_orderly && self.queue_message(Kind::Alert, &[1, CLOSE_NOTIFY]).is_ok() {
            let farewell = mem::take(&mut self.output);
            let _ = self.socket.try_write(&farewell);
        }
    }
}
