//! The proxy from outside: the data plane of the manager.

mod listeners;
mod rule_error;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::address::Address;
use evenkeel_limits::files::{self, Shares, Users};
use evenkeel_limits::memory;
use evenkeel_manager::config::{Config, Corba, Negotiator, Protocol, Rule, Source, Xds};
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::files as answer_files;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::member_tls::{self, Clients};
use evenkeel_manager::service::Service;
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::status::Status;
use evenkeel_manager::sticky::{self, Cookies};
use evenkeel_manager::subsystem::{
    Commit, Exclusive, PrepareError, PrepareErrors, RuleTraffic, Subsystem,
};
use evenkeel_net::Clock;
use evenkeel_net::inherited::InheritedSocket;
use evenkeel_net::unix::SocketFile;
use evenkeel_tls::certificate::Details;
use evenkeel_tls::server::Server;
use evenkeel_tls::ticket::Keys;
use socket2::Socket;

use self::listeners::{Opened, listen_keys, listener_name, open_listeners, taken_addresses};
use self::rule_error::{RuleError, cannot_listen};
use crate::access::AccessLog;
use crate::dispatcher::{self, Command, Plan, ServicePlan, WorkerHandle};
use crate::files::Files;
use crate::listen::ListenKey;
use crate::memory::Memory;
use crate::metrics::{Metrics, RuleMetrics};
use crate::quota::{Fill, Quotas};
use crate::service::RuleShared;
use crate::trace::Tracer;
use crate::transparent;
use crate::udp::client_sessions::ClientSessions;
use crate::udp::errors::ErrorSender;

/// The part of a [`Handover`] with the keys of tickets.
const TICKETS: &str = "tickets";

/// A worker answers within this time.
const ANSWER: Duration = Duration::from_secs(30);

/// Workers that carry the traffic of all rules. Cheap to clone; all clones are the same
/// proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    clock: Clock,
    workers: usize,
    metrics: Metrics,
    files: Arc<Files>,
    memory: Arc<Memory>,
    failed: dispatcher::FailedWorker,
    state: Mutex<PlaneState>,
    client_sessions: ClientSessions,
    udp_errors: Arc<ErrorSender>,
    /// Keys for sessions of all rules that name no file. The keys outlive reloads.
    ticket_keys: Arc<Keys>,
}

#[derive(Debug)]
struct PlaneState {
    workers: Vec<WorkerHandle>,
    /// Listeners in use, with the addresses that they really have.
    listeners: HashMap<ListenKey, Held>,
    /// True if there was a configuration already.
    started: bool,
    shared: HashMap<Box<str>, Arc<RuleShared>>,
    /// Shares of open files and memory, once there is a configuration.
    shares: Option<(Shares, memory::Shares)>,
    /// TLS servers of the rules with TLS, by the rules' names.
    tls: Servers,
    /// Limits of rules with what clients have used of them, by the rules' names.
    quotas: BTreeMap<Arc<str>, Arc<Quotas>>,
}

/// A listener in use.
#[derive(Debug)]
struct Held {
    /// Address on which the listener really listens.
    address: Address,
    /// File of a Unix socket, which is gone with the listener.
    file: Option<SocketFile>,
}

type Servers = HashMap<Box<str>, Arc<Server>>;

/// The workers could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start worker {worker}: {source}; check the limits on threads and open files")]
pub struct StartError {
    worker: usize,
    source: io::Error,
}

