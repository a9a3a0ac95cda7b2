//! Lists of statuses that follow one another: nearly all statuses of a list are in the one before, at the same addresses in
//! memory.

use std::collections::HashSet;
use std::sync::Arc;

use evenkeel_config::find_difference;

use super::conditions::Status;

/// Statuses of all objects.
pub(crate) type StatusList = Arc<Vec<Arc<Status>>>;

/// Returns the address of a status in memory, which no other one has while this one is kept.
pub(crate) fn address_of(status: &Arc<Status>) -> usize {
    Arc::as_ptr(status).addr()
}

fn list_addresses(statuses: &[Arc<Status>]) -> HashSet<usize> {
    statuses.iter().map(address_of).collect()
}

/// Returns the addresses of the statuses that only the list `before` has, and the statuses that only the list `now` has.
pub(crate) fn compare_lists(
    before: &[Arc<Status>],
    now: &[Arc<Status>],
) -> (HashSet<usize>, Vec<Arc<Status>>) {
    let (gone, others) = find_difference(before, now, Arc::ptr_eq);
    let mut gone = list_addresses(before.get(gone).unwrap_or_default());
    let others = now.get(others).unwrap_or_default();
    let new = others.iter().filter(|of| !gone.contains(&address_of(of)));
    let new: Vec<_> = new.map(Arc::clone).collect();
    // What has another place only is not gone.
    for status in others {
        gone.remove(&address_of(status));
    }
    (gone, new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::super::objects::{Kind, ObjectName};
    use super::*;

    proptest! {
        #[test]
        fn lists_differ_by_what_only_one_of_them_has(
            before in proptest::sample::subsequence((0..10).collect::<Vec<usize>>(), 0..=10).prop_shuffle(),
            now in proptest::sample::subsequence((0..10).collect::<Vec<usize>>(), 0..=10),
        ) {
            let all = (0..10).map(|number| {
                let object = ObjectName::new("shop", &format!("r{number}"));
                Arc::new(Status::new(Kind::HttpRoute, object, 1, &Value::Null))
            });
            let all: Vec<Arc<Status>> = all.collect();
            let list = |numbers: &[usize]| -> Vec<Arc<Status>> {
                numbers.iter().map(|number| Arc::clone(&all[*number])).collect()
            };
            let (gone, new) = compare_lists(&list(&before), &list(&now));
            let only = |some: &[usize], others: &[usize]| -> Vec<usize> {
                some.iter().filter(|of| !others.contains(of)).copied().collect()
            };
            prop_assert_eq!(gone, list_addresses(&list(&only(&before, &now))));
            prop_assert_eq!(list_addresses(&new), list_addresses(&list(&only(&now, &before))));
        }
    }
}
