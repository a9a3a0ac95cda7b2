//! Bytes to one side of a control connection, and the last line to a client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::AsyncWrite;

use crate::io::Io;

/// Sends what waits; the byte at `urgent` as such.
pub(super) fn poll_send(
    cx: &mut Context<'_>,
    to: &mut Io,
    bytes: &mut Vec<u8>,
    urgent: &mut Option<usize>,
) -> Poll<io::Result<()>> {
    while let Some(first) = bytes.first().copied() {
        let sent_urgently = *urgent == Some(0)
            && to
                .socket()
                .is_some_and(|socket| socket.send_out_of_band(&[first]).is_ok());
        let n = match sent_urgently {
            true => 1,
            false => {
                let until = urgent.map_or(bytes.len(), |place| place.max(1));
                let part = bytes.get(..until).unwrap_or(bytes);
                ready!(Pin::new(&mut *to).poll_write(cx, part))?
            }
        };
        if n == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        bytes.drain(..n.min(bytes.len()));
        *urgent = urgent.and_then(|place| place.checked_sub(n));
    }
    *bytes = Vec::new();
    Pin::new(to).poll_flush(cx)
}

/// Says something before the connection is closed, if there is room for it without waiting.
pub(super) fn send_farewell(client: &mut Io, text: &str) {
    send_last_line(client, text.as_bytes().to_vec());
}

/// Sends `bytes` and the end of their line as far as there is room without waiting, and ends the output.
pub(super) fn send_last_line(client: &mut Io, mut bytes: Vec<u8>) {
    bytes.extend_from_slice(b"\r\n");
    let cx = &mut Context::from_waker(Waker::noop());
    let _ = poll_send(cx, client, &mut bytes, &mut None);
    let _ = Pin::new(client).poll_shutdown(cx);
}
