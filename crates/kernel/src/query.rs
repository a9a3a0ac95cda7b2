//! Queries for a responder's load over UDP, and the answers.
//!
//! A query is as long as the answer that is wanted: an envelope of [`ENVELOPE`] bytes and
//! padding, in whose place the answer has a prefix of the [record](crate::record). So an
//! answer is never longer than the query, and nobody is flooded by way of a responder.
//!
//! | at | what |
//! |---|---|
//! | 0 | magic `EVKQ` (4), version (1), 1 for a query and 2 for an answer (1), length of the datagram (2) |
//! | 8 | number of the key (2), target (2), first CPU wanted (2), reserved, 0 (2) |
//! | 16 | reader: a random number of the process that asks |
//! | 24 | number of the query: larger than any before from the same reader |
//! | 32 | [host](Host) that is meant |
//! | 40 | SipHash-2-4 of bytes 0 to 39, and in an answer of everything from byte 48 on, too |
//!
//! The key says that a query comes from a balancer of ours and an answer from a back-end of
//! ours to this very query; the number that it is no old one that somebody has kept; the host
//! that the answer is of the back-end that was meant, although others have the same key. Nothing
//! is encrypted: who can listen can read the load.
//!
//! Version 1 had no host. Neither version answers the other.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use subtle::ConstantTimeEq;

use crate::host::Host;
use crate::record::{BASE, BadRecord, CPU, CPUS, Record};

/// Bytes before the record.
pub const ENVELOPE: usize = 48;
/// A datagram with the base of the record.
pub const SHORT: usize = ENVELOPE + BASE;
/// A datagram with the ports, too.
pub const WITH_PORTS: usize = ENVELOPE + CPUS;
/// The most CPU entries in a datagram that passes every Ethernet.
pub const CPUS_PER_DATAGRAM: usize = 4;
/// The longest datagram: 1,304 bytes.
pub const LONGEST: usize = WITH_PORTS + CPUS_PER_DATAGRAM * CPU;
/// The protocol that is described here.
pub const VERSION: u8 = 2;
/// Default port of responders.
pub const DEFAULT_PORT: u16 = 9970;

const MAGIC: [u8; 4] = *b"EVKQ";
/// Offset of the reader's number in a datagram.
const READER: usize = 16;
/// Offset of the authentication code: at the end of the envelope.
const CODE: usize = ENVELOPE - 8;

/// A secret that balancers and back-ends share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Number among the responder's keys.
    pub number: u16,
    secret: [u8; 16],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key {{ number: {}, .. }}", self.number)
    }
}

/// The text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a key is 32 hexadecimal digits, with an optional number from 0 to 65535 and a colon before"
)]
pub struct BadKey;

impl Key {
    /// A key of 16 bytes.
    pub fn new(number: u16, secret: [u8; 16]) -> Self {
        Key { number, secret }
    }

    /// Parses `HEX` or `NUMBER:HEX`. White space around it is nothing.
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        let text = text.trim();
        let (number, hex) = match text.split_once(':') {
            Some((number, hex)) => (number.parse().map_err(|_| BadKey)?, hex),
            None => (0, text),
        };
        if hex.len() != 32 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadKey);
        }
        let secret = u128::from_str_radix(hex, 16).map_err(|_| BadKey)?;
        Ok(Key::new(number, secret.to_be_bytes()))
    }

    /// The bytes, for the responder's map.
    pub fn secret(&self) -> &[u8; 16] {
        &self.secret
    }

    fn mac(&self, parts: [&[u8]; 2]) -> [u8; 8] {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        parts.iter().for_each(|part| hasher.write(part));
        hasher.finish().to_le_bytes()
    }
}

/// A query, as the reader wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Bytes of the datagram, and of the answer: see [`Query::is_length`].
    pub length: u16,
    /// Target whose load is asked for: 0 is the machine.
    pub target: u16,
    /// Place of the first CPU whose entry is wanted, if there is room for entries.
    pub first_cpu: u16,
    /// The process that asks.
    pub reader: u64,
    /// Number of the query, larger than any before from this reader.
    pub number: u64,
    /// Host that is to answer: a responder with other names does not answer.
    pub host: Host,
}

