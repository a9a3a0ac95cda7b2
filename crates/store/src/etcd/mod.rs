//! A client of etcd: the few calls of its API (v3, by gRPC) that are needed.
//!
//! One server is asked at a time, over one connection; if it does not answer in time, the next one is asked. A read is
//! tried once at each server. A write whose answer is lost is not tried again: the caller compares the store's content
//! to find out whether the write was made.

mod messages;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_config::{Origin, Store, one_line};
use evenkeel_net::grpc::{Call, CallError, Options};
use evenkeel_net::{http2, key_file};
use evenkeel_tls::client::Client;
use evenkeel_tls::current::Current;
use evenkeel_tls::listener::Connection;
use h2::client::SendRequest;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use messages::{
    AuthenticateRequest, AuthenticateResponse, Compare, DeleteRangeRequest, Header, KeyValue,
    LeaseGrantRequest, LeaseGrantResponse, LeaseRequest, LeaseResponse, Op, PutRequest,
    RangeRequest, RangeResponse, RequestOp, TARGET_MOD, Target, TxnRequest, TxnResponse,
    WatchCreate, WatchRequest, WatchResponse,
};

/// Longest message of an answer, in bytes: many reports, or a revision.
const MAX_ANSWER: usize = 32 << 20;

/// Longest message of a watch.
const MAX_EVENTS: usize = 8 << 20;

/// Statuses of gRPC.
const UNAUTHENTICATED: &str = "16";
const UNAVAILABLE: [&str; 4] = ["1", "4", "13", "14"];

/// Error of a call of etcd.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No server answers. The text has the answer or error of each server.
    #[error("{0}")]
    Unreachable(String),
    /// A server refuses the call.
    #[error("{0}")]
    Refused(String),
}

impl EtcdError {
    /// True if no server answers.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, EtcdError::Unreachable(_))
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The revision of etcd in which the key was changed last: a transaction compares it.
    pub changed: i64,
}

/// Answer of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// The keys found.
    pub entries: Vec<Entry>,
    /// The revision of etcd at the time of the read.
    pub revision: i64,
    /// Number of the cluster. A cluster that was restored from a backup has another number.
    pub cluster: u64,
}

/// Selection of keys.
#[derive(Clone, Debug)]
pub enum Keys<'a> {
    /// A single key.
    One(&'a str),
    /// All keys with this prefix.
    Under(&'a str),
    /// A page of the keys with a prefix, in order: the prefix, the most keys, and the key behind which the page begins.
    Page(&'a str, i64, Option<&'a [u8]>),
    /// The last keys with a prefix, the largest first: the prefix, the most keys, and the key before which they lie.
    Last(&'a str, i64, Option<&'a str>),
}

/// A write of a transaction.
#[derive(Clone, Debug)]
pub enum Write {
    /// Sets a key to a value, for the lifetime of a lease (0: forever).
    Put(String, Vec<u8>, i64),
    /// Removes a key.
    Delete(String),
    /// Removes all keys with this prefix.
    DeleteUnder(String),
}

/// A client of etcd. Calls are made one after the other.
pub struct Etcd {
    settings: Store,
    tls: Option<Current>,
    /// Index of the server that is asked.
    at: usize,
    link: Option<Link>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").finish_non_exhaustive()
    }
}

/// A connection to a server.
struct Link {
    client: SendRequest<Bytes>,
    /// Common start of the URIs of all calls.
    base: String,
    /// Token of the user's login.
    token: Option<String>,
    driver: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Link {
    /// Header fields of a call.
    fn fields(&self) -> Vec<(&str, &str)> {
        let token = self.token.iter().map(|token| ("token", token.as_str()));
        // A server that has lost the others must not answer with old data.
        token.chain([("hasleader", "true")]).collect()
    }

    async fn call(&self, method: &str, message: &[u8], limit: usize) -> Result<Vec<u8>, CallError> {
        let fields = self.fields();
        let options = Options {
            fields: &fields,
            limit,
            open: false,
        };
        let uri = format!("{}{method}", self.base);
        let mut call = Call::begin_with(self.client.clone(), &uri, message, options).await?;
        let answer = call.next().await?;
        // An error may follow the answer.
        match call.next().await {
            Err(CallError::Closed) | Ok(_) => Ok(answer),
            Err(error) => Err(error),
        }
    }
}

impl Etcd {
    /// A client of the servers that the configuration names, not connected yet.
    pub fn new(settings: &Store) -> Self {
        let secure = settings.endpoints.iter().find(|one| one.is_secure());
        let tls = secure.and_then(|one| settings.client_tls(one));
        Etcd {
            tls: tls.map(Current::new),
            settings: settings.clone(),
            // Not all balancers should ask the same server.
            at: fastrand::usize(..settings.endpoints.len().max(1)),
            link: None,
        }
    }

