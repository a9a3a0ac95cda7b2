//! Addresses as texts: host and port, origins, names of hosts.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// A host by name or IP address (IPv6 without brackets), and a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    /// Port number.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", bracketed(&self.host), self.port)
    }
}

/// A host as it stands before a port: an IPv6 address in brackets.
pub(crate) fn bracketed(host: &str) -> Cow<'_, str> {
    if host.contains(':') {
        format!("[{host}]").into()
    } else {
        host.into()
    }
}

/// Host and port of an authority as URLs have it; without a port it is `implied`.
pub(crate) fn split_authority(text: &str, implied: u16) -> Result<(&str, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("not a host")?;
            let _: Ipv6Addr = host.parse().map_err(|_| "not a host")?;
            let port = (!rest.is_empty()).then(|| rest.strip_prefix(':').unwrap_or_default());
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if !host.contains(':') && !is_host_name(host) {
        return Err("not a host");
    }
    let digits = |port: &&str| port.bytes().all(|byte| byte.is_ascii_digit());
    match port {
        None => Ok((host, implied)),
        Some(port) => match Some(port).filter(digits).and_then(|port| port.parse().ok()) {
            Some(port) if port > 0 => Ok((host, port)),
            _ => Err("not a port"),
        },
    }
}

/// Host and port of an address.
pub(crate) fn host_port(text: &str) -> Result<(String, u16), &'static str> {
    if unix_path(text).is_some() {
        return Err("a Unix socket cannot be used here");
    }
    if text.contains("://") {
        return Err("a URL, not an address: only host and port are wanted");
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err("an IPv6 address needs brackets and a port");
    }
    let (host, port) = text.rsplit_once(':').ok_or("the port is missing")?;
    let port = match port.parse::<u16>() {
        Ok(port) if port > 0 && port.to_string().len() == text.len() - host.len() - 1 => port,
        _ => return Err("not a port"),
    };
    let host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => inner,
        Some(_) => return Err("not an IPv6 address between the brackets"),
        None if is_host_name(host) => host,
        None => return Err("not a host name"),
    };
    Ok((host.to_ascii_lowercase(), port))
}

/// Longest path of a Unix socket in bytes, or name in the abstract namespace.
const MAX_UNIX: usize = 107;

/// Prefix of the path of a Unix socket.
pub(crate) const UNIX: &str = "unix:";

/// The path of a Unix socket, or `@` and its name in the abstract namespace, if the text is about
/// one.
pub(crate) fn unix_path(text: &str) -> Option<Result<&str, &'static str>> {
    let Some(path) = text.strip_prefix(UNIX) else {
        return match text {
            _ if text.starts_with("unix@") => {
                Some(Err("a Unix socket is written as \"unix:/PATH\""))
            }
            _ if text.starts_with('/') => Some(Err("a Unix socket needs `unix:` before its path")),
            _ => None,
        };
    };
    let name = path.strip_prefix('@');
    let is_long = name.unwrap_or(path).len() > MAX_UNIX;
    Some(match path {
        "" | "@" => Err("the path of the Unix socket is missing"),
        _ if path.starts_with("//") => Err("not a URL: write one slash, as in \"unix:/PATH\""),
        _ if name.is_none() && !path.starts_with('/') => {
            Err("the path of a Unix socket must be absolute: it must begin with a slash")
        }
        _ if path.contains(char::is_control) => {
            Err("the path of a Unix socket may have no control characters")
        }
        _ if is_long => Err("the path of a Unix socket has at most 107 bytes"),
        _ => Ok(path),
    })
}

/// True if `host` is an IPv4 address or a DNS name (RFC 1123, section 2.1; with the underscores that container
/// platforms use).
pub(crate) fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.len() > 253 || !name.split('.').all(label) {
        return false;
    }
    // A name whose last label is a number is meant as an IPv4 address.
    let last = name.rsplit('.').next().unwrap_or_default();
    !last.bytes().all(|byte| byte.is_ascii_digit()) || name.parse::<std::net::Ipv4Addr>().is_ok()
}

/// A host as [`Cluster::hosts`] has it: in lower case, without brackets and final dot.
/// `None` if it is none.
pub fn normalize_host(text: &str) -> Option<String> {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    if let Ok(ip) = inner.unwrap_or(text).parse::<Ipv6Addr>() {
        return Some(ip.to_string());
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    (!name.is_empty() && is_host_name(name)).then(|| name.to_ascii_lowercase())
}

/// Way of connecting to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// With TLS, which the member speaks itself.
    Https,
}

impl Scheme {
    /// Name as in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port that a URL need not say.
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// `scheme://host[:port]`, and nothing else: where clients are sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    text: String,
    host: String,
    port: u16,
}

/// The text is no origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {ORIGIN}")]
pub struct ParseOriginError;

pub(crate) const ORIGIN: &str = r#"a URL of scheme, host and port alone, as in "https://www-1.example.org" or "http://192.0.2.1:8080""#;

impl Origin {
    /// True for `https`.
    pub fn is_secure(&self) -> bool {
        self.text.starts_with("https:")
    }

    /// Host and port, as in a `Host` field.
    pub fn authority(&self) -> &str {
        let (_, authority) = self.text.split_once("://").unwrap_or_default();
        authority
    }

    /// The origin of what listens on `port` at `host`, a name or an IP address.
    pub fn new(scheme: Scheme, host: &str, port: u16) -> Result<Self, ParseOriginError> {
        format!("{}://{}:{port}", scheme.name(), bracketed(host)).parse()
    }

    /// A place to read one into.
    pub(crate) fn blank() -> Self {
        let (text, host) = Default::default();
        Origin {
            text,
            host,
            port: 0,
        }
    }

    /// The text: in lower case, without the port that the scheme implies.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Name or IP address, an IPv6 one without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, said or implied.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Origin {
    type Err = ParseOriginError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The longest host name has 253 characters.
        if text.len() > 300 {
            return Err(ParseOriginError);
        }
        let text = text.to_ascii_lowercase();
        let (name, rest) = text.split_once("://").ok_or(ParseOriginError)?;
        let scheme = [Scheme::Http, Scheme::Https].into_iter();
        let scheme = { scheme }.find(|scheme| scheme.name() == name);
        let implied = scheme.ok_or(ParseOriginError)?.default_port();
        let (host, port) = split_authority(rest, implied).map_err(|_| ParseOriginError)?;
        let mut text = format!("{name}://{}", bracketed(host));
        if port != implied {
            text += &format!(":{port}");
        }
        let host = host.to_owned();
        Ok(Origin { text, host, port })
    }
}
