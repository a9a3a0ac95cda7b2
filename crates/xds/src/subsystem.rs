//! The subsystem: its thread, its listeners, and what it tells of itself.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_config::{Config, Xds as Section};
use evenkeel_manager::Manager;
use evenkeel_manager::certificates;
use evenkeel_manager::endpoint::Endpoint;
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::{Service, StartError, Work};
use evenkeel_manager::snapshot::{GroupHandle, Snapshot};
use evenkeel_manager::subsystem::{Commit, Exclusive, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::inherited::InheritedSocket;
use evenkeel_net::listen::Listeners;
use evenkeel_net::{Clock, start_thread};
use evenkeel_tls::certificate::Details;
use evenkeel_tls::listener::Listener;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tracing::error;

use crate::registry::Registry;
use crate::server::Server;
use crate::status::XdsStatus;

/// Owner of the listeners: the section.
const WHOSE: &str = "xds";

/// The part of a [`Handover`] with the keys of tickets.
const TICKETS: &str = "xds_tickets";

/// Changes of members that come together are taken in together.
const PAUSE: Duration = Duration::from_millis(50);

/// Time that streams have to end when the process ends.
const GRACE: Duration = Duration::from_millis(500);

/// The server of xDS from outside. Cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Xds {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    /// Prefix of the versions of this process.
    epoch: String,
    registry: Arc<Registry>,
    tls: Arc<Listener>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Listeners in use, by the address that the configuration asks for.
    listeners: Listeners,
    /// Once a configuration has wanted it.
    thread: Option<Thread>,
    /// True once nothing is opened any more.
    stopped: bool,
    /// True if there is a section.
    wanted: bool,
    /// The groups that there are; `None` as long as that is not known. Nobody is listened to before: whoever
    /// asked for all groups then would be told that there are none, and drop what it has.
    handles: Option<Vec<Arc<GroupHandle>>>,
}

struct Thread {
    orders: mpsc::UnboundedSender<Order>,
    handle: JoinHandle<()>,
}

/// Order to the thread.
enum Order {
    /// Section that the configuration has from now on; `None` is that nothing is served any more.
    Section(Option<Box<Section>>),
    /// Listen there, and nowhere else.
    Listen(Vec<(SocketAddr, StdListener)>),
    /// The groups that there are from now on.
    Groups(Vec<Arc<GroupHandle>>),
    /// End of the thread.
    Stop,
}

impl fmt::Debug for Xds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xds").finish_non_exhaustive()
    }
}

impl Xds {
    /// Makes a server that serves nothing yet. Its thread starts with the first configuration that wants the
    /// server. `clock` is the clock of the whole process.
    ///
    /// # Errors
    ///
    /// The system gives no random number.
    pub fn new(clock: Clock) -> io::Result<Self> {
        let epoch = u32::from_ne_bytes(evenkeel_net::random_bytes()?);
        Ok(Xds {
            inner: Arc::new(Inner {
                clock,
                epoch: format!("{epoch:08x}"),
                registry: Arc::default(),
                tls: Arc::new(Listener::without_tls(&["h2"])),
                state: Mutex::default(),
            }),
        })
    }

    /// Returns the addresses that are really listened on, in the order of the configured addresses.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.inner.state().listeners.local_addresses()
    }

    /// Returns the status; `None` if there is no `[xds]`.
    pub fn status(&self) -> Option<XdsStatus> {
        let state = self.inner.state();
        let listen = state.listeners.local_addresses();
        let now = self.inner.clock.now();
        state
            .wanted
            .then(|| self.inner.registry.status(listen, now))
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn send_order(&self, order: Order) {
        if let Some(thread) = &self.thread {
            // It ends only when it is told to.
            let _ = thread.orders.send(order);
        }
    }

    /// Has the thread listen as is configured.
    fn send_listen_order(&self) {
        match self.listeners.clone_for_thread(0, 1) {
            Ok(listeners) => self.send_order(Order::Listen(listeners)),
            Err(errors) => {
                for error in errors {
                    error!("xds cannot listen: {error}");
                }
            }
        }
    }
}

impl Thread {
    fn start(inner: &Inner) -> io::Result<Self> {
        let (orders, commands) = mpsc::unbounded_channel();
        let (clock, epoch) = (inner.clock, inner.epoch.clone());
        let (tls, registry) = (Arc::clone(&inner.tls), Arc::clone(&inner.registry));
        let handle = start_thread("xds", move |runtime| {
            let server = Rc::new(Server::new(clock, &epoch, tls, registry));
            let local = LocalSet::new();
            local.block_on(&runtime, follow_orders(server, commands));
            // Streams end with the set.
            runtime.block_on(async {
                let _ = tokio::time::timeout(GRACE, local).await;
            });
        })?;
        Ok(Thread { orders, handle })
    }
}

