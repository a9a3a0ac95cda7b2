//! Cache of an engine: blocks of prompts, and blocks in which requests write.

use std::collections::{HashMap, VecDeque};

/// Blocks in the order of their last use.
#[derive(Debug, Default)]
pub(super) struct RecentBlocks {
    /// Number of the last use of each block.
    last_uses: HashMap<u64, u64>,
    /// Blocks with the number of a use. An entry that is not the last use of its block counts for nothing.
    order: VecDeque<(u64, u64)>,
    uses: u64,
}

impl RecentBlocks {
    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.last_uses.len()
    }

    /// True if the block is here.
    pub(super) fn contains(&self, block: u64) -> bool {
        self.last_uses.contains_key(&block)
    }

    /// Number of blocks at the beginning of a prompt that are here.
    pub(super) fn count_prefix(&self, blocks: &[u64]) -> usize {
        let held = blocks.iter().take_while(|block| self.contains(**block));
        held.count()
    }

    /// Adds a block, or makes it the one that was used last.
    pub(super) fn insert(&mut self, block: u64) {
        self.uses += 1;
        self.last_uses.insert(block, self.uses);
        self.order.push_back((block, self.uses));
        if self.order.len() > 64 + 4 * self.last_uses.len() {
            let last_uses = &self.last_uses;
            self.order
                .retain(|(block, used)| last_uses.get(block) == Some(used));
        }
    }

    /// Removes a block. Returns true if it was here.
    pub(super) fn remove(&mut self, block: u64) -> bool {
        self.last_uses.remove(&block).is_some()
    }

    /// Removes the block that was not used for the longest time.
    pub(super) fn pop_oldest(&mut self) -> Option<u64> {
        loop {
            let (block, used) = self.order.pop_front()?;
            if self.last_uses.get(&block) == Some(&used) {
                self.last_uses.remove(&block);
                return Some(block);
            }
        }
    }

    /// Uses the blocks of a prompt, and keeps at most `room` blocks. The end of a prompt goes before its beginning.
    pub(super) fn insert_prompt(&mut self, blocks: &[u64], room: usize) {
        for block in blocks.iter().rev() {
            self.insert(*block);
        }
        while self.len() > room && self.pop_oldest().is_some() {}
    }
}

/// Cache of an engine. Blocks of prompts that no request uses stay until their room is needed, the least recently used
/// one goes first.
#[derive(Debug)]
pub(super) struct BlockCache {
    capacity: usize,
    /// Number of requests that use each block.
    used: HashMap<u64, u32>,
    idle: RecentBlocks,
    /// Blocks of single requests: prompts that are not read yet, ends of prompts, and answers.
    private: usize,
}

impl BlockCache {
    pub(super) fn new(capacity: usize) -> Self {
        BlockCache {
            capacity,
            used: HashMap::new(),
            idle: RecentBlocks::default(),
            private: 0,
        }
    }

    /// Number of blocks at the beginning of a prompt that are in the cache.
    pub(super) fn count_prefix(&self, blocks: &[u64]) -> usize {
        let is_held = |block: &&u64| self.used.contains_key(block) || self.idle.contains(**block);
        blocks.iter().take_while(is_held).count()
    }

    /// Share of the cache that requests use.
    pub(super) fn used_share(&self) -> f64 {
        self.occupied() as f64 / self.capacity as f64
    }

    fn occupied(&self) -> usize {
        self.used.len() + self.private
    }

    /// Takes blocks of a prompt that are in the cache, and `private` blocks of its own, for a request. Returns false if
    /// there is no room, and takes nothing then, unless `is_forced`.
    pub(super) fn admit(&mut self, held: &[u64], private: usize, is_forced: bool) -> bool {
        let idle = held.iter().filter(|block| self.idle.contains(**block));
        if self.occupied() + idle.count() + private > self.capacity && !is_forced {
            return false;
        }
        held.iter().for_each(|block| self.hold(*block));
        self.take_private(private);
        true
    }

    /// Takes a further block for an answer. Returns false if there is no room, and takes nothing then, unless `is_forced`.
    pub(super) fn grow(&mut self, is_forced: bool) -> bool {
        let has_room = self.occupied() < self.capacity;
        if has_room || is_forced {
            self.take_private(1);
        }
        has_room || is_forced
    }

    fn take_private(&mut self, blocks: usize) {
        self.private += blocks;
        while self.occupied() + self.idle.len() > self.capacity && self.idle.pop_oldest().is_some()
        {
        }
    }

    fn hold(&mut self, block: u64) {
        self.idle.remove(block);
        *self.used.entry(block).or_default() += 1;
    }

    /// Makes one private block of a request a block that others can use, too.
    pub(super) fn publish(&mut self, block: u64) {
        self.private -= 1;
        self.hold(block);
    }

    /// Gives up blocks of a request. They stay in the cache; the end of the prompt goes before its beginning.
    pub(super) fn release(&mut self, held: &[u64], private: usize) {
        self.private -= private;
        for block in held.iter().rev() {
            if let Some(users) = self.used.get_mut(block) {
                *users -= 1;
                if *users == 0 {
                    self.used.remove(block);
                    self.idle.insert(*block);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_oldest_prompt_goes_first() {
        let mut cache = BlockCache::new(4);
        for prompt in [[1, 2], [3, 4]] {
            assert!(cache.admit(&[], 2, false));
            prompt.iter().for_each(|block| cache.publish(*block));
            cache.release(&prompt, 0);
        }
        assert_eq!(cache.count_prefix(&[1, 2, 9]), 2);
        assert!(cache.admit(&[], 1, false));
        assert_eq!(cache.count_prefix(&[1, 2]), 1);
        assert_eq!(cache.count_prefix(&[3, 4]), 2);
    }

    #[test]
    fn blocks_in_use_stay() {
        let mut cache = BlockCache::new(4);
        assert!(cache.admit(&[], 3, false));
        [1, 2, 3].into_iter().for_each(|block| cache.publish(block));
        assert!(!cache.admit(&[], 2, false));
        assert!(cache.admit(&[1], 1, false));
        assert!(!cache.grow(false));
        cache.release(&[1, 2, 3], 0);
        assert!(cache.grow(false), "blocks 2 and 3 are idle");
        assert_eq!(cache.count_prefix(&[1, 2, 3]), 2, "3 went first");
        assert_eq!(cache.used_share(), 0.75);
    }

    #[test]
    fn an_index_keeps_its_size() {
        let mut blocks = RecentBlocks::default();
        for turn in 0..100 {
            blocks.insert_prompt(&[1, 2, 100 + turn], 3);
            assert!(blocks.len() <= 3);
        }
        assert_eq!(blocks.count_prefix(&[1, 2, 199]), 3);
        assert!(blocks.order.len() <= 80);
    }
}
