//! Connections whose bytes are encrypted with TLS.

use std::cell::Cell;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use evenkeel_core::member::Member;
use evenkeel_manager::snapshot::GroupHandle;
use evenkeel_net::Clock;
use evenkeel_tls::client::Client;
use evenkeel_tls::connect as client;
use evenkeel_tls::handshake::HandshakeParameters;
use evenkeel_tls::stream::Stream;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::memory::{Charge, Memory, SMALL_BYTES};
use crate::transport::Transport;

/// Bytes that are charged at once for what a side does not take: seldom is it more.
const HELD_BYTES: usize = 96 * 1024;

/// A connection with TLS.
#[derive(Debug)]
pub(crate) struct Tls {
    stream: Box<Stream>,
    agreed: Arc<HandshakeParameters>,
    memory: Arc<Memory>,
    /// Charge for the bytes that the connection holds, as a side does not take them.
    held: Option<Charge>,
    _idle: Charge,
    /// Member that has sent nothing yet, to report it if it refuses the connection after the
    /// handshake.
    fresh: Option<Box<SilentMember>>,
    /// True if the member has refused the connection, in place of an answer.
    refused: Rc<Cell<bool>>,
}

/// A member that has sent nothing yet.
pub(super) struct SilentMember {
    pub(super) group: Arc<GroupHandle>,
    pub(super) member: Member,
    pub(super) client: Arc<Client>,
    pub(super) clock: Clock,
}

impl fmt::Debug for SilentMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh").finish_non_exhaustive()
    }
}

impl SilentMember {
    /// Takes note of a member that has refused the connection. Answers whether it has done so for
    /// the sake of our certificate: then it looks at nothing else that was sent.
    fn note_refusal(self, error: &io::Error) -> bool {
        let Some(failure) = client::Failure::after_handshake(error, &self.client) else {
            return false;
        };
        let (group, now) = (self.group.current.load(), self.clock.now());
        let handshakes = self.group.handshakes();
        handshakes.failed_with(group.name(), &self.member, &failure, now);
        failure.cause == client::Cause::ClientCertificate
    }
}

impl Tls {
    /// Returns a connection after its handshake. `idle` is the charge for what it needs while it
    /// is idle; `fresh` is the member, if the other side is one.
    pub(super) fn new(
        stream: Box<Stream>,
        agreed: HandshakeParameters,
        memory: &Arc<Memory>,
        idle: Charge,
        fresh: Option<SilentMember>,
    ) -> Self {
        Tls {
            stream,
            agreed: Arc::new(agreed),
            memory: Arc::clone(memory),
            held: None,
            _idle: idle,
            fresh: fresh.map(Box::new),
            refused: Rc::default(),
        }
    }

    /// Returns the parameters agreed on in the handshake.
    pub(crate) fn agreed_parameters(&self) -> &Arc<HandshakeParameters> {
        &self.agreed
    }

    /// Returns the flag that is true if the member has refused the connection after the handshake,
    /// and so has processed nothing.
    pub(crate) fn refused_flag(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.refused)
    }

    /// The other side will see that something is missing.
    pub(crate) fn mark_cut(&self) {
        self.stream.suppress_close();
    }

    /// True if nothing has come that was not asked for, as far as the runtime knows; messages of
    /// TLS itself are taken in.
    pub(crate) fn is_idle(&mut self) -> bool {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let cx = &mut Context::from_waker(Waker::noop());
        let read = Pin::new(&mut *self.stream).poll_read(cx, &mut byte);
        // Half a record may be that of an answer to nobody.
        read.is_pending() && self.stream.held_bytes() == 0
    }

    /// Counts what the connection holds.
    #[inline]
    fn count(&mut self) -> io::Result<()> {
        let held = self.stream.held_bytes();
        if held <= SMALL_BYTES {
            self.held = None;
            return Ok(());
        }
        let charged = match &mut self.held {
            Some(charge) => charge.grow_to(held),
            None => {
                let charge = self.memory.take(held.max(HELD_BYTES));
                charge.map(|charge| self.held = Some(charge))
            }
        };
        charged.map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    #[inline]
    fn count_alerts<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.count()?;
        polled
    }
}

impl Transport for Tls {
    fn uri_scheme(&self) -> &'static str {
        "https"
    }

    #[inline]
    fn socket(&self) -> Option<SockRef<'_>> {
        Some(SockRef::from(self.stream.socket()))
    }

    fn watched(&mut self) -> Option<&TcpStream> {
        Some(self.stream.socket())
    }
}

impl AsyncRead for Tls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut *this.stream).poll_read(cx, space);
        if this.fresh.is_some()
            && let Poll::Ready(first) = &read
            && let (Some(fresh), Err(error)) = (this.fresh.take(), first)
        {
            this.refused.set(fresh.note_refusal(error));
        }
        this.count_alerts(read)
    }
}

impl AsyncWrite for Tls {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut *this.stream).poll_write(cx, bytes);
        this.count_alerts(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut *this.stream).poll_write_vectored(cx, parts);
        this.count_alerts(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut *this.stream).poll_flush(cx))?;
        this.held = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_shutdown(cx)
    }
}