    /// Address of the server that is asked.
    pub fn server(&self) -> String {
        let endpoint = self.settings.endpoints.get(self.at);
        endpoint.map(Origin::to_string).unwrap_or_default()
    }

    /// Makes the next call use another connection, to the next server.
    pub fn move_on(&mut self) {
        self.link = None;
        self.at = (self.at + 1) % self.settings.endpoints.len().max(1);
    }

    /// Reads keys, as the whole cluster agrees on them.
    ///
    /// # Errors
    ///
    /// No server answers, or a server refuses.
    pub async fn read(&mut self, keys: Keys<'_>) -> Result<Read, EtcdError> {
        let request = match keys {
            Keys::One(key) => RangeRequest {
                key: key.into(),
                ..RangeRequest::default()
            },
            Keys::Under(prefix) => RangeRequest {
                key: prefix.into(),
                range_end: after(prefix),
                ..RangeRequest::default()
            },
            Keys::Page(prefix, limit, behind) => RangeRequest {
                // No key lies between a key and the same key with a zero appended.
                key: behind.map_or_else(|| prefix.into(), |key| [key, &[0]].concat()),
                range_end: after(prefix),
                limit,
                ..RangeRequest::default()
            },
            Keys::Last(prefix, limit, before) => RangeRequest {
                key: prefix.into(),
                range_end: before.map_or_else(|| after(prefix), Vec::from),
                limit,
                sort_order: 2,
                ..RangeRequest::default()
            },
        };
        let method = "/etcdserverpb.KV/Range";
        let response: RangeResponse = self.ask(method, &request, Retry::EachServer).await?;
        let header = response.header.unwrap_or_default();
        Ok(Read {
            entries: response.kvs.into_iter().map(Entry::from).collect(),
            revision: header.revision,
            cluster: header.cluster_id,
        })
    }

    /// Makes all writes, if the key `key` was changed last in the revision `changed` of etcd (0: if it does not exist).
    /// Returns true if they were made.
    ///
    /// # Errors
    ///
    /// No server answers, and the writes may have been made; or a server refuses.
    pub async fn write_if(
        &mut self,
        (key, changed): (&str, i64),
        writes: Vec<Write>,
    ) -> Result<bool, EtcdError> {
        let compare = Compare {
            target: TARGET_MOD,
            key: key.into(),
            value: Some(Target::ModRevision(changed)),
        };
        self.transact(vec![compare], writes).await
    }

    /// Makes all writes.
    ///
    /// # Errors
    ///
    /// No server answers, and the writes may have been made; or a server refuses.
    pub async fn write(&mut self, writes: Vec<Write>) -> Result<(), EtcdError> {
        self.transact(Vec::new(), writes).await.map(|_| ())
    }

    async fn transact(
        &mut self,
        compare: Vec<Compare>,
        writes: Vec<Write>,
    ) -> Result<bool, EtcdError> {
        let writes = writes.into_iter().map(|write| {
            let op = match write {
                Write::Put(key, value, lease) => Op::Put(PutRequest {
                    key: key.into(),
                    value,
                    lease,
                }),
                Write::Delete(key) => Op::Delete(DeleteRangeRequest {
                    key: key.into(),
                    range_end: Vec::new(),
                }),
                Write::DeleteUnder(prefix) => Op::Delete(DeleteRangeRequest {
                    range_end: after(&prefix),
                    key: prefix.into(),
                }),
            };
            RequestOp { op: Some(op) }
        });
        let request = TxnRequest {
            compare,
            success: writes.collect(),
        };
        let response: TxnResponse = self
            .ask("/etcdserverpb.KV/Txn", &request, Retry::Never)
            .await?;
        Ok(response.succeeded)
    }

