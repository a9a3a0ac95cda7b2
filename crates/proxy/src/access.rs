//! The access log, as far as the data plane takes part in it: it fills in a record and
//! hands it to a bounded channel. Whoever reads the other end may format and write at
//! leisure; when it is behind, records are dropped and counted, never waited for.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime};

use evenkeel_core::cost::Cost;
use evenkeel_tls::handshake::Agreed;

use crate::message::{Field, values};
use crate::trace::Trace;

/// Records that may wait to be written.
const QUEUE: usize = 8192;

/// Longest request target that is kept; the rest is cut off.
pub(crate) const MAX_TARGET_BYTES: usize = 1024;

/// Longest method that is kept; the rest is cut off.
pub(crate) const MAX_METHOD_BYTES: usize = 32;

/// Longest value of a header field that is kept; the rest is cut off.
const MAX_VALUE_BYTES: usize = 256;

/// Who a client is: its address. Clients of Unix sockets have none, unless a proxy in front says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub Option<SocketAddr>);

impl Peer {
    /// The IP address.
    #[inline]
    pub fn ip(self) -> Option<IpAddr> {
        self.0.map(|address| address.ip())
    }
}

/// As logs show it.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("unix"),
        }
    }
}

/// The members that a request or connection was bound to. In a box, and only where there is a log: connections
/// are to stay small.
#[derive(Clone, Debug)]
pub struct Tries {
    /// The member that answered, or was tried last.
    pub member: Arc<str>,
    /// Those that were tried before it, in their order.
    pub before: Vec<Arc<str>>,
    /// How long all of them were waited for in the group's queue.
    pub queued: Duration,
    /// What it took to connect to the last one, if no connection was used again.
    pub connect_time: Option<Duration>,
    /// HTTP: bytes of the response's head, as HTTP/1.1 has it; 0 over HTTP/2.
    pub head_bytes: u64,
    /// HTTP: the fields of the response that the log has, in the order of [`Wants`].
    pub fields: Box<[Option<Box<str>>]>,
}

impl Tries {
    pub(crate) fn new(member: Arc<str>) -> Box<Self> {
        Box::new(Tries {
            member,
            before: Vec::new(),
            queued: Duration::ZERO,
            connect_time: None,
            head_bytes: 0,
            fields: Box::default(),
        })
    }

    /// Adds what came next to `all`.
    pub(crate) fn add(all: &mut Option<Box<Tries>>, next: Option<Box<Tries>>) {
        let Some(mut next) = next else {
            return;
        };
        if let Some(before) = all.take() {
            next.queued = next.queued.saturating_add(before.queued);
            next.before = before.before;
            next.before.push(before.member);
        }
        *all = Some(next);
    }
}

/// One line of the log: an HTTP request, or a TCP connection.
#[derive(Clone, Debug)]
pub struct Record {
    /// When the request's head was complete, or the connection accepted.
    pub at: SystemTime,
    /// The client.
    pub client: Peer,
    /// The rule's name.
    pub rule: Arc<str>,
    /// HTTP: the user, where only some may send requests, and this one may.
    pub user: Option<Arc<str>>,
    /// HTTP: the route, by its name or number, if the rule has routes and one was found.
    pub route: Option<Arc<str>>,
    /// The group that served, or was to; `None` if the balancer answered by itself.
    pub group: Option<Arc<str>>,
    /// Where it was tried, if anywhere.
    pub tries: Option<Box<Tries>>,
    /// What was agreed on with a client that speaks TLS.
    pub tls: Option<Arc<Agreed>>,
    /// The name that a client asked for whose TLS ends at the member.
    pub server_name: Option<Box<str>>,
    /// HTTP: method and target (at most 32 and 1,024 bytes of them).
    pub request: Option<(Box<str>, Box<str>)>,
    /// HTTP: the version that the client speaks, as in `HTTP/1.1`.
    pub protocol: Option<&'static str>,
    /// HTTP: what else is known of a request, if somebody wants it.
    pub details: Option<Box<Details>>,
    /// HTTP: the status that the client got; `None` if it got none.
    pub status: Option<u16>,
    /// Bytes from the client: HTTP the request's body, TCP all.
    pub bytes_received: u64,
    /// Bytes to the client: HTTP the response with its head, TCP all.
    pub bytes_sent: u64,
    /// Those of them that are the head of a response.
    pub head_bytes_sent: u64,
    /// Until the member began to answer.
    pub response_time: Option<Duration>,
    /// Until everything was over.
    pub total_time: Duration,
    /// What it counts as for strategies.
    pub cost: Cost,
    /// Further tries on other members or connections.
    pub retries: u32,
    /// How it ended.
    pub end: End,
    /// The limit that was reached, if one was.
    pub limit: Option<Limit>,
    /// HTTP: what it is called, if it is one of requests.
    pub request_limit: Option<Arc<str>>,
    /// Whether a second member was asked.
    pub hedged: Option<Hedged>,
}

