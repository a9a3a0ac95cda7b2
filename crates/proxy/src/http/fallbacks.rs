//! List of the groups that may get a request after the group that the request has now.

/// Groups that may get a request after the group that the request has now. Each gets the request once at most.
#[derive(Debug)]
pub(super) struct Fallbacks {
    /// Places of the groups in the rule, the next one last.
    places: Vec<u32>,
    /// Retries at the groups before.
    retries: u32,
}

impl Fallbacks {
    /// Takes the groups of a model that come after the group at `place`; `None` if there are none.
    pub(super) fn after(places: &[u32], place: u32) -> Option<Box<Self>> {
        let after = places.iter().rev().take_while(|other| **other != place);
        let places: Vec<u32> = after.copied().collect();
        (!places.is_empty()).then(|| Box::new(Fallbacks { places, retries: 0 }))
    }

    /// Places of the groups that are left.
    pub(super) fn places(&self) -> impl Iterator<Item = &u32> {
        self.places.iter()
    }

    /// Takes the place of the next group.
    pub(super) fn take_next(&mut self) -> Option<u32> {
        self.places.pop()
    }

    /// Number of retries at the group that a request has now, of all of its `retries`.
    pub(super) fn count_retries(&self, retries: u32) -> u32 {
        retries.saturating_sub(self.retries)
    }

    /// Notes that a request has been given to another group, after this many retries.
    pub(super) fn begin_group(&mut self, retries: u32) {
        self.retries = retries;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_after_the_chosen_one_and_once_each() {
        let take_all = |place| {
            let mut others = Fallbacks::after(&[4, 2, 7], place)?;
            Some(std::iter::from_fn(|| others.take_next()).collect::<Vec<_>>())
        };
        assert_eq!(take_all(4), Some(vec![2, 7]));
        assert_eq!(take_all(2), Some(vec![7]));
        assert_eq!(take_all(7), None);
        assert!(Fallbacks::after(&[4], 4).is_none());
    }

    #[test]
    fn each_group_has_its_own_retries() {
        let mut others = Fallbacks::after(&[1, 2], 1).unwrap();
        assert_eq!(others.count_retries(2), 2);
        others.begin_group(3);
        assert_eq!((others.count_retries(3), others.count_retries(5)), (0, 2));
    }
}
