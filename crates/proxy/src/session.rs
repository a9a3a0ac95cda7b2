//! Session of a client connection, or of a stream of one.

use std::net::SocketAddr;
use std::rc::Rc;

use evenkeel_control::pace::Pace;
use evenkeel_core::address::Address;
use evenkeel_manager::config::Protocol;

use crate::access::{End, Limit, Peer, Record};
use crate::bandwidth::{Gate, Paces};
use crate::files::ClientFile;
use crate::quota::Counted;
use crate::service::{LocalRule, Service};
use crate::shared_limits::KernelPlace;
use crate::watch::Watch;
use crate::worker::Worker;

/// Endpoint that a client has connected to: mostly the listener, whose clients share it.
#[derive(Debug)]
pub(crate) struct Local {
    /// The listener's address, or what a proxy in front says.
    pub(crate) address: Address,
    /// Extensions that the proxy in front says beside addresses, for members that are told who the
    /// client is.
    pub(crate) extensions: Box<[u8]>,
    /// Name of the address, as a host with a port.
    name: Rc<str>,
}

impl Local {
    pub(crate) fn new(address: Address, extensions: Box<[u8]>) -> Self {
        let name = match address.socket() {
            Some(address) => address.to_string().into(),
            None => "localhost".into(),
        };
        Local {
            address,
            extensions,
            name,
        }
    }

    /// True if the address is any address of this machine.
    pub(crate) fn is_unspecified(&self) -> bool {
        self.address.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// Returns the endpoint that a client which names no host has connected to, as a host with a
    /// port. `find_real` asks the kernel for the address of this end of the connection, which only listeners on any address need.
    pub(crate) fn name(&self, find_real: impl FnOnce() -> Option<SocketAddr>) -> Rc<str> {
        let real = self.is_unspecified().then(find_real).flatten();
        real.map_or_else(|| Rc::clone(&self.name), |real| real.to_string().into())
    }
}

/// State of a connection, of which its streams are parts, for limits.
#[derive(Debug)]
struct LimitedConnection {
    /// Paces of the connection, which count the bytes that have passed, if its bandwidth is
    /// limited.
    paces: Option<Paces>,
    /// Place of the connection among the connections of its client, if those are limited.
    _counted: Option<Box<Counted>>,
    /// Place among the connections of the kernel and of this process, if those of the kernel count, too.
    _in_kernel: Option<KernelPlace>,
}

/// Places of a connection in the counts of limits: in the kernel, and in this process.
type CountedPlaces = (Option<KernelPlace>, Option<Box<Counted>>);

/// A client connection: whom it belongs to. Counts as open until it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) worker: Rc<Worker>,
    pub(crate) service: Rc<Service>,
    /// The client's address; what a proxy in front says if the rule accepts that.
    pub(crate) peer: Peer,
    pub(crate) local: Rc<Local>,
    pub(crate) watch: Watch,
    /// File of the connection; `None` in a stream, which is no connection.
    file: Option<ClientFile>,
    /// True if the bytes are none of a client's: bandwidth is limited for clients only.
    pub(crate) is_apart: bool,
    /// State for the limits of connections.
    limited: Option<Rc<LimitedConnection>>,
}

impl Session {
    pub(crate) fn open_session(
        worker: &Rc<Worker>,
        service: &Rc<Service>,
        peer: Peer,
        local: &Rc<Local>,
        file: ClientFile,
    ) -> Self {
        service.metrics.connections.add(1);
        service.shared.add_client();
        worker.open.set(worker.open.get() + 1);
        Session {
            worker: Rc::clone(worker),
            service: Rc::clone(service),
            peer,
            local: Rc::clone(local),
            watch: worker.watchers.watch_task(service.id),
            file: Some(file),
            is_apart: false,
            limited: None,
        }
    }

    /// True if the client may have another connection here. The connection counts for the limits of
    /// the client then.
    pub(crate) fn admit_client(&mut self) -> bool {
        let rule = self.service.rule();
        let is_http = rule.rule.protocol == Protocol::Http;
        // That of groups is looked at when the client has one.
        let maintenance = rule.rule.responses.maintenance.as_ref();
        if !is_http && maintenance.is_some_and(|own| own.is_for(self.peer.ip())) {
            self.service.metrics.refused_maintenance.add(1);
            return false;
        }
        match self.count_client(&rule) {
            Ok((in_kernel, counted)) => {
                let bandwidth = rule.rule.limits.connection_bandwidth;
                let paces = bandwidth.map(|_| Paces::default());
                if counted.is_some() || in_kernel.is_some() || paces.is_some() {
                    let limited = LimitedConnection {
                        paces,
                        _counted: counted,
                        _in_kernel: in_kernel,
                    };
                    self.limited = Some(Rc::new(limited));
                }
                true
            }
            Err(limit) => {
                self.service.metrics.count_limit(limit);
                let (rule, client, limit) = (&self.service.name, self.peer, limit.name());
                tracing::debug!(%rule, %client, limit, "a client has reached a limit");
                false
            }
        }
    }

