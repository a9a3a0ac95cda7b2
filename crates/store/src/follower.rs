//! A balancer's reaction to each head that it reads from the store. No I/O.
//!
//! A store can be restored from an older backup. The older head is no reason for the balancer to go back in time: the
//! balancer keeps its running revision, until a person has written to the store after the restore, or until the store
//! has again a head that follows the balancer's head. Each head lists the heads that it comes from, so that neither a
//! clock nor a revision number of etcd is needed to tell an old head from a new one.

use crate::model::{Head, Mark, Pointer, Refused};

/// Most heads that a balancer remembers as older than its own.
const MAX_OLDER: usize = 256;

/// Verdict about a head read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadVerdict {
    /// The head is new: the balancer goes by it from now on.
    News,
    /// The balancer goes by this head already.
    Known,
    /// The store has no head, and never had one.
    Empty,
    /// The store has gone back in time: the balancer keeps its own head. Returned once for each older state of the
    /// store.
    WentBack,
    /// The store is still back in time.
    StillBack,
}

/// A balancer's view of the store.
#[derive(Clone, Debug)]
pub struct Follower {
    /// Name of the balancer.
    name: String,
    /// Mark of the head that the balancer goes by, or that the process before it went by.
    mark: Option<Mark>,
    /// The head that the balancer goes by; `None` until the store was read.
    head: Option<Head>,
    /// Content of the store when it turned out to have gone back: a head, or nothing. `None` while the store has not
    /// gone back.
    back: Option<Option<Head>>,
    running: Option<Pointer>,
    refused: Option<(Refused, u64)>,
}

impl Follower {
    /// A follower for the balancer called `name`, with the head's mark and the running revision of its last good copy.
    pub fn new(name: &str, mark: Option<Mark>, running: Option<Pointer>) -> Self {
        Follower {
            name: name.into(),
            mark,
            head: None,
            back: None,
            running,
            refused: None,
        }
    }

    /// Takes in the head read from the store, or `None` if the store has no head.
    pub fn take_head(&mut self, head: Option<Head>) -> HeadVerdict {
        let Some(mark) = &self.mark else {
            return match head {
                None => HeadVerdict::Empty,
                Some(head) => self.accept(head),
            };
        };
        match head {
            Some(head) if head.follows(mark) => {
                let is_known = self
                    .head
                    .as_ref()
                    .is_some_and(|known| known.tag == head.tag);
                match is_known && self.back.is_none() {
                    true => HeadVerdict::Known,
                    false => self.accept(head),
                }
            }
            head => self.went_back(head),
        }
    }

    fn accept(&mut self, head: Head) -> HeadVerdict {
        self.back = None;
        let mut mark = head.mark();
        // The head before is older, even if a person has begun with an empty store.
        for old in self
            .mark
            .iter()
            .flat_map(|old| std::iter::once(&old.tag).chain(&old.past))
        {
            if *old != mark.tag && !mark.past.contains(old) {
                mark.past.push(old.clone());
            }
        }
        mark.past.truncate(MAX_OLDER);
        self.mark = Some(mark);
        self.head = Some(head);
        HeadVerdict::News
    }

    fn went_back(&mut self, head: Option<Head>) -> HeadVerdict {
        // A head that this balancer's own head comes from is older, whatever the store had meanwhile.
        let is_older = |head: &Head| {
            let mark = self.mark.as_ref();
            mark.is_some_and(|mark| mark.past.contains(&head.tag))
        };
        let is_older = head.as_ref().is_some_and(is_older);
        let Some(base) = &self.back else {
            self.back = Some(head);
            return HeadVerdict::WentBack;
        };
        match (base, head) {
            (None, None) => HeadVerdict::StillBack,
            (Some(base), Some(head)) if base.tag == head.tag => HeadVerdict::StillBack,
            (_, Some(head)) if is_older => {
                self.back = Some(Some(head));
                HeadVerdict::WentBack
            }
            // A person who has written to an empty store has seen that it is empty.
            (None, Some(head)) => self.accept(head),
            (Some(base), Some(head)) if head.follows(&base.mark()) => {
                match head.pushes > base.pushes {
                    true => self.accept(head),
                    // A roll-out that continues there is no decision of a person.
                    false => HeadVerdict::StillBack,
                }
            }
            // A head further back, or of another line.
            (_, head) => {
                self.back = Some(head);
                HeadVerdict::WentBack
            }
        }
    }

