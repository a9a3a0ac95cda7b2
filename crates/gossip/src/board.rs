//! A balancer's notes, and the copies that all others keep of them.
//!
//! Each change has a number, one more than the change before. A balancer that has a copy says up to
//! which number it has the notes, and gets the changes since: only the latest of each note, as
//! older ones mean nothing any more. Loss, repetition and any order of datagrams therefore lead to
//! the same copy.

use std::collections::{BTreeMap, HashMap};

use evenkeel_core::time::Instant;
use evenkeel_wire::input::put_varint;

use crate::ejection::Ejection;
use crate::message::NotesPart;
use crate::note::{Item, Key, MAX_ITEM, Note};

/// Most notes that are kept of one balancer.
const MAX_NOTES: usize = 1 << 17;

/// A balancer's own notes.
#[derive(Debug, Default)]
pub(crate) struct Board {
    head: u64,
    items: BTreeMap<u64, Item>,
    numbers: HashMap<Key, u64>,
}

impl Board {
    /// The number of the last change.
    pub(crate) fn last_change(&self) -> u64 {
        self.head
    }

    /// Notes something, unless it is noted already; answers the number.
    pub(crate) fn put_note(&mut self, note: Note) -> u64 {
        let key = note.key();
        if let Some(number) = self.numbers.get(&key)
            && self.items.get(number) == Some(&Item::Put(note))
        {
            return *number;
        }
        self.change(key, Item::Put(note))
    }

    /// Takes a note off, if there is one; answers the number of that change.
    pub(crate) fn remove(&mut self, key: Key) -> Option<u64> {
        self.get(key)?;
        Some(self.change(key, Item::Gone(key)))
    }

    /// Says the same again, with a new number: to know who hears it.
    pub(crate) fn repeat_note(&mut self, key: Key) -> Option<u64> {
        let note = self.get(key)?;
        Some(self.change(key, Item::Put(note)))
    }

    fn change(&mut self, key: Key, item: Item) -> u64 {
        self.head += 1;
        if let Some(old) = self.numbers.insert(key, self.head) {
            self.items.remove(&old);
        }
        self.items.insert(self.head, item);
        self.head
    }

    pub(crate) fn get(&self, key: Key) -> Option<Note> {
        match self.items.get(self.numbers.get(&key)?)? {
            Item::Put(note) => Some(*note),
            Item::Gone(_) => None,
        }
    }

    /// The notes.
    pub(crate) fn list_notes(&self) -> impl Iterator<Item = &Note> {
        self.items.values().filter_map(|item| match item {
            Item::Put(note) => Some(note),
            Item::Gone(_) => None,
        })
    }

    /// Forgets that notes were taken off, where all who have a copy have done so, too.
    pub(crate) fn forget(&mut self, known: u64) {
        let numbers = &mut self.numbers;
        let gone = |item: &Item| matches!(item, Item::Gone(_));
        if !self.items.range(..=known).any(|(_, item)| gone(item)) {
            return;
        }
        self.items.retain(|&number, item| match item {
            Item::Gone(key) if number <= known => {
                numbers.remove(key);
                false
            }
            _ => true,
        });
    }

    /// Appends to a sheet what has changed since number `after`, as far as there is room for so
    /// many bytes, and before it the number of the last one. Answers that number.
    pub(crate) fn write(&self, after: u64, room: usize, now: Instant, out: &mut Vec<u8>) -> u64 {
        let mut bytes = Vec::new();
        let mut through = self.head;
        let mut last = after;
        for (&number, item) in self.items.range(after.saturating_add(1)..) {
            if bytes.len() + MAX_ITEM + 10 > room {
                through = last;
                break;
            }
            item.encode(now, &mut bytes);
            last = number;
        }
        put_varint(out, through);
        out.extend(bytes);
        through
    }
}

/// Copy of another balancer's notes, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Copy {
    stream: u32,
    applied: u64,
    /// Number of the other balancer's last note when its first sheet came, and when its latest
    /// sheet came.
    first: Option<u64>,
    head: u64,
    notes: BTreeMap<Key, Note>,
}

