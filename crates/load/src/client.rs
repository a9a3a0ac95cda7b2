//! A client: its connections, redirects that it follows, and the server that it was bound to.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::http1::{self, Http1};
use crate::http2;
use crate::plan::{Plan, Scheme, Url};
use crate::runtime::Runtime;
use crate::socket::{Socket, Stream};
use crate::stats::{Kind, Recorder, Times};
use crate::{ftp, tcp};

/// Connections that a client keeps; the one that it has used longest ago makes room.
const MOST_CONNECTIONS: usize = 8;
/// Hosts that a thread knows.
const MOST_ORIGINS: usize = 10_000;

/// Where connections go to.
#[derive(Debug)]
pub(crate) struct Origin {
    /// With an empty path.
    pub url: Url,
    /// Where it is.
    pub address: SocketAddr,
}

/// What all clients of a thread share.
pub(crate) struct Context {
    pub runtime: Runtime,
    pub plan: Arc<Plan>,
    pub recorder: RefCell<Recorder>,
    pub tls: Option<Arc<ClientConfig>>,
    /// Where the plan's URL leads.
    pub first: Rc<Origin>,
    /// The bytes of the plan's requests to it.
    pub requests: Vec<Vec<u8>>,
    /// Others, by scheme, host and port.
    origins: RefCell<HashMap<(Scheme, String, u16), Rc<Origin>>>,
    /// Connections of HTTP/2, which clients share.
    pub shared: Vec<http2::Shared>,
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
        let requests = plan.asks.iter().filter(|_| is_http && !plan.http2);
        let requests = requests
            .map(|ask| http1::request(&ask.method, &ask.path, &host, &plan.headers, &plan.body));
        let shared = if plan.http2 { connections } else { 0 };
        Rc::new(Context {
            requests: requests.collect(),
            runtime,
            recorder: RefCell::new(recorder),
            tls,
            first,
            origins: RefCell::default(),
            shared: (0..shared).map(|_| http2::Shared::default()).collect(),
            plan,
        })
    }

    /// Where a URL leads; the name is looked up once.
    fn origin(&self, url: &Url) -> Result<Rc<Origin>, Kind> {
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

    /// The address that a client connects from.
    pub(crate) fn from(&self, client: usize) -> Option<IpAddr> {
        let all = &self.plan.from;
        // A client keeps its address.
        all.get(client % all.len().max(1)).copied()
    }

    /// Connects, with TLS if that is the origin's.
    pub(crate) async fn connect(&self, origin: &Origin, client: usize) -> Result<Stream, Failure> {
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
        Stream::secure(socket, config, name)
            .await
            .map_err(|error| Failure::new(Kind::Tls, &error))
    }
}

/// What has failed, with words for the first time.
#[derive(Debug)]
pub(crate) struct Failure {
    pub kind: Kind,
    pub why: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, error: &dyn std::fmt::Display) -> Self {
        Failure {
            kind,
            why: error.to_string(),
        }
    }
}

impl From<Failure> for Kind {
    fn from(failure: Failure) -> Self {
        failure.kind
    }
}

/// A client.
pub(crate) struct Client {
    context: Rc<Context>,
    /// Which of the thread's clients it is.
    number: usize,
    /// Which of all threads' clients it is.
    pub of_all: usize,
    connections: Vec<(Rc<Origin>, Http1)>,
    ftp: Option<ftp::Session>,
    tcp: Option<Stream>,
    /// The server that it was sent to, and until when it may use it.
    bound: Option<(Rc<Origin>, Instant)>,
}

/// A request of HTTP that is under way.
struct Under<'a> {
    /// Bytes that are ready, for the first origin.
    ready: Option<&'a [u8]>,
    method: &'a str,
    has_body: bool,
    path: String,
    /// Whether the client was sent to another host, who need not know its secrets.
    elsewhere: bool,
    sent: Option<Instant>,
}

impl Client {
    pub(crate) fn new(context: &Rc<Context>, number: usize, of_all: usize) -> Self {
        Client {
            context: Rc::clone(context),
            number,
            of_all,
            connections: Vec::new(),
            ftp: None,
            tcp: None,
            bound: None,
        }
    }

    /// Begins anew, as somebody else would.
    pub(crate) fn forget(&mut self) {
        self.connections.clear();
        self.ftp = None;
        self.tcp = None;
        self.bound = None;
    }

