//! Service times of requests, without the time that requests waited at members.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::log::Entry;

/// Most requests at once that are told apart.
const MOST_AT_ONCE: usize = 256;

/// A request whose time is known.
pub(super) struct Timed {
    pub(super) member: usize,
    pub(super) class: usize,
    pub(super) start: f64,
    pub(super) end: f64,
    /// Number of requests at the member when this one came.
    pub(super) found: usize,
    pub(super) service: f64,
}

/// Takes what requests waited at members out of their times, and answers how many a member works on at once.
pub(super) fn remove_queueing(
    timed: &mut [Timed],
    members: usize,
    unknown: &mut Vec<String>,
) -> usize {
    // How many of our requests each found at its member.
    let mut ends: Vec<BinaryHeap<Reverse<u64>>> = vec![BinaryHeap::new(); members];
    let micros = |time: f64| (time * 1e3) as u64;
    for one in timed.iter_mut() {
        let ends = &mut ends[one.member];
        while ends
            .peek()
            .is_some_and(|Reverse(end)| *end <= micros(one.start))
        {
            ends.pop();
        }
        one.found = ends.len();
        ends.push(Reverse(micros(one.end)));
    }
    // Where more at once make answers slower, there are no more workers. The members' speeds
    // differ: times are compared with those of the same member that found it idle.
    let mut idle = vec![(0.0, 0usize); members];
    for one in timed.iter().filter(|one| one.found == 0) {
        idle[one.member].0 += one.service;
        idle[one.member].1 += 1;
    }
    let mut by_found = vec![(0.0, 0usize); MOST_AT_ONCE];
    for one in timed.iter() {
        let (sum, count) = idle[one.member];
        if count >= 10
            && let Some(of) = by_found.get_mut(one.found)
        {
            of.0 += one.service / (sum / count as f64);
            of.1 += 1;
        }
    }
    let mut concurrency = 1;
    let mut was_seen = false;
    for &(sum, count) in by_found.iter().skip(1) {
        if count < 20 {
            break;
        }
        if sum / count as f64 > 1.25 {
            was_seen = true;
            break;
        }
        concurrency += 1;
    }
    if !was_seen {
        unknown.push(format!(
            "Capacity of members: they never had more requests at once than they could work on, or too \
             seldom. They are taken to work on {concurrency} requests at once; if they can work on \
             more, fewer members would do."
        ));
    }
    // First come first served by so many workers: a request begins when one is free.
    let mut free: Vec<BinaryHeap<Reverse<u64>>> = vec![BinaryHeap::new(); members];
    for one in timed.iter_mut() {
        let free = &mut free[one.member];
        let mut start = one.start;
        if free.len() >= concurrency
            && let Some(Reverse(end)) = free.pop()
        {
            start = start.max(end as f64 / 1e3);
        }
        free.push(Reverse(micros(one.end)));
        one.service = (one.end - start).max(0.001);
    }
    concurrency
}

/// Estimates each member's slowness as a multiple of the usual one, and the cost of a request of each class at a member
/// of usual speed, in nanoseconds.
pub(super) fn estimate_speeds(
    timed: &[Timed],
    members: usize,
    classes: usize,
) -> (Vec<f64>, Vec<Vec<f64>>) {
    let mut slowness = vec![1.0; members];
    let mut means = vec![1.0; classes];
    // Each is estimated with the other, because members may have got different classes.
    for _ in 0..4 {
        let mut sums = vec![(0.0, 0usize); classes];
        for one in timed {
            sums[one.class].0 += one.service / slowness[one.member];
            sums[one.class].1 += 1;
        }
        for (mean, (sum, count)) in means.iter_mut().zip(sums) {
            if count > 0 && sum > 0.0 {
                *mean = sum / count as f64;
            }
        }
        let mut sums = vec![(0.0, 0usize); members];
        for one in timed {
            sums[one.member].0 += one.service / means[one.class];
            sums[one.member].1 += 1;
        }
        for (slow, (sum, count)) in slowness.iter_mut().zip(&sums) {
            if *count >= 5 {
                *slow = (sum / *count as f64).clamp(1e-3, 1e3);
            }
        }
        // The usual one is the median, so that one slow member is just that.
        let mut known: Vec<f64> = (slowness.iter().zip(&sums))
            .filter(|(_, (_, count))| *count >= 5)
            .map(|(slow, _)| *slow)
            .collect();
        known.sort_by(f64::total_cmp);
        let usual = known
            .get((known.len().saturating_sub(1)) / 2)
            .copied()
            .unwrap_or(1.0);
        slowness
            .iter_mut()
            .zip(&sums)
            .for_each(|(slow, (_, count))| {
                *slow = if *count >= 5 {
                    (*slow / usual).clamp(1e-3, 1e3)
                } else {
                    1.0
                };
            });
    }
    let mut costs = vec![Vec::new(); classes];
    for one in timed {
        costs[one.class].push((one.service * 1e6 / slowness[one.member]).max(1.0));
    }
    (slowness, costs)
}

/// Service times of each member and class at normal speed in nanoseconds, sorted.
pub(super) fn own_times(
    timed: &[Timed],
    slowness: &[f64],
    members: usize,
    classes: usize,
) -> Vec<Vec<Vec<f64>>> {
    let mut own = vec![vec![Vec::new(); classes]; members];
    for one in timed {
        let of = own.get_mut(one.member);
        if let Some(times) = of.and_then(|of| of.get_mut(one.class)) {
            times.push(one.service * 1e6 / slowness.get(one.member).copied().unwrap_or(1.0));
        }
    }
    own.iter_mut()
        .flatten()
        .for_each(|times| times.sort_by(f64::total_cmp));
    own
}

/// The median and the 99th percentile from a time on.
pub(super) fn measured_quantiles(entries: &[&Entry], at: &[f64], from: f64) -> Option<(f64, f64)> {
    let all = entries
        .iter()
        .zip(at)
        .filter(|(entry, at)| **at >= from && !entry.failed);
    let mut all: Vec<f64> = all.filter_map(|(entry, _)| entry.waited).collect();
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all.get((all.len() as f64 * share) as usize).copied();
    Some((at(0.5)?, at(0.99)?))
}
