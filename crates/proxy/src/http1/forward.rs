//! Heads for the other side: the same message, with what belongs to this hop alone
//! taken out, and what the balancer has to say put in.
//!
//! Lines that stay are copied in runs, as they came, so most heads cost two or three
//! copies. Whatever the sender's version is, the message that leaves is HTTP/1.1.

use std::net::IpAddr;

use evenkeel_manager::config::HttpOptions;
use httparse::Header;

use super::framing::{self, Body, FieldSet, Kind, Meaning, Version};
use super::head::{Form, RequestHead, ResponseHead};

/// What the balancer adds to the requests of one client connection.
#[derive(Clone, Debug)]
pub struct Hop {
    client: String,
    /// `for=` and the client, as `Forwarded` has it.
    forwarded_for: String,
    proto: &'static str,
    default_host: String,
    x_forwarded: bool,
    forwarded: bool,
    trust: bool,
    /// The whole `Via` line, or nothing.
    via: String,
}

impl Hop {
    /// For a connection from `client`. `proto` is `http` or `https`. `default_host`
    /// (`host:port`) stands for the `Host` that an HTTP/1.0 request may lack: the address
    /// that the client connected to.
    pub fn new(
        options: &HttpOptions,
        client: IpAddr,
        proto: &'static str,
        default_host: String,
    ) -> Self {
        let client = client.to_canonical();
        Self {
            client: client.to_string(),
            forwarded_for: match client {
                IpAddr::V4(address) => format!("for={address}"),
                IpAddr::V6(address) => format!("for=\"[{address}]\""),
            },
            proto,
            default_host,
            x_forwarded: options.x_forwarded,
            forwarded: options.forwarded,
            trust: options.trust_forwarded,
            via: match &options.via {
                Some(name) => format!("Via: 1.1 {name}\r\n"),
                None => String::new(),
            },
        }
    }

    /// Whether a field of the forwarded family is taken out of a request.
    fn takes_out(&self, name: &str) -> bool {
        !self.trust
            || (self.x_forwarded && name.eq_ignore_ascii_case("x-forwarded-for"))
            || (self.forwarded && name.eq_ignore_ascii_case("forwarded"))
    }

    /// Appends what is said about the client, after what trusted proxies said.
    fn describe_client(&self, head: &RequestHead<'_>, out: &mut Vec<u8>) {
        let said = |name| {
            let values = self.trust.then(|| head.values(name));
            values
                .into_iter()
                .flatten()
                .filter(|value| !value.is_empty())
        };
        if self.x_forwarded {
            out.extend_from_slice(b"X-Forwarded-For: ");
            put_list(said("x-forwarded-for"), out);
            put_line(&[self.client.as_bytes()], out);
            if said("x-forwarded-proto").next().is_none() {
                put_line(&[b"X-Forwarded-Proto: ", self.proto.as_bytes()], out);
            }
            if let (Some(host), None) = (head.host, said("x-forwarded-host").next()) {
                put_line(&[b"X-Forwarded-Host: ", host.as_bytes()], out);
            }
        }
        if self.forwarded {
            out.extend_from_slice(b"Forwarded: ");
            put_list(said("forwarded"), out);
            out.extend_from_slice(self.forwarded_for.as_bytes());
            if let Some(host) = head.host {
                // An authority has no byte that would need escaping between quotes.
                let quote: &[u8] = match framing::is_token(host.as_bytes()) {
                    true => b"",
                    false => b"\"",
                };
                for part in [b";host=", quote, host.as_bytes(), quote] {
                    out.extend_from_slice(part);
                }
            }
            put_line(&[b";proto=", self.proto.as_bytes()], out);
        }
        out.extend_from_slice(self.via.as_bytes());
    }
}

/// Appends the head that a member gets. The body follows as the client sends it.
pub fn write_request(head: &RequestHead<'_>, hop: &Hop, out: &mut Vec<u8>) {
    out.reserve(head.raw.len() + 256);
    let absolute = matches!(head.form, Form::Absolute { .. });
    let mut left_out = head.meaning.dropped;
    for (index, field) in head.meaning.known_fields(head.fields) {
        let replaced = match Kind::of(field.name) {
            Kind::Forwarded => hop.takes_out(field.name),
            Kind::Host => absolute,
            _ => false,
        };
        if replaced {
            left_out.insert(index);
        }
    }

    let lines_from = if absolute || head.version == Version::Http10 {
        put_request_line(head, out);
        fields_start(head.raw, head.fields)
    } else {
        0
    };
    put_lines(head.raw, head.fields, lines_from, left_out, out);
    match (head.form, head.host) {
        (Form::Absolute { authority, .. }, _) => put_line(&[b"Host: ", authority.as_bytes()], out),
        (_, None) => put_line(&[b"Host: ", hop.default_host.as_bytes()], out),
        _ => {}
    }
    put_framing(&head.meaning, out);
    match (head.meaning.upgrades, head.meaning.takes_trailers) {
        (false, false) => {}
        (true, false) => put_line(&[b"Connection: upgrade"], out),
        (false, true) => put_line(&[b"TE: trailers\r\nConnection: TE"], out),
        (true, true) => put_line(&[b"TE: trailers\r\nConnection: upgrade, TE"], out),
    }
    hop.describe_client(head, out);
    out.extend_from_slice(b"\r\n");
}

