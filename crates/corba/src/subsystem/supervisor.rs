//! The service's thread: switches the service on and off, and passes its settings to the workers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_config::Corba as Settings;
use evenkeel_giop::client::Client;
use evenkeel_giop::server::Server;
use evenkeel_manager::Manager;
use evenkeel_net::Clock;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{error, info};

use super::corba::{Command, Desired, Inner, ServeError, StoredState};
use super::limits::{client_settings, is_served_alike, server_settings};
use super::worker::{Serving, Worker};
use crate::directory::Directory;
use crate::monitors;
use crate::service::{Address, LoadManager, Parts, store};

/// Time limit for writing the last changes at the end.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// State of the service's thread.
pub(super) struct Supervisor {
    pub(super) clock: Clock,
    pub(super) outside: Weak<Inner>,
    pub(super) manager: Option<Arc<Manager>>,
    pub(super) running: Option<Running>,
    pub(super) workers: Vec<Worker>,
    /// Of the state file, once it has been read.
    pub(super) lock: Option<store::Lock>,
}

/// The service, switched on at least once.
pub(super) struct Running {
    service: Arc<LoadManager>,
    /// Settings that the workers serve with; `None` while the service is switched off.
    serving: Option<Arc<Settings>>,
    /// Asks load monitors, and tells load alerts, while it is switched on.
    tasks: JoinSet<()>,
}

impl Supervisor {
    /// Follows commands until the last one. Answers what is to be given up in the end.
    pub(super) async fn follow_commands(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
    ) -> Option<store::Lock> {
        // What counts when there is no manager yet.
        let mut first = None;
        while let Some(command) = commands.recv().await {
            match command {
                Command::Stop => break,
                Command::Apply(desired) if self.manager.is_none() => first = desired,
                Command::Apply(desired) => {
                    if let Err(problem) = self.apply(desired) {
                        error!("the CORBA service cannot apply the configuration: {problem}");
                    }
                }
                Command::Start(manager, answer) => {
                    self.manager = Some(manager);
                    let _ = answer.send(self.apply(first.take()));
                }
            }
        }
        // All at once: whoever takes over needs every address.
        let mut ends = JoinSet::new();
        for worker in self.workers.drain(..) {
            ends.spawn(worker.end_and_wait());
        }
        while ends.join_next().await.is_some() {}
        if let Some(running) = &self.running {
            // What was changed without waiting for it, too.
            let _ = tokio::time::timeout(LAST_WRITE, running.service.wait_until_kept()).await;
        }
        self.lock.take()
    }

    fn apply(&mut self, desired: Option<Box<Desired>>) -> Result<(), ServeError> {
        match desired {
            Some(desired) => self.switch_on(*desired),
            None => self.switch_off(),
        }
    }

    fn switch_off(&mut self) -> Result<(), ServeError> {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        running.serving = None;
        running.tasks.abort_all();
        for worker in &self.workers {
            worker.set_serving(None);
        }
        if let Some(outside) = self.outside.upgrade() {
            outside.server.store(None);
        }
        info!("the CORBA service is off");
        Ok(running.service.close()?)
    }

    /// Starts the service, or gives the one that runs other settings.
    fn ensure_running(
        &mut self,
        settings: &Arc<Settings>,
        address: Address,
        stored: Option<StoredState>,
    ) -> Result<(), ServeError> {
        match (&mut self.running, stored, &self.manager) {
            (Some(running), _, _) => running.service.configure(Arc::clone(settings), address)?,
            (None, Some(stored), Some(manager)) => {
                let StoredState {
                    state,
                    lock,
                    replica,
                } = stored;
                self.lock = lock;
                let parts = Parts {
                    manager: Arc::clone(manager),
                    directory: Arc::new(Directory::default()),
                    client: Client::new(client_settings(settings)),
                    runtime: tokio::runtime::Handle::current(),
                };
                let settings = Arc::clone(settings);
                let service = LoadManager::open_shared(parts, settings, address, state, replica)?;
                self.running = Some(Running {
                    service,
                    serving: None,
                    tasks: JoinSet::new(),
                });
            }
            // The state is read before anything else, and once.
            (None, _, _) => return Err(ServeError::NoState),
        }
        Ok(())
    }

    fn switch_on(&mut self, desired: Desired) -> Result<(), ServeError> {
        let settings = Arc::clone(&desired.settings);
        self.ensure_running(&settings, desired.address, desired.stored)?;
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        let service = Arc::clone(&running.service);
        if let (None, Some(outside)) = (&running.serving, self.outside.upgrade()) {
            let counters = Arc::clone(&outside.monitors);
            running
                .tasks
                .spawn(monitors::pull_loads(Arc::clone(&service), counters));
            let (alerts, service) = (Arc::clone(&outside.alerts), Arc::clone(&service));
            running
                .tasks
                .spawn(async move { alerts.run(service).await });
        }
        if let Some(file) = &settings.ior_file {
            let text = service.reference().to_string();
            let written = store::replace(file, text.as_bytes(), store::PUBLIC);
            written.map_err(|error| ServeError::Reference(file.clone(), error))?;
        }
        while self.workers.len() < desired.listeners.len() {
            let worker = Worker::start(self.workers.len(), self.clock);
            self.workers.push(worker.map_err(ServeError::Worker)?);
        }
        let unchanged = running
            .serving
            .as_ref()
            .is_some_and(|before| is_served_alike(before, &settings));
        running.serving = Some(Arc::clone(&settings));
        let Some(outside) = self.outside.upgrade().filter(|_| !unchanged) else {
            return Ok(());
        };
        let limits = server_settings(&settings);
        if limits.max_connections < settings.max_connections {
            info!(
                connections = limits.max_connections,
                "CORBA: max_connections is lowered to what the open files and the memory of this process allow"
            );
        }
        let server = Server::new(limits);
        outside.service.store(Some(Arc::clone(&service)));
        outside.server.store(Some(Arc::clone(&server)));
        for (worker, listeners) in self.workers.iter().zip(desired.listeners) {
            worker.set_serving(Some(Serving {
                server: Arc::clone(&server),
                listeners,
                service: Arc::clone(&service),
                counters: Arc::clone(&outside.counters),
                relayed: Arc::clone(&outside.relayed),
            }));
        }
        Ok(())
    }
}
