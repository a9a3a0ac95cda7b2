//! Log of the prompts that were sent to members lately, for the other balancers of a fleet.
//!
//! Workers write without a lock, one behind the other into a ring of words; one reader takes what is new. A reader that is
//! too slow loses all that waits, and nobody waits for it. A record is a word with its place and length, a word with member
//! and tokens, and the hashes of the prompt's blocks. A worker that is overtaken by a whole ring may leave hashes of its prompt
//! in another one's record: a wrong guess of what a member holds, as others that answers correct.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Words of the ring: 1 MiB.
const WORDS: usize = 1 << 17;

/// Words before the hashes of a record.
const HEAD: usize = 2;

/// Bits of a record's first word that have its length.
const LENGTH_BITS: u32 = 16;

/// Bits of a record's second word that have its tokens.
const TOKEN_BITS: u32 = 32;

/// Log of a group.
#[derive(Debug)]
pub struct SentPrompts {
    words: Box<[AtomicU64]>,
    /// Words that were given to records since the begin.
    given: AtomicU64,
    /// Words that were read.
    taken: AtomicU64,
    /// True if there is a reader.
    is_followed: AtomicBool,
}

/// Prompt that was sent to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPrompt {
    /// Number of the member.
    pub member: usize,
    /// Tokens of the prompt that the member has to read.
    pub unread_tokens: u32,
    /// Hashes of the prompt's blocks.
    pub links: Vec<u64>,
}

/// Result of reading the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenPrompts {
    /// Prompts in their order.
    pub prompts: Vec<SentPrompt>,
    /// True if others were lost, as the reader was too slow.
    pub has_lost: bool,
}

impl Default for SentPrompts {
    fn default() -> Self {
        SentPrompts {
            words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            given: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            is_followed: AtomicBool::new(true),
        }
    }
}

impl SentPrompts {
    /// Notes a prompt if there is a reader. Without a block there is nothing to tell.
    pub(crate) fn note_prompt(&self, links: &[u64], member: usize, unread_tokens: u32) {
        if !self.is_followed.load(Ordering::Relaxed) {
            return;
        }
        if links.is_empty() || links.len() > WORDS / 4 || links.len() >= 1 << LENGTH_BITS {
            return;
        }
        let length = (HEAD + links.len()) as u64;
        let at = self.given.fetch_add(length, Ordering::Relaxed);
        // The reader that sees one of the words below sees that their place was given.
        fence(Ordering::Release);
        let fact = (member as u64) << TOKEN_BITS | u64::from(unread_tokens);
        let words = std::iter::once(fact).chain(links.iter().copied());
        for (place, word) in (at + 1..).zip(words) {
            self.store(place, word, Ordering::Relaxed);
        }
        self.store(at, first_word(at, links.len()), Ordering::Release);
    }

    /// Takes the prompts that were noted since the last call, `most` at most. There is one reader.
    pub fn take_prompts(&self, most: usize) -> TakenPrompts {
        self.is_followed.store(true, Ordering::Relaxed);
        let mut result = TakenPrompts::default();
        let mut at = self.taken.load(Ordering::Relaxed);
        while result.prompts.len() < most && at < self.given.load(Ordering::Acquire) {
            let Some(prompt) = self.read_record(at) else {
                break;
            };
            at += (HEAD + prompt.links.len()) as u64;
            result.prompts.push(prompt);
        }
        // The words were read before this look at what was given.
        fence(Ordering::Acquire);
        let given = self.given.load(Ordering::Relaxed);
        // What was written over while it was read is nothing any more. A record that is not whole yet is waited for, unless
        // half a ring is behind it.
        let behind = given.wrapping_sub(self.taken.load(Ordering::Relaxed)) as usize;
        let is_stuck = result.prompts.len() < most && given.wrapping_sub(at) as usize > WORDS / 2;
        if behind > WORDS || is_stuck {
            result = TakenPrompts {
                prompts: Vec::new(),
                has_lost: true,
            };
            at = given;
        }
        self.taken.store(at, Ordering::Relaxed);
        result
    }

    /// Forgets what was not taken, and notes no prompts until they are taken again: nobody is there to be told.
    pub(crate) fn stop_following(&self) {
        self.is_followed.store(false, Ordering::Relaxed);
        let given = self.given.load(Ordering::Acquire);
        self.taken.store(given, Ordering::Relaxed);
    }

