use super::*;

/// A transport that turns each byte over on its way, and holds back what is written until
/// it is flushed.
#[derive(Debug)]
pub(crate) struct Wrapped {
    socket: TcpStream,
    held: Vec<u8>,
}

impl Wrapped {
    pub(crate) fn wrap_socket(socket: TcpStream) -> PeerConnection {
        let held = Vec::new();
        PeerConnection::Wrapped(Box::new(Wrapped { socket, held }))
    }
}

impl Transport for Wrapped {
    fn uri_scheme(&self) -> &'static str {
        "https"
    }

    fn socket(&self) -> Option<SockRef<'_>> {
        Some(SockRef::from(&self.socket))
    }

    fn watched(&mut self) -> Option<&TcpStream> {
        Some(&self.socket)
    }
}

impl AsyncRead for Wrapped {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        let read = Pin::new(&mut self.get_mut().socket).poll_read(cx, space);
        for byte in &mut space.filled_mut()[before..] {
            *byte = !*byte;
        }
        read
    }
}

impl AsyncWrite for Wrapped {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.held.len() > 10_000 {
            std::task::ready!(Pin::new(&mut *this).poll_flush(cx))?;
        }
        this.held.extend(bytes.iter().map(|byte| !byte));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while !this.held.is_empty() {
            let written = Pin::new(&mut this.socket).poll_write(cx, &this.held);
            this.held.drain(..std::task::ready!(written)?);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        std::task::ready!(Pin::new(&mut *this).poll_flush(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}
