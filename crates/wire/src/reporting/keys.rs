//! The shared keys that authenticate every message.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Length of the authentication code at the end of every message, in bytes: HMAC-SHA256
/// (RFC 2104) truncated to its first half, which RFC 2104, section 5 allows.
pub const TAG_LEN: usize = 16;

/// Shortest secret, in bytes.
pub const MIN_SECRET_LEN: usize = 16;

/// Longest secret, in bytes: the block of SHA-256, beyond which HMAC gains nothing.
pub const MAX_SECRET_LEN: usize = 64;

/// Most keys at once: the one in use, and during a rotation the one that follows it.
pub const MAX_KEYS: usize = 2;

/// Shared key with the id by which messages name it.
#[derive(Clone)]
pub struct Key {
    id: u16,
    // With the secret already in it: a message costs a copy and its own blocks.
    mac: Hmac<Sha256>,
}

impl Key {
    /// A key of 16 to 64 secret bytes.
    pub fn new(id: u16, secret: &[u8]) -> Result<Self, KeysError> {
        if !(MIN_SECRET_LEN..=MAX_SECRET_LEN).contains(&secret.len()) {
            return Err(KeysError::Secret { id });
        }
        let mac = Hmac::new_from_slice(secret).map_err(|_| KeysError::Secret { id })?;
        Ok(Key { id, mac })
    }

    /// The id in the header of messages.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Appends the code of `message` to it.
    pub fn sign_message(&self, message: &mut Vec<u8>) {
        let tag = self.compute_tag(&[message]);
        message.extend(tag);
    }

    /// The code of `parts`, one after the other.
    pub(crate) fn compute_tag(&self, parts: &[&[u8]]) -> [u8; TAG_LEN] {
        let full = self.digest(parts).finalize().into_bytes();
        let full: [u8; 2 * TAG_LEN] = full.into();
        *full.first_chunk().unwrap_or(&[0; TAG_LEN])
    }

    /// Returns true if `tag` is the code of `parts`, in a time that does not depend on how much of
    /// `tag` is right.
    pub fn is_tag(&self, parts: &[&[u8]], tag: &[u8; TAG_LEN]) -> bool {
        self.digest(parts).verify_truncated_left(tag).is_ok()
    }

    fn digest(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The keys that are accepted: one, or during a rotation two.
///
/// An agent signs with the first. The broker accepts each and answers with the one that
/// was used. To rotate: give the broker both, then the agents the new one alone, then
/// take the old one from the broker.
#[derive(Clone, Debug)]
pub struct Keys {
    first: Key,
    second: Option<Key>,
}

impl Keys {
    /// Returns a set of one or two keys with different ids.
    pub fn new(keys: Vec<Key>) -> Result<Self, KeysError> {
        let mut keys = keys.into_iter();
        let first = keys.next().ok_or(KeysError::None)?;
        let second = keys.next();
        match &second {
            _ if keys.next().is_some() => Err(KeysError::TooMany),
            Some(second) if second.id == first.id => Err(KeysError::SameId { id: first.id }),
            _ => Ok(Keys { first, second }),
        }
    }

    /// Derives a secret for another purpose from the first key. Messages say nothing about the secret, as none begins
    /// as the name of a purpose.
    pub fn derive_secret(&self, purpose: &str) -> [u64; 3] {
        let code: [u8; 32] = self
            .first
            .digest(&[purpose.as_bytes()])
            .finalize()
            .into_bytes()
            .into();
        let (words, _) = code.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        std::array::from_fn(|_| words.next().unwrap_or(0))
    }

    /// Reads the text of a key file: a line `ID:HEX` for each key, where the id is a
    /// number from 0 to 65535 and the secret 16 to 64 bytes in hexadecimal digits.
    /// Empty lines, and lines that begin with `#`, are left out.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || KeysError::Line { line: index + 1 };
            let (id, secret) = line.split_once(':').ok_or_else(wrong)?;
            let id = id.trim().parse().map_err(|_| wrong())?;
            keys.push(Key::new(id, &hex(secret.trim()).ok_or_else(wrong)?)?);
        }
        Keys::new(keys)
    }

    /// The key that an agent signs with.
    pub fn signing_key(&self) -> &Key {
        &self.first
    }

