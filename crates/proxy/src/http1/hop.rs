//! Fields in which the balancer tells members about a client.

use std::net::IpAddr;
use std::rc::Rc;

use evenkeel_manager::config::HttpOptions;
use evenkeel_manager::config::fields::is_in_family;

use super::framing::is_token;
use crate::message::Request;

/// Additions of the balancer to the requests of one client connection.
#[derive(Clone, Debug)]
pub struct Hop {
    /// Address of the client, or a word for none.
    pub(super) client: String,
    /// True if the client has an address.
    is_known: bool,
    pub(super) proto: &'static str,
    pub(super) default_host: Rc<str>,
    x_forwarded: bool,
    forwarded: bool,
    trust: bool,
    /// The whole `Via` line, or nothing.
    via: Box<str>,
    /// Fields about clients' certificates, if any rule has them.
    certificates: Option<Box<Certificates>>,
}

/// Fields that tell members about clients' certificates.
#[derive(Clone, Debug, Default)]
struct Certificates {
    /// Beginnings of names of fields that nobody else may send.
    reserved: Vec<String>,
    /// The lines about this client, or nothing.
    identity: Box<str>,
}

impl Hop {
    /// Returns the hop for a connection from `client`, which has no address over a Unix socket.
    /// `proto` is `http` or `https`. `default_host` (`host:port`) stands for the `Host` that an
    /// HTTP/1.0 request may lack: the address that the client connected to.
    pub fn new(
        options: &HttpOptions,
        client: impl Into<Option<IpAddr>>,
        proto: &'static str,
        default_host: impl Into<Rc<str>>,
    ) -> Self {
        let client = client.into().map(|client| client.to_canonical());
        Self {
            is_known: client.is_some(),
            client: client.map_or_else(|| "unix".into(), |client| client.to_string()),
            proto,
            default_host: default_host.into(),
            x_forwarded: options.x_forwarded,
            forwarded: options.forwarded,
            trust: options.trust_forwarded,
            via: match &options.via {
                Some(name) => format!("Via: 1.1 {name}\r\n").into(),
                None => Box::default(),
            },
            certificates: (!options.reserved.is_empty()).then(|| {
                Box::new(Certificates {
                    reserved: options.reserved.clone(),
                    identity: Box::default(),
                })
            }),
        }
    }

    /// Returns the same hop for requests that come over another version of HTTP.
    pub(crate) fn over_version(mut self, version: &str, options: &HttpOptions) -> Self {
        if let Some(name) = &options.via {
            self.via = format!("Via: {version} {name}\r\n").into();
        }
        self
    }

    /// Returns the same hop for a client about which `lines` tell more.
    #[must_use]
    pub fn with_identity(mut self, lines: Option<&str>) -> Self {
        if let (Some(certificates), Some(lines)) = (&mut self.certificates, lines) {
            certificates.identity = lines.into();
        }
        self
    }

    /// True if there are fields that only the balancer may send.
    #[inline]
    pub(super) fn has_reserved(&self) -> bool {
        self.certificates.is_some()
    }

    /// True if a field is one that only the balancer may send.
    pub(super) fn is_reserved(&self, name: &str) -> bool {
        let reserved = self.certificates.iter();
        let mut reserved = reserved.flat_map(|certificates| &certificates.reserved);
        reserved.any(|family| is_in_family(name, family))
    }

    /// True if a field of the forwarded family is taken out of a request. `says` is true if
    /// `X-Forwarded-For` is said in any case.
    pub(super) fn takes_out(&self, name: &str, says: bool) -> bool {
        let says = says || self.x_forwarded;
        // Another spelling passes proxies that write their own fields, so it is what a client says.
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !self.trust
            || !name.bytes().all(is_usual)
            || (says && name.eq_ignore_ascii_case("x-forwarded-for"))
            || (self.forwarded && name.eq_ignore_ascii_case("forwarded"))
    }

