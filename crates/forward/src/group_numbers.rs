//! Numbers of groups in the tables of the program: a group keeps its number when the process starts again, as entries of the
//! tables have it.

use std::collections::{HashMap, HashSet};

use evenkeel_kernel::forward::GROUPS;

/// Numbers that groups had in the process before, by the number that stands for the name.
#[derive(Debug, Default)]
pub(crate) struct GroupNumbers {
    before: HashMap<u64, u32>,
}

impl GroupNumbers {
    /// Finds the numbers in the table: `groups` are numbers with the seat of a member, and `find_owner` finds the group of a
    /// seat.
    pub(crate) fn of_table(
        groups: Vec<(u32, u32)>,
        find_owner: impl Fn(u32) -> Option<u64>,
    ) -> Self {
        let groups = groups.into_iter();
        let owned = groups.filter_map(|(number, seat)| Some((find_owner(seat)?, number)));
        GroupNumbers {
            before: owned.collect(),
        }
    }

    /// Chooses a number that is not used: the one that the group had, or one that no group had. `None` if all are used.
    pub(crate) fn choose_number(&self, owner: u64, used: &HashSet<u32>) -> Option<u32> {
        let is_free = |number: &u32| !used.contains(number);
        let had: HashSet<u32> = self.before.values().copied().collect();
        let old = self.before.get(&owner).copied().filter(is_free);
        old.or_else(|| (0..GROUPS).find(|number| is_free(number) && !had.contains(number)))
            .or_else(|| (0..GROUPS).find(is_free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_gets_the_number_that_it_had() {
        let owners = HashMap::from([(10, 1), (11, 2)]);
        let groups = vec![(0, 10), (1, 11), (2, 12)];
        let numbers = GroupNumbers::of_table(groups, |seat| owners.get(&seat).copied());
        assert_eq!(numbers.choose_number(2, &HashSet::new()), Some(1));
        assert_eq!(numbers.choose_number(3, &HashSet::new()), Some(2), "new");
        assert_eq!(numbers.choose_number(2, &HashSet::from([1])), Some(2));
        let all = (0..GROUPS).filter(|number| *number != 1).collect();
        assert_eq!(numbers.choose_number(3, &all), Some(1), "the last one");
        assert_eq!(numbers.choose_number(3, &(0..GROUPS).collect()), None);
    }
}
