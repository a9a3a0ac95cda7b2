//! Layout of a page.
//!
//! A page is written by all processes of an application at once and read by an agent of
//! another process. Everything that changes is a 64-bit atomic. What every transaction
//! touches is spread over [`Lane`]s, one for a thread as far as they last, so that
//! threads do not wait for each other's cache lines; only [`Pulse`] is common to all.

use std::mem::{offset_of, size_of};
use std::sync::atomic::AtomicU64;

/// `EVKL ARM` in memory, on the machines that are little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"EVKL ARM");
/// Counts layouts. A page of another version is replaced by the library and refused by
/// the agent.
pub(crate) const VERSION: u64 = 1;

/// Longest name of an application, in bytes; ARM 2.0 has 128 with the closing zero.
pub(crate) const NAME_MAX: usize = 127;

/// Lane 0 is for those who find no lane of their own.
pub(crate) const LANES: usize = 512;
/// Clients whose last stop is remembered.
pub(crate) const CLIENTS: usize = 8192;

/// Buckets of a response time histogram.
pub(crate) const BUCKETS: usize = 112;

/// Transactions that one process can have in flight.
pub(crate) const IN_FLIGHT_MAX: usize = 1 << 14;

/// The whole file.
#[repr(C, align(4096))]
pub(crate) struct Page {
    pub(crate) header: Header,
    pub(crate) lanes: [Lane; LANES],
    /// Times of the clients' last responses; see `counting.rs`.
    pub(crate) clients: [AtomicU64; CLIENTS],
}

/// Fields that are written once, and fields that change rarely.
#[repr(C, align(4096))]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    /// Tells a page from the one that was at its path before; never 0.
    pub(crate) epoch: AtomicU64,
    /// A digest of the machine's boot id: monotonic times of another boot mean nothing.
    pub(crate) boot: AtomicU64,
    pub(crate) name_len: AtomicU64,
    pub(crate) name: [AtomicU64; NAME_MAX.div_ceil(8)],
    pub(crate) rare: Rare,
    pub(crate) pulse: Pulse,
}

/// Changes when a process or thread comes or goes.
#[repr(C, align(128))]
pub(crate) struct Rare {
    /// Lanes that were ever in use are those before this one.
    pub(crate) lanes_used: AtomicU64,
    /// Calls of `arm_init` and `arm_end`.
    pub(crate) inits: AtomicU64,
    pub(crate) ends: AtomicU64,
}

/// Fields that every request reads or changes, in one cache line: above all, the word that says
/// if something is in flight.
#[repr(C, align(128))]
pub(crate) struct Pulse {
    /// End of the load alert, in nanoseconds of `CLOCK_MONOTONIC`; 0 if there is none. Written
    /// by the agent only.
    pub(crate) alert_until: AtomicU64,
    /// Scatters the clients over their table; the same as the epoch.
    pub(crate) key: AtomicU64,
    /// Transactions in flight (low [`COUNT_BITS`], with [`COUNT_BIAS`] added) and, above
    /// that, how many were ever started: one addition changes both, so that a
    /// transaction that finds at its stop what it left at its start was alone.
    pub(crate) word: AtomicU64,
    /// Since when something is in flight; 0 if nothing is.
    pub(crate) busy_since: AtomicU64,
    /// Nanoseconds with something in flight, up to `busy_since`.
    pub(crate) busy: AtomicU64,
}

/// Bits of [`Pulse::word`] that count what is in flight.
pub(crate) const COUNT_BITS: u32 = 24;
/// Nothing in flight. In the middle, so that a miscount of one (a process may be killed
/// between any two instructions) never spills over into the number of starts.
pub(crate) const COUNT_BIAS: u64 = 1 << (COUNT_BITS - 1);

/// Counters of a thread, or of all that found no other lane.
#[repr(C, align(128))]
pub(crate) struct Lane {
    /// Process id (high half) and the low half of its start time in clock ticks since
    /// boot; 0 if nobody's. Together they are never the same for two processes.
    pub(crate) owner: AtomicU64,
    /// Inode of the owner's PID namespace: elsewhere its process id means nothing.
    pub(crate) namespace: AtomicU64,
    /// `arm_init` less `arm_end`, by the owner.
    pub(crate) instances: AtomicU64,
    // Stops before starts: who copies upwards does not see more stops than starts.
    pub(crate) aborted: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Never stopped: their process died, ended the application, or forgot them.
    pub(crate) lost: AtomicU64,
    /// All times are in nanoseconds.
    pub(crate) waits: AtomicU64,
    pub(crate) waiting_time: AtomicU64,
    // From here on, a cache line of what most transactions change.
    pub(crate) good: AtomicU64,
    pub(crate) starts: AtomicU64,
    pub(crate) response_time: AtomicU64,
    pub(crate) alone: AtomicU64,
    pub(crate) alone_time: AtomicU64,
    pub(crate) thinks: AtomicU64,
    pub(crate) think_time: AtomicU64,
    pub(crate) spare: AtomicU64,
    /// Response times: see [`bucket_index`].
    pub(crate) histogram: [AtomicU64; BUCKETS],
}

pub(crate) const SIZE: usize = size_of::<Page>();
pub(crate) const LANE_SIZE: usize = size_of::<Lane>();
pub(crate) const LANES_AT: usize = offset_of!(Page, lanes);
pub(crate) const HEADER_LEN: usize = offset_of!(Header, pulse) + size_of::<Pulse>();

const _: () = assert!(LANE_SIZE == 1024 && LANES_AT == 4096 && SIZE <= 1 << 20);
const _: () = assert!(offset_of!(Lane, good) == 64 && offset_of!(Lane, histogram) == 128);

/// Four buckets per doubling, from 2^[`FLOOR_BITS`] nanoseconds: a bound is at most a quarter
/// above the one before it.
const PER_DOUBLING: u32 = 4;
/// Bits of the first bucket's upper end: 1,024 ns.
const FLOOR_BITS: u32 = 10;

/// The bucket of a time: the first holds all below 1.024 us, the last all from 4 minutes.
pub(crate) fn bucket_index(nanos: u64) -> usize {
    let bits = nanos.checked_ilog2().unwrap_or(0);
    if bits < FLOOR_BITS {
        return 0;
    }
    // The two bits below the highest one.
    let quarter = (nanos >> (bits - 2)) & 3;
    let index = (bits - FLOOR_BITS) * PER_DOUBLING + quarter as u32 + 1;
    (index as usize).min(BUCKETS - 1)
}

/// Returns the start of a bucket, in nanoseconds.
pub(crate) fn bucket_start(bucket: usize) -> u64 {
    let Some(above) = (bucket as u32).checked_sub(1) else {
        return 0;
    };
    let (doubling, quarter) = (above / PER_DOUBLING, above % PER_DOUBLING);
    u64::from(PER_DOUBLING + quarter) << (FLOOR_BITS - 2 + doubling)
}

/// A 64-bit digest of some bytes (FNV-1a, with a final mix), for names of files and keys
/// of tables: nobody gains by making two alike.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for &byte in bytes {
        digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    mix(digest)
}

/// Spreads a word over all bits of another (the finalizer of MurmurHash3).
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_where_their_starts_say() {
        for index in 0..BUCKETS {
            let start = bucket_start(index);
            assert_eq!(bucket_index(start), index);
            if index > 0 {
                assert_eq!(bucket_index(start - 1), index - 1);
            }
            if index > 1 {
                assert!(start <= bucket_start(index - 1) / 4 * 5);
            }
        }
        assert_eq!(bucket_index(u64::MAX), BUCKETS - 1);
    }
}
