//! `evenkeel run`: starts everything, reacts to signals, and ends in good order.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use evenkeel_admin::address::Address;
use evenkeel_admin::live::Live;
use evenkeel_admin::wire::Upgraded;
use evenkeel_admin::{Sources, UpgradeWanted, serve_api};
use evenkeel_broker::negotiator::Negotiator;
use evenkeel_broker::reporting::Reporting;
use evenkeel_forward::Forwarding;
use evenkeel_manager::Manager;
use evenkeel_manager::config::watch::{Cause, Reloads};
use evenkeel_manager::config::{self, AccessLog as Target, Admin, Config};
use evenkeel_manager::handover::Handover;
use evenkeel_manager::revisions::{Author, How};
use evenkeel_manager::service::Service;
use evenkeel_manager::subsystem::Exclusive;
use evenkeel_monitor::Monitor;
use evenkeel_net::{Clock, inherited};
use evenkeel_proxy::Proxy;
use evenkeel_steer::Steering;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{error, info, warn};
use tracing_subscriber::filter::Targets;

use crate::access_log::Logging;
use crate::failure::Failure;
use crate::process::{self, Signals};
use crate::shared::{self, Shared, Start};
use crate::traces::Traces;
use crate::upgrade::{Before, NotUpgraded, Place};
use crate::{cli, privileges};

/// Runs the balancer until it is told to end.
pub(crate) fn run(args: &cli::RunBalancer) -> Result<(), Failure> {
    evenkeel_limits::memory::prepare_allocator();
    let log = process::filter_of(&args.run.log)?;
    let before = Before::find()?;
    let result = begin(args, log, before.clone());
    if let (Err(failure), Some(before)) = (&result, &before) {
        before.tell_failed(&failure.message);
    }
    result
}

fn begin(
    args: &cli::RunBalancer,
    log: Targets,
    before: Option<Arc<Before>>,
) -> Result<(), Failure> {
    let file = &args.run.file;
    let refused = |errors| Failure::new(format!("the configuration has errors\n{errors}"));
    let own = config::text_of(file).map_err(refused)?;
    let mut state = None;
    let start = match (shared::begin(file, own.clone(), refused), &before) {
        // A file with a secret may be broken, and the process before knows what it said.
        (Err(_), Some(before)) => {
            let told = before.take_state();
            Manager::take_over_files(&told);
            state = Some(told);
            shared::begin(file, own.clone(), refused)?
        }
        (start, _) => start?,
    };
    privileges::check_writers(&start.config, file, args.allow_root)?;
    // Before any other thread starts.
    let kept = privileges::give_up(&start.config, file)?;
    process::start_log(log, &args.run.log)?;
    kept.log_privileges();
    for complaint in config::check_rights(file, &start.config.included) {
        warn!("{complaint}");
    }
    if let Some(shared) = &start.shared {
        shared.tell();
    }
    if let Some(before) = &before {
        before.log_upgrade();
    }
    process::raise_file_limit();
    if let Err(error) = evenkeel_limits::memory::start_giving_back() {
        warn!("memory that is free stays with the process: no thread can be started: {error}");
    }
    let runtime = process::build_runtime()?;
    let result = runtime.block_on(live(args, (start, own), (before, state)));
    // A lookup of a name that still runs in its thread must not delay the end.
    runtime.shutdown_background();
    result
}

