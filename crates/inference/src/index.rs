//! Index of blocks: which members are believed to hold which block of which prompt.
//!
//! One table for a group, of a fixed size, without locks. An *entry* has the fingerprint of a block (its
//! [hash](crate::chain), 64 bits) and four *holders*, each with a member's number and a [stamp](crate::memory). Each of
//! the four words of an entry has a quarter of the fingerprint beside the holder, so that an entry that two workers
//! write at the same time matches no block instead of a wrong one. Eight entries make a set. In a full set, the entry
//! whose holders have nearly or quite forgotten it is replaced. A block that four members hold, as the first one of a
//! prompt that everybody uses, continues in a further entry, up to [`MAX_HOLDERS`].
//!
//! A request that is sent to a member stamps all its blocks, so a member holds the beginning of what it holds: the
//! longest known prefix of each member is found by doubling and halving.

use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromZeros;

use crate::memory::{MemberMemory, MemoryMoment, Prediction};

/// Most holders of a block.
pub const MAX_HOLDERS: usize = HOLDERS * LEVELS;

/// Most members that a look-up tells apart.
pub const MAX_MATCHES: usize = 32;

/// Highest number of a member, plus 1.
pub const MAX_MEMBERS: usize = u16::MAX as usize;

/// Holders of an entry.
const HOLDERS: usize = 4;

/// Entries of a set: a row of them is a cache line.
const WAYS: usize = 8;

/// Entries of a block.
const LEVELS: usize = 4;

/// Most blocks at which a look-up looks.
const MAX_PROBES: usize = 128;

/// Blocks whose sets are loaded together when a chain is recorded: 4 KiB, which fit into the first cache.
const BATCH: usize = 16;

/// Bytes of a set.
const SET_BYTES: usize = SET_WORDS * size_of::<u64>();

/// Words of a set.
const SET_WORDS: usize = WAYS * HOLDERS;

/// Most sets: 4 GiB.
const MAX_SETS: usize = 1 << 24;

/// Words of an entry, one for each holder.
pub(crate) type Entry = [u64; HOLDERS];

/// Eight entries, a row for each holder. A look-up of a block that is unknown reads the first row.
#[derive(Clone, Copy, Debug)]
struct Set<'a> {
    rows: &'a [[AtomicU64; WAYS]; HOLDERS],
}

/// Index of a group.
#[derive(Debug)]
pub struct Index {
    /// Words of all sets, and some more. The system has given zeros, which take memory page by page as they are written:
    /// an index of which nothing is used takes none.
    words: Box<[AtomicU64]>,
    /// First word of the first set: a row is a cache line.
    start: usize,
    /// Number of sets, a power of two.
    set_count: usize,
}

/// Holder of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holder {
    member: u16,
    stamp: u32,
}

/// Holders of a block, as recorded: some may have forgotten it.
#[derive(Clone, Copy, Debug)]
struct Holders {
    list: [Holder; MAX_HOLDERS],
    count: usize,
}

/// Number of blocks that a member is believed to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The member's number.
    pub member: u16,
    /// Blocks from the beginning of the prompt, at least 1.
    pub blocks: u32,
    /// Blocks that the member is believed not to hold, plus 1: known while the search goes on.
    end: u32,
}

/// Result of a look-up. Members that are not in the list hold nothing.
#[derive(Clone, Copy, Debug)]
pub struct Matches {
    list: [Match; MAX_MATCHES],
    count: usize,
}

impl Matches {
    /// Result in which nobody holds anything.
    pub const NONE: Matches = Matches {
        list: [Match {
            member: 0,
            blocks: 0,
            end: 0,
        }; MAX_MATCHES],
        count: 0,
    };

    /// The members that hold something.
    pub fn as_slice(&self) -> &[Match] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// Blocks that a member is believed to hold.
    #[inline]
    pub fn blocks_of(&self, member: usize) -> usize {
        let mut found = self.as_slice().iter();
        let found = found.find(|one| usize::from(one.member) == member);
        found.map_or(0, |found| found.blocks as usize)
    }

    /// True if nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes in who holds block number `block` of `all`, counted from 1.
    fn add_probe(&mut self, block: usize, all: usize, holders: impl Iterator<Item = u16> + Clone) {
        let (block, all) = (block as u32, all as u32);
        let known = self.list.iter_mut().take(self.count);
        for one in known {
            match holders.clone().any(|holder| holder == one.member) {
                true => one.blocks = one.blocks.max(block),
                false => one.end = one.end.min(block),
            }
        }
        for member in holders {
            let is_known = self.as_slice().iter().any(|one| one.member == member);
            if !is_known && let Some(free) = self.list.get_mut(self.count) {
                *free = Match {
                    member,
                    blocks: block,
                    end: all + 1,
                };
                self.count += 1;
            }
        }
    }