    /// The revision to be put into effect now; `None` if it runs already or was refused.
    pub fn wanted_revision(&self) -> Option<&Pointer> {
        if self.back.is_some() {
            return None;
        }
        let head = self.head.as_ref()?;
        let target = head.target_of(&self.name)?;
        let is_refused =
            |(refused, pushes): &(Refused, u64)| refused.to == *target && *pushes == head.pushes;
        let is_done = self.running.as_ref() == Some(target);
        let is_refused = self.refused.as_ref().is_some_and(is_refused);
        (!is_done && !is_refused).then_some(target)
    }

    /// Notes that a revision is in effect.
    pub fn note_applied(&mut self, to: Pointer) {
        self.refused = None;
        self.running = Some(to);
    }

    /// Notes that a revision cannot be put into effect. The revision is not tried again until a person has changed the
    /// store, or [`Follower::retry`] is called.
    pub fn note_refused(&mut self, to: Pointer, why: String) {
        let pushes = self.head.as_ref().map_or(0, |head| head.pushes);
        self.refused = Some((Refused { to, why }, pushes));
    }

    /// Allows another attempt at the refused revision.
    pub fn retry(&mut self) {
        self.refused = None;
    }

    /// The head that the balancer goes by; `None` while the store is back in time.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref().filter(|_| self.back.is_none())
    }

    /// Mark of the head that the balancer goes by, which is kept over restarts.
    pub fn mark(&self) -> Option<&Mark> {
        self.mark.as_ref()
    }

    /// The running revision.
    pub fn running(&self) -> Option<&Pointer> {
        self.running.as_ref()
    }

    /// The refused revision, unless another one runs since.
    pub fn refusal(&self) -> Option<&Refused> {
        self.refused.as_ref().map(|(refused, _)| refused)
    }

    /// True while the balancer waits for a person, because the store has gone back in time.
    pub fn is_waiting(&self) -> bool {
        self.back.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::change::{self, Push};
    use crate::model::Step;

    fn text(number: u64) -> String {
        format!("# {number}\n")
    }

    fn push(head: Option<&Head>, number: u64, staged: bool) -> Head {
        let push = Push {
            text: text(number),
            author_name: "anna".into(),
            message: String::new(),
            staged,
            at: 0,
        };
        change::push(head, &[], push, format!("t{number}"))
            .unwrap()
            .0
    }

    /// Puts into effect what it wants, and tells what that was.
    fn apply(follower: &mut Follower) -> Option<u64> {
        let to = follower.wanted_revision()?.clone();
        let number = to.number;
        follower.note_applied(to);
        assert_eq!(follower.wanted_revision(), None);
        Some(number)
    }

    #[test]
    fn a_change_is_applied_once() {
        let mut follower = Follower::new("a", None, None);
        assert_eq!(follower.take_head(None), HeadVerdict::Empty);
        assert_eq!(apply(&mut follower), None);
        let first = push(None, 1, false);
        assert_eq!(follower.take_head(Some(first.clone())), HeadVerdict::News);
        assert_eq!(apply(&mut follower), Some(1));
        assert_eq!(follower.take_head(Some(first.clone())), HeadVerdict::Known);
        assert_eq!(apply(&mut follower), None);
        // Of two changes that come together, the last one is enough.
        let third = push(Some(&push(Some(&first), 2, false)), 3, false);
        assert_eq!(follower.take_head(Some(third)), HeadVerdict::News);
        assert_eq!(apply(&mut follower), Some(3));
    }

    #[test]
    fn what_was_refused_is_tried_again_after_a_push_or_by_request() {
        let mut follower = Follower::new("a", None, None);
        let first = push(None, 1, false);
        follower.take_head(Some(first.clone()));
        let to = follower.wanted_revision().unwrap().clone();
        follower.note_refused(to.clone(), "no".into());
        assert_eq!(follower.wanted_revision(), None);
        assert_eq!(follower.refusal().unwrap().why, "no");
        follower.retry();
        assert_eq!(follower.wanted_revision(), Some(&to));
        follower.note_refused(to.clone(), "no".into());
        let again = change::confirm(&first, &[], "again".into());
        follower.take_head(Some(again));
        assert_eq!(follower.wanted_revision(), Some(&to));
    }

    #[test]
    fn a_store_that_went_back_is_not_followed_until_somebody_pushes() {
        let first = push(None, 1, false);
        let second = push(Some(&first), 2, false);
        let mut follower = Follower::new("a", None, None);
        follower.take_head(Some(second.clone()));
        assert_eq!(apply(&mut follower), Some(2));
        // Over a restart of the process, too.
        for restarted in [false, true] {
            let mut follower = match restarted {
                false => follower.clone(),
                true => {
                    let (mark, running) = (follower.mark().cloned(), follower.running().cloned());
                    Follower::new("a", mark, running)
                }
            };
            assert_eq!(
                follower.take_head(Some(first.clone())),
                HeadVerdict::WentBack
            );
            assert_eq!(
                follower.take_head(Some(first.clone())),
                HeadVerdict::StillBack
            );
            assert_eq!(apply(&mut follower), None);
            assert!(follower.is_waiting());
            let mut pushed = follower.clone();
            assert_eq!(
                pushed.take_head(Some(push(Some(&first), 3, false))),
                HeadVerdict::News
            );
            // The revision has the number 2 once more, and another text.
            assert_eq!(apply(&mut pushed), Some(2));
            assert!(!pushed.is_waiting());
            // Whoever confirms what is there has seen it.
            let mut confirmed = follower.clone();
            confirmed.take_head(Some(change::confirm(&first, &[], "yes".into())));
            assert_eq!(apply(&mut confirmed), Some(1));
            // The right store is back.
            assert_eq!(follower.take_head(Some(second.clone())), HeadVerdict::News);
            assert_eq!(apply(&mut follower), None);
            let third = push(Some(&second), 3, false);
            follower.take_head(Some(third));
            assert_eq!(apply(&mut follower), Some(3));
        }
    }

    #[test]
    fn an_emptied_store_is_one_that_went_back() {
        let mut follower = Follower::new("a", None, None);
        follower.take_head(Some(push(None, 1, false)));
        apply(&mut follower);
        assert_eq!(follower.take_head(None), HeadVerdict::WentBack);
        assert_eq!(follower.take_head(None), HeadVerdict::StillBack);
        assert_eq!(apply(&mut follower), None);
        follower.take_head(Some(push(None, 9, false)));
        // The revision has the number 1 again, but another text.
        assert_eq!(apply(&mut follower), Some(1));
    }

    #[test]
    fn a_push_that_names_what_balancers_had_reaches_one_that_was_away() {
        let first = push(None, 1, false);
        let second = push(Some(&first), 2, false);
        let mut away = Follower::new("a", Some(second.mark()), second.current.clone());
        // The store went back to the first, and somebody pushed, who saw what another balancer goes by.
        let third = Push {
            text: text(3),
            author_name: String::new(),
            message: String::new(),
            staged: false,
            at: 0,
        };
        let goes_by = [(second.mark(), second.current.clone())];
        let (third, revision) = change::push(Some(&first), &goes_by, third, "t3".into()).unwrap();
        assert_eq!(revision.number, 3, "numbers are not used twice");
        assert_eq!(away.take_head(Some(third)), HeadVerdict::News);
        assert_eq!(apply(&mut away), Some(3));
    }

    #[test]
    fn a_roll_out_that_goes_on_by_itself_in_a_backup_is_no_push() {
        let first = push(None, 1, false);
        let trial = push(Some(&first), 2, true);
        let last = push(
            Some(&change::finish_rollout(&trial, "done".into()).unwrap()),
            3,
            false,
        );
        let mut follower = Follower::new("a", None, None);
        follower.take_head(Some(last));
        apply(&mut follower);
        assert_eq!(
            follower.take_head(Some(trial.clone())),
            HeadVerdict::WentBack
        );
        let all = change::advance(&trial, Step::All, Vec::new(), "all".into()).unwrap();
        assert_eq!(follower.take_head(Some(all)), HeadVerdict::StillBack);
        assert_eq!(apply(&mut follower), None);
    }

    /// An event of the store or of the follower.
    #[derive(Clone, Debug)]
    enum Event {
        Push,
        Staged,
        Advance,
        TakeBack,
        Finish,
        Backup(usize),
        Restore(usize),
        /// The follower reads the store: after an event of a watch, or by polling.
        Look,
        /// The follower reads the store once more.
        LookTwice,
        Refuse,
        Restart,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        use Event::*;
        let one = prop_oneof![
            3 => Just(Push), 1 => Just(Staged), 1 => Just(Advance), 1 => Just(TakeBack), 1 => Just(Finish),
            1 => (0..2usize).prop_map(Backup), 1 => (0..2usize).prop_map(Restore), 4 => Just(Look), 1 => Just(LookTwice), 1 => Just(Refuse),
            1 => Just(Restart),
        ];
        prop::collection::vec(one, 0..80)
    }

    proptest! {
        /// For any events of the store, and any part of them that a balancer gets to see: no revision is applied twice
        /// in a row; the balancer never goes by a head that an earlier one came from, which only a backup has; and once
        /// a person has pushed a revision that follows the head that the balancer sees, the balancer runs it.
        #[test]
        fn no_change_is_lost_and_none_is_applied_twice(events in events()) {
            let mut store: Option<Head> = None;
            let mut backups: [Option<Head>; 2] = [None, None];
            let mut follower = Follower::new("a", None, None);
            let (mut number, mut tags) = (0, 0);
            // The heads that it has gone by, with all that they came from.
            let mut older: HashSet<String> = HashSet::new();
            let mut refuses: Option<Pointer> = None;
            for event in events {
                tags += 1;
                let tag = format!("tag{tags}");
                match event {
                    Event::Push | Event::Staged => {
                        number += 1;
                        let push = Push {
                            text: text(number),
                            author_name: String::new(),
                            message: String::new(),
                            staged: matches!(event, Event::Staged),
                            at: 0,
                        };
                        // A roll-out is ended before something else is pushed.
                        let ended = store.as_ref().and_then(|head| {
                            change::take_back(head, "x".into(), 0, format!("{tag}b"))
                        });
                        store = ended.or(store);
                        let (head, _) = change::push(store.as_ref(), &[], push, tag).unwrap();
                        store = Some(head);
                    }
                    Event::Advance => {
                        let next = store.as_ref().and_then(|head| {
                            change::advance(head, Step::Share, vec!["a".into()], tag)
                        });
                        store = next.or(store);
                    }
                    Event::TakeBack => {
                        let next = store.as_ref().and_then(|head| change::take_back(head, "x".into(), 0, tag));
                        store = next.or(store);
                    }
                    Event::Finish => {
                        let next = store.as_ref().and_then(|head| change::finish_rollout(head, tag));
                        store = next.or(store);
                    }
                    Event::Backup(slot) => backups[slot] = store.clone(),
                    Event::Restore(slot) => store = backups[slot].clone(),
                    Event::Look | Event::LookTwice => {
                        let times = if matches!(event, Event::Look) { 1 } else { 2 };
                        for time in 0..times {
                            let seen = follower.take_head(store.clone());
                            prop_assert!(time == 0 || !matches!(seen, HeadVerdict::News | HeadVerdict::WentBack));
                            if let Some(head) = follower.head() {
                                prop_assert!(!older.contains(&head.tag));
                                older.extend(head.past.iter().cloned());
                            }
                            let before = follower.running().cloned();
                            if let Some(to) = follower.wanted_revision().cloned() {
                                prop_assert_ne!(Some(&to), before.as_ref());
                                prop_assert!(!follower.is_waiting());
                                if refuses.as_ref() == Some(&to) {
                                    follower.note_refused(to, "no".into());
                                    prop_assert_eq!(follower.running().cloned(), before);
                                } else {
                                    follower.note_applied(to);
                                }
                                prop_assert_eq!(follower.wanted_revision(), None);
                            }
                        }
                    }
                    Event::Refuse => {
                        refuses = store.as_ref().and_then(|head| head.target_of("a")).cloned();
                    }
                    Event::Restart => {
                        let (mark, running) = (follower.mark().cloned(), follower.running().cloned());
                        follower = Follower::new("a", mark, running);
                    }
                }
            }
            // The balancer sees the store's present state; then a person pushes a revision that the balancer does not
            // refuse.
            follower.take_head(store.clone());
            let ended = store.as_ref().and_then(|head| change::take_back(head, "x".into(), 0, "back".into()));
            if ended.is_some() {
                store = ended;
                follower.take_head(store.clone());
            }
            let push = Push {
                text: "# the last one\n".into(),
                author_name: String::new(),
                message: String::new(),
                staged: false,
                at: 0,
            };
            let (head, revision) = change::push(store.as_ref(), &[], push, "last".into()).unwrap();
            prop_assert_eq!(follower.take_head(Some(head.clone())), HeadVerdict::News);
            let to = revision.pointer();
            prop_assert_eq!(follower.wanted_revision(), Some(&to));
            follower.note_applied(to);
            prop_assert_eq!(follower.take_head(Some(head)), HeadVerdict::Known);
            prop_assert_eq!(follower.wanted_revision(), None);
        }
    }
}
