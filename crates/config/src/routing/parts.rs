//! Parts of a request, as conditions compare them: found once for all routes. A request may have a megabyte, and hundreds of
//! routes of its path may have conditions on a part.

use std::borrow::Cow;
use std::cell::OnceCell;

use super::path;

/// Longest query, and longest cookies, that each condition looks through, in bytes. The pairs of longer ones are sorted.
const SHORT: usize = 512;

/// A request, as conditions see it.
pub trait RequestView {
    /// Method of the request.
    fn method(&self) -> &str;
    /// The host that it is for, perhaps with a port.
    fn host(&self) -> Option<&str>;
    /// Path of the request without the query, or `*`.
    fn path(&self) -> &str;
    /// Query of the request without the question mark.
    fn query(&self) -> &str;
    /// The values of the fields called `name`, in any case.
    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]>;
}

/// Parts of a request.
pub(super) struct RequestParts<'a, R> {
    pub(super) asks: &'a R,
    path: OnceCell<Cow<'a, [u8]>>,
    parameters: OnceCell<Pairs<'a>>,
    cookies: OnceCell<Pairs<'a>>,
}

impl<'a, R: RequestView> RequestParts<'a, R> {
    pub(super) fn new(asks: &'a R) -> Self {
        RequestParts {
            asks,
            path: OnceCell::new(),
            parameters: OnceCell::new(),
            cookies: OnceCell::new(),
        }
    }

    /// Returns the path as regular expressions see it.
    pub(super) fn plain_path(&self) -> &[u8] {
        self.path
            .get_or_init(|| path::normalize_path(self.asks.path()))
    }

    /// Returns the values of a parameter of the query, encoded, in order.
    pub(super) fn find_parameters<'n>(&'n self, name: &'n str) -> impl Iterator<Item = &'a [u8]> {
        let query = self.asks.query();
        let has_name = move |(known, _): &(Cow<'a, [u8]>, &'a [u8])| **known == *name.as_bytes();
        let (few, many) = match query.len() <= SHORT {
            true => (Some(list_parameters(query).filter(has_name)), None),
            false => {
                let pairs = (self.parameters).get_or_init(|| Pairs::new(list_parameters(query)));
                (None, Some(pairs.list_values(name)))
            }
        };
        let few = few.into_iter().flatten().map(|(_, value)| value);
        few.chain(many.into_iter().flatten())
    }

    /// Returns the value of a cookie: the first one, if there are several of the name.
    pub(super) fn find_cookie(&self, name: &str) -> Option<&'a [u8]> {
        let asks = self.asks;
        let len: usize = asks.fields("cookie").map(<[u8]>::len).sum();
        if len <= SHORT {
            let mut cookies = list_cookies(asks);
            let found = cookies.find(|(known, _)| **known == *name.as_bytes());
            return found.map(|(_, value)| value);
        }
        let pairs = (self.cookies).get_or_init(|| Pairs::new(list_cookies(asks)));
        pairs.list_values(name).next()
    }
}

/// Names and values, in the order of the names. Values of one name are in the order of the request.
struct Pairs<'a>(Vec<(Cow<'a, [u8]>, &'a [u8])>);

impl<'a> Pairs<'a> {
    fn new(pairs: impl Iterator<Item = (Cow<'a, [u8]>, &'a [u8])>) -> Self {
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
        Pairs(pairs)
    }

    fn list_values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let name = name.as_bytes();
        let first = self.0.partition_point(|(known, _)| **known < *name);
        let last = self.0.partition_point(|(known, _)| **known <= *name);
        let found = self.0.get(first..last).unwrap_or_default();
        found.iter().map(|(_, value)| *value)
    }
}

/// Names of parameters, decoded, and their values, encoded.
fn list_parameters(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, &[u8])> {
    query.split('&').map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = match name.contains(['%', '+']) {
            true => decoded(name.as_bytes()).collect(),
            false => Cow::from(name.as_bytes()),
        };
        (name, value.as_bytes())
    })
}

/// Names and values of cookies (RFC 6265, section 4.2).
fn list_cookies<R: RequestView>(asks: &R) -> impl Iterator<Item = (Cow<'_, [u8]>, &[u8])> {
    let pairs = asks
        .fields("cookie")
        .flat_map(|value| value.split(|&byte| byte == b';'));
    pairs.filter_map(|pair| {
        let pair = pair.trim_ascii();
        let at = pair.iter().position(|&byte| byte == b'=')?;
        Some((Cow::from(pair.get(..at)?), pair.get(at + 1..)?))
    })
}

/// The bytes of a name or value of a query, as forms encode them.
pub(super) fn decoded(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, after) = match rest {
            [b'%', high, low, after @ ..] => match (path::digit(*high), path::digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (b'%', rest.get(1..)?),
            },
            [b'+', after @ ..] => (b' ', after),
            [byte, after @ ..] => (*byte, after),
            [] => return None,
        };
        rest = after;
        Some(byte)
    })
}
