//! The negotiator: clients ask here for a server, and then go to it themselves.
//!
//! A browser gets a redirect (307) that it may keep for the *quantum*; a program gets the
//! same as JSON. The idea is that of Mohamed-Salem, Chen, Bochmann and Wong, "An
//! Experimental Prototype for Scalable Server Selection" (IPCCC 2003), section 3.2. The
//! interface is in `docs/negotiation.md`.
//!
//! It has a thread of its own, so that neither the control loop waits for clients nor
//! clients for workers.

mod clients;
mod decide;
mod desk;
mod metrics;
pub mod wire;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use evenkeel_config::Negotiator as Settings;
use evenkeel_core::time::Clock;
use evenkeel_http::{Bounded, Phase};
use evenkeel_limits::files::Shares;
use evenkeel_manager::snapshot::{Commit, DataPlane, Snapshot};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tracing::error;

use desk::Desk;

pub use metrics::{ClassTotals, Ending, Metrics, Unheard};

/// Connections that the system keeps until they are accepted.
const BACKLOG: i32 = 4096;

/// The negotiator from outside. Cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Negotiator {
    inner: Arc<Inner>,
}

struct Inner {
    metrics: Arc<Metrics>,
    orders: mpsc::UnboundedSender<Order>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Listeners in use, by the address that the configuration asks for.
    listeners: HashMap<SocketAddr, StdListener>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told.
enum Order {
    /// Go on with these clusters and listeners.
    Apply {
        next: Arc<Snapshot>,
        listeners: Vec<(SocketAddr, StdListener)>,
    },
    /// End.
    Stop,
}

impl fmt::Debug for Negotiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Negotiator").finish_non_exhaustive()
    }
}

impl Negotiator {
    /// Starts the thread, which serves nothing yet. `clock` is that of the whole process.
    ///
    /// # Errors
    ///
    /// The thread or its runtime cannot be started.
    pub fn start(clock: Clock) -> io::Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let (orders, commands) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let desk_metrics = Arc::clone(&metrics);
        let thread = std::thread::Builder::new()
            .name("negotiator".into())
            .spawn(move || {
                let desk = Rc::new(Desk::new(clock, desk_metrics));
                LocalSet::new().block_on(&runtime, follow(desk, commands));
            })?;
        Ok(Negotiator {
            inner: Arc::new(Inner {
                metrics,
                orders,
                state: Mutex::new(State {
                    listeners: HashMap::new(),
                    thread: Some(thread),
                }),
            }),
        })
    }

    /// What it counts.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Where it really listens, in the order of their configured addresses.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let state = self.inner.state();
        let mut listeners: Vec<_> = state.listeners.iter().collect();
        listeners.sort_by_key(|(address, _)| **address);
        let real = |(_, listener): (_, &StdListener)| listener.local_addr().ok();
        listeners.into_iter().filter_map(real).collect()
    }

    /// Stops listening, gives answers under way a second, and ends. Blocks until then.
    pub fn stop(&self) {
        let thread = {
            let mut state = self.inner.state();
            state.listeners.clear();
            state.thread.take()
        };
        let _ = self.inner.orders.send(Order::Stop);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            error!("the negotiator has panicked");
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataPlane for Negotiator {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, Vec<String>> {
        let state = self.inner.state();
        let mut listeners: HashMap<SocketAddr, StdListener> = HashMap::new();
        let mut errors = Vec::new();
        for &address in next.negotiator.iter().flat_map(|settings| &settings.listen) {
            let listener = match state.listeners.get(&address) {
                Some(known) => known.try_clone(),
                None => bind(address),
            };
            match listener {
                Ok(listener) => {
                    listeners.insert(address, listener);
                }
                Err(error) => errors.push(format!(
                    "negotiator: cannot listen on {address}: {error}; choose another address with listen in [negotiator]"
                )),
            }
        }
        // The thread gets handles of its own.
        let mut for_thread = Vec::with_capacity(listeners.len());
        for (address, listener) in &listeners {
            match listener.try_clone() {
                Ok(clone) => for_thread.push((*address, clone)),
                Err(error) => errors.push(format!("negotiator: {address}: {error}")),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let (inner, next) = (Arc::clone(&self.inner), Arc::clone(next));
        Ok(Box::new(move || {
            inner.state().listeners = listeners;
            let listeners = for_thread;
            let _ = inner.orders.send(Order::Apply { next, listeners });
        }))
    }

    fn listening(&self) -> Vec<SocketAddr> {
        self.local_addresses()
    }
}

fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // After a restart the old connections must not be in the way.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Follows orders until the last one.
async fn follow(desk: Rc<Desk>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut serving: HashMap<SocketAddr, Serving> = HashMap::new();
    // Those that accept nobody any more, but have connections.
    let mut closing: Vec<Serving> = Vec::new();
    while let Some(Order::Apply { next, listeners }) = orders.recv().await {
        desk.set(&next);
        let settings = next.negotiator.clone().unwrap_or_default();
        let mut before = std::mem::take(&mut serving);
        for (address, listener) in listeners {
            let same = before.remove(&address).and_then(|old| {
                let same = old.has_settings(&settings);
                if !same {
                    closing.push(old.tell(Phase::Close));
                    return None;
                }
                Some(old)
            });
            let started = match same {
                Some(same) => Ok(same),
                None => Serving::start(listener, &settings, &desk),
            };
            match started {
                Ok(started) => {
                    serving.insert(address, started);
                }
                Err(error) => error!(%address, %error, "the negotiator cannot listen"),
            }
        }
        closing.extend(before.into_values().map(|old| old.tell(Phase::Close)));
        closing.retain(|old| !old.task.is_finished());
    }
    for old in serving.into_values().chain(closing) {
        // A panic there has been told already.
        let _ = old.tell(Phase::Stop).task.await;
    }
}

/// A listener that is served.
struct Serving {
    settings: Settings,
    phase: watch::Sender<Phase>,
    task: tokio::task::JoinHandle<()>,
}

impl Serving {
    fn start(listener: StdListener, settings: &Settings, desk: &Rc<Desk>) -> io::Result<Self> {
        let listener = Bounded::new(
            TcpListener::from_std(listener)?,
            "negotiator",
            settings
                .max_connections
                .min(Shares::of_process().negotiator),
            settings.idle_timeout,
        );
        let limits = evenkeel_http::Settings {
            max_header_bytes: settings.max_header_bytes,
        };
        let (phase, phases) = watch::channel(Phase::Serve);
        let serve = evenkeel_http::serve(listener, limits, Rc::clone(desk), phases);
        Ok(Serving {
            settings: settings.clone(),
            phase,
            task: tokio::task::spawn_local(serve),
        })
    }

    /// Whether its limits are those that `settings` ask for.
    fn has_settings(&self, settings: &Settings) -> bool {
        let listen = self.settings.listen.clone();
        self.settings
            == Settings {
                listen,
                ..settings.clone()
            }
    }

    fn tell(self, phase: Phase) -> Self {
        self.phase.send_replace(phase);
        self
    }
}

#[cfg(test)]
mod tests;
