//! A request between the front that has parsed it and the head for a member, which is written from
//! it.
//!
//! The front of today is [`crate::http1`]. Another one, such as HTTP/2, makes a [`Request`] of what
//! it got: what it understood of it, and all fields. [`crate::http1::forward`] writes the head
//! for a member from that. Where the head came as HTTP/1, its lines are copied as they are
//! instead ([`Raw`]): that is faster, and changes nothing that need not change.

use httparse::Header;

/// A field of a head: its name and its value.
pub type Field<'a> = Header<'a>;

/// A request as a front understood it. It borrows from what was read.
#[derive(Debug)]
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
    /// Whether a switch of protocols is offered, and a 101 allowed.
    pub upgrade: bool,
    /// Whether the client takes trailers.
    pub takes_trailers: bool,
    /// All fields, in order.
    pub(crate) fields: &'a [Field<'a>],
    /// Those that end here.
    pub(crate) dropped: FieldSet,
    /// Those that say who the client is.
    pub(crate) forwarded: FieldSet,
    /// Whether the authority is in a field that does not end here.
    pub(crate) has_host: bool,
    /// The same for the framing of the body.
    pub(crate) has_framing: bool,
    pub(crate) raw: Option<Raw<'a>>,
}

/// A head of HTTP/1 as it came, to copy lines from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    pub(crate) bytes: &'a [u8],
    /// Whether the request line may stay as it is.
    pub(crate) line_stays: bool,
}

impl<'a> Request<'a> {
    /// Path without the query: at least `/`, or `*`.
    pub fn path(&self) -> &'a str {
        let path = self.path_and_query.split('?').next().unwrap_or_default();
        if path.is_empty() { "/" } else { path }
    }

    /// Values of the fields called `name` (in any case), in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        values(self.fields, name)
    }
}

/// Values of the fields called `name` (in any case), in order.
pub(crate) fn values<'a>(fields: &'a [Field<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name))
        .map(|field| field.value)
}

/// How the end of a body is found (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// There is none.
    None,
    /// Exactly so many bytes, perhaps zero.
    Length(u64),
    /// Chunked; see [`crate::http1::chunked`].
    Chunked,
    /// All bytes until the member closes. Responses only.
    UntilClose,
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
    pub(crate) fn add(&mut self, other: Self) {
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
mod tests {
    use super::*;
    use crate::http1::{Fields, Limits, Parsed, RequestHead};

    /// What `see` finds in the request of a head of HTTP/1.
    pub(crate) fn with_request<T>(head: &str, see: impl FnOnce(&Request<'_>) -> T) -> T {
        let limits = Limits {
            max_bytes: 1024,
            max_fields: 16,
        };
        let mut fields = Fields::new();
        let parsed = RequestHead::parse(head.as_bytes(), limits, &mut fields);
        let Ok(Parsed::Head(head)) = parsed else {
            panic!("{head:?}: {parsed:?}");
        };
        see(&head.request)
    }

    #[test]
    fn each_target_has_a_path() {
        for (target, path) in [
            ("/", "/"),
            ("/a/b?c=/d", "/a/b"),
            ("/?", "/"),
            ("http://a", "/"),
            ("http://a?b", "/"),
            ("http://a/b?c", "/b"),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            with_request(&head, |request| {
                assert_eq!(request.path(), path, "{target}")
            });
        }
        for target in ["*", "http://a"] {
            let head = format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            with_request(&head, |request| assert_eq!(request.path(), "*", "{target}"));
        }
    }
}