impl Copy {
    /// Hears a sheet; answers whether something is new in it.
    pub(crate) fn hears_news(&mut self, sheet: &NotesPart) -> bool {
        if sheet.stream != self.stream {
            // Another process, or one that has forgotten this one.
            *self = Copy {
                stream: sheet.stream,
                ..Copy::default()
            };
        }
        self.first.get_or_insert(sheet.head);
        self.head = self.head.max(sheet.head);
        sheet.from <= self.applied && sheet.through > self.applied
    }

    /// Takes over what is new in a sheet that has been heard, and confirms it or waits for it to be
    /// said again.
    pub(crate) fn take_part(&mut self, sheet: &NotesPart, confirms: bool) {
        for item in &sheet.items {
            match item {
                Item::Put(note) => {
                    let key = note.key();
                    if self.notes.len() < MAX_NOTES || self.notes.contains_key(&key) {
                        self.notes.insert(key, *note);
                    }
                }
                Item::Gone(key) => {
                    self.notes.remove(key);
                }
            }
        }
        if confirms {
            self.applied = sheet.through;
        }
    }

    /// Returns the row of sheets that the copy comes from, and the number up to which it is known.
    pub(crate) fn known_until(&self) -> (u32, u64) {
        (self.stream, self.applied)
    }

    /// Returns true if all is known that there was when the other balancer's first sheet came.
    pub(crate) fn is_whole(&self) -> bool {
        self.first.is_some_and(|first| self.applied >= first)
    }

    /// Returns true if all is known that there was when the other balancer's latest sheet came.
    pub(crate) fn is_current(&self) -> bool {
        self.applied >= self.head
    }

    /// The notes.
    pub(crate) fn list_notes(&self) -> impl Iterator<Item = &Note> {
        self.notes.values()
    }

    /// The members that are ejected, with their groups.
    pub(crate) fn ejections(&self) -> impl Iterator<Item = (u64, Ejection)> {
        let key = |end| Key::Ejection {
            group: end,
            member: end,
        };
        let all = self.notes.range(key(0)..=key(u64::MAX));
        all.filter_map(|(_, note)| match *note {
            Note::Ejection {
                group,
                member,
                until,
                requests,
                failures,
            } => {
                let ejection = Ejection {
                    member,
                    until,
                    requests,
                    failures,
                };
                Some((group, ejection))
            }
            _ => None,
        })
    }

    /// Returns the times that requests take at the members of a group, in microseconds.
    pub(crate) fn services(&self, of: u64) -> impl Iterator<Item = (u64, u32)> {
        let key = |member| Key::Service { group: of, member };
        let all = self.notes.range(key(0)..=key(u64::MAX));
        all.filter_map(|(_, note)| match *note {
            Note::Service { member, micros, .. } => Some((member, micros)),
            _ => None,
        })
    }

    /// Returns the number of requests in flight at a location.
    pub(crate) fn requests_at(&self, location: u64) -> u32 {
        match self.notes.get(&Key::Flight { location }) {
            Some(Note::Flight { count, .. }) => *count,
            _ => 0,
        }
    }

    /// Returns the claims in the copy: groups, and the epochs.
    pub(crate) fn claims(&self) -> impl Iterator<Item = (u64, u64)> {
        let key = |group| Key::Claim { group };
        let all = self.notes.range(key(0)..=key(u64::MAX));
        all.filter_map(|(_, note)| match *note {
            Note::Claim { group, epoch } => Some((group, epoch)),
            _ => None,
        })
    }

