//! The keys of session tickets: of our own, with a new one every hour, or from a file that several
//! balancers share.
//!
//! A ticket is the state of a session, encrypted (AES-256-GCM). What it is bound to is
//! authenticated with it: a ticket of one rule, or from before its client certificates came from
//! another authority, is of no use at another. A ticket also says when the full handshake was and when
//! the client's certificates expire. A session that is resumed hands both on, so that however often it is
//! resumed, it ends.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{digest, rand};
use rustls::server::ProducesTickets;

use crate::certificate::{CertificateError, unix_now};

/// Time for which a key of our own encrypts, in seconds.
const ROTATION: i64 = 3600;

/// Older keys of our own that still decrypt.
const KEPT: usize = 12;

/// Time for which clients may resume a session after its full handshake, in seconds.
const LIFETIME: u32 = 12 * 3600;

/// Form of what is sealed: a ticket of another form cannot be opened.
const FORM: &[u8] = b"evenkeel ticket with a span";

/// Beginning of a session, and its latest end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Time of the full handshake, in seconds since 1970.
    begun: i64,
    /// The earliest end of the client's certificates, in seconds since 1970.
    until: i64,
}

impl Span {
    /// Length in a ticket.
    const BYTES: usize = 16;

    /// Span of a session that begins now and ends with `until`.
    pub(crate) fn new(until: i64) -> Self {
        let begun = unix_now();
        Span { begun, until }
    }

    #[cfg(test)]
    pub(crate) fn until(self) -> i64 {
        self.until
    }

    /// True if the session may be resumed at `now`.
    fn allows_resumption(self, now: i64) -> bool {
        now <= self.until && now.saturating_sub(self.begun) <= i64::from(LIFETIME)
    }

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let both = (i128::from(self.begun) << 64) | i128::from(self.until.cast_unsigned());
        both.to_be_bytes()
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let both = i128::from_be_bytes(bytes);
        Span {
            begun: (both >> 64) as i64,
            until: both as i64,
        }
    }
}

thread_local! {
    /// Span of the session whose handshake goes on now: rustls tells those who make tickets nothing of it.
    static SPAN: Cell<Option<Span>> = const { Cell::new(None) };
}

/// Does a step of the handshake of a session with this span, which the step may set.
pub(crate) fn with_span<T>(span: &mut Option<Span>, step: impl FnOnce() -> T) -> T {
    SPAN.set(*span);
    let result = step();
    *span = SPAN.take();
    result
}

/// Sets the span of the session whose handshake goes on now.
pub(crate) fn set_span(span: Span) {
    SPAN.set(Some(span));
}

const NAME_BYTES: usize = 16;
const TAG_BYTES: usize = 16;

/// Most keys in a file.
const MAX_KEYS: usize = 64;

/// A key and its name, by which a ticket says which one it needs.
struct Key {
    name: [u8; NAME_BYTES],
    secret: [u8; 32],
    key: LessSafeKey,
}

/// Keys of our own, for a process that takes the place of this one.
#[derive(Default, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Secrets {
    /// The first one encrypts.
    keys: Vec<[u8; 32]>,
    /// Time at which the first key is too old, in seconds since 1970.
    until: i64,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl Key {
    fn new(secret: [u8; 32]) -> Option<Self> {
        let digest = digest::digest(
            &digest::SHA256,
            &[&b"evenkeel ticket"[..], &secret].concat(),
        );
        let name = digest.as_ref().first_chunk().copied()?;
        let key = UnboundKey::new(&AES_256_GCM, &secret).ok()?;
        let key = LessSafeKey::new(key);
        Some(Key { name, secret, key })
    }
}

