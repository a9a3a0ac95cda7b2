//! The threads that serve clients.

use std::io;
use std::net::TcpListener as StdListener;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_giop::server::Server;
use evenkeel_net::{Clock, start_thread};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, LocalSet};
use tracing::error;

use super::limits::relay_settings;
use crate::call::{Call, Outcome};
use crate::dispatcher::{Counters, Dispatcher, Objects};
use crate::keys::Level;
use crate::relay::{self, Relay};
use crate::service::LoadManager;

/// A thread that serves clients.
pub(super) struct Worker {
    assignments: mpsc::UnboundedSender<Option<Serving>>,
    ended: oneshot::Receiver<()>,
}

/// Assignment of a worker: a server, listeners and a load manager.
pub(super) struct Serving {
    pub(super) server: Arc<Server>,
    pub(super) listeners: Vec<StdListener>,
    pub(super) service: Arc<LoadManager>,
    pub(super) counters: Arc<Counters>,
    pub(super) relayed: Arc<relay::Counters>,
}

impl Worker {
    pub(super) fn start(number: usize, clock: Clock) -> io::Result<Self> {
        let (assignments, commands) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        start_thread(&format!("corba-{number}"), move |runtime| {
            LocalSet::new().block_on(&runtime, work(commands, clock));
            let _ = end.send(());
        })?;
        Ok(Worker { assignments, ended })
    }

    /// Serves something else from now on, or nothing.
    pub(super) fn set_serving(&self, serving: Option<Serving>) {
        // It only ends when it is told to.
        let _ = self.assignments.send(serving);
    }

    /// Ends it in good order.
    pub(super) async fn end_and_wait(self) {
        drop(self.assignments);
        if self.ended.await.is_err() {
            error!("a worker of the CORBA service has panicked");
        }
    }
}

/// Serves with one configuration after the other. Who is connected when that changes is told that the
/// connection ends, and connects again.
async fn work(mut assignments: mpsc::UnboundedReceiver<Option<Serving>>, clock: Clock) {
    let mut tasks = JoinSet::new();
    // Dropped, it stops what it belongs to.
    let mut stop = watch::Sender::new(());
    while let Some(serving) = assignments.recv().await {
        stop = watch::Sender::new(());
        while tasks.try_join_next().is_some() {}
        let Some(serving) = serving else { continue };
        let relay = Relay::start(
            relay_settings(&serving.service.settings()),
            Arc::clone(&serving.relayed),
            clock,
            fastrand::Rng::new(),
        );
        for listener in serving.listeners {
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => {
                    error!("the CORBA service cannot listen: {error}");
                    continue;
                }
            };
            let service = &serving.service;
            let dispatcher = Dispatcher::new(
                clock,
                Rc::clone(&relay),
                Arc::clone(service.directory()),
                Rc::new(LocalObjects(Arc::clone(service))),
                Arc::clone(&serving.counters),
            );
            let dispatcher = Rc::new(dispatcher.with_tenure(service.tenure().cloned()));
            let (server, mut stopped) = (Arc::clone(&serving.server), stop.subscribe());
            tasks.spawn_local(async move {
                let stopped = async move { while stopped.changed().await.is_ok() {} };
                server.serve_clients(listener, dispatcher, stopped).await;
            });
        }
    }
    drop(stop);
    while tasks.join_next().await.is_some() {}
}

/// Our own objects.
struct LocalObjects(Arc<LoadManager>);

impl Objects for LocalObjects {
    fn manager(&self, call: Call) -> impl Future<Output = Outcome> + use<> {
        self.0.invoke(call)
    }

    fn strategy(&self, level: Level<'_>, call: Call) -> impl Future<Output = Outcome> + use<> {
        self.0.invoke_strategy(level, call)
    }
}
