//! A worker: one thread, one single-threaded runtime, its own listeners (by
//! `SO_REUSEPORT`), connections, pools and counters. Workers share groups, which are
//! lock-free, and nothing else on the hot path.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_core::member::Reason;
use evenkeel_core::time::Instant;
use evenkeel_manager::snapshot::RuleSnapshot;
use evenkeel_net::Clock;
use evenkeel_net::http::IdleConnections;
use evenkeel_tls::server::Server;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::access::AccessLog;
use crate::buffer::BufferPool;
use crate::date::HttpDate;
use crate::files::{ClientFile, ConnectionFile, Files, WaitReason};
use crate::http2::links::Links;
use crate::http2::tasks::Tasks;
use crate::listen::{ListenKey, Listening};
use crate::memory::Memory;
use crate::metrics::RuleMetrics;
use crate::passwords::Proofs;
use crate::pipe::{Pipe, PipePool};
use crate::pool::UpstreamPool;
use crate::quota::Quotas;
use crate::service::{LocalRule, RuleShared, Service, State};
use crate::timers::{self, TimerFile, Timers};
use crate::trace::Tracer;
use crate::watch::{ServiceId, SheddingMembers, TICK, Watchers};

/// Command of the main thread to a worker.
#[derive(Debug)]
pub(crate) enum Command {
    /// A new configuration.
    Apply(Plan),
    /// Log that gets access records from now on.
    Log(Option<AccessLog>),
    /// Accept clients, or leave them to another process for now.
    Accept(bool),
    /// The listeners are wanted, under handles of their own.
    Sockets(std::sync::mpsc::Sender<(ListenKey, io::Result<OwnedFd>)>),
    /// Tracer that gets traces from now on.
    Trace(Option<Tracer>),
    /// Accept nothing more, end what is idle, cut what is left at the given time,
    /// and return.
    Drain(Instant),
}

/// A configuration as one worker gets it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) services: Vec<ServicePlan>,
}

/// A rule as one worker gets it.
#[derive(Debug)]
pub(crate) struct ServicePlan {
    pub(crate) name: Arc<str>,
    pub(crate) snapshot: Arc<RuleSnapshot>,
    pub(crate) quotas: Option<Arc<Quotas>>,
    pub(crate) shared: Arc<RuleShared>,
    pub(crate) metrics: Arc<RuleMetrics>,
    pub(crate) tls: Option<Arc<Server>>,
    /// Addresses on which the rule listens, with this worker's sockets if the address is new: one
    /// socket, or more that the process before has left.
    pub(crate) listen: Vec<(ListenKey, Vec<std::net::TcpListener>)>,
}

/// State that all tasks of a worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) clock: Clock,
    pub(crate) rng: RefCell<fastrand::Rng>,
    pub(crate) buffers: BufferPool,
    pub(crate) pipes: PipePool,
    pub(crate) upstreams: UpstreamPool,
    /// Idle connections to choosers.
    pub(crate) choosers: IdleConnections<ConnectionFile>,
    pub(crate) links: Links,
    pub(crate) stream_tasks: Tasks,
    pub(crate) files: Arc<Files>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) watchers: Rc<Watchers>,
    pub(crate) timers: Rc<Timers>,
    pub(crate) log: RefCell<Option<AccessLog>>,
    pub(crate) tracer: RefCell<Option<Tracer>>,
    /// True if there is a log or a tracer.
    pub(crate) records: Cell<bool>,
    /// Date of answers of the balancer's own.
    pub(crate) date: HttpDate,
    /// Passwords that were right.
    pub(crate) proofs: RefCell<Proofs>,
    services: RefCell<HashMap<Arc<str>, Rc<Service>>>,
    listeners: RefCell<HashMap<ListenKey, Vec<Rc<Listening>>>>,
    next_service: Cell<u32>,
    /// The process ends: HTTP connections that stay idle are closed, those of rules
    /// that are gone, too.
    pub(crate) closing: Cell<bool>,
    /// Another process accepts clients. When this one ends, idle connections may stay as long as
    /// anything may: their clients need not notice.
    pub(crate) rests: Cell<bool>,
    /// Tasks that have read something and let others read before they send it.
    deferred: Cell<usize>,
    /// Client connections being served.
    pub(crate) open: Cell<usize>,
    /// A task has panicked that the worker cannot do without.
    broken: Cell<bool>,
}