    /// A block at which somebody may or may not be a holder.
    fn next_probe(&self) -> Option<usize> {
        let mut open = self.as_slice().iter();
        let open = open.find(|one| one.blocks + 1 < one.end)?;
        Some((open.blocks + (open.end - open.blocks) / 2) as usize)
    }
}

impl Index {
    /// Creates an index that uses about this much memory: 32 bytes for each block.
    pub fn new(bytes: usize) -> Self {
        let sets = (bytes / SET_BYTES).clamp(1, MAX_SETS);
        let sets = (sets / 2 + 1).next_power_of_two();
        let count = sets * SET_WORDS + WAYS;
        // Without room for all of them, this asks again, and ends the process as every allocation does.
        let words = <[AtomicU64]>::new_box_zeroed_with_elems(count)
            .unwrap_or_else(|_| (0..count).map(|_| AtomicU64::new(0)).collect());
        // More than `WAYS` words are never needed; without an answer, rows are no cache lines.
        let start = words.as_ptr().align_offset(WAYS * size_of::<u64>());
        Index {
            start: if start < WAYS { start } else { 0 },
            words,
            set_count: sets,
        }
    }

    /// Bytes of the table.
    pub fn memory_bytes(&self) -> usize {
        self.set_count * SET_BYTES
    }

    /// Records that a member holds all blocks of a chain from now on. `stamp` is what
    /// [`MemberMemory::advance_clock`] has returned. Members beyond [`MAX_MEMBERS`] are not recorded.
    pub fn record_chain(&self, links: &[u64], member: usize, stamp: u32, members: &[MemberMemory]) {
        let Some(member) = u16::try_from(member).ok().filter(|id| *id < u16::MAX) else {
            return;
        };
        for batch in links.chunks(BATCH) {
            self.load_sets(batch);
            for link in batch {
                self.record_block(*link, Holder { member, stamp }, members);
            }
        }
    }