    /// Counts the connection for the limits of the client: in the kernel, and here.
    fn count_client(&self, rule: &LocalRule) -> Result<CountedPlaces, Limit> {
        let client = self.peer.ip();
        let in_kernel = self.service.take_kernel_place(client)?;
        let has_rate = in_kernel.as_ref().is_some_and(|place| place.counts_client);
        let now = || self.worker.now();
        let counted = match (&rule.quotas, client) {
            (Some(quotas), Some(client)) => quotas.take_connection(client, has_rate, now)?,
            _ => None,
        };
        Ok((in_kernel, counted))
    }

    /// Returns the paces of the connection, which count the bytes that have passed, if its
    /// bandwidth is limited.
    pub(crate) fn connection_paces(&self) -> Option<&Paces> {
        self.limited.as_ref()?.paces.as_ref()
    }

    /// Returns a session for one of several streams of the connection, with time limits of its own.
    /// The connection has to outlive the session.
    pub(crate) fn of_stream(&self) -> Self {
        Session {
            worker: Rc::clone(&self.worker),
            service: Rc::clone(&self.service),
            peer: self.peer,
            local: Rc::clone(&self.local),
            watch: self.worker.watchers.watch_task(self.service.id),
            file: None,
            is_apart: false,
            limited: self.limited.clone(),
        }
    }

    /// Returns a session for a request of the balancer's own, on behalf of a client that the
    /// request does not concern.
    pub(crate) fn for_own_request(&self) -> Self {
        let mut session = self.of_stream();
        session.is_apart = true;
        session
    }

    /// Returns the gates before bytes from the client and before bytes to it; `None` if no
    /// bandwidth is limited.
    #[inline]
    pub(crate) fn bandwidth_gates(&self) -> Option<[Gate<'_>; 2]> {
        let [all, each] = self.service.bandwidth_limits();
        let each = each.filter(|_| self.connection_paces().is_some());
        if all.is_none() && each.is_none() || self.is_apart {
            return None;
        }
        let of = |pick: fn(&Paces) -> &Pace| {
            let all = all.map(|rate| (pick(&self.service.shared.paces), rate));
            let own = self.connection_paces().zip(each);
            let own = own.map(|(paces, rate)| (pick(paces), rate));
            Gate {
                paces: [all, own],
                watch: &self.watch,
                pauses: &self.service.metrics.bandwidth_pauses,
            }
        };
        Some([
            of(|paces| &paces.from_clients),
            of(|paces| &paces.to_clients),
        ])
    }

    /// Counts how a request or connection ended.
    pub(crate) fn count_end(&self, end: End) {
        let metrics = &self.service.metrics;
        match end {
            End::Complete
            | End::Refused
            | End::LateFirstToken
            | End::Limited
            | End::Maintenance
            | End::Stale => {}
            End::Unauthorized => {}
            End::Client => metrics.client_aborts.add(1),
            End::ClientTimeout => metrics.client_timeouts.add(1),
            End::Member => metrics.member_failures.add(1),
            End::MemberTimeout => metrics.member_timeouts.add(1),
            End::Alert => metrics.closed_by_alert.add(1),
            End::Terminated => metrics.terminated.add(1),
            End::Exhausted => metrics.refused_exhausted.add(1),
        }
    }

    /// True if a log or a tracer needs the record of something; `traced` says that a tracer may.
    pub(crate) fn wants_record(&self, traced: bool) -> bool {
        traced || self.worker.log.borrow().is_some()
    }

    /// Logs and traces something.
    pub(crate) fn log_record(&self, traced: bool, record: Record<'_>) {
        if let Some(log) = &mut *self.worker.log.borrow_mut()
            && !log.push_record(&record)
        {
            self.service.metrics.access_log_dropped.add(1);
        }
        if traced && let Some(tracer) = &*self.worker.tracer.borrow() {
            tracer.send_record(record.into_owned());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.file.is_none() {
            return;
        }
        self.service.metrics.connections_closed.add(1);
        self.service.remove_client();
        self.worker.open.set(self.worker.open.get() - 1);
    }
}