/// Time for which buffers and pipes are kept without being needed.
const SPARE_FOR: Duration = Duration::from_secs(10);

/// Most tasks that hold what they have read while others read.
const MAX_DEFERRED: usize = 64;

/// Kept by a task that the worker cannot do without: if it panics, the worker ends.
pub(crate) struct Vital(pub(crate) Rc<Worker>);

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.set(true);
        }
    }
}

/// A worker's thread, from outside.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) commands: UnboundedSender<Command>,
    /// Thread; `None` once somebody waits for its end. Commands still reach the worker then.
    pub(crate) thread: Option<std::thread::JoinHandle<()>>,
}

/// End of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerEnd {
    /// The worker has ended as it was told to.
    InOrder,
    /// The worker cannot go on.
    Broken,
}

/// The worker that has ended though nobody told it to, if any.
pub(crate) type FailedWorker = tokio::sync::watch::Sender<Option<usize>>;

/// Starts worker number `index`.
pub(crate) fn start(
    clock: Clock,
    index: usize,
    files: &Arc<Files>,
    memory: &Arc<Memory>,
    failed: &FailedWorker,
) -> io::Result<WorkerHandle> {
    let (commands, inbox) = unbounded_channel();
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let (files, memory) = (Arc::clone(files), Arc::clone(memory));
    let thread = supervise_worker(index, failed.clone(), move || {
        // The runtime must be built on its own thread; what fails here must be told to
        // the caller, who waits.
        match build_worker(clock, files, memory) {
            Ok((runtime, worker, timer)) => {
                let _ = ready.send(Ok(()));
                runtime.block_on(run(worker, timer, inbox))
            }
            Err(error) => {
                drop(ready.send(Err(error)));
                WorkerEnd::InOrder
            }
        }
    })?;
    match started.recv() {
        Ok(result) => result?,
        Err(_) => {
            return Err(io::Error::other(
                "the thread of the worker ended at its start",
            ));
        }
    }
    Ok(WorkerHandle {
        commands,
        thread: Some(thread),
    })
}

/// Runs a worker in a thread of its own. If it panics or breaks, that is told: a worker that
/// is gone would take its connections and its share of the listeners with it, silently.
fn supervise_worker(
    index: usize,
    failed: FailedWorker,
    work: impl FnOnce() -> WorkerEnd + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    /// Dropped by a panic, too.
    struct Alarm(usize, FailedWorker, WorkerEnd);

    impl Drop for Alarm {
        fn drop(&mut self) {
            if self.2 == WorkerEnd::Broken {
                tracing::error!(worker = self.0, "a worker has failed");
                self.1.send_replace(Some(self.0));
            }
        }
    }

    std::thread::Builder::new()
        .name(format!("worker-{index}"))
        .spawn(move || {
            let mut alarm = Alarm(index, failed, WorkerEnd::Broken);
            alarm.2 = work();
        })
}

fn build_worker(
    clock: Clock,
    files: Arc<Files>,
    memory: Arc<Memory>,
) -> io::Result<(LocalRuntime, Rc<Worker>, OwnedFd)> {
    // No time driver: it would read the clock and look at its wheel in every turn of
    // the event loop. A timer file ticks for the sweep instead.
    let runtime = Builder::new_current_thread()
        .enable_io()
        .event_interval(128)
        .global_queue_interval(1024)
        .build_local(LocalOptions::default())?;
    let timer = timers::timer_file()?;
    timers::set(&timer, TICK, TICK)?;
    let worker = Rc::new(Worker {
        clock,
        rng: RefCell::new(fastrand::Rng::new()),
        buffers: BufferPool::new(Arc::clone(&memory)),
        pipes: PipePool::new(Arc::clone(&files)),
        upstreams: UpstreamPool::default(),
        choosers: IdleConnections::default(),
        links: Links::default(),
        date: HttpDate::default(),
        proofs: RefCell::new(Proofs::new()),
        stream_tasks: Tasks::default(),
        files,
        memory,
        watchers: Watchers::new(clock.now()),
        timers: Timers::new(clock),
        log: RefCell::new(None),
        tracer: RefCell::new(None),
        records: Cell::new(false),
        services: RefCell::default(),
        listeners: RefCell::default(),
        next_service: Cell::new(0),
        closing: Cell::new(false),
        rests: Cell::new(false),
        deferred: Cell::new(0),
        open: Cell::new(0),
        broken: Cell::new(false),
    });
    Ok((runtime, worker, timer))
}

