//! Records after a handshake (RFC 8446, section 5; RFC 5246, section 6.2): what is encrypted and
//! sent, without I/O.
//!
//! Keys are those of the handshake, which rustls hands over. Only suites with authenticated
//! encryption are negotiated: AES-GCM (RFC 5288) and ChaCha20-Poly1305 (RFC 7905).

use std::fmt;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::{AlertDescription, ConnectionTrafficSecrets};

/// Bytes of a record before its content: its kind, a version and its length.
pub const HEADER_BYTES: usize = 5;

/// Most bytes that a record carries.
pub const MAX_PLAIN: usize = 16 * 1024;

/// Most bytes that a record has after its header (TLS 1.2 allows more than 1.3).
const MAX_BODY: usize = MAX_PLAIN + 2048;

/// Longest record.
pub const MAX_RECORD: usize = HEADER_BYTES + MAX_BODY;

const TAG_BYTES: usize = 16;

/// Number of bytes of a nonce of AES-GCM that TLS 1.2 sends.
const EXPLICIT_NONCE_BYTES: usize = 8;

/// Most records that are encrypted with one key (RFC 8446, section 5.5: 2^24.5 for AES-GCM).
const MAX_SEALED: u64 = 1 << 24;

/// Content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Alert that says how something has ended.
    Alert,
    /// Messages of the handshake, or after it.
    Handshake,
    /// Bytes of the connection.
    Data,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            21 => Some(Kind::Alert),
            22 => Some(Kind::Handshake),
            23 => Some(Kind::Data),
            _ => None,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Kind::Alert => 21,
            Kind::Handshake => 22,
            Kind::Data => 23,
        }
    }
}

/// Reason why a record is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The header is no header of a record, or the record is too long.
    #[error("the bytes received are not a TLS record")]
    Header,
    /// The record was not encrypted with the right key, or changed on its way.
    #[error("a TLS record could not be decrypted")]
    Decrypt,
    /// The record carries something that does not belong there.
    #[error("a TLS record with an unexpected message")]
    Unexpected,
    /// The other side ends the connection, and says why.
    #[error("the other side ended the TLS connection with an alert: {0:?}")]
    Alert(AlertDescription),
    /// There were too many records that carry nothing, or ask for new keys.
    #[error("too many TLS records without content")]
    Flood,
    /// No more records may be encrypted with this key.
    #[error("too many TLS records for one key")]
    Exhausted,
}

/// Length of the record that begins here with its header, if that is whole.
///
/// # Errors
///
/// It is no record that may come after a handshake.
pub fn record_length(bytes: &[u8]) -> Result<Option<usize>, Violation> {
    let [kind, major, _, high, low, ..] = *bytes else {
        // What is there already must be the beginning of one.
        return match bytes.first() {
            Some(kind) if Kind::from_byte(*kind).is_none() => Err(Violation::Header),
            _ => Ok(None),
        };
    };
    let body = usize::from(u16::from_be_bytes([high, low]));
    if Kind::from_byte(kind).is_none() || major != 3 || body > MAX_BODY {
        return Err(Violation::Header);
    }
    Ok(Some(HEADER_BYTES + body))
}

/// The key of one direction.
struct Key {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
    form: Form,
}

/// Form of nonces and additional data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Tls13,
    /// TLS 1.2 with AES-GCM: a part of the nonce is sent.
    Explicit,
    /// TLS 1.2 with ChaCha20-Poly1305.
    Implicit,
}

/// The other side's secrets are of a kind that is never negotiated here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the keys of the TLS handshake cannot be used")]
pub struct BadSecrets;

