//! Names of requests, by which clients, members and the access log mean the same one.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest name that is taken from a client, in bytes.
const MAX_BYTES: usize = 128;

/// The name that a client gives its request, if it is one: 1 to 128 letters, digits and a few signs.
pub(crate) fn parse_id(value: &[u8]) -> Option<&str> {
    let is_safe = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(&byte);
    let fits = (1..=MAX_BYTES).contains(&value.len()) && value.iter().all(is_safe);
    std::str::from_utf8(value).ok().filter(|_| fits)
}

/// A new name: a UUID of version 7 (RFC 9562, section 5.7), whose order is that of time.
pub(crate) fn new(at: SystemTime, rng: &mut fastrand::Rng) -> Box<str> {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let millis = since.as_millis() as u64 & 0xffff_ffff_ffff;
    let (high, low) = (rng.u64(..), rng.u64(..));
    let first = millis << 16 | 0x7000 | high & 0x0fff;
    let second = low >> 2 | 1 << 63;
    let mut text = String::with_capacity(36);
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        first >> 32,
        first >> 16 & 0xffff,
        first & 0xffff,
        second >> 48,
        second & 0xffff_ffff_ffff
    );
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_names_are_taken() {
        let long = "x".repeat(MAX_BYTES);
        for good in ["a", "0198-af:b/c+d=@e~f_g.h", &long] {
            assert_eq!(parse_id(good.as_bytes()), Some(good));
        }
        let longer = "x".repeat(MAX_BYTES + 1);
        for bad in [
            "", "a b", "a\"", "a\\", "a\u{7f}", "ä", "a;b", "a,b", &longer,
        ] {
            assert_eq!(parse_id(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn new_names_are_uuids_in_the_order_of_time() {
        let mut rng = fastrand::Rng::with_seed(1);
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let first = new(at(0x0198_1234_5678), &mut rng);
        assert!(first.starts_with("01981234-5678-7"), "{first}");
        let parts: Vec<usize> = first.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert!(matches!(first.as_bytes()[19], b'8'..=b'b'), "{first}");
        assert_eq!(parse_id(first.as_bytes()), Some(&*first));
        assert_ne!(new(at(0x0198_1234_5678), &mut rng), first);
        assert!(new(at(0x0198_1234_5679), &mut rng) > first);
        new(UNIX_EPOCH - Duration::from_secs(1), &mut rng);
    }
}
