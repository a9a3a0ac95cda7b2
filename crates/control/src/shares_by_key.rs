//! Fair shares by key: who has been given the fewest tokens lately is served first.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, "Start-Time Fair Queuing", 1996): a request starts, in virtual time,
//! where its key's request before ends, but not before the request that was served last; and it ends as many tokens
//! later as it has. The lowest start is served first. So a key that floods the queue stands behind its own requests, and
//! a key that asks now and then finds nobody before it but requests that started earlier. Keys that were given nothing
//! for a while are equal to new ones: what is long ago does not count, and nothing needs a time constant.
//!
//! The tokens of a request are an estimate. When the engine has counted them, the estimate is corrected: requests of the
//! key that come later start as many tokens earlier or later. Those that wait keep their places. A request starts at least
//! a quarter of its key's last request later than that one, so that a wrong count gives no key more than four times its
//! share, and no later request of the key goes before an earlier one.
//!
//! Virtual time passes only while requests are served. So all keys are equal again as soon as nobody waits, as the paper
//! has it for the end of a busy period: otherwise a key that was served one long request, and nothing for a week, would
//! still stand behind as many tokens of others.

use std::collections::HashMap;

use evenkeel_core::engines::ShareCharge;

/// Part of the expected tokens of a request that counts in any case, whatever is corrected.
const LEAST_PART: u64 = 4;

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
    /// End of the last request that has come, by what is known of the tokens of all.
    end: u64,
    /// Least start of the next request.
    least_start: u64,
    /// Tokens of requests that were not served, before others that wait.
    unserved: u64,
    /// Number of requests that wait.
    waiting: u32,
}

impl KeyRequests {
    /// Counts a request that waits no longer.
    fn count_leaving(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            let unserved = std::mem::take(&mut self.unserved);
            self.take_back(unserved);
        }
    }

    /// Takes tokens back that were not used.
    fn take_back(&mut self, tokens: u64) {
        self.end = self.end.saturating_sub(tokens);
        self.least_start = self.least_start.min(self.end);
    }
}

/// Tokens that keys were given, in virtual time.
#[derive(Debug, Default)]
pub(crate) struct KeyShares {
    /// Start of the request that was served last.
    now: u64,
    keys: HashMap<u64, KeyRequests>,
    /// Number of requests of all keys that wait.
    waiting: usize,
    /// Number of times at which nobody waited any more.
    period: u64,
}

impl KeyShares {
    /// True if requests with shares wait.
    pub(crate) fn is_used(&self) -> bool {
        self.waiting > 0
    }

    /// Returns the start of a request that comes now.
    pub(crate) fn start_of(&self, share: &Share) -> u64 {
        let key = self.keys.get(&share.key);
        key.map_or(self.now, |key| key.end.max(key.least_start).max(self.now))
    }

    /// Counts a request that has come, and returns its start.
    pub(crate) fn count_request(&mut self, share: &Share) -> u64 {
        self.waiting += 1;
        let start = self.start_of(share);
        if self.keys.len() >= MOST_KEYS && !self.keys.contains_key(&share.key) {
            let now = self.now;
            self.keys.retain(|_, key| key.end > now || key.waiting > 0);
            if self.keys.len() >= MOST_KEYS {
                return start;
            }
        }
        let now = self.now;
        let key = self.keys.entry(share.key).or_default();
        key.end = share.end_after(key.end.max(now));
        key.least_start = start.saturating_add(u64::from(share.tokens) / LEAST_PART);
        key.waiting = key.waiting.saturating_add(1);
        start
    }

    /// Takes a request back that was not served. Requests of the key that came later keep their places; if there are none,
    /// the request has never been.
    pub(crate) fn give_back(&mut self, share: &Share, start: u64) {
        if let Some(key) = self.keys.get_mut(&share.key) {
            let tokens = share.end_after(0);
            match key.end == share.end_after(start) {
                true => key.take_back(tokens),
                false => key.unserved = key.unserved.saturating_add(tokens),
            }
            key.count_leaving();
        }
        self.count_leaving();
    }

    /// Notes that a request was served. `first` is the lowest start among equally urgent requests that wait: one of a
    /// later start may have found room before it, and does not put new requests behind all that wait. Returns what the
    /// request has taken from the share of its key.
    pub(crate) fn note_served(
        &mut self,
        share: &Share,
        start: u64,
        first: Option<u64>,
    ) -> ShareCharge {
        self.now = self.now.max(first.map_or(start, |first| first.min(start)));
        if let Some(key) = self.keys.get_mut(&share.key) {
            key.count_leaving();
        }
        let charge = ShareCharge {
            key: share.key,
            tokens: share.tokens.max(1),
            period: self.period,
        };
        self.count_leaving();
        charge
    }

