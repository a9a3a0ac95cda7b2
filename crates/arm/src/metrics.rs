//! The data buffers of ARM 2.0.
//!
//! An application declares its metrics in the buffer of `arm_getid` (format 101) and
//! gives their values in those of `arm_start`, `arm_update` and `arm_stop` (format 1).
//! Two are understood, by name and type, in any of the first six places:
//!
//! | name | type | meaning |
//! |---|---|---|
//! | `Client` | NumericID64 or NumericID32 | who is served; equal for equal clients |
//! | `Queueing time (us)` | Gauge64 or Gauge32 | microseconds between arrival and service |

/// Bytes of a buffer of format 1 up to the end of the six numeric metrics.
const VALUES_LEN: usize = 8 + 6 * 8;
/// Bytes of one definition in a buffer of format 101.
const DEFINITION_LEN: usize = 4 + NAME_LEN;
const NAME_LEN: usize = 44;

const FORMAT_VALUES: i32 = 1;
const FORMAT_DEFINITIONS: i32 = 101;

const GAUGE32: i32 = 4;
const GAUGE64: i32 = 5;
const NUMERIC_ID32: i32 = 7;
const NUMERIC_ID64: i32 = 8;

const CLIENT: &[u8] = b"Client";
const QUEUEING_TIME: &[u8] = b"Queueing time (us)";

/// A longer wait, in nanoseconds, is no wait but garbage: a day.
const WAIT_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Places of the metrics of a class of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetricPositions {
    pub(crate) client: Option<MetricPosition>,
    pub(crate) wait: Option<MetricPosition>,
}

/// Place among the six numeric metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetricPosition {
    /// 0 to 5.
    index: u8,
    /// True if the metric has 64 bits, else 32.
    wide: bool,
}

/// Values that were given with a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) client: Option<u64>,
    /// Queueing time in nanoseconds.
    pub(crate) wait: Option<u64>,
}

impl MetricPositions {
    /// Reads the buffer of `arm_getid`. What is not understood is not declared.
    pub(crate) fn parse(buffer: &[u8]) -> Self {
        let mut places = Self::default();
        if int(buffer, 0) != Some(FORMAT_DEFINITIONS) {
            return places;
        }
        for index in 0..6u8 {
            let at = 8 + usize::from(index) * DEFINITION_LEN;
            let Some(kind) = int(buffer, at).filter(|_| is_set(buffer, index)) else {
                continue;
            };
            let Some(name) = buffer.get(at + 4..at + DEFINITION_LEN) else {
                continue;
            };
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let wide = matches!(kind, GAUGE64 | NUMERIC_ID64);
            let place = Some(MetricPosition { index, wide });
            match (kind, name) {
                (NUMERIC_ID32 | NUMERIC_ID64, CLIENT) => places.client = place,
                (GAUGE32 | GAUGE64, QUEUEING_TIME) => places.wait = place,
                _ => {}
            }
        }
        places
    }

    /// Reads the buffer of a transaction.
    #[inline]
    pub(crate) fn values(self, buffer: &[u8]) -> Values {
        let Some(buffer) = buffer.first_chunk::<VALUES_LEN>() else {
            return Values::default();
        };
        if int(buffer, 0) != Some(FORMAT_VALUES) {
            return Values::default();
        }
        let wait = self.wait.and_then(|place| place.read(buffer));
        let wait = wait.and_then(|micros| micros.checked_mul(1000));
        Values {
            client: self.client.and_then(|place| place.read(buffer)),
            wait: wait.filter(|nanos| *nanos <= WAIT_MAX),
        }
    }

    /// Packs the places in ten bits; [`Self::unpack`] understands them.
    pub(crate) fn pack(self) -> u64 {
        let pack = |place: Option<MetricPosition>| {
            place.map_or(0, |place| {
                u64::from(place.index + 1) << 1 | u64::from(place.wide)
            })
        };
        pack(self.client) << 5 | pack(self.wait)
    }

