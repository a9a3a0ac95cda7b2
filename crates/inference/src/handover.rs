//! Hand-over of what is learnt of a group to the process that takes the place of this one.
//!
//! The index is a table of entries: words of the four holders of a block, 32 bytes. Frames of at most
//! [`FRAME_ENTRIES`] entries follow each other, each with their number and a checksum; a frame without entries is the
//! end. Entries name their block, so the new process may have an index of another size. Members have other numbers
//! there: the reader translates them, and leaves out holders that are gone.
//!
//! Workers go on with their requests while the index is read, so the copy is a little old, and an entry that a worker
//! has just written may belong to no block. Neither matters: answers correct what is expected of members.
//!
//! All words are hostile here: each is brought into its range before it counts.

use std::io::{self, ErrorKind, Read, Write};

use crate::group::EngineGroup;
use crate::index::{Entry, Index};
use crate::memory::MEMORY_WORDS;
use crate::speed::SPEED_WORDS;

/// Most entries of a frame: 64 KiB.
pub const FRAME_ENTRIES: usize = 2048;

/// Sets of the index that are read for a frame: each has 8 entries at most.
const FRAME_SETS: usize = FRAME_ENTRIES / 8;

/// Bytes of a frame's head: number of entries, and checksum.
const HEAD_BYTES: usize = 16;

const ENTRY_BYTES: usize = 32;

/// Words that are learnt of a member.
pub const MEMBER_WORDS: usize = MEMORY_WORDS + SPEED_WORDS;

/// Copy of an index: number of entries, and whether all of them are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiedEntries {
    /// Number of entries.
    pub entries: u64,
    /// True if the time was long enough for all entries.
    pub is_complete: bool,
}

/// Writes the entries of an index while `has_time` says so.
///
/// # Errors
///
/// The writer's.
pub fn write_index(
    index: &Index,
    to: &mut impl Write,
    mut has_time: impl FnMut() -> bool,
) -> io::Result<CopiedEntries> {
    let mut copied = CopiedEntries {
        is_complete: true,
        ..CopiedEntries::default()
    };
    let mut frame: Vec<Entry> = Vec::with_capacity(FRAME_ENTRIES);
    for first in (0..index.set_count()).step_by(FRAME_SETS) {
        if !has_time() {
            copied.is_complete = false;
            break;
        }
        frame.clear();
        index.collect_entries(first, FRAME_SETS, &mut frame);
        if !frame.is_empty() {
            copied.entries += frame.len() as u64;
            write_frame(&frame, to)?;
        }
    }
    write_frame(&[], to)?;
    Ok(copied)
}

/// Reads entries into an index while `has_time` says so. `numbers` has the new number of each member.
///
/// # Errors
///
/// The reader's, or the bytes are no frames. Entries before that have been taken.
pub fn read_index(
    index: &Index,
    from: &mut impl Read,
    numbers: &[Option<u16>],
    mut has_time: impl FnMut() -> bool,
) -> io::Result<CopiedEntries> {
    let mut copied = CopiedEntries::default();
    let mut bytes = Vec::new();
    while has_time() {
        let frame = read_frame(from, &mut bytes)?;
        if frame.is_empty() {
            copied.is_complete = true;
            break;
        }
        let (entries, _) = frame.as_chunks::<ENTRY_BYTES>();
        for entry in entries {
            let (words, _) = entry.as_chunks::<8>();
            let mut held = Entry::default();
            for (to, from) in held.iter_mut().zip(words) {
                *to = u64::from_le_bytes(*from);
            }
            copied.entries += u64::from(index.restore_entry(held, numbers));
        }
    }
    Ok(copied)
}

fn write_frame(entries: &[Entry], to: &mut impl Write) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + entries.len() * ENTRY_BYTES);
    bytes.extend((entries.len() as u64).to_le_bytes());
    bytes.extend([0; 8]);
    for word in entries.iter().flatten() {
        bytes.extend(word.to_le_bytes());
    }
    let sum = sum_words(bytes.get(HEAD_BYTES..).unwrap_or_default());
    if let Some(place) = bytes.get_mut(8..HEAD_BYTES) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    to.write_all(&bytes)
}

/// Reads the entries of a frame into `bytes`.
fn read_frame<'a>(from: &mut impl Read, bytes: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    let (mut count, mut sum) = ([0; 8], [0; 8]);
    from.read_exact(&mut count)?;
    from.read_exact(&mut sum)?;
    let count = usize::try_from(u64::from_le_bytes(count)).unwrap_or(usize::MAX);
    if count > FRAME_ENTRIES {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "a frame is too long",
        ));
    }
    bytes.resize(count * ENTRY_BYTES, 0);
    from.read_exact(bytes)?;
    if sum_words(bytes) != u64::from_le_bytes(sum) {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "the checksum of a frame is wrong",
        ));
    }
    Ok(bytes)
}

/// Checksum of words: shows a change of any word, and their order.
fn sum_words(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let first = 0x6576_656e_6b65_656c ^ bytes.len() as u64;
    words.iter().fold(first, |sum, word| {
        let mixed = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.rotate_left(29)
    })
}

impl EngineGroup {
    /// Words that are learnt of a member: memory and speeds.
    pub fn export_member(&self, member: usize) -> Option<[u64; MEMBER_WORDS]> {
        let memory = self.member_memories().get(member)?.export_words();
        let speed = self.member_speeds().get(member)?.export_words();
        let mut words = [0; MEMBER_WORDS];
        for (to, from) in words.iter_mut().zip(memory.into_iter().chain(speed)) {
            *to = from;
        }
        Some(words)
    }

    /// Restores the words that another process has learnt of a member. Others than [`MEMBER_WORDS`] words change nothing.
    pub fn import_member(&self, member: usize, words: &[u64]) {
        let (Some(memory), Some(speed)) = (
            self.member_memories().get(member),
            self.member_speeds().get(member),
        ) else {
            return;
        };
        if let Ok(words) = <&[u64; MEMBER_WORDS]>::try_from(words)
            && let Some((of_memory, of_speed)) = words.split_first_chunk()
            && let Ok(of_speed) = of_speed.try_into()
        {
            memory.import_words(of_memory);
            speed.import_words(of_speed);
        }
    }

    /// Words that are learnt of all members together: usual speeds, and tokens of models.
    pub fn export_shared(&self) -> Vec<u64> {
        let mut words = self.usual_speed().export_words().to_vec();
        words.extend(self.token_figures().export_words());
        words
    }

    /// Restores the words that another process has learnt of all members together.
    pub fn import_shared(&self, words: &[u64]) {
        if let Some((usual, tokens)) = words.split_first_chunk() {
            self.usual_speed().import_words(usual);
            self.token_figures().import_words(tokens);
        }
    }
}

#[cfg(test)]
mod tests;