async fn run(
    worker: Rc<Worker>,
    timer: OwnedFd,
    mut inbox: UnboundedReceiver<Command>,
) -> WorkerEnd {
    let timer = match TimerFile::new_watched(timer) {
        Ok(timer) => timer,
        Err(error) => {
            tracing::error!(%error, "a worker cannot watch its timer");
            return WorkerEnd::Broken;
        }
    };
    let mut cut_at = None;
    let mut release_at = worker.now();
    loop {
        tokio::select! {
            command = inbox.recv() => match command {
                Some(Command::Apply(plan)) => worker.apply_plan(plan),
                Some(Command::Accept(accepts)) => {
                    worker.rests.set(!accepts);
                    worker.each_listening(|_, listening| listening.set_handed_over(!accepts));
                }
                Some(Command::Sockets(to)) => worker.each_listening(|key, listening| {
                    let _ = to.send((key.clone(), listening.clone_socket()));
                }),
                Some(Command::Log(log)) => {
                    *worker.log.borrow_mut() = log;
                    worker.note_records();
                }
                Some(Command::Trace(tracer)) => {
                    *worker.tracer.borrow_mut() = tracer;
                    worker.note_records();
                }
                Some(Command::Drain(at)) => {
                    worker.drain_services();
                    cut_at = Some(at);
                }
                // The proxy was dropped without a shutdown.
                None => return WorkerEnd::InOrder,
            },
            _ = timer.wait_for_ring() => {
                let now = worker.now();
                if let Some(log) = &mut *worker.log.borrow_mut() {
                    log.hand_over();
                }
                worker.watchers.wake_expired(now);
                worker.watchers.wake_shedding(&worker.list_shedding(), now);
                worker.upstreams.close_expired(now);
                worker.choosers.close_expired(now);
                worker.links.forget_closed();
                if release_at <= now {
                    worker.buffers.release_unused();
                    worker.pipes.release_unused();
                    release_at = now.after(SPARE_FOR);
                }
                if worker.files.are_short() {
                    // Somebody of another worker waits for one of these.
                    worker.upstreams.evict_oldest();
                    worker.choosers.clear();
                }
                if cut_at.is_some_and(|at| at <= now) {
                    worker.watchers.cut_connections(None);
                }
                // Not earlier than a tick after the order to drain: the accept queues
                // are served by then.
                if cut_at.is_some() && worker.open.get() == 0 {
                    return WorkerEnd::InOrder;
                }
                if worker.broken.get() {
                    return WorkerEnd::Broken;
                }
            }
        }
    }
}

