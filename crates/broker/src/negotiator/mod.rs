//! Negotiator: clients ask here for a server, and then go to it themselves.
//!
//! A browser gets a redirect (307) that it may keep for the *quantum*; a program gets the same as JSON. The
//! idea is that of Mohamed-Salem, Chen, Bochmann and Wong, "An Experimental Prototype for Scalable Server
//! Selection" (IPCCC 2003), section 3.2. The interface is in `docs/negotiation.md`.
//!
//! The negotiator has a thread of its own, so that neither the control loop waits for clients nor clients for
//! workers.

mod clients;
mod decide;
mod dispatcher;
mod metrics;
mod request;
mod status;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use evenkeel_config::{Cluster, Config, Negotiator as Settings};
use evenkeel_limits::files::Shares;
use evenkeel_limits::memory;
use evenkeel_manager::certificates;
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::Service;
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::status::Status;
use evenkeel_manager::subsystem::{Commit, Exclusive, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::Clock;
use evenkeel_net::http::{BoundedListener, Phase};
use evenkeel_net::inherited::InheritedSocket;
use evenkeel_net::listen::Listeners;
use evenkeel_net::start_thread;
use evenkeel_tls::certificate::Details;
use evenkeel_tls::listener::Listener;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tracing::{error, info};

use dispatcher::Dispatcher;

pub use metrics::{ClassTotals, Ending, Metrics, Unheard};

/// The negotiator from outside. Cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Negotiator {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    metrics: Arc<Metrics>,
    tls: Arc<Listener>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Listeners in use, by the address that the configuration asks for.
    listeners: Listeners,
    /// Once a configuration has wanted it.
    thread: Option<Thread>,
    /// True if nothing is opened any more.
    stopped: bool,
    /// Clusters that clients negotiate for.
    clusters: Vec<Cluster>,
    /// Snapshot that the thread was told last.
    current: Option<Arc<Snapshot>>,
}

/// The part of a [`Handover`] with the keys of tickets.
const TICKETS: &str = "negotiator_tickets";

struct Thread {
    orders: mpsc::UnboundedSender<Order>,
    handle: JoinHandle<()>,
}

/// Owner of the listeners.
const WHOSE: &str = "negotiator";

/// Order to the thread.
enum Order {
    /// Go on with these clusters and listeners.
    Apply {
        next: Arc<Snapshot>,
        listeners: Vec<(SocketAddr, StdListener)>,
    },
    /// End the thread.
    Stop,
}

impl fmt::Debug for Negotiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Negotiator").finish_non_exhaustive()
    }
}

impl Negotiator {
    /// Returns a negotiator that serves nothing yet. Its thread starts with the first configuration that
    /// wants it. `clock` is that of the whole process.
    pub fn new(clock: Clock) -> Self {
        Negotiator {
            inner: Arc::new(Inner {
                clock,
                metrics: Arc::default(),
                tls: Arc::default(),
                state: Mutex::default(),
            }),
        }
    }

    /// Returns the counts of the negotiator.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Returns the addresses where the negotiator really listens, in the order of their configured addresses.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.inner.state().listeners.local_addresses()
    }

    /// Stops listening, gives answers under way a second, and ends. Blocks until then.
    pub fn stop(&self) {
        let thread = {
            let mut state = self.inner.state();
            state.listeners.clear();
            state.stopped = true;
            state.thread.take()
        };
        let Some(thread) = thread else { return };
        let _ = thread.orders.send(Order::Stop);
        if thread.handle.join().is_err() {
            error!("the negotiator has panicked");
        }
    }
}

impl Negotiator {
    /// Has the thread serve these listeners, and no others.
    fn serve(&self, state: &State, listeners: Vec<(SocketAddr, StdListener)>) {
        if let (Some(thread), Some(next)) = (&state.thread, &state.current) {
            let next = Arc::clone(next);
            let _ = thread.orders.send(Order::Apply { next, listeners });
        }
    }
}

