//! State that all clients of a thread share: addresses to connect to and from, connections, and counts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::http1;
use crate::plan::{Plan, Scheme, Url};
use crate::runtime::Runtime;
use crate::socket::{Socket, Stream};
use crate::stats::{Kind, Recorder};

/// A connection of HTTP/2 that clients share, if it is there. Whoever finds none makes it, and others
/// wait.
pub(crate) type Shared = tokio::sync::Mutex<Option<SendRequest<Bytes>>>;

/// A connection, with the origin to which it leads.
type Leading = (Rc<Origin>, Rc<Shared>);

/// Hosts that a thread knows.
const MOST_ORIGINS: usize = 10_000;
/// Connections that a client keeps; the one that it has used longest ago makes room.
pub(crate) const MOST_CONNECTIONS: usize = 8;

/// An answer of HTTP.
pub(crate) struct Answer {
    pub status: u16,
    /// Bytes of the answer's body.
    pub bytes: u64,
    /// Location to which a redirect leads.
    pub location: Option<String>,
    /// Time for which a redirect may be kept.
    pub max_age: Option<Duration>,
}

/// Origin of a URL: the server to which connections go.
#[derive(Debug)]
pub(crate) struct Origin {
    /// URL of the origin, with an empty path.
    pub url: Url,
    /// Address of the origin.
    pub address: SocketAddr,
}

/// State that all clients of a thread share.
pub(crate) struct Context {
    pub runtime: Runtime,
    pub plan: Arc<Plan>,
    pub recorder: RefCell<Recorder>,
    pub tls: Option<Arc<ClientConfig>>,
    /// Origin of the plan's URL.
    pub first: Rc<Origin>,
    /// Bytes of the plan's requests to the first origin.
    pub requests: Vec<Vec<u8>>,
    /// Other origins, by scheme, host and port.
    origins: RefCell<HashMap<(Scheme, String, u16), Rc<Origin>>>,
    /// Connections of HTTP/2, which clients share: of each number, those to several hosts, the one
    /// used last at the end.
    shared: Vec<RefCell<Vec<Leading>>>,
}

impl Context {
    pub(crate) fn new(
        runtime: Runtime,
        plan: Arc<Plan>,
        recorder: Recorder,
        tls: Option<Arc<ClientConfig>>,
        address: SocketAddr,
        connections: usize,
    ) -> Rc<Self> {
        let url = plan.url.clone();
        let first = Rc::new(Origin { url, address });
        let host = first.url.authority();
        let is_http = matches!(plan.url.scheme, Scheme::Http | Scheme::Https);
        let is_http1 = is_http && (!plan.http2 || plan.negotiate);
        let requests = plan.asks.iter().filter(|_| is_http1);
        let requests = requests.map(|ask| {
            http1::encode_request(&ask.method, &ask.path, &host, &plan.headers, &plan.body)
        });
        let shared = if plan.http2 { connections } else { 0 };
        Rc::new(Context {
            requests: requests.collect(),
            runtime,
            recorder: RefCell::new(recorder),
            tls,
            first,
            origins: RefCell::default(),
            shared: (0..shared).map(|_| RefCell::default()).collect(),
            plan,
        })
    }

    /// Returns the origin of a URL; the name is looked up once.
    pub(crate) fn find_origin(&self, url: &Url) -> Result<Rc<Origin>, Kind> {
        let is = |origin: &Origin| {
            origin.url.scheme == url.scheme
                && origin.url.port == url.port
                && origin.url.host == url.host
        };
        if is(&self.first) {
            return Ok(Rc::clone(&self.first));
        }
        let key = (url.scheme, url.host.clone(), url.port);
        let mut origins = self.origins.borrow_mut();
        if let Some(origin) = origins.get(&key) {
            return Ok(Rc::clone(origin));
        }
        if origins.len() >= MOST_ORIGINS || !matches!(url.scheme, Scheme::Http | Scheme::Https) {
            return Err(Kind::Redirect);
        }
        let found = url.resolve().map_err(|_| Kind::Connect)?;
        let fits = |address: &&SocketAddr| {
            let from = self.plan.from.first();
            from.is_none_or(|from| from.is_ipv4() == address.is_ipv4())
        };
        let address = *found.iter().find(fits).ok_or(Kind::Connect)?;
        let origin = Rc::new(Origin {
            url: url.clone(),
            address,
        });
        origins.insert(key, Rc::clone(&origin));
        Ok(origin)
    }

    /// Returns true if clients speak HTTP/2 to an origin. A negotiator gets HTTP/1.1: it only says
    /// where to go.
    pub(crate) fn is_http2(&self, origin: &Rc<Origin>) -> bool {
        let is_negotiator = self.plan.negotiate && Rc::ptr_eq(origin, &self.first);
        self.plan.http2 && !is_negotiator
    }

    /// The connection of HTTP/2 to an origin that a client shares with others.
    pub(crate) fn shared_connection(
        &self,
        client: usize,
        origin: &Rc<Origin>,
    ) -> Option<Rc<Shared>> {
        let all = self.shared.get(client % self.shared.len().max(1))?;
        let mut all = all.borrow_mut();
        match all.iter().position(|(of, _)| Rc::ptr_eq(of, origin)) {
            Some(at) if at + 1 < all.len() => {
                let found = all.remove(at);
                all.push(found);
            }
            Some(_) => {}
            None => {
                if all.len() >= MOST_CONNECTIONS {
                    all.remove(0);
                }
                all.push((Rc::clone(origin), Rc::default()));
            }
        }
        all.last().map(|(_, shared)| Rc::clone(shared))
    }

    /// The address that a client connects from.
    pub(crate) fn from(&self, client: usize) -> Option<IpAddr> {
        let all = &self.plan.from;
        // A client keeps its address.
        all.get(client % all.len().max(1)).copied()
    }

    /// Connects, with TLS if that is the origin's.
    pub(crate) async fn connect(
        &self,
        origin: &Rc<Origin>,
        client: usize,
    ) -> Result<Stream, Failure> {
        let socket = Socket::connect(&self.runtime, origin.address, self.from(client)).await;
        let socket = socket.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::new(Kind::Refused, &error),
            _ => Failure::new(Kind::Connect, &error),
        })?;
        self.recorder
            .borrow_mut()
            .count(|counted| counted.connections += 1);
        let (Scheme::Https, Some(config)) = (origin.url.scheme, &self.tls) else {
            return Ok(Stream::Plain(socket));
        };
        let host = self.plan.tls.server_name.as_deref();
        let host = host.unwrap_or(&origin.url.host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| Failure::new(Kind::Tls, &error))?;
        let protocol = match self.is_http2(origin) {
            true => &b"h2"[..],
            false => b"http/1.1",
        };
        Stream::secure(socket, config, name, protocol)
            .await
            .map_err(|error| Failure::new(Kind::Tls, &error))
    }
}

/// Failure of a request: its kind, with words for the first time.
#[derive(Debug)]
pub(crate) struct Failure {
    pub kind: Kind,
    pub reason: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, error: &dyn std::fmt::Display) -> Self {
        Failure {
            kind,
            reason: error.to_string(),
        }
    }
}

impl From<Failure> for Kind {
    fn from(failure: Failure) -> Self {
        failure.kind
    }
}