impl Worker {
    /// The current instant.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    fn note_records(&self) {
        let (log, tracer) = (self.log.borrow(), self.tracer.borrow());
        self.records.set(log.is_some() || tracer.is_some());
    }

    /// Lets the tasks that are ready read what has come in, before the caller sends what it has
    /// read. So what goes to one peer leaves together, and wakes it once instead of for every
    /// message: 6 % less processor time for a small request. Waits for nothing that is not ready,
    /// and makes no system call. For TCP, where nothing else is done for a message, it gains nothing.
    pub(crate) fn others_first(&self) -> impl Future<Output = ()> {
        let mut has_waited = false;
        std::future::poll_fn(move |cx| {
            let waiting = self.deferred.get();
            if has_waited {
                self.deferred.set(waiting.saturating_sub(1));
                return Poll::Ready(());
            }
            if waiting >= MAX_DEFERRED {
                return Poll::Ready(());
            }
            has_waited = true;
            self.deferred.set(waiting + 1);
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    /// The right to another connection, if need be in place of an idle one to a member.
    pub(crate) fn connection_file(&self) -> Option<ConnectionFile> {
        loop {
            let file = self.files.take_connection();
            if file.is_some() || !self.close_idle() {
                return file;
            }
        }
    }

    /// The right to another client, if need be in place of an idle connection to a member.
    pub(crate) fn client_file(&self) -> Result<ClientFile, WaitReason> {
        loop {
            match self.files.take_client() {
                Err(WaitReason::Connections) if self.close_idle() => {}
                result => return result,
            }
        }
    }

    /// Closes files that nobody needs at the moment; answers whether there was one.
    pub(crate) fn close_idle(&self) -> bool {
        self.pipes.clear() || self.upstreams.evict_oldest() || self.links.evict_idle()
    }

    /// A pipe, if there is one to be had.
    pub(crate) fn take_pipe(&self) -> Option<Pipe> {
        self.pipes.take(self.watchers.coarse_now())
    }

    /// The members whose idle connections are to be closed because of load alerts.
    fn list_shedding(&self) -> SheddingMembers {
        let mut shedding = SheddingMembers::new();
        for service in self.services.borrow().values() {
            for target in service.rule().targets() {
                let group = target.group.current.load();
                let alert = &group.settings().alert;
                if alert.close_idle.is_none() {
                    continue;
                }
                for member in group.members() {
                    if member.slot.has_reason(Reason::Shedding) {
                        shedding.insert(member.id, alert.clone());
                    }
                }
            }
        }
        shedding
    }

    fn apply_plan(self: &Rc<Self>, plan: Plan) {
        let mut old_services = self.services.take();
        let mut old_listeners = self.listeners.take();
        for plan in plan.services {
            let rule = LocalRule {
                snapshot: plan.snapshot,
                quotas: plan.quotas,
            };
            let service = match old_services.remove(&plan.name) {
                Some(service) => {
                    service.set_rule(rule, plan.tls);
                    service
                }
                None => {
                    let id = ServiceId(self.next_service.get());
                    self.next_service.set(id.0.wrapping_add(1));
                    Rc::new(Service::new(
                        id,
                        Arc::clone(&plan.name),
                        rule,
                        plan.shared,
                        plan.metrics,
                        plan.tls,
                        self.now(),
                    ))
                }
            };
            for (key, sockets) in plan.listen {
                let mut all = old_listeners.remove(&key).unwrap_or_default();
                all.iter()
                    .for_each(|listening| listening.set_service(Rc::clone(&service)));
                if all.is_empty() && sockets.is_empty() {
                    tracing::error!(rule = %plan.name, ?key, "the worker has no listener for an address of the rule");
                }
                for socket in sockets {
                    match Listening::start(self, &key, socket, &service) {
                        Ok(listening) => all.push(listening),
                        Err(error) => {
                            tracing::error!(rule = %plan.name, %error, "cannot accept clients");
                        }
                    }
                }
                self.listeners.borrow_mut().insert(key, all);
            }
            if service.rule().rule.enabled {
                service.state.set(State::Running);
            } else {
                self.end_service(&service);
            }
            self.services.borrow_mut().insert(plan.name, service);
        }
        // After the new listeners are served: on an address that passes from one rule
        // to another nothing is refused.
        old_listeners
            .values()
            .flatten()
            .for_each(|listening| listening.stop());
        old_services
            .values()
            .for_each(|service| self.end_service(service));
    }

    fn each_listening(&self, act: impl Fn(&ListenKey, &Listening)) {
        for (key, all) in self.listeners.borrow().iter() {
            all.iter().for_each(|listening| act(key, listening));
        }
    }

    fn end_service(&self, service: &Service) {
        service.state.set(State::Draining);
        if service.rule().rule.terminate_on_disable {
            self.watchers.cut_connections(Some(service.id));
        } else {
            self.watchers.wake_tasks(Some(service.id));
        }
    }

    fn drain_services(&self) {
        for listening in self.listeners.take().values().flatten() {
            listening.stop();
        }
        for service in self.services.borrow().values() {
            service.state.set(State::Draining);
        }
        self.closing.set(true);
        self.watchers.wake_tasks(None);
    }
}

#[cfg(test)]
pub(crate) mod tests;
