//! Key of a request for strategies that give the same member to equal requests.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Longest name of a field or a cookie in bytes.
const MAX_NAME: usize = 128;

/// A part of a request. Equal parts are hashed to the same member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Key {
    /// The client's address.
    Client,
    /// The path, without query.
    Path,
    /// Path and query.
    #[default]
    Uri,
    /// The first value of the field of this name (in any case).
    Header(Box<str>),
    /// The cookie of this name.
    Cookie(Box<str>),
}

/// A text that names no part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(r#"expected "client", "path", "uri", "header:NAME" or "cookie:NAME""#)]
pub struct ParseKeyError;

/// True if a field or a cookie may have this name: a token (RFC 9110, section 5.6.2) of at most 128 bytes.
pub fn is_field_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_token)
}

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let named = |name: &str| {
            let valid = is_field_name(name);
            valid.then(|| name.into()).ok_or(ParseKeyError)
        };
        match text.split_once(':') {
            Some(("header", name)) => Ok(Key::Header(named(name)?)),
            Some(("cookie", name)) => Ok(Key::Cookie(named(name)?)),
            Some(_) => Err(ParseKeyError),
            None => match text {
                "client" => Ok(Key::Client),
                "path" => Ok(Key::Path),
                "uri" => Ok(Key::Uri),
                _ => Err(ParseKeyError),
            },
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Client => f.write_str("client"),
            Key::Path => f.write_str("path"),
            Key::Uri => f.write_str("uri"),
            Key::Header(name) => write!(f, "header:{name}"),
            Key::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}

/// The hash of a key's bytes: FNV-1a, mixed. It must never change: balancers of two versions
/// would disagree.
pub fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    mix(bytes.iter().fold(0xCBF2_9CE4_8422_2325, step))
}

/// The hash of a client's address. An IPv4 address and its IPv6-mapped form are the same client.
pub fn hash_address(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(v4) => hash(&v4.octets()),
        IpAddr::V6(v6) => hash(&v6.octets()),
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom
/// Number Generators", 2014).
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_shown() {
        for text in ["client", "path", "uri", "header:X-User", "cookie:sid"] {
            assert_eq!(text.parse::<Key>().unwrap().to_string(), text);
        }
        let long = format!("header:{}", "x".repeat(MAX_NAME + 1));
        for text in [
            "",
            "Path",
            "header",
            "header:",
            "header:a b",
            "query:x",
            &long,
        ] {
            assert_eq!(text.parse::<Key>(), Err(ParseKeyError), "{text}");
        }
    }

    #[test]
    fn a_hash_never_changes() {
        assert_eq!(hash(b""), 0xc381_7c01_6ba4_ff30);
        assert_eq!(hash(b"anna"), 0x73ab_02fe_fcda_7c90);
    }
}