    /// Loads the sets of some blocks into the processor's cache. The loads wait for memory side by side, where
    /// recording one block after the other would wait for each.
    fn load_sets(&self, links: &[u64]) {
        let sets = links.iter().filter_map(|link| self.set_of(*link));
        let rows = sets.flat_map(|set| set.rows);
        let words = rows.filter_map(|row| row.first());
        let sum = words.fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed));
        std::hint::black_box(sum);
    }

    /// Finds for each member how many of the chain's blocks it is believed to hold.
    ///
    /// Looks at 1 block if the first one is unknown, at about 20 for a long conversation, and at 128 at most.
    pub fn find_matches(&self, links: &[u64], members: &[MemberMemory]) -> Matches {
        self.search(links, |holder| {
            let memory = members.get(usize::from(holder.member));
            memory.is_some_and(|memory| memory.read_moment().holds_block(holder.stamp))
        })
    }

    /// Expectation of what a member remembers of a chain; `tokens_before` gives the tokens of a number of blocks.
    pub fn predict_memory(
        &self,
        links: &[u64],
        member: usize,
        members: &[MemberMemory],
        tokens_before: impl Fn(usize) -> f32,
    ) -> Prediction {
        let Some(memory) = members.get(member) else {
            return Prediction::default();
        };
        let moment = memory.read_moment();
        let count = |is_held: fn(&MemoryMoment, u32) -> bool| {
            let matches = self.search(links, |holder| {
                usize::from(holder.member) == member && is_held(&moment, holder.stamp)
            });
            matches.blocks_of(member)
        };
        let blocks = [
            count(MemoryMoment::holds_block),
            count(MemoryMoment::may_hold_block),
        ];
        self.predict_blocks(links, member, &moment, blocks, tokens_before)
    }

    /// Expectations of what members remember of a chain, of each member that has read a part of the chain. `matches` are
    /// the members that are believed to hold something.
    pub fn predict_members(
        &self,
        links: &[u64],
        matches: &Matches,
        members: &[MemberMemory],
        tokens_before: impl Fn(usize) -> f32,
        mut take: impl FnMut(u16, &MemberMemory, &Prediction),
    ) {
        let recorded = self.search(links, |holder| {
            let memory = members.get(usize::from(holder.member));
            memory.is_some_and(|memory| memory.read_moment().may_hold_block(holder.stamp))
        });
        // Members that have forgotten the beginning may fill the list: those that hold it come first.
        let holding = matches.as_slice().iter();
        let others = recorded.as_slice().iter();
        let others = others.filter(|one| matches.blocks_of(usize::from(one.member)) == 0);
        for one in holding.chain(others) {
            let member = usize::from(one.member);
            let Some(memory) = members.get(member) else {
                continue;
            };
            let held = matches.blocks_of(member);
            let blocks = [held, recorded.blocks_of(member).max(held)];
            let moment = memory.read_moment();
            let prediction = self.predict_blocks(links, member, &moment, blocks, &tokens_before);
            take(one.member, memory, &prediction);
        }
    }

    /// Expectation of what a member remembers of a chain, of which it is believed to hold the first number of blocks, and
    /// has recorded the second one.
    fn predict_blocks(
        &self,
        links: &[u64],
        member: usize,
        moment: &MemoryMoment,
        [held, recorded]: [usize; 2],
        tokens_before: impl Fn(usize) -> f32,
    ) -> Prediction {
        let read_age = |blocks: usize| {
            let last = blocks.checked_sub(1).and_then(|last| links.get(last));
            let holders = last.map(|link| self.read_holders(*link));
            let age = holders.and_then(|holders| {
                let its = holders
                    .iter()
                    .filter(|holder| usize::from(holder.member) == member);
                its.map(|holder| moment.age_tokens(holder.stamp)).min()
            });
            age.unwrap_or(0)
        };
        let age = read_age(held);
        Prediction {
            tokens: tokens_before(held),
            recorded_tokens: tokens_before(recorded),
            age,
            recorded_age: match recorded == held {
                true => age,
                false => read_age(recorded),
            },
            queued_tokens: 0,
        }
    }

    /// Clears entries whose holders have all forgotten them, in `count` sets from `first` on; returns the set to go on
    /// with. If all sets are swept at least once while a member reads 2^34 tokens, no stamp can look newer than it is.
    pub fn sweep_sets(&self, first: usize, count: usize, members: &[MemberMemory]) -> usize {
        let first = if first < self.set_count { first } else { 0 };
        for set in self.iter_sets(first, count) {
            for way in 0..WAYS {
                if set.relative_age(way, members, MemoryMoment::may_hold_block) == u64::MAX {
                    let words = set.rows.iter().filter_map(|row| row.get(way));
                    // What is written takes memory.
                    let used = words.filter(|word| word.load(Ordering::Relaxed) != 0);
                    used.for_each(|word| word.store(0, Ordering::Relaxed));
                }
            }
        }
        (first + count) % self.set_count.max(1)
    }

    /// Number of sets.
    pub fn set_count(&self) -> usize {
        self.set_count
    }

    /// Sets from `first` on, `count` at most.
    fn iter_sets(&self, first: usize, count: usize) -> impl Iterator<Item = Set<'_>> {
        let last = first.saturating_add(count).min(self.set_count);
        (first..last).filter_map(|number| self.find_set(number))
    }

    /// The set with a number.
    #[inline]
    fn find_set(&self, number: usize) -> Option<Set<'_>> {
        let (rows, _) = self.words.get(self.start..)?.as_chunks::<WAYS>();
        let rows = rows.get(number * HOLDERS..)?.first_chunk::<HOLDERS>()?;
        Some(Set { rows })
    }

    /// Collects the entries with a holder of `count` sets from `first` on, for the process that takes the place of
    /// this one.
    pub(crate) fn collect_entries(&self, first: usize, count: usize, into: &mut Vec<Entry>) {
        for set in self.iter_sets(first, count) {
            for way in 0..WAYS {
                let entry = set.load_entry(way);
                if entry.iter().any(|word| read_holder(*word).is_some()) {
                    into.push(entry);
                }
            }
        }
    }

    /// Restores an entry of another process, if there is room for it. `numbers` has the new number of each member;
    /// holders without one are left out. Returns true if the entry is in the index now.
    pub(crate) fn restore_entry(&self, entry: Entry, numbers: &[Option<u16>]) -> bool {
        let link = link_of_entry(&entry);
        let translate = |(word, row): (u64, usize)| {
            let holder = read_holder(word)?;
            let member = (*numbers.get(usize::from(holder.member))?)?;
            let member = Some(member).filter(|member| *member < u16::MAX)?;
            Some(to_word(link, row, Holder { member, ..holder }))
        };
        let mut holders = entry.into_iter().zip(0..).map(translate);
        let holders: [Option<u64>; HOLDERS] = std::array::from_fn(|_| holders.next().flatten());
        let Some(set) = self.set_of(link) else {
            return false;
        };
        let is_free = |way: &usize| {
            set.load_entry(*way)
                .iter()
                .all(|word| read_holder(*word).is_none())
        };
        // A fingerprint of 0 would match places that are free.
        if link == 0 || holders == [None; HOLDERS] || set.find_way(link).is_some() {
            return false;
        }
        let Some(way) = (0..WAYS).find(is_free) else {
            return false;
        };
        for ((row, number), word) in set.rows.iter().zip(0..).zip(holders) {
            if let Some(to) = row.get(way) {
                to.store(word.unwrap_or(quarter(link, number)), Ordering::Relaxed);
            }
        }
        true
    }

    fn search(&self, links: &[u64], mut is_held: impl FnMut(Holder) -> bool) -> Matches {
        let mut matches = Matches::NONE;
        let mut probe = |block: usize, matches: &mut Matches| {
            let link = block.checked_sub(1).and_then(|index| links.get(index));
            let (mut held, mut count) = ([0; MAX_HOLDERS], 0);
            if let Some(link) = link {
                let holders = self.read_holders(*link);
                for holder in holders.iter().filter(|holder| is_held(*holder)) {
                    if let Some(free) = held.get_mut(count) {
                        *free = holder.member;
                        count += 1;
                    }
                }
            }
            matches.add_probe(block, links.len(), held.into_iter().take(count));
            count > 0
        };
        let mut probes = 0;
        let mut block = 1;
        while block <= links.len() && probes < MAX_PROBES {
            probes += 1;
            if !probe(block, &mut matches) {
                break;
            }
            block *= 2;
        }
        while let Some(block) = matches.next_probe()
            && probes < MAX_PROBES
        {
            probes += 1;
            probe(block, &mut matches);
        }
        matches
    }

    fn set_of(&self, link: u64) -> Option<Set<'_>> {
        // The number of sets is a power of two.
        self.find_set(link as usize & (self.set_count - 1))
    }

    fn read_holders(&self, link: u64) -> Holders {
        let mut found = Holders {
            list: [Holder::default(); MAX_HOLDERS],
            count: 0,
        };
        for level in 0..LEVELS {
            let link = link_of_level(link, level);
            let Some(words) = self.set_of(link).and_then(|set| set.read_entry(link)) else {
                break;
            };
            let before = found.count;
            for holder in words.into_iter().filter_map(read_holder) {
                if let Some(free) = found.list.get_mut(found.count) {
                    *free = holder;
                    found.count += 1;
                }
            }
            if found.count - before < HOLDERS {
                break;
            }
        }
        found
    }

    fn record_block(&self, link: u64, holder: Holder, members: &[MemberMemory]) {
        for level in 0..LEVELS {
            let link = link_of_level(link, level);
            let Some(set) = self.set_of(link) else { return };
            let Some(way) = set.find_way(link) else {
                set.replace_oldest(link, holder, members);
                return;
            };
            if set.add_holder(way, link, holder, members, level + 1 == LEVELS) {
                return;
            }
        }
    }
}