/// Follows orders until the last one.
async fn follow_orders(server: Rc<Server>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let looking = Rc::clone(&server);
    let looking = tokio::task::spawn_local(async move { looking.look_forever().await });
    let mut listening: HashMap<SocketAddr, watch::Sender<bool>> = HashMap::new();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Section(Some(section)) => server.set_section(&section),
            // What there was stays in the world: to take it away would take it from all clients.
            Order::Section(None) => end_connections(&server, &mut listening),
            Order::Groups(handles) => server.set_groups(handles),
            Order::Listen(listeners) => {
                let mut before = std::mem::take(&mut listening);
                for (address, listener) in listeners {
                    if let Some(same) = before.remove(&address) {
                        listening.insert(address, same);
                        continue;
                    }
                    match TcpListener::from_std(listener) {
                        Ok(listener) => {
                            let (end, ends) = watch::channel(false);
                            let server = Rc::clone(&server);
                            tokio::task::spawn_local(server.accept_connections(listener, ends));
                            listening.insert(address, end);
                        }
                        Err(error) => error!(%address, %error, "xds cannot listen"),
                    }
                }
                for end in before.into_values() {
                    end.send_replace(true);
                }
            }
            Order::Stop => break,
        }
    }
    looking.abort();
    end_connections(&server, &mut listening);
}

/// Ends all connections. First nobody is accepted any more: a client may connect again at once, and would stay.
fn end_connections(server: &Server, listening: &mut HashMap<SocketAddr, watch::Sender<bool>>) {
    for (_, end) in listening.drain() {
        end.send_replace(true);
    }
    server.end_streams();
}

impl Service for Xds {
    fn start(&self, manager: &Arc<Manager>) -> Work<Result<(), StartError>> {
        let handles = manager.handles();
        let mut state = self.inner.state();
        state.handles = Some(handles.clone());
        state.send_order(Order::Groups(handles));
        state.send_listen_order();
        Box::pin(std::future::ready(Ok(())))
    }

    fn run(&self, manager: Arc<Manager>) -> Work<()> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let mut changes = manager.subscribe_changes();
            loop {
                changes.borrow_and_update();
                let handles = manager.handles();
                {
                    let mut state = inner.state();
                    state.handles = Some(handles.clone());
                    state.send_order(Order::Groups(handles));
                }
                if changes.changed().await.is_err() {
                    return;
                }
                tokio::time::sleep(PAUSE).await;
            }
        })
    }
}

impl Subsystem for Xds {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let section = next.section::<Section>();
        let mut state = self.inner.state();
        // Without a thread there is nobody to be told that nothing is wanted.
        if state.stopped || section.is_none() && state.thread.is_none() {
            return Ok(Box::new(|| ()));
        }
        if state.thread.is_none() {
            let started = Thread::start(&self.inner);
            let whose = WHOSE;
            let started = started.map_err(|error| vec![PrepareError::Thread { whose, error }])?;
            state.thread = Some(started);
        }
        let wanted = section.map_or(&[][..], |section| &section.listen);
        let tls = section.and_then(|section| section.tls.as_ref());
        let load = || self.inner.tls.load_server(tls, WHOSE);
        let server = next.reload.then(load).transpose();
        let server = server.map_err(PrepareError::files)?;
        let cannot_listen = PrepareError::listen(WHOSE);
        let listeners = state.listeners.prepare_addresses(wanted, 1, WHOSE);
        let listeners = listeners.map_err(&cannot_listen)?;
        // The thread gets handles of its own.
        let for_thread = listeners.clone_for_thread(0, 1).map_err(&cannot_listen)?;
        let inner = Arc::clone(&self.inner);
        let section = section.cloned();
        Ok(Box::new(move || {
            let mut state = inner.state();
            state.listeners = listeners;
            state.wanted = section.is_some();
            if let Some(server) = server {
                inner.tls.set(server);
            }
            state.send_order(Order::Section(section.map(Box::new)));
            if let Some(handles) = state.handles.clone() {
                state.send_order(Order::Groups(handles));
                state.send_order(Order::Listen(for_thread));
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
        self.inner.state().send_order(Order::Listen(Vec::new()));
    }

    fn resume(&self) {
        self.inner.state().send_listen_order();
    }

    fn exclusive(&self, config: &Config) -> Vec<Exclusive> {
        let listen = config.xds.iter().map(|own| &*own.listen);
        listen.flat_map(Exclusive::tcp).collect()
    }

    fn check(&self, config: &Config) -> PrepareErrors {
        let own = config.xds.as_ref();
        PrepareError::files(Listener::check_files(own.and_then(|own| own.tls.as_ref())))
    }

    fn stop(&self) {
        let thread = {
            let mut state = self.inner.state();
            state.listeners.clear();
            state.stopped = true;
            state.send_order(Order::Stop);
            state.thread.take()
        };
        if let Some(thread) = thread
            && thread.handle.join().is_err()
        {
            error!("xds has panicked");
        }
    }

    fn announce(&self, _: &Snapshot) -> Vec<String> {
        let addresses = self.local_addresses().into_iter();
        addresses.map(|at| format!("xds on {at}")).collect()
    }

    fn metrics(&self, out: &mut Exposition) {
        crate::metrics::write_families(out, &self.inner.registry);
        certificates::failures(out, "evenkeel_xds_tls_failures_total", &self.inner.tls);
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let own = self.clone();
        vec![Endpoint::with_value(
            "/v1/xds",
            "The clients of xDS: what each wants, has accepted and has refused; null if there is no `[xds]`",
            move || own.status(),
        )]
    }

    fn certificates(&self) -> Vec<(String, Details)> {
        let all = self.inner.tls.certificates().into_iter();
        all.map(|one| ("xds".to_owned(), one)).collect()
    }
}