    /// The locations that a group has under alert by the decision of `of`, and since when.
    pub(crate) fn alerts(&self, of: u64, in_group: u64) -> impl Iterator<Item = (u64, Instant)> {
        let key = |location| Key::Alert {
            group: in_group,
            location,
        };
        let all = self.notes.range(key(0)..=key(u64::MAX));
        all.filter_map(move |(_, note)| match *note {
            Note::Alert {
                epoch,
                location,
                since,
                ..
            } if epoch == of => Some((location, since)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(group: u64, epoch: u64) -> Note {
        Note::Claim { group, epoch }
    }

    fn sheet(board: &Board, stream: u32, after: u64, room: usize) -> NotesPart {
        let head = NotesPart {
            stream,
            head: board.last_change(),
            from: after,
            ..NotesPart::default()
        };
        let mut bytes = Vec::new();
        head.encode_head(&mut bytes);
        board.write(after, room, Instant::ZERO, &mut bytes);
        NotesPart::decode(&bytes, Instant::ZERO).unwrap()
    }

    #[test]
    fn only_changes_are_sent() {
        let mut board = Board::default();
        assert_eq!(board.put_note(claim(1, 1)), 1);
        assert_eq!(board.put_note(claim(1, 1)), 1, "nothing new");
        assert_eq!(board.put_note(claim(2, 1)), 2);
        assert_eq!(board.put_note(claim(1, 2)), 3);
        assert_eq!(sheet(&board, 1, 0, 1000).items.len(), 2);
        assert_eq!(sheet(&board, 1, 2, 1000).items, [Item::Put(claim(1, 2))]);
        assert_eq!(board.repeat_note(Key::Claim { group: 2 }), Some(4));
        assert_eq!(board.remove(Key::Claim { group: 9 }), None);
        assert_eq!(board.remove(Key::Claim { group: 1 }), Some(5));
        let gone = Item::Gone(Key::Claim { group: 1 });
        assert_eq!(sheet(&board, 1, 4, 1000).items, [gone]);
        board.forget(4);
        assert_eq!(sheet(&board, 1, 4, 1000).items, [gone], "not all know");
        board.forget(5);
        assert_eq!(sheet(&board, 1, 4, 1000).items, []);
        assert_eq!(sheet(&board, 1, 4, 1000).through, 5);
    }

    proptest! {
        /// However notes change, and whichever datagrams get lost, come twice or late: a copy that
        /// has heard the last one is what the board says.
        #[test]
        fn copies_become_what_the_board_says(
            steps in proptest::collection::vec((0u64..12, 0u8..8, any::<u8>()), 1..200),
            room in 120usize..400,
        ) {
            let (mut board, mut copy) = (Board::default(), Copy::default());
            let mut on_its_way: Vec<NotesPart> = Vec::new();
            let mut acked = 0;
            for (number, (group, what, which)) in steps.into_iter().enumerate() {
                match what {
                    0..3 => { board.put_note(claim(group, number as u64)); }
                    3 => { board.remove(Key::Claim { group }); }
                    4 => on_its_way.push(sheet(&board, 7, acked, room)),
                    5 if !on_its_way.is_empty() => {
                        let which = usize::from(which) % on_its_way.len();
                        let sheet = &on_its_way[which];
                        if copy.hears_news(sheet) {
                            copy.take_part(sheet, !which.is_multiple_of(4));
                        }
                    }
                    6 => acked = copy.known_until().1,
                    _ => board.forget(acked),
                }
            }
            while copy.known_until().1 < board.last_change() {
                let sheet = sheet(&board, 7, copy.known_until().1, room);
                prop_assert!(copy.hears_news(&sheet));
                copy.take_part(&sheet, true);
            }
            prop_assert!(copy.is_whole() || board.last_change() == 0);
            let mut said: Vec<Note> = board.list_notes().copied().collect();
            said.sort_by_key(Note::key);
            let known: Vec<Note> = copy.list_notes().copied().collect();
            prop_assert_eq!(known, said);
            // Another process there: nothing of the old one is left.
            let fresh = NotesPart { stream: 8, ..NotesPart::default() };
            prop_assert!(!copy.hears_news(&fresh));
            prop_assert_eq!(copy.list_notes().count(), 0);
        }
    }
}