/// Reason why a datagram is no query, or no answer to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDatagram {
    /// A datagram of another protocol.
    #[error("a datagram of another protocol")]
    Magic,
    /// A datagram of another version.
    #[error(
        "a datagram of version {0} of the load query protocol, and this program speaks version {VERSION}: update \
         Evenkeel where it is older (balancer and back-end), and run `evenkeel kernel attach` again"
    )]
    Version(u8),
    /// A datagram with a length that no datagram has, or with another length than it says.
    #[error(
        "a datagram of {0} bytes is too short, too long, or of another length than its header says"
    )]
    Length(usize),
    /// A query where an answer is expected, or an answer where a query is expected; or a reserved
    /// field that is in use.
    #[error("a datagram with a wrong {0}")]
    Field(&'static str),
    /// A datagram with an unknown key or a wrong authentication code.
    #[error("a datagram with a wrong authentication code: check that both sides use the same key")]
    Mac,
    /// A datagram whose record is not valid.
    #[error(transparent)]
    Record(#[from] BadRecord),
}

impl Query {
    /// Returns true if a datagram of this protocol can have that length: it ends after the base,
    /// after the ports, or after one of the next four CPU entries.
    pub const fn is_length(length: usize) -> bool {
        length == SHORT
            || length >= WITH_PORTS
                && length <= LONGEST
                && (length - WITH_PORTS).is_multiple_of(CPU)
    }

    /// Writes the query. `out` becomes as long as the query is.
    ///
    /// The length must be [one that there is](Query::is_length).
    pub fn write(&self, key: &Key, out: &mut Vec<u8>) {
        debug_assert!(Self::is_length(self.length.into()));
        out.clear();
        out.extend_from_slice(&self.envelope(key, 1));
        out.resize(self.length.into(), 0);
    }

    fn envelope(&self, key: &Key, kind: u8) -> [u8; ENVELOPE] {
        let mut out = [0; ENVELOPE];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = kind;
        out[6..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..10].copy_from_slice(&key.number.to_le_bytes());
        out[10..12].copy_from_slice(&self.target.to_le_bytes());
        out[12..14].copy_from_slice(&self.first_cpu.to_le_bytes());
        out[READER..24].copy_from_slice(&self.reader.to_le_bytes());
        out[24..32].copy_from_slice(&self.number.to_le_bytes());
        out[32..40].copy_from_slice(&self.host.id().to_le_bytes());
        let mac = key.mac([&out[..CODE], &[]]);
        out[CODE..].copy_from_slice(&mac);
        out
    }

    /// Parses a query that is authenticated by one of `keys`, which it gives, too.
    pub fn parse<'k>(datagram: &[u8], keys: &'k [Key]) -> Result<(Self, &'k Key), BadDatagram> {
        let (query, key, head) = parse(datagram, 1)?;
        let key = keys.iter().find(|known| known.number == key);
        let key = key.ok_or(BadDatagram::Mac)?;
        if same(key.mac([&head[..CODE], &[]]), &head[CODE..]) {
            Ok((query, key))
        } else {
            Err(BadDatagram::Mac)
        }
    }

    /// Makes an answer of a query of the same length, whose record has been written from
    /// byte [`ENVELOPE`] on.
    pub fn answer(&self, key: &Key, datagram: &mut [u8]) {
        let Some((head, record)) = datagram.split_first_chunk_mut::<ENVELOPE>() else {
            return;
        };
        *head = self.envelope(key, 2);
        let mac = key.mac([&head[..CODE], record]);
        head[CODE..].copy_from_slice(&mac);
    }
}

/// An answer whose authentication code is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The query that it answers.
    pub query: Query,
    /// The load.
    pub record: Record<'a>,
}

impl<'a> Answer<'a> {
    /// The reader and the number of the query that a datagram claims to answer, of which
    /// nothing is checked yet: to find the key.
    pub fn claimed_ids(datagram: &[u8]) -> Option<(u64, u64)> {
        let (query, ..) = parse(datagram, 2).ok()?;
        Some((query.reader, query.number))
    }

    /// The reader that a datagram names if it is one of this protocol, of which nothing is checked:
    /// for a guess that costs next to nothing.
    pub fn claimed_reader(datagram: &[u8]) -> Option<u64> {
        let reader = datagram.get(READER..READER + 8)?;
        reader.try_into().map(u64::from_le_bytes).ok()
    }

    /// Parses an answer.
    pub fn parse(datagram: &'a [u8], key: &Key) -> Result<Self, BadDatagram> {
        let (query, number, head) = parse(datagram, 2)?;
        let record = datagram.get(ENVELOPE..).unwrap_or_default();
        if number != key.number || !same(key.mac([&head[..CODE], record]), &head[CODE..]) {
            return Err(BadDatagram::Mac);
        }
        let record = Record::parse(record)?;
        Ok(Answer { query, record })
    }
}

fn parse(datagram: &[u8], kind: u8) -> Result<(Query, u16, &[u8; ENVELOPE]), BadDatagram> {
    if !datagram.starts_with(&MAGIC) {
        return Err(BadDatagram::Magic);
    }
    let length = BadDatagram::Length(datagram.len());
    let head = datagram.first_chunk::<ENVELOPE>().ok_or(length)?;
    if head[4] != VERSION {
        return Err(BadDatagram::Version(head[4]));
    }
    let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let query = Query {
        length: short(6),
        target: short(10),
        first_cpu: short(12),
        reader: long(READER),
        number: long(24),
        host: Host::from_id(long(32)),
    };
    if usize::from(query.length) != datagram.len() || !Query::is_length(datagram.len()) {
        return Err(length);
    }
    if head[5] != kind {
        return Err(BadDatagram::Field("kind"));
    }
    if short(14) != 0 {
        return Err(BadDatagram::Field("reserved field"));
    }
    Ok((query, short(8), head))
}

/// Compares without telling by the time where they differ.
fn same(one: [u8; 8], other: &[u8]) -> bool {
    let other = <[u8; 8]>::try_from(other).map(u64::from_ne_bytes);
    other.is_ok_and(|other| u64::from_ne_bytes(one).ct_eq(&other).into())
}

#[cfg(test)]
mod tests;
