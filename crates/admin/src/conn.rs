//! Connections to the API: few, and none for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use evenkeel_limits::files::Shares;
use evenkeel_net::http::{Activity, BoundedListener, Connection};
use evenkeel_tls::listener as tls;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

/// From a complete request, or the last byte of an answer, to the next answer. Longer than the usual interval of a scraper, so that its connection is kept.
const PATIENCE: Duration = Duration::from_secs(90);

/// The listener of the API.
#[derive(Debug)]
pub(crate) struct ApiListener {
    listener: BoundedListener,
    /// Over when the address shall be given up; `None` after that.
    close: Option<oneshot::Receiver<()>>,
    /// True while clients are left to another process that has the socket, too.
    rests: watch::Receiver<bool>,
}

impl ApiListener {
    /// Makes a listener that gives its address up when `close` says so, or nobody is there to say it.
    pub(crate) fn new(
        listener: TcpListener,
        tls: Arc<tls::Listener>,
        close: oneshot::Receiver<()>,
        rests: watch::Receiver<bool>,
    ) -> Self {
        let listener = BoundedListener::new(
            listener,
            "admin API",
            // A few scrapers and terminals need no more, and who comes without a token must
            // not use up the files of the data plane.
            Shares::of_process().admin,
            PATIENCE,
        );
        ApiListener {
            listener: listener.with_tls(tls),
            close: Some(close),
            rests,
        }
    }
}

impl Listener for ApiListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let rests = *self.rests.borrow_and_update();
            let accepted = match &mut self.close {
                Some(close) => tokio::select! {
                    accepted = self.listener.accept_connection(), if !rests => accepted,
                    Ok(()) = self.rests.changed() => continue,
                    _ = close => {
                        self.close = None;
                        self.listener.close();
                        continue;
                    }
                },
                None => self.listener.accept_connection().await,
            };
            match accepted {
                Some(accepted) => return accepted,
                // Connections go on until the server is stopped.
                None => std::future::pending().await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Client that has connected.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) activity: Activity,
}

impl Connected<IncomingStream<'_, ApiListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, ApiListener>) -> Self {
        Peer {
            address: *stream.remote_addr(),
            activity: stream.io().activity(),
        }
    }
}
