//! Plan of a run: what the generator is to do.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::surge::{Pace, Site};

/// Protocol that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP in plain.
    Http,
    /// HTTP over TLS.
    Https,
    /// Bytes over TCP.
    Tcp,
    /// FTP in passive mode.
    Ftp,
}

impl Scheme {
    /// Returns the name of the protocol, as in URLs.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Tcp => "tcp",
            Scheme::Ftp => "ftp",
        }
    }

    fn port(self) -> Option<u16> {
        match self {
            Scheme::Http => Some(80),
            Scheme::Https => Some(443),
            Scheme::Ftp => Some(21),
            Scheme::Tcp => None,
        }
    }
}

/// A URL, in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Protocol that is spoken.
    pub scheme: Scheme,
    /// User and password.
    pub login: Option<(String, String)>,
    /// Name or address, the latter of IPv6 in brackets.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Path and query; at least `/`.
    pub path: String,
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// Text that says why the URL is refused.
    pub fn parse(text: &str) -> Result<Self, String> {
        let of = |what: &str| format!("{text:?} is not a URL for this command: {what}");
        if text.len() > 8192 {
            return Err("a URL of more than 8192 bytes".into());
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(of(
                "only visible ASCII characters are allowed; write others as %XX",
            ));
        }
        let (scheme, rest) = (text.split_once("://"))
            .ok_or_else(|| of("a URL begins with http://, https://, tcp:// or ftp://"))?;
        let scheme = [Scheme::Http, Scheme::Https, Scheme::Tcp, Scheme::Ftp]
            .into_iter()
            .find(|known| known.name().eq_ignore_ascii_case(scheme))
            .ok_or_else(|| of("a URL begins with http://, https://, tcp:// or ftp://"))?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = path.split('#').next().unwrap_or_default();
        let path = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/{path}"),
        };
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                (Some((user.to_owned(), password.to_owned())), place)
            }
            None => (None, authority),
        };
        let is_port = |port: &str| !port.contains(']');
        let (host, port) = match place.rsplit_once(':').filter(|(_, port)| is_port(port)) {
            Some((host, port)) => {
                let port: Option<u16> = port.parse().ok();
                (
                    host,
                    port.filter(|&port| port > 0)
                        .ok_or_else(|| of("the port is not valid"))?,
                )
            }
            None => (
                place,
                scheme.port().ok_or_else(|| of("the port is missing"))?,
            ),
        };
        if host.is_empty() {
            return Err(of("the host is missing"));
        }
        Ok(Url {
            scheme,
            login,
            host: host.to_owned(),
            port,
            path,
        })
    }

    /// Returns the URL to which a redirect leads that was the answer to this URL.
    ///
    /// # Errors
    ///
    /// It leads nowhere that this command can go.
    pub fn join_location(&self, location: &str) -> Result<Url, String> {
        if let Some(rest) = location.strip_prefix("//") {
            return Url::parse(&format!("{}://{rest}", self.scheme.name()));
        }
        if location.contains("://") {
            return Url::parse(location);
        }
        let path = match location.bytes().next() {
            Some(b'/') => location.to_owned(),
            Some(b'?') => {
                let path = self.path.split('?').next().unwrap_or_default();
                format!("{path}{location}")
            }
            _ => {
                let path = self.path.split('?').next().unwrap_or_default();
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{folder}/{location}")
            }
        };
        let url = Url {
            path: path.split('#').next().unwrap_or_default().to_owned(),
            ..self.clone()
        };
        match url.path.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(url),
            false => Err("a redirect to an invalid path".into()),
        }
    }

    /// Returns the text for `Host`: the port is in it only if it is not the usual one.
    pub fn authority(&self) -> String {
        match self.scheme.port() == Some(self.port) {
            true => self.host.clone(),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Resolves the addresses of the host.
    ///
    /// # Errors
    ///
    /// There are none.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let found = (host, self.port).to_socket_addrs();
        let found: Vec<_> = found
            .map_err(|error| format!("{host} has no address: {error}"))?
            .collect();
        match found.is_empty() {
            true => Err(format!("{host} has no address")),
            false => Ok(found),
        }
    }
}

/// A request of HTTP, or a file of FTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRequest {
    /// Method; without meaning for FTP.
    pub method: String,
    /// Path and query.
    pub path: String,
}

/// Workload: who asks for what, and when.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Each request on its own.
    Requests,
    /// Sessions: each on connections of its own, with a pause after each request.
    Sessions {
        /// Requests of a session.
        requests: u32,
        /// Mean of the pause; the pauses are exponential.
        think: Duration,
    },
    /// Users of the Web as in SURGE.
    Surge {
        /// Documents of the site.
        site: Arc<Site>,
        /// Pace of the users: how they spend their time.
        pace: Pace,
    },
    /// A log once more: when each of `order`'s requests is due.
    Replay {
        /// Due time and number in [`Plan::asks`] of each request, in order.
        order: Arc<[(Duration, u32)]>,
    },
}

/// Settings for TLS.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Authorities that are trusted; without it, those of the system.
    pub ca: Option<PathBuf>,
    /// True if every certificate is trusted.
    pub insecure: bool,
    /// Name that is asked for instead of the host.
    pub server_name: Option<String>,
}