    /// Asks for something that was due; tells when the answer was whole.
    pub(crate) async fn ask(
        &mut self,
        number: usize,
        due: Instant,
        free: Instant,
        begun: Instant,
    ) -> Instant {
        let context = Rc::clone(&self.context);
        context.recorder.borrow_mut().begin(due);
        let mut sent = begun;
        let limit = begun + context.plan.timeout;
        let outcome = context
            .runtime
            .limit(limit, self.exchange(number, begun, &mut sent))
            .await;
        let end = Instant::now();
        let outcome = outcome.unwrap_or(Err(Kind::Timeout));
        if outcome.is_err() {
            // Who knows what else would come on them.
            self.connections.clear();
            self.ftp = None;
            self.tcp = None;
        }
        let times = Times {
            due,
            free,
            begun,
            sent,
            end,
        };
        context.recorder.borrow_mut().finish(&times, outcome);
        end
    }

    async fn exchange(
        &mut self,
        number: usize,
        begun: Instant,
        sent: &mut Instant,
    ) -> Result<(u16, u64), Kind> {
        let context = Rc::clone(&self.context);
        match context.plan.url.scheme {
            Scheme::Tcp => tcp::exchange(&context, &mut self.tcp, self.of_all, sent).await,
            Scheme::Ftp => self.retrieve(number, sent).await,
            Scheme::Http | Scheme::Https if context.plan.http2 => {
                self.over_http2(number, sent).await
            }
            Scheme::Http | Scheme::Https => self.over_http1(number, begun, sent).await,
        }
    }

    async fn retrieve(&mut self, number: usize, sent: &mut Instant) -> Result<(u16, u64), Kind> {
        let context = Rc::clone(&self.context);
        let session = match self.ftp.take() {
            Some(session) => session,
            None => ftp::Session::open(&context, self.of_all).await?,
        };
        let session = self.ftp.insert(session);
        *sent = Instant::now();
        let path = context.plan.asks.get(number).map(|ask| ask.path.as_str());
        session.retrieve(&context, path.unwrap_or("/")).await
    }

    /// Says goodbye where that is usual.
    pub(crate) async fn leave(&mut self) {
        if let Some(session) = self.ftp.take() {
            let limit = Instant::now() + self.context.plan.timeout;
            let context = Rc::clone(&self.context);
            context.runtime.limit(limit, session.quit(&context)).await;
        }
        self.forget();
    }

    async fn over_http2(&mut self, number: usize, sent: &mut Instant) -> Result<(u16, u64), Kind> {
        let context = Rc::clone(&self.context);
        let ask = context.plan.asks.get(number).ok_or(Kind::Redirect)?;
        let mut url = context.first.url.clone();
        url.path.clone_from(&ask.path);
        let (mut method, mut has_body) = (ask.method.as_str(), true);
        let mut redirects = 0;
        loop {
            let answer = http2::exchange(
                &context,
                self.number,
                self.of_all,
                &url,
                method,
                has_body,
                sent,
            )
            .await?;
            let Some(location) = answer.location.filter(|_| context.plan.max_redirects > 0) else {
                return Ok((answer.status, answer.bytes));
            };
            redirects += 1;
            let to = url.join(&location).map_err(|_| Kind::Redirect)?;
            // Connections of HTTP/2 are shared, and made to one place.
            let is_there = (to.scheme, &to.host, to.port) == (url.scheme, &url.host, url.port);
            if redirects > context.plan.max_redirects || !is_there {
                return Err(Kind::Redirect);
            }
            (method, has_body) = after_redirect(answer.status, method, has_body);
            url = to;
            context.recorder.borrow_mut().count(|c| c.redirects += 1);
        }
    }