/// Keys of tickets: the first one encrypts.
pub struct Keys {
    keys: ArcSwap<Vec<Arc<Key>>>,
    /// Time at which the first key is too old, in seconds since 1970; keys of a file never are.
    until: AtomicI64,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Keys {
    /// Keys of our own. The first one is made when it is needed.
    pub fn new_rotating() -> Self {
        Keys {
            keys: ArcSwap::default(),
            until: AtomicI64::new(0),
        }
    }

    /// The keys, for another process.
    pub fn secrets(&self) -> Secrets {
        Secrets {
            keys: self.keys.load().iter().map(|key| key.secret).collect(),
            until: self.until.load(Ordering::Acquire),
        }
    }

    /// Goes on with the keys of another process, whose tickets are good here then.
    pub fn take_over(&self, secrets: &Secrets) {
        let keys = secrets.keys.iter().take(KEPT + 1);
        let keys: Option<Vec<_>> = keys.map(|secret| Key::new(*secret).map(Arc::new)).collect();
        if let Some(keys) = keys.filter(|keys| !keys.is_empty()) {
            self.keys.store(Arc::new(keys));
            self.until.store(secrets.until, Ordering::Release);
        }
    }

    /// Returns the keys of a file: a line each, of 64 hexadecimal digits.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, CertificateError> {
        let wrong = |number: usize| {
            let what = "a key is 64 hexadecimal digits (openssl rand -hex 32)";
            CertificateError::Content(format!("line {number}: {what}"))
        };
        let text = std::str::from_utf8(text).map_err(|_| wrong(1))?;
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let secret = hex(line).ok_or_else(|| wrong(index + 1))?;
            let key = Key::new(secret).ok_or_else(|| wrong(index + 1))?;
            keys.push(Arc::new(key));
        }
        match keys.len() {
            0 => Err(CertificateError::Lacks("key")),
            1..=MAX_KEYS => Ok(Keys {
                keys: ArcSwap::from_pointee(keys),
                until: AtomicI64::new(i64::MAX),
            }),
            _ => Err(CertificateError::Content(format!(
                "holds more than {MAX_KEYS} keys"
            ))),
        }
    }

    /// The key that encrypts at `now`, perhaps a new one.
    fn current_key(&self, now: i64) -> Option<Arc<Key>> {
        let until = self.until.load(Ordering::Acquire);
        if now >= until {
            // Whoever comes first makes the key; the others use the old one until it is there.
            let next = now.saturating_add(ROTATION);
            let order = (Ordering::AcqRel, Ordering::Acquire);
            let mine = self
                .until
                .compare_exchange(until, next, order.0, order.1)
                .is_ok();
            if mine && let Some(key) = random_bytes().and_then(Key::new) {
                let key = Arc::new(key);
                self.keys.rcu(|old| {
                    let kept = old.iter().take(KEPT).cloned();
                    std::iter::once(Arc::clone(&key))
                        .chain(kept)
                        .collect::<Vec<_>>()
                });
            }
        }
        self.keys.load().first().cloned()
    }

    fn find_key(&self, name: &[u8]) -> Option<Arc<Key>> {
        let keys = self.keys.load();
        keys.iter().find(|key| key.name == name).cloned()
    }
}

fn hex(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        let pair = digits.get(2 * index..2 * index + 2)?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}

/// Makes and reads the tickets of one rule.
pub(crate) struct Tickets {
    keys: Arc<Keys>,
    /// Digest of all that the sessions of the tickets depend on.
    bound_to: [u8; 32],
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

impl Tickets {
    /// Tickets that are good wherever the same `parts` count.
    pub(crate) fn new(keys: Arc<Keys>, parts: &[&[u8]]) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(FORM);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let bound_to = context.finish();
        let bound_to = bound_to.as_ref().first_chunk().copied();
        Tickets {
            keys,
            bound_to: bound_to.unwrap_or_default(),
        }
    }

    /// Seals a session at `now`, which began then if no span of it is known.
    fn seal_session(&self, plain: &[u8], now: i64) -> Option<Vec<u8>> {
        let span = SPAN.get().unwrap_or(Span {
            begun: now,
            until: i64::MAX,
        });
        let key = self.keys.current_key(now)?;
        let nonce: [u8; NONCE_LEN] = random_bytes()?;
        let around = NAME_BYTES + NONCE_LEN + Span::BYTES + TAG_BYTES;
        let mut ticket = Vec::with_capacity(around + plain.len());
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        let start = ticket.len();
        ticket.extend_from_slice(&span.to_bytes());
        ticket.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(self.bound_to);
        let content = ticket.get_mut(start..)?;
        let tag = key.key.seal_in_place_separate_tag(nonce, aad, content);
        ticket.extend_from_slice(tag.ok()?.as_ref());
        Some(ticket)
    }

    /// Opens a ticket at `now`, if its session has not ended by then; its span is that of the handshake.
    fn open_ticket(&self, ticket: &[u8], now: i64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let key = self.keys.find_key(name)?;
        let mut plain = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let aad = Aad::from(self.bound_to);
        let length = key.key.open_in_place(nonce, aad, &mut plain).ok()?.len();
        plain.truncate(length);
        let span = plain.first_chunk().copied().map(Span::from_bytes)?;
        if !span.allows_resumption(now) {
            return None;
        }
        set_span(span);
        plain.drain(..Span::BYTES);
        Some(plain)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal_session(plain, unix_now())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open_ticket(cipher, unix_now())
    }
}