impl Key {
    fn new(
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
        is_tls13: bool,
    ) -> Result<Self, BadSecrets> {
        let (algorithm, key, iv, is_gcm) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv, true),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv, true),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (&CHACHA20_POLY1305, key, iv, false)
            }
            _ => return Err(BadSecrets),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| BadSecrets)?;
        let iv = iv.as_ref().try_into().map_err(|_| BadSecrets)?;
        Ok(Key {
            key: LessSafeKey::new(key),
            iv,
            sequence,
            form: match (is_tls13, is_gcm) {
                (true, _) => Form::Tls13,
                (false, true) => Form::Explicit,
                (false, false) => Form::Implicit,
            },
        })
    }

    /// The nonce of the next record: the sequence number, mixed with what only the two know.
    fn nonce(&self) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        let number = self.sequence.to_be_bytes();
        for (byte, number) in nonce.iter_mut().skip(NONCE_LEN - 8).zip(number) {
            *byte ^= number;
        }
        nonce
    }

    /// Returns the data that is authenticated beside a record of TLS 1.2.
    fn additional_data(&self, kind: u8, length: usize) -> [u8; 13] {
        let mut beside = [0; 13];
        let number = self.sequence.to_be_bytes();
        let length = (length as u16).to_be_bytes();
        let all = number.into_iter().chain([kind, 3, 3]).chain(length);
        beside.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        beside
    }
}

/// Encrypts what is sent.
pub struct Sealer(Key);

/// Decrypts what arrives.
pub struct Opener(Key);

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

impl Sealer {
    /// Returns a sealer with the secrets of a handshake.
    ///
    /// # Errors
    ///
    /// The secrets are of a suite that is not supported.
    pub fn new(
        secrets: (u64, ConnectionTrafficSecrets),
        is_tls13: bool,
    ) -> Result<Self, BadSecrets> {
        Key::new(secrets, is_tls13).map(Sealer)
    }

    /// True if so many records were sent that it is time for another key.
    pub fn is_worn(&self) -> bool {
        self.0.sequence >= MAX_SEALED
    }

    /// Appends to `out` a record with at most [`MAX_PLAIN`] bytes of `parts`, which are taken off
    /// `parts`. Returns the number of these bytes.
    ///
    /// # Errors
    ///
    /// [`Violation::Exhausted`]
    pub fn seal_record(
        &mut self,
        kind: Kind,
        parts: &mut Parts<'_, '_>,
        out: &mut Vec<u8>,
    ) -> Result<usize, Violation> {
        let key = &mut self.0;
        // A record more is for saying that there will be another key, or the end.
        if key.sequence > MAX_SEALED + 1 {
            return Err(Violation::Exhausted);
        }
        let nonce = key.nonce();
        let start = out.len();
        let outer = match key.form {
            Form::Tls13 => Kind::Data,
            _ => kind,
        };
        out.extend_from_slice(&[outer.byte(), 3, 3, 0, 0]);
        if key.form == Form::Explicit {
            out.extend(nonce.iter().skip(NONCE_LEN - EXPLICIT_NONCE_BYTES));
        }
        let content = out.len();
        let taken = parts.take(MAX_PLAIN, out);
        if key.form == Form::Tls13 {
            out.push(kind.byte());
        }
        let body = out.len() + TAG_BYTES - start - HEADER_BYTES;
        let [high, low] = (body as u16).to_be_bytes();
        if let Some([_, _, _, to_high, to_low, ..]) = out.get_mut(start..) {
            (*to_high, *to_low) = (high, low);
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let beside = key.additional_data(kind.byte(), taken);
        let header = [outer.byte(), 3, 3, high, low];
        let aad: &[u8] = match key.form {
            Form::Tls13 => &header,
            _ => &beside,
        };
        let plain = out.get_mut(content..).unwrap_or_default();
        let sealed = key
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(aad), plain);
        let tag = sealed.map_err(|_| Violation::Exhausted)?;
        out.extend_from_slice(tag.as_ref());
        key.sequence += 1;
        Ok(taken)
    }
}

impl Opener {
    /// Returns an opener for `secrets`, as [`Sealer::new`] returns a sealer.
    ///
    /// # Errors
    ///
    /// The errors of [`Sealer::new`].
    pub fn new(
        secrets: (u64, ConnectionTrafficSecrets),
        is_tls13: bool,
    ) -> Result<Self, BadSecrets> {
        Key::new(secrets, is_tls13).map(Opener)
    }

    /// Returns the number of bytes that are needed to open a whole record.
    pub fn plain_room(&self, record: &[u8]) -> usize {
        let around = HEADER_BYTES + TAG_BYTES + self.explicit_nonce_len();
        record.len().saturating_sub(around)
    }