    /// The key `id`, if it is one of these.
    pub fn get(&self, id: u16) -> Option<&Key> {
        let mut keys = std::iter::once(&self.first).chain(&self.second);
        keys.find(|key| key.id == id)
    }
}

/// The bytes that pairs of hexadecimal digits stand for.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let byte = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    pairs.iter().map(byte).collect()
}

/// Reason why something is no set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// No key at all.
    #[error("there is no key: write a line ID:HEX, as in 1:$(openssl rand -hex 32)")]
    None,
    /// More than [`MAX_KEYS`].
    #[error("there are more than {MAX_KEYS} keys: remove those that are no longer in use")]
    TooMany,
    /// Two keys have one id.
    #[error("two keys have the id {id}: give the newer one another id")]
    SameId {
        /// The id.
        id: u16,
    },
    /// The secret is too short or too long.
    #[error(
        "the secret of key {id} must be {MIN_SECRET_LEN} to {MAX_SECRET_LEN} bytes, twice as \
         many hexadecimal digits"
    )]
    Secret {
        /// The key's id.
        id: u16,
    },
    /// A line is no key.
    #[error("line {line} must be ID:HEX, an id from 0 to 65535 and hexadecimal digits")]
    Line {
        /// Number of the line, from 1.
        line: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_has_one_or_two_keys_and_comments() {
        let secret = "00ff".repeat(8);
        let keys = Keys::parse(&format!("# old\n7:{secret}\n\n 65535 : {secret} \n")).unwrap();
        assert_eq!(keys.signing_key().id(), 7);
        assert!(keys.get(65535).is_some() && keys.get(8).is_none());
    }

    #[test]
    fn secrets_for_other_purposes_depend_on_the_first_key_alone() {
        let keys = |text: &str| Keys::parse(text).unwrap();
        let (one, two) = ("00ff".repeat(8), "01ff".repeat(8));
        let derived = keys(&format!("1:{one}")).derive_secret("a");
        assert_eq!(
            keys(&format!("7:{one}\n2:{two}")).derive_secret("a"),
            derived
        );
        assert_ne!(keys(&format!("1:{two}")).derive_secret("a"), derived);
        assert_ne!(keys(&format!("1:{one}")).derive_secret("b"), derived);
    }

    #[test]
    fn a_wrong_key_file_says_what_is_wrong() {
        let secret = "00ff".repeat(8);
        let cases = [
            (String::new(), KeysError::None),
            (
                format!("1:{secret}\n2:{secret}\n3:{secret}"),
                KeysError::TooMany,
            ),
            (
                format!("1:{secret}\n1:{secret}"),
                KeysError::SameId { id: 1 },
            ),
            ("5:00ff".into(), KeysError::Secret { id: 5 }),
            (
                format!("5:{}", "00".repeat(65)),
                KeysError::Secret { id: 5 },
            ),
            (format!("\n65536:{secret}"), KeysError::Line { line: 2 }),
            (format!("1:{secret}f"), KeysError::Line { line: 1 }),
            (format!("1:{secret}xx"), KeysError::Line { line: 1 }),
            (secret, KeysError::Line { line: 1 }),
        ];
        for (text, error) in cases {
            assert_eq!(Keys::parse(&text).unwrap_err(), error, "{text}");
        }
    }

    /// RFC 4231, test case 6 has a longer key than is allowed here; cases 1, 3 and 7 of
    /// that document likewise. This is case 4, whose key has 25 bytes.
    #[test]
    fn the_code_is_that_of_the_standard() {
        let secret: Vec<u8> = (1..=25).collect();
        let key = Key::new(1, &secret).unwrap();
        let data = [0xcd; 50];
        let expected = hex("82558a389a443c0ea4cc819899f2083a").unwrap();
        assert_eq!(key.compute_tag(&[&data[..20], &data[20..]]), expected[..]);
        assert!(key.is_tag(&[&data], &expected.try_into().unwrap()));
        assert!(!key.is_tag(&[&data], &[0; TAG_LEN]));
    }

    #[test]
    fn a_secret_is_not_printed() {
        let key = Key::new(1, &[7; 16]).unwrap();
        assert_eq!(format!("{key:?}"), "Key { id: 1, .. }");
    }
}