/// The client that a response goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Version of its request.
    pub version: Version,
    /// Whether it and the balancer want its connection to go on.
    pub keep_alive: bool,
}

/// How the rest of a response is to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The body comes chunked, which this client does not know: only its content is
    /// sent, and closing the connection ends it.
    pub strip_chunks: bool,
    /// Whether the client's connection goes on after this response. Nothing is said of
    /// it in an interim response, after which this is to be ignored.
    pub keep_alive: bool,
}

/// Appends the head that the client gets.
///
/// An HTTP/1.0 client does not know interim responses: do not write those to one.
pub fn write_response(head: &ResponseHead<'_>, client: Client, out: &mut Vec<u8>) -> Delivery {
    out.reserve(head.raw.len() + 64);
    let old_client = client.version == Version::Http10;
    let strip_chunks = old_client && head.body == Body::Chunked;
    let keep_alive =
        client.keep_alive && !strip_chunks && head.body != Body::UntilClose && head.status != 101;
    let mut left_out = head.meaning.dropped;
    if old_client && head.meaning.chunked {
        for (index, field) in head.meaning.known_fields(head.fields) {
            if Kind::of(field.name) == Kind::TransferEncoding {
                left_out.insert(index);
            }
        }
    }

    let lines_from = put_status_line_start(head, out);
    put_lines(head.raw, head.fields, lines_from, left_out, out);
    if !(old_client && head.meaning.chunked) {
        put_framing(&head.meaning, out);
    }
    match head.status {
        101 => put_line(&[b"Connection: upgrade"], out),
        100..=199 => {}
        _ if !keep_alive => put_line(&[b"Connection: close"], out),
        _ if old_client => put_line(&[b"Connection: keep-alive"], out),
        _ => {}
    }
    out.extend_from_slice(b"\r\n");
    Delivery {
        strip_chunks,
        keep_alive,
    }
}

fn put_request_line(head: &RequestHead<'_>, out: &mut Vec<u8>) {
    let (slash, target) = match head.form {
        Form::Origin | Form::Asterisk => ("", head.target),
        Form::Absolute { path_and_query, .. } if path_and_query.starts_with('/') => {
            ("", path_and_query)
        }
        // RFC 9112, section 3.2.4: this is what OPTIONS of a whole server looks like.
        Form::Absolute { path_and_query, .. }
            if path_and_query.is_empty() && head.method == "OPTIONS" =>
        {
            ("", "*")
        }
        Form::Absolute { path_and_query, .. } => ("/", path_and_query),
    };
    for part in [head.method, " ", slash, target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Appends as much of the status line as cannot be copied with the lines after it.
/// Returns where in the head those begin.
fn put_status_line_start(head: &ResponseHead<'_>, out: &mut Vec<u8>) -> usize {
    /// Length of `HTTP/1.1 200`.
    const TO_REASON: usize = 12;
    let has_space = head.raw.get(TO_REASON) == Some(&b' ');
    if has_space && head.version == Version::Http11 {
        return 0;
    }
    out.extend_from_slice(b"HTTP/1.1");
    out.extend_from_slice(head.raw.get(8..TO_REASON).unwrap_or_default());
    if !has_space {
        out.push(b' ');
    }
    TO_REASON
}

/// Appends the bytes of a head from `from` to its last field, but for some lines.
fn put_lines(
    raw: &[u8],
    fields: &[Header<'_>],
    mut from: usize,
    left_out: FieldSet,
    out: &mut Vec<u8>,
) {
    let fields_end = raw.len().saturating_sub(2);
    for index in left_out.iter() {
        let Some(field) = fields.get(index) else {
            break;
        };
        let start = framing::offset(raw, field);
        out.extend_from_slice(raw.get(from..start).unwrap_or_default());
        let next = fields.get(index + 1);
        from = next.map_or(fields_end, |next| framing::offset(raw, next));
    }
    out.extend_from_slice(raw.get(from..fields_end).unwrap_or_default());
}

fn fields_start(raw: &[u8], fields: &[Header<'_>]) -> usize {
    match fields.first() {
        Some(first) => framing::offset(raw, first),
        None => raw.len().saturating_sub(2),
    }
}

/// Appends the framing field if the one that came was dropped for its spelling.
fn put_framing(meaning: &Meaning<'_>, out: &mut Vec<u8>) {
    if !meaning.respell_framing {
        return;
    }
    if meaning.chunked {
        put_line(&[b"Transfer-Encoding: chunked"], out);
    } else if let Some(length) = meaning.content_length {
        out.extend_from_slice(b"Content-Length: ");
        put_number(length, out);
        out.extend_from_slice(b"\r\n");
    }
}

fn put_list<'a>(values: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    for value in values {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
}

fn put_line(parts: &[&[u8]], out: &mut Vec<u8>) {
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a number in decimal.
pub(super) fn put_number(mut number: u64, out: &mut Vec<u8>) {
    let start = out.len();
    loop {
        // A remainder of ten is a digit.
        out.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out[start..].reverse();
}