impl Record {
    /// The name that a client of TLS has asked for.
    pub fn asked_name(&self) -> Option<&str> {
        match &self.tls {
            Some(tls) => tls.name.as_deref(),
            None => self.server_name.as_deref(),
        }
    }
}

/// What is known of an HTTP request where somebody wants to know it.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// The fields that the log has, in the order of [`Wants`].
    pub fields: Box<[Option<Box<str>>]>,
    /// Its name.
    pub id: Option<Box<str>>,
    /// Where it is in a trace, if it is traced.
    pub trace: Option<Trace>,
}

/// What the log wants of header fields: names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Of requests.
    pub request: Vec<Box<str>>,
    /// Of responses.
    pub response: Vec<Box<str>>,
}

/// The first values of the fields called `names`, bounded.
pub(crate) fn kept(names: &[Box<str>], fields: &[Field<'_>]) -> Box<[Option<Box<str>>]> {
    let names = names.iter();
    names
        .map(|name| values(fields, name).next().map(kept_value))
        .collect()
}

/// A value of a field, bounded.
pub(crate) fn kept_value(value: &[u8]) -> Box<str> {
    let value = value.get(..MAX_VALUE_BYTES).unwrap_or(value);
    String::from_utf8_lossy(value).into()
}

/// What became of a request to a second member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Hedged {
    /// It was answered first.
    Won,
    /// It was not.
    Lost,
}

/// A limit of a rule for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Limit {
    /// Requests in a time.
    Requests,
    /// Connections at once.
    Connections,
    /// Connections opened in a time.
    NewConnections,
    /// How slowly the body of a request may come.
    MinBodyRate,
    /// How slowly a response may be taken.
    MinResponseRate,
    /// The age of a connection.
    MaxLifetime,
}

impl Limit {
    /// Its name in the configuration, in metrics and in the log.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// How a request or connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum End {
    /// As it should.
    Complete,
    /// The client went away, or broke the protocol.
    Client,
    /// The client was silent, or took no data, for too long.
    ClientTimeout,
    /// The member failed, or broke the protocol.
    Member,
    /// The member had closed an idle connection just when a request was sent on it that may
    /// not be sent twice. No failure of the member, nor of the client.
    Stale,
    /// The member did not connect or answer in time.
    MemberTimeout,
    /// No member could be used, or the queue for one was full.
    Refused,
    /// The client has reached a limit.
    Limited,
    /// The rule is in maintenance.
    Maintenance,
    /// It takes requests of users only, and this one is none.
    Unauthorized,
    /// Closed while it was idle, because of a load alert at the member's location.
    Alert,
    /// Cut because the rule was disabled, or the grace period was over.
    Terminated,
    /// Something has run out here: nobody else's fault.
    Exhausted,
}

impl End {
    /// Whether both sides may take what they have got for the whole.
    pub(crate) fn is_orderly(self) -> bool {
        matches!(self, End::Complete | End::Alert)
    }

    /// The name in the log.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The data plane's end of the log.
#[derive(Clone, Debug)]
pub struct AccessLog {
    sender: SyncSender<Record>,
    wants: Arc<Wants>,
}

impl AccessLog {
    /// A log, and the end from which records are to be written.
    pub fn channel() -> (AccessLog, Receiver<Record>) {
        let (sender, receiver) = sync_channel(QUEUE);
        let wants = Arc::default();
        (AccessLog { sender, wants }, receiver)
    }

    /// The same log for lines with these header fields.
    #[must_use]
    pub fn with(self, wants: Wants) -> Self {
        let wants = Arc::new(wants);
        AccessLog { wants, ..self }
    }

    /// The header fields of its lines.
    pub(crate) fn wants(&self) -> &Wants {
        &self.wants
    }

    /// Hands a record over; answers whether there was room.
    pub(crate) fn record(&self, record: Record) -> bool {
        self.sender.try_send(record).is_ok()
    }
}
