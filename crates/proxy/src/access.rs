//! The access log, as far as the data plane takes part in it: each worker makes lines of what it
//! has served and gathers them; many at once are handed to whoever writes them. When that one is
//! behind, lines are dropped and counted, never waited for.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, SystemTime};

use evenkeel_core::cost::Cost;
use evenkeel_inference::usage::Usage;
use evenkeel_tls::handshake::HandshakeParameters;

pub use crate::http2::grpc::CallStatus;
use crate::message::{Field, values};
use crate::trace::Trace;

pub mod line;
mod parts;
mod text;

/// Bytes of lines that may wait to be written. Each worker may have [`HAND_OVER`] more, and a line.
const MAX_WAITING: usize = 4 << 20;

/// Bytes that a worker gathers before it hands them over; it does so at each tick, too. To wake the thread
/// that writes costs as much as dozens of lines.
const HAND_OVER: usize = 60 * 1024;

/// Most room that is made for them in advance: a usual line more fits in.
const ROOM: usize = 64 * 1024;

/// Longest request target that is kept; the rest is cut off.
pub(crate) const MAX_TARGET_BYTES: usize = 1024;

/// Longest method that is kept; the rest is cut off.
pub(crate) const MAX_METHOD_BYTES: usize = 32;

/// Longest value of a header field that is kept; the rest is cut off.
const MAX_VALUE_BYTES: usize = 256;

/// Address of a client. Clients of Unix sockets have none, unless a proxy in front says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub Option<SocketAddr>);

impl Peer {
    /// The IP address.
    #[inline]
    pub fn ip(self) -> Option<IpAddr> {
        self.0.map(|address| address.ip())
    }
}

/// Writes the client as logs show it: its address, or `unix`.
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
pub struct MemberAttempts {
    /// The member that answered, or was tried last.
    pub member: Arc<str>,
    /// The name that the configuration gives that member.
    pub member_name: Option<Arc<str>>,
    /// Members that were tried before the last one, in their order.
    pub before: Vec<Arc<str>>,
    /// Time for which all of these members were waited for in the group's queue.
    pub queued: Duration,
    /// Time that connecting to the last member took, if no connection was used again.
    pub connect_time: Option<Duration>,
    /// HTTP: time to the first byte of the body, where it came after the head.
    pub first_byte: Option<Duration>,
    /// HTTP: bytes of the response's head, as HTTP/1.1 has it; 0 over HTTP/2.
    pub head_bytes: u64,
    /// HTTP: the fields of the response that the log has, in the order of [`LoggedHeaders`].
    pub fields: Box<[Option<Box<str>>]>,
    /// HTTP: fault in a response of one of the members, the last one whose response could not be
    /// read.
    pub member_error: Option<Box<str>>,
}

impl MemberAttempts {
    /// A first try on a member, with the name that the configuration gives the member.
    pub fn new(member: Arc<str>, member_name: Option<Arc<str>>) -> Box<Self> {
        Box::new(MemberAttempts {
            member,
            member_name,
            before: Vec::new(),
            queued: Duration::ZERO,
            connect_time: None,
            first_byte: None,
            head_bytes: 0,
            fields: Box::default(),
            member_error: None,
        })
    }

    /// Adds what came next to `all`.
    pub(crate) fn append_to(
        all: &mut Option<Box<MemberAttempts>>,
        next: Option<Box<MemberAttempts>>,
    ) {
        let Some(mut next) = next else {
            return;
        };
        if let Some(before) = all.take() {
            next.queued = next.queued.saturating_add(before.queued);
            next.before = before.before;
            next.before.push(before.member);
            next.member_error = next.member_error.or(before.member_error);
        }
        *all = Some(next);
    }
}

