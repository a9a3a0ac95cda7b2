//! What administrators use: the HTTP API with metrics and health, its client, the
//! terminal view, and the writer of the access log.
//!
//! The [`Manager`] does everything and knows everything; this crate gives it a form
//! that programs (JSON, Prometheus) and people (tables) can read.

pub mod access_log;
mod api;
pub mod client;
mod columns;
pub mod command;
mod conn;
mod error;
mod exposition;
mod guard;
mod metrics;
#[cfg(test)]
mod tests;
pub mod text;
pub mod top;
pub mod view;
pub mod wire;

use std::future::{Future, IntoFuture};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_broker::desk::Desk;
use evenkeel_broker::negotiator::Negotiator;
use evenkeel_corba::plane::Corba;
use evenkeel_manager::Manager;
use evenkeel_manager::config::Admin;
use evenkeel_manager::status::{LimitsStatus, Status};
use evenkeel_monitor::Monitor;
use evenkeel_proxy::Proxy;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub use evenkeel_net::http::ErrorBody;

/// Where the API's answers come from.
#[derive(Debug)]
pub struct Sources {
    /// Knows and does everything.
    pub manager: Arc<Manager>,
    /// What `POST /v1/reload` reads.
    pub config_file: PathBuf,
    /// The data plane: its counters, and where it really listens.
    pub proxy: Proxy,
    /// Where clients negotiate: its counters, and where it really listens.
    pub negotiator: Negotiator,
    /// Where agents report.
    pub desk: Desk,
    /// Asks the kernels of back-ends.
    pub monitor: Monitor,
    /// Where CORBA clients ask.
    pub corba: Corba,
    /// Counters of the access log's writer.
    pub access_log: access_log::Counts,
    /// Set when the process begins to shut down: `/readyz` then says no.
    pub draining: AtomicBool,
}

impl Sources {
    /// The manager's status, with the addresses that are really listened on (the
    /// configuration may leave the port to the system), and with what clients negotiated.
    fn status(&self) -> Status {
        let mut status = self.manager.status();
        for rule in &mut status.rules {
            for address in &mut rule.listen {
                let real = self.proxy.local_address(&rule.name, *address);
                *address = real.unwrap_or(*address);
            }
        }
        let (clients, clients_open) = self.proxy.clients();
        let shares = self.proxy.shares();
        status.limits = shares.map(|(files, memory)| LimitsStatus {
            files: files.all,
            files_reserved: files.reserve(),
            clients,
            clients_open,
            memory: memory.bound.all,
            memory_reserved: memory.reserve,
        });
        status.negotiator = self.negotiator.local_addresses();
        for totals in self.negotiator.metrics().classes() {
            let mut clusters = status.clusters.iter_mut();
            let cluster = clusters.find(|cluster| cluster.name == totals.cluster);
            let mut classes = cluster.into_iter().flat_map(|cluster| &mut cluster.classes);
            if let Some(class) = classes.find(|class| class.name == totals.class) {
                let endings = totals.endings.into_iter();
                class.negotiations = endings.map(|(e, count)| (e.name().into(), count)).collect();
            }
        }
        status
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// Answers on `listener` until `shutdown` is over. `settings` say who may ask.
///
/// When `close` is sent something, or dropped, the address is given up: who has connected
/// before is still answered.
///
/// # Errors
///
/// The listener is no longer usable.
pub async fn serve(
    listener: TcpListener,
    settings: &Admin,
    sources: Arc<Sources>,
    close: oneshot::Receiver<()>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let guard = guard::Guard::new(settings);
    let manager = Arc::clone(&sources.manager);
    let router = api::router(sources, guard.clone());
    let serving = axum::serve(
        conn::ApiListener::new(listener, close),
        router.into_make_service_with_connect_info::<conn::Peer>(),
    )
    .with_graceful_shutdown(shutdown);
    tokio::select! {
        result = serving.into_future() => result,
        never = follow_token(&manager, &guard) => match never {},
    }
}

/// The token of each configuration is that of the API.
async fn follow_token(manager: &Manager, guard: &guard::Guard) -> std::convert::Infallible {
    let mut snapshots = manager.snapshots();
    loop {
        snapshots.borrow_and_update();
        let admin = manager.config().admin;
        guard.set_token(admin.as_ref().and_then(|admin| admin.token.as_deref()));
        if snapshots.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