async fn live(
    args: &cli::RunBalancer,
    (start, own): (Start, String),
    (before, state): (Option<Arc<Before>>, Option<Handover>),
) -> Result<(), Failure> {
    // Before anything else, so that no signal is lost, and no change of the file since it was read.
    let signals = Signals::listen()?;
    let wants_upgrade = signal(SignalKind::user_defined2()).map_err(Signals::failed)?;
    let file = &args.run.file;
    let mut reloads = Reloads::new(file).map_err(Signals::failed)?;
    reloads.know_text(&own);
    let Start {
        config,
        text,
        shared,
    } = start;
    // Changes from now on count, though it takes a while until they are waited for.
    reloads.follow_files(config.files().map(Path::to_owned));
    let clock = before
        .as_ref()
        .map_or_else(Clock::start, |before| before.clock());
    let cores = available_parallelism().map_or(1, usize::from);
    let workers = config.workers.unwrap_or(cores);
    let proxy = Proxy::start(clock, workers).map_err(Failure::of)?;
    let forwarding = Forwarding::new(clock, proxy.client_sessions());
    let mut subsystems = list_subsystems(clock, forwarding.clone())?;
    subsystems.insert(0, Arc::new(proxy.clone()));
    let address = Arc::new(Address::default());
    subsystems.push(Arc::clone(&address) as _);
    subsystems.extend(shared.as_ref().map(Shared::service));
    let manager = Manager::new(clock, Arc::new(subsystems.clone()));
    if let Some(shared) = &shared {
        shared.keep(&manager);
    }
    // Before the prompts of the process before, which are of no use under another secret.
    #[cfg(feature = "fleet")]
    evenkeel_fleet::share_prompt_secret(&config);
    if let Some(before) = &before {
        let state = state.unwrap_or_else(|| before.take_state());
        manager.take_over(&state, file);
        before.take_prompts(&state, &manager);
        subsystems.iter().for_each(|one| one.take_over(&state));
    }
    wait_for_predecessor(&subsystems, &config).await;
    let admin = match &config.admin {
        Some(settings) => {
            let listener = address.bind_listener(settings).await.map_err(Failure::of)?;
            Some((settings.clone(), listener))
        }
        None => None,
    };
    let process = Process {
        manager,
        proxy,
        forwarding,
        workers,
        subsystems,
        address,
        before,
        upgrade_limit: Duration::from_secs(args.upgrade_timeout),
        shared,
    };
    let signals = (signals, wants_upgrade);
    process
        .live(file, (config, text), admin, signals, reloads)
        .await
}

/// Returns all subsystems but the proxy, whose threads run from the start. The threads of the
/// others start with the first configuration that wants them.
pub(crate) fn list_subsystems(
    clock: Clock,
    forwarding: Forwarding,
) -> Result<Vec<Arc<dyn Service>>, Failure> {
    let cannot =
        |what| move |error: io::Error| Failure::new(format!("cannot start the {what}: {error}"));
    #[cfg(feature = "fleet")]
    let gossip = evenkeel_fleet::Gossip::new(clock).map_err(cannot("fleet"))?;
    #[cfg(feature = "fleet")]
    gossip.set_copy_queues(forwarding.copy_queues());
    let mut all: Vec<Arc<dyn Service>> = vec![Arc::new(evenkeel_acme::Acme::default())];
    #[cfg(feature = "kubernetes")]
    all.extend(evenkeel_kubernetes::list_subsystems());
    let others: Vec<Arc<dyn Service>> = vec![
        Arc::new(Negotiator::new(clock)),
        Arc::new(Reporting::new(clock).map_err(cannot("broker"))?),
        #[cfg(feature = "corba")]
        Arc::new(evenkeel_corba::subsystem::Corba::new(clock)),
        #[cfg(feature = "fleet")]
        Arc::new(gossip),
        #[cfg(feature = "fleet")]
        Arc::new(evenkeel_xds::Xds::new(clock).map_err(cannot("server of xDS"))?),
        Arc::new(Monitor::new(clock).map_err(cannot("monitor"))?),
        Arc::new(Steering::new(clock)),
        Arc::new(forwarding),
    ];
    all.extend(others);
    all.extend(evenkeel_report::sources(clock).map_err(cannot("load sources"))?);
    Ok(all)
}

/// The admin API's settings and listener.
type AdminApi = Option<(Admin, TcpListener)>;

/// The admin API while it is served.
struct ServedApi {
    /// The task that serves it, if there is an API.
    task: Option<JoinHandle<()>>,
    /// Ends listening.
    close: oneshot::Sender<()>,
    /// Ends the connections.
    stop: oneshot::Sender<()>,
}

