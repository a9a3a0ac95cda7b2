//! Interfaces for administrators: the HTTP API with metrics and health, its client, the terminal view, the
//! writer of the access log, and the exporter that sends traces to a collector.
//!
//! The [`Manager`] does everything and knows everything; this crate gives it a form
//! that programs (JSON, Prometheus) and people (tables) can read.

#![forbid(unsafe_code)]

mod access;
pub mod access_log;
pub mod actor;
pub mod address;
mod answer;
mod api;
mod audit;
mod body;
pub mod client;
mod columns;
pub mod command;
mod config_api;
mod config_errors;
mod conn;
mod console;
pub mod ctl;
mod engine_columns;
mod error;
mod guard;
mod handlers;
pub mod live;
mod login;
mod metrics;
mod openapi;
mod operation;
pub mod otlp;
mod proposal;
mod refusal;
mod schema;
mod sources;
#[cfg(test)]
mod tests;
pub mod top;
pub mod users;
pub mod view;
pub mod wire;

use std::future::{Future, IntoFuture};
use std::io;
use std::sync::Arc;

use access::Access;
use audit::Audit;
use evenkeel_manager::Manager;
use evenkeel_manager::config::Admin;
use login::Cookies;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub use evenkeel_net::http::ErrorBody;
pub use sources::{Sources, UpgradeWanted};

/// Answers on `listener` until `shutdown` is over. `settings` say who may ask.
///
/// When `close` is sent something, or dropped, the address is given up: who has connected
/// before is still answered.
///
/// # Errors
///
/// The listener is no longer usable.
pub async fn serve_api(
    listener: TcpListener,
    settings: &Admin,
    sources: Arc<Sources>,
    close: oneshot::Receiver<()>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let access = Arc::new(Access::new(settings, Arc::clone(&sources.address.users)));
    let guard = guard::Guard::new(settings, Arc::clone(&access));
    let doors = api::RouterParts {
        guard: guard.clone(),
        access,
        audit: Arc::new(Audit::new(settings.audit_log.as_deref())),
        cookies: Cookies {
            has_tls: settings.tls.is_some(),
            behind_proxy: settings.behind_proxy,
            has_users: settings.users_file.is_some(),
        },
        console: settings.console,
    };
    let manager = Arc::clone(&sources.manager);
    let live = Arc::clone(&sources.live);
    let tls = Arc::clone(&sources.address.tls);
    let rests = sources.address.watch_handover();
    let router = api::build_router(sources, doors);
    let (give_up, given_up) = oneshot::channel();
    let serving = axum::serve(
        conn::ApiListener::new(listener, tls, given_up, rests),
        router.into_make_service_with_connect_info::<conn::Peer>(),
    )
    .with_graceful_shutdown(shutdown);
    tokio::select! {
        result = serving.into_future() => result,
        never = follow_token(&manager, &guard) => match never {},
        never = Arc::clone(&live).run() => match never {},
        never = end_streams(&live, close, give_up) => match never {},
    }
}

/// Ends the streams of clients who watch, so that they go to the process that takes the address over.
async fn end_streams(
    live: &live::Live,
    close: oneshot::Receiver<()>,
    give_up: oneshot::Sender<()>,
) -> std::convert::Infallible {
    // Its loss says the same.
    let _ = close.await;
    live.end_streams();
    drop(give_up);
    std::future::pending().await
}

/// Makes the token of each configuration the token of the API.
async fn follow_token(manager: &Manager, guard: &guard::Guard) -> std::convert::Infallible {
    let mut snapshots = manager.snapshots();
    loop {
        snapshots.borrow_and_update();
        let config = manager.shared_config();
        guard.set_token({ config.admin.as_ref() }.and_then(|admin| admin.token.as_deref()));
        if snapshots.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
