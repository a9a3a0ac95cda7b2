use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use proptest::prelude::*;

use super::*;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(1_000_000_000 + nanos)
}

/// A hash as a keyed function would make it.
fn mixed(key: u64) -> u64 {
    let x = (key ^ 0x5bf0_3635).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 29)
}

proptest! {
    /// For any times, rates and bursts: never more than the rate over a window and a burst, and
    /// nobody is refused who has waited for as long as they were told.
    #[test]
    fn no_window_has_more_than_the_rate_and_a_burst(
        count in 1_u32..2000,
        per_ms in 1_u64..100_000,
        burst in 1_u32..50,
        gaps in proptest::collection::vec((0_u64..3, 0_u64..1_000_000_000), 1..400),
    ) {
        let rate = Rate::new(count, Duration::from_millis(per_ms), burst);
        let interval = (per_ms * 1_000_000 / u64::from(count)).max(1);
        let table = RateTable::new(16);
        let (mut now, mut taken) = (0, Vec::new());
        for (kind, gap) in gaps {
            now += match kind {
                0 => 0,
                1 => gap % interval.saturating_mul(2),
                _ => gap,
            };
            match table.take(7, at(now), &rate) {
                Ok(()) => taken.push(now),
                Err(wait) => {
                    // A nanosecond before it is too early, and then it is not.
                    let wait = wait.as_nanos() as u64;
                    prop_assert!(wait > 0);
                    prop_assert!(table.take(7, at(now + wait - 1), &rate).is_err());
                    now += wait;
                    prop_assert!(table.take(7, at(now), &rate).is_ok());
                    taken.push(now);
                }
            }
        }
        for (first, begin) in taken.iter().enumerate() {
            for (last, end) in taken.iter().enumerate().skip(first) {
                let most = u64::from(burst) + (end - begin) / interval;
                prop_assert!((last - first + 1) as u64 <= most);
            }
        }
    }

    /// Many at once are as many single ones, up to the burst; and who takes more waits for it later.
    #[test]
    fn many_are_as_many_single_ones(
        count in 1_u32..2000,
        burst in 1_u32..50,
        takes in proptest::collection::vec((0_u64..4, 0_u32..70), 1..60),
    ) {
        let per = Duration::from_secs(1);
        let rate = Rate::new(count, per, burst);
        let interval = 1_000_000_000 / u64::from(count);
        let (singles, many) = (RateTable::new(8), RateTable::new(8));
        let mut now = 0;
        for (gaps, size) in takes {
            now += gaps * interval;
            let is_free = many.check_many(7, size, at(now), &rate);
            prop_assert_eq!(many.take_many(7, size, at(now), &rate), is_free);
            if is_free.is_ok() && size > burst {
                // Nothing else was used, and all of it is.
                prop_assert!(many.take(7, at(now), &rate).is_err());
                many.give_back_many(7, size, &rate);
            } else if is_free.is_ok() {
                for _ in 0..size {
                    prop_assert!(singles.take(7, at(now), &rate).is_ok());
                }
            } else {
                let enough = now + is_free.unwrap_err().as_nanos() as u64;
                prop_assert!(many.check_many(7, size, at(enough), &rate).is_ok());
                prop_assert!(many.check_many(7, size, at(enough - 1), &rate).is_err());
            }
            let next = singles.check_key(7, at(now), &rate);
            prop_assert_eq!(many.check_key(7, at(now), &rate), next);
        }
    }

    /// Whoever comes no more often than the rate says is never refused, whatever others do.
    #[test]
    fn nobody_below_the_rate_is_refused(
        gaps in proptest::collection::vec(0_u64..5_000_000, 1..300),
        others in 1_u64..200,
    ) {
        let rate = Rate::new(100, Duration::from_secs(1), 1);
        // Far too small for all of them.
        let table = RateTable::new(8);
        let mut now = 0;
        for (round, gap) in gaps.into_iter().enumerate() {
            now += 10_000_000 + gap;
            for other in 0..others {
                let _ = table.take(mixed(1000 + other + round as u64), at(now), &rate);
            }
            prop_assert!(table.take(mixed(1), at(now), &rate).is_ok());
        }
    }

    /// Counts are those of a map, and all is given back.
    #[test]
    fn counts_are_exact(steps in proptest::collection::vec((0_u64..40, any::<bool>()), 1..400)) {
        let table = CountTable::new(512);
        let mut held: HashMap<u64, Vec<u32>> = HashMap::new();
        for (key, comes) in steps {
            let has = held.entry(key).or_default();
            if !comes {
                if let Some(place) = has.pop() {
                    table.leave(place);
                }
                continue;
            }
            match table.enter(mixed(key), 3) {
                CountResult::Counted(place) => has.push(place),
                CountResult::Full => prop_assert_eq!(has.len(), 3),
                CountResult::Uncounted => prop_assert!(false, "a place for each of forty keys"),
            }
            prop_assert!(has.len() <= 3);
        }
        let keys = held.values().filter(|has| !has.is_empty()).count();
        prop_assert_eq!(table.count_used(), keys);
        held.values().flatten().for_each(|place| table.leave(*place));
        prop_assert_eq!(table.count_used(), 0);
        prop_assert_eq!(table.overflows(), 0);
    }
}

