//! Clients that ask more often than one client would.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use evenkeel_core::time::Instant;

/// Number of times that a client may ask within a quantum. More than once: a browser asks for each of its
/// redirects, several clients may share an address, and a client may have lost its server.
const PER_QUANTUM: f32 = 8.0;

/// Number of sets of [`WAYS`] addresses that are remembered: 64 KiB.
const SETS: usize = 512;
const WAYS: usize = 4;

/// A bucket of tokens for each client address that asked lately (for IPv6, each network of 64
/// bits). Of a fixed size: where too many ask, those are forgotten that have not for longest,
/// and begin with a full one.
#[derive(Debug)]
pub(super) struct Clients {
    hasher: RandomState,
    sets: Box<[[Bucket; WAYS]]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Hash of the address; 0 is none.
    client: u64,
    at: Instant,
    tokens: f32,
}

impl Clients {
    pub(super) fn new() -> Self {
        Clients {
            hasher: RandomState::new(),
            sets: vec![[Bucket::default(); WAYS]; SETS].into_boxed_slice(),
        }
    }

    /// True if `client` asks no oftener than a client that keeps each answer for a `quantum`.
    pub(super) fn may_ask(&mut self, client: IpAddr, quantum: Duration, now: Instant) -> bool {
        let network = match client {
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits() >> 64 << 64,
        };
        let hash = self.hasher.hash_one(network) | 1;
        let set = (hash >> 32) as usize % SETS;
        let Some(set) = self.sets.get_mut(set) else {
            return true;
        };
        // Its own, or else the oldest.
        let place = |bucket: &&mut Bucket| (bucket.client != hash).then_some(bucket.at);
        let Some(bucket) = set.iter_mut().min_by_key(place) else {
            return true;
        };
        if bucket.client != hash {
            *bucket = Bucket {
                client: hash,
                at: now,
                tokens: PER_QUANTUM,
            };
        }
        let passed = now.since(bucket.at).as_secs_f32();
        let per_second = PER_QUANTUM / quantum.as_secs_f32().max(1.0);
        bucket.tokens = (bucket.tokens + passed * per_second).min(PER_QUANTUM);
        bucket.at = now;
        let may = bucket.tokens >= 1.0;
        if may {
            bucket.tokens -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: Duration = Duration::from_secs(8);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn s23_a_client_is_believed_so_often_in_a_quantum() {
        let mut clients = Clients::new();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let believed = (0..100).filter(|_| clients.may_ask(one, QUANTUM, at(1000)));
        assert_eq!(believed.count(), 8);
        assert!(clients.may_ask(other, QUANTUM, at(1000)));
        // One more for each second.
        let believed = (0..100).filter(|_| clients.may_ask(one, QUANTUM, at(3000)));
        assert_eq!(believed.count(), 2);
        let believed = (0..100).filter(|_| clients.may_ask(one, QUANTUM, at(60_000)));
        assert_eq!(believed.count(), 8);
        // All addresses of a network are one client.
        let of_network = (0..100u16).filter(|&last| {
            let ip = IpAddr::from([0x2001, 0xdb8, 0, 0, last, 0, 0, last]);
            clients.may_ask(ip, QUANTUM, at(1000))
        });
        assert_eq!(of_network.count(), 8);
    }

    #[test]
    fn s23_so_many_clients_are_remembered_and_no_more() {
        let mut clients = Clients::new();
        for number in 0..100_000u32 {
            let ip = IpAddr::V4(number.into());
            assert!(clients.may_ask(ip, QUANTUM, at(u64::from(number))));
        }
        assert!(size_of_val(&*clients.sets) <= 64 * 1024);
    }
}