/// Bytes that nobody can guess, if there are any to be had.
fn random_bytes<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_for_what_it_is_bound_to() {
        let keys = Arc::new(Keys::new_rotating());
        let web = Tickets::new(Arc::clone(&keys), &[b"web", b""]);
        let ticket = web.encrypt(b"session").unwrap();
        assert_eq!(web.decrypt(&ticket).unwrap(), b"session");
        let other = Tickets::new(Arc::clone(&keys), &[b"web", b"authority"]);
        assert_eq!(other.decrypt(&ticket), None);
        // Where one part ends and the next one begins counts, too.
        let shifted = Tickets::new(keys, &[b"we", b"b"]);
        assert_eq!(shifted.decrypt(&ticket), None);
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(web.decrypt(&changed), None, "{at}");
            assert_eq!(web.decrypt(&ticket[..at]), None, "{at}");
        }
    }

    #[test]
    fn tickets_of_the_process_before_are_good() {
        let before = Arc::new(Keys::new_rotating());
        let tickets = Tickets::new(Arc::clone(&before), &[]);
        let old = tickets.seal_session(b"old", 1000).unwrap();
        let new = tickets.seal_session(b"new", 1000 + ROTATION).unwrap();
        let text = serde_json::to_string(&before.secrets()).unwrap();
        let after = Arc::new(Keys::new_rotating());
        after.take_over(&serde_json::from_str(&text).unwrap());
        let tickets = Tickets::new(Arc::clone(&after), &[]);
        let open = |ticket: &[u8]| tickets.open_ticket(ticket, 1000 + ROTATION);
        assert_eq!(open(&old).unwrap(), b"old");
        assert_eq!(open(&new).unwrap(), b"new");
        // The same key goes on, as long as it would have.
        let again = tickets.seal_session(b"x", 1000 + 2 * ROTATION - 1).unwrap();
        assert_eq!(again[..NAME_BYTES], new[..NAME_BYTES]);
        let next = tickets.seal_session(b"x", 1000 + 2 * ROTATION).unwrap();
        assert_ne!(next[..NAME_BYTES], new[..NAME_BYTES]);
        // Nothing of it is seen in a log, and none changes nothing.
        assert_eq!(format!("{:?}", before.secrets()), "Secrets { .. }");
        after.take_over(&Secrets::default());
        assert!(open(&old).is_some());
    }

    #[test]
    fn n2_a_session_ends_with_its_certificates_and_some_hours_after_its_full_handshake() {
        let tickets = Tickets::new(Arc::new(Keys::new_rotating()), &[]);
        let lifetime = i64::from(LIFETIME);
        for (until, end) in [(i64::MAX, 1000 + lifetime), (5000, 5000), (0, 0)] {
            let mut session = Some(Span { begun: 1000, until });
            let seal =
                |span: &mut _, now| with_span(span, || tickets.seal_session(b"x", now)).unwrap();
            let mut ticket = seal(&mut session, 1000);
            // A client that comes again and again gets a new ticket each time, and no new time.
            for now in [1000, end - 1, end] {
                if now > end {
                    continue;
                }
                let mut resumed = None;
                let opened = with_span(&mut resumed, || tickets.open_ticket(&ticket, now));
                assert_eq!(opened.as_deref(), Some(&b"x"[..]), "{until} {now}");
                assert_eq!(resumed, session);
                ticket = seal(&mut resumed, now);
            }
            let mut other = None;
            let opened = with_span(&mut other, || tickets.open_ticket(&ticket, end + 1));
            assert_eq!((opened, other), (None, None), "{until}");
        }
        // Without a span a session begins with its ticket.
        let mut none = None;
        let ticket = with_span(&mut none, || tickets.seal_session(b"x", 7)).unwrap();
        assert!(tickets.open_ticket(&ticket, 7 + lifetime).is_some());
        assert!(tickets.open_ticket(&ticket, 8 + lifetime).is_none());
        for span in [(i64::MIN, i64::MAX), (-1, -1), (0, i64::MIN), (7, 9)] {
            let (begun, until) = span;
            let span = Span { begun, until };
            assert_eq!(Span::from_bytes(span.to_bytes()), span);
        }
        SPAN.set(None);
    }

    #[test]
    fn keys_of_our_own_rotate_and_old_ones_go() {
        let tickets = Tickets::new(Arc::new(Keys::new_rotating()), &[]);
        let first = tickets.seal_session(b"x", 1000).unwrap();
        let again = tickets.seal_session(b"x", 1000 + ROTATION - 1).unwrap();
        assert_eq!(first[..NAME_BYTES], again[..NAME_BYTES]);
        let mut now = 1000;
        for round in 1..=KEPT + 1 {
            now += ROTATION;
            let next = tickets.seal_session(b"x", now).unwrap();
            assert_ne!(first[..NAME_BYTES], next[..NAME_BYTES]);
            let opened = tickets.open_ticket(&first, now.min(1000 + i64::from(LIFETIME)));
            assert_eq!(opened.is_some(), round <= KEPT, "{round}");
            SPAN.set(None);
        }
    }

    #[test]
    fn the_first_key_of_a_file_encrypts_and_all_decrypt() {
        let (one, two) = ("0".repeat(64), "aB".repeat(32));
        let keys = |text: String| Arc::new(Keys::parse(text.as_bytes()).unwrap());
        let old = Tickets::new(keys(one.clone()), &[]);
        let new = Tickets::new(keys(format!("# new\n{two}\n\n {one} \n")), &[]);
        let ticket = old.encrypt(b"session").unwrap();
        assert_eq!(new.decrypt(&ticket).unwrap(), b"session");
        assert_eq!(old.decrypt(&new.encrypt(b"session").unwrap()), None);
        for text in [
            "",
            "# nothing",
            "00",
            &"g".repeat(64),
            &format!("{one}\n{}", &one[2..]),
        ] {
            assert!(Keys::parse(text.as_bytes()).is_err(), "{text:?}");
        }
        let error = Keys::parse(format!("{one}\nx").as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("line 2: a key is 64"));
    }
}