#[test]
fn a_full_table_forgets_and_locks_nobody_out() {
    let rate = Rate::new(1, Duration::from_secs(60), 5);
    let table = RateTable::new(1024);
    // One that has used up what it may have.
    (0..5).for_each(|_| table.take(mixed(0), at(0), &rate).unwrap());
    table.take(mixed(0), at(0), &rate).unwrap_err();
    // A thousand others, each of which is new, come again and again: each has its burst.
    for key in 1..=1_000_000_u64 {
        table.take(mixed(key), at(key), &rate).unwrap();
    }
    assert!(table.evictions() > 900_000, "{}", table.evictions());
    assert_eq!(table.places_in_all(), 1024);
    assert!(table.count_used(at(0)) <= 1024);
}

/// Half a table of keys that are busy at the same time costs next to nobody its place.
#[test]
fn a_table_that_is_half_full_keeps_its_keys() {
    let rate = Rate::new(1, Duration::from_secs(60), 3);
    for seed in 0..4 {
        let table = RateTable::new(65_536);
        for key in 0..32_768_u64 {
            table.take(mixed(seed << 40 | key), at(key), &rate).unwrap();
        }
        assert!(table.evictions() <= 10, "{}", table.evictions());
        // Those that owe least lose their places, so who has used all of a burst keeps it.
        let mut lifted = 0;
        for key in 0..1000_u64 {
            let key = mixed(seed << 40 | key);
            let mut more = (0..3).filter(|_| table.take(key, at(40_000), &rate).is_ok());
            lifted += usize::from(more.by_ref().count() > 2);
        }
        assert!(lifted <= 2, "{lifted}");
    }
}

#[test]
fn a_place_is_free_again_when_its_key_has_used_nothing() {
    let rate = Rate::new(1, Duration::from_millis(10), 1);
    let table = RateTable::new(8);
    for key in 0..10_000_u64 {
        let now = at(key * 2_000_000);
        table.take(mixed(key), now, &rate).unwrap();
        assert!(table.count_used(now) <= 6);
    }
    assert_eq!(
        table.evictions(),
        0,
        "five are busy at a time, in eight places"
    );
}

#[test]
fn threads_together_get_no_more_than_one_would() {
    let rate = Rate::new(1, Duration::from_secs(3600), 1000);
    let (rates, counts) = (RateTable::new(64), CountTable::new(64));
    let (taken, open) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (rates, counts, taken, open) = (&rates, &counts, &taken, &open);
            scope.spawn(move || {
                for round in 0..20_000_u64 {
                    if rates.take(mixed(1), at(0), &rate).is_ok() {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                    // Others, so that places are contended for.
                    let _ = rates.take(mixed(2 + (round + thread) % 8), at(0), &rate);
                    if let CountResult::Counted(place) = counts.enter(mixed(1), 3) {
                        let now = open.fetch_add(1, Ordering::Relaxed) + 1;
                        // Three threads that make a place for the same key at the same moment can
                        // be one too many.
                        assert!(now <= 4, "{now}");
                        open.fetch_sub(1, Ordering::Relaxed);
                        counts.leave(place);
                    }
                }
            });
        }
    });
    assert_eq!(taken.into_inner(), 1000);
    assert_eq!(counts.count_used(), 0);
}