    /// Requests a lease with this lifetime.
    ///
    /// # Errors
    ///
    /// No server answers, or a server refuses.
    pub async fn lease(&mut self, lifetime: Duration) -> Result<i64, EtcdError> {
        let request = LeaseGrantRequest {
            ttl: i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX),
        };
        let method = "/etcdserverpb.Lease/LeaseGrant";
        let response: LeaseGrantResponse = self.ask(method, &request, Retry::Never).await?;
        Ok(response.id)
    }

    /// Renews a lease for its full lifetime. Returns false if the lease has run out.
    ///
    /// # Errors
    ///
    /// No server answers, or a server refuses.
    pub async fn keep_alive(&mut self, lease: i64) -> Result<bool, EtcdError> {
        let request = LeaseRequest { id: lease };
        let method = "/etcdserverpb.Lease/LeaseKeepAlive";
        let response: LeaseResponse = self.ask(method, &request, Retry::EachServer).await?;
        Ok(response.ttl > 0)
    }

    /// Ends a lease, and removes the keys that were written with it.
    ///
    /// # Errors
    ///
    /// No server answers, or a server refuses.
    pub async fn end_lease(&mut self, lease: i64) -> Result<(), EtcdError> {
        let request = LeaseRequest { id: lease };
        let method = "/etcdserverpb.Lease/LeaseRevoke";
        let _: LeaseResponse = self.ask(method, &request, Retry::Never).await?;
        Ok(())
    }

    /// Watches the changes of a key from the revision `from` of etcd on.
    ///
    /// # Errors
    ///
    /// No server answers, or a server refuses.
    pub async fn watch(&mut self, key: &str, from: i64) -> Result<Watch, EtcdError> {
        let request = WatchRequest {
            create: Some(WatchCreate {
                key: key.into(),
                range_end: Vec::new(),
                start_revision: from,
            }),
        };
        let limit = self.settings.timeout;
        let link = self.link().await?;
        let server = link.base.clone();
        let fields = link.fields();
        let options = Options {
            fields: &fields,
            limit: MAX_EVENTS,
            open: true,
        };
        let uri = format!("{}/etcdserverpb.Watch/Watch", link.base);
        let message = request.encode_to_vec();
        let call = Call::begin_with(link.client.clone(), &uri, &message, options);
        let result = timeout(limit, call).await.map_err(|_| no_answer(limit));
        match result.and_then(|call| call.map_err(|error| error.to_string())) {
            Ok(call) => Ok(Watch { call }),
            Err(why) => {
                self.move_on();
                Err(EtcdError::Unreachable(format!("{server}: {why}")))
            }
        }
    }