    #[inline]
    pub(crate) fn unpack(packed: u64) -> Self {
        let unpack = |packed: u64| {
            let index = (packed >> 1 & 0xf).checked_sub(1)? as u8;
            let wide = packed & 1 == 1;
            Some(MetricPosition { index, wide })
        };
        Self {
            client: unpack(packed >> 5),
            wait: unpack(packed),
        }
    }
}

impl MetricPosition {
    #[inline]
    fn read(self, buffer: &[u8; VALUES_LEN]) -> Option<u64> {
        if buffer[5] & 0x80 >> self.index == 0 {
            return None;
        }
        let value = buffer.get(8 + usize::from(self.index) * 8..)?;
        Some(if self.wide {
            u64::from_ne_bytes(*value.first_chunk()?)
        } else {
            u32::from_ne_bytes(*value.first_chunk()?).into()
        })
    }
}

/// Returns true if a metric is declared. The highest bit of the second byte of flags is the
/// first metric's, as in values; the first byte, which has no other meaning in definitions, is
/// taken for the same.
fn is_set(buffer: &[u8], index: u8) -> bool {
    let flags = buffer.get(4).copied().unwrap_or(0) | buffer.get(5).copied().unwrap_or(0);
    flags & 0x80 >> index != 0
}

#[inline]
fn int(buffer: &[u8], at: usize) -> Option<i32> {
    let bytes = buffer.get(at..)?.first_chunk()?;
    Some(i32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions(metrics: &[(i32, &str)]) -> Vec<u8> {
        let mut buffer = FORMAT_DEFINITIONS.to_ne_bytes().to_vec();
        buffer.extend([0, !(0xff >> metrics.len()), 0, 0]);
        for (kind, name) in metrics {
            buffer.extend(kind.to_ne_bytes());
            let mut field = [0; NAME_LEN];
            field[..name.len()].copy_from_slice(name.as_bytes());
            buffer.extend(field);
        }
        buffer
    }

    fn values(flags: u8, values: [u64; 6]) -> Vec<u8> {
        let mut buffer = FORMAT_VALUES.to_ne_bytes().to_vec();
        buffer.extend([0, flags, 0, 0]);
        buffer.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        buffer
    }

    #[test]
    fn metrics_are_found_by_name_and_type() {
        let places = MetricPositions::parse(&definitions(&[
            (2, "Bytes"),
            (GAUGE64, "Queueing time (us)"),
            (GAUGE64, "Client"),
            (NUMERIC_ID32, "Client"),
        ]));
        assert_eq!(MetricPositions::unpack(places.pack()), places);
        let buffer = values(0xff, [1, 250, 3, 0x1_0000_0004, 5, 6]);
        let expected = Values {
            client: Some(4),
            wait: Some(250_000),
        };
        assert_eq!(places.values(&buffer), expected);
        // Not valid this time.
        assert_eq!(places.values(&values(0x10, [9; 6])).wait, None);
        assert_eq!(places.values(&values(0x40, [9; 6])).client, None);
    }

    #[test]
    fn a_buffer_that_is_cut_or_of_another_format_says_nothing() {
        let whole = definitions(&[(NUMERIC_ID64, "Client")]);
        let places = MetricPositions::parse(&whole);
        assert!(places.client.is_some());
        for len in 0..whole.len() {
            assert_eq!(
                MetricPositions::parse(&whole[..len]),
                MetricPositions::default(),
                "{len}"
            );
        }
        let buffer = values(0x80, [7; 6]);
        assert_eq!(places.values(&buffer).client, Some(7));
        for len in 0..VALUES_LEN {
            assert_eq!(places.values(&buffer[..len]), Values::default(), "{len}");
        }
        let other = [&2i32.to_ne_bytes(), &buffer[4..]].concat();
        assert_eq!(places.values(&other), Values::default());
        assert_eq!(
            MetricPositions::default().values(&buffer),
            Values::default()
        );
    }

    #[test]
    fn absurd_waits_are_not_believed() {
        let places = MetricPositions::parse(&definitions(&[(GAUGE64, "Queueing time (us)")]));
        for wait in [u64::MAX, u64::MAX / 1000, WAIT_MAX / 1000 + 1] {
            assert_eq!(places.values(&values(0x80, [wait; 6])).wait, None);
        }
    }
}
