//! The client engine: on the client's side it listens where the servers' clients come to,
//! negotiates with a broker, keeps the answer for its quantum, and redirects standard
//! clients to the server.
//!
//! The idea is the *intermediate engine* of Mohamed-Salem, Chen, Bochmann and Wong, "An
//! Experimental Prototype for Scalable Server Selection" (IPCCC 2003), section 3.2.
//!
//! What is known about a cluster, and what follows from it, is in [`state`], without I/O.
//! Around it stand the questions to brokers ([`broker`]) and one [`supervisor`] per cluster,
//! which asks them one at a time, however many clients wait.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod broker;
pub mod state;
mod supervisor;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_config::Problem;
use evenkeel_config::engine::{EngineCluster, EngineConfig};
use evenkeel_net::Clock;
use evenkeel_net::http::{BoundedListener, Phase, Settings};
use evenkeel_tls::client::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use supervisor::Supervisor;

/// Connections of clients at once, for each address. The clients are on one machine.
const MAX_CONNECTIONS: usize = 1000;

/// Time from the start of a connection, or from an answer, to the next answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Largest head of a request: cookies come along.
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// An address that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "cluster {cluster:?}: cannot listen on {address}: {source}; choose another address with listen"
)]
pub struct ListenError {
    cluster: String,
    address: SocketAddr,
    source: io::Error,
}

/// Returns the problems of the files that a configuration names.
pub fn check_files(config: &EngineConfig) -> Vec<Problem> {
    let loaded = config.broker_tls.iter().map(Client::from_config);
    loaded.filter_map(Result::err).flatten().collect()
}

/// An engine that listens, and answers when it runs.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    listeners: Vec<(EngineCluster, Vec<TcpListener>)>,
}

impl Engine {
    /// Listens on all addresses of `config`, or on none.
    ///
    /// # Errors
    ///
    /// An address cannot be bound.
    pub async fn listen(config: EngineConfig) -> Result<Self, ListenError> {
        let mut listeners = Vec::new();
        for cluster in &config.clusters {
            let mut own = Vec::new();
            for &address in &cluster.listen {
                let listener = TcpListener::bind(address).await;
                own.push(listener.map_err(|source| ListenError {
                    cluster: cluster.name.clone(),
                    address,
                    source,
                })?);
            }
            listeners.push((cluster.clone(), own));
        }
        Ok(Engine { config, listeners })
    }

    /// Returns the addresses that the engine really listens on: an address per line of the configuration,
    /// with the name of its cluster.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, SocketAddr)> {
        self.listeners.iter().flat_map(|(cluster, listeners)| {
            let addresses = listeners.iter().filter_map(|l| l.local_addr().ok());
            addresses.map(|address| (cluster.name.as_str(), address))
        })
    }

    /// Answers until `phase` says otherwise. Must run in a [`tokio::task::LocalSet`].
    pub async fn run(self, clock: Clock, phase: watch::Receiver<Phase>) {
        let mut servers = JoinSet::new();
        let mut supervisors = JoinSet::new();
        let brokers = Rc::new(broker::Brokers::new(&self.config));
        for (cluster, listeners) in self.listeners {
            let supervisor = Rc::new(Supervisor::new(cluster, Rc::clone(&brokers), clock));
            supervisors.spawn_local(Rc::clone(&supervisor).run());
            for listener in listeners {
                let listener = BoundedListener::new(listener, "engine", MAX_CONNECTIONS, PATIENCE);
                let settings = Settings {
                    max_header_bytes: MAX_HEADER_BYTES,
                };
                let handler = Rc::clone(&supervisor);
                servers.spawn_local(evenkeel_net::http::serve_listener(
                    listener,
                    settings,
                    handler,
                    phase.clone(),
                ));
            }
        }
        while servers.join_next().await.is_some() {}
    }
}