#[test]
fn who_finds_no_place_is_not_counted_and_not_kept_out() {
    let table = CountTable::new(16);
    let entered: Vec<_> = (0..100).map(|key| table.enter(mixed(key), 1)).collect();
    let counted = entered
        .iter()
        .filter(|one| matches!(one, CountResult::Counted(_)));
    assert_eq!(counted.count(), 16);
    assert_eq!(table.overflows(), 84);
    assert!(!entered.contains(&CountResult::Full));
    assert_eq!(table.enter(mixed(0), 1), CountResult::Full);
    assert_eq!(table.enter(mixed(0), 0), CountResult::Full);
}

proptest! {
    /// A look says what taking would say, and changes nothing; what is given back can be taken again.
    #[test]
    fn a_look_is_as_good_as_taking(
        burst in 1_u32..10,
        steps in proptest::collection::vec((0_u8..3, 0_u64..3_000_000), 1..200),
    ) {
        let rate = Rate::new(1000, Duration::from_secs(1), burst);
        let (table, twin) = (RateTable::new(16), RateTable::new(16));
        let mut now = 0;
        for (kind, gap) in steps {
            now += gap;
            let said = table.check_key(7, at(now), &rate);
            prop_assert_eq!(said, table.check_key(7, at(now), &rate));
            match kind {
                0 => {}
                1 => {
                    let taken = table.take(7, at(now), &rate);
                    prop_assert_eq!(said, taken);
                    prop_assert_eq!(twin.take(7, at(now), &rate), taken);
                }
                _ => {
                    if table.take(7, at(now), &rate).is_ok() {
                        table.give_back(7, &rate);
                    }
                    prop_assert_eq!(said, table.check_key(7, at(now), &rate));
                }
            }
        }
    }
}

#[test]
fn a_look_needs_no_place() {
    let (table, rate) = (RateTable::new(8), Rate::new(1, Duration::from_secs(1), 1));
    for key in 0..100 {
        assert!(table.check_key(mixed(key), at(0), &rate).is_ok());
        table.give_back(mixed(key), &rate);
    }
    assert_eq!((table.count_used(at(0)), table.evictions()), (0, 0));
}

/// Threads that meet a key for the first time at once count it together.
#[test]
fn threads_share_what_a_new_key_has() {
    const THREADS: usize = 2;
    const KEYS: usize = 20_000;
    let table = RateTable::new(1 << 16);
    let counts = CountTable::new(1 << 16);
    let rate = Rate::new(1, Duration::from_secs(3600), 1);
    let arrived = AtomicUsize::new(0);
    let keys: Vec<u64> = (1..=KEYS as u64).map(mixed).collect();
    let run = || {
        let mut passed = [0; 2];
        for (round, key) in keys.iter().enumerate() {
            arrived.fetch_add(1, Ordering::SeqCst);
            // Spinning, so that both begin within nanoseconds.
            let mut turns = 0;
            while arrived.load(Ordering::SeqCst) < (round + 1) * THREADS {
                turns += 1;
                if turns % 1000 == 0 {
                    std::thread::yield_now();
                }
            }
            passed[0] += usize::from(table.take(*key, at(1), &rate).is_ok());
            passed[1] += usize::from(matches!(counts.enter(*key, 1), CountResult::Counted(_)));
        }
        passed
    };
    let passed = std::thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(run));
        threads.map(|thread| thread.join().unwrap())
    });
    let sum = |of: usize| passed.iter().map(|each| each[of]).sum::<usize>();
    assert_eq!(sum(0), KEYS + table.evictions() as usize);
    assert_eq!(sum(1), KEYS);
}

#[test]
fn what_is_charged_is_waited_for_and_the_largest_numbers_do_no_harm() {
    let rate = Rate::new(10, Duration::from_secs(1), 10);
    let table = RateTable::new(8);
    table.charge(1, 25, at(0), &rate);
    let wait = table.take(1, at(0), &rate).unwrap_err();
    assert_eq!(wait, Duration::from_millis(1600));
    table.give_back_many(1, 20, &rate);
    assert!(table.take_many(1, 5, at(0), &rate).is_ok());
    assert!(table.take(1, at(0), &rate).is_err());
    // Longer than the rate can say.
    let rate = Rate::new(1, Duration::MAX, u32::MAX);
    table.charge(2, u32::MAX, at(0), &rate);
    let _ = table.take_many(2, u32::MAX, at(0), &rate);
    table.give_back_many(2, u32::MAX, &rate);
    assert!(table.take_many(3, 0, at(0), &rate).is_ok());
}