impl Thread {
    fn start(inner: &Inner) -> io::Result<Self> {
        let (orders, commands) = mpsc::unbounded_channel();
        let (clock, metrics) = (inner.clock, Arc::clone(&inner.metrics));
        let tls = Arc::clone(&inner.tls);
        let handle = start_thread("negotiator", move |runtime| {
            let dispatcher = Rc::new(Dispatcher::new(clock, metrics));
            LocalSet::new().block_on(&runtime, follow(dispatcher, tls, commands));
        })?;
        Ok(Thread { orders, handle })
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Negotiator {}

impl Subsystem for Negotiator {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let settings = next.section::<Settings>();
        let mut state = self.inner.state();
        // Without a thread there is nobody to be told that nothing is wanted.
        if state.stopped || settings.is_none() && state.thread.is_none() {
            let (inner, clusters) = (Arc::clone(&self.inner), clusters_of(next));
            return Ok(Box::new(move || inner.state().clusters = clusters));
        }
        if state.thread.is_none() {
            let started = Thread::start(&self.inner);
            let whose = "negotiator";
            let started = started.map_err(|error| vec![PrepareError::Thread { whose, error }])?;
            state.thread = Some(started);
        }
        let wanted = settings.map_or(&[][..], |settings| &settings.listen);
        let tls = settings.and_then(|settings| settings.tls.as_ref());
        let load = || self.inner.tls.load_server(tls, "negotiator");
        let server = next.reload.then(load).transpose();
        let server = server.map_err(PrepareError::files)?;
        let cannot_listen = PrepareError::listen("negotiator");
        let listeners = state.listeners.prepare_addresses(wanted, 1, WHOSE);
        let listeners = listeners.map_err(&cannot_listen)?;
        // The thread gets handles of its own.
        let for_thread = listeners.clone_for_thread(0, 1).map_err(&cannot_listen)?;
        let (inner, next) = (Arc::clone(&self.inner), Arc::clone(next));
        Ok(Box::new(move || {
            let mut state = inner.state();
            state.clusters = clusters_of(&next);
            state.listeners = listeners;
            if let Some(server) = server {
                inner.tls.set(server);
            }
            state.current = Some(Arc::clone(&next));
            let listeners = for_thread;
            if let Some(thread) = &state.thread {
                let _ = thread.orders.send(Order::Apply { next, listeners });
            }
        }))
    }

    fn listening(&self) -> Vec<SocketAddr> {
        self.local_addresses()
    }

    fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        self.inner.state().listeners.clone_for_handover(WHOSE)
    }

    fn hand_over(&self, to: &mut Handover) {
        to.give_tickets(TICKETS, self.inner.tls.ticket_keys());
    }

    fn take_over(&self, from: &Handover) {
        from.take_tickets(TICKETS, self.inner.tls.ticket_keys());
    }

    fn rest(&self) {
        let state = self.inner.state();
        self.serve(&state, Vec::new());
    }

    fn resume(&self) {
        let state = self.inner.state();
        match state.listeners.clone_for_thread(0, 1) {
            Ok(listeners) => self.serve(&state, listeners),
            Err(errors) => {
                for error in errors {
                    error!("negotiator: stopped: {error}");
                }
            }
        }
    }

    fn exclusive(&self, config: &Config) -> Vec<Exclusive> {
        let listen = config.negotiator.iter().map(|own| &*own.listen);
        listen.flat_map(Exclusive::tcp).collect()
    }

    fn stop(&self) {
        Negotiator::stop(self);
    }

    fn announce(&self, _: &Snapshot) -> Vec<String> {
        let addresses = self.local_addresses().into_iter();
        addresses.map(|at| format!("negotiator on {at}")).collect()
    }

    fn status(&self, status: &mut Status) {
        status.negotiator = self.local_addresses();
        let state = self.inner.state();
        status.clusters = status::clusters(&state.clusters, self.metrics());
    }