    /// Makes a call.
    async fn ask<A: Message + Default>(
        &mut self,
        method: &str,
        request: &impl Message,
        retry: Retry,
    ) -> Result<A, EtcdError> {
        let message = request.encode_to_vec();
        let servers = self.settings.endpoints.len().max(1);
        let mut said: Vec<String> = Vec::new();
        let (mut logins, mut is_stale) = (0, self.link.is_some());
        loop {
            let limit = self.settings.timeout;
            let link = self.link().await?;
            let server = link.base.clone();
            let call = timeout(limit, link.call(method, &message, MAX_ANSWER));
            let why = match call.await {
                Ok(Ok(answer)) => {
                    return A::decode(answer.as_slice()).map_err(|error| {
                        let why = format!("{server}: the answer is not one of etcd: {error}");
                        EtcdError::Refused(why)
                    });
                }
                // The token is too old, or the server was restarted.
                Ok(Err(error))
                    if logins == 0 && self.settings.user.is_some() && is_no_login(&error) =>
                {
                    logins += 1;
                    self.link = None;
                    continue;
                }
                Ok(Err(CallError::Status(status, why)))
                    if !UNAVAILABLE.contains(&status.as_str()) =>
                {
                    return Err(EtcdError::Refused(format!(
                        "{server} refuses{}",
                        meant(&why)
                    )));
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => no_answer(limit),
            };
            // An old connection may have been dead for long, which says nothing about the server.
            if std::mem::take(&mut is_stale) && retry == Retry::EachServer {
                self.link = None;
                continue;
            }
            said.push(format!("{server}: {why}"));
            self.move_on();
            if retry == Retry::Never || said.len() >= servers {
                return Err(EtcdError::Unreachable(said.join("; ")));
            }
        }
    }

    /// Returns the connection; makes a new one, if there is none. Each server is tried once.
    async fn link(&mut self) -> Result<&Link, EtcdError> {
        let mut said: Vec<String> = Vec::new();
        if self
            .link
            .as_ref()
            .is_some_and(|link| link.driver.is_finished())
        {
            self.link = None;
        }
        while self.link.is_none() {
            let limit = self.settings.timeout;
            let connected = timeout(limit, self.connect()).await;
            match connected.unwrap_or_else(|_| Err(EtcdError::Unreachable(no_answer(limit)))) {
                Ok(link) => self.link = Some(link),
                // Another server of the cluster would refuse, too.
                Err(error @ EtcdError::Refused(_)) => return Err(error),
                Err(error) => {
                    said.push(format!("{}: {error}", self.server()));
                    self.move_on();
                    if said.len() >= self.settings.endpoints.len() {
                        return Err(EtcdError::Unreachable(said.join("; ")));
                    }
                }
            }
        }
        let none = || EtcdError::Unreachable("`endpoints` names no server".into());
        self.link.as_ref().ok_or_else(none)
    }

    async fn connect(&mut self) -> Result<Link, EtcdError> {
        let unreachable = |why: String| EtcdError::Unreachable(why);
        let endpoint = self.settings.endpoints.get(self.at).cloned();
        let endpoint = endpoint.ok_or_else(|| unreachable("`endpoints` names no server".into()))?;
        let tls = match endpoint.is_secure() {
            true => self.tls.as_mut().map(Current::reload_client).transpose(),
            false => Ok(None),
        };
        let tls: Option<Arc<Client>> =
            tls.map_err(|problems| EtcdError::Refused(one_line(&problems)))?;
        let stream = TcpStream::connect((endpoint.host(), endpoint.port())).await;
        let stream = stream.map_err(|error| unreachable(error.to_string()))?;
        let _ = stream.set_nodelay(true);
        let stream = match &tls {
            None => Connection::Plain(stream),
            Some(client) => {
                let connected = client.connect(stream, endpoint.host(), &["h2"]).await;
                let (stream, agreed) =
                    connected.map_err(|failure| unreachable(failure.to_string()))?;
                if agreed.protocol.as_deref() != Some(b"h2".as_slice()) {
                    return Err(unreachable(
                        "the server does not speak HTTP/2 with TLS".into(),
                    ));
                }
                Connection::Tls(stream)
            }
        };
        let connected = http2::start_client(stream).await;
        let (client, connection) = connected.map_err(|error| unreachable(error.to_string()))?;
        let driver = tokio::spawn(async move {
            // The calls report a broken connection.
            let _ = connection.await;
        });
        let mut link = Link {
            client,
            base: endpoint.to_string(),
            token: None,
            driver,
        };
        if let (Some(user), Some(file)) = (&self.settings.user, &self.settings.password_file) {
            link.token = Some(login(&link, user, &file.path).await?);
        }
        Ok(link)
    }
}

/// Logs the user in, and returns the token.
async fn login(link: &Link, user: &str, file: &std::path::Path) -> Result<String, EtcdError> {
    let password = key_file::load_parsed(file, |text| {
        Ok::<_, std::convert::Infallible>(text.trim().to_owned())
    });
    let password =
        password.map_err(|error| EtcdError::Refused(format!("store.password_file: {error}")))?;
    let request = AuthenticateRequest {
        name: user.into(),
        password,
    };
    let message = request.encode_to_vec();
    let answer = link.call("/etcdserverpb.Auth/Authenticate", &message, MAX_EVENTS);
    match answer.await {
        Ok(answer) => AuthenticateResponse::decode(answer.as_slice())
            .map(|response| response.token)
            .map_err(|error| {
                EtcdError::Refused(format!(
                    "the server's answer to the login cannot be read: {error}"
                ))
            }),
        Err(CallError::Status(status, why)) if !UNAVAILABLE.contains(&status.as_str()) => {
            let base = &link.base;
            Err(EtcdError::Refused(format!(
                "{base} refuses the user {user}{}",
                meant(&why)
            )))
        }
        Err(error) => Err(EtcdError::Unreachable(error.to_string())),
    }
}

/// Rule for repeating a call at other servers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retry {
    EachServer,
    Never,
}

