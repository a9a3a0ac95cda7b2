//! Registry of what others may know of the server: its clients and its counters, written by the server's
//! thread.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_core::time::Instant;

use crate::kind::Kind;
use crate::status::{ClientStatus, NackStatus, SubscriptionStatus, XdsStatus};
use crate::stream::{Identity, Stream};

/// Most clients that are counted by their names. Further clients are counted together.
const MOST_NAMES: usize = 1000;

/// Stands for clients beyond [`MOST_NAMES`].
const OTHERS: &str = "(others)";

/// Counts of a client and a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub pushes: u64,
    pub nacks: u64,
}

/// A stream.
#[derive(Debug)]
struct Client {
    status: ClientStatus,
    since: Instant,
    nacked: BTreeMap<Kind, Instant>,
}

#[derive(Debug, Default)]
struct Inner {
    clients: BTreeMap<u64, Client>,
    counts: BTreeMap<String, BTreeMap<Kind, Counts>>,
    next: u64,
}

/// The clients, and what was counted.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    pub connections: AtomicUsize,
    pub refused: AtomicU64,
    pub groups: AtomicUsize,
    pub changes: AtomicU64,
    pub load_reports: AtomicU64,
    pub unknown_load_reports: AtomicU64,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a stream that has begun; returns its number.
    pub(crate) fn add_stream(&self, address: SocketAddr, stream: &str, now: Instant) -> u64 {
        let mut inner = self.lock();
        inner.next += 1;
        let id = inner.next;
        let status = ClientStatus {
            node: String::new(),
            service: String::new(),
            program: String::new(),
            dialect: String::new(),
            zone: None,
            address,
            stream: stream.into(),
            connected_seconds: 0.0,
            subscriptions: Vec::new(),
        };
        let client = Client {
            status,
            since: now,
            nacked: BTreeMap::new(),
        };
        inner.clients.insert(id, client);
        id
    }

    /// Removes a stream that has ended.
    pub(crate) fn remove_stream(&self, id: u64) {
        self.lock().clients.remove(&id);
    }

    /// Notes who the client is, once it has said so.
    pub(crate) fn set_identity(&self, id: u64, identity: &Identity) {
        if let Some(client) = self.lock().clients.get_mut(&id) {
            client.status.node.clone_from(&identity.node);
            client.status.service.clone_from(&identity.service);
            client.status.program.clone_from(&identity.program);
            client.status.dialect = identity.audience.dialect.name().into();
            client.status.zone = identity.audience.zone.as_deref().map(str::to_owned);
        }
    }

    /// Notes the state of a stream.
    pub(crate) fn update_stream(&self, id: u64, stream: &Stream) {
        let all = stream.subscriptions().map(|(kind, of)| SubscriptionStatus {
            kind: kind.name().into(),
            all: of.is_wildcard(),
            names: of.name_count(),
            accepted: of.accepted_version().map(str::to_owned),
            pending: of.pending_version().map(str::to_owned),
            pushes: of.push_count(),
            nacks: of.nack_count(),
            last_nack: of.last_nack().map(|nack| NackStatus {
                version: nack.version.clone(),
                reason: nack.reason.clone(),
                age_seconds: 0.0,
            }),
        });
        let all = all.collect();
        if let Some(client) = self.lock().clients.get_mut(&id) {
            client.status.subscriptions = all;
        }
    }

    /// Counts an answer that a stream was sent.
    pub(crate) fn count_push(&self, stream: &Stream, kind: Kind) {
        self.count(stream, kind, |counts| counts.pushes += 1);
    }

    /// Notes that a stream has refused an answer.
    pub(crate) fn record_nack(&self, id: u64, stream: &Stream, kind: Kind, now: Instant) {
        self.count(stream, kind, |counts| counts.nacks += 1);
        if let Some(client) = self.lock().clients.get_mut(&id) {
            client.nacked.insert(kind, now);
        }
    }

    fn count(&self, stream: &Stream, kind: Kind, add: impl FnOnce(&mut Counts)) {
        let name = stream.identity().map_or("", |identity| &*identity.node);
        let mut inner = self.lock();
        let is_known = inner.counts.contains_key(name) || inner.counts.len() < MOST_NAMES;
        let name = if is_known { name } else { OTHERS };
        let of = inner.counts.entry(name.to_owned()).or_default();
        add(of.entry(kind).or_default());
    }

    /// Returns the counts by client and type.
    pub(crate) fn answer_counts(&self) -> BTreeMap<String, BTreeMap<Kind, Counts>> {
        self.lock().counts.clone()
    }

    /// Returns the number of streams.
    pub(crate) fn stream_count(&self) -> usize {
        self.lock().clients.len()
    }

    /// Returns the status of the server and of all clients.
    pub(crate) fn status(&self, listen: Vec<SocketAddr>, now: Instant) -> XdsStatus {
        let inner = self.lock();
        let clients = inner.clients.values().map(|client| {
            let mut status = client.status.clone();
            status.connected_seconds = now.since(client.since).as_secs_f64();
            for of in &mut status.subscriptions {
                let mut nacked = client.nacked.iter();
                let at = nacked.rfind(|(kind, _)| kind.name() == of.kind);
                if let (Some(nack), Some((_, at))) = (&mut of.last_nack, at) {
                    nack.age_seconds = now.since(*at).as_secs_f64();
                }
            }
            status
        });
        let mut clients: Vec<ClientStatus> = clients.collect();
        drop(inner);
        clients.sort_by(|a, b| (&a.node, a.address).cmp(&(&b.node, b.address)));
        XdsStatus {
            listen,
            connections: self.connections.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            groups: self.groups.load(Ordering::Relaxed),
            changes: self.changes.load(Ordering::Relaxed),
            load_reports: self.load_reports.load(Ordering::Relaxed),
            unknown_load_reports: self.unknown_load_reports.load(Ordering::Relaxed),
            clients,
        }
    }
}
