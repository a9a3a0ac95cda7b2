//! Decisions by hash in whole numbers, for a program that makes the decisions of `hash` and `source_ip_hash` without us.
//!
//! Each member has a score for each key, and the member with the lowest score is chosen, as in `strategy/hash.rs`. A score
//! is a logarithm of 26 bits behind the point times the [base](crate::terms::scale_costs_to) of the member. Members over
//! the bound come behind all others. The program in the kernel is held against [`choose_seat`] by a property test.

use crate::key::mix;

/// Base of the member with the highest weight.
pub const LEAST_BASE: f32 = 1_048_576.0;

/// Bits of a chance.
const CHANCE_BITS: u32 = 24;

/// Bits of a logarithm behind the point.
const LOG_BITS: u32 = 26;

/// Logarithm of a chance of 0: 31 with the point.
const HIGHEST_LOG: u32 = 31 << LOG_BITS;

/// Bits of a bound behind the point.
const BOUND_BITS: u32 = 14;

/// Bounds from here on are none.
const HIGHEST_BOUND: f32 = 64.0;

/// Most connections at a member that are told apart.
const MOST: u64 = 0xf_ffff;

/// Added to the score of a member over the bound.
pub const OVER_BOUND: u64 = 1 << 63;

/// A member for a decision by hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashSeat {
    /// Cost of a connection: the reciprocal of the member's weight, from [`scale_costs_to`](crate::terms::scale_costs_to).
    pub base: u32,
    /// Weight of the member, from [`weigh_base`].
    pub weight: u32,
    /// [Hash](crate::key::hash) of the member's name.
    pub name: u64,
    /// Connections that the program has at the member.
    pub own: u32,
    /// Connections of others there.
    pub others: u32,
    /// Limit of the program's connections there; 0 if the member may not get any.
    pub room: u32,
}

impl HashSeat {
    /// True if the member may get a connection.
    fn is_eligible(&self) -> bool {
        self.own < self.room
    }

    /// Returns the number of connections at the member.
    fn count_connections(&self) -> u64 {
        (u64::from(self.own) + u64::from(self.others)).min(MOST)
    }
}

/// Returns a strategy's bound as the program has it, in 1/16,384; 0 is no bound.
pub fn scale_bound(bound: f32) -> u32 {
    match bound < HIGHEST_BOUND {
        true => (bound.max(1.0) * (1 << BOUND_BITS) as f32) as u32,
        false => 0,
    }
}

/// Returns the weight of a member with this base: 65,536 for the highest weight.
pub fn weigh_base(base: u32) -> u32 {
    ((1u64 << 36) / u64::from(base.max(1 << 20))) as u32
}

/// Returns the negative binary logarithm of a chance, which is a number of 24 bits behind the point.
fn log_chance(chance: u32) -> u32 {
    if chance == 0 {
        return HIGHEST_LOG;
    }
    let mantissa = chance << chance.leading_zeros();
    let zeros = chance.leading_zeros() - (u32::BITS - CHANCE_BITS);
    // Each square is one more bit of the logarithm.
    let mut square = u64::from(mantissa);
    let mut fraction = 0;
    for _ in 0..LOG_BITS {
        square = (square * square) >> 31;
        let bit = square >> 32;
        square >>= bit;
        fraction = fraction << 1 | bit as u32;
    }
    ((1 + zeros) << LOG_BITS) - fraction
}

/// Returns the scores of all members for a key; `None` if a member may not get a connection.
pub fn score_seats(seats: &[HashSeat], key: u64, bound: u32) -> Vec<Option<u64>> {
    let eligible = seats.iter().filter(|seat| seat.is_eligible());
    let (mut connections, mut weight) = (1, 0);
    for seat in eligible {
        connections += seat.count_connections();
        weight += u64::from(seat.weight);
    }
    let limit = u64::from(bound) * connections;
    let score = |seat: &HashSeat| {
        let is_over = bound > 0
            && (seat.count_connections() * weight) << BOUND_BITS >= limit * u64::from(seat.weight);
        let chance = (mix(key ^ seat.name) >> (u64::BITS - CHANCE_BITS)) as u32;
        let score = u64::from(log_chance(chance)) * u64::from(seat.base);
        if is_over { score + OVER_BOUND } else { score }
    };
    let scores = seats
        .iter()
        .map(|seat| seat.is_eligible().then(|| score(seat)));
    scores.collect()
}

