//! A request between the parser of its head and the head for a member.
//!
//! [`crate::http1`] and [`crate::http2`] parse heads; each makes a [`Request`] with all fields.
//! [`crate::http1::forward`] writes the head for a member from the [`Request`]. Where the head came
//! as HTTP/1, its lines are copied as they are instead ([`Raw`]): that is faster, and changes nothing
//! that need not change.

use std::collections::HashSet;

use evenkeel_core::cost::Cost;
use evenkeel_core::key::{Key, hash};
use evenkeel_http2::SensitiveParts;
use evenkeel_manager::config::fields::is_session;
use httparse::Header;

/// A field of a head: its name and its value.
pub type Field<'a> = Header<'a>;

/// A request as a front understood it. It borrows from what was read.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Method, as sent.
    pub method: &'a str,
    /// `host[:port]` that the request is for: that of its target if there is one, else `Host`.
    /// `None` in HTTP/1.0 only.
    pub authority: Option<&'a str>,
    /// Path and query, or `*` for the whole server. An absolute target may have no path: then
    /// this is empty or begins with the `?` of the query.
    pub path_and_query: &'a str,
    /// Framing of the body; never [`Body::UntilClose`].
    pub body: Body,
    /// True if a switch of protocols is offered, and a 101 allowed.
    pub upgrade: bool,
    /// True if the client takes trailers.
    pub takes_trailers: bool,
    /// True if the request's credentials are those of a connection rather than of a request (NTLM,
    /// Negotiate).
    pub authenticates_connection: bool,
    /// All fields, in order.
    pub(crate) fields: &'a [Field<'a>],
    /// Fields that end here.
    pub(crate) dropped: FieldSet,
    /// Fields that say who the client is.
    pub(crate) forwarded: FieldSet,
    /// Fields that nobody may put in a table of HPACK, as the client says (RFC 7541, section 7.1.3).
    pub(crate) sensitive: FieldSet,
    /// True if that holds for path and query.
    pub(crate) has_sensitive_path: bool,
    /// True if the authority is in a field that does not end here.
    pub(crate) has_host: bool,
    /// True if the framing of the body is in a field that does not end here.
    pub(crate) has_framing: bool,
    pub(crate) raw: Option<Raw<'a>>,
}

/// A head of HTTP/1 as it came, to copy lines from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    pub(crate) bytes: &'a [u8],
    /// True if the request line may stay as it is.
    pub(crate) line_stays: bool,
}

impl<'a> Request<'a> {
    /// Path without the query: at least `/`, or `*`.
    pub fn path(&self) -> &'a str {
        let path = self.path_and_query.split('?').next().unwrap_or_default();
        if path.is_empty() { "/" } else { path }
    }

    /// The query with the question mark, or nothing.
    pub(crate) fn query_part(&self) -> &'a str {
        let at = self.path_and_query.find('?');
        at.and_then(|at| self.path_and_query.get(at..))
            .unwrap_or_default()
    }

    /// Hash of the part of it that `key` names; `None` if it has no such part, or if that is
    /// not the request's.
    pub fn hash_part(&self, key: &Key) -> Option<u64> {
        self.find_part(key).map(hash)
    }

    /// The part of it that `key` names; `None` if it has no such part, or if that is not the
    /// request's.
    pub(crate) fn find_part(&self, key: &Key) -> Option<&'a [u8]> {
        match key {
            Key::Client => None,
            Key::Path => Some(self.path().as_bytes()),
            // Whoever leaves the slash out means the same.
            Key::Uri if self.path_and_query.is_empty() => Some(b"/"),
            Key::Uri => Some(self.path_and_query.as_bytes()),
            // Where an authority stands depends on the form of the target.
            Key::Header(name) if name.eq_ignore_ascii_case("host") => {
                self.authority.map(str::as_bytes)
            }
            Key::Header(name) => self.values(name).next(),
            Key::Cookie(name) => self.find_cookie(name.as_bytes()),
        }
    }

    /// Returns the cost of the request that the field of this name says; `None` if the field is
    /// missing, or says no cost.
    pub fn parse_cost(&self, field: &str) -> Option<Cost> {
        self.values(field).next().and_then(Cost::parse)
    }

    /// Value of the cookie of this name (RFC 6265, section 4.2).
    pub(crate) fn find_cookie(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.find_cookies(name).next()
    }

    /// Values of the cookies of this name, in order.
    pub(crate) fn find_cookies(&self, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        let pairs = self
            .values("cookie")
            .flat_map(|value| value.split(|&byte| byte == b';'));
        pairs.filter_map(move |pair| pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"="))
    }

    /// True if it has a cookie that is for the balancer.
    #[inline]
    pub(crate) fn has_cookie_of(&self, own: BalancerCookies<'_>) -> bool {
        if own.sticky.is_none() && !own.sessions {
            return false;
        }
        let mut pairs = self
            .values("cookie")
            .flat_map(|value| value.split(|&byte| byte == b';'));
        pairs.any(|pair| own.has_pair(pair))
    }

    /// The fields that do not end here, but for those that the pseudo-fields and frames of HTTP/2
    /// stand for.
    pub(crate) fn kept_fields(&self) -> impl Iterator<Item = &'a Field<'a>> {
        let fields = self.fields.iter().enumerate();
        let stays = |name: &str| {
            !["host", "content-length", "transfer-encoding", "upgrade"]
                .iter()
                .any(|ends| name.eq_ignore_ascii_case(ends))
        };
        let dropped = self.dropped;
        fields
            .filter(move |(index, field)| !dropped.contains(*index) && stays(field.name))
            .map(|(_, field)| field)
    }

    /// Values of the fields called `name` (in any case), in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        values(self.fields, name)
    }

    /// Value of the only field called `name` (in any case); `None` without such a field, and with several, which are
    /// ambiguous.
    pub(crate) fn only_value(&self, name: &str) -> Option<&'a [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }
}