impl Proxy {
    /// Starts `workers` threads (at least one) that serve nothing yet. `clock` is the
    /// clock of the whole process.
    ///
    /// The soft limit on open files is raised to the hard one: every client takes a
    /// file or two.
    pub fn start(clock: Clock, workers: usize) -> Result<Self, StartError> {
        files::raise_limit();
        let workers = workers.max(1);
        let files = Files::new(Shares::of_process());
        // What the process may have is found out when these threads run: nobody is served
        // before there is a configuration.
        let nothing = memory::MemoryBound {
            all: 0,
            used: 0,
            by: memory::By::Machine,
        };
        let nothing = memory::Shares::new(nothing, memory::Users::default());
        let memory = Memory::new(nothing, workers);
        let failed = dispatcher::FailedWorker::new(None);
        let handles = (0..workers)
            .map(|index| {
                let started = dispatcher::start(clock, index, &files, &memory, &failed);
                started.map_err(|source| StartError {
                    worker: index,
                    source,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Proxy {
            inner: Arc::new(Inner {
                clock,
                workers,
                metrics: Metrics::default(),
                files,
                memory,
                failed,
                state: Mutex::new(PlaneState {
                    workers: handles,
                    listeners: HashMap::new(),
                    started: false,
                    shared: HashMap::new(),
                    shares: None,
                    tls: Default::default(),
                    quotas: BTreeMap::new(),
                }),
                client_sessions: ClientSessions::default(),
                udp_errors: Arc::default(),
                ticket_keys: Arc::new(Keys::new_rotating()),
            }),
        })
    }

    /// Returns the list of clients with sessions of UDP.
    pub fn client_sessions(&self) -> ClientSessions {
        self.inner.client_sessions.clone()
    }

    /// The counters of all rules.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Most clients that rules may have at a time, over all rules and workers: what the
    /// limits on open files and memory allow. And how many there are.
    pub fn client_counts(&self) -> (usize, usize) {
        self.inner.files.client_counts()
    }

    /// Returns the fill of the tables in which clients of rules are remembered, by the rules'
    /// names.
    pub(crate) fn quota_fills(&self) -> Vec<(Arc<str>, Vec<Fill>)> {
        let quotas = self.lock_state().quotas.clone();
        let now = self.inner.clock.now();
        let fill = |(rule, quotas): (_, Arc<Quotas>)| (rule, quotas.table_fills(now).collect());
        quotas.into_iter().map(fill).collect()
    }

    /// Returns the shares of open files and memory; `None` before the first configuration.
    pub fn shares(&self) -> Option<(Shares, memory::Shares)> {
        self.lock_state().shares
    }

    /// Sets the log that gets access records from now on; with `None`, no log gets them.
    pub fn set_access_log(&self, log: Option<&AccessLog>) {
        for worker in &self.lock_state().workers {
            let _ = worker
                .commands
                .send(Command::Log(log.map(AccessLog::clone_for_worker)));
        }
    }

    /// Sets the tracer that gets traces of requests from now on; with `None`, no tracer gets them.
    pub fn set_tracer(&self, tracer: Option<&Tracer>) {
        for worker in &self.lock_state().workers {
            let _ = worker.commands.send(Command::Trace(tracer.cloned()));
        }
    }

    /// Comes to an end only if a worker does that nobody told to: with its number. It has
    /// taken its connections with it, and what the others know may be wrong, so that the
    /// process had better end, too, and be started again.
    pub async fn wait_for_failure(&self) -> usize {
        let mut failed = self.inner.failed.subscribe();
        loop {
            if let Some(worker) = *failed.borrow_and_update() {
                return worker;
            }
            if failed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The address on which the listener of `rule` configured as `address` really
    /// listens: another one where the configuration asks for port 0.
    pub fn local_address(&self, rule: &str, address: SocketAddr) -> Option<SocketAddr> {
        let state = self.lock_state();
        let mut keys = [Protocol::Tcp, Protocol::Udp]
            .into_iter()
            .map(|protocol| ListenKey::new(address.into(), rule, protocol));
        let held = keys.find_map(|key| state.listeners.get(&key))?;
        held.address.socket()
    }

    /// Stops accepting clients and closes HTTP connections that are idle for a second, or, if
    /// another process has [taken over](Subsystem::rest), none that the client leaves open; what is
    /// in progress may go on for `grace`, then it is cut. May be called again with less grace.
    pub fn drain(&self, grace: Duration) {
        let at = self.inner.clock.now().after(grace);
        let mut state = self.lock_state();
        state.listeners.clear();
        self.tell_workers(&state, || Command::Drain(at));
    }

    fn tell_workers(&self, state: &PlaneState, command: impl Fn() -> Command) {
        for worker in &state.workers {
            let _ = worker.commands.send(command());
        }
    }

    /// Stops accepting, or goes on with that.
    fn set_accepting(&self, accepts: bool) {
        let state = self.lock_state();
        for held in state.listeners.values() {
            held.file.iter().for_each(|file| file.hand_over(!accepts));
        }
        self.tell_workers(&state, || Command::Accept(accepts));
    }

    /// Waits until a drain is over. Blocks the calling thread.
    pub fn join_workers(&self) {
        let mut state = self.lock_state();
        let workers = state.workers.iter_mut();
        let threads: Vec<_> = workers.filter_map(|worker| worker.thread.take()).collect();
        // Not held while waiting: a second drain, with less grace, must get through.
        drop(state);
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker has panicked");
            }
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, PlaneState> {
        self.inner.lock_state()
    }
}

impl Inner {
    fn lock_state(&self) -> MutexGuard<'_, PlaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit_snapshot(
        &self,
        next: &Snapshot,
        mut sockets: HashMap<ListenKey, Opened>,
        servers: Servers,
    ) {
        let mut state = self.lock_state();
        let mut plans: Vec<Plan> = (0..self.workers)
            .map(|_| Plan {
                services: Vec::with_capacity(next.rules.len()),
            })
            .collect();
        let mut listeners = HashMap::new();
        let mut shared = HashMap::new();
        let mut all_quotas = BTreeMap::new();
        for snapshot in &next.rules {
            let rule = &snapshot.rule;
            let (name, cells): (_, Vec<Arc<RuleMetrics>>) =
                self.metrics
                    .rule_cells(&rule.name, rule.protocol, self.workers);
            // Also where the rule had another protocol before.
            let errors = self.udp_errors.open_for(rule.protocol);
            let new = || Arc::new(RuleShared::new(self.client_sessions.clone(), errors));
            let common = state.shared.remove(rule.name.as_str()).unwrap_or_else(new);
            let mut listens: Vec<Vec<(ListenKey, Vec<Socket>)>> =
                (0..self.workers).map(|_| Vec::new()).collect();
            for key in listen_keys(snapshot) {
                let (fresh, file) = sockets.remove(&key).unwrap_or_default();
                let mut fresh = fresh.into_iter();
                let held = match (fresh.as_slice().first(), state.listeners.remove(&key)) {
                    (None, Some(held)) => held,
                    (first, _) => Held {
                        address: match (&key.address, first.and_then(real_address)) {
                            (Address::Ip(_), Some(real)) => real.into(),
                            (wanted, _) => wanted.clone(),
                        },
                        file,
                    },
                };
                let mode = held
                    .file
                    .as_ref()
                    .map(|file| file.set_mode(rule.socket_mode()));
                if let Some(Err(error)) = mode {
                    tracing::error!(rule = %rule.name, address = %held.address, %error,
                        "cannot set the rights of the Unix socket");
                }
                let count = listens.len();
                for (index, listen) in listens.iter_mut().enumerate() {
                    // More than there are workers, if the process before had more.
                    let more = fresh.len().div_ceil(count - index);
                    listen.push((key.clone(), fresh.by_ref().take(more).collect()));
                }
                listeners.insert(key, held);
            }
            let quotas = Quotas::next(rule, &self.metrics, state.quotas.get(&name));
            if let Some(quotas) = &quotas {
                all_quotas.insert(Arc::clone(&name), Arc::clone(quotas));
            }
            for ((plan, listen), metrics) in plans.iter_mut().zip(listens).zip(cells) {
                plan.services.push(ServicePlan {
                    name: Arc::clone(&name),
                    snapshot: Arc::clone(snapshot),
                    quotas: quotas.clone(),
                    shared: Arc::clone(&common),
                    metrics,
                    tls: servers.get(rule.name.as_str()).cloned(),
                    listen,
                });
            }
            shared.insert(rule.name.as_str().into(), common);
        }
        let shares = Shares::new(
            files::file_limit(),
            Users {
                workers: self.workers,
                listeners: listeners.len(),
                negotiator: next.section::<Negotiator>().is_some(),
                corba: next.section::<Corba>().is_some(),
                xds: next.section::<Xds>().is_some(),
            },
        );
        let users = memory::Users {
            negotiator: next.section::<Negotiator>().is_some(),
            corba: next.section::<Corba>().is_some(),
        };
        let memory = memory::Shares::new(memory::MemoryBound::of_process(), users);
        if state.shares != Some((shares, memory)) {
            tell_of_shares(&shares, &memory);
            self.files.set_shares(shares.within_memory(&memory));
            self.memory.set_shares(memory, self.workers);
            state.shares = Some((shares, memory));
        }
        state.listeners = listeners;
        state.tls = servers;
        state.started = true;
        state.shared = shared;
        state.quotas = all_quotas;
        for (worker, plan) in state.workers.iter().zip(plans) {
            let _ = worker.commands.send(Command::Apply(plan));
        }
    }
}

/// Returns the address that a socket really has.
fn real_address(socket: &Socket) -> Option<SocketAddr> {
    socket.local_addr().ok()?.as_socket()
}

/// Reads what rules with TLS need.
fn load_servers<'a>(
    rules: impl IntoIterator<Item = &'a Rule>,
    keys: &Arc<Keys>,
) -> Result<Servers, PrepareErrors> {
    let (mut servers, mut errors) = (Servers::new(), PrepareErrors::new());
    for rule in rules {
        match evenkeel_tls::server::of_rule(rule, keys) {
            Ok(server) => {
                let server = server.map(|server| (rule.name.as_str().into(), Arc::new(server)));
                servers.extend(server);
            }
            Err(problems) => errors.extend(PrepareError::files(problems)),
        }
    }
    match errors.is_empty() {
        true => Ok(servers),
        false => Err(errors),
    }
}

/// Returns the errors that would keep rules from being served and that do not depend on who
/// listens: files that cannot be used.
pub fn check_files(config: &Config) -> PrepareErrors {
    let keys = Arc::new(Keys::new_rotating());
    let mut errors = load_servers(&config.rules, &keys).err().unwrap_or_default();
    let members = member_tls::load(&config.groups, &Clients::new());
    errors.extend(members.err().into_iter().flat_map(PrepareError::files));
    let cookies = sticky::load(&config.groups, &Cookies::new());
    errors.extend(cookies.err().into_iter().flat_map(PrepareError::files));
    let groups = config.groups.iter();
    let sources = groups.map(|group| (group.name.as_str(), group.source));
    errors.extend(no_sources(sources));
    let answers = answer_files::load(config, &answer_files::Files::default());
    errors.extend(answers.err().into_iter().flat_map(PrepareError::files));
    errors
}

/// Complaints of groups whose members are to see clients' addresses, if this process may not use
/// those.
fn no_sources<'a>(groups: impl Iterator<Item = (&'a str, Source)>) -> Option<PrepareError> {
    let mut groups = groups.filter(|(_, source)| *source == Source::Client);
    let (group, _) = groups.next()?;
    let error = transparent::check_allowed().err()?;
    let group = group.to_owned();
    Some(PrepareError::other(RuleError::Source { group, error }))
}

/// Says how many clients there may be, and why not more.
fn tell_of_shares(files: &Shares, memory: &memory::Shares) {
    let clients = files.client_limit().min(memory.clients);
    if memory.clients < files.client_limit() {
        tracing::info!(
            clients,
            memory = memory.memory_bound.all,
            limit = %memory.memory_bound.by,
            reserve = memory.reserve,
            "the memory limits the number of clients at a time; the reserve is for health checks, load \
             reports, the admin API and reloads"
        );
    } else {
        tracing::info!(
            files = files.all,
            clients,
            reserve = files.reserve(),
            "the limit on open files limits the number of clients at a time; the reserve is for health \
             checks, load reports, the admin API and reloads"
        );
    }
}

impl Service for Proxy {}

impl Subsystem for Proxy {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let state = self.lock_state();
        let mut sockets = HashMap::new();
        let mut seen = HashSet::new();
        let mut errors = Vec::new();
        if !state.started {
            // Before anything is bound here. Later on an address may still be held by a
            // listener of this process that is about to close.
            errors = next
                .rules
                .iter()
                .flat_map(|rule| taken_addresses(rule))
                .collect();
            if !errors.is_empty() {
                return Err(errors);
            }
        }
        for rule in &next.rules {
            let mut of_clients = rule.targets().filter(|of| of.source == Source::Client);
            if let Some(target) = of_clients.next() {
                let group = target.group.current.load();
                errors.extend(no_sources([(&**group.name(), target.source)].into_iter()));
            }
        }
        for snapshot in &next.rules {
            for key in listen_keys(snapshot) {
                if !seen.insert(key.clone()) {
                    let name = &snapshot.rule.name;
                    let error = RuleError::Twice {
                        rule: name.clone(),
                        address: key.address,
                    };
                    errors.push(PrepareError::rule(name, error));
                } else if !state.listeners.contains_key(&key) {
                    match open_listeners(&key, self.inner.workers, snapshot.rule.socket_mode()) {
                        Ok(bound) => {
                            sockets.insert(key, bound);
                        }
                        Err(error) => errors.push(cannot_listen(snapshot, &key, error)),
                    }
                }
            }
        }
        let rules = next.rules.iter().map(|rule| &rule.rule);
        let servers = match next.reload {
            true => load_servers(rules, &self.inner.ticket_keys),
            false => Ok(state.tls.clone()),
        };
        let servers = match servers {
            Ok(servers) if errors.is_empty() => servers,
            servers => {
                errors.extend(servers.err().into_iter().flatten());
                return Err(errors);
            }
        };
        let (inner, next) = (Arc::clone(&self.inner), Arc::clone(next));
        Ok(Box::new(move || {
            inner.commit_snapshot(&next, sockets, servers);
        }))
    }