    /// Reads the record at a place; `None` if it is not written yet.
    fn read_record(&self, at: u64) -> Option<SentPrompt> {
        let first = self.load(at, Ordering::Acquire);
        let length = (first & ((1 << LENGTH_BITS) - 1)) as usize;
        if first != first_word(at, length) {
            return None;
        }
        let fact = self.load(at + 1, Ordering::Relaxed);
        let links = (at + HEAD as u64..).take(length);
        Some(SentPrompt {
            member: (fact >> TOKEN_BITS) as usize,
            unread_tokens: fact as u32,
            links: links
                .map(|place| self.load(place, Ordering::Relaxed))
                .collect(),
        })
    }

    fn word(&self, place: u64) -> Option<&AtomicU64> {
        self.words.get(place as usize % WORDS)
    }

    fn load(&self, place: u64, order: Ordering) -> u64 {
        self.word(place).map_or(0, |word| word.load(order))
    }

    fn store(&self, place: u64, value: u64, order: Ordering) {
        if let Some(word) = self.word(place) {
            word.store(value, order);
        }
    }
}

/// First word of a record: no word that was there before, nor zero.
fn first_word(at: u64, length: usize) -> u64 {
    (at + 1) << LENGTH_BITS | length as u64
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn links(from: u64, count: usize) -> Vec<u64> {
        (from..).take(count).collect()
    }

    #[test]
    fn prompts_are_taken_once_in_their_order() {
        let log = SentPrompts::default();
        assert_eq!(log.take_prompts(9), TakenPrompts::default());
        log.note_prompt(&links(1, 3), 7, u32::MAX);
        log.note_prompt(&[], 7, 1);
        log.note_prompt(&links(5, 1), 1023, 0);
        let taken = log.take_prompts(1);
        assert_eq!(taken.prompts[0].member, 7);
        assert_eq!(taken.prompts[0].unread_tokens, u32::MAX);
        assert_eq!(taken.prompts[0].links, [1, 2, 3]);
        let taken = log.take_prompts(9);
        assert_eq!((taken.prompts.len(), taken.has_lost), (1, false));
        assert_eq!(taken.prompts[0].member, 1023);
        log.note_prompt(&links(1, 3), 7, 5);
        assert_eq!(log.take_prompts(0), TakenPrompts::default());
        assert_eq!(log.take_prompts(9).prompts.len(), 1);
        log.note_prompt(&links(1, 3), 7, 5);
        log.stop_following();
        log.note_prompt(&links(1, 3), 7, 5);
        assert_eq!(log.take_prompts(9), TakenPrompts::default());
        log.note_prompt(&links(8, 3), 7, 5);
        assert_eq!(log.take_prompts(9).prompts.len(), 1);
    }

    #[test]
    fn a_reader_that_is_too_slow_loses_prompts_and_goes_on() {
        let log = SentPrompts::default();
        let mut told = 0;
        for round in 0..50u64 {
            let count = if round % 3 == 2 { 1400 } else { 600 };
            for number in 0..count {
                log.note_prompt(&links(round * 10_000 + number, 100), 3, number as u32);
            }
            let taken = log.take_prompts(usize::MAX);
            assert_eq!(taken.has_lost, count > 1300, "{round}");
            told += taken.prompts.len();
            for (prompt, number) in taken.prompts.iter().zip(0..) {
                assert_eq!(prompt.links, links(round * 10_000 + number, 100));
            }
        }
        assert_eq!(told, 34 * 600);
    }

    #[test]
    fn workers_write_side_by_side() {
        let log = SentPrompts::default();
        let (workers, each) = (4, 5_000u64);
        let mut seen = vec![0; workers];
        thread::scope(|scope| {
            let log = &log;
            for worker in 0..workers {
                scope.spawn(move || {
                    for number in 0..each {
                        let from = (worker as u64) << 40 | number << 8;
                        log.note_prompt(
                            &links(from, 1 + number as usize % 5),
                            worker,
                            number as u32,
                        );
                        // The ring has room for some thousands of these: the reader keeps up.
                        while log.given.load(Ordering::Relaxed) - log.taken.load(Ordering::Relaxed)
                            > WORDS as u64 / 4
                        {
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut next = vec![0; workers];
            while seen.iter().sum::<u64>() < workers as u64 * each {
                let taken = log.take_prompts(100);
                assert!(!taken.has_lost);
                for prompt in taken.prompts {
                    // Each worker's prompts come in its order, and none is torn.
                    let (worker, number) = (prompt.member, u64::from(prompt.unread_tokens));
                    assert_eq!(number, next[worker]);
                    let from = (worker as u64) << 40 | number << 8;
                    assert_eq!(prompt.links, links(from, 1 + number as usize % 5));
                    next[worker] += 1;
                    seen[worker] += 1;
                }
            }
        });
    }
}
