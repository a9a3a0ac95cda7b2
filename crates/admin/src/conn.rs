//! Connections to the API: few, and none for ever.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::Listener;
use evenkeel_http::{Bounded, Connection};
use tokio::net::TcpListener;

/// Connections at once. A few scrapers and terminals need no more, and who comes
/// without a token must not use up the file descriptors of the data plane.
const MAX_CONNECTIONS: usize = 256;

/// From the start of a connection, or the last byte of an answer, to the next answer.
/// Longer than the usual interval of a scraper, so that its connection is kept.
const PATIENCE: Duration = Duration::from_secs(90);

/// The listener of the API.
#[derive(Debug)]
pub(crate) struct ApiListener(Bounded);

impl ApiListener {
    pub(crate) fn new(listener: TcpListener) -> Self {
        ApiListener(Bounded::new(
            listener,
            "admin API",
            MAX_CONNECTIONS,
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