    fn listening(&self) -> Vec<SocketAddr> {
        let state = self.lock_state();
        let held = state.listeners.values();
        held.filter_map(|held| held.address.socket()).collect()
    }

    fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        let (sender, sockets) = std::sync::mpsc::channel();
        let state = self.lock_state();
        let is_ours = |held: &Held| held.file.as_ref().is_some_and(SocketFile::is_ours);
        let held = state.listeners.iter();
        let ours: HashMap<_, _> = held
            .map(|(key, held)| (key.clone(), is_ours(held)))
            .collect();
        self.tell_workers(&state, || Command::Sockets(sender.clone()));
        // Not held while waiting: others want to know how it goes.
        drop((state, sender));
        let mut all = Vec::new();
        let mut known = HashSet::new();
        loop {
            let (key, socket) = match sockets.recv_timeout(ANSWER) {
                Ok(answer) => answer,
                // The last worker has answered.
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(io::Error::other("a worker does not answer"));
                }
            };
            // All workers have the same socket at a path.
            let is_new = known.insert(key.clone());
            if key.address.socket().is_none() && !is_new {
                continue;
            }
            let name = listener_name(&key, ours.get(&key).copied().unwrap_or_default());
            let socket = socket?;
            all.push(InheritedSocket { name, socket });
        }
        Ok(all)
    }

    fn hand_over(&self, to: &mut Handover) {
        to.give_tickets(TICKETS, &self.inner.ticket_keys);
        self.inner.client_sessions.hand_over(to);
    }

    fn take_over(&self, from: &Handover) {
        from.take_tickets(TICKETS, &self.inner.ticket_keys);
        self.inner.client_sessions.take_over(from);
    }

    fn rest(&self) {
        self.set_accepting(false);
    }

    fn resume(&self) {
        self.set_accepting(true);
    }

    fn exclusive(&self, config: &Config) -> Vec<Exclusive> {
        let rules = config.rules.iter().filter(|rule| rule.enabled);
        rules
            .flat_map(|rule| match rule.protocol {
                Protocol::Udp => {
                    let sockets = rule.listen.iter().filter_map(Address::socket);
                    Exclusive::udp(&sockets.collect::<Vec<_>>())
                }
                _ => Exclusive::of_rule(&rule.listen),
            })
            .collect()
    }

    fn announce(&self, current: &Snapshot) -> Vec<String> {
        let rules = current.rules.iter().map(|rule| &rule.rule);
        let all = rules.flat_map(|rule| rule.listen.iter().map(move |address| (rule, address)));
        let state = self.lock_state();
        let real = |(rule, address): (&Rule, &Address)| {
            let held =
                state
                    .listeners
                    .get(&ListenKey::new(address.clone(), &rule.name, rule.protocol))?;
            Some(format!("rule {} on {}", rule.name, held.address))
        };
        all.filter_map(real).collect()
    }

    fn status(&self, status: &mut Status) {
        self.fill_status(status);
    }

    fn metrics(&self, out: &mut Exposition) {
        self.write_families(out);
    }

    fn traffic(&self) -> Vec<RuleTraffic> {
        self.metrics().rule_traffic()
    }

    fn certificates(&self) -> Vec<(String, Details)> {
        let state = self.lock_state();
        let rules: BTreeMap<_, _> = state.tls.iter().collect();
        let mut all = Vec::new();
        for (rule, server) in rules {
            let certificates = server.certificates.iter().cloned();
            all.extend(certificates.map(|one| (format!("rule {rule}"), one)));
        }
        all
    }
}