    fn explicit_nonce_len(&self) -> usize {
        match self.0.form {
            Form::Explicit => EXPLICIT_NONCE_BYTES,
            _ => 0,
        }
    }

    /// Decrypts a whole `record` to the beginning of `out`, which has the [room](Self::plain_room) for
    /// it. Answers what it carries, and how many bytes.
    ///
    /// # Errors
    ///
    /// It is not what the other side has sent.
    pub fn open_record(
        &mut self,
        record: &[u8],
        out: &mut [u8],
    ) -> Result<(Kind, usize), Violation> {
        let key = &mut self.0;
        let (header, body) = record
            .split_at_checked(HEADER_BYTES)
            .ok_or(Violation::Header)?;
        let &[outer, ..] = header else {
            return Err(Violation::Header);
        };
        let mut nonce = key.nonce();
        let mut cipher = body;
        if key.form == Form::Explicit {
            let (explicit, rest) = body
                .split_at_checked(EXPLICIT_NONCE_BYTES)
                .ok_or(Violation::Decrypt)?;
            let end = nonce.iter_mut().skip(NONCE_LEN - EXPLICIT_NONCE_BYTES);
            // The beginning is the secret part, which no sequence number has changed.
            end.zip(explicit).for_each(|(to, from)| *to = *from);
            cipher = rest;
        }
        let plain = cipher
            .len()
            .checked_sub(TAG_BYTES)
            .ok_or(Violation::Decrypt)?;
        let (cipher, tag) = cipher.split_at_checked(plain).ok_or(Violation::Decrypt)?;
        let most = match key.form {
            // Its kind is one of the bytes.
            Form::Tls13 => MAX_PLAIN + 1,
            _ => MAX_PLAIN,
        };
        if plain > most || key.sequence == u64::MAX {
            return Err(Violation::Header);
        }
        let beside = key.additional_data(outer, plain);
        let aad = match key.form {
            Form::Tls13 => header,
            _ => &beside,
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let out = out.get_mut(..plain).ok_or(Violation::Decrypt)?;
        key.key
            .open_separate_gather(nonce, Aad::from(aad), cipher, tag, out)
            .map_err(|_| Violation::Decrypt)?;
        key.sequence += 1;
        if key.form != Form::Tls13 {
            let kind = Kind::from_byte(outer).ok_or(Violation::Unexpected)?;
            return Ok((kind, plain));
        }
        if outer != Kind::Data.byte() {
            return Err(Violation::Unexpected);
        }
        // The kind stands behind the content, and zeros may behind that.
        let last = out.iter().rposition(|byte| *byte != 0);
        let last = last.ok_or(Violation::Unexpected)?;
        let kind = out.get(last).and_then(|byte| Kind::from_byte(*byte));
        Ok((kind.ok_or(Violation::Unexpected)?, last))
    }
}

/// Bytes in several places that are taken from the front.
#[derive(Debug)]
pub struct Parts<'a, 'b> {
    parts: &'a [&'b [u8]],
    /// Bytes of the first part that were taken.
    taken: usize,
}