/// Lists the members that may get a connection with this key by their scores: the chosen one is the first.
pub fn rank_seats(seats: &[HashSeat], key: u64, bound: u32) -> Vec<usize> {
    let scores = score_seats(seats, key, bound);
    let scored = scores.into_iter().enumerate();
    let mut order: Vec<_> = scored
        .filter_map(|(index, score)| Some((score?, index)))
        .collect();
    // The first of equal ones.
    order.sort_unstable();
    order.into_iter().map(|(_, index)| index).collect()
}

/// Chooses a member for a key: the first with the lowest score.
pub fn choose_seat(seats: &[HashSeat], key: u64, bound: u32) -> Option<usize> {
    rank_seats(seats, key, bound).first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(name: u64) -> HashSeat {
        let base = LEAST_BASE as u32;
        HashSeat {
            base,
            weight: weigh_base(base),
            name,
            room: u32::MAX,
            ..HashSeat::default()
        }
    }

    #[test]
    fn s41_logarithms_are_exact_enough_to_tell_all_chances_apart() {
        let mut before = HIGHEST_LOG;
        for chance in 1..1u32 << CHANCE_BITS {
            // All of the highest ones, which win, and some of the others.
            if chance < 15 << 20 && chance % 61 != 0 {
                continue;
            }
            let log = log_chance(chance);
            assert!(log < before, "{chance}");
            before = log;
            if chance % 61 == 0 {
                let exact = -libm::log2(f64::from(chance) / f64::from(1u32 << CHANCE_BITS));
                let error = f64::from(log) - exact * f64::from(1u32 << LOG_BITS);
                assert!((-0.1..=1.2).contains(&error), "{chance}: {error}");
            }
        }
    }

    #[test]
    fn s41_bounds_become_whole_numbers() {
        let scaled = [1.25, 0.5, 63.0, 64.0, f32::INFINITY].map(scale_bound);
        assert_eq!(scaled, [20_480, 16_384, 1_032_192, 0, 0]);
        let weights = [0, 1 << 20, 1 << 21, u32::MAX].map(weigh_base);
        assert_eq!(weights, [65_536, 65_536, 32_768, 16]);
    }

    #[test]
    fn s41_members_over_the_bound_come_behind_all_others() {
        let mut seats: Vec<_> = (0..4).map(seat).collect();
        let order = rank_seats(&seats, 7, scale_bound(1.25));
        let first = order[0];
        // 1.25 times the average of 3 connections and the one to come.
        seats[first].own = 2;
        seats[first].others = 1;
        assert_eq!(choose_seat(&seats, 7, scale_bound(1.25)), Some(order[1]));
        assert_eq!(choose_seat(&seats, 7, 0), Some(first));
        // All members have much: the order is that of before.
        for seat in &mut seats {
            seat.own = u32::MAX - 1;
        }
        assert_eq!(rank_seats(&seats, 7, scale_bound(1.25)), order);
        seats[first].room = 9;
        assert_eq!(rank_seats(&seats, 7, scale_bound(1.25)), order[1..]);
    }

    #[test]
    fn s41_no_number_is_too_large() {
        let seat = HashSeat {
            base: u32::MAX,
            weight: 65_536,
            own: u32::MAX - 1,
            others: u32::MAX,
            room: u32::MAX,
            name: 3,
        };
        let seats = [seat; 128];
        assert_eq!(choose_seat(&seats, 1, scale_bound(63.99)), Some(0));
        assert_eq!(choose_seat(&[], 1, 0), None);
    }
}
