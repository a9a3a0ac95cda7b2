//! Fair shares by key: who has been given the fewest tokens lately is served first.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, "Start-Time Fair Queuing", 1996): a request starts, in virtual time,
//! where its key's request before ends, but not before the request that was served last; and it ends as many tokens
//! later as it has. The lowest start is served first. So a key that floods the queue stands behind its own requests, and
//! a key that asks now and then finds nobody before it but requests that started earlier. Keys that were given nothing
//! for a while are equal to new ones: what is long ago does not count, and nothing needs a time constant.

use std::collections::HashMap;

/// Most keys that are remembered. More than that are treated as new ones.
const MOST_KEYS: usize = 4096;

/// Request as its share counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Hash of the client's key.
    pub key: u64,
    /// Tokens of the request, at least 1.
    pub tokens: u32,
}

impl Share {
    /// End of the request in virtual time.
    fn end_after(&self, start: u64) -> u64 {
        start.saturating_add(u64::from(self.tokens.max(1)))
    }
}

/// Requests of a key, in virtual time.
#[derive(Debug, Default)]
struct KeyRequests {
    /// End of the last request that has come.
    end: u64,
    /// End of the last request that was served.
    served: u64,
    /// Number of requests that wait.
    waiting: u32,
}

/// Tokens that keys were given, in virtual time.
#[derive(Debug, Default)]
pub(crate) struct KeyShares {
    /// Start of the request that was served last.
    now: u64,
    keys: HashMap<u64, KeyRequests>,
    is_used: bool,
}

impl KeyShares {
    /// True if requests have had shares.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Returns the start of a request that comes now.
    pub(crate) fn start_of(&self, share: &Share) -> u64 {
        let end = self.keys.get(&share.key).map(|key| key.end);
        end.map_or(self.now, |end| end.max(self.now))
    }

    /// Counts a request that has come, and returns its start.
    pub(crate) fn count_request(&mut self, share: &Share) -> u64 {
        self.is_used = true;
        let start = self.start_of(share);
        if self.keys.len() >= MOST_KEYS && !self.keys.contains_key(&share.key) {
            let now = self.now;
            self.keys.retain(|_, key| key.end > now || key.waiting > 0);
            if self.keys.len() >= MOST_KEYS {
                return start;
            }
        }
        let key = self.keys.entry(share.key).or_default();
        key.end = share.end_after(start);
        key.waiting = key.waiting.saturating_add(1);
        start
    }

    /// Takes a request back that was not served. Requests of the key that came later keep their places; if there are none,
    /// the request has never been.
    pub(crate) fn give_back(&mut self, share: &Share, start: u64) {
        if let Some(key) = self.keys.get_mut(&share.key) {
            key.waiting = key.waiting.saturating_sub(1);
            if key.waiting == 0 {
                key.end = key.served;
            } else if key.end == share.end_after(start) {
                key.end = start;
            }
        }
    }

    /// Notes that a request was served. `first` is the lowest start among equally urgent requests that wait: one of a
    /// later start may have found room before it, and does not put new requests behind all that wait.
    pub(crate) fn note_served(&mut self, share: &Share, start: u64, first: Option<u64>) {
        self.now = self.now.max(first.map_or(start, |first| first.min(start)));
        if let Some(key) = self.keys.get_mut(&share.key) {
            key.waiting = key.waiting.saturating_sub(1);
            key.served = key.served.max(share.end_after(start));
            if key.waiting == 0 {
                key.end = key.served;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn share(key: u64, tokens: u32) -> Share {
        Share { key, tokens }
    }

    #[test]
    fn a_key_stands_behind_its_own_requests_and_unserved_ones_do_not_count() {
        let mut shares = KeyShares::default();
        let (long, short) = (share(1, 100), share(2, 50));
        let starts = [long, long, short, short].map(|of| shares.count_request(&of));
        assert_eq!(starts, [0, 100, 0, 50]);
        shares.note_served(&long, 0, None);
        shares.note_served(&short, 0, None);
        shares.note_served(&short, 50, None);
        assert_eq!(shares.start_of(&short), 100);
        assert_eq!(shares.start_of(&long), 200);
        shares.give_back(&long, 100);
        assert_eq!(shares.start_of(&long), 100, "the client has given up");
        shares.count_request(&share(3, 1000));
        shares.note_served(&share(3, 1000), 500, None);
        assert_eq!(shares.start_of(&short), 500, "what is long ago is over");
    }

    #[test]
    fn the_places_of_a_key_stay_in_order_when_an_earlier_request_gives_up() {
        let mut shares = KeyShares::default();
        let long = share(1, 100);
        assert_eq!(
            [0, 1, 2].map(|_| shares.count_request(&long)),
            [0, 100, 200]
        );
        shares.give_back(&long, 0);
        assert_eq!(shares.start_of(&long), 300);
        shares.give_back(&long, 200);
        assert_eq!(shares.start_of(&long), 200);
        shares.give_back(&long, 100);
        assert_eq!(shares.start_of(&long), 0);
    }

    #[test]
    fn a_request_that_is_served_before_its_turn_puts_nobody_behind_those_that_wait() {
        let mut shares = KeyShares::default();
        let long = share(1, 100);
        let starts = [long; 3].map(|of| shares.count_request(&of));
        shares.note_served(&long, starts[2], Some(starts[0]));
        assert_eq!(shares.start_of(&share(2, 10)), starts[0]);
        assert_eq!(shares.start_of(&long), 300);
    }

    #[test]
    fn keys_are_bounded() {
        let mut shares = KeyShares::default();
        let of = |key| share(key, u32::MAX);
        for key in 0..3 * MOST_KEYS as u64 {
            shares.count_request(&of(key));
        }
        assert_eq!(shares.keys.len(), MOST_KEYS);
        for key in 0..MOST_KEYS as u64 {
            shares.note_served(&of(key), u64::from(u32::MAX), None);
        }
        shares.note_served(&of(0), u64::MAX, None);
        shares.count_request(&share(u64::MAX, 1));
        assert!(shares.keys.len() <= 2);
    }
}
