//! Terms of decisions: a strategy's knowledge as one number for each member, for a program that makes the decisions
//! without us, such as the one in the kernel that forwards connections.
//!
//! The program knows the connections of each member by itself. [`choose`] is the whole decision; the program in the
//! kernel is held against it by a property test.

/// Way in which a program outside of the process makes a strategy's decisions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// The member with the lowest cost times [places](count_places).
    Score {
        /// Cost of each connection after the second one at a member, relative to the first.
        growth: f32,
    },
    /// Members take turns in proportion to their weights.
    Turns,
    /// The member with the lowest score for the client's address, by [`hash_terms`](crate::hash_terms).
    Hash {
        /// Most connections at a member, relative to the average; infinite is no bound.
        bound: f32,
    },
    /// The member with the lowest cost times connections among those that are not hot, and if all are hot, the member with
    /// the lowest load: its connections, relative to its weight.
    Prequal {
        /// Connections, for a weight of 1, above which a member is hot; infinite if none is, and negative if all are.
        hot_above: f32,
    },
    /// Decisions need more than terms: requests, or answers of members.
    Own,
}

/// A member for a decision by terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Cost of the first connection, or the distance of the member's turns, from [`scale_costs`].
    pub base: u32,
    /// Connections that the program has at the member.
    pub own: u32,
    /// Connections of others there.
    pub others: u32,
    /// Limit of the program's connections there; 0 if the member may not get any.
    pub room: u32,
    /// Time of the member's next turn.
    pub next_turn: u64,
    /// Load of a connection for [`Form::Prequal`], from [`scale_costs`] of the reciprocals of weights.
    pub load: u32,
}

/// Bits after the point of growth and places.
const POINT: u32 = 8;

/// Base of the cheapest member.
const LEAST_BASE: f32 = 65_536.0;

/// Most connections that are told apart.
const MOST: u64 = 0xff_ffff;

/// Returns `growth` of [`Form::Score`] as the program has it, in 1/256.
pub fn scale_growth(growth: f32) -> u32 {
    (growth.clamp(1.0, 256.0) * (1 << POINT) as f32) as u32
}

/// Makes whole numbers of costs: the lowest is 65,536, and costs above 65,535 times the lowest are like that. A cost
/// that is no positive number counts as the highest.
pub fn scale_costs(costs: &[f32], bases: &mut Vec<u32>) {
    scale_costs_to(costs, LEAST_BASE, bases);
}

/// Makes whole numbers of costs like [`scale_costs`], of which the lowest is `least`.
pub fn scale_costs_to(costs: &[f32], least: f32, bases: &mut Vec<u32>) {
    let usable = |cost: f32| (cost.is_finite() && cost > 0.0).then_some(cost);
    let lowest = costs.iter().copied().filter_map(usable);
    let lowest = lowest.fold(f32::INFINITY, f32::min);
    bases.clear();
    bases.extend(costs.iter().map(|cost| match usable(*cost) {
        // Conversions end at the largest number.
        Some(cost) => ((cost / lowest) * least) as u32,
        None => u32::MAX,
    }));
}

/// Load from which on a member is hot, where none is.
pub const NEVER_HOT: u32 = u32::MAX;

/// Added to the load of a hot member.
pub const HOT: u64 = 1 << 63;

/// Returns the load from which on a member is hot as the program has it, in 1/256 of a connection at a member with the
/// `highest` weight.
pub fn scale_hot(hot_above: f32, highest: f32) -> u32 {
    let scaled = hot_above * highest * (1 << POINT) as f32;
    match scaled {
        scaled if scaled < 0.0 => 0,
        // Beyond all numbers of connections that are told apart.
        scaled if scaled < (NEVER_HOT - 1) as f32 => scaled as u32 + 1,
        _ => NEVER_HOT,
    }
}

/// Returns the connections at a member with the one to come, in 1/256: those after the second one count `growth`.
pub fn count_places(connections: u64, growth: u32) -> u64 {
    let busy = connections.min(MOST);
    match busy.checked_sub(1) {
        None => 1 << POINT,
        Some(further) => (2 << POINT) + further * u64::from(growth),
    }
}

/// Returns the score of a member, of which the lowest is chosen; `None` if the member may not get a connection, or
/// the form has no such scores. `mark` is the time of the last turn, or for [`Form::Prequal`] from [`scale_hot`].
pub fn score_seat(seat: &Seat, form: Form, growth: u32, mark: u64) -> Option<u64> {
    if seat.own >= seat.room {
        return None;
    }
    let busy = u64::from(seat.own) + u64::from(seat.others);
    let cost = || match count_places(busy, growth) {
        places if places >> 32 == 0 => u64::from(seat.base) * places,
        _ => u64::MAX - 1,
    };
    Some(match form {
        Form::Own | Form::Hash { .. } => return None,
        Form::Turns => seat.next_turn.max(mark),
        Form::Score { .. } => cost(),
        Form::Prequal { .. } => {
            let load = busy.min(MOST) * u64::from(seat.load);
            let is_hot = mark != u64::from(NEVER_HOT) && load >> POINT >= mark;
            if is_hot {
                HOT | load
            } else {
                cost().min(HOT - 1)
            }
        }
    })
}

