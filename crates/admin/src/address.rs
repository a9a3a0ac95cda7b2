//! Address that the admin API listens on, and its TLS.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use evenkeel_manager::certificates;
use evenkeel_manager::config::{Admin, Config, Problem};
use evenkeel_manager::exposition::Exposition;
use evenkeel_manager::handover::Handover;
use evenkeel_manager::service::Service;
use evenkeel_manager::snapshot::Snapshot;
use evenkeel_manager::subsystem::{Commit, Exclusive, PrepareError, PrepareErrors, Subsystem};
use evenkeel_net::inherited::{self, InheritedSocket};
use evenkeel_net::listen::{self, Options, explain_error};
use evenkeel_net::writable;
use evenkeel_tls::certificate::Details;
use evenkeel_tls::listener::Listener;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::users::Users;

/// Address and TLS of the admin API, for the other parts of the process: no member may be at this address.
#[derive(Debug, Default)]
pub struct Address {
    bound: OnceLock<SocketAddr>,
    pub(crate) tls: Arc<Listener>,
    /// True if the process was started with TLS there; a change needs a restart.
    has_tls: OnceLock<bool>,
    /// Users of the API, if the configuration names a file with users.
    pub(crate) users: Arc<ArcSwapOption<Users>>,
    /// The listener, under another handle, for a process that takes over; until it is given up.
    handle: Mutex<Option<(SocketAddr, StdListener)>>,
    /// True while clients are left to that process.
    rests: watch::Sender<bool>,
}

/// Owner of the listener, as the names of handed sockets say it.
const WHOSE: &str = "admin";

/// The part of a [`Handover`] with the keys of tickets.
const TICKETS: &str = "admin_tickets";

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for the admin API: {}; choose another address with listen in [admin]",
    explain_error(source)
)]
pub struct CannotListen {
    address: SocketAddr,
    source: io::Error,
}

impl Address {
    /// Listens on the address of `settings`.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on.
    pub async fn bind_listener(&self, settings: &Admin) -> Result<TcpListener, CannotListen> {
        let address = settings.listen;
        let cannot_listen = |source| CannotListen { address, source };
        let options = Options {
            owner: WHOSE,
            ..Options::default()
        };
        let listener = listen::bind_sockets(address, 1, options);
        let listener = listener.and_then(|mut all| all.pop().ok_or(io::ErrorKind::NotFound.into()));
        let listener = listener.map_err(cannot_listen)?;
        let real = listener.local_addr().map_err(cannot_listen)?;
        let handle = listener.try_clone().map_err(cannot_listen)?;
        self.bound.get_or_init(|| real);
        *self.handle.lock() = Some((address, handle));
        TcpListener::from_std(listener).map_err(cannot_listen)
    }

    /// Returns a receiver that says whether clients are left to another process.
    pub(crate) fn watch_handover(&self) -> watch::Receiver<bool> {
        self.rests.subscribe()
    }
}

/// Returns the users of the configuration, if it names some.
fn load_users(admin: Option<&Admin>) -> Result<Option<Users>, Vec<Problem>> {
    let file = admin.and_then(|admin| admin.users_file.as_ref());
    file.map(Users::from_file).transpose()
}

/// Returns the reason why the audit log could not be written.
fn unwritable_log(admin: &Admin) -> Option<PrepareError> {
    let path = admin.audit_log.as_ref()?;
    let error = writable::check_path(path, "admin.audit_log").err()?;
    Some(PrepareError::other(error))
}

impl Service for Address {}

impl Subsystem for Address {
    fn prepare(&self, next: &Arc<Snapshot>) -> Result<Commit, PrepareErrors> {
        let admin = next.section::<Admin>();
        let tls = admin.and_then(|admin| admin.tls.as_ref());
        if !next.reload {
            return Ok(Box::new(|| ()));
        }
        // Its path is that of the start. What is in the way of the log later is told at each change.
        let is_start = self.has_tls.get().is_none();
        if let Some(error) = admin.filter(|_| is_start).and_then(unwritable_log) {
            return Err(vec![error]);
        }
        let found = load_users(admin).map_err(PrepareError::files)?;
        let known = Arc::clone(&self.users);
        // Where there is none any more, a restart lets everybody in, and not before.
        let set_users = move || {
            if let Some(users) = found {
                known.store(Some(Arc::new(users)));
            }
        };
        if tls.is_some() != *self.has_tls.get_or_init(|| tls.is_some()) {
            return Ok(Box::new(set_users));
        }
        let server = self.tls.load_server(tls, "admin");
        let server = server.map_err(PrepareError::files)?;
        let tls = Arc::clone(&self.tls);
        Ok(Box::new(move || {
            set_users();
            tls.set(server);
        }))
    }

    fn listening(&self) -> Vec<SocketAddr> {
        self.bound.get().copied().into_iter().collect()
    }

    fn sockets(&self) -> io::Result<Vec<InheritedSocket>> {
        let handle = self.handle.lock();
        let handed = handle.iter().map(|(address, listener)| {
            let name = inherited::tcp_name(*address, WHOSE).into();
            let socket = listener.try_clone()?.into();
            Ok(InheritedSocket { name, socket })
        });
        handed.collect()
    }

    fn hand_over(&self, to: &mut Handover) {
        to.give_tickets(TICKETS, self.tls.ticket_keys());
    }

    fn take_over(&self, from: &Handover) {
        from.take_tickets(TICKETS, self.tls.ticket_keys());
    }

    fn rest(&self) {
        self.rests.send_replace(true);
    }

    fn resume(&self) {
        self.rests.send_replace(false);
    }

    fn stop(&self) {
        *self.handle.lock() = None;
    }

    fn exclusive(&self, config: &Config) -> Vec<Exclusive> {
        let listen = config.admin.iter().map(|admin| [admin.listen]);
        listen.flat_map(|listen| Exclusive::tcp(&listen)).collect()
    }

    fn check(&self, config: &Config) -> PrepareErrors {
        let own = config.admin.as_ref();
        let mut problems = Listener::check_files(own.and_then(|own| own.tls.as_ref()));
        problems.extend(load_users(own).err().into_iter().flatten());
        let mut errors = PrepareError::files(problems);
        errors.extend(own.and_then(unwritable_log));
        errors
    }

    fn announce(&self, _: &Snapshot) -> Vec<String> {
        let address = self.bound.get().into_iter();
        address.map(|at| format!("admin API on {at}")).collect()
    }

    fn metrics(&self, out: &mut Exposition) {
        certificates::failures(out, "evenkeel_admin_tls_failures_total", &self.tls);
    }

    fn certificates(&self) -> Vec<(String, Details)> {
        let all = self.tls.certificates().into_iter();
        all.map(|one| ("admin API".to_owned(), one)).collect()
    }
}