impl ServedApi {
    fn start(admin: AdminApi, sources: &Arc<Sources>) -> Self {
        let (close, closed) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = admin.map(|(settings, listener)| {
            let sources = Arc::clone(sources);
            tokio::spawn(async move {
                let stopped = async move {
                    let _ = stopped.await;
                };
                if let Err(error) = serve_api(listener, &settings, sources, closed, stopped).await {
                    error!(%error, "the admin API has ended");
                }
            })
        });
        ServedApi { task, close, stop }
    }
}

/// Closes inherited sockets for which the configuration has no listener.
fn close_unwanted() {
    let rest = inherited::close_rest();
    if !rest.is_empty() {
        warn!(
            "sockets are given up for which the configuration has no listener: {}",
            rest.join(", ")
        );
    }
}

struct Process {
    manager: Arc<Manager>,
    address: Arc<Address>,
    proxy: Proxy,
    forwarding: Forwarding,
    workers: usize,
    subsystems: Vec<Arc<dyn Service>>,
    /// Process whose place this process has taken.
    before: Option<Arc<Before>>,
    /// Time that a process may take to take the place of this process.
    upgrade_limit: Duration,
    /// Store of the configuration, if the configuration is not in the process's file.
    shared: Option<Shared>,
}

impl Process {
    async fn live(
        self,
        file: &Path,
        (config, text): (Config, String),
        admin: AdminApi,
        (mut signals, mut wants_upgrade): (Signals, Signal),
        mut reloads: Reloads,
    ) -> Result<(), Failure> {
        let mut access_log = Logging::new(self.proxy.clone(), self.forwarding.clone());
        access_log
            .follow(config.access_log.as_ref(), &config.access_log_format)
            .map_err(Failure::of)?;
        let mut traces = Traces::new(self.proxy.clone());
        traces
            .follow_settings(config.tracing.as_ref())
            .map_err(Failure::of)?;
        self.start(file, config, text).await?;
        close_unwanted();
        // Whoever reads the access log from standard output gets nothing else there.
        let to_stdout = access_log.target != Some(Target::Stdout);
        self.announce(to_stdout);

        let running = self.run_tasks();
        let (upgrades, mut upgrades_wanted) = mpsc::channel(1);
        let sources = Arc::new(Sources {
            upgrades,
            manager: Arc::clone(&self.manager),
            config_file: file.to_owned(),
            access_log: access_log.counts.clone(),
            traces: traces.counts(),
            address: Arc::clone(&self.address),
            draining: AtomicBool::new(false),
            live: Live::new(&self.manager, self.workers),
        });
        let admin = ServedApi::start(admin, &sources);
        match &self.before {
            Some(before) => before.tell_ready(),
            None => process::notify_service_manager("READY=1"),
        }

        loop {
            let asked: Option<UpgradeWanted> = tokio::select! {
                name = signals.wait_for_end() => {
                    info!("{name}: shutting down");
                    process::notify_service_manager("STOPPING=1");
                    break;
                }
                () = self.follow(file, &mut reloads, &mut access_log, &mut traces) => continue,
                worker = self.proxy.wait_for_failure() => {
                    access_log.finish();
                    return Err(Failure::new(format!(
                        "worker {worker} has failed: the process ends, and must be started anew; please report this, with the earlier lines of the log"
                    )));
                }
                Some(asked) = upgrades_wanted.recv() => Some(asked),
                _ = wants_upgrade.recv() => None,
            };
            let (result, is_over) = self.try_upgrade(&mut signals).await;
            // Whoever has asked may have left.
            let _ = asked.map(|asked| asked.send(result));
            if is_over {
                break;
            }
        }

        sources.draining.store(true, Ordering::Relaxed);
        // Everything that listens gives its address up at once: whoever takes over serves
        // new clients while this process finishes with those that it has. Without a
        // receiver there is nobody to stop.
        let _ = admin.close.send(());
        self.drain(&mut signals).await;
        drop(running);
        let _ = admin.stop.send(());
        if let Some(task) = admin.task {
            // A client that keeps its connection open must not keep the process.
            let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
        }
        access_log.finish();
        traces.send_rest();
        Ok(())
    }

