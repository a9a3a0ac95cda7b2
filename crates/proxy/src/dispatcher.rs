//! The thread of a worker: its commands, the rules that it serves, and their listeners.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::member::Reason;
use evenkeel_core::time::Instant;
use evenkeel_manager::snapshot::RuleSnapshot;
use evenkeel_net::Clock;
use evenkeel_tls::server::Server;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::access::AccessLog;
use crate::files::Files;
use crate::http::Tasks;
use crate::listen::{ListenKey, Listening};
use crate::memory::Memory;
use crate::metrics::RuleMetrics;
use crate::quota::Quotas;
use crate::service::{LocalRule, RuleShared, Service, State};
use crate::timers::TimerFile;
use crate::trace::Tracer;
use crate::udp::listener::DatagramListener;
use crate::watch::{ServiceId, SheddingMembers};
use crate::worker::{Worker, build_worker};

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
    pub(crate) listen: Vec<(ListenKey, Vec<socket2::Socket>)>,
}

/// Time for which buffers and pipes are kept without being needed.
const SPARE_FOR: Duration = Duration::from_secs(10);

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
    let dispatcher = Dispatcher::new(Rc::clone(&worker));
    loop {
        tokio::select! {
            command = inbox.recv() => match command {
                Some(Command::Apply(plan)) => dispatcher.apply_plan(plan),
                Some(Command::Accept(accepts)) => {
                    worker.rests.set(!accepts);
                    dispatcher.each_listening(|_, listening| listening.set_handed_over(!accepts));
                }
                Some(Command::Sockets(to)) => dispatcher.each_listening(|key, listening| {
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
                    dispatcher.drain_services();
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
                worker.watchers.wake_shedding(&dispatcher.list_shedding(), now);
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

/// A listener of a rule.
enum RuleListener {
    Connections(Rc<Listening>),
    Datagrams(Rc<DatagramListener>),
}

impl RuleListener {
    fn set_service(&self, service: Rc<Service>) {
        match self {
            RuleListener::Connections(listener) => listener.set_service(service),
            RuleListener::Datagrams(listener) => listener.set_service(service),
        }
    }

    fn stop(&self) {
        match self {
            RuleListener::Connections(listener) => listener.stop(),
            RuleListener::Datagrams(listener) => listener.stop(),
        }
    }

    fn set_handed_over(&self, handed_over: bool) {
        match self {
            RuleListener::Connections(listener) => listener.set_handed_over(handed_over),
            RuleListener::Datagrams(listener) => listener.set_handed_over(handed_over),
        }
    }

    fn clone_socket(&self) -> io::Result<OwnedFd> {
        match self {
            RuleListener::Connections(listener) => listener.clone_socket(),
            RuleListener::Datagrams(listener) => listener.clone_socket(),
        }
    }
}

/// Services and listeners of a worker.
struct Dispatcher {
    worker: Rc<Worker>,
    /// Tasks that serve clients of HTTP rules.
    tasks: Rc<Tasks>,
    services: RefCell<HashMap<Arc<str>, Rc<Service>>>,
    listeners: RefCell<HashMap<ListenKey, Vec<RuleListener>>>,
    next_service: Cell<u32>,
}

impl Dispatcher {
    fn new(worker: Rc<Worker>) -> Self {
        Dispatcher {
            worker,
            tasks: Rc::default(),
            services: RefCell::default(),
            listeners: RefCell::default(),
            next_service: Cell::new(0),
        }
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

    fn apply_plan(&self, plan: Plan) {
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
                        self.worker.now(),
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
                    match self.start_listener(&key, socket, &service) {
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

    fn start_listener(
        &self,
        key: &ListenKey,
        socket: socket2::Socket,
        service: &Rc<Service>,
    ) -> io::Result<RuleListener> {
        if key.is_udp {
            let listener = DatagramListener::start(&self.worker, socket.into(), service)?;
            return Ok(RuleListener::Datagrams(listener));
        }
        let (worker, tasks) = (&self.worker, &self.tasks);
        let listening = Listening::start(worker, tasks, key, socket.into(), service)?;
        Ok(RuleListener::Connections(listening))
    }

    fn each_listening(&self, act: impl Fn(&ListenKey, &RuleListener)) {
        for (key, all) in self.listeners.borrow().iter() {
            all.iter().for_each(|listening| act(key, listening));
        }
    }

    fn end_service(&self, service: &Service) {
        service.state.set(State::Draining);
        if service.rule().rule.terminate_on_disable {
            self.worker.watchers.cut_connections(Some(service.id));
        } else {
            self.worker.watchers.wake_tasks(Some(service.id));
        }
    }

    fn drain_services(&self) {
        for listening in self.listeners.take().values().flatten() {
            listening.stop();
        }
        for service in self.services.borrow().values() {
            service.state.set(State::Draining);
        }
        self.worker.closing.set(true);
        self.worker.watchers.wake_tasks(None);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_limits::files::Shares;

    use super::*;
    use crate::memory::tests::new_memory;
    use crate::worker::Vital;

    #[test]
    fn s18_a_worker_that_panics_is_told_of() {
        let failed = FailedWorker::new(None);
        let thread = supervise_worker(3, failed.clone(), || WorkerEnd::InOrder).unwrap();
        thread.join().unwrap();
        assert_eq!(*failed.borrow(), None);
        let thread = supervise_worker(4, failed.clone(), || WorkerEnd::Broken).unwrap();
        thread.join().unwrap();
        assert_eq!(*failed.borrow(), Some(4));
        let thread = supervise_worker(5, failed.clone(), || panic!("on purpose")).unwrap();
        thread.join().unwrap_err();
        assert_eq!(*failed.borrow(), Some(5));
    }

    #[test]
    fn s18_a_worker_ends_if_a_task_panics_that_it_cannot_do_without() {
        let failed = FailedWorker::new(None);
        let (commands, inbox) = unbounded_channel();
        let thread = supervise_worker(0, failed.clone(), || {
            let (runtime, worker, timer) = build_worker(
                Clock::start(),
                Files::new(Shares::of_process()),
                new_memory(0),
            )
            .unwrap();
            let vital = Vital(Rc::clone(&worker));
            runtime.block_on(async {
                tokio::task::spawn_local(async move {
                    let _vital = vital;
                    panic!("on purpose");
                });
                run(worker, timer, inbox).await
            })
        });
        thread.unwrap().join().unwrap();
        assert_eq!(*failed.borrow(), Some(0));
        drop(commands);
    }
}