    /// Appends who the client is and what it has asked for, as login services want to know it: `uri` is the request's
    /// path with its query. What a trusted proxy says of the client holds.
    pub(super) fn describe_original(
        &self,
        request: &Request<'_>,
        uri: &[&[u8]],
        out: &mut Vec<u8>,
    ) {
        let said = |name| {
            let mut values = self
                .trust
                .then(|| request.values(name))
                .into_iter()
                .flatten();
            values.next().filter(|value| !value.is_empty())
        };
        put_line(&[b"X-Original-Method: ", request.method.as_bytes()], out);
        let proto = said("x-forwarded-proto").unwrap_or(self.proto.as_bytes());
        let host = said("x-forwarded-host").or(request.authority.map(str::as_bytes));
        out.extend_from_slice(b"X-Original-URL: ");
        for part in [proto, b"://", host.unwrap_or(self.default_host.as_bytes())] {
            out.extend_from_slice(part);
        }
        put_line(uri, out);
        let own = self.is_known.then_some(self.client.as_bytes());
        let forwarded = self
            .trust
            .then(|| request.values("x-forwarded-for").last())
            .flatten();
        let last = forwarded.and_then(|list| list.rsplit(|&byte| byte == b',').next());
        let last = last.map(<[u8]>::trim_ascii).filter(|last| !last.is_empty());
        if let Some(client) = last.or(own) {
            put_line(&[b"X-Real-IP: ", client], out);
        }
    }

    /// Appends what is said about the client, after what trusted proxies said. `says` is whether
    /// `X-Forwarded-For` and its like are said in any case.
    pub(super) fn describe_client(&self, request: &Request<'_>, says: bool, out: &mut Vec<u8>) {
        let said = |name| {
            let values = self.trust.then(|| request.values(name));
            values
                .into_iter()
                .flatten()
                .filter(|value| !value.is_empty())
        };
        if says || self.x_forwarded {
            if self.is_known {
                out.extend_from_slice(b"X-Forwarded-For: ");
                put_list(said("x-forwarded-for"), out);
                put_line(&[self.client.as_bytes()], out);
            } else {
                // There is no word for nobody there: what was said stays as it was.
                for value in said("x-forwarded-for") {
                    put_line(&[b"X-Forwarded-For: ", value], out);
                }
            }
            if said("x-forwarded-proto").next().is_none() {
                put_line(&[b"X-Forwarded-Proto: ", self.proto.as_bytes()], out);
            }
            if let (Some(host), None) = (request.authority, said("x-forwarded-host").next()) {
                put_line(&[b"X-Forwarded-Host: ", host.as_bytes()], out);
            }
        }
        if self.forwarded {
            out.extend_from_slice(b"Forwarded: ");
            put_list(said("forwarded"), out);
            self.write_forwarded_for(out);
            if let Some(host) = request.authority {
                // An authority has no byte that would need escaping between quotes.
                let quote: &[u8] = if is_token(host.as_bytes()) {
                    b""
                } else {
                    b"\""
                };
                for part in [b";host=", quote, host.as_bytes(), quote] {
                    out.extend_from_slice(part);
                }
            }
            put_line(&[b";proto=", self.proto.as_bytes()], out);
        }
        out.extend_from_slice(self.via.as_bytes());
        if let Some(certificates) = &self.certificates {
            out.extend_from_slice(certificates.identity.as_bytes());
        }
    }

    /// Appends `for=` and the client, as `Forwarded` has it (RFC 7239, section 6).
    fn write_forwarded_for(&self, out: &mut Vec<u8>) {
        let (before, client, after) = match (self.is_known, self.client.contains(':')) {
            (false, _) => ("for=", "unknown", ""),
            (true, false) => ("for=", self.client.as_str(), ""),
            (true, true) => ("for=\"[", self.client.as_str(), "]\""),
        };
        for part in [before, client, after] {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

fn put_list<'a>(values: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    for value in values {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
}

pub(super) fn put_line(parts: &[&[u8]], out: &mut Vec<u8>) {
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}