    /// Replaces the process by another one. Returns the result, and true if the process has to end.
    async fn try_upgrade(&self, signals: &mut Signals) -> (Result<Upgraded, String>, bool) {
        match self.upgrade(signals).await {
            Ok(upgraded) => {
                info!(
                    pid = upgraded.pid,
                    "another process has taken over: shutting down"
                );
                (Ok(upgraded), true)
            }
            Err(NotUpgraded::Failed(why)) => {
                error!("upgrade failed, this process keeps serving: {why}");
                (Err(why), false)
            }
            Err(NotUpgraded::Ended(name)) => {
                info!("{name}: shutting down");
                process::notify_service_manager("STOPPING=1");
                (Err(format!("{name}: the balancer was told to end")), true)
            }
        }
    }

    /// Starts with the first configuration, and then all subsystems.
    async fn start(&self, file: &Path, config: Config, text: String) -> Result<(), Failure> {
        self.apply_first(file, config, text).await?;
        for subsystem in &self.subsystems {
            let started = subsystem.start(&self.manager).await;
            started.map_err(Failure::of)?;
        }
        Ok(())
    }

    /// Runs the manager and all subsystems, which end with the set of their tasks.
    fn run_tasks(&self) -> JoinSet<()> {
        let mut running = JoinSet::new();
        running.spawn(Arc::clone(&self.manager).run());
        for subsystem in &self.subsystems {
            running.spawn(subsystem.run(Arc::clone(&self.manager)));
        }
        running
    }

    /// Puts the first configuration into effect: the store's, if possible, or else the last good copy.
    async fn apply_first(&self, file: &Path, config: Config, text: String) -> Result<(), Failure> {
        let cannot = |error: &dyn std::fmt::Display| Failure::new(format!("cannot start: {error}"));
        let Err(error) = self.manager.start(config, text).await else {
            return Ok(());
        };
        let shared = self.shared.as_ref();
        let Some(text) = shared.and_then(|shared| shared.fall_back(error.to_string())) else {
            return Err(cannot(&error));
        };
        let config = self
            .manager
            .parse(file, &text)
            .map_err(|errors| cannot(&errors))?;
        let started = self.manager.start(config, text).await;
        started.map(|_| ()).map_err(|error| cannot(&error))
    }

    /// Says on standard output what listens where: a line each, for people and scripts.
    fn announce(&self, to_stdout: bool) {
        let mut text = String::new();
        let snapshot = Arc::clone(&self.manager.snapshots().borrow());
        for subsystem in &self.subsystems {
            for listening in subsystem.announce(&snapshot) {
                text.push_str(&format!("listening: {listening}\n"));
            }
        }
        text.push_str("ready\n");
        // If nobody reads it, the balancer works all the same.
        let _ = if to_stdout {
            io::stdout().lock().write_all(text.as_bytes())
        } else {
            io::stderr().lock().write_all(text.as_bytes())
        };
    }