/// Bytes that are sent and awaited over TCP.
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    /// Bytes that are sent.
    pub send: Vec<u8>,
    /// Number of bytes that are awaited.
    pub receive: u64,
    /// True if each request has a connection of its own.
    pub connects: bool,
}

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// URL to which requests go.
    pub url: Url,
    /// Requests that are made.
    pub asks: Vec<PlannedRequest>,
    /// Exponent of Zipf's law for the popularity of the first, second and so on; without it, all are
    /// equally popular.
    pub zipf: Option<f64>,
    /// Workload: who asks, and when.
    pub workload: Workload,
    /// Threads, each with its part of connections and rate.
    pub threads: usize,
    /// Connections at once; users, where there are sessions.
    pub connections: usize,
    /// Open loop: requests per second.
    pub rate: Option<f64>,
    /// True if all gaps are the same, instead of by chance.
    pub constant: bool,
    /// Duration of the run, after the warm-up.
    pub duration: Option<Duration>,
    /// Number of requests, the warm-up included.
    pub requests: Option<u64>,
    /// Warm-up, which is not counted.
    pub warm_up: Duration,
    /// Time limit for connecting, and for each request.
    pub timeout: Duration,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Fields of every request.
    pub headers: Vec<(String, String)>,
    /// Body of every request.
    pub body: Vec<u8>,
    /// Settings for TLS.
    pub tls: Tls,
    /// HTTP/2 instead of HTTP/1.1; not to a negotiator.
    pub http2: bool,
    /// Requests at once on a connection of HTTP/2.
    pub streams: usize,
    /// Settings for plain TCP.
    pub tcp: Tcp,
    /// Redirects in a row that are followed; 0 takes them as answers.
    pub max_redirects: u32,
    /// True if a redirect is kept for as long as it says.
    pub negotiate: bool,
    /// Addresses to connect from, by turns.
    pub from: Vec<IpAddr>,
}

impl Plan {
    /// Checks the plan for settings that cannot be meant.
    ///
    /// # Errors
    ///
    /// Error text that names the setting, and a setting that would do.
    pub fn check(&self) -> Result<(), String> {
        let refuse = |what: &str| Err(what.to_owned());
        if self.connections < self.threads {
            return refuse("--threads: more than there are connections; take fewer threads");
        }
        if self.asks.is_empty() {
            return refuse("there is nothing to request: the list of paths is empty");
        }
        let is_http = matches!(self.url.scheme, Scheme::Http | Scheme::Https);
        if !is_http && (self.http2 || self.negotiate) {
            return refuse("--http2 and --negotiate are for http:// and https:// only");
        }
        if self.url.scheme == Scheme::Tcp && !matches!(self.workload, Workload::Requests) {
            return refuse("tcp:// has no paths, sessions or logs: leave them out");
        }
        if self.url.scheme == Scheme::Tcp && self.tcp.send.is_empty() && self.tcp.receive == 0 {
            return refuse("tcp:// needs --send, --receive or both");
        }
        for (name, value) in &self.headers {
            let name_is_one = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
            if !name_is_one || http::HeaderValue::from_str(value).is_err() {
                return Err(format!(
                    "--header {name:?}: not the name and value of a field"
                ));
            }
        }
        for ask in &self.asks {
            if http::Method::from_bytes(ask.method.as_bytes()).is_err() {
                return Err(format!("{:?} is not a method", ask.method));
            }
            let is_path = ask.path.starts_with('/') && ask.path.len() <= 8192;
            if !is_path || !ask.path.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "{:?} is not a path: a path begins with / and has visible ASCII characters only",
                    ask.path
                ));
            }
        }
        Ok(())
    }

    /// Returns true if requests are due at planned times.
    pub fn is_open(&self) -> bool {
        self.rate.is_some() || matches!(self.workload, Workload::Replay { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (Scheme, String, u16, String) {
        let url = Url::parse(text).unwrap();
        (url.scheme, url.host, url.port, url.path)
    }

    #[test]
    fn urls_have_their_parts() {
        assert_eq!(
            parts("http://a.example"),
            (Scheme::Http, "a.example".into(), 80, "/".into())
        );
        assert_eq!(
            parts("https://[::1]:8443/x?y=1#z"),
            (Scheme::Https, "[::1]".into(), 8443, "/x?y=1".into())
        );
        assert_eq!(parts("https://[::1]?y").3, "/?y");
        let url = Url::parse("ftp://joe:p@ss@h/file").unwrap();
        assert_eq!(url.login, Some(("joe".into(), "p@ss".into())));
        assert_eq!((url.host.as_str(), url.port), ("h", 21));
        assert_eq!(url.authority(), "h");
        assert_eq!(Url::parse("http://h:81/").unwrap().authority(), "h:81");
        for wrong in [
            "h",
            "tcp://h",
            "http://",
            "http://h:0/",
            "gopher://h/",
            "http://h:99999/",
            "http://h/ü",
        ] {
            assert!(Url::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn redirects_lead_where_they_say() {
        let url = Url::parse("http://h:81/a/b?c").unwrap();
        let to = |location: &str| {
            let url = url.join_location(location).unwrap();
            format!("{}://{}{}", url.scheme.name(), url.authority(), url.path)
        };
        assert_eq!(to("/x"), "http://h:81/x");
        assert_eq!(to("x?y"), "http://h:81/a/x?y");
        assert_eq!(to("?y"), "http://h:81/a/b?y");
        assert_eq!(to("//g/x"), "http://g/x");
        assert_eq!(to("https://g:9/x#y"), "https://g:9/x");
        assert!(url.join_location("gopher://x/").is_err());
        assert!(url.join_location("/a b").is_err());
    }
}
