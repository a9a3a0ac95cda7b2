//! Durations and sizes: a number and a unit.

use std::time::Duration;

/// Units of time and how many nanoseconds they have.
const TIME_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Units of size and how many bytes they have.
const SIZE_UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// A time as in `250ms` or `1.5h`; `None` if `text` is none, or too long a one.
pub fn parse_duration(text: &str) -> Option<Duration> {
    amount(text, &TIME_UNITS).map(Duration::from_nanos)
}

/// The number of bytes that `text` says, as in `64KiB`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    amount(text, &SIZE_UNITS)
}

/// A duration with the largest unit in which it is whole.
pub(crate) fn show_duration(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    in_largest_unit(nanos, &TIME_UNITS, "0s")
}

/// A size with the largest unit in which it is whole.
pub(crate) fn show_size(bytes: u64) -> String {
    in_largest_unit(bytes, &SIZE_UNITS, "0B")
}

/// Number of nanoseconds in a unit of time.
pub(crate) fn nanos_of(unit: &str) -> Option<u64> {
    let found = TIME_UNITS.iter().find(|(name, _)| *name == unit);
    found.map(|(_, nanos)| *nanos)
}

fn in_largest_unit(amount: u64, units: &[(&str, u64)], zero: &str) -> String {
    match units.iter().find(|(_, size)| amount.is_multiple_of(*size)) {
        Some((unit, size)) if amount > 0 => format!("{}{unit}", amount / size),
        _ => zero.into(),
    }
}

/// `text` as a number directly followed by one of `units`, in the smallest of them;
/// `None` if it is not, or too large.
fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = split_unit(text);
    let (_, size) = units.iter().find(|(name, _)| *name == unit)?;
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*size),
        Err(_) => {
            let amount = (number.parse::<f64>().ok()? * *size as f64).round();
            // 2^63 and more is no sensible time or size.
            (0.0..9.2e18).contains(&amount).then_some(amount as u64)
        }
    }
}

/// The number at the start of `text`, and the unit after it.
pub(crate) fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = text.strip_suffix(unit).unwrap_or_default();
    (number, unit.trim_start())
}