fn is_no_login(error: &CallError) -> bool {
    match error {
        CallError::Status(status, why) => {
            status == UNAUTHENTICATED || why.contains("invalid auth token")
        }
        _ => false,
    }
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

/// Returns a server's error text, with advice for the errors that have a known cure.
fn meant(why: &str) -> String {
    if why.contains("database space exceeded") {
        return format!(
            "{why}: the store is full (alarm NOSPACE). Compact and defragment it, and disarm the alarm: see etcd's manual on maintenance"
        );
    }
    if why.contains("request is too large") {
        return format!("{why}: the text is too long for --max-request-bytes of etcd");
    }
    why.to_owned()
}

/// Returns the first key after all keys with the prefix `prefix`.
fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            break;
        }
    }
    match end.is_empty() {
        // No key follows: to the end of the store.
        true => vec![0],
        false => end,
    }
}

impl From<KeyValue> for Entry {
    fn from(kv: KeyValue) -> Self {
        Entry {
            key: kv.key,
            value: kv.value,
            changed: kv.mod_revision,
        }
    }
}

/// Changes of a key, in order of time.
#[derive(Debug)]
pub struct Watch {
    call: Call,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// The watch has begun.
    Begun,
    /// The key has a new value, or (`None`) was removed.
    Changed(Option<Entry>),
    /// No change.
    Nothing,
}

impl Watch {
    /// Waits for the next event. Of several changes of the key, only the last one is returned.
    ///
    /// # Errors
    ///
    /// The watch has ended, for example because the connection broke or the wanted history was compacted.
    pub async fn next(&mut self) -> Result<WatchEvent, EtcdError> {
        let broken = |error: CallError| EtcdError::Unreachable(error.to_string());
        let message = self.call.next().await.map_err(broken)?;
        read_message(&message)
    }
}

/// Parses a message of a watch.
///
/// # Errors
///
/// The message ends the watch.
pub fn read_message(message: &[u8]) -> Result<WatchEvent, EtcdError> {
    let response = WatchResponse::decode(message);
    let response = response.map_err(|error| EtcdError::Unreachable(error.to_string()))?;
    if response.canceled {
        let why = match (response.compact_revision, response.cancel_reason) {
            (0, why) if why.is_empty() => "the server has ended the watch".into(),
            (0, why) => why.chars().take(200).collect(),
            (compacted, _) => format!("etcd has no history before its revision {compacted}"),
        };
        return Err(EtcdError::Unreachable(why));
    }
    let last = response.events.into_iter().next_back();
    Ok(match last {
        Some(event) if event.kind == 1 => WatchEvent::Changed(None),
        Some(event) => WatchEvent::Changed(event.kv.map(Entry::from)),
        None if response.created => WatchEvent::Begun,
        None => WatchEvent::Nothing,
    })
}

/// Decodes a server's message as each message that a server sends, for tests with arbitrary bytes.
pub fn decode(message: &[u8]) {
    let _ = read_message(message);
    let range = RangeResponse::decode(message).unwrap_or_default();
    let _: Option<Header> = range.header;
    let _ = TxnResponse::decode(message);
    let _ = LeaseGrantResponse::decode(message);
    let _ = LeaseResponse::decode(message);
    let _ = AuthenticateResponse::decode(message);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use messages::Event;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_so() {
        assert_eq!(after("/a/"), b"/a0");
        assert_eq!(after("a"), b"b");
        assert_eq!(after(""), [0]);
    }

    #[test]
    fn a_watch_tells_the_last_change_and_its_end() {
        let kv = |value: &str, changed| KeyValue {
            key: b"k".to_vec(),
            value: value.into(),
            mod_revision: changed,
        };
        let event = |kind, value, changed| Event {
            kind,
            kv: Some(kv(value, changed)),
        };
        let mut response = WatchResponse {
            events: vec![event(0, "a", 1), event(0, "b", 2)],
            ..WatchResponse::default()
        };
        let told_of = |response: &WatchResponse| read_message(&response.encode_to_vec());
        let changed = WatchEvent::Changed(Some(Entry::from(kv("b", 2))));
        assert_eq!(told_of(&response).unwrap(), changed);
        response.events.push(event(1, "", 3));
        assert_eq!(told_of(&response).unwrap(), WatchEvent::Changed(None));
        response = WatchResponse {
            created: true,
            ..WatchResponse::default()
        };
        assert_eq!(told_of(&response).unwrap(), WatchEvent::Begun);
        response.canceled = true;
        response.compact_revision = 9;
        let ended = told_of(&response).unwrap_err();
        assert!(ended.is_unreachable() && ended.to_string().contains("before its revision 9"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }
    }
}
