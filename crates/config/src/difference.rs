//! Difference between two lists that begin and end with the same elements.

use std::ops::Range;

/// Returns the places at which two lists differ, in each of them: all elements before and behind are the same. Both ranges
/// are empty if the lists are the same. Takes time in proportion to the shorter list.
pub fn find_difference<T>(
    before: &[T],
    now: &[T],
    is_same: impl Fn(&T, &T) -> bool,
) -> (Range<usize>, Range<usize>) {
    let is_same = |(one, other): &(&T, &T)| is_same(one, other);
    let first = before.iter().zip(now).take_while(is_same).count();
    let left = before.len().min(now.len()) - first;
    let ends = before.iter().rev().zip(now.iter().rev());
    let last = ends.take(left).take_while(is_same).count();
    (first..before.len() - last, first..now.len() - last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_are_the_same_outside_of_their_difference(
            before in proptest::collection::vec(0..3u8, 0..12),
            now in proptest::collection::vec(0..3u8, 0..12),
        ) {
            let (gone, new) = find_difference(&before, &now, u8::eq);
            prop_assert_eq!(&before[..gone.start], &now[..new.start]);
            prop_assert_eq!(&before[gone.end..], &now[new.end..]);
            prop_assert_eq!(gone.is_empty() && new.is_empty(), before == now);
            // Neither end could be longer.
            if !gone.is_empty() && !new.is_empty() {
                prop_assert_ne!(before[gone.start], now[new.start]);
                prop_assert_ne!(before[gone.end - 1], now[new.end - 1]);
            }
        }
    }
}
