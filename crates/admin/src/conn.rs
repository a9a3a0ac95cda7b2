//! Connections to the API: few, and none for ever.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use evenkeel_http::{Activity, Bounded, Connection};
use evenkeel_limits::files::Shares;
use tokio::net::TcpListener;

/// From a complete request, or the last byte of an answer, to the next answer. Longer than the usual interval of a scraper, so that its connection is kept.
const PATIENCE: Duration = Duration::from_secs(90);

/// The listener of the API.
#[derive(Debug)]
pub(crate) struct ApiListener(Bounded);

impl ApiListener {
    pub(crate) fn new(listener: TcpListener) -> Self {
        ApiListener(Bounded::new(
            listener,
            "admin API",
            // A few scrapers and terminals need no more, and who comes without a token must
            // not use up the files of the data plane.
            Shares::of_process().admin,
            PATIENCE,
        ))
    }
}

impl Listener for ApiListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        self.0.accept().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Who has connected.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) activity: Activity,
}

impl Connected<IncomingStream<'_, ApiListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, ApiListener>) -> Self {
        Peer {
            activity: stream.io().activity(),
        }
    }
}
