//! Learnt words of members and groups, for another process with the same clock that takes the place of this one.
//!
//! Decisions keep everything that they learn in atomic words. Each owner of words names them in one function, so that
//! the same lines read and write them. A word may be a time, a number or several of them; only its owner knows the
//! meaning, so that only a process which has the same [`VERSION`] can use it. Counters of requests under way are not
//! among the words: they stay in the old process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Version of the words' meaning. It must change when a word gets another meaning; a word that is new, or is gone,
/// needs no other version.
pub const VERSION: u32 = 1;

/// Learnt words of an owner, by name; several words with one name keep their order.
pub type LearntValues = BTreeMap<String, Vec<u64>>;

/// A word.
pub(crate) enum LearntSlot<'a> {
    Long(&'a AtomicU64),
    Short(&'a AtomicU32),
    Flag(&'a AtomicBool),
}

/// Function that is called with each word and its name.
pub(crate) type Visit<'v, 'a> = &'v mut dyn FnMut(&'static str, LearntSlot<'a>);

/// Collects the words that `words` names; words that are 0 are left out.
pub(crate) fn collect_words<'a>(words: impl FnOnce(Visit<'_, 'a>)) -> LearntValues {
    let mut learnt = LearntValues::new();
    words(&mut |name, word| {
        let value = match word {
            LearntSlot::Long(word) => word.load(Ordering::Relaxed),
            LearntSlot::Short(word) => u64::from(word.load(Ordering::Relaxed)),
            LearntSlot::Flag(word) => u64::from(word.load(Ordering::Relaxed)),
        };
        match learnt.get_mut(name) {
            Some(values) => values.push(value),
            None => drop(learnt.insert(name.to_owned(), vec![value])),
        }
    });
    learnt.retain(|_, values| values.iter().any(|value| *value != 0));
    learnt
}

/// Restores learnt words: `words` names the place of each.
pub(crate) fn restore<'a>(learnt: &LearntValues, words: impl FnOnce(Visit<'_, 'a>)) {
    let mut next: BTreeMap<&'static str, usize> = BTreeMap::new();
    words(&mut |name, word| {
        let index = next.entry(name).or_default();
        let value = learnt.get(name).and_then(|values| values.get(*index));
        *index += 1;
        let Some(&value) = value else { return };
        match word {
            LearntSlot::Long(word) => word.store(value, Ordering::Relaxed),
            // Another program's, if it does not fit.
            LearntSlot::Short(word) => {
                word.store(u32::try_from(value).unwrap_or(0), Ordering::Relaxed)
            }
            LearntSlot::Flag(word) => word.store(value != 0, Ordering::Relaxed),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Some(AtomicU64, [AtomicU32; 3], AtomicBool);

    impl Some {
        fn words<'a>(&'a self, visit: Visit<'_, 'a>) {
            visit("long", LearntSlot::Long(&self.0));
            for short in &self.1 {
                visit("short", LearntSlot::Short(short));
            }
            visit("flag", LearntSlot::Flag(&self.2));
        }
    }

    #[test]
    fn words_come_back_by_name_and_place() {
        let some = Some::default();
        assert_eq!(
            collect_words(|visit| some.words(visit)),
            LearntValues::new()
        );
        some.0.store(u64::MAX, Ordering::Relaxed);
        some.1[1].store(7, Ordering::Relaxed);
        some.2.store(true, Ordering::Relaxed);
        let mut learnt = collect_words(|visit| some.words(visit));
        assert_eq!(learnt["short"], [0, 7, 0]);
        let other = Some::default();
        restore(&learnt, |visit| other.words(visit));
        assert_eq!(collect_words(|visit| other.words(visit)), learnt);
        // Words that are unknown, too short or too long stay as they are.
        learnt.insert("new".into(), vec![1]);
        learnt.insert("short".into(), vec![1, 2, u64::MAX, 4]);
        learnt.remove("long");
        restore(&learnt, |visit| other.words(visit));
        assert_eq!(other.0.load(Ordering::Relaxed), u64::MAX);
        assert_eq!(other.1[0].load(Ordering::Relaxed), 1);
        assert_eq!(other.1[2].load(Ordering::Relaxed), 0);
    }
}