/// Line of the log: an HTTP request, or a TCP connection. The record borrows names from where they
/// are: to count references to what all workers share would cost more than to make a line.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// Time at which the request's head was complete, or the connection was accepted.
    pub at: SystemTime,
    /// The client.
    pub client: Peer,
    /// The rule's name.
    pub rule: Cow<'a, str>,
    /// HTTP: user who sent the request, where only some users may send requests, and this one may.
    pub user: Option<Cow<'a, str>>,
    /// HTTP: the route, by its name or number, if the rule has routes and one was found.
    pub route: Option<Cow<'a, str>>,
    /// The group that served, or was to; `None` if the balancer answered by itself.
    pub group: Option<Cow<'a, str>>,
    /// Members at which the request or connection was tried, if any.
    pub attempts: Option<Box<MemberAttempts>>,
    /// Parameters agreed on with a client that speaks TLS.
    pub tls: Option<Arc<HandshakeParameters>>,
    /// The name that a client asked for whose TLS ends at the member.
    pub server_name: Option<Box<str>>,
    /// HTTP: method and target (at most 32 and 1,024 bytes of them).
    pub request: Option<(Cow<'a, str>, Cow<'a, str>)>,
    /// HTTP: the version that the client speaks, as in `HTTP/1.1`.
    pub protocol: Option<&'static str>,
    /// HTTP: what else is known of a request, if somebody wants it.
    pub details: Option<Box<Details>>,
    /// HTTP: the status that the client got; `None` if it got none.
    pub status: Option<u16>,
    /// Status of a call of gRPC, as its client was told; `None` if it was not, or if it is no call.
    pub grpc_status: Option<CallStatus>,
    /// Bytes from the client: HTTP the request's body, TCP all.
    pub bytes_received: u64,
    /// Bytes to the client: HTTP the response with its head, TCP all.
    pub bytes_sent: u64,
    /// Bytes of `bytes_sent` that are the head of a response.
    pub head_bytes_sent: u64,
    /// Time until the member began to answer.
    pub response_time: Option<Duration>,
    /// Time until everything was over.
    pub total_time: Duration,
    /// Cost of the request or connection for strategies.
    pub cost: Cost,
    /// Further tries on other members or connections.
    pub retries: u32,
    /// End of the request or connection.
    pub end: End,
    /// The limit that was reached, if one was.
    pub limit: Option<Limit>,
    /// HTTP: what it is called, if it is one of requests.
    pub request_limit: Option<Cow<'a, str>>,
    /// Outcome of the request to a second member, if there was one.
    pub hedged: Option<Hedged>,
}

impl Record<'_> {
    /// Returns a record that borrows nothing.
    pub fn into_owned(self) -> Record<'static> {
        fn own_text(text: Cow<'_, str>) -> Cow<'static, str> {
            Cow::Owned(text.into_owned())
        }
        Record {
            at: self.at,
            client: self.client,
            rule: own_text(self.rule),
            user: self.user.map(own_text),
            route: self.route.map(own_text),
            group: self.group.map(own_text),
            attempts: self.attempts,
            tls: self.tls,
            server_name: self.server_name,
            request: self
                .request
                .map(|(method, target)| (own_text(method), own_text(target))),
            protocol: self.protocol,
            details: self.details,
            status: self.status,
            grpc_status: self.grpc_status,
            bytes_received: self.bytes_received,
            bytes_sent: self.bytes_sent,
            head_bytes_sent: self.head_bytes_sent,
            response_time: self.response_time,
            total_time: self.total_time,
            cost: self.cost,
            retries: self.retries,
            end: self.end,
            limit: self.limit,
            request_limit: self.request_limit.map(own_text),
            hedged: self.hedged,
        }
    }

    /// The name that a client of TLS has asked for.
    pub fn asked_name(&self) -> Option<&str> {
        match &self.tls {
            Some(tls) => tls.name.as_deref(),
            None => self.server_name.as_deref(),
        }
    }
}

/// Facts about an HTTP request that only some logs and traces need.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// The fields that the log has, in the order of [`LoggedHeaders`].
    pub fields: Box<[Option<Box<str>>]>,
    /// Name of the request.
    pub id: Option<Box<str>>,
    /// Place of the request in a trace, if it is traced.
    pub trace: Option<Trace>,
    /// Model and tokens, if the request is for engines of language models.
    pub engine: Option<Box<EngineFacts>>,
}

/// Facts about a request for engines of language models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineFacts {
    /// Name of the model, at most 128 bytes; `None` if the request does not name one for certain.
    pub model: Option<Box<str>>,
    /// Group that was to serve the request, if another group of the model got it.
    pub fallback_from: Option<Arc<str>>,
    /// Tokens that the engine has counted, if its answer says them.
    pub usage: Option<Usage>,
    /// Time from the request to the first token, if the answer has come as a stream.
    pub first_token: Option<Duration>,
}

