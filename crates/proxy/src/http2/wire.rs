//! The bytes below a connection of HTTP/2, which are metered.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::meter::{Flood, Meter, Refusals};
use crate::buffer::Buffer;
use crate::files::ConnectionFile;
use crate::io::Io;
use crate::service::Service;
use crate::worker::Worker;

/// What is known of the bytes.
#[derive(Debug)]
pub(super) struct Metered {
    pub(super) meter: Meter,
    /// What there is too much of. Nothing more is read then.
    pub(super) flood: Option<Flood>,
    /// Bytes that the peer has taken.
    pub(super) sent: u64,
    /// Errors of the protocol that it was told of.
    pub(super) refused: u64,
}

/// A connection whose first bytes were read already.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) io: Io,
    pub(super) read: Option<Buffer>,
    pub(super) metered: Rc<RefCell<Metered>>,
    pub(super) worker: Rc<Worker>,
    /// What is refused before anybody else sees it, if it leads to a client, and whose it is.
    pub(super) refusals: Option<(Refusals, Rc<Service>)>,
    /// The right to it, if it leads to a member.
    pub(super) _file: Option<ConnectionFile>,
}

impl Wire {
    fn poll_fill(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(read) = &mut self.read else {
            return Pin::new(&mut self.io).poll_read(cx, space);
        };
        let n = read.len().min(space.remaining());
        space.put_slice(read.bytes().get(..n).unwrap_or_default());
        read.consume(n);
        if read.is_empty()
            && let Some(empty) = self.read.take()
        {
            self.worker.buffers.give(empty);
        }
        Poll::Ready(Ok(()))
    }

    /// The first `n` bytes of `parts` were sent.
    fn sent<'a>(&mut self, n: usize, parts: impl Iterator<Item = &'a [u8]>) {
        let mut metered = self.metered.borrow_mut();
        if let Some((refusals, service)) = &mut self.refusals {
            let mut left = n;
            for part in parts {
                let part = part.get(..left).unwrap_or(part);
                left -= part.len();
                let refused = refusals.sent(part);
                service.metrics.refused_malformed.add(refused);
                metered.refused += refused;
            }
        }
        metered.meter.sent(n);
        metered.sent += n as u64;
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.metered.borrow().flood.is_some() {
            return Poll::Pending;
        }
        let before = space.filled().len();
        ready!(this.poll_fill(cx, space))?;
        let now = this.worker.watchers.coarse_now();
        let mut metered = this.metered.borrow_mut();
        let read = space.filled().get(before..).unwrap_or_default();
        metered.flood = metered.meter.received(read, now);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.io).poll_write(cx, bytes))?;
        this.sent(written, std::iter::once(bytes));
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.io).poll_write_vectored(cx, parts))?;
        this.sent(written, parts.iter().map(|part| &**part));
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(read) = self.read.take() {
            self.worker.buffers.give(read);
        }
    }
}