/// Places of the parts of a request in its head for a member, from which HTTP/2 is written: nobody
/// reads the lines again.
#[derive(Debug, Default)]
pub(crate) struct RequestPlaces {
    /// Length of the method, with which the head begins.
    pub(crate) method: u32,
    /// End of the path and query, which follow the method and a space.
    pub(crate) path_end: u32,
    pub(crate) authority: Option<Span>,
    pub(crate) fields: Vec<FieldPlace>,
    /// Parts of the first line that nobody may put in a table of HPACK.
    pub(crate) sensitive: SensitiveParts,
    /// Offset of the lines that the balancer has added.
    pub(crate) added: u32,
    pub(crate) takes_trailers: bool,
    /// Length of the body, if it is said.
    pub(crate) length: Option<u64>,
    /// True if there is a body.
    pub(crate) has_body: bool,
}

/// Place of a field in a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldPlace {
    pub(crate) name: Span,
    pub(crate) value: Span,
    /// True if nobody may put the field in a table of HPACK.
    pub(crate) is_sensitive: bool,
}

/// Place of a text in a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    /// Returns the bytes there.
    pub(crate) fn bytes(self, head: &[u8]) -> &[u8] {
        head.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }
}

impl RequestPlaces {
    /// Moves the parts to other offsets, as `new_offset` says, since the head has changed.
    pub(crate) fn move_parts(&mut self, new_offset: impl Fn(usize) -> usize) {
        let move_one = |offset: &mut u32| *offset = new_offset(*offset as usize) as u32;
        let fields = self.fields.iter_mut();
        let fields = fields.flat_map(|field| [&mut field.name, &mut field.value]);
        for span in fields.chain(&mut self.authority) {
            move_one(&mut span.start);
            move_one(&mut span.end);
        }
        move_one(&mut self.added);
    }

    /// Returns the place of the next `len` bytes of a head, which is far below 4 GiB.
    pub(crate) fn next_span(head: &[u8], len: usize) -> Span {
        let start = head.len() as u32;
        Span {
            start,
            end: start.saturating_add(len as u32),
        }
    }
}

/// Cookies that are for the balancer, and for no member.
#[derive(Clone, Copy, Debug, Default)]
pub struct BalancerCookies<'a> {
    /// Names of the cookies that bind clients to members.
    pub sticky: Option<&'a HashSet<Box<[u8]>>>,
    /// True if cookies of sessions at a console are among the own cookies.
    pub sessions: bool,
}

impl BalancerCookies<'_> {
    /// True if a pair of a field `Cookie` is one of the own cookies.
    fn has_pair(self, pair: &[u8]) -> bool {
        self.sessions && is_session(pair) || self.sticky.is_some_and(|names| is_of(pair, names))
    }
}

/// True if a pair of a field `Cookie` is of one of these names.
fn is_of(pair: &[u8], names: &HashSet<Box<[u8]>>) -> bool {
    let mut parts = pair.splitn(2, |&byte| byte == b'=');
    let name = parts.next().unwrap_or_default().trim_ascii_start();
    parts.next().is_some() && names.contains(name)
}

/// Appends the pairs of a field `Cookie` that are not for the balancer, as they are. Answers whether
/// there are any.
pub(crate) fn put_cookies_but(value: &[u8], own: BalancerCookies<'_>, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let pairs = value.split(|&byte| byte == b';');
    for (count, pair) in pairs.filter(|pair| !own.has_pair(pair)).enumerate() {
        if count == 0 {
            out.extend_from_slice(pair.trim_ascii_start());
        } else {
            out.push(b';');
            out.extend_from_slice(pair);
        }
    }
    out.len() > start
}

/// True if fields `Content-Encoding` with these values say that the content has a coding (RFC 9110, section 8.4).
pub(crate) fn has_coding<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> bool {
    values.any(|value| {
        let value = value.trim_ascii();
        !value.is_empty() && !value.eq_ignore_ascii_case(b"identity")
    })
}

/// Values of the fields called `name` (in any case), in order.
pub(crate) fn values<'a>(fields: &'a [Field<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name))
        .map(|field| field.value)
}

/// Way in which the end of a body is found (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// There is none.
    None,
    /// Exactly this number of bytes, perhaps zero.
    Length(u64),
    /// Chunked; see [`crate::http1::chunked`].
    Chunked,
    /// All bytes until the member closes. Responses only.
    UntilClose,
    /// All bytes until the stream of HTTP/2 ends, perhaps with trailers, as they are: between two
    /// such streams only, where nothing else frames the body.
    Stream,
}

/// A set of fields of one head, by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet([u64; FieldSet::WORDS]);

impl FieldSet {
    const WORDS: usize = 4;
    /// Fields that a set can tell apart.
    pub(crate) const CAPACITY: usize = Self::WORDS * 64;

    /// Adds a field; `index` is below [`Self::CAPACITY`].
    #[inline]
    pub(crate) fn insert(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    }

    /// Adds the fields of another set.
    #[inline]
    pub(crate) fn add_all(&mut self, other: Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == [0; Self::WORDS]
    }

    pub(crate) fn contains(self, index: usize) -> bool {
        let word = self.0.get(index / 64).copied().unwrap_or_default();
        word >> (index % 64) & 1 != 0
    }

    /// Indices in ascending order.
    #[inline]
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> + use<> {
        self.0.into_iter().enumerate().flat_map(|(word, bits)| {
            let mut rest = bits;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    word * 64 + bit
                })
            })
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