/// Chooses a member: the first with the lowest score, beginning at `start`.
pub fn choose(seats: &[Seat], form: Form, growth: u32, mark: u64, start: usize) -> Option<usize> {
    let order = (0..seats.len()).map(|step| (start + step) % seats.len());
    let scored = order.filter_map(|index| {
        let score = score_seat(seats.get(index)?, form, growth, mark)?;
        Some((score, index))
    });
    // The first of equal ones.
    let (_, index) = scored.reduce(|best, next| if next.0 < best.0 { next } else { best })?;
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(base: u32, own: u32) -> Seat {
        Seat {
            base,
            own,
            room: u32::MAX,
            ..Seat::default()
        }
    }

    const EVEN: Form = Form::Score { growth: 1.0 };

    #[test]
    fn the_cheapest_member_is_chosen_by_connections_and_cost() {
        let growth = scale_growth(1.0);
        let pick = |seats: &[Seat]| choose(seats, EVEN, growth, 0, 0);
        assert_eq!(pick(&[seat(10, 3), seat(10, 2), seat(10, 4)]), Some(1));
        // Twice the cost with less than half of the connections.
        assert_eq!(pick(&[seat(20, 1), seat(10, 4)]), Some(0));
        assert_eq!(pick(&[seat(20, 2), seat(10, 4)]), Some(1));
        assert_eq!(pick(&[]), None);
        let full = Seat {
            room: 3,
            ..seat(1, 3)
        };
        assert_eq!(pick(&[full, seat(100, 50)]), Some(1));
        assert_eq!(pick(&[full]), None);
        let beside = Seat {
            others: 9,
            ..seat(10, 0)
        };
        assert_eq!(pick(&[beside, seat(10, 5)]), Some(1));
        assert_eq!(choose(&[seat(1, 0)], Form::Own, growth, 0, 0), None);
    }

    #[test]
    fn equal_members_are_chosen_from_the_start_on() {
        let seats = [seat(7, 1); 3];
        for start in 0..3 {
            assert_eq!(choose(&seats, EVEN, 256, 0, start), Some(start));
        }
    }

    #[test]
    fn turns_go_by_time() {
        let turn = |next_turn| Seat {
            next_turn,
            ..seat(5, 9)
        };
        let pick = |seats: &[Seat], last| choose(seats, Form::Turns, 256, last, 0);
        assert_eq!(pick(&[turn(8), turn(7), turn(9)], 0), Some(1));
        // A member that was away has no turns to catch up with.
        assert_eq!(pick(&[turn(8), turn(2)], 8), Some(0));
    }

    #[test]
    fn s41_hot_members_come_behind_all_others() {
        let growth = scale_growth(1.0);
        let form = Form::Prequal { hot_above: 3.0 };
        let seat = |base, own, load: u32| Seat {
            load: load << 16,
            ..seat(base, own)
        };
        let pick = |seats: &[Seat], hot_above| {
            let mark = scale_hot(hot_above, 1.0).into();
            choose(seats, form, growth, mark, 0)
        };
        // The cheapest one is above the limit, and at the limit it is not.
        assert_eq!(pick(&[seat(1, 4, 1), seat(9, 3, 1)], 3.0), Some(1));
        assert_eq!(pick(&[seat(1, 3, 1), seat(9, 3, 1)], 3.0), Some(0));
        // A connection of the second one is a load of 2.
        assert_eq!(pick(&[seat(9, 3, 1), seat(1, 2, 2)], 3.0), Some(0));
        // All are hot, and then the load decides.
        assert_eq!(pick(&[seat(1, 5, 1), seat(9, 4, 1)], 3.0), Some(1));
        assert_eq!(pick(&[seat(1, 1, 1), seat(9, 0, 1)], -1.0), Some(1));
        // None is hot.
        let never = f32::INFINITY;
        assert_eq!(pick(&[seat(1, 5, 1), seat(9, 4, 1)], never), Some(0));
        // Costs never reach the hot ones.
        let dear = seat(u32::MAX, 0xff_fffe, 0);
        assert_eq!(score_seat(&dear, form, u32::MAX, 1), Some(HOT - 1));
        assert_eq!(
            [-1.0, 0.0, 2.5, 1e12, f32::NAN].map(|hot| scale_hot(hot, 2.0)),
            [0, 1, 1_281, NEVER_HOT, NEVER_HOT]
        );
    }

    #[test]
    fn costs_become_whole_numbers() {
        let mut bases = Vec::new();
        scale_costs(&[0.5, 0.25, 1.0, f32::INFINITY, 0.0, 1e9], &mut bases);
        assert_eq!(
            bases,
            [131_072, 65_536, 262_144, u32::MAX, u32::MAX, u32::MAX]
        );
        scale_costs(&[f32::NAN], &mut bases);
        assert_eq!(bases, [u32::MAX]);
        assert_eq!((scale_growth(1.5), scale_growth(f32::NAN)), (384, 0));
    }

    #[test]
    fn places_grow() {
        assert_eq!(
            [0, 1, 2, 3].map(|busy| count_places(busy, 512)),
            [256, 512, 1024, 1536]
        );
        assert!(count_places(u64::MAX, u32::MAX) > u64::from(u32::MAX));
    }
}