    async fn over_http1(
        &mut self,
        number: usize,
        begun: Instant,
        sent: &mut Instant,
    ) -> Result<(u16, u64), Kind> {
        let context = Rc::clone(&self.context);
        let plan = &*context.plan;
        let ask = plan.asks.get(number).ok_or(Kind::Redirect)?;
        let mut under = Under {
            ready: context.requests.get(number).map(Vec::as_slice),
            method: &ask.method,
            has_body: true,
            path: String::new(),
            elsewhere: false,
            sent: None,
        };
        let mut origin = Rc::clone(&context.first);
        if let Some((bound, until)) = &self.bound {
            if begun < *until {
                origin = Rc::clone(bound);
                under.ready = None;
                under.path.clone_from(&ask.path);
            } else {
                self.bound = None;
            }
        }
        let mut redirects = 0;
        loop {
            let (status, bytes) = self.once(&context, &origin, &mut under, begun).await?;
            *sent = under.sent.unwrap_or(begun);
            let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
            if !is_redirect || plan.max_redirects == 0 {
                return Ok((status, bytes));
            }
            let response = self.connections.last().map(|(_, http)| &http.response);
            let Some((response, location)) = response.and_then(|r| Some((r, r.location()?))) else {
                return Ok((status, bytes));
            };
            redirects += 1;
            if redirects > plan.max_redirects {
                return Err(Kind::Redirect);
            }
            let mut from = origin.url.clone();
            from.path.clone_from(match under.ready {
                Some(_) => &ask.path,
                None => &under.path,
            });
            let to = from.join(location).map_err(|_| Kind::Redirect)?;
            let quantum = response.max_age();
            let next = context.origin(&to)?;
            let is_binding = plan.negotiate && Rc::ptr_eq(&origin, &context.first);
            if is_binding {
                let until = quantum.filter(|time| !time.is_zero());
                let until = until.map(|time| Instant::now() + time);
                self.bound = until.map(|until| (Rc::clone(&next), until));
            } else if plan.negotiate {
                // Sent away by its server.
                self.bound = None;
            }
            context.recorder.borrow_mut().count(|counted| {
                counted.redirects += u64::from(!is_binding);
                counted.negotiations += u64::from(is_binding);
            });
            (under.method, under.has_body) = after_redirect(status, under.method, under.has_body);
            under.elsewhere |= !Rc::ptr_eq(&origin, &next);
            under.ready = None;
            under.path = to.path;
            origin = next;
        }
    }

    /// One request and its response; its connection is the last one after it.
    async fn once(
        &mut self,
        context: &Context,
        origin: &Rc<Origin>,
        under: &mut Under<'_>,
        begun: Instant,
    ) -> Result<(u16, u64), Kind> {
        let known = self
            .connections
            .iter()
            .position(|(of, _)| Rc::ptr_eq(of, origin));
        let last = self.connections.len().saturating_sub(1);
        match known {
            Some(at) if !self.connections.get(at).is_some_and(|(_, c)| c.is_usable()) => {
                self.connections.remove(at);
                self.open(context, origin).await?;
            }
            Some(at) if at < last => {
                let found = self.connections.remove(at);
                self.connections.push(found);
            }
            Some(_) => {
                under.sent.get_or_insert(begun);
            }
            None => self.open(context, origin).await?,
        }
        under.sent.get_or_insert_with(Instant::now);
        let (_, connection) = self.connections.last_mut().ok_or(Kind::Connect)?;
        let is_head = under.method == "HEAD";
        match under.ready {
            Some(bytes) => connection.exchange(context, bytes, is_head).await?,
            None => {
                let plan = &context.plan;
                let is_secret = |name: &str| {
                    under.elsewhere
                        && ["authorization", "cookie", "host"]
                            .iter()
                            .any(|secret| name.eq_ignore_ascii_case(secret))
                };
                let headers: Vec<_> = plan
                    .headers
                    .iter()
                    .filter(|(name, _)| !is_secret(name))
                    .cloned()
                    .collect();
                let body = if under.has_body { &plan.body[..] } else { &[] };
                let host = origin.url.authority();
                let bytes = http1::request(under.method, &under.path, &host, &headers, body);
                connection.exchange(context, &bytes, is_head).await?;
            }
        }
        let response = &connection.response;
        Ok((response.status().unwrap_or(0), response.body()))
    }

    async fn open(&mut self, context: &Context, origin: &Rc<Origin>) -> Result<(), Kind> {
        let stream = context.connect(origin, self.of_all).await?;
        if self.connections.len() >= MOST_CONNECTIONS {
            self.connections.remove(0);
        }
        self.connections
            .push((Rc::clone(origin), Http1::new(stream)));
        Ok(())
    }
}

/// Method after a redirect, and whether the body is sent again (RFC 9110, 15.4).
pub(crate) fn after_redirect(status: u16, method: &str, has_body: bool) -> (&str, bool) {
    match (status, method) {
        (307 | 308, _) => (method, has_body),
        (_, "HEAD") => ("HEAD", false),
        (303, _) | (_, "POST") => ("GET", false),
        _ => (method, has_body),
    }
}

#[cfg(test)]
mod tests {
    use super::after_redirect;

    #[test]
    fn methods_after_redirects_are_those_of_the_standard() {
        for (status, method, expected) in [
            (301, "GET", ("GET", true)),
            (302, "POST", ("GET", false)),
            (301, "PUT", ("PUT", true)),
            (303, "PUT", ("GET", false)),
            (303, "HEAD", ("HEAD", false)),
            (307, "POST", ("POST", true)),
            (308, "PUT", ("PUT", true)),
        ] {
            assert_eq!(after_redirect(status, method, true), expected, "{status}");
        }
    }
}