impl Holders {
    fn iter(&self) -> impl Iterator<Item = Holder> {
        self.list.into_iter().take(self.count)
    }
}

/// Fingerprint of a block's entry at a level; never 0.
fn link_of_level(link: u64, level: usize) -> u64 {
    let link = link.wrapping_add((level as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    link.max(1)
}

/// The quarter of a fingerprint that is in this row, at its place in the word.
fn quarter(link: u64, row: usize) -> u64 {
    (link << (16 * (row as u32 & 3))) & QUARTER
}

const QUARTER: u64 = 0xffff << 48;

fn to_word(link: u64, row: usize, holder: Holder) -> u64 {
    quarter(link, row) | ((u64::from(holder.member) + 1) << 32) | u64::from(holder.stamp)
}

fn read_holder(word: u64) -> Option<Holder> {
    let member = ((word >> 32) as u16).checked_sub(1)?;
    Some(Holder {
        member,
        stamp: word as u32,
    })
}

/// Fingerprint of an entry's block.
fn link_of_entry(entry: &Entry) -> u64 {
    let quarters = entry.iter().zip(0..);
    quarters.fold(0, |link, (word, row)| {
        link | ((word & QUARTER) >> (16 * row))
    })
}

impl Set<'_> {
    /// Words of the entry at a place.
    fn load_entry(&self, way: usize) -> Entry {
        let mut entry = Entry::default();
        for (to, row) in entry.iter_mut().zip(self.rows) {
            *to = row.get(way).map_or(0, |word| word.load(Ordering::Relaxed));
        }
        entry
    }

    /// The entry of a block.
    fn find_way(&self, link: u64) -> Option<usize> {
        let [first, rest @ ..] = self.rows;
        (0..WAYS).find(|way| {
            let is_equal = |row: &[AtomicU64; WAYS], number: usize| {
                let word = row.get(*way).map_or(0, |word| word.load(Ordering::Relaxed));
                word & QUARTER == quarter(link, number)
            };
            is_equal(first, 0)
                && rest
                    .iter()
                    .zip(1..)
                    .all(|(row, number)| is_equal(row, number))
        })
    }

    fn read_entry(&self, link: u64) -> Option<[u64; HOLDERS]> {
        let way = self.find_way(link)?;
        let mut words = [0; HOLDERS];
        for ((row, number), to) in self.rows.iter().zip(0..).zip(&mut words) {
            let word = row.get(way)?.load(Ordering::Relaxed);
            // Another worker may have replaced the entry meanwhile.
            if word & QUARTER != quarter(link, number) {
                return None;
            }
            *to = word;
        }
        Some(words)
    }

    /// Adds a holder to an entry: at the place of the same member, or at a free one, or at one whose member has
    /// forgotten the block, or (if `must`) at that of the oldest. Returns false if there is no such place.
    fn add_holder(
        &self,
        way: usize,
        link: u64,
        holder: Holder,
        members: &[MemberMemory],
        must: bool,
    ) -> bool {
        let mut place: Option<(usize, u64)> = None;
        for (number, row) in self.rows.iter().enumerate() {
            let Some(word) = row.get(way) else {
                return true;
            };
            let known = read_holder(word.load(Ordering::Relaxed));
            if known.is_some_and(|known| known.member == holder.member) {
                word.store(to_word(link, number, holder), Ordering::Relaxed);
                return true;
            }
            let age = known.map_or(u64::MAX, |known| {
                relative_age(known, members, MemoryMoment::holds_block)
            });
            if place.is_none_or(|(_, oldest)| age > oldest) {
                place = Some((number, age));
            }
        }
        let Some((number, age)) = place else {
            return true;
        };
        if !must && age < u64::MAX {
            return false;
        }
        if let Some(word) = self.rows.get(number).and_then(|row| row.get(way)) {
            word.store(to_word(link, number, holder), Ordering::Relaxed);
        }
        true
    }

    /// Puts a new entry at the place of the oldest one. A block beyond the span may still be in the engine's cache: its entry
    /// stays as long as there is a free place.
    fn replace_oldest(&self, link: u64, holder: Holder, members: &[MemberMemory]) {
        let (mut place, mut oldest) = (0, None);
        for way in 0..WAYS {
            let age = self.relative_age(way, members, MemoryMoment::may_hold_block);
            if oldest.is_none_or(|oldest| age > oldest) {
                (place, oldest) = (way, Some(age));
            }
            if age == u64::MAX {
                break;
            }
        }
        for (number, row) in self.rows.iter().enumerate() {
            let word = match number {
                0 => to_word(link, number, holder),
                _ => quarter(link, number),
            };
            if let Some(to) = row.get(place) {
                to.store(word, Ordering::Relaxed);
            }
        }
    }

    /// Relative age of the entry's youngest holder; the highest number if none holds the block any more.
    fn relative_age(
        &self,
        way: usize,
        members: &[MemberMemory],
        is_held: fn(&MemoryMoment, u32) -> bool,
    ) -> u64 {
        let words = self.rows.iter().filter_map(|row| row.get(way));
        let holders = words.filter_map(|word| read_holder(word.load(Ordering::Relaxed)));
        let ages = holders.map(|holder| relative_age(holder, members, is_held));
        ages.min().unwrap_or(u64::MAX)
    }
}

/// Age of a holder's stamp in units of 1/1024 of its span; the highest number if the member does not hold the block.
fn relative_age(
    holder: Holder,
    members: &[MemberMemory],
    is_held: fn(&MemoryMoment, u32) -> bool,
) -> u64 {
    let moment = members.get(usize::from(holder.member));
    let moment = moment.map(MemberMemory::read_moment);
    match moment.filter(|moment| is_held(moment, holder.stamp)) {
        Some(moment) => moment.relative_age(holder.stamp),
        None => u64::MAX,
    }
}

#[cfg(test)]
mod tests;