    fn metrics(&self, out: &mut Exposition) {
        self.inner.metrics.write_families(out);
        certificates::failures(
            out,
            "evenkeel_negotiator_tls_failures_total",
            &self.inner.tls,
        );
    }

    fn check(&self, config: &Config) -> PrepareErrors {
        let own = config.negotiator.as_ref();
        PrepareError::files(Listener::check_files(own.and_then(|own| own.tls.as_ref())))
    }

    fn certificates(&self) -> Vec<(String, Details)> {
        let all = self.inner.tls.certificates().into_iter();
        all.map(|one| ("negotiator".to_owned(), one)).collect()
    }
}

fn clusters_of(snapshot: &Snapshot) -> Vec<Cluster> {
    snapshot
        .section::<Vec<Cluster>>()
        .cloned()
        .unwrap_or_default()
}

/// Follows orders until the last one.
async fn follow(
    dispatcher: Rc<Dispatcher>,
    tls: Arc<Listener>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut serving: HashMap<SocketAddr, Serving> = HashMap::new();
    // Those that accept nobody any more, but have connections.
    let mut closing: Vec<Serving> = Vec::new();
    while let Some(Order::Apply { next, listeners }) = orders.recv().await {
        dispatcher.set(&next);
        let settings = next.section::<Settings>().cloned().unwrap_or_default();
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
                None => Serving::start(listener, &settings, &tls, &dispatcher),
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

/// Memory that the hyper library and a decision take of each connection beside its request, in bytes.
const CONNECTION_BYTES: u64 = 16 << 10;

/// Memory that TLS takes of each connection, in bytes: a handshake with its certificates, or two records.
const TLS_BYTES: u64 = 48 << 10;

/// Returns the number of connections that is configured, or less if there are no files and memory for them.
fn most_connections(settings: &Settings) -> usize {
    let memory = memory::Shares::of_process();
    let tls = settings.tls.as_ref().map_or(0, |_| TLS_BYTES);
    let each = settings.max_header_bytes as u64 + CONNECTION_BYTES + tls;
    let fit = usize::try_from(memory.negotiator / each).unwrap_or(usize::MAX);
    if fit < settings.max_connections {
        info!(
            connections = fit,
            memory = memory.memory_bound.all,
            limit = %memory.memory_bound.by,
            "negotiator: the memory allows fewer connections than max_connections"
        );
    }
    let files = Shares::of_process().negotiator;
    settings.max_connections.min(files).min(fit).max(1)
}

/// A listener that is served.
struct Serving {
    settings: Settings,
    phase: watch::Sender<Phase>,
    task: tokio::task::JoinHandle<()>,
}

impl Serving {
    fn start(
        listener: StdListener,
        settings: &Settings,
        tls: &Arc<Listener>,
        dispatcher: &Rc<Dispatcher>,
    ) -> io::Result<Self> {
        let listener = BoundedListener::new(
            TcpListener::from_std(listener)?,
            "negotiator",
            most_connections(settings),
            settings.idle_timeout,
        );
        let listener = listener.with_tls(Arc::clone(tls));
        let limits = evenkeel_net::http::Settings {
            max_header_bytes: settings.max_header_bytes,
        };
        let (phase, phases) = watch::channel(Phase::Serve);
        let serve =
            evenkeel_net::http::serve_listener(listener, limits, Rc::clone(dispatcher), phases);
        Ok(Serving {
            settings: settings.clone(),
            phase,
            task: tokio::task::spawn_local(serve),
        })
    }

    /// True if the listener's limits are those that `settings` ask for.
    fn has_settings(&self, settings: &Settings) -> bool {
        // What it listens on, and its certificates, are not the limits of a listener.
        let settings = Settings {
            listen: self.settings.listen.clone(),
            tls: self.settings.tls.clone(),
            ..settings.clone()
        };
        self.settings == settings
    }

    fn tell(self, phase: Phase) -> Self {
        self.phase.send_replace(phase);
        self
    }
}

#[cfg(test)]
mod tests;