impl<'a, 'b> Parts<'a, 'b> {
    /// Returns all bytes of `parts`.
    pub fn new(parts: &'a [&'b [u8]]) -> Self {
        Parts { parts, taken: 0 }
    }

    /// True if all bytes were taken.
    pub fn is_empty(&self) -> bool {
        let first = self.parts.first().map_or(0, |part| part.len());
        first <= self.taken && self.parts.iter().skip(1).all(|part| part.is_empty())
    }

    /// Appends at most `most` bytes to `out`.
    fn take(&mut self, most: usize, out: &mut Vec<u8>) -> usize {
        let mut done = 0;
        while let [first, rest @ ..] = self.parts {
            let left = first.get(self.taken..).unwrap_or_default();
            let n = left.len().min(most - done);
            out.extend_from_slice(left.get(..n).unwrap_or_default());
            done += n;
            self.taken += n;
            if n < left.len() {
                break;
            }
            (self.parts, self.taken) = (rest, 0);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::cipher::{AeadKey, Iv};

    fn secrets(which: usize) -> ConnectionTrafficSecrets {
        let key = AeadKey::from([7; 32]);
        let iv = Iv::copy(&[9; 12]);
        match which {
            0 => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
            _ => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
        }
    }

    fn pair(which: usize, is_tls13: bool) -> (Sealer, Opener) {
        let sealer = Sealer::new((0, secrets(which)), is_tls13).unwrap();
        (sealer, Opener::new((0, secrets(which)), is_tls13).unwrap())
    }

    #[test]
    fn what_is_sealed_is_opened_and_nothing_else() {
        for (which, is_tls13) in [(0, false), (0, true), (1, false), (1, true)] {
            let (mut sealer, mut opener) = pair(which, is_tls13);
            let long = vec![5; 40_000];
            let parts = [&b"head"[..], &[], &long];
            let mut parts = Parts::new(&parts);
            let mut sent = Vec::new();
            while !parts.is_empty() {
                sealer
                    .seal_record(Kind::Data, &mut parts, &mut sent)
                    .unwrap();
            }
            sealer
                .seal_record(Kind::Alert, &mut Parts::new(&[&[1, 0]]), &mut sent)
                .unwrap();
            let (mut rest, mut got) = (&sent[..], Vec::new());
            let mut last = Kind::Data;
            while let Some(len) = record_length(rest).unwrap() {
                let mut out = vec![1; opener.plain_room(&rest[..len])];
                let (kind, n) = opener.open_record(&rest[..len], &mut out).unwrap();
                if kind == Kind::Data {
                    got.extend_from_slice(&out[..n]);
                } else {
                    assert_eq!(out[..n], [1, 0]);
                }
                (last, rest) = (kind, &rest[len..]);
            }
            assert_eq!((last, rest.len()), (Kind::Alert, 0));
            assert!(got.starts_with(b"head") && got.len() == 40_004);

            let (_, mut opener) = pair(which, is_tls13);
            let len = record_length(&sent).unwrap().unwrap();
            for at in [5, 14, len - 1] {
                let mut changed = sent[..len].to_vec();
                changed[at] ^= 1;
                let mut out = vec![0; MAX_RECORD];
                let opened = opener.open_record(&changed, &mut out);
                assert_eq!(opened, Err(Violation::Decrypt), "{at}");
            }
            // A record twice, or out of order, is another one.
            let mut out = vec![0; MAX_RECORD];
            opener.open_record(&sent[..len], &mut out).unwrap();
            assert!(opener.open_record(&sent[..len], &mut out).is_err());
        }
    }

    #[test]
    fn a_header_is_judged_as_soon_as_it_is_there() {
        assert_eq!(record_length(b""), Ok(None));
        assert_eq!(record_length(b"G"), Err(Violation::Header));
        assert_eq!(record_length(&[23, 3, 3, 0]), Ok(None));
        assert_eq!(record_length(&[23, 3, 3, 1, 2, 9]), Ok(Some(5 + 258)));
        assert_eq!(record_length(&[23, 3, 3, 0xff, 0]), Err(Violation::Header));
        assert_eq!(record_length(&[20, 3, 3, 0, 1]), Err(Violation::Header));
        assert_eq!(record_length(&[23, 2, 3, 0, 1]), Err(Violation::Header));
    }

    #[test]
    fn short_records_are_no_panic() {
        for (which, is_tls13) in [(0, false), (0, true), (1, false), (1, true)] {
            let (_, mut opener) = pair(which, is_tls13);
            for len in 0..40 {
                let mut record = vec![0; 5 + len];
                record[0] = 23;
                let mut out = vec![0; opener.plain_room(&record)];
                assert!(opener.open_record(&record, &mut out).is_err());
            }
        }
    }

    #[test]
    fn a_worn_key_seals_nothing_more() {
        let mut sealer = Sealer::new((MAX_SEALED - 1, secrets(0)), true).unwrap();
        let mut out = Vec::new();
        let mut seal = |sealer: &mut Sealer| {
            sealer.seal_record(Kind::Data, &mut Parts::new(&[b"x"]), &mut out)
        };
        assert!(!sealer.is_worn());
        assert!(seal(&mut sealer).is_ok() && sealer.is_worn());
        assert!(seal(&mut sealer).is_ok() && seal(&mut sealer).is_ok());
        assert_eq!(seal(&mut sealer), Err(Violation::Exhausted));
    }
}