/// Header fields that the log needs: names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedHeaders {
    /// Names of fields of requests.
    pub request: Vec<Box<str>>,
    /// Names of fields of responses.
    pub response: Vec<Box<str>>,
}

/// The first values of the fields called `names`, bounded.
pub(crate) fn keep_values(names: &[Box<str>], fields: &[Field<'_>]) -> Box<[Option<Box<str>>]> {
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

/// Outcome of a request to a second member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Hedged {
    /// The second member answered first.
    Won,
    /// The second member did not answer first.
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
    /// Lowest rate at which the body of a request may come.
    MinBodyRate,
    /// Lowest rate at which a client may take a response.
    MinResponseRate,
    /// The age of a connection.
    MaxLifetime,
}

impl Limit {
    /// Returns the name of the limit in the configuration, in metrics and in the log.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// End of a request or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum End {
    /// The request or connection ended in order.
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
    /// The first token of an engine would have come too late.
    LateFirstToken,
    /// The client has reached a limit.
    Limited,
    /// The rule is in maintenance.
    Maintenance,
    /// The route takes requests of users only, and the request is from none of them.
    Unauthorized,
    /// Closed while it was idle, because of a load alert at the member's location.
    Alert,
    /// Cut because the rule was disabled, or the grace period was over.
    Terminated,
    /// The process, or the machine, has run out of something: nobody else's fault.
    Exhausted,
}

impl End {
    /// True if both sides may take what they have got for the whole.
    pub(crate) fn is_orderly(self) -> bool {
        matches!(self, End::Complete | End::Alert)
    }

    /// The name in the log.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Returns a method as it is kept: the methods that most requests have are not copied.
pub(crate) fn kept_method(method: &str) -> Cow<'static, str> {
    const KNOWN: [&str; 7] = ["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"];
    match KNOWN.into_iter().find(|known| *known == method) {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(cut_text(method, MAX_METHOD_BYTES).to_owned()),
    }
}

/// Returns the first `most` bytes of `text` at most, never cut in a character.
pub(crate) fn cut_text(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Format of the lines that one worker makes of records.
pub trait Lines: fmt::Debug + Send + Sync {
    /// Appends a record as a line.
    fn push(&mut self, record: &Record<'_>, lines: &mut Vec<u8>);

    /// Returns the header fields that the lines need.
    fn wants(&self) -> LoggedHeaders {
        LoggedHeaders::default()
    }

    /// Returns the same format for another worker.
    fn another(&self) -> Box<dyn Lines>;
}

/// The data plane's end of the log: each worker has one.
#[derive(Debug)]
pub struct AccessLog {
    lines: Box<dyn Lines>,
    wants: Arc<LoggedHeaders>,
    /// Lines that were not handed over yet.
    gathered: Vec<u8>,
    /// Bytes that were handed over last, of which there will probably be as many again.
    last: usize,
    sender: Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

impl AccessLog {
    /// A log with such lines, and the end from which they are to be written.
    pub fn new_channel(lines: Box<dyn Lines>) -> (AccessLog, Queue) {
        let (sender, receiver) = channel();
        let waiting = Arc::default();
        let queue = Queue {
            receiver,
            waiting: Arc::clone(&waiting),
        };
        let log = AccessLog {
            wants: Arc::new(lines.wants()),
            lines,
            gathered: Vec::new(),
            last: 0,
            sender,
            waiting,
        };
        (log, queue)
    }

    /// Returns the same log for another worker.
    #[must_use]
    pub fn clone_for_worker(&self) -> AccessLog {
        AccessLog {
            lines: self.lines.another(),
            wants: Arc::clone(&self.wants),
            gathered: Vec::new(),
            last: 0,
            sender: self.sender.clone(),
            waiting: Arc::clone(&self.waiting),
        }
    }

    /// The header fields of its lines.
    pub(crate) fn wanted_fields(&self) -> &LoggedHeaders {
        &self.wants
    }

    /// Adds a line; answers whether there was room.
    pub fn push_record(&mut self, record: &Record<'_>) -> bool {
        if self.waiting.load(Ordering::Relaxed) >= MAX_WAITING {
            return false;
        }
        if self.gathered.capacity() == 0 {
            self.gathered.reserve(self.last);
        }
        self.lines.push(record, &mut self.gathered);
        if self.gathered.len() >= HAND_OVER {
            self.hand_over();
        }
        true
    }

    /// Hands over what was gathered.
    pub fn hand_over(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let lines = std::mem::take(&mut self.gathered);
        self.last = lines.capacity().min(ROOM);
        self.waiting.fetch_add(lines.len(), Ordering::Relaxed);
        // There is nobody any more only if the thread that writes has panicked, which it says.
        let _ = self.sender.send(lines);
    }
}

/// The worker ends, or has another log from now on.
impl Drop for AccessLog {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// Lines that wait to be written, many at once and whole ones.
#[derive(Debug)]
pub struct Queue {
    receiver: Receiver<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
}

impl Queue {
    /// Takes lines; waits for some if there are none.
    ///
    /// # Errors
    ///
    /// None came in time, or all workers have ended and everything was taken.
    pub fn take(&self, limit: Duration) -> Result<Vec<u8>, RecvTimeoutError> {
        self.receiver
            .recv_timeout(limit)
            .map(|lines| self.take_lines(lines))
    }

    /// Takes lines if there are some.
    ///
    /// # Errors
    ///
    /// There are none.
    pub fn try_take(&self) -> Result<Vec<u8>, TryRecvError> {
        self.receiver.try_recv().map(|lines| self.take_lines(lines))
    }

    fn take_lines(&self, lines: Vec<u8>) -> Vec<u8> {
        self.waiting.fetch_sub(lines.len(), Ordering::Relaxed);
        lines
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_manager::config::LogFormat;

    use super::line::LineFormatter;
    use super::line::tests::sample_record;
    use super::*;

    #[test]
    fn lines_are_handed_over_many_at_once_and_in_their_order() {
        let (first, queue) =
            AccessLog::new_channel(Box::new(LineFormatter::with_format(LogFormat::Json)));
        let mut log = first.clone_for_worker();
        drop(first);
        for number in 0..1000 {
            assert!(log.push_record(&sample_record(&format!("/{number}"))));
        }
        drop(log);
        let (mut all, mut times) = (Vec::new(), 0);
        while let Ok(lines) = queue.try_take() {
            assert_eq!(lines.last(), Some(&b'\n'));
            all.extend_from_slice(&lines);
            times += 1;
        }
        assert!(times < 20, "{times}");
        let targets = all
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty());
        let targets = targets.map(|line| {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap();
            line["target"].as_str().unwrap().to_owned()
        });
        assert!(targets.eq((0..1000).map(|number| format!("/{number}"))));
        assert_eq!(queue.try_take(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn what_waits_is_bounded_over_all_workers() {
        let (mut log, queue) =
            AccessLog::new_channel(Box::new(LineFormatter::with_format(LogFormat::Json)));
        let record = sample_record(&"x".repeat(MAX_TARGET_BYTES));
        let taken =
            (0..2 * MAX_WAITING / MAX_TARGET_BYTES).take_while(|_| log.push_record(&record));
        let taken = taken.count();
        assert!(taken < 2 * MAX_WAITING / MAX_TARGET_BYTES);
        let mut other = log.clone_for_worker();
        assert!(!other.push_record(&record), "there is no room for anybody");
        let first = queue.try_take().unwrap();
        assert!(first.len() >= HAND_OVER);
        assert!(other.push_record(&record));
        drop((log, other));
        let rest = std::iter::from_fn(|| queue.try_take().ok());
        let bytes = first.len() + rest.map(|lines| lines.len()).sum::<usize>();
        assert!(bytes <= MAX_WAITING + 4 * HAND_OVER, "{bytes}");
        let mut line = Vec::new();
        LineFormatter::with_format(LogFormat::Json).push(&record, &mut line);
        assert_eq!(bytes, (taken + 1) * line.len(), "what was taken is there");
    }

    #[test]
    fn s11_what_is_logged_of_a_request_is_bounded() {
        assert_eq!(cut_text("abc", 2), "ab");
        assert_eq!(cut_text("a\u{e4}c", 2), "a");
        assert_eq!(cut_text("abc", 9), "abc");
        assert_eq!(kept_method("DELETE"), "DELETE");
        assert_eq!(kept_method(&"M".repeat(99)), "M".repeat(MAX_METHOD_BYTES));
    }
}
