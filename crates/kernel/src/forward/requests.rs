//! Requests within connections, as `bpf/requests.bpf.h` counts them.

use std::time::Duration;

use super::layout::{Connection, Reader};

/// Binary logarithm of the unit of the program's clock of requests, in nanoseconds.
const UNIT: u32 = 12;

/// Bits of the number of requests in a word.
const COUNT_BITS: u32 = 20;

/// Units after which the beginning of a request in an entry of the table wraps: 4.9 hours.
const WRAP: u64 = 1 << 32;

/// Largest error of the time since a connection's last packet, in units: 4 s. The coarse clock is late by a tick and its
/// rounding, 11 ms at most; a round of the beginnings is hours.
const SILENCE_ERROR: u64 = 1 << 20;

/// Units for which the table may be read while requests come and go: 17 seconds.
const WHILE_READ: u64 = 1 << 22;

/// Flag of a connection with a request that counts as without an answer.
pub(super) const AWAITED: u32 = 256;

/// Requests without an answer: their number, and the sum of their beginnings. One word, so that the number always belongs
/// to the sum; sums are taken modulo, as `evenkeel_core` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Awaited(pub(super) u64);

impl Awaited {
    /// Number of the requests.
    pub fn count(self) -> u32 {
        (self.0 & ((1 << COUNT_BITS) - 1)) as u32
    }

    /// Returns the sum of the ages of the requests at `now_ns` of the machine's clock.
    pub fn sum_ages(self, now_ns: u64) -> Duration {
        let ages = u64::from(self.count()).wrapping_mul(now_ns >> UNIT);
        let ages = ages.wrapping_sub(self.0 >> COUNT_BITS) & (u64::MAX >> COUNT_BITS);
        // A request may have begun since the clock was read.
        let is_below = ages > u64::MAX >> (COUNT_BITS + 1);
        Duration::from_nanos(if is_below { 0 } else { ages << UNIT })
    }

    /// Adds the request of a connection of the table, if one is under way.
    pub fn add(&mut self, connection: &Connection, now_ns: u64) {
        if connection.is_open() && connection.age.has_flag(AWAITED) {
            let now = now_ns >> UNIT;
            let silence = connection.find_silence(now_ns);
            let silence = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX) >> UNIT;
            let age = (now as u32).wrapping_sub(connection.asked);
            let begun = match age.cast_signed() {
                // A request may have begun since the clock was read.
                below @ -1000..0 if silence < WRAP / 2 => {
                    now.wrapping_add(u64::from(below.unsigned_abs()))
                }
                // The entry has 32 bits. The request has begun with the last packet, or before.
                _ => {
                    let missing = silence.saturating_sub(u64::from(age) + SILENCE_ERROR);
                    now.wrapping_sub(u64::from(age) + missing.div_ceil(WRAP) * WRAP)
                }
            };
            self.0 = self.0.wrapping_add(begun << COUNT_BITS | 1);
        }
    }

    /// Returns the number to add to the program's word if its sum, unlike the one `found` in the table, is wrong by whole
    /// rounds of the 32 bits in which the table has beginnings: requests that took hours have ended. `None` if
    /// the sums differ by no more than requests that come and go while the table is read.
    pub fn correct_rounds(self, found: Awaited) -> Option<u64> {
        if self.count() != found.count() {
            return None;
        }
        // The numbers are equal, so the sums remain, in the upper bits.
        let difference = self.0.wrapping_sub(found.0).cast_signed() >> COUNT_BITS;
        let usual = WRAP / 2 + u64::from(self.count()) * WHILE_READ;
        if difference.unsigned_abs() <= usual {
            return None;
        }
        let rounds = (difference + WRAP.cast_signed() / 2).div_euclid(WRAP.cast_signed());
        let excess = rounds.wrapping_mul(WRAP.cast_signed()) << COUNT_BITS;
        Some(excess.wrapping_neg().cast_unsigned())
    }

    /// Returns the difference by which `counted` must change to be like this.
    pub fn correct(self, counted: Awaited) -> u64 {
        self.0.wrapping_sub(counted.0)
    }
}

/// Requests of a member, by the program's counts. Requests of connections whose sides do not speak in turn are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests without an answer.
    pub awaited: Awaited,
    /// Requests with an answer.
    pub answered: u64,
    /// Sum of their latencies, in the program's unit.
    pub(super) time: u64,
    /// Sum of the requests that each of them has found at the member.
    pub others: u64,
    /// The last one.
    pub(super) last: u64,
}

impl RequestCounts {
    pub(super) fn read(bytes: &mut Reader<'_>) -> Self {
        RequestCounts {
            awaited: Awaited(bytes.u64()),
            answered: bytes.u64(),
            time: bytes.u64(),
            others: bytes.u64(),
            last: bytes.u64(),
        }
    }

    #[cfg(test)]
    pub(super) fn list_words(&self) -> [u64; 5] {
        let awaited = self.awaited.0;
        [awaited, self.answered, self.time, self.others, self.last]
    }

    /// Returns the sum of the latencies of the requests with an answer.
    pub fn sum_latencies(&self) -> Duration {
        Duration::from_nanos(self.time.saturating_mul(1 << UNIT))
    }

    /// Returns the latency of the last request, with the requests that it has found at the member.
    pub fn read_last(&self) -> (Duration, u32) {
        let latency = (self.last & u64::from(u32::MAX)) << UNIT;
        (Duration::from_nanos(latency), (self.last >> 32) as u32)
    }
}