    /// Follows the configuration, for ever.
    async fn follow(
        &self,
        file: &Path,
        reloads: &mut Reloads,
        access_log: &mut Logging,
        traces: &mut Traces,
    ) {
        let mut snapshots = self.manager.snapshots();
        let mut revisions = self.manager.in_force_changes();
        let mut failed_reloads = self.manager.failed_reloads();
        let nobody = Author::default;
        // Changes that came before this call count as new.
        snapshots.mark_changed();
        revisions.mark_changed();
        loop {
            reloads.follow_files(self.manager.shared_config().files().map(Path::to_owned));
            tokio::select! {
                // The manager tells how it went.
                cause = reloads.next() => {
                    match cause {
                    Cause::Signal => {
                        process::notify_reloading();
                        explained(self.manager.reload(file, How::Signal, nobody()).await);
                        access_log.reopen();
                        process::notify_service_manager("READY=1");
                    }
                    Cause::File => {
                        if let Some(result) = self.manager.reload_changed(file).await {
                            explained(result);
                        }
                    }
                    Cause::Beside => {
                        explained(self.manager.reload(file, How::File, nobody()).await);
                    }
                    }
                    if let Some(shared) = &self.shared {
                        shared.retry();
                    }
                }
                // A configuration that the admin API has written is no change any more.
                Ok(()) = revisions.changed() => {
                    let entry = revisions.borrow_and_update();
                    if let Some(entry) = entry.as_ref().filter(|_| self.shared.is_none()) {
                        reloads.know_text(&entry.text);
                    }
                }
                // The file may be as it was again, and what is told of the failure would stay.
                Ok(()) = failed_reloads.changed() => reloads.recheck_file(),
                // The manager outlives this loop, so the channel does not end.
                _ = snapshots.changed() => {
                    let config = self.manager.shared_config();
                    let target = config.access_log.as_ref();
                    if let Err(error) = access_log.follow(target, &config.access_log_format) {
                        error!("{error}; the access log stays as it is");
                    }
                    if let Err(error) = traces.follow_settings(config.tracing.as_ref()) {
                        error!("{error}; traces stay as they are");
                    }
                }
            }
        }
    }

    /// Has another process take over.
    async fn upgrade(&self, signals: &mut Signals) -> Result<Upgraded, NotUpgraded> {
        if let Some(before) = &self.before
            && before.may_come_back()
        {
            return Err(NotUpgraded::Failed(
                "the last upgrade is not complete: this process has taken over a moment ago; try again in some seconds".into(),
            ));
        }
        let place = Place {
            subsystems: self.subsystems.clone(),
            manager: Arc::clone(&self.manager),
            limit: self.upgrade_limit,
        };
        place.pass_on(signals).await
    }

    async fn drain(&self, signals: &mut Signals) {
        let mut stopping = JoinSet::new();
        for subsystem in &self.subsystems {
            let subsystem = Arc::clone(subsystem);
            stopping.spawn_blocking(move || subsystem.stop());
        }
        self.proxy
            .drain(self.manager.shared_config().shutdown_grace);
        let proxy = self.proxy.clone();
        let mut drained = tokio::task::spawn_blocking(move || proxy.join_workers());
        // A panic there is told by whose it is.
        while stopping.join_next().await.is_some() {}
        tokio::select! {
            _ = &mut drained => return,
            name = signals.wait_for_end() => {
                warn!("{name}, the second signal to end: open connections are closed");
                self.proxy.drain(Duration::ZERO);
            }
        }
        // A panic there is told by the proxy.
        let _ = drained.await;
    }
}

/// The manager has told how a reload went; what it cannot know is which files the process may use.
fn explained<T, E: std::fmt::Display>(result: Result<T, E>) {
    if let Err(error) = result {
        privileges::explain_failure(&error);
    }
}

/// Waits until what this process needs alone is free, or is not going to be: then whoever
/// takes it says so.
async fn wait_for_predecessor(subsystems: &[Arc<dyn Service>], config: &Config) {
    // What is given up sooner comes first.
    let mut by_patience: BTreeMap<Duration, Vec<Exclusive>> = BTreeMap::new();
    for wanted in subsystems.iter().flat_map(|one| one.exclusive(config)) {
        by_patience.entry(wanted.patience).or_default().push(wanted);
    }
    for (limit, wanted) in by_patience {
        wait_until_free(wanted, limit).await;
    }
}

async fn wait_until_free(mut wanted: Vec<Exclusive>, limit: Duration) {
    let end = tokio::time::Instant::now() + limit;
    let mut told = false;
    loop {
        wanted.retain(|one| (one.is_taken)());
        let Some(Exclusive {
            resource_name: what,
            ..
        }) = wanted.first()
        else {
            return;
        };
        if !told {
            info!("{what} is in use: waiting for at most {limit:?} until it is free");
            told = true;
        }
        if tokio::time::Instant::now() >= end {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
