//! Cost of a request, and requests in flight counted by cost.
//!
//! A cost is relative: 1 is a usual request of the group, and one of 10 is ten times the work.
//! Limits of connections count requests, independent of their cost; strategies count the costs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Work of a request, relative to a usual request: from 0.01 to 1,000.
///
/// Kept in units of 1/1024, so that sums are exact, and the cost added when a request begins is the cost subtracted
/// when the request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(u32);

/// The number is not a cost.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a cost must be a number from 0.01 to 1000, not {0}")]
pub struct InvalidCost(pub f64);

/// Units of a cost of 1.
pub(crate) const UNIT: f32 = 1024.0;

impl Cost {
    /// The cost of a usual request, and of one of which nothing else is known.
    pub const ONE: Cost = Cost(UNIT as u32);

    /// The lowest cost.
    pub const MIN: f64 = 0.01;

    /// The highest cost.
    pub const MAX: f64 = 1000.0;

    /// Parses a cost: a number from 0.01 to 1,000. It is rounded to 1/1024.
    pub fn new(value: f64) -> Result<Self, InvalidCost> {
        match (Self::MIN..=Self::MAX).contains(&value) {
            true => Ok(Self::of(value)),
            false => Err(InvalidCost(value)),
        }
    }

    /// The cost that is closest to a number; `None` if it is not one, or if it is not above 0.
    pub fn clamped(value: f64) -> Option<Self> {
        (value > 0.0).then(|| Self::of(value.clamp(Self::MIN, Self::MAX)))
    }

    fn of(value: f64) -> Self {
        Cost((value * f64::from(UNIT)).round() as u32)
    }

    /// Longest text that may be a cost.
    const MAX_TEXT: usize = 32;

    /// Parses the cost that a client or program has given for a request: a decimal number above 0. A number beyond the
    /// bounds counts as the bound; `None` is returned for anything else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        // Names of numbers such as "inf" and "nan" are none here.
        let is_plain = |byte: &u8| byte.is_ascii_digit() || b".eE+-".contains(byte);
        if text.len() > Self::MAX_TEXT || !text.iter().all(is_plain) {
            return None;
        }
        Self::clamped(std::str::from_utf8(text).ok()?.parse().ok()?)
    }

    /// The number.
    #[inline]
    pub fn get(self) -> f32 {
        self.0 as i32 as f32 * (1.0 / UNIT)
    }

    /// The cost in units, which are summed over many requests.
    #[inline]
    pub(crate) fn units(self) -> u64 {
        u64::from(self.0)
    }
}

impl Default for Cost {
    fn default() -> Self {
        Cost::ONE
    }
}

/// Converts units into a cost.
#[inline]
pub(crate) fn of_units(units: u64) -> f32 {
    // Signed integers are converted by one instruction.
    units as i64 as f32 * (1.0 / UNIT)
}

/// Requests that have begun and not ended: how many (low 22 bits), and what they cost together, in
/// units (the rest). In one word, so that it takes one instruction to count a request, and both
/// always belong together. The highest cost has 20 bits: before the sum could overflow there would be
/// four million requests at once, more than a process can have sockets.
#[derive(Debug, Default)]
pub(crate) struct InFlight(AtomicU64);

const COUNT_BITS: u32 = 22;
const _: () = assert!(Cost::MAX * UNIT as f64 <= (1u64 << (64 - 2 * COUNT_BITS)) as f64);

/// A moment of [`InFlight`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightMoment(u64);

impl InFlightMoment {
    /// Number of requests.
    #[inline]
    pub(crate) fn count(self) -> u32 {
        self.0 as u32 & ((1 << COUNT_BITS) - 1)
    }

    /// Sum of their costs in units.
    #[inline]
    pub(crate) fn units(self) -> u64 {
        self.0 >> COUNT_BITS
    }

    /// Sum of their costs.
    #[inline]
    pub(crate) fn total_cost(self) -> f32 {
        of_units(self.units())
    }
}

impl InFlight {
    #[inline]
    pub(crate) fn get(&self) -> InFlightMoment {
        InFlightMoment(self.0.load(Ordering::Relaxed))
    }

    fn entry(cost: Cost) -> u64 {
        (cost.units() << COUNT_BITS) | 1
    }

    /// Counts a request that begins; answers what there was before.
    pub(crate) fn begin_request(&self, cost: Cost) -> InFlightMoment {
        InFlightMoment(self.0.fetch_add(Self::entry(cost), Ordering::Relaxed))
    }

    /// Subtracts the cost of a request that has ended.
    pub(crate) fn end_request(&self, cost: Cost) {
        self.0.fetch_sub(Self::entry(cost), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn costs_are_bounded_and_never_nan() {
        assert_eq!(Cost::new(1.0), Ok(Cost::ONE));
        assert_eq!(Cost::ONE.get(), 1.0);
        assert_eq!(Cost::new(1000.0).unwrap().get(), 1000.0);
        for bad in [0.0, 0.009, 1000.1, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Cost::new(bad).is_err(), "{bad}");
        }
        assert!((Cost::new(0.01).unwrap().get() - 0.01).abs() < 0.001);
        assert_eq!(Cost::clamped(1e300), Cost::new(1000.0).ok());
        assert_eq!(Cost::clamped(1e-300), Cost::new(0.01).ok());
        assert_eq!(Cost::clamped(f64::NAN), None);
        assert_eq!(Cost::clamped(-1.0), None);
    }

    #[test]
    fn what_somebody_says_is_a_cost_or_nothing() {
        let read = |text: &str| Cost::parse(text.as_bytes()).map(Cost::get);
        for (text, cost) in [
            ("1", 1.0),
            (" 12.5 ", 12.5),
            ("2e1", 20.0),
            (".5", 0.5),
            ("99999", 1000.0),
            ("1e999", 1000.0),
        ] {
            assert_eq!(read(text), Some(cost), "{text}");
        }
        let long = "1".repeat(33);
        for text in [
            "", "0", "-3", "nan", "inf", "1,5", "ten", "1 2", "--1", &long,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_stays_within_bounds(text: Vec<u8>) {
            if let Some(cost) = Cost::parse(&text) {
                prop_assert!((0.009..=1000.0).contains(&cost.get()));
            }
        }

        /// Whatever begins and ends in whatever order: nothing is left.
        #[test]
        fn what_was_added_is_subtracted(costs in prop::collection::vec(0.01f64..1000.0, 0..500)) {
            let costs: Vec<_> = costs.into_iter().map(|cost| Cost::new(cost).unwrap()).collect();
            let flying = InFlight::default();
            for (before, &cost) in costs.iter().enumerate() {
                prop_assert_eq!(flying.begin_request(cost).count() as usize, before);
            }
            let sum: f64 = costs.iter().map(|cost| f64::from(cost.get())).sum();
            prop_assert!((f64::from(flying.get().total_cost()) - sum).abs() <= sum * 1e-6);
            costs.iter().rev().for_each(|&cost| flying.end_request(cost));
            prop_assert_eq!((flying.get().count(), flying.get().total_cost()), (0, 0.0));
        }
    }
}