    /// Corrects what a served request has taken from the share of its key to this number of tokens. If nobody has waited
    /// meanwhile, the charge is over.
    pub(crate) fn correct_charge(&mut self, charge: &ShareCharge, tokens: u32) {
        if charge.period == self.period
            && let Some(key) = self.keys.get_mut(&charge.key)
        {
            let more = i64::from(tokens.max(1)) - i64::from(charge.tokens);
            key.end = key.end.saturating_add_signed(more);
        }
    }

    /// Counts a request that waits no longer. If nobody waits, all keys are equal again.
    fn count_leaving(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.now = 0;
            self.period += 1;
            self.keys.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        // Somebody waits all the time.
        shares.count_request(&share(4, 1));
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
    fn an_answer_corrects_what_its_request_has_taken() {
        let mut shares = KeyShares::default();
        let (long, other) = (share(1, 100), share(2, 1000));
        // Somebody waits all the time.
        shares.count_request(&other);
        let start = shares.count_request(&long);
        let charge = shares.note_served(&long, start, None);
        shares.correct_charge(&charge, 40);
        assert_eq!(shares.start_of(&long), 40, "the engine knew most of it");
        let starts = [long; 3].map(|of| shares.count_request(&of));
        assert_eq!(starts, [40, 140, 240]);
        let charges = starts.map(|start| {
            let first = starts.iter().copied().find(|other| *other > start);
            shares.note_served(&long, start, first)
        });
        shares.correct_charge(&charges[0], 50);
        shares.correct_charge(&charges[1], 160);
        assert_eq!(shares.start_of(&long), 350, "less and more");
        shares.give_back(&other, 0);
    }

    #[test]
    fn a_correction_lets_no_request_overtake_another_of_its_key() {
        let mut shares = KeyShares::default();
        let long = share(1, 100);
        let starts = [long; 3].map(|of| shares.count_request(&of));
        assert_eq!(starts, [0, 100, 200]);
        let charge = shares.note_served(&long, 0, Some(100));
        shares.correct_charge(&charge, 1);
        // 201 tokens are taken, but the last one that waits starts at 200.
        let starts = [long; 2].map(|of| shares.count_request(&of));
        assert_eq!(starts, [225, 301]);
        for (start, first) in [(100, 200), (200, 225)] {
            let charge = shares.note_served(&long, start, Some(first));
            shares.correct_charge(&charge, 1);
        }
        // 203 are taken, and the last one that waits starts at 301.
        let starts = [long; 2].map(|of| shares.count_request(&of));
        assert_eq!(starts, [326, 351]);
        // One that gives up has taken nothing, as soon as no later one of the key waits.
        shares.give_back(&long, 225);
        for start in [351, 326, 301] {
            shares.note_served(&long, start, None);
        }
        assert!(shares.keys.is_empty());
    }

    #[test]
    fn a_correction_saves_nothing_up_and_does_not_outlast_the_time_in_which_requests_wait() {
        let mut shares = KeyShares::default();
        let (long, other) = (share(1, 100), share(2, 1000));
        let starts = [other, long, other].map(|of| shares.count_request(&of));
        let charge = shares.note_served(&long, starts[1], Some(0));
        shares.note_served(&other, starts[0], Some(1000));
        shares.note_served(&other, starts[2], None);
        assert!(!shares.is_used());
        let starts = [other, long].map(|of| shares.count_request(&of));
        assert_eq!(starts, [0, 0]);
        shares.correct_charge(&charge, 1);
        assert_eq!(shares.start_of(&long), 100, "of the time before");
        // However much is corrected, the key does not start before the one that was served last.
        let charge = shares.note_served(&long, 0, Some(0));
        shares.count_request(&other);
        shares.note_served(&other, 1000, None);
        shares.correct_charge(&charge, 1);
        shares.correct_charge(&charge, 0);
        assert_eq!(shares.start_of(&long), 1000);
        // Nothing is known of this key.
        let unknown = ShareCharge { key: 9, ..charge };
        shares.correct_charge(&unknown, u32::MAX);
        assert_eq!(shares.start_of(&share(9, 1)), 1000);
    }

    /// Serves 10,000 requests of two keys that wait all the time, each with so many expected tokens. Those of key 1 have
    /// `counted` tokens in the answers. Returns how many requests of each key were served.
    fn serve_two_keys((waits, under_way): (usize, usize), counted: u32) -> [u64; 2] {
        let mut shares = KeyShares::default();
        let mut waiting: Vec<(u64, u32, u64)> = Vec::new();
        let mut sent = std::collections::VecDeque::new();
        let (mut number, mut served) = (0, [0; 2]);
        for _ in 0..10_000 {
            for key in 0..2 {
                while waiting.iter().filter(|(.., of)| *of == key).count() < waits {
                    number += 1;
                    let start = shares.count_request(&share(key, EXPECTED));
                    waiting.push((start, number, key));
                }
            }
            waiting.sort_unstable();
            let (start, _, key) = waiting.remove(0);
            let first = waiting.first().map(|(start, ..)| *start);
            sent.push_back(shares.note_served(&share(key, EXPECTED), start, first));
            served[key as usize] += 1;
            if sent.len() > under_way
                && let Some(charge) = sent.pop_front()
            {
                let tokens = if charge.key == 1 { counted } else { EXPECTED };
                shares.correct_charge(&charge, tokens);
            }
        }
        served
    }

    const EXPECTED: u32 = 100;

    #[test]
    fn keys_that_wait_get_equal_tokens_by_the_engines_count() {
        for depth in [(2, 0), (4, 3), (16, 8)] {
            for counted in [30, 50, 90, 100, 200, 1000] {
                let served = serve_two_keys(depth, counted);
                let [given, other] = [
                    served[0] * u64::from(EXPECTED),
                    served[1] * u64::from(counted),
                ];
                // But for what the requests that wait and are under way are off by.
                let bound = (depth.0 + depth.1 + 2) as u64 * u64::from(EXPECTED.max(counted));
                assert!(
                    given.abs_diff(other) <= bound,
                    "{depth:?} {counted} {served:?}"
                );
            }
        }
    }

    #[test]
    fn a_wrong_count_gives_a_key_four_times_its_share_at_most() {
        for depth in [(1, 0), (1, 3), (4, 3), (16, 8), (64, 0)] {
            let [other, favoured] = serve_two_keys(depth, 0);
            let slack = (depth.0 + depth.1 + 2) as u64 * LEAST_PART;
            assert!(
                favoured <= LEAST_PART * other + slack,
                "{depth:?} {favoured} {other}"
            );
        }
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
    fn all_keys_are_equal_again_when_nobody_has_waited() {
        let mut shares = KeyShares::default();
        let (long, short) = (share(1, 1_000_000), share(2, 10));
        let start = shares.count_request(&long);
        shares.note_served(&long, start, None);
        assert!(!shares.is_used());
        // However long ago that was, the key does not stand behind a flood that has come since.
        let starts = [short, long, short, short].map(|of| shares.count_request(&of));
        assert_eq!(starts, [0, 0, 10, 20]);
        for start in [0, 10, 20] {
            shares.give_back(&short, start);
        }
        assert!(shares.is_used(), "one waits");
        shares.give_back(&long, 0);
        assert!(shares.keys.is_empty());
    }

    /// Times in the property test, in seconds.
    const DAY: f64 = 86_400.0;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Requests of four keys over 25 days, between pauses of up to a day: while two keys have requests that wait, neither
        /// is given more tokens than the other by more than the longest request of each (theorem 1 of the paper); what was
        /// before a pause does not count.
        #[test]
        fn keys_that_wait_get_equal_tokens_for_weeks(seed in any::<u64>()) {
            const LONGEST: u64 = 100_000;
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut shares = KeyShares::default();
            let mut waiting: Vec<(u64, u64, Share)> = Vec::new();
            // For each pair of keys: the difference of the tokens that they were given while both waited.
            let mut ahead = [[0i64; 4]; 4];
            let (mut now, mut number, mut pauses) = (0.0, 0, 0);
            while now < 25.0 * DAY {
                // An engine reads 8,000 tokens a second. In a busy time, more come than it can read.
                let end = now + 3_600.0 * rng.f64();
                let rates = [0, 1, 2, 3].map(|_| rng.f64());
                while now < end || !waiting.is_empty() {
                    let comes = if now < end { rng.usize(0..4) } else { 0 };
                    for _ in 0..comes.min(40usize.saturating_sub(waiting.len())) {
                        let key = rng.u64(0..4);
                        if rng.f64() > rates[key as usize] {
                            continue;
                        }
                        let share = share(key, rng.u32(1..=LONGEST as u32));
                        number += 1;
                        if !waiting.iter().any(|(_, _, of)| of.key == key) {
                            let key = key as usize;
                            ahead[key] = [0; 4];
                            ahead.iter_mut().for_each(|of_other| of_other[key] = 0);
                        }
                        waiting.push((shares.count_request(&share), number, share));
                    }
                    let Some(at) = (0..waiting.len()).min_by_key(|at| (waiting[*at].0, waiting[*at].1)) else {
                        now += 1.0;
                        continue;
                    };
                    let has_waiting = |key: u64| waiting.iter().any(|(_, _, of)| of.key == key);
                    let both = [0, 1, 2, 3].map(has_waiting);
                    let (start, _, served) = waiting[at];
                    now += f64::from(served.tokens) / 8_000.0;
                    let key = served.key as usize;
                    for other in (0..4).filter(|other| *other != key && both[*other]) {
                        ahead[key][other] += i64::from(served.tokens);
                        ahead[other][key] -= i64::from(served.tokens);
                        prop_assert!(ahead[key][other] <= 2 * LONGEST as i64);
                    }
                    waiting.remove(at);
                    let first = waiting.iter().map(|(start, ..)| *start).min();
                    shares.note_served(&served, start, first);
                }
                prop_assert!(shares.keys.is_empty() && shares.now == 0);
                now += DAY * rng.f64();
                pauses += 1;
            }
            prop_assert!(pauses > 20, "{pauses}");
        }
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
